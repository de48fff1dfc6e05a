//! Numbers of nodes that have ended are another's later: nothing of the node before reaches it.

mod common;

use common::{alloc, leave_once, node, read, repaired, write};
use farmem_pool::{Lane, MAX_NODES, Pool, Protect, Standing};

/// A run whose second node changes again and again has more nodes than the table has places. Each lane keeps what it has
/// to nodes before, one of them with a queue pair that was never used since.
#[test]
fn more_nodes_come_and_go_than_the_table_has() {
    let (kept, first) = node(1, 8);
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(vec![first]).unwrap()));
    pool.protect(Protect::Mirror);
    let [mut writes, mut reads] = [Lane::new(), Lane::new()];
    let mut slots = Vec::new();
    for round in 0..3 * MAX_NODES as u64 {
        // One address for all of them, as of a node that is given up and comes back; and one that leaves.
        let (network, session) = node(2 + round, 4);
        let number = pool.add_node(session).unwrap();
        assert!(number < 4, "round {round}: {number}");
        if slots.is_empty() {
            slots = alloc(pool, 4);
        }
        assert!(repaired(pool, &mut writes), "round {round}");
        assert_eq!(pool.repair().single_bytes(), 0, "round {round}");
        for (at, &slot) in slots.iter().enumerate() {
            if round > 0 {
                assert_eq!(read(pool, &mut reads, slot), Ok(256 * (round - 1) + at as u64), "round {round}");
            }
            assert_eq!(write(pool, &mut writes, slot, 256 * round + at as u64), Ok(0));
        }
        assert!(network.lent() > 0 && kept.lent() > 0);
        if round % 3 == 0 {
            assert!(pool.take_out(number));
            // Nowhere to go: back to the first node alone when another has come.
            let (_other, session) = node(1_000 + round, 4);
            let other = pool.add_node(session).unwrap();
            assert!(repaired(pool, &mut writes), "round {round}");
            leave_once(pool);
            pool.slots().shrink(0);
            assert_eq!((pool.nodes().standing(number), network.lent()), (Some(Standing::Left), 0), "round {round}");
            assert!(pool.take_out(other) || pool.nodes().standing(other) != Some(Standing::In));
            network.kill_node();
            _other.kill_node();
        } else {
            network.kill_node();
        }
        assert_eq!(pool.losses().tend(), Ok(()));
        leave_once(pool);
    }
    for (at, &slot) in slots.iter().enumerate() {
        let last = 3 * MAX_NODES as u64 - 1;
        assert_eq!(read(pool, &mut reads, slot), Ok(256 * last + at as u64));
    }
}

/// A number is no other's before every thread has left once since its node ended.
#[test]
fn a_number_rests_until_every_thread_has_left() {
    let (networks, pool) = common::pool(&[2, 2]);
    let mut lane = Lane::new();
    let slots = alloc(&pool, 2);
    assert_eq!(write(&pool, &mut lane, slots[0], 1), Ok(0));
    let empty = (0..2).find(|&at| networks[at].lent() == 0).unwrap();
    networks[empty].kill_node();
    let noticed = (0..50).any(|_| {
        networks[empty].pass(200_000_000);
        assert_eq!(pool.losses().tend(), Ok(()));
        pool.nodes().standing(empty) == Some(Standing::Lost)
    });
    assert!(noticed && pool.losses().tend().is_ok());
    let join = |seed| pool.add_node(node(seed, 2).1).unwrap();
    assert_eq!(join(7), 2, "a thread may use the number");
    leave_once(&pool);
    assert_eq!(join(8), empty);
    assert_eq!(join(9), 3);
    assert_eq!(read(&pool, &mut lane, slots[0]), Ok(1));
}

/// A full table: nodes that are in keep their numbers, and one more is refused by name.
#[test]
fn a_full_table_refuses_one_more() {
    let (_networks, pool) = common::pool(&[1]);
    let all: Vec<_> =
        (1..MAX_NODES as u64).map(|seed| pool.add_node(node(seed + 1, 1).1).map_err(|e| e.to_string())).collect();
    assert!(all.iter().all(Result::is_ok));
    let refused = pool.add_node(node(999, 1).1).unwrap_err().to_string();
    assert!(refused.contains("has 256 nodes, which is the limit"), "{refused}");
    assert!(pool.take_out(MAX_NODES - 1));
    pool.slots().shrink(0);
    assert_eq!(pool.losses().tend(), Ok(()));
    leave_once(&pool);
    assert_eq!(pool.add_node(node(1000, 1).1).map_err(|e| e.to_string()), Ok(MAX_NODES - 1));
}
