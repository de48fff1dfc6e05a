//! The node's daemon, and what becomes of leases.

use crate::moves::Move;
use crate::scenario::Scenario;
use crate::task::Task;
use crate::world::{Daemon, World};
use farmem_protocol::extent::check::is_named;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::Lease;
use farmem_protocol::extent::{Actor, Answer, Level, Operation, Owner, State, Step};

impl World {
    pub(crate) fn node_moves(&self, scenario: &Scenario, moves: &mut Vec<Move>) {
        let daemon = &self.daemon;
        if daemon.doing.is_some() {
            if !daemon.queue.is_empty() {
                moves.push(Move::Daemon);
            } else if !(daemon.draining && self.is_anything_awaited(scenario)) {
                moves.push(Move::Ready);
            }
            if self.crashes > 0 {
                moves.push(Move::Crash);
            }
        } else if daemon.fresh {
            moves.push(Move::Recover(Owner::NODE));
        } else {
            for place in self.memory.places() {
                let word = self.memory.word(place);
                let visible = self.memory.is_visible(place);
                match word.state() {
                    State::Quarantine if visible || scenario.eager => moves.push(Move::Reclaim(place)),
                    State::Shared if visible && self.merges > 0 && place.level != Level::Chunk => {
                        moves.push(Move::Merge(place));
                    }
                    State::Free if visible && self.splits > 0 && place.level != Level::Chunk => {
                        moves.push(Move::Split(place));
                    }
                    _ => {}
                }
            }
        }
        for slot in 1..scenario.geometry.owners() {
            let owner = Owner::new(slot);
            match self.memory.owner(owner).lease() {
                Lease::Live if self.expiries > 0 && scenario.mortal >> slot & 1 == 1 => {
                    moves.push(Move::Expire(owner));
                }
                Lease::Fenced
                    if (!scenario.drains_the_dead
                        || !self.flying.iter().any(|flight| flight.owner == owner)
                            && !self.liar.is_under_way(owner)) =>
                {
                    moves.push(Move::Die(owner));
                }
                Lease::Dead if daemon.doing.is_none() && !daemon.fresh => {
                    if self.is_left(owner) {
                        moves.push(Move::Recover(owner));
                    } else if !is_named(&scenario.geometry, &self.memory, owner) {
                        moves.push(Move::Vacate(owner));
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether there is something of an owner for a recovery to find.
    fn is_left(&self, owner: Owner) -> bool {
        self.memory.places().any(|place| {
            let word = self.memory.word(place);
            word.state().is_named() && word.owner() == owner && self.memory.is_visible(place)
        })
    }

    pub(crate) fn daemon_starts(&mut self, task: Task) {
        self.daemon.doing = Some(task);
        self.daemon_pumps();
    }

    pub(crate) fn daemon_answered(&mut self, answer: Answer<'_>) {
        self.daemon.draining = false;
        self.await_all(false);
        if let Some(task) = &mut self.daemon.doing {
            task.complete(answer);
        }
        self.daemon_pumps();
    }

    fn daemon_pumps(&mut self) {
        while let Some(task) = &mut self.daemon.doing {
            match task.step() {
                Step::Verb(verb) => self.daemon.queue.push_back(verb),
                Step::Drain => {
                    self.daemon.draining = true;
                    return self.await_all(true);
                }
                Step::Done(_) => self.daemon = Daemon::default(),
                Step::Wait | Step::Scrub(..) => return,
            }
        }
    }

    /// The node, by the scenario's rules.
    pub(crate) fn node(&self, scenario: &Scenario) -> Actor {
        let mut actor = Actor::NODE;
        actor.rules = scenario.rules;
        actor
    }

    /// A drain begins (or is over): everything under way is awaited (or no longer).
    pub(crate) fn await_all(&mut self, awaited: bool) {
        self.flying.iter_mut().for_each(|flight| flight.awaited = awaited);
        self.liar.await_all(awaited);
    }

    fn is_anything_awaited(&self, scenario: &Scenario) -> bool {
        self.flying.iter().any(|flight| flight.awaited) || (scenario.drains_words && self.liar.is_awaited())
    }
}
