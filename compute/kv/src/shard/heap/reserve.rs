//! Memory for writes that give memory back, in a store that is full and evicts nothing.
//!
//! An object is never changed in its place. So a write that makes a value smaller needs a place for the
//! new object before the old one's is free. Other writes leave the last free place of each size to such
//! writes, and one piece is *kept* for them. They may take a place that is larger than they need, too.

use super::{Heap, Held};
use crate::layout::{At, EXTENT, LARGE, PIECE_HEADER, SHARED, class_bytes, is_whole};

/// Bytes that are kept at least, if the node has them.
const LEAST: u32 = 256 << 10;

impl Heap {
    /// [`Heap::take`] that leaves so many free places of a class whose objects share pieces.
    pub fn take_but(&mut self, left: usize, class: u8, bytes: u64) -> Option<Held> {
        let leaves = is_whole(class) || self.classes[usize::from(class)].free.len() > left;
        if leaves { self.take(class, bytes) } else { None }
    }

    /// Takes a free place of this class or a larger one, up to `most`, of those that share pieces.
    pub fn take_up_to(&mut self, most: u8, class: u8, bytes: u64) -> Option<Held> {
        (class..=most.min(SHARED)).find_map(|class| self.take(class, bytes))
    }

    /// Bytes of the piece to keep: a value that becomes smaller may need as many as it has.
    pub fn reserve(&self) -> u32 {
        self.largest().max(LEAST)
    }

    /// Bytes of the largest piece that a value has for itself.
    pub fn largest(&self) -> u32 {
        let large = self.pieces.values().filter(|piece| piece.class == LARGE);
        large.map(|piece| piece.bytes).max().unwrap_or(0)
    }

    /// Adds a piece that is kept, or keeps one of which nothing is used. It counts as an extent's, which no
    /// object takes.
    pub fn keep(&mut self, at: At, bytes: u32) {
        self.add(at, bytes, EXTENT);
        let Some(piece) = self.pieces.get_mut(&at) else { return };
        (piece.kept, self.kept) = (true, bytes);
        self.sizes.free -= piece.places.len() as u64 * piece.place_bytes();
        self.classes[usize::from(EXTENT)].free.retain(|&place| place < at || place >= at + u64::from(bytes));
    }

    /// Bytes of the kept piece; 0: none is.
    pub fn kept_bytes(&self) -> u32 {
        self.kept
    }

    /// Has a piece of which nothing is used serve this class, and takes a place in it: the kept one last, of
    /// others the smallest that will do. Its owner word is to be written.
    pub fn take_unused(&mut self, class: u8, bytes: u64) -> Option<(At, Held)> {
        let needed = PIECE_HEADER + if is_whole(class) { bytes } else { class_bytes(class) };
        let unused = |piece: &super::Piece| piece.used == 0 && u64::from(piece.bytes) >= needed;
        let found = self.pieces.iter().filter(|(_, piece)| unused(piece));
        let (&at, _) = found.min_by_key(|(_, piece)| (piece.kept, piece.bytes))?;
        let size = self.take_out(at)?;
        self.add(at, size, class);
        if !is_whole(class) {
            return Some((at, self.take(class, bytes)?));
        }
        // A value of this length would have a piece of another size: no other write may take this one first.
        self.classes[usize::from(class)].free.retain(|&place| place != at + PIECE_HEADER);
        Some((at, self.hold_at(at + PIECE_HEADER, class)?))
    }

    /// Takes the kept piece out of the heap.
    pub fn take_kept(&mut self) -> Option<At> {
        let (&at, _) = self.pieces.iter().find(|(_, piece)| piece.kept)?;
        self.take_out(at).map(|_| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::class_of;

    #[test]
    fn a_kept_piece_is_taken_last_and_by_nobody_else() {
        let mut heap = Heap::default();
        heap.keep(1 << 20, 64 << 10);
        let sizes = heap.sizes();
        assert_eq!((sizes.all, sizes.free), (64 << 10, 0));
        assert_eq!((heap.take(EXTENT, 100), heap.spare()), (None, None));
        assert!(heap.candidates(7).is_empty());
        let class = class_of(1000);
        heap.add(2 << 20, 4096, class);
        assert!(heap.take_but(1, class, 1000).is_some());
        while heap.take_but(1, class, 1000).is_some() {}
        let last = heap.take_up_to(SHARED, class - 1, 1000).expect("the last one");
        assert_eq!((last.class, heap.take_up_to(SHARED, 0, 8)), (class, None));
        let (at, held) = heap.take_unused(class, 1000).expect("the kept one");
        assert_eq!((at, held.at, held.class), (1 << 20, (1 << 20) + PIECE_HEADER, class));
        assert_eq!((heap.take_unused(class, 1000), heap.kept_bytes(), heap.sizes().all), (None, 0, (64 << 10) + 4096));
        assert_eq!(heap.closing_bytes(), 0);
    }

    #[test]
    fn a_value_with_a_piece_of_its_own_takes_what_is_kept() {
        let mut heap = Heap::default();
        assert_eq!(heap.reserve(), LEAST);
        heap.add(4 << 20, 1 << 20, LARGE);
        assert_eq!(heap.reserve(), 1 << 20);
        let large = heap.take(LARGE, 600_000).expect("a place");
        heap.keep(1 << 20, 256 << 10);
        assert_eq!(heap.take_unused(LARGE, 300_000), None);
        let (at, held) = heap.take_unused(LARGE, 100_000).expect("the kept one");
        assert_eq!((at, held.class, heap.sizes().free), (1 << 20, LARGE, 0));
        heap.give_back(held.at);
        assert_eq!((heap.spare(), heap.sizes().free), (Some((1 << 20, 256 << 10)), 0));
        heap.give_back(large.at);
        assert_eq!(heap.sizes().free, 1 << 20);
    }

    #[test]
    fn a_small_value_does_not_take_the_place_of_an_extent() {
        let (mut heap, class) = (Heap::default(), class_of(1000));
        heap.add(1 << 20, 4096, EXTENT);
        assert_eq!(heap.take_up_to(u8::MAX, class, 1000), None);
        assert_eq!(heap.take_unused(class, 1000).map(|(at, held)| (at, held.class)), Some((1 << 20, class)));
    }
}
