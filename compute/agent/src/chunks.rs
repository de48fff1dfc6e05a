//! The chunks of one block: 512 bits, a set bit for a chunk that somebody has.
//!
//! Pieces of `2^k` chunks are found at multiples of their length, so that what is
//! freed and what lies beside it make larger pieces again without any list: a
//! block's state is these eight words, and nothing else has to survive a crash.

use crate::word::{BLOCK_CHUNKS, BLOCK_ORDER};
use farmem_protocol::extent::block::first_free;

/// A block's map.
pub type Map = [u64; 8];

/// No chunk is taken.
pub const EMPTY: Map = [0; 8];

/// The first free aligned place for a piece of this order.
pub fn find(map: &Map, order: u8) -> Option<u16> {
    first_free(map, order).map(|first| first as u16)
}

/// The largest order that has a place; `None` when all is taken.
pub fn room(map: &Map) -> Option<u8> {
    (0..=BLOCK_ORDER).rev().find(|&order| find(map, order).is_some())
}

/// The bits of a piece, word by word.
fn masks(first: u16, order: u8) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(order <= BLOCK_ORDER && first < BLOCK_CHUNKS && first.is_multiple_of(1 << order));
    let word = first as usize / 64;
    let (words, mask) = match order {
        0..=5 => (1, ((1u64 << (1 << order)) - 1) << (first % 64)),
        _ => (1usize << (order - 6), u64::MAX),
    };
    (word..word + words).map(move |at| (at, mask))
}

/// Whether every chunk of a piece is taken.
pub fn has(map: &Map, first: u16, order: u8) -> bool {
    masks(first, order).all(|(at, mask)| map[at] & mask == mask)
}

/// Whether no chunk of a piece is taken.
pub fn has_none(map: &Map, first: u16, order: u8) -> bool {
    masks(first, order).all(|(at, mask)| map[at] & mask == 0)
}

/// Takes the chunks of a piece.
pub fn take(map: &mut Map, first: u16, order: u8) {
    masks(first, order).for_each(|(at, mask)| map[at] |= mask);
}

/// Frees the chunks of a piece.
pub fn free(map: &mut Map, first: u16, order: u8) {
    masks(first, order).for_each(|(at, mask)| map[at] &= !mask);
}

/// Chunks taken.
pub fn count(map: &Map) -> u32 {
    map.iter().map(|word| word.count_ones()).sum()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit(map: &Map, chunk: u16) -> bool {
        map[chunk as usize / 64] >> (chunk % 64) & 1 == 1
    }

    proptest! {
        /// Against chunks looked at one by one.
        #[test]
        fn places_are_found_as_by_hand(map: Map, thin: Map, order in 0u8..=9) {
            for map in [map, std::array::from_fn(|i| map[i] & thin[i] & thin[7 - i].rotate_left(13)), EMPTY, [u64::MAX; 8]] {
                let starts = (0..BLOCK_CHUNKS).step_by(1 << order);
                let by_hand = starts.clone().find(|&at| (at..at + (1 << order)).all(|chunk| !bit(&map, chunk)));
                prop_assert_eq!(find(&map, order), by_hand);
                for at in starts {
                    let all = (at..at + (1 << order)).all(|chunk| bit(&map, chunk));
                    let none = (at..at + (1 << order)).all(|chunk| !bit(&map, chunk));
                    prop_assert_eq!((has(&map, at, order), has_none(&map, at, order)), (all, none));
                    let (mut more, mut less) = (map, map);
                    take(&mut more, at, order);
                    free(&mut less, at, order);
                    for chunk in 0..BLOCK_CHUNKS {
                        let inside = (at..at + (1 << order)).contains(&chunk);
                        prop_assert_eq!(bit(&more, chunk), inside || bit(&map, chunk));
                        prop_assert_eq!(bit(&less, chunk), !inside && bit(&map, chunk));
                    }
                }
            }
            let largest = (0..=9).filter(|&order| find(&map, order).is_some()).max();
            prop_assert_eq!(room(&map), largest);
        }
    }
}
