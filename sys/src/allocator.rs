//! The memory that the process's allocator has free.

use std::sync::OnceLock;

/// How an allocator other than the C library's returns it.
static RETURNS: OnceLock<fn()> = OnceLock::new();

/// A program with an allocator of its own says once how that returns its free memory to the system.
pub fn returns_by(returns: fn()) {
    let _ = RETURNS.set(returns);
}

/// Has the allocator return the whole pages that it has free to the system. It keeps them otherwise.
/// Other threads' heaps may stay as they are: each thread that gave much back calls this.
pub fn return_free_memory() {
    match RETURNS.get() {
        Some(returns) => returns(),
        // SAFETY: takes the allocator's own locks, and touches free memory alone.
        None => _ = unsafe { libc::malloc_trim(0) },
    }
}
