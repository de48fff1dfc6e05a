//! The demand for room: whether threads sleep for it, and whether the program has other threads
//! that could use it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Batches after which it is forgotten that a thread has slept for room.
const REMEMBERED: u32 = 8;

/// The demand for room.
pub(crate) struct Demand {
    /// Batches for which it is still remembered that threads sleep for room.
    waits: AtomicU32,
    /// The last batch that a thread of the program evicted found the program still
    /// ([`crate::out::still`]).
    still: AtomicBool,
}

impl Demand {
    /// Nothing is known.
    pub const fn new() -> Demand {
        Demand { waits: AtomicU32::new(0), still: AtomicBool::new(false) }
    }

    /// A thread is about to sleep for room.
    pub fn sleeps(&self) {
        self.waits.store(REMEMBERED, Ordering::Relaxed);
    }

    /// A batch has found the program still, or not.
    pub fn found(&self, still: bool) {
        self.still.store(still, Ordering::Relaxed);
    }

    /// Whether the last batch found the program still.
    pub fn is_still(&self) -> bool {
        self.still.load(Ordering::Relaxed)
    }

    /// A batch has left. The caller holds the evictor's lock.
    pub fn left(&self) {
        if self.is_wide() {
            // A thread that falls asleep just now may be overlooked. The next one will not be.
            self.waits.store(self.waits.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Whether threads have slept for room recently.
    pub fn is_wide(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_slept_for_room_is_remembered_for_some_batches() {
        let demand = Demand::new();
        demand.sleeps();
        let forgotten = (1..100).find(|_| {
            demand.left();
            !demand.is_wide()
        });
        assert_eq!(forgotten, Some(REMEMBERED as usize));
    }
}
