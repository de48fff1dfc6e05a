//! Opening and closing a unit: publish, split, merge, and finishing what a dead owner began.
//!
//! ```text
//!  publish  OWNED(self)              READ children ─► CAS each: in use  ABSENT→OWNED(self),
//!                                                               else    ABSENT→QUARANTINE
//!                                    ─► CAS OWNED→SHARED, which is the commit
//!  split    FREE ─► SPLITTING(self)  READ children ─► CAS each ABSENT→FREE ─► CAS SPLITTING→SHARED
//!  merge    SHARED ─► MERGING(self)  CAS each FREE→ABSENT ─► CAS MERGING→FREE
//!                                    └─ one is not FREE: CAS those back to FREE ─► CAS MERGING→SHARED
//!  finish   SPLITTING(dead) ─► SPLITTING(self), and on as above; SPLITTING(self): on as above
//!           MERGING(dead)   ─► MERGING(self): every ABSENT child back to FREE ─► CAS MERGING→SHARED
//! ```
//!
//! *Publish* has no state of its own. Until the last CAS the unit is OWNED, and its children's
//! words mean nothing. An unused child cannot be claimed early: it is in quarantine, and the node
//! frees it only in an open unit.
//!
//! *Split* and *merge* have, because FREE children can be claimed at once. From
//! SPLITTING the only way is forward, from MERGING of the dead the only way is
//! back: a thawed child costs nothing, while going on would have to know that no
//! earlier thaw is still under way.
//!
//! *Taking over* raises the generation, so that of two who try only one goes on,
//! and nothing that the dead one sent can close the unit behind its successor.

use super::Pipe;
use super::geometry::Geometry;
use super::place::Place;
use super::release::Grant;
use super::rules::Bug;
use super::search::Area;
use super::step::{Actor, Answer, Failed, Operation, Step, Verb};
use super::swap::{Swap, Swapped};
use super::word::{State, Word};

/// How opening or closing ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reshaped {
    /// It is as was asked for. Of a publication: the children that were in use, each now held by a
    /// grant of its own.
    Done(Vec<Grant>),
    /// Nothing was changed, or what was is as before: the unit, whose word this is, does not allow
    /// it now (another was faster, a child is in use, it is worn).
    NotNow(Word),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Plan {
    /// With a bit for each child in use.
    Publish([u64; 8]),
    Split,
    Merge,
    /// Of whatever is found half-way.
    Finish,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// READ of the unit's word.
    Look,
    /// READ of the children's.
    Children,
    /// CAS of the unit's word to SPLITTING or MERGING.
    Enter,
    /// CAS of the children's words.
    Change,
    /// CAS of children's words back to FREE.
    Undo,
    /// CAS of the unit's word to its last state.
    Leave(State),
    Over(Result<Reshaped, Failed>),
}

/// Opens or closes one unit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reshape {
    actor: Actor,
    geometry: Geometry,
    place: Place,
    /// The unit's word as it is known to be.
    word: Word,
    plan: Plan,
    phase: Phase,
    pipe: Pipe,
    children: Area,
    swaps: Vec<Swap>,
    /// Children whose CAS took effect, by index.
    changed: Vec<u16>,
    /// A child was not in the state that the plan wants.
    stuck: bool,
}

impl Reshape {
    /// Publishes a unit that the actor's owner holds. A bit of `in_use` for each child that stays
    /// its own; of those that do not, no verb of its own should be under way. [`Failed::Lost`] if
    /// the unit is not held by that grant, or its children were prepared before in another way:
    /// then give it back as a whole.
    pub fn publish(actor: Actor, geometry: Geometry, grant: Grant, in_use: [u64; 8]) -> Reshape {
        let mut reshape = Reshape::new(actor, geometry, grant.place, Plan::Publish(in_use));
        reshape.word = grant.word;
        if actor.rules.broken(Bug::PublishParentFirst) {
            reshape.enter_leave(State::Shared);
        } else {
            reshape.enter_children();
        }
        reshape
    }

    /// Splits a FREE unit into FREE children.
    pub fn split(actor: Actor, geometry: Geometry, place: Place) -> Reshape {
        Reshape::looking(actor, geometry, place, Plan::Split)
    }

    /// Makes a unit whose children are all FREE one FREE unit again. The node's, or an agent's that
    /// it trusts: the guard lets no other.
    pub fn merge(actor: Actor, geometry: Geometry, place: Place) -> Reshape {
        Reshape::looking(actor, geometry, place, Plan::Merge)
    }

    /// Finishes a change that an owner left half-way: one that is dead, or the same owner before it
    /// restarted. `seen` is the unit's word. If it has changed since, another actor has taken over.
    pub fn finish(actor: Actor, geometry: Geometry, place: Place, seen: Word) -> Reshape {
        let mut reshape = Reshape::new(actor, geometry, place, Plan::Finish);
        reshape.word = seen;
        reshape.looked();
        reshape
    }

    fn looking(actor: Actor, geometry: Geometry, place: Place, plan: Plan) -> Reshape {
        let mut reshape = Reshape::new(actor, geometry, place, plan);
        reshape.pipe.push(0);
        reshape
    }

    fn new(actor: Actor, geometry: Geometry, place: Place, plan: Plan) -> Reshape {
        let (first, count) = geometry.children(place).expect("a chunk has no children to open");
        let children = Area { first, words: vec![Word::ZERO; count as usize] };
        let (swaps, changed) = (Vec::new(), Vec::new());
        let (phase, pipe) = (Phase::Look, Pipe::default());
        Reshape { actor, geometry, place, word: Word::ZERO, plan, phase, pipe, children, swaps, changed, stuck: false }
    }

    fn over(&mut self, outcome: Result<Reshaped, Failed>) {
        self.pipe.stop();
        self.phase = Phase::Over(outcome);
    }

    fn not_now(&mut self) {
        self.over(Ok(Reshaped::NotNow(self.word)));
    }

    /// The word was read: is there anything to do?
    fn looked(&mut self) {
        let whole = self.geometry.is_whole(self.place);
        let fresh = !self.word.generation().is_worn();
        match (&self.plan, self.word.state()) {
            (Plan::Split, State::Free) if fresh => self.enter(State::Splitting),
            (Plan::Merge, State::Shared) if fresh && whole => self.enter_children(),
            // Its own unit: there is no one to take it over from, and the guard would refuse that.
            // Verbs of its former incarnation that are still under way do the same as this one.
            (Plan::Finish, State::Splitting) if self.word.owner() == self.actor.owner => self.enter_children(),
            (Plan::Finish, state @ (State::Splitting | State::Merging)) => self.enter(state),
            _ => self.not_now(),
        }
    }

    fn enter_children(&mut self) {
        self.phase = Phase::Children;
        self.pipe.fill(self.children.reads());
    }

    fn enter(&mut self, state: State) {
        let new = self.actor.named(self.word, state, 0);
        self.one_swap(Phase::Enter, new);
    }

    fn enter_leave(&mut self, state: State) {
        let new = self.actor.plain(self.word, state);
        self.one_swap(Phase::Leave(state), new);
    }

    fn one_swap(&mut self, phase: Phase, new: Word) {
        self.phase = phase;
        self.swaps = vec![Swap::new(self.place, self.word, new)];
        self.pipe.push(0);
    }

    /// The word that a child shall get: None if it may stay; Err if it must not be as it is.
    fn wanted(&self, child: usize, word: Word) -> Result<Option<Word>, ()> {
        match &self.plan {
            Plan::Publish(in_use) => match (in_use[child / 64] >> (child % 64) & 1 == 1, word.state()) {
                (true, State::Absent) => Ok(Some(self.actor.named(word, State::Owned, 0))),
                (true, State::Owned) if word.owner() == self.actor.owner => Ok(None),
                (false, State::Absent) if self.actor.rules.broken(Bug::PublishWithoutQuarantine) => {
                    Ok(Some(self.actor.plain(word, State::Free)))
                }
                (false, State::Absent) => Ok(Some(self.actor.plain(word, State::Quarantine))),
                (false, State::Quarantine | State::Bad) => Ok(None),
                _ => Err(()),
            },
            Plan::Merge => match word.state() {
                // A worn one would go round with every merge and split, until its words came back.
                State::Free if !word.generation().is_worn() => Ok(Some(self.actor.plain(word, State::Absent))),
                _ => Err(()),
            },
            Plan::Split | Plan::Finish => match word.state() {
                State::Absent => Ok(Some(self.actor.plain(word, State::Free))),
                _ => Ok(None),
            },
        }
    }

    fn enter_change(&mut self) {
        self.phase = Phase::Change;
        self.swaps.clear();
        self.changed.clear();
        for child in 0..self.children.words.len() {
            let word = self.children.words[child];
            match self.wanted(child, word) {
                Ok(Some(new)) => self.swaps.push(Swap::new(self.children.first.plus(child as u32), word, new)),
                Ok(None) => {}
                Err(()) => self.stuck = true,
            }
        }
        if self.stuck || (self.is_merge() && self.actor.rules.broken(Bug::MergeWithoutFreeze)) {
            self.swaps.clear();
        }
        self.pipe.fill(self.swaps.len());
    }

    fn is_merge(&self) -> bool {
        self.plan == Plan::Merge
    }

    /// With a seeded bug the unit is opened first.
    fn is_too_early(&self) -> bool {
        let bug = if let Plan::Publish(_) = self.plan { Bug::PublishParentFirst } else { Bug::SplitParentFirst };
        self.actor.rules.broken(bug) && !self.is_merge()
    }

    fn enter_undo(&mut self) {
        self.phase = Phase::Undo;
        self.swaps.clear();
        if self.actor.rules.broken(Bug::MergeWithoutThaw) {
            return;
        }
        for &child in &self.changed {
            let word = self.children.words[child as usize];
            let place = self.children.first.plus(child as u32);
            self.swaps.push(Swap::new(place, word, self.actor.plain(word, State::Free)));
        }
        self.pipe.fill(self.swaps.len());
    }

    /// All answers of a phase are there.
    fn advance(&mut self) {
        let rules = self.actor.rules;
        match self.phase {
            Phase::Look => self.looked(),
            // A look before the parent is frozen spares a useless merge.
            Phase::Children if self.is_merge() && self.word.is(State::Shared) => {
                if self.children.words.iter().any(|&word| self.wanted(0, word).is_err()) {
                    self.not_now();
                } else if rules.broken(Bug::MergeWithoutParent) {
                    self.enter_change();
                } else {
                    self.enter(State::Merging);
                }
            }
            Phase::Enter if self.is_merge() => self.enter_change(),
            Phase::Enter if self.word.is(State::Splitting) && self.is_too_early() => self.enter_leave(State::Shared),
            Phase::Enter => self.enter_children(),
            Phase::Children => self.enter_change(),
            Phase::Change => match self.plan {
                Plan::Publish(_) if self.stuck => self.over(Err(Failed::Lost)),
                Plan::Publish(_) if self.word.is(State::Shared) => self.done(),
                Plan::Merge if self.stuck => self.enter_undo(),
                Plan::Merge => self.enter_leave(State::Free),
                _ if self.word.is(State::Shared) => self.done(),
                _ => self.enter_leave(State::Shared),
            },
            Phase::Undo => self.enter_leave(State::Shared),
            _ => {}
        }
    }

    fn done(&mut self) {
        let mut grants = Vec::new();
        if let Plan::Publish(_) = self.plan {
            let held = self.children.words.iter().enumerate().filter(|(_, word)| word.is_held_by(self.actor.owner));
            grants.extend(held.map(|(at, &word)| Grant { place: self.children.first.plus(at as u32), word }));
        }
        self.over(Ok(Reshaped::Done(grants)));
    }

    fn swapped(&mut self, number: usize, answer: Answer<'_>) {
        let swapped = self.swaps[number].answer(answer, self.actor.rules);
        let Swap { place, new, .. } = self.swaps[number];
        match (swapped, self.phase.clone()) {
            (Err(failed), _) => self.over(Err(failed)),
            (Ok(Swapped::Again), _) => self.pipe.push(number),
            (Ok(Swapped::Took | Swapped::Moved(_)), Phase::Enter) => self.word = new,
            (Ok(Swapped::Took | Swapped::Moved(_)), Phase::Leave(_)) => {
                self.word = new;
                match self.phase {
                    Phase::Leave(State::Shared) if self.is_too_early() => self.enter_children(),
                    Phase::Leave(State::Shared) if self.is_merge() => self.not_now(),
                    _ => self.done(),
                }
            }
            (Ok(Swapped::Failed(found)), Phase::Enter | Phase::Leave(_)) => {
                self.word = found;
                match self.plan {
                    Plan::Publish(_) => self.over(Err(Failed::Lost)),
                    _ => self.not_now(),
                }
            }
            (Ok(Swapped::Took), _) => {
                self.children.found(place, new);
                self.changed.push((place.index - self.children.first.index) as u16);
            }
            // Another actor claimed a thawed child before the answer came: as it should be.
            (Ok(Swapped::Moved(_)), Phase::Undo) => {}
            // A child that another owner holds now was never frozen: only this operation moves a
            // frozen one. A child that was split off may have any owner: `wanted` decides.
            (Ok(Swapped::Failed(found) | Swapped::Moved(found)), Phase::Change) => {
                self.children.found(place, found);
                let child = (place.index - self.children.first.index) as usize;
                match self.wanted(child, found) {
                    Ok(Some(new)) => {
                        self.swaps[number] = Swap::new(place, found, new);
                        self.pipe.push(number);
                    }
                    Ok(None) => {}
                    Err(()) => self.stuck = true,
                }
            }
            (Ok(Swapped::Failed(_) | Swapped::Moved(_)), _) => {}
        }
    }
}

impl Operation for Reshape {
    type Outcome = Result<Reshaped, Failed>;

    fn step(&mut self) -> Step<Self::Outcome> {
        loop {
            if let Some(number) = self.pipe.post() {
                return Step::Verb(match self.phase {
                    Phase::Look => Verb::read(self.place, 1),
                    Phase::Children => self.children.read(number),
                    _ => self.swaps[number].verb(self.actor.rules),
                });
            }
            if !self.pipe.is_idle() {
                return Step::Wait;
            }
            if let Phase::Over(outcome) = &self.phase {
                return Step::Done(outcome.clone());
            }
            self.advance();
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        let Some(number) = self.pipe.answered() else { return };
        match (&self.phase, answer) {
            (Phase::Over(_), _) => {}
            (_, Answer::Refused) => self.over(Err(Failed::Fenced)),
            (Phase::Look, Answer::Words(&[word])) => self.word = Word(word),
            (Phase::Children, Answer::Words(words)) => {
                if !self.children.fill(number, words) {
                    self.pipe.push(number);
                }
            }
            // A READ whose answer was lost.
            (Phase::Look | Phase::Children, _) => self.pipe.push(number),
            _ => self.swapped(number, answer),
        }
    }
}
