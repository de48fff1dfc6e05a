//! Signal masks: the runtime's two signals never reach the kernel in one, and the
//! program is told the mask that it set.

use super::blocked;
use super::frame::MASK_AT;
use super::kernel::OURS;
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::threads;
use farmem_sys::raw::syscall;
use std::sync::atomic::Ordering;

const EINVAL: isize = -(libc::EINVAL as isize);

/// Changes the calling thread's mask in the kernel; returns what it was.
pub fn change(how: i32, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two live words.
    unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [how as usize, &set as *const u64 as usize, &mut before as *mut u64 as usize, 8, 0, 0],
        )
    };
    before
}

/// Opens the runtime's two signals, should anything have blocked them. Returns those that were.
pub fn open() -> u64 {
    change(libc::SIG_UNBLOCK, OURS) & OURS
}

/// rt_sigprocmask of the program's.
pub fn rt_sigprocmask(how: i32, new: usize, old: usize, size: usize) -> isize {
    if size != 8 {
        return EINVAL;
    }
    let record = threads::current();
    let hidden = record.hidden.load(Ordering::Relaxed) as u64;
    let before = if new != 0 {
        let Some(set) = peek::<u64>(new) else { return BAD_ADDRESS };
        let now = match how {
            libc::SIG_BLOCK => hidden | set & OURS,
            libc::SIG_UNBLOCK => hidden & !set,
            libc::SIG_SETMASK => set & OURS,
            _ => return EINVAL,
        };
        record.hidden.store(now as usize, Ordering::Relaxed);
        let before = change(how, set & !OURS);
        blocked::send_kept(now);
        before
    } else {
        change(libc::SIG_BLOCK, 0)
    };
    if old != 0 && !poke(old, before | hidden) {
        return BAD_ADDRESS;
    }
    0
}

/// A handler returns by the kernel's frame whose ucontext is at `context`: the mask that it leaves
/// there is the program's from here on. Of the runtime's signals it is only noted. Kept ones that
/// it opens are sent while the kernel has all blocked, and so come where the handler returns to.
/// All signals but the runtime's are blocked, and nothing far is touched any more.
///
/// # Safety
/// A frame of the kernel's must lie there, or one that the program made to return by.
pub unsafe extern "C" fn returns_by(context: usize) {
    let mask = (context + MASK_AT) as *mut u64;
    // SAFETY: a frame that the program's handler kept, as it must for the kernel.
    let left = unsafe { mask.read() };
    // SAFETY: as above.
    unsafe { mask.write(left & !OURS) };
    let record = threads::current();
    // SeqCst, before the look at what is due. A thread that keeps a signal for this one notes the
    // signal first and looks at this word then. So one of the two sees the other.
    record.hidden.swap((left & OURS) as usize, Ordering::SeqCst);
    if blocked::is_due(record) {
        change(libc::SIG_SETMASK, u64::MAX);
        blocked::send_due(record);
    }
}

/// Sends a signal to the calling thread.
pub fn send_to_self(signal: i32) {
    // SAFETY: no pointers.
    unsafe {
        let thread = syscall(libc::SYS_gettid, [0; 6]) as usize;
        let process = syscall(libc::SYS_getpid, [0; 6]) as usize;
        syscall(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]);
    }
}
