//! The memory under measurement: an array whose every word can be told from its place.
//!
//! Content is half random and half small numbers, in groups of four words: one
//! of 64 random bits, three of 8. It compresses about 2:1 with what zram uses:
//! all-random content would be unfair to compressed swap (nothing compresses),
//! constant content unfair to everything else (zram keeps no page for it).

#![allow(unsafe_code)] // One anonymous mapping, read and written by volatile words.

use std::io;

use farmem_protocol::random::mix;

/// Words of 64 bits in a page.
pub const WORDS: usize = 512;
/// Words that threads 0 and 1 count in when they write; in lines of their own.
pub const COUNTING: [usize; 2] = [64, 320];

/// A private anonymous mapping, as a program's allocator makes them.
pub struct Array {
    base: *mut u64,
    pages: usize,
    seed: u64,
}

// SAFETY: all access is by volatile words, and threads that write have a word per page each (COUNTING).
unsafe impl Sync for Array {}

impl Array {
    /// Maps `pages` pages; touches none.
    pub fn map(pages: usize, seed: u64) -> io::Result<Array> {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * WORDS * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Array { base: base.cast(), pages, seed })
    }

    /// Its size.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.base as usize
    }

    /// Reads a word.
    #[inline(always)]
    pub fn read(&self, page: usize, word: usize) -> u64 {
        debug_assert!(page < self.pages && word < WORDS);
        // SAFETY: within the mapping: callers draw pages below `pages()` and words below WORDS.
        unsafe { self.base.add(page * WORDS + word).read_volatile() }
    }

    /// Writes a word.
    #[inline(always)]
    pub fn write(&self, page: usize, word: usize, value: u64) {
        debug_assert!(page < self.pages && word < WORDS);
        // SAFETY: as in `read`; of a word, one thread is the only writer.
        unsafe { self.base.add(page * WORDS + word).write_volatile(value) };
    }

    /// What was written into a word when the array was filled.
    #[inline(always)]
    pub fn content(&self, page: usize, word: usize) -> u64 {
        content(self.seed, page, word)
    }

    /// Fills a page.
    pub fn fill(&self, page: usize) {
        (0..WORDS).for_each(|word| self.write(page, word, self.content(page, word)));
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.pages * WORDS * 8) };
    }
}

/// The content of a word: see the top of this file.
#[inline(always)]
pub fn content(seed: u64, page: usize, word: usize) -> u64 {
    let bits = mix(seed.wrapping_add(((page * WORDS + word) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    if word.is_multiple_of(4) { bits } else { bits & 0xFF }
}

/// The word of a page that reading the page reads. Not always the same, or all reads would share cache sets;
/// never one that is counted in.
#[inline(always)]
pub fn sampled_word(seed: u64, page: usize) -> usize {
    let word = mix(seed ^ page as u64) as usize % WORDS;
    if COUNTING.contains(&word) { word + 1 } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_as_it_was_filled() {
        let array = Array::map(3, 7).unwrap();
        (0..3).for_each(|page| array.fill(page));
        assert!((0..WORDS).all(|word| array.read(2, word) == array.content(2, word)));
        assert_ne!(array.content(0, 0), array.content(1, 0));
        assert!((0..10_000).all(|page| !COUNTING.contains(&sampled_word(7, page)) && sampled_word(7, page) < WORDS));
    }
}
