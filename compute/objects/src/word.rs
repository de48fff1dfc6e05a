//! The word of a box, and of the frame that serves it. Pure.
//!
//! ```text
//! word: | home: 32 | place: 28 | dirty | home: 3 |      meta: | stamp | arriving | seen |
//! ```
//!
//! The place ends at bit 4 of the lower half. So a mask of the half is the place in units of 16
//! bytes, with no shift: the use of a local object is eight instructions.

use crate::homes::{HOME_BITS, Home};

/// The evictor's hand has passed the frame since its object was last used.
pub const SEEN: u64 = 1;
/// The payload is on its way, and must not be read. The frame's word is the complement of its
/// box's.
pub const ARRIVING: u64 = 2;
/// Bits of `meta` below the stamp.
pub const STAMP: u32 = 2;
/// Bits of a home below the dirty bit. The others are the upper half.
const LOW: u32 = HOME_BITS - 32;
/// Those bits.
const LOWEST: u64 = (1 << LOW) - 1;
/// The dirty bit.
const DIRTY: u64 = 1 << LOW;
/// Bits of a word below the place.
pub const PLACE: u32 = LOW + 1;

/// The word of a box: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    /// The word of an object with this home, whose frame is `place` units into its class's range.
    pub fn new(place: u64, home: Home) -> Word {
        Word(home.0 >> LOW << 32 | place << PLACE | home.0 & LOWEST)
    }

    /// The word of an object that is away: that of the first frame of its class, which has another.
    pub fn away(home: Home) -> Word {
        Word::new(0, home)
    }

    /// The frame's place: units into its class's range.
    #[inline]
    pub fn place(self) -> u64 {
        (self.0 as u32 >> PLACE).into()
    }

    /// The place in bytes, where it counts units of `1 << unit` bytes: at least 16.
    #[inline]
    pub fn offset(self, unit: u32) -> usize {
        ((self.0 as u32 & !0 << PLACE) as usize) << (unit - PLACE)
    }

    pub fn home(self) -> Home {
        Home(self.0 >> 32 << LOW | self.0 & LOWEST)
    }

    /// Whether the object was written to since it came.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// The word without the dirty bit: the object is as at its home.
    pub fn clean(self) -> Word {
        Word(self.0 & !DIRTY)
    }

    #[inline]
    pub fn dirty(self) -> Word {
        Word(self.0 | DIRTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_a_place_a_home_and_a_bit() {
        let places = [0, 1, 2, 0x5555_5555 & 0xFFF_FFFF, 0xFFF_FFFF];
        let homes = [1, 7, 8, 9, 0x5_5555_5555, (1 << HOME_BITS) - 1];
        for (place, home) in places.into_iter().flat_map(|place| homes.map(|home| (place, home))) {
            let word = Word::new(place, Home(home));
            for (word, is_dirty) in [(word, false), (word.dirty(), true), (word.dirty().clean(), false)] {
                assert_eq!((word.place(), word.home(), word.is_dirty()), (place, Home(home), is_dirty));
                assert_eq!((word.offset(4), word.offset(6)), (place as usize * 16, place as usize * 64));
            }
            assert!(word.0 != 0 && word.dirty().clean() == word && Word::away(Home(home)).home() == Home(home));
            // The complement is no word of this frame.
            assert!(Word(!word.0).place() != place);
        }
    }
}
