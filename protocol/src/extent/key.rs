//! The wire key, which a data verb shows to be admitted.
//!
//! ```text
//! 63 62 61                    32 31                             0
//! |kind |        index          |             tag                |
//!    2            30                           32
//!
//! kind   0 a window, bound by other means   1 a chunk   2 a block   3 a giant
//! index  of the unit, or of the window in its table
//! tag    the generation that the unit's word had when it was granted
//! ```
//!
//! The tag is the whole generation, so that a key never works again. It does not wrap either,
//! because a unit is retired before its generation does. (OneSidedMW and type-1 windows have eight
//! bits here, which can be guessed and repeat. The price is an index of 30 bits: 4 TiB of chunks a
//! node.) The key is no secret: a verb is admitted only from a queue pair of the owner in the word.
//!
//! A key opens its whole unit. An extent of several chunks in a shared block has
//! one key for each; one that a host cut out of a block of its own goes by the
//! block's key, or by a window below it.

use super::place::{Level, Place};
use super::word::{Generation, State, Word};

/// The thing that a key names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// A window, by its index in the node's window table.
    Window(u32),
    /// A unit, by its descriptor word.
    Unit(Place),
}

/// A wire key. All zeros is never a key: windows' tags begin at 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Key(pub u64);

const INDEX_BITS: u32 = 30;
/// One more than the largest index of a unit or window.
pub const MAX_INDEX: u32 = 1 << INDEX_BITS;

const _: () = assert!(2 + INDEX_BITS + u32::BITS == u64::BITS);

impl Key {
    /// The key of a unit whose word, as the claim left it, is `word`; None if that is not OWNED.
    pub const fn of(place: Place, word: Word) -> Option<Key> {
        if !word.is(State::Owned) || place.index >= MAX_INDEX {
            return None;
        }
        Some(Key((place.level as u64) << 62 | (place.index as u64) << 32 | word.generation().0 as u64))
    }

    /// The key of a window.
    ///
    /// # Panics
    /// If the index has more than 30 bits or the tag is zero: both are bounded by the window table.
    pub const fn window(index: u32, tag: u32) -> Key {
        assert!(index < MAX_INDEX && tag > 0);
        Key((index as u64) << 32 | tag as u64)
    }

    /// The thing that it names.
    pub const fn subject(self) -> Subject {
        let index = (self.0 >> 32) as u32 & (MAX_INDEX - 1);
        let level = match self.0 >> 62 {
            0 => return Subject::Window(index),
            1 => Level::Chunk,
            2 => Level::Block,
            _ => Level::Giant,
        };
        Subject::Unit(Place { level, index })
    }

    /// The generation it was granted under; of a window, its own.
    pub const fn tag(self) -> Generation {
        Generation(self.0 as u32)
    }
}
