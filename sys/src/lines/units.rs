//! The hashes of lines, word by word, by SSE2, by AVX2: the same by all.
//!
//! Products of 32-bit words are what SSE2 and AVX2 have.

use super::{Hashes, Key, LINE_BYTES, LINES};
use crate::memory::prefetch;
use core::arch::x86_64::*;

/// # Safety
/// `page` must be readable for a page.
pub unsafe fn scalar(key: &Key, page: *const u8, into: &mut Hashes) {
    for (line, hash) in into.iter_mut().enumerate() {
        let mut halves = [0; 2];
        for (half, (nh, fold)) in halves.iter_mut().zip(key.nh.iter().zip(&key.fold)) {
            let word = |i: usize| {
                // SAFETY: within the page (the caller's promise); any alignment will do.
                let m = unsafe { page.add(line * LINE_BYTES + 4 * i).cast::<u32>().read_unaligned() };
                m.wrapping_add(nh[i]) as u64
            };
            let sum = (0..8).fold(0u64, |sum, i| sum.wrapping_add(word(2 * i) * word(2 * i + 1)));
            let (low, high) = (sum & 0xFFFF_FFFF, sum >> 32);
            *half = fold[0].wrapping_add(fold[1].wrapping_mul(low)).wrapping_add(fold[2].wrapping_mul(high)) >> 32;
        }
        *hash = halves[1] << 32 | halves[0];
    }
}

/// Two lines at a time, whose sums come to lie in the two lanes of one register.
///
/// # Safety
/// `page` must be readable for a page.
pub unsafe fn sse2(key: &Key, page: *const u8, into: &mut Hashes) {
    // SAFETY: loads within the page (the caller's promise), the key and the hashes; SSE2 is part of x86-64.
    unsafe {
        let nh = |half: usize, i: usize| _mm_load_si128(key.nh[half].as_ptr().cast::<__m128i>().add(i));
        for pair in 0..LINES / 2 {
            let mut sums = [[_mm_setzero_si128(); 2]; 2];
            for line in 0..2 {
                let at = page.add((2 * pair + line) * LINE_BYTES).cast::<__m128i>();
                for i in 0..4 {
                    let m = _mm_loadu_si128(at.add(i));
                    for (half, sums) in sums.iter_mut().enumerate() {
                        let x = _mm_add_epi32(m, nh(half, i));
                        sums[line] = _mm_add_epi64(sums[line], _mm_mul_epu32(x, _mm_srli_epi64::<32>(x)));
                    }
                }
            }
            let mut folded = [_mm_setzero_si128(); 2];
            for half in 0..2 {
                let [a, b] = sums[half];
                let sum = _mm_add_epi64(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
                let [constant, low, high] = key.fold[half].map(|k| _mm_set1_epi64x(k as i64));
                let up = _mm_srli_epi64::<32>(sum);
                let lower = _mm_add_epi64(_mm_mul_epu32(sum, low), _mm_mul_epu32(up, high));
                let upper = _mm_add_epi64(
                    _mm_mul_epu32(sum, _mm_srli_epi64::<32>(low)),
                    _mm_mul_epu32(up, _mm_srli_epi64::<32>(high)),
                );
                folded[half] = _mm_add_epi64(_mm_add_epi64(constant, lower), _mm_slli_epi64::<32>(upper));
            }
            let top = _mm_set1_epi64x(0xFFFF_FFFF_0000_0000u64 as i64);
            let hashes = _mm_or_si128(_mm_srli_epi64::<32>(folded[0]), _mm_and_si128(folded[1], top));
            _mm_storeu_si128(into.as_mut_ptr().add(2 * pair).cast(), hashes);
        }
    }
}

/// Four lines at a time.
///
/// # Safety
/// `page` must be readable for a page, and the CPU must have AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn avx2(key: &Key, page: *const u8, into: &mut Hashes) {
    // SAFETY: the caller's promises.
    unsafe { avx2_by::<false>(key, page, page, into) }
}

/// The same, while the lines of `next` are asked for.
///
/// # Safety
/// As [`avx2`].
#[target_feature(enable = "avx2")]
pub unsafe fn avx2_asking(key: &Key, page: *const u8, next: *const u8, into: &mut Hashes) {
    // SAFETY: the caller's promises.
    unsafe { avx2_by::<true>(key, page, next, into) }
}

/// # Safety
/// As [`avx2`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn avx2_by<const ASK: bool>(key: &Key, page: *const u8, next: *const u8, into: &mut Hashes) {
    // SAFETY: as for `sse2`; the CPU has AVX2 (the caller's promise).
    unsafe {
        let keys: [[__m256i; 2]; 2] = std::array::from_fn(|half| {
            std::array::from_fn(|i| _mm256_load_si256(key.nh[half].as_ptr().cast::<__m256i>().add(i)))
        });
        // Not by `array::map`: that is not AVX2's, and a call where the compiler does not put it here.
        let word = |half: usize, i: usize| _mm256_set1_epi64x(key.fold[half][i] as i64);
        let fold = [[word(0, 0), word(0, 1), word(0, 2)], [word(1, 0), word(1, 1), word(1, 2)]];
        let top = _mm256_set1_epi64x(0xFFFF_FFFF_0000_0000u64 as i64);
        for four in 0..LINES / 4 {
            if ASK {
                (0..4).for_each(|line| prefetch(next as usize + (4 * four + line) * LINE_BYTES));
            }
            let mut folded = [_mm256_setzero_si256(); 2];
            for half in 0..2 {
                let sum = |line: usize| {
                    let at = page.add((4 * four + line) * LINE_BYTES).cast::<__m256i>();
                    let x = _mm256_add_epi32(_mm256_loadu_si256(at), keys[half][0]);
                    let y = _mm256_add_epi32(_mm256_loadu_si256(at.add(1)), keys[half][1]);
                    _mm256_add_epi64(
                        _mm256_mul_epu32(x, _mm256_srli_epi64::<32>(x)),
                        _mm256_mul_epu32(y, _mm256_srli_epi64::<32>(y)),
                    )
                };
                let pair = |a, b| _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
                let (front, back) = (pair(sum(0), sum(1)), pair(sum(2), sum(3)));
                let sum = _mm256_add_epi64(
                    _mm256_permute2x128_si256::<0x20>(front, back),
                    _mm256_permute2x128_si256::<0x31>(front, back),
                );
                let [constant, low, high] = fold[half];
                let up = _mm256_srli_epi64::<32>(sum);
                let lower = _mm256_add_epi64(_mm256_mul_epu32(sum, low), _mm256_mul_epu32(up, high));
                let upper = _mm256_add_epi64(
                    _mm256_mul_epu32(sum, _mm256_srli_epi64::<32>(low)),
                    _mm256_mul_epu32(up, _mm256_srli_epi64::<32>(high)),
                );
                folded[half] = _mm256_add_epi64(_mm256_add_epi64(constant, lower), _mm256_slli_epi64::<32>(upper));
            }
            let hashes = _mm256_or_si256(_mm256_srli_epi64::<32>(folded[0]), _mm256_and_si256(folded[1], top));
            _mm256_storeu_si256(into.as_mut_ptr().add(4 * four).cast(), hashes);
        }
    }
}

/// One line.
#[inline]
pub fn one(key: &Key, line: &[u8; LINE_BYTES]) -> u64 {
    let mut hash = 0;
    for (half, fold) in key.fold.iter().enumerate() {
        // SAFETY: loads within the line and the key; SSE2 is part of x86-64.
        let sum = unsafe {
            let mut sums = _mm_setzero_si128();
            for i in 0..4 {
                let m = _mm_loadu_si128(line.as_ptr().cast::<__m128i>().add(i));
                let x = _mm_add_epi32(m, _mm_load_si128(key.nh[half].as_ptr().cast::<__m128i>().add(i)));
                sums = _mm_add_epi64(sums, _mm_mul_epu32(x, _mm_srli_epi64::<32>(x)));
            }
            let sum = _mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums));
            _mm_cvtsi128_si64(sum) as u64
        };
        let (low, high) = (sum & 0xFFFF_FFFF, sum >> 32);
        let folded = fold[0].wrapping_add(fold[1].wrapping_mul(low)).wrapping_add(fold[2].wrapping_mul(high)) >> 32;
        hash |= folded << (32 * half);
    }
    hash
}
