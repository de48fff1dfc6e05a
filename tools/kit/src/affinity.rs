//! Which CPUs a thread may run on.
//!
//! A benchmark that leaves placement to the scheduler measures, on a small
//! machine, how often an idle core had to be woken. So programs are pinned, all
//! systems alike, and one pass is left unpinned to show the difference.

#![allow(unsafe_code)] // sched_getaffinity and sched_setaffinity, on the stack.

use std::io;

/// The CPUs this process may use, ascending.
pub fn allowed() -> Vec<usize> {
    // SAFETY: cpu_set_t is plain words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live and as large as said.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0;
    if failed {
        return vec![0];
    }
    // SAFETY: the index stays within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Pins the calling thread, and what it starts from now on, to these CPUs.
///
/// # Errors
/// The kernel's: none of the CPUs exists or is allowed.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is within the set, just checked.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is live and as large as said.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `start` pinned to `cpus`, so that the process it starts inherits that; then undoes it.
pub fn inherited<T>(cpus: &[usize], start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = allowed();
    pin(cpus)?;
    let started = start();
    pin(&before)?;
    started
}
