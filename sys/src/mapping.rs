//! Memory that two processes map: the one place where bytes of a slab are touched.
//!
//! Both ends may write at any time, so no Rust reference is ever made to these bytes. They are
//! copied by an instruction that the compiler does not reason about, or accessed as atomics.
//! Offsets are checked here, even if a caller checked them before.

use crate::descriptors::{close, own_fd};
use crate::lines::Hasher;
use crate::memory::{copy_bytes, copy_lines, prefetch};
use crate::raw::{Errno, checked, syscall};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a descriptor, mapped shared.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are accessed only by raw copies and atomics; the mapping itself is immutable.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a descriptor.
    pub fn new(fd: i32, len: usize) -> Result<Mapping, Errno> {
        Mapping::at_offset(fd, 0, len)
    }

    /// Maps `len` bytes of a descriptor from `offset` on, to be read and written.
    pub fn at_offset(fd: i32, offset: usize, len: usize) -> Result<Mapping, Errno> {
        Mapping::with((libc::PROT_READ | libc::PROT_WRITE) as usize, fd, offset, len)
    }

    /// Maps `len` bytes of a descriptor from `offset` on. Writing to them is the end of this process.
    pub fn read_only(fd: i32, offset: usize, len: usize) -> Result<Mapping, Errno> {
        Mapping::with(libc::PROT_READ as usize, fd, offset, len)
    }

    fn with(prot: usize, fd: i32, offset: usize, len: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { checked(libc::SYS_mmap, [0, len, prot, libc::MAP_SHARED as usize, fd as usize, offset])? };
        // SAFETY: advice about the mapping just made: others' bytes are not for our core dumps.
        unsafe { syscall(libc::SYS_madvise, [at, len, libc::MADV_DONTDUMP as usize, 0, 0, 0]) };
        match NonNull::new(at as *mut u8) {
            Some(base) => Ok(Mapping { base, len }),
            None => Err(Errno(libc::ENOMEM)),
        }
    }

    /// A mapping that this process inherited over a fork: [`Mapping::extent`] of the parent's.
    ///
    /// # Safety
    /// The extent must be mapped in this process, and owned by no other `Mapping` of it that will
    /// drop.
    pub unsafe fn inherited((base, len): (NonNull<u8>, usize)) -> Mapping {
        Mapping { base, len }
    }

    /// Where it lies.
    #[inline]
    pub fn extent(&self) -> (NonNull<u8>, usize) {
        (self.base, self.len)
    }

    /// Asks for huge pages behind it. False when the system does not know how.
    pub fn prefer_huge(&self) -> bool {
        // SAFETY: advice about our own mapping.
        let advised = unsafe {
            checked(libc::SYS_madvise, [self.base.as_ptr() as usize, self.len, libc::MADV_HUGEPAGE as usize, 0, 0, 0])
        };
        advised.is_ok()
    }

    /// Asks for huge pages behind a range of it.
    pub fn prefer_huge_in(&self, offset: u64, len: u64) {
        if let Some(at) = self.at(offset, len) {
            // SAFETY: advice about our own mapping.
            unsafe { syscall(libc::SYS_madvise, [at as usize, len as usize, libc::MADV_HUGEPAGE as usize, 0, 0, 0]) };
        }
    }

    /// Puts another file's bytes, from `from` on, behind a range of it, at once: there is never
    /// nothing there.
    ///
    /// # Safety
    /// Every user of the range accepts either file's bytes. The file is not shrunk while
    /// this is mapped.
    pub unsafe fn replace(&self, offset: u64, len: u64, fd: i32, from: u64) -> Result<(), Errno> {
        let at = self.at(offset, len).ok_or(Errno(libc::EINVAL))? as usize;
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
        // SAFETY: inside our mapping; what else is the caller's promise.
        unsafe {
            checked(libc::SYS_mmap, [at, len as usize, prot, flags, fd as usize, from as usize])?;
            syscall(libc::SYS_madvise, [at, len as usize, libc::MADV_DONTDUMP as usize, 0, 0, 0]);
        }
        Ok(())
    }

    /// The address of a range, if it lies inside.
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: the offset is inside the mapping.
        (end <= self.len as u64).then(|| unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Copies out. False when the range does not lie inside.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes and not part of this mapping.
    #[inline]
    pub unsafe fn read(&self, offset: u64, into: *mut u8, len: u32) -> bool {
        let from = self.at(offset, len as u64);
        if let Some(from) = from {
            // SAFETY: inside the mapping; the target is the caller's promise.
            unsafe { copy_bytes(from, into, len as usize) };
        }
        from.is_some()
    }

    /// Copies in. False when the range does not lie inside.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes and not part of this mapping.
    #[inline]
    pub unsafe fn write(&self, offset: u64, from: *const u8, len: u32) -> bool {
        let to = self.at(offset, len as u64);
        if let Some(to) = to {
            // SAFETY: inside the mapping; the source is the caller's promise.
            unsafe { copy_bytes(from, to, len as usize) };
        }
        to.is_some()
    }

    /// [`Mapping::read`] into a slice, which cannot be part of a mapping.
    #[inline]
    #[must_use]
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> bool {
        // SAFETY: a live slice, and no slab's.
        unsafe { self.read(offset, into.as_mut_ptr(), into.len() as u32) }
    }

    /// [`Mapping::write`] of a slice, which cannot be part of a mapping: no reference to its bytes
    /// is ever made.
    #[inline]
    #[must_use]
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> bool {
        // SAFETY: a live slice, and no slab's.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len() as u32) }
    }

    /// [`Mapping::write_bytes`] of whole lines of 64 bytes, few at a time: many of these overlap.
    #[inline]
    #[must_use]
    pub fn write_lines(&self, offset: u64, lines: &[u8]) -> bool {
        let to = self.at(offset, lines.len() as u64);
        if let Some(to) = to {
            // SAFETY: inside the mapping, whole lines of it; a live slice, and no slab's.
            unsafe { copy_lines(lines.as_ptr(), to, lines.len() / 64) };
        }
        to.is_some() && lines.len().is_multiple_of(64)
    }

    /// The sum over some lines of a page, bit k for line k, of their hashes. `None` when the page
    /// does not lie inside.
    pub fn sum_lines(&self, hasher: &Hasher, offset: u64, lines: u64) -> Option<u64> {
        let page = self.at(offset, 4096)?;
        Some(hasher.sum_with(lines, |line| {
            let mut bytes = [0; 64];
            // SAFETY: within the page, inside the mapping; a live array, and no slab's.
            unsafe { copy_lines(page.add(64 * line), bytes.as_mut_ptr(), 1) };
            bytes
        }))
    }

    /// Gets the line at an offset, if it lies inside, into the CPU's cache.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        if let Some(at) = self.at(offset, 1) {
            prefetch(at as usize);
        }
    }

    /// Has the kernel put memory behind a range that is about to be written, in one call rather than at
    /// each page's first touch. A hint: what cannot be had now is told when it is touched.
    pub fn populate(&self, offset: u64, len: u64) {
        let from = offset & !4095;
        let Some(at) = self.at(offset, len).and_then(|_| self.at(from, offset - from + len)) else { return };
        let len = (offset - from + len).next_multiple_of(4096);
        // SAFETY: inside our mapping, which ends with a page. No content changes.
        unsafe { syscall(libc::SYS_madvise, [at as usize, len as usize, libc::MADV_POPULATE_WRITE as usize, 0, 0, 0]) };
    }

    /// A copy of a range. `None` when it does not lie inside.
    pub fn bytes(&self, offset: u64, len: u32) -> Option<Vec<u8>> {
        self.at(offset, len as u64)?;
        let mut bytes = vec![0; len as usize];
        // SAFETY: a live vector, and no slab's.
        unsafe { self.read(offset, bytes.as_mut_ptr(), len) }.then_some(bytes)
    }

    /// Fills a range with zeros. False when it does not lie inside.
    pub fn zero(&self, offset: u64, len: u64) -> bool {
        static ZEROS: [u8; 4096] = [0; 4096];
        if self.at(offset, len).is_none() {
            return false;
        }
        let mut done = 0;
        while done < len {
            let n = (len - done).min(ZEROS.len() as u64);
            if !self.write_bytes(offset + done, &ZEROS[..n as usize]) {
                return false;
            }
            done += n;
        }
        true
    }

    /// Gives a range's memory back to the system, for all who map it: it reads as zero. False when
    /// the range does not lie inside, or the system refuses.
    pub fn discard(&self, offset: u64, len: u64) -> bool {
        let Some(at) = self.at(offset, len) else { return false };
        // SAFETY: inside our mapping, whose bytes are accessed by raw copies and atomics only.
        unsafe { checked(libc::SYS_madvise, [at as usize, len as usize, libc::MADV_REMOVE as usize, 0, 0, 0]) }.is_ok()
    }

    /// The aligned word at an offset.
    #[inline]
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let at = self.at(offset, 8)?;
        // SAFETY: mapped for the life of `self` and aligned; other processes use it as an atomic
        // too, or get what they deserve: mixed values, no undefined behaviour of ours.
        at.cast::<AtomicU64>().is_aligned().then(|| unsafe { &*at.cast::<AtomicU64>() })
    }

    /// The aligned words from an offset on. `None` where not all of them are there.
    #[inline]
    pub fn words(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let at = self.at(offset, 8 * count as u64)?.cast::<AtomicU64>();
        // SAFETY: as in `word`; all of them are inside the mapping.
        at.is_aligned().then(|| unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// Compares and swaps a word. Its old value; `None` when there is no such word.
    #[inline]
    pub fn cas(&self, offset: u64, expected: u64, new: u64) -> Option<u64> {
        let word = self.word(offset)?;
        Some(match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        })
    }

    /// Adds to a word, wrapping. Its old value; `None` when there is no such word.
    #[inline]
    pub fn faa(&self, offset: u64, add: u64) -> Option<u64> {
        Some(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing refers into it any more: words are borrowed from `self`.
        unsafe { syscall(libc::SYS_munmap, [self.base.as_ptr() as usize, self.len, 0, 0, 0, 0]) };
    }
}

/// Memory without a name, of a fixed size for good: neither end can shrink it under the other.
#[derive(Debug)]
pub struct Memfd(i32);

impl Memfd {
    /// `len` bytes, none of them taken yet.
    pub fn new(len: u64, huge: bool) -> Result<Memfd, Errno> {
        let name = c"farmem-slab";
        let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        if huge {
            flags |= libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        }
        // SAFETY: the name is a literal.
        let fd =
            unsafe { checked(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0])? } as i32;
        let memfd = Memfd(own_fd(fd)?);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no pointers.
        unsafe {
            checked(libc::SYS_ftruncate, [memfd.0 as usize, len as usize, 0, 0, 0, 0])?;
            checked(libc::SYS_fcntl, [memfd.0 as usize, libc::F_ADD_SEALS as usize, seals as usize, 0, 0, 0])?;
        }
        Ok(memfd)
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.0
    }

    /// Gives a range's memory back to the system, even what others still map: it reads as zero.
    pub fn discard(&self, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        unsafe { syscall(libc::SYS_fallocate, [self.0 as usize, mode as usize, offset as usize, len as usize, 0, 0]) };
    }

    /// Takes a range's memory from the system, for this process's account. Bytes that are there
    /// stay.
    pub fn back(&self, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            // SAFETY: no pointers.
            let backed =
                unsafe { checked(libc::SYS_fallocate, [self.0 as usize, 0, offset as usize, len as usize, 0, 0]) };
            match backed {
                Err(Errno(libc::EINTR)) => {}
                done => return done.map(|_| ()),
            }
        }
    }

    /// The first byte of a range, by pages, that was ever written and not given back.
    pub fn next_data(&self, offset: u64, len: u64) -> Option<u64> {
        // SAFETY: no pointers.
        let found =
            unsafe { checked(libc::SYS_lseek, [self.0 as usize, offset as usize, libc::SEEK_DATA as usize, 0, 0, 0]) };
        found.ok().map(|at| at as u64).filter(|at| *at < offset + len)
    }

    /// Writes bytes of a mapping, from `from` on, to a place in it. Others may change them meanwhile.
    pub fn write(&self, offset: u64, bytes: &Mapping, from: u64, len: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let at = bytes.at(from + done, len - done).ok_or(Errno(libc::EINVAL))? as usize;
            let to = (offset + done) as usize;
            // SAFETY: the kernel reads bytes inside the mapping, of which no reference is ever made.
            match unsafe { checked(libc::SYS_pwrite64, [self.0 as usize, at, (len - done) as usize, to, 0, 0]) } {
                Ok(0) => return Err(Errno(libc::ENOSPC)),
                Ok(n) => done += n as u64,
                Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The ranges that have something in them, in order: all else reads as zero. The kernel counts
    /// in pages. Where it does not count, it is all one range.
    pub fn extents(&self) -> Vec<std::ops::Range<u64>> {
        let seek = |from: u64, what: i32| {
            // SAFETY: no pointers.
            unsafe { checked(libc::SYS_lseek, [self.0 as usize, from as usize, what as usize, 0, 0, 0]) }
        };
        let len = seek(0, libc::SEEK_END).map_or(u64::MAX, |end| end as u64);
        let mut extents = Vec::new();
        let mut from = 0;
        while from < len {
            let start = match seek(from, libc::SEEK_DATA) {
                Ok(start) => start as u64,
                // Nothing more.
                Err(Errno(libc::ENXIO)) => break,
                // Huge pages of the system's reserve are not counted.
                Err(_) => from,
            };
            from = seek(start, libc::SEEK_HOLE).map_or(len, |end| end as u64);
            extents.push(start..from);
        }
        extents
    }

    /// Bytes of memory it has taken from the system.
    pub fn taken(&self) -> u64 {
        // SAFETY: zero is a valid stat.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills a live stat.
        let asked = unsafe { checked(libc::SYS_fstat, [self.0 as usize, &mut about as *mut _ as usize, 0, 0, 0, 0]) };
        asked.map_or(0, |_| about.st_blocks as u64 * 512)
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_see_one_memory_and_nothing_outside_it() {
        let memfd = Memfd::new(8192, false).unwrap();
        let (a, b) = (Mapping::new(memfd.fd(), 8192).unwrap(), Mapping::new(memfd.fd(), 8192).unwrap());
        let mut got = [0u8; 4];
        // SAFETY: live arrays.
        unsafe {
            assert!(a.write(8188, b"abcd".as_ptr(), 4));
            assert!(b.read(8188, got.as_mut_ptr(), 4));
            assert!(!a.write(8189, b"abcd".as_ptr(), 4));
            assert!(!b.read(u64::MAX, got.as_mut_ptr(), 4));
        }
        assert_eq!(&got, b"abcd");
        assert_eq!(a.faa(16, 5), Some(0));
        assert_eq!(b.cas(16, 5, 7), Some(5));
        assert_eq!((a.cas(16, 5, 9), a.faa(17, 1), a.faa(8190, 1)), (Some(7), None, None));
        let taken = memfd.taken();
        assert_eq!(memfd.extents().first(), Some(&(0..8192)));
        memfd.discard(4096, 4096);
        assert_eq!((memfd.extents().first(), memfd.extents().len()), (Some(&(0..4096)), 1));
        assert!(Memfd::new(8192, false).unwrap().extents().is_empty());
        assert_eq!((b.faa(16, 0), b.faa(8184, 0)), (Some(7), Some(0)));
        assert!(b.discard(0, 4096) && !b.discard(0, 8193));
        assert_eq!((memfd.taken() < taken, a.faa(16, 0)), (true, Some(0)));
    }

    #[test]
    fn memory_that_is_populated_is_there_and_keeps_its_bytes() {
        let memfd = Memfd::new(1 << 20, false).unwrap();
        let mapping = Mapping::new(memfd.fd(), 1 << 20).unwrap();
        assert!(mapping.write_bytes(8000, &[7; 300]));
        mapping.populate(5000, 20_000);
        assert_eq!(memfd.taken(), 6 * 4096, "bytes 4096 to 28671");
        assert_eq!(mapping.bytes(8000, 300), Some(vec![7; 300]));
        // What lies outside, or is too long, is no error, and nothing is done.
        mapping.populate(1 << 20, 1);
        mapping.populate(4096, u64::MAX);
        assert_eq!(memfd.taken(), 6 * 4096);
    }
}
