//! One CAS whose outcome is certain in the end, whichever answers are lost.

use super::place::Place;
use super::rules::{Bug, Rules};
use super::step::{Answer, Failed, Verb};
use super::word::Word;

/// A CAS of one descriptor word, repeated while its outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Swap {
    pub place: Place,
    pub old: Word,
    pub new: Word,
    /// An answer was lost: an earlier copy of this CAS may have taken effect, or may still.
    unsure: bool,
}

/// The knowledge after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Swapped {
    /// Still unknown: give [`Swap::verb`] again.
    Again,
    /// The word is, or was for a while, `new`, by us.
    Took,
    /// It never was and never will be: the word is another.
    Failed(Word),
    /// The word is this one. Another party changed it, perhaps after we did. (Only after a lost
    /// answer, and only if `new` names nobody: only we may change a word that names us by owner and
    /// claimant.) The caller must know whether others can have changed `old`, or `new`.
    Moved(Word),
}

impl Swap {
    pub const fn new(place: Place, old: Word, new: Word) -> Swap {
        Swap { place, old, new, unsure: false }
    }

    /// Whether it may have taken effect, or may still, though no answer says so.
    pub const fn is_unsure(&self) -> bool {
        self.unsure
    }

    pub fn verb(&self, rules: Rules) -> Verb {
        if self.unsure && rules.broken(Bug::ReadBack) {
            return Verb::read(self.place, 1);
        }
        Verb::cas(self.place, self.old, self.new)
    }

    pub fn answer(&mut self, answer: Answer<'_>, rules: Rules) -> Result<Swapped, Failed> {
        let found = match answer {
            Answer::Unknown if rules.broken(Bug::AssumeFailed) => return Ok(Swapped::Failed(self.old)),
            Answer::Unknown | Answer::Ready => {
                self.unsure = true;
                return Ok(Swapped::Again);
            }
            Answer::Refused => return Err(Failed::Fenced),
            Answer::OverQuota => return Err(Failed::OverQuota),
            Answer::Found(found) => Word(found),
            // Only where reading back is the seeded bug: the word as it is stands for the outcome.
            Answer::Words(words) => match words.first().map(|&word| Word(word)) {
                Some(word) if word == self.old && self.new.state().is_named() => return Ok(Swapped::Failed(word)),
                Some(word) if word == self.old => {
                    self.unsure = false;
                    return Ok(Swapped::Again);
                }
                Some(word) => word,
                None => return Ok(Swapped::Again),
            },
        };
        Ok(if found == self.old || (self.unsure && found == self.new) {
            Swapped::Took
        } else if self.unsure && !self.new.state().is_named() {
            Swapped::Moved(found)
        } else {
            Swapped::Failed(found)
        })
    }
}
