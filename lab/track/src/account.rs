//! From looks to counts: the pure part.
//!
//! ```text
//! look (maps, pages there, pages read) ─► cover: kept, gone, fresh
//!                                            ├─► moves: gone and fresh that are the same memory
//!                                            ├─► snapshot: forget what is gone or not there any more
//!                                            └─► each page read: diff with the snapshot ─► counts ─► record
//! ```
//! All of it happens after the program was let go.

use std::collections::{BTreeSet, HashSet};

use crate::count::{Found, MappingId};
use crate::cover::{Cover, Part, Range, Unseen};
use crate::diff::{self, PAGE};
use crate::maps::{Behind, Mapping};
use crate::moves;
use crate::snapshot::{BLOCK, Before, Snapshot};

/// Which blocks are watched: all, or one in a power of two, chosen by a hash of their number, so that neither an
/// array's stride nor its place decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// A power of two.
    pub one_in: u64,
}

impl Watch {
    /// Everything.
    pub const ALL: Watch = Watch { one_in: 1 };

    /// Whether a block, by its number, is watched.
    pub fn watches(self, block: u64) -> bool {
        // Fibonacci hashing: the product's high bits mix all of the number.
        self.one_in == 1 || (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).is_multiple_of(self.one_in)
    }

    /// Cuts a range into what of it is watched.
    pub fn cut(self, range: &Range) -> Vec<Range> {
        if self.one_in == 1 {
            return vec![range.clone()];
        }
        let blocks = (range.start / BLOCK..range.end.div_ceil(BLOCK)).filter(|&block| self.watches(block));
        blocks.map(|block| (block * BLOCK).max(range.start)..((block + 1) * BLOCK).min(range.end)).collect()
    }
}

/// A page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its address.
    pub address: u64,
    /// Its protection told that it was written since the last look.
    pub told: bool,
}

/// What was seen of a process while it stood.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// Pages that are there, in memory or in swap, in the watched part of tracked mappings, in order.
    pub present: Vec<Range>,
    /// Pages that were read, in order.
    pub pages: Vec<Page>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Pages that may have been written, and were not read.
    pub missed: Vec<Range>,
}

/// What is known of a process.
#[derive(Default)]
pub struct Process {
    cover: Cover,
    snapshot: Snapshot,
}

impl Process {
    /// Begins with a first look: what is there is recorded if it was read, and unknown otherwise; nothing is counted.
    pub fn begin(look: &Look) -> Process {
        let mut process = Process::default();
        process.cover.advance(look.mappings.clone());
        for address in look.present.iter().flat_map(|run| run.clone().step_by(PAGE)) {
            process.snapshot.lose(address);
        }
        for (page, bytes) in look.pages.iter().zip(look.bytes.as_chunks::<PAGE>().0) {
            process.snapshot.record(page.address, bytes);
        }
        process
    }

    /// Records what a page holds that was unknown.
    pub fn learn(&mut self, address: u64, bytes: &[u8; PAGE]) {
        self.snapshot.record(address, bytes);
    }

    /// Bytes recorded of it.
    pub fn recorded_bytes(&self) -> u64 {
        self.snapshot.recorded_bytes()
    }

    /// From now on only these blocks are watched.
    pub fn narrow(&mut self, watch: Watch) {
        self.snapshot.retain_blocks(|block| watch.watches(block));
    }

    /// Counts what changed between the last look and this one, at which `watch` was watched.
    pub fn advance(&mut self, id: u32, look: &Look, watch: Watch) -> Found {
        let advanced = self.cover.advance(look.mappings.clone());
        let bytes = look.bytes.as_chunks::<PAGE>().0;
        let mut moved = Vec::new();
        if !advanced.gone.is_empty() && !advanced.fresh.is_empty() {
            let fresh = look.pages.iter().zip(bytes).filter(|(page, _)| within(&advanced.fresh, page.address));
            let fresh = fresh.map(|(page, bytes)| (page.address, bytes));
            for found in moves::find(&self.snapshot, &advanced.gone, &advanced.fresh, fresh) {
                moved.push((found.target(), self.snapshot.take(&found.from)));
            }
        }
        // Before moved pages are put in their places: one may lie where another was.
        advanced.gone.iter().for_each(|range| self.snapshot.forget(range));
        for (there, pages) in moved {
            self.snapshot.put(there.start, pages);
            if watch.one_in > 1 {
                // Where it was, not all of it was watched.
                self.lose_unseen(look.pages.iter().map(|page| page.address).filter(|at| there.contains(at)));
            }
        }
        // Dropped by the program itself, with MADV_DONTNEED for one: zeros again.
        for part in self.cover.tracked().filter(|part| part.unseen == Unseen::Zeros) {
            self.snapshot.forget_absent(&part.range, &look.present);
        }
        self.count(id, look)
    }

    fn lose_unseen(&mut self, pages: impl Iterator<Item = u64>) {
        for page in pages {
            if self.snapshot.before(page) == Before::Unseen {
                self.snapshot.lose(page);
            }
        }
    }

    fn count(&mut self, id: u32, look: &Look) -> Found {
        let pages = |ranges: &[Range]| ranges.iter().map(|range| (range.end - range.start) / PAGE as u64).sum();
        let mut found = Found { present: pages(&look.present), missed: pages(&look.missed), ..Found::default() };
        let (mut blocks, mut far_blocks) = (HashSet::new(), HashSet::new());
        let mut of_mappings = BTreeSet::new();
        for (page, after) in look.pages.iter().zip(look.bytes.as_chunks::<PAGE>().0) {
            let Some(part) = self.cover.part(page.address) else { continue };
            let before = self.snapshot.before(page.address);
            let Some(was) = before.bytes(part.unseen) else {
                found.begun += 1;
                self.snapshot.record(page.address, after);
                continue;
            };
            let change = diff::page(was, after);
            let seen = before != Before::Unseen;
            if change.bytes == 0 {
                if page.told && seen {
                    found.by_mapping.entry(mapping_id(id, &self.cover, part)).or_default().silent += 1;
                }
                continue;
            }
            let mapping = mapping_id(id, &self.cover, part);
            let block = page.address / BLOCK;
            blocks.insert(block);
            if mapping.far {
                far_blocks.insert(block);
            }
            of_mappings.insert((mapping.clone(), block));
            found.by_mapping.entry(mapping).or_default().add(change);
            self.snapshot.record(page.address, after);
        }
        for (mapping, _) in of_mappings {
            found.by_mapping.entry(mapping).or_default().blocks += 1;
        }
        for address in look.missed.iter().flat_map(|range| range.clone().step_by(PAGE)) {
            self.snapshot.lose(address);
        }
        (found.blocks, found.far_blocks) = (blocks.len() as u64, far_blocks.len() as u64);
        found
    }
}

impl Found {
    /// Counts the pages that protection told of, whatever is in them now. They have no lines and no bytes.
    pub fn pages_only(id: u32, look: &Look) -> Found {
        let mut found = Found::default();
        let mut blocks = BTreeSet::new();
        let mut cover = Cover::default();
        cover.advance(look.mappings.clone());
        for page in &look.pages {
            let Some(part) = cover.part(page.address) else { continue };
            let mapping = mapping_id(id, &cover, part);
            blocks.insert((mapping.clone(), page.address / BLOCK));
            found.by_mapping.entry(mapping).or_default().pages += 1;
        }
        let distinct = |far: fn(&MappingId) -> bool| {
            let of = blocks.iter().filter(|(id, _)| far(id)).map(|(_, block)| block);
            of.collect::<BTreeSet<_>>().len() as u64
        };
        (found.blocks, found.far_blocks) = (distinct(|_| true), distinct(|id| id.far));
        for (mapping, _) in blocks {
            found.by_mapping.entry(mapping).or_default().blocks += 1;
        }
        found
    }
}

/// Whether ranges, in order, have this address.
fn within(ranges: &[Range], address: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= address);
    ranges.get(at).is_some_and(|range| range.contains(&address))
}

fn mapping_id(process: u32, cover: &Cover, part: &Part) -> MappingId {
    let mapping = &cover.mappings()[part.mapping];
    let named = !mapping.name.is_empty();
    MappingId {
        process,
        name: mapping.to_string(),
        start: if named { 0 } else { mapping.start },
        far: mapping.behind == Behind::Anonymous,
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // A list of one range is meant.
mod tests {
    use super::*;
    use crate::diff::Change;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const P: u64 = PAGE as u64;

    /// A process of which everything is known: anonymous pages by number, `None` while nobody has touched them.
    #[derive(Clone, Default)]
    struct Model {
        pages: BTreeMap<u64, Memory>,
        stores: u64,
        /// Mapped or moved since the last look.
        changed: bool,
    }

    #[derive(Clone, Default)]
    struct Memory {
        bytes: Option<Box<[u8; PAGE]>>,
        /// What it held at the last look, wherever it was then.
        before: Option<Box<[u8; PAGE]>>,
        written: bool,
        /// By this page its move will be known: it stays as it is until the next look.
        witness: bool,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Map(u64, u64),
        Unmap(u64, u64),
        Remap(u64, u64, u64),
        Store(u64, usize, usize),
        Silent(u64),
        Drop(u64),
        Look,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (page, len) = (0..40_u64, 1..10_u64);
        prop_oneof![
            1 => (page.clone(), len.clone()).prop_map(|(at, len)| Step::Map(at, len)),
            1 => (page.clone(), len.clone()).prop_map(|(at, len)| Step::Unmap(at, len)),
            1 => (page.clone(), len, 50..80_u64).prop_map(|(from, len, to)| Step::Remap(from, len, to)),
            9 => (0..80_u64, 0..PAGE, 1..300_usize).prop_map(|(page, at, len)| Step::Store(page, at, len)),
            1 => (0..80_u64).prop_map(Step::Silent),
            1 => (0..80_u64).prop_map(Step::Drop),
            3 => Just(Step::Look),
        ]
    }

    impl Model {
        fn apply(&mut self, step: &Step, unmapped: &mut Vec<u64>) {
            match *step {
                // Not where something else was in this window: two looks cannot tell such pages apart.
                Step::Map(at, len) if !self.changed => {
                    for page in (at..at + len).filter(|page| !unmapped.contains(page)) {
                        self.pages.entry(page).or_default();
                    }
                }
                Step::Unmap(at, len) => (at..at + len).for_each(|page| {
                    if self.pages.remove(&page).is_some() {
                        unmapped.push(page);
                    }
                }),
                Step::Remap(from, len, to) => {
                    let whole = (from..from + len).all(|page| self.pages.contains_key(&page));
                    let free = (to..to + len).all(|page| !self.pages.contains_key(&page) && !unmapped.contains(&page));
                    let witness = (from..from + len).find(|page| {
                        let still = |memory: &Memory| memory.before.is_some() && memory.before == memory.bytes;
                        self.pages.get(page).is_some_and(still)
                    });
                    if let Some(witness) = witness.filter(|_| whole && free && !self.changed) {
                        self.changed = true;
                        self.pages.get_mut(&witness).unwrap().witness = true;
                        for page in 0..len {
                            let moved = self.pages.remove(&(from + page)).unwrap();
                            unmapped.push(from + page);
                            self.pages.insert(to + page, Memory { written: true, ..moved });
                        }
                    }
                }
                Step::Store(page, at, len) => {
                    self.stores += 1;
                    let stored = self.stores.to_ne_bytes();
                    if let Some(memory) = self.pages.get_mut(&page).filter(|memory| !memory.witness) {
                        memory.written = true;
                        let bytes = memory.bytes.get_or_insert_with(|| Box::new([0; PAGE]));
                        // Content of its own for every page, by which a move is known.
                        bytes[at..(at + len).min(PAGE)].fill_with({
                            let mut n = at;
                            move || {
                                n += 1;
                                stored[n % 4] ^ n as u8
                            }
                        });
                        bytes[..8].copy_from_slice(&stored);
                    }
                }
                Step::Silent(page) => {
                    if let Some(memory) = self.pages.get_mut(&page).filter(|memory| memory.bytes.is_some()) {
                        memory.written = true;
                    }
                }
                Step::Drop(page) => {
                    if let Some(memory) = self.pages.get_mut(&page).filter(|memory| !memory.witness) {
                        // Touched again before the next look, it is compared with what it held at the last.
                        memory.bytes = None;
                    }
                }
                Step::Map(..) | Step::Look => {}
            }
        }

        /// What changed since the last look, page by page, and what a tracker sees.
        fn look(&mut self, told: bool) -> (Vec<Change>, u64, Look) {
            let mut look = Look::default();
            let (mut changes, mut silent) = (Vec::new(), 0);
            for (&page, memory) in &mut self.pages {
                let mapping = Mapping {
                    start: page * P,
                    end: (page + 1) * P,
                    read: true,
                    write: true,
                    behind: Behind::Anonymous,
                    name: String::new(),
                };
                match look.mappings.last_mut() {
                    Some(last) if last.end == mapping.start => last.end = mapping.end,
                    _ => look.mappings.push(mapping),
                }
                if let Some(bytes) = &memory.bytes {
                    look.present.push(page * P..(page + 1) * P);
                    if memory.written || !told {
                        look.pages.push(Page { address: page * P, told: told && memory.written });
                        look.bytes.extend_from_slice(&**bytes);
                    }
                    let zeros = Box::new([0; PAGE]);
                    let change = diff::page(memory.before.as_ref().unwrap_or(&zeros), bytes);
                    if change.bytes > 0 {
                        changes.push(change);
                    } else if memory.written && memory.before.is_some() {
                        silent += 1;
                    }
                }
                memory.before.clone_from(&memory.bytes);
                (memory.written, memory.witness) = (false, false);
            }
            self.changed = false;
            (changes, silent, look)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Any program's stores, with mappings that come, go and move: what is counted is what changed.
        #[test]
        fn what_is_counted_is_what_changed(steps in prop::collection::vec(step(), 1..150), told: bool) {
            let mut model = Model::default();
            let mut unmapped = Vec::new();
            let mut process = Process::begin(&Look::default());
            for step in steps {
                model.apply(&step, &mut unmapped);
                if let Step::Look = step {
                    let (changes, silent, look) = model.look(told);
                    let found = process.advance(1, &look, Watch::ALL);
                    let mut total = crate::count::Tally::default();
                    found.by_mapping.values().for_each(|tally| total.merge(tally));
                    prop_assert_eq!(total.pages, changes.len() as u64);
                    let lines: u32 = changes.iter().map(|change| change.lines.count_ones()).sum();
                    prop_assert_eq!(total.lines, u64::from(lines));
                    prop_assert_eq!(total.bytes, changes.iter().map(|change| u64::from(change.bytes)).sum::<u64>());
                    if told {
                        prop_assert_eq!(total.silent, silent);
                    }
                    prop_assert_eq!((found.begun, found.missed), (0, 0));
                    unmapped.clear();
                }
            }
        }
    }

    #[test]
    fn what_is_there_at_first_is_not_counted() {
        let mut model = Model::default();
        model.apply(&Step::Map(0, 4), &mut Vec::new());
        model.apply(&Step::Store(1, 0, 100), &mut Vec::new());
        let (_, _, look) = model.look(true);
        let mut unread = Process::begin(&Look { pages: Vec::new(), bytes: Vec::new(), ..look.clone() });
        let mut read = Process::begin(&look);
        model.apply(&Step::Store(1, 512, 10), &mut Vec::new());
        model.apply(&Step::Store(2, 64, 10), &mut Vec::new());
        let (_, _, look) = model.look(true);
        let (unread, read) = (unread.advance(1, &look, Watch::ALL), read.advance(1, &look, Watch::ALL));
        assert_eq!((unread.begun, unread.by_mapping.values().map(|tally| tally.pages).sum::<u64>()), (1, 1));
        assert_eq!((read.begun, read.by_mapping.values().map(|tally| tally.pages).sum::<u64>()), (0, 2));
    }

    #[test]
    fn a_page_that_was_missed_is_begun_anew() {
        let mut model = Model::default();
        model.apply(&Step::Map(0, 4), &mut Vec::new());
        model.apply(&Step::Store(1, 0, 100), &mut Vec::new());
        let mut process = Process::begin(&model.look(true).2);
        let store = |model: &mut Model| {
            model.apply(&Step::Store(1, 512, 10), &mut Vec::new());
            model.look(true).2
        };
        let look = store(&mut model);
        let missed = Look { pages: Vec::new(), bytes: Vec::new(), missed: vec![P..2 * P], ..look };
        assert_eq!(process.advance(1, &missed, Watch::ALL).missed, 1);
        let found = process.advance(1, &store(&mut model), Watch::ALL);
        assert_eq!((found.begun, found.by_mapping.len()), (1, 0), "it may be two windows' stores");
        let found = process.advance(1, &store(&mut model), Watch::ALL);
        assert_eq!((found.begun, found.by_mapping.values().map(|tally| tally.lines).sum::<u64>()), (0, 2));
    }

    #[test]
    fn about_one_block_in_so_many_is_watched() {
        let watch = Watch { one_in: 8 };
        let watched = (0..8000).filter(|&block| watch.watches(block)).count();
        assert!((900..1100).contains(&watched), "{watched}");
        let cut = watch.cut(&(3 * BLOCK + 4096..90 * BLOCK + 4096));
        assert!(cut.iter().all(|range| watch.watches(range.start / BLOCK) && range.end - range.start <= BLOCK));
    }
}
