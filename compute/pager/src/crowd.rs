//! Local memory that calls in progress have pinned, nearly all of it: threads that wait in calls with large buffers are enough.
//!
//! No page can leave then, and others must come in all the same, or nothing would go on: the exception that the limit has.
//! Eviction finds that out by looking at every local page once ([`Reach`]), and counts those that are pinned. While they leave
//! less than [`FEWEST`] pages, the others have room for a batch beside them. They leave by half of it at once, so that one look
//! is for many faults; and what an instruction or a call uses together stays together, where with room for one page two that are
//! copied to one another would push each other out for ever.
//!
//! *The count is never more than the pages that are pinned,* or the limit would be exceeded for nothing. Who takes a page's last
//! pin back subtracts it, if the pages are counted; who pins one adds nothing: the next look does.
//!
//! ```text
//!  look                              unpin
//!  1 pinned = 0, counted = true      a word: one pin less
//!  2 words: pinned?                  b counted? then pinned -= 1
//!  3 pinned += those seen pinned
//! ```
//!
//! A look that sees at 2 a page pinned whose last pin goes at a comes before that a; 1 came before 2 and so b sees `counted`
//! (all SeqCst), and subtracts behind 1: the page is not in the sum, whether 3 is done or not. One that sees the page unpinned may
//! find it subtracted all the same: the count is too small by it, which is only another look. Looks are made with the evictor's
//! lock held, one at a time; what is subtracted behind the end of one makes the next's sum too small, or is overwritten by its 1.
//!
//! A count of its own, kept where pages are pinned, would be a word that every call on every CPU writes.

use crate::Pager;
use crate::word::Word;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// What pins must leave to the others, pages, or these have room beside them. An instruction that gathers words from far memory
/// uses up to 32 at once, each half of one; its stack comes to that.
const FEWEST: u64 = 34;
/// The least room beside the pins, pages.
const LEAST_ROOM: u64 = 2 * FEWEST;

/// How far a batch looks for pages that can leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// As many as are to leave are asked of the policy, once.
    Named,
    /// On, until some can leave or the policy knows no more.
    Found,
    /// At all that it knows.
    All,
}

/// What the pins of calls leave of local memory.
pub(crate) struct Crowd {
    /// Pinned pages, at least, while they are counted. Below zero in a look.
    pinned: AtomicI64,
    counted: AtomicBool,
    /// Pages that the tracker has taken for good.
    kept: AtomicU64,
}

impl Crowd {
    /// Nothing is pinned.
    pub const fn new() -> Crowd {
        Crowd { pinned: AtomicI64::new(0), counted: AtomicBool::new(false), kept: AtomicU64::new(0) }
    }

    /// See [`Pager::reserve_kept`].
    pub fn keep(&self, pages: u64) {
        self.kept.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages that cannot leave.
    fn taken(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed).max(0) as u64 + self.kept.load(Ordering::Relaxed)
    }

    /// Step 1 of a look. The evictor's lock is held.
    pub fn begin(&self) {
        self.pinned.store(0, Ordering::SeqCst);
        self.counted.store(true, Ordering::SeqCst);
    }

    /// Step 3. `None`: it was not at all pages.
    pub fn end(&self, pinned: Option<u64>, limit: u64) {
        self.pinned.fetch_add(pinned.unwrap_or(0) as i64, Ordering::SeqCst);
        if self.taken() + FEWEST <= limit {
            self.forget();
        }
    }

    /// Nothing is counted any more; or, in a forked child, nothing is pinned.
    pub fn forget(&self) {
        self.counted.store(false, Ordering::SeqCst);
        self.pinned.store(0, Ordering::SeqCst);
    }

    /// A page's last pin is gone.
    #[inline]
    fn unpinned(&self) {
        if self.counted.load(Ordering::SeqCst) {
            self.pinned.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Pager {
    /// Whether pins leave next to nothing.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd.counted.load(Ordering::Relaxed) && self.crowd.taken() + FEWEST > self.limit()
    }

    /// The most pages that may be resident now.
    pub(crate) fn most_resident(&self) -> u64 {
        if self.is_crowded() { self.limit().max(self.crowd.taken() + self.room_beside()) } else { self.limit() }
    }

    /// Room beside pins that leave none.
    pub(crate) fn room_beside(&self) -> u64 {
        LEAST_ROOM.max(self.batch_of_many as u64)
    }

    /// Somebody's pin of a page is gone, whose word was `seen`.
    #[inline]
    pub(crate) fn lost_pin(&self, seen: Word) {
        if seen.pins() == 1 {
            self.crowd.unpinned();
        }
    }

    /// A page is gone from under its pins.
    pub(crate) fn lost_pins(&self) {
        self.crowd.unpinned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_unpinned_in_or_after_a_look_is_not_counted() {
        let crowd = Crowd::new();
        crowd.unpinned();
        assert_eq!(crowd.taken(), 0, "nobody counts");
        crowd.begin();
        crowd.unpinned();
        assert_eq!(crowd.taken(), 0);
        crowd.end(Some(100), 100);
        assert_eq!(crowd.taken(), 99);
        crowd.unpinned();
        crowd.keep(2);
        assert_eq!(crowd.taken(), 100);
        crowd.begin();
        crowd.end(None, 100);
        assert_eq!((crowd.taken(), crowd.counted.load(Ordering::Relaxed)), (2, false));
        crowd.begin();
        crowd.end(Some(98 - FEWEST), 100);
        assert!(!crowd.counted.load(Ordering::Relaxed), "pins leave enough");
    }
}
