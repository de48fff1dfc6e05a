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
//! so the limit holds at every instant; evicting is [`crate::evict`]'s.

use crate::Pager;
use crate::dirty::Comes;
use crate::ending::{broken, die};
use crate::guess;
use crate::reads::DEMAND;
use crate::thread::{Inside, LOOK_ROUNDS, Thread};
use crate::window::Why;
use crate::word::{State, Word};
use farmem_cache::Arrival;
use farmem_cache::trace::Kind;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_protocol::exit;
use farmem_sys::clock;
use farmem_sys::raw::{Errno, sleep_ns, yield_cpu};
use std::sync::atomic::{AtomicU64, Ordering};

/// How a call of [`Pager::serve`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The page is resident, and writable if that was asked.
    Here,
    /// No mapping of ours is there: let the kernel say what it says.
    Unmapped,
}

/// Rounds of waiting for another thread's Busy page before giving the CPU away, and before sleeping.
const SPINS: u32 = 200;
const YIELDS: u32 = 400;
/// Faults in a row on a page that is there, after which the kernel is asked.
const GROUNDLESS: u32 = 1000;

impl Pager {
    /// Serves a fault at `addr`. False when the address is not far: the signal is the program's.
    ///
    /// For the SIGBUS handler: all signals blocked or kept to its end, on a near stack.
    pub fn fault(&self, addr: usize, write: bool) -> bool {
        if !is_far(addr) {
            return false;
        }
        let page = PageId::of(addr);
        // What this fault will look up one by one, each perhaps a miss: all at once.
        self.table.prefetch(page);
        self.tracker.prefetch(page);
        let begun = clock::ticks();
        let mut inside = self.threads.enter();
        if let Some((watched, seen)) = inside.thread.watched
            && !(write && watched == page)
        {
            inside.thread.watched = None;
            self.rewrites.not_at_once(seen);
        }
        let served = self.serve(&mut inside, page, write, begun);
        drop(inside);
        self.count(&self.counters.wait_ns, clock::ns(clock::ticks() - begun));
        served == Served::Here
    }

    /// Makes a page resident, and writable if `write`. `begun`: since when it is wanted, ticks.
    pub(crate) fn serve(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let served = self.serve_uncounted(inside, page, write, begun);
        if served == Served::Unmapped {
            self.count(&self.counters.unmapped, 1);
        }
        if self.samples(page) {
            self.end_sampled(begun);
        }
        served
    }

    /// [`Pager::serve`]; every way to [`Served::Here`] counts its kind.
    fn serve_uncounted(&self, inside: &mut Inside<'_>, page: PageId, write: bool, begun: u64) -> Served {
        let word = self.table.word(page);
        let mut rounds = 0;
        loop {
            let seen = word.load();
            match seen.state() {
                State::Untouched => {
                    if self.table.touched(page) {
                        self.look_before_touch(page);
                    }
                    if word.shift(seen, seen.to(State::Busy)) {
                        self.record(inside.thread, page, Kind::Fresh);
                        return self.first_touch(inside.thread, page);
                    }
                    self.table.cleared(page);
                }
                State::Remote => {
                    if word.shift(seen, seen.to(State::Busy)) {
                        self.record(inside.thread, page, Kind::Fault);
                        return self.fetch(inside.thread, page, seen, write, begun);
                    }
                }
                State::Staged => {
                    // Room first: making it may need the place in the ring that this page holds, and
                    // a page held Busy does not give it up.
                    self.reserve(1);
                    self.hear_of_write(page, seen);
                    if word.shift(seen, seen.to(State::Busy).with_field(0)) {
                        self.record(inside.thread, page, Kind::Fault);
                        return self.rescue(page, seen, write);
                    }
                    self.unreserve(1);
                }
                State::Resident if write && !seen.dirty() => {
                    if word.shift(seen, seen.to(State::Busy)) {
                        return self.upgrade(inside.thread, page, seen);
                    }
                }
                State::Resident => {
                    self.count(&self.counters.joined, 1);
                    if rounds == 0 {
                        self.expect_present(inside.thread, page);
                    }
                    return Served::Here;
                }
                State::Busy | State::Leaving => {
                    rounds += 1;
                    self.wait_for_owner(rounds);
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

    /// Another thread owns the page. Its owner may need this CPU.
    pub(crate) fn wait_for_owner(&self, rounds: u32) {
        match rounds {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => yield_cpu(),
            _ => sleep_ns(20_000),
        }
        if rounds.is_multiple_of(LOOK_ROUNDS) {
            self.threads.look();
        }
    }

    /// A page from its far slot, and the window ahead of it.
    fn fetch(&self, thread: &mut Thread, page: PageId, seen: Word, write: bool, begun: u64) -> Served {
        let Some(slot) = seen.slot() else { broken("a remote page without a far slot") };
        let in_place = self.pool.readable_in_place(slot);
        let mapped = in_place.is_some();
        if !mapped {
            self.post_demand(thread, slot);
        }
        // All that follows is done while the READ is under way, if there is one.
        self.reserve(1);
        let likely = || self.rewrites.likely(seen) && !guess::is_sample(&mut thread.guesses);
        let comes = self.tracker.comes(mapped, write, likely);
        self.plan_window(thread, page);
        self.post_window(thread);
        // Should the policy name the page at once, it is Busy and stays.
        self.arrived(page, Arrival::Demand);
        let source = in_place.unwrap_or_else(|| {
            self.keep_now(thread);
            self.send_on();
            self.await_read(thread, |tag| tag == DEMAND);
            thread.demand(thread.lands_last).cast_const()
        });
        let comes = if self.tracker.keep_later(page, mapped, comes, thread.number) {
            thread.unkept = Some(page);
            comes
        } else {
            // SAFETY: the page's bytes, which stay as they are (see below); it is Busy, hence ours.
            unsafe { self.tracker.keep(page, source, mapped, write, comes) }
        };
        let dirty = comes != Comes::Protected;
        // SAFETY: the landing buffer holds the page; or it is a slot of ours, mapped, whose bytes
        // change only by our own write-backs, which need the page resident.
        let installed = unsafe { self.uffd.copy(page.addr(), source, PAGE_BYTES, !dirty) };
        let here = match installed {
            Ok(_) => true,
            Err(e) => self.not_installed(page, e) != 0,
        };
        if !here {
            self.unreserve(1);
            self.policy().gone(page);
            self.tracker.release([page].into_iter());
            self.table.word(page).settle(seen);
            // Its READs land where those of the next fault will.
            self.await_window(thread);
            self.drop_window(thread);
            return Served::Unmapped;
        }
        if !dirty {
            thread.watched = Some((page, seen));
        }
        let here = seen.to(State::Resident).with_dirty(dirty).with_guessed(comes == Comes::Compared).with_field(0);
        self.table.word(page).settle(here);
        self.count(&self.counters.demand, 1);
        self.count(&self.counters.bytes_in, PAGE_BYTES as u64);
        self.counters.latency.record(clock::ns(clock::ticks() - begun));
        let ahead = self.fetch_window(thread, Why::Guessed);
        self.count(&self.counters.prefetched, ahead as u64);
        self.reserve_kept();
        Served::Here
    }

    /// A page whose bytes are still in the staging ring. Room is reserved.
    fn rescue(&self, page: PageId, seen: Word, write: bool) -> Served {
        let index = seen.staged();
        let taken = self.staging.take(index, page);
        // Not yet in its slot? Then it is dirty, and takes another slot later (see staging, Orphan).
        let comes = if taken.written {
            let comes = self.tracker.comes(false, write, || self.rewrites.likely(seen));
            // SAFETY: the copy is this call's until released; the page is Busy, hence ours.
            unsafe { self.tracker.keep(page, self.staging.bytes(index), false, write, comes) }
        } else {
            Comes::Writable
        };
        let dirty = comes != Comes::Protected;
        // SAFETY: the copy is this call's until released.
        let installed = unsafe { self.uffd.copy(page.addr(), self.staging.bytes(index), PAGE_BYTES, !dirty) };
        if let Err(e) = installed
            && self.not_installed(page, e) == 0
        {
            self.unreserve(1);
            self.tracker.release([page].into_iter());
            self.staging.put_back(index);
            self.table.word(page).set(seen);
            return Served::Unmapped;
        }
        if let Some(slot) = self.staging.release(index, taken.written) {
            self.pool.free(&[slot]);
        }
        let slot = if taken.written { seen.slot() } else { None };
        let here = seen.to(State::Resident).with_slot(slot).with_dirty(dirty).with_guessed(comes == Comes::Compared);
        self.table.word(page).settle(here.with_field(0));
        self.arrived(page, Arrival::Rescue);
        self.count(&self.counters.rescued, 1);
        self.reserve_kept();
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
        let lifted = self.uffd.protect(page.addr(), PAGE_BYTES, false);
        self.rewrites.lifted(clock::ns(clock::ticks() - begun));
        let word = self.table.word(page);
        match lifted {
            Ok(()) => {
                self.rewrites.saw_upgrade(seen, at_once);
                word.settle(seen.with_dirty(true).with_guessed(late).with_upgraded(true));
                self.count(&self.counters.upgrades, 1);
                self.reserve_kept();
                Served::Here
            }
            Err(_) => {
                if late {
                    self.tracker.release([page].into_iter());
                }
                word.settle(seen);
                Served::Unmapped
            }
        }
    }

    /// Whether a clean page, about to be written, is compared from now on.
    fn keep_late(&self, page: PageId, seen: Word) -> bool {
        let mapped = seen.slot().is_some_and(|slot| self.pool.readable_in_place(slot).is_some());
        if mapped || !self.tracker.keeps_late() {
            // A slot that is mapped holds the page as it came in.
            return mapped && self.tracker.compares_with_slots();
        }
        // The program may take its right to read the page away just now: not while it is being read here.
        let _reading = self.reading.lock();
        // SAFETY: the page is Busy and write-protected: it stays as it is; and it can be read.
        !self.table.may_be_unreadable(page) && unsafe { self.tracker.keep_late(page) }
    }

    /// What a failed install means. Returns the number of pages that are there all the same.
    pub(crate) fn not_installed(&self, page: PageId, e: Errno) -> usize {
        match e.0 {
            // No mapping of ours at the address, or one that is being torn down.
            libc::ENOENT | libc::ESRCH | libc::EINVAL => 0,
            libc::ENOMEM => die(
                exit::BROKEN,
                "the system has no memory for a local page: --local is larger than this machine or its control group allows",
            ),
            _ => broken(&format!("page {:#x}: install failed with {e}", page.addr())),
        }
    }

    /// Counts a system call some argument of which was far.
    pub fn count_guarded_syscall(&self) {
        self.count(&self.counters.syscalls_guarded, 1);
    }

    /// Counts one that the filter caught.
    pub fn count_trapped_syscall(&self) {
        self.count(&self.counters.syscalls_trapped, 1);
    }

    /// Counts one whose number the guard does not know.
    pub fn count_unknown_syscall(&self) {
        self.count(&self.counters.syscalls_unknown, 1);
    }

    #[inline(always)]
    pub(crate) fn count(&self, counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
