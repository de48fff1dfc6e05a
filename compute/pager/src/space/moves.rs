//! mremap: mappings that grow, shrink and move, and their pages with them.
//!
//! A move takes every touched page of the old place (Busy), lets the kernel move
//! the mapping with the pages that are resident, and gives the words to the new
//! place. Where the kernel will not, because it sees several mappings in what the
//! program made as one, resident pages are copied one by one.

use super::Space;
use super::Watched;
use crate::ending::broken;
use crate::maps::{EINVAL, ENOMEM, HEAP_BYTES, in_range, page_up, pages};
use crate::word::{AtomicWord, State, Word};
use farmem_cache::Arrival;
use farmem_protocol::addr::{FAR_START, PAGE_BYTES, PageId};
use farmem_sys::memory::discard;
use farmem_sys::raw::{SignalsBlocked, checked, syscall};
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
        let parts = space.regions(old).within(old, old + old_len);
        // As the kernel has it: the range must be one mapping.
        let &[(_, mut kind)] = parts.as_slice() else { return EFAULT };
        if kind.end != old + old_len || parts[0].0 != old || kind.foreign {
            return EFAULT;
        }
        if !fixed && new_len <= old_len {
            if new_len < old_len {
                self.take_away(&mut space, old + new_len, old + old_len);
            }
            return old as isize;
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
        let kept = old_len.min(new_len);
        if kept < old_len {
            self.take_away(&mut space, old + kept, old + old_len);
        }
        kind.end = to + new_len;
        // Not registered yet: a first touch next door may reach beyond its mapping (its batch finds out only
        // from the kernel), and must not get zeros in where pages are about to come.
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

    /// Moves what is in the mapping at `from` into the one at `to`, both ours, `len` bytes; the latter
    /// was made with `prot` and `flags`.
    fn move_pages(&self, from: usize, to: usize, len: usize, prot: i32, flags: i32) {
        let (first, last) = pages(from, from + len);
        let target = |page: PageId| PageId(page.0 - first.0 + PageId::of(to).0);
        let mut moving: Vec<(PageId, Word)> = Vec::new();
        self.base.table.walk(first, last, |page, word| {
            if let Some(seen) = self.own_unstaged(page, word) {
                moving.push((page, seen));
            }
        });
        // The program does not know the target, but a first touch next door may hold pages of it until the kernel tells it that
        // they are not mapped.
        for &(page, _) in &moving {
            self.base.table.touched(target(page));
            let mut rounds = 0;
            while !self.base.table.word(target(page)).shift(Word::UNTOUCHED, Word::UNTOUCHED.to(State::Busy)) {
                rounds += 1;
                self.base.wait_for_owner(rounds);
            }
        }
        if prot & libc::PROT_READ == 0 {
            // Only now: blocks without a page have no mark.
            self.base.table.mark_unreadable(target(first), target(last));
        }
        let moved = self.move_mapping(from, to, len);
        if !moved && let Err(e) = self.lay(to, len, prot, flags, Watched::AtOnce) {
            broken(&format!("a mapping could not be moved: errno {}", -e));
        }
        for &(page, seen) in &moving {
            let there = target(page);
            let word = self.base.table.word(there);
            match seen.state() {
                State::Resident => {
                    if !moved {
                        self.copy_resident(page, there);
                    }
                    self.changes.tracker.rename(page, there);
                    word.set(seen.with_dirty(true).with_field(0));
                }
                _ => word.set(seen),
            }
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

    /// Lets the kernel move a mapping with its pages, onto fresh mapping of ours. False when it sees
    /// several mappings in what the program made as one; then nothing may be left at the target.
    ///
    /// The kernel leaves userfaultfd behind, and the write protections or not, by its version. It also
    /// joins what it has moved to neighbours of its like, and then the *neighbours* have lost userfaultfd:
    /// their absent pages would read as zeros. A mapping that is advised to be read at random, which means nothing for memory without a file, is
    /// not like any of ours, so this one is, until it is registered again.
    fn move_mapping(&self, from: usize, to: usize, len: usize) -> bool {
        // SAFETY: advice about our own mappings.
        let advise = |at, advice: i32| unsafe { syscall(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]) };
        if advise(from, libc::MADV_RANDOM) != 0 {
            return false;
        }
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        // SAFETY: both mappings are ours; the target is fresh and nobody knows it.
        let moved = unsafe { checked(libc::SYS_mremap, [from, len, len, flags, to, 0]) }.is_ok();
        if moved && let Err(e) = self.base.uffd.register(to, len).and_then(|()| self.base.uffd.protect(to, len, false))
        {
            broken(&format!("a moved mapping could not be registered: {e}"));
        }
        advise(if moved { to } else { from }, libc::MADV_NORMAL);
        moved
    }

    /// Moves one resident page, where [`Space::move_mapping`] could not: it is never there twice.
    fn copy_resident(&self, from: PageId, to: PageId) {
        let mut bytes = [0u64; PAGE_BYTES / 8];
        if let Err(e) = self.out.evictor.lock().read_leaving(from, bytes.as_mut_ptr().cast()) {
            broken(&format!("page {:#x} is unreadable: {e}", from.addr()));
        }
        // SAFETY: the source is Busy, and its bytes are safe; the target is fresh and nobody knows it.
        let there = unsafe {
            discard(from.addr() as *mut u8, PAGE_BYTES);
            self.base.uffd.copy(to.addr(), bytes.as_ptr().cast(), PAGE_BYTES, false)
        };
        if let Err(e) = there {
            broken(&format!("page {:#x} could not be moved: {e}", from.addr()));
        }
    }

    /// [`Space::own`] for who will keep many pages for a while: a staged page gives its place in the
    /// ring up, once its WRITE is acknowledged, and is Remote. Pages held with their places would
    /// leave the evictor none, while their holder waits for a page that the evictor is taking out.
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
