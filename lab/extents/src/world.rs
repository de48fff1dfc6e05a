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
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::rules::Rules;
use farmem_protocol::extent::{
    Actor, Answer, Claimant, Claimer, Geometry, Grant, Level, Operation, Owner, Place, Reclaim, Recover, Release,
    Reshape, State, Step, Verb, Word,
};
use std::collections::VecDeque;

/// What a client does next in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Claim one unit.
    Claim(Level),
    /// Claim so many neighbours.
    Run(Level, u32),
    /// Claim up to so many anywhere.
    Some(Level, u32),
    /// Give back the unit held longest.
    Release,
    /// Publish the block or giant held longest, with these children in use.
    Publish(u64),
    /// Split the first unit of the level that is FREE (as the client sees it without a verb).
    Split(Level),
    /// Merge the first unit of the level that is SHARED. Only of use to those whom the node trusts.
    Merge(Level),
    /// Write to the unit held longest.
    Write,
    /// Write to the unit given back last, which must be refused.
    WriteAfterFree,
    /// Recover the owner, once it is dead.
    Recover(Owner),
}

/// What there is, and what may go wrong.
#[derive(Clone)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The node's memory.
    pub geometry: Geometry,
    /// Giants in one piece at the start.
    pub whole: u32,
    /// Owner, claimant and program of each client.
    pub clients: Vec<(u16, u16, Vec<Action>)>,
    /// Answers that may be lost.
    pub losses: u16,
    /// Owners whose lease may expire: as many, of those whose bit is set.
    pub expiries: u16,
    /// Bits of owners.
    pub mortal: u64,
    /// Bits of owners whose verbs the guard lets pass.
    pub trusted: u64,
    /// Times the daemon may die.
    pub crashes: u16,
    /// Merges and splits that the daemon may begin.
    pub merges: u16,
    /// Splits that the daemon may begin.
    pub splits: u16,
    /// The rules that operations keep.
    pub rules: Rules,
    /// Whether an expired owner is fenced: its verbs refused.
    pub fences: bool,
    /// Whether fenced owners' bytes under way have ended before they count as dead.
    pub drains_the_dead: bool,
    /// Whether a queue pair is bound to the incarnation that made it.
    pub binds: bool,
    /// Whether a drain waits for verbs on words, too.
    pub drains_words: bool,
    /// Whether the node frees units inside units that are not open (with the seeded bug).
    pub eager: bool,
    /// What all generations are at the start.
    pub generation: u32,
    /// CAS and WRITEs that the last owner of the table, who has no program, makes up by itself.
    pub lies: (u16, u16),
    /// Whether clients whose lease has ended register anew and go on.
    pub rejoins: bool,
}

/// An operation under way.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Claim,
    Release(Release),
    Reshape(Box<Reshape>),
    Reclaim(Box<Reclaim>),
    Recover(Box<Recover>),
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
    pub doing: Option<Doing>,
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

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Move {
    /// The oldest verb of a client takes effect and is answered.
    Client(u8),
    /// Its answer is lost; whether it takes effect is open.
    Lose(u8),
    /// A verb whose answer was lost takes effect.
    Late(u8),
    /// Bytes land.
    Land(u8),
    /// The daemon begins with a unit in quarantine.
    Reclaim(Place),
    /// The daemon begins a merge.
    Merge(Place),
    /// The daemon begins a split.
    Split(Place),
    /// The daemon begins a recovery; of the node itself: after a restart.
    Recover(Owner),
    /// The daemon's oldest verb takes effect and is answered.
    Daemon,
    /// The daemon's drain or scrub has ended.
    Ready,
    /// The daemon dies and is started again.
    Crash,
    /// An owner's lease expires.
    Expire(Owner),
    /// Nothing of a fenced owner is under way any more.
    Die(Owner),
    /// No word names a dead owner.
    Vacate(Owner),
    /// A client whose lease has ended is another incarnation now.
    Rejoin(u8),
    /// The NIC loads a word for a made-up CAS of the liar's queue pair, to this state.
    Lie(u8, Place, State),
    /// The guard is asked about it.
    Ask(u8),
    /// It is carried out.
    Swap(u8),
    /// The liar writes wherever it is admitted.
    Intrude(Place),
}

impl Move {
    /// Whether it need not happen.
    pub fn is_misfortune(self) -> bool {
        matches!(
            self,
            Move::Lose(_)
                | Move::Late(_)
                | Move::Crash
                | Move::Expire(_)
                | Move::Merge(_)
                | Move::Split(_)
                | Move::Lie(..)
                | Move::Intrude(_)
        )
    }
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
        let mut world = World {
            memory: Memory::new(scenario.geometry, scenario.whole, scenario.generation),
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
                self.daemon_starts(Doing::Reclaim(Box::new(reclaim)));
            }
            Move::Merge(place) => {
                self.merges -= 1;
                self.daemon_starts(Doing::Reshape(Box::new(Reshape::merge(
                    self.node(scenario),
                    scenario.geometry,
                    place,
                ))));
            }
            Move::Split(place) => {
                self.splits -= 1;
                self.daemon_starts(Doing::Reshape(Box::new(Reshape::split(
                    self.node(scenario),
                    scenario.geometry,
                    place,
                ))));
            }
            Move::Recover(owner) => {
                self.daemon.fresh = false;
                self.daemon_starts(Doing::Recover(Box::new(Recover::new(
                    self.node(scenario),
                    scenario.geometry,
                    owner,
                ))));
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
                    && let Some(Doing::Reclaim(reclaim)) = &mut self.daemon.doing
                    && let Step::Scrub(place) = reclaim.step()
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

    /// Words and leases, for a trace.
    pub fn sketch(&self) -> String {
        let words: Vec<String> = self
            .memory
            .places()
            .filter(|&place| self.memory.word(place) != Word::ZERO)
            .map(|place| format!("{place:?}={:?}", self.memory.word(place)))
            .collect();
        words.join(" ")
    }

    /// What a move is about, for a trace.
    pub fn describe(&self, movement: Move) -> String {
        let item = |number: u8| match self.clients[number as usize].queue.front() {
            Some(Item::Words(verb)) => show(verb),
            Some(Item::Bytes { grant, stale }) => {
                format!("WRITE to {:?}{}", grant.place, if *stale { " (stale)" } else { "" })
            }
            None => "begins".to_string(),
        };
        match movement {
            Move::Client(number) => format!("client {number}: {}", item(number)),
            Move::Lose(number) => format!("client {number}: {}, answer lost", item(number)),
            Move::Late(at) => {
                format!("late, of client {}: {}", self.late[at as usize].0, show(&self.late[at as usize].2))
            }
            Move::Land(at) => format!(
                "WRITE of owner {} lands in {:?}",
                self.flying[at as usize].owner.slot(),
                self.flying[at as usize].place
            ),
            Move::Daemon => format!("daemon: {}", self.daemon.queue.front().map(show).unwrap_or_default()),
            other => format!("{other:?}"),
        }
    }
}

fn show(verb: &Verb) -> String {
    match *verb {
        Verb::Read { at, words } => format!("READ {at:?} ×{words}"),
        Verb::Cas { at, old, new } => format!("CAS {at:?} {:?} → {:?}", Word(old), Word(new)),
    }
}
