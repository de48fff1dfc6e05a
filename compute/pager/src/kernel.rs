//! The kernel's side of far mappings: the system calls that lay, change and drop them.
//!
//! They are safe to call for far addresses. No object of the runtime lies there, and what the
//! program has there is the program's own to lose: these calls are made at its request, or for
//! pages that the pager owns. Every function refuses other addresses.

#![allow(unsafe_code)] // System calls on far mappings.

use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::raw::{Errno, syscall};

/// Makes a call about a range, which must begin at a far address.
fn ask(nr: i64, at: usize, rest: [usize; 5]) -> isize {
    assert!(is_far(at), "a far call about {at:#x}");
    let [a, b, c, d, e] = rest;
    // SAFETY: the range is far: nothing of the runtime's own is there.
    unsafe { syscall(nr, [at, a, b, c, d, e]) }
}

/// Lays a mapping of fresh private memory, over whatever is there.
pub fn lay(at: usize, len: usize, prot: i32, flags: i32) -> isize {
    ask(libc::SYS_mmap, at, [len, prot as usize, (flags | libc::MAP_FIXED) as usize, usize::MAX, 0])
}

/// Unmaps a range.
pub fn unmap(at: usize, len: usize) -> isize {
    ask(libc::SYS_munmap, at, [len, 0, 0, 0, 0])
}

/// Changes a range's protection.
pub fn protect(at: usize, len: usize, prot: i32) -> isize {
    ask(libc::SYS_mprotect, at, [len, prot as usize, 0, 0, 0])
}

/// Gives advice about a range.
pub fn advise(at: usize, len: usize, advice: i32) -> isize {
    ask(libc::SYS_madvise, at, [len, advice as usize, 0, 0, 0])
}

/// Moves, grows or shrinks a mapping.
pub fn remap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> isize {
    ask(libc::SYS_mremap, old, [old_len, new_len, flags as usize, new, 0])
}

/// Drops the pages of a range, which are the caller's. Locked ones are unlocked: the program locked
/// them by a call that nobody saw, and to lock far memory promises nothing.
///
/// # Errors
/// The kernel's.
pub fn discard(at: usize, len: usize) -> Result<(), Errno> {
    let drop = || match advise(at, len, libc::MADV_DONTNEED) {
        0.. => Ok(()),
        e => Err(Errno(-e as i32)),
    };
    match drop() {
        Err(Errno(libc::EINVAL)) if ask(libc::SYS_munlock, at, [len, 0, 0, 0, 0]) == 0 => drop(),
        dropped => dropped,
    }
}

/// Drops a page, which is the caller's.
pub fn discard_page(page: PageId) {
    let _ = discard(page.addr(), PAGE_BYTES);
}

/// Pages before the room, of two kinds by turns: as many mappings, which are let go before others
/// need them. A process has only so many, and what is taken away may leave one more.
const SPARES: usize = 4;

/// Near memory, reserved for a moment, where a mapping is made before it may replace a far one: what
/// the kernel refuses has then taken nothing away.
pub struct Aside {
    start: usize,
    end: usize,
    at: usize,
    len: usize,
}

impl Aside {
    /// Room for `len` bytes, in whole pages, that lie to huge pages as those at `like` do.
    ///
    /// # Errors
    /// The kernel's, negative.
    pub fn new(like: usize, len: usize) -> Result<Aside, isize> {
        const ALIGNMENTS: [usize; 2] = [1 << 30, 2 << 20];
        let align = ALIGNMENTS.into_iter().find(|&align| like.is_multiple_of(align)).unwrap_or(PAGE_BYTES);
        let spares = SPARES * PAGE_BYTES;
        let total = len.checked_add(align - PAGE_BYTES + spares).ok_or(-(libc::ENOMEM as isize))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh reservation where the kernel likes.
        let start =
            unsafe { syscall(libc::SYS_mmap, [0, total, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0]) };
        if start < 0 {
            return Err(start);
        }
        let start = start as usize;
        let aside = Aside { start, end: start + total, at: (start + spares).next_multiple_of(align), len };
        for page in (1..SPARES).step_by(2) {
            let args = [start + page * PAGE_BYTES, PAGE_BYTES, libc::PROT_READ as usize, 0, 0, 0];
            // SAFETY: a page of this reservation, which nobody uses.
            let ret = unsafe { syscall(libc::SYS_mprotect, args) };
            if ret < 0 {
                return Err(ret);
            }
        }
        Ok(aside)
    }

    /// Where the room begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Moves what lies in the room to a far address, over whatever is there. If that fails, it moves
    /// back to where it came `from`: there is no other copy.
    pub fn move_to(mut self, to: usize, from: Option<Origin>) -> isize {
        assert!(is_far(to), "a far call about {to:#x}");
        self.unmap(self.start, self.at);
        self.start = self.at;
        let ret = self.moved(self.len, to);
        if ret >= 0 || from.is_some_and(|from| from.is_ready() && self.moved(from.len, from.at) >= 0) {
            // Other threads may map in the hole at once.
            self.unmap(self.at + self.len, self.end);
            self.end = self.at;
        }
        ret
    }

    fn moved(&self, len: usize, to: usize) -> isize {
        let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        // SAFETY: the room is this object's; what lies far is the program's own to lose, and at its
        // origin is nothing.
        unsafe { syscall(libc::SYS_mremap, [self.at, self.len, len, fixed, to, 0]) }
    }

    fn unmap(&self, from: usize, to: usize) {
        if from < to {
            // SAFETY: a part of this object's reservation, which nothing has left.
            unsafe { syscall(libc::SYS_munmap, [from, to - from, 0, 0, 0, 0]) };
        }
    }
}

/// Where a mapping has been moved from, by the program's wish.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    at: usize,
    len: usize,
    stays: bool,
}

impl Origin {
    /// Of such an mremap; none if what is there stays there.
    pub fn of(old: usize, old_len: usize, new_len: usize, flags: i32) -> Option<Origin> {
        // Of no length it makes one more mapping of shared memory.
        let stays = flags & libc::MREMAP_DONTUNMAP != 0;
        (old_len > 0).then_some(Origin { at: old, len: old_len.min(new_len), stays })
    }

    /// Whether nothing is there: an empty mapping has stayed, or the addresses are free and are
    /// taken now. (Another thread may have mapped there.)
    fn is_ready(&self) -> bool {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let args = [self.at, self.len, libc::PROT_NONE as usize, kind as usize, usize::MAX, 0];
        // SAFETY: a fresh mapping, where nothing is.
        self.stays || unsafe { syscall(libc::SYS_mmap, args) } >= 0
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.unmap(self.start, self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    #[should_panic(expected = "a far call about")]
    fn near_memory_is_refused() {
        let near = [0u8; PAGE_BYTES];
        unmap(near.as_ptr() as usize, PAGE_BYTES);
    }

    #[test]
    fn what_cannot_move_on_goes_back_to_where_it_was() {
        let near = farmem_sys::memory::reserve(2 * PAGE_BYTES).unwrap() as usize;
        // SAFETY: pages of the test's own.
        let word = unsafe { &*((near + PAGE_BYTES) as *const AtomicU32) };
        word.store(77, Ordering::Relaxed);
        let aside = Aside::new(PAGE_BYTES, 3 * PAGE_BYTES).unwrap();
        let grows = [near, 2 * PAGE_BYTES, 3 * PAGE_BYTES, 3, aside.at(), 0];
        // SAFETY: as above, and room for it.
        assert_eq!(unsafe { syscall(libc::SYS_mremap, grows) }, aside.at() as isize);
        // The kernel refuses an address within a page.
        let ret =
            aside.move_to(farmem_protocol::addr::FAR_START + 1, Origin::of(near, 2 * PAGE_BYTES, 3 * PAGE_BYTES, 3));
        assert_eq!(ret, -(libc::EINVAL as isize));
        assert_eq!(word.load(Ordering::Relaxed), 77);
        // SAFETY: the test's own pages.
        unsafe { syscall(libc::SYS_munmap, [near, 2 * PAGE_BYTES, 0, 0, 0, 0]) };
    }
}
