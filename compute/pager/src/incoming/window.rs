//! What comes along with a fetch: the window of pages that the program is expected to
//! touch next ([`farmem_cache::prefetch`] names them).
//!
//! ```text
//! plan     claim those that are Remote and for which there is room: Busy, ours
//! post     their READs leave, behind the demand page's ([`crate::incoming::reads`]); the demand page is installed
//! fetch    install the rest, neighbours by one call
//! ```

use super::Incoming;
use crate::base::not_installed;
use crate::dirty::Comes;
use crate::table::Pattern;
use crate::thread::{Claimed, Thread};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_run::Prefetch;
use farmem_sys::raw::Errno;

/// Why pages come in that no thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The program's faults suggest that it goes on there.
    Guessed,
    /// It has said that it will use them ([`crate::hints`]), which the policy takes for a use.
    Hinted { write: bool },
}

impl Incoming {
    /// Decides which pages to fetch with `page` and claims them.
    pub(crate) fn plan_window(&self, thread: &mut Thread, page: PageId) {
        thread.claimed.clear();
        // A sampled page comes in when it is used, not before.
        if self.base.spec.prefetch == Prefetch::Off || self.base.samples(page) {
            return;
        }
        let before = thread.prefetcher.tally();
        let local = |page| self.base.table.word(page).load().state() == State::Resident;
        match self.base.table.pattern(page) {
            Pattern::Normal => thread.prefetcher.fault(page, &mut thread.window, local),
            Pattern::InOrder => thread.prefetcher.fault_in_order(page, &mut thread.window, local),
            Pattern::Random => return,
        }
        if !thread.window.is_empty() {
            self.claim_window(thread);
        }
        let after = thread.prefetcher.tally();
        if after.windows != before.windows {
            self.base.count(&self.base.counters.prefetch_windows, after.windows - before.windows);
        }
        if after.used != before.used {
            self.base.count(&self.base.counters.prefetch_used, after.used - before.used);
        }
    }

    fn claim_window(&self, thread: &mut Thread) {
        let is_away = |seen: &Word, page| seen.state() == State::Remote && !self.base.samples(page);
        let away = |page| Some(self.base.table.word(page).load()).filter(|seen| is_away(seen, page));
        let wanted = thread.window.pages().filter(|&page| away(page).is_some()).count() as u64;
        let mut room = self.room.reserve_ahead(wanted);
        for (index, next) in thread.window.pages().enumerate() {
            let Some((seen, slot)) = away(next).and_then(|seen| Some((seen, seen.slot()?))) else { continue };
            if room == 0 {
                thread.prefetcher.shortened(&mut thread.window, index);
                break;
            }
            if self.base.table.word(next).shift(seen, seen.to(State::Busy)) {
                room -= 1;
                let source = std::ptr::null();
                thread.claimed.push(Claimed { page: next, slot, source, in_place: true, seen });
            }
        }
        thread.prefetcher.fetched(thread.claimed.len() as u32);
        self.local.unreserve(room);
    }

    /// Gives claimed pages up, unfetched.
    pub(crate) fn drop_window(&self, thread: &mut Thread) {
        for claimed in thread.claimed.drain(..) {
            self.local.unreserve(1);
            self.base.table.word(claimed.page).set(claimed.seen);
        }
    }

    /// Fetches and installs what [`Incoming::plan_window`] claimed, or a hint; how many are here.
    pub(crate) fn fetch_window(&self, thread: &mut Thread, why: Why) -> usize {
        if thread.claimed.is_empty() {
            return 0;
        }
        let (how, write) = match why {
            Why::Guessed => (Arrival::Prefetch, false),
            Why::Hinted { write } => (Arrival::Demand, write),
        };
        let claimed = std::mem::take(&mut thread.claimed);
        let mut installed = 0;
        let mut from = 0;
        while from < claimed.len() {
            let Claimed { page, source, in_place: mapped, .. } = claimed[from];
            if !mapped {
                self.await_window(thread);
            }
            let guess =
                |one: &Claimed| self.changes.tracker.comes(mapped, write, || self.changes.rewrites.likely(one.seen));
            let guessed = guess(&claimed[from]);
            let keep = |i: usize| {
                // SAFETY: the source holds the pages of the run, as they follow each other in both memories, and
                // stays as it is; the pages are Busy, hence ours.
                unsafe {
                    let source = source.add(i * PAGE_BYTES);
                    self.changes.tracker.keep(claimed[from + i].page, source, mapped, write, guessed)
                }
            };
            let comes = keep(0);
            // Pages next to each other whose bytes are next to each other, and that come in alike, go in
            // one call.
            let neighbours = claimed[from..].windows(2).take_while(|w| follows(w[0], w[1]) && guess(&w[1]) == guessed);
            let mut run = 1 + neighbours.enumerate().take_while(|(i, _)| keep(1 + i) == comes).count();
            let dirty = comes != Comes::Protected;
            let done = loop {
                // SAFETY: the source holds `run` pages; the targets are Busy, hence ours.
                match unsafe { self.base.uffd.copy(page.addr(), source, run * PAGE_BYTES, !dirty) } {
                    Ok(bytes) => break bytes / PAGE_BYTES,
                    // They lie in two mappings (a part of an array may have another protection): refused whole.
                    Err(Errno(libc::ENOENT)) if run > 1 => run /= 2,
                    Err(e) => break not_installed(page, e),
                }
            };
            for one in &claimed[from..from + done] {
                let here = one.seen.to(State::Resident).with_dirty(dirty).with_guessed(comes == Comes::Compared);
                self.base.table.word(one.page).settle(here);
            }
            self.local.all_arrived(claimed[from..from + done].iter().map(|c| c.page), how);
            installed += done;
            from += done;
            if done < run {
                // Out of any mapping: this page stays away; go on behind it.
                self.local.unreserve(1);
                self.changes.tracker.release([claimed[from].page].into_iter());
                self.base.table.word(claimed[from].page).set(claimed[from].seen);
                from += 1;
            }
        }
        self.base.count(&self.base.counters.bytes_in, (claimed.len() * PAGE_BYTES) as u64);
        thread.claimed = claimed;
        thread.claimed.clear();
        installed
    }
}

/// Whether two claimed pages are neighbours in both memories.
fn follows(a: Claimed, b: Claimed) -> bool {
    b.page.0 == a.page.0 + 1 && b.in_place == a.in_place && b.source == a.source.wrapping_add(PAGE_BYTES)
}
