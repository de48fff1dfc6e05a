//! How a word's change changes the hints.
//!
//! The hints are kept by the side that carries out the CAS at the node (its NIC, if that is
//! software) or frees units (the node itself). Claimants only read them. With a hardware NIC the
//! node sees only the units it frees. The bits of claimed units then stay set until a claimant
//! looks: a useless READ for each line.

use super::geometry::{Geometry, Hint, LINE, Target};
use super::place::{Level, Place};
use super::word::{State, Word};

/// Tells `change` which hint words are to be changed after the word at `place` became `word`: bits
/// to set, bits to clear. Any order and any loss is harmless.
///
/// The bit that says *this block has free chunks* is set here but never cleared: clear it when a
/// look at the block's own hints finds nothing.
pub fn follow(geometry: &Geometry, place: Place, word: Word, mut change: impl FnMut(Target, u64, u64)) {
    let bit = 1 << (place.index % LINE);
    let hint = |about, index: u32| Target::Hint { about, line: index / LINE };
    let (set, clear) = if word.is(State::Free) { (bit, 0) } else { (0, bit) };
    match place.level {
        Level::Giant => {}
        Level::Block => {
            change(hint(Hint::FreeBlocks, place.index), set, clear);
            if !word.is(State::Shared) {
                change(hint(Hint::SharedBlocks, place.index), 0, bit);
            }
        }
        Level::Chunk => {
            change(hint(Hint::FreeChunks, place.index), set, clear);
            if let (State::Free, Some(block)) = (word.state(), geometry.parent(place)) {
                change(hint(Hint::SharedBlocks, block.index), 1 << (block.index % LINE), 0);
            }
        }
    }
}
