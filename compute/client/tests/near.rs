//! Functions near memory, on a node that computes, on one that does not, and on one that is mapped:
//! all alike.

#![allow(unsafe_code)] // A hostile member posts frames of its own making.

mod common;

use common::SLAB;
use farmem::near::{Change, Chase, Columned, Columns, Committed, Found, Group, Kind, Scan};
use farmem::{Addr, Error, Lane, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
    let group = Group { key: Kind::U32, value: Kind::F64, test: Some(Kind::I32), least: 0, most: 1 << 30, room: 300 };
    let few: Vec<u8> = (0..4000u32).flat_map(|n| (n % 290).to_le_bytes()).collect();
    lane.write(other, &few).unwrap();
    let part = |n: u64| Columned {
        // Those of the bytes are different, and more than there is room for.
        keys: (if n % 5 == 4 { piece } else { other }, 4 * 4000),
        values: (piece + 1_000_000 + n, 8 * 4000),
        tests: Some((piece + n * 30_000, 4 * 4000)),
    };
    let groups = lane.near().group(&(0..20).map(part).collect::<Vec<_>>(), &group).unwrap();
    assert!(groups.iter().enumerate().all(|(n, groups)| groups.is_none() == (n % 5 == 4)));
    told.push(format!("{groups:?}").into_bytes());
    for group in [Group { room: 0, ..group }, Group { room: 500, ..group }, Group { test: None, ..group }] {
        assert!(matches!(lane.near().group(&[part(0)], &group), Err(Error::Size(16_000))));
    }
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
            let found = String::from_utf8_lossy(&there[6]).into_owned();
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
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 0, least: 1, most: 1, value: Kind::U64, value_at: 0 };
    let ranges: Vec<(Addr, u64)> = pieces.iter().map(|&piece| (piece, 2 << 20)).collect();
    let places: Vec<Addr> = (0..1000).map(|n| pieces[n % 4] + 2048 * n as u64).collect();
    let read = || node.nic().tally.read_bytes.load(Ordering::Relaxed);
    let moved: Vec<(u64, u64)> = (0..20)
        .map(|_| {
            let before = (read(), calls(&node));
            let found = lane.near().scan(&ranges, &scan).unwrap();
            assert_eq!(found, Found { kind: Kind::U64, count: 1 << 20, sum: 1 << 20, least: 1, most: 1 });
            assert_eq!(lane.near().gather(&places, 8).unwrap(), ones[..8000]);
            (read() - before.0, calls(&node) - before.1)
        })
        .collect();
    // On a slow machine a call may be late: its bytes come then.
    assert!(moved.contains(&(8000, 32 + 1)), "the scan's bytes stayed, the gather's came once: {moved:?}");
}

/// Builds without the feature run no functions of the program's own, and say so.
#[cfg(not(feature = "wasm"))]
#[test]
fn modules_need_the_feature() {
    let node = node(1);
    let memory = memory(&node);
    let mut lane = memory.lane().unwrap();
    let piece = lane.alloc(1 << 20).unwrap();
    let said = lane.near().wasm(b"\0asm\x01\0\0\0", (piece, 64), 8, 0);
    assert!(matches!(&said, Err(Error::Module(why)) if why.contains("without the feature")), "{said:?}");
    // Other functions are carried out there all the same.
    lane.near().fill(piece, 4096, 7).unwrap();
    assert!(calls(&node) >= 1);
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

/// A word that another host changes ends a wait; one that stays does not.
#[test]
fn a_wait_ends_when_the_word_changes() {
    for node in [node(1), node(0)] {
        let memory = memory(&node);
        let mut lane = memory.lane().unwrap();
        let word = lane.alloc(64).unwrap();
        assert_eq!(lane.near().wait(word, 0, Duration::from_millis(120)).unwrap(), 0);
        assert_eq!(lane.near().wait(word, 1, Duration::from_secs(60)).unwrap(), 0);
        assert!(matches!(lane.near().wait(word + 4, 0, Duration::ZERO), Err(Error::Unaligned(_))));
        // Two wait, and one changes: more than the node has turns.
        let begun = Instant::now();
        std::thread::scope(|threads| {
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let mut lane = memory.lane().unwrap();
                    threads.spawn(move || lane.near().wait(word, 0, Duration::from_secs(60)).unwrap())
                })
                .collect();
            std::thread::sleep(Duration::from_millis(20));
            lane.store(word, 5).unwrap();
            // The node goes on with others' verbs meanwhile.
            assert_eq!(lane.load(word).unwrap(), 5);
            assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == 5));
        });
        assert!(begun.elapsed() < Duration::from_secs(50), "ended by the change");
    }
}

/// However many wait, the node keeps few of a member waiting, and none that has gone.
#[test]
fn few_of_a_member_wait_at_the_node() {
    use farmem_fabric::{ConnectOptions, Session};
    use farmem_protocol::key::Key;
    use farmem_protocol::near::{Call, Function, Range};
    let node = node(1);
    let memory = memory(&node);
    let mut lane = memory.lane().unwrap();
    let word = lane.alloc(64).unwrap();
    let waiting = || {
        let members = node.nic().members();
        members.iter().map(|member| member.computed.waiting.load(Ordering::Relaxed)).sum::<u64>()
    };
    std::thread::scope(|threads| {
        let waiters: Vec<_> = (0..80)
            .map(|_| {
                let mut lane = memory.lane().unwrap();
                threads.spawn(move || lane.near().wait(word, 0, Duration::from_millis(150)).unwrap())
            })
            .collect();
        while waiters.iter().any(|waiter| !waiter.is_finished()) {
            assert!(waiting() <= 64);
            assert_eq!(lane.load(word).unwrap(), 0);
        }
    });
    assert_eq!(waiting(), 0);
    // Without a limit that the clock could hold.
    assert_eq!(lane.near().wait(word, 1, Duration::MAX).unwrap(), 0);

    let (timeout, grace) = (Duration::from_secs(60), Duration::from_secs(1));
    let options =
        ConnectOptions { transport: Transport::Tcp, run: [8; 16], timeout, grace, ..ConnectOptions::default() };
    let session = Session::connect(&node.addresses()[0], &options).unwrap();
    let source = Range { key: Key(session.grant().unwrap().id.0), at: 0, len: 8 };
    let list = Range { key: Key(0), at: 0, len: 0 };
    let said = Call { source, list, function: Function::Wait { expected: 0, ms: 50 } }.frame();
    let mut reply = [0; 64];
    let mut queue = session.queue_pair().unwrap();
    // SAFETY: the queue pair is dropped before the reply.
    unsafe { queue.send(1, Key::COMPUTE, &said, reply.as_mut_ptr()) };
    queue.doorbell().unwrap();
    drop(queue);
    let until = Instant::now() + Duration::from_secs(60);
    while waiting() > 0 {
        assert!(Instant::now() < until, "a queue pair that is gone waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Threads move amounts between accounts, some by a node that computes, and some by verbs: nothing
/// is lost, and nobody sees a half.
#[test]
fn commits_are_atomic_wherever_they_are_done() {
    let node = node(1);
    // Shared: both ways name the same memory.
    let memory = memory(&node);
    const ACCOUNTS: u64 = 4;
    let mut lane = memory.lane().unwrap();
    let range = lane.alloc(8 + 8 * ACCOUNTS).unwrap();
    (0..ACCOUNTS).for_each(|n| lane.store(range + 8 + 8 * n, 1000).unwrap());
    let done: u64 = std::thread::scope(|threads| {
        let threads: Vec<_> = (1..=3u64)
            .map(|owner| {
                let mut lane = memory.lane().unwrap();
                threads.spawn(move || {
                    let list = lane.alloc(farmem::near::MAX_LIST).unwrap();
                    let mut done = 0;
                    for n in 0..150 {
                        let [from, to] = [n % ACCOUNTS, (n * 7 + owner) % ACCOUNTS].map(|n| 8 + 8 * n);
                        if from == to {
                            continue;
                        }
                        done += 1;
                        loop {
                            let [a, b] = [from, to].map(|at| lane.load(range + at).unwrap());
                            let [a_after, b_after] = [a - 1, b + 1].map(u64::to_le_bytes);
                            let change = Change {
                                lock: 0,
                                owner,
                                checks: &[(from, a), (to, b)],
                                writes: &[(from as u32, &a_after), (to as u32, &b_after)],
                            };
                            if lane.near().commit((range, 8 + 8 * ACCOUNTS), list, &change).unwrap() == Committed::Done
                            {
                                break;
                            }
                        }
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let sum: u64 = (0..ACCOUNTS).map(|n| lane.load(range + 8 + 8 * n).unwrap()).sum();
    assert_eq!((sum, lane.load(range).unwrap()), (1000 * ACCOUNTS, 0));
    // Turns are short: with one, some were refused as busy and done by verbs.
    assert!(done > 300 && calls(&node) > 0, "{done} done, {} there", calls(&node));
}

/// A commit that cannot be carried out changes nothing, and its caller is told why.
#[test]
fn commits_that_cannot_be_are_refused() {
    for node in [node(1), node(0)] {
        let memory = memory(&node);
        let mut lane = memory.lane().unwrap();
        let (range, list) = (lane.alloc(4096).unwrap(), lane.alloc(farmem::near::MAX_LIST).unwrap());
        let change = Change { lock: 8, owner: 3, checks: &[(16, 0)], writes: &[(24, &[1; 8])] };
        let mut commit = |change: &Change<'_>| lane.near().commit((range, 64), list, change);
        assert!(matches!(commit(&Change { lock: 4, ..change }), Err(Error::Unaligned(_))));
        assert!(matches!(commit(&Change { owner: 0, ..change }), Err(Error::Size(_))));
        assert!(matches!(commit(&Change { checks: &[], writes: &[], ..change }), Err(Error::Size(_))));
        assert!(matches!(commit(&Change { writes: &[(60, &[1; 8])], ..change }), Err(Error::Range { .. })));
        assert!(matches!(commit(&Change { writes: &[(8, &[1; 8])], ..change }), Err(Error::Range { .. })));
        let long = [1; 4096];
        assert!(matches!(commit(&Change { writes: &[(0, &long[..]); 5], ..change }), Err(Error::Size(_))));
        assert!(matches!(
            commit(&Change { checks: &[(16, 9)], ..change }),
            Ok(Committed::Differs { nth: 0, found: 0 })
        ));
        lane.store(range + 8, 77).unwrap();
        assert!(matches!(lane.near().commit((range, 64), list, &change), Ok(Committed::Held(77))));
        lane.store(range + 8, 0).unwrap();
        let mut all = [9; 64];
        lane.read(range, &mut all).unwrap();
        assert_eq!(all, [0; 64]);
        assert!(matches!(lane.near().commit((range, 64), list, &change), Ok(Committed::Done)));
        assert_eq!(lane.load(range + 24).unwrap(), u64::from_le_bytes([1; 8]));
    }
}

/// Calls of a hostile member, by frames of its own making: they end by themselves, the node goes on, and memory that is
/// not the member's stays as it was.
#[test]
fn hostile_calls_touch_nothing_of_others() {
    use farmem_fabric::{ConnectOptions, Session};
    use farmem_protocol::key::Key;
    use farmem_protocol::near::{Call, Commit, Function, Range, laid};
    let node = node(2);
    let victim = memory(&node);
    let mut theirs = victim.lane().unwrap();
    let piece = theirs.alloc(2 << 20).unwrap();
    theirs.write(piece, &bytes(5, 2 << 20)).unwrap();

    let address = node.addresses()[0].clone();
    let options = ConnectOptions {
        transport: Transport::Tcp,
        run: [9; 16],
        timeout: std::time::Duration::from_secs(30),
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
            let (source, list, function) = match next32 % 8 {
                0 => (range(SLAB), range(run), Function::Gather { count, each }),
                1 => (range(1 << 20), range(run), Function::Scatter { count, each }),
                2 => (range(5000), range(5000), Function::Copy),
                3 => (range(5000), nothing, Function::Fill(7)),
                4 => (range(8), nothing, Function::Wait { expected: 0, ms: 1 }),
                5 => {
                    let commit = Commit { lock: 8, owner: 5, checks: 1, writes: count as u16, bytes: each };
                    (range(5000), range(commit.list()), Function::Commit(commit))
                }
                6 => {
                    let kind = Kind::U64;
                    let group = Group { key: kind, value: kind, test: None, least: 0, most: 0, room: count };
                    (range(8 * u64::from(each)), range(group.work()), Function::Group(group))
                }
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

/// Calls that say as much as their frames can: each ends by itself, within its bounds.
#[test]
fn the_largest_and_the_endless_are_bounded() {
    use farmem_fabric::{ConnectOptions, QueuePair, Session};
    use farmem_protocol::key::Key;
    use farmem_protocol::near::{Call, Commit, Committed, Function, MAX_BYTES, Range, Reply, laid};
    let node = node(2);
    let victim = memory(&node);
    let mut theirs = victim.lane().unwrap();
    let piece = theirs.alloc(2 << 20).unwrap();
    theirs.write(piece, &bytes(5, 2 << 20)).unwrap();

    let (timeout, grace) = (Duration::from_secs(60), Duration::from_secs(1));
    let options =
        ConnectOptions { transport: Transport::Tcp, run: [9; 16], timeout, grace, ..ConnectOptions::default() };
    let hostile = Session::connect(&node.addresses()[0], &options).unwrap();
    let own = Key(hostile.grant().unwrap().id.0);
    /// Sends calls all at once, and waits for the answers.
    fn ask(queue: &mut QueuePair, calls: &[Call]) -> Vec<Option<Reply>> {
        let mut replies = vec![[0u8; 64]; calls.len()];
        for (n, (call, reply)) in (0..).zip(calls.iter().zip(&mut replies)) {
            // SAFETY: the replies outlive the completions, which are awaited below.
            unsafe { queue.send(n, Key::COMPUTE, &call.frame(), reply.as_mut_ptr()) };
        }
        queue.doorbell().unwrap();
        let (mut done, mut went) = (Vec::new(), vec![false; calls.len()]);
        let mut left = calls.len();
        while left > 0 {
            queue.wait(&mut done, Duration::from_secs(60)).unwrap();
            left -= done.len();
            done.drain(..).for_each(|one| went[one.tag as usize] = one.result.is_ok());
        }
        (0..calls.len()).map(|n| went[n].then(|| Reply::parse(&replies[n], &calls[n])).flatten()).collect()
    }
    let mut queue = hostile.queue_pair().unwrap();
    let range = |at, len| Range { key: own, at, len };
    let none = Range { key: Key(0), at: 0, len: 0 };
    let call = |source, list, function| Call { source, list, function };
    // On a slow machine a sound call may be late, or find all turns taken.
    let mut done = |call: Call| (0..1000).find_map(|_| ask(&mut queue, &[call]).remove(0)).expect("it is sound");
    let fill = |at, word| call(range(at, 8), none, Function::Fill(word));
    let look = |at| call(range(at, 8), none, Function::Wait { expected: 12345, ms: 0 });

    // A chain in a circle, and links that lead out.
    done(fill(64, 128));
    done(fill(128, 64));
    let chase = |from, hops| Function::Chase { from, next: 0, field: 8, wanted: 1, hops };
    let ended = done(call(range(0, 4096), none, chase(64, 1024)));
    assert_eq!(ended, Reply::Chased { at: 64, hops: 1024, found: false });
    // A list within its own source, and a thousand pieces of one place.
    let each = |count, each| (range(8192, laid(count) + u64::from(count * each)), Function::Gather { count, each });
    let (list, gather) = each(1000, 64);
    assert_eq!(done(call(range(0, 1 << 20), list, gather)), Reply::Moved(64_000));
    // A commit whose lock another number has, or its own; then one that finds it free.
    let (list, commit) = (range(1 << 20, 16), Commit { lock: 0, owner: 5, checks: 0, writes: 1, bytes: 8 });
    let committing = call(range(4096, 64), list, Function::Commit(commit));
    let head = |at: u64| fill(1 << 20, at | 8 << 32);
    done(head(16));
    for held in [77, 5, 0] {
        done(fill(4096, held));
        let wanted = if held == 0 { Committed::Done } else { Committed::Held(held) };
        assert_eq!(done(committing), Reply::Committed(wanted));
        assert_eq!(done(look(4096)), Reply::Waited(held));
    }
    // A scatter that changes its own list behind the part that was checked.
    let (from, count) = (2 << 20, 2000);
    done(fill(from, from + 4 * 1500));
    done(fill(from + laid(count), u32::MAX.into()));
    let scattered = range(from, laid(count) + 4 * u64::from(count));
    let scatter = call(range(0, 4 << 20), scattered, Function::Scatter { count, each: 4 });
    done(fill(64, u64::MAX - 3));
    // A write that would touch the lock.
    done(head(4));
    let long = |len| range(0, len);
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 0, least: 0, most: 9, value: Kind::U64, value_at: 0 };
    let group = Group { key: Kind::U64, value: Kind::U64, test: None, least: 0, most: 0, room: u32::MAX };
    let refused = [
        scatter,
        committing,
        call(range(0, 4096), none, chase(64, 1024)),
        call(range(0, 4096), none, chase(u32::MAX, 1)),
        call(range(0, 4096), none, chase(128, 1025)),
        call(range(0, 4096), none, chase(128, u32::MAX)),
        call(long(1 << 60), none, Function::Scan(scan)),
        call(long(MAX_BYTES + 8), none, Function::Scan(scan)),
        call(range(u64::MAX - 7, 8), none, Function::Scan(scan)),
        call(long(64), none, Function::Scan(Scan { stride: 0, ..scan })),
        call(long(1 << 63), none, Function::Fill(0)),
        call(long(u64::MAX), long(u64::MAX), Function::Copy),
        call(long(1000), range(500, 1000), Function::Copy),
        call(long(4096), range(8192, 1 << 20), Function::Group(group)),
        call(long(1 << 20), range(8192, laid(u32::MAX)), Function::Gather { count: u32::MAX, each: u32::MAX }),
        call(range(0, 8), none, Function::Wait { expected: 0, ms: u32::MAX }),
        call(range(4096, 64), list, Function::Commit(Commit { checks: u16::MAX, writes: u16::MAX, ..commit })),
        call(range(4096, 64), list, Function::Commit(Commit { lock: u32::MAX - 7, ..commit })),
    ];
    for (n, call) in refused.iter().enumerate() {
        assert_eq!(ask(&mut queue, &[*call]), [None], "{n}: {call:?}");
    }

    // Thousands of waits, by more queue pairs than may wait at once.
    let of_it = || node.nic().members().iter().map(|member| member.computed.waiting.load(Ordering::Relaxed)).max();
    let wait = call(range(1 << 21, 8), none, Function::Wait { expected: 7, ms: 1 });
    let mut queues: Vec<QueuePair> = (0..80).map(|_| hostile.queue_pair().unwrap()).collect();
    assert_eq!(ask(&mut queue, &[fill(1 << 21, 7)]).len(), 1);
    std::thread::scope(|threads| {
        let waits: Vec<_> = queues
            .chunks_mut(20)
            .map(|some| threads.spawn(|| some.iter_mut().map(|queue| ask(queue, &[wait; 50]).len()).sum::<usize>()))
            .collect();
        while waits.iter().any(|one| !one.is_finished()) {
            assert!(of_it() <= Some(64));
            let mut some = [0; 4096];
            theirs.read(piece, &mut some).unwrap();
        }
        assert_eq!(waits.into_iter().map(|one| one.join().unwrap()).sum::<usize>(), 4000);
    });
    let until = Instant::now() + Duration::from_secs(60);
    while of_it() != Some(0) {
        assert!(Instant::now() < until, "a wait stays");
    }
    // All of it is on the member's account, and nothing on the other's.
    let paid: Vec<u64> = node.nic().members().iter().map(|member| member.computed.ns.load(Ordering::Relaxed)).collect();
    assert_eq!(paid.iter().sum::<u64>(), node.nic().computed.ns.load(Ordering::Relaxed));
    assert!(paid.len() == 2 && paid.iter().filter(|&&ns| ns > 0).count() == 1, "{paid:?}");
    let mut after = vec![0; 2 << 20];
    theirs.read(piece, &mut after).unwrap();
    assert!(after == bytes(5, 2 << 20));
}

/// A marking that changes its own directory, so that a block has another's places and more slots
/// than that one: it reaches nothing behind its own piece.
#[test]
fn a_marking_stays_within_what_its_member_has() {
    use farmem::near::mark::{ENTRY, Entry, Head, Lies, Marking, word};
    use zerocopy::IntoBytes;
    let node = node(1);
    let (mine, theirs) = (memory(&node), memory(&node));
    let (mut lane, mut other) = (mine.lane().unwrap(), theirs.lane().unwrap());
    let mut others: Vec<Addr> = (0..8).map(|_| other.alloc(2 << 20).unwrap()).collect();
    let [own, last] = [(); 2].map(|()| lane.alloc(2 << 20).unwrap());
    others.extend((0..8).map(|_| other.alloc(2 << 20).unwrap()));
    others.iter().for_each(|&piece| other.write(piece, &vec![0; 2 << 20]).unwrap());
    let (large, slots, stride, end) = (1 << 17, 64, 8, 2 << 20);
    let [block, bits, directory, work] = [0, 1 << 20, 3 << 19, 7 << 18].map(|at| own + at);
    let mut lay = |n: u64, places, slots| {
        let entry: Entry = lane.near().entry(places, slots, stride, Lies::Here).unwrap();
        lane.write(directory + n * ENTRY, entry.as_bytes()).unwrap();
    };
    lay(0, (block, bits), large);
    lay(1, (block, directory + 32), slots);
    lay(64, (last + (end - 528), last + (end - 16)), slots);
    let mut head = Head { count: 3.into(), ..Head::default() };
    head.links[0] = 1.into();
    let mut state = head.as_bytes().to_vec();
    state.extend([word(0, large - 1), word(1, 33), word(64, 0)].iter().flat_map(|word| word.to_le_bytes()));
    lane.write(work, &state).unwrap();
    let marking = Marking { directory, blocks: 65, work, stride, room: 4 };
    let _ = lane.near().mark(&[marking]).unwrap();
    let mut found = vec![0; 2 << 20];
    for piece in others {
        other.read(piece, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0), "a marking wrote to another member's memory");
    }
}

/// Pieces that functions work in are of the process. One in a region would stay there for good.
#[test]
fn a_region_keeps_nothing_of_a_group() {
    let node = node(2);
    let memory = common::builder(&[&node], Transport::Tcp).region("grouped").create(true).connect().unwrap();
    let piece = memory.alloc(64 << 10).unwrap();
    memory.write(piece, &bytes(3, 64 << 10)).unwrap();
    let before = memory.pieces().unwrap();
    let group = Group { key: Kind::U32, value: Kind::F64, test: None, least: 0, most: 0, room: 10 };
    let part = Columned { keys: (piece, 4 * 500), values: (piece + 8192, 8 * 500), tests: None };
    memory.lane().unwrap().near().group(&[part], &group).unwrap();
    assert_eq!(memory.pieces().unwrap(), before);
}
