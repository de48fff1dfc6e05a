//! Numbers that look random and follow from a seed: SplitMix64 (Steele, Lea and Flood, *Fast
//! splittable pseudorandom number generators*, OOPSLA 2014).
//!
//! For tests, benchmarks, simulations, and choices that nobody gains by guessing. Keys and secrets
//! come from the kernel (`farmem_sys::process::random_bytes`).

/// The step from one state to the next: 2⁶⁴ divided by the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stream of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed. Any seed will do.
    #[inline]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// One of many streams of a seed: a thread's, say.
    #[inline]
    pub const fn nth(seed: u64, stream: u64) -> Random {
        Random(hash(seed ^ hash(stream)))
    }

    /// The next 64 bits.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number below `bound`; 0 if that is 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() as u128 * bound as u128) >> 64) as u64
    }

    /// An index into `len` items.
    #[inline]
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from 0 to below 1.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.bits().to_le_bytes()[..part.len()]);
        }
    }

    /// Puts items in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

/// Scatters numbers over 64 bits, one to one; 0 stays 0. (The finalizer of SplitMix64.)
#[inline]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Scatters numbers as [`mix`] does; neighbours of 0 too. The first number of the stream `x`.
#[inline]
pub const fn hash(x: u64) -> u64 {
    mix(x.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as other implementations give them.
    #[test]
    fn the_stream_is_that_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| random.bits()), first);
        assert_eq!(hash(1_234_567), first[0]);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&0), Some(&9)));
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert!((0..1000).map(|_| random.unit()).all(|unit| (0.0..1.0).contains(&unit)));
    }

    #[test]
    fn everything_is_filled_and_kept() {
        let mut random = Random::new(7);
        let mut bytes = [0u8; 4099];
        random.fill(&mut bytes);
        assert!(bytes.chunks(64).all(|part| part.iter().any(|&byte| byte != 0)));
        let mut items: Vec<u64> = (0..100).collect();
        random.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn streams_of_a_seed_differ() {
        let mut first: Vec<u64> = (0..1000).map(|stream| Random::nth(3, stream).bits()).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 1000);
    }
}
