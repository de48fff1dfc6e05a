//! Tests of words near the end of their generations: no value comes back, and worn words of one
//! owner do not stop another owner's operations.

use super::guard::{Words, permits};
use super::*;
use std::collections::{HashSet, VecDeque};

/// One block of two chunks in an open giant. Its first chunk has been through `generation`
/// transitions.
fn table(block: State, chunk: State, generation: u32) -> (Geometry, Table) {
    let geometry = Geometry::tiny(1, 4, 0, 1).unwrap();
    let mut table = Table::new(geometry, 0);
    (1..4).for_each(|owner| table.enlist(Owner::new(owner)));
    table.set(Place::block(0), Word::plain(block, Generation(7)));
    table.set(Place::chunk(0), Word::plain(chunk, Generation(generation)));
    table.set(Place::chunk(1), Word::plain(chunk, Generation(1)));
    (geometry, table)
}

fn actor(owner: u16) -> Actor {
    Actor::new(Owner::new(owner), Claimant::new(0))
}

/// Runs an operation of an owner whom the guard watches.
fn guarded<O: Operation>(table: &mut Table, who: Owner, operation: &mut O) -> O::Outcome {
    let (mut posted, mut room) = (VecDeque::new(), [0; 64]);
    loop {
        match operation.step() {
            Step::Verb(verb) => posted.push_back(verb),
            Step::Wait => {
                let verb = posted.pop_front().expect("it waits for what it posted");
                if let Verb::Cas { at: Target::Word(place), old, new } = verb
                    && table.word(place) == Word(old)
                    && permits(&table.geometry().clone(), place, Word(old), Word(new), who, table).is_err()
                {
                    operation.complete(Answer::Refused);
                    continue;
                }
                operation.complete(table.carry_out(&verb, &mut room));
            }
            Step::Done(outcome) => return outcome,
            Step::Drain | Step::Scrub(..) => unreachable!("only the node drains"),
        }
    }
}

/// The node puts a block together and takes it apart for as long as it likes.
#[test]
fn a_worn_chunk_of_a_block_that_is_merged_and_split_never_looks_as_it_did() {
    for start in [Generation::WORN.0 - 3, Generation::WORN.0 - 2, Generation::WORN.0 + 1, u32::MAX - 2] {
        let (geometry, mut table) = table(State::Shared, State::Free, start);
        let (chunk, block) = (Place::chunk(0), Place::block(0));
        let mut seen = HashSet::from([table.word(chunk)]);
        let mut last = table.word(chunk);
        for round in 0..400 {
            let mut reshape = match table.word(block).state() {
                State::Shared => Reshape::merge(Actor::NODE, geometry, block),
                _ => Reshape::split(Actor::NODE, geometry, block),
            };
            table.run(&mut reshape).unwrap();
            let word = table.word(chunk);
            assert!(word == last || seen.insert(word), "from {start}, round {round}: {word:?} once more");
            last = word;
        }
        assert!(check::recount(&geometry, &table).problems.is_empty());
    }
}

/// An owner claims a block many times, makes itself owner of a chunk in it, and gives the block
/// back. Others must be able to publish, split and claim what it leaves.
#[test]
fn a_chunk_that_a_liar_wears_out_is_retired_and_stops_nobody() {
    for start in [Generation::WORN.0 - 4, Generation::WORN.0 - 3, Generation::WORN.0 + 200] {
        let (geometry, mut table) = table(State::Free, State::Absent, start);
        let (chunk, block) = (Place::chunk(0), Place::block(0));
        for _ in 0..300 {
            let mut claimer = Claimer::new(actor(1), geometry);
            claimer.begin(Want::one(Level::Block));
            let grant = guarded(&mut table, Owner::new(1), &mut claimer).unwrap()[0];
            let word = table.word(chunk);
            if let Some(next) = word.generation().next() {
                let mine = Word::new(State::Owned, Owner::new(1), 0, Claimant::new(0), next);
                if permits(&geometry, chunk, word, mine, Owner::new(1), &table).is_ok() {
                    table.set(chunk, mine);
                }
            }
            guarded(&mut table, Owner::new(1), &mut Release::new(actor(1), grant)).unwrap();
            table.run(&mut Reclaim::new(Actor::NODE, geometry, block)).unwrap();
            let count = check::recount(&geometry, &table);
            assert!(count.problems.is_empty(), "{:?}", count.problems);
            assert_eq!(count.total(), 2);
        }
        assert!(table.word(block).is(State::Free));
        // Another publishes the block, and gives back what it has of it.
        let mut claimer = Claimer::new(actor(2), geometry);
        claimer.begin(Want::one(Level::Block));
        let grant = guarded(&mut table, Owner::new(2), &mut claimer).unwrap()[0];
        let mut publish = Reshape::publish(actor(2), geometry, grant, [0b10, 0, 0, 0, 0, 0, 0, 0]);
        let published = guarded(&mut table, Owner::new(2), &mut publish);
        let Ok(Reshaped::Done(kept)) = published else { panic!("from {start}: {published:?}") };
        assert_eq!(kept.iter().map(|grant| grant.place).collect::<Vec<_>>(), [Place::chunk(1)]);
        for chunk in 0..2 {
            table.run(&mut Reclaim::new(Actor::NODE, geometry, Place::chunk(chunk))).unwrap();
        }
        assert!(check::recount(&geometry, &table).problems.is_empty());
    }
}

/// The same, and the other splits the block.
#[test]
fn a_block_with_a_worn_chunk_can_be_split() {
    for start in [Generation::WORN.0 - 4, Generation::WORN.0 - 3, Generation::WORN.0 + 200, u32::MAX - 1] {
        let (geometry, mut table) = table(State::Free, State::Absent, start);
        let split = guarded(&mut table, Owner::new(2), &mut Reshape::split(actor(2), geometry, Place::block(0)));
        assert!(matches!(split, Ok(Reshaped::Done(_))), "from {start}: {split:?}");
        let mut claimer = Claimer::new(actor(2), geometry);
        claimer.begin(Want::one(Level::Chunk));
        assert!(guarded(&mut table, Owner::new(2), &mut claimer).is_ok());
    }
}
