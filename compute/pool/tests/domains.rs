//! Copies of a slab lie in two failure domains, as long as another is to be had.

mod common;

use common::{all_there, alloc, at, node_in, read, repaired, write};
use farmem_pool::{Lacks, Lane, Pool, Protect};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES};
use farmem_sim::Network;
use std::sync::Arc;

/// A mirroring pool over simulated nodes: what each lends, in slabs, and its domain.
fn pool(nodes: &[(u64, &str)]) -> (Vec<Arc<Network>>, &'static Pool) {
    let made = nodes.iter().enumerate().map(|(seed, &(slabs, domain))| node_in(seed as u64 + 1, slabs, domain));
    let (networks, sessions) = made.unzip();
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(sessions).unwrap()));
    pool.protect(Protect::Mirror);
    (networks, pool)
}

/// Every thousandth of `n` slots, with a number each.
fn written(pool: &Pool, lane: &mut Lane, n: usize) -> Vec<FarSlot> {
    let (slots, others): (Vec<_>, Vec<_>) = alloc(pool, n).into_iter().enumerate().partition(|(at, _)| at % 1000 == 0);
    pool.slots().free(&others.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>());
    let slots: Vec<FarSlot> = slots.into_iter().map(|(_, slot)| slot).collect();
    slots.iter().enumerate().for_each(|(value, &slot)| assert_eq!(write(pool, lane, slot, value as u64 + 1), Ok(0)));
    slots
}

#[test]
fn no_slab_lies_in_one_domain_while_another_has_room() {
    let domains = ["a", "a", "a", "b"];
    let (_networks, pool) = pool(&[(4, "a"), (4, "a"), (4, "a"), (6, "b")]);
    let slots = alloc(pool, 6 * 16384);
    for slot in slots.iter().step_by(16384) {
        let at = at(pool, *slot);
        assert!(at.len() == 2 && domains[at[0]] != domains[at[1]], "{at:?}");
    }
    assert_eq!(
        (pool.repair().together_bytes(), pool.repair().lacks(), pool.repair().crowded_domain()),
        (0, None, None)
    );
    // The other domain is full: better two copies in one domain than none.
    pool.slots().ensure(7 * SLAB_BYTES).unwrap();
    alloc(pool, 1);
    assert_eq!((pool.repair().together_bytes(), pool.repair().crowded_domain().as_deref()), (SLAB_BYTES, Some("a")));
}

/// Nodes of no known domain are each one by itself.
#[test]
fn a_node_without_a_domain_is_its_own() {
    let (_networks, pool) = common::pool(&[2, 2]);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    pool.protect(Protect::Mirror);
    alloc(pool, 1);
    assert_eq!((pool.repair().together_bytes(), pool.repair().lacks()), (0, None));
}

/// The last node of a domain is lost: its copies are made again in the one that is left, and move when another comes.
#[test]
fn copies_move_apart_when_another_domain_comes() {
    let (networks, pool) = pool(&[(4, "a"), (4, "a"), (4, "b")]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane, 18_000);
    networks[2].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    all_there(pool, &mut lane, &slots);
    assert!(repaired(pool, &mut lane));
    assert_eq!((pool.repair().single_bytes(), pool.repair().together_bytes()), (0, 2 * SLAB_BYTES));
    // One of the same domain changes nothing. One of another that has room for one slab takes one.
    let (_same, session) = node_in(8, 4, "a");
    pool.add_node(session).unwrap();
    assert_eq!(pool.repair().lacks(), None);
    let (_other, session) = node_in(9, 1, "c");
    pool.add_node(session).unwrap();
    assert!(matches!(pool.repair().lacks(), Some(Lacks::Domain(_))));
    assert!(!repaired(pool, &mut lane), "the other domain is full");
    assert_eq!((pool.repair().single_bytes(), pool.repair().together_bytes()), (0, SLAB_BYTES));
    all_there(pool, &mut lane, &slots);
    let (_third, session) = node_in(10, 4, "b");
    pool.add_node(session).unwrap();
    assert!(repaired(pool, &mut lane));
    assert_eq!(
        (pool.repair().single_bytes(), pool.repair().together_bytes(), pool.repair().crowded_domain()),
        (0, 0, None)
    );
    // All of domain a may go.
    networks[..2].iter().for_each(|network| network.kill_node());
    assert_eq!(pool.losses().tend(), Ok(()));
    all_there(pool, &mut lane, &slots);
}

/// What is written while a copy moves is at both of its homes, and the place that it left is its node's again.
#[test]
fn a_copy_that_moves_takes_what_is_written() {
    let (networks, pool) = pool(&[(2, "a"), (2, "a")]);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane, 3000);
    let before = at(pool, slots[0]);
    let (other, session) = node_in(9, 2, "b");
    pool.add_node(session).unwrap();
    let index = slots[0].slab_index();
    let place = pool.moves().place_apart(index).unwrap();
    assert!(pool.moves().move_home(&mut lane, index, place));
    assert_eq!(write(pool, &mut lane, slots[1], 77), Ok(0));
    common::leave_once(pool);
    assert!(common::fill(pool, &mut lane, index, 1));
    assert_eq!((networks[before[1]].lent(), other.lent()), (0, SLAB_BYTES));
    networks[before[0]].kill_node();
    assert_eq!((read(pool, &mut lane, slots[0]), read(pool, &mut lane, slots[1])), (Ok(1), Ok(77)));
    assert_eq!(read(pool, &mut lane, slots[2]), Ok(3));
    // A place for a slab that needs none any more goes back.
    assert_ne!(pool.repair().lacks(), Some(Lacks::Domain(index)));
    let place = pool.moves().place_apart(index).unwrap();
    assert!(!pool.moves().move_home(&mut lane, index, place));
    assert_eq!(other.lent(), SLAB_BYTES);
}
