//! Marks: first writes that the kernel notes by itself (`--dirty pages`), and is asked about when pages leave.
//!
//! Under `WP_ASYNC` a page that came in protected has a mark in its entry of the kernel's page table. The first write takes it away, in the
//! kernel, without a signal, and `PAGEMAP_SCAN` tells which marks are there. So D in a page's word ([`crate::word`]) says less than elsewhere:
//! a page without it may have been written since it was last asked about.
//!
//! ```text
//!  a page leaves     1 copied, where its slot, which holds what it came in with, is not mapped; the program being still, neither this nor 3
//!                    2 asked about: without its mark it has D from then on, and goes to its slot
//!                    3 with its mark: held or moved, and compared when nobody can write to it any more ([`crate::settle`])
//!  a fork begins     all pages are asked about, so that the child's words, which are copies, tell what is clean; where the program is
//!                    not still, the child compares all that seem clean with their slots, or where these are not mapped takes them for written
//! ```
//!
//! *Why that is exact.* An answer holds as long as nobody writes, and nothing can be protected meanwhile: `WP_ASYNC` is the whole
//! descriptor's, and lifts that protection too. Where the program is still ([`crate::still`]) nobody writes. Else a page that had its mark
//! after it was copied had not been written by then, so the copy is what it came in with. What is compared with the copy is read when the page
//! has gone from its mapping, so that it is what the page was in the end.
//!
//! Other ways to hold other threads' writes off, what each costs, and why this is not the default, are in `docs/design/lines.md`.

use crate::ending::broken;
use crate::evictor::{Evictor, Leaving, neighbours};
use crate::space::pages;
use crate::word::State;
use crate::{Pager, StartError, features};
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_sys::memory::copy_page;
use farmem_sys::pagemap::OwnPages;
use farmem_sys::raw::read_mem;

/// Who is asked about marks, and what pages held before.
pub(crate) struct Marks {
    own: OwnPages,
    /// Of the pages of a batch, in its order; its first `room`.
    copies: *mut u8,
    room: usize,
}

// SAFETY: the copies are this value's alone.
unsafe impl Send for Marks {}

impl Marks {
    /// With room for so many copies.
    ///
    /// # Errors
    /// There is no /proc here, or no memory.
    pub fn open(room: usize) -> Result<Marks, StartError> {
        let copies = match room {
            0 => std::ptr::null_mut(),
            _ => farmem_sys::holdings::reserve(room * PAGE_BYTES).map_err(StartError::Memory)?,
        };
        Ok(Marks { own: OwnPages::open().map_err(StartError::Marks)?, copies, room })
    }

    /// Where the copy of a batch's page is.
    fn copy(&self, at: usize) -> Option<*mut u8> {
        // SAFETY: within the copies.
        (at < self.room).then(|| unsafe { self.copies.add(at * PAGE_BYTES) })
    }

    fn written(&self, start: usize, end: usize, found: impl FnMut(usize, usize)) {
        self.own.written(start, end, found).unwrap_or_else(|e| broken(&format!("PAGEMAP_SCAN: {e}")));
    }
}

impl Pager {
    /// Of pages that leave, those that were written have D from now on; the others, unless the program is still, are marked.
    pub(crate) fn ask_marks(&self, evictor: &mut Evictor, still: bool) {
        let Some(marks) = &evictor.marks else { return };
        let mut at = 0;
        for together in evictor.leaving.chunk_by_mut(neighbours) {
            let first = together[0].page;
            for l in together.iter_mut() {
                // What cannot be compared is taken for written.
                let known = l.from.dirty() || still || self.keeps_before(marks, l, at, evictor.mem_fd);
                l.from = l.from.with_dirty(l.from.dirty() || !known);
                at += 1;
            }
            if together.iter().all(|l| l.from.dirty()) {
                continue;
            }
            marks.written(first.addr(), first.addr() + together.len() * PAGE_BYTES, |from, to| {
                let index = |at| (PageId::of(at).0 - first.0) as usize;
                together[index(from)..index(to)].iter_mut().for_each(|l| l.from = l.from.with_dirty(true));
            });
            together.iter_mut().for_each(|l| l.marked = !still && !l.from.dirty());
        }
    }

    /// Keeps what a page, the batch's `at`th, holds before it is asked about, unless its slot is mapped; whether that is known then.
    fn keeps_before(&self, marks: &Marks, l: &Leaving, at: usize, mem_fd: i32) -> bool {
        if self.mapped_slot(l.from).is_some() {
            return true;
        }
        let Some(copy) = marks.copy(at) else { return false };
        if self.table.may_be_unreadable(l.page) {
            return read_mem(mem_fd, l.page.addr(), copy, PAGE_BYTES).is_ok();
        }
        // SAFETY: the page is present, readable and Leaving. Who writes to it meanwhile takes its mark away, and then nobody looks at the copy.
        unsafe { copy_page(l.page.addr() as *const u8, copy) };
        true
    }

    /// What a marked page, the batch's `at`th, held when it had its mark: a page's bytes.
    pub(crate) fn held_before(&self, evictor: &Evictor, l: &Leaving, at: usize) -> *const u8 {
        let copy = || evictor.marks.as_ref().and_then(|marks| marks.copy(at)).map(<*mut u8>::cast_const);
        self.mapped_slot(l.from).or_else(copy).unwrap_or_else(|| broken("a marked page of which nothing was kept"))
    }

    /// A fork begins, with nobody else in the pager. Whether the words of pages that are resident tell which are clean.
    pub(crate) fn ask_all_marks(&self, evictor: &Evictor) -> bool {
        let Some(marks) = &evictor.marks else { return true };
        if !self.is_still(evictor) {
            return false;
        }
        for (start, region) in self.space.lock().iter() {
            marks.written(start, region.end, |from, to| {
                let (first, last) = pages(from, to);
                self.table.walk(first, last, |_, word| {
                    let seen = word.load();
                    if seen.state() == State::Resident && !seen.dirty() {
                        word.shift(seen, seen.with_dirty(true));
                    }
                });
            });
        }
        true
    }

    /// In a forked child, before it has a userfaultfd of its own: whether it can ask about its threads, and its marks; the features
    /// that it wants then. What it has inherited is closed first, for it may have no descriptors left for both.
    pub(crate) fn renew_marks(&self, evictor: &mut Evictor) -> u64 {
        evictor.tasks.reopen();
        if let Some(Marks { own, copies, room }) = evictor.marks.take() {
            drop(own);
            evictor.marks = OwnPages::open().ok().map(|own| Marks { own, copies, room });
        }
        features(self.config.mode, evictor.marks.is_some())
    }
}
