//! READs: from a slot that is not mapped to the thread's landing buffer.
//!
//! ```text
//! landing:  [ demand | window page 0 | window page 1 | … | demand ]    the demand page's READ leaves at once,
//!                                                                      the window's by one doorbell when it is planned
//! ```
//!
//! Demand pages land in turn at either end where something is still to be kept of the one before ([`crate::dirty`]): hashing a
//! page takes a fifth to one µs of a fault, or none, while the next fault waits for its answer.

use crate::Pager;
use crate::ending::die;
use crate::thread::{LANDING, Thread};
use farmem_fabric::Lost;
use farmem_pool::Place;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::exit;

/// The demand page's READ.
pub(crate) const DEMAND: u64 = 0;

impl Pager {
    /// Sends the READ of the demand page; its tag is [`DEMAND`].
    pub(crate) fn post_demand(&self, thread: &mut Thread, place: Place) {
        // Not onto what is still wanted of the last one.
        thread.lands_last ^= thread.unkept.is_some();
        let into = thread.demand(thread.lands_last);
        self.post_read(thread, place, DEMAND, into);
        self.ring(thread);
    }

    /// Keeps what was put off when the last demand page came in, from where it landed. After [`Pager::post_demand`].
    pub(crate) fn keep_now(&self, thread: &mut Thread) {
        if let Some(page) = thread.unkept.take() {
            // SAFETY: the READ that was posted goes to the other end, and so no other came here since the page did.
            unsafe { self.tracker.keep_now(page, thread.number, thread.demand(!thread.lands_last)) };
        }
    }

    /// Sends the READs of the window that was planned.
    pub(crate) fn post_window(&self, thread: &mut Thread) {
        let mut posted = false;
        for i in 0..thread.claimed.len() {
            let place = self.pool.place(thread.claimed[i].slot);
            if place.mapped == 0 {
                // SAFETY: a window has a page less than the landing buffer's first WINDOW.
                let into = unsafe { thread.landing.add((1 + i) * PAGE_BYTES) };
                self.post_read(thread, place, DEMAND + 1 + i as u64, into);
                posted = true;
            }
        }
        if posted {
            self.ring(thread);
        }
    }

    /// Waits for the rest of the window.
    pub(crate) fn await_window(&self, thread: &mut Thread) {
        while thread.links.iter().flatten().any(|q| q.in_flight() > 0) {
            self.await_read(thread, |_| true);
        }
    }

    fn post_read(&self, thread: &mut Thread, place: Place, tag: u64, into: *mut u8) {
        if let Err(lost) = self.link(thread, place.node) {
            self.node_lost(&lost);
        }
        // SAFETY: within the landing buffer, which outlives the operation: nobody leaves before
        // all READs are complete.
        unsafe {
            if let Some(link) = &mut thread.links[place.node] {
                link.read(tag, place.slab, place.offset, into, PAGE_BYTES as u32);
            }
        }
    }

    /// Makes the thread's queue pair to a node, if it has none.
    pub(crate) fn link(&self, thread: &mut Thread, node: usize) -> Result<(), Lost> {
        if thread.links.len() <= node {
            thread.links.resize_with(node + 1, || None);
        }
        if thread.links[node].is_none() {
            // SAFETY: landing buffers are never unmapped: a thread's belongings outlive it.
            unsafe { self.pool.arena(thread.landing, LANDING * PAGE_BYTES) };
            thread.links[node] = Some(self.pool.queue_pair(node)?);
        }
        Ok(())
    }

    fn ring(&self, thread: &mut Thread) {
        for link in thread.links.iter_mut().flatten() {
            if let Err(lost) = link.doorbell() {
                self.node_lost(&lost);
            }
        }
    }

    /// Waits until a completion satisfies `enough`. A refused READ means that the node does not
    /// hold what it granted: nothing can be salvaged.
    pub(crate) fn await_read(&self, thread: &mut Thread, enough: impl Fn(u64) -> bool) {
        let mut satisfied = false;
        while !satisfied {
            let mut waiting = false;
            for link in thread.links.iter_mut().flatten() {
                if link.in_flight() == 0 {
                    continue;
                }
                waiting = true;
                thread.done.clear();
                match link.wait(&mut thread.done, std::time::Duration::from_secs(1)) {
                    Ok(_) => {}
                    Err(lost) => self.node_lost(&lost),
                }
                for done in &thread.done {
                    if let Err(refusal) = &done.result {
                        die(exit::NODE_LOST, &format!("a memory node refused to return a page it holds: {refusal}"));
                    }
                    satisfied |= enough(done.tag);
                }
            }
            if !waiting {
                return;
            }
        }
    }

    /// The end of a run whose node is gone.
    pub(crate) fn node_lost(&self, lost: &Lost) -> ! {
        die(exit::NODE_LOST, &lost.to_string())
    }
}
