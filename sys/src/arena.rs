//! The runtime's own memory: size classes of powers of two, in chunks that are mapped by raw calls.
//!
//! The program's malloc cannot be used. Its memory is far, and the runtime allocates while it
//! serves faults. It also has thread-locals, which the background thread has not.
//!
//! Memory that is freed goes to the list of its class and stays there. An allocation larger than
//! [`LARGEST`] is a mapping of its own. When the process may have no more mappings, both kinds come
//! from a spare mapping that was made at the start ([`SPARE`]).
//!
//! The pager's tests allocate by it, as the runtime does.

use crate::holdings;
use crate::memory::try_discard;
use crate::raw::checked;
use crate::sync::Lock;
use std::alloc::{GlobalAlloc, Layout};

/// Largest class; above it every allocation is a mapping of its own.
const LARGEST: usize = 256 << 10;
const SMALLEST: usize = 16;
const CLASSES: usize = (LARGEST / SMALLEST).trailing_zeros() as usize + 1;
const CHUNK: usize = 1 << 20;
/// Bytes for use when no new mapping can be made. They take addresses, and memory only when they
/// are used. A program with as many mappings as the system allows (`vm.max_map_count`) has its
/// lists of mappings here: 24 bytes a mapping, and twice that while a list grows.
const SPARE: usize = 32 << 20;
const SPARE_CLASSES: usize = (SPARE / 4096).trailing_zeros() as usize + 1;

struct Lists {
    /// Per class, the first free block; its first word names the next.
    free: [usize; CLASSES],
    /// Bytes left of the current chunk.
    at: usize,
    end: usize,
    /// Bytes left of the spare mapping.
    spare: usize,
    spare_end: usize,
    /// Freed parts of the spare mapping, in lists as `free` has them: powers of two from a page on.
    spares: [usize; SPARE_CLASSES],
}

/// The class of `len` bytes of the spare mapping.
fn spare_class(len: usize) -> Option<usize> {
    let class = (len.next_power_of_two() / 4096).trailing_zeros() as usize;
    (class < SPARE_CLASSES).then_some(class)
}

impl Lists {
    const NONE: Lists = Lists { free: [0; CLASSES], at: 0, end: 0, spare: 0, spare_end: 0, spares: [0; SPARE_CLASSES] };

    /// A mapping by `map`, or zeroed memory of the spare one.
    fn map(&mut self, len: usize, map: impl Fn(usize) -> usize) -> usize {
        if self.spare_end == 0
            && let Ok(spare) = holdings::reserve(SPARE)
        {
            (self.spare, self.spare_end) = (spare as usize, spare as usize + SPARE);
        }
        let at = map(len);
        let Some(class) = spare_class(len).filter(|_| at == 0) else { return at };
        let (block, size) = (self.spares[class], 4096 << class);
        if block != 0 {
            // SAFETY: zeros but for its first word, which is the list's link.
            self.spares[class] = unsafe { (block as *mut usize).replace(0) };
            return block;
        }
        if self.spare_end - self.spare < size {
            return 0;
        }
        self.spare += size;
        self.spare - size
    }

    /// Whether a block was of the spare mapping, and is given back.
    fn unmap(&mut self, at: usize, len: usize) -> bool {
        let Some(class) = spare_class(len) else { return false };
        let of_it = (self.spare_end.saturating_sub(SPARE)..self.spare_end).contains(&at);
        // SAFETY: pages of ours that nobody uses any more.
        if of_it && unsafe { try_discard(at as *mut u8, 4096 << class) }.is_ok() {
            // SAFETY: as above.
            unsafe { (at as *mut usize).write(self.spares[class]) };
            self.spares[class] = at;
        }
        of_it
    }
}

/// The allocator.
pub struct Arena(Lock<Lists>);

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

impl Arena {
    /// Empty; maps its first chunk at the first allocation.
    pub const fn new() -> Arena {
        Arena(Lock::new(Lists::NONE))
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
            return self.0.lock().map(layout.size().next_multiple_of(4096), map) as *mut u8;
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
            let chunk = lists.map(CHUNK, map);
            if chunk == 0 {
                return std::ptr::null_mut();
            }
            at = chunk;
            lists.end = chunk + CHUNK;
        }
        lists.at = at + size;
        at as *mut u8
    }

    /// The kernel zeroes an allocation that is a mapping of its own, page by page as it is used.
    /// Tables that are made for all of local memory, in each process of a run, take no memory
    /// before that.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mappings_there_is_spare_memory_again_and_again() {
        // The spare mapping is entered in the account.
        let _one = holdings::ONE_TEST.lock();
        let mut lists = Lists::NONE;
        let none = |_| 0;
        for round in 0..100 {
            let lens = [300 << 10, 600 << 10, 1200 << 10, 5 << 20];
            let blocks = lens.map(|len: usize| lists.map(len.next_multiple_of(4096), none));
            for (at, len) in blocks.into_iter().zip(lens) {
                assert!(at != 0 && at % 4096 == 0, "round {round}");
                // SAFETY: a block of this length, and nobody else's.
                let words = unsafe { std::slice::from_raw_parts_mut(at as *mut u64, len / 8) };
                assert!(words.iter().all(|&word| word == 0), "round {round}");
                words.fill(at as u64);
            }
            for (at, len) in blocks.into_iter().zip(lens) {
                // SAFETY: as above.
                let words = unsafe { std::slice::from_raw_parts(at as *const u64, len / 8) };
                assert!(words.iter().all(|&word| word == at as u64), "round {round}");
                assert!(lists.unmap(at, len));
            }
        }
        assert_eq!(lists.map(2 * SPARE, none), 0);
        assert_eq!(lists.map(8192, |len| len), 8192, "a mapping, as long as there are any");
        assert!(!lists.unmap(8192, 8192));
    }
}
