//! What is kept of pages as they arrived: one entry of a fixed size for each, found by the page.
//!
//! ```text
//!  page ─► index (4 bytes a page, sparse): 0, or 1 + entry ─► entries: hashes (512 bytes, in brief 104) or copies (4096)
//! ```
//!
//! A page's index and entry belong to whoever owns the page: its word says who ([`crate::word`]), and its
//! transitions order these accesses. Only the list of free entries is shared, under its own lock. Entries that
//! came free last are taken first: their memory is the warmest, and what was never needed takes none.

use farmem_protocol::addr::{FAR_PAGES, PageId};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The entries.
pub struct Kept {
    index: SparseArray<AtomicU32>,
    entries: *mut u8,
    entry_bytes: usize,
    free: Lock<Free>,
    /// Pages that entries began to take since [`Kept::grown`] was asked.
    grown: AtomicU64,
}

struct Free {
    list: Vec<u32>,
    /// From here on none was ever taken.
    fresh: u32,
    most: u32,
}

// SAFETY: entries are accessed by their pages' owners only (see above).
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Kept {
    /// Room for `most` pages, of `entry_bytes` each.
    pub fn new(most: usize, entry_bytes: usize) -> Result<Kept, Errno> {
        Kept::of(most, entry_bytes, FAR_PAGES)
    }

    fn of(most: usize, entry_bytes: usize, pages: usize) -> Result<Kept, Errno> {
        Ok(Kept {
            index: SparseArray::new(pages)?,
            entries: farmem_sys::holdings::reserve((most * entry_bytes).max(4096))?,
            entry_bytes,
            free: Lock::new(Free { list: Vec::with_capacity(most), fresh: 0, most: most as u32 }),
            grown: AtomicU64::new(0),
        })
    }

    /// Gets what [`Kept::find`] will look at into the CPU's cache.
    #[inline(always)]
    pub fn prefetch(&self, page: PageId) {
        farmem_sys::memory::prefetch(std::ptr::from_ref(&self.index[page.0 as usize]) as usize);
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> *mut u8 {
        // SAFETY: numbers are below `most`.
        unsafe { self.entries.add(number as usize * self.entry_bytes) }
    }

    /// The page's entry, if it has one. The caller owns the page.
    #[inline]
    pub fn find(&self, page: PageId) -> Option<*mut u8> {
        let number = self.index[page.0 as usize].load(Ordering::Relaxed);
        number.checked_sub(1).map(|number| self.entry(number))
    }

    /// The page's entry, or a new one; `None` when all are in use. The caller owns the page.
    #[inline]
    pub fn take(&self, page: PageId) -> Option<*mut u8> {
        if let Some(entry) = self.find(page) {
            return Some(entry);
        }
        let mut free = self.free.lock();
        let number = match free.list.pop() {
            Some(number) => number,
            None if free.fresh < free.most => {
                let begun = |entries: u32| (entries as usize * self.entry_bytes).div_ceil(4096) as u64;
                let grown = begun(free.fresh + 1) - begun(free.fresh);
                if grown > 0 {
                    self.grown.fetch_add(grown, Ordering::Relaxed);
                }
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        drop(free);
        self.index[page.0 as usize].store(number + 1, Ordering::Relaxed);
        Some(self.entry(number))
    }

    /// Pages of memory that entries have begun to take since this was last asked.
    #[inline]
    pub fn grown(&self) -> u64 {
        if self.grown.load(Ordering::Relaxed) == 0 { 0 } else { self.grown.swap(0, Ordering::Relaxed) }
    }

    /// Gives the entries of pages up that have any. The caller owns the pages.
    pub fn release(&self, pages: impl Iterator<Item = PageId>) {
        let mut free = None;
        for page in pages {
            let index = &self.index[page.0 as usize];
            let number = index.load(Ordering::Relaxed);
            if number != 0 {
                index.store(0, Ordering::Relaxed);
                free.get_or_insert_with(|| self.free.lock()).list.push(number - 1);
            }
        }
    }

    /// A page's entry becomes another's, which has none. The caller owns both.
    pub fn rename(&self, from: PageId, to: PageId) {
        let number = self.index[from.0 as usize].load(Ordering::Relaxed);
        self.index[from.0 as usize].store(0, Ordering::Relaxed);
        self.index[to.0 as usize].store(number, Ordering::Relaxed);
    }

    /// Gives the index's memory for the pages `from..to` back, none of which has an entry or will have one
    /// before this returns.
    pub fn forget(&self, from: PageId, to: PageId) {
        self.index.clear(from.0 as usize, to.0 as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_had_once_and_come_back() {
        let kept = Kept::of(3, 512, 1000).unwrap();
        let entries: Vec<_> = (0..3).map(|page| kept.take(PageId(page)).unwrap()).collect();
        assert!(entries.windows(2).all(|w| w[0] != w[1]));
        assert_eq!(kept.take(PageId(3)), None, "all are in use");
        assert_eq!(kept.take(PageId(1)), Some(entries[1]), "it has one already");
        kept.rename(PageId(1), PageId(700));
        assert_eq!((kept.find(PageId(1)), kept.find(PageId(700))), (None, Some(entries[1])));
        kept.release([PageId(5), PageId(700)].into_iter());
        assert_eq!(kept.take(PageId(3)), Some(entries[1]));
        assert_eq!(kept.find(PageId(700)), None);
        assert_eq!((kept.grown(), kept.grown()), (1, 0), "three times 512 bytes are in one page");
    }

    #[test]
    fn what_entries_take_is_counted_by_pages_begun() {
        let kept = Kept::of(1000, 104, 1000).unwrap();
        let mut grown = 0;
        for page in 0..1000 {
            kept.take(PageId(page)).unwrap();
            grown += kept.grown();
            assert_eq!(grown, ((page + 1) * 104).div_ceil(4096), "{page}");
        }
    }
}
