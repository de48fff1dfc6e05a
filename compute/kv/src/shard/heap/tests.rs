use super::*;
use crate::layout::{block_class, class_of};

#[test]
fn a_place_is_free_again_after_its_grace() {
    let mut heap = Heap::default();
    assert!(heap.take(0, 1).is_none());
    heap.add(1 << 20, 4096, 0);
    let all: Vec<Held> = std::iter::from_fn(|| heap.take(0, 1)).collect();
    assert_eq!(all.len(), 63);
    heap.linked(all[5].at, 7, 0, 8);
    assert_eq!(heap.linked_from(0, 9), (vec![Linked { at: all[5].at, hash: 7, slot: 8 }], None));
    heap.retire(all[5].at, 10);
    heap.retire(all[5].at, 10);
    heap.reap(12);
    assert_eq!((heap.take(0, 1), heap.sizes().retired), (None, 64));
    heap.reap(13);
    assert_eq!(heap.take(0, 1), Some(Held { version: 13, uses: 2, ..all[5] }));
    assert!(heap.spare().is_none());
}

#[test]
fn a_place_that_is_retired_early_is_not_lost() {
    let mut heap = Heap::default();
    heap.add(1 << 20, 4096, 0);
    let held = heap.take(0, 1).unwrap();
    heap.retire(held.at, 10);
    heap.linked(held.at, 7, 0, 8);
    assert!(heap.linked_from(0, 9).0.is_empty());
    heap.reap(13);
    assert_eq!(heap.take(0, 1), Some(Held { version: 13, uses: 2, ..held }));
}

#[test]
fn objects_that_have_ended_are_found_by_their_pieces() {
    let mut heap = Heap::default();
    (1..40).for_each(|n| heap.add(n << 20, 4096, 0));
    let held: Vec<Held> = std::iter::from_fn(|| heap.take(0, 1)).collect();
    // Most never end, and some do at 100, 101, …
    for (n, held) in held.iter().enumerate() {
        let ends = if n % 50 == 0 { second(Some(99_001 + n as u64 / 50 * 1000)) } else { 0 };
        heap.linked(held.at, n as u64, ends, 8);
    }
    assert!(heap.ended(99, 1000).is_empty());
    let mut found = heap.ended(102, 1000);
    found.sort_unstable_by_key(|&(_, hash)| hash);
    assert_eq!(found, [(held[0].at, 0), (held[50].at, 50), (held[100].at, 100)]);
    // Those that were not taken out are found again, and others are not.
    heap.retire(held[50].at, 1);
    assert_eq!(heap.ended(102, 1000).len(), 2);
    for n in [0, 100] {
        heap.retire(held[n].at, 1);
    }
    assert!(heap.ended(102, 1000).is_empty());
    assert!(heap.ended(u32::MAX, 5).len() < 7);
    // A place that is used again for the same key has another object.
    assert!(!heap.has_ended(held[150].at, 150, 102) && heap.has_ended(held[150].at, 150, 103));
    heap.retire(held[150].at, 1);
    heap.reap(1 + GRACE);
    let again = std::iter::from_fn(|| heap.take(0, 1)).find(|again| again.at == held[150].at);
    heap.linked(again.expect("it is free").at, 150, 0, 8);
    assert!(!heap.has_ended(held[150].at, 150, u32::MAX));
    assert_eq!((second(None), second(Some(0)), second(Some(1000)), second(Some(u64::MAX))), (0, 1, 1, u32::MAX));
}

#[test]
fn an_unused_large_piece_is_spare() {
    let mut heap = Heap::default();
    assert_eq!(heap.piece_for(LARGE, 100 << 10), 128 << 10);
    heap.add(1 << 20, 128 << 10, LARGE);
    let held = heap.take(LARGE, 100 << 10).unwrap();
    heap.give_back(held.at);
    assert_eq!(heap.spare(), Some((1 << 20, 128 << 10)));
    assert_eq!((heap.take(LARGE, 100 << 10), heap.sizes().all), (None, 0));
}

#[test]
fn free_bytes_are_those_of_free_places() {
    let mut heap = Heap::default();
    assert!(heap.some_linked(7, 8).is_empty());
    (1..4).for_each(|n| heap.add(n << 20, 4096, 0));
    assert_eq!(heap.sizes().free, 3 * 63 * 64);
    let held: Vec<Held> = std::iter::from_fn(|| heap.take(0, 1)).collect();
    assert_eq!(heap.sizes().free, 0);
    assert!(heap.some_linked(7, 8).is_empty());
    for held in &held[..100] {
        heap.linked(held.at, 7 << 32, 0, 8);
    }
    for random in 0..50 {
        let some = heap.some_linked(random, 8);
        assert!(!some.is_empty() && some.len() <= 8);
        assert!(some.iter().all(|slot| held[..100].iter().any(|held| held.at == slot.at(0))), "{some:?}");
    }
    heap.give_back(held[150].at);
    heap.retire(held[3].at, 1);
    assert_eq!((heap.sizes().free, heap.sizes().retired, heap.sizes().reaped), (64, 64, 0));
    heap.reap(1 + GRACE);
    assert_eq!((heap.sizes().free, heap.sizes().retired, heap.sizes().reaped), (128, 0, 64));
    heap.add(9 << 20, 1 << 20, LARGE);
    assert_eq!(heap.sizes().free, 128 + (1 << 20));
    assert!(heap.spare().is_some());
    assert_eq!(heap.sizes().free, 128);
}

#[test]
fn a_closed_piece_is_not_filled_and_goes_when_it_is_empty() {
    let mut heap = Heap::default();
    heap.add(1 << 20, 4096, 0);
    let held: Vec<Held> = (0..3).filter_map(|_| heap.take(0, 1)).collect();
    held.iter().for_each(|held| heap.linked(held.at, 7, 0, 8));
    let free = heap.sizes().free;
    let candidates = heap.candidates(5);
    assert_eq!((candidates.len(), candidates[0].at, candidates[0].some.len()), (1, 1 << 20, 3));
    assert_eq!((heap.close(1 << 20), heap.closing_bytes()), (true, 4096));
    assert_eq!((heap.close(1 << 20), heap.sizes().free, heap.take(0, 1)), (false, 0, None));
    assert!(heap.candidates(5).is_empty());
    assert_eq!(heap.linked_of(1 << 20).len(), 3);
    heap.reopen(1 << 20);
    assert_eq!((heap.closing_bytes(), heap.sizes().free), (0, free));
    let more = heap.take(0, 1).expect("its places are back");
    assert!(!heap.close(1 << 20) && heap.candidates(5).is_empty(), "an operation under way has a place");
    heap.give_back(more.at);
    assert!(heap.close(1 << 20));
    for held in &held {
        heap.retire(held.at, 1);
    }
    assert_eq!(heap.spare(), None);
    heap.reap(1 + GRACE);
    assert_eq!(
        (heap.spare(), heap.closing_bytes(), heap.sizes().free, heap.sizes().all),
        (Some((1 << 20, 4096)), 0, 0, 0)
    );
}

#[test]
fn blocks_share_pieces_that_soon_are_large_and_keep_one() {
    let (mut heap, bytes) = (Heap::default(), (64 << 10) + 100);
    let class = block_class(bytes).expect("a block's");
    assert!(is_for_blocks(class) && class_bytes(class) < 68 << 10);
    let (mut at, mut places) = (2 << 20, Vec::new());
    while heap.sizes().all < 64 << 20 {
        heap.add(at, heap.piece_for(class, bytes), class);
        at += 2 << 20;
        places.extend(std::iter::from_fn(|| heap.take(class, bytes)));
    }
    let used = places.len() as u64 * (64 << 10);
    assert!(used * 100 > heap.sizes().all * 94, "{used} of {}", heap.sizes().all);
    assert!(heap.spare().is_none());
    places.drain(..).for_each(|held| heap.give_back(held.at));
    while heap.spare().is_some() {}
    assert!((1..=2 << 20).contains(&heap.sizes().all), "{}", heap.sizes().all);
    // A whole block fills seven eighths of its place. Sizes between have parts.
    for len in (1..300).map(|n| n << 10) {
        if let Some(class) = block_class(len).filter(|&class| is_for_blocks(class)) {
            assert!((7 * class_bytes(class)..=8 * class_bytes(class)).contains(&(8 * len.next_multiple_of(64))));
        }
    }
    assert!(block_class(200 << 10).is_none() && block_class(1000) == Some(class_of(1000)));
}
