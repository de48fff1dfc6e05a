//! Segments of collections, as their owner's heap knows them: places to which no slot refers, but
//! which a head lists ([`crate::segments`]).

use super::{Heap, SEGMENT, Use};
use crate::layout::{At, PIECE_HEADER, class_bytes, is_whole};
use crate::object::Object;
use std::collections::BTreeMap;

impl Heap {
    /// The object at a place, which is about to be linked, lists segments.
    pub fn lists_segments(&mut self, head: Object, at: At) {
        self.lists.insert(at, head);
    }

    /// The object at a place, if it is an own one that lists segments.
    pub fn list_at(&self, at: At) -> Option<Object> {
        self.lists.get(&at).cloned()
    }

    /// Own segments that were listed when this was last known, by the hashes of their keys.
    pub fn all_segments(&self) -> BTreeMap<u64, Vec<At>> {
        let mut all: BTreeMap<u64, Vec<At>> = BTreeMap::new();
        for (&at, piece) in &self.pieces {
            let step = if is_whole(piece.class) { 0 } else { class_bytes(piece.class) };
            for (n, place) in piece.places.iter().enumerate() {
                if place.used == Use::Linked && place.slot == SEGMENT {
                    all.entry(place.hash).or_default().push(at + PIECE_HEADER + n as u64 * step);
                }
            }
        }
        all
    }

    /// Whether a place still has a segment of this hash that was listed.
    pub fn is_segment(&mut self, at: At, hash: u64) -> bool {
        self.place(at).is_some_and(|place| (place.used, place.slot, place.hash) == (Use::Linked, SEGMENT, hash))
    }
}
