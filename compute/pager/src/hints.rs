//! Hints: the program tells about its pages, by `madvise` and by the calls of `farmem.h`.
//!
//! | said | done |
//! |---|---|
//! | will need, will read, will write | those that are away come in, up to 63 by one batch of READs, without a signal |
//! | cold | they are the next to leave ([`farmem_cache::Policy::demote`]) |
//! | page out | they leave now |
//! | random, sequential, normal | how much comes in ahead of a fault ([`crate::table::Pattern`]) |
//!
//! *A hint costs time, never bytes.* Pages move by the transitions of the page word that faults and
//! evictions use, so a hint may be wrong, late or hostile, and may race with anything. The region
//! lock is held only for the look that decides the call's result. A page that was unmapped since is
//! Untouched, and is passed by.
//!
//! *A hint is bounded.* One call brings in at most one part in [`MOST_AHEAD`] of local memory,
//! because pages must not be evicted before they are used. Pages leave by a hint only while far
//! memory has room that is promised to no other. Each step enters the pager afresh, so that forks
//! and signals do not wait for a long range.

use crate::base::Base;
use crate::incoming::Incoming;
use crate::incoming::window::Why;
use crate::kernel;
use crate::local::Local;
use crate::maps::{ENOMEM, pages};
use crate::out::Out;
use crate::out::batch::{Evictor, Leaving};
use crate::out::most_at_once;
use crate::room::Room;
use crate::table::{BLOCK_PAGES, Pattern};
use crate::thread::{Inside, WINDOW};
use crate::word::{State, Word};
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::AtomicU64;

/// One call brings in at most one part in this many of local memory.
const MOST_AHEAD: u64 = 32;
/// … but at least this number of pages.
const LEAST_AHEAD: u64 = 8;
/// Pages that one step brings in: a window's.
pub const STEP: usize = WINDOW - 1;
/// Batches that one step is brought in by, at most, where a batch of evictions makes less room than
/// it needs.
const ROUNDS: usize = 8;
/// Blocks of the page table that one step of an eviction looks at, at most.
const LOOKED_AT: u64 = 16;
/// Of far memory, the part that stays free where pages leave by a hint.
const KEPT_FREE: u64 = 16;

/// Hints of the program about its pages.
pub struct Hints {
    base: &'static Base,
    local: &'static Local,
    out: &'static Out,
    room: &'static Room,
    incoming: &'static Incoming,
}

impl Hints {
    pub(crate) fn new(
        base: &'static Base,
        local: &'static Local,
        out: &'static Out,
        room: &'static Room,
        incoming: &'static Incoming,
    ) -> Hints {
        Hints { base, local, out, room, incoming }
    }

    /// Follows the hints of `madvise` for a range that is page-aligned and far. As in the kernel,
    /// parts that are not mapped are passed by, and told of at the end.
    pub(crate) fn hint(&self, addr: usize, len: usize, advice: i32) -> isize {
        let end = addr + len;
        let regions = {
            let _signals = SignalsBlocked::new();
            let _inside = self.base.threads.enter();
            self.base.maps.lock().regions(addr).within(addr, end)
        };
        let (mut next, mut whole) = (addr, true);
        let mut most = self.most_ahead();
        for (at, region) in regions {
            whole &= at == next;
            next = region.end;
            if region.foreign {
                let ret = kernel::advise(at, region.end - at, advice);
                if ret < 0 {
                    return ret;
                }
                continue;
            }
            let range = pages(at, region.end);
            match advice {
                libc::MADV_WILLNEED => most -= self.bring_range(range, false, most),
                libc::MADV_COLD => self.demote(range),
                libc::MADV_PAGEOUT => self.page_out(range),
                libc::MADV_RANDOM => self.base.table.declare(range.0, range.1, Pattern::Random),
                libc::MADV_SEQUENTIAL => self.base.table.declare(range.0, range.1, Pattern::InOrder),
                libc::MADV_NORMAL => self.base.table.declare(range.0, range.1, Pattern::Normal),
                // Huge pages and merged ones do not apply to far memory.
                _ => {}
            }
        }
        if whole && next == end { 0 } else { ENOMEM }
    }

    /// The program is about to use `count` pages from the one at `addr` on, and to write to them if
    /// `write`. Brings in those that are away.
    ///
    /// Not from a signal handler of the runtime's. No far memory may be in use by the caller.
    pub fn will_use(&self, addr: usize, count: usize, write: bool) {
        if is_far(addr) {
            let first = PageId::of(addr);
            let last = first.0.saturating_add(count as u64).min(farmem_protocol::addr::FAR_PAGES as u64);
            self.bring_range((first, PageId(last)), write, self.most_ahead());
        }
    }

    /// [`Hints::will_use`] for up to [`STEP`] addresses, a page each, by one batch.
    pub fn will_use_each(&self, addrs: &[usize], write: bool) {
        let mut pages = [PageId(0); STEP];
        let wanted = addrs.iter().filter(|&&addr| is_far(addr)).map(|&addr| PageId::of(addr));
        let n = pages.iter_mut().zip(wanted).map(|(place, page)| *place = page).count();
        self.bring_step(&pages[..n], write);
    }

    /// The page words, for callers that look at one before they call: the address of the far
    /// range's first page's.
    pub fn words(&self) -> *const AtomicU64 {
        self.base.table.words()
    }

    fn most_ahead(&self) -> u64 {
        (self.local.limit() / MOST_AHEAD).max(LEAST_AHEAD)
    }

    /// Whether a use would fault on a page that can be had without installing fresh memory.
    fn is_wanting(seen: Word, write: bool) -> bool {
        match seen.state() {
            State::Remote | State::Staged => true,
            State::Resident => write && !seen.dirty(),
            _ => false,
        }
    }

    /// Brings in the pages of a range that are away, at most `most`; how many it tried.
    fn bring_range(&self, (first, last): (PageId, PageId), write: bool, most: u64) -> u64 {
        let (mut at, mut tried) = (first, 0);
        let mut step = [PageId(0); STEP];
        while tried < most
            && let Some(from) = self.base.table.next_used(at, last)
        {
            let most_now = (most - tried).min(STEP as u64) as usize;
            let block_end = (from.0 / BLOCK_PAGES + 1) * BLOCK_PAGES;
            let mut n = 0;
            at = from;
            while at.0 < block_end.min(last.0) && n < most_now {
                if Self::is_wanting(self.base.table.word(at).load(), write) {
                    step[n] = at;
                    n += 1;
                }
                at.0 += 1;
            }
            if n > 0 && !self.bring_step(&step[..n], write) {
                break;
            }
            tried += n as u64;
        }
        tried
    }

    /// Brings in some of [`STEP`] pages; false where there is no room.
    fn bring_step(&self, step: &[PageId], write: bool) -> bool {
        if self.base.records_all() {
            return false;
        }
        let begun = clock::ticks();
        let _signals = SignalsBlocked::new();
        let mut inside = self.base.threads.enter();
        let is_away =
            |page: &&PageId| self.base.table.word(**page).load().state() == State::Remote && !self.base.samples(**page);
        let mut room = true;
        for _ in 0..ROUNDS {
            let away = step.iter().filter(is_away).count();
            if away == 0 || !room {
                break;
            }
            room = self.bring_away(&mut inside, step, away, write);
        }
        for &page in step {
            let seen = self.base.table.word(page).load();
            // A staged page is as good as here. A clean page needs its protection lifted.
            if seen.state() != State::Remote && Self::is_wanting(seen, write) {
                self.incoming.serve(&mut inside, page, write, begun);
            }
        }
        drop(inside);
        self.base.count(&self.base.counters.wait_ns, clock::ns(clock::ticks() - begun));
        room
    }

    /// Those that are Remote, by one batch, as many as there is room for; false where there is
    /// none.
    fn bring_away(&self, inside: &mut Inside<'_>, step: &[PageId], away: usize, write: bool) -> bool {
        let thread = &mut *inside.thread;
        thread.claimed.clear();
        let reserved = self.room.reserve_ahead(away as u64);
        let mut room = reserved;
        for &page in step {
            if room == 0 {
                break;
            }
            if let Some(away) = self.incoming.is_away(page) {
                room -= self.incoming.claim(thread, page, away) as u64;
            }
        }
        self.local.unreserve(room);
        self.incoming.post_window(thread);
        self.out.send_on();
        let brought = self.incoming.fetch_window(thread, Why::Hinted { write });
        self.base.count(&self.base.counters.hinted, brought as u64);
        self.room.reserve_kept();
        reserved > 0
    }

    /// The pages of a range are the next to leave.
    fn demote(&self, (first, last): (PageId, PageId)) {
        let mut at = first;
        while let Some(from) = self.base.table.next_used(at, last) {
            at = PageId(((from.0 / BLOCK_PAGES + 1) * BLOCK_PAGES).min(last.0));
            let _signals = SignalsBlocked::new();
            let _inside = self.base.threads.enter();
            let mut policy = self.local.policy();
            self.base.table.walk(from, at, |page, word| {
                if word.load().state() == State::Resident {
                    policy.demote(page);
                }
            });
        }
    }

    /// The pages of a range leave, but for those that are pinned or that a thread is at, and as far
    /// as far memory has room.
    fn page_out(&self, (first, last): (PageId, PageId)) {
        let mut at = first;
        while let Some(from) = self.base.table.next_used(at, last) {
            let _signals = SignalsBlocked::new();
            let _inside = self.base.threads.enter();
            let mut evictor = self.out.evictor.lock();
            // Slots are taken with the evictor's lock held, so room that is free now stays free for
            // this batch.
            let most = most_at_once(self.out.staging.len());
            let used = self.base.pool.slots().used() + (2 * most * PAGE_BYTES) as u64;
            if self.base.pool.slots().ensure(used + used / KEPT_FREE).is_err() {
                return;
            }
            at = self.choose_within(&mut evictor, from, last, most);
            let left = self.out.evict_chosen(&mut evictor);
            self.base.count(&self.base.counters.paged_out, left as u64);
        }
    }

    /// Step 1 of an eviction by a hint: pages of a range become Leaving. Returns where to go on.
    fn choose_within(&self, evictor: &mut Evictor, from: PageId, last: PageId, most: usize) -> PageId {
        evictor.victims.clear();
        evictor.leaving.clear();
        let until = last.0.min((from.0 / BLOCK_PAGES + LOOKED_AT) * BLOCK_PAGES);
        let mut next = until;
        self.base.table.walk(from, PageId(until), |page, word| {
            let seen = word.load();
            if seen.state() != State::Resident || seen.pins() > 0 || self.base.samples(page) {
                return;
            }
            if evictor.leaving.len() == most {
                next = next.min(page.0);
            } else {
                evictor.leaving.extend(Leaving::take(&self.base.table, page, seen));
            }
        });
        if !evictor.leaving.is_empty() {
            let mut policy = self.local.policy();
            evictor.leaving.iter().for_each(|leaving| policy.gone(leaving.page()));
        }
        PageId(next)
    }
}
