//! Whose turn it is at a lock: a thread that needs room goes before repair.
//!
//! ```text
//!  fault    wish ─► lock ─► evict ─► unlock         waits for the end of the piece that is being copied
//!  repair   no wish? ─► lock ─► no wish? ─► copy a piece ─► unlock
//!                └── wait ◄──────┘ unlock    └ a wish ends it with what is under way
//! ```
//!
//! The lock alone is not enough. The thread that releases it usually takes it again first, because
//! the woken thread does not have a CPU yet.

use farmem_sys::raw::{now_ns, sleep_ns};
use farmem_sys::sync::{Held, Lock};
use std::sync::atomic::{AtomicU32, Ordering};

/// Between looks whether a thread still waits.
const LOOK_NS: u64 = 20_000;
/// After this time a wish counts as that of a thread that was killed.
const PATIENCE_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Turns {
    /// Threads that wait for the lock to make room.
    wishes: AtomicU32,
}

/// A thread waits, or is about to. No piece of repair begins before it has the lock.
pub(crate) struct Wish<'a>(&'a Turns);

impl Turns {
    /// The calling thread needs the lock for a fault.
    pub fn wish(&self) -> Wish<'_> {
        self.wishes.fetch_add(1, Ordering::SeqCst);
        Wish(self)
    }

    /// Whether a thread waits for the lock.
    pub fn is_wished(&self) -> bool {
        self.wishes.load(Ordering::SeqCst) > 0
    }

    /// Takes the lock for work that no fault waits for.
    pub fn lock_last<'a, T>(&self, lock: &'a Lock<T>) -> Held<'a, T> {
        let begun = now_ns();
        loop {
            if !self.is_wished() {
                let held = lock.lock();
                if !self.is_wished() {
                    return held;
                }
            }
            sleep_ns(LOOK_NS);
            if now_ns() - begun > PATIENCE_NS {
                self.wishes.store(0, Ordering::SeqCst);
            }
        }
    }
}

impl Wish<'_> {
    /// Waits for the lock.
    pub fn lock<T>(self, lock: &Lock<T>) -> Held<'_, T> {
        lock.lock()
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        let less = |wishes: u32| wishes.checked_sub(1);
        // Repair may have forgotten the wish meanwhile.
        let _ = self.0.wishes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Counts the pieces that begin between a thread's wish and its turn.
    #[test]
    fn a_thread_that_needs_room_waits_for_one_piece_at_most() {
        let (turns, lock, pieces, over) = (Turns::default(), Lock::new(()), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let held = turns.lock_last(&lock);
                    pieces.fetch_add(1, Ordering::SeqCst);
                    sleep_ns(200_000);
                    drop(held);
                }
            });
            let waits = |_: u32| {
                let wish = turns.wish();
                let before = pieces.load(Ordering::SeqCst);
                let held = wish.lock(&lock);
                let waited = pieces.load(Ordering::SeqCst) - before;
                drop(held);
                // Repair has its turn between two faults.
                let seen = pieces.load(Ordering::SeqCst);
                while pieces.load(Ordering::SeqCst) == seen {
                    sleep_ns(LOOK_NS);
                }
                waited
            };
            let most = (0..100).map(waits).max();
            over.store(true, Ordering::SeqCst);
            assert!(most <= Some(1), "a thread waited for {most:?} pieces");
        });
    }

    #[test]
    fn a_thread_that_was_killed_while_it_waited_holds_repair_up_once() {
        let (turns, lock) = (Turns::default(), Lock::new(()));
        std::mem::forget(turns.wish());
        drop(turns.lock_last(&lock));
        assert!(!turns.is_wished());
        drop(turns.wish().lock(&lock));
        assert_eq!(turns.wishes.load(Ordering::SeqCst), 0);
    }
}
