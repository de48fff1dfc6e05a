//! Hashes of pages as they arrived: an entry of a fixed size for each page, found by the page.
//!
//! ```text
//!  page ─► index (4 bytes a page, sparse): 0, or 1 + entry ─► entries: hashes (512 bytes, in brief 104)
//! ```
//!
//! A page's index and entry belong to the owner of the page. Its word says who that is
//! ([`crate::word`]), and the word's transitions order these accesses. Only the list of free
//! entries is shared, under its own lock. The entry that was freed last is taken first, because its
//! memory is the warmest. Entries that were never needed take no memory.
//!
//! *Promises.* A thread that brings a page in may fill its entry later ([`Kept::promise`]). By then
//! the program may use the page, and another thread may own it. The index then names the thread,
//! until it fulfils its promise or the page leaves:
//!
//! ```text
//!     31 | 30 … 0
//!      0 | 0          nothing is kept
//!      0 | 1 + entry  an entry: its owner's
//!      1 | thread     promised: a look finds nothing
//!
//!   0 ── promise ──► thread ── fulfil ──► 1 + entry ── release ──► 0
//!                      └── release, rename: broken ─────────────► 0
//! ```
//!
//! A promise is fulfilled by one compare-and-swap from the thread's own name. It fails if the page
//! left meanwhile, even if it came back with other bytes: every way out takes the name away. A
//! thread has one promise at a time. Otherwise its name on a page could be that of a later promise.

#![allow(unsafe_code)] // Entries are raw memory.

use farmem_protocol::addr::{FAR_PAGES, PageId};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The bit of an index that marks a promise. The other bits are the number of the thread that will
/// fill an entry.
const PROMISED: u32 = 1 << 31;

/// An entry. It belongs to the page's owner until the page is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    at: *mut u8,
    of: PhantomData<&'a Kept>,
}

impl Entry<'_> {
    /// Where its bytes are.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }
}

/// The entries.
pub struct Kept {
    /// See the module.
    index: SparseArray<AtomicU32>,
    entries: *mut u8,
    entry_bytes: usize,
    free: Lock<Free>,
    /// Pages of memory that entries have begun to use since [`Kept::grown`] was last called.
    grown: AtomicU64,
}

struct Free {
    list: Vec<u32>,
    /// The first entry that was never taken.
    fresh: u32,
    most: u32,
}

// SAFETY: entries are accessed by their pages' owners only (see above).
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Kept {
    /// Room for the entries of `most` pages, `entry_bytes` bytes each.
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

    /// Prefetches into the CPU's cache the index that [`Kept::find`] will read.
    #[inline(always)]
    pub fn prefetch(&self, page: PageId) {
        farmem_sys::memory::prefetch(std::ptr::from_ref(&self.index[page.0 as usize]) as usize);
    }

    #[inline(always)]
    fn entry(&self, number: u32) -> Entry<'_> {
        Entry { at: self.entries.wrapping_add(number as usize * self.entry_bytes), of: PhantomData }
    }

    /// The page's entry, if it has one. The caller owns the page.
    #[inline]
    pub fn find(&self, page: PageId) -> Option<Entry<'_>> {
        // Acquire: the entry may have been filled by a thread that does not own the page.
        match self.index[page.0 as usize].load(Ordering::Acquire) {
            0 | PROMISED.. => None,
            number => Some(self.entry(number - 1)),
        }
    }

    /// The page's entry, or a new one; `None` when all are in use. The caller owns the page.
    #[inline]
    pub fn take(&self, page: PageId) -> Option<Entry<'_>> {
        if let Some(entry) = self.find(page) {
            return Some(entry);
        }
        let number = self.free()?;
        self.index[page.0 as usize].store(number + 1, Ordering::Relaxed);
        Some(self.entry(number))
    }

    /// Takes an entry that no page has; `None` when all are in use.
    fn free(&self) -> Option<u32> {
        let mut free = self.free.lock();
        match free.list.pop() {
            Some(number) => Some(number),
            None if free.fresh < free.most => {
                let begun = |entries: u32| (entries as usize * self.entry_bytes).div_ceil(4096) as u64;
                let grown = begun(free.fresh + 1) - begun(free.fresh);
                if grown > 0 {
                    self.grown.fetch_add(grown, Ordering::Relaxed);
                }
                free.fresh += 1;
                Some(free.fresh - 1)
            }
            None => None,
        }
    }

    /// Promises an entry for the page: the thread `by` will fill it. The caller owns the page, and
    /// the thread has no other promise to fulfil. An entry that the page already has is given up.
    /// (It was made for an arrival that became protected after all.)
    pub fn promise(&self, page: PageId, by: u32) {
        debug_assert!(by < PROMISED);
        if let Some(number) = self.clear(page) {
            self.free.lock().list.push(number);
        }
        self.index[page.0 as usize].store(PROMISED | by, Ordering::Relaxed);
    }

    /// Fills an entry for a page as the thread `by` promised, unless the page has left since. The
    /// caller need not own the page.
    pub fn fulfil(&self, page: PageId, by: u32, fill: impl FnOnce(Entry<'_>)) {
        let (index, promised) = (&self.index[page.0 as usize], PROMISED | by);
        if index.load(Ordering::Relaxed) != promised {
            return;
        }
        let Some(number) = self.free() else {
            // As if the page had left.
            let _ = index.compare_exchange(promised, 0, Ordering::Relaxed, Ordering::Relaxed);
            return;
        };
        fill(self.entry(number));
        // Release: a thread that finds the entry finds it filled.
        if index.compare_exchange(promised, number + 1, Ordering::Release, Ordering::Relaxed).is_err() {
            self.free.lock().list.push(number);
        }
    }

    /// Pages of memory that entries have begun to use since the last call.
    #[inline]
    pub fn grown(&self) -> u64 {
        if self.grown.load(Ordering::Relaxed) == 0 { 0 } else { self.grown.swap(0, Ordering::Relaxed) }
    }

    /// Frees the entries of those pages that have one. The caller owns the pages.
    pub fn release(&self, pages: impl Iterator<Item = PageId>) {
        let mut free = None;
        for page in pages {
            if let Some(number) = self.clear(page) {
                free.get_or_insert_with(|| self.free.lock()).list.push(number);
            }
        }
    }

    /// Moves an entry from the page `from` to the page `to`, which has none. The caller owns both.
    pub fn rename(&self, from: PageId, to: PageId) {
        let number = self.clear(from);
        self.index[to.0 as usize].store(number.map_or(0, |number| number + 1), Ordering::Relaxed);
    }

    /// Takes a page's entry away, if it has one, and returns its number. Breaks a promise.
    fn clear(&self, page: PageId) -> Option<u32> {
        let index = &self.index[page.0 as usize];
        let number = match index.load(Ordering::Acquire) {
            0 => return None,
            // By a swap, because the promise may have been fulfilled just now.
            PROMISED.. => index.swap(0, Ordering::Acquire),
            number => {
                index.store(0, Ordering::Relaxed);
                number
            }
        };
        if number < PROMISED { number.checked_sub(1) } else { None }
    }

    /// Gives the index's memory for the pages `from..to` back, none of which has an entry or will
    /// have one before this returns.
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
    fn a_promise_is_kept_unless_the_page_has_left() {
        const PAGE: PageId = PageId(1);
        // Events between a promise and its fulfilment, and in the midst of that; and whether it is
        // fulfilled then.
        type Meanwhile = fn(&Kept);
        let all: [(Meanwhile, bool); 5] = [
            (|_| (), true),
            (|kept| kept.release([PAGE].into_iter()), false),
            (
                |kept| {
                    kept.release([PAGE].into_iter());
                    kept.take(PAGE).unwrap();
                },
                false,
            ),
            (
                |kept| {
                    kept.release([PAGE].into_iter());
                    kept.promise(PAGE, 8);
                },
                false,
            ),
            (|kept| kept.rename(PAGE, PageId(9)), false),
        ];
        for (meanwhile, fulfilled) in all {
            for midst in [false, true] {
                let kept = Kept::of(2, 8, 1000).unwrap();
                kept.promise(PAGE, 7);
                assert_eq!(kept.find(PAGE), None);
                let mut filled = None;
                if !midst {
                    meanwhile(&kept);
                }
                kept.fulfil(PAGE, 7, |entry| {
                    filled = Some(entry.as_ptr());
                    if midst {
                        meanwhile(&kept);
                    }
                });
                assert_eq!(filled.is_some() && kept.find(PAGE).map(|entry| entry.as_ptr()) == filled, fulfilled);
                assert_eq!(kept.find(PageId(9)), None, "a promise does not move");
                // In every case no entry is lost: both are available.
                kept.release([PAGE].into_iter());
                assert_eq!([20, 21, 22].map(|page| kept.take(PageId(page)).is_some()), [true, true, false]);
            }
        }
        let kept = Kept::of(1, 8, 1000).unwrap();
        kept.take(PAGE).unwrap();
        kept.promise(PAGE, 7);
        assert_eq!(kept.find(PAGE), None);
        assert!(kept.take(PageId(20)).is_some(), "the entry that it had is free");
        let kept = Kept::of(0, 8, 1000).unwrap();
        kept.promise(PAGE, 7);
        kept.fulfil(PAGE, 7, |_| panic!("there is no entry"));
        assert_eq!(kept.find(PAGE), None);
    }

    /// A page leaves and comes back while the thread that brought it in fills its entry. An entry
    /// that is found is of the bytes that the page came with last.
    #[test]
    fn nothing_is_found_of_what_was_there_before() {
        const PAGE: PageId = PageId(3);
        const TIMES: u64 = 50_000;
        const AWAY: u64 = 0;
        const BUSY: u64 = u64::MAX;
        let kept = Kept::of(64, 8, 10).unwrap();
        // SAFETY: an entry of 8 bytes, aligned, which stays as long as the test.
        let of = |entry: Entry<'_>| unsafe { &*entry.as_ptr().cast::<AtomicU64>() };
        let fill = |entry: Entry<'_>, bytes: u64| of(entry).store(bytes, Ordering::Relaxed);
        // The page's bytes, which are others each time.
        let page = AtomicU64::new(AWAY);
        let (mut found, mut promises) = (0, 0);
        std::thread::scope(|scope| {
            let brings = scope.spawn(|| {
                for nth in 1..=TIMES {
                    let bytes = 2 * nth + 1;
                    while page.compare_exchange(AWAY, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
                        std::thread::yield_now();
                    }
                    kept.promise(PAGE, 7);
                    page.store(bytes, Ordering::Release);
                    kept.fulfil(PAGE, 7, |entry| fill(entry, bytes));
                }
            });
            let mut nth = 0;
            while !brings.is_finished() {
                let bytes = page.load(Ordering::Acquire);
                if matches!(bytes, AWAY | BUSY) {
                    std::thread::yield_now();
                    continue;
                }
                promises += bytes % 2;
                if let Some(entry) = kept.find(PAGE) {
                    // Filled before it was found, and the page's until it is released.
                    assert_eq!(of(entry).load(Ordering::Relaxed), bytes);
                    found += 1;
                }
                kept.release([PAGE].into_iter());
                nth += 1;
                // It comes back by this thread, or is left to the other.
                if nth % 3 == 0 {
                    fill(kept.take(PAGE).unwrap(), 2 * nth);
                    page.store(2 * nth, Ordering::Release);
                } else {
                    page.store(AWAY, Ordering::Release);
                }
            }
        });
        assert!(found > 0 && promises > 0, "{found} {promises}");
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
