//! Shared by every part of the pager: the run's settings, the kernel's userfaultfd, the page table,
//! the record of mappings, the threads, far memory, and the counters.
//!
//! Nothing here knows how pages come and go.

#![allow(unsafe_code)] // Slots in their place, and the counters.

use crate::ending;
use crate::ending::{broken, die, is_orphaned, or_end, say};
use crate::maps::Maps;
use crate::page::{Bytes, Target};
use crate::record::Recorder;
use crate::table::Table;
use crate::thread::{LOOK_ROUNDS, Threads};
use crate::wake::Background;
use crate::word::Word;
use farmem_pool::{Altered, Loss, Pool, Protect};
use farmem_protocol::addr::{FarSlot, PageId, SLAB_BYTES};
use farmem_protocol::units::bytes;
use farmem_run::{RunSpec, Seal, counters, exit};
use farmem_sys::raw::{Errno, sleep_ns, yield_cpu};
use farmem_sys::sync::Lock;
use farmem_sys::uffd::Uffd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Rounds of waiting for another thread's Busy page before the CPU is given away.
const SPINS: u32 = 200;
/// Rounds of waiting before the thread sleeps.
const YIELDS: u32 = 400;

/// The process's counters. A forked child switches to its own.
pub(crate) struct Counters(AtomicPtr<counters::Process>);

impl Counters {
    /// Counts in `into`.
    pub fn new(into: &'static counters::Process) -> Counters {
        Counters(AtomicPtr::new(std::ptr::from_ref(into).cast_mut()))
    }

    /// From now on counts in `into`.
    pub fn switch(&self, into: &'static counters::Process) {
        self.0.store(std::ptr::from_ref(into).cast_mut(), Ordering::Relaxed);
    }
}

impl std::ops::Deref for Counters {
    type Target = counters::Process;
    #[inline(always)]
    fn deref(&self) -> &counters::Process {
        // SAFETY: only ever set from a &'static.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

/// The base of all parts.
pub(crate) struct Base {
    /// The run's settings, as this process follows them.
    pub spec: RunSpec,
    pub uffd: Uffd,
    /// One word for each far page.
    pub table: Table,
    /// The program's far mappings.
    pub maps: Lock<Maps>,
    pub threads: Threads,
    pub pool: Pool,
    pub counters: Counters,
    /// The page trace, if one is recorded.
    pub recorder: Option<Recorder>,
    /// Wakes the background thread.
    pub background: Background,
}

impl Base {
    #[inline(always)]
    pub fn count(&self, counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The bytes of a slot, if this process can read them there. The caller is in the pager, and
    /// the slab stays until it leaves.
    #[inline]
    pub fn readable_slot(&self, slot: FarSlot) -> Option<Bytes<'_>> {
        // SAFETY: the pool says that it is mapped. It stays until every thread has left once.
        self.pool.readable_in_place(slot).map(|at| unsafe { Bytes::at(at) })
    }

    /// The bytes of a page's slot, if this process can read them there.
    #[inline]
    pub fn mapped_slot(&self, page: Word) -> Option<Bytes<'_>> {
        page.slot().and_then(|slot| self.readable_slot(slot))
    }

    /// A slot to be written in its place, if this process can. It is the caller's page's.
    #[inline]
    pub fn writable_slot(&self, slot: FarSlot) -> Option<Target<'_>> {
        // SAFETY: as above; a slot belongs to one page, which is the caller's.
        self.pool.writable_in_place(slot).map(|at| unsafe { Target::at(at) })
    }

    /// Seals a page that leaves for its slot. Both are the caller's, and `from` does not change any
    /// more.
    pub fn seal(&self, slot: FarSlot, from: Bytes<'_>, mut to: Target<'_>) {
        // SAFETY: both are mapped, by their types.
        if !unsafe { self.pool.seals().seal(slot, from.as_ptr(), to.as_ptr()) } {
            broken("a page is sealed, and there is no key");
        }
    }

    /// Whether pages leave sealed.
    #[inline]
    pub fn seals(&self) -> bool {
        self.spec.seal != Seal::Off
    }

    /// Seals a page as its slot has it, or would have it, if pages are sealed so that lines can be
    /// told ([`farmem_pool::Sealing::Lines`]). The page is the caller's. Returns the tag, by which nothing opens
    /// before [`farmem_pool::Seals::remark`].
    pub fn seal_again(&self, slot: FarSlot, from: Bytes<'_>, to: &mut Target<'_>) -> Option<u64> {
        // SAFETY: both are mapped, by their types.
        unsafe { self.pool.seals().again(slot, from.as_ptr(), to.as_ptr()) }
    }

    /// Opens a page that came from its slot, or from the staging ring. If it is not what was sealed
    /// then none of its bytes may reach the program.
    #[inline]
    pub fn open(&self, slot: FarSlot, from: Bytes<'_>, mut to: Target<'_>) -> Result<(), Altered> {
        // SAFETY: both are mapped, by their types; the slot's page is the caller's.
        unsafe { self.pool.seals().open(slot, from.as_ptr(), to.as_ptr()) }
    }

    /// One round of waiting for a page that another thread owns. The owner may need this CPU.
    pub fn wait_for_owner(&self, rounds: u32) {
        match rounds {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => yield_cpu(),
            _ => sleep_ns(20_000),
        }
        if rounds.is_multiple_of(LOOK_ROUNDS) {
            self.threads.look();
        }
    }

    /// Marks the block of a page that the program cannot read, before the page is first touched:
    /// where [`Table::touched`] asks for it, and before a forced access.
    ///
    /// It takes the mappings' lock. A call that takes the right to read away holds that lock from
    /// the mark that it leaves until the mappings say so. The caller must own no page: a holder of
    /// the lock may wait for one.
    #[cold]
    pub fn look_before_touch(&self, page: PageId) {
        if self.maps.lock().is_unreadable(page.addr()) {
            self.table.mark_unreadable_untouched(page, PageId(page.0 + 1));
        }
    }

    /// Tells the nodes that the process makes an `exit_group` next. Not for a vfork child, whose
    /// pager is its parent's.
    pub fn farewell(&self) {
        ending::leave();
        self.pool.nodes().farewell();
    }

    /// Prints a line for each node that was lost without ending the process, and for a disk that
    /// fails.
    pub fn tell_losses(&self) {
        self.pool.disk_news().iter().for_each(|line| say(line));
        for Loss { lost, slabs, kept, single } in self.pool.losses().take() {
            // The node was started for the run and has ended with its supervisor. So does the run.
            if kept && is_orphaned() {
                return or_end(Err(lost));
            }
            self.count(&self.counters.nodes_lost, 1);
            let there = bytes(u64::from(slabs) * SLAB_BYTES);
            match (slabs, kept) {
                (0, _) => say(&format!("{lost}; the program goes on: it had nothing there")),
                (_, true) => say(&format!(
                    "{lost}; the program goes on: the {there} that it has there are mapped here and stay, and no more is taken there"
                )),
                (_, false) if single > 0 => {
                    let left = bytes(u64::from(single) * SLAB_BYTES);
                    match self.pool.protection() {
                        Protect::Ec { .. } => say(&format!("{lost}; the program goes on: parity stands in for {left}")),
                        _ => say(&format!("{lost}; the program goes on with one copy of {left}")),
                    }
                }
                (_, false) => say(&format!("{lost}; the program goes on: no page was there alone")),
            }
        }
    }
}

/// The number of pages that are present although their install failed with `e`. Ends the process
/// where the failure is the system's.
pub(crate) fn not_installed(page: PageId, e: Errno) -> usize {
    match e.0 {
        // No mapping of ours is at the address, or it is being torn down.
        libc::ENOENT | libc::ESRCH | libc::EINVAL => 0,
        libc::ENOMEM => die(
            exit::BROKEN,
            "the system has no memory for a local page: --local is larger than this machine or its control group allows",
        ),
        _ => broken(&format!("page {:#x}: install failed with {e}", page.addr())),
    }
}
