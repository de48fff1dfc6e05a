//! Claims of runs of chunks out of a shared block, up to all of its lines.

use super::geometry::{Hint, Target};
use super::guard::Words;
use super::*;
use std::collections::VecDeque;

fn claimer(geometry: Geometry) -> Claimer {
    Claimer::new(Actor::new(Owner::new(1), Claimant::new(0)), geometry)
}

/// Runs a claim; with the CAS that it took.
fn count(table: &mut Table, claimer: &mut Claimer) -> (Result<Vec<Grant>, Failed>, u32) {
    let (mut posted, mut room, mut cas) = (VecDeque::new(), [0; 64], 0);
    loop {
        match claimer.step() {
            Step::Verb(verb) => {
                cas += u32::from(matches!(verb, Verb::Cas { .. }));
                posted.push_back(verb);
            }
            Step::Wait => {
                let verb = posted.pop_front().expect("it waits for what it posted");
                claimer.complete(table.carry_out(&verb, &mut room));
            }
            Step::Done(outcome) => return (outcome, cas),
            Step::Drain | Step::Scrub(..) => unreachable!("a claim drains nothing"),
        }
    }
}

/// A shared block of 512 chunks, free but for these.
fn shared(taken: &[u32]) -> (Geometry, Table, Place) {
    let geometry = Geometry::with_owners(700, 4).unwrap();
    let (mut table, block) = (Table::new(geometry, 0), Place::block(333));
    table.set(block, Word::plain(State::Shared, Generation(4)));
    let (first, count) = geometry.children(block).unwrap();
    for child in 0..count {
        let free = Word::plain(State::Free, Generation(1));
        let others = Word::new(State::Owned, Owner::new(2), 0, Claimant::default(), Generation(1));
        table.set(first.plus(child), if taken.contains(&child) { others } else { free });
    }
    (geometry, table, first)
}

/// Runs of several lines: where they are free, by as many CAS as they have chunks, and not beyond
/// one that is taken.
#[test]
fn long_runs_of_chunks_are_claimed_whole() {
    for hinted in [true, false] {
        let (geometry, mut table, first) = shared(&[3, 300]);
        if !hinted {
            let lines = geometry.lines(Level::Chunk);
            (0..lines).for_each(|line| table.put(Target::Hint { about: Hint::FreeChunks, line }, 0));
        }
        let mut claimer = claimer(geometry);
        for (length, places) in [(256, vec![]), (128, vec![128, 384]), (64, vec![64, 320]), (64, vec![])] {
            let mut found = Vec::new();
            for _ in 0..places.len() {
                // Words that a smaller claim has not looked at are no place for a run.
                claimer.begin(Want::one(Level::Chunk));
                let one = count(&mut table, &mut claimer).0.unwrap()[0];
                table.set(one.place, Word::plain(State::Free, Generation(9)));
                claimer.begin(Want::run(&geometry, Level::Chunk, length).unwrap());
                let (granted, cas) = count(&mut table, &mut claimer);
                let granted = granted.unwrap();
                assert_eq!((granted.len(), cas), (length as usize, length));
                let neighbours = granted.iter().enumerate().all(|(n, g)| g.place == granted[0].place.plus(n as u32));
                assert!(neighbours, "{granted:?}");
                found.push(granted[0].place.index - first.index);
            }
            found.sort_unstable();
            assert_eq!(found, places, "runs of {length}");
            if places.is_empty() {
                claimer.begin(Want::run(&geometry, Level::Chunk, length).unwrap());
                let (outcome, cas) = count(&mut table, &mut claimer);
                assert_eq!((outcome, cas), (Err(Failed::NoSpace), 0), "runs of {length}");
            }
        }
    }
}

/// Another client takes a chunk between the look and the CAS. If it is the run's first, that costs
/// one CAS. If it is another, the chunks taken so far go back, whichever answers were lost, and no
/// more verbs are posted than were under way.
#[test]
fn a_run_that_meets_another_gives_everything_back() {
    for (theirs, lost) in [(0, None), (200, None), (200, Some(7)), (70, Some(69))] {
        let (geometry, mut table, first) = shared(&[]);
        let mut claimer = claimer(geometry);
        claimer.begin(Want::run(&geometry, Level::Chunk, 512).unwrap());
        let (mut verbs, mut room, mut cas, mut claims) = (VecDeque::new(), [0; 64], 0, 0);
        let outcome = loop {
            match claimer.step() {
                Step::Verb(verb) => {
                    if let Verb::Cas { new, .. } = verb {
                        claims += u32::from(Word(new).is(State::Owned));
                        if claims == 1 {
                            let word = Word::new(State::Owned, Owner::new(2), 0, Claimant::default(), Generation(2));
                            table.set(first.plus(theirs), word);
                        }
                    }
                    verbs.push_back(verb);
                }
                Step::Wait => {
                    let verb = verbs.pop_front().unwrap();
                    if let Verb::Cas { .. } = verb {
                        cas += 1;
                        if lost == Some(cas) {
                            // It took effect, and nobody says so.
                            table.carry_out(&verb, &mut room);
                            claimer.complete(Answer::Unknown);
                            continue;
                        }
                    }
                    claimer.complete(table.carry_out(&verb, &mut room));
                }
                Step::Done(outcome) => break outcome,
                _ => unreachable!(),
            }
        };
        assert_eq!(outcome, Err(Failed::Contended));
        if theirs == 0 {
            assert_eq!(cas, 1, "nothing to give back");
        }
        assert!(claims <= theirs + 64 + 1, "{claims} posted, though the {theirs}th failed");
        let mine = |word: Word| word.is(State::Owned) && word.owner() == Owner::new(1);
        let left = (0..512).filter(|&child| mine(table.word(first.plus(child)))).count();
        assert_eq!(left, 0, "{theirs} {lost:?}: ours, and nobody knows");
    }
}
