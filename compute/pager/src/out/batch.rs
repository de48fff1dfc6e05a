//! The state of eviction between batches: pages that leave, and how one is read whatever its
//! protection. How a batch leaves: [`crate::out`].

#![allow(unsafe_code)] // Pages that are Leaving lend their bytes.

use super::held::Held;
use super::log::Log;
use crate::ending::broken;
use crate::page::{Bytes, Frames, Target};
use crate::table::Table;
use crate::thread::Thread;
use crate::word::{State, Word};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_protocol::lines::LINE_BYTES;
use farmem_sys::raw::{Errno, checked};
use farmem_sys::thread::Tasks;

/// The most pages that leave together.
pub const BATCH: usize = 256;

/// The state of eviction between batches. A thread that evicts holds its lock.
pub(crate) struct Evictor {
    pub victims: Vec<PageId>,
    pub leaving: Vec<Leaving>,
    /// Slots for pages that have none of their own.
    pub slots: Vec<FarSlot>,
    /// Slots that pages of the batch need no longer.
    pub freed: Vec<FarSlot>,
    pub ranges: Vec<libc::iovec>,
    /// `process_madvise` takes many ranges at once here (Linux 6.13). Otherwise one call each.
    pub vectored: bool,
    pub pidfd: i32,
    /// The process's threads ([`super::still`]).
    pub tasks: Tasks,
    /// `/proc/self/mem`, for pages that the program itself may not read now.
    mem_fd: i32,
    /// A page of ours, to look at one that the program may not read. None if there was no memory.
    pub bench: Option<Frames>,
    /// Room for a page that is sealed to tell which of its lines changed.
    pub sealed: Frames,
    /// Pages that are held by reference.
    pub held: Held,
    /// Queue pairs for write-back.
    pub thread: Option<Box<Thread>>,
    /// Changed lines on their way.
    pub log: Log,
    /// The counts of the batch at hand.
    pub tally: Tally,
}

// SAFETY: the ranges name far pages, and mean the same to every thread.
unsafe impl Send for Evictor {}

/// The counts of one batch. They are added when it has left, all at once and after the pages
/// themselves. So the counters of a process that ended in a batch name no parts of pages that are
/// not among the whole.
#[derive(Default)]
pub(crate) struct Tally {
    /// Pages that went without a transfer.
    pub clean: u64,
    /// Pages that went with all their bytes.
    pub whole: u64,
    pub lines_changed: u64,
    pub lines_sent: u64,
    pub bytes_out: u64,
}

impl Tally {
    /// A page goes: by these lines, or whole.
    pub fn goes(&mut self, few: Option<u64>) {
        match few.map(|lines| lines.count_ones() as u64) {
            Some(lines) => {
                self.lines_sent += lines;
                self.bytes_out += lines * LINE_BYTES as u64;
            }
            None => {
                self.whole += 1;
                self.bytes_out += PAGE_BYTES as u64;
            }
        }
    }
}

/// Whether a page that leaves lies right behind another.
pub(crate) fn neighbours(a: &Leaving, b: &Leaving) -> bool {
    a.page.0 + 1 == b.page.0
}

/// A page on its way out. It proves that the page is Leaving, and the holder's.
pub(crate) struct Leaving {
    page: PageId,
    /// Its word as it was found.
    pub from: Word,
    /// Its word as it will be.
    pub to: Word,
    /// It may be written to until its mapping has gone, and is then read by reference.
    pub held: bool,
}

impl Leaving {
    /// Takes a page that is Resident and whose word is `seen`. `None` if it is not any more.
    #[inline]
    pub fn take(table: &Table, page: PageId, seen: Word) -> Option<Leaving> {
        debug_assert_eq!(seen.state(), State::Resident);
        let taken = table.word(page).shift(seen, seen.to(State::Leaving));
        taken.then_some(Leaving { page, from: seen, to: seen, held: false })
    }

    #[inline]
    pub fn page(&self) -> PageId {
        self.page
    }

    /// Its bytes in its place, until it is dropped. `None` if the program may have no right to read
    /// them. They can still change, unless the page is settled ([`super::settle`]).
    #[inline]
    pub fn bytes(&self, table: &Table) -> Option<Bytes<'_>> {
        // SAFETY: a page that is Leaving stays present until its holder drops it. All of this is
        // under the evictor's lock.
        unsafe { Bytes::in_place(table, self.page) }
    }

    /// The page has left, and is its next word.
    pub fn leave(self, table: &Table) {
        table.word(self.page).set(self.to);
        if self.to == Word::UNTOUCHED {
            table.cleared(self.page);
        }
    }
}

impl Evictor {
    /// `vectored`: try `process_madvise`.
    pub fn new(vectored: bool, log: Log) -> Result<Evictor, Errno> {
        Ok(Evictor {
            victims: Vec::with_capacity(BATCH),
            leaving: Vec::with_capacity(BATCH),
            slots: Vec::with_capacity(BATCH),
            freed: Vec::new(),
            ranges: Vec::with_capacity(BATCH),
            vectored,
            pidfd: farmem_sys::descriptors::pidfd_of_self().unwrap_or(-1),
            tasks: Tasks::open(),
            mem_fd: farmem_sys::descriptors::open_self_mem().unwrap_or(-1),
            // At start: a program may come to have as many mappings as it may.
            bench: Frames::reserve(1).ok(),
            sealed: Frames::reserve(1)?,
            held: Held::new(BATCH),
            thread: None,
            log,
            tally: Tally::default(),
        })
    }

    /// Reads a resident page whatever its protection. The page is the caller's, and about to be
    /// dropped: afterwards it may be gone.
    pub fn read_leaving(&mut self, page: PageId, mut to: Target<'_>) -> Result<(), Errno> {
        if self.mem_fd >= 0 {
            return farmem_sys::raw::read_mem(self.mem_fd, page.addr(), to.as_ptr(), PAGE_BYTES);
        }
        self.read_moved(page, to)
    }

    /// Moves a page's memory out of its mapping, which stays as it is, and reads it. For processes
    /// that cannot have `/proc/self/mem`: a child that was forked after its parent gave up its user
    /// or its root directory. Other threads of the program never see the page with another
    /// protection.
    ///
    /// # Errors
    /// The memory is where it was.
    #[cold]
    fn read_moved(&mut self, page: PageId, to: Target<'_>) -> Result<(), Errno> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: a page of our mappings that is the caller's. The move flushes what CPUs know of
        // the old place. From then on nobody else knows where its memory is.
        unsafe {
            let at = checked(libc::SYS_mremap, [page.addr(), PAGE_BYTES, PAGE_BYTES, flags as usize, 0, 0])?;
            let readable = checked(libc::SYS_mprotect, [at, PAGE_BYTES, libc::PROT_READ as usize, 0, 0, 0]);
            readable.unwrap_or_else(|e| broken(&format!("page {:#x}, moved, cannot be read: {e}", page.addr())));
            to.fill(Bytes::at(at as *const u8));
            farmem_sys::memory::unmap(at as *mut u8, PAGE_BYTES);
        }
        Ok(())
    }

    /// Whether a page that the program may not read holds zeros, as far as can be told without
    /// moving it. A program that reads a whole reservation by `/proc/self/mem` must not fill far
    /// memory.
    #[cold]
    pub fn is_barred_zero(&mut self, page: PageId) -> bool {
        let Some(bench) = self.bench.as_ref().filter(|_| self.mem_fd >= 0) else { return false };
        let read = farmem_sys::raw::read_mem(self.mem_fd, page.addr(), bench.at(0), PAGE_BYTES);
        read.is_ok() && bench.page(0).is_zero()
    }

    /// WRITEs and records that are not acknowledged yet.
    pub fn writes_in_flight(&self) -> usize {
        self.thread.as_ref().map_or(0, |thread| thread.lane.in_flight())
    }

    /// In a forked child: descriptors and queue pairs of its own.
    pub fn renew_in_child(&mut self) {
        farmem_sys::descriptors::close(self.pidfd);
        farmem_sys::descriptors::close(self.mem_fd);
        self.pidfd = farmem_sys::descriptors::pidfd_of_self().unwrap_or(-1);
        self.mem_fd = farmem_sys::descriptors::open_self_mem().unwrap_or(-1);
        self.held.renew_in_child();
        if let Some(thread) = &mut self.thread {
            thread.forget_links();
        }
    }
}
