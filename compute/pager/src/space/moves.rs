//! mremap: mappings that grow, shrink and move, and their pages with them.
//!
//! A move takes every touched page of the old place (Busy), lets the kernel move the mapping with
//! the pages that are resident, and gives the words to the new place. The kernel refuses if it has
//! split what the program made as one mapping. Then resident pages are copied one by one.

use super::Space;
use super::own::Watched;
use crate::ending::broken;
use crate::kernel;
use crate::maps::{EINVAL, ENOMEM, HEAP_BYTES, in_range, page_up, pages};
use crate::page::{Busy, Pages, Run};
use crate::word::{AtomicWord, State, Word};
use farmem_cache::Arrival;
use farmem_protocol::addr::{FAR_START, PAGE_BYTES, PageId};
use farmem_sys::raw::{Errno, SignalsBlocked};
use std::time::Duration;

const EFAULT: isize = -(libc::EFAULT as isize);

impl Space {
    /// mremap of far memory: in place if it can be, else moved.
    pub fn mremap(&self, old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> isize {
        let (Some(old_len), Some(new_len)) = (page_up(old_len), page_up(new_len)) else { return EINVAL };
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let movable = flags & libc::MREMAP_MAYMOVE != 0;
        if flags & !(libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE) != 0
            || !old.is_multiple_of(PAGE_BYTES)
            || old_len == 0
            || new_len == 0
            || !in_range(old, old_len)
            || fixed && (!movable || !new.is_multiple_of(PAGE_BYTES))
        {
            return EINVAL;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        if !fixed && new_len <= old_len {
            // The kernel's rule: something must be mapped at its beginning.
            if space.regions(old).is_free(old, PAGE_BYTES) {
                return EFAULT;
            }
            if new_len < old_len {
                self.take_away(&mut space, old + new_len, old + old_len);
            }
            return old as isize;
        }
        // What is not to go must lie in one mapping. (From 6.17 on the kernel moves several, if
        // each stays as long.)
        let kept = old_len.min(new_len);
        let parts = space.regions(old).within(old, old + kept);
        let &[(_, mut kind)] = parts.as_slice() else { return EFAULT };
        if kind.end != old + kept || parts[0].0 != old || kind.foreign {
            return EFAULT;
        }
        let growth = new_len.saturating_sub(old_len);
        if kind.committed && growth > 0 && self.commit(space.committed + growth as u64).is_err() {
            return ENOMEM;
        }
        let map_flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if kind.noreserve { libc::MAP_NORESERVE } else { 0 };
        let is_heap = old < FAR_START + HEAP_BYTES;
        if !fixed && !is_heap && space.maps.room_after(old + old_len) >= growth {
            kind.end = old + new_len;
            return match self.give(&mut space, old + old_len, kind, map_flags, Watched::AtOnce) {
                Ok(()) => old as isize,
                Err(e) => e,
            };
        }
        if !movable {
            return ENOMEM;
        }
        let to = if fixed {
            // Far memory does not move to near addresses.
            if !in_range(new, new_len) {
                return ENOMEM;
            }
            if new < old + old_len && old < new + new_len {
                return EINVAL;
            }
            self.take_away(&mut space, new, new + new_len);
            new
        } else {
            match space.maps.find(new_len) {
                Some(at) => at,
                None => return ENOMEM,
            }
        };
        if kept < old_len {
            self.take_away(&mut space, old + kept, old + old_len);
        }
        kind.end = to + new_len;
        // The new place is registered later. A first touch beside it fills a batch that may reach
        // beyond its own mapping: only the kernel stops it. Unregistered, the new place gets no
        // zeros where pages are about to come.
        if let Err(e) = self.give(&mut space, to, kind, map_flags, Watched::Later) {
            return e;
        }
        self.move_pages(old, to, kept, kind.prot, map_flags);
        if new_len > kept
            && let Err(e) = self.base.uffd.register(to + kept, new_len - kept)
        {
            broken(&format!("a moved mapping could not be registered: {e}"));
        }
        self.take_away(&mut space, old, old + kept);
        to as isize
    }

    /// Moves the pages of `len` bytes at `from` to the mapping at `to`. Both are far. The mapping
    /// at `to` was made with `prot` and `flags`.
    fn move_pages(&self, from: usize, to: usize, len: usize, prot: i32, flags: i32) {
        let (first, last) = pages(from, from + len);
        let target = |page: PageId| PageId(page.0 - first.0 + PageId::of(to).0);
        let mut moving: Vec<(PageId, Word)> = Vec::new();
        self.base.table.walk(first, last, |page, word| {
            if let Some(seen) = self.own_unstaged(page, word) {
                moving.push((page, seen));
            }
        });
        // The program does not know the target. But a first touch next door may hold pages of it,
        // until the kernel tells it that they are not mapped.
        let targets: Vec<Busy> = moving.iter().map(|&(page, _)| self.take_target(target(page))).collect();
        if prot & libc::PROT_READ == 0 {
            // Only now: blocks without a page have no mark.
            self.base.table.mark_unreadable(target(first), target(last));
        }
        let moved = self.move_mapping(from, to, len);
        if !moved && let Err(e) = self.lay(to, len, prot, flags, Watched::AtOnce) {
            broken(&format!("a mapping could not be moved: errno {}", -e));
        }
        for (&(page, seen), there) in moving.iter().zip(targets) {
            let resident = seen.state() == State::Resident;
            if resident {
                if !moved {
                    self.copy_resident(page, &there);
                }
                self.changes.tracker.rename(page, there.page());
            }
            // Nothing has pinned the target: the program does not know it yet.
            there.settle(if resident { seen.with_dirty(true) } else { seen });
        }
        let mut policy = self.local.policy();
        for &(page, seen) in &moving {
            if seen.state() == State::Resident {
                policy.gone(page);
                policy.arrived(target(page), Arrival::Demand);
            }
        }
        drop(policy);
        let left: Vec<PageId> = moving.iter().map(|m| m.0).collect();
        self.base.record_gone(&left);
        self.disown(&left);
    }

    /// Makes a page of a fresh mapping Busy.
    fn take_target(&self, page: PageId) -> Busy {
        self.base.table.touched(page);
        let mut rounds = 0;
        loop {
            if let Some(busy) = Busy::take(&self.base.table, page, Word::UNTOUCHED) {
                return busy;
            }
            rounds += 1;
            self.base.wait_for_owner(rounds);
        }
    }

    /// Lets the kernel move a mapping with its pages, onto fresh mapping of ours. False when it
    /// sees several mappings in what the program made as one; then nothing may be left at the
    /// target.
    ///
    /// The kernel leaves userfaultfd behind, and the write protections or not, by its version. It
    /// also joins the moved mapping to similar neighbours, and then the *neighbours* have lost
    /// userfaultfd: their absent pages would read as zeros. So this mapping is advised to be read
    /// at random until it is registered again. That means nothing for memory without a file, and no
    /// mapping of ours is similar to it.
    fn move_mapping(&self, from: usize, to: usize, len: usize) -> bool {
        if kernel::advise(from, len, libc::MADV_RANDOM) != 0 {
            return false;
        }
        let moved = kernel::remap(from, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) >= 0;
        if moved && let Err(e) = self.base.uffd.register(to, len).and_then(|()| self.base.uffd.protect(to, len, false))
        {
            broken(&format!("a moved mapping could not be registered: {e}"));
        }
        kernel::advise(if moved { to } else { from }, len, libc::MADV_NORMAL);
        moved
    }

    /// Moves one resident page, where [`Space::move_mapping`] could not. It is never there twice.
    fn copy_resident(&self, from: PageId, to: &Busy) {
        let mut evictor = self.out.evictor.lock();
        let Some(bench) = evictor.bench else { crate::ending::out_of_local_memory(Errno(libc::ENOMEM)) };
        if let Err(e) = evictor.read_leaving(from, bench.target(0)) {
            broken(&format!("page {:#x} is unreadable: {e}", from.addr()));
        }
        kernel::discard_page(from);
        if let Err(e) = Run::of(to).install(&self.base.uffd, Pages::of(bench.page(0)), false) {
            broken(&format!("page {:#x} could not be moved to {:#x}: {e}", from.addr(), to.page().addr()));
        }
    }

    /// [`Space::own`] for who will keep many pages for a while: a staged page gives its place in
    /// the ring up, once its WRITE is acknowledged, and is Remote. Pages held with their places
    /// would leave the evictor none, while their holder waits for a page that the evictor is taking
    /// out.
    fn own_unstaged(&self, page: PageId, word: &AtomicWord) -> Option<Word> {
        let mut rounds = 0;
        loop {
            let seen = word.load();
            if seen.state() != State::Staged {
                return match self.own(page, word) {
                    // It was staged meanwhile; nothing has been waited for since.
                    Some(now) if now.state() == State::Staged => {
                        word.set(now);
                        continue;
                    }
                    owned => owned,
                };
            }
            if self.out.staging.is_written(seen.staged(), page) {
                if word.shift(seen, Word::UNTOUCHED.to(State::Busy)) {
                    if !self.out.staging.take(seen.staged(), page).written {
                        // It has been rescued, and staged again in the same place, since the look.
                        self.out.staging.put_back(seen.staged());
                        word.set(seen);
                        continue;
                    }
                    self.out.staging.release(seen.staged(), true);
                    return Some(seen.to(State::Remote).with_field(0));
                }
                continue;
            }
            match self.out.evictor.try_lock() {
                Some(mut evictor) => self.out.collect_writes(&mut evictor, Duration::from_millis(10)),
                None => {
                    rounds += 1;
                    self.base.wait_for_owner(rounds);
                }
            }
        }
    }
}
