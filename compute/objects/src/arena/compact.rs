//! Compaction: blocks with few objects are emptied into others.
//!
//! ```text
//! copy all ─► new words known (moved) ─► mark again: reports each link to an old word ─► patch ─► free
//! ```
//!
//! Until the last link is patched, both words of an object name it. So a node that is lost between
//! leaves an arena that works, and the next collection patches the rest.

use super::{Block, Collected, FarArena, TOGETHER};
use crate::{FarBox, Linked, Result};
use farmem::Addr;
use farmem::near::mark::{LINK, named, word};

/// A block with less than this part of its slots in use is emptied.
const SPARSE: usize = 4;

impl<T: Linked> FarArena<T> {
    /// Blocks to empty: the sparsest, as far as the others have room.
    fn sparse(&self) -> Vec<usize> {
        let used = |n: &usize| self.blocks[*n].as_ref().map_or(0, |block| block.used);
        let mut order: Vec<usize> = (0..self.blocks.len()).filter(|n| used(n) > 0).collect();
        order.sort_by_key(used);
        let free = |n: &usize| Block::<T>::SLOTS - used(n);
        let mut room: usize = order.iter().map(free).sum();
        let mut needed = 0;
        let goes = |n: &usize| {
            room -= free(n);
            needed += used(n);
            used(n) < Block::<T>::SLOTS / SPARSE && needed <= room
        };
        order.into_iter().take_while(goes).collect()
    }

    /// Copies the objects of sparse blocks to others. Whether there were any.
    pub(super) fn evacuate(&mut self, done: &mut Collected) -> Result<bool> {
        let sparse = self.sparse();
        self.roomy.retain(|n| !sparse.contains(n));
        for &from in &sparse {
            let Some(block) = &self.blocks[from] else { continue };
            let slots: Vec<usize> = (0..Block::<T>::SLOTS).filter(|&slot| block.has(slot)).collect();
            let places: Vec<Addr> = slots.iter().map(|&slot| block.place(slot)).collect();
            let mut taken = Vec::with_capacity(slots.len());
            let copied = self.copy(&places, &mut taken);
            if copied.is_err() {
                for &(block, slot) in &taken {
                    self.blocks[block].iter_mut().for_each(|block| block.give(slot));
                }
                copied?;
            }
            // Nothing below fails: all objects of a block move, or none.
            for (&slot, &(block, at)) in slots.iter().zip(&taken) {
                self.moved.insert(word(from as u32, slot as u32), word(block as u32, at as u32));
            }
            let inner = &self.heap.inner;
            if let Some(block) = &mut self.blocks[from] {
                for slot in slots {
                    block.boxes[slot].forget(inner);
                    block.give(slot);
                }
                block.is_moved = true;
            }
            done.moved += taken.len();
        }
        for root in &mut self.roots.borrow_mut().words {
            *root = self.moved.get(root).copied().unwrap_or(*root);
        }
        Ok(!sparse.is_empty())
    }

    /// Copies objects, which are at home, to free slots. Adds these slots as it takes them.
    fn copy(&mut self, places: &[Addr], taken: &mut Vec<(usize, usize)>) -> Result<()> {
        let payload = FarBox::<T>::CLASS.payload;
        let mut lane = self.heap.inner.memory().lane()?;
        for some in places.chunks(TOGETHER) {
            let bytes = lane.near().gather(some, payload as u32)?;
            let first = taken.len();
            for _ in some {
                taken.push(self.take()?);
            }
            let mut batch = lane.batch();
            for (&(block, slot), bytes) in taken[first..].iter().zip(bytes.chunks_exact(payload)) {
                if let Some(block) = &self.blocks[block] {
                    batch.write(block.place(slot), bytes);
                }
            }
            batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        }
        Ok(())
    }

    /// Has links name objects where they are now. `patches`: holders with the places of links, and
    /// the old words.
    pub(super) fn patch(&mut self, patches: &[(u64, u64)]) -> Result<()> {
        let mut lane = self.heap.inner.memory().lane()?;
        for some in patches.chunks(TOGETHER) {
            let mut away: Vec<(Addr, [u8; 8])> = Vec::with_capacity(some.len());
            for &(holder, old) in some {
                let at = 8 * (holder >> LINK) as usize;
                let Some(&new) = self.moved.get(&old) else { continue };
                let Some((block, slot)) = named(holder & ((1 << LINK) - 1)) else { continue };
                let (block, slot) = (block as usize, slot as usize);
                // A node that lies may name any place.
                let Some(Some(there)) = self.blocks.get_mut(block) else { continue };
                if there.has(slot) && T::LINKS.contains(&at) {
                    there.boxes[slot].forget(&self.heap.inner);
                    away.push((there.place(slot) + at as u64, new.to_le_bytes()));
                }
            }
            let mut batch = lane.batch();
            for (place, new) in &away {
                batch.write(*place, new);
            }
            batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        }
        Ok(())
    }
}
