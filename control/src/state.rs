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
//! node belongs to the rack and which process it is, that it is to be drained, and its shares of
//! tenants' quotas. To *drain* a node is to empty it. [`Action::Keep`] is carried out before the
//! request is answered.
//!
//! A node that is down is given to no run. Runs that have it keep it until they find out by
//! themselves: the host process has the last word about its bytes.

mod beat;
mod events;
mod giving;
mod intent;
pub mod names;
mod node;
mod refusal;
mod shares;
mod view;

pub use intent::{Action, Intent, Process};
pub use refusal::Refusal;
pub use shares::MOST_QUOTAS;

use crate::api::{Figures, Term};
use events::Events;
use farmem_protocol::placement::Weights;
use node::{Node, Standing};
use shares::Shares;
use std::collections::BTreeMap;
use std::net::IpAddr;
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
/// The most nodes that a rack has.
const MOST_NODES: usize = 20_000;
/// The most runs that are known at a time. One tenant's may be half of what the others leave.
const MOST_RUNS: usize = 20_000;
/// The most bytes that a node is taken to lend, or to have lent.
const MOST_LENT: u64 = 1 << 48;

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
    events: Events,
}

impl State {
    /// The state that kept intents describe, applied in their order. A node counts as down until
    /// its first beat.
    pub fn of(kept: impl IntoIterator<Item = Intent>) -> State {
        let mut state = State::default();
        for intent in kept {
            match intent {
                Intent::Member { name, domain, process } => {
                    state.seat(&name);
                    state.nodes.entry(name).and_modify(|node| node.is_kept(domain, process));
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
            let of = node.member(name);
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

    /// Notes an event, and has it logged. `of`: the address of the node that has caused it.
    fn say(&mut self, now: Duration, of: Option<IpAddr>, line: String, actions: &mut Vec<Action>) {
        self.note(now, line.clone());
        actions.push(Action::Say { line, of });
    }

    /// Notes an event for the operator's view.
    fn note(&mut self, now: Duration, line: String) {
        self.events.note(now, line, None);
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
            self.say(now, None, format!("{name} {line}"), actions);
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
        self.say(now, None, format!("{name} is forgotten"), actions);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
