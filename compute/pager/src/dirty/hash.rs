//! 64 keyed bits for each line of a page, so that lines that changed can be told without a copy.
//!
//! ```text
//!   line: 16 words of 32 bits      m0 m1 | m2 m3 | …                        keys, drawn for the process
//!   NH     A = Σ (m2i + a2i mod 2³²) · (m2i+1 + a2i+1 mod 2³²)  mod 2⁶⁴    a: 16 words
//!          B = the same with b                                             b: 16 words
//!   fold   high 32 bits of  c0 + c1·lo(A) + c2·hi(A)  mod 2⁶⁴              c: 3 words of 64 bits
//!          high 32 bits of  d0 + d1·lo(B) + d2·hi(B)  mod 2⁶⁴              d: 3
//!   hash   fold(B) : fold(A)
//! ```
//!
//! *How sure it is.* Two different lines have the same A with a probability of at most 2⁻³² (NH is universal:
//! Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO '99, theorem 4.2), whatever they are, provided that they
//! do not depend on the keys; two different A the same fold with 2⁻³² (multilinear hashing, its high half, is
//! strongly universal: Lemire and Kaser, Computer Journal 57(11), 2014). A and B have keys of their own, so both
//! halves agree with at most (2⁻³² + 2⁻³²)² = 2⁻⁶². What that means in writes and years: `docs/design/lines.md`.
//!
//! The faster general hashes promise nothing for the commonest change of all, one small word of a line: their
//! one 32-bit product per word misses it with 2⁻³² when its neighbour has the wrong value.
//!
//! Products of 32-bit words are what SSE2 and AVX2 have. Which is used is found out once, by the CPU.

use core::arch::x86_64::*;
use farmem_protocol::lines::{LINE_BYTES, LINES};

/// Hashes of a page's lines.
pub type Hashes = [u64; LINES];

/// What makes the hash this process's own: random, and never told.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub struct Key {
    nh: [[u32; 16]; 2],
    fold: [[u64; 3]; 2],
}

/// Random bytes that a [`Key`] takes.
pub const KEY_BYTES: usize = 2 * 64 + 2 * 24;

/// How the hashes are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Word by word: what the others are tested against.
    Scalar,
    /// Two products at once: every x86-64.
    Sse2,
    /// Four.
    Avx2,
}

impl Unit {
    /// The best that this CPU has.
    pub fn best() -> Unit {
        if is_x86_feature_detected!("avx2") { Unit::Avx2 } else { Unit::Sse2 }
    }
}

/// A key, and what computes with it.
pub struct Hasher {
    key: Key,
    unit: Unit,
}

impl Hasher {
    /// With a key from random bytes. `unit` must be one that this CPU has.
    pub fn new(random: &[u8; KEY_BYTES], unit: Unit) -> Hasher {
        assert!(unit != Unit::Avx2 || is_x86_feature_detected!("avx2"));
        let mut words = random.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut word = move || words.next().unwrap_or(0);
        let nh = std::array::from_fn(|_| std::array::from_fn(|_| word()));
        let fold = std::array::from_fn(|_| std::array::from_fn(|_| (word() as u64) << 32 | word() as u64));
        Hasher { key: Key { nh, fold }, unit }
    }

    /// Hashes every line of a page.
    ///
    /// # Safety
    /// The page must be mapped, and stay as it is.
    #[inline]
    pub unsafe fn hash(&self, page: *const u8, into: &mut Hashes) {
        // SAFETY: the page is the caller's promise; AVX2 was found by `new`.
        unsafe {
            match self.unit {
                Unit::Scalar => scalar(&self.key, page, into),
                Unit::Sse2 => sse2(&self.key, page, into),
                Unit::Avx2 => avx2(&self.key, page, into),
            }
        }
    }

    /// Lines of a page that are not as they were when it was hashed: bit k, line k.
    ///
    /// # Safety
    /// As [`Hasher::hash`].
    #[inline]
    pub unsafe fn changed(&self, page: *const u8, was: &Hashes) -> u64 {
        let mut now = [0; LINES];
        // SAFETY: the caller's promise.
        unsafe { self.hash(page, &mut now) };
        let mut changed = 0;
        for line in 0..LINES {
            changed |= ((now[line] != was[line]) as u64) << line;
        }
        changed
    }
}

unsafe fn scalar(key: &Key, page: *const u8, into: &mut Hashes) {
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
unsafe fn sse2(key: &Key, page: *const u8, into: &mut Hashes) {
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
unsafe fn avx2(key: &Key, page: *const u8, into: &mut Hashes) {
    // SAFETY: as for `sse2`; the CPU has AVX2 (the caller's promise).
    unsafe {
        let keys: [[__m256i; 2]; 2] = std::array::from_fn(|half| {
            std::array::from_fn(|i| _mm256_load_si256(key.nh[half].as_ptr().cast::<__m256i>().add(i)))
        });
        let fold: [[__m256i; 3]; 2] = key.fold.map(|words| words.map(|k| _mm256_set1_epi64x(k as i64)));
        let top = _mm256_set1_epi64x(0xFFFF_FFFF_0000_0000u64 as i64);
        for four in 0..LINES / 4 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hashes(unit: Unit, key: &[u8; KEY_BYTES], page: &[u8; 4096]) -> Hashes {
        let mut into = [0; LINES];
        // SAFETY: a live array.
        unsafe { Hasher::new(key, unit).hash(page.as_ptr(), &mut into) };
        into
    }

    fn filled(seed: u64, len: usize) -> Vec<u8> {
        let mut random = seed | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        (0..len).map(|_| next()).collect()
    }

    proptest! {
        #[test]
        fn every_unit_computes_the_same(seed in any::<u64>(), sparse in any::<bool>(), extreme in any::<u8>()) {
            let mut key: [u8; KEY_BYTES] = filled(seed, KEY_BYTES).try_into().unwrap();
            let mut page: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
            if sparse {
                page.iter_mut().step_by(3).for_each(|byte| *byte = extreme);
                key.iter_mut().step_by(2).for_each(|byte| *byte = 0xFF);
            }
            let scalar = hashes(Unit::Scalar, &key, &page);
            prop_assert_eq!(scalar, hashes(Unit::Sse2, &key, &page));
            if Unit::best() == Unit::Avx2 {
                prop_assert_eq!(scalar, hashes(Unit::Avx2, &key, &page));
            }
        }

        #[test]
        fn what_changed_is_named_and_nothing_else(seed in any::<u64>(), changes in prop::collection::vec(0..32768usize, 0..20)) {
            let key: [u8; KEY_BYTES] = filled(seed, KEY_BYTES).try_into().unwrap();
            let before: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
            let mut after = before;
            changes.iter().for_each(|bit| after[bit / 8] ^= 1 << (bit % 8));
            let hasher = Hasher::new(&key, Unit::best());
            let was = hashes(Unit::best(), &key, &before);
            let expected = (0..LINES).fold(0u64, |all, k| all | ((before[64 * k..][..64] != after[64 * k..][..64]) as u64) << k);
            // SAFETY: a live array.
            prop_assert_eq!(unsafe { hasher.changed(after.as_ptr(), &was) }, expected);
        }
    }

    /// A counter that goes up in a line of zeros, the commonest change of all: 16 bits of its hash, wherever they
    /// are taken, collide no oftener than random ones do.
    #[test]
    fn small_changes_are_spread() {
        let key: [u8; KEY_BYTES] = filled(42, KEY_BYTES).try_into().unwrap();
        for shift in [0, 16, 32, 48] {
            let mut seen = vec![false; 1 << 16];
            for counter in 0..1u32 << 14 {
                let mut page = [0u8; 4096];
                page[64 * 5 + 12..][..4].copy_from_slice(&counter.to_le_bytes());
                seen[(hashes(Unit::best(), &key, &page)[5] >> shift) as usize & 0xFFFF] = true;
            }
            // 16384 random numbers hit 14496 of 65536 places.
            let hit = seen.iter().filter(|&&hit| hit).count();
            assert!(hit > 14_000, "bits from {shift}: {hit} places");
        }
    }
}
