//! Verbs while a node is being filled, and how far this front end is with it. [`crate::shard::mend`] has
//! the protocol.

use super::{Copies, Mode, is_done, moved};
use crate::layout::{Pair, Stage};
use crate::rules::{Bug, Rules};
use crate::task::{Answer, Io, Verb};
use std::cell::Cell;
use std::rc::Rc;

/// How far this front end is with filling a node.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    /// WRITEs of objects go to both nodes.
    pub mirrors: Cell<bool>,
    /// The new node has all that this front end must bring there.
    pub ready: Cell<bool>,
    /// The new node has ended, or has no room.
    pub failed: Cell<bool>,
    /// No operation may begin another batch.
    pub paused: Cell<bool>,
    /// Pieces that this front end is taking over.
    pub adopting: Cell<u32>,
    /// Attempts of transactions under way whose verdict this shard has. See [`Copies::decides`].
    deciding: Rc<Cell<u32>>,
}

/// What a look at the pair's word has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Turn {
    /// Nothing.
    #[default]
    None,
    /// A node is being filled, and this front end is to take part.
    Mends(Pair),
    /// It is filled: both nodes have the shard.
    Mended,
    /// The attempt was given up.
    GivenUp,
}

/// Counts something as long as it lives.
pub(crate) struct Counted<'a>(&'a Cell<u32>);

impl<'a> Counted<'a> {
    pub fn new(count: &'a Cell<u32>) -> Counted<'a> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// An attempt of a transaction, as long as it lives.
#[derive(Debug)]
pub(crate) struct Deciding(Rc<Cell<u32>>);

impl Drop for Deciding {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// An operation or a batch under way, counted by the phase in which it began.
pub(crate) struct Phase<'a>(&'a Copies, usize);

impl<'a> Phase<'a> {
    pub fn new(copies: &'a Copies) -> Phase<'a> {
        Phase(copies, copies.enter())
    }
}

impl Drop for Phase<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl Copies {
    /// Whether this front end waits for a pause to end.
    pub fn is_paused(&self) -> bool {
        self.mending.paused.get()
    }

    /// Whether the node that is being filled has ended or is full.
    pub fn has_failed(&self) -> bool {
        self.mending.failed.get()
    }

    /// An operation begins: the phase of which it is.
    pub(crate) fn enter(&self) -> usize {
        let phase = self.phase.get();
        self.under_way[phase].set(self.under_way[phase].get() + 1);
        phase
    }

    pub(crate) fn leave(&self, phase: usize) {
        self.under_way[phase].set(self.under_way[phase].get() - 1);
    }

    /// Begins a phase; the one before it.
    pub(crate) fn turn(&self) -> usize {
        self.phase.replace(self.phase.get() ^ 1)
    }

    /// Whether operations of a phase are under way.
    pub(crate) fn has_begun_in(&self, phase: usize) -> bool {
        self.under_way[phase].get() > 0
    }

    /// Takes part in filling the other node. False: there is nothing to fill.
    pub(crate) fn mend(&self, pair: Pair) -> bool {
        let Mode::Alone(stays) = self.mode.get() else { return false };
        if self.gated.get() || self.pair.get() != pair {
            return false;
        }
        self.mode.set(Mode::Mending(stays));
        for flag in [&self.mending.mirrors, &self.mending.ready, &self.mending.failed, &self.mending.paused] {
            flag.set(false);
        }
        true
    }

    /// Whether this attempt is under way, as far as is known.
    pub(crate) fn mends(&self, pair: Pair) -> bool {
        matches!(self.mode.get(), Mode::Mending(_))
            && self.pair.get().attempt() == pair.attempt()
            && !self.mending.failed.get()
    }

    /// The pair's word was read.
    pub(crate) fn saw(&self, pair: Pair) -> Turn {
        match self.mode.get() {
            Mode::Alone(_) if !self.gated.get() => {
                self.pair.set(pair);
                if pair.stage() == Stage::Mending { Turn::Mends(pair) } else { Turn::None }
            }
            Mode::Mending(stays) => {
                let same = self.pair.get().attempt() == pair.attempt();
                self.pair.set(pair);
                match pair.stage() {
                    Stage::Mending if same => Turn::None,
                    Stage::Paused if same => {
                        self.mending.paused.set(true);
                        Turn::None
                    }
                    // Filled, and left since: the next look at both nodes tells.
                    Stage::Both | Stage::Leaving if same => {
                        self.mode.set(Mode::Both(self.first ^ 1));
                        self.mending.paused.set(false);
                        Turn::Mended
                    }
                    _ => {
                        self.mode.set(Mode::Alone(stays));
                        self.mending.paused.set(false);
                        Turn::GivenUp
                    }
                }
            }
            _ => Turn::None,
        }
    }

    /// What this front end says to the pair's word: the word itself, once it has done its part.
    pub(crate) fn consent(&self, pair: Pair) -> u64 {
        let ready = self.mends(pair) && self.mending.ready.get() && self.mending.adopting.get() == 0;
        let ended = self.open.get() == 0 && self.mending.deciding.get() == 0;
        let quiet = pair.stage() == Stage::Mending || self.mending.paused.get() && ended;
        if ready && quiet { pair.0 } else { 0 }
    }

    /// Begins an attempt of a transaction, once no pause is on; it ends with what is returned.
    ///
    /// While a node is filled a verdict is written to both nodes and decided at the survivor alone. If
    /// both counted before the decision is at both, the new node would decide it again. So this front
    /// end does not consent to a pause's end while an attempt is under way. Meanwhile its verbs go on.
    pub(crate) async fn decides(&self, io: &Io) -> Deciding {
        while self.mending.paused.get() {
            io.pause(1).await;
        }
        self.mending.deciding.set(self.mending.deciding.get() + 1);
        Deciding(Rc::clone(&self.mending.deciding))
    }

    /// Whether batches wait for a pause's end now.
    pub(super) fn waits(&self) -> bool {
        self.mending.paused.get() && self.mending.deciding.get() == 0
    }

    /// This front end has said that it knows of a pause's end.
    pub(crate) fn resume(&self, pair: Pair) {
        if pair.stage() == Stage::Mending && self.pair.get() == pair {
            self.mending.paused.set(false);
        }
    }

    /// Verbs while the other node is being filled. The survivor decides and shows. Objects are
    /// written to both, and pieces taken at both.
    pub(super) async fn filling(&self, io: &Io, rules: Rules, stays: u8, verbs: Vec<Verb>) -> Vec<Answer> {
        let new = Copies::other(stays);
        let one = |verb: &Verb| matches!(verb, Verb::Alloc { .. } | Verb::Free { .. } | Verb::Expel { .. });
        let count = verbs.iter().position(one).unwrap_or(verbs.len());
        let mut batch: Vec<Verb> = verbs[..count].iter().map(|verb| moved(verb, stays)).collect();
        if self.mending.mirrors.get() && !self.mending.failed.get() && !rules.broken(Bug::FillUnmirrored) {
            let writes = verbs[..count].iter().filter(|verb| verb.is_write());
            batch.extend(writes.map(|verb| moved(verb, new)));
        }
        let mut answers = match batch.is_empty() {
            true => Vec::new(),
            false => io.verbs(batch).await,
        };
        if !answers.split_off(count).iter().all(is_done) {
            self.mending.failed.set(true);
        }
        let mut answers: Vec<Answer> = answers.into_iter().map(|answer| self.named(answer)).collect();
        for verb in &verbs[count..] {
            let answer = self.fill_one(io, stays, new, verb).await;
            answers.push(self.named(answer));
        }
        answers
    }

    /// A verb that concerns pieces or members, while the other node is being filled.
    async fn fill_one(&self, io: &Io, stays: u8, new: u8, verb: &Verb) -> Answer {
        let at_new = async |verb: &Verb| {
            let answer = if self.mending.failed.get() { Answer::Lost } else { io.verb(moved(verb, new)).await };
            if answer == Answer::Lost {
                self.mending.failed.set(true);
            }
            answer
        };
        match verb {
            Verb::Alloc { bytes, .. } => {
                let taken = io.verb(moved(verb, stays)).await;
                if let Answer::Place(at) = taken
                    && at_new(&Verb::Claim { at, bytes: *bytes }).await != Answer::Done
                {
                    self.mending.failed.set(true);
                }
                taken
            }
            Verb::Free { .. } => {
                at_new(verb).await;
                io.verb(moved(verb, stays)).await
            }
            Verb::Expel { .. } => {
                let other = at_new(verb).await;
                let here = io.verb(moved(verb, stays)).await;
                Answer::Expelled(here == Answer::Expelled(true) && other != Answer::Expelled(false))
            }
            _ => io.verb(moved(verb, stays)).await,
        }
    }
}

#[test]
fn a_pause_is_not_consented_to_while_a_transaction_is_decided() {
    let copies = Copies::new(0, Mode::Alone(0));
    let mending = Pair::default().at(Stage::Mending);
    copies.found(0, 0, mending);
    assert!(copies.mend(mending));
    copies.mending.ready.set(true);
    let attempt = Counted::new(&copies.mending.deciding);
    assert_eq!(copies.consent(mending), mending.0);
    let paused = mending.at(Stage::Paused);
    copies.saw(paused);
    assert!(copies.consent(paused) == 0 && !copies.waits());
    drop(attempt);
    assert!(copies.consent(paused) == paused.0 && copies.waits());
}

#[test]
fn a_front_end_that_has_not_seen_the_filling_end_does_not_leave_unasked() {
    let copies = Copies::new(0, Mode::Alone(0));
    let mending = Pair::default().at(Stage::Mending);
    copies.found(0, 0, mending);
    assert!(copies.mend(mending));
    copies.saw(mending.at(Stage::Paused));
    assert_eq!(copies.saw(mending.at(Stage::Leaving)), Turn::Mended);
    assert!(copies.mode() == Mode::Both(1) && !copies.is_paused());
}
