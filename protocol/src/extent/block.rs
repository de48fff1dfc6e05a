//! Inside a block of one's own: extents of 4 KiB to 1 MiB without any verb.
//!
//! A buddy allocator of 512 chunks in two bitmaps:
//!
//! ```text
//!  used  ▌█ █ █ █│· · · ·│█ ·│█ █ ▐     a bit a chunk
//!  last  ▌· · · █│· · · ·│█ ·│· █ ▐     the last chunk of each extent
//! ```
//!
//! An extent of order `k` is 2^k chunks at a multiple of 2^k. There are no lists
//! and no headers in the memory itself (it is far). A free run is found by
//! folding the words of the bitmap onto themselves: `f &= f >> 1; f &= f >> 2 …`
//! leaves a bit where 2^k free chunks begin. Lowest address first, so that the
//! upper end of a block tends to be empty. Coalescing costs nothing: there is
//! nothing but the bits.
//!
//! Not shared between threads: the holder of the block also holds the `Block`, under its own lock
//! or by its own thread.

use std::ops::Range;

/// Chunks of a block.
pub const CHUNKS: u32 = 512;
/// Largest order: 1 MiB. Above it, take blocks.
pub const MAX_ORDER: u8 = 8;
/// Words of a bit for each chunk of a block.
pub const WORDS: usize = (CHUNKS / 64) as usize;

/// Starts of aligned runs of 2^k chunks, as bits of a word.
const ALIGNED: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Which chunks of a block are in use.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Block {
    used: [u64; WORDS],
    last: [u64; WORDS],
    /// No free run of this order or above. Only raised by a free.
    full_from: u8,
}

/// A free of what is not an extent in use: the caller, or its caller, is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no extent in use begins at chunk {0} of the block: a double free, or an address never given out")]
pub struct NotHeld(pub u32);

/// The order of the smallest extent that has room for `bytes` bytes; None above 1 MiB. Zero bytes
/// take a chunk.
pub const fn order_for(bytes: u64) -> Option<u8> {
    let chunks = bytes.div_ceil(super::place::CHUNK_BYTES);
    let order = if chunks < 2 { 0 } else { u64::BITS - (chunks - 1).leading_zeros() };
    if order > MAX_ORDER as u32 { None } else { Some(order as u8) }
}

/// The first chunk of the first free run of 2^`order` chunks, aligned to its length, in a block
/// whose taken chunks are the bits of `used`.
#[inline]
pub fn first_free(used: &[u64; WORDS], order: u8) -> Option<u32> {
    if order <= 6 {
        for (at, &used) in used.iter().enumerate() {
            let mut free = !used;
            for fold in 0..order {
                free &= free >> (1 << fold);
            }
            free &= ALIGNED[order as usize];
            if free != 0 {
                return Some(at as u32 * 64 + free.trailing_zeros());
            }
        }
        return None;
    }
    let span = 1 << (order - 6);
    let at = (0..WORDS).step_by(span).find(|&at| used[at..at + span].iter().all(|&used| used == 0))?;
    Some(at as u32 * 64)
}

impl Block {
    /// All free.
    pub const fn new() -> Block {
        Block { used: [0; WORDS], last: [0; WORDS], full_from: MAX_ORDER + 1 }
    }

    /// Takes an extent of 2^`order` chunks and says its first chunk; None if there is none free.
    ///
    /// # Panics
    /// If the order is above [`MAX_ORDER`].
    #[inline]
    pub fn take(&mut self, order: u8) -> Option<u32> {
        assert!(order <= MAX_ORDER, "extents above 1 MiB are whole blocks");
        if order >= self.full_from {
            return None;
        }
        let first = match first_free(&self.used, order) {
            Some(first) => first,
            None => {
                self.full_from = order;
                return None;
            }
        };
        self.mark(first, order, true);
        Some(first)
    }

    #[inline]
    fn mark(&mut self, first: u32, order: u8, on: bool) {
        let chunks = 1u32 << order;
        let (at, end) = ((first / 64) as usize, first + chunks - 1);
        let end_bit = 1u64 << (end % 64);
        if order < 6 {
            let bits = ((1u64 << chunks) - 1) << (first % 64);
            self.used[at] = if on { self.used[at] | bits } else { self.used[at] & !bits };
        } else {
            self.used[at..at + (chunks / 64) as usize].fill(if on { u64::MAX } else { 0 });
        }
        let last = &mut self.last[(end / 64) as usize];
        *last = if on { *last | end_bit } else { *last & !end_bit };
    }

    /// The extent in use that begins at this chunk.
    pub fn extent(&self, first: u32) -> Result<Range<u32>, NotHeld> {
        if first >= CHUNKS || !self.is_used(first) {
            return Err(NotHeld(first));
        }
        // It begins here if the chunk before is free or ends another.
        if first > 0 && self.is_used(first - 1) && self.last[(first as usize - 1) / 64] >> ((first - 1) % 64) & 1 == 0 {
            return Err(NotHeld(first));
        }
        let (mut at, mut ends) = ((first / 64) as usize, 0);
        let mut mask = u64::MAX << (first % 64);
        while at < WORDS {
            ends = self.last[at] & mask;
            if ends != 0 {
                break;
            }
            (at, mask) = (at + 1, u64::MAX);
        }
        debug_assert!(ends != 0, "an extent in use has a last chunk");
        Ok(first..at as u32 * 64 + ends.trailing_zeros() + 1)
    }

    /// Gives back the extent that begins at this chunk; says how large it was.
    #[inline]
    pub fn give(&mut self, first: u32) -> Result<u8, NotHeld> {
        let extent = self.extent(first)?;
        let order = extent.len().trailing_zeros() as u8;
        self.mark(first, order, false);
        self.full_from = MAX_ORDER + 1;
        Ok(order)
    }

    /// Whether a chunk is in use.
    #[inline]
    pub fn is_used(&self, chunk: u32) -> bool {
        chunk < CHUNKS && self.used[(chunk / 64) as usize] >> (chunk % 64) & 1 == 1
    }

    /// Chunks in use.
    #[inline]
    pub fn in_use(&self) -> u32 {
        self.used.iter().map(|used| used.count_ones()).sum()
    }

    /// Whether nothing is in use: the block can go back to the node.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == [0; WORDS]
    }

    /// A bit for each chunk, set if it is in use. A publication keeps these.
    pub fn live(&self) -> [u64; WORDS] {
        self.used
    }

    /// The largest order that [`Block::take`] would find now.
    pub fn largest(&self) -> Option<u8> {
        (0..=MAX_ORDER).rev().find(|&order| first_free(&self.used, order).is_some())
    }
}
