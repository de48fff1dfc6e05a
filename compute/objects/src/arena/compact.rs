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
        let emptied = sparse.iter().try_for_each(|&from| self.empty(from, done));
        // Also of blocks that moved before one could not be copied: a marking takes roots for new words.
        for root in &mut self.roots.borrow_mut().words {
            *root = self.moved.get(root).copied().unwrap_or(*root);
        }
        emptied.map(|()| !sparse.is_empty())
    }

    /// Copies the objects of a block to others: all of them, or none.
    fn empty(&mut self, from: usize, done: &mut Collected) -> Result<()> {
        let Some(block) = &self.blocks[from] else { return Ok(()) };
        let slots: Vec<usize> = (0..Block::<T>::SLOTS).filter(|&slot| block.has(slot)).collect();
        let places: Vec<Addr> = slots.iter().map(|&slot| block.place(slot)).collect();
        let mut taken = Vec::with_capacity(slots.len());
        let copied = self.copy(&places, &mut taken);
        if copied.is_err() {
            for &(block, slot) in &taken {
                self.blocks[block].iter_mut().for_each(|block| block.give(slot));
            }
            return copied;
        }
        // Nothing below fails.
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
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CHUNK, Error, Gc, Heap, Root};
    use farmem::Transport;
    use farmem_fabric::NodeAddr;
    use farmem_memory::{Config, Node};
    use std::time::Duration;

    #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    #[repr(C)]
    struct Wide {
        next: Gc<Wide>,
        age: u64,
        rest: [u64; 126],
    }

    impl Linked for Wide {
        const LINKS: &[usize] = &[0];
    }

    const SLOTS: usize = Block::<Wide>::SLOTS;
    /// Objects that are left in the sparser block and in the other one.
    const FEW: [usize; 2] = [10, 20];

    fn node() -> Node {
        let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
        Node::start(&Config { compute: 0, ..Config::new(64 << 20, listen) }).unwrap()
    }

    /// A node is lost after one block was emptied, and before another. Objects at the node that lives stay.
    #[test]
    fn roots_lead_to_what_moved_before_a_node_was_lost() {
        let (one, other) = (node(), node());
        let builder = Heap::builder().local(8192 * CHUNK).transport(Transport::Tcp).grace(Duration::from_millis(200));
        let builder = [&one, &other].iter().fold(builder, |builder, n| builder.node(n.addresses()[0].to_string()));
        let heap = builder.build().unwrap();
        let mut arena = heap.arena::<Wide>();
        let mut all = Vec::new();
        let at = |arena: &FarArena<Wide>, node: usize| {
            let is_there = |n: &usize| arena.blocks[*n].as_ref().is_some_and(|block| block.at.node() == node);
            (0..arena.blocks.len()).filter(is_there).collect::<Vec<usize>>()
        };
        while at(&arena, 0).len() < 2 || at(&arena, 1).is_empty() || !all.len().is_multiple_of(SLOTS) {
            let age = all.len() as u64;
            all.push(arena.alloc(&Wide { next: Gc::NONE, age, rest: [!age; 126] }).unwrap());
        }
        // A chain in a block of the first node, some objects at the second, and a block that is half full.
        let [sparse, dest, lost] = [at(&arena, 0)[0], at(&arena, 0)[1], at(&arena, 1)[0]];
        let of = |block: usize| all[block * SLOTS..][..SLOTS].to_vec();
        let chain = of(sparse)[..FEW[0]].to_vec();
        for (from, to) in chain.iter().zip(&chain[1..]) {
            arena.get_mut(*from, &heap.scope()).unwrap().unwrap().next = *to;
        }
        let root = arena.root(chain[0]);
        let theirs: Vec<Root<Wide>> = of(lost)[..FEW[1]].iter().map(|gc| arena.root(*gc)).collect();
        let _half: Vec<Root<Wide>> = of(dest)[..SLOTS / 2].iter().map(|gc| arena.root(*gc)).collect();
        let mut done = Collected::default();
        arena.save().unwrap();
        arena.mark_and_sweep(&mut done).unwrap();
        drop(other);
        assert!(matches!(arena.evacuate(&mut done), Err(Error::Memory(farmem::Error::Lost { .. }))));
        assert_eq!(done.moved, FEW[0], "the other block is the second");
        drop(theirs);
        let done = arena.collect().unwrap();
        assert_eq!((done.live, done.freed), (FEW[0] + SLOTS / 2, FEW[1]));
        let mut gc = root.gc();
        for n in 0..FEW[0] {
            let scope = heap.scope();
            let found = arena.get(gc, &scope).unwrap().unwrap();
            let age = (sparse * SLOTS + n) as u64;
            assert_eq!((found.age, found.rest), (age, [!age; 126]));
            gc = found.next;
        }
        assert!(gc.is_none());
    }
}
