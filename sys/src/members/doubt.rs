//! A wait for a holder of whom it cannot be told whether it has ended.
//!
//! Such a wait ends too, after a limit. What counts towards it is time in which nobody could have
//! been kept from going on:
//!
//! * A round counts at most [`ROUND_MS`], however long ago the last one was. So a stop of the whole
//!   program, which stops the waiter too, counts for one round.
//! * A round counts nothing while any task of this memory is stopped, traced to a stop, or waits for
//!   a disk.
//! * Everything begins anew when what is waited for has changed hands.

use super::sharers::any_stands_still;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most that one round counts.
const ROUND_MS: u64 = 1000;

/// What a waiter knows of such a holder. Several waiters may share one.
#[derive(Debug, Default)]
pub struct Doubt {
    /// Which holding it is: the waiter's own number for it, not 0.
    of: AtomicU64,
    waited_ms: AtomicU32,
    last_ms: AtomicU64,
}

impl Doubt {
    /// No doubt.
    pub const fn new() -> Doubt {
        Doubt { of: AtomicU64::new(0), waited_ms: AtomicU32::new(0), last_ms: AtomicU64::new(0) }
    }

    /// Which holding is doubtful; 0: none.
    pub fn of(&self) -> u64 {
        self.of.load(Ordering::Relaxed)
    }

    /// What was waited for has come free, or its holder is there.
    pub fn clear(&self) {
        self.of.store(0, Ordering::Relaxed);
    }

    /// One more round of waiting for the holding `of`. Returns how long that was waited for by now,
    /// in ms.
    pub(super) fn looked(&self, of: u64, now_ms: u64) -> u32 {
        self.counted(of, now_ms, any_stands_still)
    }

    fn counted(&self, of: u64, now_ms: u64, stands_still: impl FnOnce() -> bool) -> u32 {
        if self.of.swap(of, Ordering::Relaxed) != of {
            self.waited_ms.store(0, Ordering::Relaxed);
            self.last_ms.store(now_ms, Ordering::Relaxed);
            return 0;
        }
        let since = now_ms.saturating_sub(self.last_ms.swap(now_ms, Ordering::Relaxed));
        let counts = if since == 0 || stands_still() { 0 } else { since.min(ROUND_MS) as u32 };
        self.waited_ms.fetch_add(counts, Ordering::Relaxed).saturating_add(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_counts_in_which_everybody_could_go_on() {
        let doubt = Doubt::new();
        let look = |of, now, still| doubt.counted(of, now, || still);
        assert_eq!(look(5, 1000, false), 0, "the first look");
        assert_eq!(look(5, 1400, false), 400);
        assert_eq!(look(5, 90_000, false), 1400, "a long pause was the waiter's own");
        assert_eq!(look(5, 91_000, true), 1400, "somebody is stopped");
        assert_eq!(look(5, 92_000, false), 2400);
        assert_eq!(look(6, 93_000, false), 0, "another holding");
        assert_eq!(look(6, 93_500, false), 500);
        doubt.clear();
        assert_eq!(look(6, 94_000, false), 0, "it was free meanwhile");
    }
}
