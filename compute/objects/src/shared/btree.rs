//! A sorted map of far leaves that threads share. Its layout is that of [`crate::btree`].

use super::{Seat, SharedBox, SharedHeap, SharedScope};
use crate::btree::{Bytes, Leaves};
use crate::{Far, Result};
use std::ops::RangeBounds;

/// Leaves that a scan brings in together.
const TOGETHER: usize = 32;

/// A sorted map of plain keys and values in far memory. Any number of threads may read it at a time,
/// or one may change it, as with a `BTreeMap`: put it into an `RwLock` to change it in turn.
///
/// A leaf goes back to its node when its last entry is removed.
pub struct SharedBTree<K: Far + Ord, V: Far> {
    leaves: Leaves<K, V, SharedBox<Bytes>>,
    heap: SharedHeap,
}

impl<K: Far + Ord, V: Far> SharedBTree<K, V> {
    pub(super) fn new(heap: SharedHeap) -> SharedBTree<K, V> {
        SharedBTree { leaves: Leaves::new(), heap }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`crate::Error::ScopeFull`], [`crate::Error::OtherHeap`], [`crate::Error::Memory`].
    pub fn get<'a>(&'a self, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a V>> {
        self.leaves.get(key, scope)
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a SharedScope<'_>) -> Result<Option<&'a mut V>> {
        self.leaves.get_mut(key, scope)
    }

    /// Whether a key is there.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn contains_key(&self, key: &K, seat: &Seat) -> Result<bool> {
        let scope = seat.scope();
        Ok(self.get(key, &scope)?.is_some())
    }

    /// The values of many keys, in their order. Leaves that are away come by one round trip to each
    /// node.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn get_many<'a>(&'a self, keys: &[K], scope: &'a SharedScope<'_>) -> Result<Vec<Option<&'a V>>> {
        let leaves = keys.iter().filter_map(|key| self.leaves.leaf(key));
        let cells: Vec<_> = leaves.map(|leaf| leaf.bytes.cell()).collect();
        scope.load_all(SharedBox::<Bytes>::CLASS, &cells)?;
        keys.iter().map(|key| self.get(key, scope)).collect()
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`SharedBTree::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V, seat: &Seat) -> Result<Option<V>> {
        self.heap.has(seat)?;
        self.leaves.insert(&seat, key, value)
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn remove(&mut self, key: &K, seat: &Seat) -> Result<Option<V>> {
        self.leaves.remove(&seat, key)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.leaves.clear();
    }

    /// Calls `visit` for the entries of a range of keys, ascending. Leaves come by 32 at a time. A
    /// range that ends before it begins is empty.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn scan(&self, range: impl RangeBounds<K>, seat: &Seat, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let leaves = self.leaves.within(&range);
        seat.visit(
            (0..leaves.len(), TOGETHER),
            |n| &leaves[n].bytes,
            |n, bytes| {
                Leaves::<K, V, SharedBox<Bytes>>::visit((bytes, leaves[n].len), &range, &mut visit);
            },
        )
    }

    /// A copy of the entry with the lowest key.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn first(&self, seat: &Seat) -> Result<Option<(K, V)>> {
        self.leaves.first(&seat)
    }

    /// A copy of the entry with the highest key.
    ///
    /// # Errors
    /// As [`SharedBTree::get`].
    pub fn last(&self, seat: &Seat) -> Result<Option<(K, V)>> {
        self.leaves.last(&seat)
    }
}

impl<K: Far + Ord, V: Far> std::fmt::Debug for SharedBTree<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBTree").field("len", &self.leaves.len()).finish_non_exhaustive()
    }
}
