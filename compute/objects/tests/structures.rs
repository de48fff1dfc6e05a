//! Sorted maps, lists, texts and caches against std's, on a node in this very process.

mod common;

use common::node;
use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{CHUNK, Error, FarBTree, FarCache, FarList, Heap};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::time::Duration;

fn heap(node: &Node, transport: Transport) -> Heap {
    let address = common::address(node, transport);
    Heap::builder().local(64 * CHUNK).node(address).transport(transport).build().unwrap()
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

const BOTH: [Transport; 2] = [Transport::Shm, Transport::Tcp];
/// Keys of sorted maps.
const KEYS: u32 = 30_000;

fn sorted_maps_agree(heap: &Heap, steps: &[(u8, u32, u64)]) {
    let (mut far, mut near): (FarBTree<u32, [u64; 3]>, _) = (heap.btree(), BTreeMap::new());
    for &(step, key, value) in steps {
        let key = key % KEYS;
        let some = |n: u32| (0..n).map(move |n| (key + n * 7) % KEYS);
        match step {
            0..=3 => some(3000).for_each(|key| {
                assert_eq!(far.insert(key, [value; 3]).unwrap(), near.insert(key, [value; 3]));
            }),
            4 => some(1500).for_each(|key| assert_eq!(far.remove(&key).unwrap(), near.remove(&key))),
            5 => {
                let scope = heap.scope();
                let (far, near) = (far.get_mut(&key, &scope).unwrap(), near.get_mut(&key));
                assert_eq!(far.is_some(), near.is_some());
                if let (Some(far), Some(near)) = (far, near) {
                    (far[1], near[1]) = (value, value);
                }
            }
            6 => {
                let (keys, scope) = (some(40).collect::<Vec<u32>>(), heap.scope());
                let got = far.get_many(&keys, &scope).unwrap();
                assert!(got.iter().zip(&keys).all(|(got, key)| *got == near.get(key)));
            }
            _ => {
                let (from, until) = (key, key + (value % 5000) as u32);
                let mut found = Vec::new();
                far.scan(from..until, |&key, &value| found.push((key, value))).unwrap();
                assert!(found.iter().map(|(key, value)| (key, value)).eq(near.range(from..until)));
                assert_eq!(far.contains_key(&key).unwrap(), near.contains_key(&key));
            }
        }
        assert_eq!((far.len(), far.is_empty()), (near.len(), near.is_empty()));
        let entry = |entry: Option<(&u32, &[u64; 3])>| entry.map(|(&key, &value)| (key, value));
        assert_eq!(far.first().unwrap(), entry(near.first_key_value()));
        assert_eq!(far.last().unwrap(), entry(near.last_key_value()));
    }
    let mut all = Vec::new();
    far.scan(.., |&key, &value| all.push((key, value))).unwrap();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(&near));
    far.clear();
    assert!(far.is_empty() && far.first().unwrap().is_none() && !far.contains_key(&1).unwrap());
}

#[test]
fn far_sorted_maps_are_as_near_ones() {
    let node = node();
    for transport in BOTH {
        let heap = heap(&node, transport);
        let steps = prop::collection::vec((0..8u8, any::<u32>(), any::<u64>()), 1..40);
        runner(4)
            .run(&steps, |steps| {
                sorted_maps_agree(&heap, &steps);
                Ok(())
            })
            .unwrap();
        assert!(heap.moved().0 > 300, "{transport:?}: {:?}", heap.moved());
    }
}

#[test]
fn far_lists_are_as_near_ones() {
    let node = node();
    for transport in BOTH {
        let heap = heap(&node, transport);
        let steps = prop::collection::vec((0..9u8, any::<prop::sample::Index>(), any::<u64>()), 1..60);
        runner(4)
            .run(&steps, |steps| {
                let (mut far, mut near): (FarList<[u64; 3]>, Vec<[u64; 3]>) = (heap.list(), Vec::new());
                for (step, at, value) in steps {
                    let at = at.index(near.len() + 1);
                    match step {
                        0..=2 => (0..2000).for_each(|n| {
                            let (at, value) = ([far.len(), 0, at][step as usize], [value, n, 1]);
                            far.insert(at, value).unwrap();
                            near.insert(at, value);
                        }),
                        3..=4 => (0..600.min(near.len() - at)).for_each(|_| {
                            assert_eq!(far.remove(at).unwrap(), near.remove(at));
                        }),
                        5 => {
                            assert_eq!(far.pop_back().unwrap(), near.pop());
                            assert_eq!(far.pop_front().unwrap(), (!near.is_empty()).then(|| near.remove(0)));
                        }
                        6 if at < near.len() => {
                            let scope = heap.scope();
                            far.get_mut(at, &scope).unwrap()[2] = value;
                            near[at][2] = value;
                            assert_eq!(far.get(near.len() / 2, &scope).unwrap(), &near[near.len() / 2]);
                        }
                        7 => {
                            let (mut rest, near_rest) = (far.split_off(at).unwrap(), near.split_off(at));
                            assert_eq!((rest.len(), far.len()), (near_rest.len(), near.len()));
                            rest.append(&mut far).unwrap();
                            (far, near) = (rest, [near_rest, near].concat());
                        }
                        _ => assert!(matches!(far.remove(near.len()), Err(Error::Index { .. }))),
                    }
                    assert_eq!((far.len(), far.is_empty()), (near.len(), near.is_empty()));
                }
                let mut all = Vec::new();
                far.scan(|part| all.extend_from_slice(part)).unwrap();
                assert_eq!(all, near);
                Ok(())
            })
            .unwrap();
        assert!(heap.moved().0 > 100, "{transport:?}: {:?}", heap.moved());
    }
}

#[test]
fn far_texts_are_as_near_ones() {
    let node = node();
    let heap = heap(&node, Transport::Tcp);
    runner(16)
        .run(&prop::collection::vec(("\\PC{0,300}", any::<prop::sample::Index>(), 0..4u8), 1..60), |steps| {
            let (mut far, mut near) = (heap.string(), String::new());
            for (text, at, step) in steps {
                match step {
                    0..=1 => {
                        let text = text.repeat(20);
                        far.push_str(&text).unwrap();
                        near.push_str(&text);
                    }
                    2 => text.chars().for_each(|one| {
                        far.push(one).unwrap();
                        near.push(one);
                    }),
                    _ => {
                        let at = at.index(near.len() + 1);
                        let cut = far.truncate(at);
                        assert_eq!(cut.is_ok(), near.is_char_boundary(at), "{cut:?}");
                        if cut.is_ok() {
                            near.truncate(at);
                        }
                    }
                }
                assert_eq!((far.len(), far.is_empty()), (near.len(), near.is_empty()));
                let half = near.len() / 2;
                match (far.get(half..near.len()), near.get(half..)) {
                    (Ok(far), Some(near)) => assert_eq!(far, near),
                    (Err(Error::Text { .. }), None) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(far.read().unwrap(), near);
            Ok(())
        })
        .unwrap();
}

/// Neither a full node nor a lost one is an error of a cache: values are made again.
#[test]
fn what_a_cache_lost_is_made_again() {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(64 << 20, listen)).unwrap();
    let heap = Heap::builder().local(64 * CHUNK).node(node.addresses()[0].to_string());
    let heap = heap.transport(Transport::Tcp).grace(Duration::from_millis(200)).build().unwrap();
    let make = |&key: &u64| [key; 512];
    let mut small: FarCache<u64, [u64; 512]> = heap.cache(100);
    for round in 0..3 {
        assert!((0..200).all(|key| small.get(&key, make).unwrap() == make(&key)), "{round}");
        assert_eq!((small.len(), small.is_empty()), (100, false));
    }
    let mut large: FarCache<u64, [u64; 512]> = heap.cache(usize::MAX);
    assert!((0..20_000).all(|key| large.get(&key, make).unwrap() == make(&key)));
    assert!(large.len() > 4000 && large.len() < 17_000, "{} of 20000 are kept", large.len());
    // Used values stay when others are dropped.
    let before = large.made();
    assert!((0..1000).all(|key| large.get(&(19_999 - key % 10), make).unwrap()[0] == 19_999 - key % 10));
    assert_eq!(large.made(), before);
    drop(node);
    assert!((0..20_000).step_by(50).all(|key| large.get(&key, make).unwrap() == make(&key)));
    assert!(large.made() > before + 100);
    let scope = heap.scope();
    assert!((0..20_000).all(|key| large.peek(&key, &scope).is_ok_and(|value| value.is_none_or(|one| one[7] == key))));
}
