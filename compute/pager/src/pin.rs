//! Pins: pages that a system call is about to use stay present until it returns.
//!
//! The kernel's own access to an absent page fails with EFAULT instead of
//! faulting, so the guard pins what a call will touch. For pages that are
//! resident this takes no lock and blocks no signal; the others are served like
//! faults, with signals blocked, because a handler of the program's that ran in
//! between could fault on the locks held.

use crate::Pager;
use crate::fault::Served;
use crate::word::{AtomicWord, State, Word};
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::Ordering;

/// Of local memory, what long calls may pin together is the half: the other is for whoever faults meanwhile.
const PINNED_PART: u64 = 2;

impl Pager {
    /// The most pages that are pinned for long calls, of those that take turns.
    pub fn most_pins(&self) -> u64 {
        self.limit / PINNED_PART
    }

    /// Whether a long call may pin so many pages now; then they are claimed.
    pub fn claim_pins(&self, pages: u64) -> bool {
        let claim = |claimed: u64| (claimed + pages <= self.most_pins()).then_some(claimed + pages);
        self.long_pins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_ok()
    }

    /// Its pages are unpinned.
    pub fn give_back_pins(&self, pages: u64) {
        let less = |claimed: u64| claimed.checked_sub(pages);
        let _ = self.long_pins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// In a forked child: who has claimed or pinned pages does not exist here.
    pub(crate) fn forget_claims(&self) {
        self.long_pins.store(0, Ordering::Relaxed);
        self.crowd.forget();
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Tells whether pins may have been lost since: pages were unmapped or moved from under them. Asked before the first of a
    /// call is made.
    #[inline]
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Takes pins back that were made after `losses` was asked, by a call that was left. If some page has lost its pins
    /// since, it may have been one of theirs, and what is pinned there now another call's: then all stay. None is lost
    /// between the look and the last page ([`Pager::take_page`]).
    pub fn unpin_left(&self, ranges: &[(usize, usize)], losses: u64) {
        let _signals = SignalsBlocked::new();
        // No fork while the lock is held.
        let _inside = self.threads.enter();
        let _losing = self.losing.lock();
        if self.losses() == losses {
            ranges.iter().for_each(|&(addr, len)| self.unpin(addr, len));
        }
    }

    /// Makes a page the caller's (Busy), whatever pins it; false when its word is not `seen` any more. Its pins are lost, and
    /// that is told before anybody can pin what is there next.
    pub(crate) fn take_page(&self, word: &AtomicWord, seen: Word) -> bool {
        let to = Word::UNTOUCHED.to(State::Busy);
        if seen.state() != State::Resident || seen.pins() == 0 {
            return word.shift(seen, to);
        }
        let _losing = self.losing.lock();
        self.losses.fetch_add(1, Ordering::SeqCst);
        let taken = word.shift(seen, to);
        if taken {
            self.lost_pins();
        }
        taken
    }

    /// Makes the pages of `addr..addr + len` present (writable if `write`) and keeps them so until
    /// [`Pager::unpin`]. Returns the number of bytes from `addr` for which this holds; fewer than
    /// `len` where the range leaves the program's far mappings.
    pub fn pin(&self, addr: usize, len: usize, write: bool) -> usize {
        self.pin_for(addr, len, write, false)
    }

    /// [`Pager::pin`] for an access that the mapping's protection does not hinder, as the kernel's by `/proc/self/mem`.
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
        let word = self.table.word(page);
        loop {
            let seen = word.load();
            if seen.state() == State::Resident && (!write || seen.writable()) {
                if word.pin(seen) {
                    return true;
                }
                if seen.pins() == crate::word::MAX_PINS {
                    return false;
                }
                continue;
            }
            let _signals = SignalsBlocked::new();
            let mut inside = self.threads.enter();
            // The kernel says EFAULT of what nobody may read. To bring it in would be of no use, and eviction could not
            // read it either: a block that is not in use is not marked (see `Table::mark_unreadable`).
            if seen.state() == State::Untouched {
                if forced {
                    self.look_before_touch(page);
                } else if self.space.lock().is_barred(page.addr()) {
                    return false;
                }
            }
            if self.serve(&mut inside, page, write, clock::ticks()) == Served::Unmapped {
                return false;
            }
        }
    }

    /// Takes back what [`Pager::pin`] pinned: the same address, and the length that it returned.
    pub fn unpin(&self, addr: usize, len: usize) {
        if len == 0 || !is_far(addr) {
            return;
        }
        let (first, last) = (PageId::of(addr), PageId::of(addr + len - 1));
        for page in first.0..=last.0 {
            if let Some(seen) = self.table.word(PageId(page)).unpin() {
                self.lost_pin(seen);
            }
        }
    }
}
