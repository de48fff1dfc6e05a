//! Release: OWNED → QUARANTINE, one CAS, which is also the revocation of the key.
//!
//! The caller's own verbs on the unit should have ended: those that are still
//! under way may or may not take effect, though never on the next owner's bytes.

use super::key::Key;
use super::place::Place;
use super::rules::Bug;
use super::step::{Actor, Answer, Failed, Operation, Step};
use super::swap::{Swap, Swapped};
use super::word::{State, Word};

/// A held unit. A claim ends with it, and a release begins with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// The unit.
    pub place: Place,
    /// Its word since the claim.
    pub word: Word,
}

impl Grant {
    /// The key that a data verb on the unit shows.
    ///
    /// # Panics
    /// If the word is not OWNED: no operation makes such a grant.
    pub const fn key(&self) -> Key {
        Key::of(self.place, self.word).expect("a grant's word is OWNED")
    }
}

/// Gives one unit back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release {
    actor: Actor,
    swap: Swap,
    posted: bool,
    over: Option<Result<(), Failed>>,
}

impl Release {
    /// Of a unit that the actor's owner holds.
    pub fn new(actor: Actor, grant: Grant) -> Release {
        let state = if actor.rules.broken(Bug::ReleaseToFree) { State::Free } else { State::Quarantine };
        let swap = Swap::new(grant.place, grant.word, actor.plain(grant.word, state));
        Release { actor, swap, posted: false, over: None }
    }
}

/// Ends with [`Failed::Lost`] if the unit was not held by that grant any more.
impl Operation for Release {
    type Outcome = Result<(), Failed>;

    fn step(&mut self) -> Step<Result<(), Failed>> {
        match self.over {
            Some(over) => Step::Done(over),
            None if self.posted => Step::Wait,
            None => {
                self.posted = true;
                Step::Verb(self.swap.verb(self.actor.rules))
            }
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        self.posted = false;
        self.over = match self.swap.answer(answer, self.actor.rules) {
            Ok(Swapped::Again) => None,
            Ok(Swapped::Took | Swapped::Moved(_)) => Some(Ok(())),
            Ok(Swapped::Failed(_)) => Some(Err(Failed::Lost)),
            Err(failed) => Some(Err(failed)),
        };
    }
}
