//! The controller of a rack: it knows the nodes, and gives runs some of them.
//!
//! ```text
//! node ──beat, twice a second──► ┌────────────┐ ◄──want, each second── run's supervisor
//!                                │ serve      │
//! operator ──drain, undrain────► │  └► state  │ ──intent──► store (redb)
//! browser ───page, /v1/rack────► └────────────┘            or etcd, with standbys
//! ```
//!
//! * [`state`]: what is known and what follows from it. Pure: events in, actions out, time and
//!   randomness as arguments.
//! * [`store`]: what must outlive the process, and nothing else: members and drains.
//! * [`etcd`], [`election`]: several controllers, of which one leads.
//! * [`serve`]: HTTP in front of these; [`metrics`].
//! * [`client`]: what nodes, runs and operators say to it. Blocking.
//! * [`api`]: the messages.
//!
//! The controller is not on the way of any page. It never says which bytes are right, and no run
//! ends because it is away: a run keeps the nodes that it has, and only what needs a new node
//! waits. Nodes are the truth about what they lend. So a controller that starts anew knows
//! everything again after one beat of each.

pub mod api;
pub mod client;
pub mod election;
pub mod etcd;
pub mod metrics;
pub mod serve;
pub mod state;
pub mod store;
