//! Which of a program's blocks are looked at. Pure.
//!
//! ```text
//! 0 ─────────── a block's place: Fibonacci hashing of its number and process ─────────── 2^64
//! ├── watched ──┤ upto
//! ```

use crate::cover::Range;
use crate::snapshot::BLOCK;

/// Which blocks of a process are watched, chosen by a hash of their number, so that neither an
/// array's stride nor its place decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The last place that is watched.
    pub(crate) upto: u64,
    /// Other blocks in each process: a child has its parent's addresses.
    pub(crate) process: u32,
}

impl Watch {
    /// Everything.
    pub const ALL: Watch = Watch { upto: u64::MAX, process: 0 };

    /// One block in about this many is watched; of neighbours, to within one or two. 1: all are.
    pub fn one_in(self) -> u64 {
        if self.all() { 1 } else { ((u64::MAX as f64 / self.upto.max(1) as f64).round() as u64).max(2) }
    }

    /// Whether every block is watched.
    pub fn all(self) -> bool {
        self.upto == u64::MAX
    }

    /// Where a block lies between 0 and 2^64.
    pub(crate) fn place(self, block: u64) -> u64 {
        let of_process = u64::from(self.process).wrapping_mul(0xd1b5_4a32_d192_ed03);
        block.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(of_process)
    }

    /// Whether a block, by its number, is watched.
    pub fn watches(self, block: u64) -> bool {
        self.place(block) <= self.upto
    }

    /// Cuts a range into what of it is watched.
    pub fn cut(self, range: &Range) -> Vec<Range> {
        if self.all() {
            return vec![range.clone()];
        }
        let blocks = (range.start / BLOCK..range.end.div_ceil(BLOCK)).filter(|&block| self.watches(block));
        blocks.map(|block| (block * BLOCK).max(range.start)..((block + 1) * BLOCK).min(range.end)).collect()
    }
}
