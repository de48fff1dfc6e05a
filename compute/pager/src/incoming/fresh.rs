//! Fresh memory: a page that was never touched comes in as zeros, and with it, if touches are in order, the next.
//!
//! ```text
//! touch ─► reserve ─► claim: untouched ones next to it, Busy ─► zeros, by one call ─┬─► Resident, dirty
//!                                                               (by halves where    └─► those beyond their mapping: Untouched again
//!                                                               their mapping ends)
//! ```
//!
//! The commonest fault of all: 64 pages together cost less each than the kernel's own one at a time.

use super::Incoming;
use crate::base::not_installed;
use crate::incoming::Served;
use crate::thread::{Thread, WINDOW};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_cache::prefetch::Batch;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_run::Prefetch;
use farmem_sys::raw::Errno;
use std::ops::Range;

impl Incoming {
    /// Fresh memory: installs zeros, for as many pages as the thread's touches suggest.
    pub(crate) fn first_touch(&self, thread: &mut Thread, page: PageId) -> Served {
        let (batch, first, n) = self.claim_fresh(thread, page);
        let touched = (page.0 - first.0) as usize;
        let here = self.install_zeros(first, n, touched);
        let is_here = |i: usize| here >> i & 1 != 0;
        let filled = here.count_ones() as usize;
        let in_order = if touched == 0 { here.trailing_ones() } else { (here << (64 - n)).leading_ones() } as usize;
        if (1..batch.pages).contains(&in_order) {
            thread.first.shortened(batch, in_order);
        }
        let fresh = Word::UNTOUCHED.to(State::Resident).with_dirty(true);
        for i in (0..n).rev() {
            let page = PageId(first.0 + i as u64);
            if is_here(i) {
                self.base.table.word(page).settle(fresh);
            } else {
                self.base.table.word(page).set(Word::UNTOUCHED);
                self.base.table.cleared(page);
            }
        }
        self.local.unreserve((n - filled) as u64);
        if filled == 0 {
            return Served::Unmapped;
        }
        self.local.all_arrived((0..n).filter(|&i| is_here(i)).map(|i| PageId(first.0 + i as u64)), Arrival::FirstTouch);
        if !is_here(touched) {
            return Served::Unmapped;
        }
        self.base.count(&self.base.counters.first_touch, 1);
        Served::Here
    }

    /// Fills `n` pages from `first` on, all Busy, with zeros; the touched one is the first or the last. Bit i: page i is here.
    ///
    /// A run that leaves its mapping is refused whole: heaps grow by a few dozen pages at a time, and a run meets their
    /// ends all the time. So the end is searched for from the touched page on, by halves: a refusal costs a tenth of a fault.
    /// A part that begins where the mapping ends would be taken by its neighbour, and that may be a reservation, which
    /// nobody can read, eviction neither. So it goes with a page that is here, which lies in the mapping for sure.
    fn install_zeros(&self, first: PageId, n: usize, touched: usize) -> u64 {
        // So many are filled, and so many cannot be.
        let (mut here, mut done, mut beyond) = (0u64, 0, n + 1);
        let mut pages = n;
        while pages > 0 {
            let from = if touched == 0 { done } else { n - done - pages };
            let installed = if done == 0 {
                self.zeros(first, from..from + pages)
            } else if touched == 0 {
                // The kernel looks at the mapping of the whole range, then finds its first page there.
                match self.zeros(first, from - 1..from + pages) {
                    Err(Errno(libc::EEXIST)) => self.zeros(first, from..from + pages),
                    refused => refused.and(Err(Errno(libc::ENOENT))),
                }
            } else {
                // It ends at the last.
                self.zeros(first, from..from + pages + 1)
            };
            match installed {
                Ok(installed) => {
                    here |= u64::MAX >> (64 - installed.clamp(1, 64)) << from;
                    if installed < pages {
                        break;
                    }
                    done += pages;
                }
                Err(Errno(libc::ENOENT)) if pages > 1 || done > 0 => beyond = done + pages,
                Err(e) if here == 0 => {
                    let at = PageId(first.0 + from as u64);
                    here = (not_installed(at, e).min(1) as u64) << touched;
                    break;
                }
                Err(_) => break,
            }
            pages = (beyond - done) / 2;
        }
        // A run downwards that met something already there, and ended short of the touched page.
        if here != 0 && here >> touched & 1 == 0 {
            here |= self.install_zeros(PageId(first.0 + touched as u64), 1, 0) << touched;
        }
        here
    }

    /// Zeros for pages of a run that begins at `first`. How many were installed.
    fn zeros(&self, first: PageId, pages: Range<usize>) -> Result<usize, Errno> {
        let at = PageId(first.0 + pages.start as u64);
        // SAFETY: the source is WINDOW pages of zeros; the targets are Busy, hence ours; what is there is not written to.
        unsafe { self.base.uffd.copy(at.addr(), self.zeros, pages.len() * PAGE_BYTES, false) }
            .map(|bytes| bytes / PAGE_BYTES)
    }

    /// Reserves room for a run of fresh pages, upwards or downwards from a touched one that is Busy, and
    /// makes them Busy. What was wanted, the lowest, and how many.
    fn claim_fresh(&self, thread: &mut Thread, page: PageId) -> (Batch, PageId, usize) {
        self.room.reserve(1);
        if self.base.spec.prefetch == Prefetch::Off {
            return (Batch { first: page, pages: 1 }, page, 1);
        }
        let batch = thread.first.touch(page);
        let step = if batch.first == page { 1 } else { -1 };
        let wanted = batch.pages.min(WINDOW) - 1;
        if wanted == 0 {
            return (batch, page, 1);
        }
        let room = self.room.reserve_ahead(wanted as u64) as usize;
        let mut more = 0;
        while more < room {
            let next = PageId(page.0.wrapping_add_signed(step * (more as i64 + 1)));
            // Whether it can be read need not be asked: it comes in with the touched page's mapping, or not at all.
            self.base.table.touched(next);
            if self.base.samples(next)
                || !self.base.table.word(next).shift(Word::UNTOUCHED, Word::UNTOUCHED.to(State::Busy))
            {
                self.base.table.cleared(next);
                break;
            }
            more += 1;
        }
        self.local.unreserve((room - more) as u64);
        (batch, if step > 0 { page } else { PageId(page.0 - more as u64) }, 1 + more)
    }
}
