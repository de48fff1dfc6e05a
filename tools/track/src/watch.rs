//! Which of a program's blocks are looked at. Pure.
//!
//! ```text
//! 0 ─────────── a block's place: Fibonacci hashing of its number and process ─────────── 2^64
//! ├── watched ──┤ 2^64 / one_in
//! ```

use crate::cover::Range;
use crate::snapshot::BLOCK;

/// Which blocks of a process are watched, chosen by a hash of their number, so that neither an
/// array's stride nor its place decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// One block in about this many; of neighbours, to within one or two.
    pub one_in: u64,
    /// Other blocks in each process: a child has its parent's addresses.
    pub(crate) process: u32,
}

impl Watch {
    /// Everything.
    pub const ALL: Watch = Watch { one_in: 1, process: 0 };

    /// Where a block lies between 0 and 2^64.
    pub(crate) fn place(self, block: u64) -> u64 {
        let of_process = u64::from(self.process).wrapping_mul(0xd1b5_4a32_d192_ed03);
        block.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(of_process)
    }

    /// Whether a block, by its number, is watched.
    pub fn watches(self, block: u64) -> bool {
        self.place(block) <= u64::MAX / self.one_in
    }

    /// Cuts a range into what of it is watched.
    pub fn cut(self, range: &Range) -> Vec<Range> {
        if self.one_in == 1 {
            return vec![range.clone()];
        }
        let blocks = (range.start / BLOCK..range.end.div_ceil(BLOCK)).filter(|&block| self.watches(block));
        blocks.map(|block| (block * BLOCK).max(range.start)..((block + 1) * BLOCK).min(range.end)).collect()
    }
}
