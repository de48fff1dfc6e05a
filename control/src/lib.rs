//! The controller of a rack: it knows the nodes, and gives runs some of them.
//!
//! ```text
//! node ──beat, twice a second──► ┌────────────┐ ◄──want, each second── run's supervisor
//!                                │ serve      │
//! operator ──drain, undrain────► │  └► state  │ ──intent──► store (redb)
//! browser ───page, /v1/rack────► └────────────┘            or etcd, with standbys
//! ```
//!
//! * [`state`]: the rack's state and its rules. Pure: events in, actions out, time and randomness
//!   as arguments.
//! * [`store`]: the part that must outlive the process: members and drains.
//! * [`etcd`], [`election`]: several controllers, of which one leads.
//! * [`serve`]: HTTP in front of these.
//! * [`metrics`]: the rack's figures as text for Prometheus.
//! * [`guard`]: tokens and challenges. `log`: a bound on lines.
//! * [`door`]: bounds on connections.
//! * [`client`]: the blocking client of nodes, runs and operators.
//! * [`api`]: the messages.
//!
//! The controller is not on the path of any page. It never decides which bytes are right, and no
//! run ends because the controller is away: a run keeps the nodes that it has, and waits only when
//! it needs a new one. The nodes' own records of what they lend are the truth. So a controller that
//! was restarted knows everything again after one *beat* of each node: its report, twice a second.

pub mod api;
pub mod client;
pub mod door;
pub mod election;
pub mod etcd;
pub mod guard;
mod log;
pub mod metrics;
pub mod serve;
mod spare;
pub mod state;
pub mod store;
mod unsaved;
