//! The contents of each page at the last look.
//!
//! Pages are kept in blocks of 2 MiB, whose memory comes zeroed from the kernel
//! and costs nothing until a page is recorded in it.

use std::collections::BTreeMap;

use crate::cover::{Range, Unseen};
use crate::diff::PAGE;

/// Bytes of a block, the other granularity at which amplification is told.
pub const BLOCK: u64 = 2 << 20;
const PAGES: usize = BLOCK as usize / PAGE;

/// The records of an address space's pages.
#[derive(Default)]
pub struct Snapshot {
    blocks: BTreeMap<u64, Block>,
    recorded: u64,
}

struct Block {
    bytes: Vec<u8>,
    /// Bit per page: `bytes` is what it held.
    recorded: [u64; PAGES / 64],
    /// Bit per page: it was there, and what it held is not known.
    unknown: [u64; PAGES / 64],
}

/// The former contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before<'a> {
    /// These bytes.
    Recorded(&'a [u8; PAGE]),
    /// It was there, unread.
    Unknown,
    /// No record: the contents of unseen pages of its mapping.
    Unseen,
}

impl Before<'_> {
    /// The bytes, if anybody can tell.
    pub fn bytes(&self, unseen: Unseen) -> Option<&[u8; PAGE]> {
        match (self, unseen) {
            (Before::Recorded(bytes), _) => Some(bytes),
            (Before::Unseen, Unseen::Zeros) => Some(&[0; PAGE]),
            _ => None,
        }
    }
}

/// The block and, within it, the page of an address.
fn place(address: u64) -> (u64, usize) {
    (address / BLOCK, (address % BLOCK) as usize / PAGE)
}

impl Snapshot {
    /// The former contents of the page at this address.
    pub fn before(&self, address: u64) -> Before<'_> {
        let (block, page) = place(address);
        match self.blocks.get(&block) {
            Some(block) if get(&block.recorded, page) => Before::Recorded(block.page(page)),
            Some(block) if get(&block.unknown, page) => Before::Unknown,
            _ => Before::Unseen,
        }
    }

    /// Records what it holds now.
    pub fn record(&mut self, address: u64, bytes: &[u8; PAGE]) {
        let (at, page) = place(address);
        let block = self.blocks.entry(at).or_insert_with(Block::new);
        block.bytes[page * PAGE..][..PAGE].copy_from_slice(bytes);
        self.recorded += u64::from(!get(&block.recorded, page));
        set(&mut block.recorded, page, true);
        set(&mut block.unknown, page, false);
    }

    /// Notes that it is there, holding nobody knows what.
    pub fn lose(&mut self, address: u64) {
        let (at, page) = place(address);
        let block = self.blocks.entry(at).or_insert_with(Block::new);
        self.recorded -= u64::from(get(&block.recorded, page));
        set(&mut block.recorded, page, false);
        set(&mut block.unknown, page, true);
    }

    /// Forgets the pages of a range.
    pub fn forget(&mut self, range: &Range) {
        for (at, page) in self.pages(range) {
            self.forget_page(at, page);
        }
        self.drop_empty(range);
    }

    /// Forgets the pages of a range that are in none of these runs, which are in order: they are
    /// not there any more.
    pub fn forget_absent(&mut self, range: &Range, present: &[Range]) {
        let mut runs = present.iter().peekable();
        for (at, page) in self.pages(range) {
            let address = at * BLOCK + (page * PAGE) as u64;
            while runs.next_if(|run| run.end <= address).is_some() {}
            if runs.peek().is_none_or(|run| run.start > address) {
                self.forget_page(at, page);
            }
        }
        self.drop_empty(range);
    }

    /// Forgets whole blocks by their number.
    pub fn retain_blocks(&mut self, keep: impl Fn(u64) -> bool) {
        self.blocks.retain(|&at, block| {
            let kept = keep(at);
            if !kept {
                self.recorded -= block.recorded.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            }
            kept
        });
    }

    /// Takes out what is known of a range: pages by their distance from its start, with their bytes
    /// if recorded.
    pub fn take(&mut self, range: &Range) -> Vec<(u64, Option<Box<[u8; PAGE]>>)> {
        let places = self.pages(range).into_iter().map(|(at, page)| at * BLOCK + (page * PAGE) as u64);
        let taken = places.map(|address| match self.before(address) {
            Before::Recorded(bytes) => (address - range.start, Some(Box::new(*bytes))),
            _ => (address - range.start, None),
        });
        let taken = taken.collect();
        self.forget(range);
        taken
    }

    /// Puts down at `start` what was [taken](Snapshot::take) elsewhere.
    pub fn put(&mut self, start: u64, pages: Vec<(u64, Option<Box<[u8; PAGE]>>)>) {
        for (distance, bytes) in pages {
            match bytes {
                Some(bytes) => self.record(start + distance, &bytes),
                None => self.lose(start + distance),
            }
        }
    }

    /// Addresses of the pages recorded in a range.
    pub fn recorded_in(&self, range: &Range) -> impl Iterator<Item = u64> {
        let pages = self.pages(range).into_iter().filter(|&(at, page)| get(&self.blocks[&at].recorded, page));
        pages.map(|(at, page)| at * BLOCK + (page * PAGE) as u64)
    }

    /// Bytes that are recorded.
    pub fn recorded_bytes(&self) -> u64 {
        self.recorded * PAGE as u64
    }

    /// Places within a range of pages of which something is known.
    fn pages(&self, range: &Range) -> Vec<(u64, usize)> {
        if range.is_empty() {
            return Vec::new();
        }
        let blocks = self.blocks.range(range.start / BLOCK..=(range.end - 1) / BLOCK);
        let pages = blocks.flat_map(|(&at, block)| {
            (0..PAGES)
                .filter(|&page| get(&block.recorded, page) || get(&block.unknown, page))
                .map(move |page| (at, page))
        });
        pages.filter(|&(at, page)| range.contains(&(at * BLOCK + (page * PAGE) as u64))).collect()
    }

    fn forget_page(&mut self, at: u64, page: usize) {
        let block = self.blocks.get_mut(&at).expect("listed from it");
        self.recorded -= u64::from(get(&block.recorded, page));
        set(&mut block.recorded, page, false);
        set(&mut block.unknown, page, false);
    }

    fn drop_empty(&mut self, range: &Range) {
        let blocks = self.blocks.range(range.start / BLOCK..=range.end.saturating_sub(1).max(range.start) / BLOCK);
        let empty: Vec<u64> = blocks.filter(|(_, block)| block.is_empty()).map(|(&at, _)| at).collect();
        empty.iter().for_each(|at| drop(self.blocks.remove(at)));
    }
}

impl Block {
    fn new() -> Block {
        Block { bytes: vec![0; BLOCK as usize], recorded: [0; PAGES / 64], unknown: [0; PAGES / 64] }
    }

    fn page(&self, page: usize) -> &[u8; PAGE] {
        &self.bytes.as_chunks::<PAGE>().0[page]
    }

    fn is_empty(&self) -> bool {
        self.recorded.iter().chain(&self.unknown).all(|&word| word == 0)
    }
}

fn get(bits: &[u64; PAGES / 64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

fn set(bits: &mut [u64; PAGES / 64], at: usize, to: bool) {
    bits[at / 64] = bits[at / 64] & !(1 << (at % 64)) | u64::from(to) << (at % 64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const P: u64 = PAGE as u64;

    #[derive(Clone, Debug)]
    enum Step {
        Record(u64, u8),
        Lose(u64),
        Forget(u64, u64),
        Keep(u64, u64, Vec<u64>),
        Relocate(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let page = || 500..530_u64;
        prop_oneof![
            (page(), 0..4_u8).prop_map(|(page, with)| Step::Record(page, with)),
            page().prop_map(Step::Lose),
            (page(), 0..20_u64).prop_map(|(from, len)| Step::Forget(from, len)),
            (page(), 0..20_u64, prop::collection::vec(page(), 0..9)).prop_map(|(a, b, c)| Step::Keep(a, b, c)),
            (page(), 1..15_u64).prop_map(|(from, len)| Step::Relocate(from, len)),
        ]
    }

    proptest! {
        /// Against a map of pages; pages 500 to 530 lie in two blocks.
        #[test]
        fn as_a_map_of_pages(steps in prop::collection::vec(step(), 0..60)) {
            let mut snapshot = Snapshot::default();
            let mut model: BTreeMap<u64, Option<u8>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Record(page, with) => {
                        snapshot.record(page * P, &[with; PAGE]);
                        model.insert(page, Some(with));
                    }
                    Step::Lose(page) => {
                        snapshot.lose(page * P);
                        model.insert(page, None);
                    }
                    Step::Forget(from, len) => {
                        snapshot.forget(&(from * P..(from + len) * P));
                        model.retain(|page, _| !(from..from + len).contains(page));
                    }
                    Step::Keep(from, len, mut present) => {
                        present.sort_unstable();
                        present.dedup();
                        let runs: Vec<Range> = present.iter().map(|page| page * P..(page + 1) * P).collect();
                        snapshot.forget_absent(&(from * P..(from + len) * P), &runs);
                        model.retain(|page, _| !(from..from + len).contains(page) || present.contains(page));
                    }
                    Step::Relocate(from, len) => {
                        // To where nothing is recorded, as a move's target is forgotten before.
                        let to = 1500;
                        snapshot.forget(&(to * P..(to + len) * P));
                        let pages = snapshot.take(&(from * P..(from + len) * P));
                        snapshot.put(to * P, pages);
                        model.retain(|page, _| !(to..to + len).contains(page));
                        for page in from..from + len {
                            if let Some(was) = model.remove(&page) {
                                model.insert(page - from + to, was);
                            }
                        }
                    }
                }
                for page in (490..540).chain(1495..1520) {
                    let expected = match model.get(&page) {
                        Some(Some(with)) => Before::Recorded(&[*with; PAGE]),
                        Some(None) => Before::Unknown,
                        None => Before::Unseen,
                    };
                    prop_assert_eq!(snapshot.before(page * P), expected);
                }
                let recorded = model.values().flatten().count() as u64;
                prop_assert_eq!(snapshot.recorded_bytes(), recorded * P);
            }
        }
    }
}
