//! Room. A page that comes in has its place reserved before, so that the limit holds at every instant; and somebody makes room.
//!
//! ```text
//!                       room
//!  fault ─► reserve ─┬─ plenty   goes on
//!                    ├─ little   other threads run: evicts a batch, if nobody is at it, while they go on with what is left
//!                    └─ none     evicts a batch, or sleeps while another thread does
//! ```
//!
//! *Whoever needs room makes it*, over every transport. Over TCP the READ of the page that is wanted has left before, so that part of a batch costs
//! nothing. A background thread evicted ahead of need until November 2026. It took the CPU on which the program runs, or a node on the same
//! machine; the frames that it freed were another CPU's, where those that a fault frees come in next, warm; and it kept room free, of
//! little local memory a part. Over shared memory programs take 0.83 of the time without it, over TCP as long as with it (`docs/design/pager.md`, *Who makes room*).
//!
//! Who finds room little evicts before there is none, so that other threads need not sleep for it: two threads that write at random take
//! 2.6 µs an access for 3.1, eight 2.7 for 3.7. Batches are larger where threads have slept. A program's only thread evicts when there is no room
//! left, for who should go on meanwhile?

use crate::Pager;
use crate::crowd::Reach;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::raw::yield_cpu;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Below so much local memory the runtime's own changes too little to be counted again, bytes.
const STOCK_FROM: u64 = 4 << 20;

/// Room that is little where nobody has slept for it, pages.
const LITTLE: u64 = 8;
/// Batches after which it is forgotten that a thread has slept for room.
const REMEMBERED: u32 = 8;

/// What is known of room: how dear it is to make, and whether many want it.
pub(crate) struct Headroom {
    /// For so many batches still: threads sleep for room.
    waits: AtomicU32,
    /// The last batch that a thread of the program's evicted found it still ([`crate::still`]).
    still: AtomicBool,
}

impl Headroom {
    /// Nothing is known.
    pub const fn new() -> Headroom {
        Headroom { waits: AtomicU32::new(0), still: AtomicBool::new(false) }
    }

    /// A batch of its own has found the program still, or not.
    pub fn found(&self, still: bool) {
        self.still.store(still, Ordering::Relaxed);
    }

    /// A batch has left. By who holds the evictor.
    pub fn left(&self) {
        if self.many_want_it() {
            // A thread that sleeps just now may be overlooked: the next will not.
            self.waits.store(self.waits.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    fn many_want_it(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }
}

impl Pager {
    /// Reserves room for `n` pages, evicting if need be. The limit holds at every instant, but
    /// where pins leave next to nothing of it ([`crate::crowd`]), or all other local pages are
    /// being installed for so long that nobody can tell why: then the fault goes ahead all the
    /// same.
    pub(crate) fn reserve(&self, n: u64) {
        let mut fruitless = 0;
        loop {
            let before = self.resident.fetch_add(n, Ordering::Relaxed);
            if before + n <= self.limit() {
                if before + n > self.limit() - self.low_room && before + n > self.limit() - self.little() {
                    self.make_room();
                }
                self.count_peak(before + n);
                return;
            }
            if before + n <= self.most_resident() || fruitless >= 64 {
                self.count_peak(before + n);
                return;
            }
            self.resident.fetch_sub(n, Ordering::Relaxed);
            let evicted = {
                let mut evictor = self.evictor.try_lock().unwrap_or_else(|| {
                    self.headroom.waits.store(REMEMBERED, Ordering::Relaxed);
                    self.evictor.lock()
                });
                if self.resident.load(Ordering::Relaxed) + n <= self.most_resident() {
                    continue;
                }
                let (most, reach) = match fruitless {
                    _ if self.is_crowded() => (self.batch_of_many.min(self.room_beside() as usize / 2), Reach::All),
                    0 => (self.next_batch(), Reach::Named),
                    _ => (self.batch, Reach::Found),
                };
                self.evict_from(&mut evictor, most, reach)
            };
            self.count(&self.counters.reclaimed_inline, evicted as u64);
            if evicted == 0 {
                // One batch that saw only pages which cannot leave says little: the others are looked at next, at once.
                // Where that look finds them pinned, the next round goes ahead.
                if fruitless > 1 {
                    yield_cpu();
                }
                fruitless += 1;
            }
        }
    }

    /// Pages of the next batch. Who sleeps for room is woken by who slept before, one after another: where threads do, larger
    /// batches are fewer wakings (16 threads on two CPUs, a fifth of their accesses writes: 4.2 µs for 5.2).
    fn next_batch(&self) -> usize {
        if self.headroom.many_want_it() { self.batch_of_many } else { self.batch }
    }

    /// Room that is little.
    fn little(&self) -> u64 {
        if self.headroom.many_want_it() { self.low_room } else { LITTLE }
    }

    /// Little room is left: one thread evicts while the others go on with that. Not where there are none.
    fn make_room(&self) {
        if !self.headroom.still.load(Ordering::Relaxed) && !self.is_crowded() {
            self.try_evict();
        }
    }

    /// Evicts a batch, unless somebody is at it.
    fn try_evict(&self) {
        if let Some(mut evictor) = self.evictor.try_lock() {
            let evicted = self.evict(&mut evictor, self.next_batch());
            self.count(&self.counters.reclaimed_inline, evicted as u64);
        }
    }

    /// Reserves room for up to `n` pages ahead of need, and leaves some for faults; returns for how many.
    ///
    /// Evicts a batch if there is too little and nobody else is at it: windows cut short cost more than they spare.
    pub(crate) fn reserve_ahead(&self, n: u64) -> u64 {
        let most = self.limit() - self.little() / 2;
        let mut tried = false;
        loop {
            let before = self.resident.load(Ordering::Relaxed);
            let room = most.saturating_sub(before).min(n);
            if room == n || tried && room > 0 {
                if self
                    .resident
                    .compare_exchange_weak(before, before + room, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                {
                    self.count_peak(before + room);
                    return room;
                }
                continue;
            }
            // Where pins leave nothing, faults look for what can leave, many for one look.
            if tried || self.is_crowded() {
                return 0;
            }
            tried = true;
            self.try_evict();
        }
    }

    /// What is kept of pages takes of the same local memory, and never gives it back: it counts as resident. Asked
    /// after a page came in, for which a page of entries may have been begun; the next reservation makes up for it.
    #[inline]
    pub(crate) fn reserve_kept(&self) {
        let grown = self.tracker.grown();
        if grown > 0 {
            self.crowd.keep(grown);
            let before = self.resident.fetch_add(grown, Ordering::Relaxed);
            self.count_peak((before + grown).min(self.limit()));
        }
    }

    /// Gives reserved room back.
    pub(crate) fn unreserve(&self, n: u64) {
        self.resident.fetch_sub(n, Ordering::Relaxed);
    }

    fn count_peak(&self, pages: u64) {
        let bytes = pages * PAGE_BYTES as u64;
        let before = self.counters.local_peak.load(Ordering::Relaxed);
        if bytes > before {
            // Programs that fit evict nothing, and have no background thread that would say how much they have.
            self.counters.local_bytes.store(bytes, Ordering::Relaxed);
            self.counters.local_peak.fetch_max(bytes, Ordering::Relaxed);
            // The runtime's tables grow with it. Four times a doubling is often enough, and too seldom to be felt;
            // programs that fit have no background thread that would do it.
            let quarter = |bytes: u64| bytes >> bytes.ilog2().saturating_sub(2);
            if bytes >= STOCK_FROM && quarter(bytes) != quarter(before.max(1)) {
                self.take_stock();
            } else {
                self.publish_runtime();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_slept_for_room_is_remembered_for_some_batches() {
        let headroom = Headroom::new();
        headroom.waits.store(REMEMBERED, Ordering::Relaxed);
        let forgotten = (1..100).find(|_| {
            headroom.left();
            !headroom.many_want_it()
        });
        assert_eq!(forgotten, Some(REMEMBERED as usize));
    }
}
