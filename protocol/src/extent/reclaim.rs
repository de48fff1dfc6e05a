//! QUARANTINE → FREE, by the node: drained, emptied of words, scrubbed.
//!
//! ```text
//!  READ word, parent ─► drain ─► READ children ─► all ABSENT ─► scrub ─► CAS QUARANTINE(g) → FREE(g)
//!                         ▲           │ some are not: they were prepared for a publication that
//!                         └── reset ◄─┘ never came, or by an owner that lies
//! ```
//!
//! *Why the drain comes before the look at the children*: a guarded CAS that made
//! the owner owner of a child may have been admitted while the unit was OWNED and
//! take effect later; after the drain it has. *Why again after a reset*: verbs
//! admitted by a child's word must end too.
//!
//! A scrub is not guarded by words: one that outlived its unit's quarantine would
//! wipe the next owner's bytes. So at a node one scrub is under way at a time, and
//! it begins with a look at the word: of two reclaims of one unit that wait for the
//! same drain, the second then finds it FREE, or another's, and scrubs nothing
//! ([`Step::Scrub`]). A node that restarts begins when its predecessor's process is
//! gone. Everything before the last CAS can be lost and repeated.

use super::Pipe;
use super::geometry::Geometry;
use super::place::Place;
use super::rules::Bug;
use super::search::Area;
use super::step::{Actor, Answer, Failed, Operation, Step, Verb};
use super::swap::{Swap, Swapped};
use super::word::{State, Word};

/// How a reclaim ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reclaimed {
    /// The unit is FREE. (Its hint is the caller's to set.)
    Freed(Word),
    /// The unit is worn and retired.
    Retired,
    /// The unit around it is not open: it goes when that goes, or when that is published.
    NotYet,
    /// It was not in quarantine.
    Nothing(Word),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Look,
    Parent,
    Drain,
    Children,
    Reset,
    Scrub,
    Free,
    Over(Result<Reclaimed, Failed>),
}

/// Makes one unit FREE again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reclaim {
    actor: Actor,
    geometry: Geometry,
    place: Place,
    word: Word,
    phase: Phase,
    pipe: Pipe,
    children: Area,
    swaps: Vec<Swap>,
}

impl Reclaim {
    /// Of this unit, which may or may not be in quarantine.
    pub fn new(actor: Actor, geometry: Geometry, place: Place) -> Reclaim {
        let children = match geometry.children(place) {
            Some((first, count)) => Area { first, words: vec![Word::ZERO; count as usize] },
            None => Area::nothing(place.level),
        };
        let mut pipe = Pipe::default();
        pipe.push(0);
        Reclaim { actor, geometry, place, word: Word::ZERO, phase: Phase::Look, pipe, children, swaps: Vec::new() }
    }

    fn enter(&mut self, phase: Phase, verbs: usize) {
        self.phase = phase;
        self.pipe.fill(verbs);
    }

    fn enter_drain(&mut self) {
        if self.actor.rules.broken(Bug::NoDrain) {
            self.enter_children();
        } else {
            self.phase = Phase::Drain;
        }
    }

    fn enter_children(&mut self) {
        if self.children.words.is_empty() || self.actor.rules.broken(Bug::KeepChildren) {
            self.enter_scrub();
        } else {
            let reads = self.children.reads();
            self.enter(Phase::Children, reads);
        }
    }

    fn enter_scrub(&mut self) {
        if self.actor.rules.broken(Bug::NoScrub) {
            self.enter_free();
        } else {
            self.phase = Phase::Scrub;
        }
    }

    fn enter_free(&mut self) {
        let worn = self.word.generation().is_worn();
        let state = if worn { State::Bad } else { State::Free };
        self.swaps = vec![Swap::new(self.place, self.word, Word::plain(state, self.word.generation()))];
        self.enter(Phase::Free, 1);
    }

    fn verb(&self, number: usize) -> Verb {
        match self.phase {
            Phase::Look => Verb::read(self.place, 1),
            Phase::Parent => Verb::read(self.geometry.parent(self.place).unwrap_or(self.place), 1),
            Phase::Children => self.children.read(number),
            _ => self.swaps[number].verb(self.actor.rules),
        }
    }

    /// All answers of a phase are there.
    fn advance(&mut self) {
        match self.phase {
            Phase::Look => match self.geometry.parent(self.place) {
                Some(_) if !self.actor.rules.broken(Bug::FreeUnderClosed) => self.enter(Phase::Parent, 1),
                _ => self.enter_drain(),
            },
            Phase::Parent => self.enter_drain(),
            Phase::Children => {
                self.swaps.clear();
                for (child, &word) in self.children.words.iter().enumerate() {
                    if !matches!(word.state(), State::Absent | State::Bad) {
                        let place = self.children.first.plus(child as u32);
                        // A worn one is retired: made ABSENT, an owner that lies could take it to
                        // its last generation, where the guard refuses whoever publishes the unit
                        // next.
                        let state = if word.generation().is_worn() { State::Bad } else { State::Absent };
                        self.swaps.push(Swap::new(place, word, self.actor.plain(word, state)));
                    }
                }
                match self.swaps.len() {
                    0 => self.enter_scrub(),
                    resets => self.enter(Phase::Reset, resets),
                }
            }
            Phase::Reset => self.enter_drain(),
            _ => {}
        }
    }

    fn over(&mut self, outcome: Result<Reclaimed, Failed>) {
        self.pipe.stop();
        self.phase = Phase::Over(outcome);
    }
}

impl Operation for Reclaim {
    type Outcome = Result<Reclaimed, Failed>;

    fn step(&mut self) -> Step<Self::Outcome> {
        loop {
            if let Some(number) = self.pipe.post() {
                return Step::Verb(self.verb(number));
            }
            if !self.pipe.is_idle() {
                return Step::Wait;
            }
            match self.phase {
                Phase::Over(outcome) => return Step::Done(outcome),
                Phase::Drain => return Step::Drain,
                Phase::Scrub => return Step::Scrub(self.place, self.word),
                _ => self.advance(),
            }
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        match self.phase {
            Phase::Drain => return self.enter_children(),
            Phase::Scrub => return self.enter_free(),
            _ => {}
        }
        let Some(number) = self.pipe.answered() else { return };
        match (&self.phase, answer) {
            (Phase::Over(_), _) => {}
            (_, Answer::Refused) => self.over(Err(Failed::Fenced)),
            (Phase::Look, Answer::Words(&[word])) => {
                self.word = Word(word);
                if !self.word.is(State::Quarantine) {
                    self.over(Ok(Reclaimed::Nothing(self.word)));
                }
            }
            (Phase::Parent, Answer::Words(&[word])) => {
                if !Word(word).state().is_open() {
                    self.over(Ok(Reclaimed::NotYet));
                }
            }
            (Phase::Children, Answer::Words(words)) => {
                if !self.children.fill(number, words) {
                    self.pipe.push(number);
                }
            }
            (Phase::Reset, answer) => {
                // A child that moved meanwhile is looked at again after the drain.
                if let Ok(Swapped::Again) = self.swaps[number].answer(answer, self.actor.rules) {
                    self.pipe.push(number);
                }
            }
            (Phase::Free, answer) => match self.swaps[0].answer(answer, self.actor.rules) {
                Ok(Swapped::Again) => self.pipe.push(0),
                Ok(Swapped::Took | Swapped::Moved(_)) => match self.swaps[0].new {
                    word if word.is(State::Free) => self.over(Ok(Reclaimed::Freed(word))),
                    _ => self.over(Ok(Reclaimed::Retired)),
                },
                Ok(Swapped::Failed(word)) => self.over(Ok(Reclaimed::Nothing(word))),
                Err(failed) => self.over(Err(failed)),
            },
            // A READ whose answer was lost.
            _ => self.pipe.push(number),
        }
    }
}
