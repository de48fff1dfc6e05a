//! A client: it runs its program through the real operations.

use crate::scenario::{Action, Scenario};
use crate::task::{Outcome, Task};
use crate::world::{Client, Doing, Item, Violation, World};
use farmem_protocol::extent::Want;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::Lease;
use farmem_protocol::extent::{
    Answer, Claimer, Failed, Level, Operation, Recover, Release, Reshape, State, Step, Target, Verb,
};

impl Client {
    /// The next step of what it is about, which is something.
    fn step(&mut self) -> Step<Outcome> {
        match self.doing.as_mut().expect("only who does something is asked") {
            Doing::Claim => self.claimer.step(),
            Doing::Task(task) => task.step(),
        }
    }
}

impl World {
    pub(crate) fn can_start(&self, scenario: &Scenario, client: &Client) -> bool {
        if client.out || client.doing.is_some() {
            return false;
        }
        let program = &scenario.clients[self.number(client)].2;
        match program.get(client.at as usize) {
            Some(Action::Recover(owner)) => self.memory.owner(*owner).lease() == Lease::Dead,
            _ => false,
        }
    }

    /// Whether a client can register anew, or use the new lease of its owner.
    pub(crate) fn can_rejoin(&self, client: &Client) -> bool {
        let word = self.memory.owner(client.actor.owner);
        client.out && (word.lease() == Lease::Vacant || word.lease() == Lease::Live && !word.admits(client.incarnation))
    }

    /// It does, with empty hands; and goes on with its program.
    pub(crate) fn rejoin(&mut self, scenario: &Scenario, number: usize) -> Result<(), Violation> {
        let owner = self.clients[number].actor.owner;
        if let Some(registered) = self.memory.owner(owner).registered() {
            self.memory.set_owner(owner, registered);
        }
        let client = &mut self.clients[number];
        client.incarnation = self.memory.owner(owner).incarnation();
        client.claimer = Claimer::new(client.actor, scenario.geometry);
        client.given = client.held.first().copied().or(client.given);
        client.held.clear();
        client.out = false;
        self.pump(scenario, number)
    }

    fn number(&self, client: &Client) -> usize {
        self.clients.iter().position(|other| std::ptr::eq(other, client)).expect("one of ours")
    }

    pub(crate) fn answer(&mut self, number: usize, answer: Answer<'_>) {
        let client = &mut self.clients[number];
        match &mut client.doing {
            Some(Doing::Claim) => client.claimer.complete(answer),
            Some(Doing::Task(task)) => task.complete(answer),
            None => {}
        }
    }

    /// A client goes on until it has to wait.
    pub(crate) fn pump(&mut self, scenario: &Scenario, number: usize) -> Result<(), Violation> {
        loop {
            if self.clients[number].out {
                return Ok(());
            }
            if self.clients[number].doing.is_none() {
                if !self.clients[number].queue.is_empty() || !self.start(scenario, number) {
                    return Ok(());
                }
                continue;
            }
            let client = &mut self.clients[number];
            let verb = match client.step() {
                Step::Verb(verb) => verb,
                Step::Done(outcome) => {
                    client.doing = None;
                    match outcome {
                        Ok(grants) => client.held.extend(grants),
                        Err(failed) => ended(client, number, failed)?,
                    }
                    continue;
                }
                Step::Wait => return Ok(()),
                Step::Drain | Step::Scrub(..) => return Err(format!("client {number} reclaims")),
            };
            // Hints may say anything, so it does not matter when they are read.
            if let Verb::Read { at: Target::Hint { .. }, .. } = verb
                && client.queue.is_empty()
            {
                let words = self.memory.read(&verb);
                self.answer(number, Answer::Words(&words));
                continue;
            }
            client.queue.push_back(Item::Words(verb));
        }
    }

    /// Begins the client's next action; false if there is none, or it must wait.
    fn start(&mut self, scenario: &Scenario, number: usize) -> bool {
        let geometry = scenario.geometry;
        let Some(&action) = scenario.clients[number].2.get(self.clients[number].at as usize) else { return false };
        if let Action::Recover(owner) = action
            && self.memory.owner(owner).lease() != Lease::Dead
        {
            return false;
        }
        let first = |level: Level, state: State| {
            let mut places = self.memory.places();
            places.find(|&place| place.level == level && self.memory.word(place).is(state))
        };
        let reshaped = match action {
            Action::Split(level) => first(level, State::Free),
            // Whom the node does not trust does not try.
            Action::Merge(level) if scenario.trusted >> self.clients[number].actor.owner.slot() & 1 == 1 => {
                first(level, State::Shared)
            }
            _ => None,
        };
        let client = &mut self.clients[number];
        client.at += 1;
        let actor = client.actor;
        let want = match action {
            Action::Claim(level) => Some(Want::one(level)),
            Action::Run(level, count) => Want::run(&geometry, level, count),
            Action::Some(level, count) => Some(Want::some(level, count)),
            _ => None,
        };
        if let Some(want) = want {
            client.claimer.begin(want);
            client.doing = Some(Doing::Claim);
        }
        match action {
            Action::Release if !client.held.is_empty() => {
                let grant = client.held.remove(0);
                client.given = Some(grant);
                client.doing = Some(Doing::Task(Task::Release(Release::new(actor, grant))));
            }
            Action::Publish(in_use) => {
                if let Some(at) = client.held.iter().position(|grant| grant.place.level != Level::Chunk) {
                    let grant = client.held.remove(at);
                    let reshape = Reshape::publish(actor, geometry, grant, [in_use, 0, 0, 0, 0, 0, 0, 0]);
                    client.doing = Some(Doing::Task(Task::reshape(reshape)));
                }
            }
            Action::Split(_) => {
                if let Some(place) = reshaped {
                    client.doing = Some(Doing::Task(Task::reshape(Reshape::split(actor, geometry, place))));
                }
            }
            Action::Merge(_) => {
                if let Some(place) = reshaped {
                    client.doing = Some(Doing::Task(Task::reshape(Reshape::merge(actor, geometry, place))));
                }
            }
            Action::Write => {
                if let Some(&grant) = client.held.first() {
                    client.queue.push_back(Item::Bytes { grant, stale: false });
                }
            }
            Action::WriteAfterFree => {
                if let Some(grant) = client.given {
                    client.queue.push_back(Item::Bytes { grant, stale: true });
                }
            }
            Action::Recover(owner) => {
                let recover = Recover::new(actor, geometry, owner);
                client.doing = Some(Doing::Task(Task::Recover(Box::new(recover))));
            }
            _ => {}
        }
        true
    }
}

/// An operation of a client has failed.
fn ended(client: &mut Client, number: usize, failed: Failed) -> Result<(), Violation> {
    match failed {
        Failed::Fenced => {
            client.out = true;
            client.queue.clear();
            Ok(())
        }
        Failed::NoSpace | Failed::Contended | Failed::OverQuota => Ok(()),
        Failed::Lost => Err(format!("client {number} lost what it held: {:?}", client.given)),
    }
}
