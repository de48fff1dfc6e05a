//! Will a page be written this time too? One answer for the process, learned as it goes.
//!
//! A page that was dirty when it last left is best installed writable if it is to be written
//! again: that saves a fault (2 µs and more). If it is only read, its way out costs a call
//! that protects it and a comparison with its slot (1.3 µs; more if that call interrupts
//! another CPU). Programs change from writing to reading in phases, so what became of
//! the last such pages says what will become of the next.

use std::sync::atomic::{AtomicU32, Ordering};

/// One: every page was written again.
const ONE: u32 = 1 << 16;
/// Weight of the newest: 1/32.
const SHIFT: u32 = 5;
/// From here on it pays.
const LIKELY: u32 = ONE / 2;

/// The share of pages, of those written once, that were written again by their next departure.
pub struct Rewrites(AtomicU32);

impl Rewrites {
    /// Takes programs to be of one mind until they show otherwise.
    pub fn new() -> Rewrites {
        Rewrites(AtomicU32::new(ONE))
    }

    /// Whether a page that was written before is more likely written than not.
    #[inline]
    pub fn likely(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= LIKELY
    }

    /// Such a page leaves. Called with the evictor's lock held, hence no read-modify-write.
    pub fn saw(&self, written_again: bool) {
        let share = self.0.load(Ordering::Relaxed);
        let next = if written_again { share + ((ONE - share) >> SHIFT) } else { share - (share >> SHIFT) };
        self.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_phase_is_learned_within_some_dozen_pages() {
        let rewrites = Rewrites::new();
        assert!(rewrites.likely());
        let pages = |again: bool| {
            (1..).find(|_| {
                rewrites.saw(again);
                rewrites.likely() == again
            })
        };
        assert!(pages(false).is_some_and(|n| n < 40));
        (0..1000).for_each(|_| rewrites.saw(false));
        assert!(pages(true).is_some_and(|n| n < 40));
    }
}
