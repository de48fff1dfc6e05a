//! Hints: where the slot of each key is that a front end has met, and the slot itself. 16 bytes a
//! key, in one flat table without an allocation each.
//!
//! ```text
//!  mark   63..38 of the key's hash │ 37..8 of a secret hash of the key │ 7..4 place │ used │ look │ ghost │ 0
//!  word   63 kept │ 62..54 stamp │ 53..0 the slot without its fingerprint, or the number of a kept object
//! ```
//!
//! A bucket has eight hints in two cache lines. The bucket follows from bits of the hash that the
//! mark has, in their order, so the table grows and shrinks in place, by any number of buckets.
//!
//! *place*: which of the key's two buckets of the index, and which slot of it. The table follows from the
//! key. A split leaves every slot in its place, so a hint outlives it.
//!
//! *Whose it is.* The key itself is not here. Two keys of one hash must not be taken for each other by a
//! CAS that does not look, so the mark has 30 bits of a hash with a secret of this process. For a
//! CAS to succeed in the slot of another key, that key must also share the table, the bucket and
//! the fingerprint.
//!
//! *stamp*: when the slot was verified. The lease's era and, without a lease, the epoch are told to
//! [`Hints::at`]. Each change begins a new *turn*, of which the stamp has the low bits; 0 is long
//! ago. Each turn looks through a part of the table and sets old stamps to 0, before their bits
//! come round.

use crate::layout::{At, Geometry, Hash, SLOTS, Slot, class_bytes};
use crate::shard::index::Known;
use std::hash::{BuildHasher, RandomState};

/// Hints of a bucket.
const WAYS: usize = 8;
/// Buckets of a chunk, at most.
const CHUNK: u64 = 64;
/// Buckets of a table, at most: the mark has 26 bits of the hash to tell them apart.
const MOST: u64 = 1 << 24;
/// What an allocation takes beside its bytes.
pub(super) const ALLOCATED: u64 = 64;

const PART: u64 = !0 << 38;
const KEY: u64 = (1 << 38) - (1 << 8);
const USED: u64 = 8;
const LOOK: u64 = 4;
const GHOST: u64 = 2;

const KEPT: u64 = 1 << 63;
const STAMP: u32 = 54;
const SLOT: u64 = (1 << STAMP) - 1;
/// Stamps but 0.
const STAMPS: u64 = 511;
/// Turns in which the whole table is looked through.
const ROUND: u64 = 400;

#[derive(Clone, Default, Debug)]
#[repr(C, align(128))]
struct Bucket {
    marks: [u64; WAYS],
    words: [u64; WAYS],
}

/// Where a hint is, until another one is added or the table is resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    bucket: u64,
    way: usize,
}

/// What a hint says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// The slot.
    Slot,
    /// The number of the object that is kept. It has the slot.
    Kept(u32),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hints {
    geometry: Geometry,
    chunks: Vec<Box<[Bucket]>>,
    /// `log2` of the buckets of a chunk.
    shift: u32,
    buckets: u64,
    len: u64,
    secret: u64,
    #[cfg(test)]
    blind: bool,
    era: u32,
    epoch: u64,
    turn: u64,
    /// Whether the turn before this one was the epoch before this one.
    follows: bool,
    /// Where the next part of the table begins to be looked through: for stamps, uses, ghosts.
    hands: [u64; 3],
}

/// `log2` of the parts that memory of so many bytes is taken in, up to `most` of `size` bytes each.
pub(super) fn chunk_shift(budget: u64, size: u64, most: u64) -> u32 {
    (budget / 16 / size).clamp(1, most).ilog2()
}

impl Hints {
    /// An empty table of a cache of `budget` bytes.
    pub(super) fn new(budget: u64, geometry: Geometry) -> Hints {
        Hints {
            geometry,
            chunks: Vec::new(),
            shift: chunk_shift(budget, size_of::<Bucket>() as u64, CHUNK),
            buckets: 0,
            len: 0,
            secret: RandomState::new().hash_one(0),
            #[cfg(test)]
            blind: false,
            era: 0,
            epoch: 0,
            turn: 0,
            follows: false,
            hands: [0; 3],
        }
    }

    /// Bytes of a chunk.
    pub(super) fn step(&self) -> u64 {
        ((size_of::<Bucket>() as u64) << self.shift) + ALLOCATED
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * self.step()
    }

    /// Hints that it has.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether three fifths of it are in use. Beyond that many buckets are full.
    pub(super) fn is_filled(&self) -> bool {
        self.len * 5 >= self.buckets * WAYS as u64 * 3
    }

    /// The bits of a hash that choose the bucket.
    fn part(hash: Hash) -> u64 {
        hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) & PART
    }

    /// A mistake that tests must notice: the key is told by its hash alone.
    #[cfg(test)]
    pub(super) fn be_blind(&mut self) {
        self.blind = true;
    }

    fn mark(&self, key: &[u8], hash: Hash) -> u64 {
        #[cfg(test)]
        if self.blind {
            return Hints::part(hash);
        }
        Hints::part(hash) | xxhash_rust::xxh3::xxh3_64_with_seed(key, self.secret) >> 26 & KEY
    }

    fn home(&self, mark: u64) -> u64 {
        ((mark >> 38) * self.buckets) >> 26
    }

    fn bucket(&self, n: u64) -> &Bucket {
        &self.chunks[(n >> self.shift) as usize][n as usize & ((1 << self.shift) - 1)]
    }

    fn bucket_mut(&mut self, n: u64) -> &mut Bucket {
        &mut self.chunks[(n >> self.shift) as usize][n as usize & ((1 << self.shift) - 1)]
    }

    /// The key's hint. `is_kept`: whether the object of this number has the key.
    #[inline]
    pub(super) fn find(&self, key: &[u8], hash: Hash, is_kept: impl Fn(u32) -> bool) -> Option<Place> {
        if self.buckets == 0 {
            return None;
        }
        let part = Hints::part(hash);
        let n = self.home(part);
        let bucket = self.bucket(n);
        let mut mark = None;
        for way in 0..WAYS {
            if (bucket.marks[way] ^ part) & PART != 0 || bucket.words[way] == 0 {
                continue;
            }
            let same = (bucket.marks[way] ^ *mark.get_or_insert_with(|| self.mark(key, hash))) & (PART | KEY) == 0;
            let place = Place { bucket: n, way };
            let same = same && if let Says::Kept(n) = self.says(place) { is_kept(n) } else { true };
            if same {
                return Some(place);
            }
        }
        None
    }

    /// The hint of a kept object.
    pub(super) fn find_kept(&self, hash: Hash, object: u32) -> Option<Place> {
        let n = self.home(Hints::part(hash));
        let way = self.bucket(n).words.iter().position(|&word| word == KEPT | u64::from(object))?;
        Some(Place { bucket: n, way })
    }

    /// The hints of keys with this hash, and perhaps others.
    pub(super) fn alike(&self, hash: Hash) -> Vec<Place> {
        let part = Hints::part(hash);
        let n = if self.buckets == 0 { return Vec::new() } else { self.home(part) };
        let bucket = self.bucket(n);
        let alike = (0..WAYS).filter(|&way| bucket.words[way] != 0 && (bucket.marks[way] ^ part) & PART == 0);
        alike.map(|way| Place { bucket: n, way }).collect()
    }

    pub(super) fn says(&self, place: Place) -> Says {
        match self.bucket(place.bucket).words[place.way] {
            word if word & KEPT != 0 => Says::Kept(word as u32),
            _ => Says::Slot,
        }
    }

    /// Whether the key was used since it came, or for long.
    pub(super) fn is_used(&self, place: Place) -> bool {
        self.bucket(place.bucket).marks[place.way] & USED != 0
    }

    /// Whether its object was given up lately.
    pub(super) fn is_ghost(&self, place: Place) -> bool {
        self.bucket(place.bucket).marks[place.way] & GHOST != 0
    }

    /// The key was used.
    pub(super) fn touch(&mut self, place: Place) {
        self.bucket_mut(place.bucket).marks[place.way] |= USED;
    }

    /// The lease's era, or 0, and the epoch.
    #[inline]
    pub(super) fn at(&mut self, era: u32, epoch: u64) {
        if era == self.era && (era > 0 || epoch <= self.epoch) {
            return;
        }
        self.follows = era == 0 && self.era == 0 && epoch == self.epoch + 1;
        (self.era, self.epoch) = (era, epoch.max(self.epoch));
        self.turn += 1;
        let (turn, part) = (self.turn, self.buckets.div_ceil(ROUND));
        self.look_through(0, part, |_, word| *word = aged(*word, turn));
    }

    /// Looks through the next buckets behind a hand.
    fn look_through(&mut self, hand: usize, buckets: u64, mut each: impl FnMut(&mut u64, &mut u64)) {
        for _ in 0..buckets.min(self.buckets) {
            let n = self.hands[hand] % self.buckets;
            self.hands[hand] = n + 1;
            let bucket = self.bucket_mut(n);
            for way in 0..WAYS {
                each(&mut bucket.marks[way], &mut bucket.words[way]);
            }
        }
    }

    fn stamp_of(&self, known: &Known) -> u64 {
        match self.era {
            0 if known.epoch == self.epoch => stamp(self.turn),
            0 if known.epoch + 1 == self.epoch && self.follows => stamp(self.turn - 1),
            era if era > 0 && known.era == era => stamp(self.turn),
            _ => 0,
        }
    }

    /// Where in its two buckets a key's slot is; `None`: nowhere.
    pub(super) fn position(&self, known: &Known, hash: Hash) -> Option<u8> {
        let bytes = SLOTS as u64 * 8;
        let offsets = hash.buckets(self.geometry.buckets);
        let offsets = offsets.map(|bucket| known.slot_at.wrapping_sub(self.geometry.bucket(known.table, bucket)));
        let first = offsets.iter().position(|&offset| offset < bytes && offset % 8 == 0)?;
        (Slot(known.slot.0 & SLOT | u64::from(hash.fingerprint()) << STAMP) == known.slot)
            .then_some((first * SLOTS) as u8 + (offsets[first] / 8) as u8)
    }

    /// The slot's address in the table that the key has now.
    pub(super) fn slot_at(&self, position: u8, hash: Hash, table: At) -> At {
        let bucket = hash.buckets(self.geometry.buckets)[usize::from(position) / SLOTS];
        self.geometry.bucket(table, bucket) + u64::from(position) % SLOTS as u64 * 8
    }

    /// What a hint says of a slot. The length is the most that the object may have, or what is read
    /// of it at first. Of an object that ends it is not known when.
    pub(super) fn known(&self, place: Place, hash: Hash, table: At) -> Known {
        let bucket = self.bucket(place.bucket);
        let (mark, word) = (bucket.marks[place.way], bucket.words[place.way]);
        let slot = Slot(word & SLOT | u64::from(hash.fingerprint()) << STAMP);
        let (era, epoch) = match word >> STAMP {
            now if now == stamp(self.turn) && self.era > 0 => (self.era, 0),
            now if now == stamp(self.turn) => (0, self.epoch),
            before if self.follows && before == stamp(self.turn.wrapping_sub(1)) => (0, self.epoch - 1),
            _ => (0, 0),
        };
        let slot_at = self.slot_at((mark >> 4) as u8 & 15, hash, table);
        let expiry = if mark & LOOK != 0 { u64::MAX } else { 0 };
        Known { table, slot_at, slot, len: class_bytes(slot.class()) as u32, expiry, epoch, era }
    }

    /// Notes a slot. `position`: as [`Hints::position`] says.
    pub(super) fn note(&mut self, place: Place, known: &Known, position: u8) {
        let word = known.slot.0 & SLOT | self.stamp_of(known) << STAMP;
        let bucket = self.bucket_mut(place.bucket);
        let mark = &mut bucket.marks[place.way];
        *mark &= PART | KEY | USED | GHOST;
        *mark |= u64::from(position) << 4 | if known.expiry == 0 { 0 } else { LOOK };
        bucket.words[place.way] = word;
    }

    /// Notes that the object is kept, under this number.
    pub(super) fn keep(&mut self, place: Place, object: u32) {
        let bucket = self.bucket_mut(place.bucket);
        bucket.marks[place.way] &= PART | KEY;
        bucket.words[place.way] = KEPT | u64::from(object);
    }

    /// Its object is not kept any more, since it was not used again. Of those that were given up
    /// before, as many are remembered as are kept: `kept`.
    pub(super) fn haunt(&mut self, place: Place, kept: u64) {
        self.bucket_mut(place.bucket).marks[place.way] |= GHOST;
        let part = self.buckets.div_ceil(2 * kept.max(1)).min(16);
        self.look_through(2, part, |mark, _| *mark &= !GHOST);
    }

    /// Nothing is known of the key any more.
    pub(super) fn clear(&mut self, place: Place) {
        let bucket = self.bucket_mut(place.bucket);
        (bucket.marks[place.way], bucket.words[place.way]) = (0, 0);
        self.len -= 1;
    }

    /// Whether a key's bucket is full.
    pub(super) fn is_full(&self, hash: Hash) -> bool {
        self.buckets == 0 || !self.bucket(self.home(Hints::part(hash))).words.contains(&0)
    }

    /// A hint for a key that has none; it is noted next. If the bucket is full, it takes the place
    /// of another that was not used for long. That may be one of an object that was kept: its
    /// number.
    pub(super) fn add(&mut self, key: &[u8], hash: Hash) -> (Place, Option<u32>) {
        let mark = self.mark(key, hash);
        let n = self.home(mark);
        self.hands[1] = self.hands[1].wrapping_add(1);
        let from = self.hands[1];
        // An age of uses takes half as many new keys as there are hints.
        if from.is_multiple_of(4) {
            self.look_through_uses(from / 4);
        }
        let bucket = self.bucket_mut(n);
        let ways = || (0..WAYS).map(|way| (way + from as usize) % WAYS);
        let idle = |bucket: &Bucket, way: usize| bucket.words[way] & KEPT == 0 && bucket.marks[way] & USED == 0;
        let way = ways().find(|&way| bucket.words[way] == 0).or_else(|| ways().find(|&way| idle(bucket, way)));
        let way = way.unwrap_or_else(|| {
            bucket.marks.iter_mut().for_each(|mark| *mark &= !USED);
            ways().find(|&way| idle(bucket, way)).unwrap_or(from as usize % WAYS)
        });
        let was = std::mem::replace(&mut bucket.words[way], SLOT);
        bucket.marks[way] = mark;
        self.len += u64::from(was == 0);
        (Place { bucket: n, way }, (was & KEPT != 0).then_some(was as u32))
    }

    fn look_through_uses(&mut self, n: u64) {
        let n = n % self.buckets;
        self.bucket_mut(n).marks.iter_mut().for_each(|mark| *mark &= !USED);
    }

    /// Makes it so many bytes, or less: whole chunks. Kept objects whose hints have no room in it,
    /// by number.
    pub(super) fn resize(&mut self, bytes: u64) -> Vec<u32> {
        let (old, chunks) = (self.buckets, (bytes / self.step()).min(MOST >> self.shift));
        let new = chunks << self.shift;
        let mut lost = Vec::new();
        while (self.chunks.len() as u64) < chunks {
            self.chunks.push(vec![Bucket::default(); 1 << self.shift].into_boxed_slice());
        }
        self.buckets = new;
        // The table grows from its end, and shrinks from its beginning. So each hint moves to a
        // bucket that has been emptied.
        for n in 0..old {
            let n = if new > old { old - 1 - n } else { n };
            let Bucket { marks, words } = std::mem::take(self.bucket_mut(n));
            for (mark, word) in marks.into_iter().zip(words).filter(|(_, word)| *word != 0) {
                let to = if new == 0 { None } else { Some(self.home(mark)) };
                let word = aged(word, self.turn);
                let left = match to {
                    Some(to) => self.bucket_mut(to).take(mark, word),
                    None => word,
                };
                self.len -= u64::from(left != 0);
                lost.extend((left & KEPT != 0).then_some(left as u32));
            }
        }
        self.chunks.truncate(chunks as usize);
        self.hands = [0; 3];
        lost
    }
}

impl Bucket {
    /// Takes a hint that moves. The word of the one that has no room, or 0.
    fn take(&mut self, mark: u64, word: u64) -> u64 {
        let worth = |mark: u64, word: u64| match (word, word & KEPT) {
            (0, _) => 0,
            (_, 0) => 1 + u64::from(mark & USED != 0),
            _ => 3,
        };
        let least = (0..WAYS).min_by_key(|&way| worth(self.marks[way], self.words[way])).unwrap_or(0);
        if worth(self.marks[least], self.words[least]) >= worth(mark, word) {
            return word;
        }
        self.marks[least] = mark;
        std::mem::replace(&mut self.words[least], word)
    }
}

fn stamp(turn: u64) -> u64 {
    1 + turn % STAMPS
}

/// A word without a stamp of a turn before the last two.
fn aged(word: u64, turn: u64) -> u64 {
    let stamped = word >> STAMP;
    let recent = stamped == stamp(turn) || turn > 0 && stamped == stamp(turn - 1);
    if word & KEPT != 0 || recent { word } else { word & SLOT }
}

#[cfg(test)]
mod tests;
