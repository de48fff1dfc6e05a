//! READs: from a slot that is not mapped to the thread's landing buffer.
//!
//! ```text
//! landing:  [ demand | window page 0 | window page 1 | … | demand ]
//!
//! the demand page's READ leaves at once, the window's by one doorbell when it is planned
//! ```
//!
//! If the last demand page is still to be hashed ([`crate::dirty`]), the next one lands at the
//! other end. Hashing takes 0.2 to 1 µs. It delays no fault, because it is done while the next
//! fault waits for its answer.

#![allow(unsafe_code)] // READs into the landing buffer.

use super::Incoming;
use crate::dirty::Came;
use crate::ending::{or_altered, or_end};
use crate::page::Bytes;
use crate::thread::{Claimed, Thread, UNANSWERED};
use farmem_fabric::Lost;
use farmem_pool::{Altered, Doubt};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_sys::raw::sleep_ns;
use std::time::Duration;

/// Between looks whether a node with a page is back.
const LOOK_NS: u64 = 10_000_000;

/// The tag of the demand page's READ.
pub(crate) const DEMAND: u64 = 0;

impl Incoming {
    /// Sends the READ of the demand page. Its tag is [`DEMAND`].
    pub(super) fn post_demand(&self, thread: &mut Thread, slot: FarSlot) {
        // Not onto what is still wanted of the last one.
        thread.lands_last ^= thread.unkept.is_some();
        let into = thread.demand(thread.lands_last);
        self.post_read(thread, slot, DEMAND, into);
        thread.lane.doorbell(&self.base.pool);
    }

    /// Waits for the demand page. Meanwhile keeps what was put off of the last one. Returns the
    /// bytes, which stay until the thread's next READ. They are those of the slot, opened if they
    /// were sealed.
    pub(super) fn await_demand(&self, thread: &mut Thread, slot: FarSlot) -> Bytes<'static> {
        if let Some((page, slot)) = thread.unkept.take() {
            // The READ that was posted goes to the other end: no other came here since the page
            // did.
            let landed = thread.landing.page(thread.demand(!thread.lands_last));
            self.changes.tracker.keep_now(page, thread.number, Came { bytes: landed, slot });
        }
        self.out.send_on();
        self.await_read(thread, |tag| tag == DEMAND);
        let at = thread.demand(thread.lands_last);
        self.open_landed(thread, slot, DEMAND, at);
        thread.landing.page(at)
    }

    /// Opens a page of the landing buffer that was sealed for its slot. `tag`: of its READ.
    #[inline]
    fn open_landed(&self, thread: &mut Thread, slot: FarSlot, tag: u64, at: usize) {
        if self.base.seals()
            && let Err(altered) = self.open_answered(thread, (slot, tag, at))
        {
            self.open_other(thread, (slot, tag, at), altered);
        }
    }

    /// Opens a page, if its READ was answered. `Err(None)`: it was not.
    fn open_answered(&self, thread: &Thread, (slot, tag, at): (FarSlot, u64, usize)) -> Result<(), Option<Altered>> {
        match thread.senders.get(tag as usize) {
            Some(Some(UNANSWERED)) => Err(None),
            _ => self.base.open(slot, thread.landing.page(at), thread.landing.target(at)).map_err(Some),
        }
    }

    /// A page does not open, or no home could give it (`None`). Gives up the node that sent it, and reads
    /// and opens the page's other copy. Waits for a node that has it and was given up, while that may
    /// come back. Ends the process if there is no other copy, or none that opens.
    #[cold]
    fn open_other(&self, thread: &mut Thread, (slot, tag, at): (FarSlot, u64, usize), mut found: Option<Altered>) {
        let seals = self.base.pool.seals();
        // A node may have come back since the READ was posted: it is repeated once in any case.
        let mut repeats = true;
        loop {
            match &found {
                Some(altered) => match seals.distrust(thread.senders.get(tag as usize).copied().flatten(), altered) {
                    Doubt::Again => {}
                    Doubt::Wait => {
                        sleep_ns(LOOK_NS);
                        continue;
                    }
                    Doubt::Lost => break,
                },
                None if seals.awaits(slot) => {
                    repeats = true;
                    sleep_ns(LOOK_NS);
                }
                None if std::mem::take(&mut repeats) => {}
                None => break,
            }
            self.post_read(thread, slot, tag, at);
            thread.lane.doorbell(&self.base.pool);
            self.await_read(thread, |done| done == tag);
            match self.open_answered(thread, (slot, tag, at)) {
                Ok(()) => return,
                Err(another) => found = another,
            }
        }
        match (found, thread.unanswered.take()) {
            (Some(altered), _) => or_altered(Err(altered)),
            (None, lost) => {
                let unsaid = || Lost { node: "a node".to_owned(), reason: "it gave a page no answer".to_owned() };
                or_end(Err(lost.unwrap_or_else(unsaid)))
            }
        }
    }

    /// Finds where the pages of the planned window are, and sends the READs of those that are not
    /// mapped.
    pub(crate) fn post_window(&self, thread: &mut Thread) {
        let mut posted = false;
        for i in 0..thread.claimed.len() {
            let slot = thread.claimed[i].slot;
            let in_place = self.base.readable_slot(slot);
            let source = in_place.unwrap_or_else(|| {
                self.post_read(thread, slot, DEMAND + 1 + i as u64, 1 + i);
                posted = true;
                thread.landing.page(1 + i)
            });
            thread.claimed[i].in_place = in_place.is_some();
            thread.claimed[i].source = Some(source);
        }
        if posted {
            thread.lane.doorbell(&self.base.pool);
        }
    }

    /// Waits for the rest of the window.
    pub(super) fn await_window(&self, thread: &mut Thread) {
        while thread.lane.in_flight() > 0 {
            self.await_read(thread, |_| true);
        }
    }

    /// Opens the pages of the window from one on that have come in. None is under way any more.
    pub(super) fn open_window(&self, thread: &mut Thread, claimed: &[Claimed], from: usize) {
        for (i, one) in claimed.iter().enumerate().skip(from).filter(|(_, one)| !one.in_place) {
            self.open_landed(thread, one.slot, DEMAND + 1 + i as u64, 1 + i);
        }
    }

    /// Posts a READ into a page of the landing buffer.
    fn post_read(&self, thread: &mut Thread, slot: FarSlot, tag: u64, into: usize) {
        if !thread.is_told {
            thread.landing.tell(&self.base.pool);
            thread.is_told = true;
        }
        let into = thread.landing.at(into);
        // SAFETY: within the landing buffer, which outlives the operation: no thread leaves the
        // pager before all its READs are complete.
        unsafe { thread.lane.read(&self.base.pool, tag, slot, 0, into, PAGE_BYTES as u32) };
    }

    /// Waits until a READ that is done satisfies `enough`, or none is under way.
    fn await_read(&self, thread: &mut Thread, enough: impl Fn(u64) -> bool) {
        let mut satisfied = false;
        while !satisfied && thread.lane.in_flight() > 0 {
            thread.lane.wait(&self.base.pool, &mut thread.done, Duration::from_secs(1));
            for done in thread.done.drain(..) {
                let from = match done.result {
                    // Where the page is opened it is seen whether it can be had later.
                    Err(lost) if self.base.seals() => {
                        thread.unanswered = Some(lost);
                        Some(UNANSWERED)
                    }
                    result => {
                        or_end(result);
                        done.from
                    }
                };
                thread.senders.get_mut(done.tag as usize).into_iter().for_each(|sender| *sender = from);
                satisfied |= enough(done.tag);
            }
        }
    }
}
