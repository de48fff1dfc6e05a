//! One fault, from the program's access to the page's installation.
//!
//! ```text
//! fault ─► serve ─► Untouched: first_touch   zeros for this page and, if touches are sequential, the next
//!                   Remote:    fetch         READ; meanwhile keep what is to be kept of the page before, and make room;
//!                                            install (from the mapped slot, if it is one), then the window ahead
//!                   Staged:    rescue        install from the staging ring
//!                   Resident:  upgrade       write to a protected page: lift the protection
//!                   Busy, Leaving: wait      some other thread is at it
//! ```
//!
//! Runs in the SIGBUS handler of the faulting thread, or in `pin` on
//! behalf of a system call. Room for a page is reserved before it is installed,
//! so the limit holds at every instant; evicting is [`crate::out`]'s.

pub(crate) mod fresh;
pub(crate) mod reads;
pub(crate) mod window;

use crate::base::{Base, not_installed};
use crate::dirty::{Changes, Comes, guess};
use crate::ending::broken;
use crate::local::Local;
use crate::out::Out;
use crate::room::Room;
use crate::thread::{Inside, Thread, WINDOW};
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_cache::trace::Kind;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::raw::Errno;
use reads::DEMAND;
use window::Why;

/// How a call of [`Incoming::serve`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The page is resident, and writable if that was asked.
    Here,
    /// No mapping of ours is there: let the kernel say what it says.
    Unmapped,
}

/// Faults in a row on a page that is there, after which the kernel is asked.
const GROUNDLESS: u32 = 1000;

/// The way in.
pub(crate) struct Incoming {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    out: &'static Out,
    room: &'static Room,
    /// [`WINDOW`] pages that read as zero.
    zeros: *const u8,
}

// SAFETY: `zeros` is never written; everything else synchronises itself.
unsafe impl Sync for Incoming {}
// SAFETY: as above.
unsafe impl Send for Incoming {}

impl Incoming {
    /// # Errors
    /// There is no memory for pages of zeros.
    pub fn new(
        base: &'static Base,
        local: &'static Local,
        changes: &'static Changes,
        out: &'static Out,
        room: &'static Room,
    ) -> Result<Incoming, Errno> {
        let zeros = farmem_sys::memory::reserve(WINDOW * PAGE_BYTES)?;
        for page in 0..WINDOW {
            // Reading maps the kernel's one page of zeros, so that all of this costs no memory.
            // SAFETY: our own mapping.
            unsafe { zeros.add(page * PAGE_BYTES).read_volatile() };
        }
        Ok(Incoming { base, local, changes, out, room, zeros })
    }

    /// Serves a fault at `addr`. False when the address is not far: the signal is the program's.
    ///
    /// For the SIGBUS handler: all signals blocked or kept to its end, on a near stack.
    pub fn fault(&self, addr: usize, write: bool) -> bool {
        if !is_far(addr) {
            return false;
        }
        let page = PageId::of(addr);
        // What this fault will look up one by one, each perhaps a miss: all at once.
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

    /// Makes a page resident, and writable if `write`. `begun`: since when it is wanted, ticks.
    pub(crate) fn serve(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let served = self.serve_uncounted(inside, page, write, begun);
        if served == Served::Unmapped {
            self.base.count(&self.base.counters.unmapped, 1);
        }
        if self.base.samples(page) {
            self.out.end_sampled(begun);
        }
        served
    }

    /// [`Incoming::serve`]; every way to [`Served::Here`] counts its kind.
    fn serve_uncounted(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let word = self.base.table.word(page);
        let mut rounds = 0;
        loop {
            let seen = word.load();
            match seen.state() {
                State::Untouched => {
                    if self.base.table.touched(page) {
                        self.base.look_before_touch(page);
                    }
                    if word.shift(seen, seen.to(State::Busy)) {
                        self.base.record(inside.thread, page, Kind::Fresh);
                        return self.first_touch(inside.thread, page);
                    }
                    self.base.table.cleared(page);
                }
                State::Remote => {
                    if word.shift(seen, seen.to(State::Busy)) {
                        self.base.record(inside.thread, page, Kind::Fault);
                        return self.fetch(inside.thread, page, seen, write, begun);
                    }
                }
                State::Staged => {
                    // Room first: making it may need the place in the ring that this page holds, and
                    // a page held Busy does not give it up.
                    self.room.reserve(1);
                    self.out.hear_of_write(page, seen);
                    if word.shift(seen, seen.to(State::Busy).with_field(0)) {
                        self.base.record(inside.thread, page, Kind::Fault);
                        return self.rescue(page, seen, write);
                    }
                    self.local.unreserve(1);
                }
                State::Resident if write && !seen.dirty() => {
                    if word.shift(seen, seen.to(State::Busy)) {
                        return self.upgrade(inside.thread, page, seen);
                    }
                }
                State::Resident => {
                    self.base.count(&self.base.counters.joined, 1);
                    if rounds == 0 {
                        self.expect_present(inside.thread, page);
                    }
                    return Served::Here;
                }
                State::Busy | State::Leaving => {
                    rounds += 1;
                    self.base.wait_for_owner(rounds);
                }
            }
        }
    }

    /// A fault on a page that is there: another thread has just brought it in, and the access will
    /// succeed. If it faults again and again, the page was taken away behind the pager's back, and
    /// the program would fault for ever.
    fn expect_present(&self, thread: &mut Thread, page: PageId) {
        let (last, times) = thread.groundless;
        thread.groundless = (page, if last == page { times + 1 } else { 0 });
        if thread.groundless.1 >= GROUNDLESS && !farmem_sys::memory::is_present(page.addr()) {
            broken(&format!("page {:#x} is local by the page table and absent by the kernel's", page.addr()));
        }
    }

    /// A page from its far slot, and the window ahead of it.
    fn fetch(&self, thread: &mut Thread, page: PageId, seen: Word, write: bool, begun: u64) -> Served {
        let Some(slot) = seen.slot() else { broken("a remote page without a far slot") };
        let in_place = self.base.pool.readable_in_place(slot);
        let mapped = in_place.is_some();
        if !mapped {
            self.post_demand(thread, slot);
        }
        // All that follows is done while the READ is under way, if there is one.
        self.room.reserve(1);
        let likely = || self.changes.rewrites.likely(seen) && !guess::is_sample(&mut thread.guesses);
        let comes = self.changes.tracker.comes(mapped, write, likely);
        self.plan_window(thread, page);
        self.post_window(thread);
        // Should the policy name the page at once, it is Busy and stays.
        self.local.arrived(page, Arrival::Demand);
        let source = in_place.unwrap_or_else(|| {
            self.keep_now(thread);
            self.out.send_on();
            self.await_read(thread, |tag| tag == DEMAND);
            thread.demand(thread.lands_last).cast_const()
        });
        let comes = if self.changes.tracker.keep_later(page, mapped, comes, thread.number) {
            thread.unkept = Some(page);
            comes
        } else {
            // SAFETY: the page's bytes, which stay as they are (see below); it is Busy, hence ours.
            unsafe { self.changes.tracker.keep(page, source, mapped, write, comes) }
        };
        let dirty = comes != Comes::Protected;
        // SAFETY: the landing buffer holds the page; or it is a slot of ours, mapped, whose bytes
        // change only by our own write-backs, which need the page resident.
        let installed = unsafe { self.base.uffd.copy(page.addr(), source, PAGE_BYTES, !dirty) };
        let here = match installed {
            Ok(_) => true,
            Err(e) => not_installed(page, e) != 0,
        };
        if !here {
            self.local.unreserve(1);
            self.local.policy().gone(page);
            self.changes.tracker.release([page].into_iter());
            self.base.table.word(page).settle(seen);
            // Its READs land where those of the next fault will.
            self.await_window(thread);
            self.drop_window(thread);
            return Served::Unmapped;
        }
        if !dirty {
            thread.watched = Some((page, seen));
        }
        let here = seen.to(State::Resident).with_dirty(dirty).with_guessed(comes == Comes::Compared).with_field(0);
        self.base.table.word(page).settle(here);
        self.base.count(&self.base.counters.demand, 1);
        self.base.count(&self.base.counters.bytes_in, PAGE_BYTES as u64);
        self.base.counters.latency.record(clock::ns(clock::ticks() - begun));
        let ahead = self.fetch_window(thread, Why::Guessed);
        self.base.count(&self.base.counters.prefetched, ahead as u64);
        self.room.reserve_kept();
        Served::Here
    }

    /// A page whose bytes are still in the staging ring. Room is reserved.
    fn rescue(&self, page: PageId, seen: Word, write: bool) -> Served {
        let index = seen.staged();
        let taken = self.out.staging.take(index, page);
        // Not yet in its slot? Then it is dirty, and takes another slot later (see staging, Orphan).
        let comes = if taken.written {
            let comes = self.changes.tracker.comes(false, write, || self.changes.rewrites.likely(seen));
            // SAFETY: the copy is this call's until released; the page is Busy, hence ours.
            unsafe { self.changes.tracker.keep(page, self.out.staging.bytes(index), false, write, comes) }
        } else {
            Comes::Writable
        };
        let dirty = comes != Comes::Protected;
        // SAFETY: the copy is this call's until released.
        let installed = unsafe { self.base.uffd.copy(page.addr(), self.out.staging.bytes(index), PAGE_BYTES, !dirty) };
        if let Err(e) = installed
            && not_installed(page, e) == 0
        {
            self.local.unreserve(1);
            self.changes.tracker.release([page].into_iter());
            self.out.staging.put_back(index);
            self.base.table.word(page).set(seen);
            return Served::Unmapped;
        }
        if let Some(slot) = self.out.staging.release(index, taken.written) {
            self.base.pool.free(&[slot]);
        }
        let slot = if taken.written { seen.slot() } else { None };
        let here = seen.to(State::Resident).with_slot(slot).with_dirty(dirty).with_guessed(comes == Comes::Compared);
        self.base.table.word(page).settle(here.with_field(0));
        self.local.arrived(page, Arrival::Rescue);
        self.base.count(&self.base.counters.rescued, 1);
        self.room.reserve_kept();
        Served::Here
    }

    /// The first write to a page that is resident and clean.
    ///
    /// The page stays Busy while its protection is lifted: otherwise an eviction could protect it
    /// again, and this call lift that too, and a write be lost under the eviction's copy.
    fn upgrade(&self, thread: &mut Thread, page: PageId, seen: Word) -> Served {
        let at_once = thread.watched.take().is_some_and(|(watched, _)| watched == page);
        let late = self.keep_late(page, seen);
        let begun = clock::ticks();
        let lifted = self.base.uffd.protect(page.addr(), PAGE_BYTES, false);
        self.changes.rewrites.lifted(clock::ns(clock::ticks() - begun));
        let word = self.base.table.word(page);
        match lifted {
            Ok(()) => {
                self.changes.rewrites.saw_upgrade(seen, at_once);
                word.settle(seen.with_dirty(true).with_guessed(late).with_upgraded(true));
                self.base.count(&self.base.counters.upgrades, 1);
                self.room.reserve_kept();
                Served::Here
            }
            Err(_) => {
                if late {
                    self.changes.tracker.release([page].into_iter());
                }
                word.settle(seen);
                Served::Unmapped
            }
        }
    }

    /// Whether a clean page, about to be written, is compared from now on.
    fn keep_late(&self, page: PageId, seen: Word) -> bool {
        let mapped = seen.slot().is_some_and(|slot| self.base.pool.readable_in_place(slot).is_some());
        if mapped || !self.changes.tracker.keeps_late() {
            // A slot that is mapped holds the page as it came in.
            return mapped && self.changes.tracker.compares_with_slots();
        }
        // The program may take its right to read the page away just now: not while it is being read here.
        let _reading = self.changes.reading.lock();
        // SAFETY: the page is Busy and write-protected: it stays as it is; and it can be read.
        !self.base.table.may_be_unreadable(page) && unsafe { self.changes.tracker.keep_late(page) }
    }
}
