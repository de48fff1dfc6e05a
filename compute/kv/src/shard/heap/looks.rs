//! Questions about a heap, for filling a new node and for eviction.

use super::{GRACE, Heap, Place, SEGMENT, Use};
use crate::layout::{At, EXTENT, Hash, PIECE_HEADER, Slot, class_bytes, is_whole};
use std::collections::BTreeSet;

/// A place with an object to which the index refers, or did when this was last known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linked {
    /// Where it is.
    pub at: At,
    /// The hash of its key.
    pub hash: u64,
    /// The slot; 0: it is not known.
    pub slot: At,
}

impl Heap {
    /// Linked places, of extents and segments none: of pieces from an address on, until there are
    /// so many, and the piece to go on with.
    pub fn linked_from(&self, from: At, most: usize) -> (Vec<Linked>, Option<At>) {
        let mut linked = Vec::new();
        for (&at, piece) in self.pieces.range(from..).filter(|(_, piece)| piece.class != EXTENT) {
            if linked.len() >= most {
                return (linked, Some(at));
            }
            let step = if is_whole(piece.class) { 0 } else { class_bytes(piece.class) };
            let there = piece.places.iter().enumerate().filter(|(_, place)| place.has_slot());
            linked.extend(there.map(|(n, place)| Linked {
                at: at + PIECE_HEADER + n as u64 * step,
                hash: place.hash,
                slot: place.slot,
            }));
        }
        (linked, None)
    }

    /// Whether a place still has this object in this slot.
    pub fn is_as_linked(&mut self, one: &Linked) -> bool {
        let same = |place: &&mut Place| (place.used, place.hash, place.slot) == (Use::Linked, one.hash, one.slot);
        self.place(one.at).filter(same).is_some()
    }

    /// The slot in which the object at a place was linked, and what the slot was then. `None`: it is not
    /// known, or the object lists extents.
    pub fn slot_of(&mut self, at: At) -> Option<(At, Slot)> {
        if self.heads.contains_key(&at) {
            return None;
        }
        let (place, class, _) = self.state(at)?;
        let linked = place.has_slot() && place.slot > 0;
        linked.then(|| (place.slot, Slot::new(Hash(place.hash).fingerprint(), class, place.version, at)))
    }

    /// The object of this hash at a place was found in this slot.
    pub fn is_in(&mut self, at: At, hash: u64, slot: At) {
        if let Some(place) = self.place(at).filter(|place| place.used == Use::Linked && place.hash == hash) {
            place.slot = slot;
        }
    }

    /// Places that are linked or held.
    pub fn used_places(&self) -> usize {
        let used = |place: &&Place| matches!(place.used, Use::Linked | Use::Held);
        self.pieces.values().map(|piece| piece.places.iter().filter(used).count()).sum()
    }

    /// Its pieces: first byte and length.
    pub fn all_pieces(&self) -> Vec<(At, u32)> {
        self.pieces.iter().map(|(&at, piece)| (at, piece.bytes)).collect()
    }

    /// Bytes of a piece; `None`: it is not here.
    pub fn piece_bytes(&self, at: At) -> Option<u32> {
        Some(self.pieces.get(&at)?.bytes)
    }

    /// Ranges of a piece that have objects which do not change while an operation that began in this
    /// epoch is under way: linked or retired ones. `segments`: also those to which no slot refers.
    pub fn settled(&self, at: At, epoch: u64, segments: bool) -> Vec<(At, u64)> {
        let Some(piece) = self.pieces.get(&at) else { return Vec::new() };
        let of_piece = at..at + u64::from(piece.bytes);
        let soon: BTreeSet<At> = self.soon_free(epoch).filter(|free| of_piece.contains(free)).collect();
        let step = if is_whole(piece.class) { u64::from(piece.bytes) - PIECE_HEADER } else { class_bytes(piece.class) };
        let mut ranges: Vec<(At, u64)> = Vec::new();
        for (n, place) in piece.places.iter().enumerate() {
            let first = at + PIECE_HEADER + n as u64 * step;
            let stays = matches!(place.used, Use::Linked | Use::Retired) && !soon.contains(&first);
            if !stays || place.slot == SEGMENT && !segments {
                continue;
            }
            match ranges.last_mut() {
                Some((from, len)) if *from + *len == first => *len += step,
                _ => ranges.push((first, step)),
            }
        }
        ranges
    }

    /// Retired places that may be used again while an operation that began in this epoch is under
    /// way, since the store's epoch may go on by one meanwhile.
    fn soon_free(&self, epoch: u64) -> impl Iterator<Item = At> {
        self.retired.iter().take_while(move |(retired, _)| retired + GRACE <= epoch + 1).map(|&(_, at)| at)
    }

    /// Whether [`Heap::soon_free`] has a place.
    pub fn is_soon_free(&self, at: At, epoch: u64) -> bool {
        self.soon_free(epoch).any(|free| free == at)
    }

    /// Places that operations under way have, and how often each was used.
    pub fn all_held(&self) -> Vec<(At, u16)> {
        let mut held = Vec::new();
        for (&at, piece) in &self.pieces {
            let step = if is_whole(piece.class) { 0 } else { class_bytes(piece.class) };
            let mine = piece.places.iter().enumerate().filter(|(_, place)| place.used == Use::Held);
            held.extend(mine.map(|(n, place)| (at + PIECE_HEADER + n as u64 * step, place.uses)));
        }
        held
    }

    /// A place, its class and its bytes.
    pub fn state(&mut self, at: At) -> Option<(Place, u8, u64)> {
        let (piece, number) = self.located(at)?;
        let bytes = if is_whole(piece.class) { u64::from(piece.bytes) - PIECE_HEADER } else { piece.place_bytes() };
        Some((piece.places[number], piece.class, bytes))
    }

    /// Slots of some linked objects, at most `most`: a few of each of some pieces in a row, from a
    /// random one on.
    pub fn some_linked(&self, random: u64, most: usize) -> Vec<Slot> {
        let (Some((&first, _)), Some((&last, _))) = (self.pieces.first_key_value(), self.pieces.last_key_value())
        else {
            return Vec::new();
        };
        let from = first + random.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last - first + 1);
        let pieces = self.pieces.range(from..).chain(self.pieces.range(..from));
        let mut slots = Vec::with_capacity(most);
        // However many pieces have nothing but segments: those go with their heads.
        let has_slots = |piece: &super::Piece| piece.class != EXTENT && piece.places.iter().any(Place::has_slot);
        for (&at, piece) in pieces.filter(|(_, piece)| piece.used == 0 || has_slots(piece)).take(4 * most) {
            let (step, count) =
                if is_whole(piece.class) { (0, 1) } else { (class_bytes(piece.class), piece.places.len()) };
            let turned = (0..count).map(|n| (n + random as usize) % count);
            let linked = turned.filter(|&n| piece.places[n].has_slot()).take(most.div_ceil(4));
            slots.extend(linked.map(|n| {
                let place = piece.places[n];
                Slot::new(
                    Hash(place.hash).fingerprint(),
                    piece.class,
                    place.version,
                    at + PIECE_HEADER + n as u64 * step,
                )
            }));
            if slots.len() >= most {
                break;
            }
        }
        slots.truncate(most);
        slots
    }
}
