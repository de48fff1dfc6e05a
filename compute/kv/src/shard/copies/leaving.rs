//! How front ends go on with one node of two.
//!
//! A front end that is told of a node's end may be wrong: over TCP the network can say so while the
//! node lives, and others go on with it. So the end of a node is agreed on at the *survivor*:
//!
//! ```text
//!  Both ──► Leaving: a front end leaves the other node  ──► Alone: all have said that they know
//! ```
//!
//! Each step is one CAS of the pair's word at the survivor ([`Pair`]). A front end that finds it
//! there goes on with the survivor, too, and says so in its line. Until the last step none of them
//! changes or reads anything. A front end that comes meanwhile looks at both nodes' words after it
//! has taken its line. So either it is asked, or it sees the mark.
//!
//! *A member that says nothing.* If the first node stays, it is expelled there: each of its reads
//! and each of its changes needs the first node. One that has the first node's memory mapped cannot
//! be expelled: the others wait until it goes on, and says so first, or ends. If the second stays,
//! it could go on with the first alone, and nothing here would tell. Then this front end ends
//! ([`Verb::Doubt`]). So two front ends never go on with a node each: the one that goes on with the
//! second has the other's word that it does so, too.
//!
//! *A proven end* is told by the kernel. Nobody goes on with that node, so nobody is asked. Its
//! memory stays mapped on this machine until its loss is seen. So nothing is changed at the
//! survivor before [`GATE_MS`] have passed, in which all front ends look ([`crate::drive`]).

use super::{Copies, Mode, on};
use crate::layout::{HEAD_BYTES, MEMBERS, Member, Pair, Stage, State, head, word};
use crate::rules::Bug;
use crate::shard::member::{CONSENT, is_there, line_word, member_at, state};
use crate::task::{Answer, Io, Verb};
use std::cell::Cell;
use std::rc::Rc;

/// Milliseconds between seeing a node's proven end and the first change at the other alone.
const GATE_MS: u32 = 100;
/// Milliseconds that a member may take to say that it knows.
const PATIENCE_MS: u32 = 5000;
/// Milliseconds between looks whether all have said so.
const ASK_MS: u32 = 10;

/// Looks of a waiting operation, a millisecond apart, without a step of the one that asks. Then it
/// takes over: commands stand still while their front end has not shown itself for a while.
const STILL: u32 = 1000;

/// The operation that looks after the gate.
#[derive(Debug, Default)]
pub(super) struct Asker {
    /// Its number; 0: none does.
    number: Cell<u32>,
    /// The number of the last.
    last: Cell<u32>,
    /// What all of them have done.
    steps: Cell<u32>,
    /// A member that says nothing cannot be expelled.
    is_held_up: Cell<bool>,
}

impl Asker {
    fn begin(&self) -> Looks<'_> {
        self.last.set(self.last.get().wrapping_add(1).max(1));
        self.number.set(self.last.get());
        Looks(self, self.last.get())
    }

    fn step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
    }
}

/// An operation looks after the gate as long as this lives, unless another has taken over.
struct Looks<'a>(&'a Asker, u32);

impl Looks<'_> {
    fn goes_on(&self) -> bool {
        self.0.number.get() == self.1
    }
}

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        if self.goes_on() {
            self.0.number.set(0);
        }
    }
}

impl Copies {
    /// This front end has joined as this member.
    pub(crate) fn joined(&self, me: Member) {
        self.me.set((usize::from(me.line) < MEMBERS).then_some(me));
    }

    /// Whether the kernel tells of the end of the first node and of the other.
    pub fn proven(&self, nodes: [bool; 2]) {
        self.proven.set(nodes);
    }

    /// Notes that a node of the two has ended, as this front end was told.
    pub(super) fn ended(&self, node: u8) {
        if self.leave_for(Copies::other(node)) {
            self.certain.set(self.proven.get()[usize::from(node != self.first)]);
        }
    }

    fn leave_for(&self, stays: u8) -> bool {
        let is_double = self.is_double();
        if is_double {
            self.mode.set(Mode::Alone(stays));
            self.gated.set(true);
            self.certain.set(false);
        }
        is_double
    }

    /// The pair's word at the first node and at the other. `None`: one of them has the shard.
    pub(crate) async fn pairs(&self, io: &Io) -> Option<[Pair; 2]> {
        let Mode::Both(second) = self.mode.get() else { return None };
        let at = self.root.get() + head::PAIR;
        let read = [self.first, second].map(|node| Verb::Read { at: on(node, at), len: 8 });
        let answers = io.verbs(read.into()).await;
        if let Some(lost) = answers.iter().position(|answer| *answer == Answer::Lost) {
            self.ended(if lost == 0 { self.first } else { second });
            self.gate(io).await;
            return None;
        }
        let [Answer::Bytes(first), Answer::Bytes(other)] = &answers[..] else { return None };
        Some([Pair(word(first, 0)), Pair(word(other, 0))])
    }

    /// Looks whether another front end goes on with one of the nodes, and goes on with it, too.
    pub(crate) async fn heed(&self, io: &Io) {
        if self.rules.get().broken(Bug::IgnoreMark) {
            return;
        }
        if let (Mode::Both(second), Some(pairs)) = (self.mode.get(), self.pairs(io).await) {
            self.obey(pairs, second);
        }
        self.gate(io).await;
    }

    fn obey(&self, pairs: [Pair; 2], second: u8) {
        // The first, if both are marked: who stays with the second needs everybody.
        let marked = pairs.iter().position(|pair| pair.stage() != Stage::Both);
        if let Some(n) = marked {
            self.leave_for(if n == 0 { self.first } else { second });
        }
    }

    /// Whether the first node is marked. Then what this front end has read there may be newer than
    /// what the second has decided.
    pub(super) async fn is_left(&self, io: &Io, pair: Option<u64>) -> bool {
        let marked = pair.is_some_and(|pair| Pair(pair).stage() != Stage::Both);
        if marked && !self.rules.get().broken(Bug::SettleUnmarked) {
            self.leave_for(self.first);
            self.gate(io).await;
            return true;
        }
        false
    }

    /// Waits, after a node's end was seen, until the other may be changed alone.
    pub(super) async fn gate(&self, io: &Io) {
        let (mut still, mut seen) = (0, 0);
        while self.gated.get() {
            let Mode::Alone(node) = self.mode.get() else { return };
            if self.asker.number.get() != 0 && still < STILL {
                // Another operation asks.
                let steps = self.asker.steps.get();
                still = if steps == seen { still + 1 } else { 0 };
                seen = steps;
                io.pause(1).await;
                continue;
            }
            still = 0;
            let looks = self.asker.begin();
            match self.me.get() {
                // No member: what it does is seen by nobody, and it does not join.
                None => io.pause(GATE_MS).await,
                Some(_) if self.certain.get() => self.leave_ended(io, node).await,
                Some(me) => self.leave_together(io, node, me, &looks).await,
            }
            if looks.goes_on() {
                self.gated.set(false);
            }
        }
    }

    async fn mark(&self, io: &Io, node: u8, old: Pair, new: Pair) {
        let at = on(node, self.root.get() + head::PAIR);
        io.verb(Verb::Cas { at, old: old.0, new: new.0 }).await;
    }

    /// Marks the survivor of a node that has ended for certain.
    async fn leave_ended(&self, io: &Io, node: u8) {
        let old = self.pair.get().at(Stage::Both);
        // Each fails if another has said so, or if more has happened since.
        for stage in [Stage::Both, Stage::Leaving] {
            self.mark(io, node, old.at(stage), old.at(Stage::Alone)).await;
        }
        self.pair.set(old.at(Stage::Alone));
        io.pause(GATE_MS).await;
    }

    /// Leaves the other node together with all who are there. Does not return if that cannot be.
    /// Returns early if another operation has taken over.
    async fn leave_together(&self, io: &Io, node: u8, me: Member, looks: &Looks<'_>) {
        let (mut waited, mut expelled): (u32, Vec<State>) = (0, Vec::new());
        while looks.goes_on() {
            self.asker.step();
            let look = Verb::Read { at: on(node, self.root.get()), len: HEAD_BYTES as u32 };
            let seen = match io.verb(look).await {
                Answer::Bytes(seen) => seen,
                Answer::Lost => {
                    self.doubt(io, node).await;
                    continue;
                }
                _ => continue,
            };
            let pair = Pair(word(&seen, head::PAIR as usize / 8));
            match pair.stage() {
                Stage::Both => {
                    self.mark(io, node, pair, pair.at(Stage::Leaving)).await;
                    continue;
                }
                Stage::Leaving => {}
                // All have said so.
                Stage::Alone | Stage::Mending | Stage::Paused => return self.pair.set(pair.at(Stage::Alone)),
            }
            if !is_there(&seen, me) {
                self.doubt(io, node).await;
                continue;
            }
            let line = usize::from(me.line);
            if line_word(&seen, line, CONSENT as usize) != pair.0 {
                let at = on(node, member_at(self.root.get(), line) + 8 * CONSENT);
                io.verb(Verb::Write { at, bytes: Rc::new(pair.0.to_le_bytes().to_vec()) }).await;
                continue;
            }
            let unheard = |n: &usize| *n != line && line_word(&seen, *n, CONSENT as usize) != pair.0;
            let members = (0..MEMBERS).filter(unheard).map(|n| state(&seen, n)).filter(|state| state.is_alive());
            let silent: Vec<State> = members.filter(|state| !expelled.contains(state)).collect();
            if silent.is_empty() || self.rules.get().broken(Bug::LeaveUnasked) {
                self.mark(io, node, pair, pair.at(Stage::Alone)).await;
            } else if waited < PATIENCE_MS {
                io.pause(ASK_MS).await;
                waited += ASK_MS;
            } else if node == self.first || self.rules.get().broken(Bug::LeaveFirstUnheard) {
                let mut is_held_up = false;
                for state in silent {
                    match io.verb(Verb::Expel { node, tag: state.tag() }).await {
                        Answer::Expelled(true) => expelled.push(state),
                        _ => is_held_up = true,
                    }
                }
                self.asker.is_held_up.set(is_held_up);
                waited = 0;
            } else {
                self.doubt(io, node).await;
            }
        }
    }

    /// Whether a member that says nothing keeps this front end from going on with the first node.
    pub fn is_held_up(&self) -> bool {
        self.gated.get() && self.asker.is_held_up.get()
    }

    /// Ends this front end.
    pub(super) async fn doubt(&self, io: &Io, stays: u8) {
        io.verb(Verb::Doubt { node: Copies::other(stays) }).await;
        io.pause(GATE_MS).await;
    }
}
