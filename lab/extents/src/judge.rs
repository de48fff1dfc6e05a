//! What must hold after every move, and at the end.

use crate::scenario::Scenario;
use crate::world::{Client, Violation, World};
use farmem_protocol::extent::check::recount;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::{Level, State};

impl World {
    /// What must hold after every move.
    pub(crate) fn judge(&self, scenario: &Scenario) -> Result<(), Violation> {
        let count = recount(&scenario.geometry, &self.memory);
        if let Some(problem) = count.problems.first() {
            return Err(problem.to_string());
        }
        if count.total() != scenario.geometry.count(Level::Chunk) as u64 {
            return Err(format!("{} chunks are accounted for", count.total()));
        }
        for (number, client) in self.clients.iter().enumerate() {
            // Whom the node has given up may believe what it likes, if it is fenced.
            if client.out || (scenario.fences && !self.is_admitted(scenario, number)) {
                continue;
            }
            for grant in &client.held {
                let word = self.memory.word(grant.place);
                if word != grant.word || !self.memory.is_visible(grant.place) {
                    return Err(format!("client {number} lost {grant:?}, which is {word:?}"));
                }
                let others = self
                    .clients
                    .iter()
                    .filter(|other| !std::ptr::eq(*other, client) && other.actor.owner == client.actor.owner);
                if others.into_iter().any(|other| !other.out && other.held.contains(grant)) {
                    return Err(format!("two clients hold {grant:?}"));
                }
            }
        }
        Ok(())
    }

    /// What must hold when nothing need happen any more.
    pub fn judge_end(&self, scenario: &Scenario) -> Result<(), Violation> {
        if self.is_liar_about(scenario) {
            return Ok(());
        }
        let count = recount(&scenario.geometry, &self.memory);
        if count.moving > 0 || count.quarantined > 0 {
            return Err(format!("{} chunks are in transition for ever", count.moving + count.quarantined));
        }
        for place in self.memory.places().filter(|&place| self.memory.is_visible(place)) {
            let word = self.memory.word(place);
            // A CAS that was refused for the quota may take effect late: the claimer knows of it.
            let knows = |client: &Client| {
                client.held.iter().any(|grant| grant.place == place) || client.claimer.unsettled().any(|at| at == place)
            };
            let holds = |client: &Client| !client.out && knows(client);
            if word.is(State::Owned) && !self.clients.iter().any(holds) {
                return Err(format!("{place:?} = {word:?} is held by nobody who knows"));
            }
            if matches!(word.state(), State::Splitting | State::Merging) {
                return Err(format!("{place:?} = {word:?} for ever"));
            }
        }
        let stuck = self.clients.iter().position(|client| !client.out && client.doing.is_some());
        if let Some(number) = stuck {
            return Err(format!("client {number} waits for ever"));
        }
        Ok(())
    }
}
