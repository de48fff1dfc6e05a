//! The pieces that a front end holds at one node, and which places of them are free.
//!
//! Only a piece's owner places objects into it. Anyone may make one garbage, by the CAS that takes
//! it out of the index. The owner learns of that from its own CAS, or by looking the object up
//! ([`crate::shard::recover`]). An object is live exactly when the index refers to it, so no list of free
//! places is kept at the node, and a crash cannot lose one.
//!
//! ```text
//!  free ─► held ─► linked ─► retired, until every operation that may have seen it has ended ─► free
//!           └── never linked ──────────────────────────────────────────────────────────────────┘
//! ```

mod closing;
mod looks;
mod reserve;
mod segments;

pub use closing::Candidate;
pub use looks::Linked;

use crate::layout::{At, LARGE, PIECE_HEADER, PIECES, class_bytes, is_for_blocks, is_whole};
use crate::object::Object;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Epochs between an object's retirement and its place's reuse. See [`crate::shard::member`].
pub const GRACE: u64 = 3;
/// In place of the slot's address: no slot refers to the object, but a head lists it
/// ([`crate::segments`]).
pub const SEGMENT: At = 1;
/// Pieces of a class grow with it up to this size.
pub(crate) const LARGEST_SHARED: u32 = 256 << 10;

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
    /// Of the last object.
    pub version: u16,
    /// How often it was taken here.
    pub uses: u16,
    /// When the object ends, in seconds since 1970, rounded up; 0: never.
    pub ends: u32,
    /// Hash of the key whose object it has, if linked.
    pub hash: u64,
    /// The slot that referred to the object when it was linked; 0: it is not known. [`SEGMENT`]:
    /// there is none.
    pub slot: At,
}

impl Place {
    /// Whether a slot refers to its object, as far as is known.
    fn has_slot(&self) -> bool {
        self.used == Use::Linked && self.slot != SEGMENT
    }

    /// When its object ends, if it is linked and ends.
    fn end(&self) -> Option<u32> {
        (self.used == Use::Linked && self.ends > 0).then_some(self.ends)
    }
}

/// The second in which an object is certain to have ended, for [`Place::ends`].
pub fn second(expiry_ms: Option<u64>) -> u32 {
    expiry_ms.map_or(0, |at| at.div_ceil(1000).clamp(1, u64::from(u32::MAX)) as u32)
}

/// A place that an operation holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Where.
    pub at: At,
    /// Its class.
    pub class: u8,
    /// For the slot and the object: the low bits of the epoch in which it was taken.
    pub version: u16,
    /// By which this use is told from later ones of the same place.
    pub uses: u16,
}

#[derive(Debug)]
struct Piece {
    bytes: u32,
    class: u8,
    used: u32,
    /// None of its linked objects ends before this second.
    soonest: u32,
    /// It is to go back to the node: no place of it is taken.
    closed: bool,
    /// It is kept for writes that give memory back: see `reserve.rs`.
    kept: bool,
    places: Vec<Place>,
}

impl Piece {
    /// Bytes of each of its places.
    fn place_bytes(&self) -> u64 {
        if is_whole(self.class) { u64::from(self.bytes) } else { class_bytes(self.class) }
    }

    /// When the first of its linked objects ends.
    fn soonest(&self) -> u32 {
        self.places.iter().filter_map(Place::end).min().unwrap_or(u32::MAX)
    }
}

#[derive(Debug, Default)]
struct Class {
    free: Vec<At>,
    bytes: u64,
}

/// Bytes of a heap, by what they are at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// All pieces.
    pub all: u64,
    /// Places that can be taken.
    pub free: u64,
    /// Places that wait for readers.
    pub retired: u64,
    /// Places that were retired and have come back, since the start.
    pub reaped: u64,
    /// Places that were retired and are a whole piece each, since the start.
    pub whole: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Heap {
    classes: Vec<Class>,
    pieces: BTreeMap<At, Piece>,
    retired: VecDeque<(u64, At)>,
    /// The store's epoch as last told.
    now: u64,
    sizes: Sizes,
    /// Bytes of closed pieces, and of the kept one.
    closing_bytes: u64,
    kept: u32,
    /// Long values of which this front end has extents, by their numbers.
    longs: HashMap<u64, Extents>,
    /// Own objects that list extents, and the number of the long value.
    heads: HashMap<At, u64>,
    /// Own objects that list segments.
    lists: HashMap<At, Object>,
    /// Pieces taken over since this was last asked for.
    taken_over: Vec<At>,
}

/// The extents of a long value that this front end has.
#[derive(Debug, Default)]
struct Extents {
    /// The key's hash.
    hash: u64,
    places: Vec<At>,
    /// Own objects that list them and are in the index, or may come there.
    heads: u32,
    /// The index referred to the value when this was last known.
    linked: bool,
}

impl Default for Heap {
    fn default() -> Heap {
        let classes = (0..=LARGE).map(|_| Class::default()).collect();
        Heap {
            classes,
            pieces: BTreeMap::new(),
            retired: VecDeque::new(),
            now: 0,
            sizes: Sizes::default(),
            closing_bytes: 0,
            kept: 0,
            longs: HashMap::new(),
            heads: HashMap::new(),
            lists: HashMap::new(),
            taken_over: Vec::new(),
        }
    }
}

impl Heap {
    /// Takes a free place of the class that holds `bytes`.
    pub fn take(&mut self, class: u8, bytes: u64) -> Option<Held> {
        let at = if is_whole(class) {
            let wanted = self.piece_for(class, bytes);
            let free = &self.classes[usize::from(class)].free;
            let fits = |at: &At| self.pieces.get(&(at - PIECE_HEADER)).is_some_and(|piece| piece.bytes == wanted);
            let place = free.iter().position(fits)?;
            self.classes[usize::from(class)].free.swap_remove(place)
        } else {
            self.classes[usize::from(class)].free.pop()?
        };
        self.hold_at(at, class)
    }

    /// Takes a place that is free, and no more among those that others may take.
    fn hold_at(&mut self, at: At, class: u8) -> Option<Held> {
        let version = (self.now & 0xfff) as u16;
        let (piece, place) = self.located(at)?;
        piece.used += 1;
        let (bytes, place) = (piece.place_bytes(), &mut piece.places[place]);
        place.used = Use::Held;
        // Not a count of uses: that would begin again when the piece goes back to the node and is taken by
        // another front end, and a slot of before would look like one of now.
        place.version = version;
        place.uses = place.uses.wrapping_add(1);
        let held = Held { at, class, version: place.version, uses: place.uses };
        self.sizes.free -= bytes;
        Some(held)
    }

    /// Bytes of the piece to allocate when the class has no free place that holds `bytes`.
    pub fn piece_for(&self, class: u8, bytes: u64) -> u32 {
        let least = (bytes.max(if is_whole(class) { 0 } else { class_bytes(class) }) + PIECE_HEADER) as u32;
        let least = least.next_power_of_two().max(*PIECES.start());
        if is_whole(class) {
            return least;
        }
        let bytes = self.classes[usize::from(class)].bytes;
        let (grown, most) = if is_for_blocks(class) { (bytes, *PIECES.end()) } else { (bytes / 4, LARGEST_SHARED) };
        least.max(grown.min(u64::from(most)).next_power_of_two() as u32)
    }

    /// Adds a piece of which nothing is used.
    pub fn add(&mut self, at: At, bytes: u32, class: u8) {
        self.insert(at, bytes, class, Vec::new());
    }

    /// Adds a piece that was another's with what is known of its places; others are free.
    pub fn adopt(&mut self, at: At, bytes: u32, class: u8, known: Vec<Place>) {
        self.taken_over.push(at);
        self.insert(at, bytes, class, known);
    }

    fn insert(&mut self, at: At, bytes: u32, class: u8, known: Vec<Place>) {
        let step = if is_whole(class) { u64::from(bytes) - PIECE_HEADER } else { class_bytes(class) };
        let count = (u64::from(bytes) - PIECE_HEADER) / step;
        let free = Place { used: Use::Free, version: 0, uses: 0, ends: 0, hash: 0, slot: 0 };
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
        self.sizes.all += u64::from(bytes);
        let mut piece = Piece { bytes, class, used, soonest: 0, closed: false, kept: false, places };
        piece.soonest = piece.soonest();
        self.sizes.free += (count - u64::from(used)) * piece.place_bytes();
        self.pieces.insert(at, piece);
    }

    fn piece_of(&mut self, at: At) -> Option<(At, &mut Piece)> {
        let (&first, piece) = self.pieces.range_mut(..=at).next_back()?;
        (at < first + u64::from(piece.bytes)).then_some((first, piece))
    }

    /// The piece that has a place, and the place's number in it.
    fn located(&mut self, at: At) -> Option<(&mut Piece, usize)> {
        let (first, piece) = self.piece_of(at)?;
        let number = (at.checked_sub(first + PIECE_HEADER)? / piece.place_bytes()) as usize;
        (number < piece.places.len()).then_some((piece, number))
    }

    fn place(&mut self, at: At) -> Option<&mut Place> {
        let (piece, number) = self.located(at)?;
        Some(&mut piece.places[number])
    }

    /// The object was linked. `ends`: see [`Place::ends`]; `slot`: see [`Place::slot`].
    pub fn linked(&mut self, at: At, hash: u64, ends: u32, slot: At) {
        let Some((piece, number)) = self.located(at) else { return };
        let place = &mut piece.places[number];
        // It may have been taken out again before this front end has learned that it was linked.
        if place.used == Use::Held {
            (place.used, place.hash, place.ends, place.slot) = (Use::Linked, hash, ends, slot);
            if ends > 0 {
                piece.soonest = piece.soonest.min(ends);
            }
        }
    }

    /// Linked objects that have ended by this second, with their keys' hashes; not many more than
    /// `most`. A piece is looked through only when one of its objects may have ended.
    pub fn ended(&mut self, now_s: u32, most: usize) -> Vec<(At, u64)> {
        let mut ended = Vec::new();
        for (&at, piece) in self.pieces.iter_mut().filter(|(_, piece)| piece.soonest <= now_s) {
            piece.soonest = piece.soonest();
            let step = if is_whole(piece.class) { 0 } else { class_bytes(piece.class) };
            let over = piece.places.iter().enumerate().filter(|(_, place)| place.end().is_some_and(|end| end <= now_s));
            ended.extend(over.map(|(n, place)| (at + PIECE_HEADER + n as u64 * step, place.hash)));
            if ended.len() >= most {
                break;
            }
        }
        ended
    }

    /// Records that the object left the index in or before this epoch. Ignores places of others.
    /// Returns the number of the long value whose extents the object lists, if it does: they are
    /// not retired with it.
    pub fn retire(&mut self, at: At, epoch: u64) -> Option<u64> {
        let (piece, number) = self.located(at)?;
        let used = &mut piece.places[number].used;
        if !matches!(used, Use::Linked | Use::Held) {
            return None;
        }
        *used = Use::Retired;
        let (bytes, whole) = (piece.place_bytes(), is_whole(piece.class));
        self.sizes.retired += bytes;
        self.sizes.whole += if whole { bytes } else { 0 };
        self.retired.push_back((epoch, at));
        self.forget_head(at)
    }

    /// The place was never linked.
    pub fn give_back(&mut self, at: At) {
        self.forget_head(at);
        if self.place(at).is_some_and(|place| place.used == Use::Held) {
            self.free(at);
        }
    }

    /// Frees a place; its bytes.
    fn free(&mut self, at: At) -> u64 {
        let Some((piece, number)) = self.located(at) else { return 0 };
        piece.places[number].used = Use::Free;
        piece.used -= 1;
        let (class, bytes) = (piece.class, piece.place_bytes());
        if !piece.closed {
            self.classes[usize::from(class)].free.push(at);
            self.sizes.free += bytes;
        }
        bytes
    }

    /// Frees what was retired early enough. `now` is the store's epoch as last read.
    pub fn reap(&mut self, now: u64) {
        while self.reap_some(now, usize::MAX) {}
    }

    /// [`Heap::reap`] of so many objects at most; whether there may be more.
    pub fn reap_some(&mut self, now: u64, most: usize) -> bool {
        self.now = if now == u64::MAX { self.now } else { now };
        for _ in 0..most {
            let Some((_, at)) = self.retired.pop_front_if(|(epoch, _)| *epoch + GRACE <= now) else { return false };
            let bytes = self.free(at);
            self.sizes.retired -= bytes;
            self.sizes.reaped += bytes;
        }
        true
    }

    /// Takes a piece of which nothing is used out of the heap, to be given back to the node: a
    /// large object's and a closed one always, of the others those beyond a class's need.
    pub fn spare(&mut self) -> Option<(At, u32)> {
        let mut found = None;
        for (&at, piece) in &self.pieces {
            let class = &self.classes[usize::from(piece.class)];
            let places = piece.places.len();
            // Of blocks, whose pieces are large, nothing is kept but one piece.
            let few = if is_for_blocks(piece.class) { places + 1 } else { places * 2 };
            let keep = !piece.closed && !is_whole(piece.class) && class.free.len() < few;
            if piece.used == 0 && !keep && !piece.kept {
                found = Some((at, piece.bytes));
                break;
            }
        }
        let (at, bytes) = found?;
        self.take_out(at)?;
        Some((at, bytes))
    }

    /// Takes a piece out of which nothing is used; its bytes.
    fn take_out(&mut self, at: At) -> Option<u32> {
        let piece = self.pieces.remove(&at)?;
        let bytes = u64::from(piece.bytes);
        let class = &mut self.classes[usize::from(piece.class)];
        class.free.retain(|&place| place < at || place >= at + bytes);
        class.bytes -= bytes;
        self.sizes.all -= bytes;
        if piece.closed {
            self.closing_bytes -= bytes;
        } else if piece.kept {
            self.kept = 0;
        } else {
            self.sizes.free -= piece.places.len() as u64 * piece.place_bytes();
        }
        Some(piece.bytes)
    }

    /// The object at `head`, which is about to be linked, lists the extents of a long value.
    pub fn lists(&mut self, head: At, number: u64, hash: u64, extents: impl Iterator<Item = At>) {
        self.heads.insert(head, number);
        let own: Vec<At> = extents.filter(|&at| self.place(at).is_some()).collect();
        let known = self.longs.entry(number).or_default();
        known.heads += 1;
        (known.hash, known.places) = (hash, own);
    }

    /// The object at `head` was linked, and with it the extents that it lists.
    pub fn linked_list(&mut self, head: At) {
        let Some(known) = self.heads.get(&head).and_then(|number| self.longs.get_mut(number)) else { return };
        known.linked = true;
        let (hash, places) = (known.hash, known.places.clone());
        places.into_iter().for_each(|at| self.linked(at, hash, 0, 0));
    }

    fn forget_head(&mut self, head: At) -> Option<u64> {
        self.lists.remove(&head);
        let number = self.heads.remove(&head)?;
        if let Some(known) = self.longs.get_mut(&number) {
            known.heads -= 1;
        }
        Some(number)
    }

    /// Records that a long value left the index in or before this epoch.
    pub fn retire_long(&mut self, number: u64, epoch: u64) {
        for at in self.longs.remove(&number).map_or(Vec::new(), |known| known.places) {
            self.retire(at, epoch);
        }
    }

    /// A long value was written, and is not needed any more: if no object lists it, its places are
    /// free.
    pub fn abandon(&mut self, number: u64, held: &[Held]) {
        if self.longs.get(&number).is_some_and(|known| known.linked || known.heads > 0) {
            return;
        }
        self.longs.remove(&number);
        for held in held {
            if self.place(held.at).is_some_and(|place| place.used == Use::Held && place.uses == held.uses) {
                self.free(held.at);
            }
        }
    }

    /// An extent was taken over, to whose value the index refers.
    pub fn adopt_extent(&mut self, at: At, number: u64, hash: u64) {
        let known = self.longs.entry(number).or_default();
        (known.hash, known.linked) = (hash, true);
        known.places.push(at);
    }

    /// Long values to which the index referred when this was last known: numbers and hashes.
    pub fn all_longs(&self) -> Vec<(u64, u64)> {
        self.longs.iter().filter(|(_, known)| known.linked).map(|(&number, known)| (number, known.hash)).collect()
    }

    /// Pieces that were taken over since this was last asked for.
    pub fn taken_over(&mut self) -> Vec<At> {
        std::mem::take(&mut self.taken_over)
    }

    /// Whether there are such.
    pub fn has_taken_over(&self) -> bool {
        !self.taken_over.is_empty()
    }

    /// Its bytes, by what they are at.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Whether the place still has the object of this hash.
    pub fn is_linked(&mut self, at: At, hash: u64) -> bool {
        self.place(at).is_some_and(|place| place.used == Use::Linked && place.hash == hash)
    }

    /// Whether the place still has the object of this hash, and that has ended.
    pub fn has_ended(&mut self, at: At, hash: u64, now_s: u32) -> bool {
        self.place(at).is_some_and(|place| place.hash == hash && place.end().is_some_and(|end| end <= now_s))
    }
}

#[cfg(test)]
mod tests;
