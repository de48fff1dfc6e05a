//! A cache in far memory: values that can be made again.
//!
//! When the nodes have no room, or a node is lost, values are dropped and made again. So such a
//! value is never an error of the cache, and the cache leaves room to others.

use crate::{Error, Far, FarBox, Heap, Result, Scope};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Of the entries, the part that is dropped at once where the nodes have no room.
const PART: usize = 8;

struct Entry<V: Far> {
    value: FarBox<V>,
    /// Used since it was passed by last.
    used: bool,
}

/// Values in far memory that are made again when they are gone. Keys are near.
pub struct FarCache<K: Eq + Hash + Clone, V: Far> {
    entries: HashMap<K, Entry<V>>,
    /// All keys, the next to be dropped first.
    order: VecDeque<K>,
    /// Entries at most.
    most: usize,
    heap: Heap,
    made: u64,
}

impl<K: Eq + Hash + Clone, V: Far> FarCache<K, V> {
    pub(crate) fn new(heap: Heap, most: usize) -> FarCache<K, V> {
        FarCache { entries: HashMap::new(), order: VecDeque::new(), most: most.max(1), heap, made: 0 }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Values that were made, since the cache was.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// A copy of a key's value; `make` makes it, if it is not here or is lost.
    ///
    /// # Errors
    /// [`Error::ScopeFull`]. A lost node and a full one are no errors.
    pub fn get(&mut self, key: &K, make: impl FnOnce(&K) -> V) -> Result<V> {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = true;
            match entry.value.read() {
                Err(Error::Memory(_)) => self.remove(key),
                other => return other,
            }
        }
        let value = make(key);
        self.made += 1;
        self.put(key, &value)?;
        Ok(value)
    }

    /// The value of a key, if it is here. A lost one is not.
    ///
    /// # Errors
    /// [`Error::ScopeFull`], [`Error::OtherHeap`].
    pub fn peek<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        match self.entries.get(key).map(|entry| entry.value.get(scope)) {
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(Error::Memory(_))) | None => Ok(None),
            Some(Err(e)) => Err(e),
        }
    }

    /// Keeps a value, as long as there is room.
    fn put(&mut self, key: &K, value: &V) -> Result<()> {
        if self.entries.len() == self.most {
            self.drop_some(1);
        }
        // A key whose `clone` panics changes nothing.
        let keys = (key.clone(), key.clone());
        for _ in 0..=PART {
            match self.heap.alloc(value) {
                Ok(value) => {
                    self.entries.insert(keys.0, Entry { value, used: false });
                    self.order.push_back(keys.1);
                    return Ok(());
                }
                Err(Error::Memory(farmem::Error::Full(_))) => self.drop_some(self.entries.len().div_ceil(PART)),
                // It is made again when it is asked for.
                Err(Error::Memory(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Drops entries: those that were not used since they were passed by.
    fn drop_some(&mut self, mut some: usize) {
        while some > 0
            && let Some(key) = self.order.pop_front()
        {
            match self.entries.get_mut(&key) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.order.push_back(key);
                }
                _ => {
                    self.entries.remove(&key);
                    some -= 1;
                }
            }
        }
    }

    /// Drops a value: it is made again when it is asked for.
    pub fn remove(&mut self, key: &K) {
        if self.entries.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }
}

impl<K: Eq + Hash + Clone, V: Far> std::fmt::Debug for FarCache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarCache").field("len", &self.len()).finish_non_exhaustive()
    }
}
