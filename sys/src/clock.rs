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

/// Measures the tick against the monotonic clock; takes about 200 µs. Call once at start.
pub fn calibrate() {
    let (t0, n0) = (ticks(), now_ns());
    let mut n1 = n0;
    while n1 - n0 < 200_000 {
        n1 = now_ns();
    }
    let t1 = ticks();
    SCALE.store((((n1 - n0) as u128) << 32).div_ceil((t1 - t0).max(1) as u128) as u64, Ordering::Relaxed);
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
        let (t, n) = (ticks(), now_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (dt, dn) = (ns(ticks() - t) as f64, (now_ns() - n) as f64);
        assert!((dt / dn - 1.0).abs() < 0.05, "{dt} {dn}");
    }
}
