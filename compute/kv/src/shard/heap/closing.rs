//! Pieces that are to go back to the node: their free places are not taken any more, and their
//! objects are evicted. [`crate::shard::evict`] chooses them.

use super::{Heap, SEGMENT, Use};
use crate::layout::{At, EXTENT, Hash, PIECE_HEADER, Slot, class_bytes, is_whole};

/// Pieces among which one is closed, and objects by which each is judged.
const AMONG: usize = 8;
const BY: usize = 4;

/// A piece that may be closed.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where it is.
    pub at: At,
    /// How much of it is used, of 1024.
    pub used: u64,
    /// Slots of some of its linked objects.
    pub some: Vec<Slot>,
}

impl Heap {
    /// Bytes of pieces that are closed.
    pub fn closing_bytes(&self) -> u64 {
        self.closing_bytes
    }

    /// Some pieces that may be closed, from a random one on. Pieces whose places are held stay. Extents
    /// and segments go with their heads.
    pub fn candidates(&self, random: u64) -> Vec<Candidate> {
        let (Some((&first, _)), Some((&last, _))) = (self.pieces.first_key_value(), self.pieces.last_key_value())
        else {
            return Vec::new();
        };
        let from = first + random.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last - first + 1);
        let pieces = self.pieces.range(from..).chain(self.pieces.range(..from));
        let candidate = |(&at, piece): (&At, &super::Piece)| Candidate {
            at,
            used: 1024 * u64::from(piece.used) * piece.place_bytes() / u64::from(piece.bytes),
            some: piece.linked(at, random as usize).take(BY).collect(),
        };
        pieces.filter(|(_, piece)| piece.may_close()).take(AMONG).map(candidate).collect()
    }

    /// Closes a piece; whether it may be closed, still.
    pub fn close(&mut self, at: At) -> bool {
        self.pieces.get(&at).is_some_and(super::Piece::may_close) && self.set_closed(at, true) > 0
    }

    /// Opens a closed piece again: something in it must stay.
    pub fn reopen(&mut self, at: At) {
        self.set_closed(at, false);
    }

    /// Closes or opens a piece; its bytes.
    fn set_closed(&mut self, at: At, closed: bool) -> u64 {
        let Some(piece) = self.pieces.get_mut(&at).filter(|piece| piece.closed != closed) else { return 0 };
        piece.closed = closed;
        let (class, bytes, step) = (piece.class, u64::from(piece.bytes), piece.step());
        let free: Vec<At> = (0..piece.places.len())
            .filter(|&n| piece.places[n].used == Use::Free)
            .map(|n| at + PIECE_HEADER + n as u64 * step)
            .collect();
        let free_bytes = free.len() as u64 * piece.place_bytes();
        let places = &mut self.classes[usize::from(class)].free;
        if closed {
            places.retain(|&place| place < at || place >= at + bytes);
            self.sizes.free -= free_bytes;
            self.closing_bytes += bytes;
        } else {
            places.extend(free);
            self.sizes.free += free_bytes;
            self.closing_bytes -= bytes;
        }
        bytes
    }

    /// Slots of a piece's linked objects.
    pub fn linked_of(&self, at: At) -> Vec<Slot> {
        self.pieces.get(&at).map_or(Vec::new(), |piece| piece.linked(at, 0).collect())
    }

    /// Whether the heap has a piece of the class. Of a class with a piece for each: one of `bytes`
    /// that could be evicted. A place that is held for a value being written could not.
    pub fn has_class(&self, class: u8, bytes: u64) -> bool {
        let linked = |piece: &super::Piece| piece.places.iter().any(super::Place::has_slot);
        let fits = |piece: &super::Piece| piece.class == class && u64::from(piece.bytes) == bytes && linked(piece);
        if is_whole(class) { self.pieces.values().any(fits) } else { self.classes[usize::from(class)].bytes > 0 }
    }
}

impl super::Piece {
    fn may_close(&self) -> bool {
        let stays =
            |place: &super::Place| place.used == Use::Held || place.used == Use::Linked && place.slot == SEGMENT;
        !self.closed && !self.kept && self.class != EXTENT && !self.places.iter().any(stays)
    }

    /// Slots of its linked objects, if it is at `at`, from the `turned`th place on.
    fn linked(&self, at: At, turned: usize) -> impl Iterator<Item = Slot> + '_ {
        let count = self.places.len().max(1);
        let numbers = (0..self.places.len()).map(move |n| (n + turned % count) % count);
        numbers.filter(|&n| self.places[n].has_slot()).map(move |n| {
            let (place, place_at) = (&self.places[n], at + PIECE_HEADER + n as u64 * self.step());
            Slot::new(Hash(place.hash).fingerprint(), self.class, place.version, place_at)
        })
    }

    /// Bytes from a place to the next.
    fn step(&self) -> u64 {
        if is_whole(self.class) { u64::from(self.bytes) - PIECE_HEADER } else { class_bytes(self.class) }
    }
}
