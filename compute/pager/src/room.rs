//! Room for pages that come in. It is reserved before a page is installed, and made by evicting.
//!
//! ```text
//!                       room
//!  fault ─► reserve ─┬─ plenty   goes on
//!                    ├─ little   other threads run: evicts a batch if no other thread is evicting;
//!                    │           the others go on with the room that is left
//!                    └─ none     evicts a batch, or sleeps while another thread does
//! ```
//!
//! *The thread that needs room makes it*, over every transport. Over TCP the READ of the wanted
//! page has left before, so part of a batch costs nothing. A background thread that evicts ahead of
//! need was rejected: it takes a CPU from the program or the node, frees frames in another CPU's
//! cache, and keeps local memory empty (`docs/design/pager.md`).
//!
//! A thread that finds less than [`LITTLE`] pages free evicts a batch early, so that other threads
//! do not have to sleep. Batches are larger where threads have slept. A single-threaded program
//! evicts only when no page is free: no other thread could use the time.

use crate::base::Base;
use crate::dirty::Changes;
use crate::local::Local;
use crate::local::crowd::Reach;
use crate::out::Out;
use farmem_sys::raw::yield_cpu;
use std::sync::atomic::Ordering;

/// Pages of room that count as little where no thread has slept for room.
const LITTLE: u64 = 8;
/// Batches without result after which a fault goes ahead without room.
const FRUITLESS: u32 = 64;

/// Reserves room.
pub(crate) struct Room {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    out: &'static Out,
}

impl Room {
    pub fn new(base: &'static Base, local: &'static Local, changes: &'static Changes, out: &'static Out) -> Room {
        Room { base, local, changes, out }
    }

    /// Reserves room for `n` pages, evicting where it must.
    ///
    /// The limit holds at every instant, with two exceptions: where pins leave next to nothing of
    /// it ([`crate::local::crowd`]), and where [`FRUITLESS`] batches could evict nothing.
    pub fn reserve(&self, n: u64) {
        let local = self.local;
        let mut fruitless = 0;
        loop {
            let before = local.resident.fetch_add(n, Ordering::Relaxed);
            if before + n <= local.limit() {
                if before + n > local.limit() - local.sizes.low_room && before + n > local.limit() - self.little() {
                    self.make_room();
                }
                local.count_peak(before + n);
                return;
            }
            if before + n <= local.most_resident() || fruitless >= FRUITLESS {
                local.count_peak(before + n);
                return;
            }
            local.unreserve(n);
            if let Some(0) = self.evict_for(n, fruitless) {
                // One batch that saw only pages which cannot leave says little. The others are
                // looked at next, at once. Where that look finds them pinned, the next round goes
                // ahead.
                if fruitless > 1 {
                    yield_cpu();
                }
                fruitless += 1;
            }
        }
    }

    /// Evicts a batch to have room for `n` pages. `None` if another thread made room meanwhile.
    fn evict_for(&self, n: u64, fruitless: u32) -> Option<usize> {
        let local = self.local;
        let mut evictor = self.out.evictor.try_lock().unwrap_or_else(|| {
            local.demand.sleeps();
            self.out.turns.wish().lock(&self.out.evictor)
        });
        if local.resident.load(Ordering::Relaxed) + n <= local.most_resident() {
            return None;
        }
        let (most, reach) = match fruitless {
            _ if local.is_crowded() => (local.sizes.batch_of_many.min(local.room_beside() as usize / 2), Reach::All),
            0 => (self.next_batch(), Reach::Named),
            _ => (local.sizes.batch, Reach::Found),
        };
        let evicted = self.out.evict_from(&mut evictor, most, reach);
        drop(evictor);
        self.base.count(&self.base.counters.reclaimed_inline, evicted as u64);
        Some(evicted)
    }

    /// Pages of the next batch. Threads that sleep for room wake one another in turn, so larger
    /// batches mean fewer wakings.
    fn next_batch(&self) -> usize {
        if self.local.demand.is_wide() { self.local.sizes.batch_of_many } else { self.local.sizes.batch }
    }

    /// Pages of room that count as little.
    fn little(&self) -> u64 {
        if self.local.demand.is_wide() { self.local.sizes.low_room } else { LITTLE }
    }

    /// Little room is left. One thread evicts while the others go on, if there are others.
    fn make_room(&self) {
        if !self.local.demand.is_still() && !self.local.is_crowded() {
            self.try_evict();
        }
    }

    /// Evicts a batch, unless another thread is evicting.
    fn try_evict(&self) {
        if let Some(mut evictor) = self.out.evictor.try_lock() {
            let evicted = self.out.evict(&mut evictor, self.next_batch());
            self.base.count(&self.base.counters.reclaimed_inline, evicted as u64);
        }
    }

    /// Reserves room for up to `n` pages ahead of need, and leaves some for faults. Returns the
    /// pages reserved.
    ///
    /// It evicts a batch if there is too little room and no other thread is evicting: windows that
    /// are cut short cost more than they spare.
    pub fn reserve_ahead(&self, n: u64) -> u64 {
        let local = self.local;
        let most = local.limit() - self.little() / 2;
        let mut tried = false;
        loop {
            let before = local.resident.load(Ordering::Relaxed);
            let room = most.saturating_sub(before).min(n);
            if room == n || tried && room > 0 {
                let after = before + room;
                if local.resident.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    local.count_peak(after);
                    return room;
                }
                continue;
            }
            // Where pins leave nothing, only faults look for pages that can leave: one look serves
            // many faults.
            if tried || local.is_crowded() {
                return 0;
            }
            tried = true;
            self.try_evict();
        }
    }

    /// Reserves what the tracker has begun to use of local memory for good. Called after a page
    /// came in, for which a page of entries may have been begun.
    #[inline]
    pub fn reserve_kept(&self) {
        let grown = self.changes.tracker.grown();
        if grown > 0 {
            self.local.keep(grown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{Ground, bare};

    #[test]
    fn the_limit_holds_unless_nothing_can_leave() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let (room, limit) = (Room::new(base, local, changes, out), local.limit());
        let resident = || local.resident.load(Ordering::Relaxed);
        let ahead = room.reserve_ahead(2 * limit);
        assert_eq!((ahead, resident()), (limit - LITTLE / 2, limit - LITTLE / 2), "some room is left for faults");
        assert_eq!(room.reserve_ahead(1), 0);
        room.reserve(LITTLE / 2);
        assert_eq!(resident(), limit);
        room.reserve(1);
        assert_eq!(resident(), limit + 1, "no page can leave, and the fault goes ahead");
        local.unreserve(limit + 1);
        assert_eq!(room.reserve_ahead(3), 3);
    }
}
