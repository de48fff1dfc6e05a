//! Lines of two pages that differ, byte for byte.

use super::{LINE_BYTES, LINES, Unit};
use crate::memory::{prefetch, prefetch_second};
use core::arch::x86_64::*;

/// The addresses of two pages that are compared next, or of one page twice. They need not be
/// mapped.
pub type Next = [*const u8; 2];

/// Bit k: line k differs. `next`, if any: see [`super::asks_along`].
///
/// # Safety
/// Both pages must be mapped, and stay as they are. `unit` must be one that this CPU has, as
/// [`Unit::best`] is.
#[inline]
pub unsafe fn differing(unit: Unit, a: *const u8, b: *const u8, next: Option<Next>) -> u64 {
    match (unit, next) {
        // SAFETY: the pages and the unit are the caller's promises.
        (Unit::Avx2, Some(next)) if next[0] == next[1] => unsafe { differing_by_avx2::<1>(a, b, next) },
        // SAFETY: as above.
        (Unit::Avx2, Some(next)) => unsafe { differing_by_avx2::<2>(a, b, next) },
        // SAFETY: as above.
        (Unit::Avx2, None) => unsafe { differing_by_avx2::<0>(a, b, [a, b]) },
        // SAFETY: the pages are the caller's promise; SSE2 is part of x86-64.
        (Unit::Sse2 | Unit::Scalar, _) => unsafe { differing_by_sse2(a, b) },
    }
}

/// Half as many instructions as by SSE2, so that the CPU sees twice as many lines ahead. That
/// counts where both pages are in memory (`farmem-lab bench evict`, last table).
///
/// # Safety
/// Both pages must be mapped, and stay as they are; the CPU must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn differing_by_avx2<const ASKED: usize>(a: *const u8, b: *const u8, next: Next) -> u64 {
    let mut lines = 0u64;
    for line in 0..LINES {
        let ahead = next.map(|page| page as usize + line * LINE_BYTES);
        match ASKED {
            0 => {}
            // Held pages may be read in between, which sweeps the first cache.
            1 => prefetch_second(ahead[0]),
            _ => ahead.into_iter().for_each(prefetch),
        }
        // SAFETY: within the pages, the caller's promise, as is AVX2.
        let differ = unsafe {
            let (a, b) = (a.add(line * LINE_BYTES).cast::<__m256i>(), b.add(line * LINE_BYTES).cast::<__m256i>());
            let differ = |i| _mm256_xor_si256(_mm256_loadu_si256(a.add(i)), _mm256_loadu_si256(b.add(i)));
            let differ = _mm256_or_si256(differ(0), differ(1));
            _mm256_testz_si256(differ, differ) == 0
        };
        lines |= (differ as u64) << line;
    }
    lines
}

/// # Safety
/// Both pages must be mapped, and stay as they are.
#[inline]
unsafe fn differing_by_sse2(a: *const u8, b: *const u8) -> u64 {
    let mut lines = 0u64;
    for line in 0..LINES {
        // SAFETY: within the pages, the caller's promise; SSE2 is part of x86-64.
        let same = unsafe {
            let (a, b) = (a.add(line * LINE_BYTES).cast::<__m128i>(), b.add(line * LINE_BYTES).cast::<__m128i>());
            let alike = |i| _mm_cmpeq_epi8(_mm_loadu_si128(a.add(i)), _mm_loadu_si128(b.add(i)));
            _mm_movemask_epi8(_mm_and_si128(_mm_and_si128(alike(0), alike(1)), _mm_and_si128(alike(2), alike(3))))
        };
        lines |= ((same != 0xFFFF) as u64) << line;
    }
    lines
}

/// Copies some lines of a page to the same place in another.
///
/// # Safety
/// As [`differing`]; and no other thread may touch the target.
#[inline]
pub unsafe fn copy_lines(from: *const u8, to: *mut u8, mut lines: u64) {
    while lines != 0 {
        let at = lines.trailing_zeros() as usize * LINE_BYTES;
        lines &= lines - 1;
        // SAFETY: within the pages.
        unsafe {
            for i in 0..4 {
                let part = _mm_loadu_si128(from.add(at).cast::<__m128i>().add(i));
                _mm_storeu_si128(to.add(at).cast::<__m128i>().add(i), part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_marks_its_line() {
        for unit in [Unit::Sse2, Unit::best()] {
            any_byte_marks_its_line_by(unit);
        }
    }

    fn any_byte_marks_its_line_by(unit: Unit) {
        let before = [7u8; 4096];
        // SAFETY: live arrays; a unit that this CPU has.
        unsafe {
            assert_eq!(differing(unit, before.as_ptr(), before.as_ptr(), None), 0);
            for at in 0..4096 {
                let mut after = before;
                after[at] ^= 0x80;
                let next = Some([before.as_ptr(), std::ptr::null()]);
                let lines = differing(unit, after.as_ptr(), before.as_ptr(), next);
                assert_eq!(lines, differing(unit, after.as_ptr(), before.as_ptr(), None));
                assert_eq!(lines, 1 << (at / 64), "byte {at}");
            }
            let (mut target, source) = ([7u8; 4096], [9u8; 4096]);
            copy_lines(source.as_ptr(), target.as_mut_ptr(), 1 << 63 | 6);
            assert_eq!(differing(unit, target.as_ptr(), before.as_ptr(), None), 1 << 63 | 6);
            assert_eq!(differing(unit, target.as_ptr(), source.as_ptr(), None), !(1 << 63 | 6));
            assert_eq!(differing(unit, [0u8; 4096].as_ptr(), before.as_ptr(), None), u64::MAX);
        }
    }
}
