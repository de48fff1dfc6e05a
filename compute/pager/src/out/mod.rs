//! Eviction: many pages, one TLB flush, no lost write.
//!
//! ```text
//!  1 victims      the policy names them; Resident and unpinned ones become Leaving
//!  2 settle       no write to a dirty one is lost from now on ([`crate::out::settle`])
//!  3 copy         to their far slot (mapped) or to the staging ring, WRITEs posted: what is not held
//!  4 drop         all of them by one vectored process_madvise: one flush; then what is held is copied as in 3
//!  5 done         words become Remote, Staged, or Untouched (all zero); room is given back
//! ```
//!
//! *Why no write is lost.* A clean page is write-protected from its arrival on. A write to it
//! faults, finds it Leaving, and waits until step 5. A dirty page is read when nothing can write to
//! it but through a fault, and faults wait. There are three ways:
//!
//! * The program's only thread evicts ([`crate::out::still`]): the page is read at once.
//! * The page is held ([`crate::out::held`]): it is read after the flush of step 4, which ends every
//!   earlier write.
//! * It cannot be held: it is read after the flush of a call that has write-protected it.
//!
//! The pager never decides by looking at a page that can still change.
//!
//! *Rejected.* `UFFDIO_MOVE` unmaps and keeps the bytes in one step, but flushes for each run of
//! adjacent pages. `WP_ASYNC` spares the first write's signal, but leaves no moment at which a page
//! is known clean and cannot change (`docs/design/lines.md`, *Rejected policies*).
//!
//! When, and by whom: [`crate::room`].

pub(crate) mod batch;
pub(crate) mod held;
pub mod log;
pub(crate) mod settle;
pub(crate) mod staging;
pub(crate) mod still;
mod writes;

use crate::base::Base;
use crate::dirty::Changes;
use crate::dirty::exact::Next;
use crate::dirty::{Changed, exact};
use crate::ending::{broken, die, or_end};
use crate::local::Local;
use crate::local::crowd::Reach;
use crate::out::batch::{BATCH, Evictor, Leaving, Tally};
use crate::out::held::PIECE;
use crate::word::{State, Word};
use farmem_pool::NoRoom;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_protocol::exit;
use farmem_protocol::lines::LINE_BYTES;
use farmem_sys::clock;
use farmem_sys::memory::{copy_page, discard_vectored, is_zero, prefetch, prefetch_second, try_discard};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use staging::Staging;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Sampled pages that leave together, at least.
const SAMPLED_BATCH: usize = 8;
/// Lines of a page that are asked for while the one before it is copied. As many as a CPU fetches at once, with the slot's.
const LOOKED_AHEAD: usize = 8;

/// The way out.
pub(crate) struct Out {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    /// What eviction keeps between batches. A thread that evicts holds its lock.
    pub evictor: Lock<Evictor>,
    pub staging: Staging,
    /// The network has not taken all yet that eviction sent.
    held_up: AtomicBool,
    /// This process has forked or was forked: its memory may be another's too.
    pub has_forked: AtomicBool,
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
        let (held_up, has_forked) = (AtomicBool::new(false), AtomicBool::new(false));
        Out { base, local, changes, evictor: Lock::new(evictor), staging, held_up, has_forked }
    }

    /// Tells cards of the staging ring's memory.
    pub fn tell_arena(&self) {
        // SAFETY: the ring is never unmapped, and its pages stay its own.
        unsafe { self.base.pool.arena(self.staging.bytes(0), self.staging.most() * PAGE_BYTES) };
    }

    /// Evicts up to `n` pages; returns how many left.
    pub(crate) fn evict(&self, evictor: &mut Evictor, n: usize) -> usize {
        self.evict_from(evictor, n, Reach::Named)
    }

    pub(crate) fn evict_from(&self, evictor: &mut Evictor, n: usize, reach: Reach) -> usize {
        self.choose(evictor, n.min(most_at_once(self.staging.len())), reach);
        self.evict_chosen(evictor)
    }

    /// Steps 2 to 5, for pages that are Leaving and that the policy takes for gone; returns how many left.
    pub(crate) fn evict_chosen(&self, evictor: &mut Evictor) -> usize {
        if evictor.leaving.is_empty() {
            return 0;
        }
        let still = self.is_still(evictor);
        let any_held = self.settle(evictor, still);
        self.copy_out(evictor, false);
        self.drop_pages(evictor);
        if any_held {
            self.copy_out(evictor, true);
        }
        let left = evictor.leaving.len();
        for leaving in &evictor.leaving {
            let word = self.base.table.word(leaving.page);
            word.set(leaving.to);
            if leaving.to == Word::UNTOUCHED {
                self.base.table.cleared(leaving.page);
                self.base.record_zero(leaving.page);
            }
        }
        self.local.demand.left();
        self.local.unreserve(left as u64);
        self.count_batch(left as u64, std::mem::take(&mut evictor.tally));
        self.local.publish_levels();
        self.base.background.begin();
        evictor.leaving.clear();
        self.collect_writes(evictor, Duration::ZERO);
        if farmem_fabric::any_away() && evictor.thread.as_ref().is_some_and(|thread| thread.lane.has_away()) {
            self.drain_writes(evictor);
            evictor.thread.iter_mut().for_each(|thread| thread.lane.leave_away());
        }
        left
    }

    /// A fault on a sampled page is served ([`crate::record`]). Older sampled pages leave although there is room, some together.
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

    /// Step 1. What cannot leave goes back to the policy at the end: it would be named again instead of others.
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
            evictor.victims[from..].iter().for_each(|&page| self.base.table.prefetch(page));
            let mut stay = from;
            for at in from..evictor.victims.len() {
                let page = evictor.victims[at];
                let word = self.base.table.word(page);
                loop {
                    let seen = word.load();
                    match seen.state() {
                        State::Resident if seen.pins() == 0 && evictor.leaving.len() < n => {
                            if word.shift(seen, seen.to(State::Leaving)) {
                                evictor.leaving.push(Leaving::found(page, seen));
                                break;
                            }
                        }
                        // Pinned, or a thread is at it, or more than are to leave: it stays, as recently used as anything.
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

    fn count_batch(&self, left: u64, tally: Tally) {
        self.base.count(&self.base.counters.evicted, left);
        self.base.count(&self.base.counters.evict_batches, 1);
        self.base.count(&self.base.counters.evicted_clean, tally.clean);
        self.base.count(&self.base.counters.pages_whole, tally.whole);
        self.base.count(&self.base.counters.lines_changed, tally.lines_changed);
        self.base.count(&self.base.counters.lines_sent, tally.lines_sent);
        self.base.count(&self.base.counters.bytes_out, tally.bytes_out);
    }

    /// Step 3. Sets the next words of the pages that are held, or of the others.
    fn copy_out(&self, evictor: &mut Evictor, held: bool) {
        let mut leaving = std::mem::take(&mut evictor.leaving);
        self.take_slots(evictor, leaving.iter().filter(|l| l.held == held));
        let in_place = |l: &&Leaving| !held && !l.held;
        let compares = self.changes.tracker.compares();
        let mut freed = Vec::new();
        leaving.first().filter(in_place).into_iter().for_each(|first| self.look_ahead(first));
        for at in 0..leaving.len() {
            leaving.get(at + 1).filter(in_place).into_iter().for_each(|next| self.look_ahead(next));
            if leaving[at].held != held {
                continue;
            }
            if held && evictor.held.reads_next() {
                let together = leaving[at..].iter().filter(|l| l.held).take(PIECE);
                together.for_each(|l| self.look_ahead_of_slot(l));
            }
            let next = leaving.get(at + 1).filter(|next| compares && next.held == held);
            let next = next.and_then(|next| self.compared_with(next));
            let l = &mut leaving[at];
            l.to = if l.from.dirty() {
                let bytes = if held {
                    Some(evictor.held.next())
                } else {
                    (!self.base.table.may_be_unreadable(l.page)).then(|| l.page.addr() as *const u8)
                };
                let compared = compares && l.from.guessed();
                self.bring_out(evictor, l, bytes, compared.then_some(next), &mut freed)
            } else {
                self.changes.rewrites.saw_clean(l.from);
                evictor.tally.clean += 1;
                l.from.to(State::Remote).with_written(false)
            };
        }
        self.changes.tracker.release(leaving.iter().filter(|l| l.held == held && l.from.guessed()).map(|l| l.page));
        freed.append(&mut evictor.slots);
        if !freed.is_empty() {
            self.base.pool.free(&freed);
        }
        evictor.leaving = leaving;
        self.flush_log(evictor);
        self.ring_writes(evictor);
    }

    /// Allocates slots for those of these pages that go to one and have none of their own.
    fn take_slots<'a>(&self, evictor: &mut Evictor, leaving: impl Iterator<Item = &'a Leaving>) {
        let has_own = |l: &Leaving| l.from.slot().is_some_and(|slot| self.base.pool.is_own(slot));
        let fresh = leaving.filter(|l| l.from.dirty() && !has_own(l)).count();
        evictor.slots.clear();
        if fresh > 0
            && let Err(e) = self.base.pool.alloc(fresh, &mut evictor.slots)
        {
            self.no_room(&e);
        }
        // Taken from the end: neighbours in the program become neighbours in their slab, and come
        // back by one install.
        evictor.slots.reverse();
    }

    /// Brings a dirty page to its slot, where it must; its next word. `bytes`: those of the page,
    /// if it can be read. `compare`: whether it is compared, and with it the page to ask for, if
    /// any ([`Tracker::changed`]). Slots that are needed no longer go to `freed`.
    ///
    /// [`Tracker::changed`]: crate::dirty::Tracker::changed
    #[inline]
    fn bring_out(
        &self,
        evictor: &mut Evictor,
        l: &Leaving,
        bytes: Option<*const u8>,
        compare: Option<Option<Next>>,
        freed: &mut Vec<FarSlot>,
    ) -> Word {
        let zero = match bytes {
            // SAFETY: the page is present and Leaving, or its bytes are held: nobody can take it
            // away or change it.
            Some(bytes) => unsafe { is_zero(bytes) },
            None => l.from.slot().is_none() && evictor.is_barred_zero(l.page),
        };
        if zero {
            freed.extend(l.from.slot());
            return Word::UNTOUCHED;
        }
        let changed = bytes.zip(compare).and_then(|(bytes, next)| self.changed(l.page, bytes, l.from, next));
        if let Some(changed) = changed {
            let stored = self.changes.rewrites.saw_compared(l.from, changed.lines != 0);
            if changed.lines == 0 {
                evictor.tally.clean += 1;
                return Word::UNTOUCHED.to(State::Remote).with_slot(l.from.slot()).with_written(stored);
            }
            if changed.known {
                evictor.tally.lines_changed += changed.lines.count_ones() as u64;
            }
        }
        let slot = match l.from.slot() {
            Some(own) if self.base.pool.is_own(own) => own,
            shared => {
                freed.extend(shared);
                evictor.slots.pop().unwrap_or_else(|| broken("fewer slots than pages that need one"))
            }
        };
        // Lines are laid onto what the slot holds: only where that is what the page came in with.
        let in_place = self.base.pool.writable_in_place(slot);
        let few = changed.filter(|c| Some(slot) == l.from.slot() && evictor.log.takes(c.lines));
        let few = few.filter(|_| in_place.is_some() || evictor.log.goes_to(self.base.pool.takes_lines(slot)));
        match few.map(|few| few.lines.count_ones() as u64) {
            Some(lines) => {
                evictor.tally.lines_sent += lines;
                evictor.tally.bytes_out += lines * LINE_BYTES as u64;
            }
            None => {
                evictor.tally.whole += 1;
                evictor.tally.bytes_out += PAGE_BYTES as u64;
            }
        }
        self.send(evictor, l.page, (slot, in_place), bytes, few).with_slot(Some(slot)).with_written(true)
    }

    /// Gets the first lines of a page that is to be copied or compared in its place into the CPU's cache, and of its slot: both are cold,
    /// in memory pages of their own, which is where a CPU's own looking ahead begins anew.
    #[inline]
    fn look_ahead(&self, l: &Leaving) {
        if l.from.dirty() {
            let slot = self.base.mapped_slot(l.from);
            for at in (0..LOOKED_AHEAD).map(|line| line * LINE_BYTES) {
                prefetch(l.page.addr() + at);
                slot.into_iter().for_each(|slot| prefetch(slot as usize + at));
            }
        }
    }

    /// The same of the slot alone, into the second cache: before pages that are held are read, by which the first is swept. While the kernel
    /// copies them the slots' lines come: 0.15 µs a page, copied or compared (redis on AMD Zen 3: `docs/design/lines.md`, *Before held pages are read*).
    #[inline]
    fn look_ahead_of_slot(&self, l: &Leaving) {
        if let Some(slot) = self.base.mapped_slot(l.from) {
            (0..LOOKED_AHEAD).for_each(|line| prefetch_second(slot as usize + line * LINE_BYTES));
        }
    }

    /// Brings a page's bytes to its slot, where that is in place if it can be written there, all of
    /// them or some lines; its next word, but for the slot. `bytes`: those of the page, if it can be read.
    fn send(
        &self,
        evictor: &mut Evictor,
        page: PageId,
        (slot, in_place): (FarSlot, Option<*mut u8>),
        bytes: Option<*const u8>,
        few: Option<Changed>,
    ) -> Word {
        if let Some(mapped) = in_place {
            match (few, bytes) {
                // SAFETY: the page is present, readable and Leaving, or its bytes are held; the
                // slot mapped and this process's alone.
                (Some(few), Some(bytes)) => unsafe { exact::copy_lines(bytes, mapped, few.lines) },
                _ => self.read_page(evictor, page, mapped, bytes),
            }
            return Word::UNTOUCHED.to(State::Remote);
        }
        let index = self.claim_staged(evictor, page, slot);
        self.read_page(evictor, page, self.staging.bytes(index), bytes);
        match few {
            Some(few) => self.log_lines(evictor, index, slot, (few.lines, few.was)),
            None => self.post_write(evictor, index as u64, index, slot, 0, PAGE_BYTES),
        }
        if evictor.log.is_chained() {
            self.ring_writes(evictor);
            self.collect_writes(evictor, Duration::ZERO);
        }
        Word::UNTOUCHED.to(State::Staged).with_field(index as u64)
    }

    /// What changed of a compared page; its slot, its own or shared with a child, holds what it came in with.
    fn changed(&self, page: PageId, bytes: *const u8, from: Word, next: Option<Next>) -> Option<Changed> {
        // SAFETY: the page is present, readable and Leaving, or held, the slot mapped, and nobody writes to either.
        unsafe { self.changes.tracker.changed(page, bytes, self.base.mapped_slot(from), next) }
    }

    /// A compared page, and its slot if that is mapped. What is held comes by itself: its slot alone.
    fn compared_with(&self, l: &Leaving) -> Option<Next> {
        let page = l.page.addr() as *const u8;
        l.from.guessed().then(|| {
            let slot = self.base.mapped_slot(l.from).unwrap_or(page);
            [if l.held { slot } else { page }, slot]
        })
    }

    fn read_page(&self, evictor: &mut Evictor, page: PageId, to: *mut u8, bytes: Option<*const u8>) {
        if let Some(bytes) = bytes {
            // SAFETY: the source is present and Leaving (see `copy_out`), or held, the target ours.
            unsafe { copy_page(bytes, to) };
        } else if let Err(e) = evictor.read_leaving(page, to) {
            broken(&format!("page {:#x} cannot be read: {e}", page.addr()));
        }
    }

    /// Step 4.
    fn drop_pages(&self, evictor: &mut Evictor) {
        evictor.ranges.clear();
        let (mut last_end, mut leave) = (0, 0);
        for l in &evictor.leaving {
            leave += PAGE_BYTES;
            let at = l.page.addr();
            match evictor.ranges.last_mut() {
                Some(range) if at == last_end => range.iov_len += PAGE_BYTES,
                _ => evictor.ranges.push(libc::iovec { iov_base: at as *mut _, iov_len: PAGE_BYTES }),
            }
            last_end = at + PAGE_BYTES;
        }
        if evictor.vectored {
            // SAFETY: every page in the ranges is Leaving and its bytes are safe.
            match unsafe { discard_vectored(evictor.pidfd, &evictor.ranges) } {
                Ok(bytes) if bytes == leave => return,
                Err(Errno(libc::EINVAL | libc::EPERM | libc::ENOSYS)) => evictor.vectored = false,
                // Partly done. Dropping a dropped page again harms nothing.
                _ => {}
            }
        }
        for range in &evictor.ranges {
            // SAFETY: as above.
            let dropped = unsafe { try_discard(range.iov_base.cast(), range.iov_len) };
            // What is not held has been read, and stays as it was; what is held can be written to until it has gone.
            let within = range.iov_base as usize..range.iov_base as usize + range.iov_len;
            if let Err(e) = dropped
                && evictor.leaving.iter().any(|l| l.held && within.contains(&l.page.addr()))
            {
                broken(&format!("a page at {:p} does not leave: {e}; is it locked?", range.iov_base));
            }
        }
    }

    fn no_room(&self, e: &NoRoom) -> ! {
        match e {
            NoRoom::Lost(lost) => or_end(Err(lost.clone())),
            NoRoom::Exhausted(why) => {
                self.base.tell_losses();
                // Not for want of memory, but of nodes.
                if let Some(lost) = self.base.pool.without_nodes() {
                    or_end::<()>(Err(lost));
                }
                die(
                    exit::FAR_EXHAUSTED,
                    &format!(
                        "far memory is exhausted and a page has nowhere to go: {why}; lend more (farmem node --lend, farmem run --far) or raise --local"
                    ),
                )
            }
        }
    }
}
