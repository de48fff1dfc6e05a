//! Memory of pages, as types that say who may touch it.
//!
//! | type | what it proves |
//! |---|---|
//! | [`Bytes`], [`Pages`] | a page's bytes, or those of several behind each other, can be read |
//! | [`Target`] | a page's bytes are the holder's to fill |
//! | [`Frames`] | memory of the runtime's own, for whole pages |
//! | [`Busy`] | a far page is Busy, and the holder's |
//! | [`Run`] | far pages next to each other are Busy, and the holder's |
//!
//! (A page that leaves lends its bytes by [`crate::out::batch::Leaving`].)
//!
//! *Validity.* The types vouch that memory is mapped, not that it stays as it is. The owner of a
//! page sees to that, by the page word. A reader of memory that is written to meanwhile gets mixed
//! bytes, and nothing worse: bytes of pages are data, and steer no pointer.

#![allow(unsafe_code)] // The types of memory: they vouch for it.

use crate::table::Table;
use crate::word::{AtomicWord, State, Word};
use farmem_pool::Pool;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_sys::lines::exact;
use farmem_sys::memory::{copy_page, is_zero};
use farmem_sys::raw::Errno;
use farmem_sys::uffd::Uffd;
use std::marker::PhantomData;
use std::ops::Range;

/// The bytes of a page, which can be read for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    at: *const u8,
    of: PhantomData<&'a [u8; PAGE_BYTES]>,
}

impl<'a> Bytes<'a> {
    /// # Safety
    /// A page must be mapped there, readable, for `'a`.
    #[inline]
    pub unsafe fn at(at: *const u8) -> Bytes<'a> {
        Bytes { at, of: PhantomData }
    }

    /// The bytes of a far page that is Busy or Leaving, in its place. `None` if the program may
    /// have no right to read them.
    ///
    /// # Safety
    /// The page must be present and the caller's for `'a`. The caller must hold the lock for
    /// reading pages. A call that takes the right to read away takes that lock too.
    #[inline]
    pub unsafe fn in_place(table: &Table, page: PageId) -> Option<Bytes<'a>> {
        // SAFETY: passed on to the caller.
        (!table.may_be_unreadable(page)).then(|| unsafe { Bytes::at(page.addr() as *const u8) })
    }

    /// The address.
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.at
    }

    /// Whether all bytes are zero.
    #[inline]
    pub fn is_zero(self) -> bool {
        // SAFETY: the page is mapped, by this type.
        unsafe { is_zero(self.at) }
    }
}

/// Writes zeros over a far page.
///
/// # Safety
/// The caller has pinned it for writing, in a mapping that the program may write to, and holds the
/// lock of the mappings.
pub(crate) unsafe fn wipe(page: PageId) {
    // SAFETY: present and writable, by the caller's word. Other threads of the program may use it
    // meanwhile, as they may while the kernel drops it.
    unsafe { std::ptr::write_bytes(page.addr() as *mut u8, 0, PAGE_BYTES) };
}

/// The bytes of pages that lie behind each other.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    first: Bytes<'a>,
    pages: usize,
}

impl<'a> Pages<'a> {
    /// The first of them. More are added by [`Pages::add`].
    #[inline]
    pub fn of(first: Bytes<'a>) -> Pages<'a> {
        Pages { first, pages: 1 }
    }

    /// Whether a page lies right behind these.
    #[inline]
    pub fn is_next(&self, next: Bytes<'a>) -> bool {
        next.at == self.first.at.wrapping_add(self.pages * PAGE_BYTES)
    }

    /// Adds a page that lies right behind these.
    #[inline]
    pub fn add(&mut self, next: Bytes<'a>) {
        assert!(self.is_next(next));
        self.pages += 1;
    }
}

/// A page to be filled, by the holder alone for `'a`.
pub(crate) struct Target<'a> {
    at: *mut u8,
    of: PhantomData<&'a mut [u8; PAGE_BYTES]>,
}

impl Target<'_> {
    /// # Safety
    /// A page must be mapped there, writable, for `'a`, and be the caller's to fill.
    #[inline]
    pub unsafe fn at(at: *mut u8) -> Self {
        Target { at, of: PhantomData }
    }

    /// The address.
    #[inline]
    pub fn as_ptr(&mut self) -> *mut u8 {
        self.at
    }

    /// Copies a page.
    #[inline]
    pub fn fill(self, from: Bytes<'_>) {
        // SAFETY: both are mapped, by their types.
        unsafe { copy_page(from.at, self.at) }
    }

    /// Copies some lines of a page to the same place. Bit k: line k.
    #[inline]
    pub fn lay(self, from: Bytes<'_>, lines: u64) {
        // SAFETY: as above.
        unsafe { exact::copy_lines(from.at, self.at, lines) }
    }
}

/// Memory of the runtime's own for whole pages, mapped for the life of the process. The part that
/// has the frames settles which thread uses which page.
#[derive(Clone, Copy)]
pub(crate) struct Frames {
    at: *mut u8,
    pages: usize,
}

// SAFETY: an address of memory that stays; its parts see to who uses which page.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// Reserves `pages` pages that read as zero and take memory when they are touched.
    ///
    /// # Errors
    /// There are no addresses.
    pub fn reserve(pages: usize) -> Result<Frames, Errno> {
        Ok(Frames { at: farmem_sys::holdings::reserve(pages * PAGE_BYTES)?, pages })
    }

    /// Pages that are only read. The kernel's one page of zeros stands behind all of them: they
    /// take no memory, and are left out of what the runtime counts as its own.
    ///
    /// # Errors
    /// There are no addresses.
    pub fn of_zeros(pages: usize) -> Result<Frames, Errno> {
        let zeros = Frames { at: farmem_sys::memory::reserve(pages * PAGE_BYTES)?, pages };
        // Reading maps the kernel's page.
        (0..pages).for_each(|page| assert!(zeros.page(page).is_zero()));
        Ok(zeros)
    }

    /// # Safety
    /// `pages` pages must be mapped there for good, writable, and be used by these frames alone.
    pub unsafe fn of(at: usize, pages: usize) -> Frames {
        Frames { at: at as *mut u8, pages }
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// A page's address.
    #[inline]
    pub fn at(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.pages);
        self.at.wrapping_add(index * PAGE_BYTES)
    }

    /// A page's bytes.
    #[inline]
    pub fn page(&self, index: usize) -> Bytes<'static> {
        assert!(index < self.pages);
        // SAFETY: within the frames, which stay mapped.
        unsafe { Bytes::at(self.at(index)) }
    }

    /// The bytes of all pages from one on.
    pub fn from(&self, index: usize) -> Pages<'static> {
        Pages { first: self.page(index), pages: self.pages - index }
    }

    /// A page to be filled. The part that has the frames gives each page to one thread at a time.
    #[inline]
    pub fn target(&self, index: usize) -> Target<'static> {
        assert!(index < self.pages);
        // SAFETY: within the frames, which stay mapped.
        unsafe { Target::at(self.at(index)) }
    }

    /// Tells cards of this memory.
    pub fn tell(&self, pool: &Pool) {
        // SAFETY: it is never unmapped, and its pages stay its own.
        unsafe { pool.arena(self.at, self.pages * PAGE_BYTES) };
    }
}

/// Proof that a far page is Busy and the holder's. It ends when the holder leaves the page in
/// another state, by [`Busy::settle`] or [`Busy::give_up`].
#[must_use = "other threads wait for the page"]
#[derive(Clone, Copy)]
pub(crate) struct Busy {
    page: PageId,
    /// Its word before.
    seen: Word,
    word: &'static AtomicWord,
}

impl Busy {
    /// Makes a page Busy whose word is `seen`. `None` if it is not any more.
    #[inline]
    pub fn take(table: &'static Table, page: PageId, seen: Word) -> Option<Busy> {
        let word = table.word(page);
        // The shared field counts pins from now on. Only a staged page has something else in it.
        let busy = if seen.state() == State::Staged { seen.with_field(0) } else { seen };
        word.shift(seen, busy.to(State::Busy)).then_some(Busy { page, seen, word })
    }

    #[inline]
    pub fn page(&self) -> PageId {
        self.page
    }

    /// The page's word before it was Busy.
    #[inline]
    pub fn seen(&self) -> Word {
        self.seen
    }

    /// Leaves the page as `to`, with the pins that it has by now.
    #[inline]
    pub fn settle(self, to: Word) {
        self.word.settle(to);
    }

    /// Leaves the page as it was. It was not resident, and so has no pins.
    #[inline]
    pub fn give_up(self) {
        self.word.set(self.seen);
    }
}

/// Proof that far pages next to each other are Busy, and the holder's.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    first: PageId,
    pages: usize,
}

impl Run {
    /// One page. More are added by [`Run::add`].
    #[inline]
    pub fn of(page: &Busy) -> Run {
        Run { first: page.page, pages: 1 }
    }

    /// Adds a page that is a neighbour of the first or of the last.
    #[inline]
    pub fn add(&mut self, next: &Busy) {
        assert!(next.page.0 == self.first.0 + self.pages as u64 || next.page.0 + 1 == self.first.0);
        self.first = self.first.min(next.page);
        self.pages += 1;
    }

    #[inline]
    pub fn first(&self) -> PageId {
        self.first
    }

    #[inline]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Some of the pages.
    #[inline]
    pub fn part(&self, part: Range<usize>) -> Run {
        assert!(part.start <= part.end && part.end <= self.pages);
        Run { first: PageId(self.first.0 + part.start as u64), pages: part.len() }
    }

    /// Installs bytes for all of the pages, write-protected if asked. Returns how many were
    /// installed: fewer where a page was there already.
    ///
    /// # Errors
    /// Not one was: the run leaves its mapping, for one.
    #[inline]
    pub fn install(&self, uffd: &Uffd, from: Pages<'_>, protect: bool) -> Result<usize, Errno> {
        assert!(self.pages <= from.pages);
        // SAFETY: the source has as many pages, and the targets are Busy: both by their types.
        let installed = unsafe { uffd.copy(self.first.addr(), from.first.at, self.pages * PAGE_BYTES, protect) };
        installed.map(|bytes| bytes / PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_added_where_they_lie() {
        let frames = Frames::reserve(4).unwrap();
        let mut pages = Pages::of(frames.page(1));
        assert!(!pages.is_next(frames.page(3)) && pages.is_next(frames.page(2)));
        pages.add(frames.page(2));
        pages.add(frames.page(3));
        assert_eq!((pages.pages, frames.from(1).pages), (3, 3));
        frames.target(2).fill(frames.page(0));
        assert!(frames.page(2).is_zero());
    }

    #[test]
    fn a_busy_page_is_one_threads_and_a_run_grows_at_both_ends() {
        let table: &'static Table = Box::leak(Box::new(Table::of(1000).unwrap()));
        let take = |page| Busy::take(table, PageId(page), Word::UNTOUCHED);
        let (middle, below, above) = (take(7).unwrap(), take(6).unwrap(), take(8).unwrap());
        assert!(take(7).is_none(), "it is another's");
        let mut run = Run::of(&middle);
        run.add(&below);
        run.add(&above);
        assert_eq!((run.first(), run.pages(), run.part(1..3).first()), (PageId(6), 3, PageId(7)));
        middle.give_up();
        assert!(take(7).is_some());
        above.settle(Word::UNTOUCHED.to(State::Resident));
        assert_eq!(table.word(PageId(8)).load().state(), State::Resident);
        let staged = Word::UNTOUCHED.to(State::Staged).with_field(9);
        table.word(PageId(20)).set(staged);
        let busy = Busy::take(table, PageId(20), staged).unwrap();
        assert_eq!((table.word(PageId(20)).load().pins(), busy.seen()), (0, staged));
    }
}
