//! Pieces that are to go back to the node: their free places are not taken any more, and their
//! objects are evicted.

use super::{Heap, Use};
use crate::layout::{At, EXTENT, Hash, PIECE_HEADER, Slot, class_bytes, is_whole};

/// Pieces among which the emptiest is closed.
const AMONG: usize = 8;

impl Heap {
    /// Bytes of pieces that are closed.
    pub fn closing_bytes(&self) -> u64 {
        self.closing_bytes
    }

    /// Closes a piece: the emptiest of a few from a random one on, by the share of it that is used.
    /// Pieces whose places are held stay. Extents go with their heads.
    pub fn close(&mut self, random: u64) -> Option<At> {
        let (&first, _) = self.pieces.first_key_value()?;
        let (&last, _) = self.pieces.last_key_value()?;
        let from = first + random.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last - first + 1);
        let pieces = self.pieces.range(from..).chain(self.pieces.range(..from));
        let may_go = pieces.filter(|(_, piece)| {
            !piece.closed && piece.class != EXTENT && piece.places.iter().all(|place| place.used != Use::Held)
        });
        let used = |piece: &super::Piece| 1024 * u64::from(piece.used) * piece.place_bytes() / u64::from(piece.bytes);
        let (&at, _) = may_go.take(AMONG).min_by_key(|(_, piece)| used(piece))?;
        self.set_closed(at, true);
        Some(at)
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
        let Some(piece) = self.pieces.get(&at) else { return Vec::new() };
        let linked = piece.places.iter().enumerate().filter(|(_, place)| place.used == Use::Linked);
        let slot = |(n, place): (usize, &super::Place)| {
            let place_at = at + PIECE_HEADER + n as u64 * piece.step();
            Slot::new(Hash(place.hash).fingerprint(), piece.class, place.version, place_at)
        };
        linked.map(slot).collect()
    }

    /// Whether the heap has a piece of the class. Of a class with a piece for each: one of `bytes`
    /// that could be evicted. A place that is held for a value being written could not.
    pub fn has_class(&self, class: u8, bytes: u64) -> bool {
        let linked = |piece: &super::Piece| piece.places.iter().any(|place| place.used == Use::Linked);
        let fits = |piece: &super::Piece| piece.class == class && u64::from(piece.bytes) == bytes && linked(piece);
        if is_whole(class) { self.pieces.values().any(fits) } else { self.classes[usize::from(class)].bytes > 0 }
    }
}

impl super::Piece {
    /// Bytes from a place to the next.
    fn step(&self) -> u64 {
        if is_whole(self.class) { u64::from(self.bytes) - PIECE_HEADER } else { class_bytes(self.class) }
    }
}
