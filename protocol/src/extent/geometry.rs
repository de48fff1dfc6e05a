//! The layout of a node's word table, as arithmetic alone.
//!
//! ```text
//!  0         64        G           owners      hints                        D           C (page-aligned)
//!  | header  | giants' | owner     | blocks │ shared │ chunks | blocks'     | chunks'    |
//!  |         | words   | table     |  one bit a block │ a chunk| words       | words      |
//!                8 B/GiB  32 B each   8 B a line of 64 units    8 B/2 MiB     8 B/4 KiB
//! ```
//!
//! A *line* is 64 words of one level, 512 B, which a search reads at once. A hint is one word for
//! each line, bit `i` for its `i`-th unit. The table takes 0.196 % of the memory lent for the
//! chunks' words (their pages stay untouched while no block is published) and 0.003 % for chunk
//! hints. The number of owners is bounded so that everything stays within 0.25 %
//! ([`Geometry::new`]).
//!
//! The header tells a client the geometry and the node's incarnation:
//!
//! ```text
//!  0       8             16       20       22      23      24
//!  | magic | incarnation | blocks | owners | D/G   | C/D   | 0 …      u64 u64 u32 u16 u8 u8 (log2)
//! ```

use super::owner::{MAX_OWNERS, OWNER_BYTES, OwnerField};
use super::place::{BLOCK_BYTES, CHUNK_BYTES, Level, Place};
use super::word::{Generation, Owner, State, Word};
use std::ops::Range;

/// First eight bytes of a word table: name and version.
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"extent\x01\0");
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Units of a line, which one hint word describes.
pub const LINE: u32 = 64;
/// Blocks of a node, at most: 4 TiB, by the index of a [`super::key::Key`].
pub const MAX_BLOCKS: u32 = 1 << 21;

/// A place of the word table. Each is a u64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// A unit's descriptor word.
    Word(Place),
    /// A hint: bit `i` set says that unit `64 × line + i` may be what `about` says. Never trusted.
    Hint {
        /// The meaning of the bits.
        about: Hint,
        /// Which line.
        line: u32,
    },
    /// A word of an owner's entry.
    Owner(Owner, OwnerField),
}

/// The meaning of a hint's bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Hint {
    /// The block may be FREE.
    FreeBlocks = 0,
    /// The block may be SHARED with FREE chunks in it.
    SharedBlocks = 1,
    /// The chunk may be FREE.
    FreeChunks = 2,
}

/// A node's memory and its word table. Both ends compute the same from the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geometry {
    blocks: u32,
    owners: u16,
    /// log2 of the blocks of a giant.
    giant_shift: u8,
    /// log2 of the chunks of a block.
    block_shift: u8,
}

/// Why there is no such geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadGeometry {
    /// Nothing to lend.
    #[error("a node lends at least one block of 2 MiB")]
    Empty,
    /// Too much for one table.
    #[error("a node's table describes at most 4 TiB: start a second node for the rest")]
    TooLarge,
    /// Owners.
    #[error("a table has 2 to 16384 owners, the node's own slot included")]
    Owners,
    /// Not a header that this version understands.
    #[error("no word table of this version: the two ends are of different releases")]
    Header,
}

impl Geometry {
    /// Of `bytes` of memory, rounded down to whole blocks, with as many owners as 0.04 % of it has
    /// room for (16 to 16384).
    pub fn new(bytes: u64) -> Result<Geometry, BadGeometry> {
        let blocks = bytes / BLOCK_BYTES;
        if blocks > MAX_BLOCKS as u64 {
            return Err(BadGeometry::TooLarge);
        }
        let owners = (bytes / 2500 / OWNER_BYTES).clamp(16, MAX_OWNERS as u64);
        Geometry::with_owners(blocks as u32, owners as u16)
    }

    /// A geometry of `blocks` blocks and `owners` owners.
    pub fn with_owners(blocks: u32, owners: u16) -> Result<Geometry, BadGeometry> {
        Geometry::tiny(blocks, owners, 9, 9)
    }

    /// With other numbers of blocks in a giant and chunks in a block (their log2, at most 9), so
    /// that whole histories can be enumerated. Sizes in bytes are then not those of the levels'
    /// names.
    pub fn tiny(blocks: u32, owners: u16, giant_shift: u8, block_shift: u8) -> Result<Geometry, BadGeometry> {
        if blocks == 0 {
            return Err(BadGeometry::Empty);
        }
        if blocks > MAX_BLOCKS || giant_shift > 9 || block_shift > 9 {
            return Err(BadGeometry::TooLarge);
        }
        if !(2..=MAX_OWNERS).contains(&owners) {
            return Err(BadGeometry::Owners);
        }
        Ok(Geometry { blocks, owners, giant_shift, block_shift })
    }

    /// The header's bytes for a node of this incarnation.
    pub fn header(&self, incarnation: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&TABLE_MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&incarnation.to_le_bytes());
        header[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        header[20..22].copy_from_slice(&self.owners.to_le_bytes());
        header[22] = self.giant_shift;
        header[23] = self.block_shift;
        header
    }

    /// The geometry and the node's incarnation, from the header's bytes.
    pub fn read_header(header: &[u8; HEADER_BYTES]) -> Result<(Geometry, u64), BadGeometry> {
        let word = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("inside the header"));
        if word(0) != TABLE_MAGIC {
            return Err(BadGeometry::Header);
        }
        let geometry = Geometry::tiny(word(16) as u32, (word(16) >> 32) as u16, header[22], header[23])?;
        Ok((geometry, word(8)))
    }

    /// How many units the level has.
    #[inline]
    pub const fn count(&self, level: Level) -> u32 {
        match level {
            Level::Chunk => self.blocks << self.block_shift,
            Level::Block => self.blocks,
            Level::Giant => self.blocks.div_ceil(1 << self.giant_shift),
        }
    }

    /// Owners, the node's slot 0 included.
    #[inline]
    pub const fn owners(&self) -> u16 {
        self.owners
    }

    /// Whether there is such a unit.
    #[inline]
    pub const fn has(&self, place: Place) -> bool {
        place.index < self.count(place.level)
    }

    /// log2 of how many units of the next smaller level make one of this.
    #[inline]
    const fn shift(&self, level: Level) -> u8 {
        match level {
            Level::Chunk => 0,
            Level::Block => self.block_shift,
            Level::Giant => self.giant_shift,
        }
    }

    /// Children of a whole unit of this level.
    #[inline]
    pub const fn fanout(&self, level: Level) -> u32 {
        1 << self.shift(level)
    }

    /// Chunks of a whole unit of this level.
    #[inline]
    pub const fn chunks_of(&self, level: Level) -> u32 {
        match level {
            Level::Chunk => 1,
            Level::Block => 1 << self.block_shift,
            Level::Giant => 1 << (self.block_shift + self.giant_shift),
        }
    }

    /// The unit of the next larger level that it lies in.
    #[inline]
    pub const fn parent(&self, place: Place) -> Option<Place> {
        match place.level.parent() {
            Some(level) => Some(Place { level, index: place.index >> self.shift(level) }),
            None => None,
        }
    }

    /// The first unit of the next smaller level in it, and how many there are: fewer than
    /// [`Geometry::fanout`] in the last giant of a node that does not lend whole giants.
    #[inline]
    pub const fn children(&self, place: Place) -> Option<(Place, u32)> {
        let Some(level) = place.level.child() else { return None };
        let shift = self.shift(place.level);
        let first = place.index << shift;
        let there = self.count(level) - first;
        let whole = 1 << shift;
        Some((Place { level, index: first }, if there < whole { there } else { whole }))
    }

    /// Whether all its children exist. A giant that is not whole is never FREE or OWNED.
    #[inline]
    pub const fn is_whole(&self, place: Place) -> bool {
        match self.children(place) {
            Some((_, count)) => count == self.fanout(place.level),
            None => true,
        }
    }

    /// The chunks that it consists of.
    pub const fn chunks(&self, place: Place) -> Range<u32> {
        match place.level {
            Level::Chunk => place.index..place.index + 1,
            Level::Block => place.index << self.block_shift..(place.index + 1) << self.block_shift,
            Level::Giant => {
                let first = place.index << self.giant_shift;
                let end = first + (1 << self.giant_shift);
                let end = if end < self.blocks { end } else { self.blocks };
                first << self.block_shift..end << self.block_shift
            }
        }
    }

    /// Where its bytes are in the memory lent.
    pub const fn bytes(&self, place: Place) -> Range<u64> {
        let chunks = self.chunks(place);
        chunks.start as u64 * CHUNK_BYTES..chunks.end as u64 * CHUNK_BYTES
    }

    /// Bytes lent.
    pub const fn lent_bytes(&self) -> u64 {
        self.count(Level::Chunk) as u64 * CHUNK_BYTES
    }

    /// Lines of the level, the last perhaps not full.
    #[inline]
    pub const fn lines(&self, level: Level) -> u32 {
        self.count(level).div_ceil(LINE)
    }

    const fn hint_lines(&self, about: Hint) -> u32 {
        match about {
            Hint::FreeBlocks | Hint::SharedBlocks => self.lines(Level::Block),
            Hint::FreeChunks => self.lines(Level::Chunk),
        }
    }

    const fn owners_at(&self) -> u64 {
        words_at(HEADER_BYTES as u64, self.count(Level::Giant))
    }

    const fn hints_at(&self, about: Hint) -> u64 {
        let start = self.owners_at() + self.owners as u64 * OWNER_BYTES;
        match about {
            Hint::FreeBlocks => words_at(start, 0),
            Hint::SharedBlocks => words_at(self.hints_at(Hint::FreeBlocks), self.hint_lines(Hint::FreeBlocks)),
            Hint::FreeChunks => words_at(self.hints_at(Hint::SharedBlocks), self.hint_lines(Hint::SharedBlocks)),
        }
    }

    const fn level_at(&self, level: Level) -> u64 {
        match level {
            Level::Giant => HEADER_BYTES as u64,
            Level::Block => words_at(self.hints_at(Hint::FreeChunks), self.hint_lines(Hint::FreeChunks)),
            Level::Chunk => words_at(self.level_at(Level::Block), self.blocks).next_multiple_of(4096),
        }
    }

    /// Bytes of the whole table.
    pub const fn table_bytes(&self) -> u64 {
        words_at(self.level_at(Level::Chunk), self.count(Level::Chunk))
    }

    /// Byte offset of a word in the table; None if there is no such word.
    pub const fn offset(&self, target: Target) -> Option<u64> {
        match target {
            Target::Word(place) if self.has(place) => Some(self.level_at(place.level) + place.index as u64 * 8),
            Target::Hint { about, line } if line < self.hint_lines(about) => {
                Some(self.hints_at(about) + line as u64 * 8)
            }
            Target::Owner(owner, field) if owner.slot() < self.owners => {
                Some(self.owners_at() + owner.slot() as u64 * OWNER_BYTES + field as u64 * 8)
            }
            _ => None,
        }
    }

    /// The target at a byte offset of the table; None for the header, for gaps, and for an offset
    /// that is not aligned.
    pub fn target(&self, offset: u64) -> Option<Target> {
        if !offset.is_multiple_of(8) || offset < HEADER_BYTES as u64 || offset >= self.table_bytes() {
            return None;
        }
        let within = |start: u64, count: u32| {
            (offset >= start && offset < start + count as u64 * 8).then(|| ((offset - start) / 8) as u32)
        };
        for level in Level::ALL {
            if let Some(index) = within(self.level_at(level), self.count(level)) {
                return Some(Target::Word(Place { level, index }));
            }
        }
        for about in [Hint::FreeBlocks, Hint::SharedBlocks, Hint::FreeChunks] {
            if let Some(line) = within(self.hints_at(about), self.hint_lines(about)) {
                return Some(Target::Hint { about, line });
            }
        }
        let index = within(self.owners_at(), self.owners as u32 * (OWNER_BYTES / 8) as u32)?;
        let field = [OwnerField::Word, OwnerField::Heartbeat, OwnerField::Quota, OwnerField::Held][index as usize % 4];
        Some(Target::Owner(Owner::new((index / 4) as u16), field))
    }

    /// The word that a unit has when the node starts, the first `whole` giants being FREE as they
    /// are and the others split into FREE blocks. A giant that is not whole is always split.
    pub fn initial(&self, place: Place, whole: u32) -> Word {
        let giant = match place.level {
            Level::Giant => place.index,
            Level::Block => place.index >> self.giant_shift,
            Level::Chunk => return Word::ZERO,
        };
        let kept = giant < whole && self.is_whole(Place::giant(giant));
        let state = match (place.level, kept) {
            (Level::Giant, true) | (Level::Block, false) => State::Free,
            (Level::Giant, false) => State::Shared,
            _ => return Word::ZERO,
        };
        Word::plain(state, Generation(1))
    }
}

/// The end of `count` words that begin at `start`, aligned to 64 bytes.
const fn words_at(start: u64, count: u32) -> u64 {
    (start + count as u64 * 8).next_multiple_of(64)
}
