//! Held: dirty pages that leave by reference, where protecting them is expensive.
//!
//! Their mapping goes first, by the batch's one flush. Then they are read from a pipe
//! ([`farmem_sys::hold`]). That spares a call for each page, which takes 3 to 15 µs because it
//! interrupts every CPU that the program runs on.
//!
//! ```text
//!  dirty, Leaving ─► make_own, if need be ─► take ─► the batch is dropped ─► next, page by page ─► slot, or ring
//!                    (shared memory: a copy)    └─ writes go to what is held ─┘
//! ```
//!
//! *Why no write is lost.* Until the flush of the drop, writes go to the page's memory, to which
//! the pipe has a reference. After it they fault, find the page Leaving, and wait. The page is read
//! after the flush. This holds if the memory is the mapping's alone from before `take` to the drop:
//!
//! | it could be shared with | and is not, because |
//! |---|---|
//! | a forked child | Forks wait until no thread is in the pager ([`crate::house::fork`]). What an earlier fork has left shared is made own first. |
//! | pages of the same content (KSM) | Advice to merge is not passed on. Where the whole process may be merged, pages are protected. |
//! | swap, while it is written there | The kernel does not begin to write out what others refer to. Making pages own ends what it has begun, so pages are referred to from before that on. If this takes long (as long as a page takes to become old), pages are protected. |
//! | the kernel's one page of zeros | Pages come in by `UFFDIO_COPY`, which makes one for each. They are never parts of huge pages, whose zeros may become that page. |
//!
//! Pages that cannot be made own (the program may not write there) or referred to are protected
//! ([`super::settle`]). So are all pages where a trial shows that writes do not go to what is held
//! (kernels before 5.19). Before Linux 6.13 pages are made own, and dropped, by a call for each
//! range.

#![allow(unsafe_code)] // Pipes that hold pages.

use crate::ending::broken;
use crate::page::{Bytes, Frames};
use farmem_sys::hold::Hold;
use farmem_sys::raw::is_away;

/// Pages that are read by one call: as many as stay in the CPU's first cache until they are copied
/// or compared.
pub(crate) const PIECE: usize = 4;

/// A batch's held pages.
pub(crate) struct Held {
    /// The most pages of a batch.
    most: usize,
    pipe: Option<Hold>,
    /// Another pipe, where there is swap.
    guard: Option<Hold>,
    /// [`PIECE`] pages, if there was memory for them.
    piece: Option<Frames>,
    /// Whether pages can be held by this kernel, once it was tried.
    can: Option<bool>,
    /// The system has swap, or had: pages that came back from there may still be shared with it.
    pub swap: bool,
    /// Pages that are in the pipe.
    left: usize,
    /// Pages of the piece that were read from the pipe.
    read: usize,
    /// Pages of the piece that were given out.
    given: usize,
}

impl Held {
    /// Nothing is held, and there is no pipe yet. For batches of at most `most` pages.
    pub fn new(most: usize) -> Held {
        let piece = Frames::reserve(PIECE).ok();
        Held { most, pipe: None, guard: None, piece, can: None, swap: false, left: 0, read: 0, given: 0 }
    }

    /// How many pages can be held at once. None where the kernel is too old.
    pub fn room(&mut self) -> usize {
        let Some(piece) = &self.piece else { return 0 };
        // A descriptor that a vfork child opens means nothing in its parent.
        if self.can != Some(false) && self.pipe.is_none() && !is_away() {
            self.pipe = Hold::open(self.most).ok();
        }
        let Some(pipe) = &self.pipe else { return 0 };
        // SAFETY: the piece is ours, and nothing is held: a pipe that could not be tried is closed.
        self.can = self.can.or_else(|| unsafe { pipe.follows_writes(piece.at(0)) });
        if self.can == Some(true) {
            return pipe.room();
        }
        self.pipe.take().into_iter().for_each(Hold::close);
        0
    }

    /// Refers to all pages of these ranges by a pipe, or to none. Whether it does.
    fn refer(&self, pipe: Option<&Hold>, ranges: &[libc::iovec]) -> bool {
        // SAFETY: the piece is ours, and more than a page.
        pipe.zip(self.piece.as_ref()).is_some_and(|(pipe, piece)| unsafe { pipe.take(ranges, piece.at(0)) })
    }

    /// Refers to all pages of these ranges, which are about to be made own, until
    /// [`Held::unguard`]. Whether it does. (The pipe stays. A new one for each batch would now and
    /// then have the number that the program expects of a descriptor of its own.)
    pub fn guard(&mut self, ranges: &[libc::iovec]) -> bool {
        if self.guard.is_none() && !is_away() {
            self.guard = Hold::open(self.most).ok();
        }
        self.refer(self.guard.as_ref(), ranges)
    }

    /// Ends what [`Held::guard`] began.
    pub fn unguard(&self) {
        if let Some((guard, piece)) = self.guard.as_ref().zip(self.piece.as_ref()) {
            // SAFETY: the piece has room, and nothing has been read of what is held.
            unsafe { guard.let_go(piece.at(0), PIECE) };
        }
    }

    /// Holds all `pages` of these ranges, for which there is room, or none. Whether it does.
    pub fn take(&mut self, ranges: &[libc::iovec], pages: usize) -> bool {
        let taken = self.refer(self.pipe.as_ref(), ranges);
        (self.left, self.read, self.given) = (if taken { pages } else { 0 }, 0, 0);
        taken
    }

    /// Whether [`Held::next`] will read a piece from the pipe.
    pub fn reads_next(&self) -> bool {
        self.given == self.read
    }

    /// The next held page. Its bytes stay until this is called again.
    pub fn next(&mut self) -> Bytes<'static> {
        let Some((pipe, piece)) = self.pipe.as_ref().zip(self.piece.as_ref()) else {
            broken("a page is held and there is no pipe")
        };
        if self.reads_next() {
            let pages = self.left.min(PIECE);
            // SAFETY: the piece has room.
            let read = unsafe { pipe.read(piece.at(0), pages) };
            match read {
                Ok(()) if pages > 0 => {}
                _ => broken(&format!("pages that are held cannot be read: {read:?}")),
            }
            (self.left, self.read, self.given) = (self.left - pages, pages, 0);
        }
        self.given += 1;
        piece.page(self.given - 1)
    }

    /// Lets go of all that is held.
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
