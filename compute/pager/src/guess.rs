//! Will a page that is read now be written before it leaves? Two answers for the
//! process, learned as it goes: one for pages that were written when they were last
//! here, one for those that were not.
//!
//! If it will be, it had best come in writable: that saves a fault, 2 µs, and 15 where
//! lifting a protection interrupts another CPU. (`counter[i] += 1` reads first; so does
//! most code that writes.) If it will not, its way out costs a protecting call and a
//! comparison with its slot, 1.3 µs. Programs change from writing to reading in phases,
//! so what became of the last such pages says what will become of the next.
//!
//! ```text
//! read fault ─┬─ likely ───► comes in writable, G ──► leaves ─┬─ differs from its slot ──► more
//!             │                                               └─ the same ───────────────► less
//!             └─ unlikely ─► comes in protected ─┬─ upgrade ─────────────────────────────► more
//!                                                └─ leaves clean ────────────────────────► less
//! ```
//!
//! A page that comes in by a write is no guess, and says nothing.
//!
//! What becomes of a guessed page is known only when it leaves, a whole local memory later. So every
//! 64th is a *sample*: it comes in protected, and if its thread's next fault is not the write to it, that
//! is much less, at once. A phase of reading after one of writing is seen within some hundred faults, not
//! within as many as there are local pages. (Every eighth was tried: its upgrades cost writers more than
//! readers won.)

use crate::word::Word;
use std::sync::atomic::{AtomicU32, Ordering};

/// One: every page is written.
const ONE: u32 = 1 << 16;
/// Weight of the newest: 1/32.
const SHIFT: u32 = 5;
/// From here on it pays.
const LIKELY: u32 = ONE / 2;

/// One guess in so many is not acted upon.
const SAMPLE: u32 = 64;

/// Whether this guess, counted in `guesses`, is to be a sample.
#[inline]
pub fn is_sample(guesses: &mut u32) -> bool {
    *guesses = guesses.wrapping_add(1);
    (*guesses).is_multiple_of(SAMPLE)
}

/// The shares of pages that come in by a read and are written before they leave.
pub struct Rewrites {
    /// Of those that were written when they were last here (W).
    written: AtomicU32,
    /// Of the others.
    read: AtomicU32,
}

impl Rewrites {
    /// Takes pages to be used as before until they show otherwise.
    pub fn new() -> Rewrites {
        Rewrites { written: AtomicU32::new(ONE), read: AtomicU32::new(0) }
    }

    fn of(&self, page: Word) -> &AtomicU32 {
        if page.written() { &self.written } else { &self.read }
    }

    /// Whether a page with this word, now to be read, is more likely written than not.
    #[inline]
    pub fn likely(&self, page: Word) -> bool {
        self.of(page).load(Ordering::Relaxed) >= LIKELY
    }

    /// The thread that read a protected page in went on to another.
    #[inline]
    pub fn not_at_once(&self, page: Word) {
        let share = self.of(page).load(Ordering::Relaxed);
        // A sample speaks for many.
        let shift = if share >= LIKELY { 2 } else { SHIFT };
        self.of(page).store(share - (share >> shift), Ordering::Relaxed);
    }

    /// What became of such a page. Threads that say so at the same instant may overwrite one another:
    /// this is statistics, and not worth a locked instruction.
    #[inline]
    pub fn saw(&self, page: Word, written: bool) {
        let share = self.of(page).load(Ordering::Relaxed);
        let next = if written { share + ((ONE - share) >> SHIFT) } else { share - (share >> SHIFT) };
        self.of(page).store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_phase_is_learned_within_some_dozen_pages() {
        let (before, never) = (Word::UNTOUCHED.with_written(true), Word::UNTOUCHED);
        let rewrites = Rewrites::new();
        assert!(rewrites.likely(before) && !rewrites.likely(never));
        let pages = |page, written| {
            (1..1000).find(|_| {
                rewrites.saw(page, written);
                rewrites.likely(page) == written
            })
        };
        assert!(pages(before, false).is_some_and(|n| n < 40));
        assert!(pages(never, true).is_some_and(|n| n < 40));
        (0..1000).for_each(|_| rewrites.saw(before, false));
        assert!(pages(before, true).is_some_and(|n| n < 40));
        assert!(rewrites.likely(never), "each by itself");
        let samples = (1..10).find(|_| {
            rewrites.not_at_once(before);
            !rewrites.likely(before)
        });
        assert!(samples.is_some_and(|n| n <= 4));
    }
}
