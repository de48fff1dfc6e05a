//! The program's forks, at the system call itself.
//!
//! Not in `pthread_atfork` handlers: libc takes malloc's locks after those have
//! run, and a thread that faults inside malloc, and so holds such a lock, would
//! then wait for the fork to end, and the fork for the lock. At the system call
//! libc holds all of its locks already, and the runtime needs none of them.

use crate::dispatch::{Call, issue};
use crate::start::{claim_counters, pager};

/// Makes a clone (or fork) that copies the address space and stays on this stack.
pub fn fork(call: &Call) -> isize {
    let fork = pager().fork_prepare();
    crate::ARENA.hold_across_fork();
    let ret = issue(call);
    crate::ARENA.release_after_fork();
    if ret == 0 {
        pager().fork_child(fork, claim_counters());
    } else {
        pager().fork_parent(fork, ret > 0);
    }
    ret
}
