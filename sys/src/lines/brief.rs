//! A page's hashes, abridged: 104 bytes where all of them are 512.
//!
//! ```text
//!   0                64               96    104
//!   | upper 8 bits … | next 4 bits …  | sum  |      of each line's hash; of the sum over all hashes, 64
//!                      └ byte k: of line k below, of line k + 32 above
//! ```
//!
//! Lines whose top, these twelve bits, differs have changed. One changed line in 4096 has its old
//! top; then the sum is another. If no top differs that is seen at once. If some do, their old
//! hashes are not known, and neither is the right sum over the other lines. But the old sum over
//! the changed lines is known, if no others have changed ([`Found::Lines`]). A caller that has
//! their old bytes confirms it.

use super::{Hasher, Hashes, LINES};
use core::arch::x86_64::*;
use std::mem::MaybeUninit;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Brief {
    tops: Tops,
    sum: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
struct Tops {
    upper: [u8; LINES],
    lower: [u8; LINES / 2],
}

impl Tops {
    const NONE: Tops = Tops { upper: [0; LINES], lower: [0; LINES / 2] };
}

/// Bits of a hash that are kept for its line: its topmost.
pub const TOP_BITS: u32 = 12;
/// All of a top, for [`Brief::compare`].
pub const WHOLE_TOP: u16 = (1 << TOP_BITS) - 1;

/// How a page differs from its earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The same.
    Same,
    /// Changed in these lines (bit k: line k), and in no others *if* the sum over these lines as
    /// they were is `was`.
    Lines {
        /// Which.
        lines: u64,
        /// See [`Hasher::sum_in`].
        was: u64,
    },
    /// Changed, and it is not known where.
    Somewhere,
}

impl Default for Brief {
    /// Of no page.
    fn default() -> Brief {
        Brief { tops: Tops::NONE, sum: 0 }
    }
}

impl Brief {
    /// Of a page.
    ///
    /// # Safety
    /// The page must be mapped, and stay as it is.
    #[inline]
    pub unsafe fn take(&mut self, hasher: &Hasher, page: *const u8) {
        let mut hashes = MaybeUninit::uninit();
        // SAFETY: the caller's promise.
        let (hashes, sum) = unsafe { hasher.hash_and_sum(page, None, &mut hashes) };
        tops(hashes, &mut self.tops);
        self.sum = sum;
    }

    /// Compares the page with the brief. Bits of the tops outside of `mask` are ignored. The
    /// runtime ignores none ([`WHOLE_TOP`]); tests ignore some, to have lines overlooked. `next`:
    /// see [`Hasher::hash_and_sum`].
    ///
    /// # Safety
    /// As [`Brief::take`].
    #[inline]
    pub unsafe fn compare(&self, hasher: &Hasher, page: *const u8, next: Option<*const u8>, mask: u16) -> Found {
        let (mut hashes, mut now) = (MaybeUninit::uninit(), Tops::NONE);
        // SAFETY: the caller's promise.
        let (hashes, sum) = unsafe { hasher.hash_and_sum(page, next, &mut hashes) };
        tops(hashes, &mut now);
        let (lines, gone) = (differing(&self.tops, &now, mask), sum.wrapping_sub(self.sum));
        match lines {
            0 if gone == 0 => Found::Same,
            0 => Found::Somewhere,
            // Of the sum as it was, without what the others, unchanged, are of the sum as it is.
            lines => Found::Lines { lines, was: hasher.sum_of(hashes, lines).wrapping_sub(gone) },
        }
    }
}

/// The top of each hash.
#[inline]
fn tops(hashes: &Hashes, into: &mut Tops) {
    // SAFETY: loads and stores within the arrays; SSE2 is part of x86-64.
    unsafe {
        // Of sixteen hashes the highest 16 bits.
        let sixteen = |nth: usize| {
            let load = |i: usize| _mm_loadu_ps(hashes.as_ptr().cast::<__m128>().add(8 * nth + i).cast());
            // The upper halves of four hashes, their own upper halves, signed so that packing
            // leaves them as they are.
            let four = |i| _mm_srai_epi32::<16>(_mm_castps_si128(_mm_shuffle_ps::<0xDD>(load(i), load(i + 1))));
            [_mm_packs_epi32(four(0), four(2)), _mm_packs_epi32(four(4), four(6))]
        };
        let store = |into: &mut [u8], at: usize, bytes| _mm_storeu_si128(into[at..][..16].as_mut_ptr().cast(), bytes);
        let byte = _mm_set1_epi16(0xFF);
        let upper = |[a, b]: [__m128i; 2]| _mm_packus_epi16(_mm_srli_epi16::<8>(a), _mm_srli_epi16::<8>(b));
        let lower = |[a, b]: [__m128i; 2]| _mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte));
        let high = _mm_set1_epi8(0xF0_u8 as i8);
        for nth in 0..LINES / 32 {
            let (near, far) = (sixteen(nth), sixteen(nth + 2));
            store(&mut into.upper, 16 * nth, upper(near));
            store(&mut into.upper, 16 * nth + 32, upper(far));
            // Of a lower byte only its upper half is kept: in its place for the one, four bits
            // further down for the other.
            let below = _mm_srli_epi16::<4>(_mm_and_si128(lower(near), high));
            store(&mut into.lower, 16 * nth, _mm_or_si128(_mm_and_si128(lower(far), high), below));
        }
    }
}

/// Bit k: top k differs within the mask.
#[inline]
fn differing(a: &Tops, b: &Tops, mask: u16) -> u64 {
    let (mut upper, mut lower) = (0, 0);
    // SAFETY: loads within the arrays; SSE2 is part of x86-64.
    unsafe {
        let load = |of: &[u8], at: usize| _mm_loadu_si128(of[at..][..16].as_ptr().cast());
        let other = |a: &[u8], b: &[u8], at| _mm_xor_si128(load(a, at), load(b, at));
        let lines = |differing| !_mm_movemask_epi8(_mm_cmpeq_epi8(differing, _mm_setzero_si128())) as u64 & 0xFFFF;
        let [high, below, above] = [mask >> 4, mask & 0xF, (mask & 0xF) << 4].map(|mask| _mm_set1_epi8(mask as i8));
        for at in (0..LINES).step_by(16) {
            upper |= lines(_mm_and_si128(other(&a.upper, &b.upper, at), high)) << at;
        }
        for at in (0..LINES / 2).step_by(16) {
            let other = other(&a.lower, &b.lower, at);
            lower |= lines(_mm_and_si128(other, below)) << at;
            lower |= lines(_mm_and_si128(other, above)) << (at + 32);
        }
    }
    upper | lower
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tops_are_the_hashes_highest_bits() {
        assert_eq!(size_of::<Brief>(), 104);
        let hashes: Hashes =
            std::array::from_fn(|i| (i as u64 * 0x0123_4567_89AB_CDEF).rotate_left(i as u32) ^ 1 << 63);
        let found_of = |hashes: &Hashes| {
            let mut found = Tops::NONE;
            tops(hashes, &mut found);
            found
        };
        let found = found_of(&hashes);
        for (line, hash) in hashes.into_iter().enumerate() {
            let lower = found.lower[line % 32] >> (4 * (line / 32)) & 0xF;
            assert_eq!(u64::from(found.upper[line]) << 4 | u64::from(lower), hash >> (64 - TOP_BITS), "{line}");
        }
        for line in 0..LINES {
            for bit in 0..u64::BITS {
                let mut others = hashes;
                others[line] ^= 1 << bit;
                let other = found_of(&others);
                let seen = if bit >= 64 - TOP_BITS { 1 << line } else { 0 };
                assert_eq!(differing(&found, &other, WHOLE_TOP), seen, "{line}, {bit}");
                if seen != 0 {
                    let own = 1 << (bit - (64 - TOP_BITS));
                    assert_eq!(differing(&found, &other, own), seen, "{line}, {bit}");
                    assert_eq!(differing(&found, &other, WHOLE_TOP & !own), 0, "{line}, {bit}");
                }
            }
        }
    }
}
