//! The program's forks, at the system call.
//!
//! Not in `pthread_atfork` handlers: libc takes malloc's locks after those have
//! run, and a thread that faults inside malloc, and so holds such a lock, would
//! then wait for the fork to end, and the fork for the lock. At the system call
//! libc holds all of its locks already, and the runtime needs none of them. Any
//! clone without CLONE_VM is a fork: libc's, and the program's own by `syscall()`.

use crate::call::{Call, issue};
use crate::near;
use crate::process::{claim_counters, pager, take_over};
use crate::signals::actions;
use crate::threads;

/// The flags of a clone that say what the child shares with the thread that makes it, as far as matters here.
pub const SHARING: u32 = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_THREAD | libc::CLONE_FILES) as u32;

/// A clone that shares the memory, runs beside its parent, and has descriptors of its own. It would share the thread's
/// records by its thread pointer, and queue pairs whose descriptors mean something else in it: over tcp pages came back
/// wrong. Refused with ENOSYS, before anything happens. (A vfork child shares them too, but its parent waits.)
pub fn is_half(flags: usize) -> bool {
    flags as u32 & SHARING == libc::CLONE_VM as u32
}

/// Makes a clone or fork call that copies the address space.
pub fn fork(call: &Call) -> isize {
    let fork = pager().fork_prepare();
    actions::hold_across_fork();
    crate::ARENA.hold_across_fork();
    let ret = threads::current().without_traps(|| issue(call));
    crate::ARENA.release_after_fork();
    actions::release_after_fork();
    if ret == Some(0) {
        take_over();
        near::forget_in_child();
        threads::forget_in_child();
        actions::adopt();
        pager().fork_child(fork, claim_counters());
    } else {
        pager().fork_parent(fork, ret.is_some_and(|child| child > 0));
    }
    // Again, now that the pager is open to the handler that makes it in the kernel's place: filters never come to allow
    // what they have trapped.
    ret.unwrap_or_else(|| issue(call))
}
