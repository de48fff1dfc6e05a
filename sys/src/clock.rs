//! A clock that costs no system call: the time stamp counter, scaled once.

use crate::raw::now_ns;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds per tick, as a fraction of 2^32. Zero: not calibrated.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Ticks of the time stamp counter (x86-64: constant and synchronised on every CPU we support).
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: the instruction exists on every x86-64 and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ticks and time at [`begin`]; zero: it was not called.
static BEGUN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Reads both clocks for the first time; [`calibrate`] reads them again. Work done in between is
/// time that [`calibrate`] need not wait.
pub fn begin() {
    let (ticks, ns) = together(readings());
    BEGUN[0].store(ticks, Ordering::Relaxed);
    BEGUN[1].store(ns, Ordering::Relaxed);
}

/// Measures the tick against the monotonic clock, from [`begin`] on, for 200 µs at least. Call once
/// at start.
pub fn calibrate() {
    if BEGUN[1].load(Ordering::Relaxed) == 0 {
        begin();
    }
    let [mut t0, mut n0] = [&BEGUN[0], &BEGUN[1]].map(|reading| reading.load(Ordering::Relaxed));
    let (t1, n1) = loop {
        while now_ns() - n0 < 200_000 {}
        let (t1, n1) = together(readings());
        if t1 > t0 {
            break (t1, n1);
        }
        // The machine slept or was moved: its tick counter may have started again.
        (t0, n0) = (t1, n1);
    };
    SCALE.store((((n1 - n0) as u128) << 32).div_ceil((t1 - t0).max(1) as u128) as u64, Ordering::Relaxed);
}

/// The ticks between two readings of the monotonic clock, a few times.
fn readings() -> impl Iterator<Item = (u64, u64, u64)> {
    (0..8).map(|_| (now_ns(), ticks(), now_ns()))
}

/// A number of ticks and the time at which they were read. A thread that loses its CPU between the
/// two clocks would take the wait for a part of what it measures: of some readings that counts
/// which took least.
fn together(readings: impl Iterator<Item = (u64, u64, u64)>) -> (u64, u64) {
    let closest = readings.min_by_key(|(before, _, after)| after - before);
    closest.map_or((0, 0), |(before, ticks, after)| (ticks, before + (after - before) / 2))
}

/// A number of ticks in nanoseconds; 0 before [`calibrate`].
#[inline(always)]
pub fn ns(ticks: u64) -> u64 {
    ((ticks as u128 * SCALE.load(Ordering::Relaxed) as u128) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_scale_to_wall_time() {
        calibrate();
        let (t, n) = together(readings());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (t1, n1) = together(readings());
        let (dt, dn) = (ns(t1 - t) as f64, (n1 - n) as f64);
        assert!((dt / dn - 1.0).abs() < 0.05, "{dt} {dn}");
    }

    #[test]
    fn a_wait_between_the_clocks_is_not_measured() {
        let ready = |at: u64| (at, 3 * at, at + 40);
        // The CPU was somebody else's for 4 ms, before the ticks were read or after.
        let waited = |at: u64, before: u64| (at, 3 * (at + before), at + 4_000_000);
        for before in [0, 4_000_000] {
            let begin = together([waited(1_000, before), ready(5_000_000), ready(5_000_100)].into_iter());
            let end = together([ready(6_000_000), waited(6_000_100, before)].into_iter());
            assert_eq!((begin, end), ((15_000_000, 5_000_020), (18_000_000, 6_000_020)));
        }
    }
}
