//! The runtime's own memory: power-of-two size classes over chunks of raw mmap.
//!
//! The program's malloc cannot be used: its memory is far, and the runtime
//! allocates while it serves faults. Memory freed goes to its class's list and
//! stays there; what is larger than [`LARGEST`] is mapped and unmapped by itself. When the process may have no more mappings
//! ([`SPARE`]) both come from a mapping that is made at first.

use farmem_sys::holdings;
use farmem_sys::memory::try_discard;
use farmem_sys::raw::checked;
use farmem_sys::sync::Lock;
use std::alloc::{GlobalAlloc, Layout};

/// Largest class; above it every allocation is a mapping of its own.
const LARGEST: usize = 256 << 10;
const SMALLEST: usize = 16;
const CLASSES: usize = (LARGEST / SMALLEST).trailing_zeros() as usize + 1;
const CHUNK: usize = 1 << 20;
/// Bytes that can be had without a new mapping: of addresses, for they take memory when they are used. A program with as many mappings as the
/// system allows (`vm.max_map_count`) has lists of them made here, of 50 bytes each and twice that while they grow.
const SPARE: usize = 32 << 20;

struct Lists {
    /// Per class, the first free block; its first word names the next.
    free: [usize; CLASSES],
    /// What is left of the current chunk.
    at: usize,
    end: usize,
    /// What is left of the spare mapping.
    spare: usize,
    spare_end: usize,
}

impl Lists {
    /// A mapping, or a part of the spare one.
    fn map(&mut self, len: usize) -> usize {
        if self.spare_end == 0
            && let Ok(spare) = holdings::reserve(SPARE)
        {
            (self.spare, self.spare_end) = (spare as usize, spare as usize + SPARE);
        }
        let at = map(len);
        if at != 0 || self.spare_end - self.spare < len {
            return at;
        }
        self.spare += len;
        self.spare - len
    }

    /// Whether a block was of the spare mapping, and is given back.
    fn unmap(&mut self, at: usize, len: usize) -> bool {
        let of_it = (self.spare_end.saturating_sub(SPARE)..self.spare_end).contains(&at);
        // SAFETY: pages of ours that nobody uses any more.
        if of_it && unsafe { try_discard(at as *mut u8, len) }.is_ok() && at + len == self.spare {
            self.spare = at;
        }
        of_it
    }
}

/// The allocator.
pub struct Arena(Lock<Lists>);

impl Arena {
    /// Empty; maps its first chunk at the first allocation.
    pub const fn new() -> Arena {
        Arena(Lock::new(Lists { free: [0; CLASSES], at: 0, end: 0, spare: 0, spare_end: 0 }))
    }

    /// Keeps the lists consistent over a fork.
    pub fn hold_across_fork(&self) {
        self.0.hold_across_fork();
    }

    /// See [`Arena::hold_across_fork`].
    pub fn release_after_fork(&self) {
        self.0.release_after_fork();
    }
}

fn map(len: usize) -> usize {
    // SAFETY: a fresh anonymous mapping where the kernel likes.
    let mapped = unsafe {
        checked(
            libc::SYS_mmap,
            [
                0,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize,
                usize::MAX,
                0,
            ],
        )
    };
    let at = mapped.unwrap_or(0);
    if at != 0 {
        holdings::enter(at, len);
    }
    at
}

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    (size <= LARGEST).then(|| (size / SMALLEST).trailing_zeros() as usize)
}

// SAFETY: blocks of a class are disjoint, aligned to their own size (chunks are page-aligned and
// carved in powers of two, each rounded up to its size), and handed out once until freed.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            debug_assert!(layout.align() <= 4096);
            return self.0.lock().map(layout.size().next_multiple_of(4096)) as *mut u8;
        };
        let size = SMALLEST << class;
        let mut lists = self.0.lock();
        let block = lists.free[class];
        if block != 0 {
            // SAFETY: a free block's first word is the list's link.
            lists.free[class] = unsafe { (block as *const usize).read() };
            return block as *mut u8;
        }
        let mut at = lists.at.next_multiple_of(size.min(4096));
        if lists.at == 0 || at + size > lists.end {
            let chunk = lists.map(CHUNK);
            if chunk == 0 {
                return std::ptr::null_mut();
            }
            at = chunk;
            lists.end = chunk + CHUNK;
        }
        lists.at = at + size;
        at as *mut u8
    }

    /// What is a mapping of its own is zeroed by the kernel, page by page as it is used: tables that are made for all of local
    /// memory, in each of a run's processes, take none before it is used.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class_of(layout).is_some() {
            // SAFETY: of this size, and nobody else's yet.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let len = layout.size().next_multiple_of(4096);
            if self.0.lock().unmap(block as usize, len) {
                return;
            }
            holdings::strike(block as usize, len);
            // SAFETY: mapped by `alloc` with this length, by itself.
            let _ = unsafe { checked(libc::SYS_munmap, [block as usize, len, 0, 0, 0, 0]) };
            return;
        };
        let mut lists = self.0.lock();
        // SAFETY: the block is free now and at least a word long.
        unsafe { block.cast::<usize>().write(lists.free[class]) };
        lists.free[class] = block as usize;
    }
}
