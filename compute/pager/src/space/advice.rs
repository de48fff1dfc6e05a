//! madvise and mincore.

use super::Space;
use crate::incoming::Served;
use crate::kernel;
use crate::maps::regions::OnFork;
use crate::maps::{EINVAL, ENOMEM, in_range, page_up, pages};
use crate::thread::Inside;
use crate::word::State;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_sys::clock;
use farmem_sys::raw::SignalsBlocked;

/// Advice that changes no page's content.
const HINTS: [i32; 10] = [
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
];

/// Guard pages, of Linux 6.13: `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE`.
const GUARDS: [i32; 2] = [102, 103];

impl Space {
    /// madvise of a range that lies in the far range.
    pub fn madvise(&self, addr: usize, len: usize, advice: i32) -> isize {
        let Some(len) = page_up(len) else { return EINVAL };
        if !addr.is_multiple_of(PAGE_BYTES) || addr.checked_add(len).is_none() {
            return EINVAL;
        }
        if len == 0 {
            // A program asks so whether the kernel knows an advice. Of guard pages it is told as below.
            return if GUARDS.contains(&advice) { EINVAL } else { kernel::advise(addr, 0, advice) };
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
            // (Far memory is never locked, even if `mlock` was called.)
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                self.give_up(&mut inside, addr, addr + len, advice)
            }
            libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
                self.populate(&mut inside, addr, addr + len, advice)
            }
            libc::MADV_DONTDUMP | libc::MADV_DODUMP => kernel::advise(addr, len, advice),
            libc::MADV_DOFORK | libc::MADV_KEEPONFORK | libc::MADV_DONTFORK | libc::MADV_WIPEONFORK => {
                self.declare_on_fork(addr, addr + len, advice)
            }
            // Guard pages, joining pages to huge ones, and whatever else there is or will be: say so
            // rather than pretend.
            _ => EINVAL,
        }
    }

    /// The program gives the pages of a range up.
    fn give_up(&self, inside: &mut Inside<'_>, start: usize, end: usize, advice: i32) -> isize {
        let mut maps = self.base.maps.lock();
        let whole = maps.regions(start).covers(start, end);
        for (at, region) in maps.regions(start).within(start, end) {
            if region.foreign {
                kernel::advise(at, region.end - at, advice);
            } else if region.prot & libc::PROT_WRITE != 0 {
                self.untouch_or_wipe(inside, at, region.end);
            } else {
                self.untouch(at, region.end);
            }
        }
        if whole { 0 } else { ENOMEM }
    }

    /// Makes the pages of a range present.
    fn populate(&self, inside: &mut Inside<'_>, start: usize, end: usize, advice: i32) -> isize {
        let write = advice == libc::MADV_POPULATE_WRITE;
        let right = if write { libc::PROT_WRITE } else { libc::PROT_READ };
        let regions = self.base.maps.lock().regions(start).within(start, end);
        let mut next = start;
        for (at, region) in regions {
            if at > next {
                return ENOMEM;
            }
            next = region.end;
            if region.foreign {
                let ret = kernel::advise(at, region.end - at, advice);
                if ret < 0 {
                    return ret;
                }
                continue;
            }
            if region.prot & right == 0 {
                return EINVAL;
            }
            let (first, last) = pages(at, region.end);
            for page in (first.0..last.0).map(PageId) {
                let seen = self.base.table.word(page).load();
                let absent = seen.state() != State::Resident || write && !seen.dirty();
                if absent && self.incoming.serve(inside, page, write, clock::ticks()) == Served::Unmapped {
                    return ENOMEM;
                }
            }
        }
        if next < end { ENOMEM } else { 0 }
    }

    /// Notes what a forked child gets of a range.
    fn declare_on_fork(&self, start: usize, end: usize, advice: i32) -> isize {
        let mut maps = self.base.maps.lock();
        let regions = maps.regions(start);
        let whole = regions.covers(start, end);
        // Either of the two is lifted by its own opposite only. Where both are set there is nothing
        // to wipe.
        regions.change(start, end, |region| {
            region.on_fork = match (advice, region.on_fork) {
                (libc::MADV_DONTFORK, _) => OnFork::Nothing,
                (libc::MADV_WIPEONFORK, OnFork::Copy) => OnFork::Zeros,
                (libc::MADV_DOFORK, OnFork::Nothing) | (libc::MADV_KEEPONFORK, OnFork::Zeros) => OnFork::Copy,
                (_, as_it_is) => as_it_is,
            }
        });
        if whole { 0 } else { ENOMEM }
    }

    /// In a forked child: takes away what it was not to have a copy of.
    pub(crate) fn forget_on_fork(&self) {
        let mut maps = self.base.maps.lock();
        let marked: Vec<_> = maps.iter().filter(|(_, region)| region.on_fork != OnFork::Copy).collect();
        for (at, region) in marked {
            match region.on_fork {
                OnFork::Nothing => self.take_away(&mut maps, at, region.end),
                _ => self.untouch(at, region.end),
            }
        }
    }

    /// mincore of a range that lies in the far range. `tell` is called with each page of the range,
    /// counted from 0, and whether it is resident.
    pub fn mincore(&self, addr: usize, len: usize, mut tell: impl FnMut(usize, bool)) -> isize {
        let Some(len) = page_up(len) else { return ENOMEM };
        if !addr.is_multiple_of(PAGE_BYTES) {
            return EINVAL;
        }
        if !self.covers(addr, len) {
            return ENOMEM;
        }
        for i in 0..len / PAGE_BYTES {
            let word = self.base.table.word(PageId(PageId::of(addr).0 + i as u64)).load();
            tell(i, matches!(word.state(), State::Resident | State::Leaving | State::Busy));
        }
        0
    }
}
