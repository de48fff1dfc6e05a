//! What more local memory would save: objects that come back soon after they have left. Pure.
//!
//! Some homes are watched. When the object of one leaves, a record says how many bytes had left
//! before. When it comes back, the difference is how much more memory would have kept it.

use crate::homes::Home;
use std::time::Duration;

/// There is a record for each so many bytes of the depth, …
const RECORDED: u64 = 256;
/// … but from so many to so many.
const RECORDS: (u64, u64) = (1 << 10, 1 << 16);
/// Bytes of a small object: watched ones of this size fill a quarter of the records.
const SMALL: u64 = 64;
/// One fetch in this many is timed.
const TIMED: u64 = 16;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages' worth of misses between two reports.
const REPORT: u64 = 16;

/// Misses for a report: pages, and in ns what they cost and what a little more memory would have
/// saved.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Missed {
    pub pages: u64,
    pub cost: u64,
    pub saved: u64,
}

/// The record of a heap that has a share of its run's local memory.
pub struct Returns {
    /// A home, and the bytes that had left before its object did. A home has one place, and the last
    /// to leave has it.
    records: Vec<(u64, u64)>,
    /// One home in this many is watched.
    sample: u64,
    gone: u64,
    /// Bytes within which a return is soon.
    depth: u64,
    /// Since the last report: objects and bytes that came, and watched objects that came soon.
    came: u64,
    bytes: u64,
    soon: u64,
    /// What a fetch takes, ns.
    each: u64,
    fetches: u64,
}

impl Returns {
    /// `depth`: bytes of local memory within which a return is soon.
    pub fn new(depth: u64) -> Returns {
        let records = (depth / RECORDED).clamp(RECORDS.0, RECORDS.1);
        let sample = (depth / SMALL / (records / 4)).max(1);
        Returns {
            records: vec![(0, 0); records as usize],
            sample,
            gone: 0,
            depth,
            came: 0,
            bytes: 0,
            soon: 0,
            each: 0,
            fetches: 0,
        }
    }

    fn place(&self, home: Home) -> Option<usize> {
        let hash = home.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 24;
        hash.is_multiple_of(self.sample).then_some((hash / self.sample) as usize % self.records.len())
    }

    /// An object leaves, and so many bytes are free for others.
    pub fn left(&mut self, home: Home, bytes: usize) {
        if let Some(place) = self.place(home) {
            self.records[place] = (home.0, self.gone);
        }
        self.gone += bytes as u64;
    }

    /// An object is fetched.
    pub fn came(&mut self, home: Home, bytes: usize) {
        (self.came, self.bytes) = (self.came + 1, self.bytes + bytes as u64);
        if let Some(place) = self.place(home)
            && self.records[place].0 == home.0
        {
            self.soon += u64::from(self.gone - self.records[place].1 < self.depth);
            self.records[place] = (0, 0);
        }
    }

    /// Whether the next fetch is to be timed.
    pub fn times(&mut self) -> bool {
        self.fetches += 1;
        self.fetches % TIMED == 1
    }

    /// A fetch of so many objects took this long.
    pub fn took(&mut self, objects: usize, time: Duration) {
        let now = time.as_nanos() as u64 / objects.max(1) as u64;
        // One fetch that was held up does not count for more than four.
        let now = if self.each == 0 { now } else { now.min(4 * self.each) };
        self.each = if self.each == 0 { now } else { (7 * self.each + now) / 8 };
    }

    /// Whether there is enough for a report.
    pub fn is_due(&self) -> bool {
        self.bytes >= REPORT * PAGE
    }

    /// What was missed since the last report.
    pub fn report(&mut self) -> Missed {
        let saved = (self.sample * self.soon).min(self.came);
        let missed = Missed { pages: self.bytes / PAGE, cost: self.came * self.each, saved: saved * self.each };
        (self.came, self.bytes, self.soon) = (0, self.bytes % PAGE, 0);
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects of 64 bytes in a circle, of which `local` bytes are local.
    fn circle(objects: u64, local: u64, depth: u64) -> Missed {
        let mut returns = Returns::new(depth);
        returns.took(1, Duration::from_nanos(500));
        for n in 0..40 * objects {
            returns.came(Home(1 + n % objects), 64);
            if n >= local / 64 {
                returns.left(Home(1 + (n - local / 64) % objects), 64);
            }
        }
        assert!(returns.is_due());
        returns.report()
    }

    #[test]
    fn returns_within_the_depth_are_what_more_memory_would_save() {
        // Each object comes back when all others have left but those that are local.
        let soon = circle(10_000, 400_000, 300_000);
        assert!(soon.saved > soon.cost * 2 / 3, "{soon:?}");
        assert_eq!((soon.pages, soon.cost), (40 * 10_000 * 64 / 4096, 40 * 10_000 * 500));
        assert_eq!(circle(10_000, 400_000, 200_000).saved, 0);
    }

    #[test]
    fn one_fetch_in_some_is_timed_and_one_that_was_held_up_counts_little() {
        let mut returns = Returns::new(1);
        assert_eq!((0..64).filter(|_| returns.times()).count(), 4);
        returns.took(16, Duration::from_nanos(16_000));
        returns.took(1, Duration::from_secs(1));
        returns.came(Home(1), 5000);
        assert_eq!(returns.report(), Missed { pages: 1, cost: (7 * 1000 + 4000) / 8, saved: 0 });
        assert_eq!(returns.report(), Missed::default());
    }
}
