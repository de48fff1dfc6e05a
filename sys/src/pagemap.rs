//! The kernel's knowledge of a process's pages: which are present, and which were written.
//!
//! [`Pagemap::scan`] is `PAGEMAP_SCAN` (Linux 6.7): runs of pages by category, and
//! in the same walk the pages it reports as written are write-protected again, so
//! that no write falls between the question and the new protection. *Written* is
//! known only in mappings that a userfaultfd with
//! [`WP_ASYNC`](crate::uffd::feature::WP_ASYNC) has registered. [`Pagemap::entries`]
//! is the older interface, one word a page, with the soft-dirty bit.

use crate::raw::checked;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
const PAGE: u64 = 4096;

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The request of `PAGEMAP_SCAN`.
pub const SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const _: () = assert!(SCAN == 0xc060_6610);

const WP_MATCHING: u64 = 1;
const CHECK_WPASYNC: u64 = 2;

/// Categories of pages, as bits of [`Run::categories`].
pub mod category {
    /// Written since it was last write-protected, or never protected.
    pub const WRITTEN: u64 = 1 << 1;
    /// The page is a file's, or shared memory: not private to the process.
    pub const FILE: u64 = 1 << 2;
    /// In memory.
    pub const PRESENT: u64 = 1 << 3;
    /// In swap.
    pub const SWAPPED: u64 = 1 << 4;
    /// The page of zeros that reading untouched memory maps.
    pub const ZERO: u64 = 1 << 5;
}

/// Bits of an entry of [`Pagemap::entries`].
pub mod entry {
    /// Written since `clear_refs`, on kernels that track it.
    pub const SOFT_DIRTY: u64 = 1 << 55;
    /// Of memory that no other process has.
    pub const EXCLUSIVE: u64 = 1 << 56;
    /// In swap.
    pub const SWAPPED: u64 = 1 << 62;
    /// In memory.
    pub const PRESENT: u64 = 1 << 63;
}

/// Neighbouring pages of the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Address of the first.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// [`category`] bits.
    pub categories: u64,
}

/// The pages of one address space. Goes on meaning that one after an exec, and tells nothing once
/// it is gone.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Opens that of a process, by any of its living threads.
    ///
    /// # Errors
    /// No such thread, or the caller may not look into it.
    pub fn open(thread: u32) -> io::Result<Pagemap> {
        File::open(format!("/proc/{thread}/pagemap")).map(Pagemap)
    }

    /// Appends the runs of pages in `[start, end)` that are in memory or in swap, in order of
    /// address. With `protect`, the written ones among them are write-protected by the same walk.
    ///
    /// # Errors
    /// EPERM: with `protect`, part of the range is in no mapping that is registered for it. ENOTTY:
    /// Linux before 6.7.
    pub fn scan(&self, start: u64, end: u64, protect: bool, out: &mut Vec<Run>) -> io::Result<()> {
        // Filled by the kernel: to clear them first would take as long as to ask about one page.
        let mut runs = [const { MaybeUninit::<Run>::uninit() }; 512];
        let mut from = start;
        while from < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: if protect { WP_MATCHING | CHECK_WPASYNC } else { 0 },
                start: from,
                end,
                walk_end: 0,
                vec: runs.as_mut_ptr() as u64,
                vec_len: runs.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: 0,
                category_anyof_mask: category::PRESENT | category::SWAPPED,
                return_mask: category::WRITTEN
                    | category::FILE
                    | category::PRESENT
                    | category::SWAPPED
                    | category::ZERO,
            };
            let fd = self.0.as_raw_fd() as usize;
            // SAFETY: `arg` and the vector that it names are live, with the sizes that it gives.
            let n = unsafe { checked(libc::SYS_ioctl, [fd, SCAN as usize, &raw mut arg as usize, 0, 0, 0]) };
            let n = n.map_err(|e| io::Error::from_raw_os_error(e.0))?;
            // SAFETY: the kernel has filled the first `n`, of plain numbers.
            out.extend(runs[..n].iter().map(|run| unsafe { run.assume_init() }));
            if arg.walk_end <= from {
                break;
            }
            from = arg.walk_end;
        }
        Ok(())
    }

    /// Reads the entries of the pages from the one at address `start` on; fewer than asked at the
    /// end of the address space.
    ///
    /// # Errors
    /// The process is gone, or the read failed.
    pub fn entries(&self, start: u64, into: &mut [u64]) -> io::Result<usize> {
        let mut bytes = vec![0; into.len() * 8];
        let n = self.0.read_at(&mut bytes, start / PAGE * 8)?;
        for (entry, bytes) in into.iter_mut().zip(bytes[..n].chunks_exact(8)) {
            *entry = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(n / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::WriteTracker;

    const PAGES: usize = 64;

    #[test]
    fn what_is_written_is_told_once() {
        let at = crate::memory::reserve(PAGES * 4096).unwrap();
        // SAFETY: reserved above, by nobody else used.
        unsafe {
            assert_eq!(libc::mprotect(at.cast(), PAGES * 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
            libc::madvise(at.cast(), PAGES * 4096, libc::MADV_NOHUGEPAGE);
        }
        let write = |page: usize| {
            // SAFETY: inside the range above.
            unsafe { at.add(page * 4096).write_volatile(1) }
        };
        [3, 4, 5, 9].into_iter().for_each(write);
        let pages = Pagemap::open(std::process::id()).unwrap();
        let (start, end) = (at as u64, at as u64 + (PAGES * 4096) as u64);
        let mut runs = Vec::new();
        if pages.scan(start, end, false, &mut runs).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTTY)) {
            eprintln!("skipped: no PAGEMAP_SCAN before Linux 6.7");
            return;
        }
        let places = |runs: &[Run], bit: u64| -> Vec<u64> {
            let of = |run: &Run| ((run.start - start) / 4096..(run.end - start) / 4096).collect::<Vec<_>>();
            runs.iter().filter(|run| run.categories & bit != 0).flat_map(of).collect()
        };
        assert_eq!(places(&runs, category::PRESENT), [3, 4, 5, 9]);
        assert_eq!(
            pages.scan(start, end, true, &mut runs).unwrap_err().raw_os_error(),
            Some(libc::EPERM),
            "not registered"
        );

        let tracker = WriteTracker::of(crate::uffd::descriptor().unwrap()).unwrap();
        tracker.register(start, end - start).unwrap();
        let mut told = |bit| {
            runs.clear();
            pages.scan(start, end, true, &mut runs).unwrap();
            places(&runs, bit)
        };
        assert_eq!(told(category::WRITTEN), [3, 4, 5, 9], "never protected");
        assert_eq!(told(category::WRITTEN), []);
        [4, 20].into_iter().for_each(write);
        assert_eq!(told(category::WRITTEN), [4, 20]);
        assert_eq!(told(category::PRESENT), [3, 4, 5, 9, 20]);

        // While the page is write-protected the answer stays true. Only then is a page known to be
        // clean.
        let allow = |how| {
            // SAFETY: the range above.
            assert_eq!(unsafe { libc::mprotect(at.cast(), PAGES * 4096, how) }, 0);
        };
        write(5);
        allow(libc::PROT_READ);
        runs.clear();
        pages.scan(start, end, false, &mut runs).unwrap();
        assert_eq!(places(&runs, category::WRITTEN), [5]);
        allow(libc::PROT_READ | libc::PROT_WRITE);

        let mut entries = [0; PAGES];
        assert_eq!(pages.entries(start, &mut entries).unwrap(), PAGES);
        let present: Vec<usize> = (0..PAGES).filter(|&page| entries[page] & entry::PRESENT != 0).collect();
        assert_eq!(present, [3, 4, 5, 9, 20]);
    }
}
