//! Heaps with a share of a run's local memory. This program plays the run: the heaps give memory to
//! its pages, and a scope that needs it gets some back.

#![allow(unsafe_code)] // It plays the runtime.

mod common;

use common::node;
use farmem::Transport;
use farmem_memory::Node;
use farmem_objects::{Error, FarBox, Heap, SharedBox};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The run's local memory, pages.
const LIMIT: usize = 1024;
/// Pages and bytes of a segment.
const PAGES: usize = 16;
const SEGMENT: usize = PAGES * 4096;

/// Pages that objects have, and may have.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MAY: AtomicUsize = AtomicUsize::new(LIMIT / 2);

/// `struct farmem_v1` of `farmem.h`. The program has no far page.
#[repr(C)]
struct Table {
    bytes: usize,
    far_start: usize,
    far_pages: usize,
    words: usize,
    use_range: extern "C" fn(usize, usize, i32),
    use_each: extern "C" fn(usize, usize, i32),
    advise: extern "C" fn(usize, usize, i32),
    objects: extern "C" fn(isize) -> usize,
    weigh: extern "C" fn(usize, usize, usize) -> isize,
    need: extern "C" fn() -> usize,
}

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static farmem_v1: Table = Table {
    bytes: size_of::<Table>(),
    far_start: 1 << 60,
    far_pages: 1,
    words: 0,
    use_range: nothing,
    use_each: nothing,
    advise: nothing,
    objects,
    weigh,
    need,
};

extern "C" fn nothing(_: usize, _: usize, _: i32) {}

extern "C" fn objects(pages: isize) -> usize {
    let taken = TAKEN.load(Ordering::Relaxed);
    match pages {
        0 => 3 * LIMIT / 4,
        1.. if taken + pages.unsigned_abs() > MAY.load(Ordering::Relaxed) => 0,
        _ => {
            TAKEN.store(taken.wrapping_add_signed(pages), Ordering::Relaxed);
            1
        }
    }
}

extern "C" fn weigh(_: usize, _: usize, _: usize) -> isize {
    MAY.load(Ordering::Relaxed).cast_signed() - TAKEN.load(Ordering::Relaxed).cast_signed()
}

extern "C" fn need() -> usize {
    let taken = TAKEN.load(Ordering::Relaxed);
    let enough = (taken + 2 * PAGES).min(LIMIT / 2);
    MAY.fetch_max(enough, Ordering::Relaxed).max(enough).saturating_sub(taken)
}

type Object = [u64; 64];

fn value(n: usize) -> Object {
    std::array::from_fn(|word| (n * 64 + word) as u64)
}

/// Opens scopes until the heap has weighed its share a few times.
fn weighed(heap: &Heap) {
    (0..4096).for_each(|_| drop(heap.scope()));
}

/// The test is one, because the run that it plays is one.
#[test]
fn scopes_get_half_though_pages_had_the_memory_and_idle_heaps_are_not_paid_for() {
    // SAFETY: no other thread of this program reads or writes variables yet.
    unsafe { std::env::set_var("FARMEM_RUN", format!("v=2;run={:032};local={}", 0, LIMIT * 4096)) };
    let node = node();
    let heap = || Heap::builder_of_run().unwrap().node(common::address(&node, Transport::Shm)).build().unwrap();
    let first = heap();
    let boxes: Vec<FarBox<Object>> = (0..6000).map(|n| first.alloc(&value(n)).unwrap()).collect();
    assert_eq!(first.local().0, LIMIT / 2 * 4096);
    let shrinks = |pages: usize| {
        MAY.store(pages, Ordering::Relaxed);
        weighed(&first);
        assert_eq!((first.local().0, TAKEN.load(Ordering::Relaxed)), (pages * 4096, pages));
    };

    // Many at once: three times as much as the heap may have.
    shrinks(LIMIT / 8);
    let some: Vec<&FarBox<Object>> = boxes.iter().take(2800).collect();
    let scope = first.scope();
    let found = first.get_many(&some, &scope).unwrap();
    assert!(found.iter().enumerate().all(|(n, found)| **found == value(n)));
    assert!(first.local().0 > LIMIT * 4096 / 3 && first.local().0 <= LIMIT / 2 * 4096);
    drop(scope);

    // One after the other, while pages gain more all the time.
    shrinks(LIMIT / 8);
    let scope = first.scope();
    let held: Vec<&Object> = (3000..5800)
        .map(|n| {
            MAY.store(LIMIT / 8, Ordering::Relaxed);
            boxes[n].get(&scope).unwrap()
        })
        .collect();
    assert!(held.iter().zip(3000..).all(|(found, n)| **found == value(n)));
    // Half is what there is.
    let full = (0..3000).find_map(|n| boxes[n].get(&scope).err());
    assert!(matches!(full, Some(Error::ScopeFull(_))), "{full:?}");
    assert_eq!(first.local().0, LIMIT / 2 * 4096);
    drop(scope);
    shrinks(LIMIT / 8);

    // An idle heap has more than half of what both may have. The other one has no less than half.
    MAY.store(LIMIT / 2, Ordering::Relaxed);
    let second = heap();
    let others: Vec<FarBox<Object>> = (0..3000).map(|n| second.alloc(&value(n)).unwrap()).collect();
    let idle = second.local().0;
    assert!(idle > LIMIT / 4 * 4096);
    MAY.store(LIMIT / 4, Ordering::Relaxed);
    boxes.iter().enumerate().for_each(|(n, one)| assert_eq!(one.read().unwrap(), value(n)));
    weighed(&first);
    assert_eq!((first.local().0, second.local().0), (LIMIT / 8 * 4096, idle));
    // It gives when it is used.
    weighed(&second);
    assert_eq!(second.local().0, LIMIT / 8 * 4096);
    // All can go on with the least.
    MAY.store(0, Ordering::Relaxed);
    weighed(&first);
    boxes.iter().enumerate().for_each(|(n, one)| assert_eq!(one.read().unwrap(), value(n)));
    assert_eq!(first.local().0, 4 * SEGMENT);
    drop((boxes, others, first, second));
    assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    threads_heaps_have_what_a_threads_has(&node);
}

/// The same of a heap that threads share.
fn threads_heaps_have_what_a_threads_has(node: &Node) {
    MAY.store(LIMIT / 8, Ordering::Relaxed);
    let heap = Heap::builder_of_run().unwrap().node(common::address(node, Transport::Shm)).build_shared().unwrap();
    let seat = heap.seat().unwrap();
    let boxes: Vec<SharedBox<Object>> = (0..6000).map(|n| seat.alloc(&value(n)).unwrap()).collect();
    assert_eq!(heap.local().0, LIMIT / 8 * 4096);

    // A scope holds three times as much as the heap may have, while pages gain more all the time.
    let scope = seat.scope();
    let held: Vec<&Object> = (0..2400)
        .map(|n| {
            MAY.store(LIMIT / 8, Ordering::Relaxed);
            boxes[n].get(&scope).unwrap()
        })
        .collect();
    assert!(held.iter().enumerate().all(|(n, found)| **found == value(n)));
    assert!(heap.local().0 > LIMIT * 4096 / 3 && heap.local().0 <= LIMIT / 2 * 4096);
    // Half is what there is.
    let full = (2400..6000).find_map(|n| boxes[n].get(&scope).err());
    assert!(matches!(full, Some(Error::ScopeFull(_))), "{full:?}");
    assert_eq!(heap.local().0, LIMIT / 2 * 4096);
    drop(scope);

    // It gives back what pages gain more by, also where it misses nothing.
    let shrinks = |pages: usize| {
        MAY.store(pages, Ordering::Relaxed);
        (0..64 * 256).for_each(|_| drop(seat.scope()));
        assert_eq!((heap.local().0, TAKEN.load(Ordering::Relaxed)), (pages * 4096, pages));
    };
    shrinks(LIMIT / 4);
    boxes.iter().enumerate().for_each(|(n, one)| assert_eq!(one.read(&seat).unwrap(), value(n)));
    // It grows again when it misses.
    MAY.store(LIMIT / 2, Ordering::Relaxed);
    boxes.iter().enumerate().for_each(|(n, one)| assert_eq!(one.read(&seat).unwrap(), value(n)));
    assert_eq!(heap.local().0, LIMIT / 2 * 4096);
    shrinks(LIMIT / 8);
    boxes.iter().enumerate().for_each(|(n, one)| assert_eq!(one.read(&seat).unwrap(), value(n)));
    drop((boxes, seat, heap));
    assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
}
