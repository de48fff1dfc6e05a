//! Maps whose keys are hashes or counters of ours: no client chooses them, so they are not hashed
//! with a secret.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Spreads a word by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (word ^ word >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// A map by words.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;
/// A set of words.
pub type Set<K> = HashSet<K, BuildHasherDefault<Spread>>;
