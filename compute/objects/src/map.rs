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

pub use bucket::{Bytes, Directory, Entries, Growth};

use crate::frames::copied;
use crate::vec::Ahead;
use crate::{Far, FarBox, Heap, Result, Scope};
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;

/// Buckets that a walk has under way.
const AHEAD: usize = 64;

/// A hash map of plain keys and values in far memory.
///
/// Entries that are removed leave room for others. The nodes get memory back when the map is
/// cleared or dropped.
pub struct FarHashMap<K: Far + Eq + Hash, V: Far, S = RandomState> {
    directory: Directory,
    buckets: Vec<FarBox<Bytes>>,
    heap: Heap,
    hasher: S,
    entries: PhantomData<(K, V)>,
}

/// Where an entry is: its bucket, and its slot there.
type Slot = (usize, usize);

impl<K: Far + Eq + Hash, V: Far> FarHashMap<K, V> {
    pub(crate) fn new(heap: Heap) -> FarHashMap<K, V> {
        FarHashMap::with_hasher(heap, RandomState::new())
    }
}

impl<K: Far + Eq + Hash, V: Far, S: BuildHasher> FarHashMap<K, V, S> {
    /// An empty map with another way of hashing.
    pub fn with_hasher(heap: Heap, hasher: S) -> FarHashMap<K, V, S> {
        FarHashMap { directory: Directory::default(), buckets: Vec::new(), heap, hasher, entries: PhantomData }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.directory.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a key is.
    fn find(&self, hash: u64, key: &K, scope: &Scope) -> Result<Option<Slot>> {
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
    /// [`crate::Error::ScopeFull`], [`crate::Error::OtherHeap`], [`crate::Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        self.get_hashed(self.hasher.hash_one(key), key, scope)
    }

    #[inline]
    fn get_hashed<'a>(&'a self, hash: u64, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
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

    /// The value of a key, for a task that lets others go on while it comes: see [`Heap::join`].
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub async fn load<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        let hash = self.hasher.hash_one(key);
        let mut at = self.directory.first(hash);
        while let Some(bucket) = at {
            let bytes = self.buckets[bucket].load(scope).await?;
            if let Some(slot) = Entries::<K, V>::slot(bytes, hash, key) {
                return Ok(Some(Entries::<K, V>::value(bytes, slot)));
            }
            at = self.directory.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a Scope) -> Result<Option<&'a mut V>> {
        let hash = self.hasher.hash_one(key);
        let Some((bucket, slot)) = self.find(hash, key, scope)? else { return Ok(None) };
        let bytes = self.buckets[bucket].get_mut(scope)?;
        Ok(Some(Entries::<K, V>::value_mut(bytes, slot)))
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
        let hashes: Vec<u64> = keys.iter().map(|key| self.hasher.hash_one(key)).collect();
        let first = hashes.iter().filter_map(|&hash| self.directory.first(hash));
        let boxes: Vec<&FarBox<Bytes>> = first.map(|bucket| &self.buckets[bucket]).collect();
        self.heap.inner.load_all(&boxes, scope.mark())?;
        keys.iter().zip(hashes).map(|(key, hash)| self.get_hashed(hash, key, scope)).collect()
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`FarHashMap::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        let hash = self.hasher.hash_one(&key);
        let heap = self.heap.clone();
        loop {
            let scope = heap.scope();
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
            self.grow(hash)?;
        }
    }

    /// Makes room for one more entry with this hash, or comes nearer to that.
    fn grow(&mut self, hash: u64) -> Result<()> {
        let growth = self.directory.growth(hash);
        let (mut added, mut lens) = (Bytes::EMPTY, [0; 2]);
        let mut low = None;
        if let Growth::Split(bucket, bits) = growth {
            let old = self.buckets[bucket].read()?;
            let halves;
            (halves, lens) = Entries::<K, V>::halves(&old, bits, |key| self.hasher.hash_one(key));
            let [first, second] = halves;
            (low, added) = (Some((bucket, first)), second);
        }
        let added = self.heap.alloc(&added)?;
        if let Some((bucket, bytes)) = low {
            self.buckets[bucket].set(&bytes)?;
        }
        self.buckets.push(added);
        self.directory.grown(growth, hash, lens);
        Ok(())
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        let (hash, scope) = (self.hasher.hash_one(key), self.heap.scope());
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

    /// Calls `visit` for all entries, in no order. The next ones are under way meanwhile.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn scan(&self, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, bucket) in self.buckets.iter().enumerate() {
            ahead.go(number, self.buckets.len(), |n| &self.buckets[n]);
            let scope = self.heap.scope();
            let bytes = bucket.get(&scope)?;
            for slot in Entries::<K, V>::used(bytes) {
                visit(Entries::<K, V>::key(bytes, slot), Entries::<K, V>::value(bytes, slot));
            }
            drop(scope);
            ahead.seen(bucket);
        }
        Ok(())
    }

    /// Copies of all entries, in no order. The next ones are under way meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, V)>> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        (0..self.buckets.len()).flat_map(move |number| {
            ahead.go(number, self.buckets.len(), |n| &self.buckets[n]);
            let read = self.buckets[number].read();
            ahead.seen(&self.buckets[number]);
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
        f.debug_struct("FarHashMap").field("len", &self.directory.len()).finish_non_exhaustive()
    }
}
