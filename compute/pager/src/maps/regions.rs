//! The far range's addresses: which are mapped and how, which are free. Pure bookkeeping.
//!
//! Mapped parts are *regions* of one protection each; free parts are *gaps*.
//! A request takes the smallest gap that holds it, at its low end (best fit), so
//! that the page table's memory stays dense.

use std::collections::{BTreeMap, BTreeSet};

/// A mapped part of the far range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// One past its last address.
    pub end: usize,
    /// `PROT_*` bits.
    pub prot: i32,
    /// Its bytes count against far memory: it was mapped writable without `MAP_NORESERVE`.
    pub committed: bool,
    /// Mapped with `MAP_NORESERVE`: never counts.
    pub noreserve: bool,
    /// Not ours: a file or shared memory that the program mapped over far addresses.
    pub foreign: bool,
    /// The part of it that a forked child gets.
    pub on_fork: OnFork,
}

/// The part of a mapping that a forked child gets (`madvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFork {
    /// A copy.
    Copy,
    /// Zeros (`MADV_WIPEONFORK`).
    Zeros,
    /// Nothing, not even the addresses (`MADV_DONTFORK`).
    Nothing,
}

/// All regions and gaps between two addresses.
pub struct Regions {
    mapped: BTreeMap<usize, Region>,
    /// start → length
    gaps: BTreeMap<usize, usize>,
    /// (length, start)
    by_length: BTreeSet<(usize, usize)>,
}

impl Regions {
    /// Everything from `start` to `end` is free.
    pub fn new(start: usize, end: usize) -> Regions {
        let mut regions = Regions { mapped: BTreeMap::new(), gaps: BTreeMap::new(), by_length: BTreeSet::new() };
        regions.add_gap(start, end - start);
        regions
    }

    fn add_gap(&mut self, start: usize, len: usize) {
        if len > 0 {
            self.gaps.insert(start, len);
            self.by_length.insert((len, start));
        }
    }

    fn remove_gap(&mut self, start: usize) -> usize {
        let len = self.gaps.remove(&start).unwrap_or(0);
        self.by_length.remove(&(len, start));
        len
    }

    /// A free range of `len` bytes.
    pub fn find(&self, len: usize) -> Option<usize> {
        self.by_length.range((len, 0)..).next().map(|&(_, start)| start)
    }

    /// Whether the whole range is free.
    pub fn is_free(&self, start: usize, len: usize) -> bool {
        self.gaps.range(..=start).next_back().is_some_and(|(&gap, &room)| start + len <= gap + room)
    }

    /// Maps a free range. Panics if it is not: a gap that wraps gives addresses out twice.
    pub fn insert(&mut self, start: usize, region: Region) {
        assert!(self.is_free(start, region.end - start), "{start:#x} to {:#x} is mapped", region.end);
        if let Some((&gap, _)) = self.gaps.range(..=start).next_back() {
            let room = self.remove_gap(gap);
            self.add_gap(gap, start - gap);
            self.add_gap(region.end, gap + room - region.end);
        }
        self.mapped.insert(start, region);
        self.join(start);
        if let Some((&before, _)) = self.mapped.range(..start).next_back() {
            self.join(before);
        }
    }

    /// Joins the region at `start` with the next one if they touch and are alike.
    fn join(&mut self, start: usize) {
        let Some(&region) = self.mapped.get(&start) else { return };
        if let Some(&next) = self.mapped.get(&region.end)
            && (Region { end: next.end, ..region }) == next
        {
            self.mapped.remove(&region.end);
            self.mapped.insert(start, next);
        }
    }

    /// Splits regions at an address, so that none straddles it.
    fn split(&mut self, at: usize) {
        if let Some((&start, &region)) = self.mapped.range(..at).next_back()
            && region.end > at
        {
            self.mapped.insert(start, Region { end: at, ..region });
            self.mapped.insert(at, region);
        }
    }

    /// The mapped parts of a range, in order, cut to it.
    pub fn within(&self, start: usize, end: usize) -> Vec<(usize, Region)> {
        let before = self.mapped.range(..start).next_back().filter(|(_, r)| r.end > start);
        before
            .into_iter()
            .chain(self.mapped.range(start..end))
            .map(|(&at, &r)| (at.max(start), Region { end: r.end.min(end), ..r }))
            .collect()
    }

    /// Whether all of a range is mapped.
    pub fn covers(&self, start: usize, end: usize) -> bool {
        self.first_gap(start, end).is_none()
    }

    /// The first address of a range at which nothing is mapped.
    pub fn first_gap(&self, start: usize, end: usize) -> Option<usize> {
        let mut at = start;
        for (from, region) in self.within(start, end) {
            if from > at {
                break;
            }
            at = region.end;
        }
        (at < end).then_some(at)
    }

    /// Unmaps a range; returns what was mapped in it.
    pub fn remove(&mut self, start: usize, end: usize) -> Vec<(usize, Region)> {
        self.split(start);
        self.split(end);
        let parts = self.within(start, end);
        for &(at, region) in &parts {
            self.mapped.remove(&at);
            let mut from = at;
            let mut to = region.end;
            if let Some((&gap, &room)) = self.gaps.range(..at).next_back()
                && gap + room == at
            {
                self.remove_gap(gap);
                from = gap;
            }
            if self.gaps.contains_key(&to) {
                to += self.remove_gap(to);
            }
            self.add_gap(from, to - from);
        }
        parts
    }

    /// Changes the mapped parts of a range.
    pub fn change(&mut self, start: usize, end: usize, mut change: impl FnMut(&mut Region)) {
        self.split(start);
        self.split(end);
        let starts: Vec<usize> = self.within(start, end).into_iter().map(|(at, _)| at).collect();
        for &at in &starts {
            if let Some(region) = self.mapped.get_mut(&at) {
                change(region);
            }
        }
        for &at in starts.iter().rev() {
            self.join(at);
        }
        if let Some((&before, _)) = self.mapped.range(..start).next_back() {
            self.join(before);
        }
    }

    /// The gap's length right after a mapped range that ends at `end`.
    pub fn room_after(&self, end: usize) -> usize {
        self.gaps.get(&end).copied().unwrap_or(0)
    }

    /// All regions.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Region)> + '_ {
        self.mapped.iter().map(|(&at, &r)| (at, r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 64;

    fn region(end: usize, prot: i32) -> Region {
        Region { end, prot, committed: false, noreserve: false, foreign: false, on_fork: OnFork::Copy }
    }

    proptest! {
        /// Against an array of pages: Some(prot) where mapped.
        #[test]
        fn agrees_with_an_array(ops in prop::collection::vec((0..4u8, 0..PAGES, 1..PAGES, 0..3i32), 1..80)) {
            let mut regions = Regions::new(0, PAGES);
            let mut model = [None; PAGES];
            for (op, start, len, prot) in ops {
                let end = (start + len).min(PAGES);
                match op {
                    0 => {
                        let free = model[start..end].iter().all(Option::is_none);
                        prop_assert_eq!(regions.is_free(start, end - start), free);
                        if free {
                            regions.insert(start, region(end, prot));
                            model[start..end].fill(Some(prot));
                        }
                    }
                    1 => {
                        let gone: usize = regions.remove(start, end).iter().map(|(at, r)| r.end - at).sum();
                        prop_assert_eq!(gone, model[start..end].iter().flatten().count());
                        model[start..end].fill(None);
                    }
                    2 => {
                        regions.change(start, end, |r| r.prot = prot);
                        model[start..end].iter_mut().flatten().for_each(|p| *p = prot);
                    }
                    _ => match regions.find(len) {
                        Some(at) => prop_assert!(model[at..at + len].iter().all(Option::is_none)),
                        None => prop_assert!(!model.windows(len).any(|w| w.iter().all(Option::is_none))),
                    },
                }
                for (page, &prot) in model.iter().enumerate() {
                    prop_assert_eq!(regions.within(page, page + 1).first().map(|(_, r)| r.prot), prot);
                }
                prop_assert_eq!(regions.covers(start, end), model[start..end].iter().all(Option::is_some));
                let gap = (start..end).find(|&page| model[page].is_none());
                prop_assert_eq!(regions.first_gap(start, end), gap);
                let list: Vec<_> = regions.iter().collect();
                prop_assert!(list.windows(2).all(|w| w[0].1.end < w[1].0 || w[0].1.prot != w[1].1.prot), "joined");
            }
        }
    }
}
