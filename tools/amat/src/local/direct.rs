//! Local memory of one size, simulated block by block: sets with LRU order, and prefetch.
//!
//! *Prefetch*: a block counts for a stream when it is fetched, or first used after it was fetched
//! ahead. The last block of each of [`STREAMS`] streams is kept. If a block follows one of these,
//! the next blocks are fetched ahead. The model assumes that they arrive in time.
//!
//! A *part* is the unit of a block that can be dirty by itself. A *fresh* miss is of a block that
//! was never used before: far memory has nothing to fetch.

use super::{GROUPS, Mixed, PARTS, Sample, Table, Tally, estimate};
use crate::cpu::{Below, LINE_SHIFT};
use crate::formula::Count;
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

/// Streams followed at once.
pub const STREAMS: usize = 16;
/// If a sample would watch fewer sets than this, all sets are watched.
const LEAST_SETS: f64 = 256.0;
const NONE: u32 = u32::MAX;

struct Block {
    number: u64,
    /// A bit for each part that is dirty.
    dirty: u64,
    /// Fetched ahead, and not used since.
    ahead: bool,
    /// Neighbours in the LRU order of the set, as places in [`Direct::blocks`].
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy)]
struct Set {
    newest: u32,
    oldest: u32,
    len: u32,
}

/// Local memory of one size.
pub struct Direct {
    shift: u32,
    part_shift: u32,
    ways: u32,
    sets: Vec<Set>,
    index: Table<u32>,
    blocks: Vec<Block>,
    sample: Sample,
    /// The part of the sets that is watched.
    share: f64,
    /// Blocks that were used before. Only these can be fetched ahead.
    known: HashSet<u64, BuildHasherDefault<Mixed>>,
    misses: [Count; GROUPS],
    fresh: [Count; GROUPS],
    rest: Tally,
    /// Blocks to fetch ahead.
    prefetch: u32,
    /// The last block of each stream.
    streams: [u64; STREAMS],
    next_stream: usize,
}

impl Direct {
    /// An empty memory of `size` blocks of `1 << shift` bytes, with `ways` blocks to a set (0: one
    /// set). Only `share` of the sets is watched, if there are enough of them. With prefetch all
    /// are watched, because blocks that are fetched ahead lie in other sets.
    pub fn new(size: u64, shift: u32, ways: u32, prefetch: u32, share: f64) -> Direct {
        let ways = if ways == 0 { size } else { u64::from(ways).min(size) }.max(1);
        let sets = (size / ways).max(1);
        let share = if prefetch > 0 || sets as f64 * share < LEAST_SETS { 1.0 } else { share };
        let sample = Sample::new(share);
        let watched = (0..sets).filter(|&set| sample.group(set).is_some()).count();
        Direct {
            shift,
            part_shift: super::part_bytes(1 << shift).trailing_zeros(),
            ways: ways as u32,
            sets: vec![Set { newest: NONE, oldest: NONE, len: 0 }; sets as usize],
            index: Table::default(),
            blocks: vec![],
            sample,
            share: watched as f64 / sets as f64,
            known: HashSet::default(),
            misses: [Count::default(); GROUPS],
            fresh: [Count::default(); GROUPS],
            rest: Tally::default(),
            prefetch,
            // Neither the number of a block nor the number before one.
            streams: [u64::MAX / 2; STREAMS],
            next_stream: 0,
        }
    }

    /// The counts, scaled from the watched sets to all.
    pub fn tally(&self) -> Tally {
        let scale = 1.0 / self.share;
        let (misses, bound) = estimate(self.misses.iter().copied(), scale);
        let scaled = |n: u64| (n as f64 * scale).round() as u64;
        Tally {
            misses,
            fresh: estimate(self.fresh.iter().copied(), scale).0,
            bound,
            prefetched: scaled(self.rest.prefetched),
            unawaited: scaled(self.rest.unawaited),
            dirty_blocks: scaled(self.rest.dirty_blocks),
            dirty_parts: scaled(self.rest.dirty_parts),
        }
    }

    fn unlink(&mut self, set: usize, place: u32) {
        let Block { newer, older, .. } = self.blocks[place as usize];
        match newer {
            NONE => self.sets[set].newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        match older {
            NONE => self.sets[set].oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, set: usize, place: u32) {
        let Set { newest, oldest, .. } = &mut self.sets[set];
        let next = std::mem::replace(newest, place);
        if next == NONE {
            *oldest = place;
        } else {
            self.blocks[next as usize].newer = place;
        }
        let block = &mut self.blocks[place as usize];
        (block.newer, block.older) = (NONE, next);
    }

    /// Makes a block the newest of its set, and brings it in if it is not local. Returns its place,
    /// and whether it was local.
    fn touch(&mut self, number: u64) -> (u32, bool) {
        let set = (number % self.sets.len() as u64) as usize;
        if let Some(&place) = self.index.get(&number) {
            self.unlink(set, place);
            self.link_newest(set, place);
            return (place, true);
        }
        let fresh = Block { number, dirty: 0, ahead: false, newer: NONE, older: NONE };
        let place = if self.sets[set].len < self.ways {
            self.sets[set].len += 1;
            self.blocks.push(fresh);
            self.blocks.len() as u32 - 1
        } else {
            let place = self.sets[set].oldest;
            self.unlink(set, place);
            let gone = std::mem::replace(&mut self.blocks[place as usize], fresh);
            self.index.remove(&gone.number);
            self.rest.dirty_blocks += u64::from(gone.dirty != 0);
            self.rest.dirty_parts += u64::from(gone.dirty.count_ones());
            place
        };
        self.index.insert(number, place);
        self.link_newest(set, place);
        (place, false)
    }

    /// Notes that a block counts for a stream. Fetches the next ones ahead if it continues one.
    fn fetch_ahead(&mut self, number: u64) {
        let before = self.streams.iter().position(|&last| last == number.wrapping_sub(1));
        match before {
            Some(stream) => self.streams[stream] = number,
            None => {
                self.streams[self.next_stream] = number;
                self.next_stream = (self.next_stream + 1) % STREAMS;
                return;
            }
        }
        for ahead in number + 1..=number + u64::from(self.prefetch) {
            if self.known.contains(&ahead) && !self.index.contains_key(&ahead) {
                let (place, _) = self.touch(ahead);
                self.blocks[place as usize].ahead = true;
                self.rest.unawaited += 1;
            }
        }
    }

    /// The group of the sample that a block's set is in. `None`: the set is not watched.
    fn group(&self, number: u64) -> Option<usize> {
        // With one set, and with prefetch, everything is watched: any group will do.
        self.sample.group(number % self.sets.len() as u64)
    }
}

impl Below for Direct {
    fn fetch(&mut self, line: u64, write: bool) {
        let number = line >> (self.shift - LINE_SHIFT);
        let Some(group) = self.group(number) else { return };
        let (place, there) = self.touch(number);
        let first_use = std::mem::take(&mut self.blocks[place as usize].ahead);
        if !there {
            self.misses[group].add(write);
            if self.known.insert(number) {
                self.fresh[group].add(write);
            }
        }
        self.rest.prefetched += u64::from(first_use);
        if self.prefetch > 0 && (!there || first_use) {
            self.fetch_ahead(number);
        }
    }

    fn write_back(&mut self, line: u64) {
        let number = line >> (self.shift - LINE_SHIFT);
        if self.group(number).is_none() {
            return;
        }
        let (place, there) = self.touch(number);
        self.known.insert(number);
        self.rest.unawaited += u64::from(!there);
        let part = (line >> (self.part_shift - LINE_SHIFT)) & (PARTS as u64 - 1);
        self.blocks[place as usize].dirty |= 1 << part;
    }
}

#[cfg(test)]
mod tests {
    use super::super::stack::Stack;
    use super::*;
    use proptest::prelude::*;

    /// A plain model: a list from the most recently used on.
    #[derive(Default)]
    struct Plain {
        size: usize,
        list: Vec<(u64, u64)>,
        known: HashSet<u64>,
        misses: Count,
        fresh: Count,
        unawaited: u64,
        dirty_blocks: u64,
        dirty_parts: u64,
    }
    impl Plain {
        fn touch(&mut self, block: u64, dirty: u64) -> bool {
            let there = self.list.iter().position(|&(b, _)| b == block).map(|at| self.list.remove(at));
            self.list.insert(0, (block, there.map_or(0, |(_, parts)| parts) | dirty));
            if self.list.len() > self.size {
                let (_, parts) = self.list.pop().unwrap();
                self.dirty_blocks += u64::from(parts != 0);
                self.dirty_parts += u64::from(parts.count_ones());
            }
            there.is_some()
        }
    }
    impl Below for Plain {
        fn fetch(&mut self, line: u64, write: bool) {
            if !self.touch(line >> 6, 0) {
                self.misses.add(write);
                if self.known.insert(line >> 6) {
                    self.fresh.add(write);
                }
            }
        }
        fn write_back(&mut self, line: u64) {
            self.known.insert(line >> 6);
            self.unawaited += u64::from(!self.touch(line >> 6, 1 << (line & 63)));
        }
    }

    proptest! {
        #[test]
        fn stack_and_direct_agree_with_a_plain_list(
            events in proptest::collection::vec((0u64..24, 0u64..64, 0..3), 1..600)
        ) {
            let sizes = [1, 2, 5, 8, 13, 40];
            let mut stack = Stack::new(&sizes, 12, 1.0);
            let mut directs = sizes.map(|size| Direct::new(size, 12, 0, 0, 1.0));
            let mut plains = sizes.map(|size| Plain { size: size as usize, ..Plain::default() });
            for (block, line, what) in events {
                let line = block << 6 | line;
                let tell = |below: &mut dyn Below| match what {
                    0 => below.fetch(line, false),
                    1 => below.fetch(line, true),
                    _ => below.write_back(line),
                };
                tell(&mut stack);
                directs.iter_mut().for_each(|direct| tell(direct));
                plains.iter_mut().for_each(|plain| tell(plain));
            }
            for ((stack, direct), plain) in stack.tallies().into_iter().zip(&directs).zip(&plains) {
                let Plain { misses, fresh, unawaited, dirty_blocks, dirty_parts, .. } = *plain;
                let plain = Tally { misses, fresh, unawaited, dirty_blocks, dirty_parts, ..Tally::default() };
                prop_assert_eq!(stack, plain);
                prop_assert_eq!(direct.tally(), plain);
            }
        }
    }

    fn uniform(below: &mut dyn Below, blocks: u64, uses: u64) {
        let mut random = farmem_protocol::random::Random::new(1);
        for _ in 0..uses {
            below.fetch(random.below(blocks) << 6, false);
        }
    }

    #[test]
    fn a_sample_is_within_its_bound() {
        let blocks = 20_000;
        let (mut whole, mut part) = (Stack::new(&[5_000], 12, 1.0), Stack::new(&[5_000], 12, 0.1));
        uniform(&mut whole, blocks, 400_000);
        uniform(&mut part, blocks, 400_000);
        let (whole, part) = (whole.tallies()[0], part.tallies()[0]);
        let off = (whole.misses.total() as f64 - part.misses.total() as f64).abs();
        assert_eq!(whole.bound, 0.0);
        assert!(off < 1.5 * part.bound && part.bound < 0.1 * whole.misses.total() as f64, "{off} of {part:?}");

        let (mut whole, mut part) = (Direct::new(8_192, 12, 4, 0, 1.0), Direct::new(8_192, 12, 4, 0, 0.125));
        uniform(&mut whole, blocks, 400_000);
        uniform(&mut part, blocks, 400_000);
        let (whole, part) = (whole.tally(), part.tally());
        let off = (whole.misses.total() as f64 - part.misses.total() as f64).abs();
        assert!(off < 1.5 * part.bound && part.bound < 0.1 * whole.misses.total() as f64, "{off} of {part:?}");
    }

    #[test]
    fn what_is_read_in_order_is_fetched_ahead() {
        let mut ahead = Direct::new(64, 12, 0, 8, 1.0);
        (0..1_000u64).for_each(|block| ahead.fetch(block << 6, false));
        assert_eq!((ahead.tally().misses.read, ahead.tally().fresh.read), (1_000, 1_000), "nothing is there to fetch");
        (0..1_000u64).for_each(|block| ahead.fetch(block << 6, false));
        let tally = ahead.tally();
        assert_eq!(tally.misses.read, 1_002, "the first, and the second, which makes a stream");
        assert_eq!(tally.prefetched, 998);
    }
}
