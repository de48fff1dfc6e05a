//! The way out: many pages, one TLB flush, no lost write.
//!
//! ```text
//!  1 choose   the policy names victims; those that are Resident and unpinned become Leaving
//!  2 settle   from now on no write to a dirty one is lost ([`settle`])
//!  3 copy     those that are not held go to their slot, or to the staging ring ([`copy`])
//!  4 drop     all of them by one vectored process_madvise, with one flush; then 3 for those held
//!  5 done     words become Remote, Staged, or Untouched (all zero); room is given back
//! ```
//!
//! *Why no write is lost.* A clean page is write-protected from its arrival on. A write to it
//! faults, finds the page Leaving, and waits until step 5. A dirty page is read when nothing can
//! write to it but through a fault, and faults wait. There are three ways:
//!
//! * The program's only thread evicts ([`still`]): the page is read at once.
//! * The page is held ([`held`]): it is read after the flush of step 4, which ends every earlier
//!   write.
//! * It cannot be held: it is read after the flush of a call that has write-protected it.
//!
//! The pager never decides by looking at a page that can still change.
//!
//! *Rejected.* `UFFDIO_MOVE` unmaps and keeps the bytes in one step, but flushes for each run of
//! adjacent pages. `WP_ASYNC` spares the first write's signal, but leaves no moment at which a page
//! is known to be clean and cannot change (`docs/design/lines.md`).
//!
//! When, and by which thread: [`crate::room`].

#![allow(unsafe_code)] // Pages are dropped.

pub(crate) mod batch;
mod copy;
pub(crate) mod held;
pub mod log;
pub(crate) mod settle;
pub(crate) mod staging;
pub(crate) mod still;
pub(crate) mod turns;
mod writes;

use crate::base::Base;
use crate::dirty::Changes;
use crate::ending::broken;
use crate::kernel;
use crate::local::Local;
use crate::local::crowd::Reach;
use crate::word::{State, Word};
use batch::{BATCH, Evictor, Leaving, Tally};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::clock;
use farmem_sys::memory::discard_vectored;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use staging::Staging;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use turns::Turns;

/// Sampled pages that leave together, at least.
const SAMPLED_BATCH: usize = 8;

/// The way out.
pub(crate) struct Out {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    /// The state of eviction between batches. A thread that evicts holds its lock.
    pub evictor: Lock<Evictor>,
    /// The order in which faults and repair get that lock.
    pub turns: Turns,
    pub staging: Staging,
    /// The network has not taken all yet that eviction sent.
    held_up: AtomicBool,
    /// Forks of this process and, if it was forked, that one: its memory may be another's too. Changes
    /// while no thread is in the pager.
    pub forks: AtomicU64,
}

/// Pages that may leave together, where the staging ring has room for `staged`. They must find room
/// in it without waiting for one another.
pub(crate) fn most_at_once(staged: usize) -> usize {
    if staged == 0 { BATCH } else { BATCH.min(staged / 2) }
}

impl Out {
    pub fn new(
        base: &'static Base,
        local: &'static Local,
        changes: &'static Changes,
        evictor: Evictor,
        staging: Staging,
    ) -> Out {
        let (held_up, forks) = (AtomicBool::new(false), AtomicU64::new(0));
        let turns = Turns::default();
        Out { base, local, changes, evictor: Lock::new(evictor), turns, staging, held_up, forks }
    }

    /// Evicts up to `n` pages that the policy names. Returns how many left.
    pub fn evict(&self, evictor: &mut Evictor, n: usize) -> usize {
        self.evict_from(evictor, n, Reach::Named)
    }

    /// Evicts up to `n` pages. Returns how many left. By a thread of the program's.
    pub fn evict_from(&self, evictor: &mut Evictor, n: usize, reach: Reach) -> usize {
        self.choose(evictor, n.min(most_at_once(self.staging.len())), reach);
        self.evict_chosen(evictor)
    }

    /// [`Out::evict_from`], by a thread of the runtime's: the program runs beside it.
    pub fn evict_beside(&self, evictor: &mut Evictor, n: usize, reach: Reach) -> usize {
        self.choose(evictor, n.min(most_at_once(self.staging.len())), reach);
        self.evict_leaving(evictor, false)
    }

    /// Steps 2 to 5, for pages that are Leaving and that the policy takes for gone. Returns how
    /// many left. By a thread of the program's.
    pub fn evict_chosen(&self, evictor: &mut Evictor) -> usize {
        let still = !evictor.leaving.is_empty() && self.is_still(evictor);
        self.evict_leaving(evictor, still)
    }

    fn evict_leaving(&self, evictor: &mut Evictor, still: bool) -> usize {
        if evictor.leaving.is_empty() {
            return 0;
        }
        let any_held = self.settle(evictor, still);
        self.copy_in_place(evictor);
        self.drop_pages(evictor);
        if any_held {
            self.copy_held(evictor);
        }
        let left = evictor.leaving.len();
        for leaving in evictor.leaving.drain(..) {
            let (page, to) = (leaving.page(), leaving.to);
            leaving.leave(&self.base.table);
            if to == Word::UNTOUCHED {
                self.base.record_zero(page);
            }
        }
        self.local.demand.left();
        self.local.unreserve(left as u64);
        self.count_batch(left as u64, std::mem::take(&mut evictor.tally));
        self.local.publish_levels();
        self.base.background.begin();
        self.collect_writes(evictor, Duration::ZERO);
        if farmem_fabric::any_away() && evictor.thread.as_ref().is_some_and(|thread| thread.lane.has_away()) {
            self.drain_writes(evictor);
            evictor.thread.iter_mut().for_each(|thread| thread.lane.leave_away());
        }
        left
    }

    /// A fault on a sampled page is served ([`crate::record`]). Older sampled pages leave although
    /// there is room, some together.
    pub fn end_sampled(&self, begun: u64) {
        let overdue = self.local.policy().overdue();
        if overdue >= SAMPLED_BATCH
            && let Some(mut evictor) = self.evictor.try_lock()
        {
            self.evict(&mut evictor, overdue);
        }
        let took = clock::ticks() - begun;
        self.base.count(&self.base.counters.sampling_ns, clock::ns(took));
        self.base.recorder.iter().for_each(|recorder| recorder.took(took));
    }

    /// Step 1. Pages that cannot leave go back to the policy at the end. If they went back earlier
    /// it would name them again instead of others.
    fn choose(&self, evictor: &mut Evictor, n: usize, reach: Reach) {
        evictor.victims.clear();
        evictor.leaving.clear();
        if reach != Reach::Named {
            self.local.crowd.begin();
        }
        let mut policy = self.local.policy();
        let mut pinned = 0;
        let all_named = loop {
            let from = evictor.victims.len();
            policy.victims(n, &mut evictor.victims);
            if evictor.victims.len() == from {
                break true;
            }
            pinned += self.choose_among(evictor, from, n);
            if reach == Reach::Named || reach == Reach::Found && !evictor.leaving.is_empty() {
                break false;
            }
        };
        evictor.victims.drain(..).for_each(|page| policy.kept(page));
        drop(policy);
        if reach != Reach::Named {
            evictor.victims.shrink_to(BATCH);
            self.local.crowd.end(all_named.then_some(pinned), self.local.limit());
        } else if !evictor.leaving.is_empty() && !self.local.is_crowded() {
            // Pages leave as ever.
            self.local.crowd.forget();
        }
    }

    /// Makes victims from the one at `from` on Leaving, up to `n` in all. Only those that stay
    /// remain among the victims. Returns how many of these are pinned.
    fn choose_among(&self, evictor: &mut Evictor, from: usize, n: usize) -> u64 {
        let table = &self.base.table;
        evictor.victims[from..].iter().for_each(|&page| table.prefetch(page));
        let (mut stay, mut pinned) = (from, 0);
        for at in from..evictor.victims.len() {
            let page = evictor.victims[at];
            let word = table.word(page);
            loop {
                let seen = word.load();
                match seen.state() {
                    State::Resident if seen.pins() == 0 && evictor.leaving.len() < n => {
                        if let Some(leaving) = Leaving::take(table, page, seen) {
                            evictor.leaving.push(leaving);
                            break;
                        }
                    }
                    // It is pinned, or another thread owns it, or enough pages leave. It stays, as
                    // recently used as any.
                    State::Resident | State::Busy => {
                        pinned += (seen.pins() > 0) as u64;
                        evictor.victims[stay] = page;
                        stay += 1;
                        break;
                    }
                    // Unmapped since the policy heard of it.
                    _ => break,
                }
            }
        }
        evictor.victims.truncate(stay);
        pinned
    }

    fn count_batch(&self, left: u64, tally: Tally) {
        let counters = &self.base.counters;
        self.base.count(&counters.evicted, left);
        self.base.count(&counters.evict_batches, 1);
        self.base.count(&counters.evicted_clean, tally.clean);
        self.base.count(&counters.pages_whole, tally.whole);
        self.base.count(&counters.lines_changed, tally.lines_changed);
        self.base.count(&counters.lines_sent, tally.lines_sent);
        self.base.count(&counters.bytes_out, tally.bytes_out);
    }

    /// Step 4.
    fn drop_pages(&self, evictor: &mut Evictor) {
        evictor.ranges.clear();
        let mut last_end = 0;
        for l in &evictor.leaving {
            let at = l.page().addr();
            match evictor.ranges.last_mut() {
                Some(range) if at == last_end => range.iov_len += PAGE_BYTES,
                _ => evictor.ranges.push(libc::iovec { iov_base: at as *mut _, iov_len: PAGE_BYTES }),
            }
            last_end = at + PAGE_BYTES;
        }
        if evictor.vectored {
            // SAFETY: every page in the ranges is Leaving and its bytes are safe.
            match unsafe { discard_vectored(evictor.pidfd, &evictor.ranges) } {
                Ok(bytes) if bytes == evictor.leaving.len() * PAGE_BYTES => return,
                Err(Errno(libc::EINVAL | libc::EPERM | libc::ENOSYS)) => evictor.vectored = false,
                // Partly done. Dropping a dropped page again harms nothing.
                _ => {}
            }
        }
        for range in &evictor.ranges {
            let start = range.iov_base as usize;
            let dropped = kernel::discard(start, range.iov_len);
            // Pages that are not held were read, and stay as they were. A held page can be written
            // to until it has gone.
            let within = start..start + range.iov_len;
            if let Err(e) = dropped
                && evictor.leaving.iter().any(|l| l.held && within.contains(&l.page().addr()))
            {
                broken(&format!("a page at {start:#x} does not leave: {e}; is it locked?"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{Ground, bare};
    use farmem_cache::Arrival;
    use farmem_protocol::addr::PageId;

    /// A batch that can take nothing leaves every page as it was, and with the policy.
    #[test]
    fn pinned_and_busy_pages_stay() {
        let Ground { base, local, out, .. } = bare::ground(4 << 20);
        let resident = Word::UNTOUCHED.to(State::Resident).with_dirty(true);
        let words = [resident.with_field(1), resident.to(State::Busy), Word::UNTOUCHED];
        for (page, word) in words.iter().enumerate() {
            let page = PageId(page as u64);
            base.table.touched(page);
            base.table.word(page).set(*word);
            local.arrived(page, Arrival::Demand);
        }
        let mut evictor = out.evictor.lock();
        for reach in [Reach::Named, Reach::Found, Reach::All] {
            assert_eq!(out.evict_from(&mut evictor, 8, reach), 0);
        }
        let after = [0, 1, 2].map(|page| base.table.word(PageId(page)).load());
        assert_eq!(after, words);
        assert_eq!(local.policy().len(), 2, "the one that was unmapped is forgotten");
        assert!(!local.is_crowded(), "one pin is not nearly all");
    }
}
