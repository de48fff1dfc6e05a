//! The tables of a shard, as far as a front end knows them.
//!
//! Missing tables are found by the `forward` words: an outdated table is frozen and says where its
//! keys went. Split tables stay where they are, so that anyone who knows an old one finds the way.

use crate::fast::Map;
use crate::layout::{At, Geometry, Hash, MAX_DEPTH, PIECE_HEADER, ROOT_BITS};
use crate::shard::Trouble;

/// See the module.
#[derive(Debug)]
pub struct Trie {
    root: At,
    geometry: Geometry,
    /// Where the pair is that a table forwards to: its first table.
    forward: Map<At, At>,
}

/// A table on its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Where it is.
    pub table: At,
    /// Splits above it.
    pub depth: u32,
    /// Its first path.
    pub path: u32,
}

const PATH_BITS: u32 = ROOT_BITS + MAX_DEPTH;

impl Trie {
    /// Knows the first tables.
    pub fn new(root: At, geometry: Geometry) -> Trie {
        Trie { root, geometry, forward: Map::default() }
    }

    /// The table that is to have a key.
    pub fn table(&self, hash: Hash) -> At {
        self.leaf(hash.path()).table
    }

    /// The table that is to have the keys of a path, and what it has of others.
    pub fn leaf(&self, path: u32) -> Leaf {
        let (mut table, mut depth) = (self.geometry.first(self.root, path), 0);
        // No table below the last splits: what a node says of it may lead round in a circle.
        while depth < MAX_DEPTH
            && let Some(&pair) = self.forward.get(&table)
        {
            let second = path >> (MAX_DEPTH - 1 - depth) & 1;
            table = pair.wrapping_add(u64::from(second) * self.geometry.table());
            depth += 1;
        }
        let below = PATH_BITS - ROOT_BITS - depth;
        Leaf { table, depth, path: path >> below << below }
    }

    /// A table was seen to forward to the piece at `pair`.
    pub fn learn(&mut self, table: At, pair: At) {
        self.forward.insert(table, pair.wrapping_add(PIECE_HEADER));
    }

    /// A leaf was seen to forward. The caller looks at what it forwards to.
    ///
    /// # Errors
    /// It is too deep to have been split.
    pub fn learn_below(&mut self, leaf: Leaf, pair: At) -> Result<(), Trouble> {
        if leaf.depth >= MAX_DEPTH {
            return Err(Trouble::Corrupt);
        }
        self.learn(leaf.table, pair);
        Ok(())
    }

    /// The first path behind a leaf; `None` behind the last.
    pub fn after(leaf: Leaf) -> Option<u32> {
        let below = PATH_BITS - ROOT_BITS - leaf.depth;
        let next = u64::from(leaf.path) + (1 << below);
        u32::try_from(next).ok().filter(|&next| next < 1 << PATH_BITS)
    }

    /// Tables that are known to be split.
    pub fn splits(&self) -> usize {
        self.forward.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that lies: a table that forwards to itself, and one that forwards past all addresses.
    #[test]
    fn a_circle_of_tables_has_an_end() {
        let mut trie = Trie::new(1 << 20, Geometry::STORE);
        let table = trie.leaf(0).table;
        trie.learn(table, table.wrapping_sub(PIECE_HEADER));
        let leaf = trie.leaf(0);
        assert_eq!((leaf.table, leaf.depth, leaf.path), (table, MAX_DEPTH, 0));
        assert_eq!(Trie::after(leaf), Some(1));
        trie.learn(table, u64::MAX);
        assert_ne!(trie.leaf(u32::MAX >> 1).depth, MAX_DEPTH);
        trie.leaf(0);
    }
}
