//! The far memory that a process holds: the seam between its consumers and the nodes.
//!
//! Nodes grant memory by the slab; consumers (the pager, and whatever else uses far memory) move it
//! by the slot of a page. The pool stands between. It knows which *homes* hold a slab's bytes, and
//! no consumer does.
//!
//! ```text
//!  alloc(n)      ─► slots, contiguous where it can be ─► one message for many pages
//!  lane          ─► read, write, lines; doorbell; poll, wait       queue pairs, retries and losses are its own (`lane`)
//!  questions     ─► readable_in_place, writable_in_place, takes_lines
//!  ensure(bytes) ─► grants up to what the program has mapped, or a refusal now
//!  nodes         ─► they join, are taken out, are lost (`nodes`)
//! ```
//!
//! *Whose memory a mapped slab is.* The kernel charges a page of a shared file to the memory group
//! of the process that touches it first. So the node is asked to back each 2 MiB block before the
//! first slot in it is used. Where a program runs in a container with a limit, its far pages must
//! not count against that limit.
//!
//! *What is freed* goes back: whole slabs ([`Pool::shrink`]), and of slabs that are still needed
//! the 2 MiB blocks that stay without a live slot ([`Pool::give_back_idle`]).
//!
//! *Locks.* `changing` is held while nodes change or a slab is published, `slabs` inside it or
//! alone, and neither while a node is asked for anything. Faults take none.
//!
//! *Sealed* (`seal.rs`): pages can leave encrypted, for nodes that are not trusted.
//!
//! *Fork* (`fork.rs`): slots that a parent and its child can both reach belong to neither while the
//! other lives. `docs/design/pool.md` has the reasons.

mod copies;
pub mod extent;
mod fork;
pub mod lane;
mod nodes;
mod paces;
mod protect;
mod questions;
mod seal;
mod slab;
mod slips;
pub mod stripes;
#[cfg(feature = "lab")]
mod twin;

pub use extent::MAX_SLABS;
pub use farmem_run::Protect;
pub use fork::ForkShare;
pub use lane::{Done, Lane, Met};
pub use nodes::{Loss, MAX_NODES, NoPlace, Standing};
pub use protect::{Disk, Lacks, Place};
pub use questions::By;
pub use seal::{Altered, NoSeal};
pub use slips::Slip;

use extent::{Extents, HOMES, Home, State, Word};
use farmem_fabric::{GrantError, Lost, Session};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SLOTS_PER_SLAB};
use farmem_protocol::wire::MAX_BACKED;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use nodes::Nodes;
use protect::disk::DISK;
use slab::{Seat, SlabSlots, each_of};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why no far memory can be had.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The nodes lend no more.
    #[error("{0}")]
    Exhausted(String),
    /// A node is gone, and a page with it.
    #[error("{0}")]
    Lost(#[from] Lost),
}

/// The pool. One per process.
pub struct Pool {
    nodes: Nodes,
    extents: Extents,
    changing: Lock<Changing>,
    /// Losses that nobody has taken yet, to be asked without a lock.
    untold: AtomicU64,
    slabs: Lock<Slabs>,
    /// Bytes of slabs that take pages.
    capacity: AtomicU64,
    used: AtomicU64,
    /// Of random numbers.
    drawn: AtomicU64,
    /// Its nodes are a simulator's, and so is its time.
    simulated: bool,
    protection: protect::Protection,
    sealed: seal::Sealed,
    #[cfg(feature = "lab")]
    slip: slips::Slips,
}

/// What changes with the nodes.
#[derive(Default)]
struct Changing {
    losses: Vec<Loss>,
    /// Memory of consumers that cards will reach.
    arenas: Vec<(usize, usize)>,
}

struct Slabs {
    list: Vec<Option<SlabSlots>>,
    /// Slabs so far.
    serial: u64,
    /// Where the last allocation ended: the next one goes on from there, so that pages that leave
    /// together lie together.
    cursor: usize,
    /// Runs of idle blocks on their way back to a node: their slots are taken, and free soon.
    returning: u32,
    shares: Vec<fork::Share>,
    /// Homes that no word names any more, oldest first, with the number of each.
    dropped: std::collections::VecDeque<(u64, copies::Dropped)>,
    drops: u64,
}

/// Blocks of slabs that have just become warm: of which slab index, bit k for block k.
type Cold = Vec<(u32, u32)>;

const BLOCK_BYTES: u64 = MAX_BACKED;
/// Pauses between looks whether who is waited for exists: some half a second.
const LOOK_ROUNDS: u32 = 4096;
const _: () = assert!(BLOCK_BYTES == 2 << 20);

impl Pool {
    /// A pool over sessions with nodes, of which it can have [`MAX_NODES`].
    ///
    /// # Panics
    /// If there are more, or none.
    pub fn new(sessions: Vec<Session>) -> Result<Pool, Errno> {
        assert!(!sessions.is_empty());
        let simulated = sessions[0].is_simulated();
        let pool = Pool {
            nodes: Nodes::new(),
            extents: Extents::new()?,
            changing: Lock::new(Changing::default()),
            untold: AtomicU64::new(0),
            slabs: Lock::new(Slabs {
                list: Vec::new(),
                serial: 0,
                cursor: 0,
                returning: 0,
                shares: Vec::new(),
                dropped: Default::default(),
                drops: 0,
            }),
            capacity: AtomicU64::new(0),
            used: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            simulated,
            protection: Default::default(),
            sealed: Default::default(),
            #[cfg(feature = "lab")]
            slip: Default::default(),
        };
        for session in sessions {
            pool.add_node(session).unwrap_or_else(|e| panic!("{e}"));
        }
        Ok(pool)
    }

    /// Bytes of the slabs held that take pages.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Bytes in slots that are taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) * 4096
    }

    /// Sees to it that slabs of at least `bytes` are held, by asking the nodes for more.
    pub fn ensure(&self, bytes: u64) -> Result<(), NoRoom> {
        while self.capacity() < bytes {
            self.grow()?;
        }
        Ok(())
    }

    /// One more slab.
    fn grow(&self) -> Result<(), NoRoom> {
        if let Some(shape) = self.shape() {
            return self.grow_group(shape);
        }
        let homes = match self.granted(&[]) {
            Ok(first) => [first, self.second_for(first)?],
            // The disk is no room of its own but while there is no node.
            Err(_) if self.disk_in().is_some() && self.without_nodes().is_some() => {
                [Home::NONE, self.place_on_disk(0)?]
            }
            Err(why) => return Err(why),
        };
        self.adopt(homes)
    }

    /// A slab that a node grants; `beside`: to go with those that these nodes have, in another
    /// failure domain if one is to be had. No lock is held while nodes are asked.
    fn granted(&self, beside: &[u32]) -> Result<Home, NoRoom> {
        let mut asked = Vec::new();
        self.to_ask(beside, &mut asked);
        self.first_grant(&asked)
    }

    /// A slab of the first of these nodes that grants one.
    fn first_grant(&self, asked: &[usize]) -> Result<Home, NoRoom> {
        let mut refusal = None;
        for &node in asked {
            match self.nodes.all()[node].session().grant() {
                Ok(slab) => {
                    let base = slab.base.map_or(0, |at| at.as_ptr() as usize);
                    return Ok(Home { node: node as u32, slab: slab.id, base });
                }
                Err(GrantError::Lost(lost)) => {
                    self.lose(node, &lost);
                    self.anything_lost()?;
                    refusal = Some(lost.to_string());
                }
                Err(other) => refusal = Some(other.to_string()),
            }
        }
        let none = || match self.without_nodes() {
            Some(lost) => format!("{lost}; no other node is left to take more pages"),
            None => "no node is left to take more pages".to_owned(),
        };
        Err(NoRoom::Exhausted(refusal.unwrap_or_else(none)))
    }

    /// The loss of a node, if no node is left.
    pub fn without_nodes(&self) -> Option<Lost> {
        let nodes = self.nodes.all();
        match nodes.iter().any(|node| node.is_there()) {
            true => None,
            false => nodes.iter().find_map(|node| node.session().loss()),
        }
    }

    /// Makes a slab that was granted, with all its homes, one of ours.
    fn adopt(&self, homes: [Home; HOMES]) -> Result<(), NoRoom> {
        let changing = self.changing.lock();
        let nodes = self.nodes.all();
        let there = || (0..HOMES).filter(|&nth| homes[nth] != Home::NONE);
        // Lost or taken out since they answered: to be asked again, of others.
        let is_in = there().all(|nth| match homes[nth].node {
            DISK => self.disk_in().is_some(),
            node => nodes[node as usize].standing() == Standing::In,
        });
        let mut slabs = self.slabs.lock();
        let hole = slabs.list.iter().position(Option::is_none);
        let index = hole.or_else(|| (slabs.list.len() < MAX_SLABS).then_some(slabs.list.len())).filter(|_| is_in);
        let record = index.and_then(|_| self.extents.record(homes));
        let (Some(index), Some(record)) = (index, record) else {
            drop(slabs);
            drop(changing);
            there().for_each(|nth| self.decline(homes[nth]));
            return match is_in {
                false => Ok(()),
                true => Err(NoRoom::Exhausted(format!(
                    "this process holds {MAX_SLABS} slabs of 64 MiB, which is the limit"
                ))),
            };
        };
        slabs.serial += 1;
        let slab = Some(SlabSlots::new(slabs.serial));
        match slabs.list.get_mut(index) {
            Some(hole) => *hole = slab,
            None => slabs.list.push(slab),
        }
        there().filter(|&nth| homes[nth].node != DISK).for_each(|nth| {
            nodes[homes[nth].node as usize].held.fetch_add(1, Ordering::Relaxed);
        });
        let none = Word::of(record).with_state(0, State::Absent);
        let word = there().fold(none, |word, nth| word.with_state(nth, State::Whole));
        self.extents.publish(index as u32, word);
        self.capacity.fetch_add(SLAB_BYTES, Ordering::Relaxed);
        Ok(())
    }

    /// Gives a slab that was granted, and is nobody's yet, back to its node.
    fn decline(&self, home: Home) {
        match self.nodes.all().get(home.node as usize) {
            Some(node) => drop(node.session().release(home.slab)),
            None => self.disk().into_iter().for_each(|disk| disk.give_up(home.slab)),
        }
    }

    /// Appends `n` free slots to `out`; all or none.
    pub fn alloc(&self, n: usize, out: &mut Vec<FarSlot>) -> Result<(), NoRoom> {
        let before = out.len();
        let mut cold = Cold::default();
        self.take(n, out, &mut cold)?;
        // Other threads take slots meanwhile. One that writes to such a block before it is backed
        // pays for the pages that it writes, and no harm is done.
        if let Err(e) = cold.iter().try_for_each(|&(index, blocks)| self.back(index, blocks)) {
            self.free(&out[before..]);
            out.truncate(before);
            return Err(e);
        }
        Ok(())
    }

    /// [`Pool::alloc`], but for the memory behind the slots: the blocks that need it are added to
    /// `cold`.
    fn take(&self, n: usize, out: &mut Vec<FarSlot>, cold: &mut Cold) -> Result<(), NoRoom> {
        let before = out.len();
        let mut rounds = 0u32;
        let mut held = self.slabs.lock();
        loop {
            let slabs = &mut *held;
            let (count, mut passed) = (slabs.list.len(), 0);
            while passed < count {
                let index = (slabs.cursor + passed) % count;
                passed += 1;
                if let Some(slots) = &mut slabs.list[index]
                    && slots.may_allocate()
                    && !self.extents.word(index as u32).is_lost()
                {
                    let (had, left) = (out.len(), n - (out.len() - before));
                    let row = if slots.seat == Seat::Data { slots.row_left() } else { left };
                    let blocks = slots.take(index as u32, left.min(row), out);
                    let took = out.len() - had;
                    slabs.cursor = if took == row { self.next_in_row(index) } else { index };
                    if blocks != 0 {
                        cold.push((index as u32, blocks));
                    }
                    if out.len() - before == n {
                        self.used.fetch_add(n as u64, Ordering::Relaxed);
                        return Ok(());
                    }
                    passed = if took > 0 { 0 } else { passed };
                }
            }
            // A child that has ended leaves its parent's slabs to the parent: now, and not at the
            // next housekeeping, or a program that forks often would take a slab for each fork.
            if self.end_shares_of(slabs) {
                continue;
            }
            // What is on its way back to a node is free again in a moment; the node may have no
            // more.
            let soon = slabs.returning > 0;
            let left = if soon { Vec::new() } else { self.leave_shared(slabs) };
            drop(held);
            if soon {
                self.pause(50_000);
                // By a process that shares this memory, and may be gone.
                rounds += 1;
                if rounds.is_multiple_of(LOOK_ROUNDS) {
                    farmem_sys::members::look();
                }
            } else {
                left.into_iter().for_each(|homes| self.release(homes));
                if let Err(e) = self.grow() {
                    self.give_back(&mut self.slabs.lock(), &out[before..]);
                    out.truncate(before);
                    return Err(e);
                }
            }
            held = self.slabs.lock();
        }
    }

    /// Has nodes take the memory of blocks of a slab from their systems, where this process maps
    /// them.
    fn back(&self, index: u32, blocks: u32) -> Result<(), NoRoom> {
        let word = self.extents.word(index);
        for home in (0..HOMES).filter(|&home| word.takes_pages(home)).map(|home| self.extents.home(word, home)) {
            let Some(node) = self.nodes.all().get(home.node as usize) else {
                self.back_on_disk(index, home, blocks)?;
                continue;
            };
            // Of a node that has ended what is mapped is this process's to pay for.
            let mapped = home.base != 0 && node.is_there();
            for block in each_of(blocks).filter(|_| mapped) {
                match node.session().back(home.slab, block as u64 * BLOCK_BYTES, BLOCK_BYTES) {
                    Ok(()) => {}
                    Err(GrantError::Lost(lost)) => {
                        self.lose(home.node as usize, &lost);
                        self.anything_lost()?;
                        break;
                    }
                    Err(other) => return Err(NoRoom::Exhausted(other.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Takes slots back. Their content is of no more use to this process.
    pub fn free(&self, slots: &[FarSlot]) {
        let given = self.give_back(&mut self.slabs.lock(), slots);
        self.used.fetch_sub(given, Ordering::Relaxed);
    }

    fn give_back(&self, slabs: &mut Slabs, slots: &[FarSlot]) -> u64 {
        let mut given = 0;
        for slot in slots {
            if let Some(slab) = &mut slabs.list[slot.slab_index() as usize]
                && slab.give_back(slot.place())
            {
                given += 1;
            }
        }
        given
    }

    /// Gives slabs that hold nothing back to their nodes, as long as `keep` bytes remain; of nodes
    /// that are being left, all that hold nothing.
    pub fn shrink(&self, keep: u64) {
        let mut released = Vec::new();
        let mut slabs = self.slabs.lock();
        for index in (0..slabs.list.len()).rev() {
            let idle = self.idle_with(&slabs, index);
            let (closed, less) = slabs.takes(&idle);
            if closed || self.capacity() >= keep + less {
                released.extend(self.remove_all(&mut slabs, &idle));
            }
        }
        drop(slabs);
        released.into_iter().for_each(|homes| self.release(homes));
        self.leave_empty();
    }

    /// Leaves one slab that holds nothing of ours to those it is shared with, as one more is about
    /// to be asked for. It takes no pages while they live, so that a program that forks often and
    /// rewrites its memory in between would otherwise take a slab for each fork. (One for one: what
    /// was promised to the program stays promised.)
    fn leave_shared(&self, slabs: &mut Slabs) -> Vec<[Home; HOMES]> {
        let left = |slab: &SlabSlots| slab.is_idle() && !slab.may_allocate();
        let is_left = |index: &usize| slabs.list[*index].as_ref().is_some_and(left);
        let all = (0..slabs.list.len()).filter(is_left).map(|index| self.idle_with(slabs, index));
        let idle = all.into_iter().find(|idle| !idle.is_empty()).unwrap_or_default();
        self.remove_all(slabs, &idle)
    }

    /// Forgets slabs without a live slot that go together.
    fn remove_all(&self, slabs: &mut Slabs, indices: &[usize]) -> Vec<[Home; HOMES]> {
        let homes = indices.iter().filter_map(|&index| self.remove(slabs, index)).collect();
        indices.first().into_iter().for_each(|&index| self.part(index as u32));
        homes
    }

    /// Forgets a slab without a live slot: nobody can hold what its record says. Its homes are the
    /// caller's to release, without the lock.
    fn remove(&self, slabs: &mut Slabs, index: usize) -> Option<[Home; HOMES]> {
        let slab = slabs.list[index].take()?;
        if !slab.closed && slab.seat != Seat::Parity {
            self.capacity.fetch_sub(SLAB_BYTES, Ordering::Relaxed);
        }
        let word = self.extents.word(index as u32);
        // Others read a shared slab's place on the disk; the last of them gives it up.
        let stays = |home: Home| home.node == DISK && slab.sharers > 0;
        let there = |home: &usize| word.state(*home) != State::Absent;
        let home = |home: usize| Some(home).filter(there).map(|home| self.extents.home(word, home));
        let homes = std::array::from_fn(|nth| home(nth).filter(|home| !stays(*home)).unwrap_or(Home::NONE));
        self.extents.publish(index as u32, Word::FREE);
        self.extents.free(word.number());
        self.forget_marks(index);
        Some(homes)
    }

    /// Gives homes back to their nodes. A node that is lost needs not be told.
    fn release(&self, homes: [Home; HOMES]) {
        for home in homes.into_iter().filter(|home| *home != Home::NONE) {
            let number = home.node as usize;
            let Some(node) = self.nodes.all().get(number) else {
                self.decline(home);
                continue;
            };
            let released = node.session().release(home.slab);
            node.held.fetch_sub(1, Ordering::Relaxed);
            if let Err(lost) = released {
                self.lose(number, &lost);
            }
        }
    }

    /// Gives the memory of idle blocks back to their nodes' systems. The slabs stay held: what the
    /// program has mapped it may touch at any time.
    ///
    /// Call it a few times a second, from one thread: a block goes when two calls in a row find it
    /// idle.
    pub fn give_back_idle(&self) {
        let mut index = 0;
        loop {
            let mut slabs = self.slabs.lock();
            let Some(slot) = slabs.list.get_mut(index) else { return };
            let Some((slab, run)) = slot.as_mut().and_then(|slab| slab.take_idle().map(|run| (slab, run))) else {
                slot.iter_mut().for_each(SlabSlots::note_idle);
                index += 1;
                continue;
            };
            let serial = slab.serial;
            slabs.returning += 1;
            drop(slabs);
            // No lock is held: a fault that needs slots gets them elsewhere meanwhile. No verb is
            // under way on these slots: a page's slots are freed when it is nobody's.
            let (offset, len) = (run.start as u64 * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
            let given = self.discard(index as u32, offset, len);
            let mut slabs = self.slabs.lock();
            slabs.returning -= 1;
            if let Some(slab) = slabs.list[index].as_mut().filter(|slab| slab.serial == serial) {
                slab.end_idle(run, given);
            }
        }
    }

    /// Gives a range of a slab back to the systems of all its homes. False where one has not.
    fn discard(&self, index: u32, offset: u64, len: u64) -> bool {
        let word = self.extents.word(index);
        let homes = (0..HOMES).filter(|&home| word.state(home) != State::Absent);
        homes.fold(true, |all, home| {
            let home = self.extents.home(word, home);
            let Some(node) = self.nodes.all().get(home.node as usize) else {
                return all & self.disk().is_some_and(|disk| disk.punch(home.slab, offset, len));
            };
            match node.session().discard(home.slab, offset, len) {
                Ok(given) => all & given,
                Err(lost) => {
                    self.lose(home.node as usize, &lost);
                    false
                }
            }
        })
    }

    /// See [`Session::arena`]: of the nodes there are, and of those to come.
    ///
    /// # Safety
    /// As there.
    #[allow(unsafe_code)]
    pub unsafe fn arena(&self, at: *mut u8, len: usize) {
        let mut changing = self.changing.lock();
        if !changing.arenas.contains(&(at as usize, len)) {
            changing.arenas.push((at as usize, len));
        }
        // SAFETY: passed on to the caller.
        self.nodes.all().iter().for_each(|node| unsafe { node.session().arena(at, len) });
    }
}

const _: () = assert!(SLOTS_PER_SLAB == 16384);
