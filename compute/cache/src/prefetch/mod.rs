//! Which pages come along with a fault. One [`Prefetcher`] a thread.
//!
//! ```text
//! fault ─┬─ where a known stream goes on ──► stream: window × 2, prefetch ahead     [`streams`]
//!        ├─ next to recent faults ─────────► new stream
//!        └─ else, into the history ─┬─ a majority step ─► new stream                [`trend`]
//!                                   └─ none: nothing
//! ```
//!
//! *Trip-wires.* A prefetched page is mapped at once, and its use is not seen.
//! So a window leaves the page after its last one unfetched:
//!
//! ```text
//! fault  p     p+1 … p+w        p+w+1
//!        │     └─ window ─┘     trip-wire: a fault here means the window was used,
//!        demand                 and is the moment to fetch the next, twice as long
//! ```
//!
//! A window whose wire is never touched is presumed wasted, and one whose pages fault themselves
//! (they were evicted, or there was no room) is lost: the stream starts again with half. Waste
//! lowers the thread's *trust*. With less trust a new stream needs more evidence, so random access
//! costs next to nothing.

mod first_touch;
mod streams;
mod trend;

pub use first_touch::BLOCK as FIRST_TOUCH_BLOCK;
pub use first_touch::{Batch, FirstTouch};

use farmem_protocol::addr::PageId;
use streams::{MOST_SLACK, Streams};
use trend::History;

/// Pages of a window at most: with the demand page 64, which is what the pager installs at once.
pub const LONGEST: u32 = 63;
/// Pages of a new stream's first window.
const FIRST: u32 = 2;

/// Pages worth fetching with a fault, nearest first.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    after: PageId,
    stride: i64,
    pages: u32,
}

impl Window {
    /// An empty one.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Window {
        Window { after: PageId(0), stride: 1, pages: 0 }
    }

    /// Its pages, nearest to the fault first.
    pub fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        let Window { after, stride, pages } = *self;
        (1..=pages as i64).map(move |i| PageId(after.0.wrapping_add_signed(stride * i)))
    }

    /// How many pages.
    pub fn len(&self) -> usize {
        self.pages as usize
    }

    /// Whether there is nothing to fetch.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// The page left unfetched, whose fault says that the window was used.
    #[cfg(test)]
    fn trip_wire(&self) -> Option<PageId> {
        (self.pages > 0).then(|| PageId(self.after.0.wrapping_add_signed(self.stride * (self.pages as i64 + 1))))
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.pages = 0;
    }

    /// Sets the window behind `after`, shortened where it would leave the address space.
    fn set(&mut self, after: PageId, stride: i64, pages: u32) {
        let room = if stride < 0 { after.0 } else { MAX_PAGE.saturating_sub(after.0) } / stride.unsigned_abs();
        // One step of room is the trip-wire's.
        *self = Window { after, stride, pages: pages.min(room.saturating_sub(1).min(LONGEST as u64) as u32) };
    }
}

const MAX_PAGE: u64 = farmem_protocol::addr::FAR_PAGES as u64 - 1;

/// The longest window that a local memory of `pages` bears. Its pages must not be evicted before
/// they are used, nor push out more than the guess is worth (`docs/design/cache.md`, *Prefetch*).
pub fn longest_for(pages: u64) -> u32 {
    (pages / 32).min(LONGEST as u64) as u32
}

/// The outcome of a thread's windows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Faults seen.
    pub faults: u64,
    /// Windows named.
    pub windows: u64,
    /// Pages fetched by them.
    pub issued: u64,
    /// … by windows whose trip-wire was touched.
    pub used: u64,
    /// … by windows given up.
    pub wasted: u64,
}

impl Tally {
    /// Adds another thread's.
    pub fn add(&mut self, other: Tally) {
        self.faults += other.faults;
        self.windows += other.windows;
        self.issued += other.issued;
        self.used += other.used;
        self.wasted += other.wasted;
    }
}

/// Follows a thread's faults.
pub struct Prefetcher {
    streams: Streams,
    history: History,
    trust: Trust,
    longest: u32,
    tally: Tally,
}

impl Prefetcher {
    /// Knows nothing yet; windows up to [`LONGEST`].
    #[allow(clippy::new_without_default)]
    pub fn new() -> Prefetcher {
        Prefetcher::with_longest(LONGEST)
    }

    /// With windows of at most `longest` pages, for a small local memory: a window's pages must not
    /// be evicted before they are used.
    pub fn with_longest(longest: u32) -> Prefetcher {
        Prefetcher {
            streams: Streams::new(),
            history: History::new(),
            trust: Trust::new(),
            longest: longest.min(LONGEST),
            tally: Tally::default(),
        }
    }

    /// The thread faulted on a page that is not local. Fills `window`, maybe with nothing. `local`
    /// says which pages are.
    pub fn fault(&mut self, page: PageId, window: &mut Window, local: impl Fn(PageId) -> bool) {
        window.clear();
        self.tally.faults += 1;
        if let Some(next) = self.streams.follow(page, self.trust.longest().min(self.longest), self.trust.slack(), local)
        {
            if next.lost {
                self.waste(next.fetched);
            } else {
                self.tally.used += next.fetched as u64;
                self.trust.more(next.fetched);
            }
            self.issue(next.slot, page, next.stride, next.pages, window);
            return;
        }
        let stride = self.history.adjacent(page, self.trust.steps()).or_else(|| self.history.trend(page));
        self.history.push(page);
        if let Some(stride) = stride
            && self.longest > 0
        {
            let (slot, replaced) = self.streams.open(page, stride);
            self.waste(replaced);
            self.issue(slot, page, stride, FIRST.min(self.longest), window);
        }
    }

    /// [`Prefetcher::fault`] where the program has said that it uses pages in ascending order: the
    /// longest window at once, however earlier ones did.
    pub fn fault_in_order(&mut self, page: PageId, window: &mut Window, local: impl Fn(PageId) -> bool) {
        window.clear();
        self.tally.faults += 1;
        if self.longest == 0 {
            return;
        }
        let next = self.streams.follow(page, self.longest, MOST_SLACK, local).filter(|next| next.stride == 1);
        let slot = match next {
            Some(next) => {
                *if next.lost { &mut self.tally.wasted } else { &mut self.tally.used } += next.fetched as u64;
                next.slot
            }
            None => {
                let (slot, replaced) = self.streams.open(page, 1);
                self.waste(replaced);
                slot
            }
        };
        self.issue(slot, page, 1, self.longest, window);
    }

    /// Pages of the last window that were not fetched after all, from `from` on (no room): the
    /// stream expects its next fault there.
    pub fn shortened(&mut self, window: &mut Window, from: usize) {
        let cut = window.pages.saturating_sub(from as u32);
        window.pages -= cut;
        self.streams.shorten_latest(window.pages);
    }

    /// Only `pages` pages of the last window are being fetched; the others are local already, or do
    /// not exist. Call it before the next fault: only fetched pages can have been useful or wasted.
    pub fn fetched(&mut self, pages: u32) {
        self.tally.issued += pages as u64;
        self.streams.fetched_latest(pages);
    }

    fn waste(&mut self, pages: u32) {
        self.tally.wasted += pages as u64;
        if pages > 0 {
            self.trust.less();
        }
    }

    /// The windows so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn issue(&mut self, slot: usize, page: PageId, stride: i64, pages: u32, window: &mut Window) {
        window.set(page, stride, pages);
        self.streams.issued(slot, page, window.pages);
        self.tally.windows += (window.pages > 0) as u64;
    }
}

/// How far the thread's windows are worth their cost: 0–15, like a branch predictor's counter.
struct Trust(u8);

impl Trust {
    fn new() -> Trust {
        Trust(8)
    }

    fn more(&mut self, used: u32) {
        self.0 = (self.0 + (used > 0) as u8).min(15);
    }

    fn less(&mut self) {
        self.0 = self.0.saturating_sub(2);
    }

    /// Pages of a window at most: without trust, a match may well be chance.
    fn longest(&self) -> u32 {
        if self.0 < 3 { 4 } else { LONGEST }
    }

    /// Steps behind a trip-wire that still count as touching it.
    fn slack(&self) -> i64 {
        if self.0 < 3 { 0 } else { MOST_SLACK }
    }

    /// Equal steps that make a stream.
    fn steps(&self) -> u32 {
        match self.0 {
            8.. => 1,
            3.. => 2,
            _ => 3,
        }
    }
}

#[cfg(test)]
mod tests;
