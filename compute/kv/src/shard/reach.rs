//! How a front end reaches one shard: where it lies, and what it needs to know for any verb.

use crate::layout::{At, Kind, Member, Owner, Slot};
use crate::rules::{Bug, Rules};
use crate::shard::copies::{Copies, Mode, Words};
use crate::shard::{Counters, Trouble};
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One front end's way to one shard. Every part of [`crate::shard::Shard`] uses it.
#[derive(Debug)]
pub struct Reach {
    /// The number of the shard's node in the region.
    pub node: u8,
    /// The root piece.
    pub root: At,
    /// Tells headers of the shard's pieces from data.
    pub secret: u64,
    /// The rules of the protocol that are kept. Tests break some on purpose.
    pub rules: Cell<Rules>,
    /// This front end.
    pub me: Member,
    /// By which nodes tell this process from others.
    pub tag: u32,
    /// Whether this front end was found to be taken for dead.
    pub shut_out: Cell<bool>,
    /// The nodes that have the shard.
    pub copies: Copies,
    /// Their addresses, the first one's and the other's.
    pub nodes: RefCell<[String; 2]>,
    /// Counters.
    pub counters: Counters,
    /// Slots that this front end has emptied, from a random number on.
    pub emptied: Cell<u32>,
}

impl Reach {
    pub(crate) async fn verbs(&self, io: &Io, verbs: Vec<Verb>) -> Vec<Answer> {
        self.words(io, Words::Index, verbs).await
    }

    /// [`Reach::verbs`] whose CASes change words of this kind.
    pub(crate) async fn words(&self, io: &Io, words: Words, verbs: Vec<Verb>) -> Vec<Answer> {
        self.counters.trips.set(self.counters.trips.get() + 1);
        self.counters.verbs.set(self.counters.verbs.get() + verbs.len() as u64);
        match self.copies.mode() {
            Mode::Single => io.verbs(verbs).await,
            _ => Box::pin(self.copies.verbs(io, self.rules.get(), words, verbs)).await,
        }
    }

    /// What a slot becomes that this front end empties.
    pub(crate) fn empty(&self) -> Slot {
        if self.rules.get().broken(Bug::EmptyAlike) {
            return Slot(0);
        }
        let count = self.emptied.get().wrapping_add(1);
        self.emptied.set(count);
        Slot::emptied(self.me.line, count)
    }

    pub(crate) async fn read(&self, io: &Io, at: At, len: u32) -> Vec<u8> {
        match self.verbs(io, vec![Verb::Read { at, len }]).await.pop() {
            Some(Answer::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        }
    }

    /// [`Reach::read`] of an object to which a decision may refer that does not show yet.
    pub(crate) async fn read_decided(&self, io: &Io, at: At, len: u32) -> Vec<u8> {
        if !self.rules.get().broken(Bug::AdoptShown)
            && let Some(bytes) = self.copies.decided(io, at, len).await
        {
            return bytes;
        }
        self.read(io, at, len).await
    }

    /// Carries out a CAS. Returns the word that it found, if that was not `old`.
    pub(crate) async fn swap(&self, io: &Io, at: At, old: u64, new: u64) -> Result<Result<(), u64>, Trouble> {
        let answer = self.verbs(io, vec![Verb::Cas { at, old, new }]).await.pop();
        self.settle(io, at, old, new, answer.unwrap_or(Answer::Unknown)).await
    }

    /// Changes the owner of a piece; whether it was the one expected.
    pub(crate) async fn take_over(&self, io: &Io, piece: At, old: u64, new: u64) -> bool {
        loop {
            match self.words(io, Words::Owners, vec![Verb::Cas { at: piece, old, new }]).await.pop() {
                // Only this front end writes its own name.
                Some(Answer::Word(found)) => return found == old || found == new,
                _ if self.shut_out.get() => return false,
                _ => {}
            }
        }
    }

    /// The outcome of a CAS. One whose answer was lost is given again until it is answered: either
    /// copy succeeds once, and the other finds `new`.
    pub(crate) async fn settle(
        &self,
        io: &Io,
        at: At,
        old: u64,
        new: u64,
        answer: Answer,
    ) -> Result<Result<(), u64>, Trouble> {
        let mut answer = answer;
        let mut lost = false;
        loop {
            match answer {
                Answer::Word(found) if found == old => return Ok(Ok(())),
                // A slot's new value is this operation's alone, also one that is emptied. Not so a 0.
                Answer::Word(found) if lost && found == new && new != 0 => return Ok(Ok(())),
                Answer::Word(_) if lost => return Err(Trouble::Unsettled),
                Answer::Word(found) => return Ok(Err(found)),
                _ => {
                    lost = true;
                    let again = vec![Verb::Cas { at, old, new }];
                    answer = Box::pin(self.verbs(io, again)).await.pop().unwrap_or(Answer::Unknown);
                }
            }
        }
    }

    pub(crate) fn owner(&self, kind: Kind, class: u8) -> Owner {
        Owner { kind, class, member: self.me }
    }

    /// Gives a piece back to the node. Its header goes first, so that nobody takes it for one any
    /// more.
    pub(crate) async fn release(&self, io: &Io, at: At) {
        self.verbs(io, vec![Verb::Write { at, bytes: Rc::new(vec![0; 16]) }, Verb::Free { at }]).await;
    }
}
