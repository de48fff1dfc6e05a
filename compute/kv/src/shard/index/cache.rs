//! The near cache: slots that a front end has seen, and the objects that they refer to, by key.
//!
//! ```text
//!  put ─► small ── used again ─► main ── not used again ─┐        a hint has the slot, and no object:
//!           └────── not used again ──────► hint ◄────────┘        it saves a look into the index
//!                                           └─ put with an object ─► main, if it left small lately, else small
//! ```
//!
//! Every key has a hint of 16 bytes ([`super::hints`]). Some have their object, too: by S3-FIFO
//! (Yang et al., SOSP 2023), whose ghosts are marks in the hints.
//!
//! *Bounded by bytes*, with all that is allocated. Hints come first, because one saves a round trip as an
//! object does, and takes a tenth of its memory. They have up to half of the memory. If more
//! lookups find a hint than an object, and many find nothing, they may have [`MOST`] eighths of it.
//!
//! A kept object's key is compared in full. [`crate::shard::lease`] decides which entries may be
//! answered without a verb.

use super::hints::{ALLOCATED, Hints, Place, Says, chunk_shift};
use crate::layout::{At, Geometry, Hash, Slot};
use crate::object::Object;

/// A key's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The table it is in.
    pub table: At,
    /// Its address.
    pub slot_at: At,
    /// Its value.
    pub slot: Slot,
    /// Bytes of the object, or the most that an object of this class has; of a large one those that
    /// are read at first.
    pub len: u32,
    /// When the object ends, in ms since 1970; 0 never; `u64::MAX` at a time that is not known.
    pub expiry: u64,
    /// The epoch in which this was so.
    pub epoch: u64,
    /// The era of this front end's lease in which this was so; 0: it had none.
    pub era: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    Small,
    Main,
}

/// An object that is kept.
#[derive(Debug)]
struct Entry {
    /// `None`: it is lent.
    object: Option<Object>,
    hash: Hash,
    slot: Slot,
    epoch: u64,
    era: u32,
    /// Neighbours in the queue.
    before: u32,
    behind: u32,
    /// Hits since it came to its queue; 3 at most.
    used: u8,
    queue: Queue,
    /// Where in its buckets the slot is.
    position: u8,
}

const NONE: u32 = u32::MAX;
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
/// Entries of a chunk, at most.
const CHUNK: u64 = 64;
/// Eighths of the memory that hints may have.
pub const MOST: u64 = 7;
/// Lookups after which the part of the hints is judged again, at least. Of a large table it is seldom, because
/// each of its hints moves then.
const JUDGED: u64 = 4096;

/// Bytes that an object takes: with its counts and what the allocator adds.
fn held(object: &Object) -> u64 {
    ALLOCATED + object.bytes().capacity() as u64
}

/// Lookups that found an object, those that found a hint, and keys that had none.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    objects: u64,
    hints: u64,
    cold: u64,
}

/// Entries from the one that came first.
#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
    len: u64,
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Cache {
    budget: u64,
    geometry: Geometry,
    hints: Hints,
    /// Dense: the last one fills a gap.
    entries: Vec<Vec<Entry>>,
    shift: u32,
    count: u32,
    /// Bytes of the objects.
    held: u64,
    lines: [Line; 2],
    /// Bytes that hints may have.
    hints_most: u64,
    /// Since the last judgement.
    seen: Seen,
}

impl Cache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: u64, geometry: Geometry) -> Cache {
        let line = Line { first: NONE, last: NONE, len: 0, bytes: 0 };
        Cache {
            budget,
            geometry,
            hints: Hints::new(budget, geometry),
            entries: Vec::new(),
            shift: chunk_shift(budget, ENTRY_BYTES, CHUNK),
            count: 0,
            held: 0,
            lines: [line; 2],
            hints_most: budget / 2,
            seen: Seen::default(),
        }
    }

    /// Tells the era of the lease that is in force, or 0, and the epoch. Slots are known by these.
    #[inline]
    pub fn at(&mut self, era: u32, epoch: u64) {
        self.hints.at(era, epoch);
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        let chunk = (ENTRY_BYTES << self.shift) + ALLOCATED;
        self.hints.bytes() + self.entries.len() as u64 * chunk + self.held
    }

    fn entry(&self, n: u32) -> &Entry {
        &self.entries[(n >> self.shift) as usize][n as usize & ((1 << self.shift) - 1)]
    }

    fn entry_mut(&mut self, n: u32) -> &mut Entry {
        &mut self.entries[(n >> self.shift) as usize][n as usize & ((1 << self.shift) - 1)]
    }

    fn find(&self, key: &[u8], hash: Hash) -> Option<Place> {
        // One that is lent is known by its mark alone: it is given back, or forgotten, before
        // anything else.
        let is_kept = |n| self.entry(n).object.as_ref().is_none_or(|object| object.key() == key);
        self.hints.find(key, hash, is_kept)
    }

    fn known(&self, n: u32, table: At) -> Known {
        let Entry { object, hash, slot, epoch, era, position, .. } = self.entry(n);
        let (len, expiry) = object.as_ref().map_or((0, 0), |object| (object.len(), object.expiry().unwrap_or(0)));
        let slot_at = self.hints.slot_at(*position, *hash, table);
        Known { table, slot_at, slot: *slot, len, expiry, epoch: *epoch, era: *era }
    }

    /// Looks a key up: its slot, and its object if that is here. `table`: where the key is.
    pub fn get(&mut self, key: &[u8], hash: Hash, table: At) -> Option<(Known, Option<&Object>)> {
        let place = self.find(key, hash)?;
        match self.hints.says(place) {
            Says::Kept(n) => {
                self.seen.objects += 1;
                let known = self.known(n, table);
                let entry = self.entry_mut(n);
                entry.used = (entry.used + 1).min(3);
                Some((known, entry.object.as_ref()))
            }
            Says::Slot => {
                self.seen.hints += 1;
                self.hints.touch(place);
                Some((self.hints.known(place, hash, table), None))
            }
        }
    }

    /// Whether anything is known of a key.
    pub fn has(&self, key: &[u8], hash: Hash) -> bool {
        self.find(key, hash).is_some()
    }

    /// What is known of a key, and the number of its object, if that is here. It stays the object's
    /// until the cache is changed otherwise than by [`Cache::lend`].
    pub fn place(&self, key: &[u8], hash: Hash, table: At) -> Option<(Option<u32>, Known)> {
        let place = self.find(key, hash)?;
        Some(match self.hints.says(place) {
            Says::Kept(n) => (Some(n), self.known(n, table)),
            Says::Slot => (None, self.hints.known(place, hash, table)),
        })
    }

    /// An object by its number.
    pub fn object(&self, n: u32) -> Option<&Object> {
        self.entry(n).object.as_ref()
    }

    /// Takes an object, whose memory the next one may use. It is put back, or its key forgotten,
    /// next.
    pub fn lend(&mut self, n: u32) -> Option<Object> {
        let object = self.entry_mut(n).object.take()?;
        self.count(n, 0, held(&object));
        Some(object)
    }

    /// Gives a key whose object was at [`Cache::place`], and may be lent, its new one.
    pub fn renew(&mut self, place: Option<u32>, (key, hash): (&[u8], Hash), known: Known, object: Object) {
        let Some(n) = place.filter(|_| u64::from(object.len()) <= self.budget / 32) else {
            return self.put(key, hash, known, Some(&object));
        };
        let (more, less) = (held(&object), self.entry(n).object.as_ref().map_or(0, held));
        let entry = self.entry_mut(n);
        (entry.object, entry.used) = (Some(object), (entry.used + 1).min(3));
        (entry.slot, entry.epoch, entry.era) = (known.slot, known.epoch, known.era);
        self.count(n, more, less);
        self.shrink();
    }

    /// Remembers a key's slot, and its object.
    pub fn put(&mut self, key: &[u8], hash: Hash, known: Known, object: Option<&Object>) {
        self.judge();
        // A large object would push out hundreds of others.
        let object = object.filter(|object| u64::from(object.len()) <= self.budget / 32);
        let Some(position) = self.hints.position(&known, hash) else { return self.forget(key, hash) };
        let Some(place) = self.find(key, hash).or_else(|| self.add(key, hash, &known, position)) else { return };
        match (self.hints.says(place), object) {
            (Says::Kept(n), Some(object)) => {
                let less = self.entry(n).object.as_ref().map_or(0, held);
                let entry = self.entry_mut(n);
                (entry.object, entry.used) = (Some(object.clone()), (entry.used + 1).min(3));
                (entry.slot, entry.epoch, entry.era, entry.position) = (known.slot, known.epoch, known.era, position);
                self.count(n, held(object), less);
            }
            (Says::Kept(n), None) => {
                self.hints.note(place, &known, position);
                self.remove(n);
            }
            (Says::Slot, Some(object)) => {
                let queue = if self.hints.is_ghost(place) { Queue::Main } else { Queue::Small };
                let n = self.keep(Entry {
                    object: Some(object.clone()),
                    hash,
                    slot: known.slot,
                    epoch: known.epoch,
                    era: known.era,
                    before: NONE,
                    behind: NONE,
                    used: 0,
                    queue,
                    position,
                });
                self.hints.keep(place, n);
            }
            (Says::Slot, None) => {
                self.hints.note(place, &known, position);
                self.hints.touch(place);
            }
        }
        self.shrink();
    }

    /// A hint for a key that has none. `None`: there is no memory for any.
    fn add(&mut self, key: &[u8], hash: Hash, known: &Known, position: u8) -> Option<Place> {
        self.seen.cold += 1;
        if self.hints.is_full(hash) && self.hints.is_filled() {
            let now = self.hints.bytes();
            let more = (now / 4).max(self.hints.step());
            if now + self.hints.step() <= self.hints_most {
                let lost = self.hints.resize((now + more).min(self.hints_most));
                self.remove_all(lost);
            }
            if self.hints.bytes() == 0 {
                return None;
            }
        }
        let (place, lost) = self.hints.add(key, hash);
        // Whatever comes next finds it whole.
        self.hints.note(place, known, position);
        self.remove_all(lost);
        Some(place)
    }

    /// Whether hints get more of the memory, or less.
    fn judge(&mut self) {
        let Seen { objects, hints, cold } = self.seen;
        if objects + hints + cold < JUDGED.max(self.hints.len() / 16) {
            return;
        }
        self.seen = Seen::default();
        if hints > objects && cold > hints / 8 {
            self.hints_most = self.budget / 8 * MOST;
        } else if objects > 2 * hints {
            self.hints_most = self.budget / 2;
            if self.hints.bytes() > self.hints_most {
                let lost = self.hints.resize(self.hints_most);
                self.remove_all(lost);
            }
        }
    }

    fn count(&mut self, n: u32, more: u64, less: u64) {
        let queue = self.entry(n).queue;
        let line = &mut self.lines[queue as usize];
        line.bytes = line.bytes + more - less;
        self.held = self.held + more - less;
    }

    /// Puts an entry at the end of its queue.
    fn enqueue(&mut self, n: u32) {
        let entry = self.entry(n);
        let (queue, bytes) = (entry.queue as usize, entry.object.as_ref().map_or(0, held));
        let last = self.lines[queue].last;
        (self.entry_mut(n).before, self.entry_mut(n).behind) = (last, NONE);
        match last {
            NONE => self.lines[queue].first = n,
            last => self.entry_mut(last).behind = n,
        }
        let line = &mut self.lines[queue];
        line.last = n;
        line.len += 1;
        line.bytes += bytes + ENTRY_BYTES;
    }

    /// Takes an entry out of its queue.
    fn unqueue(&mut self, n: u32) {
        let entry = self.entry(n);
        let (queue, bytes) = (entry.queue as usize, entry.object.as_ref().map_or(0, held));
        let (before, behind) = (entry.before, entry.behind);
        match before {
            NONE => self.lines[queue].first = behind,
            before => self.entry_mut(before).behind = behind,
        }
        match behind {
            NONE => self.lines[queue].last = before,
            behind => self.entry_mut(behind).before = before,
        }
        let line = &mut self.lines[queue];
        line.len -= 1;
        line.bytes -= bytes + ENTRY_BYTES;
    }

    /// Adds an entry; its number.
    fn keep(&mut self, entry: Entry) -> u32 {
        let n = self.count;
        self.held += entry.object.as_ref().map_or(0, held);
        if n >> self.shift == self.entries.len() as u32 {
            self.entries.push(Vec::with_capacity(1 << self.shift));
        }
        self.entries[(n >> self.shift) as usize].push(entry);
        self.count += 1;
        self.enqueue(n);
        n
    }

    /// Removes an entry whose hint says something else by now. The last one gets its number.
    fn remove(&mut self, n: u32) {
        self.unqueue(n);
        let last = self.count - 1;
        let Some(moved) = self.entries.last_mut().and_then(Vec::pop) else { return };
        if self.entries.last().is_some_and(Vec::is_empty) {
            self.entries.pop();
        }
        self.count = last;
        let gone = if n == last {
            moved
        } else {
            match moved.before {
                NONE => self.lines[moved.queue as usize].first = n,
                before => self.entry_mut(before).behind = n,
            }
            match moved.behind {
                NONE => self.lines[moved.queue as usize].last = n,
                behind => self.entry_mut(behind).before = n,
            }
            if let Some(place) = self.hints.find_kept(moved.hash, last) {
                self.hints.keep(place, n);
            }
            std::mem::replace(self.entry_mut(n), moved)
        };
        self.held -= gone.object.as_ref().map_or(0, held);
    }

    /// Removes entries whose hints are gone: the last first, because the last one takes the number
    /// of each.
    fn remove_all(&mut self, lost: impl IntoIterator<Item = u32>) {
        let mut lost: Vec<u32> = lost.into_iter().collect();
        lost.sort_unstable();
        lost.into_iter().rev().for_each(|n| self.remove(n));
    }

    /// Gives an object up; its hint stays. `haunts`: it is a ghost from now on.
    fn give_up(&mut self, n: u32, haunts: bool) {
        let known = self.known(n, 0);
        let Entry { hash, position, .. } = *self.entry(n);
        if let Some(place) = self.hints.find_kept(hash, n) {
            self.hints.note(place, &known, position);
            if haunts {
                self.hints.haunt(place, self.lines[Queue::Main as usize].len);
            }
        }
        self.remove(n);
    }

    fn requeue(&mut self, n: u32, used: u8, queue: Queue) {
        self.unqueue(n);
        (self.entry_mut(n).used, self.entry_mut(n).queue) = (used, queue);
        self.enqueue(n);
    }

    fn shrink(&mut self) {
        while self.bytes() > self.budget {
            let [small, main] = self.lines;
            let room = self.budget - self.hints.bytes();
            if small.len > 0 && (small.bytes > room / 10 || main.len == 0) {
                match self.entry(small.first).used {
                    0 | 1 => self.give_up(small.first, true),
                    _ => self.requeue(small.first, 0, Queue::Main),
                }
            } else if main.len > 0 {
                match self.entry(main.first).used {
                    0 => self.give_up(main.first, false),
                    used => self.requeue(main.first, used - 1, Queue::Main),
                }
            } else {
                return;
            }
        }
    }

    fn clear_hint(&mut self, place: Place) {
        let says = self.hints.says(place);
        self.hints.clear(place);
        if let Says::Kept(n) = says {
            self.remove(n);
        }
    }

    /// Nothing is known of it any more.
    pub fn forget(&mut self, key: &[u8], hash: Hash) {
        if let Some(place) = self.find(key, hash) {
            self.clear_hint(place);
        }
    }

    /// Nothing is known any more of a key with this hash.
    pub fn forget_hash(&mut self, hash: Hash) {
        for place in self.hints.alike(hash) {
            self.clear_hint(place);
        }
    }

    /// Nothing is known of any key any more.
    pub fn clear(&mut self) {
        *self = Cache::new(self.budget, self.geometry);
    }

    /// Whether a key was used lately.
    pub fn is_hot(&self, key: &[u8], hash: Hash) -> bool {
        self.find(key, hash).is_some_and(|place| match self.hints.says(place) {
            Says::Kept(n) => self.entry(n).used > 0,
            Says::Slot => self.hints.is_used(place),
        })
    }
}

#[cfg(test)]
mod tests;
