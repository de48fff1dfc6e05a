//! A shard's words on one node, or on two.
//!
//! A protected shard has a *first* node, whose number its addresses carry, and a *second* one. Both
//! have every piece at the same place. The rest of the store asks for verbs as if there were one
//! node; this module carries them out:
//!
//! ```text
//!  READ    first                                 one round trip, as without protection
//!  WRITE   first ∥ second                        before any CAS of the batch, but for a relink
//!  CAS     second, then first                    the second decides; the first shows
//!  relink  WRITE first ∥ (WRITE, CAS) second     then CAS first: two round trips
//!  ALLOC   first, then the same place at second  FREE the other way round
//! ```
//!
//! *Invariant.* A word at the first node is what it is at the second, or what it was there just
//! before. A CAS expects a value that was read at the first node. So the second node cannot go two
//! values ahead.
//!
//! *Help.* A CAS that fails at the second node has met another's that may not have reached the
//! first. It brings the first on, reading the first before the second: the other order could take
//! the first back. So a front end that dies between its two CASes holds nobody up. Its operation
//! takes effect when it is helped, or never.
//!
//! *A relink* is the WRITE of an object and the CAS from an older object's slot to its own. Both go
//! to the second node together, where the WRITE comes first. So a decision may be met whose object
//! the first node does not have yet. A helper copies the object there before it shows the slot, and
//! an object is in the index of the first node only when its bytes are. The helper is an operation
//! under way, so the place is not used again before it ends.
//!
//! *A node that has ended.* The second has all that the first has shown, so either may go on alone.
//! It must be certain that the other's process is gone: a node that is only silent ends the front
//! end. The survivor is marked in [`head::PAIR`], for front ends that come later. Memory of an
//! ended node on this machine stays mapped until its loss is seen, so nothing is changed at one
//! node alone before [`GATE_MS`] have passed: others have looked by then ([`crate::drive`]).
//!
//! *A node in its place* is filled by [`crate::mend`]. Until it is, the survivor alone is read and
//! decides. The new node is written to, and nobody relies on it.

mod filling;
mod help;

pub use filling::Turn;
pub(crate) use filling::{Counted, Mending, Phase};

use crate::layout::{At, NODE_SHIFT, Pair, Slot, Stage, head};
use crate::rules::{Bug, Rules};
use crate::task::{Answer, Io, Verb};
use std::cell::Cell;
use std::rc::Rc;

/// From the sight of a node's end to the first change at the other alone, in ms.
const GATE_MS: u32 = 100;

/// Which nodes have the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The first and this one.
    Both(u8),
    /// This one, of two.
    Alone(u8),
    /// This one, of two. The other is being filled.
    Mending(u8),
    /// The first. There never was a second.
    Single,
}

/// The words that a batch's CASes change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// Slots of the index and forward words, or words of the head.
    Index,
    /// Owners of pieces.
    Owners,
    /// Words of the head that do not wait for a pause to end.
    Head,
}

/// See the module.
#[derive(Debug)]
pub struct Copies {
    /// The first node, whose number is in addresses.
    first: u8,
    mode: Cell<Mode>,
    /// A node's end was seen, and the other is not marked yet.
    gated: Cell<bool>,
    /// The root piece and the word that leads to it, once they are known.
    root: Cell<At>,
    root_word: Cell<At>,
    /// As last read.
    pair: Cell<Pair>,
    pub(crate) mending: Mending,
    /// Batches under way.
    open: Cell<u32>,
    /// Operations under way are counted by the phase in which they began.
    phase: Cell<usize>,
    under_way: [Cell<u32>; 2],
}

impl Copies {
    /// Of a shard whose addresses carry the number `first`.
    pub fn new(first: u8, mode: Mode) -> Copies {
        Copies {
            first,
            mode: Cell::new(mode),
            gated: Cell::new(false),
            root: Cell::new(0),
            root_word: Cell::new(0),
            pair: Cell::default(),
            mending: Mending::default(),
            open: Cell::new(0),
            phase: Cell::new(0),
            under_way: Default::default(),
        }
    }

    /// Which nodes have the shard now.
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Whether two nodes have it.
    pub fn is_double(&self) -> bool {
        matches!(self.mode.get(), Mode::Both(_))
    }

    /// The pair's word as last read.
    pub fn pair(&self) -> Pair {
        self.pair.get()
    }

    /// The root piece was found.
    pub fn found(&self, root_word: At, root: At, pair: Pair) {
        self.root_word.set(root_word);
        self.root.set(root);
        self.pair.set(pair);
    }

    pub(crate) fn root_word(&self) -> At {
        self.root_word.get()
    }

    /// The other node of two than `node`.
    pub(crate) fn other(node: u8) -> u8 {
        node ^ 1
    }

    /// Carries out verbs on one node or both; one answer for each.
    pub async fn verbs(&self, io: &Io, rules: Rules, words: Words, verbs: Vec<Verb>) -> Vec<Answer> {
        if self.mode.get() == Mode::Single {
            return io.verbs(verbs).await;
        }
        if let (Mode::Mending(stays), Words::Head) = (self.mode.get(), words) {
            return self.alone(io, stays, &verbs).await;
        }
        self.gate(io).await;
        while self.mending.paused.get() {
            io.pause(1).await;
        }
        let _open = (Counted::new(&self.open), Phase::new(self));
        match self.mode.get() {
            Mode::Mending(stays) => self.filling(io, rules, stays, verbs).await,
            Mode::Both(second) => self.both(io, (rules, words), second, verbs).await,
            Mode::Alone(node) => self.alone(io, node, &verbs).await,
            Mode::Single => io.verbs(verbs).await,
        }
    }

    /// Waits, after a node's end was seen, until the other may be changed alone.
    async fn gate(&self, io: &Io) {
        while self.gated.get() {
            let Mode::Alone(node) = self.mode.get() else { return };
            if self.root.get() != 0 {
                // Fails if another has said so, or if more has happened since.
                let (old, at) = (self.pair.get(), on(node, self.root.get() + head::PAIR));
                io.verb(Verb::Cas { at, old: old.0, new: old.at(Stage::Alone).0 }).await;
                self.pair.set(old.at(Stage::Alone));
            }
            io.pause(GATE_MS).await;
            self.gated.set(false);
        }
    }

    /// A node of the two has ended.
    fn ended(&self, node: u8) {
        if let Mode::Both(second) = self.mode.get() {
            let stays = if node == second { self.first } else { second };
            self.mode.set(Mode::Alone(stays));
            self.gated.set(true);
        }
    }

    /// Verbs at one node.
    pub(crate) async fn alone(&self, io: &Io, node: u8, verbs: &[Verb]) -> Vec<Answer> {
        let answers = io.verbs(verbs.iter().map(|verb| moved(verb, node)).collect()).await;
        answers.into_iter().map(|answer| self.named(answer)).collect()
    }

    /// An answer by the addresses that the store knows.
    fn named(&self, answer: Answer) -> Answer {
        let place = |at: At| on(self.first, at);
        match answer {
            Answer::Place(at) => Answer::Place(place(at)),
            Answer::Pieces(pieces) => Answer::Pieces(pieces.into_iter().map(|(at, len)| (place(at), len)).collect()),
            other => other,
        }
    }

    /// After the end of `node`: the verbs again, at the other. CASes that may have been carried out
    /// stay unknown: their callers give them again.
    async fn again(&self, io: &Io, node: u8, verbs: &[Verb], mut answers: Vec<Answer>, posted: bool) -> Vec<Answer> {
        self.ended(node);
        self.gate(io).await;
        let Mode::Alone(stays) = self.mode.get() else { return answers };
        let mut left = Vec::new();
        for (n, verb) in verbs.iter().enumerate() {
            match verb {
                Verb::Cas { .. } if posted => answers[n] = Answer::Unknown,
                _ => left.push(n),
            }
        }
        let those: Vec<Verb> = left.iter().map(|&n| verbs[n].clone()).collect();
        for (n, answer) in left.into_iter().zip(self.alone(io, stays, &those).await) {
            answers[n] = answer;
        }
        answers
    }

    async fn both(&self, io: &Io, how: (Rules, Words), second: u8, verbs: Vec<Verb>) -> Vec<Answer> {
        if let [verb] = &verbs[..]
            && let Some(answer) = self.managed(io, second, verb).await
        {
            return vec![answer];
        }
        if self.is_relink(&verbs) {
            return self.relink(io, how, second, verbs).await;
        }
        let mut answers = vec![Answer::Done; verbs.len()];
        let swaps = verbs.iter().position(|verb| matches!(verb, Verb::Cas { .. } | Verb::Free { .. }));
        let (before, after) = (swaps.unwrap_or(verbs.len()), swaps.unwrap_or(0));
        if before > 0 {
            let mut batch: Vec<Verb> = verbs[..before].to_vec();
            let copied = |verb: &&Verb| matches!(verb, Verb::Write { .. }) && !how.0.broken(Bug::CopyNothing);
            batch.extend(verbs[..before].iter().filter(copied).map(|verb| moved(verb, second)));
            let mut came = io.verbs(batch).await;
            let copies = came.split_off(before);
            if came.contains(&Answer::Lost) {
                return self.again(io, self.first, &verbs, answers, false).await;
            }
            if copies.contains(&Answer::Lost) {
                return self.again(io, second, &verbs, answers, false).await;
            }
            answers[..before].clone_from_slice(&came);
        }
        if swaps.is_none() {
            return answers;
        }
        if let Some(Verb::Free { .. }) = verbs.get(after) {
            for (n, verb) in verbs.iter().enumerate().skip(after) {
                answers[n] = self.managed(io, second, verb).await.unwrap_or(Answer::Unknown);
            }
            return answers;
        }
        let is_cas = |n: &usize| matches!(verbs[*n], Verb::Cas { .. });
        let swaps: Vec<usize> = (after..verbs.len()).filter(is_cas).collect();
        let deciding = if how.0.broken(Bug::FirstDecides) { self.first } else { second };
        let decided = io.verbs(swaps.iter().map(|&n| moved(&verbs[n], deciding)).collect()).await;
        if decided.contains(&Answer::Lost) {
            return self.again(io, deciding, &verbs, answers, true).await;
        }
        swaps.into_iter().zip(decided).for_each(|(n, answer)| answers[n] = answer);
        self.shown(io, how, second, &verbs, after, answers).await
    }

    /// Whether a batch writes an object and puts its slot in place of another's.
    fn is_relink(&self, verbs: &[Verb]) -> bool {
        let [Verb::Write { at, .. }, Verb::Cas { old, new, .. }] = verbs else { return false };
        let (old, new) = (Slot(*old), Slot(*new));
        old.is_used() && !old.is_pending() && !new.is_pending() && new.at(self.first) == *at
    }

    /// A relink: the object and the decision leave together.
    async fn relink(&self, io: &Io, how: (Rules, Words), second: u8, verbs: Vec<Verb>) -> Vec<Answer> {
        let (rules, answers) = (how.0, vec![Answer::Done; verbs.len()]);
        let deciding = if rules.broken(Bug::FirstDecides) { self.first } else { second };
        let mut batch: Vec<Verb> = verbs.iter().map(|verb| moved(verb, deciding)).collect();
        if !rules.broken(Bug::CopyNothing) {
            batch.push(moved(&verbs[0], if deciding == second { self.first } else { second }));
        }
        let came = io.verbs(batch).await;
        let lost = |answers: &[Answer]| answers.contains(&Answer::Lost);
        if lost(&came[..2]) {
            // Others may have shown what it decided.
            return self.again(io, deciding, &verbs, answers, true).await;
        }
        if lost(&came[2..]) {
            // The second node's answer stands: it has decided, or refused.
            self.ended(self.first);
            self.gate(io).await;
            return came[..2].to_vec();
        }
        self.shown(io, how, second, &verbs, 1, came[..2].to_vec()).await
    }

    /// Shows the CASes that were decided, and carries out the READs behind them. `answers` has the
    /// decisions.
    async fn shown(
        &self,
        io: &Io,
        (rules, words): (Rules, Words),
        second: u8,
        verbs: &[Verb],
        from: usize,
        mut answers: Vec<Answer>,
    ) -> Vec<Answer> {
        let is_cas = |n: &usize| matches!(verbs[*n], Verb::Cas { .. });
        let swaps: Vec<usize> = (from..verbs.len()).filter(is_cas).collect();
        let done: Vec<usize> = swaps.iter().copied().filter(|&n| answers[n] == expected(&verbs[n])).collect();
        // Those that failed bring the first node on before the READs behind them look at it.
        for &n in swaps.iter().filter(|n| !done.contains(n)) {
            if let (Verb::Cas { at, .. }, false) = (&verbs[n], rules.broken(Bug::LeaveBehind)) {
                self.settle(io, rules, words, *at).await;
                if self.mode.get() == Mode::Alone(self.first) {
                    // The deciding node is gone, and its value may not have reached the first node.
                    answers[n] = Answer::Unknown;
                }
            }
        }
        let showing = if rules.broken(Bug::FirstDecides) { second } else { self.first };
        let shown = |n: &usize| done.contains(n) && !rules.broken(Bug::AnswerEarly) || !is_cas(n);
        let rest: Vec<usize> = (from..verbs.len()).filter(shown).collect();
        if rest.is_empty() {
            return answers;
        }
        if let Mode::Alone(node) = self.mode.get() {
            return self.rest_alone(io, node, verbs, &rest, answers).await;
        }
        let at_node = |n: &usize| if is_cas(n) { moved(&verbs[*n], showing) } else { verbs[*n].clone() };
        let came = io.verbs(rest.iter().map(at_node).collect()).await;
        if came.contains(&Answer::Lost) {
            self.ended(self.first);
            self.gate(io).await;
            return self.rest_alone(io, second, verbs, &rest, answers).await;
        }
        let mut behind = Vec::new();
        for (&n, answer) in rest.iter().zip(came) {
            match &verbs[n] {
                Verb::Cas { at, new, .. } => {
                    // Its new value shows: it was helped. An empty slot may also be another's
                    // doing, after the second node's end. Any other value is behind.
                    if answer != expected(&verbs[n]) && (answer != Answer::Word(*new) || *new == 0) {
                        behind.push((n, *at, *new));
                    }
                }
                _ => answers[n] = answer,
            }
        }
        for (n, at, new) in behind {
            self.settle(io, rules, words, at).await;
            let left_alone = self.mode.get() == Mode::Alone(self.first);
            if left_alone && (new == 0 || self.word(io, self.first, at).await != Some(new)) {
                answers[n] = Answer::Unknown;
            }
        }
        answers
    }

    /// A node has ended between the decision and the READs behind it. Decisions of the second node
    /// stand if that is left. Else the callers give the CASes again, and the first node's words
    /// tell.
    async fn rest_alone(
        &self,
        io: &Io,
        node: u8,
        verbs: &[Verb],
        rest: &[usize],
        mut answers: Vec<Answer>,
    ) -> Vec<Answer> {
        let reads: Vec<usize> = rest.iter().copied().filter(|&n| !matches!(verbs[n], Verb::Cas { .. })).collect();
        if node == self.first {
            rest.iter().filter(|n| !reads.contains(n)).for_each(|&n| answers[n] = Answer::Unknown);
        }
        let those: Vec<Verb> = reads.iter().map(|&n| verbs[n].clone()).collect();
        if !those.is_empty() {
            for (n, answer) in reads.into_iter().zip(self.alone(io, node, &those).await) {
                answers[n] = answer;
            }
        }
        answers
    }

    /// Verbs that concern the nodes' pieces and members, one at a time. `None`: it is none of
    /// these.
    async fn managed(&self, io: &Io, second: u8, verb: &Verb) -> Option<Answer> {
        let first = self.first;
        match verb {
            Verb::Alloc { bytes, .. } => Some(self.allocate(io, second, *bytes).await),
            Verb::Free { .. } => {
                // Another front end may take the place as soon as the first node has it back.
                for node in [second, first] {
                    if io.verb(moved(verb, node)).await == Answer::Lost {
                        self.ended(node);
                        self.gate(io).await;
                    }
                }
                Some(Answer::Done)
            }
            Verb::Expel { .. } => {
                let mut gone = true;
                for node in [first, second] {
                    match io.verb(moved(verb, node)).await {
                        // No verb of its takes effect there either.
                        Answer::Lost => {
                            self.ended(node);
                            self.gate(io).await;
                        }
                        answer => gone &= answer == Answer::Expelled(true),
                    }
                }
                Some(Answer::Expelled(gone))
            }
            Verb::Pieces { .. } => match io.verb(moved(verb, first)).await {
                Answer::Lost => {
                    self.ended(first);
                    self.gate(io).await;
                    Some(self.named(io.verb(moved(verb, second)).await))
                }
                answer => Some(answer),
            },
            _ => None,
        }
    }

    async fn allocate(&self, io: &Io, second: u8, bytes: u32) -> Answer {
        let taken = io.verb(Verb::Alloc { node: self.first, bytes }).await;
        let at = match taken {
            Answer::Place(at) => at,
            Answer::Lost => {
                self.ended(self.first);
                self.gate(io).await;
                return self.named(io.verb(Verb::Alloc { node: second, bytes }).await);
            }
            other => return other,
        };
        match io.verb(Verb::Claim { at: on(second, at), bytes }).await {
            Answer::Lost => {
                self.ended(second);
                self.gate(io).await;
                Answer::Place(at)
            }
            Answer::Done => Answer::Place(at),
            // There is no room. Or the first has ended meanwhile, and another has taken the place
            // at the second alone.
            _ => match io.verb(Verb::Free { at }).await {
                Answer::Lost => {
                    self.ended(self.first);
                    self.gate(io).await;
                    self.named(io.verb(Verb::Alloc { node: second, bytes }).await)
                }
                _ => Answer::Full,
            },
        }
    }
}

/// The same place at another node.
pub(crate) fn on(node: u8, at: At) -> At {
    u64::from(node) << NODE_SHIFT | at & ((1 << NODE_SHIFT) - 1)
}

/// The same verb at another node.
fn moved(verb: &Verb, node: u8) -> Verb {
    match verb {
        Verb::Read { at, len } => Verb::Read { at: on(node, *at), len: *len },
        Verb::Write { at, bytes } => Verb::Write { at: on(node, *at), bytes: Rc::clone(bytes) },
        Verb::Cas { at, old, new } => Verb::Cas { at: on(node, *at), old: *old, new: *new },
        Verb::Alloc { bytes, .. } => Verb::Alloc { node, bytes: *bytes },
        Verb::Claim { at, bytes } => Verb::Claim { at: on(node, *at), bytes: *bytes },
        Verb::Free { at } => Verb::Free { at: on(node, *at) },
        Verb::Pieces { .. } => Verb::Pieces { node },
        Verb::Expel { tag, .. } => Verb::Expel { node, tag: *tag },
    }
}

/// Whether a WRITE or a CAS was carried out for certain.
pub(crate) fn is_done(answer: &Answer) -> bool {
    !matches!(answer, Answer::Lost | Answer::Unknown | Answer::Full)
}

/// The answer of a CAS that succeeds.
fn expected(verb: &Verb) -> Answer {
    match verb {
        Verb::Cas { old, .. } => Answer::Word(*old),
        _ => Answer::Done,
    }
}
