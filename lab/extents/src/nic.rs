//! The node's NIC: clients' verbs are admitted, take effect, and are judged.

use crate::scenario::Scenario;
use crate::world::{Flight, Item, Violation, World};
use farmem_protocol::extent::check::recount;
use farmem_protocol::extent::guard::{Charge, Words, admits, permits};
use farmem_protocol::extent::rules::Rules;
use farmem_protocol::extent::{Answer, Geometry, Place, State, Target, Verb, Word};

/// What became of a verb that came to the NIC.
pub(crate) enum Carried {
    Words(Vec<u64>),
    Found(u64),
    Refused,
    OverQuota,
}

impl World {
    pub(crate) fn client_moves(&mut self, scenario: &Scenario, number: usize) -> Result<(), Violation> {
        match self.clients[number].queue.pop_front() {
            None => {}
            Some(Item::Bytes { grant, stale }) => {
                let actor = self.clients[number].actor;
                let live = self.is_admitted(scenario, number);
                let len = 1;
                if live && admits(&scenario.geometry, grant.key(), actor.owner, 0, len, &self.memory).is_ok() {
                    if stale {
                        return Err(format!("a key of {grant:?}, given back before, was admitted"));
                    }
                    self.flying.push(Flight { owner: actor.owner, place: grant.place, awaited: false });
                } else if live && !stale {
                    return Err(format!("the key of {grant:?}, which client {number} holds, was refused"));
                }
            }
            Some(Item::Words(verb)) => match self.carry_out(scenario, number, &verb)? {
                Carried::Words(words) => self.answer(number, Answer::Words(&words)),
                Carried::Found(found) => self.answer(number, Answer::Found(found)),
                Carried::Refused => self.answer(number, Answer::Refused),
                Carried::OverQuota => self.answer(number, Answer::OverQuota),
            },
        }
        self.pump(scenario, number)
    }

    /// A verb of a client comes to the NIC.
    pub(crate) fn carry_out(&mut self, scenario: &Scenario, number: usize, verb: &Verb) -> Result<Carried, Violation> {
        if !self.is_admitted(scenario, number) {
            return Ok(Carried::Refused);
        }
        match *verb {
            Verb::Read { .. } => Ok(Carried::Words(self.memory.read(verb))),
            Verb::Cas { at, old, new } => {
                let Target::Word(place) = at else { return Err("a CAS of no descriptor word".into()) };
                let found = self.memory.word(place);
                let owner = self.clients[number].actor.owner;
                if found.0 == old && scenario.fences && scenario.trusted >> owner.slot() & 1 == 0 {
                    match permits(&scenario.geometry, place, found, Word(new), owner, &self.memory) {
                        Ok(charge) if self.is_beyond(scenario, charge) => return Ok(Carried::OverQuota),
                        Ok(_) => {}
                        Err(denied) if scenario.rules == Rules::SOUND => {
                            let new = Word(new);
                            return Err(format!("an honest CAS of {place:?} {found:?} → {new:?} was denied: {denied}"));
                        }
                        Err(_) => {}
                    }
                }
                self.cas(verb).map(Carried::Found)
            }
        }
    }

    /// Whether what a CAS costs is more than its owner may hold.
    fn is_beyond(&self, scenario: &Scenario, charge: Charge) -> bool {
        let held = || recount(&scenario.geometry, &self.memory).held.get(&charge.owner).copied().unwrap_or(0);
        charge.chunks > 0 && scenario.quota.is_some_and(|quota| held() + charge.chunks as u64 > quota)
    }

    pub(crate) fn is_admitted(&self, scenario: &Scenario, number: usize) -> bool {
        let client = &self.clients[number];
        !scenario.fences || self.memory.owner(client.actor.owner).admits(client.incarnation)
    }

    /// A CAS takes effect, perhaps.
    pub(crate) fn cas(&mut self, verb: &Verb) -> Result<u64, Violation> {
        let Verb::Cas { at: Target::Word(place), old, new } = *verb else { return Err("not a CAS of a word".into()) };
        let (found, new) = (self.memory.word(place), Word(new));
        if found.0 != old {
            return Ok(found.0);
        }
        self.memory.set(place, new);
        let geometry = *self.memory.geometry();
        let chunks = geometry.chunks(place);
        if new.is(State::Free) {
            if let Some(chunk) = chunks.clone().find(|&chunk| !self.memory.bytes[chunk as usize].is_node()) {
                let whose = self.memory.bytes[chunk as usize];
                return Err(format!("{place:?} is free with bytes of owner {} in it", whose.slot()));
            }
            if self.flying.iter().any(|flight| overlap(&geometry, flight.place, place)) {
                return Err(format!("{place:?} is free with a WRITE to it still under way"));
            }
        }
        if found.is(State::Free) && new.is(State::Owned) {
            // Whoever holds a unit has written to all of it.
            for chunk in chunks {
                self.memory.bytes[chunk as usize] = new.owner();
            }
        }
        Ok(found.0)
    }

    pub(crate) fn land(&mut self, at: usize) -> Result<(), Violation> {
        let flight = self.flying.remove(at);
        for chunk in self.memory.geometry().chunks(flight.place) {
            let word = self.memory.word(self.memory.speaker(chunk));
            if !word.is(State::Quarantine) && !word.is_held_by(flight.owner) {
                return Err(format!("a WRITE of owner {} lands in {word:?}", flight.owner.slot()));
            }
            self.memory.bytes[chunk as usize] = flight.owner;
        }
        Ok(())
    }
}

fn overlap(geometry: &Geometry, one: Place, other: Place) -> bool {
    let (one, other) = (geometry.chunks(one), geometry.chunks(other));
    one.start < other.end && other.start < one.end
}
