//! Step 3 of an eviction: bytes of pages that leave go to their slots, by kind of page.
//!
//! ```text
//!  clean ──────────────────────────────────────────────► its slot has its bytes
//!  barred  the program may not read it ─── all zero? ──┬─► whole
//!  dirty   in its place, or held ──┬─ all zero? ─────┬─│─► Untouched: nothing is kept
//!                                  └─ compared ──────┼─┴─► whole
//!                                                    ├───► some lines
//!                                                    └───► equal: its slot has its bytes
//! ```
//!
//! *Whole* and *some lines* go to the slot at once if it can be written in its place. Otherwise the
//! page goes to the staging ring, and from there by a WRITE ([`super::writes`]) or by a record of
//! lines ([`super::log`]).

use super::Out;
use super::batch::{Evictor, Leaving};
use super::held::PIECE;
use crate::base::Base;
use crate::dirty::Changed;
use crate::dirty::Next;
use crate::ending::{broken, die, or_end};
use crate::page::{Bytes, Target};
use crate::word::{State, Word};
use farmem_pool::NoRoom;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use farmem_protocol::lines::LINE_BYTES;
use farmem_run::exit;
use farmem_sys::memory::{prefetch, prefetch_second};
use std::time::Duration;

/// Lines of a page that are fetched into the cache while the page before it is copied: as many as a
/// CPU fetches at once, with the slot's.
const LOOKED_AHEAD: usize = 8;

/// The word of a page whose bytes are in its slot.
const GONE: Word = Word::UNTOUCHED;

impl Out {
    /// Pages that are not held: clean ones, and dirty ones in their places. Sets their next words.
    pub(super) fn copy_in_place(&self, evictor: &mut Evictor) {
        let mut leaving = std::mem::take(&mut evictor.leaving);
        self.take_slots(evictor, leaving.iter().filter(|l| !l.held));
        let compares = self.changes.tracker.compares();
        leaving.first().filter(|first| !first.held).into_iter().for_each(|first| self.look_ahead(first));
        for at in 0..leaving.len() {
            let next = leaving.get(at + 1).filter(|next| !next.held);
            next.into_iter().for_each(|next| self.look_ahead(next));
            let l = &leaving[at];
            if l.held {
                continue;
            }
            let to = if !l.from.dirty() {
                self.changes.rewrites.saw_clean(l.from);
                evictor.tally.clean += 1;
                l.from.to(State::Remote).with_written(false)
            } else if let Some(bytes) = l.bytes(&self.base.table) {
                let compared =
                    (compares && l.from.guessed()).then(|| next.and_then(|next| compared_next(self.base, next)));
                self.bring_out(evictor, l, bytes, compared)
            } else {
                self.bring_barred(evictor, l)
            };
            leaving[at].to = to;
        }
        self.end_copying(evictor, leaving, false);
    }

    /// Pages that are held, once their mapping is gone. Sets their next words.
    pub(super) fn copy_held(&self, evictor: &mut Evictor) {
        let mut leaving = std::mem::take(&mut evictor.leaving);
        self.take_slots(evictor, leaving.iter().filter(|l| l.held));
        let compares = self.changes.tracker.compares();
        for at in 0..leaving.len() {
            if !leaving[at].held {
                continue;
            }
            if evictor.held.reads_next() {
                let together = leaving[at..].iter().filter(|l| l.held).take(PIECE);
                together.for_each(|l| self.look_ahead_of_slot(l));
            }
            let next = leaving.get(at + 1).filter(|next| compares && next.held);
            let next = next.and_then(|next| compared_next(self.base, next));
            let bytes = evictor.held.next();
            let compared = compares && leaving[at].from.guessed();
            leaving[at].to = self.bring_out(evictor, &leaving[at], bytes, compared.then_some(next));
        }
        self.end_copying(evictor, leaving, true);
    }

    /// Pages were copied: nothing is kept of them any more, and what they send leaves.
    fn end_copying(&self, evictor: &mut Evictor, leaving: Vec<Leaving>, held: bool) {
        let kept = leaving.iter().filter(|l| l.held == held && l.from.guessed());
        self.changes.tracker.release(kept.map(Leaving::page));
        evictor.freed.append(&mut evictor.slots);
        if !evictor.freed.is_empty() {
            self.base.pool.slots().free(&evictor.freed);
            evictor.freed.clear();
        }
        evictor.leaving = leaving;
        self.flush_log(evictor);
        self.ring_writes(evictor);
    }

    /// Allocates slots for those of these pages that need one and have none of their own.
    fn take_slots<'a>(&self, evictor: &mut Evictor, leaving: impl Iterator<Item = &'a Leaving>) {
        let has_own = |l: &Leaving| l.from.slot().is_some_and(|slot| self.base.pool.is_own(slot));
        let fresh = leaving.filter(|l| l.from.dirty() && !has_own(l)).count();
        evictor.slots.clear();
        if fresh > 0
            && let Err(e) = self.base.pool.slots().alloc(fresh, &mut evictor.slots)
        {
            self.no_room(&e);
        }
        // Taken from the end: neighbours in the program become neighbours in their slab, and come
        // back by one install.
        evictor.slots.reverse();
    }

    /// The slot that a dirty page goes to: its own, or one that was allocated for it. A slot that
    /// it shares with a child is given up.
    fn slot_of(&self, evictor: &mut Evictor, from: Word) -> FarSlot {
        match from.slot() {
            Some(own) if self.base.pool.is_own(own) => own,
            shared => {
                evictor.freed.extend(shared);
                evictor.slots.pop().unwrap_or_else(|| broken("fewer slots than pages that need one"))
            }
        }
    }

    /// Brings a dirty page that can be read to its slot, where it must. Returns its next word.
    /// `compare`: it is compared, and the page inside is the one to fetch meanwhile, if any.
    #[inline]
    fn bring_out(&self, evictor: &mut Evictor, l: &Leaving, bytes: Bytes<'_>, compare: Option<Option<Next>>) -> Word {
        if bytes.is_zero() {
            evictor.freed.extend(l.from.slot());
            return Word::UNTOUCHED;
        }
        let slot_bytes = || self.base.mapped_slot(l.from);
        // What lines are told by: the page, or the page as its slot would have it sealed.
        let again = if compare.is_some() { self.sealed_again(evictor, l, bytes) } else { None };
        let compare = compare.filter(|_| again.is_some() || !self.changes.tracker.keeps_sealed());
        let (shown, next_too) = again.map_or((bytes, true), |_| (evictor.sealed.page(0), false));
        let changed = compare.and_then(|next| {
            let next = next.filter(|_| next_too);
            self.changes.tracker.changed(l.page(), shown, slot_bytes(), next)
        });
        // The node knows the key of the hashes, and may know pages that have equal ones. No page but
        // the slot's has its tag.
        let is_other =
            again.is_some_and(|tag| !l.from.slot().is_some_and(|slot| self.base.pool.seals().is_as(slot, tag)));
        let changed = changed.map(|changed| if changed.lines == 0 && is_other { Changed::SOMEWHERE } else { changed });
        if let Some(changed) = changed {
            let stored = self.changes.rewrites.saw_compared(l.from, changed.lines != 0);
            if changed.lines == 0 {
                evictor.tally.clean += 1;
                return GONE.to(State::Remote).with_slot(l.from.slot()).with_written(stored);
            }
            if changed.known {
                evictor.tally.lines_changed += changed.lines.count_ones() as u64;
            }
        }
        let slot = self.slot_of(evictor, l.from);
        let in_place = self.base.writable_slot(slot);
        // Lines are laid onto what the slot holds: only where that is what the page came in with.
        let few = changed.filter(|c| Some(slot) == l.from.slot() && evictor.log.takes(c.lines));
        // (A page that is sealed anew differs everywhere from what its slot holds: it goes whole.)
        let shown_lines = again.is_some() || !self.base.seals();
        let goes = |evictor: &Evictor| shown_lines && evictor.log.goes_to(self.base.pool.takes_lines(slot));
        let few = few.filter(|_| in_place.is_some() || goes(evictor));
        evictor.tally.goes(few.map(|few| few.lines));
        let gone = match (in_place, few) {
            (Some(target), Some(few)) => {
                target.lay(bytes, few.lines);
                GONE.to(State::Remote)
            }
            (Some(target), None) => {
                target.fill(bytes);
                GONE.to(State::Remote)
            }
            (None, few) => {
                let index = self.claim_staged(evictor, l.page(), slot);
                match again.filter(|_| few.is_some()) {
                    Some(tag) => {
                        self.staging.target(index).fill(evictor.sealed.page(0));
                        self.base.pool.seals().remark(slot, tag);
                    }
                    None => self.stage(index, slot, bytes),
                }
                self.send_staged(evictor, index, slot, few)
            }
        };
        gone.with_slot(Some(slot)).with_written(true)
    }

    /// Seals a page that is compared under the nonce of its slot, if lines are told so. Returns the
    /// tag; the page is in `evictor.sealed`.
    #[inline]
    fn sealed_again(&self, evictor: &Evictor, l: &Leaving, bytes: Bytes<'_>) -> Option<u64> {
        if !self.changes.tracker.keeps_sealed() || !self.changes.tracker.keeps(l.page()) {
            return None;
        }
        self.base.seal_again(l.from.slot()?, bytes, &mut evictor.sealed.target(0))
    }

    /// Brings a dirty page to its slot that the program may not read: whole, by `/proc/self/mem`.
    /// Returns its next word.
    #[cold]
    fn bring_barred(&self, evictor: &mut Evictor, l: &Leaving) -> Word {
        if l.from.slot().is_none() && evictor.is_barred_zero(l.page()) {
            return Word::UNTOUCHED;
        }
        let slot = self.slot_of(evictor, l.from);
        evictor.tally.goes(None);
        let read = |evictor: &mut Evictor, target: Target<'_>| {
            if let Err(e) = evictor.read_leaving(l.page(), target) {
                broken(&format!("page {:#x} cannot be read: {e}", l.page().addr()));
            }
        };
        let gone = match self.base.writable_slot(slot) {
            Some(target) => {
                read(evictor, target);
                GONE.to(State::Remote)
            }
            None => {
                let index = self.claim_staged(evictor, l.page(), slot);
                read(evictor, self.staging.target(index));
                if self.base.seals() {
                    self.base.seal(slot, self.staging.page(index), self.staging.target(index));
                }
                self.send_staged(evictor, index, slot, None)
            }
        };
        gone.with_slot(Some(slot)).with_written(true)
    }

    /// Lays a page down in its place in the staging ring, sealed if nodes are not trusted. This is
    /// the last that is done to its bytes before they leave, and it takes the place of the copy.
    #[inline]
    fn stage(&self, index: usize, slot: FarSlot, bytes: Bytes<'_>) {
        match self.base.seals() {
            true => self.base.seal(slot, bytes, self.staging.target(index)),
            false => self.staging.target(index).fill(bytes),
        }
    }

    /// Sends a page that was copied to the staging ring to its slot: by some lines, or whole.
    /// Returns its next word, without the slot.
    fn send_staged(&self, evictor: &mut Evictor, index: usize, slot: FarSlot, few: Option<Changed>) -> Word {
        match few {
            Some(few) => self.log_lines(evictor, index, slot, (few.lines, few.was)),
            None => self.post_write(evictor, index as u64, index, slot, 0, PAGE_BYTES),
        }
        if evictor.log.is_chained() {
            self.ring_writes(evictor);
            self.collect_writes(evictor, Duration::ZERO);
        }
        GONE.to(State::Staged).with_field(index as u64)
    }

    /// Fetches the first lines of a page that is copied or compared in its place into the CPU's
    /// cache, and those of its slot. Both are cold, and in pages of memory of their own, where a
    /// CPU's own prefetching starts again.
    #[inline]
    fn look_ahead(&self, l: &Leaving) {
        if l.from.dirty() {
            let slot = self.base.mapped_slot(l.from);
            for at in (0..LOOKED_AHEAD).map(|line| line * LINE_BYTES) {
                prefetch(l.page().addr() + at);
                slot.into_iter().for_each(|slot| prefetch(slot.as_ptr() as usize + at));
            }
        }
    }

    /// Fetches the first lines of a slot into the second cache, before held pages are read. Reading
    /// sweeps the first cache. The lines come while the kernel copies (`docs/design/lines.md`).
    #[inline]
    fn look_ahead_of_slot(&self, l: &Leaving) {
        if let Some(slot) = self.base.mapped_slot(l.from) {
            (0..LOOKED_AHEAD).for_each(|line| prefetch_second(slot.as_ptr() as usize + line * LINE_BYTES));
        }
    }

    /// Ends the process: a page has nowhere to go.
    fn no_room(&self, e: &NoRoom) -> ! {
        match e {
            NoRoom::Lost(lost) => or_end(Err(lost.clone())),
            NoRoom::Exhausted(why) => {
                self.base.tell_losses();
                // Not memory is lacking, but nodes.
                if let Some(lost) = self.base.pool.nodes().without() {
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

/// The addresses of a compared page and of its slot, if that is mapped. A held page is read into the
/// cache anyway: of it, the slot alone.
fn compared_next(base: &Base, l: &Leaving) -> Option<Next> {
    let page = l.page().addr() as *const u8;
    l.from.guessed().then(|| {
        let slot = base.mapped_slot(l.from).map_or(page, Bytes::as_ptr);
        [if l.held { slot } else { page }, slot]
    })
}
