//! Numbers that look random and follow from a seed: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).

use std::cell::Cell;

/// A stream of them.
#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    /// The next, any of 2^64.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let mut x = self.0.get();
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// One below `bound`, which is not 0.
    pub fn below(&self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// One of 0..1.
    pub fn share(&self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts a slice in any order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
