//! What eviction keeps between batches, and how a page that leaves is read whatever its protection. How a batch leaves is [`crate::out`]'s.

use crate::ending::broken;
use crate::out::held::Held;
use crate::out::log::Log;
use crate::thread::Thread;
use crate::word::Word;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_sys::memory::{copy_page, is_zero};
use farmem_sys::raw::{Errno, checked};
use farmem_sys::thread::Tasks;

/// Pages that leave together at most.
pub const BATCH: usize = 256;

/// What eviction keeps between batches; whoever evicts holds its lock.
pub struct Evictor {
    pub(crate) victims: Vec<PageId>,
    pub(crate) leaving: Vec<Leaving>,
    /// Slots for pages that have none of their own.
    pub(crate) slots: Vec<FarSlot>,
    pub(crate) ranges: Vec<libc::iovec>,
    /// `process_madvise` does many ranges at once here (Linux 6.13); else one call each.
    pub(crate) vectored: bool,
    pub(crate) pidfd: i32,
    /// The process's threads ([`crate::out::still`]).
    pub(crate) tasks: Tasks,
    /// `/proc/self/mem`, for pages that the program itself may not read now.
    pub(crate) mem_fd: i32,
    /// A page of ours to which one is copied that the program may not read; 0 if there was no
    /// memory for it.
    bench: usize,
    /// Pages that are held by reference.
    pub(crate) held: Held,
    /// Queue pairs for write-back.
    pub(crate) thread: Option<Box<Thread>>,
    /// Changed lines on their way.
    pub(crate) log: Log,
    /// What the batch at hand is to be counted as.
    pub(crate) tally: Tally,
}

/// What leaves in one batch. Counted when it has left, all at once and after the pages themselves: whoever reads the
/// counters of a process that ended in the midst of a batch finds no parts of pages that are not among the whole.
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

/// Whether a page that leaves lies right behind another.
pub(crate) fn neighbours(a: &Leaving, b: &Leaving) -> bool {
    a.page.0 + 1 == b.page.0
}

/// A page on its way out.
pub(crate) struct Leaving {
    pub page: PageId,
    /// Its word as it was found.
    pub from: Word,
    /// … and as it will be.
    pub to: Word,
    /// It may be written to until its mapping has gone, and is read then, by reference.
    pub held: bool,
}

impl Leaving {
    /// A page as it was found.
    pub fn found(page: PageId, from: Word) -> Leaving {
        Leaving { page, from, to: from, held: false }
    }
}

// SAFETY: the ranges name far pages, and mean the same to every thread. The bench is this value's alone.
unsafe impl Send for Evictor {}

impl Evictor {
    /// `vectored`: try `process_madvise`.
    pub(crate) fn new(vectored: bool, log: Log) -> Evictor {
        Evictor {
            victims: Vec::with_capacity(BATCH),
            leaving: Vec::with_capacity(BATCH),
            slots: Vec::with_capacity(BATCH),
            ranges: Vec::with_capacity(BATCH),
            vectored,
            pidfd: farmem_sys::descriptors::pidfd_of_self().unwrap_or(-1),
            tasks: Tasks::open(),
            mem_fd: farmem_sys::descriptors::open_self_mem().unwrap_or(-1),
            // At start: a program may come to have as many mappings as it may.
            bench: farmem_sys::holdings::reserve(PAGE_BYTES).map_or(0, |bench| bench as usize),
            held: Held::new(BATCH),
            thread: None,
            log,
            tally: Tally::default(),
        }
    }

    /// Reads a resident page whatever its protection. It is the caller's, and about to be dropped: it may be gone.
    pub fn read_leaving(&mut self, page: PageId, to: *mut u8) -> Result<(), Errno> {
        if self.mem_fd >= 0 {
            return farmem_sys::raw::read_mem(self.mem_fd, page.addr(), to, PAGE_BYTES);
        }
        self.read_moved(page, to)
    }

    /// Moves a page's memory out of its mapping, which stays as it is, and reads it: where
    /// `/proc/self/mem` is not to be had, as in a child that was forked after its parent had given
    /// up its user or its root directory. Other threads of the program never see the page with
    /// another protection.
    ///
    /// # Errors
    /// It is where it was.
    #[cold]
    fn read_moved(&mut self, page: PageId, to: *mut u8) -> Result<(), Errno> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: a page of our mappings that is the caller's. From the move on, which flushes what CPUs know of the old place, nobody knows where
        // its memory is; the target is the caller's.
        unsafe {
            let at = checked(libc::SYS_mremap, [page.addr(), PAGE_BYTES, PAGE_BYTES, flags as usize, 0, 0])?;
            let readable = checked(libc::SYS_mprotect, [at, PAGE_BYTES, libc::PROT_READ as usize, 0, 0, 0]);
            readable.unwrap_or_else(|e| broken(&format!("page {:#x}, moved, cannot be read: {e}", page.addr())));
            copy_page(at as *const u8, to);
            farmem_sys::memory::unmap(at as *mut u8, PAGE_BYTES);
        }
        Ok(())
    }

    /// Whether a page that the program may not read holds zeros, as far as it can be told without moving it. Somebody who
    /// reads a reservation by `/proc/self/mem`, from end to end, is not to fill far memory with it.
    #[cold]
    pub fn is_barred_zero(&mut self, page: PageId) -> bool {
        let bench = self.mem_fd >= 0 && self.bench != 0;
        let to = self.bench as *mut u8;
        // SAFETY: the bench is a page of ours, and this evictor's.
        bench && farmem_sys::raw::read_mem(self.mem_fd, page.addr(), to, PAGE_BYTES).is_ok() && unsafe { is_zero(to) }
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
