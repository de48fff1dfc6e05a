//! The pieces that a front end holds at one node, and which places of them are free.
//!
//! Only a piece's owner places objects into it. Anyone may make one garbage, by the CAS that takes
//! it out of the index. The owner learns of that from its own CAS, or by looking the object up
//! ([`crate::recover`]). An object is live exactly when the index refers to it, so no list of free
//! places is kept at the node, and a crash cannot lose one.
//!
//! ```text
//!  free ─► held ─► linked ─► retired, until every operation that may have seen it has ended ─► free
//!           └── never linked ──────────────────────────────────────────────────────────────────┘
//! ```

use crate::layout::{At, LARGE, PIECE_HEADER, PIECES, class_bytes};
use std::collections::{BTreeMap, VecDeque};

/// Epochs between an object's retirement and its place's reuse. See [`crate::member`].
pub const GRACE: u64 = 3;
/// Pieces of a class grow with it up to this size.
const LARGEST_SHARED: u32 = 256 << 10;

/// The state of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Nothing is there.
    Free,
    /// An operation under way has it.
    Held,
    /// The index refers to it, or did when this was last known.
    Linked,
    /// It waits for readers.
    Retired,
}

/// A place of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its state.
    pub used: Use,
    /// How often it was used.
    pub version: u16,
    /// Hash of the key whose object it has, if linked.
    pub hash: u64,
}

/// A place that an operation holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Where.
    pub at: At,
    /// Its class.
    pub class: u8,
    /// For the slot and the object.
    pub version: u16,
}

#[derive(Debug)]
struct Piece {
    bytes: u32,
    class: u8,
    used: u32,
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Class {
    free: Vec<At>,
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Heap {
    classes: Vec<Class>,
    pieces: BTreeMap<At, Piece>,
    retired: VecDeque<(u64, At)>,
    retired_bytes: u64,
    bytes: u64,
}

impl Default for Heap {
    fn default() -> Heap {
        let classes = (0..=LARGE).map(|_| Class::default()).collect();
        Heap { classes, pieces: BTreeMap::new(), retired: VecDeque::new(), retired_bytes: 0, bytes: 0 }
    }
}

impl Heap {
    /// Takes a free place of the class that holds `bytes`.
    pub fn take(&mut self, class: u8, bytes: u64) -> Option<Held> {
        let at = if class == LARGE {
            let wanted = self.piece_for(class, bytes);
            let free = &self.classes[usize::from(class)].free;
            let fits = |at: &At| self.pieces.get(&(at - PIECE_HEADER)).is_some_and(|piece| piece.bytes == wanted);
            let place = free.iter().position(fits)?;
            self.classes[usize::from(class)].free.swap_remove(place)
        } else {
            self.classes[usize::from(class)].free.pop()?
        };
        let place = self.place(at)?;
        place.used = Use::Held;
        place.version = place.version.wrapping_add(1) & 0xfff;
        let version = place.version;
        if let Some((_, piece)) = self.piece_of(at) {
            piece.used += 1;
        }
        Some(Held { at, class, version })
    }

    /// Bytes of the piece to allocate when the class has no free place that holds `bytes`.
    pub fn piece_for(&self, class: u8, bytes: u64) -> u32 {
        let least = (bytes.max(if class == LARGE { 0 } else { class_bytes(class) }) + PIECE_HEADER) as u32;
        let least = least.next_power_of_two().max(*PIECES.start());
        if class == LARGE {
            return least;
        }
        let grown = (self.classes[usize::from(class)].bytes / 4) as u32;
        least.max(grown.next_power_of_two().min(LARGEST_SHARED))
    }

    /// Adds a piece of which nothing is used.
    pub fn add(&mut self, at: At, bytes: u32, class: u8) {
        self.adopt(at, bytes, class, Vec::new());
    }

    /// Adds a piece with what is known of its places; others are free.
    pub fn adopt(&mut self, at: At, bytes: u32, class: u8, known: Vec<Place>) {
        let step = if class == LARGE { u64::from(bytes) - PIECE_HEADER } else { class_bytes(class) };
        let count = (u64::from(bytes) - PIECE_HEADER) / step;
        let free = Place { used: Use::Free, version: 0, hash: 0 };
        let mut places = known;
        places.resize(count as usize, free);
        let used = places.iter().filter(|place| place.used != Use::Free).count() as u32;
        let into = &mut self.classes[usize::from(class)];
        into.bytes += u64::from(bytes);
        // The first place is taken first.
        into.free.extend(
            (0..places.len())
                .rev()
                .filter(|&n| places[n].used == Use::Free)
                .map(|n| at + PIECE_HEADER + n as u64 * step),
        );
        self.bytes += u64::from(bytes);
        self.pieces.insert(at, Piece { bytes, class, used, places });
    }

    fn piece_of(&mut self, at: At) -> Option<(At, &mut Piece)> {
        let (&first, piece) = self.pieces.range_mut(..=at).next_back()?;
        (at < first + u64::from(piece.bytes)).then_some((first, piece))
    }

    fn place(&mut self, at: At) -> Option<&mut Place> {
        let (first, piece) = self.piece_of(at)?;
        let step = if piece.class == LARGE { u64::from(piece.bytes) } else { class_bytes(piece.class) };
        piece.places.get_mut(((at - first - PIECE_HEADER) / step) as usize)
    }

    /// The object was linked.
    pub fn linked(&mut self, at: At, hash: u64) {
        // It may have been taken out again before this front end has learned that it was linked.
        if let Some(place) = self.place(at).filter(|place| place.used == Use::Held) {
            (place.used, place.hash) = (Use::Linked, hash);
        }
    }

    /// Records that the object left the index in or before this epoch. Ignores places of others.
    pub fn retire(&mut self, at: At, epoch: u64) {
        let linked = |place: &&mut Place| matches!(place.used, Use::Linked | Use::Held);
        let Some(place) = self.place(at).filter(linked) else { return };
        place.used = Use::Retired;
        self.retired_bytes += self.place_bytes(at);
        self.retired.push_back((epoch, at));
    }

    /// The place was never linked.
    pub fn give_back(&mut self, at: At) {
        if self.place(at).is_some_and(|place| place.used == Use::Held) {
            self.free(at);
        }
    }

    fn place_bytes(&mut self, at: At) -> u64 {
        self.piece_of(at).map_or(0, |(_, piece)| {
            if piece.class == LARGE { u64::from(piece.bytes) } else { class_bytes(piece.class) }
        })
    }

    fn free(&mut self, at: At) {
        let Some(place) = self.place(at) else { return };
        place.used = Use::Free;
        let Some((_, piece)) = self.piece_of(at) else { return };
        piece.used -= 1;
        let class = piece.class;
        self.classes[usize::from(class)].free.push(at);
    }

    /// Frees what was retired early enough. `now` is the store's epoch as last read.
    pub fn reap(&mut self, now: u64) {
        while let Some(&(epoch, at)) = self.retired.front() {
            if epoch + GRACE > now {
                break;
            }
            self.retired.pop_front();
            self.retired_bytes -= self.place_bytes(at);
            self.free(at);
        }
    }

    /// Takes a piece of which nothing is used out of the heap, to be given back to the node: a
    /// large object's always, of the others those beyond a class's need.
    pub fn spare(&mut self) -> Option<(At, u32)> {
        let mut found = None;
        for (&at, piece) in &self.pieces {
            let class = &self.classes[usize::from(piece.class)];
            let places = piece.places.len();
            let keep = piece.class != LARGE && class.free.len() < places * 2;
            if piece.used == 0 && !keep {
                found = Some((at, piece.bytes));
                break;
            }
        }
        let (at, bytes) = found?;
        let piece = self.pieces.remove(&at)?;
        let class = &mut self.classes[usize::from(piece.class)];
        class.free.retain(|&place| place < at || place >= at + u64::from(bytes));
        class.bytes -= u64::from(bytes);
        self.bytes -= u64::from(bytes);
        Some((at, bytes))
    }

    /// Bytes that wait for readers.
    pub fn retired_bytes(&self) -> u64 {
        self.retired_bytes
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the place still has the object of this hash.
    pub fn is_linked(&mut self, at: At, hash: u64) -> bool {
        self.place(at).is_some_and(|place| place.used == Use::Linked && place.hash == hash)
    }

    /// Linked places, with their keys' hashes.
    pub fn all_linked(&self) -> Vec<(At, u64)> {
        let mut linked = Vec::new();
        for (&at, piece) in &self.pieces {
            let step = if piece.class == LARGE { 0 } else { class_bytes(piece.class) };
            for (n, place) in piece.places.iter().enumerate().filter(|(_, place)| place.used == Use::Linked) {
                linked.push((at + PIECE_HEADER + n as u64 * step, place.hash));
            }
        }
        linked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_after_its_grace() {
        let mut heap = Heap::default();
        assert!(heap.take(0, 1).is_none());
        heap.add(1 << 20, 4096, 0);
        let all: Vec<Held> = std::iter::from_fn(|| heap.take(0, 1)).collect();
        assert_eq!(all.len(), 63);
        heap.linked(all[5].at, 7);
        assert_eq!(heap.all_linked(), [(all[5].at, 7)]);
        heap.retire(all[5].at, 10);
        heap.retire(all[5].at, 10);
        heap.reap(12);
        assert_eq!((heap.take(0, 1), heap.retired_bytes()), (None, 64));
        heap.reap(13);
        assert_eq!(heap.take(0, 1), Some(Held { version: 2, ..all[5] }));
        assert!(heap.spare().is_none());
    }

    #[test]
    fn a_place_that_is_retired_early_is_not_lost() {
        let mut heap = Heap::default();
        heap.add(1 << 20, 4096, 0);
        let held = heap.take(0, 1).unwrap();
        heap.retire(held.at, 10);
        heap.linked(held.at, 7);
        assert!(heap.all_linked().is_empty());
        heap.reap(13);
        assert_eq!(heap.take(0, 1), Some(Held { version: 2, ..held }));
    }

    #[test]
    fn an_unused_large_piece_is_spare() {
        let mut heap = Heap::default();
        assert_eq!(heap.piece_for(LARGE, 100 << 10), 128 << 10);
        heap.add(1 << 20, 128 << 10, LARGE);
        let held = heap.take(LARGE, 100 << 10).unwrap();
        heap.give_back(held.at);
        assert_eq!(heap.spare(), Some((1 << 20, 128 << 10)));
        assert_eq!((heap.take(LARGE, 100 << 10), heap.bytes()), (None, 0));
    }
}
