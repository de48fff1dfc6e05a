//! Step 2 of an eviction: from here on no write to a page that leaves is lost.
//!
//! ```text
//!  the program is still    nothing can be written ([`super::still`])           read in place, then dropped
//!  else                    writes go to held memory ([`super::held`])          dropped, then read
//!  where that cannot be    dirty pages are write-protected, a call for each    read in place, then dropped
//! ```
//!
//! Write-protecting is the expensive way: 0.5 to 0.7 µs a call, and 3 to 15 where it interrupts
//! other CPUs that run the program (`docs/design/pager.md`, *Dirty pages leave by reference*).

#![allow(unsafe_code)] // Pages are made own.

use super::Out;
use crate::dirty::guess::Settled;
use crate::ending::broken;
use crate::out::batch::{Evictor, Leaving, neighbours};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_run::Feature;
use farmem_sys::clock;
use farmem_sys::hold::{make_own, may_be_merged, may_be_swapped};
use std::sync::atomic::Ordering;

/// The longest that may pass from making pages own to having references. It takes 15 to 120 µs, by
/// the batch. Pages that were copied at the beginning of this time are not old for the kernel at
/// its end, and not on their way to swap.
const LONG_NS: u64 = 1_000_000;

fn is_unheld(l: &Leaving) -> bool {
    l.from.dirty() && !l.held
}

/// The pages of each protecting call: of a run of neighbours, from the first that must be protected
/// to the last.
fn runs_to_protect(leaving: &[Leaving]) -> impl Iterator<Item = &[Leaving]> {
    leaving.chunk_by(neighbours).filter_map(|together| {
        let (first, last) = (together.iter().position(is_unheld)?, together.iter().rposition(is_unheld)?);
        Some(&together[first..=last])
    })
}

/// A range for each run of held pages that lie together.
fn ranges_of_held(leaving: &[Leaving], ranges: &mut Vec<libc::iovec>) {
    ranges.clear();
    for together in leaving.chunk_by(|a, b| neighbours(a, b) && a.held == b.held).filter(|run| run[0].held) {
        let iov_len = together.len() * PAGE_BYTES;
        ranges.push(libc::iovec { iov_base: together[0].page().addr() as *mut _, iov_len });
    }
}

impl Out {
    /// Settles the dirty pages of a batch. `still`: the program is. Whether any are held.
    pub(crate) fn settle(&self, evictor: &mut Evictor, still: bool) -> bool {
        self.local.demand.found(still);
        let read = evictor.leaving.iter().filter(|l| l.from.dirty()).count();
        if read == 0 {
            return false;
        }
        let held = if still { 0 } else { self.hold(evictor) };
        let settled = match held {
            _ if still => Settled::Still,
            few if 2 * few < read => Settled::Protected,
            _ => Settled::Held,
        };
        if !still && held < read {
            self.protect(&evictor.leaving);
        }
        self.changes.rewrites.leave(settled, self.base.pool.nodes().all_mapped());
        held > 0
    }

    /// Holds the dirty pages of a batch, in order, as far as they can be held. Returns how many.
    fn hold(&self, evictor: &mut Evictor) -> usize {
        if self.base.spec.mask.has(Feature::Hold) || may_be_merged() {
            return 0;
        }
        let mut room = evictor.held.room();
        if room == 0 {
            return 0;
        }
        for l in evictor.leaving.iter_mut().filter(|l| l.from.dirty() && !self.base.table.may_be_unreadable(l.page())) {
            l.held = room > 0;
            room = room.saturating_sub(1);
        }
        ranges_of_held(&evictor.leaving, &mut evictor.ranges);
        let begun = clock::ticks();
        evictor.held.swap |= self.base.spec.mask.has(Feature::Swapless) || may_be_swapped();
        let swap = evictor.held.swap;
        // Pages that the kernel chose for swap before they were made own could be written out
        // after, if they were referred to only then.
        let mut held = !swap || evictor.held.guard(&evictor.ranges);
        if held && (swap || self.forks.load(Ordering::Relaxed) > 0) {
            self.make_own(evictor);
            ranges_of_held(&evictor.leaving, &mut evictor.ranges);
        }
        let pages = evictor.leaving.iter().filter(|l| l.held).count();
        held = held && pages > 0 && evictor.held.take(&evictor.ranges, pages);
        if swap {
            evictor.held.unguard();
        }
        if held && swap && clock::ns(clock::ticks() - begun) > LONG_NS {
            evictor.held.let_go();
            held = false;
        }
        if !held {
            evictor.leaving.iter_mut().for_each(|l| l.held = false);
            return 0;
        }
        self.base.count(&self.base.counters.held, pages as u64);
        pages
    }

    /// Makes the memory of the evictor's ranges, which is to be held, the process's own. Pages for
    /// which that fails are not held.
    fn make_own(&self, evictor: &mut Evictor) {
        let mut ranges = &evictor.ranges[..];
        let by = evictor.vectored.then_some(evictor.pidfd);
        while !ranges.is_empty() {
            // SAFETY: the pages are present, and stay.
            let mut done = unsafe { make_own(by, ranges) };
            while let Some((first, rest)) = ranges.split_first()
                && first.iov_len <= done
            {
                done -= first.iov_len;
                ranges = rest;
            }
            if let Some((refused, rest)) = ranges.split_first() {
                let refused = refused.iov_base as usize..refused.iov_base as usize + refused.iov_len;
                evictor.leaving.iter_mut().filter(|l| refused.contains(&l.page().addr())).for_each(|l| l.held = false);
                ranges = rest;
            }
        }
    }

    fn protect(&self, leaving: &[Leaving]) {
        let mut calls = 0;
        for pages in runs_to_protect(leaving) {
            calls += self.protect_together(pages);
        }
        self.base.count(&self.base.counters.protecting_calls, calls as u64);
    }

    /// Protects neighbours that leave, and returns the number of calls. Pages between them stay
    /// protected: no other thread touches a page that leaves.
    fn protect_together(&self, pages: &[Leaving]) -> usize {
        if self.base.uffd.protect(pages[0].page().addr(), pages.len() * PAGE_BYTES, true).is_ok() {
            return 1;
        }
        // They span mappings; each page lies in one.
        let wanted = pages.iter().filter(|l| is_unheld(l));
        for l in wanted.clone() {
            if let Err(e) = self.base.uffd.protect(l.page().addr(), PAGE_BYTES, true) {
                broken(&format!("page {:#x}: write protection failed with {e}", l.page().addr()));
            }
        }
        1 + wanted.count()
    }
}
