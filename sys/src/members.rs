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
//! In other PID namespaces numbers mean other processes. Names are [`cards`] there, where a task can
//! have one. A name is never taken for gone where that cannot be known. A wait for its owner ends
//! after a limit instead ([`Doubt`]).
//!
//! A process that libc did not make (a `syscall` instruction of the program's own) is noticed when
//! it first faults, or first needs a page for a call ([`notice`]).

mod cards;
mod doubt;
mod sharers;

pub use doubt::Doubt;

use crate::raw::{Errno, checked, getpid, home, now_ns, syscall};
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
/// Called when a member is gone: a `fn(u32)`, with the member's number, or [`SOME`]. 0: nothing.
static ENDED: AtomicUsize = AtomicUsize::new(0);
/// How long a node may be waited for, ms.
static GRACE_MS: AtomicU32 = AtomicU32::new(0);
/// No number: a member of which nothing more is known.
pub const SOME: u32 = 0;

/// The limit of a wait for a holder of whom nothing is known, where processes were seen that such a
/// holder can be, ms. The grace comes on top, twice.
const SEEN_MS: u32 = 10_000;
/// … and where none was seen.
const UNSEEN_MS: u32 = 300_000;
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
    let number = unsafe { syscall(libc::SYS_gettid, [0; 6]) as u32 };
    let card = if ELSEWHERE.load(Ordering::Relaxed) { cards::own(number) } else { None };
    card.unwrap_or(number)
}

/// The caller may be a process that shares this memory and that nothing has announced. If so, it is
/// noted. A system call, until there is one.
#[inline]
pub fn notice() {
    if !any_companion() {
        notice_now();
    }
}

#[cold]
fn notice_now() {
    let (own, home) = (getpid(), home());
    // A vfork child is counted while it has this memory.
    if home == 0 || own == home || SHARERS.load(Ordering::Relaxed) & VFORKS != 0 {
        return;
    }
    if has_memory_of(own, home) != Some(true) {
        count_elsewhere();
    }
    SHARERS.fetch_or(COMPANION, Ordering::Relaxed);
}

/// In a forked child, whose memory is its own.
pub fn forget_in_child() {
    SHARERS.fetch_and(!COMPANION, Ordering::Relaxed);
    cards::forget_in_child();
}

/// From now on names cannot be judged: processes may come that count in another PID namespace.
pub fn count_elsewhere() {
    ELSEWHERE.store(true, Ordering::Relaxed);
}

/// Sets what is done when a member is found gone, and what looks for one in all that members hold.
/// `ended` ends the process; `look` asks [`is_there`] for each holder. `grace_ms`: how long a holder
/// may wait for a node.
pub fn watch(ended: fn(u32), look: fn(), grace_ms: u32) {
    GRACE_MS.store(grace_ms, Ordering::Relaxed);
    ENDED.store(ended as usize, Ordering::Relaxed);
    LOOK.store(look as usize, Ordering::Relaxed);
}

fn end(number: u32) {
    let ended = ENDED.load(Ordering::Relaxed);
    if ended != 0 {
        // SAFETY: stored by [`watch`], from such a function.
        let ended = unsafe { std::mem::transmute::<usize, fn(u32)>(ended) };
        ended(number);
    }
}

/// Ends the process if the holder of that name is gone. The caller has waited for it for long.
/// Returns whether the holder is known to be there.
#[cold]
pub fn is_there(name: u32) -> bool {
    let (fate, number) = fate(name);
    if fate == Fate::Gone {
        end(number);
    }
    fate == Fate::There
}

/// One more look at a holder that is not known to be there. Ends the process if there have been too
/// many. `of` is the waiter's number for this holding, not 0.
#[cold]
pub fn is_doubtful(doubt: &Doubt, name: u32, of: u64) {
    let seen = ELSEWHERE.load(Ordering::Relaxed) || name == UNNAMED && any_companion();
    let limit =
        GRACE_MS.load(Ordering::Relaxed).saturating_mul(2).saturating_add(if seen { SEEN_MS } else { UNSEEN_MS });
    if doubt.looked(of, now_ns() / 1_000_000) >= limit {
        end(SOME);
    }
}

/// Both, for a waiter that waits for this holder alone: a lock's. `holding` tells holdings apart
/// whose holders have the same name.
#[cold]
pub fn judge(doubt: &Doubt, name: u32, holding: u32) {
    let of = u64::from(holding) << 32 | (u64::from(name) + 1);
    if is_there(name) { doubt.clear() } else { is_doubtful(doubt, name, of) }
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

/// What became of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    There,
    /// It has ended, or has another memory now.
    Gone,
    /// It cannot be told.
    Unknown,
}

/// What became of the holder of that name, and its number.
fn fate(name: u32) -> (Fate, u32) {
    if let Some(known) = cards::fate(name) {
        return known;
    }
    if name <= FIRST || ELSEWHERE.load(Ordering::Relaxed) {
        return (Fate::Unknown, SOME);
    }
    let own = getpid();
    if name == UNNAMED {
        let home = home();
        let has_ended = home > FIRST && home != own && has_ended(home) == Some(true);
        // A thread of this process, or a process beside that was not noticed.
        return (if has_ended { Fate::Gone } else { Fate::Unknown }, home);
    }
    // A thread of its own process ends with it. Another's number may be a third one's by now.
    let fate = match has_ended(name) {
        Some(true) => Fate::Gone,
        Some(false) if is_thread_of(own, name) => Fate::There,
        Some(false) => match has_memory_of(own, name) {
            Some(true) => Fate::There,
            Some(false) => Fate::Gone,
            None => Fate::Unknown,
        },
        None => Fate::Unknown,
    };
    (fate, name)
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

/// Whether a number is that of a thread of this process, `own`.
fn is_thread_of(own: u32, number: u32) -> bool {
    // SAFETY: no pointers, and no signal.
    unsafe { checked(libc::SYS_tgkill, [own as usize, number as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Whether two tasks have one memory. `None`: the system does not tell.
pub fn has_memory_of(one: u32, other: u32) -> Option<bool> {
    const KCMP_VM: usize = 1;
    // SAFETY: no pointers.
    unsafe { checked(libc::SYS_kcmp, [one as usize, other as usize, KCMP_VM, 0, 0, 0]) }.ok().map(|order| order == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_gone_when_its_process_has_ended_or_has_another_memory() {
        let _one = crate::holdings::ONE_TEST.lock();
        let own = getpid();
        let is_gone = |name| fate(name).0 == Fate::Gone;
        assert_eq!([own, number(), FIRST, UNNAMED].map(is_gone), [false; 4]);
        assert_eq!([own, number()].map(|name| fate(name).0), [Fate::There; 2]);
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
