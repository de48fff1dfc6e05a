//! A window on the card: for a user who came by RDMA.
//!
//! ```text
//!  BIND         the software's windows say who may do what; the card knows of nothing
//!  first use    the user's queue pair asks: region of the range ─► window of type 2B ─► BIND_MW, for its peer
//!  INVALIDATE   generation on ─► LOCAL_INV ─► window gone, region gone ─► the answer
//! ```
//!
//! So a queue pair that never uses a window costs the card nothing, and a window for a
//! whole member is one on the card for each of its queue pairs that uses it, none of
//! which another can use. Region and window are in the *user's* domain, where the
//! queue pair is; the region is of exactly the range, because soft-RoCE judges by the
//! region's bounds, and its own key gives no right at all.
//!
//! The end waits: LOCAL_INV for the window's key to be refused, and the region's for
//! messages that were begun under it. Whichever comes first ends it, the binding or
//! the queue pair, and the other waits for that.

// Regions of slabs: memory that stays mapped as long as the region.
#![allow(unsafe_code)]

use super::admit::Memory;
use super::lending::Slab;
use super::windows::Bound;
use farmem_protocol::key;
use farmem_sys::raw;
use farmem_sys::sync::Lock;
use farmem_sys::verbs::{Domain, Done, Outcome, RcQueue, Region, Rights, Window, Work, WorkRequest};
use std::sync::{Arc, Weak};

/// How long the card may take to bind or invalidate: this end of the queue pair alone is concerned.
const SOON_NS: u64 = 1_000_000_000;
/// Windows on the card that one queue pair may have.
pub const MAX_CARVED: usize = 256;

/// See the top of this file.
pub struct Carved {
    queue: Weak<Lock<RcQueue>>,
    rkey: u32,
    base: u64,
    held: Lock<Option<Held>>,
}

struct Held {
    window: Window,
    region: Region,
    slab: Arc<Slab>,
}

impl Carved {
    /// Puts a binding on the card, for the peer of `queue`. `None`: the card cannot, or must not.
    pub fn new(domain: &Arc<Domain>, queue: &Arc<Lock<RcQueue>>, bound: &Bound) -> Option<Carved> {
        let (Memory::Slab(slab), None) = (&bound.memory, bound.under) else { return None };
        let may = |right| bound.rights.include(right);
        let rights = match (may(key::Rights::READ), may(key::Rights::WRITE)) {
            (true, true) => Rights::Both,
            (true, false) => Rights::Read,
            (false, true) => Rights::Write,
            (false, false) => return None,
        };
        let at = slab.mapping.at(bound.base, bound.len)?;
        // Against a discard, which would leave the card with pages that are no longer the slab's.
        let mut pins = slab.pins.lock();
        // SAFETY: mapped as long as the slab, which is held beside the region; accessed raw.
        let region = unsafe { domain.region_for_windows(at, bound.len as usize) }.ok()?;
        let window = domain.window().ok()?;
        let (rkey, base) = (window.next_rkey(), Domain::base(at));
        let bind = Work::Bind { window: &window, rkey, region: &region, offset: base, len: bound.len, rights };
        if carry_out(&mut queue.lock(), bind) != Some(Outcome::SUCCESS) {
            // The queue pair is broken, or about to be. In this order.
            drop(window);
            drop(region);
            return None;
        }
        *pins += 1;
        let held = Held { window, region, slab: Arc::clone(slab) };
        Some(Carved { queue: Arc::downgrade(queue), rkey, base, held: Lock::new(Some(held)) })
    }

    /// By what its user names it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The offset of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Whether this queue pair's.
    pub fn is_of(&self, queue: &Arc<Lock<RcQueue>>) -> bool {
        std::ptr::eq(self.queue.as_ptr(), Arc::as_ptr(queue))
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.held.lock().is_none()
    }

    /// Takes it off the card. When this returns, by whomever it was ended, nothing is under way by its key.
    pub fn end(&self) {
        let mut held = self.held.lock();
        let Some(Held { window, region, slab }) = held.take() else { return };
        // A queue pair that ends does so behind its windows, and so behind this lock: this never is its last holder.
        if let Some(queue) = self.queue.upgrade() {
            // A broken queue pair invalidates nothing; the window's end does.
            carry_out(&mut queue.lock(), Work::Invalidate { rkey: self.rkey });
        }
        drop(window);
        drop(region);
        *slab.pins.lock() -= 1;
    }
}

impl Drop for Carved {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Carved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Carved({:#x})", self.rkey)
    }
}

/// Posts what touches no buffer, and waits for it. `None`: it could not be posted, or has not ended in time.
fn carry_out(queue: &mut RcQueue, work: Work<'_>) -> Option<Outcome> {
    // One that was given up may still end: by its time it is told from this one.
    let id = raw::now_ns();
    // SAFETY: no buffers; the memory that is bound is a slab's, which is shared.
    unsafe { queue.post(&[WorkRequest { id, told: true, work }]) }.ok()?;
    let until = id + SOON_NS;
    let mut done = [Done { id: 0, outcome: Outcome::SUCCESS }];
    loop {
        match queue.poll(&mut done) {
            Ok(0) if raw::now_ns() > until => return None,
            Ok(0) => raw::yield_cpu(),
            Ok(_) if done[0].id != id => {}
            Ok(_) => return Some(done[0].outcome),
            Err(_) => return None,
        }
    }
}
