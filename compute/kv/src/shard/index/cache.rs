//! The near cache: slots that a front end has seen, and the objects that they refer to, by key.
//!
//! ```text
//!  put ─► small ── used again ─► main ── not used again ─┐        a bare entry has its slot, and no object:
//!           └────── not used again ──────► bare ◄────────┘        it saves a look into the index
//!                                           └─ put with an object ─► main
//! ```
//!
//! Objects are kept by S3-FIFO (Yang et al., SOSP 2023): two queues and no list to relink on a hit.
//! The bare entries are its ghost queue. Bounded by bytes: a tenth for *small*, at most a quarter
//! for *bare*.
//!
//! Keys are kept in full: two keys of one hash must not be taken for each other by a CAS that does
//! not look. [`crate::shard::lease`] decides which entries may be answered without a verb.

use crate::fast::Map;
use crate::layout::{At, Hash, Slot};
use crate::object::Object;
use std::collections::VecDeque;

/// A key's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The table it is in.
    pub table: At,
    /// Its address.
    pub slot_at: At,
    /// Its value.
    pub slot: Slot,
    /// Bytes of the object.
    pub len: u32,
    /// When the object ends, in ms since 1970; 0 never.
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
    Bare,
}

#[derive(Debug)]
struct Entry {
    key: Box<[u8]>,
    hash: u64,
    known: Known,
    object: Option<Object>,
    /// Hits since it came to its queue; 3 at most.
    used: u8,
    queue: Queue,
    /// By which its place in the queue is told from older ones.
    ticket: u32,
}

/// Bytes of an entry beside its key and its object: with its places in the map and in a queue.
const ENTRY_BYTES: u64 = 176;
/// Bytes of an object beside its own.
const OBJECT_BYTES: u64 = 64;

impl Entry {
    fn bare_bytes(&self) -> u64 {
        ENTRY_BYTES + self.key.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.bare_bytes() + self.object.as_ref().map_or(0, |object| OBJECT_BYTES + u64::from(object.len()))
    }
}

/// An entry's place in a queue: it is there if the ticket is still its own.
type Place = (u32, u32);

/// See the module.
#[derive(Debug)]
pub struct Cache {
    budget: u64,
    bytes: u64,
    small_bytes: u64,
    bare_bytes: u64,
    map: Map<u64, u32>,
    entries: Vec<Option<Entry>>,
    idle: Vec<u32>,
    small: VecDeque<Place>,
    main: VecDeque<Place>,
    bare: VecDeque<Place>,
    tickets: u32,
}

impl Cache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: u64) -> Cache {
        Cache {
            budget,
            bytes: 0,
            small_bytes: 0,
            bare_bytes: 0,
            map: Map::default(),
            entries: Vec::new(),
            idle: Vec::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            bare: VecDeque::new(),
            tickets: 0,
        }
    }

    fn entry(&mut self, key: &[u8], hash: Hash) -> Option<&mut Entry> {
        let at = *self.map.get(&hash.0)?;
        self.entries[at as usize].as_mut().filter(|entry| *entry.key == *key)
    }

    /// Looks a key up: its slot, and its object if that is here.
    pub fn get(&mut self, key: &[u8], hash: Hash) -> Option<(Known, Option<&Object>)> {
        let entry = self.entry(key, hash)?;
        entry.used = (entry.used + 1).min(3);
        Some((entry.known, entry.object.as_ref()))
    }

    /// The place of a key's entry, which stays it until the cache is changed otherwise than by
    /// [`Cache::lend`], and what is known of the key.
    pub fn place(&mut self, key: &[u8], hash: Hash) -> Option<(u32, Known)> {
        let at = *self.map.get(&hash.0)?;
        let entry = self.entries[at as usize].as_ref().filter(|entry| *entry.key == *key)?;
        Some((at, entry.known))
    }

    /// The object of an entry.
    pub fn object(&self, place: u32) -> Option<&Object> {
        self.entries[place as usize].as_ref()?.object.as_ref()
    }

    /// Takes an entry's object, whose memory the next one may use: [`Cache::renew`].
    pub fn lend(&mut self, place: u32) -> Option<Object> {
        let entry = self.entries[place as usize].as_mut()?;
        let (before, queue) = (entry.bytes(), entry.queue);
        let object = entry.object.take();
        let after = entry.bytes();
        self.count(queue, after, before);
        object
    }

    /// Gives an entry whose object was lent its new one.
    pub fn renew(&mut self, place: u32, known: Known, object: Object) {
        let fits = u64::from(object.len()) <= self.budget / 32;
        let Some(entry) = self.entries[place as usize].as_mut() else { return };
        if entry.queue == Queue::Bare || !fits {
            let Some(entry) = self.remove(place) else { return };
            let (again, object) = (entry.queue == Queue::Bare, Some(&object).filter(|_| fits));
            return self.add(&entry.key, Hash(entry.hash), known, object, again);
        }
        let before = entry.bytes();
        (entry.known, entry.object, entry.used) = (known, Some(object), (entry.used + 1).min(3));
        let (after, queue) = (entry.bytes(), entry.queue);
        self.count(queue, after, before);
        self.shrink();
    }

    /// Remembers a key's slot, and its object.
    pub fn put(&mut self, key: &[u8], hash: Hash, known: Known, object: Option<&Object>) {
        // A large object would push out hundreds of others.
        let object = object.filter(|object| u64::from(object.len()) <= self.budget / 32);
        if let Some(&at) = self.map.get(&hash.0) {
            let same = self.entries[at as usize].as_mut().filter(|entry| *entry.key == *key);
            if let Some(entry) = same
                && entry.object.is_some() == object.is_some()
            {
                let before = entry.bytes();
                (entry.known, entry.object, entry.used) = (known, object.cloned(), (entry.used + 1).min(3));
                let (after, queue) = (entry.bytes(), entry.queue);
                self.count(queue, after, before);
                return self.shrink();
            }
            let was_bare = self.remove(at).is_some_and(|entry| entry.queue == Queue::Bare && *entry.key == *key);
            return self.add(key, hash, known, object, was_bare);
        }
        self.add(key, hash, known, object, false);
    }

    fn add(&mut self, key: &[u8], hash: Hash, known: Known, object: Option<&Object>, again: bool) {
        if self.budget < ENTRY_BYTES {
            return;
        }
        let queue = match object {
            None => Queue::Bare,
            Some(_) if again => Queue::Main,
            Some(_) => Queue::Small,
        };
        let entry = Entry { key: key.into(), hash: hash.0, known, object: object.cloned(), used: 0, queue, ticket: 0 };
        let bytes = entry.bytes();
        let at = match self.idle.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(entry);
                at
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() as u32 - 1
            }
        };
        self.map.insert(hash.0, at);
        self.count(queue, bytes, 0);
        self.enqueue(at, queue);
        self.shrink();
    }

    fn count(&mut self, queue: Queue, more: u64, less: u64) {
        self.bytes = self.bytes + more - less;
        match queue {
            Queue::Small => self.small_bytes = self.small_bytes + more - less,
            Queue::Bare => self.bare_bytes = self.bare_bytes + more - less,
            Queue::Main => {}
        }
    }

    fn places(&mut self, queue: Queue) -> &mut VecDeque<Place> {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::Bare => &mut self.bare,
        }
    }

    /// Puts an entry at the end of a queue. It was counted.
    fn enqueue(&mut self, at: u32, queue: Queue) {
        self.tickets = self.tickets.wrapping_add(1);
        let ticket = self.tickets;
        if let Some(entry) = &mut self.entries[at as usize] {
            (entry.queue, entry.ticket) = (queue, ticket);
        }
        let live = self.map.len();
        if self.places(queue).len() > 2 * live + 64 {
            let mut places = std::mem::take(self.places(queue));
            let entries = &self.entries;
            places.retain(|&(at, ticket)| entries[at as usize].as_ref().is_some_and(|entry| entry.ticket == ticket));
            *self.places(queue) = places;
        }
        self.places(queue).push_back((at, ticket));
    }

    /// The entry that came to a queue first, and its hits.
    fn first(&mut self, queue: Queue) -> Option<(u32, u8)> {
        while let Some((at, ticket)) = self.places(queue).pop_front() {
            if let Some(entry) = self.entries[at as usize].as_ref().filter(|entry| entry.ticket == ticket) {
                return Some((at, entry.used));
            }
        }
        None
    }

    /// Moves an entry that [`Cache::first`] took.
    fn moved(&mut self, at: u32, used: u8, to: Queue) {
        let Some(entry) = &mut self.entries[at as usize] else { return };
        let (before, from) = (entry.bytes(), entry.queue);
        entry.used = used;
        if to == Queue::Bare {
            entry.object = None;
        }
        let after = entry.bytes();
        self.count(from, 0, before);
        self.count(to, after, 0);
        self.enqueue(at, to);
    }

    fn remove(&mut self, at: u32) -> Option<Entry> {
        let entry = self.entries[at as usize].take()?;
        self.idle.push(at);
        self.map.remove(&entry.hash);
        self.count(entry.queue, 0, entry.bytes());
        Some(entry)
    }

    fn shrink(&mut self) {
        while self.bare_bytes > self.budget / 4 {
            match self.first(Queue::Bare) {
                Some((at, 0)) => drop(self.remove(at)),
                Some((at, _)) => self.moved(at, 0, Queue::Bare),
                None => break,
            }
        }
        while self.bytes > self.budget {
            if self.small_bytes > self.budget / 10 || self.main.is_empty() {
                match self.first(Queue::Small) {
                    Some((at, used)) if used > 1 => self.moved(at, 0, Queue::Main),
                    Some((at, _)) => self.moved(at, 0, Queue::Bare),
                    None => match self.first(Queue::Bare) {
                        Some((at, _)) => drop(self.remove(at)),
                        None => return,
                    },
                }
            } else {
                match self.first(Queue::Main) {
                    Some((at, 0)) => self.moved(at, 0, Queue::Bare),
                    Some((at, used)) => self.moved(at, used - 1, Queue::Main),
                    None => {}
                }
            }
        }
    }

    /// Nothing is known of it any more.
    pub fn forget(&mut self, key: &[u8], hash: Hash) {
        if let Some(&at) = self.map.get(&hash.0)
            && self.entries[at as usize].as_ref().is_some_and(|entry| *entry.key == *key)
        {
            self.remove(at);
        }
    }

    /// Nothing is known any more of a key with this hash.
    pub fn forget_hash(&mut self, hash: Hash) {
        if let Some(&at) = self.map.get(&hash.0) {
            self.remove(at);
        }
    }

    /// Nothing is known of any key any more.
    pub fn clear(&mut self) {
        *self = Cache::new(self.budget);
    }

    /// Whether a key was used since it came to its queue.
    pub fn is_hot(&self, key: &[u8], hash: Hash) -> bool {
        let at = self.map.get(&hash.0);
        let entry = at.and_then(|&at| self.entries[at as usize].as_ref());
        entry.is_some_and(|entry| *entry.key == *key && entry.used > 0)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Value;

    fn known(n: u64) -> Known {
        Known { table: 0, slot_at: n * 8, slot: Slot(n), len: 1, expiry: 0, epoch: 0, era: 0 }
    }

    fn key(n: u64) -> (Vec<u8>, Hash, Object) {
        let key = format!("key{n}").into_bytes();
        let object = Object::of(&key, &Value::string(vec![7; 100]));
        (key.clone(), Hash::of(&key), object)
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let mut cache = Cache::new(100_000);
        let (hot, hot_hash, hot_object) = key(0);
        cache.put(&hot, hot_hash, known(0), Some(&hot_object));
        for n in 1..20_000 {
            let (key, hash, object) = key(n);
            cache.put(&key, hash, known(n), (n % 5 > 0).then_some(&object));
            let counted: u64 = cache.entries.iter().flatten().map(Entry::bytes).sum();
            assert!(cache.bytes() <= 100_000 && (n % 500 > 0 || cache.bytes() == counted), "{n}");
            assert!(cache.small.len() + cache.main.len() + cache.bare.len() < 6 * cache.map.len() + 200);
            let (slot, object) = cache.get(&hot, hot_hash).expect("it is used");
            assert!(slot == known(0) && object == Some(&hot_object), "{n}");
            if n % 3 == 0 {
                cache.forget(&key, hash);
                assert!(cache.get(&key, hash).is_none());
            }
        }
        cache.clear();
        assert!(cache.get(&hot, hot_hash).is_none() && cache.bytes() == 0);
    }

    #[test]
    fn one_pass_over_many_keys_does_not_push_out_what_is_used() {
        let mut cache = Cache::new(200_000);
        for round in 0..3 {
            for n in 0..300 {
                let (key, hash, object) = key(n);
                if round == 0 {
                    cache.put(&key, hash, known(n), Some(&object));
                }
                cache.get(&key, hash);
            }
        }
        for n in 1000..20_000 {
            let (key, hash, object) = key(n);
            cache.put(&key, hash, known(n), Some(&object));
        }
        let kept = (0..300).filter(|&n| {
            let (key, hash, _) = key(n);
            cache.get(&key, hash).is_some_and(|(_, object)| object.is_some())
        });
        assert!(kept.count() > 250);
    }
}
