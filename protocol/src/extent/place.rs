//! Which unit: a level and an index.

/// Bytes of a chunk, the smallest unit.
pub const CHUNK_BYTES: u64 = 4 << 10;
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 2 << 20;
/// Bytes of a giant.
pub const GIANT_BYTES: u64 = 1 << 30;

/// The three sizes of unit that have words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Level {
    /// 4 KiB. Its words count only while the block is open.
    Chunk = 1,
    /// 2 MiB. Its words count only while the giant is open.
    Block = 2,
    /// 1 GiB.
    Giant = 3,
}

impl Level {
    /// All of them, smallest first.
    pub const ALL: [Level; 3] = [Level::Chunk, Level::Block, Level::Giant];

    /// The next larger, if any.
    #[inline]
    pub const fn parent(self) -> Option<Level> {
        match self {
            Level::Chunk => Some(Level::Block),
            Level::Block => Some(Level::Giant),
            Level::Giant => None,
        }
    }

    /// The next smaller, if any.
    #[inline]
    pub const fn child(self) -> Option<Level> {
        match self {
            Level::Chunk => None,
            Level::Block => Some(Level::Chunk),
            Level::Giant => Some(Level::Block),
        }
    }
}

/// One unit of a node's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its size.
    pub level: Level,
    /// Counted in units of its size from the beginning of the memory lent.
    pub index: u32,
}

impl Place {
    /// The `index`-th chunk.
    #[inline]
    pub const fn chunk(index: u32) -> Place {
        Place { level: Level::Chunk, index }
    }

    /// The `index`-th block.
    #[inline]
    pub const fn block(index: u32) -> Place {
        Place { level: Level::Block, index }
    }

    /// The `index`-th giant.
    #[inline]
    pub const fn giant(index: u32) -> Place {
        Place { level: Level::Giant, index }
    }

    /// The unit `by` units further on.
    #[inline]
    pub const fn plus(self, by: u32) -> Place {
        Place { level: self.level, index: self.index + by }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = match self.level {
            Level::Chunk => 'C',
            Level::Block => 'D',
            Level::Giant => 'G',
        };
        write!(f, "{letter}{}", self.index)
    }
}
