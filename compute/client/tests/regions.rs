//! Regions: memory that several connections share, over tcp and shm.

mod common;

use common::{SLAB, WAYS, address, await_that, builder, node};
use farmem::{Addr, Error, Memory, Transport};
use std::collections::BTreeSet;

/// Openers of one region, by different ways and in different orders of the nodes.
fn openers(nodes: &[&farmem_memory::Node; 2], region: &str) -> [Memory; 3] {
    let [a, b] = *nodes;
    let open = |nodes: &[&farmem_memory::Node], way| builder(nodes, way).region(region).create(true).connect().unwrap();
    [open(&[a, b], Transport::Tcp), open(&[b, a], Transport::Shm), open(&[a, b], Transport::Shm)]
}

#[test]
fn a_region_is_the_same_memory_to_all_who_open_it() {
    let (a, b) = (node(2), node(2));
    let [x, y, z] = openers(&[&a, &b], "shared");
    assert_eq!([x.root(3), y.root(3)], [z.root(3); 2]);
    for (n, memory) in (0..30).zip([&x, &y, &z].into_iter().cycle()) {
        assert_eq!(memory.fetch_add(memory.root(3), 1), Ok(n));
    }
    for bytes in [1, 8192, 128 << 10, 256 << 10, 2 << 20] {
        let piece = x.alloc(bytes).unwrap();
        x.write(piece + (bytes - 1), b"!").unwrap();
        let mut byte = [0];
        y.read(piece + (bytes - 1), &mut byte).unwrap();
        assert_eq!(&byte, b"!");
        assert_eq!((z.free(piece), y.free(piece)), (Ok(()), Err(Error::NotAPiece(piece))));
    }
    assert_eq!(x.pieces(), Ok(Vec::new()));
}

#[test]
fn a_region_outlives_its_openers_until_it_is_removed() {
    let node = node(2);
    let at = address(&node, Transport::Tcp);
    let open = |create| Memory::builder().node(&at).region("kept").create(create).connect();
    assert!(matches!(open(false), Err(Error::Region(_))));
    let memory = open(true).unwrap();
    let piece = memory.alloc(4096).unwrap();
    memory.write(piece, b"kept").unwrap();
    memory.store(memory.root(0), piece.bits()).unwrap();
    drop(memory);
    await_that("the opener has left", || node.nic().members().is_empty());
    let regions = farmem::regions(&at).unwrap();
    assert_eq!((regions.len(), &*regions[0].name, regions[0].bytes), (1, "kept", SLAB));

    let memory = open(false).unwrap();
    let piece = Addr::from_bits(memory.load(memory.root(0)).unwrap()).unwrap();
    let mut bytes = [0; 4];
    memory.read(piece, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    assert_eq!([farmem::remove_region(&at, "kept"), farmem::remove_region(&at, "kept")], [Ok(true), Ok(false)]);
    assert_eq!(memory.read(piece, &mut bytes), Ok(()), "it has the region open");
    assert!(matches!(open(false), Err(Error::Region(_))));
    drop(memory);
    await_that("all is given back", || node.nic().lent() == 0);
}

#[test]
fn a_region_is_opened_on_just_its_nodes() {
    let (a, b, c) = (node(1), node(1), node(1));
    let open = |nodes: &[&farmem_memory::Node], create| {
        builder(nodes, Transport::Tcp).region("r").create(create).connect().map(|memory| memory.nodes())
    };
    assert_eq!(open(&[&a, &b], true), Ok(2));
    assert_eq!(open(&[&b, &a], false), Ok(2));
    for wrong in [&[&a][..], &[&a, &a]] {
        assert!(matches!(open(wrong, false), Err(Error::Foreign { .. })), "{:?}", open(wrong, false));
    }
    assert_eq!(open(&[&c], true), Ok(1));
    let foreign = open(&[&a, &c], false).unwrap_err();
    assert!(foreign.to_string().contains("another region of the same name"), "{foreign}");
    assert!(matches!(builder(&[&a], Transport::Tcp).region("no name").connect(), Err(Error::Name(_))));
}

/// Its maker was killed between two nodes. Another finishes it, in whichever order it names them.
#[test]
fn a_region_that_is_half_made_is_finished() {
    for at in 0..2u64 {
        let (a, b) = (node(1), node(1));
        let open = |nodes: [&farmem_memory::Node; 2]| {
            builder(&nodes, Transport::Tcp).region("half").create(true).connect().unwrap()
        };
        let memory = open([&a, &b]);
        // The word of its identity, in the first slab of one of the nodes.
        let identity = Addr::from_bits(at << 42 | 1 << 26 | 4096).unwrap();
        assert_ne!(memory.load(identity), Ok(0));
        memory.store(identity, 0).unwrap();
        drop(memory);
        let (other, again) = (open([&b, &a]), open([&a, &b]));
        other.store(other.root(1), 7).unwrap();
        assert_eq!(again.load(again.root(1)), Ok(7));
    }
}

#[test]
fn many_make_a_region_at_once() {
    for _ in 0..5 {
        let (a, b) = (node(1), node(1));
        std::thread::scope(|scope| {
            // Each names the nodes in the order that it likes.
            let made = [[&a, &b], [&b, &a], [&a, &b], [&b, &a]].map(|nodes| {
                scope.spawn(move || {
                    let memory = builder(&nodes, Transport::Tcp).region("new").create(true).connect().unwrap();
                    memory.fetch_add(memory.root(0), 1).unwrap()
                })
            });
            let seen: BTreeSet<u64> = made.into_iter().map(|made| made.join().unwrap()).collect();
            assert_eq!(seen, BTreeSet::from([0, 1, 2, 3]));
        });
    }
}

#[test]
fn no_two_openers_get_the_same_piece() {
    for way in WAYS {
        let node = node(4);
        std::thread::scope(|scope| {
            for opener in 1..=3u64 {
                let node = &node;
                scope.spawn(move || {
                    let memory = builder(&[node], way).region("busy").create(true).connect().unwrap();
                    let mut held = Vec::new();
                    for n in 0..150u64 {
                        let bytes = 4096u64 << (n * opener % 10);
                        let piece = memory.alloc(bytes).unwrap();
                        for at in [piece, piece + (bytes - 8)] {
                            memory.store(at, opener << 32 | n).unwrap();
                        }
                        held.push((piece, bytes, n));
                        if held.len() > 8 {
                            let (piece, bytes, n) = held.swap_remove(n as usize % 8);
                            for at in [piece, piece + (bytes - 8)] {
                                assert_eq!(memory.load(at), Ok(opener << 32 | n));
                            }
                            memory.free(piece).unwrap();
                        }
                    }
                    held.into_iter().for_each(|(piece, ..)| memory.free(piece).unwrap());
                });
            }
        });
        let memory = builder(&[&node], way).region("busy").connect().unwrap();
        assert_eq!(memory.pieces(), Ok(Vec::new()));
    }
}

#[test]
fn a_region_that_is_full_says_so() {
    let node = node(1);
    let memory = builder(&[&node], Transport::Tcp).region("full").create(true).connect().unwrap();
    // One block has the table and the roots.
    let large = std::iter::from_fn(|| memory.alloc(2 << 20).ok()).count();
    let small = std::iter::from_fn(|| memory.alloc(4096).ok()).count();
    assert_eq!((large, small), (31, 510));
    assert!(matches!(memory.alloc(4096), Err(Error::Full(_))));
    assert_eq!(memory.pieces().map(|pieces| pieces.len()), Ok(541));
    let reserved = Addr::from_bits(memory.root(0).bits() & !0xfff).unwrap();
    assert_eq!(memory.free(reserved), Err(Error::NotAPiece(reserved)));
    assert_eq!(memory.load(memory.root(63)), Ok(0));
}
