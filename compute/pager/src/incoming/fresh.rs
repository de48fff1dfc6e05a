//! Fresh memory: a page that was never touched comes in as zeros, and with it the next ones, if
//! touches are in order.
//!
//! ```text
//! touch ─► reserve ─► claim untouched neighbours: Busy ─► zeros, by one call ─┬─► Resident, dirty
//!                                       (by halves where their mapping ends)  └─► beyond it: Untouched
//! ```
//!
//! The commonest fault of all. 64 pages together cost less each than the kernel's own one at a
//! time.

use super::{Incoming, Served};
use crate::base::not_installed;
use crate::page::{Busy, Run};
use crate::thread::{Thread, WINDOW};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_cache::prefetch::Batch;
use farmem_protocol::addr::PageId;
use farmem_run::Prefetch;
use farmem_sys::raw::Errno;
use std::ops::Range;

/// Fresh pages that a fault has claimed.
struct Fresh {
    /// The batch that was wanted.
    batch: Batch,
    run: Run,
    /// The touched page among them: the first or the last.
    touched: usize,
}

impl Incoming {
    /// Fresh memory: installs zeros, for as many pages as the thread's touches suggest.
    pub(super) fn first_touch(&self, thread: &mut Thread, busy: Busy) -> Served {
        let Fresh { batch, run, touched } = self.claim_fresh(thread, busy);
        let (first, n) = (run.first(), run.pages());
        let here = self.install_zeros(run, touched);
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
        let pages = (0..n).filter(|&i| is_here(i)).map(|i| PageId(first.0 + i as u64));
        self.local.all_arrived(pages, Arrival::FirstTouch);
        if !is_here(touched) {
            return Served::Unmapped;
        }
        self.base.count(&self.base.counters.first_touch, 1);
        Served::Here
    }

    /// Fills a run of pages with zeros. The touched one is the first or the last. Bit i: page i is
    /// here.
    ///
    /// A run that leaves its mapping is refused whole. Heaps grow by a few dozen pages at a time,
    /// and a run meets their ends all the time. So the end is searched for from the touched page
    /// on, by halves: a refusal costs a tenth of a fault.
    ///
    /// A part that begins where the mapping ends would be taken by its neighbour. That may be a
    /// reservation, which nobody can read, eviction neither. So a part goes with a page that is
    /// here, which lies in the mapping for sure.
    fn install_zeros(&self, run: Run, touched: usize) -> u64 {
        let n = run.pages();
        // `done` pages are filled, and `beyond` cannot be.
        let (mut here, mut done, mut beyond) = (0u64, 0, n + 1);
        let mut pages = n;
        while pages > 0 {
            let from = if touched == 0 { done } else { n - done - pages };
            let installed = if done == 0 {
                self.zeros(run, from..from + pages)
            } else if touched == 0 {
                // The kernel looks at the mapping of the whole range, then finds its first page
                // there.
                match self.zeros(run, from - 1..from + pages) {
                    Err(Errno(libc::EEXIST)) => self.zeros(run, from..from + pages),
                    refused => refused.and(Err(Errno(libc::ENOENT))),
                }
            } else {
                // It ends at the last.
                self.zeros(run, from..from + pages + 1)
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
                    let at = PageId(run.first().0 + from as u64);
                    here = (not_installed(at, e).min(1) as u64) << touched;
                    break;
                }
                Err(_) => break,
            }
            pages = (beyond - done) / 2;
        }
        // A run downwards that met something already there, and ended short of the touched page.
        if here != 0 && here >> touched & 1 == 0 {
            here |= self.install_zeros(run.part(touched..touched + 1), 0) << touched;
        }
        here
    }

    /// Zeros for some pages of a run. How many were installed.
    fn zeros(&self, run: Run, pages: Range<usize>) -> Result<usize, Errno> {
        run.part(pages).install(&self.base.uffd, self.zeros.from(0), false)
    }

    /// Reserves room for a run of fresh pages, upwards or downwards from the touched one, and makes
    /// them Busy.
    fn claim_fresh(&self, thread: &mut Thread, busy: Busy) -> Fresh {
        let (page, mut run, table) = (busy.page(), Run::of(&busy), &self.base.table);
        self.room.reserve(1);
        if self.base.spec.prefetch == Prefetch::Off {
            return Fresh { batch: Batch { first: page, pages: 1 }, run, touched: 0 };
        }
        let batch = thread.first.touch(page);
        let upwards = batch.first == page;
        let wanted = batch.pages.min(WINDOW) - 1;
        if wanted == 0 {
            return Fresh { batch, run, touched: 0 };
        }
        let room = self.room.reserve_ahead(wanted as u64) as usize;
        let mut more = 0;
        while more < room {
            let step = if upwards { more as i64 + 1 } else { -(more as i64) - 1 };
            let next = PageId(page.0.wrapping_add_signed(step));
            // Whether it can be read need not be asked: it comes in with the touched page's
            // mapping, or not at all.
            table.touched(next);
            let free = !self.base.samples(next);
            let Some(next) = free.then(|| Busy::take(table, next, Word::UNTOUCHED)).flatten() else {
                table.cleared(next);
                break;
            };
            run.add(&next);
            more += 1;
        }
        self.local.unreserve((room - more) as u64);
        Fresh { batch, run, touched: if upwards { 0 } else { more } }
    }
}
