//! What is measured: an allocator, as a thread has it.

// malloc, free, and writing to what they give.
#![allow(unsafe_code)]

use crate::heap::ThreadHeap;

/// An allocator, as one thread has it. Objects are addresses, so that they can go to other threads.
pub trait Malloc {
    /// An object of so many bytes.
    fn alloc(&mut self, size: usize) -> anyhow::Result<usize>;
    /// Takes an object back, whoever got it.
    fn free(&mut self, address: usize);
}

impl Malloc for ThreadHeap<'_> {
    #[inline]
    fn alloc(&mut self, size: usize) -> anyhow::Result<usize> {
        Ok(ThreadHeap::alloc(self, size)?)
    }

    #[inline]
    fn free(&mut self, address: usize) {
        ThreadHeap::free(self, address)
    }
}

/// The system's malloc.
pub struct System;

impl Malloc for System {
    #[inline]
    fn alloc(&mut self, size: usize) -> anyhow::Result<usize> {
        // SAFETY: any size may be asked for.
        let at = unsafe { libc::malloc(size) } as usize;
        anyhow::ensure!(at != 0, "malloc of {size} bytes: no memory");
        Ok(at)
    }

    #[inline]
    fn free(&mut self, address: usize) {
        // SAFETY: an address that malloc gave, once.
        unsafe { libc::free(address as *mut libc::c_void) };
    }
}

/// Writes what tells an object from others to its first word, and to its last where that is another.
#[inline]
pub fn stamp(address: usize, size: usize) {
    let word = (address ^ size) as u64;
    // SAFETY: the object is the caller's, of at least `size` bytes.
    unsafe {
        (address as *mut u8).cast::<[u8; 8]>().write_unaligned(word.to_ne_bytes());
        if size >= 16 {
            ((address + size - 8) as *mut u8).cast::<[u8; 8]>().write_unaligned(word.to_ne_bytes());
        }
    }
}

/// Whether the stamp is there.
#[inline]
pub fn is_stamped(address: usize, size: usize) -> bool {
    let word = ((address ^ size) as u64).to_ne_bytes();
    // SAFETY: as above.
    unsafe {
        (address as *const u8).cast::<[u8; 8]>().read_unaligned() == word
            && (size < 16 || ((address + size - 8) as *const u8).cast::<[u8; 8]>().read_unaligned() == word)
    }
}

/// Bytes that malloc has taken from the system.
pub fn taken_by_system() -> u64 {
    // SAFETY: returns a value.
    let info = unsafe { libc::mallinfo2() };
    (info.arena + info.hblkhd) as u64
}
