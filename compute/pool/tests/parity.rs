//! Slabs with parity, over simulated nodes that are killed, silent, and replaced.

#![allow(unsafe_code)] // Buffers of reads and writes.

mod common;

use common::{all_done, alloc, node, page, read, repaired};
use farmem_fabric::Session;
use farmem_pool::{Doubt, Lacks, Lane, Pool, Protect, Sealing, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES};
use farmem_sim::Network;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// A pool with parity, over simulated nodes that lend this many slabs each.
fn pool(data: u8, parity: u8, slabs: &[u64]) -> (Vec<Arc<Network>>, &'static Pool) {
    let (networks, pool) = common::pool(slabs);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    pool.protect_by_parity(Protect::Ec { data, parity }).unwrap();
    (networks, pool)
}

/// Writes many slots at once: the evictor's batch.
fn write_all(pool: &Pool, lane: &mut Lane, values: &[(FarSlot, u64)]) {
    let pages: Vec<_> = values.iter().map(|(_, value)| page(*value)).collect();
    for (tag, ((slot, _), page)) in values.iter().zip(&pages).enumerate() {
        // SAFETY: the pages outlive the operations, which are awaited.
        unsafe { lane.write(pool, tag as u64, *slot, 0, page.as_ptr().cast(), PAGE_BYTES as u32) };
    }
    let mut done = all_done(pool, lane);
    done.sort_by_key(|(tag, _)| *tag);
    assert_eq!(done, (0..values.len()).map(|tag| (tag as u64, Ok(0))).collect::<Vec<_>>());
}

fn written(pool: &Pool, lane: &mut Lane, n: usize) -> Vec<(FarSlot, u64)> {
    let values: Vec<_> = alloc(pool, n).into_iter().zip(1..).collect();
    write_all(pool, lane, &values);
    values
}

fn all_there(pool: &Pool, lane: &mut Lane, values: &[(FarSlot, u64)]) {
    values.iter().for_each(|(slot, value)| assert_eq!(read(pool, lane, *slot), Ok(*value), "{slot:?}"));
}

/// Which node has a slot's home.
fn node_of(pool: &Pool, slot: FarSlot) -> usize {
    pool.homes(slot.slab_index())[0].unwrap().0
}

#[test]
fn a_group_takes_a_node_for_each_seat() {
    let (networks, pool) = pool(4, 2, &[2, 1, 1, 1, 1, 1]);
    let mut lane = Lane::new();
    let values = written(pool, &mut lane, 256);
    assert!(networks.iter().all(|network| network.lent() == SLAB_BYTES));
    assert_eq!(
        (pool.slots().capacity(), pool.repair().single_bytes(), pool.repair().lacks()),
        (4 * SLAB_BYTES, 0, None)
    );
    // Pages that leave together fill stripes, and neighbours stay together.
    let places = |n: usize| (values[n].0.slab_index(), values[n].0.place());
    assert_eq!([0, 31, 32, 127, 128].map(places), [(0, 0), (0, 31), (1, 0), (3, 31), (0, 32)]);
    let refused = pool.slots().ensure(5 * SLAB_BYTES).unwrap_err().to_string();
    assert!(refused.contains("no 6 nodes for a group"), "{refused}");
    assert!(networks.iter().all(|network| network.lent() == SLAB_BYTES), "what was granted is given back");
    pool.slots().free(&values.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
    pool.slots().shrink(0);
    assert!(networks.iter().all(|network| network.lent() == 0) && pool.slots().capacity() == 0);
    // What comes next begins with zeros.
    let slots = alloc(pool, 8);
    assert_eq!(read(pool, &mut lane, slots[7]), Ok(0));
}

#[test]
fn pages_of_lost_nodes_follow_from_others() {
    for (data, parity) in [(2, 1), (4, 1), (4, 2), (8, 3)] {
        let nodes = (data + parity) as usize;
        let (networks, pool) = pool(data, parity, &vec![2; nodes]);
        let (mut writes, mut reads) = (Lane::new(), Lane::new());
        // A stripe that is full, one that is not, and single pages.
        let mut values = written(pool, &mut writes, 32 * data as usize + 5);
        values[3].1 = 1000;
        write_all(pool, &mut writes, &values[3..4]);
        for lost in 0..parity as usize {
            let gone = node_of(pool, values[32 * (lost % data as usize)].0);
            networks[gone].kill_node();
            all_there(pool, &mut reads, &values);
            assert_eq!((pool.losses().tend(), pool.nodes().standing(gone)), (Ok(()), Some(Standing::Lost)));
            // Pages that leave for a lost home are kept by parity alone.
            for (at, value) in [(1, 2001), (40, 2002), (60, 2003)] {
                values[at].1 = value + lost as u64;
            }
            write_all(pool, &mut writes, &[values[1], values[40], values[60]]);
            all_there(pool, &mut reads, &values);
        }
        let gone = (0..nodes).find(|&node| pool.nodes().standing(node) == Some(Standing::In)).unwrap();
        networks[gone].kill_node();
        let read = values.iter().map(|(slot, _)| read(pool, &mut reads, *slot)).find(Result::is_err);
        assert!(read.is_some() && pool.losses().tend().is_err(), "{data}+{parity}: one more than parity bears");
    }
}

#[test]
fn a_silent_node_is_given_up_soon() {
    let (networks, pool) = pool(2, 1, &[2; 3]);
    let mut lane = Lane::new();
    let mut values = written(pool, &mut lane, 70);
    let silent = node_of(pool, values[0].0);
    networks[silent].stop_node(60_000 * MS);
    values[0].1 = 77;
    write_all(pool, &mut lane, &values[..1]);
    all_there(pool, &mut lane, &values);
    assert_eq!(pool.nodes().standing(silent), Some(Standing::Lost));
    // Without it no other can be spared: it is waited for.
    let other = node_of(pool, values[32].0);
    networks[other].stop_node(1_000 * MS);
    all_there(pool, &mut lane, &values);
    assert_eq!(pool.nodes().standing(other), Some(Standing::In));
}

/// Lost homes are made anew, of data and of parity; then others may go.
#[test]
fn a_lost_seat_is_filled_elsewhere() {
    let (mut networks, pool) = pool(2, 1, &[2; 3]);
    let mut lane = Lane::new();
    let mut values = written(pool, &mut lane, 100);
    // A slot that is free, and was written: its stripe's parity is of it.
    let freed: Vec<_> = values.drain(10..20).map(|(slot, _)| slot).collect();
    pool.slots().free(&freed);
    for round in 0..5u64 {
        // The nodes in turn: data, data, parity, and those that took their places.
        networks[round as usize].kill_node();
        assert_eq!(pool.losses().tend(), Ok(()));
        all_there(pool, &mut lane, &values);
        assert!(pool.repair().single_bytes() >= SLAB_BYTES);
        let (network, session) = node(10 + round, 2);
        networks.push(network);
        pool.add_node(session).unwrap();
        values[(round * 13) as usize].1 = 500 + round;
        write_all(pool, &mut lane, &values[(round * 13) as usize..][..1]);
        assert!(repaired(pool, &mut lane));
        assert_eq!(pool.repair().single_bytes(), 0);
        all_there(pool, &mut lane, &values);
    }
}

/// A seat's new home lacks every stripe, though nobody has a slot of a parity: until it is filled it is not whole,
/// and nothing is computed from it.
#[test]
fn a_seat_that_is_not_filled_is_not_whole() {
    for seat in [0, 2] {
        let (mut networks, pool) = pool(2, 1, &[1; 3]);
        let mut lane = Lane::new();
        let mut values = written(pool, &mut lane, 100);
        let freed: Vec<_> = values.drain(10..20).map(|(slot, _)| slot).collect();
        pool.slots().free(&freed);
        networks[seat].kill_node();
        assert_eq!(pool.losses().tend(), Ok(()));
        let (network, session) = node(10, 1);
        networks.push(network);
        pool.add_node(session).unwrap();
        let Some(Lacks::Home(index)) = pool.repair().lacks() else { panic!("a seat lacks its home") };
        pool.moves().add_home(index).unwrap();
        common::leave_once(pool);
        let Some(Lacks::Bytes(index, nth)) = pool.repair().lacks() else { panic!("its home lacks its bytes") };
        // As after a filling of which every WRITE failed.
        assert!(!pool.moves().end_filling(index, nth), "seat {seat}");
        assert_eq!(pool.repair().lacks(), Some(Lacks::Bytes(index, nth)));
        assert!(repaired(pool, &mut lane));
        networks[(seat + 1) % 3].kill_node();
        assert_eq!(pool.losses().tend(), Ok(()));
        all_there(pool, &mut lane, &values);
    }
}

/// Writes pages sealed, as the pager does.
fn write_sealed(pool: &Pool, lane: &mut Lane, slots: &[FarSlot]) {
    for &slot in slots {
        let mut sealed = page(5);
        let at = sealed.as_mut_ptr().cast::<u8>();
        // SAFETY: a page of ours, which outlives the operation.
        unsafe {
            assert!(pool.seals().seal(slot, at, at));
            lane.write(pool, 0, slot, 0, at, PAGE_BYTES as u32);
        }
        assert_eq!(all_done(pool, lane), [(0, Ok(0))]);
    }
}

/// A slot that was written and is free, of which no seat is left to tell its bytes, is needed by
/// nobody: the group becomes whole without them, and new pages of its stripe can be written.
#[test]
fn what_nobody_needs_does_not_keep_a_group_from_being_whole() {
    for (writes_first, sealed) in [(false, false), (true, false), (false, true)] {
        let (mut networks, pool) = pool(2, 1, &[2; 3]);
        let mut lane = Lane::new();
        let mut values = Vec::new();
        let freed = alloc(pool, 128);
        if sealed {
            pool.seals().begin(Sealing::Whole).unwrap();
            write_sealed(pool, &mut lane, &freed);
        } else {
            write_all(pool, &mut lane, &freed.iter().copied().zip(1..).collect::<Vec<_>>());
        }
        // All of it is free, so that two nodes of three may go, and nothing is lost.
        pool.slots().free(&freed);
        let (first, second) = (node_of(pool, freed[0]), node_of(pool, freed[32]));
        let mut replaced = |gone: usize, seed| {
            networks[gone].kill_node();
            assert_eq!(pool.losses().tend(), Ok(()));
            let (network, session) = node(seed, 2);
            networks.push(network);
            pool.add_node(session).unwrap();
        };
        replaced(first, 10);
        // The lost seat has a home, and nothing there yet, when the next node goes.
        let Some(Lacks::Home(index)) = pool.repair().lacks() else { panic!("a seat was lost") };
        pool.moves().add_home(index).unwrap();
        common::leave_once(pool);
        replaced(second, 11);
        if writes_first {
            values = written(pool, &mut lane, 40);
            all_there(pool, &mut lane, &values);
        }
        assert!(repaired(pool, &mut lane), "{:?}", pool.repair().lacks());
        assert_eq!(pool.repair().single_bytes(), 0);
        all_there(pool, &mut lane, &values);
        let in_now = || (0..5).filter(|&node| pool.nodes().standing(node) == Some(Standing::In));
        if sealed {
            // The zeros are not taken for a forged page.
            let slots = alloc(pool, 8);
            write_sealed(pool, &mut lane, &slots);
            assert_eq!(in_now().count(), 3);
            continue;
        }
        values.extend(written(pool, &mut lane, 50));
        // It bears the loss of any node again.
        networks[in_now().next().unwrap()].kill_node();
        assert_eq!(pool.losses().tend(), Ok(()));
        all_there(pool, &mut lane, &values);
    }
}

/// A group of two pages and two parities, sealed, of which one node is dead and one lies.
struct Sealed {
    networks: Vec<Arc<Network>>,
    pool: &'static Pool,
    lane: Lane,
    values: Vec<(FarSlot, u64)>,
    /// The slabs of the group, data first.
    members: Vec<u32>,
}

impl Sealed {
    fn new(parity: u8) -> Sealed {
        let (networks, pool) = pool(2, parity, &vec![2; 2 + parity as usize]);
        pool.seals().begin(Sealing::Whole).unwrap();
        let values: Vec<_> = alloc(pool, 64).into_iter().zip(1..).collect();
        let members = pool.repair().beside(values[0].0.slab_index());
        let mut sealed = Sealed { networks, pool, lane: Lane::new(), values, members };
        sealed.write(0..64);
        sealed
    }

    fn write(&mut self, which: std::ops::Range<usize>) {
        let mut pages: Vec<_> = self.values[which.clone()].iter().map(|(_, value)| page(*value)).collect();
        for ((slot, _), page) in self.values[which].iter().zip(&mut pages) {
            let at = page.as_mut_ptr().cast::<u8>();
            // SAFETY: a page of ours, which outlives the operation.
            unsafe {
                assert!(self.pool.seals().seal(*slot, at, at));
                self.lane.write(self.pool, 0, *slot, 0, at, PAGE_BYTES as u32);
            }
        }
        assert!(all_done(self.pool, &mut self.lane).iter().all(|(_, result)| result.is_ok()));
    }

    /// The number in a slot, by another thread's lane; what is to be done about a page that does not open.
    fn read(&self, nth: usize) -> Result<u64, Doubt> {
        let (mut found, mut done, slot) = (page(u64::MAX), Vec::new(), self.values[nth].0);
        let (at, mut lane) = (found.as_mut_ptr().cast::<u8>(), Lane::new());
        // SAFETY: as above.
        unsafe { lane.read(self.pool, 9, slot, 0, at, PAGE_BYTES as u32) };
        lane.doorbell(self.pool);
        while lane.in_flight() > 0 {
            lane.wait(self.pool, &mut done, std::time::Duration::from_secs(1));
        }
        // SAFETY: as above; nothing is under way.
        match unsafe { self.pool.seals().open(slot, at.cast_const(), at) } {
            Ok(()) => Ok(found[0]),
            Err(altered) => Err(self.pool.seals().distrust(done[0].from, &altered)),
        }
    }

    fn all_there(&self) {
        (0..64).for_each(|nth| assert_eq!(self.read(nth), Ok(self.values[nth].1), "{nth}"));
    }

    fn node(&self, seat: usize) -> usize {
        self.pool.homes(self.members[seat])[0].unwrap().0
    }

    fn kill(&self, seat: usize) {
        self.networks[self.node(seat)].kill_node();
        assert_eq!(self.pool.losses().tend(), Ok(()));
    }

    /// The node of a seat alters what it has of a place.
    fn alter(&self, seat: usize, place: u32) {
        let (node, slab) = self.pool.names(self.members[seat]).into_iter().flatten().next().unwrap();
        let at = FarSlot::new(self.members[seat], place).offset();
        let done = self.networks[node].with_nic(|nic| {
            let mut page = nic.peek(slab, at, PAGE_BYTES as u32).unwrap();
            page[100] ^= 1;
            nic.poke(slab, at, &page)
        });
        assert_eq!(done, Some(true));
    }

    fn joins(&mut self, seed: u64) {
        let (network, session) = node(seed, 2);
        self.networks.push(network);
        self.pool.add_node(session).unwrap();
    }
}

/// Two parities bear a node that is dead and one that lies: a page is computed from the seats from which it opens,
/// whether it is read, its neighbour is written, or it is copied.
#[test]
fn a_seat_that_lies_takes_no_page_along() {
    for (liar, first) in [(2, "read"), (2, "write"), (2, "repair"), (1, "read"), (1, "write"), (1, "repair")] {
        let mut sealed = Sealed::new(2);
        let [dead, lies] = [0, liar].map(|seat| sealed.node(seat));
        sealed.kill(0);
        (0..32).step_by(3).for_each(|place| sealed.alter(liar, place));
        match first {
            "read" => assert_eq!(sealed.read(0), Ok(1)),
            "write" => {
                sealed.values[32..].iter_mut().for_each(|(_, value)| *value += 1000);
                sealed.write(32..64);
            }
            _ => {
                (20..22).for_each(|seed| sealed.joins(seed));
                assert!(repaired(sealed.pool, &mut sealed.lane), "{:?}", sealed.pool.repair().lacks());
            }
        }
        sealed.all_there();
        // What is written anew is no lie any more, and nobody is accused who was not seen through before.
        let standing = [dead, lies].map(|node| sealed.pool.nodes().standing(node));
        let seen = if first == "write" { Standing::In } else { Standing::Lost };
        assert_eq!(standing, [Some(Standing::Lost), Some(seen)], "{liar}, {first}");
        // The group becomes whole without both, and bears two more losses.
        (30..32).for_each(|seed| sealed.joins(seed));
        assert!(repaired(sealed.pool, &mut sealed.lane));
        assert_eq!(sealed.pool.repair().single_bytes(), 0);
        sealed.all_there();
        [1, 2].into_iter().for_each(|seat| sealed.kill(seat));
        sealed.all_there();
    }
}

/// A parity is made anew from pages that open.
#[test]
fn a_new_parity_is_not_made_of_a_lie() {
    let mut sealed = Sealed::new(2);
    sealed.kill(2);
    sealed.alter(1, 5);
    sealed.joins(20);
    sealed.joins(21);
    assert!(repaired(sealed.pool, &mut sealed.lane));
    sealed.kill(3);
    sealed.all_there();
}

/// One parity does not bear both: what does not open is not used, and not copied.
#[test]
fn what_opens_from_no_seats_is_not_copied() {
    let mut sealed = Sealed::new(1);
    sealed.kill(0);
    sealed.alter(2, 5);
    assert_eq!((sealed.read(5), sealed.read(4), sealed.read(37)), (Err(Doubt::Lost), Ok(5), Ok(38)));
    sealed.joins(20);
    sealed.joins(21);
    let Some(Lacks::Home(index)) = sealed.pool.repair().lacks() else { panic!("a seat was lost") };
    sealed.pool.moves().add_home(index).unwrap();
    common::leave_once(sealed.pool);
    assert!(!common::fill(sealed.pool, &mut sealed.lane, index, 0));
    assert_eq!(sealed.pool.moves().next_stale(index, 0, 0), Some(sealed.values[5].0));
    // It is written anew.
    sealed.values[5].1 = 77;
    sealed.write(5..6);
    assert!(repaired(sealed.pool, &mut sealed.lane));
    sealed.all_there();
    sealed.kill(1);
    sealed.all_there();
}

/// Nodes that are left give their seats to others.
#[test]
fn a_seat_moves_from_a_node_that_is_taken_out() {
    let (networks, pool) = pool(2, 1, &[2; 4]);
    let mut lane = Lane::new();
    let mut values = written(pool, &mut lane, 100);
    let free = (0..4).find(|&node| networks[node].lent() == 0).unwrap();
    for node in (0..4).filter(|&node| node != free).take(1) {
        assert!(pool.take_out(node));
        values[50].1 = 9;
        if pool.is_own(values[50].0) {
            write_all(pool, &mut lane, &values[50..51]);
        } else {
            values[50].1 = 51;
        }
        assert!(repaired(pool, &mut lane));
        pool.slots().shrink(3 * SLAB_BYTES);
        assert_eq!((pool.nodes().standing(node), networks[node].lent()), (Some(Standing::Left), 0));
        all_there(pool, &mut lane, &values);
    }
    networks[free].kill_node();
    all_there(pool, &mut lane, &values);
}

/// A node that was taken out and joins again is one node: no second seat of a group goes there.
#[test]
fn a_node_that_joins_again_takes_no_second_seat() {
    let (networks, pool) = pool(2, 1, &[3; 3]);
    let mut lane = Lane::new();
    let values = written(pool, &mut lane, 100);
    let (again, gone) = (node_of(pool, values[0].0), node_of(pool, values[32].0));
    assert!(pool.take_out(again));
    pool.add_node(Session::simulated(&networks[again], &common::options()).unwrap()).unwrap();
    networks[gone].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    // Its first seat may move there, but the lost one may not.
    repaired(pool, &mut lane);
    assert_eq!(pool.repair().single_bytes(), SLAB_BYTES, "there is no place for the lost seat");
    all_there(pool, &mut lane, &values);
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u8>),
    Overwrite(Vec<u8>),
    Free(Vec<u8>),
    Kill(u8),
    Join,
    Repair,
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        3 => some().prop_map(Step::Write),
        4 => some().prop_map(Step::Overwrite),
        1 => some().prop_map(Step::Free),
        1 => any::<u8>().prop_map(Step::Kill),
        2 => Just(Step::Join),
        3 => Just(Step::Repair),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is written, freed, lost and repaired, every page is as it was written, while no
    /// more nodes are lost at once than parity bears.
    #[test]
    fn every_page_is_as_it_was_written(steps in prop::collection::vec(step(), 1..40), two in any::<bool>()) {
        let (data, parity) = if two { (3, 2) } else { (2, 1) };
        let seats = data as usize + parity as usize;
        let (mut networks, pool) = pool(data, parity, &vec![8; seats]);
        let (mut writes, mut reads) = (Lane::new(), Lane::new());
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut next = 1;
        for step in steps {
            match step {
                Step::Write(all) => {
                    let mut slots = Vec::new();
                    if pool.slots().alloc(all.len(), &mut slots).is_ok() {
                        let values: Vec<_> = slots.into_iter().zip(next..).collect();
                        next += 1000;
                        write_all(pool, &mut writes, &values);
                        held.extend(values.iter().map(|(slot, value)| (slot.bits(), *value)));
                    }
                }
                Step::Overwrite(which) if !held.is_empty() => {
                    let slots: Vec<u64> = held.keys().copied().collect();
                    let mut values: BTreeMap<u64, u64> = BTreeMap::new();
                    values.extend(which.iter().map(|&at| (slots[at as usize % slots.len()], next + at as u64)));
                    next += 1000;
                    let all: Vec<_> = values.iter().map(|(slot, value)| (FarSlot::from_bits(*slot), *value)).collect();
                    write_all(pool, &mut writes, &all);
                    held.extend(values);
                }
                Step::Free(which) if !held.is_empty() => {
                    let slots: Vec<u64> = held.keys().copied().collect();
                    for at in which {
                        let slot = slots[at as usize % slots.len()];
                        if held.remove(&slot).is_some() {
                            pool.slots().free(&[FarSlot::from_bits(slot)]);
                        }
                    }
                }
                Step::Kill(which) => {
                    let alive: Vec<usize> =
                        (0..networks.len()).filter(|&node| pool.nodes().standing(node) == Some(Standing::In)).collect();
                    let slabs = || (0..64).filter(|&index| pool.homes(index)[0].is_some());
                    // A group that lacks seats, and has begun to fill others, bears less.
                    let lacking = pool.repair().single_bytes() / SLAB_BYTES + (pool.repair().lacks().is_some()) as u64;
                    if alive.len() > data as usize && lacking == 0 && slabs().count() > 0 {
                        networks[alive[which as usize % alive.len()]].kill_node();
                        prop_assert_eq!(pool.losses().tend(), Ok(()));
                    }
                }
                Step::Join if networks.len() < 40 => {
                    let (network, session) = node(networks.len() as u64 + 1, 8);
                    networks.push(network);
                    pool.add_node(session).unwrap();
                }
                Step::Repair => drop(repaired(pool, &mut writes)),
                _ => {}
            }
            for (slot, value) in &held {
                prop_assert_eq!(read(pool, &mut reads, FarSlot::from_bits(*slot)), Ok(*value));
            }
        }
    }
}
