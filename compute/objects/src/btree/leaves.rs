//! A sorted map over its boxes of leaves: the same for heaps of one thread and for those that threads
//! share.

use super::Leaf;
use crate::boxes::{Boxed, Place, check};
use crate::frames::{copied, slice, slice_mut};
use crate::{Far, Result};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// Bytes of a leaf.
const LEAF: usize = 1024;

/// The bytes of a leaf.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(16))]
pub struct Bytes([u8; LEAF]);

/// The entries of a map. `B`: boxes of leaves.
pub struct Leaves<K, V, B> {
    by_key: BTreeMap<K, Leaf<B>>,
    len: usize,
    values: PhantomData<V>,
}

impl<K: Far + Ord, V: Far, B> Leaves<K, V, B> {
    /// Entries of a leaf. Keys and values that are empty, or larger than four to a leaf, do not
    /// compile.
    const MOST: usize = {
        check::<K>();
        check::<V>();
        assert!(align_of::<K>() <= 16 && align_of::<V>() <= 16);
        let fit = (LEAF - 16) / (size_of::<K>() + size_of::<V>());
        assert!(fit >= 4, "an entry of a sorted map has 252 bytes at most: keep larger values in a FarVec");
        fit
    };
    /// Where the values begin.
    const VALUES: usize = (Self::MOST * size_of::<K>()).next_multiple_of(align_of::<V>());

    pub fn new() -> Leaves<K, V, B> {
        Leaves { by_key: BTreeMap::new(), len: 0, values: PhantomData }
    }

    pub fn keys(bytes: &Bytes, len: usize) -> &[K] {
        slice(&bytes.0[..len * size_of::<K>()])
    }

    pub fn values(bytes: &Bytes, len: usize) -> &[V] {
        slice(&bytes.0[Self::VALUES..Self::VALUES + len * size_of::<V>()])
    }

    fn values_mut(bytes: &mut Bytes) -> &mut [V] {
        slice_mut(&mut bytes.0[Self::VALUES..Self::VALUES + Self::MOST * size_of::<V>()])
    }

    /// The one leaf in which a key may be.
    pub fn leaf(&self, key: &K) -> Option<&Leaf<B>> {
        self.by_key.range(..=key).next_back().map(|(_, leaf)| leaf)
    }

    /// The value of a key.
    pub fn get<'a, C>(&'a self, key: &K, scope: &'a C) -> Result<Option<&'a V>>
    where
        B: Boxed<C, Bytes>,
    {
        let Some(leaf) = self.leaf(key) else { return Ok(None) };
        let bytes = leaf.bytes.value(scope)?;
        let found = Self::keys(bytes, leaf.len).binary_search(key);
        Ok(found.ok().map(|slot| &Self::values(bytes, leaf.len)[slot]))
    }

    /// The value of a key, to write to.
    pub fn get_mut<'a, C>(&'a mut self, key: &K, scope: &'a C) -> Result<Option<&'a mut V>>
    where
        B: Boxed<C, Bytes>,
    {
        let Some((_, leaf)) = self.by_key.range_mut(..=key).next_back() else { return Ok(None) };
        let Ok(slot) = Self::keys(leaf.bytes.value(scope)?, leaf.len).binary_search(key) else { return Ok(None) };
        Ok(Some(&mut Self::values_mut(leaf.bytes.value_mut(scope)?)[slot]))
    }

    /// Sets the value of a key. Returns the one it had. After an error the entries are as they were.
    pub fn insert<P>(&mut self, on: &P, key: K, value: V) -> Result<Option<V>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        loop {
            self.lower(on, &key)?;
            let Some((_, leaf)) = self.by_key.range_mut(..=&key).next_back() else { continue };
            let scope = on.open();
            match Self::keys(leaf.bytes.value(&scope)?, leaf.len).binary_search(&key) {
                Ok(slot) => {
                    let old = &mut Self::values_mut(leaf.bytes.value_mut(&scope)?)[slot];
                    return Ok(Some(std::mem::replace(old, value)));
                }
                Err(slot) if leaf.len < Self::MOST => {
                    let bytes = leaf.bytes.value_mut(&scope)?;
                    Self::widen(bytes, slot, leaf.len);
                    slice_mut(&mut bytes.0[..Self::MOST * size_of::<K>()])[slot] = key;
                    Self::values_mut(bytes)[slot] = value;
                    leaf.len += 1;
                    self.len += 1;
                    return Ok(None);
                }
                Err(_) => {
                    drop(scope);
                    self.split(on, &key)?;
                }
            }
        }
    }

    /// Sees to it that there is a leaf for a key: the first leaf takes keys that are lower than
    /// all.
    fn lower(&mut self, on: &impl Place<Bytes, Box = B>, key: &K) -> Result<()> {
        if self.leaf(key).is_some() {
            return Ok(());
        }
        let first = match self.by_key.pop_first() {
            Some((_, first)) => first,
            None => Leaf { bytes: on.put(&Bytes([0; LEAF]))?, len: 0 },
        };
        self.by_key.insert(copied(key.as_bytes()), first);
        Ok(())
    }

    /// Makes room for an entry before the one in a slot.
    fn widen(bytes: &mut Bytes, slot: usize, len: usize) {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        bytes.0.copy_within(slot * key..len * key, (slot + 1) * key);
        bytes.0.copy_within(Self::VALUES + slot * value..Self::VALUES + len * value, Self::VALUES + (slot + 1) * value);
    }

    /// Splits the leaf of a key, which is full, in two.
    fn split<P>(&mut self, on: &P, key: &K) -> Result<()>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let Some((_, leaf)) = self.by_key.range_mut(..=key).next_back() else { return Ok(()) };
        let (mut high, from) = (Bytes([0; LEAF]), leaf.len / 2);
        {
            let scope = on.open();
            let old = leaf.bytes.value(&scope)?;
            let (keys, values) = (from * size_of::<K>(), from * size_of::<V>());
            let (until_key, until_value) = (leaf.len * size_of::<K>(), leaf.len * size_of::<V>());
            high.0[..until_key - keys].copy_from_slice(&old.0[keys..until_key]);
            high.0[Self::VALUES..Self::VALUES + until_value - values]
                .copy_from_slice(&old.0[Self::VALUES + values..Self::VALUES + until_value]);
        }
        let fresh = Leaf { bytes: on.put(&high)?, len: leaf.len - from };
        leaf.len = from;
        self.by_key.insert(copied(Self::keys(&high, 1)[0].as_bytes()), fresh);
        Ok(())
    }

    /// Removes a key. Returns its value.
    pub fn remove<P>(&mut self, on: &P, key: &K) -> Result<Option<V>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let scope = on.open();
        let Some((low, leaf)) = self.by_key.range_mut(..=key).next_back() else { return Ok(None) };
        let Ok(slot) = Self::keys(leaf.bytes.value(&scope)?, leaf.len).binary_search(key) else { return Ok(None) };
        let bytes = leaf.bytes.value_mut(&scope)?;
        let removed = copied(Self::values(bytes, leaf.len)[slot].as_bytes());
        let (key_bytes, value_bytes) = (size_of::<K>(), size_of::<V>());
        bytes.0.copy_within((slot + 1) * key_bytes..leaf.len * key_bytes, slot * key_bytes);
        let (from, until) = (Self::VALUES + (slot + 1) * value_bytes, Self::VALUES + leaf.len * value_bytes);
        bytes.0.copy_within(from..until, from - value_bytes);
        leaf.len -= 1;
        self.len -= 1;
        if leaf.len == 0 {
            let low = copied::<K>(low.as_bytes());
            self.by_key.remove(&low);
        }
        Ok(Some(removed))
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.by_key.clear();
        self.len = 0;
    }

    /// The leaves in which keys of a range may be.
    pub fn within(&self, range: &impl RangeBounds<K>) -> Vec<&Leaf<B>> {
        let before_end = |low: &K| match range.end_bound() {
            Bound::Included(end) => low <= end,
            Bound::Excluded(end) => low < end,
            Bound::Unbounded => true,
        };
        let from = match range.start_bound() {
            Bound::Included(start) | Bound::Excluded(start) => {
                self.by_key.range(..=start).next_back().map(|(low, _)| low)
            }
            Bound::Unbounded => None,
        };
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        let leaves = self.by_key.range((from, Bound::Unbounded)).take_while(|&(low, _)| before_end(low));
        leaves.map(|(_, leaf)| leaf).collect()
    }

    /// Calls `visit` for the entries of a leaf whose keys are within a range.
    pub fn visit((bytes, len): (&Bytes, usize), range: &impl RangeBounds<K>, visit: &mut impl FnMut(&K, &V)) {
        let entries = Self::keys(bytes, len).iter().zip(Self::values(bytes, len));
        entries.filter(|&(key, _)| range.contains(key)).for_each(|(key, value)| visit(key, value));
    }

    /// A copy of the entry with the lowest key.
    pub fn first<P>(&self, on: &P) -> Result<Option<(K, V)>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let first = self.by_key.values().find(|leaf| leaf.len > 0);
        first.map(|leaf| Self::entry(on, leaf, 0)).transpose()
    }

    /// A copy of the entry with the highest key.
    pub fn last<P>(&self, on: &P) -> Result<Option<(K, V)>>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let last = self.by_key.values().rev().find(|leaf| leaf.len > 0);
        last.map(|leaf| Self::entry(on, leaf, leaf.len - 1)).transpose()
    }

    fn entry<P>(on: &P, leaf: &Leaf<B>, slot: usize) -> Result<(K, V)>
    where
        P: Place<Bytes, Box = B>,
        B: Boxed<P::Scope, Bytes>,
    {
        let scope = on.open();
        let bytes = leaf.bytes.value(&scope)?;
        let (key, value) = (&Self::keys(bytes, leaf.len)[slot], &Self::values(bytes, leaf.len)[slot]);
        Ok((copied(key.as_bytes()), copied(value.as_bytes())))
    }
}

impl<K, V, B> Leaves<K, V, B> {
    pub fn len(&self) -> usize {
        self.len
    }
}
