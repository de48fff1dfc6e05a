//! The way in: one fault, from the program's access to the page's installation.
//!
//! ```text
//! fault ─► serve ─► Untouched: first_touch   zeros for this page and, if touches are in order, the next
//!                   Remote:    fetch         READ, unless the slot is mapped; meanwhile make room;
//!                                            install, then the window ahead
//!                   Staged:    rescue        install from the staging ring
//!                   Resident:  upgrade       write to a protected page: lift the protection
//!                   Busy, Leaving: wait      another thread owns the page
//! ```
//!
//! It runs in the SIGBUS handler of the faulting thread, or in [`crate::pins`] on behalf of a
//! system call. Room for a page is reserved before the page is installed, so the limit holds at
//! every instant.

#![allow(unsafe_code)] // A look at a page that is Busy.

pub(crate) mod fresh;
pub(crate) mod reads;
pub(crate) mod window;

use crate::base::{Base, not_installed};
use crate::dirty::{Came, Changes, Comes, guess};
use crate::ending::{broken, or_altered};
use crate::local::Local;
use crate::out::Out;
use crate::page::{Busy, Bytes, Frames, Pages, Run};
use crate::room::Room;
use crate::thread::{Inside, Thread, WINDOW};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_cache::trace::Kind;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::raw::Errno;
use window::Why;

/// How a call of [`Incoming::serve`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The page is resident, and writable if that was asked.
    Here,
    /// The program has no far mapping there. The kernel decides what follows.
    Unmapped,
}

/// Faults in a row on one resident page, after which the kernel is asked whether it is present.
const GROUNDLESS: u32 = 1000;

/// The way in.
pub(crate) struct Incoming {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    out: &'static Out,
    room: &'static Room,
    /// [`WINDOW`] pages that read as zero.
    zeros: Frames,
}

impl Incoming {
    /// # Errors
    /// There are no addresses for pages of zeros.
    pub fn new(
        base: &'static Base,
        local: &'static Local,
        changes: &'static Changes,
        out: &'static Out,
        room: &'static Room,
    ) -> Result<Incoming, Errno> {
        Ok(Incoming { base, local, changes, out, room, zeros: Frames::of_zeros(WINDOW)? })
    }

    /// Serves a fault at `addr`. False when the address is not far, or the program has mapped
    /// nothing there: the signal is the program's.
    #[inline]
    pub fn fault(&self, addr: usize, write: bool) -> bool {
        if !is_far(addr) {
            return false;
        }
        let page = PageId::of(addr);
        // This fault looks these up one after another, and each may miss the cache. Prefetched
        // together, the misses overlap.
        self.base.table.prefetch(page);
        self.changes.tracker.prefetch(page);
        let begun = clock::ticks();
        let mut inside = self.base.threads.enter();
        if let Some((watched, seen)) = inside.thread.watched
            && !(write && watched == page)
        {
            inside.thread.watched = None;
            self.changes.rewrites.not_at_once(seen);
        }
        let served = self.serve(&mut inside, page, write, begun);
        drop(inside);
        self.base.count(&self.base.counters.wait_ns, clock::ns(clock::ticks() - begun));
        served == Served::Here
    }

    /// Makes a page resident, and writable if `write`. `begun`: when the fault began, in ticks.
    pub fn serve(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let served = self.serve_uncounted(inside, page, write, begun);
        if served == Served::Unmapped {
            self.base.count(&self.base.counters.unmapped, 1);
        }
        if self.base.samples(page) {
            self.out.end_sampled(begun);
        }
        served
    }

    /// The body of [`Incoming::serve`]. Every path to [`Served::Here`] counts the kind of its
    /// fault.
    fn serve_uncounted(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let (base, table) = (self.base, &self.base.table);
        let word = table.word(page);
        let mut rounds = 0;
        loop {
            let seen = word.load();
            match seen.state() {
                State::Untouched => {
                    if table.touched(page) {
                        base.look_before_touch(page);
                    }
                    if let Some(busy) = Busy::take(table, page, seen) {
                        base.record(inside.thread, page, Kind::Fresh);
                        return self.first_touch(inside.thread, busy);
                    }
                    table.cleared(page);
                }
                State::Remote => {
                    if let Some(busy) = Busy::take(table, page, seen) {
                        base.record(inside.thread, page, Kind::Fault);
                        return self.fetch(inside.thread, busy, write, begun);
                    }
                }
                State::Staged => {
                    // Room first: making it may need the place in the ring that this page has. A
                    // Busy page does not give its place up.
                    self.room.reserve(1);
                    self.out.hear_of_write(page, seen);
                    if let Some(busy) = Busy::take(table, page, seen) {
                        base.record(inside.thread, page, Kind::Fault);
                        return self.rescue(inside.thread, busy, write);
                    }
                    self.local.unreserve(1);
                }
                State::Resident if write && !seen.dirty() => {
                    if let Some(busy) = Busy::take(table, page, seen) {
                        return self.upgrade(inside.thread, busy);
                    }
                }
                State::Resident => {
                    base.count(&base.counters.joined, 1);
                    if rounds == 0 {
                        self.expect_present(inside.thread, page);
                    }
                    return Served::Here;
                }
                State::Busy | State::Leaving => {
                    rounds += 1;
                    base.wait_for_owner(rounds);
                }
            }
        }
    }

    /// A fault on a resident page. Usually another thread has just brought it in, and the access
    /// will succeed. If it faults again and again, the page was taken away behind the pager's back,
    /// and the program would fault for ever.
    fn expect_present(&self, thread: &mut Thread, page: PageId) {
        let (last, times) = thread.groundless;
        thread.groundless = (page, if last == page { times + 1 } else { 0 });
        if thread.groundless.1 >= GROUNDLESS && !farmem_sys::memory::is_present(page.addr()) {
            broken(&format!("page {:#x} is local by the page table and absent by the kernel's", page.addr()));
        }
    }

    /// Brings in a page from its far slot, and the window ahead of it.
    fn fetch(&self, thread: &mut Thread, busy: Busy, write: bool, begun: u64) -> Served {
        let (page, seen, tracker) = (busy.page(), busy.seen(), &self.changes.tracker);
        let Some(slot) = seen.slot() else { broken("a remote page without a far slot") };
        let in_place = self.base.readable_slot(slot);
        let mapped = in_place.is_some();
        if !mapped {
            self.post_demand(thread, slot);
        }
        // If there is a READ, all steps from here to `await_demand` are done while it is under way.
        self.room.reserve(1);
        let likely = || self.changes.rewrites.likely(seen) && !guess::is_sample(&mut thread.guesses);
        let comes = tracker.comes(mapped, write, likely);
        self.plan_window(thread, page);
        self.post_window(thread);
        // The policy may name this page as a victim at once. The page is Busy, so it stays.
        self.local.arrived(page, Arrival::Demand);
        // The slot's bytes are still those of the first look: only write-backs of this page change
        // them, and these need it resident.
        let source = in_place.unwrap_or_else(|| self.await_demand(thread, slot));
        let comes = if tracker.keep_later(page, mapped, comes, thread.number) {
            thread.unkept = Some((page, slot));
            comes
        } else {
            tracker.keep(page, Came { bytes: source, slot }, mapped, write, comes)
        };
        if !self.is_installed(&busy, source, comes) {
            self.local.unreserve(1);
            self.local.policy().gone(page);
            tracker.release([page].into_iter());
            busy.give_up();
            // Wait: the window's READs land in the buffer that the next fault will use.
            self.await_window(thread);
            self.drop_window(thread);
            return Served::Unmapped;
        }
        if comes == Comes::Protected {
            thread.watched = Some((page, seen));
        }
        busy.settle(arrived_as(seen, comes).with_field(0));
        let counters = &self.base.counters;
        self.base.count(&counters.demand, 1);
        self.base.count(&counters.bytes_in, PAGE_BYTES as u64);
        counters.latency.record(clock::ns(clock::ticks() - begun));
        let ahead = self.fetch_window(thread, Why::Guessed);
        self.base.count(&counters.prefetched, ahead as u64);
        self.room.reserve_kept();
        Served::Here
    }

    /// Installs a page. False if the program has no far mapping there.
    #[inline]
    fn is_installed(&self, busy: &Busy, source: Bytes<'_>, comes: Comes) -> bool {
        let protect = comes == Comes::Protected;
        match Run::of(busy).install(&self.base.uffd, Pages::of(source), protect) {
            Ok(_) => true,
            Err(e) => not_installed(busy.page(), e) != 0,
        }
    }

    /// Brings back a page whose bytes are still in the staging ring. The caller has reserved room.
    fn rescue(&self, thread: &mut Thread, busy: Busy, write: bool) -> Served {
        let (page, seen, tracker) = (busy.page(), busy.seen(), &self.changes.tracker);
        let index = seen.staged();
        let taken = self.out.staging.take(index, page);
        // The copy is this call's until it is released.
        let source = self.opened_copy(thread, seen, self.out.staging.page(index));
        // Is it not in its slot yet? Then it is dirty, and takes another slot later (staging,
        // *Orphan*).
        let comes = if taken.written {
            let comes = tracker.comes(false, write, || self.changes.rewrites.likely(seen));
            let slot = seen.slot().unwrap_or_else(|| broken("a staged page without a far slot"));
            tracker.keep(page, Came { bytes: source, slot }, false, write, comes)
        } else {
            Comes::Writable
        };
        if !self.is_installed(&busy, source, comes) {
            self.local.unreserve(1);
            tracker.release([page].into_iter());
            self.out.staging.put_back(index);
            busy.give_up();
            return Served::Unmapped;
        }
        if let Some(slot) = self.out.staging.release(index, taken.written) {
            self.base.pool.slots().free(&[slot]);
        }
        let slot = if taken.written { seen.slot() } else { None };
        busy.settle(arrived_as(seen, comes).with_slot(slot).with_field(0));
        self.local.arrived(page, Arrival::Rescue);
        self.base.count(&self.base.counters.rescued, 1);
        self.room.reserve_kept();
        Served::Here
    }

    /// The bytes of a staged page: as they are in the ring, or, if pages are sealed, opened. Opened
    /// bytes go where the thread's next demand page will land. Bytes that are still to be kept lie
    /// at the other end of that buffer.
    #[inline]
    fn opened_copy(&self, thread: &mut Thread, seen: Word, staged: Bytes<'static>) -> Bytes<'static> {
        if !self.base.seals() {
            return staged;
        }
        let Some(slot) = seen.slot() else { broken("a staged page without a far slot") };
        let at = thread.demand(thread.lands_last != thread.unkept.is_some());
        or_altered(self.base.open(slot, staged, thread.landing.target(at)));
        thread.landing.page(at)
    }

    /// The first write to a page that is resident and clean.
    ///
    /// The page stays Busy while its protection is lifted. Otherwise an eviction could protect it
    /// again, this call would lift that too, and a write could be lost under the eviction's copy.
    fn upgrade(&self, thread: &mut Thread, busy: Busy) -> Served {
        let (page, seen) = (busy.page(), busy.seen());
        let at_once = thread.watched.take().is_some_and(|(watched, _)| watched == page);
        let late = self.keep_late(page, seen);
        let begun = clock::ticks();
        let lifted = self.base.uffd.protect(page.addr(), PAGE_BYTES, false);
        self.changes.rewrites.lifted(clock::ns(clock::ticks() - begun));
        match lifted {
            Ok(()) => {
                self.changes.rewrites.saw_upgrade(seen, at_once);
                busy.settle(seen.with_dirty(true).with_guessed(late).with_upgraded(true));
                self.base.count(&self.base.counters.upgrades, 1);
                self.room.reserve_kept();
                Served::Here
            }
            Err(_) => {
                if late {
                    self.changes.tracker.release([page].into_iter());
                }
                busy.settle(seen);
                Served::Unmapped
            }
        }
    }

    /// Whether a clean page, about to be written, is compared from now on. It is Busy and
    /// write-protected, so it stays as it is.
    fn keep_late(&self, page: PageId, seen: Word) -> bool {
        let tracker = &self.changes.tracker;
        let mapped = self.base.mapped_slot(seen).is_some();
        if mapped || !tracker.keeps_late() {
            // A slot that is mapped holds the page as it came in.
            return mapped && tracker.compares_with_slots();
        }
        // The program may take its right to read the page away just now: not while it is read here.
        let _reading = self.changes.reading.lock();
        // SAFETY: the page is Busy, ours, and was resident; the lock is held.
        let bytes = unsafe { Bytes::in_place(&self.base.table, page) };
        let came = bytes.zip(seen.slot()).map(|(bytes, slot)| Came { bytes, slot });
        came.is_some_and(|came| tracker.keep_late(page, came))
    }
}

/// The word of a page that has come in like this.
#[inline]
fn arrived_as(seen: Word, comes: Comes) -> Word {
    seen.to(State::Resident).with_dirty(comes != Comes::Protected).with_guessed(comes == Comes::Compared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{Ground, bare};
    use farmem_protocol::addr::FAR_START;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_fault_where_nothing_is_mapped_leaves_nothing_behind() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let room = Box::leak(Box::new(Room::new(base, local, changes, out)));
        let incoming = Incoming::new(base, local, changes, out, room).unwrap();
        assert!(!incoming.fault(0x1000, true), "it is not far");
        for page in 0..3 {
            assert!(!incoming.fault(FAR_START + page * PAGE_BYTES, true));
            assert_eq!(base.table.word(PageId(page as u64)).load(), Word::UNTOUCHED);
        }
        assert_eq!(base.counters.unmapped.load(Ordering::Relaxed), 3);
        assert_eq!(local.resident.load(Ordering::Relaxed), 0);
        assert_eq!(local.policy().len(), 0);
    }
}
