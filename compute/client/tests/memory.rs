//! Private memory: pieces and verbs, over tcp and shm, on one node and several.

mod common;

use common::{Process, SLAB, WAYS, await_that, builder, node};
use farmem::{Addr, Error, Memory};
use std::time::{Duration, Instant};

#[test]
fn node_process() {
    common::be_a_node();
}

#[test]
fn what_is_written_is_read() {
    for way in WAYS {
        let node = node(2);
        let memory = builder(&[&node], way).connect().unwrap();
        let piece = memory.alloc(2 << 20).unwrap();
        let bytes: Vec<u8> = (0..2u32 << 20).map(|n| (n * 7 / 3) as u8).collect();
        memory.write(piece, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        memory.read(piece, &mut read).unwrap();
        assert!(read == bytes, "{way:?}");
        let mut part = [0; 5];
        memory.read(piece + 100_001, &mut part).unwrap();
        assert_eq!(part, bytes[100_001..100_006]);
        memory.read(piece, &mut []).unwrap();

        let word = memory.alloc_zeroed(1).unwrap();
        let add = |add| memory.fetch_add(word + 8, add).unwrap();
        assert_eq!([add(5), add(2)], [0, 5]);
        let swap = |expected, new| memory.compare_swap(word + 8, expected, new).unwrap();
        assert_eq!([swap(1, 2), swap(7, 9), memory.load(word + 8).unwrap()], [7, 7, 9]);
        memory.store(word + 8, 11).unwrap();
        assert_eq!(memory.load(word + 8), Ok(11));
        // A piece may be larger than was asked for: all of it is cleared.
        let used = memory.alloc(8192).unwrap();
        memory.write(used, &[0xff; 8192]).unwrap();
        memory.free(used).unwrap();
        let cleared = memory.alloc_zeroed(5000).unwrap();
        let mut all = [1; 8192];
        memory.read(cleared, &mut all).unwrap();
        assert!(cleared == used && all == [0; 8192], "{way:?}");
        assert_eq!(memory.check(), Ok(()));
    }
}

#[test]
fn what_is_not_there_is_refused() {
    for way in WAYS {
        let node = node(1);
        let memory = builder(&[&node], way).connect().unwrap();
        let mut byte = [0];
        let range = |at, len| Err(Error::Range { at, len });
        assert_eq!(memory.read(Addr::NULL, &mut byte), range(Addr::NULL, 1));
        let piece = memory.alloc(1).unwrap();
        let last = piece + (SLAB - 1);
        assert_eq!((memory.read(last, &mut byte), memory.read(last, &mut [0; 2])), (Ok(()), range(last, 2)));
        let elsewhere = Addr::from_bits(piece.bits() | 1 << 42).unwrap();
        assert_eq!((elsewhere.node(), memory.write(elsewhere, b"x")), (1, range(elsewhere, 1)));
        let next = Addr::from_bits(piece.bits() + SLAB).unwrap();
        assert_eq!(memory.write(next, b"x"), range(next, 1));
        assert_eq!(memory.fetch_add(piece + 4, 1), Err(Error::Unaligned(piece + 4)));
        assert_eq!(
            [memory.alloc(0), memory.alloc((2 << 20) + 1)],
            [Err(Error::Size(0)), Err(Error::Size((2 << 20) + 1))]
        );
        for wrong in [piece + 1, piece + 4096, next, elsewhere, Addr::NULL] {
            assert_eq!(memory.free(wrong), Err(Error::NotAPiece(wrong)));
        }
        assert_eq!((memory.free(piece), memory.free(piece)), (Ok(()), Err(Error::NotAPiece(piece))));
    }
    assert_eq!(Memory::builder().connect().unwrap_err(), Error::Nodes(0));
    assert!(matches!(Memory::connect("nonsense"), Err(Error::Address(_))));
    assert!(matches!(Memory::connect("127.0.0.1:1"), Err(Error::Connect(_))));
}

#[test]
fn pieces_come_from_the_nodes_in_turns_until_all_are_full() {
    for way in WAYS {
        let (a, b) = (node(1), node(2));
        let memory = builder(&[&a, &b], way).connect().unwrap();
        let first: Vec<usize> = (0..8).map(|_| memory.alloc(2 << 20).unwrap().node()).collect();
        assert_eq!(first.iter().sum::<usize>(), 4, "{first:?}");
        let rest = std::iter::from_fn(|| memory.alloc(2 << 20).ok()).count();
        assert_eq!(rest, 3 * 32 - 8);
        let full = memory.alloc(1).unwrap_err();
        assert!(matches!(full, Error::Full(_)), "{full}");
        let pieces = memory.pieces().unwrap();
        assert_eq!(pieces.len(), 96);
        memory.free(pieces[50].at).unwrap();
        assert_eq!(memory.alloc(1 << 20).unwrap(), pieces[50].at);
        assert!(matches!(memory.alloc_on(0, 1), Err(Error::Full(_))));
        assert_eq!(memory.alloc_on(7, 1), Err(Error::Nodes(7)));
        drop(memory);
        await_that("all is given back", || a.nic().lent() + b.nic().lent() == 0);
    }
}

#[test]
fn freed_memory_goes_back_to_the_node() {
    for way in WAYS {
        let node = node(1);
        let memory = builder(&[&node], way).connect().unwrap();
        let pieces: Vec<Addr> = (0..24).map(|_| memory.alloc(2 << 20).unwrap()).collect();
        pieces.iter().for_each(|&piece| memory.write(piece, &vec![1; 2 << 20]).unwrap());
        let used = node.nic().in_use();
        assert!(used >= 48 << 20, "{used}");
        pieces.iter().for_each(|&piece| memory.free(piece).unwrap());
        let used = node.nic().in_use();
        assert!(used <= 20 << 20, "{used}");
        // What was given back is as good as new.
        for _ in 0..32 {
            let piece = memory.alloc(2 << 20).unwrap();
            memory.write(piece, &[2; 4096]).unwrap();
        }
    }
}

#[test]
fn a_batch_is_done_in_order_and_each_operation_has_its_own_end() {
    for way in WAYS {
        let (a, b) = (node(1), node(1));
        let memory = builder(&[&a, &b], way).connect().unwrap();
        let (on_a, on_b) = (memory.alloc_on(0, 4096).unwrap(), memory.alloc_on(1, 4096).unwrap());
        memory.write(on_a, &[0; 64]).unwrap();
        memory.write(on_b, &[0; 64]).unwrap();
        let mut lane = memory.lane().unwrap();
        let (mut first, mut second) = ([0; 8], [0; 8]);
        let mut batch = lane.batch();
        batch.write(on_a, &[1; 8]).compare_swap(on_a, u64::from_le_bytes([1; 8]), 5).fetch_add(on_a, 1);
        batch.fetch_add(on_b, 9).read(Addr::NULL, &mut first).read(on_b + 8, &mut second).fetch_add(on_b, 1);
        let results = batch.run();
        let ones = u64::from_le_bytes([1; 8]);
        let range = Error::Range { at: Addr::NULL, len: 8 };
        assert_eq!(results, [Ok(0), Ok(ones), Ok(5), Ok(0), Err(range), Ok(0), Ok(9)]);
        assert_eq!((lane.load(on_a), lane.in_flight()), (Ok(6), 0));
    }
}

#[test]
fn posted_operations_complete_with_their_buffers() {
    for way in WAYS {
        let (a, b) = (node(1), node(1));
        let memory = builder(&[&a, &b], way).connect().unwrap();
        let pieces: Vec<Addr> = (0..64).map(|_| memory.alloc_zeroed(4096).unwrap()).collect();
        let mut lane = memory.lane().unwrap();
        let (mut done, mut tag) = (Vec::new(), 0);
        for &piece in &pieces {
            lane.post_write(tag, piece, vec![tag as u8; 4096]);
            lane.post_fetch_add(tag + 1000, piece, 0);
            lane.post_read(tag + 2000, piece + 8, vec![0; 3 << 10]);
            tag += 1;
        }
        assert_eq!(lane.in_flight(), 3 * 64);
        lane.ring();
        while lane.in_flight() > 0 {
            lane.wait(&mut done, Duration::from_secs(5));
        }
        assert_eq!(done.len(), 3 * 64);
        for completion in &done {
            let (kind, n) = (completion.tag / 1000, (completion.tag % 1000) as u8);
            let value = if kind == 1 { u64::from_le_bytes([n; 8]) } else { 0 };
            assert_eq!(completion.result, Ok(value));
            let len = [4096, 0, 3 << 10][kind as usize];
            assert!(completion.buffer == vec![n; len], "{kind} {n}");
        }
        // Blocking calls go on beside what is posted.
        lane.post_read(1, pieces[0], vec![0; 4]);
        assert_eq!(lane.load(pieces[1] + 8), Ok(u64::from_le_bytes([1; 8])));
        done.clear();
        assert_eq!((lane.wait(&mut done, Duration::from_secs(5)), done[0].tag), (1, 1));
        assert_eq!(lane.poll(&mut done), 0);
        // With something under way it is dropped, and another one serves.
        lane.post_read(2, pieces[0], vec![0; 4096]);
        drop(lane);
        assert_eq!(memory.load(pieces[1] + 8), Ok(u64::from_le_bytes([1; 8])));
    }
}

#[test]
fn a_node_that_is_killed_is_an_error_and_the_others_go_on() {
    let (mut a, b) = (Process::start(1), Process::start(1));
    let named = Memory::builder().node(&a.tcp).node(&b.tcp).transport(farmem::Transport::Tcp);
    let memory = named.grace(Duration::from_secs(1)).connect().unwrap();
    let (on_a, on_b) = (memory.alloc_on(0, 4096).unwrap(), memory.alloc_on(1, 4096).unwrap());
    let mut lane = memory.lane().unwrap();
    lane.write(on_b, b"kept").unwrap();
    for tag in 0..10 {
        lane.post_write(tag, on_a, vec![7; 4096]);
    }
    a.kill();
    let begun = Instant::now();
    lane.post_read(10, on_a, vec![0; 4096]);
    lane.post_read(11, on_b, vec![0; 4]);
    let mut done = Vec::new();
    while lane.in_flight() > 0 {
        lane.wait(&mut done, Duration::from_secs(10));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    done.sort_by_key(|completion| completion.tag);
    assert!(matches!(&done[10].result, Err(Error::Lost { node, .. }) if *node == a.tcp), "{:?}", done[10]);
    assert_eq!((&done[11].result, &done[11].buffer[..]), (&Ok(0), &b"kept"[..]));
    assert!(matches!(memory.fetch_add(on_a, 1), Err(Error::Lost { .. })));
    assert!(matches!(memory.check(), Err(Error::Lost { .. })));
    // New pieces come from the other node.
    let nodes: Vec<usize> = (0..4).map(|_| memory.alloc(4096).unwrap().node()).collect();
    assert_eq!(nodes, [1; 4]);
}

/// Its memory stays mapped here. Nobody else has that of a private memory; of a region others may
/// have another by now.
#[test]
fn a_node_of_this_machine_that_is_killed_keeps_private_memory_and_loses_regions() {
    let mut node = Process::start(2);
    let (private, shared) = (Memory::connect(&node.shm), Memory::builder().node(&node.shm).region("r").create(true));
    let (private, shared) = (private.unwrap(), shared.connect().unwrap());
    let pieces = [&private, &shared].map(|memory| memory.alloc_zeroed(8).unwrap());
    let mut lane = shared.lane().unwrap();
    node.kill();
    private.write(pieces[0], b"ours").unwrap();
    await_that("the region is lost", || matches!(shared.fetch_add(pieces[1], 1), Err(Error::Lost { .. })));
    assert!(matches!(lane.load(pieces[1]), Err(Error::Lost { .. })));
    let mut bytes = [0; 4];
    assert_eq!((private.read(pieces[0], &mut bytes), &bytes), (Ok(()), b"ours"));
}

#[test]
fn threads_take_and_free_pieces_at_once() {
    for way in WAYS {
        let node = node(2);
        let memory = builder(&[&node], way).connect().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let memory = &memory;
                scope.spawn(move || {
                    for n in 0..100u64 {
                        let piece = memory.alloc(4096 << (n % 10)).unwrap();
                        memory.store(piece, thread << 32 | n).unwrap();
                        std::thread::yield_now();
                        assert_eq!(memory.load(piece), Ok(thread << 32 | n));
                        memory.free(piece).unwrap();
                    }
                });
            }
        });
        assert_eq!(memory.pieces(), Ok(Vec::new()));
    }
}
