//! The node's daemon, and what becomes of leases.

use crate::world::{Daemon, Doing, Move, Scenario, World};
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

    pub(crate) fn daemon_starts(&mut self, doing: Doing) {
        self.daemon.doing = Some(doing);
        self.daemon_pumps();
    }

    pub(crate) fn daemon_answered(&mut self, answer: Answer<'_>) {
        self.daemon.draining = false;
        self.await_all(false);
        match &mut self.daemon.doing {
            Some(Doing::Reclaim(reclaim)) => reclaim.complete(answer),
            Some(Doing::Reshape(reshape)) => reshape.complete(answer),
            Some(Doing::Recover(recover)) => recover.complete(answer),
            _ => {}
        }
        self.daemon_pumps();
    }

    fn daemon_pumps(&mut self) {
        loop {
            let (verb, over) = match &mut self.daemon.doing {
                Some(Doing::Reclaim(reclaim)) => match reclaim.step() {
                    Step::Verb(verb) => (Some(verb), false),
                    Step::Drain => {
                        self.daemon.draining = true;
                        self.await_all(true);
                        (None, false)
                    }
                    step => (None, matches!(step, Step::Done(_))),
                },
                Some(Doing::Reshape(reshape)) => match reshape.step() {
                    Step::Verb(verb) => (Some(verb), false),
                    step => (None, matches!(step, Step::Done(_))),
                },
                Some(Doing::Recover(recover)) => match recover.step() {
                    Step::Verb(verb) => (Some(verb), false),
                    step => (None, matches!(step, Step::Done(_))),
                },
                _ => return,
            };
            match verb {
                Some(verb) => self.daemon.queue.push_back(verb),
                None => {
                    if over {
                        self.daemon = Daemon::default();
                    }
                    return;
                }
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
