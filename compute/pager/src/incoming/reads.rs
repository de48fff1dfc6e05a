//! READs: from a slot that is not mapped to the thread's landing buffer.
//!
//! ```text
//! landing:  [ demand | window page 0 | window page 1 | … | demand ]    the demand page's READ leaves at once,
//!                                                                      the window's by one doorbell when it is planned
//! ```
//!
//! Demand pages land in turn at either end where something is still to be kept of the one before
//! ([`crate::dirty`]): hashing a page takes a fifth to one µs of a fault, or none, while the next
//! fault waits for its answer.

use super::Incoming;
use crate::ending::or_end;
use crate::thread::{LANDING, Thread};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use std::time::Duration;

/// The demand page's READ.
pub(crate) const DEMAND: u64 = 0;

impl Incoming {
    /// Sends the READ of the demand page; its tag is [`DEMAND`].
    pub(crate) fn post_demand(&self, thread: &mut Thread, slot: FarSlot) {
        // Not onto what is still wanted of the last one.
        thread.lands_last ^= thread.unkept.is_some();
        let into = thread.demand(thread.lands_last);
        self.post_read(thread, slot, DEMAND, into);
        thread.lane.doorbell(&self.base.pool);
    }

    /// Keeps what was put off when the last demand page came in, from where it landed. After
    /// [`Incoming::post_demand`].
    pub(crate) fn keep_now(&self, thread: &mut Thread) {
        if let Some(page) = thread.unkept.take() {
            // SAFETY: the READ that was posted goes to the other end, and so no other came here
            // since the page did.
            unsafe { self.changes.tracker.keep_now(page, thread.number, thread.demand(!thread.lands_last)) };
        }
    }

    /// Finds where the pages of the window that was planned are, and sends the READs of those that
    /// are not mapped.
    pub(crate) fn post_window(&self, thread: &mut Thread) {
        let mut posted = false;
        for i in 0..thread.claimed.len() {
            let slot = thread.claimed[i].slot;
            let source = match self.base.pool.readable_in_place(slot) {
                Some(bytes) => bytes,
                None => {
                    // SAFETY: a window has a page less than the landing buffer's first WINDOW.
                    let into = unsafe { thread.landing.add((1 + i) * PAGE_BYTES) };
                    self.post_read(thread, slot, DEMAND + 1 + i as u64, into);
                    posted = true;
                    thread.claimed[i].in_place = false;
                    into.cast_const()
                }
            };
            thread.claimed[i].source = source;
        }
        if posted {
            thread.lane.doorbell(&self.base.pool);
        }
    }

    /// Waits for the rest of the window.
    pub(crate) fn await_window(&self, thread: &mut Thread) {
        while thread.lane.in_flight() > 0 {
            self.await_read(thread, |_| true);
        }
    }

    fn post_read(&self, thread: &mut Thread, slot: FarSlot, tag: u64, into: *mut u8) {
        if !thread.is_told {
            // SAFETY: landing buffers are never unmapped: a thread's belongings outlive it.
            unsafe { self.base.pool.arena(thread.landing, LANDING * PAGE_BYTES) };
            thread.is_told = true;
        }
        // SAFETY: within the landing buffer, which outlives the operation: nobody leaves before
        // all READs are complete.
        unsafe { thread.lane.read(&self.base.pool, tag, slot, 0, into, PAGE_BYTES as u32) };
    }

    /// Waits until a READ that is done satisfies `enough`, or none is under way.
    pub(crate) fn await_read(&self, thread: &mut Thread, enough: impl Fn(u64) -> bool) {
        let mut satisfied = false;
        while !satisfied && thread.lane.in_flight() > 0 {
            thread.lane.wait(&self.base.pool, &mut thread.done, Duration::from_secs(1));
            for done in thread.done.drain(..) {
                or_end(done.result);
                satisfied |= enough(done.tag);
            }
        }
    }
}
