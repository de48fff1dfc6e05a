//! Processes that share this memory, and whether one of them has ended in the midst of something.
//!
//! Threads of one process end together. A process that shares the memory of another can be killed
//! alone: a companion (`CLONE_VM` without `CLONE_THREAD`) or a vfork child. A lock that it held, or
//! a page that it was bringing in, would then be held for ever. So each holder leaves a *name* in
//! the lock or page, and a waiter that has waited long asks whether that name is gone.
//!
//! A name is a thread's number. Asking the kernel for it costs a system call, so it is asked for
//! only while other processes may share this memory. Otherwise the name is [`UNNAMED`], which
//! stands for the process whose memory this is ([`crate::raw::settle`]).
//!
//! A name is never taken for gone where that cannot be known: in other PID namespaces, and where
//! the calls that tell are forbidden.

use crate::raw::{Errno, checked, getpid, home, syscall};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Other processes that may have this memory: [`VFORKS`], [`COMPANION`] and [`UNSEEN`]. It is one
/// word because each lock reads it.
pub static SHARERS: AtomicU32 = AtomicU32::new(0);
/// In [`SHARERS`]: vfork children that have this memory now. Counted by the stubs in libc's text,
/// by ones.
pub const VFORKS: u32 = (1 << 24) - 1;
/// In [`SHARERS`]: a process was made that has this memory and runs beside the others. No thread of
/// this process's, so that nothing counts it. Set by whoever makes it; not in a forked child.
pub const COMPANION: u32 = 1 << 30;
/// In [`SHARERS`]: processes may be made that the runtime does not see. It holds for forked
/// children too.
pub const UNSEEN: u32 = 1 << 31;

/// A thread of the process whose memory this is. Above every thread number (2²²).
pub const UNNAMED: u32 = (1 << 30) - 1;
/// The first process of a PID namespace calls itself so, and others call it otherwise.
const FIRST: u32 = 1;

/// A process that shares this memory may count processes in a namespace of its own.
static ELSEWHERE: AtomicBool = AtomicBool::new(false);
/// Called when a member is gone: a `fn(u32)`, with the member's name. 0: nothing.
static ENDED: AtomicUsize = AtomicUsize::new(0);
/// Looks through everything that members hold: a `fn()`. 0: nothing.
static LOOK: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's name.
#[inline(always)]
pub fn own_name() -> u32 {
    if SHARERS.load(Ordering::Relaxed) == 0 { UNNAMED } else { number() }
}

/// Whether there is a process beside that nothing counts, or may be.
#[inline]
pub fn any_companion() -> bool {
    SHARERS.load(Ordering::Relaxed) & (COMPANION | UNSEEN) != 0
}

#[cold]
fn number() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as u32 }
}

/// From now on names cannot be judged: processes may come that count in another PID namespace.
pub fn count_elsewhere() {
    ELSEWHERE.store(true, Ordering::Relaxed);
}

/// Sets what is done when a member is found gone, and what looks for one in all that members hold.
/// `ended` ends the process; `look` calls [`judge`].
pub fn watch(ended: fn(u32), look: fn()) {
    ENDED.store(ended as usize, Ordering::Relaxed);
    LOOK.store(look as usize, Ordering::Relaxed);
}

/// Ends the process if the holder of that name is gone. The caller has waited for it for long.
#[cold]
pub fn judge(name: u32) {
    let ended = ENDED.load(Ordering::Relaxed);
    if ended != 0 && is_gone(name) {
        // SAFETY: stored by [`watch`], from such a function.
        let ended = unsafe { std::mem::transmute::<usize, fn(u32)>(ended) };
        ended(if name == UNNAMED { home() } else { name });
    }
}

/// Looks through everything that members hold. For a caller that has waited long and does not know
/// for which member.
#[cold]
pub fn look() {
    let look = LOOK.load(Ordering::Relaxed);
    if look != 0 {
        // SAFETY: stored by [`watch`], from such a function.
        let look = unsafe { std::mem::transmute::<usize, fn()>(look) };
        look();
    }
}

/// Whether the holder of that name has ended, or has another memory now. False where it cannot be
/// told.
fn is_gone(name: u32) -> bool {
    if name <= FIRST || ELSEWHERE.load(Ordering::Relaxed) {
        return false;
    }
    let own = getpid();
    if name == UNNAMED {
        let home = home();
        return home > FIRST && home != own && has_ended(home).unwrap_or(false);
    }
    // A thread of its own process ends with it.
    match has_ended(name) {
        Some(true) => true,
        // The number may be another's by now.
        Some(false) => name != own && has_other_memory(own, name),
        None => false,
    }
}

/// Whether a process, or thread, has ended. `None`: the system does not tell.
fn has_ended(number: u32) -> Option<bool> {
    // SAFETY: no pointers.
    match unsafe { checked(libc::SYS_pidfd_open, [number as usize, 0, 0, 0, 0, 0]) } {
        Ok(pidfd) => {
            let mut wanted = libc::pollfd { fd: pidfd as i32, events: libc::POLLIN, revents: 0 };
            // SAFETY: a live pollfd; the descriptor is ours.
            unsafe {
                syscall(libc::SYS_poll, [&raw mut wanted as usize, 1, 0, 0, 0, 0]);
                syscall(libc::SYS_close, [pidfd, 0, 0, 0, 0, 0]);
            }
            Some(wanted.revents & libc::POLLIN != 0)
        }
        Err(Errno(libc::ESRCH)) => Some(true),
        // It is there, and not the first thread of its process.
        Err(Errno(libc::EINVAL | libc::ENOENT)) => Some(false),
        Err(_) => None,
    }
}

/// Whether two processes have different memories. False where the system does not tell.
fn has_other_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_kcmp, [one as usize, other as usize, KCMP_VM, 0, 0, 0]) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_gone_when_its_process_has_ended_or_has_another_memory() {
        let _one = crate::holdings::ONE_TEST.lock();
        let own = getpid();
        assert_eq!((is_gone(own), is_gone(number()), is_gone(FIRST)), (false, false, false));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_gone(child.id()), "another memory");
        child.kill().unwrap();
        // It is a zombie: its status was not asked for yet.
        while has_ended(child.id()) != Some(true) {
            std::thread::yield_now();
        }
        assert!(is_gone(child.id()));
        child.wait().unwrap();
        assert!(is_gone(child.id()));
    }
}
