//! Claims beside other claims, beside the end of an owner, and beside what is worn.

use super::*;
use crate::lending::NoSlab;
use farmem_protocol::extent::word::Generation;

/// All open blocks are taken, and a thread of the node splits the last giant. Who wants a slab meanwhile must not
/// find everything lent.
#[test]
fn who_comes_while_a_giant_is_split_is_not_refused() {
    let (units, lease) = units();
    let open = (0..).map_while(|_| units.words.claim_neighbours(lease.owner()));
    assert_eq!(open.count(), 16);
    let giant = whole_giant(&units);
    let free = units.words.word(giant);
    std::thread::scope(|scope| {
        let mut splits = units.splits.lock();
        units.words.swap(giant, free, Word::plain(State::Merging, free.generation()));
        let claims = scope.spawn(|| (units.claim_slab(lease.owner()).is_ok(), units.claim_block(&lease, true).is_ok()));
        // Long enough for it to look.
        std::thread::sleep(std::time::Duration::from_millis(20));
        units.words.swap(giant, units.words.word(giant), free);
        units.split(giant);
        *splits += 1;
        drop(splits);
        assert_eq!(claims.join().unwrap(), (true, true));
    });
}

/// A giant that must not be split any more is passed over.
#[test]
fn a_worn_giant_is_no_memory() {
    let (units, lease) = units();
    let giant = whole_giant(&units);
    units.words.swap(giant, units.words.word(giant), Word::plain(State::Free, Generation::WORN));
    let claimed = (0..).map_while(|_| units.claim_slab(lease.owner()).ok()).count();
    assert_eq!(claimed, 16);
    assert_eq!(units.claim_block(&lease, true), Err(NoSlab::Exhausted));
}

/// What a member gives back counts to it until the word says that it has it no more. Else another of its queue
/// pairs could claim beyond the quota, and this one may yet find that a third was faster.
#[test]
fn what_is_given_back_counts_until_the_word_has_changed() {
    let (units, who) = units();
    let blocks = (0..units.geometry().count(Level::Block)).map(Place::block);
    let block = blocks.into_iter().find(|&block| units.words.word(block).is(State::Free)).unwrap();
    becomes(&units, &who, block, State::Owned);
    std::thread::scope(|scope| {
        // Who counts waits for this lock, in the midst of it.
        let tenants = units.tenants.lock();
        let gives = scope.spawn(|| becomes(&units, &who, block, State::Quarantine));
        let begun = std::time::Instant::now();
        while units.words.word(block).is_held_by(who.owner()) && begun.elapsed().as_secs() < 10 {
            let held = who.held();
            assert!(held == BLOCK_BYTES || !units.words.word(block).is_held_by(who.owner()), "{held}");
        }
        drop(tenants);
        gives.join().unwrap();
    });
    assert_eq!(who.held(), 0);
    keep_all(&units);
}

/// An owner ends while its first claim is under way. What it claims is found, and taken back.
#[test]
fn a_first_claim_beside_its_owners_end_is_taken_back() {
    let (units, who) = units();
    let block = (0..units.geometry().count(Level::Block)).map(Place::block);
    let block = block.into_iter().find(|&block| units.words.word(block).is(State::Free)).unwrap();
    let (epochs, tenants) = (Epochs::default(), units.tenants.lock());
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| {
            let _section = epochs.enter(0);
            becomes(&units, &who, block, State::Owned)
        });
        // It has been admitted, and waits for the lock in order to be counted.
        while who.held() == 0 {
            std::thread::yield_now();
        }
        who.end();
        drop(tenants);
        claims.join().unwrap();
    });
    assert!(units.words.word(block).is_held_by(who.owner()));
    while units.is_unkept() {
        units.keep(&epochs, &|| 0);
    }
    assert!(!units.words.word(block).is_held_by(who.owner()), "{:?}", units.words.word(block));
}
