//! Huge pages beneath local objects: bytes and the limit hold, and memory that leaves is given back.

#![allow(unsafe_code)] // A reservation of this test's own.

mod common;
#[path = "common/huge.rs"]
mod huge;

use common::{address, node};
use farmem::Transport;
use farmem_objects::{FarBox, FarVec, Heap, SharedBox};
use huge::is_given;
use std::sync::atomic::{AtomicBool, Ordering};

/// KiB that heaps of this process have, and those of huge pages. Reservations are private, and left out
/// of core dumps (`dd`); the node's memory is shared (`sh`).
fn local() -> (usize, usize) {
    let (mut all, mut huge, mut of_one) = (0, 0, (0, 0));
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let number = || line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or_default();
        match line.split(':').next() {
            Some("Rss") => of_one.0 = number(),
            Some("AnonHugePages") => of_one.1 = number(),
            Some("VmFlags") if line.contains(" dd") && !line.contains(" sh") => {
                (all, huge) = (all + of_one.0, huge + of_one.1)
            }
            _ => {}
        }
    }
    (all, huge)
}

/// Tells a thread to end, after a panic too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn huge_pages_change_no_byte_and_no_limit() {
    let (node, is_given) = (node(), is_given());
    let before = local();
    let heap = Heap::builder().local(16 << 20).node(address(&node, Transport::Shm)).build().unwrap();
    // The process has no more by its heap than the heap says, and what tables of the node take.
    let check = |heap: &Heap| {
        let (used, most) = heap.local();
        let (all, huge) = local();
        assert!(all - before.0 <= used / 1024 + 1024 && used <= most, "{all} KiB of {used} of {most} bytes");
        huge - before.1
    };
    let mut small: Vec<FarBox<[u64; 8]>> = Vec::new();
    let mut most_huge = 0;
    for n in 0..300_000u64 {
        small.push(heap.alloc(&[n; 8]).unwrap());
        if n.is_multiple_of(10_000) {
            most_huge = most_huge.max(check(&heap));
        }
    }
    // 16 MiB are eight groups; all is in use by now.
    assert!(!is_given || most_huge >= 7 * 2048, "{most_huge} KiB of huge pages");
    // While the kernel joins a page it has all of it twice. For the last group there was no room.
    assert!(most_huge <= 7 * 2048, "{most_huge} KiB of huge pages");
    let sound = |small: &[FarBox<[u64; 8]>], step: usize| {
        for n in (0..small.len()).step_by(step) {
            assert_eq!(small[n].read().unwrap(), [n as u64; 8]);
        }
    };
    sound(&small, 7);
    // Another class takes segments: their memory is given back, in parts of huge pages.
    let mut large: FarVec<u64> = heap.vec();
    for n in 0..100u64 {
        large.extend_from_slice(&vec![n; 20_000]).unwrap();
        let _ = check(&heap);
    }
    sound(&small, 31);
    assert_eq!(large.read(1_999_999).unwrap(), 99);
    drop(small);
    large.scan(|first, part| assert!(part[0] == (first / 20_000) as u64)).unwrap();
    let _ = check(&heap);
    drop((large, heap));

    // Threads that share a heap use it while a page is joined beneath them.
    let before = local();
    let heap = Heap::builder().local(16 << 20).node(address(&node, Transport::Shm)).build_shared().unwrap();
    let seat = heap.seat().unwrap();
    let first: Vec<SharedBox<[u64; 8]>> = (0..5000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let done = Done(&is_done);
        threads.spawn(|| {
            let seat = heap.seat().unwrap();
            while !is_done.load(Ordering::Relaxed) {
                for part in first.chunks(100) {
                    let scope = seat.scope();
                    part.iter().for_each(|one| {
                        let one = one.get(&scope).unwrap();
                        assert!(one.iter().all(|&word| word == one[0]));
                    });
                }
            }
        });
        let more: Vec<SharedBox<[u64; 8]>> = (0..200_000).map(|n| seat.alloc(&[n; 8]).unwrap()).collect();
        drop(done);
        for n in (0..more.len()).step_by(13) {
            let scope = seat.scope();
            assert_eq!(*more[n].get(&scope).unwrap(), [n as u64; 8]);
        }
    });
    let ((used, most), (all, huge)) = (heap.local(), local());
    let (all, huge) = (all - before.0, huge - before.1);
    assert!(used <= most && all <= used / 1024 + 1024, "{all} KiB of {used} of {most} bytes");
    assert!(huge <= 7 * 2048 && (!is_given || huge >= 5 * 2048), "{huge} KiB of huge pages");
}
