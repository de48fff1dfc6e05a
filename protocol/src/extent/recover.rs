//! Recovery: the units of a dead owner go back, by the words alone.
//!
//! ```text
//!   giants' words ─► words of blocks in open giants ─► words of chunks in open blocks
//!      OWNED(dead)                  → QUARANTINE
//!      SPLITTING(dead), MERGING(dead) → finished (Reshape::finish)
//! ```
//!
//! Recovery begins when the owner's lease is DEAD: none of its verbs is under way. From then on,
//! fewer and fewer words name it, so that one pass from the giants down finds them all. A unit that
//! the pass opens by finishing a change is looked into afterwards. Words inside a unit that is not
//! open need no recovery; they go when that unit is reclaimed.
//!
//! Any number of recoverers may work at once, die and begin again: each CAS
//! succeeds once, and finishing is taken over by one. There is no list of what a
//! host holds other than the words, so nothing has to be found, replayed or
//! believed.

use super::Pipe;
use super::geometry::Geometry;
use super::place::{Level, Place};
use super::reshape::Reshape;
use super::rules::Bug;
use super::search::Area;
use super::step::{Actor, Answer, Failed, Operation, Step};
use super::swap::{Swap, Swapped};
use super::word::{Owner, State, Word};

/// The result of a recovery.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Recovered {
    /// Words read.
    pub scanned: u64,
    /// Units now in quarantine: for the node to reclaim before the owner's slot is vacated.
    pub quarantined: Vec<Place>,
    /// Units whose splitting or merging was ended.
    pub finished: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// READ of `area`.
    Read,
    /// CAS of `swaps`.
    Quarantine,
    /// `finishing` of the first of `half`.
    Finish,
}

/// Recovers what one dead owner left.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recover {
    actor: Actor,
    geometry: Geometry,
    dead: Owner,
    phase: Phase,
    pipe: Pipe,
    /// The area that is looked at now.
    area: Area,
    swaps: Vec<Swap>,
    half: Vec<(Place, Word)>,
    finishing: Option<Box<Reshape>>,
    /// Units to look into: open giants, then open blocks.
    open: Vec<Place>,
    refused: bool,
    sum: Recovered,
}

impl Recover {
    /// By this actor: the node, or any live owner.
    pub fn new(actor: Actor, geometry: Geometry, dead: Owner) -> Recover {
        let mut recover = Recover {
            actor,
            geometry,
            dead,
            phase: Phase::Read,
            pipe: Pipe::default(),
            area: Area::nothing(Level::Giant),
            swaps: Vec::new(),
            half: Vec::new(),
            finishing: None,
            open: Vec::new(),
            refused: false,
            sum: Recovered::default(),
        };
        let giants = vec![Word::ZERO; geometry.count(Level::Giant) as usize];
        recover.read(Area { first: Place::giant(0), words: giants });
        recover
    }

    fn read(&mut self, area: Area) {
        self.phase = Phase::Read;
        self.pipe.fill(area.reads());
        self.area = area;
    }

    /// All answers of a phase are there: the next, or None at the end.
    fn advance(&mut self) -> Option<()> {
        match self.phase {
            Phase::Read => self.judge(),
            Phase::Quarantine if !self.half.is_empty() => {
                self.phase = Phase::Finish;
                let (place, seen) = self.half[0];
                self.finishing = Some(Box::new(Reshape::finish(self.actor, self.geometry, place, seen)));
            }
            Phase::Quarantine | Phase::Finish => {
                let (first, count) = self.geometry.children(self.open.pop()?)?;
                self.read(Area { first, words: vec![Word::ZERO; count as usize] });
            }
        }
        Some(())
    }

    /// Judges the words that were read: which units to give back, to finish, or to look into.
    fn judge(&mut self) {
        self.sum.scanned += self.area.words.len() as u64;
        self.swaps.clear();
        for (at, &word) in self.area.words.iter().enumerate() {
            let place = self.area.first.plus(at as u32);
            let state = word.state();
            if state.is_open() && place.level != Level::Chunk {
                self.open.push(place);
            }
            if !state.is_named() || word.owner() != self.dead {
                continue;
            }
            if state == State::Owned {
                let to = if self.actor.rules.broken(Bug::RecoverToFree) { State::Free } else { State::Quarantine };
                self.swaps.push(Swap::new(place, word, self.actor.plain(word, to)));
            } else if !self.actor.rules.broken(Bug::RecoverSkipsSplitting) {
                self.half.push((place, word));
            }
        }
        self.phase = Phase::Quarantine;
        self.pipe.fill(self.swaps.len());
    }
}

/// Ends with [`Failed::Fenced`] if a verb was refused: the recoverer's own lease has ended, or the
/// owner is not dead (yet).
impl Operation for Recover {
    type Outcome = Result<Recovered, Failed>;

    fn step(&mut self) -> Step<Self::Outcome> {
        loop {
            if self.refused && self.pipe.is_idle() {
                return Step::Done(Err(Failed::Fenced));
            }
            if let Some(finishing) = &mut self.finishing {
                match finishing.step() {
                    Step::Verb(verb) => return Step::Verb(verb),
                    Step::Done(outcome) => {
                        self.refused = outcome.is_err();
                        self.finishing = None;
                        self.half.remove(0);
                        self.sum.finished += 1;
                        self.phase = Phase::Quarantine;
                        continue;
                    }
                    _ => return Step::Wait,
                }
            }
            if let Some(number) = self.pipe.post() {
                return Step::Verb(match self.phase {
                    Phase::Read => self.area.read(number),
                    _ => self.swaps[number].verb(self.actor.rules),
                });
            }
            if !self.pipe.is_idle() {
                return Step::Wait;
            }
            if self.advance().is_none() {
                return Step::Done(Ok(self.sum.clone()));
            }
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        if let Some(finishing) = &mut self.finishing {
            return finishing.complete(answer);
        }
        let Some(number) = self.pipe.answered() else { return };
        match (&self.phase, answer) {
            (_, Answer::Refused) => {
                self.refused = true;
                self.pipe.stop();
            }
            (Phase::Read, Answer::Words(words)) if self.area.fill(number, words) => {}
            (Phase::Read, _) => self.pipe.push(number),
            (_, answer) => match self.swaps[number].answer(answer, self.actor.rules) {
                Ok(Swapped::Again) => self.pipe.push(number),
                Ok(Swapped::Took | Swapped::Moved(_)) => self.sum.quarantined.push(self.swaps[number].place),
                // Another recoverer was faster.
                Ok(Swapped::Failed(_)) => {}
                Err(_) => self.refused = true,
            },
        }
    }
}
