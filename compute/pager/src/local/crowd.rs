//! Local memory that calls in progress have pinned, when that is nearly all of it. A few threads
//! that wait in calls with large buffers are enough.
//!
//! Then no page can leave, and others must still come in, or nothing would go on. This is the one
//! exception to the limit. Eviction finds it by looking at every local page once ([`Reach`]) and
//! counting the pinned ones. While pins leave less than [`FEWEST`] pages, the other pages have room
//! for a batch beside the pins. They leave by half of that at a time: one look then serves many
//! faults, and pages that one instruction or call uses together stay together. With room for a
//! single page, two pages that are copied to one another would push each other out for ever.
//!
//! *The count never exceeds the pinned pages*, or the limit would be exceeded for nothing. A thread
//! that takes a page's last pin back subtracts it while pages are counted. A thread that pins a
//! page adds nothing: the next look does.
//!
//! ```text
//!  look                              unpin
//!  1 pinned = 0, counted = true      a word: one pin less
//!  2 words: pinned?                  b counted? then pinned -= 1
//!  3 pinned += those seen pinned
//! ```
//!
//! All steps are SeqCst. Suppose step 2 sees a page pinned whose last pin goes at a. Then 2 comes
//! before a, and 1 before 2, so b sees `counted` and subtracts after 1. The page is not in the sum,
//! whether or not 3 is done. If step 2 sees the page unpinned, b may subtract it all the same. The
//! count is then too small by one, which costs another look. Looks are made under the evictor's
//! lock, one at a time. A subtraction after the end of a look makes the next sum too small, or is
//! overwritten by the next step 1.
//!
//! A count kept where pages are pinned was rejected: every call on every CPU would write that word.
//!
//! *Claims.* A long call claims pages before it pins them, and objects are promised pages before they
//! take them. Each side adds its own number first, then looks at the other's (SeqCst). So at least one
//! of two sees the other, and goes back. Together they are not more than the limit.

use super::Local;
use crate::word::Word;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The fewest pages that pins must leave to others. If they leave less, others have room beside
/// them. An instruction that gathers words from far memory uses up to 32 pages at once, and two of
/// stack.
const FEWEST: u64 = 34;
/// Long calls may together pin one part in this many of local memory. The rest is for faults
/// meanwhile.
const PINNED_PART: u64 = 2;
/// The least room beside the pins, pages.
const LEAST_ROOM: u64 = 2 * FEWEST;

/// How far a batch looks for pages that can leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The policy is asked once, for as many pages as are to leave.
    Named,
    /// The policy is asked until some page can leave, or it knows no more.
    Found,
    /// The policy is asked for all the pages that it knows.
    All,
}

/// Counts pinned pages while they leave next to nothing of local memory.
pub(crate) struct Crowd {
    /// A lower bound of the pinned pages, while they are counted. Below zero during a look.
    pinned: AtomicI64,
    counted: AtomicBool,
    /// Pages that the tracker has taken for good, and those of objects.
    kept: AtomicU64,
    /// Pages that objects are promised, and that are not kept yet.
    promised: AtomicU64,
    /// Pages that long calls have claimed for pins.
    claimed: AtomicU64,
}

impl Crowd {
    /// Nothing is pinned.
    pub const fn new() -> Crowd {
        let [kept, promised, claimed] = [const { AtomicU64::new(0) }; 3];
        Crowd { pinned: AtomicI64::new(0), counted: AtomicBool::new(false), kept, promised, claimed }
    }

    /// See [`Local::keep`].
    pub fn keep(&self, pages: u64) {
        self.kept.fetch_add(pages, Ordering::SeqCst);
    }

    /// Pages that were kept are free again.
    pub fn unkeep(&self, pages: u64) {
        self.kept.fetch_sub(pages, Ordering::Relaxed);
    }

    /// The most pages that long calls may claim together.
    pub fn most_pins(&self, limit: u64) -> u64 {
        // In this order: a promise is over after its pages are kept.
        let promised = self.promised.load(Ordering::SeqCst);
        let kept = self.kept.load(Ordering::SeqCst) + promised;
        (limit / PINNED_PART).min(limit.saturating_sub(kept + FEWEST))
    }

    /// Claims pages for the pins of a long call. False if too many are claimed.
    pub fn claim(&self, pages: u64, limit: u64) -> bool {
        let claim = |claimed: u64| (claimed + pages <= self.most_pins(limit)).then_some(claimed + pages);
        if self.claimed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_err() {
            return false;
        }
        // A promise that did not see this claim is seen now.
        let is_sound = self.claimed.load(Ordering::SeqCst) <= self.most_pins(limit);
        if !is_sound {
            self.unclaim(pages);
        }
        is_sound
    }

    /// Pages that were claimed are not pinned any more.
    pub fn unclaim(&self, pages: u64) {
        let less = |claimed: u64| claimed.checked_sub(pages);
        let _ = self.claimed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Promises pages to objects, which will have `after` then. False if these and claimed pages are
    /// more than `limit`. [`Crowd::keep`] and [`Crowd::kept_promise`] follow.
    pub fn promise(&self, pages: u64, after: u64, limit: u64) -> bool {
        self.promised.fetch_add(pages, Ordering::SeqCst);
        // A claim that did not see this promise is seen now.
        let is_sound = after + self.claimed.load(Ordering::SeqCst) <= limit;
        if !is_sound {
            self.kept_promise(pages);
        }
        is_sound
    }

    /// Pages that were promised are kept now, or will not be.
    pub fn kept_promise(&self, pages: u64) {
        self.promised.fetch_sub(pages, Ordering::SeqCst);
    }

    /// In a forked child: the threads that claimed or pinned pages, or took them for objects, do not
    /// exist.
    pub fn forget_threads(&self) {
        self.claimed.store(0, Ordering::SeqCst);
        self.promised.store(0, Ordering::SeqCst);
        self.forget();
    }

    /// Pages that cannot leave.
    fn taken(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed).max(0) as u64 + self.kept.load(Ordering::Relaxed)
    }

    /// Step 1 of a look. The caller holds the evictor's lock.
    pub fn begin(&self) {
        self.pinned.store(0, Ordering::SeqCst);
        self.counted.store(true, Ordering::SeqCst);
    }

    /// Step 3. `None`: the look did not reach all pages.
    pub fn end(&self, pinned: Option<u64>, limit: u64) {
        self.pinned.fetch_add(pinned.unwrap_or(0) as i64, Ordering::SeqCst);
        if self.taken() + FEWEST <= limit {
            self.forget();
        }
    }

    /// Counts no more.
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

impl Local {
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
        LEAST_ROOM.max(self.sizes.batch_of_many as u64)
    }

    /// A pin of a page is gone. The page's word was `seen` before.
    #[inline]
    pub(crate) fn lost_pin(&self, seen: Word) {
        if seen.pins() == 1 {
            self.crowd.unpinned();
        }
    }

    /// A page with pins was taken away.
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
        assert_eq!(crowd.taken(), 0, "pages are not counted");
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

    #[test]
    fn claims_and_what_objects_have_are_not_more_than_the_limit() {
        let crowd = Crowd::new();
        assert!(crowd.claim(500, 1000) && !crowd.claim(1, 1000), "half");
        assert!(crowd.promise(500, 500, 1000) && !crowd.promise(1, 501, 1000));
        crowd.keep(500);
        crowd.kept_promise(500);
        crowd.unclaim(500);
        assert_eq!(crowd.most_pins(1000), 500 - FEWEST);
        assert!(crowd.promise(250, 750, 1000) && !crowd.claim(251 - FEWEST, 1000), "promised counts as kept");
        crowd.keep(250);
        crowd.kept_promise(250);
        assert!(!crowd.claim(251 - FEWEST, 1000) && crowd.claim(250 - FEWEST, 1000));
        crowd.unkeep(750);
        assert!(crowd.claim(250 + FEWEST, 1000) && !crowd.claim(1, 1000));
        crowd.forget_threads();
        assert!(crowd.claim(500, 1000));
        assert_eq!(crowd.most_pins(FEWEST), 0);
    }
}
