//! Carries out a shard's verbs on one node, or on two that hold the same bytes.
//!
//! A protected shard has a *first* node, whose number its addresses carry, and a *second* one. Both
//! have every piece at the same place. The rest of the store asks for verbs as if there were one
//! node:
//!
//! ```text
//!  READ    first                                 one round trip, as without protection
//!  WRITE   first ∥ second                        before any CAS of the batch, but for a relink
//!  CAS     second, then first                    the second decides; the first shows
//!  relink  WRITE first ∥ (WRITE, CAS) second     then CAS first: two round trips
//!  ALLOC   first, then the same place at second  FREE the other way round
//! ```
//!
//! A CAS is *decided* once the second node has carried it out, and *shown* once the first has too.
//!
//! *Invariant.* A word at the first node has the value that it has at the second, or the one before
//! that. A CAS expects a value that was read at the first node. So the second node cannot go two
//! values ahead.
//!
//! *Help.* A CAS that fails at the second node has met another front end's decision, which may not
//! be shown yet. The front end whose CAS failed shows that decision. It reads the first node before
//! the second, because the other order could set the first node back. So a front end that dies
//! between its two CASes delays no other. Its operation takes effect when it is helped, or never.
//!
//! *A relink* writes an object and CASes an older object's slot to its own. Both verbs go to the
//! second node together, WRITE first. So a helper may meet a decision whose object the first node
//! does not have yet. It copies the object before it shows the slot: the first node has the bytes
//! of all that its index shows. The place is not used again while the helper is under way.
//!
//! *A node that has ended.* The second node has all that the first has shown, so either may go on
//! alone. If the other is only silent, the front end ends. Nothing is changed at one node alone
//! before no other front end counts on the other (the module `leaving`). The survivor is marked in
//! [`crate::layout::head::PAIR`], for those that are there and those that come later.
//!
//! *A new node* in its place is filled by [`crate::shard::mend`]. Until that has ended, the survivor alone
//! is read and decides. The new node is written to, and nobody relies on it.

mod filling;
mod help;
mod leaving;

pub use filling::Turn;
pub(crate) use filling::{Counted, Deciding, Mending, Phase};

use crate::layout::{At, Member, NODE_SHIFT, Pair, Slot};
use crate::rules::{Bug, Rules};
use crate::task::{Answer, Io, Verb};
use std::cell::Cell;

/// Which nodes have the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Both: the first, and this one as the second.
    Both(u8),
    /// This one alone. The other has ended.
    Alone(u8),
    /// This one alone. The other is being filled.
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
    /// The pair's word as last read.
    pair: Cell<Pair>,
    pub(crate) mending: Mending,
    /// This front end, once it has joined.
    me: Cell<Option<Member>>,
    /// Whether the end of each node, the first and the other, is certain once it is told.
    proven: Cell<[bool; 2]>,
    /// The kernel has told of the end for which the gate is closed.
    certain: Cell<bool>,
    /// As last told.
    rules: Cell<Rules>,
    asker: leaving::Asker,
    /// Batches under way.
    open: Cell<u32>,
    /// The phase of what begins now: 0 or 1.
    phase: Cell<usize>,
    /// Operations and batches under way, by the phase in which they began.
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
            me: Cell::new(None),
            proven: Cell::new([false; 2]),
            certain: Cell::new(false),
            rules: Cell::new(Rules::SOUND),
            asker: leaving::Asker::default(),
            open: Cell::new(0),
            phase: Cell::new(0),
            under_way: Default::default(),
        }
    }

    /// Which nodes have the shard now.
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Whether two nodes have the shard.
    pub fn is_double(&self) -> bool {
        matches!(self.mode.get(), Mode::Both(_))
    }

    /// The pair's word as last read.
    pub fn pair(&self) -> Pair {
        self.pair.get()
    }

    /// Notes where the root piece is, once it was found.
    pub fn found(&self, root_word: At, root: At, pair: Pair) {
        self.root_word.set(root_word);
        self.root.set(root);
        self.pair.set(pair);
    }

    pub(crate) fn root(&self) -> At {
        self.root.get()
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
        self.rules.set(rules);
        if let (Mode::Mending(stays), Words::Head) = (self.mode.get(), words) {
            return self.alone(io, stays, &verbs).await;
        }
        self.gate(io).await;
        while self.waits() {
            io.pause(1).await;
        }
        let _open = (Counted::new(&self.open), Phase::new(self));
        match self.mode.get() {
            Mode::Mending(stays) => self.filling(io, rules, stays, verbs).await,
            Mode::Both(second) => {
                let answers = self.both(io, (rules, words), second, verbs).await;
                // What the second alone has decided stands only if all go on with it.
                self.gate(io).await;
                answers
            }
            Mode::Alone(node) => self.alone(io, node, &verbs).await,
            Mode::Single => io.verbs(verbs).await,
        }
    }

    /// Verbs at one node.
    pub(crate) async fn alone(&self, io: &Io, node: u8, verbs: &[Verb]) -> Vec<Answer> {
        let answers = io.verbs(verbs.iter().map(|verb| moved(verb, node)).collect()).await;
        while answers.contains(&Answer::Lost) && self.mode.get() == Mode::Alone(node) {
            // The other was left, though it may be there: nothing can be answered any more.
            self.doubt(io, Copies::other(node)).await;
        }
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

    /// Repeats verbs at the other node after `node` has ended. `posted`: the CASes may have been
    /// carried out. They are answered [`Answer::Unknown`], and their callers repeat them.
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

    /// Carries out a batch at both nodes: the verbs before its first CAS, the decisions, the rest.
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
            let copied = |verb: &&Verb| verb.is_write() && !how.0.broken(Bug::CopyNothing);
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

    /// Shows the CASes that were decided, and carries out the READs behind them. `from` is the
    /// batch's first CAS, and `answers` has the second node's answers to CASes.
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
                    // If the new value shows already, another front end has helped. An empty slot
                    // proves nothing: it may be another's doing, after the second node's end.
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

    /// Finishes a batch at `node` after the other has ended between the decisions and the READs
    /// behind them. If the second node is left, its decisions stand. If the first is left, callers
    /// repeat the CASes, and the first node's words tell which were shown.
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

    /// Carries out a verb that concerns the nodes' pieces or members. `None`: the verb is another.
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

    /// Takes a piece at the first node, then the same place at the second.
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
            // The second has no room. Or the first has ended, and another front end has taken the
            // place at the second alone.
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
        Verb::Write { at, bytes } => Verb::Write { at: on(node, *at), bytes: bytes.clone() },
        Verb::WriteFrom { at, bytes } => Verb::WriteFrom { at: on(node, *at), bytes: bytes.clone() },
        Verb::Cas { at, old, new } => Verb::Cas { at: on(node, *at), old: *old, new: *new },
        Verb::Alloc { bytes, .. } => Verb::Alloc { node, bytes: *bytes },
        Verb::Claim { at, bytes } => Verb::Claim { at: on(node, *at), bytes: *bytes },
        Verb::Free { at } => Verb::Free { at: on(node, *at) },
        Verb::Pieces { .. } => Verb::Pieces { node },
        Verb::Expel { tag, .. } => Verb::Expel { node, tag: *tag },
        Verb::Doubt { .. } => Verb::Doubt { node },
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
