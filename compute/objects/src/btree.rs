//! A sorted map of which the entries are far, and the lowest key of each leaf is near.
//!
//! ```text
//! near: lowest key ─► leaf: far, 1 KiB: | keys, ascending | values |
//! ```
//!
//! So a lookup needs one far object. Near memory is a key and some 30 bytes a leaf.

use crate::frames::{copied, slice, slice_mut};
use crate::vec::Ahead;
use crate::{Far, FarBox, Heap, Result, Scope};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// Bytes of a leaf.
const LEAF: usize = 1024;
/// Leaves that a walk has under way.
const AHEAD: usize = 32;

/// The bytes of a leaf.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(16))]
struct Bytes([u8; LEAF]);

struct Leaf {
    bytes: FarBox<Bytes>,
    /// Entries; none only while it is made.
    len: usize,
}

/// A sorted map of plain keys and values in far memory.
///
/// A leaf goes back to its node when its last entry is removed.
pub struct FarBTree<K: Far + Ord, V: Far> {
    leaves: BTreeMap<K, Leaf>,
    len: usize,
    heap: Heap,
    values: PhantomData<V>,
}

impl<K: Far + Ord, V: Far> FarBTree<K, V> {
    /// Entries of a leaf. Keys and values that are empty, or larger than four to a leaf, do not
    /// compile.
    const MOST: usize = {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        assert!(key > 0 && value > 0, "keys and values of a FarBTree have at least one byte");
        assert!(align_of::<K>() <= 16 && align_of::<V>() <= 16);
        let fit = (LEAF - 16) / (key + value);
        assert!(fit >= 4, "an entry of a FarBTree has 252 bytes at most: keep larger values in a FarVec");
        fit
    };
    /// Where the values begin.
    const VALUES: usize = (Self::MOST * size_of::<K>()).next_multiple_of(align_of::<V>());

    pub(crate) fn new(heap: Heap) -> FarBTree<K, V> {
        FarBTree { leaves: BTreeMap::new(), len: 0, heap, values: PhantomData }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn keys(bytes: &Bytes, len: usize) -> &[K] {
        slice(&bytes.0[..len * size_of::<K>()])
    }

    fn values(bytes: &Bytes, len: usize) -> &[V] {
        slice(&bytes.0[Self::VALUES..Self::VALUES + len * size_of::<V>()])
    }

    fn values_mut(bytes: &mut Bytes) -> &mut [V] {
        slice_mut(&mut bytes.0[Self::VALUES..Self::VALUES + Self::MOST * size_of::<V>()])
    }

    /// The one leaf in which a key may be.
    fn leaf(&self, key: &K) -> Option<&Leaf> {
        self.leaves.range(..=key).next_back().map(|(_, leaf)| leaf)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`crate::Error::ScopeFull`], [`crate::Error::OtherHeap`], [`crate::Error::Memory`].
    pub fn get<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        let Some(leaf) = self.leaf(key) else { return Ok(None) };
        let bytes = leaf.bytes.get(scope)?;
        let found = Self::keys(bytes, leaf.len).binary_search(key);
        Ok(found.ok().map(|slot| &Self::values(bytes, leaf.len)[slot]))
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a Scope) -> Result<Option<&'a mut V>> {
        let Some((_, leaf)) = self.leaves.range_mut(..=key).next_back() else { return Ok(None) };
        let Ok(slot) = Self::keys(leaf.bytes.get(scope)?, leaf.len).binary_search(key) else { return Ok(None) };
        Ok(Some(&mut Self::values_mut(leaf.bytes.get_mut(scope)?)[slot]))
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        let scope = self.heap.scope();
        Ok(self.get(key, &scope)?.is_some())
    }

    /// The values of many keys, in their order. Leaves that are away come by one round trip to each
    /// node.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn get_many<'a>(&'a self, keys: &[K], scope: &'a Scope) -> Result<Vec<Option<&'a V>>> {
        scope.is_of(&self.heap)?;
        let boxes: Vec<&FarBox<Bytes>> = keys.iter().filter_map(|key| self.leaf(key)).map(|leaf| &leaf.bytes).collect();
        self.heap.inner.load_all(&boxes, scope.mark())?;
        keys.iter().map(|key| self.get(key, scope)).collect()
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`FarBTree::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        let heap = self.heap.clone();
        loop {
            self.lower(&key)?;
            let Some((_, leaf)) = self.leaves.range_mut(..=&key).next_back() else { continue };
            let scope = heap.scope();
            match Self::keys(leaf.bytes.get(&scope)?, leaf.len).binary_search(&key) {
                Ok(slot) => {
                    let old = &mut Self::values_mut(leaf.bytes.get_mut(&scope)?)[slot];
                    return Ok(Some(std::mem::replace(old, value)));
                }
                Err(slot) if leaf.len < Self::MOST => {
                    let bytes = leaf.bytes.get_mut(&scope)?;
                    Self::open(bytes, slot, leaf.len);
                    slice_mut(&mut bytes.0[..Self::MOST * size_of::<K>()])[slot] = key;
                    Self::values_mut(bytes)[slot] = value;
                    leaf.len += 1;
                    self.len += 1;
                    return Ok(None);
                }
                Err(_) => {
                    drop(scope);
                    self.split(&key)?;
                }
            }
        }
    }

    /// Sees to it that there is a leaf for a key: the first leaf takes keys that are lower than
    /// all.
    fn lower(&mut self, key: &K) -> Result<()> {
        if self.leaf(key).is_some() {
            return Ok(());
        }
        let first = match self.leaves.pop_first() {
            Some((_, first)) => first,
            None => Leaf { bytes: self.heap.alloc(&Bytes([0; LEAF]))?, len: 0 },
        };
        self.leaves.insert(copied(key.as_bytes()), first);
        Ok(())
    }

    /// Makes room for an entry before the one in a slot.
    fn open(bytes: &mut Bytes, slot: usize, len: usize) {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        bytes.0.copy_within(slot * key..len * key, (slot + 1) * key);
        bytes.0.copy_within(Self::VALUES + slot * value..Self::VALUES + len * value, Self::VALUES + (slot + 1) * value);
    }

    /// Splits the leaf of a key, which is full, in two.
    fn split(&mut self, key: &K) -> Result<()> {
        let Some((_, leaf)) = self.leaves.range_mut(..=key).next_back() else { return Ok(()) };
        let (old, from) = (leaf.bytes.read()?, leaf.len / 2);
        let mut high = Bytes([0; LEAF]);
        let (keys, values) = (from * size_of::<K>(), from * size_of::<V>());
        let (until_key, until_value) = (leaf.len * size_of::<K>(), leaf.len * size_of::<V>());
        high.0[..until_key - keys].copy_from_slice(&old.0[keys..until_key]);
        high.0[Self::VALUES..Self::VALUES + until_value - values]
            .copy_from_slice(&old.0[Self::VALUES + values..Self::VALUES + until_value]);
        let fresh = Leaf { bytes: self.heap.alloc(&high)?, len: leaf.len - from };
        leaf.len = from;
        self.leaves.insert(copied(Self::keys(&high, 1)[0].as_bytes()), fresh);
        Ok(())
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        let scope = self.heap.scope();
        let Some((low, leaf)) = self.leaves.range_mut(..=key).next_back() else { return Ok(None) };
        let Ok(slot) = Self::keys(leaf.bytes.get(&scope)?, leaf.len).binary_search(key) else { return Ok(None) };
        let bytes = leaf.bytes.get_mut(&scope)?;
        let removed = copied(Self::values(bytes, leaf.len)[slot].as_bytes());
        let (key_bytes, value_bytes) = (size_of::<K>(), size_of::<V>());
        bytes.0.copy_within((slot + 1) * key_bytes..leaf.len * key_bytes, slot * key_bytes);
        let (from, until) = (Self::VALUES + (slot + 1) * value_bytes, Self::VALUES + leaf.len * value_bytes);
        bytes.0.copy_within(from..until, from - value_bytes);
        leaf.len -= 1;
        self.len -= 1;
        if leaf.len == 0 {
            let low = copied::<K>(low.as_bytes());
            self.leaves.remove(&low);
        }
        Ok(Some(removed))
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.leaves.clear();
        self.len = 0;
    }

    /// Calls `visit` for the entries of a range of keys, ascending. The next ones are under way
    /// meanwhile. A range that ends before it begins is empty.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn scan(&self, range: impl RangeBounds<K>, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let before_end = |low: &K| match range.end_bound() {
            Bound::Included(end) => low <= end,
            Bound::Excluded(end) => low < end,
            Bound::Unbounded => true,
        };
        let from = match range.start_bound() {
            Bound::Included(start) | Bound::Excluded(start) => {
                self.leaves.range(..=start).next_back().map(|(low, _)| low)
            }
            Bound::Unbounded => None,
        };
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        let leaves = self.leaves.range((from, Bound::Unbounded)).take_while(|&(low, _)| before_end(low));
        let leaves: Vec<&Leaf> = leaves.map(|(_, leaf)| leaf).collect();
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, leaf) in leaves.iter().enumerate() {
            ahead.go(number, leaves.len(), |n| &leaves[n].bytes);
            let scope = self.heap.scope();
            let bytes = leaf.bytes.get(&scope)?;
            let entries = Self::keys(bytes, leaf.len).iter().zip(Self::values(bytes, leaf.len));
            entries.filter(|&(key, _)| range.contains(key)).for_each(|(key, value)| visit(key, value));
            drop(scope);
            ahead.seen(&leaf.bytes);
        }
        Ok(())
    }

    /// A copy of the entry with the lowest key.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.leaves.values().next().map(|leaf| self.entry(leaf, 0)).transpose()
    }

    /// A copy of the entry with the highest key.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.leaves.values().next_back().map(|leaf| self.entry(leaf, leaf.len - 1)).transpose()
    }

    fn entry(&self, leaf: &Leaf, slot: usize) -> Result<(K, V)> {
        let scope = self.heap.scope();
        let bytes = leaf.bytes.get(&scope)?;
        let (key, value) = (&Self::keys(bytes, leaf.len)[slot], &Self::values(bytes, leaf.len)[slot]);
        Ok((copied(key.as_bytes()), copied(value.as_bytes())))
    }
}

impl<K: Far + Ord, V: Far> std::fmt::Debug for FarBTree<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarBTree").field("len", &self.len).finish_non_exhaustive()
    }
}
