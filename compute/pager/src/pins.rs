//! Pins: pages that a system call is about to use stay present until it returns.
//!
//! The kernel's own access to an absent page fails with EFAULT instead of
//! faulting, so the guard pins what a call will touch. For pages that are
//! resident this takes no lock and blocks no signal; the others are served like
//! faults, with signals blocked, because a handler of the program's that ran in
//! between could fault on the locks held.

use crate::base::Base;
use crate::incoming::{Incoming, Served};
use crate::local::Local;
use crate::thread::Inside;
use crate::word::{AtomicWord, State, Word};
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::members;
use farmem_sys::raw::SignalsBlocked;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Losses that are remembered by page.
const REMEMBERED: usize = 128;

/// Pages that were taken away from under their pins recently. A call that had pinned some of them,
/// and takes its own pins back, must leave these pages alone: they may be mapped again since, and
/// pinned by another call.
struct Lost {
    /// Losses so far.
    number: u64,
    /// The last of which not all are remembered.
    forgotten: u64,
    /// Loss `n` is at `n % REMEMBERED`.
    pages: [PageId; REMEMBERED],
}

impl Lost {
    /// None.
    pub const fn new() -> Lost {
        Lost { number: 0, forgotten: 0, pages: [PageId(0); REMEMBERED] }
    }

    fn add(&mut self, page: PageId) {
        self.number += 1;
        self.forgotten = self.forgotten.max(self.number.saturating_sub(REMEMBERED as u64));
        self.pages[self.number as usize % REMEMBERED] = page;
    }

    /// Any page may have lost its pins.
    fn add_all(&mut self) {
        self.number += 1;
        self.forgotten = self.number;
    }

    /// Whether a page may have lost its pins since `losses` losses.
    fn since(&self, losses: u64, page: PageId) -> bool {
        losses < self.forgotten || (losses + 1..=self.number).any(|n| self.pages[n as usize % REMEMBERED] == page)
    }
}

/// The pages that a far range touches.
fn pages_of(addr: usize, len: usize) -> impl Iterator<Item = PageId> {
    let some = len > 0 && is_far(addr);
    let (first, end) = if some { (PageId::of(addr).0, PageId::of(addr + len - 1).0 + 1) } else { (0, 0) };
    (first..end).map(PageId)
}

/// Pages that system calls use.
pub struct Pins {
    base: &'static Base,
    local: &'static Local,
    incoming: &'static Incoming,
    /// How many times pages were taken away from under their pins.
    losses: AtomicU64,
    /// Which pages those were. Held while a page is taken away.
    losing: Lock<Lost>,
}

impl Pins {
    pub(crate) fn new(base: &'static Base, local: &'static Local, incoming: &'static Incoming) -> Pins {
        Pins { base, local, incoming, losses: AtomicU64::new(0), losing: Lock::new(Lost::new()) }
    }

    /// The most pages that are pinned now for long calls, of those that take turns: fewer where
    /// objects have much of local memory.
    pub fn most_pins(&self) -> u64 {
        self.local.crowd.most_pins(self.local.limit())
    }

    /// Claims `pages` pages for the pins of a long call. False if too many are claimed.
    pub fn claim_pins(&self, pages: u64) -> bool {
        self.local.crowd.claim(pages, self.local.limit())
    }

    /// Its pages are unpinned.
    pub fn give_back_pins(&self, pages: u64) {
        self.local.crowd.unclaim(pages);
    }

    /// In a forked child: the threads that claimed or pinned pages do not exist here.
    pub(crate) fn forget_claims(&self) {
        self.local.crowd.forget_threads();
        let mut lost = self.losing.lock();
        lost.add_all();
        self.losses.store(lost.number, Ordering::SeqCst);
    }

    /// The number of times that pages were unmapped or moved from under their pins. A call asks
    /// before it makes its first pin, and again before it takes its pins back.
    #[inline]
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Takes pins back that were made after `losses` was asked. Pages that have lost their pins
    /// since are left out: a pin there is another call's now. (A pin made between the asking and a
    /// loss may stay.) No page loses its pins between the look and the last page:
    /// [`Pins::take_page`] takes the same lock.
    pub fn unpin_since<'r>(&self, ranges: impl Iterator<Item = &'r (usize, usize)>, losses: u64) {
        if self.losses() == losses {
            // (A page that loses its pins right now, and is another's before the next instruction,
            // is not told from ours. Telling it would take a lock in each call, which all threads
            // share.)
            return ranges.for_each(|&(addr, len)| self.unpin(addr, len));
        }
        let _signals = SignalsBlocked::new();
        // No fork while the lock is held.
        let _inside = self.base.threads.enter();
        let lost = self.losing.lock();
        for &(addr, len) in ranges {
            pages_of(addr, len).filter(|&page| !lost.since(losses, page)).for_each(|page| self.unpin_page(page));
        }
    }

    /// Makes a page the caller's (Busy), even if it is pinned. False when its word is not `seen`
    /// any more. Its pins are lost, which is told before the page that comes next can be pinned.
    pub(crate) fn take_page(&self, page: PageId, word: &AtomicWord, seen: Word) -> bool {
        let to = Word::UNTOUCHED.to(State::Busy);
        if seen.state() != State::Resident || seen.pins() == 0 {
            return word.shift(seen, to);
        }
        let mut lost = self.losing.lock();
        let taken = word.shift(seen, to);
        if taken {
            lost.add(page);
            self.losses.store(lost.number, Ordering::SeqCst);
            self.local.lost_pins();
        }
        taken
    }

    /// Makes the pages of `addr..addr + len` present (writable if `write`) and keeps them so until
    /// [`Pins::unpin`]. Returns the number of bytes from `addr` for which this holds; fewer than
    /// `len` where the range leaves the program's far mappings.
    pub fn pin(&self, addr: usize, len: usize, write: bool) -> usize {
        self.pin_for(addr, len, write, false)
    }

    /// [`Pins::pin`] for an access that ignores the mapping's protection, as the kernel's by
    /// `/proc/self/mem` does.
    pub fn pin_forced(&self, addr: usize, len: usize, write: bool) -> usize {
        self.pin_for(addr, len, write, true)
    }

    fn pin_for(&self, addr: usize, len: usize, write: bool, forced: bool) -> usize {
        if len == 0 || !is_far(addr) {
            return 0;
        }
        let mut at = addr;
        let end = addr.saturating_add(len);
        while at < end && is_far(at) {
            if !self.pin_page(PageId::of(at), write, forced) {
                break;
            }
            at = (at | (PAGE_BYTES - 1)) + 1;
        }
        at.min(end) - addr
    }

    fn pin_page(&self, page: PageId, write: bool, forced: bool) -> bool {
        let word = self.base.table.word(page);
        loop {
            let seen = word.load();
            if seen.state() == State::Resident && (!write || seen.dirty()) {
                if word.pin(seen) {
                    return true;
                }
                if seen.pins() == crate::word::MAX_PINS {
                    return false;
                }
                continue;
            }
            let _signals = SignalsBlocked::new();
            members::notice();
            let mut inside = self.base.threads.enter();
            // The kernel says EFAULT for memory that nobody may read. Bringing it in would be of no
            // use, and eviction could not read it either: a block that is not in use is not marked
            // (see `Table::mark_unreadable`).
            if seen.state() == State::Untouched {
                if forced {
                    self.base.look_before_touch(page);
                } else if self.base.maps.lock().is_barred(page.addr()) {
                    return false;
                }
            }
            if self.incoming.serve(&mut inside, page, write, clock::ticks()) == Served::Unmapped {
                return false;
            }
        }
    }

    /// Pins a resident page for writing. False if it is not resident, or has too many pins. Takes
    /// no lock of mappings: nothing is served that is not there.
    pub(crate) fn pin_resident(&self, inside: &mut Inside<'_>, page: PageId) -> bool {
        let (word, mut rounds) = (self.base.table.word(page), 0);
        loop {
            let seen = word.load();
            match seen.state() {
                State::Busy | State::Leaving => {
                    rounds += 1;
                    self.base.wait_for_owner(rounds);
                }
                State::Resident if word.pin(seen) => break,
                State::Resident if seen.pins() < crate::word::MAX_PINS => {}
                _ => return false,
            }
        }
        // A pinned page stays: this lifts its protection at most.
        if word.load().dirty() || self.incoming.serve(inside, page, true, clock::ticks()) == Served::Here {
            return true;
        }
        self.unpin_page(page);
        false
    }

    /// Whether the program's mapping may forbid reading in some page of a range, which is pinned. It
    /// does not where the mapping was never such.
    pub fn may_be_unreadable(&self, addr: usize, len: usize) -> bool {
        pages_of(addr, len).any(|page| self.base.table.may_be_unreadable(page))
    }

    /// Takes back what [`Pins::pin`] pinned: the same address, and the length that it returned.
    pub fn unpin(&self, addr: usize, len: usize) {
        pages_of(addr, len).for_each(|page| self.unpin_page(page));
    }

    fn unpin_page(&self, page: PageId) {
        if let Some(seen) = self.base.table.word(page).unpin() {
            self.local.lost_pin(seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_lost_its_pins_is_known_for_a_while() {
        let mut lost = Lost::new();
        let seen = |lost: &Lost, since: u64| [1, 2, 3].map(|page| lost.since(since, PageId(page)));
        lost.add(PageId(1));
        lost.add(PageId(2));
        assert_eq!([0, 1, 2].map(|since| seen(&lost, since)), [[true, true, false], [false, true, false], [false; 3]]);
        (0..REMEMBERED as u64 - 1).for_each(|n| lost.add(PageId(100 + n)));
        assert_eq!(seen(&lost, 1), [false, true, false], "the oldest that is remembered");
        assert_eq!(seen(&lost, 0), [true; 3], "forgotten");
        let now = lost.number;
        lost.add_all();
        assert_eq!([seen(&lost, now), seen(&lost, now + 1)], [[true; 3], [false; 3]], "a fork's child");
    }
}
