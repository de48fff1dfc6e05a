//! Values that tasks await: `FarBox::load` and `Heap::join`.

mod common;

use common::{address, node};
use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{CHUNK, Error, FarBox, FarHashMap, FarVec, Heap, Result};
use std::cell::RefCell;
use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const WAYS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn heap(node: &Node, way: Transport) -> Heap {
    Heap::builder().local(128 * CHUNK).node(address(node, way)).transport(way).build().unwrap()
}

/// Links by which one object leads to the next: its place is its number, times an odd number.
fn next(n: u64, len: u64) -> u64 {
    (n * 7919 + 1) % len
}

/// Follows links of boxes, a scope for each. The sum of what it saw.
async fn chase(heap: &Heap, boxes: &[FarBox<[u64; 8]>], from: u64, links: usize) -> Result<u64> {
    let (mut at, mut sum) = (from, 0);
    for _ in 0..links {
        let scope = heap.scope();
        let one = boxes[at as usize].load(&scope).await?;
        sum += one[7];
        at = one[0];
    }
    Ok(sum)
}

#[test]
fn tasks_follow_links_together() {
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let len = 20_000;
        let boxes: Vec<FarBox<[u64; 8]>> =
            (0..len).map(|n| heap.alloc(&[next(n, len), 0, 0, 0, 0, 0, 0, n]).unwrap()).collect();
        let wanted = |from: u64| {
            let seen = std::iter::successors(Some(from), |&n| Some(next(n, len)));
            seen.take(100).sum::<u64>()
        };
        let sums = heap.join((0..50).map(|from| chase(&heap, &boxes, from * 391, 100)));
        let sums: Vec<u64> = sums.into_iter().collect::<Result<_>>().unwrap();
        assert_eq!(sums, (0..50).map(|from| wanted(from * 391)).collect::<Vec<_>>(), "{way:?}");
        assert!(heap.moved().0 > 1000, "{way:?}: nothing was away");
    }
}

/// Over TCP all tasks' values are asked for before one is waited for.
#[test]
fn values_are_under_way_together() {
    let node = node();
    let heap = heap(&node, Transport::Tcp);
    let boxes: Vec<FarBox<[u64; 8]>> = (0..20_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
    let away: Vec<usize> = (0..boxes.len()).filter(|&n| !boxes[n].is_local()).take(16).collect();
    let (begun, scope) = (RefCell::new(Vec::new()), heap.scope());
    let task = async |n: usize| -> Result<usize> {
        begun.borrow_mut().push(n);
        let one = boxes[n].load(&scope).await?;
        assert_eq!(begun.borrow().len(), 16, "a value came before all were asked for");
        Ok(one[3] as usize)
    };
    let found = heap.join(away.iter().map(|&n| task(n)));
    assert_eq!(found.into_iter().collect::<Result<Vec<_>>>().unwrap(), away);
}

/// Another executor of the thread may poll: it is woken until the value is there.
#[test]
fn any_executor_will_do() {
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let boxes: Vec<FarBox<u64>> = (0..100_000).map(|n| heap.alloc(&n).unwrap()).collect();
        let n = (0..boxes.len()).find(|&n| !boxes[n].is_local()).unwrap();
        let scope = heap.scope();
        // Two loads of one box, of which one is given up.
        let mut context = Context::from_waker(Waker::noop());
        let mut given_up = Box::pin(boxes[n].load(&scope));
        let _ = given_up.as_mut().poll(&mut context);
        drop(given_up);
        let mut load = Box::pin(boxes[n].load(&scope));
        let found = loop {
            if let Poll::Ready(found) = load.as_mut().poll(&mut context) {
                break found;
            }
        };
        assert_eq!(*found.unwrap(), n as u64);
    }
}

/// Vectors and maps, by tasks that wait for one another, too.
#[test]
fn vectors_and_maps_are_awaited() {
    for way in WAYS {
        let node = node();
        let heap = heap(&node, way);
        let mut words: FarVec<u64> = heap.vec();
        words.extend_from_slice(&(0..300_000).map(|n| n * 3).collect::<Vec<u64>>()).unwrap();
        let mut map: FarHashMap<u64, u64> = heap.map();
        (0..30_000).for_each(|n| assert!(map.insert(n, n * 3).unwrap().is_none()));
        let task = async |n: u64| -> Result<u64> {
            let scope = heap.scope();
            let three = *words.load(n as usize * 7, &scope).await?;
            let key = three / 21;
            Ok(map.load(&key, &scope).await?.copied().unwrap_or_default())
        };
        for from in (0..4000).step_by(40) {
            let found: Vec<u64> = heap.join((from..from + 40).map(task)).into_iter().collect::<Result<_>>().unwrap();
            assert!(found.iter().zip(from..).all(|(&found, n)| found == 3 * n), "{way:?}");
        }
        let scope = heap.scope();
        let missing = async || (map.load(&30_000, &scope).await, words.load(300_000, &scope).await.is_err());
        let (none, is_error) = heap.join([missing()]).remove(0);
        assert!(none.unwrap().is_none() && is_error);
    }
}

/// Thousands of tasks in little local memory, beside one that holds its scope for long.
#[test]
fn more_tasks_than_local_memory_has_room_for_all_end() {
    for way in WAYS {
        let node = node();
        let heap = Heap::builder().local(64 * CHUNK).node(address(&node, way)).transport(way).build().unwrap();
        let boxes: Vec<FarBox<[u64; 64]>> = (0..4000).map(|n| heap.alloc(&[n; 64]).unwrap()).collect();
        let task = async |from: usize| -> Result<u64> {
            let (scope, objects) = (heap.scope(), if from == 7 { 150 } else { 2 });
            let mut sum = 0;
            for n in 0..objects {
                sum += boxes[(from + n * 1999) % boxes.len()].load(&scope).await?[63];
            }
            Ok(sum)
        };
        let found: Result<Vec<u64>> = heap.join((0..boxes.len()).map(task)).into_iter().collect();
        let found = found.unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!((0..boxes.len()).filter(|&n| n != 7).all(|n| found[n] == (n + (n + 1999) % boxes.len()) as u64));
    }
}

/// Tasks that wait for one that begins last.
#[test]
fn tasks_may_wait_for_one_another() {
    let node = node();
    let heap = heap(&node, Transport::Tcp);
    let (told, len) = (std::cell::Cell::new(false), 500);
    let task = async |n: usize| {
        if n + 1 == len {
            told.set(true);
        }
        std::future::poll_fn(|_| if told.get() { Poll::Ready(n) } else { Poll::Pending }).await
    };
    assert_eq!(heap.join((0..len).map(task)), (0..len).collect::<Vec<_>>());
}

/// Tasks that wait for one that begins last, and load what is away meanwhile: something is always on
/// its way.
#[test]
fn tasks_that_load_may_wait_for_one_another() {
    let node = node();
    let heap = Heap::builder().local(64 * CHUNK).node(address(&node, Transport::Tcp)).transport(Transport::Tcp);
    let heap = heap.build().unwrap();
    let boxes: Vec<FarBox<[u64; 64]>> = (0..4000).map(|n| heap.alloc(&[n; 64]).unwrap()).collect();
    let (told, tasks) = (std::cell::Cell::new(false), 67);
    let task = async |n: usize| -> Result<usize> {
        if n + 1 == tasks {
            told.set(true);
        }
        let mut at = n * 50;
        while !told.get() {
            let scope = heap.scope();
            at = (at + 61) % boxes.len();
            assert_eq!(boxes[at].load(&scope).await?[63], at as u64);
        }
        Ok(n)
    };
    let found: Vec<usize> = heap.join((0..tasks).map(task)).into_iter().collect::<Result<_>>().unwrap();
    assert_eq!(found, (0..tasks).collect::<Vec<_>>());
}

/// A task of a join that waits by an executor of its own comes to an end.
#[test]
fn a_task_may_wait_by_another_executor() {
    let node = node();
    let heap = heap(&node, Transport::Tcp);
    let boxes: Vec<FarBox<[u64; 8]>> = (0..20_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
    let task = async |n: usize| {
        let scope = heap.scope();
        let mut load = std::pin::pin!(boxes[n].load(&scope));
        let found = loop {
            if let Poll::Ready(found) = load.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break found.unwrap()[7];
            }
        };
        // While it looked, others did not.
        boxes[n + 1].load(&scope).await.unwrap()[7] - found
    };
    assert_eq!(heap.join((0..50).map(|n| task(n * 391))), [1; 50]);
}

/// A lost node, and scopes that hold all, are errors of the await.
#[test]
fn endings_are_errors_of_the_await() {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(128 << 20, listen)).unwrap();
    let address = node.addresses()[0].to_string();
    let heap = Heap::builder().local(64 * CHUNK).node(address).transport(Transport::Tcp);
    let heap = heap.grace(Duration::from_millis(200)).build().unwrap();
    let boxes: Vec<FarBox<[u64; 64]>> = (0..4000).map(|n| heap.alloc(&[n; 64]).unwrap()).collect();
    let scope = heap.scope();
    let all = heap.join(boxes.iter().map(|one| one.load(&scope)));
    let full = all.iter().filter(|result| matches!(result, Err(Error::ScopeFull(_)))).count();
    let sound = all.iter().zip(0..).filter(|(result, n)| matches!(result, Ok(one) if one[63] == *n)).count();
    assert!(full > 1000 && sound > 100 && full + sound == boxes.len(), "{full} full, {sound} sound");
    drop(scope);
    drop(node);
    let scope = heap.scope();
    let all = heap.join(boxes.iter().filter(|one| !one.is_local()).take(64).map(|one| one.load(&scope)));
    let is_lost = |result: &Result<&[u64; 64]>| matches!(result, Err(Error::Memory(farmem::Error::Lost { .. })));
    assert!(all.len() == 64 && all.iter().all(is_lost), "{all:?}");
}
