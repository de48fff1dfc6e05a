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
//! (When, [`crate::choice`] decides, as long as it pays: [`crate::worth`].) All of it that is dirty gets P in its word. Where pages to protect lie far
//! apart, or one must not be touched, a stretch ends, and the next one is another call: those that would be a call for hardly a
//! page are left out. The next batches find their victims protected; a page that is written to meanwhile takes a fault that lifts its
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
//!   word: → Busy                   sweeping = true               for each call
//!   wait until !sweeping           words: Busy or pinned? the call ends before it
//!   install, or lift               protect
//!   word: → Resident, D            sweeping = false
//! ```
//!
//! Either the sweep sees Busy, or the other sees `sweeping`: all four accesses are SeqCst (Dekker).
//! The wait is for a loop over at most [`LONGEST`] words and one call; a sweep waits for nobody.

use crate::Pager;
use crate::choice::{How, neighbours, stretches};
use crate::ending::broken;
use crate::evict::{Evictor, Leaving};
use crate::word::State;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_sys::clock;
use std::sync::atomic::Ordering;

/// Pages from the first to the last of one call, at most: some 0.3 ms, for which others may have to wait.
const LONGEST: u64 = 32_768;

/// How an eviction protects what is writable.
const HOLD: bool = true;

/// How dirty pages that leave are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dirty {
    /// In their mapping, before it goes: nobody can write there.
    AsTheyAre,
    /// From what is held of them, when their mapping is gone.
    Held,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protect {
    /// By calls or by a sweep, whichever these have shown to be better. Not at all where the program is still ([`crate::still`]).
    Measured,
    /// [`Protect::Measured`], and the program runs meanwhile: by the background thread.
    Beside,
    /// By calls, unless sweeps are forced. What they cost says nothing of what those of the background thread would: they
    /// interrupt one CPU less. (Over tcp: [`crate::meanwhile`].) Not at all where the program is still.
    Singly,
}

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

/// What came of a part of a sweep, one call if the kernel did not refuse it.
struct Call {
    /// The page to go on with.
    next: u64,
    /// Calls made.
    taken: usize,
    /// Pages that have P now, and stay.
    swept: u64,
}

/// Neighbours that leave, from the first writable one to the last: what one call protects.
fn runs_of_writable(leaving: &[Leaving]) -> impl Iterator<Item = &[Leaving]> {
    leaving.chunk_by(neighbours).filter_map(|together| {
        let writable = |l: &Leaving| l.from.writable();
        let (first, last) = (together.iter().position(writable)?, together.iter().rposition(writable)?);
        Some(&together[first..=last])
    })
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

    /// Step 2 of an eviction: nothing can be written any more to a dirty page that leaves, or what is written goes to what is held.
    pub(crate) fn settle_dirty(&self, evictor: &mut Evictor, how: Protect) -> Dirty {
        if how != Protect::Beside {
            // Where the kernel notes first writes nothing may be protected: a sweep would give pages that were written since they were
            // asked about their marks back. There the program is still, or has ended ([`crate::marks`]).
            let still = evictor.marks.is_some() || !evictor.sweeps.always && self.is_still(evictor);
            if self.headroom.found(still) {
                self.rewrites.leave_still(still, self.pool.all_mapped());
            }
            if still {
                return Dirty::AsTheyAre;
            }
        }
        if HOLD && self.hold_dirty(evictor) {
            return Dirty::Held;
        }
        if how == Protect::Singly && !evictor.sweeps.always {
            for pages in runs_of_writable(&evictor.leaving) {
                self.protect_together(pages);
            }
            return Dirty::AsTheyAre;
        }
        let how = evictor.sweeps.how(&evictor.leaving);
        if how == How::Few {
            self.keep_rewritten(evictor);
        }
        let taken = if how == How::Sweep { self.sweep(evictor) } else { self.protect_leaving(evictor) };
        evictor.sweeps.judge(&evictor.leaving, taken, self.lost_to_sweeps.load(Ordering::Relaxed));
        Dirty::AsTheyAre
    }

    /// A few victims that are writable where sweeps have passed: written to since, hence in use. They
    /// stay, all but one, whose protecting call tells whether calls are dear still.
    fn keep_rewritten(&self, evictor: &mut Evictor) {
        let mut policy = self.policy();
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

    /// Protects victims by themselves; by how many calls.
    fn protect_leaving(&self, evictor: &mut Evictor) -> usize {
        let mut taken = 0;
        for pages in runs_of_writable(&evictor.leaving) {
            let begun = clock::ticks();
            taken += self.protect_together(pages);
            evictor.sweeps.call_took(clock::ns(clock::ticks() - begun));
        }
        taken
    }

    /// Protects neighbours that leave. What is protected among them stays so: nobody else touches a page that leaves.
    fn protect_together(&self, pages: &[Leaving]) -> usize {
        if self.uffd.protect(pages[0].page.addr(), pages.len() * PAGE_BYTES, true).is_ok() {
            return 1;
        }
        // They span mappings; each page lies in one.
        let writable = pages.iter().filter(|l| l.from.writable());
        for l in writable.clone() {
            if let Err(e) = self.uffd.protect(l.page.addr(), PAGE_BYTES, true) {
                broken(&format!("page {:#x}: write protection failed with {e}", l.page.addr()));
            }
        }
        1 + writable.count()
    }

    /// Protects victims and what lies around them; by how many calls.
    fn sweep(&self, evictor: &mut Evictor) -> usize {
        let mut wanted = std::mem::take(&mut evictor.sweeps.wanted);
        wanted.clear();
        self.policy().upcoming(evictor.sweeps.ahead, &mut wanted);
        wanted.retain(|&page| {
            let seen = self.table.word(page).load();
            seen.state() == State::Resident && seen.writable()
        });
        wanted.extend(evictor.leaving.iter().filter(|l| l.from.writable()).map(|l| l.page));
        wanted.sort_unstable();

        let leaves = |page| self.table.word(page).load().state() == State::Leaving;
        let (mut taken, mut swept) = (0, 0);
        for stretch in stretches(&wanted, leaves) {
            let end = stretch[stretch.len() - 1].0 + 1;
            let mut at = stretch[0].0;
            while at < end {
                self.sweeping.store(true, Ordering::SeqCst);
                let call = self.sweep_once(at, end.min(at + LONGEST));
                self.sweeping.store(false, Ordering::SeqCst);
                (at, taken, swept) = (call.next, taken + call.taken, swept + call.swept);
            }
        }
        self.count(&self.counters.sweeps, 1);
        self.count(&self.counters.swept, swept);
        evictor.sweeps.wanted = wanted;
        taken
    }

    /// Protects what can be protected from page `from` on, before the first that cannot be, or `to`.
    fn sweep_once(&self, from: u64, to: u64) -> Call {
        let (mut end, mut swept) = (from, 0);
        while end < to {
            match self.mark_protected(PageId(end)) {
                Mark::New => swept += 1,
                Mark::Needless => {}
                Mark::Refused => break,
            }
            end += 1;
        }
        let taken = if end > from { self.protect_marked(PageId(from), PageId(end)) } else { 0 };
        // A page that is refused is passed over.
        Call { next: if end < to { end + 1 } else { end }, taken, swept }
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

    /// Makes true what was marked, from page `from` to before `to`; by how many calls.
    fn protect_marked(&self, from: PageId, to: PageId) -> usize {
        if self.uffd.protect(from.addr(), (to.0 - from.0) as usize * PAGE_BYTES, true).is_ok() {
            return 1;
        }
        // Kernels before 6.4 want one mapping; or one has gone meanwhile. By halves, then, and what cannot
        // be protected at all loses its P.
        if to.0 - from.0 > 1 {
            let middle = PageId(from.0 + (to.0 - from.0) / 2);
            let mut taken = 1;
            for (from, to) in [(from, middle), (middle, to)] {
                if (from.0..to.0).any(|page| self.is_marked(PageId(page))) {
                    taken += self.protect_marked(from, to);
                }
            }
            return taken;
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
        1
    }

    fn is_marked(&self, page: PageId) -> bool {
        let seen = self.table.word(page).load();
        seen.state() == State::Leaving || seen.state() == State::Resident && seen.dirty() && seen.protected()
    }
}
