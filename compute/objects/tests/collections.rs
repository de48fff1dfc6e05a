//! Boxes, maps and queues against std's, on a node in this very process, over shared memory and
//! TCP.

mod common;

use common::node;
use farmem::Transport;
use farmem_memory::Node;
use farmem_objects::{CHUNK, Error, FarBox, FarHashMap, FarQueue, Field, Heap};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

/// 64 bytes, as many objects as do not fit.
type Object = [u64; 8];

fn object(n: u64) -> Object {
    std::array::from_fn(|i| n.wrapping_mul(i as u64 + 1))
}

fn heap(node: &Node, transport: Transport) -> Heap {
    let address = common::address(node, transport);
    Heap::builder().local(64 * CHUNK).node(address).transport(transport).build().unwrap()
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

const BOTH: [Transport; 2] = [Transport::Shm, Transport::Tcp];

#[test]
fn far_boxes_are_as_near_ones() {
    let node = node();
    for transport in BOTH {
        let heap = heap(&node, transport);
        let steps = prop::collection::vec((0..5u8, any::<prop::sample::Index>(), any::<u64>()), 1..200);
        runner(4)
            .run(&steps, |steps| {
                let mut near: Vec<Object> = (0..12_000).map(object).collect();
                let mut far: Vec<FarBox<Object>> = near.iter().map(|value| heap.alloc(value).unwrap()).collect();
                for (step, at, value) in steps {
                    let at = at.index(near.len());
                    match step {
                        0 => {
                            far[at].set(&object(value)).unwrap();
                            near[at] = object(value);
                        }
                        1 => {
                            let scope = heap.scope();
                            far[at].get_mut(&scope).unwrap()[3] ^= value;
                            near[at][3] ^= value;
                        }
                        2 => {
                            drop(far.swap_remove(at));
                            near.swap_remove(at);
                        }
                        3 => {
                            let scope = heap.scope();
                            let some: Vec<usize> = (0..200).map(|n| (at + n * 37) % near.len()).collect();
                            let boxes: Vec<&FarBox<Object>> = some.iter().map(|&n| &far[n]).collect();
                            if value % 2 == 0 {
                                heap.prefetch(&boxes);
                            }
                            let got = heap.get_many(&boxes, &scope).unwrap();
                            assert!(got.iter().zip(&some).all(|(got, &n)| **got == near[n]));
                        }
                        _ => assert_eq!(far[at].read().unwrap(), near[at]),
                    }
                }
                assert!(far.iter().zip(&near).all(|(far, near)| far.read().unwrap() == *near));
                Ok(())
            })
            .unwrap();
        let (used, most) = heap.local();
        assert!(used <= most && most == 64 * CHUNK);
        let (fetched, written) = heap.moved();
        assert!(fetched > 4000 && written > 4000, "{transport:?}: {fetched} fetched, {written} written");
        assert!(written > 8 * heap.write_batches(), "{written} written in {} batches", heap.write_batches());
    }
}

/// A hash that tells little: long chains.
#[derive(Clone, Default)]
struct Poor;

impl BuildHasher for Poor {
    type Hasher = Sum;

    fn build_hasher(&self) -> Sum {
        Sum(0)
    }
}

struct Sum(u64);

impl Hasher for Sum {
    fn finish(&self) -> u64 {
        self.0 % 3
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 += u64::from(byte));
    }
}

fn maps_agree<S: BuildHasher>(
    heap: &Heap,
    far: &mut FarHashMap<u64, [u32; 3], S>,
    steps: &[(u8, u64, u32)],
    most: u64,
) {
    let mut near = HashMap::new();
    for &(step, key, value) in steps {
        let key = key % most;
        match step {
            0..=3 => {
                for key in key..key + most / 8 {
                    assert_eq!(far.insert(key, [value; 3]).unwrap(), near.insert(key, [value; 3]));
                }
            }
            4 => {
                for key in key..key + most / 16 {
                    assert_eq!(far.remove(&key).unwrap(), near.remove(&key));
                }
            }
            5 => {
                let scope = heap.scope();
                let (far, near) = (far.get_mut(&key, &scope).unwrap(), near.get_mut(&key));
                assert_eq!(far.is_some(), near.is_some());
                if let (Some(far), Some(near)) = (far, near) {
                    (far[1], near[1]) = (value, value);
                }
            }
            6 => {
                let keys: Vec<u64> = (0..40).map(|n| (key + 97 * n) % (2 * most)).collect();
                let scope = heap.scope();
                let got = far.get_many(&keys, &scope).unwrap();
                assert!(got.iter().zip(&keys).all(|(got, key)| *got == near.get(key)));
            }
            _ if value % 8 == 0 => {
                far.clear();
                near.clear();
            }
            _ => assert_eq!(far.contains_key(&key).unwrap(), near.contains_key(&key)),
        }
        assert_eq!((far.len(), far.is_empty()), (near.len(), near.is_empty()));
    }
    let mut all = HashMap::new();
    far.scan(|&key, &value| assert!(all.insert(key, value).is_none())).unwrap();
    assert_eq!(all, near);
    let copies: HashMap<u64, [u32; 3]> = far.iter().map(Result::unwrap).collect();
    assert_eq!(copies, near);
}

#[test]
fn far_maps_are_as_near_ones() {
    let node = node();
    let steps = || prop::collection::vec((0..8u8, any::<u64>(), any::<u32>()), 1..60);
    for transport in BOTH {
        let heap = heap(&node, transport);
        runner(4)
            .run(&steps(), |steps| {
                maps_agree(&heap, &mut heap.map(), &steps, 16_000);
                Ok(())
            })
            .unwrap();
        let (fetched, written) = heap.moved();
        assert!(fetched > 300 && written > 300, "{transport:?}: {fetched} fetched, {written} written");
    }
    let heap = heap(&node, Transport::Shm);
    runner(4)
        .run(&steps(), |steps| {
            maps_agree(&heap, &mut FarHashMap::with_hasher(heap.clone(), Poor), &steps, 400);
            Ok(())
        })
        .unwrap();
}

#[test]
fn far_queues_are_as_near_ones() {
    let node = node();
    for transport in BOTH {
        let heap = heap(&node, transport);
        let steps = prop::collection::vec((0..8u8, any::<u64>()), 1..120);
        runner(4)
            .run(&steps, |steps| {
                let (mut far, mut near): (FarQueue<[u64; 3]>, _) = (heap.queue(), VecDeque::new());
                for (step, value) in steps {
                    let many = value % 3000;
                    match step {
                        0..=1 => (0..many).for_each(|n| {
                            far.push_back([value, n, 1]).unwrap();
                            near.push_back([value, n, 1]);
                        }),
                        2..=3 => (0..many).for_each(|n| {
                            far.push_front([value, n, 2]).unwrap();
                            near.push_front([value, n, 2]);
                        }),
                        4 => (0..many).for_each(|_| assert_eq!(far.pop_front().unwrap(), near.pop_front())),
                        5 => (0..many).for_each(|_| assert_eq!(far.pop_back().unwrap(), near.pop_back())),
                        6 if value % 16 == 0 => {
                            far.clear();
                            near.clear();
                        }
                        _ => {
                            assert_eq!(far.front().unwrap().as_ref(), near.front());
                            assert_eq!(far.back().unwrap().as_ref(), near.back());
                        }
                    }
                    assert_eq!((far.len(), far.is_empty()), (near.len(), near.is_empty()));
                }
                let mut all = Vec::new();
                far.scan(|part| all.extend_from_slice(part)).unwrap();
                assert!(all.iter().eq(&near));
                Ok(())
            })
            .unwrap();
        assert!(heap.moved().0 > 100, "{transport:?}: {:?}", heap.moved());
    }
}

/// Local memory goes to the sizes that need it: neither starves the other.
#[test]
fn sizes_share_local_memory() {
    let node = node();
    let heap = heap(&node, Transport::Shm);
    let mut vector = heap.vec::<[u64; 512]>();
    (0..200).for_each(|n| vector.push([n; 512]).unwrap());
    let small: Vec<FarBox<Object>> = (0..20_000).map(|n| heap.alloc(&object(n)).unwrap()).collect();
    let tiny: Vec<FarBox<u16>> = (0..20_000).map(|n| heap.alloc(&n).unwrap()).collect();
    for _ in 0..3 {
        assert!((0..200).all(|n| vector.read(n).unwrap()[7] == n as u64));
        assert!((0..).zip(&small).all(|(n, one)| one.read().unwrap() == object(n)));
        assert!((0..).zip(&tiny).all(|(n, one)| one.read().unwrap() == n));
    }
    let before = heap.moved().0;
    (0..3).for_each(|_| assert!((0..1000).all(|n| small[n].is_local() || small[n].read().is_ok())));
    // What is used alone comes to fit.
    for _ in 0..40 {
        assert!(small[..1500].iter().all(|one| one.read().is_ok()));
    }
    assert!(heap.moved().0 - before < 20_000, "{} fetched", heap.moved().0 - before);
}

/// A box of a heap that is gone says so; a box and a scope of two heaps do not meet.
#[test]
fn boxes_know_their_heap() {
    let node = node();
    let (one, other) = (heap(&node, Transport::Shm), heap(&node, Transport::Tcp));
    let (mut of_one, of_other) = (one.alloc(&1u64).unwrap(), other.alloc(&2u64).unwrap());
    assert!(matches!(of_one.get(&other.scope()), Err(Error::OtherHeap)));
    assert!(matches!(of_one.get_mut(&other.scope()), Err(Error::OtherHeap)));
    assert!(matches!(other.get_many(&[&of_one, &of_other], &other.scope()), Err(Error::OtherHeap)));
    assert_eq!((*of_one.get(&one.scope()).unwrap(), of_other.read().unwrap()), (1, 2));
    drop(one);
    assert!(matches!(of_one.read(), Err(Error::OtherHeap)));
    // Its number is not another's.
    let third = heap(&node, Transport::Shm);
    let of_third = third.alloc(&3u64).unwrap();
    assert!(matches!(of_one.get(&third.scope()), Err(Error::OtherHeap)));
    drop(of_one);
    assert_eq!(of_third.read().unwrap(), 3);
}

/// Homes are used again, and memory goes back to the node.
#[test]
fn dropped_values_leave_room() {
    let node = node();
    let heap = heap(&node, Transport::Shm);
    for round in 0..8u64 {
        let some: Vec<FarBox<[u64; 128]>> = (0..20_000).map(|n| heap.alloc(&[n + round; 128]).unwrap()).collect();
        assert_eq!(some[7777].read().unwrap()[100], 7777 + round);
    }
    let error = (0..).find_map(|n: u64| heap.alloc(&[n; 512]).map(std::mem::forget).err()).unwrap();
    assert!(matches!(error, Error::Memory(farmem::Error::Full(_))), "{error}");
    assert!(heap.alloc(&1u64).is_err() || heap.alloc(&[1u64; 512]).is_err());
}

/// Sums and gathers look at what is local and dirty here, and at what is away where it is.
#[test]
fn filters_see_what_is_here_and_what_is_away() {
    let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
    let config = farmem_memory::Config::new(128 << 20, listen);
    for compute in [0, 2] {
        let node = Node::start(&farmem_memory::Config { compute, ..config.clone() }).unwrap();
        let heap = heap(&node, Transport::Tcp);
        let mut far = heap.vec::<[u32; 6]>();
        let mut near = Vec::new();
        for n in 0..60_000u32 {
            far.push([n % 100, n, 1, 2, 3, n ^ 7]).unwrap();
            near.push([n % 100, n, 1, 2, 3, n ^ 7]);
        }
        for n in (0..60_000).step_by(977) {
            far.set(n, [50, 0, 0, 0, 0, 1_000_000]).unwrap();
            near[n] = [50, 0, 0, 0, 0, 1_000_000];
        }
        let within = || near.iter().filter(|one| (10..=50).contains(&one[0])).map(|one| u64::from(one[5]));
        let before = heap.moved();
        let found = far.filter(Field::u32(0).within(10..=50)).summary(Field::u32(20)).unwrap();
        assert_eq!((found.count, found.sum), (within().count() as u64, within().sum()));
        assert_eq!((found.min, found.max), (within().min(), within().max()));
        let none = far.filter(Field::u32(0).at_least(100));
        assert_eq!((none.count().unwrap(), none.summary(Field::i32(4)).unwrap().min), (0, None));
        assert!(matches!(none.sum(Field::u64(20)), Err(Error::Field { at: 20, size: 24 })));
        let places: Vec<usize> = (0..5000).map(|n| n * 7919 % 60_000).collect();
        let gathered = far.gather(&places).unwrap();
        assert!(gathered.iter().zip(&places).all(|(one, &at)| *one == near[at]));
        assert_eq!(heap.moved(), before, "nothing came, nothing left");
        let calls = node.nic().computed.calls.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(calls > 0, compute > 0);
    }
}
