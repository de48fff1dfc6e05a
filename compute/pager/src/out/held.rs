//! Held: pages that may be written to leave by reference where protecting them is dear. Their mapping goes first, by the batch's one flush, and they are
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
//! | a forked child | forks wait until nobody is in the pager ([`crate::house::fork`]); what an earlier one has left is made own first |
//! | pages of the same content (KSM) | advice to merge is not passed on, and where the process may be merged as a whole pages are protected |
//! | swap, while it is written there | the kernel does not begin to write what others refer to, and what it has begun is ended by making pages own; so they are referred to from before that on. What has taken long (as long as a page takes to become old) is protected |
//! | the kernel's one page of zeros | pages come in by `UFFDIO_COPY`, which makes one for each, and are never parts of huge ones, whose zeros it may become |
//!
//! What cannot be made own (the program may not write there) or referred to is protected
//! ([`crate::out::settle`]), as are all pages where a trial shows that writes do not go to what is held
//! (kernels before 5.19). Before 6.13 pages are made own, and dropped, by a call for each range.

use crate::ending::broken;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::hold::Hold;
use farmem_sys::raw::is_away;

/// Pages that are read by one call: as many as stay in the CPU's first cache until they are copied or compared.
pub(crate) const PIECE: usize = 4;

/// What is held of a batch.
pub(crate) struct Held {
    /// Pages of a batch, at most.
    most: usize,
    pipe: Option<Hold>,
    /// Where there is swap: another.
    guard: Option<Hold>,
    /// For [`PIECE`] pages; null if there was no memory for it.
    piece: *mut u8,
    /// Whether the kernel is one on which pages can be held, once it was tried.
    can: Option<bool>,
    /// The system has swap, or had: what came back from there may still be shared with it.
    pub swap: bool,
    /// Pages that are in the pipe.
    left: usize,
    /// Pages of the piece: read from the pipe, and given out.
    read: usize,
    given: usize,
}

// SAFETY: the piece is this value's alone.
unsafe impl Send for Held {}

impl Held {
    /// Nothing, of batches of at most so many pages, and no pipe yet.
    pub fn new(most: usize) -> Held {
        Held {
            most,
            pipe: None,
            guard: None,
            piece: farmem_sys::holdings::reserve(PIECE * PAGE_BYTES).unwrap_or(std::ptr::null_mut()),
            can: None,
            swap: false,
            left: 0,
            read: 0,
            given: 0,
        }
    }

    /// How many pages can be held at once; none where the kernel is too old.
    pub fn room(&mut self) -> usize {
        if self.piece.is_null() {
            return 0;
        }
        // What a vfork child opens is nothing in its parent.
        if self.can != Some(false) && self.pipe.is_none() && !is_away() {
            self.pipe = Hold::open(self.most).ok();
        }
        let Some(pipe) = &self.pipe else { return 0 };
        // SAFETY: the piece is ours, and nothing is held: where it could not be tried the pipe is closed.
        self.can = self.can.or_else(|| unsafe { pipe.follows_writes(self.piece) });
        if self.can == Some(true) {
            return pipe.room();
        }
        self.pipe.take().into_iter().for_each(Hold::close);
        0
    }

    /// Refers to all pages of these ranges, which are about to be made own, until [`Held::unguard`]; whether it does. (A pipe that stays: one
    /// for each batch would now and then have the number that the program expects of a descriptor of its own.)
    pub fn guard(&mut self, ranges: &[libc::iovec]) -> bool {
        if self.guard.is_none() && !is_away() {
            self.guard = Hold::open(self.most).ok();
        }
        // SAFETY: the piece is a page of ours, and more.
        self.guard.as_ref().is_some_and(|guard| unsafe { guard.take(ranges, self.piece) })
    }

    pub fn unguard(&self) {
        // SAFETY: the piece has room, and nothing has been read of what is held.
        self.guard.iter().for_each(|guard| unsafe { guard.let_go(self.piece, PIECE) });
    }

    /// Holds all `pages` of these ranges, for which there is room, or none.
    pub fn take(&mut self, ranges: &[libc::iovec], pages: usize) -> bool {
        // SAFETY: the piece is a page of ours, and more.
        let taken = self.pipe.as_ref().is_some_and(|pipe| unsafe { pipe.take(ranges, self.piece) });
        (self.left, self.read, self.given) = (if taken { pages } else { 0 }, 0, 0);
        taken
    }

    /// Whether [`Held::next`] is to read a piece from the pipe.
    pub fn reads_next(&self) -> bool {
        self.given == self.read
    }

    /// The next page that is held; it stays until this is called again.
    pub fn next(&mut self) -> *const u8 {
        if self.reads_next() {
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
    pub fn let_go(&mut self) {
        (0..self.left).for_each(|_| {
            self.next();
        });
    }

    /// In a forked child, whose pipe is its parent's too.
    pub fn renew_in_child(&mut self) {
        self.pipe.take().into_iter().chain(self.guard.take()).for_each(Hold::close);
    }
}
