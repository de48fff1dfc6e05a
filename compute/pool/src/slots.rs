//! The slots of a process: taken for pages that leave, and freed when nobody needs their bytes.
//!
//! ```text
//!  alloc(n) ─► slots of one slab, neighbours where it can be ─► their blocks are backed by the node
//!  free     ─► a block stays idle (`give_back_idle`), a slab is empty (`shrink`) ─► memory goes back
//! ```

use crate::grants::Grants;
use crate::held::{Held, Slabs};
use crate::homes::{HOMES, Home};
use crate::losses::Losses;
use crate::slab::{Seat, SlabSlots, each_of};
use crate::tables::Tables;
use crate::{BLOCK_BYTES, LOOK_ROUNDS, NoRoom};
use farmem_fabric::GrantError;
use farmem_protocol::addr::FarSlot;
use std::sync::atomic::Ordering;

/// Rounds in which blocks on their way back are waited for, before more slabs are asked for: 10 ms.
const MOMENT: u32 = 200;

/// Blocks of slabs that have just become warm: of which slab index, bit k for block k.
type Cold = Vec<(u32, u32)>;

/// Slots for pages.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) held: &'a Held,
    pub(crate) grants: Grants<'a>,
    pub(crate) losses: Losses<'a>,
}

impl Slots<'_> {
    /// Bytes of the slabs held that take pages.
    pub fn capacity(self) -> u64 {
        self.held.capacity()
    }

    /// Bytes in slots that are taken.
    pub fn used(self) -> u64 {
        self.held.used.load(Ordering::Relaxed) * 4096
    }

    /// Asks the nodes for slabs until this process holds at least `bytes`.
    pub fn ensure(self, bytes: u64) -> Result<(), NoRoom> {
        while self.capacity() < bytes {
            self.grants.grow()?;
        }
        Ok(())
    }

    /// Appends `n` free slots to `out`; all or none.
    pub fn alloc(self, n: usize, out: &mut Vec<FarSlot>) -> Result<(), NoRoom> {
        let before = out.len();
        let mut cold = Cold::default();
        self.take(n, out, &mut cold)?;
        // Other threads may take slots in these blocks meanwhile, and write before the node has
        // backed them. Then this process is charged for those pages, and no harm is done.
        if let Err(e) = cold.iter().try_for_each(|&(index, blocks)| self.back(index, blocks)) {
            self.free(&out[before..]);
            out.truncate(before);
            return Err(e);
        }
        Ok(())
    }

    /// As [`Slots::alloc`], but does not have the slots' memory backed: blocks that need it are
    /// added to `cold`.
    fn take(self, n: usize, out: &mut Vec<FarSlot>, cold: &mut Cold) -> Result<(), NoRoom> {
        let before = out.len();
        let (mut rounds, mut refused) = (0u32, None);
        let mut held = self.held.slabs.lock();
        loop {
            let slabs = &mut *held;
            let (count, mut passed) = (slabs.list.len(), 0);
            while passed < count {
                let index = (slabs.cursor + passed) % count;
                passed += 1;
                if let Some(slots) = &mut slabs.list[index]
                    && slots.may_allocate()
                    && !self.tables.homes.word(index as u32).is_lost()
                {
                    let (had, left) = (out.len(), n - (out.len() - before));
                    let row = if slots.seat == Seat::Data { slots.row_left() } else { left };
                    let blocks = slots.take(index as u32, left.min(row), out);
                    let took = out.len() - had;
                    // A full slab moves nothing: the search counts from the cursor.
                    if took > 0 {
                        slabs.cursor = if took == row { self.tables.next_in_row(index) } else { index };
                    }
                    if blocks != 0 {
                        cold.push((index as u32, blocks));
                    }
                    if out.len() - before == n {
                        self.held.used.fetch_add(n as u64, Ordering::Relaxed);
                        return Ok(());
                    }
                    passed = if took > 0 { 0 } else { passed };
                }
            }
            // The slabs that a child shared are the parent's again when the child has ended. This
            // is done here too, and not only by housekeeping: otherwise a program that forks often
            // would take a slab for each fork.
            if slabs.end_shares(&self.tables.homes) {
                continue;
            }
            // Blocks on their way back to a node are free again in a moment. The node may have no
            // more. A node that is silent or stopped keeps them for longer than a moment.
            let soon = slabs.returning > 0 && (rounds < MOMENT || refused.is_some());
            if let Some(e) = refused.take_if(|_| !soon) {
                slabs.give_back(&out[before..]);
                out.truncate(before);
                return Err(e);
            }
            let left = if soon { Vec::new() } else { self.leave_shared(slabs) };
            drop(held);
            if soon {
                self.tables.nodes.pause(50_000);
                // The process that gives the blocks back may share this memory, and may have ended.
                rounds += 1;
                if rounds.is_multiple_of(LOOK_ROUNDS) {
                    farmem_sys::members::look();
                }
            } else {
                left.into_iter().for_each(|homes| self.grants.release(homes));
                // Where no node has more, blocks that are on their way back are waited for.
                refused = self.grants.grow().err();
            }
            held = self.held.slabs.lock();
        }
    }

    /// Has nodes allocate the memory of blocks of a slab, if this process maps them.
    fn back(self, index: u32, blocks: u32) -> Result<(), NoRoom> {
        let word = self.tables.homes.word(index);
        for home in (0..HOMES).filter(|&home| word.takes_pages(home)).map(|home| self.tables.homes.home(word, home)) {
            let Some(node) = self.tables.nodes.all().get(home.node as usize) else {
                self.back_on_disk(index, home, blocks)?;
                continue;
            };
            // Of a node that has ended what is mapped is this process's to pay for.
            let mapped = home.base != 0 && node.is_there();
            for block in each_of(blocks).filter(|_| mapped) {
                match node.session().back(home.slab, block as u64 * BLOCK_BYTES, BLOCK_BYTES) {
                    Ok(()) => {}
                    Err(GrantError::Lost(lost)) => {
                        self.losses.lose(home.node as usize, &lost);
                        self.losses.anything_lost()?;
                        break;
                    }
                    Err(other) => return Err(NoRoom::Exhausted(other.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Takes slots back. Their content is of no more use to this process.
    pub fn free(self, slots: &[FarSlot]) {
        let given = self.held.slabs.lock().give_back(slots);
        self.held.used.fetch_sub(given, Ordering::Relaxed);
    }

    /// Gives slabs that hold nothing back to their nodes, as long as `keep` bytes remain; of nodes
    /// that are being left, all that hold nothing.
    pub fn shrink(self, keep: u64) {
        let mut released = Vec::new();
        let mut slabs = self.held.slabs.lock();
        for index in (0..slabs.list.len()).rev() {
            let idle = self.tables.idle_with(&slabs, index);
            let (closed, less) = slabs.takes(&idle);
            if closed || self.capacity() >= keep + less {
                released.extend(self.remove_all(&mut slabs, &idle));
            }
        }
        drop(slabs);
        released.into_iter().for_each(|homes| self.grants.release(homes));
        self.tables.nodes.leave_empty();
    }

    /// Leaves one slab that holds nothing of ours to those it is shared with, as one more is about
    /// to be asked for. It takes no pages while they live, so that a program that forks often and
    /// rewrites its memory in between would otherwise take a slab for each fork. One slab is asked
    /// for in its place, so the program has as much memory as it was promised.
    fn leave_shared(self, slabs: &mut Slabs) -> Vec<[Home; HOMES]> {
        let left = |slab: &SlabSlots| slab.is_idle() && !slab.may_allocate();
        let is_left = |index: &usize| slabs.list[*index].as_ref().is_some_and(left);
        let all = (0..slabs.list.len()).filter(is_left).map(|index| self.tables.idle_with(slabs, index));
        let idle = all.into_iter().find(|idle| !idle.is_empty()).unwrap_or_default();
        self.remove_all(slabs, &idle)
    }

    /// Forgets slabs without a live slot that go together.
    fn remove_all(self, slabs: &mut Slabs, indices: &[usize]) -> Vec<[Home; HOMES]> {
        let homes = indices.iter().filter_map(|&index| self.held.remove(self.tables, slabs, index)).collect();
        indices.first().into_iter().for_each(|&index| self.tables.forgotten(index as u32));
        homes
    }

    /// Gives the memory of idle blocks back to their nodes' systems. The slabs stay held, because the
    /// program may touch its mappings at any time.
    ///
    /// Call it a few times a second, from one thread: a block goes when two calls in a row find it
    /// idle.
    pub fn give_back_idle(self) {
        let mut index = 0;
        loop {
            let mut slabs = self.held.slabs.lock();
            let Some(slot) = slabs.list.get_mut(index) else { return };
            let Some((slab, run)) = slot.as_mut().and_then(|slab| slab.take_idle().map(|run| (slab, run))) else {
                slot.iter_mut().for_each(SlabSlots::note_idle);
                index += 1;
                continue;
            };
            let serial = slab.serial;
            slabs.returning += 1;
            // The slab may be forgotten meanwhile, and the index be another's.
            let word = self.tables.homes.word(index as u32);
            let there = (0..HOMES).filter(|&home| word.takes_pages(home));
            let homes: Vec<Home> = there.map(|home| self.tables.homes.home(word, home)).collect();
            drop(slabs);
            // No lock is held: a fault that needs slots gets them elsewhere meanwhile. No verb is
            // under way on these slots: a page's slots are freed when it is nobody's.
            let (offset, len) = (run.start as u64 * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
            let given = self.discard(&homes, offset, len);
            let mut slabs = self.held.slabs.lock();
            slabs.returning -= 1;
            if let Some(slab) = slabs.list[index].as_mut().filter(|slab| slab.serial == serial) {
                slab.end_idle(run, given);
            }
        }
    }

    /// Gives a range of a slab back to the systems of all its homes. False where one has not.
    fn discard(self, homes: &[Home], offset: u64, len: u64) -> bool {
        homes.iter().fold(true, |all, home| {
            let Some(node) = self.tables.nodes.all().get(home.node as usize) else {
                return all & self.tables.protection.disk().is_some_and(|disk| disk.punch(home.slab, offset, len));
            };
            match node.session().discard(home.slab, offset, len) {
                Ok(given) => all & given,
                Err(lost) => {
                    self.losses.lose(home.node as usize, &lost);
                    false
                }
            }
        })
    }
}
