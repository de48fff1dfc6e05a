//! The far memory that a process holds.
//!
//! Nodes grant memory by the slab; pages leave by the page. The pool stands
//! between: it keeps the table of slabs ([`FarSlot`] is an index into it), hands
//! out slots, asks nodes for slabs ahead of need, and gives empty ones back.
//!
//! ```text
//! pager::evict ── alloc(n) ─► slots, contiguous where it can be ─► one WRITE for many pages
//! pager::fault ── place(slot) ─► node, slab, offset, and the address if the slab is mapped (shm)
//! pager::space ── ensure(bytes) ─► grants up to what the program has mapped, or ENOMEM now
//! ```
//!
//! *Whose memory a mapped slab is.* The kernel charges a page of a shared file to the memory group
//! of the process that touches it first. Where a program runs in a container with a limit, its far
//! pages must not count against that limit. So the node is asked to back each 2 MiB block before the
//! first slot in it is used.
//!
//! *What the program frees* goes back: whole slabs ([`Pool::shrink`]), and of slabs that are still needed
//! the 2 MiB blocks that stay without a live slot ([`Pool::give_back_idle`]).
//!
//! *Which slab from which node*: of two nodes drawn at random, the one on which
//! this process holds less (power of two choices; Mitzenmacher, IEEE TPDS 2001).
//!
//! *Fork* (`fork.rs`): slots that a parent and its child can both reach belong to
//! neither while the other lives; see there.

mod fork;
mod slab;

pub use fork::ForkShare;
use slab::{SlabSlots, each_of};

use farmem_fabric::{GrantError, Lost, QueuePair, Session};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SLOTS_PER_SLAB, SlabId};
use farmem_protocol::wire::MAX_BACKED;
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slabs that one process can hold: 4 TiB. Bounded by `vm.max_map_count` (65 530) on shm.
pub const MAX_SLABS: usize = 1 << 16;

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Index of the node, in the order given to [`Pool::new`].
    pub node: usize,
    /// The slab's name there.
    pub slab: SlabId,
    /// Byte offset in the slab.
    pub offset: u64,
    /// The slot's address in this process, where the slab is mapped. Zero otherwise.
    pub mapped: usize,
}

/// Why no far memory can be had.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The nodes lend no more.
    #[error("{0}")]
    Exhausted(String),
    /// A node is gone.
    #[error("{0}")]
    Lost(#[from] Lost),
}

/// The pool. One per process.
pub struct Pool {
    sessions: Lock<Vec<Session>>,
    /// Per slab index: `base`, `id`, `node`, `shared`; the first three are written before the index
    /// is published in any slot, the last only while no other thread is in the pager (fork) or
    /// under the slabs' lock.
    table: SparseArray<AtomicU64>,
    slabs: Lock<Slabs>,
    capacity: AtomicU64,
    used: AtomicU64,
}

struct Slabs {
    list: Vec<Option<SlabSlots>>,
    /// Where the last allocation ended: the next one goes on from there, so that pages that leave
    /// together lie together.
    cursor: usize,
    random: u64,
    /// Runs of idle blocks on their way back to a node: their slots are taken, and free soon.
    returning: u32,
    shares: Vec<fork::Share>,
}

/// Blocks that have just become warm: of which node, which slab, bit k for block k.
type Cold = Vec<(usize, SlabId, u32)>;

const TABLE_STRIDE: usize = 4;
const BLOCK_BYTES: u64 = MAX_BACKED;
const _: () = assert!(BLOCK_BYTES == 2 << 20);

impl Pool {
    /// A pool over sessions with one or more nodes.
    pub fn new(sessions: Vec<Session>) -> Result<Pool, Errno> {
        assert!(!sessions.is_empty());
        Ok(Pool {
            sessions: Lock::new(sessions),
            table: SparseArray::new(MAX_SLABS * TABLE_STRIDE)?,
            slabs: Lock::new(Slabs {
                list: Vec::new(),
                cursor: 0,
                random: 0x9E37_79B9_7F4A_7C15,
                returning: 0,
                shares: Vec::new(),
            }),
            capacity: AtomicU64::new(0),
            used: AtomicU64::new(0),
        })
    }

    /// Whether every node's memory is mapped (shm).
    pub fn all_mapped(&self) -> bool {
        self.sessions.lock().iter().all(Session::is_mapped)
    }

    /// Whether some node's memory is reached by its card (RDMA).
    pub fn any_wired(&self) -> bool {
        self.sessions.lock().iter().any(Session::is_wired)
    }

    /// Bytes of the slabs held.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Bytes in slots that are taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) * 4096
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.sessions.lock().len()
    }

    /// This process is about to end; see [`Session::farewell`].
    pub fn farewell(&self) {
        // Held: another thread is asking a node something, and may be for long.
        if let Some(sessions) = self.sessions.try_lock() {
            sessions.iter().for_each(Session::farewell);
        }
    }

    /// Looks whether the nodes are still there; see [`Session::tend`].
    pub fn tend(&self) -> Result<(), Lost> {
        self.sessions.lock().iter().try_for_each(Session::tend)
    }

    /// Sees to it that slabs of at least `bytes` are held, by asking the nodes for more.
    pub fn ensure(&self, bytes: u64) -> Result<(), NoRoom> {
        if self.capacity() >= bytes {
            return Ok(());
        }
        let mut slabs = self.slabs.lock();
        while self.capacity() < bytes {
            self.grow(&mut slabs)?;
        }
        Ok(())
    }

    fn grow(&self, slabs: &mut Slabs) -> Result<(), NoRoom> {
        let sessions = self.sessions.lock();
        let index = match slabs.list.iter().position(Option::is_none) {
            Some(hole) => hole,
            None if slabs.list.len() < MAX_SLABS => {
                slabs.list.push(None);
                slabs.list.len() - 1
            }
            None => {
                return Err(NoRoom::Exhausted(format!(
                    "this process holds {MAX_SLABS} slabs of 64 MiB, which is the limit"
                )));
            }
        };
        let held = |node| slabs.list.iter().flatten().filter(|s| s.node == node).count();
        slabs.random = slabs.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let n = sessions.len();
        let (a, b) = ((slabs.random >> 33) as usize % n, (slabs.random >> 13) as usize % n);
        let first = if held(a) <= held(b) { a } else { b };
        let mut refusal = None;
        for node in (0..n).map(|i| (first + i) % n) {
            match sessions[node].grant() {
                Ok(slab) => {
                    let base = slab.base.map_or(0, |p| p.as_ptr() as u64);
                    self.table[index * TABLE_STRIDE].store(base, Ordering::Relaxed);
                    self.table[index * TABLE_STRIDE + 1].store(slab.id.0, Ordering::Relaxed);
                    self.table[index * TABLE_STRIDE + 2].store(node as u64, Ordering::Release);
                    self.set_shared(index, false);
                    slabs.list[index] = Some(SlabSlots::new(node, slab.id));
                    self.capacity.fetch_add(SLAB_BYTES, Ordering::Relaxed);
                    return Ok(());
                }
                Err(GrantError::Lost(lost)) => return Err(NoRoom::Lost(lost)),
                Err(other) => refusal = Some(other.to_string()),
            }
        }
        Err(NoRoom::Exhausted(refusal.unwrap_or_default()))
    }

    /// Appends `n` free slots to `out`; all or none.
    pub fn alloc(&self, n: usize, out: &mut Vec<FarSlot>) -> Result<(), NoRoom> {
        let before = out.len();
        let mut cold = Cold::default();
        self.take(n, out, &mut cold)?;
        // With the slabs' lock given back: other threads take slots meanwhile. One that writes to
        // such a block before it is backed pays for the pages that it writes, and no harm is done.
        if let Err(e) = cold.iter().try_for_each(|&(node, slab, blocks)| self.back(node, slab, blocks)) {
            self.free(&out[before..]);
            out.truncate(before);
            return Err(e);
        }
        Ok(())
    }

    /// [`Pool::alloc`], but for the memory behind the slots: the blocks that need it are added to `cold`.
    fn take(&self, n: usize, out: &mut Vec<FarSlot>, cold: &mut Cold) -> Result<(), NoRoom> {
        let before = out.len();
        let mut held = self.slabs.lock();
        loop {
            let slabs = &mut *held;
            let (count, from) = (slabs.list.len(), slabs.cursor);
            for step in 0..count {
                let index = (from + step) % count;
                if let Some(slots) = &mut slabs.list[index]
                    && slots.may_allocate()
                {
                    let blocks = slots.take(index as u32, n - (out.len() - before), out);
                    slabs.cursor = index;
                    if blocks != 0 {
                        cold.push((slots.node, slots.id, blocks));
                    }
                    if out.len() - before == n {
                        self.used.fetch_add(n as u64, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
            // A child that has ended leaves its parent's slabs to the parent: now, and not at the next
            // housekeeping, or a program that forks often would take a slab for each fork.
            if self.end_shares_of(slabs) {
                continue;
            }
            // What is on its way back to a node is free again in a moment; the node may have no more.
            if slabs.returning > 0 {
                drop(held);
                farmem_sys::raw::sleep_ns(50_000);
                held = self.slabs.lock();
                continue;
            }
            let grown = self.leave_shared(slabs).map_err(NoRoom::Lost).and_then(|()| self.grow(slabs));
            if let Err(e) = grown {
                for slot in out.drain(before..) {
                    if let Some(slots) = &mut slabs.list[slot.slab_index() as usize] {
                        slots.give_back(slot.place());
                    }
                }
                return Err(e);
            }
        }
    }

    /// Has the node take the memory of blocks of a slab from its system, if this process maps them.
    fn back(&self, node: usize, slab: SlabId, blocks: u32) -> Result<(), NoRoom> {
        let sessions = self.sessions.lock();
        let session = &sessions[node];
        if !session.is_mapped() {
            return Ok(());
        }
        each_of(blocks).try_for_each(|block| {
            session.back(slab, block as u64 * BLOCK_BYTES, BLOCK_BYTES).map_err(|e| match e {
                GrantError::Lost(lost) => NoRoom::Lost(lost),
                other => NoRoom::Exhausted(other.to_string()),
            })
        })
    }

    /// Takes slots back. Their content is of no more use to this process.
    pub fn free(&self, slots: &[FarSlot]) {
        let mut slabs = self.slabs.lock();
        for slot in slots {
            if let Some(s) = &mut slabs.list[slot.slab_index() as usize]
                && s.give_back(slot.place())
            {
                self.used.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a slot may be overwritten: nobody else can reach it. Takes no lock.
    #[inline]
    pub fn is_own(&self, slot: FarSlot) -> bool {
        self.table[slot.slab_index() as usize * TABLE_STRIDE + 3].load(Ordering::Relaxed) == 0
    }

    fn set_shared(&self, index: usize, shared: bool) {
        self.table[index * TABLE_STRIDE + 3].store(shared as u64, Ordering::Relaxed);
    }

    /// Gives slabs that hold nothing back to their nodes, as long as `keep` bytes remain.
    pub fn shrink(&self, keep: u64) -> Result<(), Lost> {
        let mut slabs = self.slabs.lock();
        for index in (0..slabs.list.len()).rev() {
            if self.capacity() < keep + SLAB_BYTES {
                break;
            }
            if slabs.list[index].as_ref().is_some_and(SlabSlots::is_idle) {
                self.release(&mut slabs, index)?;
            }
        }
        Ok(())
    }

    /// Leaves one slab that holds nothing of ours to those it is shared with, as one more is about to be asked for. It
    /// takes no pages while they live, so that a program that forks often and rewrites its memory in between would
    /// otherwise take a slab for each fork. (One for one: what was promised to the program stays promised.)
    fn leave_shared(&self, slabs: &mut Slabs) -> Result<(), Lost> {
        let left = |slab: &SlabSlots| slab.is_idle() && !slab.may_allocate();
        match slabs.list.iter().position(|slab| slab.as_ref().is_some_and(left)) {
            Some(index) => self.release(slabs, index),
            None => Ok(()),
        }
    }

    fn release(&self, slabs: &mut Slabs, index: usize) -> Result<(), Lost> {
        let Some(gone) = slabs.list[index].take() else { return Ok(()) };
        self.capacity.fetch_sub(SLAB_BYTES, Ordering::Relaxed);
        self.sessions.lock()[gone.node].release(gone.id)
    }

    /// Gives the memory of idle blocks back to their nodes' systems. The slabs stay held: what the program has mapped it may
    /// touch at any time.
    ///
    /// Call it a few times a second, from one thread: a block goes when two calls in a row find it idle.
    pub fn give_back_idle(&self) -> Result<(), Lost> {
        let mut index = 0;
        loop {
            let mut slabs = self.slabs.lock();
            let Some(slot) = slabs.list.get_mut(index) else { return Ok(()) };
            let Some((slab, run)) = slot.as_mut().and_then(|slab| slab.take_idle().map(|run| (slab, run))) else {
                slot.iter_mut().for_each(SlabSlots::note_idle);
                index += 1;
                continue;
            };
            let (node, id) = (slab.node, slab.id);
            slabs.returning += 1;
            drop(slabs);
            // No lock but the sessions': a fault that needs slots gets them elsewhere meanwhile. No verb
            // is under way on these slots: a page's slots are freed when it is nobody's.
            let (offset, len) = (run.start as u64 * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
            let given = self.sessions.lock()[node].discard(id, offset, len);
            let mut slabs = self.slabs.lock();
            slabs.returning -= 1;
            if let Some(slab) = &mut slabs.list[index] {
                slab.end_idle(run, matches!(given, Ok(true)));
            }
            drop(slabs);
            given?;
        }
    }

    /// Where a slot is. Takes no lock: a slot's slab stays in the table while the slot is taken.
    #[inline]
    pub fn place(&self, slot: FarSlot) -> Place {
        let at = slot.slab_index() as usize * TABLE_STRIDE;
        let node = self.table[at + 2].load(Ordering::Acquire) as usize;
        let base = self.table[at].load(Ordering::Relaxed) as usize;
        let slab = SlabId(self.table[at + 1].load(Ordering::Relaxed));
        Place { node, slab, offset: slot.offset(), mapped: if base == 0 { 0 } else { base + slot.offset() as usize } }
    }

    /// See [`Session::arena`].
    ///
    /// # Safety
    /// As there.
    #[allow(unsafe_code)]
    pub unsafe fn arena(&self, at: *mut u8, len: usize) {
        // SAFETY: passed on to the caller.
        self.sessions.lock().iter().for_each(|session| unsafe { session.arena(at, len) });
    }

    /// A queue pair to a node, for one thread.
    pub fn queue_pair(&self, node: usize) -> Result<QueuePair, Lost> {
        self.sessions.lock()[node].queue_pair()
    }
}

const _: () = assert!(SLOTS_PER_SLAB == 16384);
