//! Far vectors against std's, on a node in this very process, over shared memory and TCP.

mod common;

use common::node;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{CHUNK, Error, FarVec, Field, Heap, Table};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// 24 bytes: chunks have a rest.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Order {
    number: u64,
    cents: [u32; 4],
}

fn order(number: u64) -> Order {
    Order { number, cents: [number as u32, 1, 2, !number as u32] }
}

/// A heap of 64 local chunks.
fn heap(node: &Node, transport: farmem::Transport) -> Heap {
    let address = common::address(node, transport);
    Heap::builder().local(64 * CHUNK).node(address).transport(transport).build().unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Pop,
    Set(usize, u64),
    Get(Vec<usize>),
    Add(usize),
    Truncate(usize),
    Scan,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u64>().prop_map(Step::Push),
        1 => Just(Step::Pop),
        3 => (any::<usize>(), any::<u64>()).prop_map(|(at, value)| Step::Set(at, value)),
        3 => prop::collection::vec(any::<usize>(), 1..40).prop_map(Step::Get),
        2 => any::<usize>().prop_map(Step::Add),
        1 => (0..200usize).prop_map(Step::Truncate),
        1 => Just(Step::Scan),
    ]
}

fn agree(heap: &Heap, far: &mut FarVec<Order>, near: &mut Vec<Order>, step: &Step) {
    let within = |at: usize, len: usize| at % len.max(1);
    match step {
        // Many at once, so that vectors outgrow what is local.
        Step::Push(value) => (0..2000).for_each(|n| {
            far.push(order(value.wrapping_add(n))).unwrap();
            near.push(order(value.wrapping_add(n)));
            if n % 500 == 0 {
                assert_eq!(far.len(), near.len());
            }
        }),
        Step::Pop => assert_eq!(far.pop().unwrap(), near.pop()),
        Step::Set(at, value) if !near.is_empty() => {
            let at = within(*at, near.len());
            far.set(at, order(*value)).unwrap();
            near[at] = order(*value);
        }
        Step::Get(indices) if !near.is_empty() => {
            let indices: Vec<usize> = indices.iter().map(|&at| within(at, near.len())).collect();
            let scope = heap.scope();
            let got = far.get_many(&indices, &scope).unwrap();
            let expected: Vec<&Order> = indices.iter().map(|&at| &near[at]).collect();
            assert_eq!(got, expected);
        }
        Step::Add(at) if !near.is_empty() => {
            let at = within(*at, near.len());
            let scope = heap.scope();
            far.get_mut(at, &scope).unwrap().cents[2] += 1;
            near[at].cents[2] += 1;
        }
        Step::Truncate(less) => {
            let len = near.len() - near.len() * less / 400;
            far.truncate(len);
            near.truncate(len);
        }
        Step::Scan => {
            let mut all = Vec::new();
            far.scan(|first, part| {
                assert_eq!(first, all.len());
                all.extend_from_slice(part);
            })
            .unwrap();
            assert_eq!(&all, near);
        }
        _ => {}
    }
}

#[test]
fn far_vectors_are_as_near_ones() {
    let node = node();
    for transport in [farmem::Transport::Shm, farmem::Transport::Tcp] {
        let heap = heap(&node, transport);
        let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
        proptest::test_runner::TestRunner::new(config)
            .run(&prop::collection::vec((step(), 0..2usize), 1..80), |steps| {
                let mut far = [heap.vec(), heap.vec()];
                let mut near = [Vec::new(), Vec::new()];
                for (step, which) in &steps {
                    agree(&heap, &mut far[*which], &mut near[*which], step);
                }
                (0..2).for_each(|which| agree(&heap, &mut far[which], &mut near[which], &Step::Scan));
                Ok(())
            })
            .unwrap();
        let (fetched, written) = heap.moved();
        assert!(fetched > 1000 && written > 1000, "{transport:?}: {fetched} chunks fetched, {written} written");
    }
}

#[test]
fn references_stay_as_long_as_their_scope_and_no_longer() {
    let node = node();
    let heap = heap(&node, farmem::Transport::Shm);
    let mut far = heap.vec::<[u64; 512]>();
    (0..500).for_each(|n| far.push([n; 512]).unwrap());
    {
        let outer = heap.scope();
        let kept: Vec<&[u64; 512]> = (0..50).map(|n| far.get(n * 10, &outer).unwrap()).collect();
        // Others come and go beside them.
        for n in 0..500 {
            let inner = heap.scope();
            if let Ok(one) = far.get(n, &inner) {
                assert_eq!(one[511], n as u64);
            }
        }
        assert!(kept.iter().enumerate().all(|(n, one)| **one == [n as u64 * 10; 512]));
    }
    let all: Vec<usize> = (0..500).collect();
    let scope = heap.scope();
    assert!(matches!(far.get_many(&all, &scope), Err(Error::ScopeFull(local)) if local == 64 * CHUNK));
    drop(scope);
    (0..500).for_each(|n| assert_eq!(far.read(n).unwrap()[0], n as u64));
}

#[test]
fn what_is_wrong_is_told() {
    let node = node();
    let one = heap(&node, farmem::Transport::Shm);
    let other = heap(&node, farmem::Transport::Shm);
    let mut far = one.vec::<u64>();
    far.push(7).unwrap();
    assert!(matches!(far.get(0, &other.scope()), Err(Error::OtherHeap)));
    assert!(matches!(far.get(1, &one.scope()), Err(Error::Index { index: 1, len: 1 })));
    assert!(matches!(far.set(9, 1), Err(Error::Index { .. })));
    assert!(matches!(Heap::builder().local(1000).build(), Err(Error::TooLittleLocal(1000))));
    assert!(matches!(Heap::builder().node("nowhere").build(), Err(Error::Memory(_))));
}

/// A panic in a scope, and a vector that is dropped while unwinding, leave the heap usable.
#[test]
fn unwinding_ends_scopes() {
    let node = node();
    let heap = heap(&node, farmem::Transport::Tcp);
    for _ in 0..200 {
        let heap = heap.clone();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let mut far = heap.vec::<[u64; 512]>();
            (0..30).for_each(|n| far.push([n; 512]).unwrap());
            let scope = heap.scope();
            let one = far.get(3, &scope).unwrap();
            std::panic::resume_unwind(Box::new(one[0]));
        }));
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&3u64));
    }
    let mut far = heap.vec::<u64>();
    (0..100_000).for_each(|n| far.push(n).unwrap());
    let mut sum = 0;
    far.scan(|_, part| sum += part.iter().sum::<u64>()).unwrap();
    assert_eq!(sum, 100_000 * 99_999 / 2);
}

/// A node that computes, with this many slabs.
fn computing(slabs: u64) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute: 2, ..Config::new(slabs * (64 << 20), listen) }).unwrap()
}

/// Neighbours may lie in two slabs. The node scans the two parts one by one then.
#[test]
fn a_vector_larger_than_a_slab_is_scanned() {
    let node = computing(3);
    let heap = heap(&node, farmem::Transport::Tcp);
    let mut far = heap.vec::<u64>();
    // Of another size, so that the vector's blocks do not begin with the node's.
    let mut other = heap.vec::<u8>();
    other.push(1).unwrap();
    let count = 9_000_000u64;
    let some: Vec<u64> = (0..100_000).collect();
    (0..count / 100_000).for_each(|_| far.extend_from_slice(&some).unwrap());
    assert_eq!(far.read(0).unwrap(), 0);
    assert_eq!(far.filter(Field::u64(0).at_least(0)).count().unwrap(), count);
    assert_eq!(far.filter(Field::u64(0).at_least(99_990)).count().unwrap(), 10 * (count / 100_000));
}

/// A column has no row that another lacks, also if a node was full in between. Rows that were
/// refused are in none.
#[test]
fn rows_that_find_no_room_are_in_no_column() {
    let node = computing(1);
    let heap = heap(&node, farmem::Transport::Tcp);
    let part = 8192;
    let fill = || {
        let mut one = heap.vec::<u64>();
        one.extend_from_slice(&vec![1; part]).map(|()| one)
    };
    let mut filled = Vec::new();
    while let Ok(one) = fill() {
        filled.push(one);
    }
    assert!(filled.len() > 900, "{}", filled.len());
    let rows = |of: u64| {
        let text: Vec<String> = (0..part).map(|n| format!("{of} {n}")).collect();
        let of = vec![of; part];
        Table::new([("a", of.clone().into()), ("text", text.into()), ("b", of.into())]).unwrap()
    };
    let (mut writer, mut refused) = (heap.frame_writer(), 0);
    let mut written = Vec::new();
    for n in 0..200 {
        match writer.append(&rows(n)) {
            Ok(()) => written.push(n),
            Err(_) => {
                refused += 1;
                filled.pop();
            }
        }
        if written.len() == 3 {
            break;
        }
    }
    assert!(refused > 3 && written.len() == 3, "{refused} {written:?}");
    drop(filled);
    writer.append(&rows(1000)).unwrap();
    written.push(1000);
    let frame = writer.finish().unwrap();
    assert_eq!(frame.len(), written.len() * part);
    for (at, &n) in written.iter().enumerate() {
        assert!(frame.rows(at * part..(at + 1) * part).unwrap() == rows(n), "the rows of {n}");
    }
}
