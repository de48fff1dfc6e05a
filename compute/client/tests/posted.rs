//! Functions near memory whose caller does something else meanwhile: pieces gathered as their places
//! become known, and columns scanned.

mod common;

use common::{SLAB, builder};
use farmem::near::{Columns, Kind, Pair};
use farmem::{Addr, Lane, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use std::sync::atomic::Ordering;

/// Bytes of a piece of memory here.
const BYTES: usize = 1 << 20;

fn node(compute: usize) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute, ..Config::new(4 * SLAB, listen) }).unwrap()
}

fn calls(node: &Node) -> u64 {
    node.nic().computed.calls.load(Ordering::Relaxed)
}

fn mixed(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A piece at each node, and what is in them.
fn filled(memory: &Memory, lane: &mut Lane) -> Vec<(Addr, Vec<u8>)> {
    let piece = |seed: usize| {
        let bytes: Vec<u8> = (0..BYTES as u64).map(|n| (mixed(n ^ (seed as u64) << 32) >> 56) as u8).collect();
        let at = memory.alloc_on(seed % memory.nodes(), BYTES as u64).unwrap();
        lane.write(at, &bytes).unwrap();
        (at, bytes)
    };
    (0..memory.nodes()).map(piece).collect()
}

/// The nth place: a piece, and an offset in it.
fn place(n: usize, pieces: usize, each: usize) -> (usize, usize) {
    let at = mixed(n as u64) >> 8;
    ((at % pieces as u64) as usize, (at >> 8) as usize % (BYTES - each))
}

#[test]
fn each_piece_comes_once_wherever_it_is() {
    // Two nodes compute, and one refuses.
    let nodes = [node(2), node(0), node(1)];
    let memory = builder(&nodes.each_ref(), Transport::Tcp).connect().unwrap();
    let mut lane = memory.lane().unwrap();
    let pieces = filled(&memory, &mut lane);
    for (each, count) in [(1, 9000), (8, 20_000), (64, 9000), (1000, 900), (4096, 300), (64, 3), (64, 0)] {
        let mut came = vec![0u8; count];
        let mut take = |n: usize, bytes: &[u8]| {
            let (piece, at) = place(n, pieces.len(), each);
            assert_eq!(bytes, &pieces[piece].1[at..at + each]);
            came[n] += 1;
        };
        let mut gathering = lane.near().gathering(each as u32).unwrap();
        for n in 0..count {
            let (piece, at) = place(n, pieces.len(), each);
            gathering.add(n, pieces[piece].0 + at as u64, &mut take).unwrap();
        }
        gathering.finish(&mut take).unwrap();
        assert!(came.iter().all(|&times| times == 1), "{each} bytes each");
    }
    assert!(calls(&nodes[0]) > 15 && calls(&nodes[1]) == 0, "{} calls", calls(&nodes[0]));
    assert!(lane.near().gathering(0).is_err() && lane.near().gathering(4097).is_err());
}

/// Its calls are awaited then, and the memory that they use is used again.
#[test]
fn a_gathering_may_be_left_at_any_time() {
    let nodes = [node(2), node(2)];
    let memory = builder(&nodes.each_ref(), Transport::Tcp).connect().unwrap();
    let mut lane = memory.lane().unwrap();
    let pieces = filled(&memory, &mut lane);
    let places: Vec<Addr> = (0..8000).map(|n| place(n, 2, 64)).map(|(piece, at)| pieces[piece].0 + at as u64).collect();
    let whole = lane.near().gather(&places, 64).unwrap();
    let nowhere = Addr::from_bits((1 << 48) - 1).unwrap();
    for left in (0..8000).step_by(487) {
        let mut gathering = lane.near().gathering(64).unwrap();
        places[..left].iter().enumerate().try_for_each(|(n, &at)| gathering.add(n, at, &mut |_, _| ())).unwrap();
        // A place that cannot be is an error by itself.
        assert!(gathering.add(left, nowhere, &mut |_, _| ()).is_err());
        drop(gathering);
        assert!(lane.in_flight() == 0 && lane.near().gather(&places, 64).unwrap() == whole);
    }
}

#[test]
fn columns_are_the_same_whenever_they_are_asked_for() {
    let nodes = [node(2), node(0)];
    let memory = builder(&nodes.each_ref(), Transport::Tcp).connect().unwrap();
    let mut lane = memory.lane().unwrap();
    let pieces = filled(&memory, &mut lane);
    // Of one node, of the other, and of both.
    let pair = |n: usize| -> Pair {
        let (tests, values) = (pieces[n % 2].0, pieces[n / 2 % 2].0);
        ((tests + 16 * n as u64, 4 * 3000), (values + 24_000 * (n % 40) as u64, 8 * 3000))
    };
    let pairs: Vec<Pair> = (0..100).map(pair).collect();
    for value in [Kind::U64, Kind::F64, Kind::I64] {
        let columns = Columns { test: Kind::I32, least: 0, most: 1 << 29, value };
        let bits = |found: Vec<farmem::near::Found>| found.iter().map(|one| (one.count, one.sum)).collect::<Vec<_>>();
        let found = bits(lane.near().scan_columns(&pairs, &columns).unwrap());
        assert!(found.len() == 100 && found.iter().all(|one| one.0 > 100));
        let mut scanning = lane.near().scanning_columns(pairs.clone(), &columns);
        for _ in 0..50 {
            scanning.go_on().unwrap();
        }
        assert!(bits(scanning.finish().unwrap()) == found);
        // One that is left has nothing under way.
        lane.near().scanning_columns(pairs.clone(), &columns).go_on().unwrap();
        assert_eq!(lane.in_flight(), 0);
        // A column by itself, without a bound: the tested elements are those that are summed.
        let all = Columns { test: Kind::U64, least: 0, most: u64::MAX, value };
        let (own, copy) = ((pieces[0].0, 8 * 3000), memory.alloc_on(0, 8 * 4096).unwrap());
        lane.write(copy, &pieces[0].1[..8 * 3000]).unwrap();
        let found = lane.near().scan_columns(&[(own, own), (own, (copy, 8 * 3000))], &all).unwrap();
        assert!(found[0].count == 3000 && found[0].sum == found[1].sum && found[0].most == found[1].most);
    }
}

/// An error may come when calls were posted and not sent.
#[test]
fn what_an_error_has_met_is_no_result_afterwards() {
    let nodes = [node(2)];
    let memory = builder(&nodes.each_ref(), Transport::Tcp).connect().unwrap();
    let mut lane = memory.lane().unwrap();
    let pieces = filled(&memory, &mut lane);
    let columns = Columns { test: Kind::U64, least: 0, most: u64::MAX, value: Kind::U64 };
    let good: Pair = ((pieces[0].0, 800), (pieces[0].0, 800));
    // As many elements in both ranges, or not.
    let bad: Pair = ((pieces[0].0, 800), (pieces[0].0, 808));
    for before in [0, 1, 9, 15] {
        let pairs = [vec![good; before], vec![bad], vec![good; 3]].concat();
        let mut scanning = lane.near().scanning_columns(pairs, &columns);
        assert!(scanning.go_on().is_err() && scanning.finish().is_err(), "{before} good ones before it");
        assert_eq!(lane.in_flight(), 0);
    }
}

/// Whether the caller leaves a gathering at the first error, or adds further pieces.
#[test]
fn a_node_that_ends_is_an_error_and_leaves_no_pieces_out() {
    for adds_on in [false, true] {
        let (first, second) = (node(2), node(2));
        let memory = builder(&[&first, &second], Transport::Tcp).connect().unwrap();
        let mut lane = memory.lane().unwrap();
        let pieces = filled(&memory, &mut lane);
        let (mut second, mut came) = (Some(second), 0);
        let mut gathering = lane.near().gathering(64).unwrap();
        let asked = (0..20_000).try_for_each(|n| {
            if n == 5000 {
                second = None;
            }
            let (piece, at) = place(n, 2, 64);
            let added = gathering.add(n, pieces[piece].0 + at as u64, &mut |_, _| came += 1);
            if adds_on { Ok(()) } else { added }
        });
        let ended = asked.and_then(|()| gathering.finish(&mut |_, _| came += 1));
        assert!(came < 20_000 && matches!(ended, Err(farmem::Error::Lost { .. })), "{came} came: {ended:?}");
        // The other node goes on.
        let places = [0, 64, 7, 9].map(|at| pieces[0].0 + at);
        let found = lane.near().gather(&places, 8).unwrap();
        assert!(second.is_none() && found[..8] == pieces[0].1[..8]);
    }
}
