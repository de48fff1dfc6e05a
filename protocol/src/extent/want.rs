//! The requests that a claim can make.

use super::geometry::{Geometry, LINE};
use super::place::{CHUNK_BYTES, Level};

/// CAS that a claim may lose to others before it gives up.
pub const MAX_RETRIES: u32 = 8;
/// The same for a claim of chunks. Chunks are claimed when memory is short, and many want the same
/// few. A claimer that lost waits ([`super::policy::pause`]) and starts again with a READ.
pub const MAX_CHUNK_RETRIES: u32 = 1;

/// A request of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Want {
    pub(super) level: Level,
    pub(super) count: u32,
    /// As neighbours, all or none; otherwise as many as one line has, at least one.
    pub(super) contiguous: bool,
}

impl Want {
    /// One unit.
    pub const fn one(level: Level) -> Want {
        Want { level, count: 1, contiguous: true }
    }

    /// Up to `count` units (at most 64), wherever they are, by one batch of CAS; of chunks at most
    /// [`MAX_BLIND`](super::claim::MAX_BLIND), and one if it is of another's lot.
    pub const fn some(level: Level, count: u32) -> Want {
        Want { level, count: if count > LINE { LINE } else { count }, contiguous: false }
    }

    /// `count` neighbours: up to the chunks of one block (a power of two, naturally aligned), up to
    /// the blocks of one giant, up to 64 giants. None beyond.
    pub const fn run(geometry: &Geometry, level: Level, count: u32) -> Option<Want> {
        let possible = match level {
            Level::Chunk => count.is_power_of_two() && count <= geometry.fanout(Level::Block),
            Level::Block => count <= geometry.fanout(Level::Giant),
            Level::Giant => count <= LINE,
        };
        if count == 0 || !possible { None } else { Some(Want { level, count, contiguous: true }) }
    }

    /// The units for an extent of `bytes` bytes: neighbours with room for it, in blocks below a
    /// giant and in giants above. An extent smaller than a block is no unit: cut it from a block of
    /// your own.
    pub const fn bytes(geometry: &Geometry, bytes: u64) -> Option<Want> {
        let block = geometry.chunks_of(Level::Block) as u64 * CHUNK_BYTES;
        let blocks = bytes.div_ceil(block);
        let giant = geometry.fanout(Level::Giant) as u64;
        if blocks < giant {
            Want::run(geometry, Level::Block, blocks as u32)
        } else if blocks.div_ceil(giant) <= LINE as u64 {
            Want::run(geometry, Level::Giant, blocks.div_ceil(giant) as u32)
        } else {
            None
        }
    }

    /// Whether the first unit is claimed before the others.
    pub(super) const fn has_leader(&self) -> bool {
        self.contiguous && self.count > 1 && matches!(self.level, Level::Chunk)
    }

    /// Lines that its units lie in, if they are chunks: read together.
    pub(super) const fn lines(&self) -> u32 {
        if self.contiguous { self.count.div_ceil(LINE) } else { 1 }
    }

    /// Single chunks, wherever they are.
    pub(super) const fn goes_by_lots(&self) -> bool {
        matches!(self.level, Level::Chunk) && (!self.contiguous || self.count == 1)
    }

    pub(super) const fn retries(&self) -> u32 {
        if matches!(self.level, Level::Chunk) { MAX_CHUNK_RETRIES } else { MAX_RETRIES }
    }

    pub(super) const fn order(&self) -> u8 {
        if self.contiguous { (u32::BITS - (self.count - 1).leading_zeros()) as u8 } else { 0 }
    }

    /// Whether chunks with these hints may have it.
    pub(super) fn may_be_in(&self, hints: &[u64]) -> bool {
        match self.count {
            _ if !self.contiguous => hints.iter().any(|&hint| hint != 0),
            count if count >= LINE => hints.iter().all(|&hint| hint == u64::MAX),
            count => {
                let run = (1u64 << count) - 1;
                hints.iter().any(|hint| (0..LINE).step_by(count as usize).any(|at| hint >> at & run == run))
            }
        }
    }
}
