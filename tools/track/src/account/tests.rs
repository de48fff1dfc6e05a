//! Counting against a plain model of a program: its stores, and mappings that come, go and move.

#![allow(clippy::single_range_in_vec_init)] // A list of one range is meant.

use super::*;
use crate::diff::Change;
use crate::maps::Mapping;
use crate::sight::Page;
use proptest::prelude::*;
use std::collections::BTreeMap;

const P: u64 = PAGE as u64;

/// A process of which everything is known: anonymous pages by number, `None` while nobody has
/// touched them.
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
    /// Its bytes at the last look, wherever it was then.
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
                    // Touched again before the next look, it is compared with what it held at the
                    // last.
                    memory.bytes = None;
                }
            }
            Step::Map(..) | Step::Look => {}
        }
    }

    /// The changes since the last look, page by page, and a tracker's view of them.
    fn look(&mut self, told: bool) -> (Vec<Change>, u64, Look) {
        let mut look = Look::default();
        let (mut changes, mut silent) = (Vec::new(), 0);
        for (&page, memory) in &mut self.pages {
            let mapping = Mapping {
                start: page * P,
                end: (page + 1) * P,
                read: true,
                write: true,
                execute: false,
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

    /// Any program's stores, with mappings that come, go and move: the count is of what changed.
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
