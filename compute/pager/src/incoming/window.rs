//! Pages that come along with a fetch: the window that the program is expected to touch next
//! ([`farmem_cache::prefetch`] names it).
//!
//! ```text
//! plan     claim those that are Remote and for which there is room: Busy, ours
//! post     their READs leave, behind the demand page's ([`super::reads`]); the demand page is installed
//! fetch    install the rest, neighbours by one call
//! ```

use super::{Incoming, arrived_as};
use crate::base::not_installed;
use crate::dirty::{Came, Comes};
use crate::ending::broken;
use crate::page::{Busy, Bytes, Pages, Run};
use crate::table::Pattern;
use crate::thread::{Claimed, Thread};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_run::Prefetch;
use farmem_sys::raw::Errno;

/// Why pages come in that no thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The program's faults suggest that it goes on there.
    Guessed,
    /// The program has said that it will use them ([`crate::hints`]). The policy takes that for a
    /// use.
    Hinted { write: bool },
}

impl Incoming {
    /// A page's word and slot, if it is far and may be fetched unasked.
    pub(crate) fn is_away(&self, page: PageId) -> Option<(Word, FarSlot)> {
        let seen = self.base.table.word(page).load();
        // A sampled page comes in when it is used, not before.
        let away = seen.state() == State::Remote && !self.base.samples(page);
        seen.slot().filter(|_| away).map(|slot| (seen, slot))
    }

    /// Claims a page for the thread's window, if it is still as seen. Whether it was.
    pub(crate) fn claim(&self, thread: &mut Thread, page: PageId, (seen, slot): (Word, FarSlot)) -> bool {
        let busy = Busy::take(&self.base.table, page, seen);
        thread.claimed.extend(busy.map(|busy| Claimed { busy, slot, source: None, in_place: true }));
        busy.is_some()
    }

    /// Decides which pages to fetch with `page`, and claims them.
    pub(super) fn plan_window(&self, thread: &mut Thread, page: PageId) {
        thread.claimed.clear();
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
        let wanted = thread.window.pages().filter(|&page| self.is_away(page).is_some()).count() as u64;
        let mut room = self.room.reserve_ahead(wanted);
        let window = thread.window;
        for (index, next) in window.pages().enumerate() {
            let Some(away) = self.is_away(next) else { continue };
            if room == 0 {
                thread.prefetcher.shortened(&mut thread.window, index);
                break;
            }
            room -= self.claim(thread, next, away) as u64;
        }
        thread.prefetcher.fetched(thread.claimed.len() as u32);
        self.local.unreserve(room);
    }

    /// Gives claimed pages up, unfetched.
    pub(super) fn drop_window(&self, thread: &mut Thread) {
        for claimed in thread.claimed.drain(..) {
            self.local.unreserve(1);
            claimed.busy.give_up();
        }
    }

    /// Fetches and installs what [`Incoming::plan_window`] claimed, or a hint. How many are here.
    pub(crate) fn fetch_window(&self, thread: &mut Thread, why: Why) -> usize {
        if thread.claimed.is_empty() {
            return 0;
        }
        let claimed = std::mem::take(&mut thread.claimed);
        let (mut installed, mut from, mut awaited) = (0, 0, false);
        while from < claimed.len() {
            if !claimed[from].in_place && !awaited {
                self.await_window(thread);
                self.open_window(thread, &claimed, from);
                awaited = true;
            }
            let (wanted, done) = self.install_neighbours(&claimed[from..], why);
            installed += done;
            from += done;
            if done < wanted {
                // Out of any mapping: this page stays away. The next ones go on behind it.
                self.local.unreserve(1);
                self.changes.tracker.release([claimed[from].busy.page()].into_iter());
                claimed[from].busy.give_up();
                from += 1;
            }
        }
        self.base.count(&self.base.counters.bytes_in, (claimed.len() * PAGE_BYTES) as u64);
        thread.claimed = claimed;
        thread.claimed.clear();
        installed
    }

    /// Installs the first of these pages, and by the same call those that are its neighbours in
    /// both memories and come in alike. How many were tried, and how many are here.
    fn install_neighbours(&self, claimed: &[Claimed], why: Why) -> (usize, usize) {
        let (how, write) = match why {
            Why::Guessed => (Arrival::Prefetch, false),
            Why::Hinted { write } => (Arrival::Demand, write),
        };
        let (first, mapped) = (&claimed[0], claimed[0].in_place);
        let tracker = &self.changes.tracker;
        let guess = |one: &Claimed| tracker.comes(mapped, write, || self.changes.rewrites.likely(one.busy.seen()));
        let guessed = guess(first);
        let keep = |one: &Claimed| {
            tracker.keep(one.busy.page(), Came { bytes: source(one), slot: one.slot }, mapped, write, guessed)
        };
        let comes = keep(first);
        let (mut run, mut bytes) = (Run::of(&first.busy), Pages::of(source(first)));
        for pair in claimed.windows(2) {
            let next = &pair[1];
            let follows = next.busy.page().0 == pair[0].busy.page().0 + 1 && next.in_place == mapped;
            if !(follows && bytes.is_next(source(next)) && guess(next) == guessed && keep(next) == comes) {
                break;
            }
            bytes.add(source(next));
            run.add(&next.busy);
        }
        let mut wanted = run.pages();
        let done = loop {
            match run.part(0..wanted).install(&self.base.uffd, bytes, comes == Comes::Protected) {
                Ok(done) => break done,
                // They lie in two mappings (a part of an array may have another protection):
                // refused whole.
                Err(Errno(libc::ENOENT)) if wanted > 1 => wanted /= 2,
                Err(e) => break not_installed(run.first(), e),
            }
        };
        for one in &claimed[..done] {
            one.busy.settle(arrived_as(one.busy.seen(), comes));
        }
        self.local.all_arrived(claimed[..done].iter().map(|one| one.busy.page()), how);
        (wanted, done)
    }
}

/// Where a claimed page's bytes are, once the window was posted.
fn source(one: &Claimed) -> Bytes<'static> {
    one.source.unwrap_or_else(|| broken("a window is installed that was not posted"))
}
