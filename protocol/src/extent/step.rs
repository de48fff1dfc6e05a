//! How an operation talks to whoever carries out its verbs.
//!
//! An [`Operation`] (a claim, a release, a recovery …) is a small state machine
//! without I/O, clock or randomness. It is asked for its next [`Step`] and told
//! each verb's [`Answer`]:
//!
//! ```text
//!     loop {
//!         match operation.step() {
//!             Step::Verb(verb) => queue.push(verb),            // post; ask again at once
//!             Step::Wait => operation.complete(answer),        // of the oldest verb posted, at least one
//!             Step::Drain | Step::Scrub(..) => {               // only of operations that the node runs
//!                 …;
//!                 operation.complete(Answer::Ready)
//!             }
//!             Step::Done(outcome) => break outcome,
//!         }
//!     }
//! ```
//!
//! * Verbs go to one queue pair and take effect in the order they were given;
//!   their answers are told in that order.
//! * `Wait` comes only when verbs are outstanding; all but the last that were
//!   given before it may travel in one batch with one doorbell.
//! * A verb whose answer was lost is answered [`Answer::Unknown`]: it may have
//!   taken effect, may do so *later*, or never. Nothing more is assumed of the
//!   transport. An operation then gives the same CAS again: see [`Answer::Unknown`].
//! * Dropping an operation half-way is a crash of its owner, as far as the words
//!   are concerned. It is harmless to others, and recovery mends it.
//!
//! The same code runs over queue pairs, over the simulator, in the enumeration of
//! all interleavings, and by the node over its own memory.

use super::geometry::Target;
use super::place::Place;
use super::rules::{Bug, Rules};
use super::word::{Claimant, Owner, State, Word};

/// Words that one READ of an operation asks for, at most: one line.
pub const MAX_READ: usize = super::geometry::LINE as usize;
/// Verbs that an operation has outstanding, at most.
pub const MAX_OUTSTANDING: usize = 64;

/// A verb on the word table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// READ of consecutive words. Each is read atomically, all of them not.
    Read {
        /// The first.
        at: Target,
        /// How many, at most [`MAX_READ`].
        words: u16,
    },
    /// CAS of one word.
    Cas {
        /// Which.
        at: Target,
        /// The expected word.
        old: u64,
        /// The new word.
        new: u64,
    },
}

impl Verb {
    /// A CAS of a descriptor word.
    pub const fn cas(place: Place, old: Word, new: Word) -> Verb {
        Verb::Cas { at: Target::Word(place), old: old.0, new: new.0 }
    }

    /// A READ of descriptor words from `place` on.
    pub const fn read(place: Place, words: u16) -> Verb {
        Verb::Read { at: Target::Word(place), words }
    }
}

/// The outcome of a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// A READ's words.
    Words(&'a [u64]),
    /// The word that a CAS found. It succeeded if that is the expected one.
    Found(u64),
    /// Unknown: the connection broke. Repeating the very same CAS settles it, even when the first
    /// is still on its way. Whichever of the two comes first succeeds, and the other finds the new
    /// word and fails. If another's word is found, neither can succeed any more. (Reading the word
    /// back does not settle it: the first may take effect after the READ.)
    Unknown,
    /// Refused: the owner is fenced, or the guard denies it. Nothing changed.
    Refused,
    /// Refused: it would take the owner beyond its quota. Nothing changed.
    OverQuota,
    /// The [`Step::Drain`] or [`Step::Scrub`] that was asked for has ended.
    Ready,
}

/// Anything that goes by steps.
pub trait Operation {
    /// How it ends.
    type Outcome;

    /// The next thing to do.
    fn step(&mut self) -> Step<Self::Outcome>;

    /// Takes in the answer to the oldest open verb, or the end of the drain or scrub.
    fn complete(&mut self, answer: Answer<'_>);
}

/// A request of an operation to its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<T> {
    /// Post this verb, and ask again.
    Verb(Verb),
    /// Tell at least one answer, then ask again.
    Wait,
    /// (Node) Wait until every verb, of data or words, that was admitted before now has ended; then
    /// answer [`Answer::Ready`].
    Drain,
    /// (Node) Zero the unit's bytes if its word still is this one, then answer [`Answer::Ready`].
    /// If it is not, leave the bytes: they are another's. The driver ensures that nothing else
    /// makes the unit FREE between the look and the end.
    Scrub(Place, Word),
    /// It is over.
    Done(T),
}

impl<T> Step<T> {
    /// The same, ending with something else.
    pub fn map<U>(self, ends: impl FnOnce(T) -> U) -> Step<U> {
        match self {
            Step::Verb(verb) => Step::Verb(verb),
            Step::Wait => Step::Wait,
            Step::Drain => Step::Drain,
            Step::Scrub(place, word) => Step::Scrub(place, word),
            Step::Done(outcome) => Step::Done(ends(outcome)),
        }
    }
}

/// Why an operation ended without what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Failed {
    /// A verb was refused: the lease has ended. Give up everything that was held, and register
    /// again.
    #[error("the lease at this node has ended: what it held is lost; register anew")]
    Fenced,
    /// The owner holds as much as it may. Give something back first.
    #[error("the quota at this node is used up: give something back first")]
    OverQuota,
    /// Nothing of that size was found in this search. Free something, ask another node, or wait for
    /// the node to drain and merge.
    #[error("no free memory of this size was found at the node")]
    NoSpace,
    /// Others were faster, too many times. Try again later.
    #[error("too much contention: try again later")]
    Contended,
    /// The unit is not in the state that the caller believed: it was given back already, or this
    /// owner was recovered meanwhile. Nothing changed.
    #[error("the unit is not what the caller believed it to be: it has been given back already")]
    Lost,
}

/// The acting party: an owner and one of its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Actor {
    /// In whose name.
    pub owner: Owner,
    /// By which of its queue pairs.
    pub claimant: Claimant,
    /// The rules it keeps.
    pub rules: Rules,
}

impl Actor {
    /// The node.
    pub const NODE: Actor = Actor::new(Owner::NODE, Claimant::new(0));

    /// This owner's queue pair.
    pub const fn new(owner: Owner, claimant: Claimant) -> Actor {
        Actor { owner, claimant, rules: Rules::SOUND }
    }

    /// The word after `old` in a state that names the actor. `old` must not be worn.
    pub(crate) fn named(&self, old: Word, state: State, order: u8) -> Word {
        Word::new(state, self.owner, order, self.claimant, self.bumped(old))
    }

    /// The word after `old` in a state that names nobody.
    pub(crate) fn plain(&self, old: Word, state: State) -> Word {
        Word::plain(state, self.bumped(old))
    }

    fn bumped(&self, old: Word) -> super::word::Generation {
        if self.rules.broken(Bug::SkipGeneration) {
            return old.generation();
        }
        // Operations start nothing on worn units, and end within the reserve of 255.
        old.generation().next().unwrap_or(old.generation())
    }
}
