//! Will a page that is read now be written before it leaves? Two answers for the
//! process, learned as it goes: one for pages that were written when they were last
//! here, one for those that were not.
//!
//! If it will be, it had best come in writable: that saves a fault, 2 µs, and 15 where
//! lifting a protection interrupts another CPU. (`counter[i] += 1` reads first; so does
//! most code that writes.) If it will not, its way out costs a comparison with its slot, and what it takes to read it
//! ([`crate::settle`]). So it pays from a share of
//!
//! ```text
//!           in vain                          in vain, ns    share where one thread runs    where several do
//!   ──────────────────────────────   still   150            one page in 14                 —
//!   in vain + fault + what lifting   held    400            —                              one in 6 to 40
//!                            takes   …       1300           one in 3                       one in 3 to 13
//! ```
//!
//! Programs change from writing to reading in phases, so what became of the last such
//! pages says what will become of the next.
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
//!
//! Some programs write what they read, but go elsewhere first: a search in a tree faults its way down and
//! changes the nodes on its way up. To them the sample says nothing. So it is also learned what becomes of
//! protected pages that were not written at once; as long as most of these are written after all, samples
//! are not listened to.

use crate::settle::Settled;
use crate::word::Word;
use std::sync::atomic::{AtomicU32, Ordering};

/// One: every page is written.
const ONE: u32 = 1 << 16;
/// Weight of the newest: 1/32.
const SHIFT: u32 = 5;
/// What a page costs that came in writable and was not written, ns, where it is protected on its way out.
const IN_VAIN_NS: u32 = 1_300;
/// … where it is held.
const IN_VAIN_HELD_NS: u32 = 400;
/// … where nobody else runs, and the slot is mapped: 300 ns. Less is said here, for an upgrade costs more than its own time, by what it
/// leaves of the caches: random accesses of which 3 % write are as fast either way, and of which 10 % do by 3 % faster with pages that come
/// in writable; with 500 sort and sqlite had taken 4 to 6 % longer.
const IN_VAIN_STILL_NS: u32 = 150;
/// … and where hashes are kept of it.
const IN_VAIN_HASHED_NS: u32 = 500;
/// What an upgrade costs beside the call that lifts the protection: the signal, there and back, ns.
const FAULT_NS: u32 = 1_200;

/// One guess in so many is not acted upon.
const SAMPLE: u32 = 64;

/// Whether this guess, counted in `guesses`, is to be a sample.
#[inline]
pub fn is_sample(guesses: &mut u32) -> bool {
    *guesses = guesses.wrapping_add(1);
    (*guesses).is_multiple_of(SAMPLE)
}

/// Will a page that is read be written? Learned apart for pages that were written when they were last here (W),
/// and for the others.
pub struct Rewrites {
    written: Learned,
    read: Learned,
    /// What lifting a protection takes of late, ns.
    lift_ns: AtomicU32,
    /// By how pages leave.
    in_vain_ns: AtomicU32,
}

/// Of pages that come in by a read.
struct Learned {
    /// The share that is written before it leaves.
    share: Share,
    /// The same of those that came in protected and were not written at once.
    later: Share,
}

/// A moving average. Threads that change it at the same instant may overwrite one another: this is statistics,
/// and not worth a locked instruction.
struct Share(AtomicU32);

impl Share {
    #[inline]
    fn is_at_least(&self, share: u32) -> bool {
        self.0.load(Ordering::Relaxed) >= share
    }

    #[inline]
    fn saw(&self, written: bool) {
        let share = self.0.load(Ordering::Relaxed);
        let next = if written { share + ((ONE - share) >> SHIFT) } else { share - (share >> SHIFT) };
        self.0.store(next, Ordering::Relaxed);
    }
}

impl Rewrites {
    /// Takes pages to be used as before until they show otherwise.
    pub fn new() -> Rewrites {
        let learned = |share| Learned { share: Share(AtomicU32::new(share)), later: Share(AtomicU32::new(0)) };
        let (lift_ns, in_vain_ns) = (AtomicU32::new(800), AtomicU32::new(IN_VAIN_NS));
        Rewrites { written: learned(ONE), read: learned(0), lift_ns, in_vain_ns }
    }

    /// How pages leave; whether all slots are mapped.
    pub fn leave(&self, how: Settled, mapped: bool) {
        let in_vain_ns = match (how, mapped) {
            (Settled::Still, true) => IN_VAIN_STILL_NS,
            (Settled::Still, false) => IN_VAIN_HASHED_NS,
            (Settled::Held, true) => IN_VAIN_HELD_NS,
            (Settled::Held, false) => IN_VAIN_HASHED_NS + IN_VAIN_HELD_NS - IN_VAIN_STILL_NS,
            (Settled::Protected, _) => IN_VAIN_NS,
        };
        self.in_vain_ns.store(in_vain_ns, Ordering::Relaxed);
    }

    fn of(&self, page: Word) -> &Learned {
        if page.written() { &self.written } else { &self.read }
    }

    /// The share from which on it pays to bring pages in writable, of [`ONE`].
    #[inline]
    fn worth(&self) -> u32 {
        let in_vain_ns = self.in_vain_ns.load(Ordering::Relaxed);
        ONE * in_vain_ns / (in_vain_ns + FAULT_NS + self.lift_ns.load(Ordering::Relaxed))
    }

    /// Whether a page with this word, now to be read, is so likely to be written that it had best be writable.
    #[inline]
    pub fn likely(&self, page: Word) -> bool {
        self.of(page).share.is_at_least(self.worth())
    }

    /// What lifting a protection took. Follows the median, about: a mean would take one lost time slice for many
    /// dear calls.
    #[inline]
    pub fn lifted(&self, ns: u64) {
        let of_late = self.lift_ns.load(Ordering::Relaxed);
        let step = of_late / 16;
        let next = if ns > of_late as u64 { (of_late + step + 10).min(100_000) } else { of_late - step };
        self.lift_ns.store(next, Ordering::Relaxed);
    }

    /// The thread that read a protected page in went on to another. Where pages come in protected anyhow, what
    /// becomes of them says more, and is heard too.
    #[inline]
    pub fn not_at_once(&self, page: Word) {
        let (learned, worth) = (self.of(page), self.worth());
        if learned.share.is_at_least(worth) && !learned.later.is_at_least(worth) {
            // A sample speaks for many.
            let share = learned.share.0.load(Ordering::Relaxed);
            learned.share.0.store(share - (share >> 2), Ordering::Relaxed);
        }
    }

    /// What became of a page that came in writable.
    #[inline]
    pub fn saw(&self, page: Word, written: bool) {
        self.of(page).share.saw(written);
    }

    /// What became of a page that came in protected; `at_once`: it was the next that its thread faulted on.
    #[inline]
    pub fn saw_protected(&self, page: Word, written: bool, at_once: bool) {
        let learned = self.of(page);
        learned.share.saw(written);
        if !at_once {
            learned.later.saw(written);
        }
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
        assert!(samples.is_some_and(|n| n <= 5));
    }

    #[test]
    fn the_dearer_an_upgrade_the_sooner_it_is_avoided() {
        let page = Word::UNTOUCHED;
        for (lift_ns, every) in [(800u64, 3u32), (15_000, 8)] {
            let rewrites = Rewrites::new();
            (0..200).for_each(|_| rewrites.lifted(lift_ns));
            let found = rewrites.lift_ns.load(Ordering::Relaxed) as f64;
            assert!((found / lift_ns as f64 - 1.0).abs() < 0.2, "{found} for {lift_ns}");
            // One page in so many is written: worth it where upgrades are dear, by a half too few where they are not.
            (0..1000u32).for_each(|visit| rewrites.saw_protected(page, visit % every == 0, false));
            assert_eq!(rewrites.likely(page), lift_ns > 10_000, "{lift_ns}");
            rewrites.leave(Settled::Still, true);
            assert!(rewrites.likely(page), "nothing is protected on its way out");
        }
    }

    /// A tree is searched downwards and changed upwards: pages are written, but never as the very next thing.
    #[test]
    fn pages_that_are_written_later_stay_likely() {
        let rewrites = Rewrites::new();
        let page = Word::UNTOUCHED.with_written(true);
        let (mut writable, mut guesses) = (0, 0);
        for visit in 0..4000u32 {
            let written = visit % 3 != 0;
            if rewrites.likely(page) && !is_sample(&mut guesses) {
                writable += 1;
                rewrites.saw(page, written);
            } else {
                rewrites.not_at_once(page);
                rewrites.saw_protected(page, written, false);
            }
        }
        assert!(writable > 3800, "{writable} of 4000 came in writable");
    }
}
