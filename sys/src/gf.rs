//! Bytes as elements of the field of 256, for erasure codes: a buffer is added, scaled, to another.
//!
//! ```text
//! to[i] ^= factor · from[i]        factor 1 is XOR; 0 changes nothing
//! ```
//!
//! The field is `GF(2)[x]` modulo x⁸ + x⁴ + x³ + x² + 1. A product by a constant is linear in the
//! byte's two halves. So it is the XOR of two looks into tables of 16, which AVX2 does for 32 bytes
//! at once. The tables of all 256 factors are made at compile time.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
};

/// The modulus, without x⁸.
const MODULUS: u8 = 0x1D;

/// A product of two elements.
pub const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { MODULUS } else { 0 };
        b >>= 1;
    }
    sum
}

/// The element whose product with `a` is 1; of 0 there is none, and it is 0.
pub const fn inverse(a: u8) -> u8 {
    // a²⁵⁴, because a²⁵⁵ is 1.
    let (mut power, mut n) = (1, 0);
    while n < 254 {
        power = product(power, a);
        n += 1;
    }
    power
}

/// By factor: its products with every low half of a byte, then with every high half.
static HALVES: [[u8; 32]; 256] = {
    let (mut tables, mut at) = ([[0; 32]; 256], 0);
    while at < 256 * 16 {
        let (factor, half) = (at / 16, at % 16);
        tables[factor][half] = product(factor as u8, half as u8);
        tables[factor][16 + half] = product(factor as u8, (half << 4) as u8);
        at += 1;
    }
    tables
};

/// How buffers are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    /// Byte by byte. The other is tested against it.
    #[default]
    Scalar,
    /// 32 bytes at once.
    Avx2,
}

impl Unit {
    /// The best that this CPU has.
    pub fn best() -> Unit {
        if is_x86_feature_detected!("avx2") { Unit::Avx2 } else { Unit::Scalar }
    }
}

/// Adds `factor` times `from` to `to`. The unit must be one that this CPU has.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(unit: Unit, to: &mut [u8], from: &[u8], factor: u8) {
    assert_eq!(to.len(), from.len());
    match (factor, unit) {
        (0, _) => {}
        (1, _) => to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from),
        (_, Unit::Scalar) => scalar(to, from, factor),
        (_, Unit::Avx2) => {
            let wide = to.len() / 32 * 32;
            // SAFETY: the CPU has AVX2 (contract of the unit); both have `wide` bytes, a multiple
            // of 32.
            unsafe { avx2(&mut to[..wide], &from[..wide], factor) };
            scalar(&mut to[wide..], &from[wide..], factor);
        }
    }
}

fn scalar(to: &mut [u8], from: &[u8], factor: u8) {
    let halves = &HALVES[factor as usize];
    let product = |byte: u8| halves[byte as usize & 15] ^ halves[16 + (byte as usize >> 4)];
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= product(*from));
}

/// # Safety
/// The CPU has AVX2; the slices are of one length, a multiple of 32.
#[target_feature(enable = "avx2")]
unsafe fn avx2(to: &mut [u8], from: &[u8], factor: u8) {
    let halves = HALVES[factor as usize].as_ptr();
    // SAFETY: 16 bytes at each, and 32 at each place below the length.
    unsafe {
        let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(halves.cast()));
        let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(halves.add(16).cast()));
        let half = _mm256_set1_epi8(15);
        for at in (0..to.len()).step_by(32) {
            let bytes: __m256i = _mm256_loadu_si256(from.as_ptr().add(at).cast());
            let by_low = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, half));
            let by_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), half));
            let sum = _mm256_xor_si256(_mm256_loadu_si256(to.as_ptr().add(at).cast()), by_low);
            _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), _mm256_xor_si256(sum, by_high));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 1..=255u8 {
            assert_eq!(product(a, inverse(a)), 1);
            for b in 0..=255u8 {
                assert_eq!(product(a, b), product(b, a));
                assert_eq!(product(a, b ^ 0x5A), product(a, b) ^ product(a, 0x5A));
                assert_eq!(product(product(a, b), 7), product(a, product(b, 7)));
            }
        }
    }

    #[test]
    fn every_unit_adds_alike() {
        let from: Vec<u8> = (0..300u32).map(|at| ((at * 167) >> 3) as u8 ^ at as u8).collect();
        for factor in 0..=255u8 {
            for len in [0, 1, 31, 32, 33, 256, 300] {
                let expected: Vec<u8> = (0..len).map(|at| at as u8 ^ product(factor, from[at])).collect();
                for unit in [Unit::Scalar, Unit::best()] {
                    let mut to: Vec<u8> = (0..len).map(|at| at as u8).collect();
                    add_scaled(unit, &mut to, &from[..len], factor);
                    assert_eq!(to, expected, "{unit:?}, {factor} × {len} bytes");
                }
            }
        }
    }
}
