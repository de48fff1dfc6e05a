//! A buddy allocator in ordinary memory: what a memory node's core keeps for two-sided calls.

use std::collections::BTreeSet;

use super::{BLOCK, BLOCK_ORDER};

/// Chunks 0 to the pool's size, in runs of 1 << order up to a block.
#[derive(Debug)]
pub struct Buddy {
    free: [BTreeSet<u32>; BLOCK_ORDER as usize + 1],
}

impl Buddy {
    /// All free.
    pub fn new(chunks: u32) -> Buddy {
        let mut free: [BTreeSet<u32>; BLOCK_ORDER as usize + 1] = Default::default();
        free[BLOCK_ORDER as usize] = (0..chunks / BLOCK).map(|block| block * BLOCK).collect();
        Buddy { free }
    }

    /// The first run of the smallest order that will do, the rest of it back.
    pub fn take(&mut self, order: u8) -> Option<u32> {
        let mut at = (order..=BLOCK_ORDER).find(|&at| !self.free[at as usize].is_empty())?;
        let chunk = self.free[at as usize].pop_first()?;
        while at > order {
            at -= 1;
            self.free[at as usize].insert(chunk + (1 << at));
        }
        Some(chunk)
    }

    /// Gives a run back, and joins it with its buddy as long as that is free.
    pub fn give(&mut self, mut chunk: u32, mut order: u8) {
        while order < BLOCK_ORDER && self.free[order as usize].remove(&(chunk ^ (1 << order))) {
            chunk &= !(1 << order);
            order += 1;
        }
        self.free[order as usize].insert(chunk);
    }

    /// Of so many chunks, whether each is free.
    pub fn map(&self, chunks: u32) -> Vec<bool> {
        let mut map = vec![false; chunks as usize];
        for (order, runs) in self.free.iter().enumerate() {
            for &first in runs {
                map[first as usize..(first as usize) + (1 << order)].fill(true);
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buddies_part_and_join() {
        let mut buddy = Buddy::new(2 * BLOCK);
        let small = [buddy.take(0).unwrap(), buddy.take(0).unwrap(), buddy.take(3).unwrap()];
        assert_eq!(small, [0, 1, 8]);
        assert_eq!((buddy.take(BLOCK_ORDER), buddy.take(BLOCK_ORDER)), (Some(BLOCK), None));
        let free = buddy.map(2 * BLOCK);
        assert!(free[2] && !free[1] && !free[BLOCK as usize]);
        buddy.give(0, 0);
        buddy.give(8, 3);
        buddy.give(1, 0);
        assert_eq!(buddy.take(BLOCK_ORDER), Some(0));
    }
}
