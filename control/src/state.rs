//! A controller's state and rules. Pure: time and randomness are arguments.
//!
//! ```text
//!            beat                  1 s without a beat        2 s
//!  (unknown) ────► Up ◄──────────────► Suspect ───────────────► Down
//!                  │ ▲ beat                                      │ beat
//!                  │ └───────────────────────────────────────────┘
//!                  └─ an operator drains the node, or it says that it is leaving: no run is given
//!                     it, and its runs are given others. It is empty when nothing is lent.
//! ```
//!
//! Beats alone tell how much a node has lent. Only an [`Intent`] outlives the controller: that a
//! node belongs to the rack, that it is to be drained, and its shares of tenants' quotas. To
//! *drain* a node is to empty it. [`Action::Keep`] is carried out before the request is answered.
//!
//! A node that is down is given to no run. Runs that have it keep it until they find out by
//! themselves: the host process has the last word about its bytes.

mod shares;

pub use shares::MOST_QUOTAS;

use self::names::{is_text, name_is_good};
use crate::api::{Beat, Figures, MOST, Orders, Term};
use farmem_protocol::placement::Weights;
use serde::{Deserialize, Serialize};
use shares::Shares;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often a node says that it is there.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);
/// A node that has sent no beat for this long is given to no run.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// A node that has sent no beat for this long counts as down.
pub const DOWN_AFTER: Duration = Duration::from_secs(2);
/// A run that has not asked for this long counts as over.
const RUN_LASTS: Duration = Duration::from_secs(10);
/// A run that has not asked for this long is not named as one that holds memory: it has mostly ended.
const HOLDS: Duration = Duration::from_secs(3);
/// The least bytes that a run's nodes together have free, if the rack has them. So a run gets one
/// more node before it needs it.
pub const HEADROOM: u64 = 1 << 30;
/// A node with fewer bytes free is full: nothing smaller than a slab is lent to a run.
pub const LEAST_FREE: u64 = farmem_protocol::addr::SLAB_BYTES;
/// The most events that are kept for the operator's view.
const EVENTS: usize = 100;
/// The most nodes that a rack has.
const MOST_NODES: usize = 20_000;
/// The most runs that are known at a time. One tenant's may be half of what the others leave.
const MOST_RUNS: usize = 20_000;
/// The most bytes that a node is taken to lend, or to have lent.
const MOST_LENT: u64 = 1 << 48;

/// A part of the state that outlives the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// A node belongs to the rack, in this failure domain.
    Member {
        /// Its name.
        name: String,
        /// Its failure domain.
        domain: String,
    },
    /// A node belongs to the rack no longer.
    Forgotten {
        /// The name that it had.
        name: String,
    },
    /// A node is to be emptied, or no longer.
    Drain {
        /// Its name.
        name: String,
        /// Whether it is to be emptied.
        wanted: bool,
    },
    /// The most bytes that a node may let a tenant's programs hold.
    Share {
        /// The tenant's name.
        tenant: String,
        /// The node's.
        node: String,
        /// The bytes. 0: the node has no share.
        bytes: u64,
    },
}

/// Work that the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keep this intent in the store before the request is answered.
    Keep(Intent),
    /// Write this line to the log.
    Say(String),
}

/// Why a request is refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has a value that is not allowed.
    #[error("{0}")]
    Malformed(String),
    /// Two processes that are up use the same node name.
    #[error("another node of this rack calls itself {0} and is up: give this one a --name of its own")]
    NameTaken(String),
    /// Shares of quotas are with an earlier process of this name, at this other address.
    #[error(
        "the node {0} was at {1}, where it may still lend of tenants' quotas: start it there, give this one a --name \
         of its own, or say farmem forget {0} if the earlier one has ended"
    )]
    NameKept(String, String),
    /// No such node.
    #[error("no node of this rack is called {0}")]
    Unknown(String),
    /// The node is up, so it cannot be forgotten.
    #[error("{0} is up: drain it and stop it first")]
    IsUp(String),
    /// The name is another tenant's run's.
    #[error("a run of another tenant is called {0}: begin the program again")]
    OthersRun(String),
    /// Too many runs are known, or too many of one tenant.
    #[error("this rack knows {0} runs, of which the tenant has its part: wait until some have ended")]
    ManyRuns(usize),
    /// There is no node to give to the run.
    #[error("{0}")]
    NoNode(String),
    /// The request names a later leader.
    #[error("another controller leads the rack by now")]
    Deposed,
}

struct Node {
    /// Its place in [`State::seats`].
    seat: usize,
    domain: String,
    incarnation: u64,
    address: String,
    lends: u64,
    lent: u64,
    members: u64,
    /// Bytes read and written since the node's start, as of its last beat.
    moved: (u64, u64),
    /// Bytes read and written a second between the last two beats.
    rates: (u64, u64),
    leaving: bool,
    drain: bool,
    /// The most bytes that it had lent since its drain was ordered. 0: it is not drained.
    drain_from: u64,
    /// An answer to a beat has told the node that it is to be emptied. What an earlier beat says it has
    /// lent may be less than what it has granted since.
    knows_drain: bool,
    /// Whether the event "is empty" was reported.
    told_empty: bool,
    /// Bytes that runs may have taken since its last beat: [`HEADROOM`] for each run that was given
    /// the node. It is a guess. It decides which node is drawn, never whether one is full.
    placed: u64,
    /// When its last beat came. `None`: none came since this controller began.
    heard: Option<Duration>,
    standing: Standing,
    /// Since when it has lent more than it is willing to lend.
    pressed: Option<Duration>,
    /// When a run was last given other nodes because this one needs its memory.
    shed: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Up,
    Suspect,
    Down,
}

impl Node {
    /// A node that is known from the store alone, or is new.
    fn unheard(seat: usize, domain: String) -> Node {
        Node {
            seat,
            domain,
            incarnation: 0,
            address: String::new(),
            lends: 0,
            lent: 0,
            members: 0,
            moved: (0, 0),
            rates: (0, 0),
            leaving: false,
            drain: false,
            drain_from: 0,
            knows_drain: false,
            told_empty: false,
            placed: 0,
            heard: None,
            standing: Standing::Down,
            pressed: None,
            shed: None,
        }
    }

    fn free(&self) -> u64 {
        self.lends.saturating_sub(self.lent)
    }

    /// Whether runs may have the node. A full one counts: runs that have it keep it.
    fn is_open(&self) -> bool {
        self.standing == Standing::Up && !self.drain && !self.leaving
    }

    /// Whether the node may be given to a run that does not have it yet.
    fn has_room(&self) -> bool {
        self.is_open() && self.free() >= LEAST_FREE
    }

    /// Whether the node has lent more than it is willing to lend now. Its machine needs the memory.
    fn is_pressed(&self) -> bool {
        self.standing == Standing::Up && self.lent > self.lends
    }

    /// The node's state, as the operator's view shows it.
    fn shown(&self) -> &'static str {
        match self.standing {
            Standing::Down => "down",
            Standing::Suspect => "suspect",
            Standing::Up if self.told_empty => "empty",
            Standing::Up if self.drain => "draining",
            Standing::Up if self.leaving => "leaving",
            Standing::Up => "up",
        }
    }
}

struct Run {
    /// Its tenant. Empty: the controller asks for no tokens.
    tenant: String,
    host: String,
    /// The number of failure domains in which it wants nodes.
    domains: u32,
    nodes: Vec<String>,
    figures: Option<Figures>,
    /// When it last asked.
    asked: Duration,
}

/// The rack.
#[derive(Default)]
pub struct State {
    term: Term,
    nodes: BTreeMap<String, Node>,
    /// Node names by seat: a node's index in `open`. A seat that is empty has no weight, and is
    /// given to the next new node.
    seats: Vec<Option<String>>,
    /// By seat: MiB that the node lends, if it has room for another run; otherwise 0.
    open: Weights,
    /// Node names by address.
    at: BTreeMap<String, String>,
    runs: BTreeMap<String, Run>,
    shares: Shares,
    events: VecDeque<(Duration, String)>,
}

impl State {
    /// The state that kept intents describe, applied in their order. A node counts as down until
    /// its first beat.
    pub fn of(kept: impl IntoIterator<Item = Intent>) -> State {
        let mut state = State::default();
        for intent in kept {
            match intent {
                Intent::Member { name, domain } => {
                    state.seat(&name);
                    state.nodes.entry(name).and_modify(|node| node.domain = domain);
                }
                Intent::Forgotten { name } => state.unseat(&name),
                Intent::Drain { name, wanted } => {
                    if let Some(node) = state.nodes.get_mut(&name) {
                        node.drain = wanted;
                    }
                }
                Intent::Share { tenant, node, bytes } => state.shares.restore(tenant, node, bytes),
            }
        }
        state
    }

    /// The same state, led in this term.
    pub fn led_in(self, term: Term) -> State {
        State { term, ..self }
    }

    /// Sets the bytes that tenants may hold in the whole rack. The shares of tenants that are not
    /// named stay as they are.
    pub fn set_quotas(&mut self, quotas: BTreeMap<String, u64>) {
        self.shares.set_quotas(quotas);
    }

    /// The term in which this controller leads.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether some node of the rack has sent no beat yet.
    pub fn awaits_beats(&self) -> bool {
        self.nodes.values().any(|node| node.heard.is_none())
    }

    /// Refuses a request that names a later term than this controller's.
    fn not_deposed(&self, seen: Option<Term>) -> Result<(), Refusal> {
        if seen.is_some_and(|seen| self.term.is_before(seen)) { Err(Refusal::Deposed) } else { Ok(()) }
    }

    /// The present intents, from which [`State::of`] makes the same state.
    pub fn intents(&self) -> Vec<Intent> {
        let member = |(name, node): (&String, &Node)| {
            let of = Intent::Member { name: name.clone(), domain: node.domain.clone() };
            let drain = node.drain.then(|| Intent::Drain { name: name.clone(), wanted: true });
            [Some(of), drain].into_iter().flatten()
        };
        self.nodes.iter().flat_map(member).chain(self.shares.intents()).collect()
    }

    /// Gives a node a seat, if it has none.
    fn seat(&mut self, name: &str) {
        if self.nodes.contains_key(name) {
            return;
        }
        let free = self.seats.iter().position(Option::is_none);
        let seat = free.unwrap_or(self.seats.len());
        match free {
            Some(seat) => self.seats[seat] = Some(name.to_owned()),
            None => self.seats.push(Some(name.to_owned())),
        }
        self.nodes.insert(name.to_owned(), Node::unheard(seat, String::new()));
    }

    fn unseat(&mut self, name: &str) {
        if let Some(node) = self.nodes.remove(name) {
            self.seats[node.seat] = None;
            self.open.set(node.seat, 0);
            if self.at.get(&node.address).is_some_and(|of| of == name) {
                self.at.remove(&node.address);
            }
        }
    }

    /// Sets a node's weight for the draw. To be called after every change of a value that
    /// [`Node::has_room`] reads.
    fn weigh(&mut self, name: &str) {
        if let Some(node) = self.nodes.get(name) {
            // The sum over all nodes must fit into the weights. So a node counts as 2⁴⁸ bytes at
            // most.
            let weight = if node.has_room() { (node.lends >> 20).clamp(1, 1 << 28) } else { 0 };
            self.open.set(node.seat, weight);
        }
    }

    /// Notes an event, and has it logged.
    fn say(&mut self, now: Duration, line: String, actions: &mut Vec<Action>) {
        self.note(now, line.clone());
        actions.push(Action::Say(line));
    }

    /// Notes an event for the operator's view.
    fn note(&mut self, now: Duration, line: String) {
        self.events.push_front((now, line));
        self.events.truncate(EVENTS);
    }

    /// Takes in a node's beat. Its addresses name hosts: the caller has completed `0.0.0.0`.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::NameTaken`], [`Refusal::NameKept`], [`Refusal::Deposed`].
    pub fn beat(&mut self, now: Duration, beat: Beat, actions: &mut Vec<Action>) -> Result<Orders, Refusal> {
        self.not_deposed(beat.seen)?;
        name_is_good("name", &beat.name)?;
        farmem_protocol::node::domain(&beat.domain).map_err(|e| Refusal::Malformed(e.to_string()))?;
        let address = beat.listen.first().filter(|at| is_text(at)).cloned();
        let Some(address) = address.filter(|_| beat.listen.len() <= MOST) else {
            return Err(Refusal::Malformed("a node needs an address that other machines reach it by".into()));
        };
        let known = self.nodes.get(&beat.name);
        if known.is_none() && self.nodes.len() >= MOST_NODES {
            return Err(Refusal::Malformed(format!("a rack has {MOST_NODES} nodes at most: forget some")));
        }
        let is_other = known.is_some_and(|node| node.heard.is_some() && node.incarnation != beat.incarnation);
        if is_other && known.is_some_and(|node| node.standing == Standing::Up && !node.leaving) {
            return Err(Refusal::NameTaken(beat.name));
        }
        // At the same address it is gone. Elsewhere it may serve on, cut off, within its share.
        let before = known.filter(|node| is_other && node.address != address && self.shares.are_with(&beat.name));
        if let Some(node) = before {
            return Err(Refusal::NameKept(beat.name, node.address.clone()));
        }
        // A process that says an address is there; the name that had it may be its own of before.
        let is_up = |name: &String| self.nodes.get(name).is_some_and(|node| node.standing == Standing::Up);
        let is_free = self.at.get(&address).is_none_or(|holder| *holder != beat.name && !is_up(holder));
        let (was, is_new) = (known.map(|node| node.standing), known.is_none_or(|node| node.domain != beat.domain));
        self.seat(&beat.name);
        let node = self.nodes.get_mut(&beat.name).expect("it has a seat");
        let moved = (beat.bytes_read, beat.bytes_written);
        node.rates = match node.heard.filter(|&heard| !is_other && heard < now) {
            Some(heard) => {
                let a_second = |is: u64, was: u64| (is.saturating_sub(was) as f64 / (now - heard).as_secs_f64()) as u64;
                (a_second(moved.0, node.moved.0), a_second(moved.1, node.moved.1))
            }
            None => (0, 0),
        };
        node.moved = moved;
        node.incarnation = beat.incarnation;
        node.domain.clone_from(&beat.domain);
        if node.address != address || is_free {
            // If two nodes claim one address, the later claim counts, while its node is up.
            if self.at.get(&node.address) == Some(&beat.name) {
                self.at.remove(&node.address);
            }
            self.at.insert(address.clone(), beat.name.clone());
            node.address = address;
        }
        // Sums of them do not overflow, whatever a node says.
        (node.lends, node.lent, node.members) = (beat.lends.min(MOST_LENT), beat.lent.min(MOST_LENT), beat.members);
        node.placed = 0;
        node.drain_from = if node.drain { node.drain_from.max(node.lent) } else { 0 };
        node.standing = Standing::Up;
        node.heard = Some(now);
        node.pressed = node.pressed.or(Some(now)).filter(|_| node.is_pressed());
        let begins_to_leave = beat.leaving && !node.leaving;
        node.leaving = beat.leaving;
        let is_empty = node.drain && !is_other && node.knows_drain && node.lent == 0;
        let is_emptied = is_empty && !node.told_empty;
        (node.told_empty, node.knows_drain) = (is_empty, node.drain);
        let drain = node.drain;
        let (serial, shares) = self.shares.beat(&beat, self.term, actions);
        let name = &beat.name;
        self.weigh(name);
        if is_new {
            actions.push(Action::Keep(Intent::Member { name: name.clone(), domain: beat.domain.clone() }));
        }
        match was {
            None => self.say(now, format!("{name} joins, in {}", beat.domain), actions),
            Some(Standing::Down) => self.say(now, format!("{name} is back"), actions),
            Some(Standing::Suspect) => self.say(now, format!("{name} is heard again"), actions),
            Some(Standing::Up) if is_other => self.say(now, format!("{name} was started anew"), actions),
            Some(Standing::Up) => {}
        }
        if begins_to_leave {
            self.say(now, format!("{name} is going down: its runs are given other nodes"), actions);
        }
        if is_emptied {
            self.say(now, format!("{name} is empty"), actions);
        }
        Ok(Orders { drain, next_ms: BEAT_EVERY.as_millis() as u64, term: self.term, serial, shares })
    }

    /// Lets time pass. Nodes without a beat become suspect, then down. Runs that do not ask are
    /// over. To be called several times a second.
    pub fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let (mut said, mut changed) = (Vec::new(), Vec::new());
        for (name, node) in &mut self.nodes {
            let silent = node.heard.map_or(Duration::MAX, |heard| now.saturating_sub(heard));
            let standing = match silent {
                silent if silent >= DOWN_AFTER => Standing::Down,
                silent if silent >= SUSPECT_AFTER => Standing::Suspect,
                _ => Standing::Up,
            };
            if standing == node.standing {
                continue;
            }
            // A node that announced its leaving is not reported as late or down.
            match standing {
                Standing::Down if node.leaving => said.push(format!("{name} has left")),
                Standing::Down => said.push(format!("{name} is down: no word for {} s", DOWN_AFTER.as_secs())),
                Standing::Suspect if !node.leaving => said.push(format!("{name} is late")),
                _ => {}
            }
            node.standing = standing;
            if standing == Standing::Down {
                self.shares.lost(name);
            }
            changed.push(name.clone());
        }
        changed.iter().for_each(|name| self.weigh(name));
        for line in said {
            self.say(now, line, actions);
        }
        self.runs.retain(|_, run| now.saturating_sub(run.asked) < RUN_LASTS);
    }

    /// Orders that a node be emptied, or takes the order back.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn drain(&mut self, now: Duration, name: &str, wanted: bool, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let node = self.nodes.get_mut(name).ok_or_else(|| Refusal::Unknown(name.into()))?;
        if node.drain != wanted {
            (node.drain, node.knows_drain, node.told_empty) = (wanted, false, false);
            node.drain_from = if wanted { node.lent } else { 0 };
            self.weigh(name);
            actions.push(Action::Keep(Intent::Drain { name: name.into(), wanted }));
            let line = if wanted { "is to be emptied" } else { "is open again" };
            self.say(now, format!("{name} {line}"), actions);
        }
        Ok(())
    }

    /// Removes a node that will not come back from the rack.
    ///
    /// # Errors
    /// [`Refusal::Unknown`]; [`Refusal::IsUp`].
    pub fn forget(&mut self, now: Duration, name: &str, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let node = self.nodes.get(name).ok_or_else(|| Refusal::Unknown(name.into()))?;
        if node.standing != Standing::Down {
            return Err(Refusal::IsUp(name.into()));
        }
        self.unseat(name);
        self.shares.forget(name, actions);
        actions.push(Action::Keep(Intent::Forgotten { name: name.into() }));
        self.say(now, format!("{name} is forgotten"), actions);
        Ok(())
    }
}

mod giving;
mod names;
mod view;

#[cfg(test)]
mod tests;
