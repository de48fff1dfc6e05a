//! Local memory: how much of it is in use, how much may be, and which pages should leave first.
//!
//! Room for a page is reserved before the page is installed, so the limit holds at every instant
//! ([`crate::room`] reserves, and evicts where it must). The policy decides which pages leave; it
//! hears of arrivals late ([`arrivals`]). Pins of calls in progress are the limit's one exception
//! ([`crowd`]).

pub(crate) mod arrivals;
pub(crate) mod crowd;
pub(crate) mod demand;

use crate::base::Base;
use arrivals::Arrivals;
use crowd::Crowd;
use demand::Demand;
use farmem_cache::Policy;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// From this much local memory on the runtime's own memory is counted again as it grows; bytes.
const STOCK_FROM: u64 = 4 << 20;

/// Sizes that follow from the limit, pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Below this much room more is made, where threads have slept for room.
    pub low_room: u64,
    /// A batch of evictions.
    pub batch: usize,
    /// A batch where threads have slept for room.
    pub batch_of_many: usize,
}

impl Sizes {
    /// For a limit. At most `most` pages can leave together.
    pub fn of(limit: u64, most: usize, window: usize) -> Sizes {
        let batch_of_many = (limit as usize / 8).clamp(8, most);
        // Room kept free is local memory that the program does not have: half a batch on average.
        let batch = batch_of_many.min((limit as usize / 64).max(32));
        Sizes { low_room: (limit / 64).clamp(8, 2 * window as u64), batch, batch_of_many }
    }
}

/// Local memory of a process.
pub(crate) struct Local {
    base: &'static Base,
    /// Far pages that are resident or about to be. Entries for line hashes count as resident.
    pub resident: AtomicU64,
    /// The most that `resident` may be: `--local` less the staging ring and the log.
    pub limit: AtomicU64,
    pub sizes: Sizes,
    pub demand: Demand,
    pub crowd: Crowd,
    /// Reached by [`Local::policy`] only, which first tells it what it has not heard.
    policy: Lock<Box<dyn Policy>>,
    arrivals: Arrivals,
    /// The runtime's mappings that were resident when they were last counted, bytes.
    holdings: AtomicU64,
}

impl Local {
    /// Nothing is local, and `limit` pages may be.
    pub fn new(base: &'static Base, limit: u64, sizes: Sizes, policy: Box<dyn Policy>) -> Local {
        Local {
            base,
            resident: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            sizes,
            demand: Demand::new(),
            crowd: Crowd::new(),
            policy: Lock::new(policy),
            arrivals: Arrivals::new(),
            holdings: AtomicU64::new(0),
        }
    }

    /// Pages that may be resident now.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Gives reserved room back.
    pub fn unreserve(&self, n: u64) {
        self.resident.fetch_sub(n, Ordering::Relaxed);
    }

    /// `n` pages that the tracker has taken for good count as resident. The next reservation makes
    /// up for them.
    pub fn keep(&self, n: u64) {
        self.crowd.keep(n);
        let before = self.resident.fetch_add(n, Ordering::Relaxed);
        self.count_peak((before + n).min(self.limit()));
    }

    /// This many pages are resident: notes the most there were.
    #[inline]
    pub fn count_peak(&self, pages: u64) {
        let bytes = pages * PAGE_BYTES as u64;
        let before = self.base.counters.local_peak.load(Ordering::Relaxed);
        if bytes > before {
            self.grow(bytes, before);
        }
    }

    /// A program that fits evicts nothing, and has no background thread that would publish these.
    fn grow(&self, bytes: u64, before: u64) {
        self.base.counters.local_bytes.store(bytes, Ordering::Relaxed);
        self.base.counters.local_peak.fetch_max(bytes, Ordering::Relaxed);
        // The runtime's tables grow with it. They are counted four times a doubling, which is often
        // enough and too rare to be felt.
        let quarter = |bytes: u64| bytes >> bytes.ilog2().saturating_sub(2);
        if bytes >= STOCK_FROM && quarter(bytes) != quarter(before.max(1)) {
            self.take_stock();
        } else {
            self.publish_runtime();
        }
    }

    /// Counts what the runtime's own mappings take. It takes some hundred microseconds: not for the
    /// fault path.
    pub fn take_stock(&self) {
        self.holdings.store(farmem_sys::holdings::resident(), Ordering::Relaxed);
        self.publish_runtime();
    }

    /// Publishes what the runtime takes: its mappings as last counted, and the page table as it is.
    fn publish_runtime(&self) {
        let bytes = self.holdings.load(Ordering::Relaxed) + self.base.table.bytes();
        self.base.counters.runtime_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Publishes levels in the counters page.
    pub fn publish_levels(&self) {
        let counters = &self.base.counters;
        let local = self.resident.load(Ordering::Relaxed) * PAGE_BYTES as u64;
        counters.local_bytes.store(local, Ordering::Relaxed);
        let far = self.base.pool.slots().used();
        counters.far_bytes.store(far, Ordering::Relaxed);
        counters.far_peak.fetch_max(far, Ordering::Relaxed);
        counters.single_bytes.store(self.base.pool.repair().single_bytes(), Ordering::Relaxed);
        counters.together_bytes.store(self.base.pool.repair().together_bytes(), Ordering::Relaxed);
        self.publish_runtime();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_leave_room_for_each_other_in_little_memory() {
        for (limit, sizes) in [(64, (8, 8, 8)), (4096, (64, 64, 256)), (16_384, (128, 256, 256))] {
            let found = Sizes::of(limit, 256, 64);
            assert_eq!((found.low_room, found.batch, found.batch_of_many), sizes, "{limit}");
        }
    }
}
