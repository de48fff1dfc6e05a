//! The kernel's side of far mappings: the system calls that lay, change and drop them.
//!
//! They are safe to call for far addresses. No object of the runtime lies there, and what the
//! program has there is the program's own to lose: these calls are made at its request, or for
//! pages that the pager owns. Every function refuses other addresses.

#![allow(unsafe_code)] // System calls on far mappings.

use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::raw::{Errno, syscall};

/// Makes a call about a range, which must begin at a far address.
fn ask(nr: i64, at: usize, rest: [usize; 5]) -> isize {
    assert!(is_far(at), "a far call about {at:#x}");
    let [a, b, c, d, e] = rest;
    // SAFETY: the range is far: nothing of the runtime's own is there.
    unsafe { syscall(nr, [at, a, b, c, d, e]) }
}

/// Lays a mapping of fresh private memory, over whatever is there.
pub fn lay(at: usize, len: usize, prot: i32, flags: i32) -> isize {
    ask(libc::SYS_mmap, at, [len, prot as usize, (flags | libc::MAP_FIXED) as usize, usize::MAX, 0])
}

/// Unmaps a range.
pub fn unmap(at: usize, len: usize) -> isize {
    ask(libc::SYS_munmap, at, [len, 0, 0, 0, 0])
}

/// Changes a range's protection.
pub fn protect(at: usize, len: usize, prot: i32) -> isize {
    ask(libc::SYS_mprotect, at, [len, prot as usize, 0, 0, 0])
}

/// Gives advice about a range.
pub fn advise(at: usize, len: usize, advice: i32) -> isize {
    ask(libc::SYS_madvise, at, [len, advice as usize, 0, 0, 0])
}

/// Moves, grows or shrinks a mapping.
pub fn remap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> isize {
    ask(libc::SYS_mremap, old, [old_len, new_len, flags as usize, new, 0])
}

/// Drops the pages of a range, which are the caller's.
///
/// # Errors
/// Locked memory stays.
pub fn discard(at: usize, len: usize) -> Result<(), Errno> {
    match advise(at, len, libc::MADV_DONTNEED) {
        0.. => Ok(()),
        e => Err(Errno(-e as i32)),
    }
}

/// Drops a page, which is the caller's.
pub fn discard_page(page: PageId) {
    let _ = discard(page.addr(), PAGE_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a far call about")]
    fn near_memory_is_refused() {
        let near = [0u8; PAGE_BYTES];
        unmap(near.as_ptr() as usize, PAGE_BYTES);
    }
}
