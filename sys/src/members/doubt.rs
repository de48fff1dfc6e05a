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
use std::sync::atomic::{AtomicU64, Ordering};

/// The most that one round counts.
const ROUND_MS: u64 = 1000;

/// What a waiter knows of such a holder. Several waiters may share one.
#[derive(Debug, Default)]
pub struct Doubt {
    /// Which holding it is: the waiter's own number for it, not 0.
    of: AtomicU64,
    /// How long was waited for it, ms, and above that a [`mark`] of the holding: so that a waiter
    /// which comes between the two words' changes adds nothing to the count of another holding.
    waited: AtomicU64,
    last_ms: AtomicU64,
}

impl Doubt {
    /// No doubt.
    pub const fn new() -> Doubt {
        Doubt { of: AtomicU64::new(0), waited: AtomicU64::new(0), last_ms: AtomicU64::new(0) }
    }

    /// Which holding is doubtful; 0: none.
    pub fn of(&self) -> u64 {
        self.of.load(Ordering::Relaxed)
    }

    /// What was waited for has come free, or its holder is there.
    pub fn clear(&self) {
        // First: nobody is to find the old count of a holding that is doubtful anew.
        self.waited.store(0, Ordering::Relaxed);
        self.of.store(0, Ordering::Release);
    }

    /// One more round of waiting for the holding `of`. Returns how long that was waited for by now,
    /// in ms.
    pub(super) fn looked(&self, of: u64, now_ms: u64) -> u32 {
        self.counted(of, now_ms, any_stands_still)
    }

    fn counted(&self, of: u64, now_ms: u64, stands_still: impl FnOnce() -> bool) -> u32 {
        if self.of.swap(of, Ordering::AcqRel) != of {
            self.last_ms.store(now_ms, Ordering::Relaxed);
            self.waited.store(mark(of), Ordering::Release);
            return 0;
        }
        let since = now_ms.saturating_sub(self.last_ms.swap(now_ms, Ordering::Relaxed));
        let counts = if since == 0 || stands_still() { 0 } else { since.min(ROUND_MS) as u32 };
        let (own, mut before) = (mark(of), self.waited.load(Ordering::Relaxed));
        loop {
            // The count of another holding: whoever was to begin this one's has not done so yet, or
            // has ended.
            let to = if before & MARK == own { before + u64::from(counts) } else { own };
            match self.waited.compare_exchange_weak(before, to, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (to & !MARK) as u32,
                Err(seen) => before = seen,
            }
        }
    }
}

/// The bits of a [`mark`].
const MARK: u64 = (u32::MAX as u64) << 32;

/// Tells a holding from those before and after it. Never 0.
fn mark(of: u64) -> u64 {
    (of ^ of << 32) & MARK | 1 << 63
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

    #[test]
    fn a_waiter_between_the_steps_of_another_counts_nothing_for_another_holding() {
        let doubt = Doubt::new();
        let look = |of, now| doubt.counted(of, now, || false);
        look(5, 1000);
        assert_eq!(look(5, 1900), 900);
        // Another waiter has found holding 6, and not begun its count yet.
        doubt.of.store(6, Ordering::Relaxed);
        assert_eq!(look(6, 2800), 0, "the count is that of holding 5");
        // Another waiter has cleared the count, and not the holding.
        doubt.clear();
        doubt.of.store(5, Ordering::Relaxed);
        assert_eq!([look(5, 3700), look(5, 4600)], [0, 900]);
        doubt.clear();
        assert_eq!([look(5, 5000), look(5, 5500)], [0, 500]);
    }
}
