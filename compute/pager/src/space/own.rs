//! Mappings are laid and taken away, and pages change hands with them.

#![allow(unsafe_code)] // Zeros for pages that calls have pinned.

use super::Space;
use crate::kernel;
use crate::maps::regions::Region;
use crate::maps::{Maps, pages};
use crate::page::wipe;
use crate::table::Pattern;
use crate::thread::Inside;
use crate::word::{AtomicWord, State, Word};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use std::sync::atomic::Ordering;

/// Whether the pager serves a fresh mapping's faults from the start. Otherwise the caller registers
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    AtOnce,
    Later,
}

impl Space {
    pub(crate) fn give(
        &self,
        space: &mut Maps,
        at: usize,
        region: Region,
        flags: i32,
        served: Watched,
    ) -> Result<(), isize> {
        let len = region.end - at;
        self.lay(at, len, region.prot, flags, served)?;
        space.regions(at).insert(at, region);
        if region.committed {
            space.committed += len as u64;
        }
        space.mapped += len as u64;
        self.base.counters.mapped_bytes.store(space.mapped, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a fresh kernel mapping that the pager serves, over whatever is there.
    pub(crate) fn lay(&self, at: usize, len: usize, prot: i32, flags: i32, served: Watched) -> Result<(), isize> {
        if let e @ ..0 = kernel::lay(at, len, prot, flags) {
            return Err(e);
        }
        // A child that the runtime does not know of finds no far memory. No huge pages: a part of
        // one that is dropped frees nothing, and its zeros would become the kernel's one page of
        // zeros, which is nobody's own ([`crate::out::held`]).
        for advice in [libc::MADV_DONTFORK, libc::MADV_NOHUGEPAGE] {
            kernel::advise(at, len, advice);
        }
        if served == Watched::AtOnce
            && let Err(e) = self.base.uffd.register(at, len)
        {
            kernel::unmap(at, len);
            return Err(-(e.0 as isize));
        }
        Ok(())
    }

    /// Unmaps whatever is mapped of a range.
    pub(crate) fn take_away(&self, space: &mut Maps, start: usize, end: usize) {
        for (at, region) in space.regions(start).within(start, end) {
            let claimed = if region.foreign { Vec::new() } else { self.claim(at, region.end) };
            kernel::unmap(at, region.end - at);
            if region.foreign {
                continue;
            }
            self.disown(&claimed);
            // A first touch next door may have installed zeros in here after the claim and before
            // the unmapping. From now on none can. Pages that came in go.
            let late = self.claim(at, region.end);
            self.disown(&late);
            let (first, last) = pages(at, region.end);
            self.base.table.declare(first, last, Pattern::Normal);
            self.base.table.release(first, last);
            self.changes.tracker.forget(first, last);
            space.mapped -= (region.end - at) as u64;
            if region.committed {
                space.committed -= (region.end - at) as u64;
            }
        }
        self.base.counters.mapped_bytes.store(space.mapped, Ordering::Relaxed);
        space.regions(start).remove(start, end);
        self.local.publish_levels();
    }

    /// Waits until a page is nobody's and makes it the caller's (Busy). The word it had; `None` for
    /// an untouched one, which stays so.
    pub(crate) fn own(&self, page: PageId, word: &AtomicWord) -> Option<Word> {
        self.own_by(word, |seen| Some(self.pins.take_page(page, word, seen)))
    }

    /// [`Space::own`] by what `take` does with a word of a page that is nobody's: whether it took
    /// the page, or `None` if it leaves the page as it is.
    fn own_by(&self, word: &AtomicWord, mut take: impl FnMut(Word) -> Option<bool>) -> Option<Word> {
        let mut rounds = 0;
        loop {
            let seen = word.load();
            match seen.state() {
                State::Untouched => return None,
                State::Busy | State::Leaving => {
                    rounds += 1;
                    self.base.wait_for_owner(rounds);
                }
                _ if take(seen)? => return Some(seen),
                _ => {}
            }
        }
    }

    /// Makes every touched page of a range the caller's, and frees what it holds but the kernel's
    /// page. The caller drops those, then calls [`Space::disown`].
    pub(crate) fn claim(&self, start: usize, end: usize) -> Vec<PageId> {
        self.claim_by(start, end, |page, word| self.own(page, word))
    }

    /// [`Space::claim`] of the pages that `own` makes the caller's.
    fn claim_by(
        &self,
        start: usize,
        end: usize,
        mut own: impl FnMut(PageId, &AtomicWord) -> Option<Word>,
    ) -> Vec<PageId> {
        let (first, last) = pages(start, end);
        let mut slots: Vec<FarSlot> = Vec::new();
        let mut resident = Vec::new();
        let mut claimed = Vec::new();
        self.base.table.walk(first, last, |page, word| {
            let Some(seen) = own(page, word) else { return };
            claimed.push(page);
            match seen.state() {
                State::Staged => {
                    self.out.staging.take(seen.staged(), page);
                    slots.extend(self.out.staging.release(seen.staged(), false));
                }
                State::Resident => {
                    slots.extend(seen.slot());
                    resident.push(page);
                }
                _ => slots.extend(seen.slot()),
            }
        });
        if !resident.is_empty() {
            let mut policy = self.local.policy();
            resident.iter().for_each(|&page| policy.gone(page));
            drop(policy);
            self.changes.tracker.release(resident.iter().copied());
        }
        self.local.unreserve(resident.len() as u64);
        if !slots.is_empty() {
            self.base.pool.slots().free(&slots);
        }
        self.base.record_gone(&claimed);
        claimed
    }

    /// Ends what [`Space::claim`] began: the pages are untouched.
    pub(crate) fn disown(&self, claimed: &[PageId]) {
        for &page in claimed {
            self.base.table.word(page).set(Word::UNTOUCHED);
            self.base.table.cleared(page);
        }
    }

    /// Makes every page of a range of ours untouched again.
    pub(super) fn untouch(&self, start: usize, end: usize) {
        let claimed = self.claim(start, end);
        self.drop_claimed(&claimed);
    }

    /// [`Space::untouch`] of a range that the program may write to, but for pages that calls under
    /// way have pinned: the kernel would not find them. They get zeros in their place. The caller
    /// holds the lock of the mappings.
    pub(super) fn untouch_or_wipe(&self, inside: &mut Inside<'_>, start: usize, end: usize) {
        let mut pinned = Vec::new();
        let claimed = self.claim_by(start, end, |page, word| {
            self.own_by(word, |seen| {
                if seen.state() == State::Resident && seen.pins() > 0 {
                    pinned.push(page);
                    return None;
                }
                Some(word.shift(seen, Word::UNTOUCHED.to(State::Busy)))
            })
        });
        self.drop_claimed(&claimed);
        for page in pinned {
            if self.pins.pin_resident(inside, page) {
                // SAFETY: pinned for writing just now, and the caller's word about the range and
                // the lock.
                unsafe { wipe(page) };
                self.pins.unpin(page.addr(), PAGE_BYTES);
            } else {
                // Its call has ended and it has left meanwhile; or too many calls have pinned it.
                self.untouch(page.addr(), page.addr() + PAGE_BYTES);
            }
        }
    }

    fn drop_claimed(&self, claimed: &[PageId]) {
        // Only what was claimed: another thread's first touches beside it stay.
        for run in claimed.chunk_by(|a, b| b.0 == a.0 + 1) {
            let _ = kernel::discard(run[0].addr(), run.len() * PAGE_BYTES);
        }
        self.disown(claimed);
    }
}
