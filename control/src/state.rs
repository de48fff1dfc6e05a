//! A controller's state and rules. Pure: time and randomness are arguments.
//!
//! ```text
//!            beat                  1 s without a beat        2 s
//!  (unknown) ────► Up ◄──────────────► Suspect ───────────────► Down
//!                  │ ▲ beat                                      │ beat
//!                  │ └───────────────────────────────────────────┘
//!                  └─ drain asked, or the node says that it is leaving: no run is given it, and
//!                     runs that have it are given others in its place. Empty when nothing is lent.
//! ```
//!
//! Beats alone tell what a node lends and to which runs. Only an [`Intent`] outlives the
//! controller: that a node is a member, and that it is to be drained. An action to keep an intent
//! is carried out before the answer is given.
//!
//! A node that is down is given to no run. Runs that have it keep it until they find out by
//! themselves: the host process has the last word about its bytes.

mod shares;

pub use shares::MOST_QUOTAS;

use crate::api::{Beat, Figures, LONGEST, MOST, Orders, Term};
use farmem_protocol::placement::Weights;
use serde::{Deserialize, Serialize};
use shares::Shares;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often a node says that it is there.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Without a beat for so long a node is given to no run.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// Without a beat for so long it counts as down.
pub const DOWN_AFTER: Duration = Duration::from_secs(2);
/// A run that has not asked for so long is over, as far as is known.
const RUN_LASTS: Duration = Duration::from_secs(10);
/// Bytes that a run's nodes have free together, at least, if the rack has them. So a run gets one
/// more node before it needs it.
pub const HEADROOM: u64 = 1 << 30;
/// A node with less is full: nothing smaller than a slab is lent to a run.
pub const LEAST_FREE: u64 = farmem_protocol::addr::SLAB_BYTES;
/// Events that are kept to be shown.
const EVENTS: usize = 100;
/// Members that a rack has at most.
const MOST_NODES: usize = 20_000;

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
    /// It belongs to it no longer.
    Forgotten {
        /// The name that it had.
        name: String,
    },
    /// It is to be emptied, or no longer.
    Drain {
        /// Its name.
        name: String,
        /// Whether it is to be emptied.
        wanted: bool,
    },
    /// A node may let a tenant's programs hold so much, at most.
    Share {
        /// The tenant's name.
        tenant: String,
        /// The node's.
        node: String,
        /// 0: nothing.
        bytes: u64,
    },
}

/// Work that the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To be kept before the answer is given.
    Keep(Intent),
    /// A line for the log.
    Say(String),
}

/// Why a request is refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something in the request cannot be.
    #[error("{0}")]
    Malformed(String),
    /// Two processes call themselves the same.
    #[error("another node of this rack calls itself {0} and is up: give this one a --name of its own")]
    NameTaken(String),
    /// No such node.
    #[error("no node of this rack is called {0}")]
    Unknown(String),
    /// It is there.
    #[error("{0} is up: drain it and stop it first")]
    IsUp(String),
    /// Nothing to give.
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
    /// Bytes read and written by the last beat, and a second by the last two.
    moved: (u64, u64),
    rates: (u64, u64),
    leaving: bool,
    drain: bool,
    /// Bytes that it had lent when it was to be emptied, at most.
    drain_from: u64,
    /// Whether it was said that it is empty.
    told_empty: bool,
    /// Bytes that runs may take since they were given it after its last beat. A guess: it decides
    /// which node is drawn, never whether one is full.
    placed: u64,
    heard: Option<Duration>,
    standing: Standing,
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
            told_empty: false,
            placed: 0,
            heard: None,
            standing: Standing::Down,
            shed: None,
        }
    }

    fn free(&self) -> u64 {
        self.lends.saturating_sub(self.lent)
    }

    /// Whether runs may have it, be it full.
    fn is_open(&self) -> bool {
        self.standing == Standing::Up && !self.drain && !self.leaving
    }

    /// Whether it may be given to a run that does not have it yet.
    fn has_room(&self) -> bool {
        self.is_open() && self.free() >= LEAST_FREE
    }

    /// Whether it has lent more than it lends now, because its machine needs the memory.
    fn is_pressed(&self) -> bool {
        self.standing == Standing::Up && self.lent > self.lends
    }

    fn shown(&self) -> &'static str {
        match self.standing {
            Standing::Down => "down",
            Standing::Suspect => "suspect",
            Standing::Up if self.drain && self.lent == 0 => "empty",
            Standing::Up if self.drain => "draining",
            Standing::Up if self.leaving => "leaving",
            Standing::Up => "up",
        }
    }
}

struct Run {
    host: String,
    /// Failure domains that it wants.
    domains: u32,
    nodes: Vec<String>,
    figures: Option<Figures>,
    asked: Duration,
}

/// The rack.
#[derive(Default)]
pub struct State {
    term: Term,
    nodes: BTreeMap<String, Node>,
    /// Node names by their seats. A seat that is empty has no weight, and is taken again.
    seats: Vec<Option<String>>,
    /// By seat: the memory that a node lends, if its room may be given to runs.
    open: Weights,
    /// Names by addresses.
    at: BTreeMap<String, String>,
    runs: BTreeMap<String, Run>,
    shares: Shares,
    events: VecDeque<(Duration, String)>,
}

impl State {
    /// As the intents say that were kept, in their order. No node is up before it says so.
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

    /// The same, led in a term.
    pub fn led_in(self, term: Term) -> State {
        State { term, ..self }
    }

    /// Bytes that tenants may hold in the whole rack, by tenant. Shares of others stay as they are.
    pub fn set_quotas(&mut self, quotas: BTreeMap<String, u64>) {
        self.shares.set_quotas(quotas);
    }

    /// Whose time it is.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether some member was not heard of yet: news is still to come.
    pub fn awaits_beats(&self) -> bool {
        self.nodes.values().any(|node| node.heard.is_none())
    }

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

    /// After every change of what [`Node::has_room`] looks at.
    fn weigh(&mut self, name: &str) {
        if let Some(node) = self.nodes.get(name) {
            // The sum of all nodes must fit: beyond 2⁴⁸ bytes a node counts as that.
            let weight = if node.has_room() { (node.lends >> 20).clamp(1, 1 << 28) } else { 0 };
            self.open.set(node.seat, weight);
        }
    }

    fn say(&mut self, now: Duration, line: String, actions: &mut Vec<Action>) {
        self.note(now, line.clone());
        actions.push(Action::Say(line));
    }

    fn note(&mut self, now: Duration, line: String) {
        self.events.push_front((now, line));
        self.events.truncate(EVENTS);
    }

    /// A node's beat. Its addresses are complete.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::NameTaken`], [`Refusal::Deposed`].
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
        if node.address != address {
            // Of two nodes that say the same the later is meant.
            if self.at.get(&node.address) == Some(&beat.name) {
                self.at.remove(&node.address);
            }
            self.at.insert(address.clone(), beat.name.clone());
            node.address = address;
        }
        (node.lends, node.lent, node.members) = (beat.lends, beat.lent, beat.members);
        node.placed = 0;
        node.drain_from = if node.drain { node.drain_from.max(node.lent) } else { 0 };
        node.standing = Standing::Up;
        node.heard = Some(now);
        let begins_to_leave = beat.leaving && !node.leaving;
        node.leaving = beat.leaving;
        let is_emptied = node.drain && node.lent == 0 && !node.told_empty;
        node.told_empty = node.drain && node.lent == 0;
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

    /// Time goes by: nodes that are not heard of are suspect, then down; runs that do not ask are
    /// over. Call it several times a second.
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
            // One that said that it goes is not missed.
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

    /// A node is to be emptied, or no longer.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn drain(&mut self, now: Duration, name: &str, wanted: bool, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let node = self.nodes.get_mut(name).ok_or_else(|| Refusal::Unknown(name.into()))?;
        if node.drain != wanted {
            (node.drain, node.told_empty) = (wanted, false);
            node.drain_from = if wanted { node.lent } else { 0 };
            self.weigh(name);
            actions.push(Action::Keep(Intent::Drain { name: name.into(), wanted }));
            let line = if wanted { "is to be emptied" } else { "is open again" };
            self.say(now, format!("{name} {line}"), actions);
        }
        Ok(())
    }

    /// A node that will not come back belongs to the rack no longer.
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

/// Printable, and neither empty nor too long.
fn is_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && !text.chars().any(|c| c.is_control() || c == ',')
}

fn name_is_good(what: &str, text: &str) -> Result<(), Refusal> {
    if is_text(text) && !text.contains(char::is_whitespace) {
        return Ok(());
    }
    Err(Refusal::Malformed(format!(
        "a {what} is 1 to {LONGEST} characters, without spaces, commas and control characters"
    )))
}

mod giving;
mod view;

#[cfg(test)]
mod tests;
