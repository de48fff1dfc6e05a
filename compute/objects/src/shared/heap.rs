//! The handle of a shared heap.

use super::core::Core;
use super::frames::Arena;
use super::{HERE, Inner, SEATS, Seat, Shared, SharedBTree, SharedHashMap, SharedQueue, SharedVec, is_forked};
use crate::class::SEGMENT;
use crate::share::Share;
use crate::{Error, Far, Result};
use farmem::Memory;
use farmem_sys::epochs::Epochs;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};

/// Far memory for objects that threads share, with a part of it local. Cheap to clone, `Send` and
/// `Sync`. A thread uses it by a [`Seat`].
#[derive(Clone)]
pub struct SharedHeap {
    pub(super) inner: Arc<Inner>,
}

impl SharedHeap {
    /// A heap with `local` segments of local memory.
    pub(crate) fn new(local: usize, share: Share, memory: Memory) -> Result<SharedHeap> {
        HERE.get_or_init(|| farmem_sys::shared::wiped_on_fork().ok().inspect(|here| here.store(1, Ordering::Relaxed)));
        if is_forked() {
            return Err(Error::Memory(farmem::Error::Forked));
        }
        let (arena, epochs) = (Arena::new()?, Epochs::new(SEATS));
        Ok(SharedHeap {
            inner: Arc::new_cyclic(|itself| Inner {
                core: Mutex::new(Core::new(local, share.is_of_run())),
                ended: Condvar::new(),
                epochs,
                arena,
                is_of_run: share.is_of_run(),
                share: Mutex::new(share),
                memory,
                itself: Shared(itself.clone()),
            }),
        })
    }

    /// A seat for the calling thread, with a lane of its own.
    ///
    /// # Errors
    /// [`Error::NoSeat`], [`Error::Memory`].
    pub fn seat(&self) -> Result<Seat> {
        if is_forked() {
            return Err(Error::Memory(farmem::Error::Forked));
        }
        let lane = RefCell::new(self.inner.memory.lane()?);
        let mut core = self.inner.lock();
        let slot = core.seats.iter().position(|is_taken| !is_taken).unwrap_or(core.seats.len());
        if slot == SEATS {
            return Err(Error::NoSeat(SEATS));
        }
        self.inner.with_ground(|on| core.sit(on, slot));
        drop(core);
        let (depth, is_low) = (Cell::new(0), Cell::new(true));
        let (gave_up, scopes) = (Cell::new(0), Cell::new(0));
        Ok(Seat { lane, slot, depth, is_low, gave_up, scopes, inner: Arc::clone(&self.inner) })
    }

    /// Whether a seat is at this heap.
    ///
    /// # Errors
    /// [`Error::OtherHeap`]: it is not.
    pub(super) fn has(&self, seat: &Seat) -> Result<()> {
        if Arc::ptr_eq(&self.inner, &seat.inner) { Ok(()) } else { Err(Error::OtherHeap) }
    }

    /// An empty vector.
    pub fn vec<T: Far>(&self) -> SharedVec<T> {
        SharedVec::new(self.clone())
    }

    /// An empty map.
    pub fn map<K: Far + Eq + std::hash::Hash, V: Far>(&self) -> SharedHashMap<K, V> {
        SharedHashMap::new(self.clone())
    }

    /// An empty sorted map.
    pub fn btree<K: Far + Ord, V: Far>(&self) -> SharedBTree<K, V> {
        SharedBTree::new(self.clone())
    }

    /// An empty queue.
    pub fn queue<T: Far>(&self) -> SharedQueue<T> {
        SharedQueue::new(self.clone())
    }

    /// The numbers of objects fetched and written back since the heap was built.
    pub fn moved(&self) -> (u64, u64) {
        let core = self.inner.lock();
        (core.fetched, core.written)
    }

    /// Bytes of local memory in use, and their limit. Both count the headers of frames.
    pub fn local(&self) -> (usize, usize) {
        let core = self.inner.lock();
        (core.used() * SEGMENT, core.most * SEGMENT)
    }
}

impl fmt::Debug for SharedHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedHeap").finish_non_exhaustive()
    }
}
