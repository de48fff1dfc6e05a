//! Guesses, when a page is read, whether it will be stored to before it leaves.
//!
//! A page that comes in write-protected faults at its first store: an *upgrade*. An upgrade takes 2
//! µs, and 15 if lifting the protection interrupts another CPU. Most code that writes reads first
//! (`counter[i] += 1`), so the first access says little.
//!
//! A page that comes in writable needs no upgrade. It costs a comparison when it leaves
//! ([`crate::out::settle`]), and hashes at arrival if its slot is not mapped. That cost is *in
//! vain* if nothing was stored. Writable pays if at least this share of the pages is stored to:
//!
//! ```text
//!   share = in vain / (in vain + fault + lift)      fault, lift: the two parts of an upgrade
//!
//!   pages leave    in vain, ns    one thread runs    several threads run
//!   still          150            one page in 14     —
//!   held           400            —                  one in 6 to 40
//!   protected      1300           one in 3           one in 3 to 13
//! ```
//!
//! Two shares are learned: one for pages that were stored to when they were last local, one for the
//! others. The page word says which (W; G marks a page that came in writable by a guess; see
//! [`crate::word`]). Programs change from writing to reading in phases, so the last pages of a kind
//! predict the next.
//!
//! ```text
//!                                                                                            the share:
//! read fault ─┬─ likely ───► comes in writable, G ──► leaves ─┬─ differs from its slot ──► rises
//!             │                                               └─ equal ──────────────────► nears `silent`
//!             └─ unlikely ─► comes in protected ─┬─ upgrade ─────────────────────────────► rises
//!                                                └─ leaves clean ────────────────────────► falls
//! ```
//!
//! *Silent stores.* A page that comes in writable and leaves equal may have been stored to all the
//! same: a reference count goes up and down again. Only protected pages show such stores. `silent`
//! is the share of pages stored to among those that came in protected and left equal. An equal
//! writable page moves its kind's share towards that.
//!
//! *Samples.* The outcome of a writable page is known when it leaves, which is late. So every 64th
//! guess is a sample: it comes in protected. If its thread's next fault is not the store to it, the
//! share falls by a quarter at once. A phase of reading is then noticed within some hundred faults.
//! More samples cost writers more than readers won.
//!
//! *Later.* Some programs store to what they read, but touch other pages first. A search in a tree
//! faults its way down, and changes nodes on its way up. Samples say nothing about them. So `later`
//! is the share of protected pages that were stored to, but not at once. Samples are ignored while
//! it is high.
//!
//! A page that comes in by a write is no guess. Where it is compared when it leaves, it teaches
//! like the others.

use crate::word::Word;
use std::sync::atomic::{AtomicU32, Ordering};

/// One: every page is written.
const ONE: u32 = 1 << 16;
/// Weight of the newest page in a share: 2^-5, which is 1/32.
const SHIFT: u32 = 5;
/// … in [`Learned::silent`], which learns from few pages while most come in writable: 1/8.
const SILENT_SHIFT: u32 = 3;
/// The cost of a page that came in writable and was not written, ns, where pages are protected on
/// their way out.
const IN_VAIN_NS: u32 = 1_300;
/// … where dirty pages are held by reference when they leave.
const IN_VAIN_HELD_NS: u32 = 400;
/// … where no other thread runs, and the slot is mapped. The true cost is 300 ns. The constant is
/// lower, because an upgrade costs more than its own time: it displaces the program's cache lines.
const IN_VAIN_STILL_NS: u32 = 150;
/// … where no other thread runs, and hashes are kept of the page because its slot is not mapped.
const IN_VAIN_HASHED_NS: u32 = 500;
/// The cost of an upgrade without the call that lifts the protection, ns: entering and leaving the
/// signal handler.
const FAULT_NS: u32 = 1_200;

/// One guess in this many is a sample.
const SAMPLE: u32 = 64;

/// How most dirty pages of a batch were settled before they left ([`crate::out::settle`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    /// As they were: nothing else of the program ran.
    Still,
    /// Held by reference: their mapping went, and then they were read.
    Held,
    /// Write-protected.
    Protected,
}

/// Whether this guess, counted in `guesses`, is to be a sample.
#[inline]
pub(crate) fn is_sample(guesses: &mut u32) -> bool {
    *guesses = guesses.wrapping_add(1);
    (*guesses).is_multiple_of(SAMPLE)
}

/// Predicts whether a page that is read will be written. It learns apart for pages that were
/// written when they were last here (W), and for the others.
pub(crate) struct Rewrites {
    written: Learned,
    read: Learned,
    /// The time that lifting a protection took recently, ns.
    lift_ns: AtomicU32,
    /// The cost of a page in vain, ns. It follows from how pages leave ([`Rewrites::leave`]).
    in_vain_ns: AtomicU32,
}

/// Shares of pages that came in by a read.
struct Learned {
    /// Of all: the share that is stored to before it leaves.
    share: Share,
    /// Of those that came in protected and were not stored to at once: the share that is stored to
    /// later.
    later: Share,
    /// Of those that came in protected and left equal to their slots: the share that was stored to.
    silent: Share,
}

/// A moving average. Threads that change it at the same instant may overwrite one another. This is
/// statistics, and not worth a locked instruction.
struct Share(AtomicU32);

impl Share {
    #[inline]
    fn is_at_least(&self, share: u32) -> bool {
        self.0.load(Ordering::Relaxed) >= share
    }

    #[inline]
    fn saw(&self, stored: bool, shift: u32) {
        self.approach(if stored { ONE } else { 0 }, shift);
    }

    #[inline]
    fn approach(&self, target: u32, shift: u32) {
        let share = self.0.load(Ordering::Relaxed);
        let next =
            if target > share { share + ((target - share) >> shift) } else { share - ((share - target) >> shift) };
        self.0.store(next, Ordering::Relaxed);
    }
}

impl Rewrites {
    /// Takes pages to be used as before until they show otherwise.
    pub fn new() -> Rewrites {
        let share = |share| Share(AtomicU32::new(share));
        let learned = |first| Learned { share: share(first), later: share(0), silent: share(0) };
        let (lift_ns, in_vain_ns) = (AtomicU32::new(800), AtomicU32::new(IN_VAIN_NS));
        Rewrites { written: learned(ONE), read: learned(0), lift_ns, in_vain_ns }
    }

    /// Notes how pages leave now, and whether all slots are mapped. Both decide the cost of a page
    /// in vain.
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

    /// Whether a page with this word, now to be read, is so likely to be written that it should be
    /// writable.
    #[inline]
    pub fn likely(&self, page: Word) -> bool {
        self.of(page).share.is_at_least(self.worth())
    }

    /// Lifting a protection took `ns`. The estimate follows about the median. A mean would take one
    /// lost time slice for many expensive calls.
    #[inline]
    pub fn lifted(&self, ns: u64) {
        let of_late = self.lift_ns.load(Ordering::Relaxed);
        let step = of_late / 16;
        let next = if ns > of_late as u64 { (of_late + step + 10).min(100_000) } else { of_late - step };
        self.lift_ns.store(next, Ordering::Relaxed);
    }

    /// The thread that read a protected page in faulted elsewhere next. This counts only for
    /// samples. If pages of this kind come in protected anyway, [`Rewrites::saw_upgrade`] and
    /// [`Rewrites::saw_clean`] say more.
    #[inline]
    pub fn not_at_once(&self, page: Word) {
        let (learned, worth) = (self.of(page), self.worth());
        if learned.share.is_at_least(worth) && !learned.later.is_at_least(worth) {
            // A sample speaks for many.
            learned.share.saw(false, 2);
            learned.silent.saw(false, SILENT_SHIFT);
        }
    }

    /// A page was compared on its way out. `from` is its word, and `differs` says whether it
    /// differs from its slot. Returns whether it counts as stored to; that is its next W.
    #[inline]
    pub fn saw_compared(&self, from: Word, differs: bool) -> bool {
        let learned = self.of(from);
        match (from.upgraded(), differs) {
            // [`Rewrites::saw_upgrade`] has counted this store.
            (true, true) => true,
            (true, false) => {
                learned.silent.saw(true, SILENT_SHIFT);
                true
            }
            (false, true) => {
                learned.share.saw(true, SHIFT);
                true
            }
            (false, false) => {
                learned.share.approach(learned.silent.0.load(Ordering::Relaxed), SHIFT);
                learned.silent.is_at_least(ONE / 2)
            }
        }
    }

    /// The first store to a page that came in protected; `at_once`: it was the next fault of its
    /// thread.
    #[inline]
    pub fn saw_upgrade(&self, page: Word, at_once: bool) {
        let learned = self.of(page);
        learned.share.saw(true, SHIFT);
        if !at_once {
            learned.later.saw(true, SHIFT);
        }
    }

    /// A page that came in protected leaves, and was not stored to.
    #[inline]
    pub fn saw_clean(&self, page: Word) {
        let learned = self.of(page);
        learned.share.saw(false, SHIFT);
        learned.later.saw(false, SHIFT);
        learned.silent.saw(false, SILENT_SHIFT);
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
                rewrites.saw_compared(page, written);
                rewrites.likely(page) == written
            })
        };
        assert!(pages(before, false).is_some_and(|n| n < 40));
        assert!(pages(never, true).is_some_and(|n| n < 40));
        assert!((0..1000).all(|_| !rewrites.saw_compared(before, false)));
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
            // One page in `every` is written: worth it where upgrades are expensive, and by a half
            // too few where they are not.
            (0..1000u32).for_each(|visit| match visit % every {
                0 => rewrites.saw_upgrade(page, false),
                _ => rewrites.saw_clean(page),
            });
            assert_eq!(rewrites.likely(page), lift_ns > 10_000, "{lift_ns}");
            rewrites.leave(Settled::Still, true);
            assert!(rewrites.likely(page), "nothing is protected on its way out");
        }
    }

    /// A tree is searched downwards and changed upwards: pages are written, but never as the very
    /// next thing.
    #[test]
    fn pages_that_are_written_later_stay_likely() {
        let rewrites = Rewrites::new();
        let page = Word::UNTOUCHED.with_written(true);
        let (mut writable, mut guesses) = (0, 0);
        for visit in 0..4000u32 {
            let written = visit % 3 != 0;
            if rewrites.likely(page) && !is_sample(&mut guesses) {
                writable += 1;
                rewrites.saw_compared(page, written);
            } else {
                rewrites.not_at_once(page);
                match written {
                    true => rewrites.saw_upgrade(page, false),
                    false => rewrites.saw_clean(page),
                }
            }
        }
        assert!(writable > 3800, "{writable} of 4000 came in writable");
    }

    /// Pages that are local together. An outcome is known this many pages later.
    const LOCAL: usize = 500;

    /// Visits of pages by reads, each stored to silently if `stored` says so. Returns how many came
    /// in protected and were stored to, and how many came in writable and were not.
    fn visits(rewrites: &Rewrites, n: usize, stored: impl Fn(usize) -> bool) -> [usize; 2] {
        let (mut local, mut guesses, mut wrong) = (std::collections::VecDeque::new(), 0, [0, 0]);
        let mut word = Word::UNTOUCHED;
        for visit in 0..n {
            let stored = stored(visit);
            let writable = rewrites.likely(word) && !is_sample(&mut guesses);
            wrong[0] += (!writable && stored) as usize;
            wrong[1] += (writable && !stored) as usize;
            if !writable && stored {
                rewrites.saw_upgrade(word, true);
            }
            if !writable && !stored {
                rewrites.not_at_once(word);
            }
            local.push_back(word.with_dirty(writable || stored).with_upgraded(!writable && stored));
            if local.len() > LOCAL {
                let from = local.pop_front().unwrap();
                let written = if from.dirty() {
                    rewrites.saw_compared(from, false)
                } else {
                    rewrites.saw_clean(from);
                    false
                };
                word = Word::UNTOUCHED.with_written(written);
            }
        }
        wrong
    }

    #[test]
    fn silent_stores_are_stores() {
        for first in [false, true] {
            let rewrites = Rewrites::new();
            rewrites.leave(Settled::Still, true);
            if first {
                visits(&rewrites, 5000, |_| false);
            }
            let [upgrades, _] = visits(&rewrites, 20_000, |_| true);
            // A local memory of them, and samples.
            assert!(upgrades < LOCAL + 20_000 / SAMPLE as usize + 100, "{upgrades} upgrades");
            let [upgrades, in_vain] = visits(&rewrites, 20_000, |_| false);
            assert!(upgrades == 0 && in_vain < 3000, "{in_vain} in vain after stores have ended");
            // One in fifty: not worth it.
            let [_, in_vain] = visits(&rewrites, 50_000, |visit| visit % 50 == 0);
            assert!(in_vain < 5000, "{in_vain} in vain where few are stored to");
            let [upgrades, _] = visits(&rewrites, 50_000, |visit| visit % 3 == 0);
            assert!(upgrades < 2000, "{upgrades} upgrades where every third is stored to");
        }
    }
}
