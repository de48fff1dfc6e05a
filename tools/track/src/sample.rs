//! The watched part of a program: all of it, or as many of its blocks as a look can take in a
//! pause. Pure.
//!
//! Which blocks these are, [`crate::watch`] says by their *place* between 0 and 2^64.
//!
//! A sample only ever narrows: the watched part is a part of the one before, so that the former
//! contents of every block in it are known. It must therefore not become too narrow, for good, by
//! one bad moment of the machine. Whatever a look seems to say, a sample keeps the blocks nearest
//! to 0 that had [`LEAST`] pages to look at, and no look passes over as many ([`crate::look`]). So
//! it is always read, and never empty.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cover::Range;
use crate::diff::PAGE;
use crate::sight::{Look, Took};
use crate::snapshot::BLOCK;
use crate::watch::Watch;

/// The greatest cost of a look per page, where it is only found, and where it is read: for the
/// first guess of what fits into a pause.
const FIND_NS: u64 = 60;
const READ_NS: u64 = 1500;

/// Looks in a row that are cut short although they should have fitted: fewer are taken for somebody
/// else's use of the CPU.
const CUTS: u32 = 3;

/// Pages that a sample keeps: a block's.
const LEAST: u64 = BLOCK / PAGE as u64;

/// The most that a sample of [`LEAST`] pages has: the last of its blocks may have brought all but
/// one of its own.
pub const LEAST_AT_MOST: u64 = 2 * LEAST - 1;

/// Before anything was looked at, this many pages are kept, because pages may lie unevenly.
const AT_FIRST: u64 = 16 * LEAST;

/// At some point a sample says nothing: a window without any dirty line is idle.
const NARROWEST: u64 = 1 << 12;

/// The findings of one look at all processes, and its time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Pages that are there, by their block's place.
    present: BTreeMap<u64, u64>,
    /// Pages that there were to read, likewise.
    wanted: BTreeMap<u64, u64>,
    missed: u64,
    finding: Duration,
    cut: bool,
}

impl Seen {
    /// Adds the look at one process.
    pub fn add(&mut self, watch: Watch, look: &Look, took: &Took) {
        let add = |to: &mut BTreeMap<u64, u64>, range: &Range| {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min((at / BLOCK + 1) * BLOCK);
                *to.entry(watch.place(at / BLOCK)).or_default() += (end - at) / PAGE as u64;
                at = end;
            }
        };
        look.present.iter().for_each(|range| add(&mut self.present, range));
        look.pages.iter().for_each(|page| add(&mut self.wanted, &(page.address..page.address + PAGE as u64)));
        look.missed.iter().for_each(|range| add(&mut self.wanted, range));
        self.missed += look.missed.iter().map(|range| (range.end - range.start) / PAGE as u64).sum::<u64>();
        self.finding += took.finding;
        self.cut |= took.cut;
    }
}

/// The watched part of a program, within its limits.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The last place that is watched ([`Watch`]).
    upto: u64,
    /// Nanoseconds that a look may take.
    limit: u64,
    /// Bytes that may be recorded.
    memory: u64,
    /// Looks in a row that were cut short.
    cuts: u32,
}

impl Sample {
    /// Of everything, for now.
    pub fn new(max_pause: Duration, max_memory: u64) -> Sample {
        Sample { upto: u64::MAX, limit: max_pause.as_nanos().max(1) as u64, memory: max_memory.max(1), cuts: 0 }
    }

    /// One block in about this many is watched.
    pub fn one_in(&self) -> u64 {
        self.of(0).one_in()
    }

    /// The watched part of a process.
    pub fn of(&self, process: u32) -> Watch {
        Watch { upto: self.upto, process }
    }

    /// Begins with a process of `resident` resident pages. `read`: all of it has to be read in each
    /// look.
    pub fn begin(&mut self, resident: u64, read: bool) {
        let cost = resident * if read { READ_NS } else { 2 * FIND_NS };
        let fits = cost.div_ceil(self.limit).min(resident / AT_FIRST);
        self.narrow_to(u64::MAX / fits.max((resident * PAGE as u64).div_ceil(self.memory)).max(1));
    }

    /// The first look at a process, before which nothing was known of it, was cut short.
    pub fn begun(&mut self, seen: &Seen) {
        if seen.cut {
            self.narrow_by(2, &seen.wanted);
        }
    }

    /// Watches less where a look took too long, or what is recorded, bytes, is too much. Returns
    /// whether it does.
    pub fn fit(&mut self, seen: &Seen, recorded: u64) -> bool {
        let before = self.upto;
        let [present, wanted] = [&seen.present, &seen.wanted].map(|by_place| by_place.values().sum::<u64>());
        let (finding, reading) = (present * FIND_NS, wanted * READ_NS);
        self.cuts = if seen.cut { self.cuts + 1 } else { 0 };
        // Finding costs by what is there, written or not.
        let slow_to_find = seen.finding.as_nanos() as u64 > self.limit / 10 * 7 && finding > self.limit / 2;
        let by_place = if slow_to_find { &seen.present } else { &seen.wanted };
        if seen.cut && reading > self.limit {
            let read = wanted.saturating_sub(seen.missed);
            // Where finding took all the time, how little was read says nothing of how much can be.
            let over = wanted.checked_div(read).map_or((finding + reading).div_ceil(self.limit), |times| times + 1);
            self.narrow_by(over.next_power_of_two().clamp(2, 16), by_place);
            self.cuts = 0;
        } else if self.cuts >= CUTS && finding + reading > self.limit / 2 {
            // Less than that is not what takes the time: a smaller sample would be cut as well, and
            // say nothing.
            self.narrow_by(2, by_place);
            self.cuts = 0;
        } else if slow_to_find {
            self.narrow_by(2, by_place);
        }
        // Recorded is what was watched until now.
        if recorded > self.memory {
            self.narrow_to((u128::from(before) * u128::from(self.memory) / u128::from(recorded)) as u64);
        }
        self.upto != before
    }

    fn narrow_to(&mut self, upto: u64) {
        self.upto = self.upto.min(upto.max(u64::MAX / NARROWEST));
    }

    /// Watches one block in `factor` of those watched, but keeps [`LEAST`] of these pages.
    fn narrow_by(&mut self, factor: u64, pages: &BTreeMap<u64, u64>) {
        let mut kept = 0;
        let last = pages.iter().find(|(_, pages)| {
            kept += *pages;
            kept >= LEAST
        });
        let Some((&last, _)) = last else { return };
        // This block is watched still.
        self.narrow_to((self.upto / factor).max(last));
    }
}

#[cfg(test)]
mod tests;
