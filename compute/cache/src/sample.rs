//! Which pages a program uses, seen on a sample of them: for `farmem size`.
//!
//! A pager sees faults, and a page that stays local has none. So the pages of a sample leave soon
//! after they came, however much room there is. Each of their uses but the quickest repetitions is
//! then a fault, which is recorded. All other pages stay. The recorded uses are replayed with a
//! cache that is smaller by the sample's share of all pages. They tell how many pages the whole
//! program would fetch with how much local memory.
//!
//! ```text
//! page ─► block of 4 pages ─► hash ─┬─ among the first 2^-shift   sampled: a short queue, first in, first out
//!                                   └─ others                     the usual policy
//! ```
//!
//! *Why a hash.* A page is in the sample or not, for good: the uses between two uses of a page are
//! then sampled like all others, so that distances shrink by the same factor as the cache
//! (Waldspurger et al., SHARDS, FAST '15; miniature simulations, ATC '17). *Why blocks.* The pages
//! of a block are neighbours: that a program goes through its memory in order can be seen within a
//! block.
//!
//! *Rate.* It begins at a quarter. It is halved whenever more than [`MOST`] sampled pages are in
//! use, or when their faults take more than half of the time, as long as [`LEAST`] stay. A page
//! that is in the sample at the last rate was in it from the start, so a reader keeps these alone.

use crate::fifo::Fifo;
use crate::{Arrival, Policy};
use farmem_protocol::addr::PageId;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sampled pages that stay local. A use of one of the last `KEPT` is not seen.
pub const KEPT: usize = 16;

/// Sampled pages in use, beyond which the rate is halved.
pub const MOST: u64 = 4096;

/// Sampled pages in use, below which the rate is not halved to save time.
pub const LEAST: u64 = 512;

/// One block of `1 << FIRST` is sampled at first.
const FIRST: u32 = 2;

/// Pages of a block, as a power of two.
pub const BLOCK: u32 = 2;

/// The rate of a sample: one block of 2^shift. Several threads read it, one changes it.
pub struct Rate(AtomicU32);

impl Rate {
    /// The first rate.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Rate {
        Rate(AtomicU32::new(FIRST))
    }

    /// The power of two.
    pub fn shift(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// From now on half as many.
    pub fn halve(&self) {
        self.0.store(self.shift() + 1, Ordering::Relaxed);
    }

    /// Whether a page is in the sample.
    pub fn takes(&self, page: PageId) -> bool {
        is_sampled(page, self.shift())
    }
}

/// Whether one block of 2^shift, that of this page among them, is sampled.
pub fn is_sampled(page: PageId, shift: u32) -> bool {
    // The finalizer of splitmix64: every bit of the result depends on every bit of the block.
    let mut z = page.0 >> BLOCK;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31).leading_zeros() >= shift
}

/// The usual policy, and a short queue of sampled pages, which leave first.
pub struct Sampled {
    rate: &'static Rate,
    sample: Fifo,
    rest: Box<dyn Policy>,
}

impl Sampled {
    /// `rest`: for all pages that are not sampled.
    pub fn new(rate: &'static Rate, rest: Box<dyn Policy>) -> Sampled {
        Sampled { rate, sample: Fifo::new(4 * KEPT), rest }
    }
}

impl Policy for Sampled {
    fn arrived(&mut self, page: PageId, how: Arrival) {
        match self.rate.takes(page) {
            true => self.sample.arrived(page, how),
            false => self.rest.arrived(page, how),
        }
    }

    fn all_arrived(&mut self, pages: &[(PageId, Arrival)]) {
        match pages.iter().any(|&(page, _)| self.rate.takes(page)) {
            true => pages.iter().for_each(|&(page, how)| self.arrived(page, how)),
            false => self.rest.all_arrived(pages),
        }
    }

    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let from = out.len();
        self.sample.victims(n.min(self.overdue()), out);
        self.rest.victims(n - (out.len() - from), out);
        if out.len() == from {
            // There is nothing but the sample.
            self.sample.victims(n, out);
        }
        out[from..].sort_unstable();
    }

    fn upcoming(&self, n: usize, out: &mut Vec<PageId>) {
        self.rest.upcoming(n, out);
    }

    fn kept(&mut self, page: PageId) {
        match self.rate.takes(page) {
            true => self.sample.kept(page),
            false => self.rest.kept(page),
        }
    }

    fn demote(&mut self, page: PageId) {
        self.rest.demote(page);
    }

    fn gone(&mut self, page: PageId) {
        // It may have come when the rate was another.
        self.sample.gone(page);
        self.rest.gone(page);
    }

    fn returned(&self) -> u64 {
        self.rest.returned()
    }

    fn len(&self) -> usize {
        self.sample.len() + self.rest.len()
    }

    fn overdue(&self) -> usize {
        self.sample.len().saturating_sub(KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(shift: u32) -> Vec<u64> {
        (0..1 << 20).filter(|&page| is_sampled(PageId(page), shift)).collect()
    }

    #[test]
    fn a_smaller_sample_is_a_part_of_a_larger_one() {
        for shift in [0, 1, 2, 5] {
            let [larger, smaller] = [shift, shift + 1].map(sampled);
            let expected = (1u64 << 20 >> shift) as f64;
            assert!((larger.len() as f64 / expected - 1.0).abs() < 0.05, "{shift}: {}", larger.len());
            assert!(smaller.iter().all(|page| larger.binary_search(page).is_ok()));
            assert!(larger.chunks(4).all(|block| block[0] % 4 == 0 && block[3] == block[0] + 3), "whole blocks");
        }
    }

    #[test]
    fn sampled_pages_leave_though_there_is_room_and_others_stay() {
        static RATE: Rate = Rate::new();
        let mut policy = Sampled::new(&RATE, crate::recommended(4096));
        let pages = (0..1000).map(PageId);
        pages.clone().for_each(|page| policy.arrived(page, Arrival::FirstTouch));
        let of_sample = pages.clone().filter(|&page| RATE.takes(page)).count();
        assert_eq!((policy.len(), policy.overdue()), (1000, of_sample - KEPT));
        let mut out = Vec::new();
        policy.victims(policy.overdue(), &mut out);
        assert!(out.len() == of_sample - KEPT && out.iter().all(|&page| RATE.takes(page)));
        assert_eq!(policy.overdue(), 0);
        // Where there is no room either, others leave; the sample last.
        out.clear();
        policy.victims(5, &mut out);
        assert!(out.len() == 5 && !out.iter().any(|&page| RATE.takes(page)));
        while policy.len() > 0 {
            let before = policy.len();
            policy.victims(100, &mut out);
            assert!(policy.len() < before);
        }
        let mut all: Vec<PageId> = pages.filter(|page| !out.contains(page)).collect();
        all.retain(|page| !RATE.takes(*page));
        assert!(all.is_empty());
    }
}
