//! Changed lines of pages with parity, over simulated nodes that are killed, cut off, silent and
//! replaced.

#![allow(unsafe_code)] // Buffers of reads and writes.

mod common;

use common::{all_done, alloc, node, repaired};
use farmem_pool::stripes::code::Shape;
use farmem_pool::{Change, Lane, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES};
use farmem_protocol::lines::{LINE_BYTES, LINES};
use farmem_protocol::random::Random;
use farmem_sim::Network;
use farmem_sys::gf;
use farmem_sys::lines::{Hasher, Unit};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEED: [u8; 16] = [7; 16];

type Bytes = Box<[u8; PAGE_BYTES]>;

/// A program of one thread: its pool, and what its pages hold.
struct Program {
    networks: Vec<Arc<Network>>,
    pool: &'static Pool,
    shape: Shape,
    writes: Lane,
    reads: Lane,
    hasher: Hasher,
    random: Random,
    held: BTreeMap<FarSlot, Bytes>,
}

impl Program {
    fn new(data: u8, parity: u8, nodes: usize) -> Program {
        let (networks, pool) = common::pool(&vec![8; nodes]);
        let pool: &'static Pool = Box::leak(Box::new(pool));
        pool.protect_by_parity(Protect::Ec { data, parity }).unwrap();
        Program {
            networks,
            pool,
            shape: Shape { data: data as usize, parity: parity as usize },
            writes: Lane::new(),
            reads: Lane::new(),
            hasher: Hasher::new(&SEED, Unit::best()),
            random: Random::new(9),
            held: BTreeMap::new(),
        }
    }

    fn bytes(&mut self) -> Bytes {
        let mut page = Box::new([0; PAGE_BYTES]);
        page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.random.bits().to_le_bytes()));
        page
    }

    fn nth(&self, at: usize) -> FarSlot {
        *self.held.keys().nth(at % self.held.len()).unwrap()
    }

    fn end_writes(&mut self, tags: usize) {
        let mut done = all_done(self.pool, &mut self.writes);
        done.sort_by_key(|(tag, _)| *tag);
        assert_eq!(done, (0..tags).map(|tag| (tag as u64, Ok(0))).collect::<Vec<_>>());
    }

    /// Writes these slots whole.
    fn write(&mut self, slots: &[FarSlot]) {
        for (tag, &slot) in slots.iter().enumerate() {
            let page = self.bytes();
            let page = self.held.entry(slot).insert_entry(page).into_mut();
            // SAFETY: the page lives until the operation is done, which is awaited.
            unsafe { self.writes.write(self.pool, tag as u64, slot, 0, page.as_ptr(), PAGE_BYTES as u32) };
        }
        self.end_writes(slots.len());
    }

    /// New pages.
    fn grow(&mut self, n: usize) -> Vec<FarSlot> {
        let slots = alloc(self.pool, n);
        self.write(&slots);
        slots
    }

    /// Changes these lines of pages, all at once, each page once. `wrong`: the slots are said to
    /// hold other lines than they do.
    fn change(&mut self, pages: &[(FarSlot, u64)], wrong: bool) {
        for (tag, &(slot, lines)) in pages.iter().enumerate() {
            let new = self.bytes();
            let page = self.held.get_mut(&slot).unwrap();
            let was = self.hasher.sum_in(page, lines).wrapping_add(wrong as u64);
            for line in (0..LINES).filter(|line| lines >> line & 1 != 0) {
                let part = line * LINE_BYTES..(line + 1) * LINE_BYTES;
                page[part.clone()].copy_from_slice(&new[part]);
            }
            let change = Change { lines, was };
            // SAFETY: as above.
            unsafe { self.writes.change(self.pool, tag as u64, slot, page.as_ptr(), change, &SEED) };
        }
        self.end_writes(pages.len());
    }

    fn read(&mut self, slot: FarSlot) -> Bytes {
        let mut found = Box::new([0xEE; PAGE_BYTES]);
        // SAFETY: as above.
        unsafe { self.reads.read(self.pool, 9, slot, 0, found.as_mut_ptr(), PAGE_BYTES as u32) };
        assert_eq!(all_done(self.pool, &mut self.reads), [(9, Ok(0))]);
        found
    }

    /// Every page is as it was written, and all parity is of the bytes that its stripe has.
    fn check(&mut self) {
        let slots: Vec<FarSlot> = self.held.keys().copied().collect();
        for &slot in &slots {
            let found = self.read(slot);
            assert!(found == self.held[&slot], "{slot:?} has other bytes than were written");
        }
        let stripes = slots.iter().map(|slot| (self.pool.repair().beside(slot.slab_index()), slot.place()));
        for (members, place) in stripes.collect::<BTreeSet<_>>() {
            let seats: Vec<Bytes> = members.iter().map(|&index| self.read(FarSlot::new(index, place))).collect();
            for seat in self.shape.data..self.shape.seats() {
                let mut expected = [0; PAGE_BYTES];
                self.shape.encode(gf::Unit::best(), seat, |seat| &seats[seat][..], &mut expected);
                assert!(*seats[seat] == expected, "seat {seat} of {members:?}, place {place}: other parity");
            }
        }
    }

    /// The node of a slot's home.
    fn node_of(&self, slot: FarSlot) -> usize {
        self.pool.homes(slot.slab_index())[0].unwrap().0
    }

    fn kill(&self, node: usize) {
        self.networks[node].kill_node();
        assert_eq!(self.pool.losses().tend(), Ok(()));
    }

    fn sent(&mut self) -> u64 {
        self.writes.take_sent()
    }
}

#[test]
fn changed_lines_go_with_those_of_the_parity() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let mut program = Program::new(data, parity, (data + parity) as usize);
        let slots = program.grow(64 * data as usize);
        program.check();
        program.sent();
        // Single pages of a stripe, and several of one; lines beside each other, with a gap, at both
        // ends.
        let few = [(slots[0], 1 << 63 | 1), (slots[32], 0b1011), (slots[33], 1 << 20), (slots[5], 0b111 << 8)];
        program.change(&few, false);
        let (sent, met) = (program.sent(), program.writes.met());
        assert_eq!((met.changed, met.doubted), (3, 0), "two pages are of one stripe");
        // Ten lines, to the page and to each parity.
        assert!(sent < 2 * 10 * 64 * (1 + parity as u64), "{sent} bytes sent");
        program.check();
        // Two pages of one stripe: its parity has the lines of both.
        program.change(&[(slots[1], 6), (slots[33], 12)], false);
        assert_eq!(program.writes.met().changed, 4);
        program.check();
        // Every stripe at once, in more records than one for a seat.
        let all: Vec<_> = slots.iter().map(|&slot| (slot, 0x5555_5555)).collect();
        program.change(&all, false);
        assert_eq!((program.writes.met().changed, program.writes.met().doubted), (4 + 64, 0));
        program.check();
    }
}

/// What the node does not have as the page came in is not built upon.
#[test]
fn a_page_of_which_something_is_in_doubt_goes_whole() {
    let mut program = Program::new(2, 1, 3);
    let slots = program.grow(70);
    program.change(&[(slots[1], 3), (slots[40], 3)], true);
    assert_eq!((program.writes.met().changed, program.writes.met().doubted), (0, 2));
    program.check();
    // Much of the page; a stripe that was never written; a page beside one that is written whole.
    program.change(&[(slots[2], u64::MAX >> 30)], false);
    let fresh = alloc(program.pool, 1)[0];
    program.held.insert(fresh, Box::new([0; PAGE_BYTES]));
    program.change(&[(fresh, 9)], false);
    program.check();
    assert_eq!((program.writes.met().changed, program.writes.met().doubted), (0, 2));
}

#[test]
fn pages_without_a_home_are_kept_by_parity() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let mut program = Program::new(data, parity, (data + parity) as usize);
        let slots = program.grow(32 * data as usize);
        // Noticed by the change itself, in the midst of it or before.
        let gone = program.node_of(slots[0]);
        program.networks[gone].kill_node();
        program.change(&[(slots[0], 5), (slots[33], 5), (slots[1], 1 << 40)], false);
        program.check();
        program.change(&[(slots[0], 6), (slots[33], 6)], false);
        program.check();
        // Then it comes back elsewhere.
        let (network, session) = node(90, 8);
        program.networks.push(network);
        program.pool.add_node(session).unwrap();
        program.change(&[(slots[2], 7)], false);
        assert!(repaired(program.pool, &mut program.writes));
        let changed = program.writes.met().changed;
        program.change(&[(slots[0], 5), (slots[2], 7)], false);
        assert_eq!(program.writes.met().changed, changed + 2);
        program.check();
    }
}

/// A connection is cut at every moment of an update: what went before goes again.
#[test]
fn a_cut_at_any_moment_changes_nothing() {
    let mut program = Program::new(2, 1, 3);
    let slots = program.grow(64);
    for moment in 0..60 {
        let node = moment % 3;
        program.networks[node].plan_cuts([moment as u64 * 1_000]);
        program.change(&[(slots[moment], 0b1001), (slots[(moment + 32) % 64], 0b0110)], false);
        program.check();
    }
    assert!(program.writes.met().changed > 40 && program.writes.met().doubted == 0, "{:?}", program.writes.met());
    assert_eq!(program.pool.nodes().standing(0), Some(Standing::In));
}

#[derive(Clone, Debug)]
enum Step {
    Grow(u8),
    Write(Vec<u8>),
    Change(Vec<(u8, u64)>, bool),
    Free(Vec<u8>),
    Kill(u8),
    Cut(u8, u8),
    Join,
    Repair,
}

fn step() -> impl Strategy<Value = Step> {
    // Few lines mostly, and neighbours among them.
    let lines = prop_oneof![
        (any::<u64>(), 0..64u32).prop_map(|(some, by)| (some & 0xF).rotate_left(by) | 1 << by),
        any::<u64>().prop_map(|some| some | 1),
    ];
    prop_oneof![
        2 => (1..60u8).prop_map(Step::Grow),
        2 => prop::collection::vec(any::<u8>(), 1..30).prop_map(Step::Write),
        8 => (prop::collection::vec((any::<u8>(), lines), 1..40), prop::bool::weighted(0.1))
            .prop_map(|(pages, wrong)| Step::Change(pages, wrong)),
        1 => prop::collection::vec(any::<u8>(), 1..20).prop_map(Step::Free),
        1 => any::<u8>().prop_map(Step::Kill),
        2 => any::<(u8, u8)>().prop_map(|(node, after)| Step::Cut(node, after)),
        2 => Just(Step::Join),
        3 => Just(Step::Repair),
    ]
}

impl Program {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Grow(n) => {
                let mut slots = Vec::new();
                if self.pool.slots().alloc(*n as usize, &mut slots).is_ok() {
                    self.write(&slots);
                }
            }
            _ if self.held.is_empty() => {}
            Step::Write(which) => {
                let slots: BTreeSet<FarSlot> = which.iter().map(|&at| self.nth(at as usize)).collect();
                self.write(&slots.into_iter().collect::<Vec<_>>());
            }
            Step::Change(which, wrong) => {
                let pages: BTreeMap<FarSlot, u64> =
                    which.iter().map(|&(at, lines)| (self.nth(at as usize), lines)).collect();
                self.change(&pages.into_iter().collect::<Vec<_>>(), *wrong);
            }
            Step::Free(which) => {
                let slots: BTreeSet<FarSlot> = which.iter().map(|&at| self.nth(at as usize)).collect();
                slots.iter().for_each(|slot| drop(self.held.remove(slot)));
                self.pool.slots().free(&slots.into_iter().collect::<Vec<_>>());
            }
            Step::Kill(which) => {
                let standing = |node: &usize| self.pool.nodes().standing(*node) == Some(Standing::In);
                let alive: Vec<usize> = (0..self.networks.len()).filter(standing).collect();
                // A group that lacks seats, and has begun to fill others, bears less.
                let lacks = self.pool.repair().single_bytes() / SLAB_BYTES > 0 || self.pool.repair().lacks().is_some();
                if alive.len() > self.shape.data && !lacks {
                    self.kill(alive[*which as usize % alive.len()]);
                }
            }
            Step::Cut(which, after) => {
                let at = *which as usize % self.networks.len();
                self.networks[at].plan_cuts([u64::from(*after) * 500]);
            }
            Step::Join if self.networks.len() < 20 => {
                let (network, session) = node(self.networks.len() as u64 + 1, 8);
                self.networks.push(network);
                self.pool.add_node(session).unwrap();
            }
            Step::Join => {}
            Step::Repair => drop(repaired(self.pool, &mut self.writes)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is written whole or by lines, freed, cut, lost and repaired: every page is as it was
    /// written, and every parity is of its stripe's bytes, while no more nodes are lost at once than
    /// parity bears.
    #[test]
    fn every_page_is_as_it_was_changed(steps in prop::collection::vec(step(), 1..40), two in any::<bool>()) {
        let (data, parity) = if two { (3, 2) } else { (2, 1) };
        let mut program = Program::new(data, parity, (data + parity) as usize);
        program.grow(50);
        for step in steps {
            program.take(&step);
            program.check();
        }
    }
}
