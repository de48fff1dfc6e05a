//! Functions near memory, on a node that computes, on one that does not, and on one that is mapped:
//! all alike.

#![allow(unsafe_code)] // A hostile member posts frames of its own making.

mod common;

use common::SLAB;
use farmem::near::{Chase, Columns, Found, Kind, Scan};
use farmem::{Addr, Error, Lane, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

fn node(compute: usize) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute, ..Config::new(4 * SLAB, listen) }).unwrap()
}

fn memory(node: &Node) -> Memory {
    common::builder(&[node], Transport::Tcp).connect().unwrap()
}

/// Bytes that follow from a seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn calls(node: &Node) -> u64 {
    node.nic().computed.calls.load(Ordering::Relaxed)
}

/// Does all of it on a node, and says what came of it.
fn outcome(lane: &mut Lane, seed: u64, count: usize) -> Vec<Vec<u8>> {
    let piece = lane.alloc(2 << 20).unwrap();
    let other = lane.alloc(1 << 20).unwrap();
    lane.write(piece, &bytes(seed, 2 << 20)).unwrap();
    let mut told = Vec::new();
    let scan =
        Scan { stride: 24, test: Kind::U32, test_at: 4, least: 1 << 30, most: 3 << 30, value: Kind::I64, value_at: 8 };
    let ranges = [(piece, 24 * 20_000), (piece + 1_000_000, 24), (piece + 24 * 25_000, 24 * 700)];
    let found = lane.near().scan(&ranges, &scan).unwrap();
    assert!(found.count > 5000);
    told.push(format!("{found:?}").into_bytes());
    let columns = Columns { test: Kind::I32, least: 0, most: 1 << 30, value: Kind::F64 };
    let pair = |n: u64| ((piece + n * 30_000, 4 * 5000), (piece + 1_000_000 + n, 8 * 5000));
    let found = lane.near().scan_columns(&(0..20).map(pair).collect::<Vec<_>>(), &columns).unwrap();
    assert!(found.len() == 20 && found[0].count > 500);
    told.push(format!("{found:?}").into_bytes());
    let uneven = ((piece, 4 * 5000), (piece, 8 * 5001));
    assert!(matches!(lane.near().scan_columns(&[uneven], &columns), Err(Error::Size(20_000))));
    let places: Vec<Addr> = (0..count as u64).map(|n| piece + (n.wrapping_mul(seed | 1) % ((2 << 20) - 64))).collect();
    told.push(lane.near().gather(&places, 64).unwrap());
    lane.near().copy(piece + 7, other + 9, 700_000).unwrap();
    lane.near().fill(other + 800_001, 100_003, 0x0102_0304_0506_0708).unwrap();
    let mut all = vec![0; 1 << 20];
    lane.read(other, &mut all).unwrap();
    told.push(all[9..700_009].to_vec());
    told.push(all[800_001..900_004].to_vec());
    // A chain of 3000 objects of 32 bytes, longer than one call follows.
    let links: Vec<u8> =
        (0..3000u64).flat_map(|n| [32 * (n + 1) % 96_000, n, 0, 0].map(u64::to_le_bytes).concat()).collect();
    lane.write(piece, &links).unwrap();
    for (wanted, hops) in [(2777, 5000), (9999, 5000), (2777, 1500), (0, 9)] {
        let chase = Chase { from: 32, next: 0, field: 8, wanted, hops };
        told.push(format!("{:?}", lane.near().chase(piece, 96_000, &chase).unwrap()).into_bytes());
    }
    lane.free(piece).unwrap();
    lane.free(other).unwrap();
    told
}

#[test]
fn it_is_all_the_same_where_it_is_done() {
    let (computes, refuses) = (node(2), node(0));
    let mapped = common::node(4);
    let memories =
        [memory(&computes), memory(&refuses), common::builder(&[&mapped], Transport::Shm).connect().unwrap()];
    let lanes = RefCell::new(memories.each_ref().map(|memory| memory.lane().unwrap()));
    let config = ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(any::<u64>(), 1..9000usize), |(seed, count)| {
            let [there, here, mapped] = lanes.borrow_mut().each_mut().map(|lane| outcome(lane, seed, count));
            prop_assert!(there == here && here == mapped);
            let found = String::from_utf8_lossy(&there[5]).into_owned();
            prop_assert!(found.contains("hops: 2776") && found.contains("found: true"), "{}", found);
            Ok(())
        })
        .unwrap();
    assert!(calls(&computes) > 20, "{} calls", calls(&computes));
    assert_eq!((calls(&refuses), calls(&mapped)), (0, 0));
    // Each member has its own account.
    let members = computes.nic().members();
    let of_all: u64 = members.iter().map(|member| member.computed.calls.load(Ordering::Relaxed)).sum();
    assert_eq!(of_all, calls(&computes));
    assert!(computes.nic().computed.ns.load(Ordering::Relaxed) > 0);
}

/// A sum of 8 MiB costs the network less than a twentieth of its bytes; so does a gather of single
/// words.
#[test]
fn bytes_stay_where_they_are() {
    let node = node(1);
    let memory = memory(&node);
    let mut lane = memory.lane().unwrap();
    let pieces: Vec<Addr> = (0..4).map(|_| lane.alloc(2 << 20).unwrap()).collect();
    let ones: Vec<u8> = 1u64.to_le_bytes().repeat(1 << 18);
    pieces.iter().for_each(|&piece| lane.write(piece, &ones).unwrap());
    let before = node.nic().tally.read_bytes.load(Ordering::Relaxed);
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 0, least: 1, most: 1, value: Kind::U64, value_at: 0 };
    let ranges: Vec<(Addr, u64)> = pieces.iter().map(|&piece| (piece, 2 << 20)).collect();
    let found = lane.near().scan(&ranges, &scan).unwrap();
    assert_eq!(found, Found { kind: Kind::U64, count: 1 << 20, sum: 1 << 20, least: 1, most: 1 });
    let places: Vec<Addr> = (0..1000).map(|n| pieces[n % 4] + 2048 * n as u64).collect();
    assert_eq!(lane.near().gather(&places, 8).unwrap(), ones[..8000]);
    let moved = node.nic().tally.read_bytes.load(Ordering::Relaxed) - before;
    assert_eq!(moved, 8000, "the scan's bytes stayed, the gather's came once");
    assert_eq!(calls(&node), 32 + 1);
}

/// A function has no right that its caller lacks, and what is wrong is told as for verbs.
#[test]
fn rights_are_those_of_verbs() {
    let node = node(1);
    let (one, other) = (memory(&node), memory(&node));
    let (mut mine, mut theirs) = (one.lane().unwrap(), other.lane().unwrap());
    let (piece, _) = (mine.alloc(4096).unwrap(), theirs.alloc(4096).unwrap());
    mine.write(piece, &[7; 4096]).unwrap();
    // The same address is another's memory in another connection: fresh, and zero.
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 0, least: 1, most: u64::MAX, value: Kind::U64, value_at: 0 };
    assert_eq!(theirs.near().scan(&[(piece, 4096)], &scan).unwrap().count, 0);
    assert_eq!(mine.near().scan(&[(piece, 4096)], &scan).unwrap().count, 512);
    let beyond = piece + (SLAB - 8);
    assert!(matches!(mine.near().scan(&[(beyond, 4096)], &scan), Err(Error::Range { .. })));
    assert!(matches!(mine.near().gather(&[beyond; 9], 4096), Err(Error::Range { .. })));
    assert!(matches!(mine.near().fill(beyond, 4096, 1), Err(Error::Range { .. })));
    assert!(matches!(mine.near().scan(&[(piece, 4092)], &scan), Err(Error::Size(4092))));
    assert!(matches!(mine.near().gather(&[piece], 4097), Err(Error::Size(4097))));
    let chase = Chase { from: 8, next: 0, field: 8, wanted: 1, hops: 9 };
    assert!(matches!(mine.near().chase(piece, 4096, &chase), Err(Error::Range { .. })), "a link that leads out");
}

/// Calls of a hostile member, by frames of its own making: they end by themselves, the node goes on, and memory that is
/// not the member's stays as it was.
#[test]
fn hostile_calls_touch_nothing_of_others() {
    use farmem_fabric::{ConnectOptions, Session};
    use farmem_protocol::key::Key;
    use farmem_protocol::near::{Call, Function, Range, laid};
    let node = node(2);
    let victim = memory(&node);
    let mut theirs = victim.lane().unwrap();
    let piece = theirs.alloc(2 << 20).unwrap();
    theirs.write(piece, &bytes(5, 2 << 20)).unwrap();

    let address = node.addresses()[0].clone();
    let options = ConnectOptions {
        transport: Transport::Tcp,
        run: [9; 16],
        timeout: std::time::Duration::from_secs(5),
        grace: std::time::Duration::from_secs(1),
        ..ConnectOptions::default()
    };
    let hostile = Session::connect(&address, &options).unwrap();
    let own = hostile.grant().unwrap().id.0;
    let mut queue = hostile.queue_pair().unwrap();
    let keys =
        [own, own, own, 0, 1, 2, own + 1, Key::WORDS.0, Key::COMPUTE.0, Key::window(0, 1).0, Key::unit(2, 0, 1).0];
    let (mut random, mut next32) = (1u64, 1u32);
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let (mut done, mut went) = (Vec::new(), 0);
    for round in 0..200 {
        let mut replies = [[0u8; 64]; 16];
        for reply in &mut replies {
            let mut range = |len: u64| {
                let at = next();
                let at = [at % 4096, at % SLAB, u64::MAX - at % 64, SLAB - at % 64][at as usize % 4];
                Range { key: Key(keys[next() as usize % keys.len()]), at, len }
            };
            let (count, each) = (1 + next32 % 50, 1 + next32 % 200);
            next32 = next32.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) >> 1;
            let nothing = Range { key: Key(0), at: 0, len: 0 };
            let run = laid(count) + u64::from(count * each);
            let (source, list, function) = match next32 % 5 {
                0 => (range(SLAB), range(run), Function::Gather { count, each }),
                1 => (range(1 << 20), range(run), Function::Scatter { count, each }),
                2 => (range(5000), range(5000), Function::Copy),
                3 => (range(5000), nothing, Function::Fill(7)),
                _ => {
                    let function = Function::Chase { from: 64, next: 8, field: 0, wanted: 1, hops: count };
                    (range(4096), nothing, function)
                }
            };
            let mut said = Call { source, list, function }.frame();
            if next() % 8 == 0 {
                said[next() as usize % 64] ^= 1 << (next() % 8);
            }
            // SAFETY: the replies outlive the completions, which are awaited below.
            unsafe { queue.send(round, Key::COMPUTE, &said, reply.as_mut_ptr()) };
        }
        queue.doorbell().unwrap();
        while done.len() < 16 {
            queue.wait(&mut done, std::time::Duration::from_secs(1)).unwrap();
        }
        went += done.drain(..).filter(|completion| completion.result.is_ok()).count();
    }
    assert!(went > 20, "{went} of 3200 made sense");
    let mut after = vec![0; 2 << 20];
    theirs.read(piece, &mut after).unwrap();
    assert!(after == bytes(5, 2 << 20));
}
