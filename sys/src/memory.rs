//! Reservations, vectored madvise, and copies of bytes that others may be writing.

use crate::pagemap::{Pagemap, Run, category, entry};
use crate::raw::{Errno, checked, syscall};

/// Reserves `len` bytes of zeroed memory, populated by the kernel as it is touched.
///
/// The mapping is private, not counted against commit limits where the system
/// allows, and kept out of core dumps and of transparent huge pages (tables that
/// are touched sparsely would otherwise cost 2 MiB a touch).
pub fn reserve(len: usize) -> Result<*mut u8, Errno> {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let at = unsafe {
        checked(
            libc::SYS_mmap,
            [
                0,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize,
                usize::MAX,
                0,
            ],
        )?
    };
    // SAFETY: advice about the mapping just made; failure changes nothing.
    unsafe {
        let _ = checked(libc::SYS_madvise, [at, len, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0]);
        let _ = checked(libc::SYS_madvise, [at, len, libc::MADV_DONTDUMP as usize, 0, 0, 0]);
    }
    Ok(at as *mut u8)
}

/// Unmaps what [`reserve`] mapped.
///
/// # Safety
/// Nothing uses the memory any more.
pub unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) };
}

/// Types for which all-zero bytes are a value and which are shared by atomics only.
///
/// # Safety
/// The implementor vouches for both, and that the type needs no drop.
pub unsafe trait ZeroValid: Sync {}
// SAFETY: zero is a value of each; they are atomics.
unsafe impl ZeroValid for std::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl ZeroValid for std::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl ZeroValid for std::sync::atomic::AtomicU16 {}

/// A huge array, zero at first, of which only what is touched takes memory. Lives as long as the
/// process.
pub struct SparseArray<T: ZeroValid> {
    at: *const T,
    len: usize,
}

// SAFETY: shared access to a T: Sync that is never moved or freed.
unsafe impl<T: ZeroValid> Sync for SparseArray<T> {}
// SAFETY: as above.
unsafe impl<T: ZeroValid> Send for SparseArray<T> {}

impl<T: ZeroValid> SparseArray<T> {
    /// Reserves room for `len` elements.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let at = reserve(len.checked_mul(size_of::<T>()).ok_or(Errno(libc::ENOMEM))?)?;
        Ok(SparseArray { at: at.cast(), len })
    }

    /// Gives whole memory pages that lie within the elements `from..to` back to the system: they
    /// become zero. The caller sees to it that nobody counts on them.
    pub fn clear(&self, from: usize, to: usize) {
        assert!(from <= to && to <= self.len);
        let start = (self.at as usize + from * size_of::<T>()).next_multiple_of(4096);
        let end = (self.at as usize + to * size_of::<T>()) & !4095;
        if start < end {
            // SAFETY: inside our reservation; zero is a valid value of every element.
            unsafe { discard(start as *mut u8, end - start) };
        }
    }
}

impl<T: ZeroValid> std::ops::Index<usize> for SparseArray<T> {
    type Output = T;
    #[inline]
    fn index(&self, i: usize) -> &T {
        assert!(i < self.len);
        // SAFETY: in bounds, and zero bytes are a T.
        unsafe { &*self.at.add(i) }
    }
}

/// Gives a reservation's pages back to the system; they read as zero again.
///
/// # Safety
/// The range must lie in a reservation of the caller's that nobody is using.
pub unsafe fn discard(at: *mut u8, len: usize) {
    // SAFETY: passed on to the caller.
    let _ = unsafe { try_discard(at, len) };
}

/// [`discard`] that tells whether it succeeded: locked memory stays, for example.
///
/// # Safety
/// As [`discard`].
pub unsafe fn try_discard(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { checked(libc::SYS_madvise, [at as usize, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) }.map(drop)
}

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Has the kernel back a part of a reservation by huge pages, and copy there what it has. `at` and
/// `len` are multiples of [`HUGE_PAGE`]. Pages that were not touched yet take memory from now on.
/// Memory beside the part stays without. False: the kernel has no huge page free now.
///
/// # Errors
/// The kernel gives none: before Linux 6.1, or by its settings.
///
/// # Safety
/// The range must lie in a reservation of the caller's.
pub unsafe fn join(at: *mut u8, len: usize) -> Result<bool, Errno> {
    let advise = |advice: i32| {
        // SAFETY: as the caller promises; no byte changes.
        unsafe { checked(libc::SYS_madvise, [at as usize, len, advice as usize, 0, 0, 0]) }.map(drop)
    };
    advise(libc::MADV_HUGEPAGE)?;
    let joined = advise(MADV_COLLAPSE);
    // This splits no huge page. It has the kernel know one mapping again, and make no others here.
    let _ = advise(libc::MADV_NOHUGEPAGE);
    match joined {
        Err(Errno(libc::ENOMEM | libc::EAGAIN | libc::EBUSY)) => Ok(false),
        joined => joined.map(|()| true),
    }
}

/// Linux 6.1.
const MADV_COLLAPSE: i32 = 25;

/// [`discard`] of a part of a huge page that [`join`] made. The kernel would unmap such a part, and
/// keep its memory with the rest until memory is short. So the huge page is split first, which
/// `MADV_FREE` of a part does, unless a forked child has it, too ([`split`]).
///
/// # Safety
/// As [`discard`].
pub unsafe fn discard_part(at: *mut u8, len: usize) {
    // SAFETY: as the caller promises, nobody needs the bytes.
    unsafe {
        let _ = checked(libc::SYS_madvise, [at as usize, len, libc::MADV_FREE as usize, 0, 0, 0]);
        discard(at, len);
    }
}

/// Whether a forked child has some of a range's memory, too. Before Linux 6.7 nothing tells: false.
pub fn is_shared(at: *mut u8, len: usize) -> bool {
    let (mut pages, mut runs) = (vec![0; len / 4096], Vec::new());
    let Ok(map) = Pagemap::open(std::process::id()) else { return false };
    let is_read = map.entries(at as u64, &mut pages).is_ok();
    if !is_read || map.scan(at as u64, (at as usize + len) as u64, false, &mut runs).is_err() {
        return false;
    }
    // The page of zeros, where nothing was written, is everybody's.
    let of_run = |run: &Run| (run.start as usize - at as usize) / 4096..(run.end as usize - at as usize) / 4096;
    let is_others = |page: &u64| page & (entry::PRESENT | entry::EXCLUSIVE) == entry::PRESENT;
    let mut own = runs.iter().filter(|run| run.categories & category::ZERO == 0).map(of_run);
    own.any(|run| pages[run].iter().any(is_others))
}

/// Splits the huge page of `len` bytes at `at`, of which a part was given back: its memory is the
/// system's again. No byte changes. False: a forked child still has it.
///
/// # Safety
/// The range must lie in a reservation of the caller's.
pub unsafe fn split(at: *mut u8, len: usize) -> bool {
    let is_alone = !is_shared(at, len);
    if is_alone {
        // The kernel keeps age by whole pages. So to call cold what is left of one splits it.
        // SAFETY: as the caller promises; it is advice.
        let _ = unsafe { checked(libc::SYS_madvise, [at as usize, len, libc::MADV_COLD as usize, 0, 0, 0]) };
    }
    is_alone
}

/// Drops the pages of all ranges with one TLB flush (`process_madvise`, vectored).
/// Returns the number of bytes the kernel dropped before it stopped.
///
/// # Safety
/// The caller vouches that the contents are not needed.
pub unsafe fn discard_vectored(pidfd: i32, ranges: &[libc::iovec]) -> Result<usize, Errno> {
    // SAFETY: the vector is live; the ranges are the caller's to drop.
    unsafe {
        checked(
            libc::SYS_process_madvise,
            [pidfd as usize, ranges.as_ptr() as usize, ranges.len(), libc::MADV_DONTNEED as usize, 0, 0],
        )
    }
}

/// Asks the CPU to fetch a cache line soon. Reads nothing: the address need not even be mapped.
#[inline(always)]
pub fn prefetch(addr: usize) {
    // SAFETY: a hint, which never faults (Intel SDM vol. 2, PREFETCHh).
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(addr as *const i8) };
}

/// [`prefetch`] into the second-level cache only, for lines that are needed too late to stay in the
/// first.
#[inline(always)]
pub fn prefetch_second(addr: usize) {
    // SAFETY: as above.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(addr as *const i8) };
}

/// Whether the kernel has a page of this process's memory present.
pub fn is_present(page: usize) -> bool {
    let mut present = 0u8;
    // SAFETY: one live byte for one page; the kernel checks the address.
    let asked = unsafe { checked(libc::SYS_mincore, [page, 4096, &mut present as *mut u8 as usize, 0, 0, 0]) };
    asked.is_ok() && present & 1 != 0
}

/// Copies one page whose source or target other threads or processes may be touching.
///
/// # Safety
/// Both must be mapped for 4096 bytes, 8-byte aligned, and stay so. The bytes
/// may be raced: the copy is made by `rep movsb`, which the compiler does not
/// reason about, so a race yields mixed bytes and nothing worse.
#[inline]
pub unsafe fn copy_page(from: *const u8, to: *mut u8) {
    // SAFETY: passed on to the caller.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") 4096usize => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies whole lines of 64 bytes that others may be writing: eight moves each, by an instruction
/// at a time, which the compiler does not reason about. `rep movsb` takes some dozen cycles to
/// begin, waits for a target that is not in cache, and lets no two copies overlap, which a few
/// scattered lines do.
///
/// # Safety
/// Both must be mapped for `lines` lines, stay so, and not overlap.
#[inline]
pub unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: passed on to the caller; SSE2 is part of x86-64.
        unsafe {
            core::arch::asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                from = in(reg) from.add(64 * line),
                to = in(reg) to.add(64 * line),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `len` bytes that others may be writing, as [`copy_page`] does.
///
/// # Safety
/// Both must be mapped for `len` bytes, stay so, and not overlap.
#[inline]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Whether a page holds only zero bytes; stops at the first that is not.
///
/// # Safety
/// The page must be mapped and stay so.
#[inline]
pub unsafe fn is_zero(page: *const u8) -> bool {
    let words = page.cast::<u64>();
    // Most pages differ in their first words: look there before the long loop.
    for i in 0..8 {
        // SAFETY: within the page.
        if unsafe { words.add(i).read_volatile() } != 0 {
            return false;
        }
    }
    for block in 0..64 {
        let mut any = 0;
        for i in 0..8 {
            // SAFETY: within the page.
            any |= unsafe { words.add(block * 8 + i).read_volatile() };
        }
        if any != 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_reads_as_zero_and_can_be_discarded() {
        let at = reserve(1 << 20).unwrap();
        // SAFETY: our own fresh mapping.
        unsafe {
            assert!(is_zero(at));
            at.add(4095).write(1);
            assert!(!is_zero(at));
            copy_page(at, at.add(4096));
            assert_eq!(at.add(8191).read(), 1);
            discard(at, 1 << 20);
            assert!(is_zero(at));
        }
    }

    /// Whether a page is part of a huge page, by the kernel's flags of its memory. `None`: this user
    /// may not ask.
    fn is_huge(at: *const u8) -> Option<bool> {
        use std::os::unix::fs::FileExt;
        let word = |file: &str, nth: u64| {
            let mut word = [0; 8];
            std::fs::File::open(file).ok()?.read_exact_at(&mut word, 8 * nth).ok()?;
            Some(u64::from_le_bytes(word))
        };
        let frame = word("/proc/self/pagemap", at as u64 / 4096)? & ((1 << 55) - 1);
        // KPF_THP
        (frame != 0).then(|| word("/proc/kpageflags", frame)).flatten().map(|flags| flags >> 22 & 1 == 1)
    }

    #[test]
    fn a_part_of_a_huge_page_is_given_back_at_once() {
        let whole = reserve(2 * HUGE_PAGE).unwrap();
        let at = whole.map_addr(|at| at.next_multiple_of(HUGE_PAGE));
        let part = 64 << 10;
        let is_sound = |from: usize| {
            (from..HUGE_PAGE).step_by(4096).all(|n| {
                // SAFETY: our own mapping.
                unsafe { at.add(n).read() == (n / 4096) as u8 }
            })
        };
        // SAFETY: our own mapping.
        unsafe {
            (0..HUGE_PAGE).step_by(4096).for_each(|n| at.add(n).write((n / 4096) as u8));
            let joined = join(at, HUGE_PAGE);
            if !matches!(joined, Ok(true)) {
                eprintln!("skipped: this kernel gives no huge page now: {joined:?}");
                return;
            }
            assert!(is_sound(0) && is_huge(at) != Some(false));
            discard_part(at, part);
            // The memory of the rest is that of single pages: nothing is kept for what was given back.
            assert!(is_sound(part) && is_huge(at.add(part)) != Some(true));
            assert!((0..part).step_by(4096).all(|n| is_zero(at.add(n))));
            unmap(whole, 2 * HUGE_PAGE);
        }
    }
    #[test]
    fn a_part_that_a_forked_child_has_is_given_back_after_its_end() {
        let whole = reserve(2 * HUGE_PAGE).unwrap();
        let at = whole.map_addr(|at| at.next_multiple_of(HUGE_PAGE));
        let part = 64 << 10;
        let mut ends = [0; 2];
        // SAFETY: our own mapping, and our own child, which reads one byte and ends.
        unsafe {
            (0..HUGE_PAGE).step_by(4096).for_each(|n| at.add(n).write((n / 4096) as u8));
            if !matches!(join(at, HUGE_PAGE), Ok(true)) || is_huge(at) != Some(true) {
                eprintln!("skipped: this kernel gives no huge page now, or its flags are not to be read");
                return;
            }
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::close(ends[1]);
                libc::read(ends[0], (&raw mut ends).cast(), 1);
                libc::_exit(i32::from(at.add(4096).read() != 1));
            }
            discard_part(at, part);
            assert!(is_shared(at, HUGE_PAGE) && !split(at, HUGE_PAGE));
            assert_eq!(is_huge(at.add(part)), Some(true), "the child has it, too");
            assert!((0..part).step_by(4096).all(|n| is_zero(at.add(n))));
            libc::close(ends[1]);
            let mut status = 1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0, "the child has the bytes of before");
            assert_eq!(is_huge(at.add(part)), Some(true), "nothing is given back by itself");
            // What was read and never written is nobody's: the part has the page of zeros.
            assert!(is_present(at as usize) && !is_shared(at, part));
            // Children of other tests of this process have it for a moment, too. One that is forked behind
            // the look keeps the kernel from splitting it.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !split(at, HUGE_PAGE) || is_huge(at.add(part)) != Some(false) {
                assert!(std::time::Instant::now() < until, "it is nobody else's any more");
                std::thread::yield_now();
            }
            assert!((part..HUGE_PAGE).step_by(4096).all(|n| at.add(n).read() == (n / 4096) as u8));
            libc::close(ends[0]);
            unmap(whole, 2 * HUGE_PAGE);
        }
    }
}
