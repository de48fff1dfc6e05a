//! A page's hashes, abridged: 136 bytes where all of them are 512.
//!
//! ```text
//!   0                                     128    136
//!   | top 16 bits of each line's hash ... | sum  |
//! ```
//!
//! Lines whose top differs have changed. One changed line in 65 536 has its old top; then the sum is another. If no
//! top differs that is seen at once. If some do, their old hashes are not known, and what the sum over the others
//! should be is not, either: but what the sum over the changed ones *was*, if these were all, can be said
//! ([`Found::Lines`]), and is for somebody to confirm who has their old bytes.

use super::{Hasher, Hashes, LINES};
use core::arch::x86_64::*;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Brief {
    tops: [u16; LINES],
    sum: u64,
}

/// What a page is, beside what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The same.
    Same,
    /// Changed in these lines (bit k: line k), and in no others *if* the sum over these lines as they were is `was`.
    Lines {
        /// Which.
        lines: u64,
        /// See [`Hasher::sum_in`].
        was: u64,
    },
    /// Changed, nobody knows where.
    Somewhere,
}

/// The part of a hash that is kept for its line.
pub fn top(hash: u64) -> u16 {
    (hash >> 48) as u16
}

impl Default for Brief {
    /// Of no page.
    fn default() -> Brief {
        Brief { tops: [0; LINES], sum: 0 }
    }
}

impl Brief {
    /// Of a page.
    ///
    /// # Safety
    /// The page must be mapped, and stay as it is.
    #[inline]
    pub unsafe fn take(&mut self, hasher: &Hasher, page: *const u8) {
        let mut hashes = [0; LINES];
        // SAFETY: the caller's promise.
        unsafe { hasher.hash(page, &mut hashes) };
        tops(&hashes, &mut self.tops);
        self.sum = hasher.sum(&hashes);
    }

    /// What became of the page. Of the tops, bits outside of `mask` are not looked at: all are, but for tests that want
    /// lines to be overlooked.
    ///
    /// # Safety
    /// As [`Brief::take`].
    #[inline]
    pub unsafe fn compare(&self, hasher: &Hasher, page: *const u8, mask: u16) -> Found {
        let (mut hashes, mut now) = ([0; LINES], [0; LINES]);
        // SAFETY: the caller's promise.
        unsafe { hasher.hash(page, &mut hashes) };
        tops(&hashes, &mut now);
        let (lines, gone) = (differing(&self.tops, &now, mask), hasher.sum(&hashes).wrapping_sub(self.sum));
        match lines {
            0 if gone == 0 => Found::Same,
            0 => Found::Somewhere,
            // Of the sum as it was, without what the others, unchanged, are of the sum as it is.
            lines => Found::Lines { lines, was: hasher.sum_of(&hashes, lines).wrapping_sub(gone) },
        }
    }
}

/// The top of each hash.
#[inline]
fn tops(hashes: &Hashes, into: &mut [u16; LINES]) {
    // SAFETY: loads and stores within the arrays; SSE2 is part of x86-64.
    unsafe {
        for eight in 0..LINES / 8 {
            let from = hashes.as_ptr().cast::<__m128>().add(4 * eight);
            let load = |i: usize| _mm_loadu_ps(from.add(i).cast());
            // The upper halves of four hashes, their own upper halves, signed so that packing leaves them as they are.
            let four = |i| _mm_srai_epi32::<16>(_mm_castps_si128(_mm_shuffle_ps::<0xDD>(load(i), load(i + 1))));
            _mm_storeu_si128(into.as_mut_ptr().add(8 * eight).cast(), _mm_packs_epi32(four(0), four(2)));
        }
    }
}

/// Bit k: top k differs within the mask.
#[inline]
fn differing(a: &[u16; LINES], b: &[u16; LINES], mask: u16) -> u64 {
    let mut lines = 0;
    // SAFETY: loads within the arrays; SSE2 is part of x86-64.
    unsafe {
        let mask = _mm_set1_epi16(mask as i16);
        let same = |i: usize| {
            let [a, b] =
                [a, b].map(|tops| _mm_and_si128(_mm_loadu_si128(tops.as_ptr().cast::<__m128i>().add(i)), mask));
            _mm_cmpeq_epi16(a, b)
        };
        for sixteen in 0..LINES / 16 {
            let alike = _mm_movemask_epi8(_mm_packs_epi16(same(2 * sixteen), same(2 * sixteen + 1)));
            lines |= (!alike as u64 & 0xFFFF) << (16 * sixteen);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tops_are_the_hashes_highest_bits() {
        let hashes: Hashes =
            std::array::from_fn(|i| (i as u64 * 0x0123_4567_89AB_CDEF).rotate_left(i as u32) ^ 1 << 63);
        let mut found = [0; LINES];
        tops(&hashes, &mut found);
        assert_eq!(found, hashes.map(top));
        for line in 0..LINES {
            let mut other = found;
            other[line] ^= 1 << (line % 16);
            assert_eq!(differing(&found, &other, u16::MAX), 1 << line);
            assert_eq!(differing(&found, &other, !(1 << (line % 16))), 0);
        }
    }
}
