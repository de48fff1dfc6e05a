//! A hash map over its boxes of buckets: the same for heaps of one thread and for those that threads
//! share.

use super::{Bytes, Directory, Entries, Growth};
use crate::boxes::{Boxed, Place};
use crate::{Far, Result};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

/// The entries of a map. `B`: boxes of buckets.
pub struct Table<K, V, S, B> {
    directory: Directory,
    pub buckets: Vec<B>,
    hasher: S,
    entries: PhantomData<(K, V)>,
}

/// Where an entry is: its bucket, and its slot there.
type Slot = (usize, usize);

impl<K: Far + Eq + Hash, V: Far, S: BuildHasher, B> Table<K, V, S, B> {
    pub fn new(hasher: S) -> Table<K, V, S, B> {
        Table { directory: Directory::default(), buckets: Vec::new(), hasher, entries: PhantomData }
    }

    #[inline]
    pub fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The first bucket for a hash.
    #[inline]
    pub fn first(&self, hash: u64) -> Option<usize> {
        self.directory.first(hash)
    }

    /// The bucket behind another.
    #[inline]
    pub fn after(&self, bucket: usize) -> Option<usize> {
        self.directory.after(bucket)
    }

    /// Where a key is.
    fn find<C>(&self, hash: u64, key: &K, scope: &C) -> Result<Option<Slot>>
    where
        B: Boxed<C, Bytes>,
    {
        let mut at = self.first(hash);
        while let Some(bucket) = at {
            if let Some(slot) = Entries::<K, V>::slot(self.buckets[bucket].value(scope)?, hash, key) {
                return Ok(Some((bucket, slot)));
            }
            at = self.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key.
    #[inline]
    pub fn get<'a, C>(&'a self, hash: u64, key: &K, scope: &'a C) -> Result<Option<&'a V>>
    where
        B: Boxed<C, Bytes>,
    {
        let mut at = self.first(hash);
        while let Some(bucket) = at {
            // The tags and, most likely, the entry come from memory together.
            self.buckets[bucket].touch(scope, Entries::<K, V>::place_of(hash));
            let bytes = self.buckets[bucket].value(scope)?;
            if let Some(slot) = Entries::<K, V>::slot(bytes, hash, key) {
                return Ok(Some(Entries::<K, V>::value(bytes, slot)));
            }
            at = self.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key, to write to.
    pub fn get_mut<'a, C>(&'a mut self, key: &K, scope: &'a C) -> Result<Option<&'a mut V>>
    where
        B: Boxed<C, Bytes>,
    {
        let Some((bucket, slot)) = self.find(self.hash(key), key, scope)? else { return Ok(None) };
        let bytes = self.buckets[bucket].value_mut(scope)?;
        Ok(Some(Entries::<K, V>::value_mut(bytes, slot)))
    }

    /// The first buckets of keys, and the keys' hashes.
    pub fn first_of(&self, keys: &[K]) -> (Vec<&B>, Vec<u64>) {
        let hashes: Vec<u64> = keys.iter().map(|key| self.hash(key)).collect();
        let first = hashes.iter().filter_map(|&hash| self.first(hash));
        (first.map(|bucket| &self.buckets[bucket]).collect(), hashes)
    }

    /// Sets the value of a key. Returns the one it had. After an error the entries are as they were.
    pub fn insert<P>(&mut self, on: &P, key: K, value: V) -> Result<Option<V>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let hash = self.hash(&key);
        loop {
            let scope = on.open();
            if let Some((bucket, slot)) = self.find(hash, &key, &scope)? {
                let old = Entries::<K, V>::value_mut(self.buckets[bucket].value_mut(&scope)?, slot);
                return Ok(Some(std::mem::replace(old, value)));
            }
            if let Some(bucket) = self.directory.with_room(hash, Entries::<K, V>::SLOTS) {
                Entries::place(self.buckets[bucket].value_mut(&scope)?, hash, &key, value);
                self.directory.placed(bucket);
                return Ok(None);
            }
            drop(scope);
            self.grow(on, hash)?;
        }
    }

    /// Makes room for one more entry with this hash, or comes nearer to that.
    fn grow<P>(&mut self, on: &P, hash: u64) -> Result<()>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let growth = self.directory.growth(hash);
        let (mut added, mut lens, mut low) = (Bytes::EMPTY, [0; 2], None);
        if let Growth::Split(bucket, bits) = growth {
            let scope = on.open();
            let old = self.buckets[bucket].value(&scope)?;
            let halves;
            (halves, lens) = Entries::<K, V>::halves(old, bits, |key| self.hasher.hash_one(key));
            let [first, second] = halves;
            (low, added) = (Some((bucket, first)), second);
        }
        let added = on.put(&added)?;
        if let Some((bucket, bytes)) = low {
            let scope = on.open();
            *self.buckets[bucket].value_mut(&scope)? = bytes;
        }
        self.buckets.push(added);
        self.directory.grown(growth, hash, lens);
        Ok(())
    }

    /// Removes a key. Returns its value.
    pub fn remove<P>(&mut self, on: &P, key: &K) -> Result<Option<V>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let (hash, scope) = (self.hash(key), on.open());
        let Some((bucket, slot)) = self.find(hash, key, &scope)? else { return Ok(None) };
        let value = Entries::<K, V>::take(self.buckets[bucket].value_mut(&scope)?, slot);
        self.directory.taken(bucket);
        Ok(Some(value))
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.buckets.clear();
        self.directory = Directory::default();
    }

    /// Calls `visit` for the entries of a bucket.
    pub fn visit(bytes: &Bytes, visit: &mut impl FnMut(&K, &V)) {
        for slot in Entries::<K, V>::used(bytes) {
            visit(Entries::<K, V>::key(bytes, slot), Entries::<K, V>::value(bytes, slot));
        }
    }
}

impl<K, V, S, B> Table<K, V, S, B> {
    pub fn len(&self) -> usize {
        self.directory.len()
    }
}
