//! The messages to a controller and its answers: JSON over HTTP/1.1.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/beat` | [`Beat`] | [`Orders`] |
//! | `POST /v1/want` | [`Want`] | [`Given`] |
//! | `POST /v1/nodes/NAME/drain`, `…/undrain`, `…/forget` | – | [`Rack`], of this node alone |
//! | `GET /v1/rack` | – | [`Rack`] |
//!
//! A refusal has a status of 4xx and a body of [`Refused`]. An answer of 503 has that body, too:
//! another controller leads, or this one has just begun to. A client then asks the next
//! controller, or the same one again.

use serde::{Deserialize, Serialize};

/// The header that an operator's order has, with any value.
pub const ORDER_HEADER: &str = "x-farmem-order";
/// The most characters of a name, a domain or an address.
pub const LONGEST: usize = 200;
/// The most addresses that a node listens at, and the most nodes of a run.
pub const MOST: usize = 64;

/// The most runs that a view of the rack shows.
pub const MOST_SHOWN: usize = 1000;

/// The time of one leader of a rack. Orders of an earlier one are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// The rack, by a random number. Terms of different racks are not compared.
    pub rack: u64,
    /// Greater for each leader.
    pub epoch: u64,
}

impl Term {
    /// Whether it is over, as one who has seen another knows.
    pub fn is_before(self, seen: Term) -> bool {
        self.rack == seen.rack && self.epoch < seen.epoch
    }
}

/// The latest term that a node or a run knows of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms(Option<Term>);

impl Terms {
    /// Whether an order of this term may take effect. Those of a later one alone do, after that.
    pub fn takes(&mut self, term: Term) -> bool {
        let is_late = self.0.is_some_and(|seen| term.is_before(seen));
        if !is_late {
            self.0 = Some(term);
        }
        !is_late
    }

    /// The latest.
    pub fn latest(&self) -> Option<Term> {
        self.0
    }
}

/// A node says that it is there, and what it lends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The node's name. It is unique in the rack.
    pub name: String,
    /// Differs between two processes of the same name.
    pub incarnation: u64,
    /// Where it can be lost together with others: `rack7/shelf2`.
    pub domain: String,
    /// Where programs reach it. An address of no particular host (`0.0.0.0:7411`) is completed by
    /// the address that the beat came from.
    pub listen: Vec<String>,
    /// Bytes it lends at most.
    pub lends: u64,
    /// Bytes it has lent.
    pub lent: u64,
    /// Processes that borrow.
    pub members: u64,
    /// Bytes read from it since its start.
    pub bytes_read: u64,
    /// Bytes written to it since its start.
    pub bytes_written: u64,
    /// It is going down, and waits for its members to leave.
    pub leaving: bool,
    /// The latest term that it knows of.
    pub seen: Option<Term>,
    /// Its shares of tenants' quotas.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// The last order about shares that it has applied.
    #[serde(default)]
    pub applied: Option<(Term, u64)>,
}

/// A node's share of what a tenant may hold in the whole rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Whose.
    pub tenant: String,
    /// Bytes that the tenant's programs hold at the node, and those that it may grant them beside.
    pub bytes: u64,
    /// Bytes that they hold.
    pub held: u64,
    /// The largest request that was refused since the beat before, because the share was used up.
    pub short: u64,
}

/// The controller's answer to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// It is to be emptied.
    pub drain: bool,
    /// When to say the next beat.
    pub next_ms: u64,
    /// Whose orders these are.
    pub term: Term,
    /// Greater for each answer of the term to the node.
    #[serde(default)]
    pub serial: u64,
    /// Bytes that programs of a tenant may hold at the node, by tenant. Others are not limited, or as
    /// before.
    #[serde(default)]
    pub shares: Vec<(String, u64)>,
}

/// How a run is doing, by its own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The program's name, perhaps cut.
    pub program: String,
    /// Bytes at nodes.
    pub far: u64,
    /// Bytes a second from nodes.
    pub read_rate: u64,
    /// Bytes a second to nodes.
    pub write_rate: u64,
    /// Half of the fetches took at most so long, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 did.
    pub p99_ns: u64,
    /// 999 of 1000 did.
    pub p999_ns: u64,
    /// Bytes that have one copy where two were asked for.
    pub single: u64,
    /// Bytes of which both copies are in one failure domain.
    pub together: u64,
    /// Times that one of its processes lost a node and went on.
    pub nodes_lost: u64,
}

/// A run asks for nodes: at its start, and each second again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// The run's public name.
    pub run: String,
    /// The host it runs on.
    pub host: String,
    /// In how many failure domains its memory is to be: 1, or 2 for a mirror.
    pub domains: u32,
    /// The addresses that it has. Those that can stay are given again.
    pub held: Vec<String>,
    /// Addresses that it was given and did not reach just now: it wants others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// The latest term that it knows of.
    pub seen: Option<Term>,
    /// How it is doing, once it runs.
    pub figures: Option<Figures>,
}

/// The nodes of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// In the order in which they were given.
    pub nodes: Vec<GivenNode>,
    /// The term of the controller that gave them.
    pub term: Term,
}

impl Given {
    /// Where the nodes are reached.
    pub fn addresses(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.at.as_str()).collect()
    }
}

/// A node that a run is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenNode {
    /// Where it is reached.
    pub at: String,
    /// Its failure domain.
    pub domain: String,
}

/// The rack as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    /// By name.
    pub nodes: Vec<NodeView>,
    /// Runs that asked within the last seconds. If there are more than [`MOST_SHOWN`], those that have
    /// most.
    pub runs: Vec<RunView>,
    /// Further runs.
    #[serde(default)]
    pub more_runs: u64,
    /// Tenants that have a quota in the whole rack.
    #[serde(default)]
    pub tenants: Vec<TenantView>,
    /// The last things that happened, newest first.
    pub events: Vec<EventView>,
    /// Whose view it is.
    pub term: Term,
}

/// A node, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its failure domain: the nodes that can be lost together.
    pub domain: String,
    /// Where programs reach it.
    pub address: String,
    /// `up`, `suspect`, `down`, `leaving`, `draining`, or `empty`: drained, and nothing is left.
    pub standing: String,
    /// Bytes.
    pub lends: u64,
    /// Bytes.
    pub lent: u64,
    /// Bytes that it had lent when it was to be emptied. 0: it is not to be.
    pub drain_from: u64,
    /// Processes that borrow.
    pub members: u64,
    /// Bytes a second, by the last two beats.
    pub read_rate: u64,
    /// Bytes a second, by the last two beats.
    pub write_rate: u64,
    /// Milliseconds since its last beat. None: not heard of since the controller began.
    pub heard_ms: Option<u64>,
}

/// A run, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    /// Its public name.
    pub run: String,
    /// Where it runs.
    pub host: String,
    /// The names of its nodes.
    pub nodes: Vec<String>,
    /// It wants its memory in several failure domains, and its nodes are in fewer.
    pub crowded: bool,
    /// How it is doing, as it said last.
    pub figures: Option<Figures>,
}

/// A tenant's quota in the whole rack, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// Bytes that its programs may hold together.
    pub quota: u64,
    /// Bytes that they hold, or may hold at nodes that are down.
    pub held: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Seconds ago.
    pub ago_s: u64,
    /// The event, in one line.
    pub what: String,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// One line for whoever asked.
    pub why: String,
}
