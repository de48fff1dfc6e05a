//! Random test: a merge and a split lose answers while others claim. No claimed unit may be lost,
//! whichever answers are lost or late. (`lab/extents` explores every history of small worlds.)

use super::check::recount;
use super::guard::Words;
use super::place::Level;
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// The fate of a verb, and events before it takes effect.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// It takes effect, and nobody says so.
    Unheard,
    /// It takes effect when the next [`Fate::Late`] comes, or at the end.
    Late,
    Lost,
    /// Another owner claims this child first, if it is free in an open block.
    Claimed(u32),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        4 => Just(Fate::Answered),
        2 => Just(Fate::Unheard),
        2 => Just(Fate::Late),
        1 => Just(Fate::Lost),
        3 => (0u32..4).prop_map(Fate::Claimed),
    ];
    prop::collection::vec(fate, 0..40)
}

struct World {
    table: Table,
    late: VecDeque<Verb>,
    claimed: Vec<(Place, Word)>,
}

impl World {
    fn claim(&mut self, chunk: Place) {
        let (word, block) = (self.table.word(chunk), self.table.word(Place::block(0)));
        let open = matches!(block.state(), State::Shared | State::Splitting | State::Merging);
        if open && word.is(State::Free) {
            let generation = word.generation().next().expect("a young word");
            let owned = Word::new(State::Owned, Owner::new(2), 0, Claimant::new(0), generation);
            self.table.set(chunk, owned);
            self.claimed.push((chunk, owned));
        }
    }

    fn effect(&mut self, verb: &Verb) {
        self.table.carry_out(verb, &mut [0; 64]);
    }

    fn run(&mut self, operation: &mut Reshape, fates: Vec<Fate>) -> Result<Reshaped, Failed> {
        let (mut fates, mut posted, mut room) = (fates.into_iter(), VecDeque::new(), [0; 64]);
        loop {
            match operation.step() {
                Step::Verb(verb) => posted.push_back(verb),
                Step::Wait => {
                    let verb = posted.pop_front().expect("it waits for what it posted");
                    let mut fate = fates.next().unwrap_or(Fate::Answered);
                    while let Fate::Claimed(child) = fate {
                        self.claim(Place::chunk(child));
                        fate = fates.next().unwrap_or(Fate::Answered);
                    }
                    match fate {
                        Fate::Answered => {
                            operation.complete(self.table.carry_out(&verb, &mut room));
                            continue;
                        }
                        Fate::Unheard => self.effect(&verb),
                        Fate::Late => {
                            let earlier = self.late.pop_front();
                            self.late.push_back(verb);
                            earlier.iter().for_each(|verb| self.effect(verb));
                        }
                        Fate::Lost | Fate::Claimed(_) => {}
                    }
                    operation.complete(Answer::Unknown);
                }
                Step::Done(outcome) => return outcome,
                Step::Drain | Step::Scrub(..) => unreachable!("neither drains"),
            }
        }
    }

    /// Nothing is under way any more.
    fn settle(&mut self) {
        while let Some(verb) = self.late.pop_front() {
            self.effect(&verb);
        }
    }

    fn judge(&self, geometry: &Geometry) -> Result<(), TestCaseError> {
        let count = recount(geometry, &self.table);
        prop_assert!(count.problems.is_empty(), "{:?}", count.problems);
        prop_assert_eq!(count.total(), u64::from(geometry.count(Level::Chunk)));
        let block = self.table.word(Place::block(0));
        prop_assert!(matches!(block.state(), State::Free | State::Shared), "{:?} for ever", block);
        for &(chunk, owned) in &self.claimed {
            prop_assert_eq!(self.table.word(chunk), owned);
            prop_assert!(block.is(State::Shared), "{:?} was claimed, and is inside {:?}", chunk, block);
        }
        Ok(())
    }
}

fn world(block: State, chunks: State) -> (Geometry, World) {
    let geometry = Geometry::tiny(2, 4, 1, 2).unwrap();
    let mut table = Table::new(geometry, 0);
    table.enlist(Owner::new(2));
    table.set(Place::block(0), Word::plain(block, Generation(3)));
    for chunk in geometry.chunks(Place::block(0)) {
        table.set(Place::chunk(chunk), Word::plain(chunks, Generation(2)));
    }
    (geometry, World { table, late: VecDeque::new(), claimed: Vec::new() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_merge_takes_nothing_that_was_claimed(fates in fates()) {
        let (geometry, mut world) = world(State::Shared, State::Free);
        let merged = world.run(&mut Reshape::merge(Actor::NODE, geometry, Place::block(0)), fates);
        world.judge(&geometry)?;
        world.settle();
        world.judge(&geometry)?;
        if let Ok(Reshaped::Done(_)) = merged {
            prop_assert!(world.claimed.is_empty());
        }
    }

    #[test]
    fn a_split_gives_nothing_twice(fates in fates()) {
        let (geometry, mut world) = world(State::Free, State::Absent);
        let split = world.run(&mut Reshape::split(Actor::NODE, geometry, Place::block(0)), fates);
        prop_assert!(matches!(split, Ok(Reshaped::Done(_))), "{:?}", split);
        world.judge(&geometry)?;
        world.settle();
        world.judge(&geometry)?;
    }
}
