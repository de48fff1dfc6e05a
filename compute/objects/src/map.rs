//! A hash map of which the entries are far, and the directory is near.
//!
//! ```text
//! hash: | directory index: top bits | … | tag: 7 bits |
//! directory ─► bucket: far, 512 bytes: | 32 tags | entry: key, value | entry | …    tag 0: free
//! ```
//!
//! *Extendible hashing* (Fagin and others, 1979). A bucket that is full is split in two by one more
//! bit of the hash; the directory doubles when the bucket had as many bits as the directory. So a
//! lookup needs one far object, growth moves one bucket's entries, and there are no marks of what
//! was removed. The directory takes 4 bytes near for each bucket and 24 for its box, some 5 % of
//! the far bytes.
//!
//! A split that does not part the entries is tried again with the next bit. When the directory
//! would be much larger than the buckets need, a further bucket is chained instead: a bad hash
//! makes a map slow, and never large.

mod bucket;
mod table;

pub use bucket::{Bytes, Directory, Entries, Growth};
pub use table::Table;

use crate::frames::copied;
use crate::vec::Ahead;
use crate::{Far, FarBox, Heap, Result, Scope};
use std::hash::{BuildHasher, Hash, RandomState};

/// Buckets that a walk has under way.
const AHEAD: usize = 64;

/// A hash map of plain keys and values in far memory.
///
/// Entries that are removed leave room for others. The nodes get memory back when the map is
/// cleared or dropped.
pub struct FarHashMap<K: Far + Eq + Hash, V: Far, S = RandomState> {
    table: Table<K, V, S, FarBox<Bytes>>,
    heap: Heap,
}

impl<K: Far + Eq + Hash, V: Far> FarHashMap<K, V> {
    pub(crate) fn new(heap: Heap) -> FarHashMap<K, V> {
        FarHashMap::with_hasher(heap, RandomState::new())
    }
}

impl<K: Far + Eq + Hash, V: Far, S: BuildHasher> FarHashMap<K, V, S> {
    /// An empty map with another way of hashing.
    pub fn with_hasher(heap: Heap, hasher: S) -> FarHashMap<K, V, S> {
        FarHashMap { table: Table::new(hasher), heap }
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
    pub fn get<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        self.table.get(self.table.hash(key), key, scope)
    }

    /// The value of a key, for a task that lets others go on while it comes: see [`Heap::join`].
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub async fn load<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        let hash = self.table.hash(key);
        let mut at = self.table.first(hash);
        while let Some(bucket) = at {
            let bytes = self.table.buckets[bucket].load(scope).await?;
            if let Some(slot) = Entries::<K, V>::slot(bytes, hash, key) {
                return Ok(Some(Entries::<K, V>::value(bytes, slot)));
            }
            at = self.table.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a Scope) -> Result<Option<&'a mut V>> {
        self.table.get_mut(key, scope)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        let scope = self.heap.scope();
        Ok(self.get(key, &scope)?.is_some())
    }

    /// The values of many keys, in their order. Buckets that are away come by one round trip to
    /// each node.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn get_many<'a>(&'a self, keys: &[K], scope: &'a Scope) -> Result<Vec<Option<&'a V>>> {
        scope.is_of(&self.heap)?;
        let (boxes, hashes) = self.table.first_of(keys);
        self.heap.inner.load_all(&boxes, scope.mark())?;
        keys.iter().zip(hashes).map(|(key, hash)| self.table.get(hash, key, scope)).collect()
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`FarHashMap::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        self.table.insert(&self.heap, key, value)
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        self.table.remove(&self.heap, key)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Calls `visit` for all entries, in no order. The next ones are under way meanwhile.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn scan(&self, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        let buckets = &self.table.buckets;
        for (number, bucket) in buckets.iter().enumerate() {
            ahead.go(number, buckets.len(), |n| &buckets[n]);
            let scope = self.heap.scope();
            Table::<K, V, S, FarBox<Bytes>>::visit(bucket.get(&scope)?, &mut visit);
            drop(scope);
            ahead.seen(bucket);
        }
        Ok(())
    }

    /// Copies of all entries, in no order. The next ones are under way meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, V)>> {
        let (mut ahead, buckets) = (Ahead::new(&self.heap, AHEAD), &self.table.buckets);
        (0..buckets.len()).flat_map(move |number| {
            ahead.go(number, buckets.len(), |n| &buckets[n]);
            let read = buckets[number].read();
            ahead.seen(&buckets[number]);
            match read {
                Ok(bytes) => {
                    let entry = |slot: usize| {
                        let (key, value) = (Entries::<K, V>::key(&bytes, slot), Entries::<K, V>::value(&bytes, slot));
                        Ok((copied(key.as_bytes()), copied(value.as_bytes())))
                    };
                    Entries::<K, V>::used(&bytes).map(entry).collect::<Vec<_>>()
                }
                Err(e) => vec![Err(e)],
            }
        })
    }
}

impl<K: Far + Eq + Hash, V: Far, S> std::fmt::Debug for FarHashMap<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarHashMap").field("len", &self.table.len()).finish_non_exhaustive()
    }
}
