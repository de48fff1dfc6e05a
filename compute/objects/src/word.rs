//! The word of a box, and of the frame that serves it. Pure.
//!
//! ```text
//! word: | place: 28 | dirty | home: 35 |      meta: | stamp | arriving | seen |
//! ```

use crate::homes::{HOME_BITS, Home};

/// The evictor's hand has passed the frame since its object was last used.
pub const SEEN: u64 = 1;
/// The payload is on its way, and must not be read. The frame's word is the complement of its
/// box's.
pub const ARRIVING: u64 = 2;
/// Bits of `meta` below the stamp.
pub const STAMP: u32 = 2;
/// Bits of a word below the place.
const PLACE: u32 = HOME_BITS + 1;

/// The word of a box: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    /// The word of an object with this home, whose frame is `place` units into its class's range.
    pub fn new(place: u64, home: Home) -> Word {
        Word(place << PLACE | home.0)
    }

    /// The frame's place: units into its class's range.
    #[inline]
    pub fn place(self) -> u64 {
        self.0 >> PLACE
    }

    pub fn home(self) -> Home {
        Home(self.0 & ((1 << HOME_BITS) - 1))
    }

    /// Whether the object was written to since it came.
    pub fn is_dirty(self) -> bool {
        self.0 & 1 << HOME_BITS != 0
    }

    /// The word without the dirty bit: the object is as at its home.
    pub fn clean(self) -> Word {
        Word(self.0 & !(1 << HOME_BITS))
    }

    #[inline]
    pub fn dirty(self) -> Word {
        Word(self.0 | 1 << HOME_BITS)
    }
}
