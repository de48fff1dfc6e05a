//! A word table in plain memory, and verbs on it: the reference executor, for
//! tests, simulators and whatever reads a table as a whole.

use super::geometry::{Geometry, HEADER_BYTES, Target};
use super::guard::Words;
use super::owner::{OwnerField, OwnerWord};
use super::place::{Level, Place};
use super::step::{Answer, MAX_READ, Operation, Step, Verb};
use super::word::{Owner, Word};
use super::{hints, owner::Lease};

/// A node's word table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Table {
    geometry: Geometry,
    words: Vec<u64>,
}

impl Table {
    /// As it is when the node starts, the first `whole` giants in one piece. Owners are vacant.
    pub fn new(geometry: Geometry, whole: u32) -> Table {
        let mut table = Table { geometry, words: vec![0; (geometry.table_bytes() / 8) as usize] };
        for (at, bytes) in geometry.header(1).chunks_exact(8).enumerate() {
            table.words[at] = u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
        }
        for level in [Level::Giant, Level::Block] {
            for index in 0..geometry.count(level) {
                let place = Place { level, index };
                table.set(place, geometry.initial(place, whole));
            }
        }
        table
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn at(&self, target: Target) -> usize {
        let offset = self.geometry.offset(target).expect("a target of this geometry");
        debug_assert!(offset >= HEADER_BYTES as u64);
        (offset / 8) as usize
    }

    /// Any word of it.
    pub fn get(&self, target: Target) -> u64 {
        self.words[self.at(target)]
    }

    /// Changes any word of it, and no hints.
    pub fn put(&mut self, target: Target, word: u64) {
        let at = self.at(target);
        self.words[at] = word;
    }

    /// Changes a descriptor word, and the hints after it.
    pub fn set(&mut self, place: Place, word: Word) {
        self.put(Target::Word(place), word.0);
        let geometry = self.geometry;
        hints::follow(&geometry, place, word, |hint, set, clear| {
            let at = self.at(hint);
            self.words[at] = (self.words[at] | set) & !clear;
        });
    }

    /// Changes an owner's lease by one of the steps of [`OwnerWord`]; None if it cannot take it.
    pub fn lease(&mut self, owner: Owner, step: impl FnOnce(OwnerWord) -> Option<OwnerWord>) -> Option<OwnerWord> {
        let word = step(self.owner(owner))?;
        self.put(Target::Owner(owner, OwnerField::Word), word.0);
        Some(word)
    }

    /// Makes an owner live, for tests and simulations.
    pub fn enlist(&mut self, owner: Owner) {
        self.put(Target::Owner(owner, OwnerField::Word), OwnerWord::new(Lease::Live, 0).0);
    }

    /// Carries out a verb, unguarded. The answer may lie in `room`.
    pub fn carry_out<'a>(&mut self, verb: &Verb, room: &'a mut [u64; MAX_READ]) -> Answer<'a> {
        match *verb {
            Verb::Read { at, words } => {
                let from = self.at(at);
                let room = &mut room[..words as usize];
                room.copy_from_slice(&self.words[from..from + words as usize]);
                Answer::Words(room)
            }
            Verb::Cas { at, old, new } => {
                let found = self.get(at);
                if found == old {
                    match at {
                        Target::Word(place) => self.set(place, Word(new)),
                        _ => self.put(at, new),
                    }
                }
                Answer::Found(found)
            }
        }
    }

    /// Runs an operation to its end, alone.
    pub fn run<T>(&mut self, operation: &mut impl Operation<Outcome = T>) -> T {
        let mut posted = std::collections::VecDeque::new();
        let mut room = [0; MAX_READ];
        loop {
            match operation.step() {
                Step::Verb(verb) => posted.push_back(verb),
                Step::Wait => {
                    let verb = posted.pop_front().expect("an operation waits for verbs it has posted");
                    let answer = self.carry_out(&verb, &mut room);
                    operation.complete(answer);
                }
                Step::Drain | Step::Scrub(..) => operation.complete(Answer::Ready),
                Step::Done(outcome) => return outcome,
            }
        }
    }
}

impl Words for Table {
    fn word(&self, place: Place) -> Word {
        Word(self.get(Target::Word(place)))
    }

    fn owner(&self, owner: Owner) -> OwnerWord {
        OwnerWord(self.get(Target::Owner(owner, OwnerField::Word)))
    }
}
