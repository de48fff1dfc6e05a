//! A node that needs its memory gets slabs back: the coldest move to other nodes.

mod common;

use common::{all_there, alloc, at, node_in, options, read, repaired, write};
use farmem_fabric::session::Spare;
use farmem_fabric::{Lost, Session};
use farmem_pool::{Lacks, Lane, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SLOTS_PER_SLAB};
use farmem_sim::{Keeping, Network, Weather};
use std::sync::Arc;

/// A simulated node that may want slabs back.
fn reserving(seed: u64, slabs: u64) -> (Arc<Network>, Session) {
    let network = Network::new(Weather { seed, ..Weather::default() }, slabs * SLAB_BYTES);
    lends(&network, slabs);
    let session = Session::simulated(&network, &options()).unwrap();
    (network, session)
}

/// From now on the node lends this many slabs.
fn lends(network: &Network, slabs: u64) {
    network.with_nic(|nic| nic.lending.set_most(slabs * SLAB_BYTES));
}

/// The first slot of each of `n` slabs, with its number in it.
fn filled(pool: &Pool, lane: &mut Lane, n: usize) -> Vec<FarSlot> {
    let each = SLOTS_PER_SLAB as usize;
    let (slots, others): (Vec<_>, Vec<_>) =
        alloc(pool, n * each).into_iter().enumerate().partition(|(at, _)| at % each == 0);
    pool.slots().free(&others.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>());
    let slots: Vec<FarSlot> = slots.into_iter().map(|(_, slot)| slot).collect();
    slots.iter().enumerate().for_each(|(value, &slot)| assert_eq!(write(pool, lane, slot, value as u64 + 1), Ok(0)));
    slots
}

#[test]
fn the_coldest_slabs_move_and_no_more_than_are_wanted() {
    let (pressed, session) = reserving(1, 4);
    let pool = Pool::new(vec![session]).unwrap();
    let mut lane = Lane::new();
    let slots = filled(&pool, &mut lane, 4);
    let (other, session) = common::node(2, 8);
    pool.add_node(session).unwrap();
    pool.moves().ask_back();
    assert_eq!(pool.repair().lacks(), None, "nothing is wanted");
    // Slabs 1 and 3 are used.
    for _ in 0..40 {
        [1, 3].iter().for_each(|&at| assert_eq!(read(&pool, &mut lane, slots[at]), Ok(at as u64 + 1)));
    }
    lends(&pressed, 2);
    pool.moves().ask_back();
    assert!(matches!(pool.repair().lacks(), Some(Lacks::Room(_))));
    // Asked again in the middle of it, it marks no more.
    let Some(Lacks::Room(index)) = pool.repair().lacks() else { panic!("room is lacking") };
    assert!(pool.moves().find_room(index).unwrap().is_none());
    pool.moves().ask_back();
    // A slab that moves is written as before.
    assert_eq!(write(&pool, &mut lane, slots[0], 1), Ok(0));
    assert!(pool.is_own(slots[0]) && repaired(&pool, &mut lane));
    assert_eq!((pressed.lent(), other.lent()), (2 * SLAB_BYTES, 2 * SLAB_BYTES));
    assert_eq!([0, 1, 2, 3].map(|slab| at(&pool, slots[slab])), [vec![1], vec![0], vec![1], vec![0]]);
    pool.moves().ask_back();
    assert_eq!(pool.repair().lacks(), None);
    all_there(&pool, &mut lane, &slots);
    // All of it, and new slots come from the other.
    lends(&pressed, 0);
    pool.moves().ask_back();
    assert!(repaired(&pool, &mut lane));
    assert_eq!(pressed.lent(), 0);
    pressed.kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    all_there(&pool, &mut lane, &slots);
}

/// Where no other node has room, slabs stay, and move later. Nobody is refused anything for it.
#[test]
fn slabs_stay_where_nothing_else_has_room() {
    let (pressed, session) = reserving(1, 3);
    let pool = Pool::new(vec![session]).unwrap();
    let mut lane = Lane::new();
    let slots = filled(&pool, &mut lane, 3);
    lends(&pressed, 1);
    pool.moves().ask_back();
    assert!(repaired(&pool, &mut lane), "there is no other node");
    assert!(alloc(&pool, 2).iter().all(|slot| pool.is_own(*slot)), "what is there is used on");
    assert_eq!(write(&pool, &mut lane, slots[0], 1), Ok(0));
    let (other, session) = common::node(2, 1);
    pool.add_node(session).unwrap();
    pool.moves().ask_back();
    assert!(repaired(&pool, &mut lane));
    assert_eq!((pressed.lent(), other.lent()), (2 * SLAB_BYTES, SLAB_BYTES));
    // A node that does not answer is not waited for.
    pressed.stop_node(400_000_000);
    pool.moves().ask_back();
    all_there(&pool, &mut lane, &slots);
    // It needs its memory no longer: what was marked stays.
    let (_third, session) = common::node(3, 4);
    pool.add_node(session).unwrap();
    pool.moves().ask_back();
    lends(&pressed, 3);
    pool.moves().ask_back();
    assert_eq!(pool.repair().lacks(), None);
    all_there(&pool, &mut lane, &slots);
}

/// A copy moves, and the other one stays: each page has a whole copy at every moment.
#[test]
fn a_copy_of_a_mirror_moves() {
    let (pressed, session) = reserving(1, 4);
    let (second, other) = node_in(2, 4, "b");
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(vec![session, other]).unwrap()));
    pool.protect(Protect::Mirror);
    let mut lane = Lane::new();
    let slots = filled(pool, &mut lane, 2);
    lends(&pressed, 1);
    pool.moves().ask_back();
    assert!(repaired(pool, &mut lane));
    assert_eq!((pressed.lent(), pool.repair().single_bytes()), (2 * SLAB_BYTES, 0), "no third node: both copies stay");
    let (third, session) = node_in(3, 4, "c");
    pool.add_node(session).unwrap();
    pool.moves().ask_back();
    assert!(repaired(pool, &mut lane));
    assert_eq!([&pressed, &second, &third].map(|node| node.lent() / SLAB_BYTES), [1, 2, 1]);
    assert_eq!(pool.repair().single_bytes(), 0);
    second.kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    all_there(pool, &mut lane, &slots);
}

/// Of several processes each gives back its part, and all together what is wanted.
#[test]
fn each_process_gives_back_its_part() {
    let (pressed, session) = reserving(1, 9);
    let pools =
        [session, Session::simulated(&pressed, &options()).unwrap(), Session::simulated(&pressed, &options()).unwrap()]
            .map(|session| Pool::new(vec![session]).unwrap());
    let mut lane = Lane::new();
    let held = [6, 2, 1];
    let others: Vec<_> = pools
        .iter()
        .zip(held)
        .map(|(pool, n)| {
            filled(pool, &mut Lane::new(), n);
            let (other, session) = common::node(7, 9);
            pool.add_node(session).unwrap();
            other
        })
        .collect();
    lends(&pressed, 6);
    pools.iter().for_each(|pool| pool.moves().ask_back());
    let marked = |pool: &Pool| pool.repair().lacks().is_some();
    assert_eq!(pools.iter().filter(|pool| marked(pool)).count(), 2);
    for pool in &pools {
        assert!(repaired(pool, &mut lane));
        lane = Lane::new();
    }
    assert_eq!(pressed.lent(), 6 * SLAB_BYTES);
    assert_eq!(others.iter().map(|other| other.lent() / SLAB_BYTES).collect::<Vec<_>>(), [2, 0, 1]);
}

/// Copies in two failure domains stay in two: no room in the domain of the one that stays counts.
#[test]
fn a_copy_that_moves_keeps_out_of_the_others_domain() {
    let (pressed, session) = reserving(1, 4);
    let first = session.in_domain(farmem_protocol::node::domain("a").unwrap());
    let (_second, other) = node_in(2, 4, "c");
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(vec![first, other]).unwrap()));
    pool.protect(Protect::Mirror);
    let mut lane = Lane::new();
    let slots = filled(pool, &mut lane, 2);
    let (wrong, session) = node_in(3, 4, "c");
    pool.add_node(session).unwrap();
    lends(&pressed, 1);
    pool.moves().ask_back();
    assert!(repaired(pool, &mut lane));
    assert_eq!((pressed.lent(), wrong.lent(), pool.repair().together_bytes()), (2 * SLAB_BYTES, 0, 0));
    let (right, session) = node_in(4, 4, "a");
    pool.add_node(session).unwrap();
    pool.moves().ask_back();
    assert!(repaired(pool, &mut lane));
    assert_eq!((pressed.lent(), wrong.lent(), right.lent()), (SLAB_BYTES, 0, SLAB_BYTES));
    assert_eq!(pool.repair().together_bytes(), 0);
    all_there(pool, &mut lane, &slots);
}

/// A node that is stopped for longer than it is waited for keeps its connection, and its late
/// answer is taken.
#[test]
fn a_late_answer_is_taken_by_the_next_question() {
    let (pressed, session) = reserving(1, 3);
    let pool = Pool::new(vec![session]).unwrap();
    let mut lane = Lane::new();
    let slots = filled(&pool, &mut lane, 3);
    let (other, session) = common::node(2, 4);
    pool.add_node(session).unwrap();
    lends(&pressed, 2);
    pressed.stop_node(2_000_000_000);
    (0..3).for_each(|_| pool.moves().ask_back());
    assert_eq!(pool.repair().lacks(), None, "it has not answered");
    all_there(&pool, &mut lane, &slots);
    (0..2).for_each(|_| pool.moves().ask_back());
    assert!(repaired(&pool, &mut lane));
    assert_eq!((pressed.lent(), other.lent()), (2 * SLAB_BYTES, SLAB_BYTES));
    // Requests that need an answer come through behind a late one.
    pressed.stop_node(100_000_000);
    pool.moves().ask_back();
    assert!(alloc(&pool, 3 * SLOTS_PER_SLAB as usize).iter().all(|slot| pool.is_own(*slot)));
    all_there(&pool, &mut lane, &slots);
}

/// A slab that can go nowhere keeps no other from moving.
#[test]
fn a_slab_that_can_go_nowhere_holds_up_no_other() {
    let (pressed, session) = reserving(1, 4);
    let pool = Pool::new(vec![session]).unwrap();
    let mut lane = Lane::new();
    let slots = filled(&pool, &mut lane, 2);
    lends(&pressed, 0);
    pool.moves().ask_back();
    let Some(Lacks::Room(first)) = pool.repair().lacks() else { panic!("room is lacking") };
    assert!(pool.moves().find_room(first).is_err(), "there is no other node");
    pool.moves().stay(first);
    assert!(matches!(pool.repair().lacks(), Some(Lacks::Room(other)) if other != first));
    let (other, session) = common::node(2, 1);
    pool.add_node(session).unwrap();
    assert!(repaired(&pool, &mut lane));
    assert_eq!((pressed.lent(), other.lent()), (SLAB_BYTES, SLAB_BYTES));
    // It is tried again some questions later.
    let (third, session) = common::node(3, 1);
    pool.add_node(session).unwrap();
    for _ in 0..8 {
        pool.moves().ask_back();
        assert!(repaired(&pool, &mut lane));
    }
    assert_eq!((pressed.lent(), third.lent()), (0, SLAB_BYTES));
    all_there(&pool, &mut lane, &slots);
}

/// Two nodes that want slabs back and grant them by turns have few of them move.
#[test]
fn nodes_that_lie_have_few_slabs_move() {
    let (one, session) = reserving(1, 16);
    let (other, second) = reserving(2, 16);
    let pool = Pool::new(vec![session, second]).unwrap();
    let mut lane = Lane::new();
    let slots = filled(&pool, &mut lane, 4);
    let mut moved = 0;
    for turn in 0..50 {
        let (wants, takes) = if turn % 2 == 0 { (&one, &other) } else { (&other, &one) };
        lends(wants, 0);
        lends(takes, 16);
        let before = takes.lent();
        pool.moves().ask_back();
        assert!(repaired(&pool, &mut lane));
        moved += (takes.lent() - before) / SLAB_BYTES;
    }
    assert!((4..=16).contains(&moved), "{moved} slabs moved within a minute");
    all_there(&pool, &mut lane, &slots);
}

/// A slab that comes back from the disk takes longer than a copy may be silent. Its node answers elsewhere
/// meanwhile, and is kept. A disk that stands still is not waited for as long as it takes.
#[test]
fn a_node_that_brings_a_slab_back_is_kept() {
    let (nodes, sessions): (Vec<_>, Vec<_>) = [1, 2].into_iter().map(|seed| reserving(seed, 4)).unzip();
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(sessions).unwrap()));
    pool.protect(Protect::Mirror);
    let mut lane = Lane::new();
    let slots = filled(pool, &mut lane, 1);
    lends(&nodes[0], 0);
    for (takes_ms, stands) in [(900, Standing::In), (60_000, Standing::Lost)] {
        nodes[0].set_shelf_ns(takes_ms * 1_000_000);
        assert_eq!(nodes[0].spill(Keeping::Kept), SLAB_BYTES);
        let begun = nodes[0].now_ns();
        assert_eq!(write(pool, &mut lane, slots[0], 1), Ok(0));
        let took_ms = (nodes[0].now_ns() - begun) / 1_000_000;
        assert_eq!(pool.nodes().standing(0), Some(stands), "{took_ms} ms");
        assert!(took_ms < 4_000, "{took_ms} ms");
        all_there(pool, &mut lane, &slots);
    }
}

/// A request that needs such a slab is waited for, too.
#[test]
fn a_request_for_a_slab_that_is_brought_back_is_waited_for() {
    let (network, session) = reserving(1, 4);
    let slab = session.grant().unwrap().id;
    lends(&network, 0);
    network.set_shelf_ns(900_000_000);
    assert_eq!(network.spill(Keeping::Kept), SLAB_BYTES);
    session.standing().held_by(Box::leak(Box::new(Anyway)), 0);
    session.discard(slab, 0, 4096).unwrap();
    assert!(!session.standing().is_lost());
}

/// Holds a member, and can always do without it.
struct Anyway;

impl Spare for Anyway {
    fn can_spare(&self, _: usize, _: &Lost) -> bool {
        true
    }
}
