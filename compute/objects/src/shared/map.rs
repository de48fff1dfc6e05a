//! A hash map of far buckets that threads share. Its layout is that of [`crate::map`].

use super::{Seat, SharedBox, SharedHeap, SharedScope};
use crate::map::{Bytes, Directory, Entries, Growth};
use crate::{Error, Far, Result};
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;

/// Buckets that a scan brings in together.
const TOGETHER: usize = 64;

/// A hash map of plain keys and values in far memory. Any number of threads may read it at a time, or
/// one may change it, as with a `HashMap`: put it into an `RwLock` to change it in turn.
///
/// Entries that are removed leave room for others. The nodes get memory back when the map is
/// cleared or dropped.
pub struct SharedHashMap<K: Far + Eq + Hash, V: Far, S = RandomState> {
    directory: Directory,
    buckets: Vec<SharedBox<Bytes>>,
    heap: SharedHeap,
    hasher: S,
    entries: PhantomData<(K, V)>,
}

impl<K: Far + Eq + Hash, V: Far> SharedHashMap<K, V> {
    pub(super) fn new(heap: SharedHeap) -> SharedHashMap<K, V> {
        SharedHashMap::with_hasher(heap, RandomState::new())
    }
}

impl<K: Far + Eq + Hash, V: Far, S: BuildHasher> SharedHashMap<K, V, S> {
    /// An empty map with another way of hashing.
    pub fn with_hasher(heap: SharedHeap, hasher: S) -> SharedHashMap<K, V, S> {
        SharedHashMap { directory: Directory::default(), buckets: Vec::new(), heap, hasher, entries: PhantomData }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.directory.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a key is: its bucket, and its slot there.
    fn find(&self, hash: u64, key: &K, scope: &SharedScope<'_>) -> Result<Option<(usize, usize)>> {
        let mut at = self.directory.first(hash);
        while let Some(bucket) = at {
            if let Some(slot) = Entries::<K, V>::slot(self.buckets[bucket].get(scope)?, hash, key) {
                return Ok(Some((bucket, slot)));
            }
            at = self.directory.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a V>> {
        self.get_hashed(self.hasher.hash_one(key), key, scope)
    }

    #[inline]
    fn get_hashed<'a>(&'a self, hash: u64, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a V>> {
        let mut at = self.directory.first(hash);
        while let Some(bucket) = at {
            let bytes = self.buckets[bucket].get(scope)?;
            if let Some(slot) = Entries::<K, V>::slot(bytes, hash, key) {
                return Ok(Some(Entries::<K, V>::value(bytes, slot)));
            }
            at = self.directory.after(bucket);
        }
        Ok(None)
    }

    /// The values of many keys, in their order. Buckets that are away come by one round trip to
    /// each node.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn get_many<'a>(&'a self, keys: &[K], scope: &'a SharedScope<'_>) -> Result<Vec<Option<&'a V>>> {
        let hashes: Vec<u64> = keys.iter().map(|key| self.hasher.hash_one(key)).collect();
        let first = hashes.iter().filter_map(|&hash| self.directory.first(hash));
        let cells: Vec<_> = first.map(|bucket| self.buckets[bucket].cell()).collect();
        scope.load_all(SharedBox::<Bytes>::CLASS, &cells)?;
        keys.iter().zip(hashes).map(|(key, hash)| self.get_hashed(hash, key, scope)).collect()
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
        let hash = self.hasher.hash_one(key);
        let Some((bucket, slot)) = self.find(hash, key, scope)? else { return Ok(None) };
        let bytes = self.buckets[bucket].get_mut(scope)?;
        Ok(Some(Entries::<K, V>::value_mut(bytes, slot)))
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V, seat: &Seat) -> Result<Option<V>> {
        if !Arc::ptr_eq(&self.heap.inner, &seat.inner) {
            return Err(Error::OtherHeap);
        }
        let hash = self.hasher.hash_one(&key);
        loop {
            let scope = seat.scope();
            if let Some((bucket, slot)) = self.find(hash, &key, &scope)? {
                let old = Entries::<K, V>::value_mut(self.buckets[bucket].get_mut(&scope)?, slot);
                return Ok(Some(std::mem::replace(old, value)));
            }
            if let Some(bucket) = self.directory.with_room(hash, Entries::<K, V>::SLOTS) {
                Entries::place(self.buckets[bucket].get_mut(&scope)?, hash, &key, value);
                self.directory.placed(bucket);
                return Ok(None);
            }
            drop(scope);
            self.grow(hash, seat)?;
        }
    }

    /// Makes room for one more entry with this hash, or comes nearer to that.
    fn grow(&mut self, hash: u64, seat: &Seat) -> Result<()> {
        let growth = self.directory.growth(hash);
        let (mut added, mut lens, mut low) = (Bytes::EMPTY, [0; 2], None);
        if let Growth::Split(bucket, bits) = growth {
            let old = self.buckets[bucket].read(seat)?;
            let halves;
            (halves, lens) = Entries::<K, V>::halves(&old, bits, |key| self.hasher.hash_one(key));
            let [first, second] = halves;
            (low, added) = (Some((bucket, first)), second);
        }
        let added = seat.alloc(&added)?;
        if let Some((bucket, bytes)) = low {
            self.buckets[bucket].set(seat, bytes)?;
        }
        self.buckets.push(added);
        self.directory.grown(growth, hash, lens);
        Ok(())
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn remove(&mut self, key: &K, seat: &Seat) -> Result<Option<V>> {
        let (hash, scope) = (self.hasher.hash_one(key), seat.scope());
        let Some((bucket, slot)) = self.find(hash, key, &scope)? else { return Ok(None) };
        let value = Entries::<K, V>::take(self.buckets[bucket].get_mut(&scope)?, slot);
        self.directory.taken(bucket);
        Ok(Some(value))
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.buckets.clear();
        self.directory = Directory::default();
    }

    /// Calls `visit` for all entries, in no order. Buckets come by 64 at a time.
    ///
    /// # Errors
    /// As [`SharedHashMap::get`].
    pub fn scan(&self, seat: &Seat, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let mut next = 0;
        while next < self.buckets.len() {
            let group = &self.buckets[next..self.buckets.len().min(next + TOGETHER)];
            let scope = seat.scope();
            let cells: Vec<_> = group.iter().map(SharedBox::cell).collect();
            let is_together = scope.load_all(SharedBox::<Bytes>::CLASS, &cells);
            // A small heap cannot hold all of them at once.
            let group = if let Err(Error::ScopeFull(_)) = is_together { &group[..1] } else { group };
            for bucket in group {
                let bytes = bucket.get(&scope)?;
                for slot in Entries::<K, V>::used(bytes) {
                    visit(Entries::<K, V>::key(bytes, slot), Entries::<K, V>::value(bytes, slot));
                }
            }
            next += group.len();
        }
        Ok(())
    }
}

impl<K: Far + Eq + Hash, V: Far, S> std::fmt::Debug for SharedHashMap<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHashMap").field("len", &self.directory.len()).finish_non_exhaustive()
    }
}
