//! A sorted map of which the entries are far, and the lowest key of each leaf is near.
//!
//! ```text
//! near: lowest key ─► leaf: far, 1 KiB: | keys, ascending | values |
//! ```
//!
//! So a lookup needs one far object. Near memory is a key and some 30 bytes a leaf.

mod leaves;

pub use leaves::{Bytes, Leaves};

use crate::vec::Ahead;
use crate::{Far, FarBox, Heap, Result, Scope};
use std::ops::RangeBounds;

/// Leaves that a walk has under way.
const AHEAD: usize = 32;

/// A leaf. `B`: its box.
pub struct Leaf<B> {
    pub bytes: B,
    /// Entries: none while it is made, and if the first insertion into it has failed.
    pub len: usize,
}

/// A sorted map of plain keys and values in far memory.
///
/// A leaf goes back to its node when its last entry is removed.
pub struct FarBTree<K: Far + Ord, V: Far> {
    leaves: Leaves<K, V, FarBox<Bytes>>,
    heap: Heap,
}

impl<K: Far + Ord, V: Far> FarBTree<K, V> {
    pub(crate) fn new(heap: Heap) -> FarBTree<K, V> {
        FarBTree { leaves: Leaves::new(), heap }
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
    pub fn get<'a>(&'a self, key: &K, scope: &'a Scope) -> Result<Option<&'a V>> {
        self.leaves.get(key, scope)
    }

    /// The value of a key, to write to.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn get_mut<'a>(&'a mut self, key: &K, scope: &'a Scope) -> Result<Option<&'a mut V>> {
        self.leaves.get_mut(key, scope)
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
        let leaves = keys.iter().filter_map(|key| self.leaves.leaf(key));
        let boxes: Vec<&FarBox<Bytes>> = leaves.map(|leaf| &leaf.bytes).collect();
        self.heap.inner.load_all(&boxes, scope.mark())?;
        keys.iter().map(|key| self.get(key, scope)).collect()
    }

    /// Sets the value of a key. Returns the one it had.
    ///
    /// # Errors
    /// As [`FarBTree::get`], and where the nodes have no room. The entries are as they were then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        self.leaves.insert(&self.heap, key, value)
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        self.leaves.remove(&self.heap, key)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.leaves.clear();
    }

    /// Calls `visit` for the entries of a range of keys, ascending. The next ones are under way
    /// meanwhile. A range that ends before it begins is empty.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn scan(&self, range: impl RangeBounds<K>, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let leaves = self.leaves.within(&range);
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, leaf) in leaves.iter().enumerate() {
            ahead.go(number, leaves.len(), |n| &leaves[n].bytes);
            let scope = self.heap.scope();
            Leaves::<K, V, FarBox<Bytes>>::visit((leaf.bytes.get(&scope)?, leaf.len), &range, &mut visit);
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
        self.leaves.first(&self.heap)
    }

    /// A copy of the entry with the highest key.
    ///
    /// # Errors
    /// As [`FarBTree::get`].
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.leaves.last(&self.heap)
    }
}

impl<K: Far + Ord, V: Far> std::fmt::Debug for FarBTree<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarBTree").field("len", &self.leaves.len()).finish_non_exhaustive()
    }
}
