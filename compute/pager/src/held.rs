//! Held: dirty pages leave by reference where protecting them is dear. Their mapping goes first, by the batch's one flush, and they are
//! read then, from a pipe ([`farmem_sys::hold`]): no call for each page, which interrupts every CPU that the program runs on, 3 to 15 µs.
//!
//! ```text
//!  dirty, Leaving ─► make_own, if need be ─► take ─► all of the batch dropped ─► next, page by page ─► slot, or ring
//!                    (shared memory: a copy)    └──── writes go to what is held ────┘
//! ```
//!
//! *Why no write is lost.* Until the drop's flush writes go to the page's memory, to which the pipe has a reference; then they fault, find the page
//! Leaving, and wait. What is read is read after the flush. This holds for memory that is the mapping's alone from before `take` to the drop:
//!
//! | it could be shared with | and is not, because |
//! |---|---|
//! | a forked child | forks wait until nobody is in the pager ([`crate::fork`]); what an earlier one has left is made own first |
//! | pages of the same content (KSM) | advice to merge is not passed on, and where the process may be merged as a whole pages are protected |
//! | swap, while it is written there | the kernel does not begin to write what others refer to; before, pages are made own. What has taken long since then (as long as a page takes to become old) is protected |
//!
//! What cannot be made own (the program may not write there) or referred to, the batch's pages are protected for, as before.

use crate::Pager;
use crate::ending::broken;
use crate::evict::{BATCH, Evictor, neighbours};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::clock;
use farmem_sys::hold::{Hold, make_own, may_be_merged, may_be_swapped};
use farmem_sys::raw::is_away;
use std::sync::atomic::Ordering;

/// Pages that are read by one call: as many as stay in the CPU's first cache until they are copied or compared.
const PIECE: usize = 4;
/// From making pages own to having references takes some 50 µs. A page that was written to at the beginning of as much as this is not
/// old for the kernel at its end, and not on its way to swap.
const LONG_NS: u64 = 1_000_000;

/// What is held of a batch.
pub(crate) struct Held {
    pipe: Option<Hold>,
    /// For [`PIECE`] pages; null if there is none yet.
    piece: *mut u8,
    /// Pages that are in the pipe.
    left: usize,
    /// Pages of the piece: read from the pipe, and given out.
    read: usize,
    given: usize,
}

// SAFETY: the piece is this value's alone.
unsafe impl Send for Held {}

impl Held {
    /// Nothing, and no pipe yet.
    pub const fn new() -> Held {
        Held { pipe: None, piece: std::ptr::null_mut(), left: 0, read: 0, given: 0 }
    }

    /// Whether so many pages can be held at once.
    fn has_room(&mut self, pages: usize) -> bool {
        if self.piece.is_null() {
            match farmem_sys::holdings::reserve(PIECE * PAGE_BYTES) {
                Ok(piece) => self.piece = piece,
                Err(_) => return false,
            }
        }
        // What a vfork child opens is nothing in its parent.
        if self.pipe.is_none() && !is_away() {
            self.pipe = Hold::open(BATCH).ok();
        }
        self.pipe.as_ref().is_some_and(|pipe| pipe.room() >= pages)
    }

    /// Holds all `pages` of these ranges, or none. Before: [`Held::has_room`].
    fn take(&mut self, ranges: &[libc::iovec], pages: usize) -> bool {
        // SAFETY: the piece is a page of ours, and more.
        let taken = self.pipe.as_ref().is_some_and(|pipe| unsafe { pipe.take(ranges, self.piece) });
        (self.left, self.read, self.given) = (if taken { pages } else { 0 }, 0, 0);
        taken
    }

    /// The next page that is held; it stays until this is called again.
    pub fn next(&mut self) -> *const u8 {
        if self.given == self.read {
            let pages = self.left.min(PIECE);
            // SAFETY: the piece has room.
            let read = self.pipe.as_ref().map(|pipe| unsafe { pipe.read(self.piece, pages) });
            match read {
                Some(Ok(())) if pages > 0 => {}
                _ => broken(&format!("pages that are held cannot be read: {read:?}")),
            }
            (self.left, self.read, self.given) = (self.left - pages, pages, 0);
        }
        self.given += 1;
        // SAFETY: within the piece.
        unsafe { self.piece.add((self.given - 1) * PAGE_BYTES) }
    }

    /// Of all that is held.
    fn let_go(&mut self) {
        (0..self.left).for_each(|_| {
            self.next();
        });
    }

    /// In a forked child, whose pipe is its parent's too.
    pub fn renew_in_child(&mut self) {
        self.pipe.take().into_iter().for_each(Hold::close);
    }
}

impl Pager {
    /// Holds all dirty pages that leave, in their order; or none.
    pub(crate) fn hold_dirty(&self, evictor: &mut Evictor) -> bool {
        if !self.config.hold || may_be_merged() {
            return false;
        }
        let dirty = || evictor.leaving.iter().filter(|l| l.from.dirty());
        let pages = dirty().count();
        if pages == 0 || dirty().any(|l| self.table.may_be_unreadable(l.page)) {
            return false;
        }
        evictor.ranges.clear();
        for together in evictor.leaving.chunk_by(|a, b| neighbours(a, b) && a.from.dirty() == b.from.dirty()) {
            if together[0].from.dirty() {
                let iov_len = together.len() * PAGE_BYTES;
                evictor.ranges.push(libc::iovec { iov_base: together[0].page.addr() as *mut _, iov_len });
            }
        }
        if !evictor.held.has_room(pages) {
            return false;
        }
        let begun = clock::ticks();
        let shared = self.has_forked.load(Ordering::Relaxed) || may_be_swapped();
        // SAFETY: the pages are present, and stay.
        if shared && !unsafe { make_own(evictor.pidfd, &evictor.ranges) } {
            return false;
        }
        if !evictor.held.take(&evictor.ranges, pages) {
            return false;
        }
        if shared && clock::ns(clock::ticks() - begun) > LONG_NS {
            evictor.held.let_go();
            return false;
        }
        self.count(&self.counters.held, pages as u64);
        true
    }
}
