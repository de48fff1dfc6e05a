//! A node, its clients, and everything that can happen next.
//!
//! ```text
//!  client: program ─► operation ─► verbs, in order ─►┐            ┌─ bytes under way ─► land
//!                                    lost: late, ───►├─► NIC ─────┤
//!                                    or never        │  (guard)   └─ words
//!  daemon: reclaim, merge, split, recover ──────────►┘
//! ```
//!
//! One [`Move`] is one verb's effect, or one event of the node or the network;
//! what a client does between two answers touches nobody and is part of the
//! move. The operations are the production code. After every move the words are
//! recounted, and held against what the clients believe.

use crate::liar::Liar;
use crate::memory::Memory;
use crate::moves::Move;
use crate::scenario::Scenario;
use crate::task::Task;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::{
    Actor, Answer, Claimant, Claimer, Generation, Grant, Level, Operation, Owner, Place, Reclaim, Recover, Reshape,
    State, Step, Target, Verb, Word,
};
use std::collections::VecDeque;

/// What a client is about.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    /// Its claimer is at work.
    Claim,
    Task(Task),
}

/// What a queue pair carries.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Words(Verb),
    /// WRITE of a unit's bytes; stale if the client itself knows that it must not.
    Bytes {
        grant: Grant,
        stale: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub actor: Actor,
    /// The incarnation that its queue pair is bound to.
    pub incarnation: u32,
    pub at: u16,
    pub doing: Option<Doing>,
    pub claimer: Claimer,
    pub queue: VecDeque<Item>,
    pub held: Vec<Grant>,
    pub given: Option<Grant>,
    /// Its lease is over and it knows.
    pub out: bool,
}

/// Bytes that were admitted and have not landed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub owner: Owner,
    pub place: Place,
    /// A drain waits for it.
    pub awaited: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Daemon {
    pub doing: Option<Task>,
    pub queue: VecDeque<Verb>,
    pub draining: bool,
    /// It was restarted, and has not yet looked for what its predecessor left.
    pub fresh: bool,
}

/// Everything, at one moment.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The node's memory.
    pub memory: Memory,
    pub(crate) clients: Vec<Client>,
    pub(crate) daemon: Daemon,
    /// Client, the incarnation its queue pair was bound to, the verb.
    pub(crate) late: Vec<(u8, u32, Verb)>,
    pub(crate) flying: Vec<Flight>,
    pub(crate) losses: u16,
    pub(crate) expiries: u16,
    pub(crate) crashes: u16,
    pub(crate) merges: u16,
    pub(crate) splits: u16,
    pub(crate) liar: Liar,
}

/// What must not be.
pub type Violation = String;

impl World {
    /// The beginning of a scenario.
    pub fn new(scenario: &Scenario) -> World {
        let clients = scenario
            .clients
            .iter()
            .map(|&(owner, claimant, _)| {
                let mut actor = Actor::new(Owner::new(owner), Claimant::new(claimant));
                actor.rules = scenario.rules;
                Client {
                    actor,
                    incarnation: 0,
                    at: 0,
                    doing: None,
                    claimer: Claimer::new(actor, scenario.geometry),
                    queue: VecDeque::new(),
                    held: Vec::new(),
                    given: None,
                    out: false,
                }
            })
            .collect();
        let mut memory = Memory::new(scenario.geometry, scenario.whole, scenario.generation);
        for index in (0..scenario.geometry.count(Level::Block)).filter(|index| !scenario.blocks.contains(index)) {
            if !scenario.blocks.is_empty() {
                memory.set(Place::block(index), Word::plain(State::Bad, Generation::WORN));
            }
        }
        let mut world = World {
            memory,
            clients,
            daemon: Daemon::default(),
            late: Vec::new(),
            flying: Vec::new(),
            losses: scenario.losses,
            expiries: scenario.expiries,
            crashes: scenario.crashes,
            merges: scenario.merges,
            splits: scenario.splits,
            liar: Liar::new(scenario),
        };
        for client in 0..world.clients.len() {
            world.pump(scenario, client).expect("nothing is wrong before anything happened");
        }
        world
    }

    /// Everything that can happen now.
    pub fn moves(&self, scenario: &Scenario) -> Vec<Move> {
        let mut moves = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let number = number as u8;
            match client.queue.front() {
                Some(item) => {
                    moves.push(Move::Client(number));
                    if self.losses > 0 && matches!(item, Item::Words(Verb::Cas { .. })) {
                        moves.push(Move::Lose(number));
                    }
                }
                None if self.can_start(scenario, client) => moves.push(Move::Client(number)),
                None if scenario.rejoins && self.can_rejoin(client) => moves.push(Move::Rejoin(number)),
                None => {}
            }
        }
        moves.extend((0..self.late.len()).map(|at| Move::Late(at as u8)));
        moves.extend((0..self.flying.len()).map(|at| Move::Land(at as u8)));
        self.node_moves(scenario, &mut moves);
        self.liar_moves(scenario, &mut moves);
        moves
    }

    /// Makes a move. Err: something must not be.
    pub fn make(&mut self, scenario: &Scenario, movement: Move) -> Result<(), Violation> {
        match movement {
            Move::Client(number) => self.client_moves(scenario, number as usize)?,
            Move::Lose(number) => {
                self.losses -= 1;
                if let Some(Item::Words(verb)) = self.clients[number as usize].queue.pop_front() {
                    let incarnation = self.clients[number as usize].incarnation;
                    self.late.push((number, incarnation, verb));
                }
                self.answer(number as usize, Answer::Unknown);
                self.pump(scenario, number as usize)?;
            }
            Move::Late(at) => {
                let (number, bound, verb) = self.late.remove(at as usize);
                // The queue pair that it came by, which may be gone since.
                let now = std::mem::replace(&mut self.clients[number as usize].incarnation, bound);
                if !scenario.binds {
                    self.clients[number as usize].incarnation = now;
                }
                let carried_out = self.carry_out(scenario, number as usize, &verb);
                self.clients[number as usize].incarnation = now;
                carried_out?;
            }
            Move::Land(at) => self.land(at as usize)?,
            Move::Reclaim(place) => {
                let reclaim = Reclaim::new(self.node(scenario), scenario.geometry, place);
                self.daemon_starts(Task::Reclaim(Box::new(reclaim)));
            }
            Move::Merge(place) => {
                self.merges -= 1;
                self.daemon_starts(Task::reshape(Reshape::merge(self.node(scenario), scenario.geometry, place)));
            }
            Move::Split(place) => {
                self.splits -= 1;
                self.daemon_starts(Task::reshape(Reshape::split(self.node(scenario), scenario.geometry, place)));
            }
            Move::Recover(owner) => {
                self.daemon.fresh = false;
                let recover = Recover::new(self.node(scenario), scenario.geometry, owner);
                self.daemon_starts(Task::Recover(Box::new(recover)));
            }
            Move::Daemon => {
                let verb = self.daemon.queue.pop_front().ok_or("no verb of the daemon")?;
                match verb {
                    Verb::Read { .. } => {
                        let words = self.memory.read(&verb);
                        self.daemon_answered(Answer::Words(&words));
                    }
                    Verb::Cas { .. } => {
                        let found = self.cas(&verb)?;
                        self.daemon_answered(Answer::Found(found));
                    }
                }
            }
            Move::Ready => {
                if !self.daemon.draining
                    && let Some(Task::Reclaim(reclaim)) = &mut self.daemon.doing
                    && let Step::Scrub(place, _) = reclaim.step()
                {
                    for chunk in scenario.geometry.chunks(place) {
                        self.memory.bytes[chunk as usize] = Owner::NODE;
                    }
                }
                self.daemon_answered(Answer::Ready);
            }
            Move::Crash => {
                self.crashes -= 1;
                self.await_all(false);
                self.daemon = Daemon { fresh: true, ..Daemon::default() };
            }
            Move::Expire(owner) => {
                self.expiries -= 1;
                let word = self.memory.owner(owner).fenced().ok_or("only the living are fenced")?;
                self.memory.set_owner(owner, word);
            }
            Move::Die(owner) => {
                let word = self.memory.owner(owner).died().ok_or("only the fenced die")?;
                self.memory.set_owner(owner, word);
                // Its connections are gone, and with them what was on its way.
                if scenario.fences {
                    let clients = &self.clients;
                    self.late.retain(|(number, ..)| clients[*number as usize].actor.owner != owner);
                }
            }
            Move::Vacate(owner) => {
                let word = self.memory.owner(owner).vacated().ok_or("only the dead leave")?;
                self.memory.set_owner(owner, word);
            }
            Move::Rejoin(number) => self.rejoin(scenario, number as usize)?,
            Move::Lie(..) | Move::Ask(_) | Move::Swap(_) | Move::Intrude(_) => {
                self.liar_moves_on(scenario, movement)?
            }
        }
        self.judge(scenario)
    }

    /// Whether a client has posted a READ of words beside a CAS.
    pub(crate) fn is_reading_ahead(&self) -> bool {
        let is_cas = |item: &Item| matches!(item, Item::Words(Verb::Cas { .. }));
        let is_line = |item: &Item| matches!(item, Item::Words(Verb::Read { at: Target::Word(_), .. }));
        self.clients.iter().any(|client| client.queue.iter().any(is_cas) && client.queue.back().is_some_and(is_line))
    }
}
