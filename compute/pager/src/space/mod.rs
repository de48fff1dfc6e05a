//! The program's mappings in the far range: mmap and the calls that belong to it.
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

mod advice;
mod foreign;
mod moves;
mod own;

use crate::base::Base;
use crate::dirty::Changes;
use crate::ending::or_end;
use crate::hints::Hints;
use crate::incoming::Incoming;
use crate::kernel;
use crate::local::Local;
use crate::maps::regions::{OnFork, Region};
use crate::maps::{EINVAL, ENOMEM, HEAP_BYTES, Mapped, Maps, in_range, page_up, pages};
use crate::out::Out;
use crate::pins::Pins;
use crate::word::State;
use farmem_pool::NoRoom;
use farmem_protocol::addr::{FAR_START, PAGE_BYTES, is_far};
use farmem_sys::raw::SignalsBlocked;
use own::Watched;

/// Anonymous mappings from this size on are far.
pub const THRESHOLD: usize = 64 << 10;
/// Up to this long, a mapping whose hint is a near address is near.
const BESIDE: usize = 128 << 10;

const EEXIST: isize = -(libc::EEXIST as isize);

/// A part of far memory that is protected alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it begins.
    pub at: usize,
    /// Its bytes.
    pub len: usize,
    /// `PROT_*` bits.
    pub prot: i32,
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
        // A little memory beside a stated address is for code that must be reached from there
        // (LuaJIT). Without it a compiler at run time gives up compiling. Heaps that state an
        // address (Java, V8) ask for more.
        let beside = addr != 0 && !is_far(addr) && len <= BESIDE;
        len >= THRESHOLD && !beside
    }

    /// mmap of anonymous private memory, in the far range. The address, or -errno.
    pub fn mmap(&self, addr: usize, len: usize, prot: i32, flags: i32) -> isize {
        let Some(len) = page_up(len) else { return ENOMEM };
        if len == 0 {
            return EINVAL;
        }
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

    /// Returns all far mappings, and their part in a range.
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

    /// The first part of a range of far memory, which is protected alike. `None` where it begins
    /// with nothing of ours.
    pub fn part(&self, addr: usize, end: usize) -> Option<Part> {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let within = in_range(addr, end - addr).then(|| space.regions(addr).within(addr, end))?;
        let &(at, region) = within.first().filter(|&&(at, region)| at == addr && !region.foreign)?;
        Some(Part { at, len: region.end - at, prot: region.prot })
    }

    /// Calls `visit` with the address of every page of a far range that has been touched.
    pub fn touched(&self, addr: usize, len: usize, mut visit: impl FnMut(usize)) {
        let (first, last) = pages(addr, addr + len);
        self.base.table.walk(first, last, |page, word| {
            if word.load().state() != State::Untouched {
                visit(page.addr());
            }
        });
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

    /// Takes away everything in a range that a call names, and then calls `then`, before any other
    /// thread can map there.
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
        let more = |space: &mut Maps, end: usize| -> u64 {
            let parts = space.regions(addr).within(addr, end).into_iter();
            parts.filter(|(_, r)| writable && !r.committed && !r.noreserve).map(|(s, r)| (r.end - s) as u64).sum()
        };
        let all = more(&mut space, end);
        if all > 0 && self.commit(space.committed + all).is_err() {
            return ENOMEM;
        }
        // Eviction reads pages in user mode. Its lock shows that it reads none of these now. The
        // mark forbids it from now on.
        let evictor = (prot & libc::PROT_READ == 0).then(|| self.out.evictor.lock());
        let (first, last) = pages(addr, end);
        if evictor.is_some() {
            self.base.table.mark_unreadable(first, last);
        }
        // An upgrade may be reading a page to keep its bytes. Its lock shows that none is now, and
        // later ones see the mark.
        let reading = evictor.is_some().then(|| self.changes.reading.lock());
        let ret = kernel::protect(addr, len, prot);
        if ret < 0 && evictor.is_some() {
            // The kernel has changed some of the range, and does not say how much, if it was not
            // stopped by a hole. So the regions cannot say which pages are unreadable.
            self.base.table.mark_unreadable_untouched(first, last);
        }
        drop((reading, evictor));
        let changed = match ret {
            0 => end,
            // It has changed what lies before the first hole.
            ENOMEM => space.regions(addr).first_gap(addr, end).unwrap_or(addr),
            _ => addr,
        };
        if changed > addr {
            space.committed += more(&mut space, changed);
            space.regions(addr).change(addr, changed, |r| {
                r.prot = prot;
                r.committed |= writable && !r.noreserve;
            });
        }
        ret
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
            // As the kernel: not over a mapping, nor up to it.
            if !space.regions(mapped).is_free(mapped, wanted - mapped + PAGE_BYTES) {
                return old;
            }
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

    /// Far memory that `committed` bytes need. None if they fit in nine tenths of local memory.
    /// Otherwise as much: a page keeps its slot while it is local, and on its way out again may
    /// hold two.
    pub(crate) fn far_needed(&self, committed: u64) -> u64 {
        if committed <= self.local.limit() * PAGE_BYTES as u64 / 10 * 9 {
            return 0;
        }
        committed + (self.out.staging.len() * PAGE_BYTES) as u64
    }

    /// Memory that the program has committed must fit in local memory, or else in far memory.
    pub(crate) fn commit(&self, total: u64) -> Result<(), NoRoom> {
        match self.base.pool.slots().ensure(self.far_needed(total)) {
            Err(NoRoom::Lost(lost)) => or_end(Err(lost)),
            other => other,
        }
    }
}
