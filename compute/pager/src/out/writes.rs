//! WRITEs: from the staging ring to a slot that is not mapped.
//!
//! ```text
//! claim_staged ─► bytes copied in ─► post_write ─► ring_writes ─► collect_writes
//!                                                  (a doorbell a batch; for a card, more)
//! ```
//!
//! (Pages of which few lines changed go another way: [`crate::out::log`].) A place in the ring is
//! held until its acknowledgement has come ([`crate::out::staging`]).

#![allow(unsafe_code)] // WRITEs from staged copies.

use super::Out;
use crate::ending::{broken, or_end};
use crate::out::batch::Evictor;
use crate::out::log::{PART_TAG, RECORD_TAG};
use crate::thread::{LOOK_ROUNDS, Thread};
use crate::word::{State, Word};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_protocol::lines::conditional::Refused;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Out {
    pub(crate) fn claim_staged(&self, evictor: &mut Evictor, page: PageId, slot: FarSlot) -> usize {
        if self.staging.is_empty() {
            broken("a page leaves for a slot that is not mapped, and there is no staging ring");
        }
        let mut rounds = 0u32;
        loop {
            let evicted = |index: usize, page: PageId, slot: FarSlot| {
                let word = self.base.table.word(page);
                let seen = word.load();
                seen.state() == State::Staged
                    && seen.staged() == index
                    && word.shift(seen, seen.to(State::Remote).with_field(0).with_slot(Some(slot)))
            };
            if let Some(index) = self.staging.claim(page, slot, evicted) {
                return index;
            }
            // Lines that are noted and not yet posted would never be acknowledged.
            self.flush_log(evictor);
            self.ring_writes(evictor);
            self.collect_writes(evictor, Duration::from_secs(1));
            // Copies may be held by threads that are gone.
            rounds += 1;
            if rounds.is_multiple_of(LOOK_ROUNDS) {
                self.base.threads.look();
            }
        }
    }

    /// Posts a WRITE of `len` bytes from `from` on of a staged copy to its slot.
    pub(crate) fn post_write(
        &self,
        evictor: &mut Evictor,
        tag: u64,
        index: usize,
        slot: FarSlot,
        from: usize,
        len: usize,
    ) {
        debug_assert!(from + len <= PAGE_BYTES);
        let thread = evictor.thread.get_or_insert_with(|| Thread::boxed(0));
        // SAFETY: the entry's bytes stay as they are until its WRITE is acknowledged, and are a
        // page.
        unsafe {
            let bytes = self.staging.at(index).wrapping_add(from);
            thread.lane.write(&self.base.pool, tag, slot, from as u32, bytes, len as u32);
        }
        evictor.log.posted();
    }

    pub(crate) fn ring_writes(&self, evictor: &mut Evictor) {
        if let Some(thread) = &mut evictor.thread {
            thread.lane.doorbell(&self.base.pool);
            self.base.count(&self.base.counters.wire_out, thread.lane.take_sent());
        }
    }

    /// Takes in the acknowledgements of WRITEs that have come, waiting at most `patience` for the
    /// first.
    pub(crate) fn collect_writes(&self, evictor: &mut Evictor, patience: Duration) {
        let Some(thread) = &mut evictor.thread else { return };
        let (mut freed, mut refused) = (Vec::new(), Vec::new());
        match patience.is_zero() {
            true => thread.lane.poll(&self.base.pool, &mut thread.done),
            false => thread.lane.wait(&self.base.pool, &mut thread.done, patience),
        };
        for done in thread.done.drain(..) {
            let value = or_end(done.result);
            if done.tag == PART_TAG {
                continue;
            }
            if done.tag & RECORD_TAG == 0 {
                freed.extend(self.staging.written(done.tag as usize));
                continue;
            }
            evictor.log.acknowledged(done.tag, Refused(value), |index, again| {
                // Of one that went back meanwhile nobody needs what is in its slot.
                if again && !self.staging.is_orphan(index as usize) {
                    refused.push(index as usize);
                } else {
                    freed.extend(self.staging.written(index as usize));
                }
            });
        }
        if !freed.is_empty() {
            self.base.pool.slots().free(&freed);
        }
        if !refused.is_empty() {
            self.send_whole(evictor, &refused);
        }
        let held_up = evictor.thread.as_ref().is_some_and(|thread| thread.lane.is_held_up());
        self.held_up.store(held_up, Ordering::Relaxed);
    }

    /// Sends on what the network did not take at once (a full socket, a shaped link). In the waits
    /// of faults that follow, because no other thread looks at it soon. Pages whose bytes are not
    /// acknowledged hold their places in the staging ring.
    #[inline]
    pub(crate) fn send_on(&self) {
        if self.held_up.load(Ordering::Relaxed)
            && let Some(mut evictor) = self.evictor.try_lock()
        {
            self.collect_writes(&mut evictor, Duration::ZERO);
        }
    }

    /// Staged copies whose lines were refused ([`crate::out::log`]).
    #[cold]
    fn send_whole(&self, evictor: &mut Evictor, staged: &[usize]) {
        for &index in staged {
            self.post_write(evictor, index as u64, index, self.staging.slot(index), 0, PAGE_BYTES);
        }
        self.base.count(&self.base.counters.pages_refused, staged.len() as u64);
        self.base.count(&self.base.counters.bytes_out, (staged.len() * PAGE_BYTES) as u64);
        self.ring_writes(evictor);
    }

    /// A staged page comes back. Its write-back may have been acknowledged without a look at the
    /// answer. Then the page keeps its slot, which is known to hold its bytes.
    pub(crate) fn hear_of_write(&self, page: PageId, seen: Word) {
        if !self.staging.is_written(seen.staged(), page)
            && let Some(mut evictor) = self.evictor.try_lock()
        {
            self.collect_writes(&mut evictor, Duration::ZERO);
        }
    }

    /// Sends off what was noted and posted.
    pub(crate) fn send_all(&self, evictor: &mut Evictor) {
        self.flush_log(evictor);
        self.ring_writes(evictor);
    }

    /// Waits until every WRITE is acknowledged.
    pub(crate) fn drain_writes(&self, evictor: &mut Evictor) {
        self.send_all(evictor);
        while self.staging.unwritten() {
            self.collect_writes(evictor, Duration::from_secs(1));
        }
    }
}
