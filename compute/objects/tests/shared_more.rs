//! Sorted maps and queues of heaps that threads share.

mod common;

use common::{address, node};
use farmem::Transport;
use farmem_memory::Node;
use farmem_objects::{CHUNK, Error, Heap, SharedBTree, SharedHeap, SharedQueue};
use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

const WAYS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn heap(node: &Node, way: Transport) -> SharedHeap {
    Heap::builder().local(96 * CHUNK).node(address(node, way)).transport(way).build_shared().unwrap()
}

#[test]
fn sorted_maps_and_queues_are_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<SharedBTree<u64, u64>>();
    shared::<SharedQueue<u64>>();
}

/// A sorted map that threads read together and change in turn, against std's: most of it is away.
#[test]
fn a_sorted_map_is_as_stds_under_threads() {
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let near = RwLock::new(BTreeMap::<u64, [u64; 3]>::new());
        let far = RwLock::new(heap.btree::<u64, [u64; 3]>());
        std::thread::scope(|threads| {
            for thread in 0..3u64 {
                let (heap, near, far) = (&heap, &near, &far);
                threads.spawn(move || {
                    let (seat, mut draw) = (heap.seat().unwrap(), 7 * (thread + 1));
                    let mut below = |most: u64| {
                        draw ^= draw << 13;
                        draw ^= draw >> 7;
                        draw ^= draw << 17;
                        draw % most
                    };
                    for n in 0..10_000u64 {
                        let (key, value) = (below(20_000), [n, thread, n ^ thread]);
                        if n % 3 != 0 {
                            // Both in one order: near is locked while far is.
                            let mut far = far.write().unwrap();
                            let (found, wanted) = match below(4) {
                                0 => (far.remove(&key, &seat).unwrap(), near.write().unwrap().remove(&key)),
                                _ => (far.insert(key, value, &seat).unwrap(), near.write().unwrap().insert(key, value)),
                            };
                            assert_eq!((found, far.len()), (wanted, near.read().unwrap().len()), "{way:?}");
                            continue;
                        }
                        let (far, near) = (far.read().unwrap(), near.read().unwrap());
                        if n % 100 == 0 {
                            let mut found = Vec::new();
                            far.scan(key..key + 700, &seat, |&key, &value| found.push((key, value))).unwrap();
                            let wanted = near.range(key..key + 700).map(|(&key, &value)| (key, value));
                            assert!(found.into_iter().eq(wanted), "{way:?}");
                        }
                        let scope = seat.scope();
                        let keys: [u64; 8] = std::array::from_fn(|_| below(20_000));
                        let found = far.get_many(&keys, &scope).unwrap();
                        assert!(keys.iter().zip(&found).all(|(key, found)| *found == near.get(key)), "{way:?}");
                        assert_eq!(far.get(&key, &scope).unwrap(), near.get(&key));
                    }
                });
            }
        });
        let (seat, mut far, near) = (heap.seat().unwrap(), far.into_inner().unwrap(), near.into_inner().unwrap());
        let mut all = Vec::new();
        far.scan(.., &seat, |&key, &value| all.push((key, value))).unwrap();
        assert!(all.iter().map(|(key, value)| (key, value)).eq(&near) && heap.moved().0 > 1000, "{way:?}");
        let entry = |entry: Option<(&u64, &[u64; 3])>| entry.map(|(&key, &value)| (key, value));
        assert_eq!(far.first(&seat).unwrap(), entry(near.first_key_value()));
        assert_eq!(far.last(&seat).unwrap(), entry(near.last_key_value()));
        let (&key, value) = near.first_key_value().unwrap();
        far.get_mut(&key, &seat.scope()).unwrap().unwrap()[1] = 77;
        assert_eq!(far.get(&key, &seat.scope()).unwrap(), Some(&[value[0], 77, value[2]]));
        // Another heap's seat is refused.
        let other = self::heap(&node, way);
        let seat_there = other.seat().unwrap();
        assert!(matches!(far.insert(1, [0; 3], &seat_there), Err(Error::OtherHeap)));
        assert!(matches!(far.remove(&key, &seat_there), Err(Error::OtherHeap)));
        assert!(matches!(far.first(&seat_there), Err(Error::OtherHeap)));
        far.clear();
        assert!(far.is_empty() && !far.contains_key(&key, &seat).unwrap() && far.first(&seat).unwrap().is_none());
    }
}

/// Two threads push more than is local, and two take: each element once, and each thread's in order.
#[test]
fn a_queue_has_several_producers_and_consumers() {
    const EACH: u64 = 60_000;
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let (queue, left) = (heap.queue::<[u64; 3]>(), AtomicUsize::new(2 * EACH as usize));
        let seat = heap.seat().unwrap();
        // Some are there before anybody takes, so that chunks leave.
        for n in 0..EACH / 2 {
            queue.push([0, n, !n], &seat).unwrap();
        }
        assert_eq!(queue.len(), EACH as usize / 2);
        let taken: Vec<Vec<[u64; 3]>> = std::thread::scope(|threads| {
            let (heap, queue, left) = (&heap, &queue, &left);
            for thread in 0..2 {
                threads.spawn(move || {
                    let seat = heap.seat().unwrap();
                    let first = if thread == 0 { EACH / 2 } else { 0 };
                    (first..EACH).for_each(|n| queue.push([thread, n, !n], &seat).unwrap());
                });
            }
            let take = move || {
                let (seat, mut taken) = (heap.seat().unwrap(), Vec::new());
                while left.load(Ordering::Relaxed) > 0 {
                    match queue.pop(&seat).unwrap() {
                        Some(element) => {
                            left.fetch_sub(1, Ordering::Relaxed);
                            taken.push(element);
                        }
                        None => std::thread::yield_now(),
                    }
                }
                taken
            };
            let takers = [threads.spawn(take), threads.spawn(take)];
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        for thread in 0..2 {
            let mut all = Vec::new();
            for by in &taken {
                let of_it: Vec<u64> = by.iter().filter(|one| one[0] == thread).map(|one| one[1]).collect();
                assert!(of_it.is_sorted(), "{way:?}");
                all.extend(of_it);
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..EACH), "{way:?}");
        }
        assert!(taken.iter().flatten().all(|one| one[2] == !one[1]), "{way:?}");
        assert!(queue.is_empty() && queue.pop(&seat).unwrap().is_none());
        let (fetched, written) = heap.moved();
        assert!(fetched > 100 && written > 100, "{way:?}: {fetched} came, {written} left");
        let other = self::heap(&node, way);
        assert!(matches!(queue.push([0; 3], &other.seat().unwrap()), Err(Error::OtherHeap)));
        assert_eq!(queue.len(), 0);
    }
}

/// Of a queue whose middle is away, the chunks behind the front come with it, and each comes once.
#[test]
fn a_queues_front_is_fetched_ahead() {
    const CHUNKS: u64 = 400;
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let (queue, seat) = (heap.queue::<[u64; 512]>(), heap.seat().unwrap());
        (0..CHUNKS).for_each(|n| queue.push([n; 512], &seat).unwrap());
        let (mut before, mut trips) = (heap.moved().0, 0);
        let first = before;
        for n in 0..CHUNKS {
            assert_eq!(queue.pop(&seat).unwrap(), Some([n; 512]));
            let now = heap.moved().0;
            trips += u64::from(now > before);
            before = now;
        }
        let fetched = before - first;
        assert!((CHUNKS / 2..=CHUNKS).contains(&fetched), "{way:?}: {fetched} came");
        // A sixteenth of 96 chunks is six.
        assert!(trips <= fetched / 4, "{way:?}: {fetched} came in {trips} round trips");
        assert!(queue.pop(&seat).unwrap().is_none());
    }
}

/// A node that has no room, and one that is lost: each call says so, and the queue is as it was.
#[test]
fn a_queue_that_cannot_move_is_as_it_was() {
    let node = farmem_memory::Node::start(&farmem_memory::Config::new(
        64 << 20,
        vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())],
    ))
    .unwrap();
    let builder = Heap::builder().local(96 * CHUNK).node(node.addresses()[0].to_string());
    let heap = builder.grace(std::time::Duration::from_millis(200)).build_shared().unwrap();
    let (queue, seat) = (heap.queue::<[u64; 512]>(), heap.seat().unwrap());
    let mut pushed = 0;
    let full = loop {
        match queue.push([pushed; 512], &seat) {
            Ok(()) => pushed += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::Memory(farmem::Error::Full(_))) && pushed > 10_000, "{full}: {pushed}");
    assert_eq!(queue.len() as u64, pushed);
    for n in 0..100 {
        assert_eq!(queue.pop(&seat).unwrap(), Some([n; 512]));
    }
    queue.push([pushed; 512], &seat).unwrap();
    drop(node);
    let mut next = 100;
    let lost = loop {
        match queue.pop(&seat) {
            Ok(one) => {
                assert_eq!(one, Some([next; 512]));
                next += 1;
            }
            Err(e) => break e,
        }
    };
    assert!(matches!(lost, Error::Memory(farmem::Error::Lost { .. })), "{lost}");
    assert_eq!(queue.len() as u64, pushed + 1 - next);
}
