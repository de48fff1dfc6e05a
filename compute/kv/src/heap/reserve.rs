//! Memory for writes that give memory back, in a store that is full and evicts nothing.
//!
//! An object is never changed in its place. So a write that makes a value smaller needs a place for the
//! new object before the old one's is free. Other writes leave the last free place of each size to such
//! writes, and one piece is *kept* for them. They may take a place that is larger than they need, too.

use super::{Heap, Held};
use crate::layout::{At, LARGE, PIECE_HEADER, class_bytes, is_whole};

/// The largest class whose objects share pieces.
const LARGEST: u8 = LARGE - 1;

impl Heap {
    /// [`Heap::take`] that leaves so many free places of a class whose objects share pieces.
    pub fn take_but(&mut self, left: usize, class: u8, bytes: u64) -> Option<Held> {
        let leaves = is_whole(class) || self.classes[usize::from(class)].free.len() > left;
        if leaves { self.take(class, bytes) } else { None }
    }

    /// Takes a free place of this class or a larger one, up to `most`.
    pub fn take_up_to(&mut self, most: u8, class: u8, bytes: u64) -> Option<Held> {
        (class..=most.min(LARGEST)).find_map(|class| self.take(class, bytes))
    }

    /// Adds a piece that is kept.
    pub fn keep(&mut self, at: At, bytes: u32) {
        self.add(at, bytes, LARGEST);
        let Some(piece) = self.pieces.get_mut(&at) else { return };
        piece.kept = true;
        self.sizes.free -= piece.places.len() as u64 * piece.place_bytes();
        self.classes[usize::from(LARGEST)].free.retain(|&place| place < at || place >= at + u64::from(bytes));
    }

    /// Whether a piece is kept.
    pub fn has_kept(&self) -> bool {
        self.pieces.values().any(|piece| piece.kept)
    }

    /// Takes a piece out of the heap of which nothing is used and in which an object of the class fits: the
    /// kept one last.
    pub fn take_unused(&mut self, class: u8) -> Option<(At, u32)> {
        let fits = |bytes: u32| u64::from(bytes) >= class_bytes(class) + PIECE_HEADER;
        let unused = self.pieces.iter().filter(|(_, piece)| piece.used == 0 && fits(piece.bytes));
        let (&at, _) = unused.min_by_key(|(_, piece)| piece.kept)?;
        Some((at, self.take_out(at)?))
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
        assert_eq!((heap.take(LARGEST, 100), heap.spare()), (None, None));
        assert!(heap.candidates(7).is_empty());
        let class = class_of(1000);
        heap.add(2 << 20, 4096, class);
        assert!(heap.take_but(1, class, 1000).is_some());
        while heap.take_but(1, class, 1000).is_some() {}
        let last = heap.take_up_to(LARGEST, class - 1, 1000).expect("the last one");
        assert_eq!((last.class, heap.take_up_to(LARGEST, 0, 8)), (class, None));
        assert_eq!(heap.take_unused(class), Some((1 << 20, 64 << 10)));
        assert_eq!((heap.take_unused(class), heap.has_kept(), heap.sizes().all), (None, false, 4096));
        assert_eq!(heap.closing_bytes(), 0);
    }
}
