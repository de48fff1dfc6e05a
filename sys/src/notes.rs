//! Notes that any thread leaves and one at a time collects: a ring of words, 0 where there is none.
//!
//! ```text
//!            next % N
//!               ▼
//! [ n ][ n ][ 0 ][ 0 ][ 0 ][ n ][ n ]      left: CAS 0 ─► note, at the next place; taken still: refused, the ring is full
//!   └────────────── collected ──────┘      each that is there: swap ─► 0, the oldest first as far as that is known
//! ```
//!
//! A note that was left before somebody begins to collect (one happens before the other) is
//! collected: it stands in its place until it is. One that is left meanwhile may be seen or not.
//!
//! Every order of two that leave and one that collects is tried out by loom, as [`crate::sync`]'s.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The ring.
pub struct Notes<const N: usize> {
    next: AtomicUsize,
    places: [AtomicU64; N],
}

impl<const N: usize> Notes<N> {
    /// None.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Notes<N> {
        Notes { next: AtomicUsize::new(0), places: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Leaves a note, which is not 0. Returns false if there is no room; collecting makes room.
    #[inline]
    pub fn leave(&self, note: u64) -> bool {
        debug_assert!(note != 0);
        let place = &self.places[self.next.fetch_add(1, Ordering::Relaxed) % N];
        place.compare_exchange(0, note, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Takes all notes, `N` at most.
    pub fn collect(&self, mut each: impl FnMut(u64)) {
        let oldest = self.next.load(Ordering::Relaxed);
        for step in 0..N {
            let place = &self.places[oldest.wrapping_add(step) % N];
            if place.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let note = place.swap(0, Ordering::Acquire);
            if note != 0 {
                each(note);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Both threads leave notes. A thread that finds no room collects all notes, the other's
    /// included. Each note is collected once.
    fn all_are_collected_once<const N: usize>() {
        loom::model(|| {
            let notes = Arc::new(Notes::<N>::new());
            let sum = Arc::new(AtomicU64::new(0));
            let work = |own: u64, notes: &Notes<N>, sum: &AtomicU64| {
                if !notes.leave(own) {
                    notes.collect(|note| _ = sum.fetch_add(note, Ordering::Relaxed));
                    sum.fetch_add(own, Ordering::Relaxed);
                }
            };
            let other = {
                let (notes, sum) = (Arc::clone(&notes), Arc::clone(&sum));
                thread::spawn(move || work(1, &notes, &sum))
            };
            work(16, &notes, &sum);
            work(256, &notes, &sum);
            other.join().unwrap();
            notes.collect(|note| _ = sum.fetch_add(note, Ordering::Relaxed));
            assert_eq!(sum.load(Ordering::Relaxed), 273);
        });
    }

    #[test]
    fn where_there_is_room() {
        all_are_collected_once::<3>();
    }

    #[test]
    fn where_there_is_none() {
        all_are_collected_once::<1>();
        all_are_collected_once::<2>();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notes_are_collected_in_order_and_once() {
        let notes = Notes::<4>::new();
        let collected = || {
            let mut all = Vec::new();
            notes.collect(|note| all.push(note));
            all
        };
        assert!(collected().is_empty());
        assert!([1, 2, 3].map(|note| notes.leave(note)) == [true; 3]);
        assert_eq!(collected(), [1, 2, 3]);
        assert_eq!([4, 5, 6, 7, 8].map(|note| notes.leave(note)), [true, true, true, true, false], "full");
        let mut seen = collected();
        seen.sort_unstable();
        assert_eq!(seen, [4, 5, 6, 7]);
        assert!(notes.leave(9));
        assert_eq!(collected(), [9]);
        assert!(collected().is_empty());
    }
}
