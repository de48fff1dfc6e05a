//! Lanes over simulated nodes: one completion for each operation, whichever home served it, and
//! `Lost` only when no home is left. At the end a plain model: a map from slots to numbers.

#![allow(unsafe_code)] // Buffers of reads and writes.

mod common;

use common::{all_done, alloc, fill, leave_once, mirror, node_in, page, pool, read, repaired, write};
use farmem_pool::homes::State;
use farmem_pool::{By, Lane, Piece, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES};
use farmem_protocol::lines::{self, Entry};
use farmem_sim::Network;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn each_operation_over_several_nodes_is_done_once() {
    let (_networks, pool) = pool(&[1, 1, 1]);
    pool.slots().ensure(3 * SLAB_BYTES).unwrap();
    let slots: Vec<FarSlot> = alloc(&pool, 3 * 16384).into_iter().step_by(1024).collect();
    let mut lane = Lane::new();
    let pages: Vec<_> = (0..slots.len() as u64).map(page).collect();
    for (tag, &slot) in slots.iter().enumerate() {
        // SAFETY: the pages outlive the operations, which are awaited.
        unsafe { lane.write(&pool, tag as u64, slot, 0, pages[tag].as_ptr().cast(), PAGE_BYTES as u32) };
    }
    let mut tags: Vec<u64> = all_done(&pool, &mut lane).into_iter().map(|(tag, done)| (done.unwrap(), tag).1).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..slots.len() as u64).collect::<Vec<_>>());
    let mut found: Vec<_> = slots.iter().map(|_| page(1 << 40)).collect();
    for (tag, &slot) in slots.iter().enumerate() {
        // SAFETY: as above.
        unsafe { lane.read(&pool, tag as u64, slot, 0, found[tag].as_mut_ptr().cast(), PAGE_BYTES as u32) };
    }
    assert_eq!(all_done(&pool, &mut lane).len(), slots.len());
    assert_eq!(found, pages);
}

/// A node that is stopped holds nobody up who waits for another.
#[test]
fn waiting_for_any_returns_with_the_first() {
    let (networks, pool) = pool(&[1, 1]);
    pool.slots().ensure(2 * SLAB_BYTES).unwrap();
    let slots = alloc(&pool, 2 * 16384);
    let at = |node: usize| {
        *slots.iter().find(|slot| pool.homes(slot.slab_index())[0].is_some_and(|(at, _)| at == node)).unwrap()
    };
    let (mut lane, mut found) = (Lane::new(), [page(0), page(0)]);
    for node in 0..2 {
        write(&pool, &mut lane, at(node), 5).unwrap();
    }
    networks[0].stop_node(5_000_000_000);
    for (tag, found) in found.iter_mut().enumerate() {
        // SAFETY: the pages outlive the operations, which are awaited.
        unsafe { lane.read(&pool, tag as u64, at(tag), 0, found.as_mut_ptr().cast(), PAGE_BYTES as u32) };
    }
    lane.doorbell(&pool);
    let mut done = Vec::new();
    while done.is_empty() {
        lane.wait(&pool, &mut done, Duration::from_secs(1));
    }
    assert_eq!((done[0].tag, lane.in_flight()), (1, 1));
    assert!(networks.iter().all(|network| network.now_ns() < 1_000_000_000), "the stopped node was waited for");
    all_done(&pool, &mut lane);
}

#[test]
fn a_home_that_is_lost_in_mid_operation_is_not_noticed() {
    for dies in [0, 1] {
        let (networks, pool) = pool(&[2, 2]);
        let slots = alloc(&pool, 64);
        let (mut writes, mut reads) = (Lane::new(), Lane::new());
        for (value, &slot) in slots.iter().enumerate() {
            write(&pool, &mut writes, slot, value as u64).unwrap();
        }
        assert!(mirror(&pool, &mut writes, slots[0].slab_index()));
        read(&pool, &mut reads, slots[0]).unwrap();
        // Posted, and the home dies before an answer.
        let pages: Vec<_> = (0..32).map(|value| page(value + 100)).collect();
        let mut found: Vec<_> = (0..32).map(|_| page(0)).collect();
        for tag in 0..32 {
            // SAFETY: the pages outlive the operations, which are awaited.
            unsafe {
                writes.write(&pool, tag as u64, slots[tag], 0, pages[tag].as_ptr().cast(), PAGE_BYTES as u32);
                reads.read(&pool, tag as u64, slots[32 + tag], 0, found[tag].as_mut_ptr().cast(), PAGE_BYTES as u32);
            }
        }
        writes.doorbell(&pool);
        reads.doorbell(&pool);
        networks[dies].kill_node();
        for lane in [&mut writes, &mut reads] {
            let done = all_done(&pool, lane);
            assert!(done.len() == 32 && done.iter().all(|(_, done)| done.is_ok()), "{done:?}");
        }
        for (nth, &slot) in slots.iter().enumerate() {
            let value = if nth < 32 { nth as u64 + 100 } else { nth as u64 };
            assert_eq!(read(&pool, &mut reads, slot), Ok(value));
        }
        assert!((0..32).all(|nth| found[nth] == page(nth as u64 + 32)));
        assert_eq!(pool.losses().tend(), Ok(()));
        let losses = pool.losses().take();
        assert!(losses.len() == 1 && losses[0].slabs == 1 && !losses[0].kept, "{losses:?}");
        assert!(pool.losses().take().is_empty());
        // The last one, too.
        networks[1 - dies].kill_node();
        assert!(read(&pool, &mut reads, slots[0]).is_err_and(|lost| lost.node == "sim"));
        assert!(write(&pool, &mut writes, slots[0], 1).is_err() && pool.losses().tend().is_err());
    }
}

/// A home that is being filled serves what it has, and takes what is written.
#[test]
fn a_filling_home_has_what_was_written_since() {
    let (networks, pool) = pool(&[2, 2]);
    let slots = alloc(&pool, 20);
    let (mut lane, index) = (Lane::new(), slots[0].slab_index());
    slots.iter().for_each(|&slot| assert_eq!(write(&pool, &mut lane, slot, 1), Ok(0)));
    pool.moves().add_home(index).unwrap();
    let first = pool.homes(index)[0].unwrap().0;
    assert_eq!(pool.homes(index), [Some((first, State::Whole)), Some((1 - first, State::Filling))]);
    assert_eq!((pool.takes_lines(slots[3]), pool.moves().next_stale(index, 1, 0)), (None, Some(slots[0])));
    slots[..10].iter().for_each(|&slot| assert_eq!(write(&pool, &mut lane, slot, 2), Ok(0)));
    assert_eq!(pool.takes_lines(slots[3]), Some(By::Records));
    // A part of a page is of no use where the rest is not: the slot stays stale.
    let part = [9u64; 8];
    // SAFETY: the bytes outlive the operation, which is awaited.
    unsafe { lane.write(&pool, 1, slots[15], 64, part.as_ptr().cast(), 64) };
    all_done(&pool, &mut lane);
    assert_eq!(pool.moves().next_stale(index, 1, 0), Some(slots[10]));
    assert!(!pool.moves().end_filling(index, 1) && !pool.moves().drop_home(&mut lane, index, 0));
    leave_once(&pool);
    assert!(fill(&pool, &mut lane, index, 1));
    assert!(pool.moves().drop_home(&mut lane, index, 0));
    assert_eq!((pool.homes(index), networks[first].lent()), ([Some((1 - first, State::Whole)), None], SLAB_BYTES));
    leave_once(&pool);
    assert_eq!(networks[first].lent(), 0);
    networks[first].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    for (nth, &slot) in slots.iter().enumerate().filter(|(nth, _)| *nth != 15) {
        assert_eq!(read(&pool, &mut lane, slot), Ok(if nth < 10 { 2 } else { 1 }), "{nth}");
    }
}

/// A piece that is to end early has copied what it posted, and the next one goes on behind it.
#[test]
fn a_piece_ends_when_it_is_told_to() {
    let (networks, pool) = pool(&[2, 2]);
    let slots = alloc(&pool, 20);
    let (mut lane, index) = (Lane::new(), slots[0].slab_index());
    slots.iter().enumerate().for_each(|(n, &slot)| assert_eq!(write(&pool, &mut lane, slot, n as u64), Ok(0)));
    pool.moves().add_home(index).unwrap();
    leave_once(&pool);
    let first = pool.homes(index)[0].unwrap().0;
    let mut buffers = vec![0_u8; 16 * PAGE_BYTES];
    let mut copied = |from: u32, under_way: u32, asked: u32| {
        let mut left = asked;
        let goes_on = &mut || {
            left = left.saturating_sub(1);
            left > 0
        };
        let piece = Piece { pages: 16, under_way, goes_on };
        // SAFETY: the buffers outlive the call, and nothing is under way.
        let filled = unsafe { lane.fill(&pool, index, 1, from, buffers.as_mut_ptr(), piece) };
        assert_eq!(lane.in_flight(), 0);
        filled.map(|filled| (filled.next, filled.pages))
    };
    let places = slots.iter().map(|slot| slot.place());
    assert!(places.eq(0..20), "a fresh slab");
    assert_eq!(copied(0, 2, 6), Some((6, 6)));
    assert_eq!(pool.moves().next_stale(index, 1, 0), Some(slots[6]));
    assert_eq!(copied(6, 4, 0), Some((7, 1)), "one page at least");
    assert_eq!(copied(7, 0, 4), Some((11, 4)), "one at a time at least");
    assert_eq!(copied(11, 64, 64), Some((20, 9)));
    assert_eq!(copied(20, 4, 4), None);
    assert!(pool.moves().end_filling(index, 1) && pool.moves().drop_home(&mut lane, index, 0));
    leave_once(&pool);
    networks[first].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    for (n, &slot) in slots.iter().enumerate() {
        assert_eq!(read(&pool, &mut lane, slot), Ok(n as u64));
    }
}

/// One record of lines goes to both homes, made for each.
#[test]
fn lines_reach_every_home() {
    let (networks, pool) = pool(&[2, 2]);
    let slots = alloc(&pool, 4);
    let (mut lane, index) = (Lane::new(), slots[0].slab_index());
    slots.iter().for_each(|&slot| assert_eq!(write(&pool, &mut lane, slot, 1), Ok(0)));
    assert!(mirror(&pool, &mut lane, index));
    let (line, mut buffers) = (page(77), [[0u8; 4096]; 2]);
    // SAFETY: a page of bytes.
    let bytes = unsafe { &*line.as_ptr().cast::<[u8; PAGE_BYTES]>() };
    let entries: Vec<Entry> =
        slots[1..3].iter().map(|slot| Entry { place: (slot.place() as u16).into(), lines: 1.into() }).collect();
    let mut made = 0;
    // SAFETY: the buffers outlive the operation, which is awaited.
    unsafe {
        let at = buffers.as_mut_ptr();
        lane.lines(&pool, 3, slots[1..3].iter().map(|&slot| (slot, line.as_ptr().cast())), false, |slab| {
            let buffer = &mut *at.add(made);
            made += 1;
            let len = lines::encode(slab, &entries, buffer, |_| bytes)?;
            Some((buffer.as_ptr(), len as u32))
        });
    }
    assert_eq!(all_done(&pool, &mut lane), [(3, Ok(0))]);
    assert_eq!(made, 2);
    for dies in [0, 1] {
        let mut found = page(0);
        for (nth, &slot) in slots.iter().enumerate() {
            // SAFETY: as above.
            unsafe { lane.read(&pool, 0, slot, 0, found.as_mut_ptr().cast(), PAGE_BYTES as u32) };
            assert!(all_done(&pool, &mut lane)[0].1.is_ok());
            let changed = (1..3).contains(&nth);
            assert_eq!(found[..8], if changed { page(77) } else { page(1) }[..8], "{nth}");
            assert_eq!(found[8..], page(1)[8..], "{nth}");
        }
        if dies == 0 {
            networks[pool.homes(index)[0].unwrap().0].kill_node();
        }
    }
}

/// A cut that heals is nobody's loss.
#[test]
fn cuts_lose_nothing() {
    let (networks, pool) = pool(&[1, 1]);
    pool.slots().ensure(2 * SLAB_BYTES).unwrap();
    let slots: Vec<FarSlot> = alloc(&pool, 2 * 16384).into_iter().step_by(2000).collect();
    let mut lane = Lane::new();
    for round in 0..5 {
        for (nth, &slot) in slots.iter().enumerate() {
            assert!(write(&pool, &mut lane, slot, round * 100 + nth as u64).is_ok());
            networks[nth % 2].cut_and_lose();
        }
        for (nth, &slot) in slots.iter().enumerate() {
            assert_eq!(read(&pool, &mut lane, slot), Ok(round * 100 + nth as u64));
        }
    }
    assert_eq!(pool.losses().tend(), Ok(()));
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    Free(usize, usize),
    Write(usize, u64),
    Read(usize),
    Mirror(usize),
    DropHome(usize, usize),
    AddNode,
    TakeOut(usize),
    Kill(usize),
    Cut(usize),
    Stop(usize),
    Repair,
    KeepHouse,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..3000usize).prop_map(Step::Alloc),
        3 => (any::<usize>(), 1..4000usize).prop_map(|(at, n)| Step::Free(at, n)),
        8 => (any::<usize>(), 1..1_000_000u64).prop_map(|(at, value)| Step::Write(at, value)),
        8 => any::<usize>().prop_map(Step::Read),
        3 => any::<usize>().prop_map(Step::Mirror),
        2 => (any::<usize>(), 0..2usize).prop_map(|(at, home)| Step::DropHome(at, home)),
        1 => Just(Step::AddNode),
        1 => any::<usize>().prop_map(Step::TakeOut),
        2 => any::<usize>().prop_map(Step::Kill),
        2 => any::<usize>().prop_map(Step::Cut),
        2 => any::<usize>().prop_map(Step::Stop),
        2 => Just(Step::Repair),
        2 => Just(Step::KeepHouse),
    ]
}

/// A pool, and what is in its slots. 0: nothing was written yet.
struct Model {
    pool: &'static Pool,
    networks: Vec<Arc<Network>>,
    dead: Vec<bool>,
    writes: Lane,
    reads: Lane,
    slots: Vec<FarSlot>,
    values: BTreeMap<FarSlot, u64>,
}

impl Model {
    fn new(protect: Protect) -> Model {
        let (networks, pool) = pool(&[2, 2, 2]);
        let pool: &'static Pool = Box::leak(Box::new(pool));
        pool.protect(protect);
        let dead = vec![false; networks.len()];
        let (writes, reads) = (Lane::new(), Lane::new());
        Model { pool, networks, dead, writes, reads, slots: Vec::new(), values: BTreeMap::new() }
    }

    fn slot(&self, at: usize) -> Option<FarSlot> {
        (!self.slots.is_empty()).then(|| self.slots[at % self.slots.len()])
    }

    /// Whether every slab with a live slot has a whole home at another node that lives.
    fn can_do_without(&self, node: usize) -> bool {
        self.slots.iter().map(|slot| slot.slab_index()).collect::<std::collections::BTreeSet<_>>().into_iter().all(
            |index| {
                let lives = |at: usize| at != node && !self.dead[at];
                self.pool.homes(index).iter().flatten().any(|(at, state)| lives(*at) && *state == State::Whole)
            },
        )
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Alloc(n) => {
                let mut more = Vec::new();
                if self.pool.slots().alloc(n, &mut more).is_ok() {
                    assert!(more.iter().all(|slot| !self.values.contains_key(slot)), "a slot is handed out twice");
                    self.values.extend(more.iter().map(|&slot| (slot, 0)));
                    self.slots.extend(more);
                } else {
                    assert!(more.is_empty(), "all or none");
                }
            }
            Step::Free(at, n) if !self.slots.is_empty() => {
                let from = at % self.slots.len();
                let freed: Vec<FarSlot> = self.slots.drain(from..(from + n).min(self.slots.len())).collect();
                freed.iter().for_each(|slot| assert!(self.values.remove(slot).is_some()));
                self.pool.slots().free(&freed);
            }
            Step::Write(at, value) => {
                // As the pager does it: what may not be overwritten takes another slot.
                let Some(slot) = self.slot(at).filter(|&slot| self.pool.is_own(slot)) else { return };
                assert_eq!(write(self.pool, &mut self.writes, slot, value), Ok(0));
                self.values.insert(slot, value);
            }
            Step::Read(at) => {
                let Some(slot) = self.slot(at) else { return };
                self.check(slot);
            }
            Step::Mirror(at) => {
                let Some(slot) = self.slot(at) else { return };
                mirror(self.pool, &mut self.writes, slot.slab_index());
            }
            Step::DropHome(at, home) => {
                let Some(slot) = self.slot(at) else { return };
                // The pool may not have noticed yet that the other home's node is dead.
                let node = self.pool.homes(slot.slab_index())[home].map(|(node, _)| node);
                if node.is_some_and(|node| !self.can_do_without(node)) {
                    return;
                }
                self.pool.moves().drop_home(&mut self.writes, slot.slab_index(), home);
                leave_once(self.pool);
            }
            Step::AddNode if self.networks.len() < 8 => {
                let number = self.networks.len();
                let (network, session) = node_in(number as u64 + 1, 2, ["a", "b"][number % 2]);
                let number = self.pool.add_node(session).unwrap();
                // That of a node that has ended, or a new one.
                assert!(number <= self.networks.len());
                match self.networks.get_mut(number) {
                    Some(ended) => {
                        assert_eq!(ended.lent() * u64::from(!self.dead[number]), 0);
                        (*ended, self.dead[number]) = (network, false);
                    }
                    None => {
                        self.networks.push(network);
                        self.dead.push(false);
                    }
                }
            }
            Step::TakeOut(at) => {
                let at = at % self.networks.len();
                self.pool.take_out(at);
            }
            Step::Kill(at) => {
                let at = at % self.networks.len();
                if !self.dead[at] && self.can_do_without(at) {
                    self.networks[at].kill_node();
                    self.dead[at] = true;
                }
            }
            Step::Cut(at) => {
                let at = at % self.networks.len();
                if !self.dead[at] {
                    self.networks[at].cut_and_lose();
                }
            }
            Step::Stop(at) => {
                let at = at % self.networks.len();
                if !self.dead[at] {
                    self.networks[at].stop_node(5_000_000_000);
                }
            }
            Step::Repair => {
                repaired(self.pool, &mut self.writes);
            }
            Step::KeepHouse => {
                for _ in 0..3 {
                    assert_eq!(self.pool.losses().tend(), Ok(()));
                    // A refusal counts from the first time it is seen.
                    self.networks.iter().for_each(|network| network.pass(600_000_000));
                    self.pool.slots().give_back_idle();
                }
                self.pool.slots().shrink(0);
            }
            Step::Free(..) | Step::AddNode => {}
        }
        // A node that was given up is as good as dead.
        for number in 0..self.dead.len() {
            self.dead[number] |= self.pool.nodes().standing(number) == Some(Standing::Lost);
        }
    }

    fn check(&mut self, slot: FarSlot) {
        let expected = self.values[&slot];
        let found = read(self.pool, &mut self.reads, slot);
        if expected != 0 {
            assert_eq!(found, Ok(expected));
        }
    }

    fn end(mut self) {
        for slot in self.slots.clone().into_iter().step_by(37) {
            self.check(slot);
        }
        let written: Vec<FarSlot> =
            self.values.iter().filter(|(_, value)| **value != 0).map(|(slot, _)| *slot).collect();
        written.into_iter().for_each(|slot| self.check(slot));
        assert_eq!(self.pool.slots().used(), self.slots.len() as u64 * 4096);
        // Nothing is left anywhere when nothing is needed.
        let slots = std::mem::take(&mut self.slots);
        self.pool.slots().free(&slots);
        leave_once(self.pool);
        self.pool.slots().shrink(0);
        for (network, dead) in self.networks.iter().zip(&self.dead).filter(|(_, dead)| !**dead) {
            assert_eq!((network.lent(), dead), (0, &false));
        }
        assert_eq!((self.pool.slots().used(), self.pool.slots().capacity()), (0, 0));
        for (number, dead) in self.dead.iter().enumerate() {
            let standing = self.pool.nodes().standing(number).unwrap();
            assert!(*dead || matches!(standing, Standing::In | Standing::Left), "{number}: {standing:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Whatever happens to nodes, as long as one home of each slab is left: a slot holds what was
    /// written to it last.
    #[test]
    fn slots_hold_what_was_written_whatever_nodes_do(
        steps in prop::collection::vec(step(), 1..80),
        mirrored in any::<bool>(),
    ) {
        let mut model = Model::new(if mirrored { Protect::Mirror } else { Protect::None });
        steps.into_iter().for_each(|step| model.take(step));
        model.end();
    }
}
