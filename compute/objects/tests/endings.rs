//! How things end: the node is lost, the process forks, a thread ends in a scope.

#![allow(unsafe_code)] // It forks.

mod common;

use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{CHUNK, Error, FarBox, Heap, SharedBox};
use std::time::Duration;

/// Runs `work` in a forked child. Whether it returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `work` and ends, without the parent's destructors.
    match unsafe { libc::fork() } {
        0 => {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: it ends.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

fn is_lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Memory(farmem::Error::Lost { .. })))
}

/// What is local stays readable; the rest, and what needs the node, says that it is lost. Nothing hangs or ends the
/// process.
#[test]
fn a_lost_node_is_an_error_of_the_call_that_needs_it() {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(128 << 20, listen)).unwrap();
    let address = node.addresses()[0].to_string();
    let heap = Heap::builder().local(64 * CHUNK).node(address).transport(Transport::Tcp);
    let heap = heap.grace(Duration::from_millis(200)).build().unwrap();
    let mut boxes: Vec<FarBox<[u64; 8]>> = (0..10_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
    let mut map = heap.map::<u64, u64>();
    for n in 0..20_000 {
        map.insert(n, n).unwrap();
    }
    let mut column = heap.vec::<u64>();
    (0..100_000).for_each(|n| column.push(n).unwrap());
    heap.prefetch(&boxes.iter().take(30).collect::<Vec<_>>());
    drop(node);

    let (local, away): (Vec<usize>, Vec<usize>) = (0..boxes.len()).partition(|&n| boxes[n].is_local());
    assert!(away.len() > 1000);
    assert!(local.iter().all(|&n| boxes[n].read().unwrap() == [n as u64; 8]));
    // The first ones may have been on their way.
    assert!(is_lost(boxes[away[away.len() - 7]].read()));
    assert!(is_lost(boxes[away[away.len() - 8]].set(&[1; 8])));
    let scope = heap.scope();
    assert!(is_lost(heap.get_many(&boxes.iter().collect::<Vec<_>>(), &scope)) || local.len() == boxes.len());
    drop(scope);
    assert!((0..20_000).any(|n| is_lost(map.insert(n, n + 1))));
    assert!((20_000..90_000).any(|n| is_lost(map.insert(n, n))));
    assert!(is_lost(column.scan(|_, _| ())));
    assert!(column.iter().any(is_lost));
    assert!(is_lost(column.gather(&(0..100_000).step_by(100).collect::<Vec<_>>())));
    assert!(!map.is_empty() && column.len() == 100_000);
}

/// A forked child reads what was local when it was made. It reaches no node, and the parent's heap is as it was.
#[test]
fn a_forked_child_has_what_was_local() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let node = common::node();
        let address = common::address(&node, transport);
        let heap = Heap::builder().local(64 * CHUNK).node(address).transport(transport).build().unwrap();
        let mut boxes: Vec<FarBox<[u64; 8]>> = (0..10_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
        let local = (0..boxes.len()).find(|&n| boxes[n].is_local()).unwrap();
        let away = (0..boxes.len()).find(|&n| !boxes[n].is_local()).unwrap();
        let status = in_child(|| {
            let forked = |result| matches!(result, Err(Error::Memory(farmem::Error::Forked)));
            let reads = boxes[local].read().is_ok_and(|value| value == [local as u64; 8]);
            let changes = boxes[local].set(&[1; 8]).is_ok();
            reads && changes && forked(boxes[away].read().map(drop))
        });
        assert!(status, "{transport:?}");
        assert!((0..).zip(&boxes).all(|(n, one)| one.read().unwrap() == [n; 8]));
    }
}

/// A thread that ends with a heap, boxes and an open scope takes them along, in whatever order.
#[test]
fn a_thread_ends_in_a_scope() {
    let node = common::node();
    let address = common::address(&node, Transport::Tcp);
    for _ in 0..3 {
        let address = address.clone();
        let ended = std::thread::spawn(move || {
            thread_local! {
                static KEPT: std::cell::RefCell<Vec<(FarBox<u64>, farmem_objects::Scope)>> =
                    const { std::cell::RefCell::new(Vec::new()) };
            }
            let heap = Heap::builder().local(64 * CHUNK).node(address).transport(Transport::Tcp).build().unwrap();
            let kept: Vec<_> = (0..100).map(|n| (heap.alloc(&n).unwrap(), heap.scope())).collect();
            std::mem::forget(heap.scope());
            KEPT.with_borrow_mut(|all| all.extend(kept));
        });
        ended.join().unwrap();
    }
}

/// Each thread of a shared heap is told of a lost node, and what is local stays. No thread waits for
/// an object that will not come.
#[test]
fn threads_that_share_a_heap_are_told_of_a_lost_node() {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(128 << 20, listen)).unwrap();
    let heap = Heap::builder().local(256 * CHUNK).node(node.addresses()[0].to_string()).transport(Transport::Tcp);
    let heap = heap.grace(Duration::from_millis(200)).build_shared().unwrap();
    let seat = heap.seat().unwrap();
    let boxes: Vec<SharedBox<[u64; 8]>> = (0..40_000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
    drop(node);
    let counts: Vec<(usize, usize)> = std::thread::scope(|threads| {
        let read = |thread: usize| {
            let (seat, mut here, mut lost) = (heap.seat().unwrap(), 0, 0);
            // The same ones at once, and the oldest and the newest of them.
            for n in (0..50).chain(39_950 - thread..40_000) {
                match boxes[n].read(&seat) {
                    Ok(value) => {
                        assert_eq!(value, [n as u64; 8]);
                        here += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Memory(farmem::Error::Lost { .. })), "{n}: {error:?}");
                        lost += 1;
                    }
                }
            }
            (here, lost)
        };
        let all: Vec<_> = (0..3).map(|thread| threads.spawn(move || read(thread))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(counts.iter().all(|&(here, lost)| here >= 10 && lost >= 50), "{counts:?}");
    // What cannot leave stays, and can be dropped.
    assert!((0..40_000).find_map(|n| seat.alloc(&[n; 8]).err()).is_some());
    drop(boxes);
}

/// A forked child reads what was local, and neither reaches a node nor waits for a thread that is
/// not there. A panic in a scope ends it.
#[test]
fn a_shared_heap_is_forked_and_panics_in_scopes() {
    let node = common::node();
    let heap = Heap::builder().local(128 * CHUNK).node(common::address(&node, Transport::Shm));
    let heap = heap.transport(Transport::Shm).build_shared().unwrap();
    let seat = heap.seat().unwrap();
    let boxes: Vec<SharedBox<[u64; 8]>> = (0..20_000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
    let is_forked = |result| matches!(result, Err(Error::Memory(farmem::Error::Forked)));
    assert!(in_child(|| {
        let results: Vec<_> = boxes.iter().map(|one| one.read(&seat)).collect();
        let here =
            results.iter().enumerate().filter(|(n, result)| matches!(result, Ok([one, ..]) if *one == *n as u64));
        here.count() > 1000
            && results.into_iter().filter(|result| result.is_err()).all(is_forked)
            && heap.seat().is_err()
            && seat.alloc(&[1u64; 8]).is_err()
    }));
    assert!(in_child(move || {
        drop((boxes, seat, heap));
        true
    }));
    let heap = Heap::builder().local(128 * CHUNK).node(common::address(&node, Transport::Shm)).build_shared().unwrap();
    let seat = heap.seat().unwrap();
    let boxes: Vec<SharedBox<[u64; 8]>> = (0..20_000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let scope = seat.scope();
        assert_eq!(boxes[7].get(&scope).unwrap()[0], 8, "on purpose");
    }));
    assert!(panicked.is_err());
    assert!(boxes.iter().enumerate().all(|(n, one)| one.read(&seat).unwrap() == [n as u64; 8]));
}

/// A forked child changes, allocates and drops what it likes: nothing of it reaches a node, and the parent's heap is as it
/// was. Objects are on their way at the fork.
#[test]
fn a_forked_child_that_drops_and_changes_all_harms_nobody() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let node = common::node();
        let address = common::address(&node, transport);
        let heap = Heap::builder().local(64 * CHUNK).node(address).transport(transport).build().unwrap();
        let boxes: Vec<FarBox<[u64; 8]>> = (0..10_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
        let (mut map, mut column, mut queue) = (heap.map::<u64, u64>(), heap.vec::<u64>(), heap.queue::<u64>());
        for n in 0..20_000 {
            map.insert(n, n).unwrap();
            column.push(n).unwrap();
            queue.push_back(n).unwrap();
        }
        heap.prefetch(&boxes.iter().take(30).collect::<Vec<_>>());
        let (mut boxes, mut map, mut column, mut queue) = (Some(boxes), Some(map), Some(column), Some(queue));
        assert!(
            in_child(|| {
                let (mut boxes, map) = (boxes.take().unwrap(), map.take().unwrap());
                let (mut column, mut queue) = (column.take().unwrap(), queue.take().unwrap());
                let mut failed = 0;
                for one in &mut boxes {
                    failed += usize::from(one.set(&[u64::MAX; 8]).is_err());
                }
                for n in 0..20_000 {
                    failed += usize::from(column.set(n, u64::MAX).is_err());
                    failed += usize::from(queue.push_back(u64::MAX).is_err());
                    failed += usize::from(heap.alloc(&[u64::MAX; 64]).is_err());
                }
                let collected = map.scan(|_, _| ()).is_err() && column.scan(|_, _| ()).is_err();
                drop((boxes, map, column, queue));
                drop(heap.clone());
                collected && failed > 40_000
            }),
            "{transport:?}"
        );
        assert!((0..).zip(boxes.as_ref().unwrap()).all(|(n, one)| one.read().unwrap() == [n; 8]), "{transport:?}");
        let scope = heap.scope();
        assert_eq!(map.as_ref().unwrap().get(&777, &scope).unwrap(), Some(&777));
        drop(scope);
        let mut next = 0;
        column
            .as_ref()
            .unwrap()
            .scan(|_, part| {
                part.iter().for_each(|&n| {
                    assert_eq!(n, next);
                    next += 1;
                });
            })
            .unwrap();
        for n in 0..20_000 {
            assert_eq!(queue.as_mut().unwrap().pop_front().unwrap(), Some(n));
        }
    }
}
