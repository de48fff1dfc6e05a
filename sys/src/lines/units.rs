//! The hashes of lines, word by word, by SSE2, by AVX2: the same by all.
//!
//! Products of 32-bit words are what SSE2 and AVX2 have.

use super::{Key, LINE_BYTES, LINES};
use crate::memory::prefetch;
use core::arch::x86_64::*;

/// # Safety
/// `page` must be readable for a page, `into` be room for its hashes.
pub unsafe fn scalar(key: &Key, page: *const u8, into: *mut u64) {
    for line in 0..LINES {
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
        // SAFETY: within the room for them (the caller's promise).
        unsafe { into.add(line).write(halves[1] << 32 | halves[0]) };
    }
}

/// Two lines at a time, whose sums come to lie in the two lanes of one register.
///
/// # Safety
/// As [`scalar`].
pub unsafe fn sse2(key: &Key, page: *const u8, into: *mut u64) {
    // SAFETY: loads within the page, stores within the room for hashes (the caller's promises),
    // loads within the key; SSE2 is part of x86-64.
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
            _mm_storeu_si128(into.add(2 * pair).cast(), hashes);
        }
    }
}

/// Four lines at a time, and, if `SUM`, the sum over all, else 0. If `ASK`, the lines of `next` are
/// asked for meanwhile.
///
/// # Safety
/// `page` must be readable for a page, `into` be room for its hashes, and the CPU must have AVX2.
/// (`next` need not be mapped.)
#[target_feature(enable = "avx2")]
pub unsafe fn avx2<const ASK: bool, const SUM: bool>(
    key: &Key,
    page: *const u8,
    next: *const u8,
    into: *mut u64,
) -> u64 {
    // SAFETY: loads within the page (the caller's promise), the key; stores within `into`; the CPU
    // has AVX2 (the caller's promise).
    unsafe {
        let [a, b] = [Half::of(key, 0), Half::of(key, 1)];
        let places = key.places.as_ptr().cast::<__m256i>();
        let (mut sums, mut crosses) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for four in 0..LINES / 4 {
            if ASK {
                (0..4).for_each(|line| prefetch(next as usize + (4 * four + line) * LINE_BYTES));
            }
            let at = page.add(4 * four * LINE_BYTES).cast::<__m256i>();
            let ([lower_a, upper_a], [lower_b, upper_b]) = (a.fold(at), b.fold(at));
            // The high 32 bits of each. A's are moved to the low half, because B's are put into the
            // high half.
            let low = _mm256_add_epi32(_mm256_srli_epi64::<32>(lower_a), upper_a);
            let high = _mm256_add_epi64(lower_b, _mm256_slli_epi64::<32>(upper_b));
            let hashes = _mm256_blend_epi32::<0b1010_1010>(low, high);
            _mm256_storeu_si256(into.cast::<__m256i>().add(four), hashes);
            if SUM {
                // mod 2⁶⁴: the product of the low halves, and those of low and high ones above
                // them, of which 32 bits are left.
                let place = _mm256_load_si256(places.add(four));
                let swapped = _mm256_shuffle_epi32::<0b10_11_00_01>(place);
                sums = _mm256_add_epi64(sums, _mm256_mul_epu32(hashes, place));
                crosses = _mm256_add_epi32(crosses, _mm256_mullo_epi32(hashes, swapped));
            }
        }
        if !SUM {
            return 0;
        }
        let crosses = _mm256_add_epi32(crosses, _mm256_srli_epi64::<32>(crosses));
        let sums = _mm256_add_epi64(sums, _mm256_slli_epi64::<32>(crosses));
        let sum = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        _mm_cvtsi128_si64(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum))) as u64
    }
}

/// The keys of A, or of B, each as often as a register has it.
struct Half {
    nh: [__m256i; 2],
    constant: __m256i,
    /// Of c1 and c2 the low halves, and the high ones.
    low: [__m256i; 2],
    high: [__m256i; 2],
}

impl Half {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of(key: &Key, half: usize) -> Half {
        let [constant, one, two] = key.fold[half];
        let each = |word: u64| _mm256_set1_epi64x(word as i64);
        // SAFETY: loads within the key, which is aligned.
        let nh = |i: usize| unsafe { _mm256_load_si256(key.nh[half].as_ptr().cast::<__m256i>().add(i)) };
        Half {
            nh: [nh(0), nh(1)],
            constant: each(constant),
            low: [each(one), each(two)],
            high: [each(one >> 32), each(two >> 32)],
        }
    }

    /// Of the four lines at `at`: the constant and the low products of the fold, and its high
    /// products, whose low 32 bits belong above these.
    ///
    /// # Safety
    /// They must be readable.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn fold(&self, at: *const __m256i) -> [__m256i; 2] {
        let sum = |line: usize| {
            // SAFETY: the caller's.
            let [m, n] = unsafe { [_mm256_loadu_si256(at.add(2 * line)), _mm256_loadu_si256(at.add(2 * line + 1))] };
            let (x, y) = (_mm256_add_epi32(m, self.nh[0]), _mm256_add_epi32(n, self.nh[1]));
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
        let up = _mm256_srli_epi64::<32>(sum);
        let lower = _mm256_add_epi64(_mm256_mul_epu32(sum, self.low[0]), _mm256_mul_epu32(up, self.low[1]));
        let upper = _mm256_add_epi64(_mm256_mul_epu32(sum, self.high[0]), _mm256_mul_epu32(up, self.high[1]));
        [_mm256_add_epi64(self.constant, lower), upper]
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
