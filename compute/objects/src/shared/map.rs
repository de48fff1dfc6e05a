//! A hash map of far buckets that threads share. Its layout is that of [`crate::map`].

use super::{Seat, SharedBox, SharedHeap, SharedScope};
use crate::map::{Bytes, Table};
use crate::{Far, Result};
use std::hash::{BuildHasher, Hash, RandomState};

/// Buckets that a scan brings in together.
const TOGETHER: usize = 64;

/// A hash map of plain keys and values in far memory. Any number of threads may read it at a time, or
/// one may change it, as with a `HashMap`: put it into an `RwLock` to change it in turn.
///
/// Entries that are removed leave room for others. The nodes get memory back when the map is
/// cleared or dropped.
pub struct SharedHashMap<K: Far + Eq + Hash, V: Far, S = RandomState> {
    table: Table<K, V, S, SharedBox<Bytes>>,
    heap: SharedHeap,
}

impl<K: Far + Eq + Hash, V: Far> SharedHashMap<K, V> {
    pub(super) fn new(heap: SharedHeap) -> SharedHashMap<K, V> {
        SharedHashMap::with_hasher(heap, RandomState::new())
    }
}

impl<K: Far + Eq + Hash, V: Far, S: BuildHasher> SharedHashMap<K, V, S> {
    /// An empty map with another way of hashing.
    pub fn with_hasher(heap: SharedHeap, hasher: S) -> SharedHashMap<K, V, S> {
        SharedHashMap { table: Table::new(hasher), heap }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`crate::Error::ScopeFull`], [`crate::Error::OtherHeap`], [`crate::Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a V>> {
        self.table.get(self.table.hash(key), key, scope)
    }

    /// The values of many keys, in their order. Buckets that are away come by one round trip to
    /// each node.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn get_many<'a>(&'a self, keys: &[K], scope: &'a SharedScope<'_>) -> Result<Vec<Option<&'a V>>> {
        let (boxes, hashes) = self.table.first_of(keys);
        let cells: Vec<_> = boxes.into_iter().map(SharedBox::cell).collect();
        scope.load_all(SharedBox::<Bytes>::CLASS, &cells)?;
        keys.iter().zip(hashes).map(|(key, hash)| self.table.get(hash, key, scope)).collect()
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn contains_key(&self, key: &K, seat: &Seat) -> Result<bool> {
        let scope = seat.scope();
        Ok(self.get(key, &scope)?.is_some())
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a mut V>> {
        self.table.get_mut(key, scope)
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V, seat: &Seat) -> Result<Option<V>> {
        self.heap.has(seat)?;
        self.table.insert(&seat, key, value)
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn remove(&mut self, key: &K, seat: &Seat) -> Result<Option<V>> {
        self.table.remove(&seat, key)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Calls `visit` for all entries, in no order. Buckets come by 64 at a time.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn scan(&self, seat: &Seat, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let buckets = &self.table.buckets;
        seat.visit(
            (0..buckets.len(), TOGETHER),
            |n| &buckets[n],
            |_, bytes| {
                Table::<K, V, S, SharedBox<Bytes>>::visit(bytes, &mut visit);
            },
        )
    }
}

impl<K: Far + Eq + Hash, V: Far, S> std::fmt::Debug for SharedHashMap<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHashMap").field("len", &self.table.len()).finish_non_exhaustive()
    }
}
