//! Local memory: the part of far memory that is here, for many sizes of it at once.
//!
//! * [`stack`]: any block anywhere, no prefetch. LRU's stack distances tell the
//!   misses of every size in one pass.
//! * [`direct`]: sets, or prefetch. One simulation for each size.
//!
//! *Sampling.* Both can watch a part only: `stack` watches blocks drawn by a hash of their number
//! (distances then scale: SHARDS, Waldspurger et al., FAST '15), `direct` sets drawn likewise. The
//! watched part falls into [`GROUPS`] groups by the same hash. The differences between groups give
//! the error of their sum (random groups: Wolter, *Introduction to Variance Estimation*, ch. 2).

pub mod direct;
pub mod stack;

use crate::formula::Count;
use farmem_protocol::random::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Groups of what is watched.
pub const GROUPS: usize = 32;
/// Parts of a block whose dirtiness is told apart.
pub const PARTS: usize = 64;

/// The result of one size of local memory, scaled up from the watched part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Blocks that the program waited for, by the kind of the reference.
    pub misses: Count,
    /// Of them, first uses of a block: memory that has nothing in it yet.
    pub fresh: Count,
    /// The 95 % confidence bound of `misses`, either way.
    pub bound: f64,
    /// First uses of blocks that had been fetched ahead.
    pub prefetched: u64,
    /// Blocks fetched that nobody waited for: ahead, or for a line that the CPU wrote back to an
    /// absent block.
    pub unawaited: u64,
    /// Blocks that left dirty.
    pub dirty_blocks: u64,
    /// Dirty parts of blocks that left: lines, up to blocks of 4 KiB.
    pub dirty_parts: u64,
}

/// Bytes of one part of a block.
pub fn part_bytes(block: u64) -> u64 {
    (block / PARTS as u64).max(64)
}

/// Numbers that are hashed by [`mix`]: tables of blocks need speed, not secrecy.
#[derive(Default)]
pub struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = mix(n);
    }
}

type Table<V> = HashMap<u64, V, BuildHasherDefault<Mixed>>;

/// The watched part of blocks or sets.
#[derive(Clone, Copy, Debug)]
struct Sample {
    threshold: u64,
}

impl Sample {
    fn new(share: f64) -> Sample {
        Sample { threshold: if share >= 1.0 { u64::MAX } else { (share * u64::MAX as f64) as u64 } }
    }

    /// The group of a number, if it is watched. The group is of other bits than the choice.
    #[inline]
    fn group(self, number: u64) -> Option<usize> {
        let hash = mix(number ^ 0xA5A5_5A5A_1234_8765);
        (hash <= self.threshold).then_some(mix(hash) as usize % GROUPS)
    }
}

/// The sum of `groups` scaled by `scale` = 1 / (share that is watched), and the half-width of its
/// 95 % confidence interval: none if all is watched.
fn estimate(groups: impl Iterator<Item = Count> + Clone, scale: f64) -> (Count, f64) {
    let sum = groups.clone().fold(Count::default(), |a, b| Count { read: a.read + b.read, write: a.write + b.write });
    let scaled = |n: u64| (n as f64 * scale).round() as u64;
    let mean = sum.total() as f64 / GROUPS as f64;
    let variance = groups.map(|g| (g.total() as f64 - mean).powi(2)).sum::<f64>() / (GROUPS - 1) as f64;
    let unwatched = 1.0 - 1.0 / scale;
    let bound = 1.96 * scale * (GROUPS as f64 * variance * unwatched).sqrt();
    (Count { read: scaled(sum.read), write: scaled(sum.write) }, bound)
}
