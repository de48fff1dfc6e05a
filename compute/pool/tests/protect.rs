//! Slabs with two copies, over simulated nodes that are killed, stopped, silent, and come back.

mod common;

use common::{all_there, alloc, leave_once, node, page, read, repaired, write};
use farmem_pool::homes::State;
use farmem_pool::{Lane, Piece, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES};
use farmem_sim::{Keeping, Network};
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// A pool that keeps two copies, over simulated nodes that lend this many slabs each.
fn mirrored(slabs: &[u64]) -> (Vec<Arc<Network>>, &'static Pool) {
    let (networks, pool) = common::pool(slabs);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    pool.protect(Protect::Mirror);
    (networks, pool)
}

/// Twenty slots with a number each, on two nodes or more.
fn written(pool: &Pool, lane: &mut Lane) -> Vec<FarSlot> {
    let slots = alloc(pool, 20);
    slots.iter().enumerate().for_each(|(value, &slot)| assert_eq!(write(pool, lane, slot, value as u64 + 1), Ok(0)));
    slots
}

/// The latest of the clocks.
fn now_ns(networks: &[Arc<Network>]) -> u64 {
    networks.iter().map(|network| network.now_ns()).max().unwrap()
}

#[test]
fn a_slab_has_two_copies_or_is_refused() {
    let (networks, pool) = mirrored(&[1, 1]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane);
    let homes = pool.homes(slots[0].slab_index());
    assert!(matches!(homes, [Some((a, State::Whole)), Some((b, State::Whole))] if a != b), "{homes:?}");
    assert_eq!((pool.slots().capacity(), pool.repair().single_bytes(), pool.repair().lacks()), (SLAB_BYTES, 0, None));
    let refused = pool.slots().ensure(2 * SLAB_BYTES).unwrap_err().to_string();
    assert!(networks.iter().all(|network| network.lent() == SLAB_BYTES), "{refused}");
    // One node has room, the other has none: nothing is kept of what was granted.
    let (networks, pool) = mirrored(&[2, 1]);
    pool.slots().ensure(SLAB_BYTES).unwrap();
    let refused = pool.slots().ensure(2 * SLAB_BYTES).unwrap_err().to_string();
    assert!(refused.contains("no second copy"), "{refused}");
    assert!(networks.iter().all(|network| network.lent() == SLAB_BYTES));
}

#[test]
fn a_killed_node_costs_no_wait() {
    let (networks, pool) = mirrored(&[4, 4]);
    let (mut writes, mut reads) = (Lane::new(), Lane::new());
    let slots = written(pool, &mut writes);
    all_there(pool, &mut reads, &slots);
    networks[0].kill_node();
    let begun = now_ns(&networks);
    all_there(pool, &mut reads, &slots);
    assert_eq!(write(pool, &mut writes, slots[0], 1), Ok(0));
    assert!(now_ns(&networks) - begun < 20 * MS, "{} ms", (now_ns(&networks) - begun) / MS);
    let losses = pool.losses().take();
    assert!(losses.len() == 1 && losses[0].single == 1, "{losses:?}");
    assert_eq!((pool.nodes().standing(0), pool.repair().single_bytes()), (Some(Standing::Lost), SLAB_BYTES));
    // New slabs have one copy while there is one node.
    pool.slots().ensure(3 * SLAB_BYTES).unwrap();
    networks[1].kill_node();
    assert!(read(pool, &mut reads, slots[3]).is_err() && pool.losses().tend().is_err());
}

#[test]
fn a_node_that_does_not_answer_is_given_up_soon() {
    for asks in [false, true] {
        let (networks, pool) = mirrored(&[4, 4]);
        let mut lane = Lane::new();
        let slots = written(pool, &mut lane);
        networks[1].stop_node(60_000 * MS);
        let begun = now_ns(&networks);
        if asks {
            // By a request for memory.
            pool.slots().ensure(2 * SLAB_BYTES).unwrap();
        } else {
            assert_eq!(write(pool, &mut lane, slots[7], 8), Ok(0));
        }
        all_there(pool, &mut lane, &slots);
        let took = (now_ns(&networks) - begun) / MS;
        assert!((150..450).contains(&took), "{took} ms");
        assert_eq!(pool.nodes().standing(1), Some(Standing::Lost));
    }
}

/// A node that has lost what it put aside is no home of it any more, though a READ finds that out and is answered by
/// another: else the other copy would be given up.
#[test]
fn a_home_that_refuses_a_read_is_made_anew() {
    let (networks, pool) = mirrored(&[2, 2]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane);
    let index = slots[0].slab_index();
    let [Some((first, _)), Some((other, _))] = pool.homes(index) else { panic!("two copies") };
    networks[first].with_nic(|nic| nic.lending.set_most(0));
    assert_eq!(networks[first].spill(Keeping::Unreadable), SLAB_BYTES);
    networks[first].with_nic(|nic| nic.lending.set_most(2 * SLAB_BYTES));
    all_there(pool, &mut lane, &slots);
    let left = pool.homes(index).into_iter().flatten().collect::<Vec<_>>();
    assert_eq!((left, lane.met().refused > 0), (vec![(other, State::Whole)], true));
    assert!(pool.take_out(other) && repaired(pool, &mut lane));
    all_there(pool, &mut lane, &slots);
    networks[other].kill_node();
    all_there(pool, &mut lane, &slots);
}

/// Where nothing answers it is this machine that is cut off: one node is kept, and waited for.
#[test]
fn of_two_silent_nodes_one_is_waited_for() {
    let (networks, pool) = mirrored(&[2, 2]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane);
    networks.iter().for_each(|network| network.stop_node(3_000 * MS));
    assert_eq!(write(pool, &mut lane, slots[2], 3), Ok(0));
    all_there(pool, &mut lane, &slots);
    let lost = (0..2).filter(|&node| pool.nodes().standing(node) == Some(Standing::Lost)).count();
    assert_eq!((lost, pool.losses().tend()), (1, Ok(())));
}

/// A second copy is made at a third node, while pages are written; then any of the two may go.
#[test]
fn a_lost_copy_is_made_again() {
    let (networks, pool) = mirrored(&[2, 2]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane);
    networks[0].kill_node();
    // Reads may go to the other one: housekeeping looks.
    assert_eq!((pool.losses().tend(), pool.nodes().standing(0)), (Ok(()), Some(Standing::Lost)));
    all_there(pool, &mut lane, &slots);
    assert_eq!(pool.repair().lacks(), None, "there is no other node");
    let (third, session) = node(9, 2);
    assert_eq!(pool.add_node(session).unwrap(), 2);
    assert!(pool.repair().lacks().is_some());
    assert!(repaired(pool, &mut lane));
    assert_eq!((pool.repair().single_bytes(), third.lent()), (0, SLAB_BYTES));
    networks[1].kill_node();
    all_there(pool, &mut lane, &slots);
    // The first is back, without what it had.
    let (_first, session) = node(10, 2);
    pool.add_node(session).unwrap();
    assert!(repaired(pool, &mut lane));
    third.kill_node();
    all_there(pool, &mut lane, &slots);
}

/// A repair may end at any chunk; the next goes on from the bits.
#[test]
fn a_repair_that_is_broken_off_goes_on() {
    let (networks, pool) = mirrored(&[2, 2]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane);
    networks[1].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    all_there(pool, &mut lane, &slots);
    let (third, session) = node(9, 2);
    pool.add_node(session).unwrap();
    let index = slots[0].slab_index();
    pool.moves().add_home(index).unwrap();
    leave_once(pool);
    let mut buffers = page(0);
    // SAFETY: the buffer is a page, and lives until the call returns.
    #[allow(unsafe_code)]
    unsafe {
        let piece = Piece { pages: 1, under_way: 1, goes_on: &mut || true };
        lane.fill(pool, index, 1, 0, buffers.as_mut_ptr().cast(), piece)
    };
    // Lost in the middle: the other copies are there.
    third.kill_node();
    assert_eq!((pool.losses().tend(), write(pool, &mut lane, slots[5], 6)), (Ok(()), Ok(0)));
    all_there(pool, &mut lane, &slots);
    assert_eq!(
        (pool.repair().lacks(), pool.repair().owes()),
        (None, true),
        "nothing can be done, and one copy is there"
    );
    let (_fourth, session) = node(11, 2);
    pool.add_node(session).unwrap();
    assert!(repaired(pool, &mut lane) && !pool.repair().owes());
    networks[0].kill_node();
    all_there(pool, &mut lane, &slots);
}

/// The source of a copy is lost in the middle. What the new home lacks is lost; once nobody needs it any more, the home
/// is whole, and another copy is made.
#[test]
fn a_copy_that_was_half_made_heals() {
    for overwrites in [false, true] {
        let (networks, pool) = mirrored(&[2, 2]);
        let mut lane = Lane::new();
        let slots = written(pool, &mut lane);
        let index = slots[0].slab_index();
        networks[1].kill_node();
        assert_eq!(pool.losses().tend(), Ok(()));
        all_there(pool, &mut lane, &slots);
        let (third, session) = node(9, 2);
        pool.add_node(session).unwrap();
        pool.moves().add_home(index).unwrap();
        leave_once(pool);
        let mut buffers = vec![0_u8; 4 * farmem_protocol::addr::PAGE_BYTES];
        // SAFETY: the buffer is four pages, and lives until the call returns.
        #[allow(unsafe_code)]
        unsafe {
            let piece = Piece { pages: 4, under_way: 2, goes_on: &mut || true };
            lane.fill(pool, index, 1, 0, buffers.as_mut_ptr(), piece)
        };
        networks[0].kill_node();
        let _ = pool.losses().tend();
        all_there(pool, &mut lane, &slots[..4]);
        assert!(slots[4..].iter().all(|slot| read(pool, &mut lane, *slot).is_err()));
        let (_fourth, session) = node(11, 2);
        pool.add_node(session).unwrap();
        assert_eq!(pool.repair().lacks(), None, "pages are lost that are needed");
        let mut left = slots.clone();
        if overwrites {
            (4..slots.len()).for_each(|at| assert_eq!(write(pool, &mut lane, slots[at], at as u64 + 1), Ok(0)));
        } else {
            pool.slots().free(&slots[4..]);
            left.truncate(4);
        }
        assert!(repaired(pool, &mut lane));
        assert_eq!(pool.repair().single_bytes(), 0);
        third.kill_node();
        all_there(pool, &mut lane, &left);
        // A slot that was freed is taken again.
        let again = alloc(pool, 30);
        again.iter().for_each(|slot| assert_eq!(write(pool, &mut lane, *slot, 7), Ok(0)));
        again.iter().for_each(|slot| assert_eq!(read(pool, &mut lane, *slot), Ok(7)));
    }
}

/// While the one node that has a copy does not answer, there is no next step, and the copy is not there.
#[test]
fn a_repair_that_is_put_off_is_not_done() {
    for protect in [Protect::None, Protect::Mirror] {
        let (networks, pool) = common::pool(&[2, 2]);
        let pool: &'static Pool = Box::leak(Box::new(pool));
        pool.protect(protect);
        let mut lane = Lane::new();
        let slots = written(pool, &mut lane);
        let index = slots[0].slab_index();
        if protect == Protect::Mirror {
            networks[1].kill_node();
            assert_eq!((pool.losses().tend(), write(pool, &mut lane, slots[5], 6)), (Ok(()), Ok(0)));
        } else {
            pool.take_out(pool.homes(index)[0].unwrap().0);
        }
        let (_third, session) = node(9, 2);
        pool.add_node(session).unwrap();
        pool.moves().add_home(index).unwrap();
        leave_once(pool);
        assert!(matches!(pool.repair().lacks(), Some(farmem_pool::Lacks::Bytes(_, 1))));
        assert_eq!(pool.repair().lacks_but(&[index]), None, "there is no other slab");
        let (source, _) = pool.homes(index)[0].unwrap();
        networks[source].stop_node(2_000 * MS);
        assert!(!pool.moves().other_answers(index, 1));
        assert_eq!((pool.repair().lacks(), pool.repair().owes()), (None, true), "{protect:?}");
        networks.iter().for_each(|network| network.pass(4_000 * MS));
        assert!(repaired(pool, &mut lane) && !pool.repair().owes(), "{protect:?}");
        all_there(pool, &mut lane, &slots);
    }
}

/// A node that is taken out is left when its slabs have moved, whether pages are touched or not.
#[test]
fn a_node_that_is_taken_out_is_emptied() {
    for protect in [Protect::None, Protect::Mirror] {
        let (networks, pool) = common::pool(&[2, 2, 2]);
        let pool: &'static Pool = Box::leak(Box::new(pool));
        pool.protect(protect);
        let mut lane = Lane::new();
        let slots = written(pool, &mut lane);
        let left = pool.homes(slots[0].slab_index())[0].unwrap().0;
        assert!(pool.take_out(left));
        assert!(!pool.is_own(slots[0]));
        assert!(repaired(pool, &mut lane));
        pool.slots().shrink(SLAB_BYTES);
        assert_eq!((pool.nodes().standing(left), networks[left].lent()), (Some(Standing::Left), 0), "{protect:?}");
        assert!(pool.is_own(slots[0]) && pool.slots().capacity() == SLAB_BYTES);
        networks[left].kill_node();
        all_there(pool, &mut lane, &slots);
        assert_eq!((pool.repair().single_bytes(), pool.losses().tend()), (0, Ok(())));
    }
}

/// The node of a slab's other copy is stopped: the slab stays where it is, and what other slabs lack
/// is done meanwhile.
#[test]
fn work_that_needs_a_stopped_node_is_put_off() {
    let (networks, pool) = mirrored(&[1, 1]);
    let mut lane = Lane::new();
    let first = written(pool, &mut lane);
    let mut others = Vec::new();
    for seed in [3, 4] {
        let (network, session) = node(seed, 1);
        pool.add_node(session).unwrap();
        others.push(network);
    }
    // A second slab, on the two nodes that have come; then one more node, for copies.
    let all = farmem_protocol::addr::SLOTS_PER_SLAB as usize;
    let second = alloc(pool, all).into_iter().find(|slot| slot.slab_index() != first[0].slab_index()).unwrap();
    assert_eq!(write(pool, &mut lane, second, 77), Ok(0));
    let (fifth, session) = node(5, 4);
    pool.add_node(session).unwrap();
    // The first slab can leave its first node, when that of its other copy answers.
    let [Some((leaves, _)), Some((stays, _))] = pool.homes(first[0].slab_index()) else { panic!("two copies") };
    pool.take_out(leaves);
    while !matches!(pool.repair().lacks(), Some(farmem_pool::Lacks::Way(..))) {
        match pool.repair().lacks() {
            Some(farmem_pool::Lacks::Home(index)) => pool.moves().add_home(index).unwrap(),
            Some(farmem_pool::Lacks::Bytes(index, nth)) => drop(common::fill(pool, &mut lane, index, nth)),
            other => panic!("{other:?}"),
        }
        leave_once(pool);
    }
    let Some(farmem_pool::Lacks::Way(index, home)) = pool.repair().lacks() else { unreachable!() };
    networks[stays].stop_node(60_000 * MS);
    others[0].kill_node();
    assert!(read(pool, &mut lane, second).is_ok() && pool.losses().tend().is_ok());
    assert!(!pool.moves().other_answers(index, home));
    assert!(matches!(pool.repair().lacks(), Some(farmem_pool::Lacks::Home(other)) if other == second.slab_index()));
    networks[0].pass(1_100 * MS);
    assert_eq!(pool.repair().lacks(), Some(farmem_pool::Lacks::Way(index, home)), "it is tried again");
    drop(fifth);
}
