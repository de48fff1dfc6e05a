//! What is counted while a thread works: how long calls take, and what is asked for.

use farmem_kit::histogram::Histogram;
use farmem_sys::clock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Every so many calls one is timed: a clock's two readings cost about as much as a fast allocation.
const TIMED: u32 = 8;
/// What is asked for is told to others when it has changed by so much.
const TOLD: i64 = 64 << 10;

/// One thread's.
pub struct Meter<'a> {
    /// Of allocations, ns.
    pub allocs: Histogram,
    /// Of frees, ns.
    pub frees: Histogram,
    /// Calls, both.
    pub calls: u64,
    turn: u32,
    untold: i64,
    live: &'a AtomicI64,
    overhead: u64,
}

impl<'a> Meter<'a> {
    /// One that adds what is live to a common count. The clock must be calibrated.
    pub fn new(live: &'a AtomicI64) -> Meter<'a> {
        // The least that two readings in a row are apart.
        let overhead = (0..1000).map(|_| clock::ticks().abs_diff(clock::ticks())).min().unwrap_or(0);
        Meter {
            allocs: Histogram::default(),
            frees: Histogram::default(),
            calls: 0,
            turn: 0,
            untold: 0,
            live,
            overhead,
        }
    }

    /// Counts an allocation, and times it when it is its turn.
    #[inline]
    pub fn alloc<T>(&mut self, size: usize, call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.tell(size as i64);
        let (result, ns) = self.timed(call);
        if let Some(ns) = ns {
            self.allocs.record(ns);
        }
        result
    }

    /// Counts a free.
    #[inline]
    pub fn free(&mut self, size: usize, call: impl FnOnce()) {
        self.tell(-(size as i64));
        if let ((), Some(ns)) = self.timed(call) {
            self.frees.record(ns);
        }
    }

    #[inline]
    fn timed<T>(&mut self, call: impl FnOnce() -> T) -> (T, Option<u64>) {
        self.calls += 1;
        self.turn = (self.turn + 1) % TIMED;
        if self.turn > 0 {
            return (call(), None);
        }
        let begun = clock::ticks();
        let result = call();
        let took = (clock::ticks() - begun).saturating_sub(self.overhead);
        (result, Some(clock::ns(took)))
    }

    #[inline]
    fn tell(&mut self, bytes: i64) {
        self.untold += bytes;
        if self.untold.abs() >= TOLD {
            self.live.fetch_add(self.untold, Ordering::Relaxed);
            self.untold = 0;
        }
    }
}
