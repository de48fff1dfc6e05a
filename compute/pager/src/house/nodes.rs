//! Nodes that join and leave while the program runs.
//!
//! A run whose memory is all mapped has no staging ring, and its faults wait for nobody. When a
//! node joins whose memory is not mapped, both change first:
//!
//! ```text
//!  before_waiting   faults that begin from now on may wait        (the runtime blocks signals in them)
//!  open_ring        the limit falls by the ring's pages, pages leave until it holds, the ring opens
//!  all have left    no fault is left that began before
//!  add_node         slabs may come from it
//! ```
//!
//! One choice made at start stays: how changed pages are told
//! ([`crate::dirty`]). A page whose slot is not mapped, in a run that began with mapped memory
//! alone, goes whole.

use super::House;
use crate::local::crowd::Reach;
use farmem_fabric::Session;
use farmem_pool::{NoPlace, Standing};
use farmem_sys::raw::{SignalsBlocked, now_ns, sleep_ns};
use std::sync::atomic::Ordering;

/// How long pages may take to leave for the staging ring, and threads to leave the pager.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Why a node has not joined. It may be tried again.
#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// Local memory has no room for the staging ring: too much of it is pinned.
    #[error("--local has no room for a staging ring: system calls use too much of it")]
    NoRing,
    /// A thread has been in a fault, or in a call of the runtime's, all the time.
    #[error("a thread of the program waits for a node")]
    Busy,
    /// The process has forked since the session began, and the child has its connection.
    #[error("the program has forked in the midst of it")]
    Forked,
    /// The pool takes no more.
    #[error("{0}")]
    Pool(#[from] NoPlace),
}

impl House {
    /// How often the process has forked: for [`House::add_node`].
    pub fn forks(&self) -> u64 {
        self.out.forks.load(Ordering::Relaxed)
    }

    /// A node joins. By the background thread, or whoever is not in the pager. `forks`: what
    /// [`House::forks`] gave before the session began. A child that was forked since has the session's
    /// connection, and would keep the process a member of the node beyond its end.
    ///
    /// # Errors
    /// See [`NotJoined`]. The session is dropped, and the node left by it.
    pub fn add_node(&self, session: Session, forks: u64) -> Result<(), NotJoined> {
        let _signals = SignalsBlocked::new();
        if !session.is_mapped() && self.out.staging.is_empty() {
            self.before_waiting.get().iter().for_each(|before| before());
            self.open_ring()?;
            if !self.base.threads.all_leave_once(PATIENCE_NS) {
                return Err(NotJoined::Busy);
            }
        }
        // No fork meanwhile: its child would find a lock of the pool's held.
        let _inside = self.base.threads.enter();
        if self.forks() != forks {
            return Err(NotJoined::Forked);
        }
        self.base.pool.add_node(session)?;
        Ok(())
    }

    /// The node at an address, as it was given, is taken out: no more slabs come from it, and pages
    /// that are written to leave it. False if it is not among those that are in.
    pub fn take_out(&self, address: &str) -> bool {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        // An eviction counts the pages that need another slot, and takes these later.
        let _evictor = self.out.evictor.lock();
        self.base.pool.nodes().node_at(address).is_some_and(|node| self.base.pool.take_out(node))
    }

    /// The addresses of the nodes that are in, as they were given.
    pub fn nodes_in(&self) -> Vec<String> {
        self.base.pool.nodes().addresses()
    }

    /// Whether a node at this address was lost, and is not back.
    pub fn has_lost(&self, address: &str) -> bool {
        self.base.pool.nodes().has_lost(address)
    }

    /// Whether a node at this address is in.
    pub fn has_node(&self, address: &str) -> bool {
        self.base
            .pool
            .nodes()
            .node_at(address)
            .is_some_and(|node| self.base.pool.nodes().standing(node) == Some(Standing::In))
    }

    /// Sets memory apart for the staging ring and opens it. The limit holds at every instant: it
    /// falls first, the ring opens when no more than that is resident.
    fn open_ring(&self) -> Result<(), NotJoined> {
        let pages = self.out.staging.most() as u64;
        let before = self.local.limit();
        let after = before - pages;
        self.local.limit.store(after, Ordering::Relaxed);
        let until = now_ns() + PATIENCE_NS;
        loop {
            {
                let _inside = self.base.threads.enter();
                let mut evictor = self.out.evictor.lock();
                // No room is given between this look and the ring's opening: reservations look at
                // the limit that fell.
                if self.local.resident.load(Ordering::SeqCst) <= after {
                    self.out.staging.open();
                    self.out.staging.tell(&self.base.pool);
                    return Ok(());
                }
                // Nodes join by the background thread.
                self.out.evict_beside(&mut evictor, self.local.sizes.batch_of_many, Reach::Found);
            }
            if now_ns() > until {
                self.local.limit.store(before, Ordering::Relaxed);
                return Err(NotJoined::NoRing);
            }
            sleep_ns(100_000);
        }
    }

    /// Frees what no word of a slab names any more, once every thread has left the pager, and what
    /// was posted is done; whether nothing is left to be freed. By the background thread, which is
    /// not in it.
    pub(crate) fn free_dropped(&self) -> bool {
        let dropped = {
            let _inside = self.base.threads.enter();
            self.base.pool.moves().dropped()
        };
        let Some(dropped) = dropped else { return true };
        if !self.base.threads.all_leave_once(1_000_000) {
            return false;
        }
        let _inside = self.base.threads.enter();
        drop(self.evictor_at_rest());
        self.base.pool.moves().all_have_left(dropped);
        true
    }
}
