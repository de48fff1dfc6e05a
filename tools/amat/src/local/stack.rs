//! Every size in one pass, by stack distances.
//!
//! The *depth* of an access is the number of different blocks used since the
//! block's last use, itself included: LRU of `n` blocks hits exactly when the
//! depth is at most `n` (Mattson et al., IBM Systems Journal 9(2), 1970). Depths
//! are counted by a Fenwick tree over the times of last uses (Olken, LBL-12370,
//! 1981).
//!
//! *Write-backs of every size in one pass* (after Thompson and Smith, ACM TOCS
//! 7(1), 1989): a part that was written is dirty in all sizes that kept its block
//! since, that is, in those not smaller than the greatest depth since: its
//! *level*. A write to a part that is dirty in a size costs that size no further
//! write-back; all other writes cost one, but for what is still here at the end.
//!
//! Depths are needed only as their *class*: the number of sizes that are smaller.

use super::{GROUPS, PARTS, Sample, Table, Tally, estimate};
use crate::cpu::{Below, LINE_SHIFT};
use crate::formula::Count;

/// Sizes simulated together, at most: a class fits a byte.
pub const MAX_SIZES: usize = 200;

/// By class.
#[derive(Clone)]
struct Tallies {
    uses: Vec<Count>,
    fresh: Count,
    unawaited: Vec<u64>,
    rewritten_parts: Vec<u64>,
    rewritten_blocks: Vec<u64>,
    written: u64,
}

struct Block {
    /// Of its last use.
    time: u32,
    /// 0: dirty in no size. Else 1 + the class of the smallest size that it is dirty in.
    level: u8,
    parts: [u8; PARTS],
}

/// Local memory of several sizes.
pub struct Stack {
    /// Ascending, in blocks.
    sizes: Vec<u64>,
    shift: u32,
    part_shift: u32,
    sample: Sample,
    share: f64,
    index: Table<u32>,
    blocks: Vec<Block>,
    /// One mark at each block's last use.
    marks: Fenwick,
    now: u32,
    groups: Vec<Tallies>,
}

impl Stack {
    /// Empty. `sizes` in blocks of `1 << shift` bytes, ascending; `share` of the blocks is watched.
    pub fn new(sizes: &[u64], shift: u32, share: f64) -> Stack {
        assert!(sizes.len() <= MAX_SIZES && sizes.is_sorted());
        let classes = sizes.len() + 1;
        let none = Tallies {
            uses: vec![Count::default(); classes],
            fresh: Count::default(),
            unawaited: vec![0; classes],
            rewritten_parts: vec![0; classes],
            rewritten_blocks: vec![0; classes],
            written: 0,
        };
        Stack {
            sizes: sizes.to_vec(),
            shift,
            part_shift: super::part_bytes(1 << shift).trailing_zeros(),
            sample: Sample::new(share),
            share: share.min(1.0),
            index: Table::default(),
            blocks: vec![],
            marks: Fenwick::new(1 << 12),
            now: 0,
            groups: vec![none; GROUPS],
        }
    }

    /// Uses a block. Its place in `blocks`, and the class of the depth at which it was.
    fn touch(&mut self, block: u64) -> (usize, u8) {
        if self.now as usize == self.marks.len() {
            self.renumber();
        }
        let time = self.now;
        self.now += 1;
        self.marks.add(time as usize, 1);
        let place = match self.index.get(&block) {
            Some(&place) => place as usize,
            None => {
                self.index.insert(block, self.blocks.len() as u32);
                self.blocks.push(Block { time, level: 0, parts: [0; PARTS] });
                return (self.blocks.len() - 1, self.sizes.len() as u8);
            }
        };
        let last = std::mem::replace(&mut self.blocks[place].time, time);
        // Marks up to `last` include its own; those above, this use's.
        let depth = self.blocks.len() as u64 - self.marks.up_to(last as usize) as u64 + 1;
        self.marks.add(last as usize, -1);
        let class = self.class(depth);
        let Block { level, parts, .. } = &mut self.blocks[place];
        let deeper = |level: &mut u8| *level = if *level == 0 { 0 } else { (*level).max(class + 1) };
        deeper(level);
        parts.iter_mut().for_each(deeper);
        (place, class)
    }

    fn class(&self, depth: u64) -> u8 {
        let depth = if self.share < 1.0 { (depth as f64 / self.share) as u64 } else { depth };
        self.sizes.partition_point(|&size| size < depth) as u8
    }

    /// Times are numbered again, in the same order, with room for as many again.
    fn renumber(&mut self) {
        let mut order: Vec<u32> = (0..self.blocks.len() as u32).collect();
        order.sort_unstable_by_key(|&place| self.blocks[place as usize].time);
        self.marks = Fenwick::new((2 * order.len()).max(1 << 12));
        for (time, &place) in order.iter().enumerate() {
            self.blocks[place as usize].time = time as u32;
            self.marks.add(time, 1);
        }
        self.now = order.len() as u32;
    }

    /// By size, in their order.
    pub fn tallies(&self) -> Vec<Tally> {
        let scale = 1.0 / self.share;
        let scaled = |n: u64| (n as f64 * scale).round() as u64;
        // Blocks that are still dirty here at the end have cost nothing, by class.
        let (mut here_blocks, mut here_parts) = (vec![0u64; self.sizes.len() + 1], vec![0u64; self.sizes.len() + 1]);
        for block in self.blocks.iter().filter(|block| block.level > 0) {
            let depth = self.blocks.len() as u64 - self.marks.up_to(block.time as usize) as u64 + 1;
            let class = self.class(depth);
            here_blocks[class.max(block.level - 1) as usize] += 1;
            for &part in block.parts.iter().filter(|&&part| part > 0) {
                here_parts[class.max(part - 1) as usize] += 1;
            }
        }
        let sum = |of: fn(&Tallies) -> &[u64], classes: std::ops::Range<usize>| -> u64 {
            self.groups.iter().flat_map(|group| of(group)[classes.clone()].iter()).sum()
        };
        let written: u64 = self.groups.iter().map(|group| group.written).sum();
        let tally = |size: usize| {
            let missed = |group: &Tallies| {
                group.uses[size + 1..]
                    .iter()
                    .fold(Count::default(), |a, b| Count { read: a.read + b.read, write: a.write + b.write })
            };
            let (misses, bound) = estimate(self.groups.iter().map(missed), scale);
            let kept = 0..size + 1;
            let here = |by_class: &[u64]| by_class[kept.clone()].iter().sum::<u64>();
            Tally {
                misses,
                fresh: estimate(self.groups.iter().map(|group| group.fresh), scale).0,
                bound,
                prefetched: 0,
                unawaited: scaled(sum(|g| &g.unawaited, size + 1..self.sizes.len() + 1)),
                dirty_blocks: scaled(written - sum(|g| &g.rewritten_blocks, kept.clone()) - here(&here_blocks)),
                dirty_parts: scaled(written - sum(|g| &g.rewritten_parts, kept.clone()) - here(&here_parts)),
            }
        };
        (0..self.sizes.len()).map(tally).collect()
    }
}

impl Below for Stack {
    fn fetch(&mut self, line: u64, write: bool) {
        let block = line >> (self.shift - LINE_SHIFT);
        if let Some(group) = self.sample.group(block) {
            let known = self.blocks.len();
            let (_, class) = self.touch(block);
            self.groups[group].uses[class as usize].add(write);
            if self.blocks.len() > known {
                self.groups[group].fresh.add(write);
            }
        }
    }

    fn write_back(&mut self, line: u64) {
        let block = line >> (self.shift - LINE_SHIFT);
        let Some(group) = self.sample.group(block) else { return };
        let (place, class) = self.touch(block);
        let part = (line >> (self.part_shift - LINE_SHIFT)) as usize & (PARTS - 1);
        let Block { level, parts, .. } = &mut self.blocks[place];
        let tallies = &mut self.groups[group];
        tallies.unawaited[class as usize] += 1;
        tallies.written += 1;
        if let Some(class) = std::mem::replace(level, 1).checked_sub(1) {
            tallies.rewritten_blocks[class as usize] += 1;
        }
        if let Some(class) = std::mem::replace(&mut parts[part], 1).checked_sub(1) {
            tallies.rewritten_parts[class as usize] += 1;
        }
    }
}

/// Sums of prefixes (Fenwick, Software: Practice and Experience 24(3), 1994).
struct Fenwick {
    sums: Vec<i32>,
}

impl Fenwick {
    fn new(len: usize) -> Fenwick {
        Fenwick { sums: vec![0; len + 1] }
    }
    fn len(&self) -> usize {
        self.sums.len() - 1
    }
    fn add(&mut self, at: usize, n: i32) {
        let mut at = at + 1;
        while at < self.sums.len() {
            self.sums[at] += n;
            at += at & at.wrapping_neg();
        }
    }
    /// Of `..=at`.
    fn up_to(&self, at: usize) -> i32 {
        let (mut at, mut sum) = (at + 1, 0);
        while at > 0 {
            sum += self.sums[at];
            at &= at - 1;
        }
        sum
    }
}
