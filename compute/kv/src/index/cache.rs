//! Slots that a front end has seen, by key.
//!
//! Keys are kept in full: two keys of one hash must not be taken for each other by a CAS that does not
//! look. Bounded by a number of entries; when it is full, one of a few neighbours that was not used
//! since is dropped (a clock over a small set).

use crate::layout::{At, Hash, Slot};
use std::collections::HashMap;

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
}

#[derive(Debug)]
struct Entry {
    key: Box<[u8]>,
    known: Known,
    used: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Cache {
    most: usize,
    entries: HashMap<u64, Entry>,
    clock: Vec<u64>,
    hand: usize,
}

/// Bytes that an entry takes, about.
pub const ENTRY_BYTES: u64 = 160;

impl Cache {
    /// Holds at most `most` keys.
    pub fn new(most: usize) -> Cache {
        Cache { most, entries: HashMap::new(), clock: Vec::new(), hand: 0 }
    }

    /// Looks a key up.
    pub fn get(&mut self, key: &[u8], hash: Hash) -> Option<Known> {
        let entry = self.entries.get_mut(&hash.0).filter(|entry| *entry.key == *key)?;
        entry.used = true;
        Some(entry.known)
    }

    /// Remembers it.
    pub fn put(&mut self, key: &[u8], hash: Hash, known: Known) {
        if self.most == 0 {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&hash.0) {
            if *entry.key != *key {
                entry.key = key.into();
            }
            entry.known = known;
            return;
        }
        if self.entries.len() >= self.most {
            self.drop_one();
        }
        if self.clock.len() >= 2 * self.most + 64 {
            let entries = &self.entries;
            let mut seen = std::collections::HashSet::new();
            self.clock.retain(|hash| entries.contains_key(hash) && seen.insert(*hash));
        }
        self.clock.push(hash.0);
        self.entries.insert(hash.0, Entry { key: key.into(), known, used: false });
    }

    /// The key is written about a little longer than it was used.
    fn drop_one(&mut self) {
        for _ in 0..2 * self.clock.len() {
            if self.hand >= self.clock.len() {
                self.hand = 0;
            }
            let hash = self.clock[self.hand];
            match self.entries.get_mut(&hash) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.hand += 1;
                }
                gone_or_unused => {
                    let was_there = gone_or_unused.is_some();
                    self.entries.remove(&hash);
                    self.clock.swap_remove(self.hand);
                    if was_there {
                        return;
                    }
                }
            }
            if self.clock.is_empty() {
                return;
            }
        }
    }

    /// Nothing is known of it any more.
    pub fn forget(&mut self, key: &[u8], hash: Hash) {
        // Its place in the clock is dropped when the hand comes by, or taken up again.
        if self.entries.get(&hash.0).is_some_and(|entry| *entry.key == *key) {
            self.entries.remove(&hash.0);
        }
    }

    /// When the key's object ends.
    pub fn expires(&mut self, key: &[u8], hash: Hash, expiry: u64) {
        if let Some(entry) = self.entries.get_mut(&hash.0).filter(|entry| *entry.key == *key) {
            entry.known.expiry = expiry;
        }
    }

    /// Whether a key was used since the hand last came by.
    pub fn is_hot(&self, key: &[u8], hash: Hash) -> bool {
        self.entries.get(&hash.0).is_some_and(|entry| *entry.key == *key && entry.used)
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let mut cache = Cache::new(100);
        let known = Known { table: 0, slot_at: 8, slot: Slot(1), len: 1, expiry: 0, epoch: 0 };
        let hash = |n: u32| Hash::of(&n.to_le_bytes());
        for n in 0..10_000u32 {
            cache.put(&n.to_le_bytes(), hash(n), known);
            assert!(cache.len() <= 100 && cache.clock.len() <= 264);
            assert_eq!(cache.get(&0u32.to_le_bytes(), hash(0)), Some(known), "{n}");
            if n % 3 == 0 && n > 0 {
                cache.forget(&n.to_le_bytes(), hash(n));
            }
        }
    }
}
