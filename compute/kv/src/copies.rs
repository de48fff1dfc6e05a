//! A shard's words on one node, or on two.
//!
//! A protected shard has a *first* node, whose number its addresses carry, and a *second* one. Both
//! have every piece at the same place. The rest of the store asks for verbs as if there were one
//! node; this module carries them out:
//!
//! ```text
//!  READ    first                                 one round trip, as without protection
//!  WRITE   first ∥ second                        before any CAS of the batch
//!  CAS     second, then first                    the second decides; the first shows
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
//! *A node that has ended.* The second has all that the first has shown, so either may go on alone.
//! It must be certain that the other's process is gone: a node that is only silent ends the front
//! end. The survivor is marked in [`head::ALONE`], for front ends that come later. Memory of an
//! ended node on this machine stays mapped until its loss is seen, so nothing is changed at one
//! node alone before [`GATE_MS`] have passed: others have looked by then ([`crate::drive`]).

use crate::layout::{At, NODE_SHIFT, head};
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
    /// The first. There never was a second.
    Single,
}

/// See the module.
#[derive(Debug)]
pub struct Copies {
    /// The first node, whose number is in addresses.
    first: u8,
    mode: Cell<Mode>,
    /// A node's end was seen, and the other is not marked yet.
    gated: Cell<bool>,
    /// The root piece, once it is known.
    root: Cell<At>,
}

impl Copies {
    /// Of a shard whose addresses carry the number `first`.
    pub fn new(first: u8, mode: Mode) -> Copies {
        Copies { first, mode: Cell::new(mode), gated: Cell::new(false), root: Cell::new(0) }
    }

    /// Which nodes have the shard now.
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Whether two nodes have it.
    pub fn is_double(&self) -> bool {
        matches!(self.mode.get(), Mode::Both(_))
    }

    /// The root piece was found.
    pub fn found(&self, root: At) {
        self.root.set(root);
    }

    /// Carries out verbs on one node or both; one answer for each.
    pub async fn verbs(&self, io: &Io, rules: Rules, verbs: Vec<Verb>) -> Vec<Answer> {
        if self.mode.get() == Mode::Single {
            return io.verbs(verbs).await;
        }
        self.gate(io).await;
        match self.mode.get() {
            Mode::Both(second) => self.both(io, rules, second, verbs).await,
            Mode::Alone(node) => self.alone(io, node, &verbs).await,
            Mode::Single => io.verbs(verbs).await,
        }
    }

    /// Waits, after a node's end was seen, until the other may be changed alone.
    async fn gate(&self, io: &Io) {
        while self.gated.get() {
            let Mode::Alone(node) = self.mode.get() else { return };
            if self.root.get() != 0 {
                let mark = Rc::new(1u64.to_le_bytes().to_vec());
                io.verb(Verb::Write { at: on(node, self.root.get() + head::ALONE), bytes: mark }).await;
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

    async fn alone(&self, io: &Io, node: u8, verbs: &[Verb]) -> Vec<Answer> {
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

    async fn both(&self, io: &Io, rules: Rules, second: u8, verbs: Vec<Verb>) -> Vec<Answer> {
        if let [verb] = &verbs[..]
            && let Some(answer) = self.managed(io, second, verb).await
        {
            return vec![answer];
        }
        let mut answers = vec![Answer::Done; verbs.len()];
        let swaps = verbs.iter().position(|verb| matches!(verb, Verb::Cas { .. } | Verb::Free { .. }));
        let (before, after) = (swaps.unwrap_or(verbs.len()), swaps.unwrap_or(0));
        if before > 0 {
            let mut batch: Vec<Verb> = verbs[..before].to_vec();
            let copied = |verb: &&Verb| matches!(verb, Verb::Write { .. }) && !rules.broken(Bug::CopyNothing);
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
        self.swaps(io, rules, second, &verbs, after, answers).await
    }

    /// CASes, and the READs behind them.
    async fn swaps(
        &self,
        io: &Io,
        rules: Rules,
        second: u8,
        verbs: &[Verb],
        from: usize,
        mut answers: Vec<Answer>,
    ) -> Vec<Answer> {
        let deciding = if rules.broken(Bug::FirstDecides) { self.first } else { second };
        let is_cas = |n: &usize| matches!(verbs[*n], Verb::Cas { .. });
        let swaps: Vec<usize> = (from..verbs.len()).filter(is_cas).collect();
        let decided = io.verbs(swaps.iter().map(|&n| moved(&verbs[n], deciding)).collect()).await;
        if decided.contains(&Answer::Lost) {
            return self.again(io, deciding, verbs, answers, true).await;
        }
        let mut done = Vec::with_capacity(swaps.len());
        for (&n, answer) in swaps.iter().zip(decided) {
            done.extend((answer == expected(&verbs[n])).then_some(n));
            answers[n] = answer;
        }
        // Those that failed bring the first node on before the READs behind them look at it.
        for &n in swaps.iter().filter(|n| !done.contains(n)) {
            if let (Verb::Cas { at, .. }, false) = (&verbs[n], rules.broken(Bug::LeaveBehind)) {
                self.settle(io, rules, *at).await;
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
            self.settle(io, rules, at).await;
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

    async fn word(&self, io: &Io, node: u8, at: At) -> Option<u64> {
        match io.verb(Verb::Read { at: on(node, at), len: 8 }).await {
            Answer::Bytes(bytes) => Some(crate::layout::word(&bytes, 0)),
            Answer::Lost => {
                self.ended(node);
                self.gate(io).await;
                None
            }
            _ => None,
        }
    }

    /// Whether both nodes have the same words, once what was decided shows.
    pub(crate) async fn agree(&self, io: &Io, words: &[At]) -> bool {
        for &at in words {
            while let Mode::Both(second) = self.mode.get() {
                let (first, other) = (self.word(io, self.first, at).await, self.word(io, second, at).await);
                match (first, other) {
                    (Some(first), Some(other)) if first == other => break,
                    // Nothing shows before it is decided.
                    (Some(0), Some(_)) => self.settle(io, Rules::SOUND, at).await,
                    (Some(_), Some(_)) => return false,
                    _ => {}
                }
            }
        }
        true
    }

    /// Brings a word at the first node to what the second has decided.
    pub(crate) async fn settle(&self, io: &Io, rules: Rules, at: At) {
        while let Mode::Both(second) = self.mode.get() {
            let (first, decided);
            if rules.broken(Bug::HelpBackwards) {
                decided = self.word(io, second, at).await;
                first = self.word(io, self.first, at).await;
            } else {
                // Two round trips: the second look is after the first for certain, and after any
                // end of a node that the first has seen a consequence of.
                first = self.word(io, self.first, at).await;
                decided = self.word(io, second, at).await;
            }
            let (Some(old), Some(new)) = (first, decided) else { continue };
            if old == new {
                return;
            }
            if io.verb(Verb::Cas { at: on(self.first, at), old, new }).await == Answer::Lost {
                self.ended(self.first);
                self.gate(io).await;
            }
        }
    }

    /// Settles the words of ranges in which the nodes differ. After it, the first node's words tell
    /// whether an object is live.
    pub(crate) async fn settle_ranges(&self, io: &Io, rules: Rules, ranges: &[(At, u32)]) {
        let Mode::Both(second) = self.mode.get() else { return };
        if rules.broken(Bug::JudgeByFirst) {
            return;
        }
        let read = |node: u8| ranges.iter().map(|&(at, len)| Verb::Read { at: on(node, at), len }).collect();
        let first = io.verbs(read(self.first)).await;
        let other = io.verbs(read(second)).await;
        for ((&(at, len), one), other) in ranges.iter().zip(first).zip(other) {
            let (Answer::Bytes(one), Answer::Bytes(other)) = (one, other) else { continue };
            let word = crate::layout::word;
            for n in (0..len as usize / 8).filter(|&n| word(&one, n) != word(&other, n)) {
                self.settle(io, rules, at + n as u64 * 8).await;
            }
        }
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
fn on(node: u8, at: At) -> At {
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

/// The answer of a CAS that succeeds.
fn expected(verb: &Verb) -> Answer {
    match verb {
        Verb::Cas { old, .. } => Answer::Word(*old),
        _ => Answer::Done,
    }
}
