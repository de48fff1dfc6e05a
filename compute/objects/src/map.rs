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

use crate::frames::{copied, slice, slice_mut};
use crate::vec::Ahead;
use crate::{Far, FarBox, Heap, Result, Scope};
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;

/// Bytes of a bucket.
const BUCKET: usize = 512;
/// Tags of a bucket: entries at most.
const TAGS: usize = 32;
/// Directory bits beyond those that the buckets need, at most.
const SPREAD: u32 = 6;
/// Directory bits at most.
const MOST_BITS: u32 = 30;
/// Buckets that a walk has under way.
const AHEAD: usize = 64;
/// No bucket is chained.
const NONE: u32 = u32::MAX;

/// The bytes of a bucket.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone)]
#[repr(C, align(16))]
struct Bytes([u8; BUCKET]);

/// The local facts about a bucket. A lookup that finds its key does not need them.
struct Note {
    /// Bits of the hash that all its entries share.
    bits: u8,
    /// Entries.
    len: u8,
    /// The bucket that takes what has no room here.
    next: u32,
}

/// A hash map of plain keys and values in far memory.
///
/// Entries that are removed leave room for others. The nodes get memory back when the map is
/// cleared or dropped.
pub struct FarHashMap<K: Far + Eq + Hash, V: Far, S = RandomState> {
    directory: Vec<u32>,
    bits: u32,
    buckets: Vec<FarBox<Bytes>>,
    /// Of each bucket.
    notes: Vec<Note>,
    len: usize,
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
    /// Entries of a bucket. Keys and values that are empty, or larger than four to a bucket, do not
    /// compile.
    const SLOTS: usize = {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        assert!(key > 0 && value > 0, "keys and values of a FarHashMap have at least one byte");
        assert!(align_of::<K>() <= 16 && align_of::<V>() <= 16);
        let fit = (BUCKET - TAGS) / Self::ENTRY;
        assert!(fit >= 4, "an entry of a FarHashMap has 120 bytes at most: keep larger values in a FarVec");
        if fit < TAGS { fit } else { TAGS }
    };
    /// Where an entry's value begins.
    const VALUE: usize = size_of::<K>().next_multiple_of(align_of::<V>());
    /// Bytes of an entry. Its key and its value mostly share a line of the CPU's cache.
    const ENTRY: usize = {
        let align = if align_of::<K>() > align_of::<V>() { align_of::<K>() } else { align_of::<V>() };
        (Self::VALUE + size_of::<V>()).next_multiple_of(align)
    };

    /// An empty map with another way of hashing.
    pub fn with_hasher(heap: Heap, hasher: S) -> FarHashMap<K, V, S> {
        FarHashMap {
            directory: Vec::new(),
            bits: 0,
            buckets: Vec::new(),
            notes: Vec::new(),
            len: 0,
            heap,
            hasher,
            entries: PhantomData,
        }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn key(bytes: &Bytes, slot: usize) -> &K {
        let at = TAGS + slot * Self::ENTRY;
        &slice(&bytes.0[at..at + size_of::<K>()])[0]
    }

    #[inline]
    fn value(bytes: &Bytes, slot: usize) -> &V {
        let at = TAGS + slot * Self::ENTRY + Self::VALUE;
        &slice(&bytes.0[at..at + size_of::<V>()])[0]
    }

    #[inline]
    fn value_mut(bytes: &mut Bytes, slot: usize) -> &mut V {
        let at = TAGS + slot * Self::ENTRY + Self::VALUE;
        &mut slice_mut(&mut bytes.0[at..at + size_of::<V>()])[0]
    }

    /// Puts an entry into the first free slot, of which there is one.
    fn place(bytes: &mut Bytes, hash: u64, key: &K, value: V) {
        let Some(slot) = bytes.0[..TAGS].iter().position(|&tag| tag == 0) else { return };
        let at = TAGS + slot * Self::ENTRY;
        bytes.0[at..at + size_of::<K>()].copy_from_slice(key.as_bytes());
        *Self::value_mut(bytes, slot) = value;
        bytes.0[slot] = tag(hash);
    }

    /// The first bucket for a hash. `None`: there is no bucket yet.
    #[inline]
    fn first(&self, hash: u64) -> Option<usize> {
        self.directory.get(index(hash, self.bits)).map(|&bucket| bucket as usize)
    }

    /// The slot of a key in a bucket.
    #[inline]
    fn slot(bytes: &Bytes, hash: u64, key: &K) -> Option<usize> {
        let wanted = u64::from(tag(hash)) * LOW;
        for (nth, eight) in bytes.0[..TAGS].chunks_exact(8).enumerate() {
            let differs = u64::from_le_bytes(eight.try_into().unwrap_or_default()) ^ wanted;
            // A bit for each byte that is zero, and at times for one behind such a byte: the key
            // decides.
            let mut alike = differs.wrapping_sub(LOW) & !differs & (LOW << 7);
            while alike != 0 {
                let slot = 8 * nth + alike.trailing_zeros() as usize / 8;
                if bytes.0[slot] == tag(hash) && slot < Self::SLOTS && Self::key(bytes, slot) == key {
                    return Some(slot);
                }
                alike &= alike - 1;
            }
        }
        None
    }

    /// Where a key is.
    fn find(&self, hash: u64, key: &K, scope: &Scope) -> Result<Option<Slot>> {
        let mut at = self.first(hash);
        while let Some(bucket) = at {
            if let Some(slot) = Self::slot(self.buckets[bucket].get(scope)?, hash, key) {
                return Ok(Some((bucket, slot)));
            }
            at = self.after(bucket);
        }
        Ok(None)
    }

    #[inline]
    fn after(&self, bucket: usize) -> Option<usize> {
        let next = self.notes[bucket].next;
        (next != NONE).then_some(next as usize)
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
        let mut at = self.first(hash);
        while let Some(bucket) = at {
            let bytes = self.buckets[bucket].get(scope)?;
            if let Some(slot) = Self::slot(bytes, hash, key) {
                return Ok(Some(Self::value(bytes, slot)));
            }
            at = self.after(bucket);
        }
        Ok(None)
    }

    /// The value of a key, for a task that lets others go on while it comes: see [`Heap::join`].
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub async fn load<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        let hash = self.hasher.hash_one(key);
        let mut at = self.first(hash);
        while let Some(bucket) = at {
            let bytes = self.buckets[bucket].load(scope).await?;
            if let Some(slot) = Self::slot(bytes, hash, key) {
                return Ok(Some(Self::value(bytes, slot)));
            }
            at = self.after(bucket);
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
        Ok(Some(Self::value_mut(bytes, slot)))
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
        let first = hashes.iter().filter_map(|&hash| self.first(hash));
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
                let old = Self::value_mut(self.buckets[bucket].get_mut(&scope)?, slot);
                return Ok(Some(std::mem::replace(old, value)));
            }
            let mut at = self.first(hash);
            while let Some(bucket) = at.filter(|&bucket| self.notes[bucket].len as usize == Self::SLOTS) {
                at = self.after(bucket);
            }
            if let Some(bucket) = at {
                self.put(bucket, hash, key, value, &scope)?;
                self.len += 1;
                return Ok(None);
            }
            drop(scope);
            self.grow(hash)?;
        }
    }

    /// Puts an entry into a bucket with room.
    fn put(&mut self, bucket: usize, hash: u64, key: K, value: V, scope: &Scope) -> Result<()> {
        let bytes = self.buckets[bucket].get_mut(scope)?;
        Self::place(bytes, hash, &key, value);
        self.notes[bucket].len += 1;
        Ok(())
    }

    fn add(&mut self, bytes: FarBox<Bytes>, bits: u8, len: u8) {
        self.buckets.push(bytes);
        self.notes.push(Note { bits, len, next: NONE });
    }

    /// Makes room for one more entry with this hash, or comes nearer to that.
    fn grow(&mut self, hash: u64) -> Result<()> {
        let Some(first) = self.first(hash) else {
            let bytes = self.heap.alloc(&Bytes([0; BUCKET]))?;
            self.add(bytes, 0, 0);
            self.directory = vec![0];
            return Ok(());
        };
        let bits = u32::from(self.notes[first].bits);
        let most = (self.buckets.len().ilog2() + SPREAD).min(MOST_BITS);
        if self.after(first).is_none() && bits < most {
            return self.split(first, hash, bits);
        }
        let bytes = self.heap.alloc(&Bytes([0; BUCKET]))?;
        let mut last = first;
        while let Some(next) = self.after(last) {
            last = next;
        }
        self.notes[last].next = self.buckets.len() as u32;
        self.add(bytes, bits as u8, 0);
        Ok(())
    }

    /// Splits a bucket by one more bit of the hash.
    fn split(&mut self, bucket: usize, hash: u64, bits: u32) -> Result<()> {
        let old = self.buckets[bucket].read()?;
        let mut halves = [Bytes([0; BUCKET]), Bytes([0; BUCKET])];
        let mut lens = [0u8; 2];
        for slot in (0..Self::SLOTS).filter(|&slot| old.0[slot] != 0) {
            let (key, value) = (Self::key(&old, slot), Self::value(&old, slot));
            let of_it = self.hasher.hash_one(key);
            let half = (of_it >> (63 - bits) & 1) as usize;
            Self::place(&mut halves[half], of_it, key, copied::<V>(value.as_bytes()));
            lens[half] += 1;
        }
        let [low, high] = halves;
        let fresh = self.heap.alloc(&high)?;
        self.buckets[bucket].set(&low)?;
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&bucket| [bucket; 2]).collect();
            self.bits += 1;
        }
        let number = self.buckets.len() as u32;
        let entries = 1 << (self.bits - bits);
        let from = index(hash, bits) * entries;
        self.directory[from + entries / 2..from + entries].fill(number);
        let bits = bits as u8 + 1;
        (self.notes[bucket].bits, self.notes[bucket].len) = (bits, lens[0]);
        self.add(fresh, bits, lens[1]);
        Ok(())
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`FarHashMap::get`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        let (hash, scope) = (self.hasher.hash_one(key), self.heap.scope());
        let Some((bucket, slot)) = self.find(hash, key, &scope)? else { return Ok(None) };
        let bytes = self.buckets[bucket].get_mut(&scope)?;
        bytes.0[slot] = 0;
        let value = copied(Self::value(bytes, slot).as_bytes());
        self.notes[bucket].len -= 1;
        self.len -= 1;
        Ok(Some(value))
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.directory.clear();
        self.buckets.clear();
        self.notes.clear();
        (self.bits, self.len) = (0, 0);
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
            for slot in (0..Self::SLOTS).filter(|&slot| bytes.0[slot] != 0) {
                visit(Self::key(bytes, slot), Self::value(bytes, slot));
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
                    let used = (0..Self::SLOTS).filter(|&slot| bytes.0[slot] != 0);
                    let entry = |slot: usize| {
                        let (key, value) = (Self::key(&bytes, slot), Self::value(&bytes, slot));
                        Ok((copied(key.as_bytes()), copied(value.as_bytes())))
                    };
                    used.map(entry).collect::<Vec<_>>()
                }
                Err(e) => vec![Err(e)],
            }
        })
    }
}

const LOW: u64 = 0x0101_0101_0101_0101;

#[inline]
fn tag(hash: u64) -> u8 {
    hash as u8 | 0x80
}

/// The top bits of a hash.
#[inline]
fn index(hash: u64, bits: u32) -> usize {
    (hash >> 1 >> (63 - bits)) as usize
}

impl<K: Far + Eq + Hash, V: Far, S> std::fmt::Debug for FarHashMap<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarHashMap").field("len", &self.len).finish_non_exhaustive()
    }
}
