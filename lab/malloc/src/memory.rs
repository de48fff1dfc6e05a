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
    /// Writes what tells an object from others to its first word, and to its last where that is another.
    #[inline]
    fn stamp(&mut self, address: usize, size: usize) -> anyhow::Result<()> {
        stamp(address, size);
        Ok(())
    }
    /// Whether the stamp is there.
    #[inline]
    fn is_stamped(&mut self, address: usize, size: usize) -> anyhow::Result<bool> {
        Ok(is_stamped(address, size))
    }
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

    #[inline]
    fn stamp(&mut self, address: usize, size: usize) -> anyhow::Result<()> {
        if self.is_elsewhere() {
            return Ok(self.put_word(address, size, stamp_of(address, size))?);
        }
        stamp(address, size);
        Ok(())
    }

    #[inline]
    fn is_stamped(&mut self, address: usize, size: usize) -> anyhow::Result<bool> {
        if self.is_elsewhere() {
            let stamp = stamp_of(address, size);
            return Ok(self.get_words(address, size)?.iter().all(|&word| word == stamp));
        }
        Ok(is_stamped(address, size))
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

#[inline]
fn stamp_of(address: usize, size: usize) -> u64 {
    (address ^ size) as u64
}

/// Writes what tells an object from others to its first word, and to its last where that is another.
#[inline]
pub fn stamp(address: usize, size: usize) {
    let word = stamp_of(address, size);
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
    let word = stamp_of(address, size).to_ne_bytes();
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
