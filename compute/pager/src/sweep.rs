//! Write protection of dirty pages on their way out.
//!
//! Protecting pages is one call for a run of addresses, and one TLB flush, which
//! interrupts every other CPU that the program runs on: 0.5 µs where it runs on one,
//! 15 µs and more where it runs on two virtual ones. Dirty victims are scattered. So
//! where calls turn out dear, one call protects a whole stretch of addresses:
//!
//! ```text
//!   victims of this batch       v     v  v         v          v
//!   soon to be victims        s   s  s       s   s    s    s    s
//!   between them            . . . . . . . . . . . . . . . . . . . .
//!   swept                   |--------- one call, one flush ---------|
//! ```
//!
//! (And as long as that pays: [`crate::worth`].) All of it that is dirty gets P in its word. The next batches find their victims
//! protected; a page that is written to meanwhile takes a fault that lifts its
//! protection again ([`crate::fault`], *upgrade*), as the first write to a clean page does.
//!
//! **P tells the truth**, in both directions that matter:
//!
//! * *With P, the kernel has the page protected*: eviction trusts it. P is set and read only
//!   under the evictor's lock, and the call that makes it true lies before its release.
//!   Whoever lifts the protection takes P away first (the page is Busy from then on).
//! * *With D and without P, the page is writable*: a pin trusts it, for the kernel's own write to
//!   a protected page would fail. So a sweep may not pass over a page that is being made
//!   writable, nor one that is pinned:
//!
//! ```text
//!   who makes writable             the sweep
//!   ------------------             ---------
//!   word: → Busy                   sweeping = true
//!   wait until !sweeping           words: Busy or pinned? not in the stretch
//!   install, or lift               protect the stretch
//!   word: → Resident, D            sweeping = false
//! ```
//!
//! Either the sweep sees Busy, or the other sees `sweeping`: all four accesses are SeqCst (Dekker).
//! The wait is for a loop over words and one call; a sweep waits for nobody.

use crate::Pager;
use crate::ending::broken;
use crate::evict::{Evictor, Leaving};
use crate::word::State;
use crate::worth::Worth;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_sys::clock;
use std::sync::atomic::Ordering;

/// A protecting call that takes longer interrupts other CPUs. Somewhat more than an upgrade costs.
const DEAR_NS: u64 = 2_500;
/// Writable victims, and runs of them, are few, and not worth a sweep, up to this part of a batch.
const FEW: usize = 8;
/// Stretches are joined over gaps of so many pages: walking them costs some 10 ns each.
const GAP: u64 = 256;
/// How many of the pages that leave next are swept, at most.
const AHEAD: usize = 16_384;

/// What a sweep finds of a page in its stretch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// It was writable, and has P now.
    New,
    /// The call may pass over it: nothing of it changes that is not this eviction's own.
    Needless,
    /// The call must not touch it.
    Refused,
}

/// What sweeps remember.
pub struct Sweeps {
    always: bool,
    /// What a call for one run of victims takes of late, ns.
    call_ns: u64,
    /// Pages to protect; kept for its memory.
    wanted: Vec<PageId>,
    /// How many of the pages that leave next go along.
    ahead: usize,
    worth: Worth,
    /// Faults on swept pages, as [`Pager::upgrade`] counts them, when last looked at.
    lost: u64,
}

impl Sweeps {
    /// For a cache of `limit` pages. `always`: however cheap calls are.
    pub fn new(limit: usize, always: bool) -> Sweeps {
        let ahead = (limit / 8).min(AHEAD);
        Sweeps { always, call_ns: 0, wanted: Vec::new(), ahead, worth: Worth::new(), lost: 0 }
    }

    fn dear(&self) -> bool {
        self.call_ns > DEAR_NS
    }

    /// Follows the median: a mean would take one lost time slice for a thousand dear calls.
    fn call_took(&mut self, ns: u64) {
        let step = self.call_ns / 8;
        self.call_ns = if ns > self.call_ns { self.call_ns + step + 50 } else { self.call_ns - step };
    }
}

/// Runs of neighbours among pages that leave: so many calls they take.
fn runs(leaving: &[Leaving], which: impl Fn(&Leaving) -> bool) -> usize {
    let mut last = None;
    leaving
        .iter()
        .filter(|l| which(l))
        .filter(|l| last.replace(l.page.0).is_none_or(|before| before + 1 != l.page.0))
        .count()
}

impl Pager {
    /// Waits until no sweep is under way. For who owns Busy pages and is about to make them writable.
    #[inline(always)]
    pub(crate) fn await_sweep(&self) {
        let mut rounds = 0;
        while self.sweeping.load(Ordering::SeqCst) {
            rounds += 1;
            self.wait_for_owner(rounds);
        }
    }

    /// Step 2 of an eviction: every dirty page that leaves is write-protected.
    pub(crate) fn protect_dirty(&self, evictor: &mut Evictor) {
        let few = evictor.leaving.len() / FEW;
        let pays = evictor.sweeps.always || evictor.sweeps.dear() && evictor.sweeps.worth.pays();
        let swept = pays && runs(&evictor.leaving, |l| l.from.writable()) > few;
        self.judge_sweeps(evictor);
        if swept {
            return self.sweep(evictor);
        }
        if pays && evictor.leaving.iter().filter(|l| l.from.writable()).count() <= few {
            self.keep_rewritten(evictor);
        }
        let mut rest = evictor.leaving.as_slice();
        while let Some(first) = rest.iter().position(|l| l.from.writable()) {
            rest = &rest[first..];
            let next = |w: &&[Leaving]| w[1].from.writable() && w[1].page.0 == w[0].page.0 + 1;
            let run = 1 + rest.windows(2).take_while(next).count();
            let begun = clock::ticks();
            self.protect_leaving(rest[0].page, run);
            evictor.sweeps.call_took(clock::ns(clock::ticks() - begun));
            rest = &rest[run..];
        }
    }

    /// What has come of the sweeps so far, for [`Worth`]. Of batches whose dirty pages lie together nothing is learned:
    /// they take few calls in any case.
    fn judge_sweeps(&self, evictor: &mut Evictor) {
        if !evictor.sweeps.dear() || runs(&evictor.leaving, |l| l.from.dirty()) <= evictor.leaving.len() / FEW {
            return;
        }
        let spared = runs(&evictor.leaving, |l| l.from.dirty() && !l.from.writable()) as u64;
        let all_lost = self.lost_to_sweeps.load(Ordering::Relaxed);
        let sweeps = &mut evictor.sweeps;
        let lost = all_lost - std::mem::replace(&mut sweeps.lost, all_lost);
        sweeps.worth.saw(spared, lost);
    }

    /// A few victims that are writable where sweeps have passed: written to since, hence in use. They
    /// stay, all but one, whose protecting call tells whether calls are dear still.
    fn keep_rewritten(&self, evictor: &mut Evictor) {
        let mut policy = self.policy.lock();
        let mut one = false;
        evictor.leaving.retain(|l| {
            let goes = !l.from.writable() || !std::mem::replace(&mut one, true);
            if !goes {
                self.table.word(l.page).set(l.from);
                policy.kept(l.page);
            }
            goes
        });
    }

    fn protect_leaving(&self, page: PageId, run: usize) {
        if self.uffd.protect(page.addr(), run * PAGE_BYTES, true).is_ok() {
            return;
        }
        // The run spans mappings; each page lies in one.
        for i in 0..run {
            if let Err(e) = self.uffd.protect(page.addr() + i * PAGE_BYTES, PAGE_BYTES, true) {
                broken(&format!("page {:#x}: write protection failed with {e}", page.addr() + i * PAGE_BYTES));
            }
        }
    }

    fn sweep(&self, evictor: &mut Evictor) {
        let mut wanted = std::mem::take(&mut evictor.sweeps.wanted);
        wanted.clear();
        self.policy.lock().upcoming(evictor.sweeps.ahead, &mut wanted);
        wanted.retain(|&page| {
            let seen = self.table.word(page).load();
            seen.state() == State::Resident && seen.writable()
        });
        wanted.extend(evictor.leaving.iter().filter(|l| l.from.writable()).map(|l| l.page));
        wanted.sort_unstable();

        self.sweeping.store(true, Ordering::SeqCst);
        let stretches = wanted.chunk_by(|a, b| b.0 - a.0 <= GAP);
        let swept = stretches.map(|stretch| self.sweep_stretch(stretch[0], stretch[stretch.len() - 1])).sum();
        self.sweeping.store(false, Ordering::SeqCst);
        self.count(&self.counters.sweeps, 1);
        self.count(&self.counters.swept, swept);
        evictor.sweeps.wanted = wanted;
    }

    /// Protects all that can be protected from `first` to `last`; how many pages that stay.
    fn sweep_stretch(&self, first: PageId, last: PageId) -> u64 {
        let (mut from, mut swept) = (None, 0);
        for page in (first.0..=last.0).map(PageId) {
            let marked = self.mark_protected(page);
            swept += (marked == Mark::New) as u64;
            if marked != Mark::Refused {
                from.get_or_insert(page);
            } else if let Some(from) = from.take() {
                self.protect_marked(from, page);
            }
        }
        if let Some(from) = from {
            self.protect_marked(from, PageId(last.0 + 1));
        }
        swept
    }

    /// Sets P where the call will make it true.
    fn mark_protected(&self, page: PageId) -> Mark {
        let word = self.table.word(page);
        loop {
            let seen = word.load();
            match seen.state() {
                State::Busy => return Mark::Refused,
                State::Resident if seen.writable() => {
                    if seen.pins() > 0 {
                        return Mark::Refused;
                    }
                    if word.shift(seen, seen.with_protected(true)) {
                        return Mark::New;
                    }
                }
                // Leaving: this eviction's own. Clean or protected: stays so. Absent: nothing to protect.
                _ => return Mark::Needless,
            }
        }
    }

    fn protect_marked(&self, from: PageId, to: PageId) {
        if self.uffd.protect(from.addr(), (to.0 - from.0) as usize * PAGE_BYTES, true).is_ok() {
            return;
        }
        // Kernels before 6.4 want one mapping; or one has gone meanwhile. By halves, then, and what cannot
        // be protected at all loses its P.
        if to.0 - from.0 > 1 {
            let middle = PageId(from.0 + (to.0 - from.0) / 2);
            for (from, to) in [(from, middle), (middle, to)] {
                if (from.0..to.0).any(|page| self.is_marked(PageId(page))) {
                    self.protect_marked(from, to);
                }
            }
            return;
        }
        let word = self.table.word(from);
        let seen = word.load();
        if seen.state() == State::Leaving {
            broken(&format!("page {:#x} is on its way out and cannot be protected", from.addr()));
        }
        // Its mapping is going; whoever takes it away owns the word by now, or will not ask.
        if seen.state() == State::Resident && seen.protected() {
            word.shift(seen, seen.with_protected(false));
        }
    }

    fn is_marked(&self, page: PageId) -> bool {
        let seen = self.table.word(page).load();
        seen.state() == State::Leaving || seen.state() == State::Resident && seen.dirty() && seen.protected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_time_slice_makes_no_call_dear() {
        let mut sweeps = Sweeps::new(1 << 16, false);
        let mut took = |ns, n| {
            (0..n).for_each(|_| sweeps.call_took(ns));
            sweeps.call_ns
        };
        assert!((500..800).contains(&took(600, 200)));
        took(3_000_000, 3);
        assert!(took(600, 3) < DEAR_NS);
        assert!(took(15_000, 60) > DEAR_NS, "a second thread has started");
        assert!(took(600, 60) < DEAR_NS, "it has ended");
    }
}
