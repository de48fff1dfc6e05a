//! The program's mappings in the far range: mmap and its kin.
//!
//! Every call works on three things that must agree, in this order:
//!
//! * *take away*: words first (pages become nobody's, slots are freed), then the
//!   kernel's mapping, then the addresses (only now may another mmap get them);
//! * *give*: addresses, then the kernel's mapping, then userfaultfd on it.
//!   Nobody knows the address before the call returns.
//!
//! One lock for all of it, as the kernel has one for these calls. Faults do not
//! take it. A call waits for a page that a fault owns, holding the lock; the
//! fault never needs the lock, so this ends.
//!
//! *Overcommit.* Writable private memory without `MAP_NORESERVE` is committed: it
//! must fit in local memory, or else in far memory, or the call fails with ENOMEM now. Reserved
//! address space costs nothing until it is made writable. `MAP_NORESERVE` memory
//! is never counted; if it fills far memory, the run ends with a line that says so.
//!
//! *Not inherited.* Far mappings carry `MADV_DONTFORK` but for the moment of a
//! fork that the runtime knows of ([`crate::house::fork`]): a child made behind its back
//! finds no far memory at all, where absent pages would read as zeros.

mod foreign;
mod moves;

use crate::base::Base;
use crate::dirty::Changes;
use crate::ending::or_end;
use crate::hints::Hints;
use crate::incoming::Incoming;
use crate::local::Local;
use crate::maps::regions::{OnFork, Region};
use crate::maps::{EINVAL, ENOMEM, HEAP_BYTES, Mapped, Maps, in_range, page_up, pages};
use crate::out::Out;
use crate::pins::Pins;
use crate::table::Pattern;
use crate::word::{AtomicWord, State, Word};
use farmem_pool::NoRoom;
use farmem_protocol::addr::{FAR_START, FarSlot, PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::memory::discard;
use farmem_sys::raw::{SignalsBlocked, checked, syscall};
use std::sync::atomic::Ordering;

/// Anonymous mappings from this size on are far.
pub const THRESHOLD: usize = 64 << 10;
/// Up to this long, a mapping whose hint is a near address is near.
const BESIDE: usize = 128 << 10;

const EEXIST: isize = -(libc::EEXIST as isize);
/// What `madvise` may say that changes no page's content.
const HINTS: [i32; 11] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_COLLAPSE,
];

/// Whether the pager serves a fresh mapping's faults from the start, or the caller sees to that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    AtOnce,
    Later,
}

/// The parts that the calls use.
pub(crate) struct Parts {
    pub base: &'static Base,
    pub local: &'static Local,
    pub changes: &'static Changes,
    pub out: &'static Out,
    pub incoming: &'static Incoming,
    pub pins: &'static Pins,
    pub hints: &'static Hints,
}

/// The program's far mappings, and the calls that change them.
pub struct Space {
    base: &'static Base,
    local: &'static Local,
    changes: &'static Changes,
    out: &'static Out,
    incoming: &'static Incoming,
    pins: &'static Pins,
    hints: &'static Hints,
}

impl Space {
    pub(crate) fn new(Parts { base, local, changes, out, incoming, pins, hints }: Parts) -> Space {
        Space { base, local, changes, out, incoming, pins, hints }
    }

    /// Whether a mapping that the program asks for should be far: private anonymous memory, not a
    /// stack, at least 64 KiB long, wherever the program's hint points unless it insists.
    pub fn wants(&self, addr: usize, len: usize, flags: i32) -> bool {
        const NEAR: i32 = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_32BIT;
        let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
        if !anonymous || flags & NEAR != 0 {
            return false;
        }
        if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
            return is_far(addr);
        }
        // A little memory beside a stated address is for code that is to be reached from there (LuaJIT); without it,
        // a compiler at run time gives up compiling. Heaps that state an address (Java, V8) ask for more.
        let beside = addr != 0 && !is_far(addr) && len <= BESIDE;
        len >= THRESHOLD && !beside
    }

    /// mmap of anonymous private memory, in the far range. The address, or -errno.
    pub fn mmap(&self, addr: usize, len: usize, prot: i32, flags: i32) -> isize {
        let Some(len) = page_up(len).filter(|&l| l > 0) else { return EINVAL };
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
        let at = if fixed {
            if !addr.is_multiple_of(PAGE_BYTES) {
                return EINVAL;
            }
            if !in_range(addr, len) {
                return ENOMEM;
            }
            addr
        } else if addr.is_multiple_of(PAGE_BYTES) && in_range(addr, len) && space.regions(addr).is_free(addr, len) {
            addr
        } else {
            match space.maps.find(len) {
                Some(at) => at,
                None => return ENOMEM,
            }
        };
        let replaced = space.regions(at).within(at, at + len);
        if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE && !replaced.is_empty() {
            return EEXIST;
        }
        let noreserve = flags & libc::MAP_NORESERVE != 0;
        let committed = prot & libc::PROT_WRITE != 0 && !noreserve;
        let freed: u64 = replaced.iter().filter(|(_, r)| r.committed).map(|(s, r)| (r.end - s) as u64).sum();
        if committed && self.commit(space.committed - freed + len as u64).is_err() {
            return ENOMEM;
        }
        if !replaced.is_empty() {
            self.take_away(&mut space, at, at + len);
        }
        let region = Region { end: at + len, prot, committed, noreserve, foreign: false, on_fork: OnFork::Copy };
        let keep = libc::MAP_NORESERVE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        if let Err(e) = self.give(&mut space, at, region, flags & keep, Watched::AtOnce) {
            return e;
        }
        at as isize
    }

    /// What is mapped far, and how much of it in a range.
    pub fn mapped(&self, addr: usize, len: usize) -> (Mapped, Mapped) {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let (mut all, mut there) = (Mapped::default(), Mapped::default());
        for (at, region) in self.base.maps.lock().iter() {
            all.count(region.end - at, region.prot);
            let common = region.end.min(addr.saturating_add(len)).saturating_sub(at.max(addr));
            there.count(common, region.prot);
        }
        (all, there)
    }

    /// The protection of the far mapping at an address; 0 where there is none.
    pub fn protection(&self, addr: usize) -> i32 {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        space.regions(addr).within(addr, addr + 1).first().map_or(0, |(_, region)| region.prot)
    }

    /// Whether all pages of a range that begins in the far range are mapped.
    pub fn covers(&self, addr: usize, len: usize) -> bool {
        let start = addr & !(PAGE_BYTES - 1);
        let Some(end) = addr.checked_add(len).and_then(page_up) else { return false };
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        in_range(start, end - start) && self.base.maps.lock().regions(start).covers(start, end)
    }

    /// munmap of a range that lies in the far range.
    pub fn munmap(&self, addr: usize, len: usize) -> isize {
        self.empty(addr, len, |_, _| {})
    }

    /// Takes away whatever lies in a range that a call names, and does something more before anybody else maps there.
    pub(crate) fn empty(&self, addr: usize, len: usize, then: impl FnOnce(&mut Maps, usize)) -> isize {
        let Some(len) = page_up(len).filter(|&l| l > 0) else { return EINVAL };
        if !addr.is_multiple_of(PAGE_BYTES) || !in_range(addr, len) {
            return EINVAL;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        self.take_away(&mut space, addr, addr + len);
        then(&mut space, addr + len);
        0
    }

    /// mprotect of a range that lies in the far range.
    pub fn mprotect(&self, addr: usize, len: usize, prot: i32) -> isize {
        let Some(len) = page_up(len) else { return ENOMEM };
        if !addr.is_multiple_of(PAGE_BYTES) {
            return EINVAL;
        }
        if len == 0 {
            return 0;
        }
        if !in_range(addr, len) {
            return ENOMEM;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let end = addr + len;
        let writable = prot & libc::PROT_WRITE != 0;
        let more: u64 = space
            .regions(addr)
            .within(addr, end)
            .iter()
            .filter(|(_, r)| writable && !r.committed && !r.noreserve)
            .map(|(s, r)| (r.end - s) as u64)
            .sum();
        if more > 0 && self.commit(space.committed + more).is_err() {
            return ENOMEM;
        }
        // Eviction reads pages in user mode. It must not be reading one of these just now, and
        // must know from now on that it may not.
        let evictor = (prot & libc::PROT_READ == 0).then(|| self.out.evictor.lock());
        let (first, last) = pages(addr, end);
        if evictor.is_some() {
            self.base.table.mark_unreadable(first, last);
        }
        // Nor an upgrade that keeps the page as it is: from here on the mark is seen.
        let reading = evictor.is_some().then(|| self.changes.reading.lock());
        // SAFETY: the program's own request about its own mapping.
        let ret = unsafe { syscall(libc::SYS_mprotect, [addr, len, prot as usize, 0, 0, 0]) };
        if ret < 0 && evictor.is_some() {
            // The kernel has gone as far as it could, and does not say how far: the regions do not tell.
            self.base.table.mark_unreadable_untouched(first, last);
        }
        drop((reading, evictor));
        if ret == 0 {
            space.committed += more;
            space.regions(addr).change(addr, end, |r| {
                r.prot = prot;
                r.committed |= writable && !r.noreserve;
            });
        }
        ret
    }

    /// madvise of a range that lies in the far range.
    pub fn madvise(&self, addr: usize, len: usize, advice: i32) -> isize {
        const DONTDUMP: i32 = libc::MADV_DONTDUMP;
        const DODUMP: i32 = libc::MADV_DODUMP;
        let Some(len) = page_up(len) else { return EINVAL };
        if !addr.is_multiple_of(PAGE_BYTES) || addr.checked_add(len).is_none() {
            return EINVAL;
        }
        if len == 0 {
            return 0;
        }
        if !in_range(addr, len) {
            return ENOMEM;
        }
        if HINTS.contains(&advice) {
            return self.hints.hint(addr, len, advice);
        }
        let _signals = SignalsBlocked::new();
        let mut inside = self.base.threads.enter();
        match advice {
            // (Nothing far is locked, whatever `mlock` was told.)
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                let mut space = self.base.maps.lock();
                let whole = space.regions(addr).covers(addr, addr + len);
                for (at, region) in space.regions(addr).within(addr, addr + len) {
                    if region.foreign {
                        // SAFETY: the program's own request about its own mapping.
                        unsafe { syscall(libc::SYS_madvise, [at, region.end - at, advice as usize, 0, 0, 0]) };
                    } else {
                        self.untouch(at, region.end);
                    }
                }
                if whole { 0 } else { ENOMEM }
            }
            libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
                let write = advice == libc::MADV_POPULATE_WRITE;
                let right = if write { libc::PROT_WRITE } else { libc::PROT_READ };
                let regions = self.base.maps.lock().regions(addr).within(addr, addr + len);
                let mut next = addr;
                for (at, region) in regions {
                    if at > next {
                        return ENOMEM;
                    }
                    if region.foreign {
                        // SAFETY: the program's own request about its own mapping.
                        let ret =
                            unsafe { syscall(libc::SYS_madvise, [at, region.end - at, advice as usize, 0, 0, 0]) };
                        if ret < 0 {
                            return ret;
                        }
                    } else if region.prot & right == 0 {
                        return EINVAL;
                    } else {
                        let (first, last) = pages(at, region.end);
                        let absent = |page: &u64| {
                            let seen = self.base.table.word(PageId(*page)).load();
                            seen.state() != State::Resident || write && !seen.dirty()
                        };
                        let served = |page| self.incoming.serve(&mut inside, PageId(page), write, clock::ticks());
                        if (first.0..last.0)
                            .filter(absent)
                            .map(served)
                            .any(|served| served == crate::incoming::Served::Unmapped)
                        {
                            return ENOMEM;
                        }
                    }
                    next = region.end;
                }
                if next < addr + len { ENOMEM } else { 0 }
            }
            DONTDUMP | DODUMP => {
                // SAFETY: the program's own request.
                unsafe { syscall(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]) }
            }
            libc::MADV_DOFORK | libc::MADV_KEEPONFORK | libc::MADV_DONTFORK | libc::MADV_WIPEONFORK => {
                let mut space = self.base.maps.lock();
                let regions = space.regions(addr);
                let whole = regions.covers(addr, addr + len);
                // Either of the two is lifted by its own opposite only; where both are set, there is nothing to wipe.
                regions.change(addr, addr + len, |region| {
                    region.on_fork = match (advice, region.on_fork) {
                        (libc::MADV_DONTFORK, _) => OnFork::Nothing,
                        (libc::MADV_WIPEONFORK, OnFork::Copy) => OnFork::Zeros,
                        (libc::MADV_DOFORK, OnFork::Nothing) | (libc::MADV_KEEPONFORK, OnFork::Zeros) => OnFork::Copy,
                        (_, as_it_is) => as_it_is,
                    }
                });
                if whole { 0 } else { ENOMEM }
            }
            // Guard pages and what else there is or will be: say so rather than pretend.
            _ => EINVAL,
        }
    }

    /// Makes every page of a range of ours untouched again.
    fn untouch(&self, start: usize, end: usize) {
        let claimed = self.claim(start, end);
        // Only what was claimed: another thread's first touches beside it stay.
        for run in claimed.chunk_by(|a, b| b.0 == a.0 + 1) {
            // SAFETY: pages that the program has just given up, all Busy.
            unsafe { discard(run[0].addr() as *mut u8, run.len() * PAGE_BYTES) };
        }
        self.disown(&claimed);
    }

    /// In a forked child: what it was not to have a copy of goes.
    pub(crate) fn forget_on_fork(&self) {
        let mut space = self.base.maps.lock();
        let marked: Vec<_> = space.iter().filter(|(_, region)| region.on_fork != OnFork::Copy).collect();
        for (at, region) in marked {
            match region.on_fork {
                OnFork::Nothing => self.take_away(&mut space, at, region.end),
                _ => self.untouch(at, region.end),
            }
        }
    }

    /// mincore of a range that lies in the far range. Fills `vec`, which the caller has made writable.
    ///
    /// # Safety
    /// `vec` must be writable for one byte a page.
    pub unsafe fn mincore(&self, addr: usize, len: usize, vec: *mut u8) -> isize {
        let Some(len) = page_up(len) else { return ENOMEM };
        if !addr.is_multiple_of(PAGE_BYTES) {
            return EINVAL;
        }
        if !in_range(addr, len) || !self.base.maps.lock().regions(addr).covers(addr, addr + len) {
            return ENOMEM;
        }
        for i in 0..len / PAGE_BYTES {
            let word = self.base.table.word(PageId(PageId::of(addr).0 + i as u64)).load();
            let resident = matches!(word.state(), State::Resident | State::Leaving | State::Busy);
            // SAFETY: the caller's.
            unsafe { vec.add(i).write(resident as u8) };
        }
        0
    }

    /// brk in the far range: returns the new break, or the old one if that cannot be.
    pub fn brk(&self, addr: usize) -> usize {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let old = space.brk;
        if !(FAR_START..FAR_START + HEAP_BYTES).contains(&addr) {
            return old;
        }
        let (mapped, wanted) = (old.next_multiple_of(PAGE_BYTES), addr.next_multiple_of(PAGE_BYTES));
        if wanted > mapped {
            let more = (wanted - mapped) as u64;
            if self.commit(space.committed + more).is_err() {
                return old;
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let on_fork = OnFork::Copy;
            let heap = Region { end: wanted, prot, committed: true, noreserve: false, foreign: false, on_fork };
            if self.give(&mut space, mapped, heap, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, Watched::AtOnce).is_err() {
                return old;
            }
        } else if wanted < mapped {
            self.take_away(&mut space, wanted, mapped);
        }
        space.brk = addr;
        addr
    }

    /// Far memory that so much committed memory needs: none if it fits in nine tenths of local memory; else as much, for a
    /// page keeps its slot while it is local, and on its way out again may hold two.
    pub(crate) fn far_needed(&self, committed: u64) -> u64 {
        if committed <= self.local.limit() * PAGE_BYTES as u64 / 10 * 9 {
            return 0;
        }
        committed + (self.out.staging.len() * PAGE_BYTES) as u64
    }

    /// Memory that the program has committed must fit in local memory, or else in far memory.
    pub(crate) fn commit(&self, total: u64) -> Result<(), NoRoom> {
        match self.base.pool.ensure(self.far_needed(total)) {
            Err(NoRoom::Lost(lost)) => or_end(Err(lost)),
            other => other,
        }
    }

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
        // SAFETY: the addresses are free in the far range, which nobody else maps.
        let mapped = unsafe {
            checked(libc::SYS_mmap, [at, len, prot as usize, (flags | libc::MAP_FIXED) as usize, usize::MAX, 0])
        };
        mapped.map_err(|e| -(e.0 as isize))?;
        // No huge pages: a part of one that is dropped frees nothing, and its zeros would become the kernel's one page of them, which is
        // nobody's own ([`crate::out::held`]).
        for advice in [libc::MADV_DONTFORK, libc::MADV_NOHUGEPAGE] {
            // SAFETY: advice about our own fresh mapping.
            unsafe { syscall(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]) };
        }
        if served == Watched::AtOnce
            && let Err(e) = self.base.uffd.register(at, len)
        {
            // SAFETY: our own fresh mapping.
            unsafe { syscall(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
            return Err(-(e.0 as isize));
        }
        Ok(())
    }

    /// Unmaps whatever is mapped of a range.
    pub(crate) fn take_away(&self, space: &mut Maps, start: usize, end: usize) {
        for (at, region) in space.regions(start).within(start, end) {
            let claimed = if region.foreign { Vec::new() } else { self.claim(at, region.end) };
            // SAFETY: the program gave it up; its pages are nobody's.
            unsafe { syscall(libc::SYS_munmap, [at, region.end - at, 0, 0, 0, 0]) };
            if region.foreign {
                continue;
            }
            self.disown(&claimed);
            // A first touch next door may have installed zeros in here after the claim and before the
            // unmapping. From now on nobody can; what came in goes.
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
        let mut rounds = 0;
        loop {
            let seen = word.load();
            match seen.state() {
                State::Untouched => return None,
                State::Busy | State::Leaving => {
                    rounds += 1;
                    self.base.wait_for_owner(rounds);
                }
                _ if self.pins.take_page(page, word, seen) => return Some(seen),
                _ => {}
            }
        }
    }

    /// Makes every touched page of a range the caller's, and frees what it holds but the kernel's
    /// page. The caller drops those, then calls [`Space::disown`].
    pub(crate) fn claim(&self, start: usize, end: usize) -> Vec<PageId> {
        let (first, last) = pages(start, end);
        let mut slots: Vec<FarSlot> = Vec::new();
        let mut resident = Vec::new();
        let mut claimed = Vec::new();
        self.base.table.walk(first, last, |page, word| {
            let Some(seen) = self.own(page, word) else { return };
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
            self.base.pool.free(&slots);
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
}
