//! Heaps that threads share.

mod common;

use farmem::Transport;
use farmem_memory::Node;
use farmem_objects::{CHUNK, Error, Heap, Seat, SharedBox, SharedHashMap, SharedHeap, SharedVec};
use std::collections::HashMap;
use std::sync::{Barrier, Mutex, RwLock};
use std::time::{Duration, Instant};

const WAYS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn heap(node: &Node, way: Transport, local: usize) -> SharedHeap {
    Heap::builder().local(local).node(common::address(node, way)).transport(way).build_shared().unwrap()
}

/// Numbers that follow one another in no order.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

#[test]
fn heaps_boxes_and_vectors_are_shared_and_scopes_are_not() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<SharedHeap>();
    shared::<SharedBox<[u64; 8]>>();
    shared::<SharedVec<u64>>();
    shared::<SharedHashMap<u64, u64>>();
    sent::<Seat>();
}

/// Four threads read what lies mostly away, by all ways of reading.
#[test]
fn threads_read_together() {
    for way in WAYS {
        let node = common::node();
        let heap = heap(&node, way, 1024 * CHUNK);
        let seat = heap.seat().unwrap();
        let boxes: Vec<SharedBox<[u64; 8]>> = (0..50_000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
        let mut words = heap.vec::<u64>();
        words.extend_from_slice(&(0..1_000_000).collect::<Vec<u64>>(), &seat).unwrap();
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (heap, boxes, words) = (&heap, &boxes, &words);
                threads.spawn(move || {
                    let (seat, mut draw) = (heap.seat().unwrap(), Draw(thread + 1));
                    for _ in 0..700 {
                        let scope = seat.scope();
                        let places: [usize; 8] = std::array::from_fn(|_| draw.below(boxes.len()));
                        let some: Vec<_> = places.iter().map(|&n| &boxes[n]).collect();
                        for (one, &n) in scope.get_many(&some).unwrap().into_iter().zip(&places) {
                            assert_eq!(one, &[n as u64; 8]);
                        }
                        let n = draw.below(boxes.len());
                        assert_eq!(boxes[n].get(&scope).unwrap()[7], n as u64);
                        let n = draw.below(words.len());
                        assert_eq!(words.get(n, &scope).unwrap(), &(n as u64));
                        let n = draw.below(words.len());
                        let few = [n, n / 2, n / 3];
                        let found = words.get_many(&few, &scope).unwrap();
                        assert!(found.into_iter().zip(few).all(|(&found, n)| found == n as u64));
                    }
                    let (from, each) = (thread as usize * 250_000, 250_000);
                    let mut next = from;
                    let visit = |first: usize, part: &[u64]| {
                        assert!(first == next && part.iter().zip(first..).all(|(&one, n)| one == n as u64));
                        next += part.len();
                    };
                    words.scan(from..from + each, &seat, visit).unwrap();
                    assert_eq!(next, from + each);
                });
            }
        });
        assert!(heap.moved().0 > 5000, "{:?}", heap.moved());
        let (used, most) = heap.local();
        assert!(used <= most, "{used} of {most}");
    }
}

/// Threads write by turns to what others read, and drop and make anew. All is as the last one left
/// it.
#[test]
fn one_writes_at_a_time() {
    for way in WAYS {
        let node = common::node();
        let heap = heap(&node, way, 128 * CHUNK);
        let seat = heap.seat().unwrap();
        let words = RwLock::new(heap.vec::<u64>());
        words.write().unwrap().extend_from_slice(&vec![0; 100_000], &seat).unwrap();
        let boxes: Vec<Mutex<Option<SharedBox<[u64; 4]>>>> = (0..8000).map(|_| Mutex::new(None)).collect();
        let totals: Vec<Mutex<u64>> = (0..100_000).map(|_| Mutex::new(0)).collect();
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (heap, boxes, words, totals) = (&heap, &boxes, &words, &totals);
                threads.spawn(move || {
                    let (seat, mut draw) = (heap.seat().unwrap(), Draw(77 + thread));
                    for step in 0..2000 {
                        let n = draw.below(totals.len());
                        if step % 4 == 0 {
                            let mut words = words.write().unwrap();
                            let scope = seat.scope();
                            let before = *words.get(n, &scope).unwrap();
                            let mut total = totals[n].lock().unwrap();
                            assert_eq!(before, *total);
                            *total += step;
                            *words.get_mut(n, &scope).unwrap() = *total;
                        } else {
                            let words = words.read().unwrap();
                            let total = totals[n].lock().unwrap();
                            assert_eq!(words.read(n, &seat).unwrap(), *total);
                        }
                        let n = draw.below(boxes.len());
                        let mut one = boxes[n].lock().unwrap();
                        match &mut *one {
                            None => *one = Some(seat.alloc(&[n as u64; 4]).unwrap()),
                            Some(_) if step % 5 == 0 => *one = None,
                            Some(one) => {
                                let scope = seat.scope();
                                let value = one.get_mut(&scope).unwrap();
                                assert_eq!(value[0], n as u64);
                                assert!(value[1..].iter().all(|&field| field == value[1]));
                                value[1..].iter_mut().for_each(|field| *field += 1);
                            }
                        }
                    }
                });
            }
        });
        let words = words.into_inner().unwrap();
        let check = |first: usize, part: &[u64]| {
            assert!(part.iter().zip(&totals[first..]).all(|(one, total)| *one == *total.lock().unwrap()));
        };
        words.scan(0..words.len(), &seat, check).unwrap();
        assert!(heap.moved().1 > 100, "{:?}", heap.moved());
    }
}

/// A scope that holds all room is told at once. Another thread's is waited for, and then told.
#[test]
fn a_scope_that_stays_open_lets_nothing_leave() {
    let node = common::node();
    let heap = heap(&node, Transport::Tcp, 64 * CHUNK);
    let seat = heap.seat().unwrap();
    let mut words = heap.vec::<u64>();
    words.extend_from_slice(&vec![7; 100 * 512], &seat).unwrap();
    let scope = seat.scope();
    let held = (0..100).map(|chunk| words.get(512 * chunk, &scope)).find_map(Result::err);
    assert!(matches!(held, Some(Error::ScopeFull(_))), "{held:?}");
    let (begun, there) = (Instant::now(), Barrier::new(2));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let seat = heap.seat().unwrap();
            let held = (0..100).map(|chunk| words.read(512 * chunk, &seat)).find_map(Result::err);
            assert!(matches!(held, Some(Error::ScopeFull(_))), "{held:?}");
            assert!(begun.elapsed().as_millis() >= 1000);
            there.wait();
        });
        there.wait();
    });
    drop(scope);
    assert!((0..100).all(|chunk| words.read(512 * chunk, &seat).unwrap() == 7));
    // What a thread leaked holds nothing once its seat is gone.
    let other = heap.seat().unwrap();
    std::mem::forget(other.scope());
    drop(other);
    assert!((0..100).all(|chunk| words.read(512 * chunk, &seat).unwrap() == 7));
}

/// Of scopes that are open together, each in turn is the first. Each has its share of the frames,
/// though those before it have used all that they could get.
#[test]
fn each_scope_that_comes_to_be_first_has_room() {
    let node = common::node();
    let heap = heap(&node, Transport::Shm, 256 * CHUNK);
    let seats: Vec<Seat> = (0..4).map(|_| heap.seat().unwrap()).collect();
    let mut words = heap.vec::<u64>();
    words.extend_from_slice(&vec![7; 2000 * 512], &seats[0]).unwrap();
    let (share, mut next) = (8, 0);
    for _round in 0..4 {
        let mut scopes: Vec<_> = seats.iter().map(Seat::scope).collect();
        while let Some(scope) = scopes.pop() {
            let (mut had, mut is_full) = (0, false);
            while !is_full {
                next = (next + 1) % 2000;
                match words.get(512 * next, &scope) {
                    Ok(word) => assert_eq!(word, &7),
                    Err(Error::ScopeFull(_)) => is_full = true,
                    Err(other) => panic!("{other}"),
                }
                had += usize::from(!is_full);
            }
            assert!(had >= share, "a scope had {had} of {share}, and {} were to follow", scopes.len());
        }
    }
}

/// A scope that takes longer than a second, and fetches meanwhile, is waited for. It is tried again
/// where the machine held the scope's thread up between two fetches.
#[test]
fn a_slow_scope_is_waited_for() {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (waited, longest) = beside_a_slow_scope();
        if waited {
            return;
        }
        let held_up = longest > Duration::from_millis(500) && Instant::now() < until;
        assert!(held_up, "told, though the other scope fetched within {longest:?} each time");
    }
}

/// Whether reads of another thread have waited for the scope, and the longest time between two of
/// the scope's fetches.
fn beside_a_slow_scope() -> (bool, Duration) {
    let node = common::node();
    let heap = heap(&node, Transport::Shm, 256 * CHUNK);
    let seat = heap.seat().unwrap();
    let mut words = heap.vec::<u64>();
    words.extend_from_slice(&vec![7; 600 * 512], &seat).unwrap();
    let there = Barrier::new(2);
    std::thread::scope(|threads| {
        let slow = threads.spawn(|| {
            let seat = heap.seat().unwrap();
            let scope = seat.scope();
            there.wait();
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            // Each of these is away: they are as many as the first scope has room for.
            for chunk in 0..14 {
                assert_eq!(words.get(512 * chunk, &scope).unwrap(), &7);
                longest = longest.max(last.elapsed());
                last = Instant::now();
                std::thread::sleep(Duration::from_millis(100));
            }
            longest.max(last.elapsed())
        });
        there.wait();
        // More than there is room for while that scope is open.
        let read: Result<Vec<u64>, Error> = (100..600).map(|chunk| words.read(512 * chunk, &seat)).collect();
        let longest = slow.join().unwrap();
        match read {
            Ok(read) => {
                assert!(read.into_iter().all(|word| word == 7));
                (true, longest)
            }
            Err(Error::ScopeFull(_)) => (false, longest),
            Err(other) => panic!("{other}"),
        }
    })
}

/// Other heaps' boxes are refused, and a box outlives its heap.
#[test]
fn boxes_stay_with_their_heap() {
    let node = common::node();
    let (a, b) = (heap(&node, Transport::Shm, 64 * CHUNK), heap(&node, Transport::Shm, 64 * CHUNK));
    let (in_a, in_b) = (a.seat().unwrap(), b.seat().unwrap());
    let one = in_a.alloc(&7u64).unwrap();
    let two = in_b.alloc(&8u64).unwrap();
    assert!(matches!(one.get(&in_b.scope()), Err(Error::OtherHeap)));
    assert_eq!((one.read(&in_a).unwrap(), two.read(&in_b).unwrap()), (7, 8));
    let mut words = a.vec::<u64>();
    assert!(matches!(words.push(1, &in_b), Err(Error::OtherHeap)));
    drop((in_a, words, a));
    assert!(matches!(one.read(&in_b), Err(Error::OtherHeap)));
    drop(one);
    assert_eq!(two.read(&in_b).unwrap(), 8);
}

#[test]
fn seats_are_counted() {
    let node = common::node();
    let heap = heap(&node, Transport::Shm, 64 * CHUNK);
    let seats: Vec<Seat> = (0..256).map(|_| heap.seat().unwrap()).collect();
    assert!(matches!(heap.seat(), Err(Error::NoSeat(256))));
    drop(seats);
    assert!(heap.seat().is_ok());
}

/// A map that threads read together and change in turn, against std's: most of it is away.
#[test]
fn a_map_is_as_stds_under_threads() {
    for way in WAYS {
        let node = common::node();
        let heap = heap(&node, way, 96 * CHUNK);
        let near = RwLock::new(HashMap::<u64, [u64; 3]>::new());
        let far = RwLock::new(heap.map::<u64, [u64; 3]>());
        std::thread::scope(|threads| {
            for thread in 0..3u64 {
                let (heap, near, far) = (&heap, &near, &far);
                threads.spawn(move || {
                    let (seat, mut draw) = (heap.seat().unwrap(), Draw(thread + 1));
                    for n in 0..30_000u64 {
                        let (key, value) = (draw.below(20_000) as u64, [n, thread, n ^ thread]);
                        if n % 3 != 0 {
                            // Both in one order: near is locked while far is.
                            let mut far = far.write().unwrap();
                            let (found, wanted) = match draw.below(4) {
                                0 => (far.remove(&key, &seat).unwrap(), near.write().unwrap().remove(&key)),
                                _ => (far.insert(key, value, &seat).unwrap(), near.write().unwrap().insert(key, value)),
                            };
                            assert_eq!((found, far.len()), (wanted, near.read().unwrap().len()), "{way:?}");
                            continue;
                        }
                        let (far, scope) = (far.read().unwrap(), seat.scope());
                        let keys: [u64; 8] = std::array::from_fn(|_| draw.below(20_000) as u64);
                        let found = far.get_many(&keys, &scope).unwrap();
                        let near = near.read().unwrap();
                        assert!(keys.iter().zip(&found).all(|(key, found)| *found == near.get(key)), "{way:?}");
                        assert_eq!(far.get(&key, &scope).unwrap(), near.get(&key));
                    }
                });
            }
        });
        let (seat, mut far, near) = (heap.seat().unwrap(), far.into_inner().unwrap(), near.into_inner().unwrap());
        let mut seen = HashMap::new();
        far.scan(&seat, |&key, &value| assert!(seen.insert(key, value).is_none())).unwrap();
        assert!(seen == near && heap.moved().0 > 1000, "{way:?}: {} entries", seen.len());
        let (&key, value) = near.iter().next().unwrap();
        let scope = seat.scope();
        far.get_mut(&key, &scope).unwrap().unwrap()[1] = 77;
        drop(scope);
        let scope = seat.scope();
        assert_eq!(far.get(&key, &scope).unwrap(), Some(&[value[0], 77, value[2]]));
        drop(scope);
        // Another heap's seat is refused.
        let other = self::heap(&node, way, 64 * CHUNK);
        assert!(matches!(far.insert(1, [0; 3], &other.seat().unwrap()), Err(Error::OtherHeap)));
        far.clear();
        assert!(far.is_empty() && !far.contains_key(&key, &seat).unwrap());
    }
}
