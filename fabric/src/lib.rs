//! Moves bytes between a host and a memory node.
//!
//! The model is RDMA's, because that is the hardware to come: a member of a run
//! holds *slabs* of a node's memory, makes *queue pairs*, posts READ, WRITE, CAS
//! and FAA to them and polls for completions. On this path the node decides one
//! thing only: whether the member holds the slab.
//!
//! ```text
//!            Session ── grant, release, fork_ticket ──► node   one connection, for control
//!  program ─┤
//!            QueuePair ── READ WRITE CAS FAA ─────────► node   one per thread
//!               ├─ mapped   shm: the slab is mapped here; a verb is a copy, and nobody is asked
//!               ├─ framed   tcp: `protocol::wire` frames; also a `network`, the same frames in virtual time
//!               └─ wired    RDMA: slabs are reached by the node's card; the node's processor sees nothing
//! ```
//!
//! * [`session`]: joining a node, and staying joined when the connection is cut.
//! * [`queue`]: queue pairs.
//! * [`fork`]: how a forked child becomes a member.
//! * [`network`]: a network in this process, such as a simulator's, in place of sockets.
//! * `sealed`: a stream whose bytes are encrypted and authenticated.
//! * [`shape`]: a network slower than loopback, for measuring.
//! * [`words`]: operations on the words that say who owns what.
//!
//! The host's half runs inside signal handlers of other people's programs: no
//! thread-locals, no panics, no locks held on the data path, system calls through
//! the gate of [`farmem_sys::raw`], descriptors out of the program's way. `verbs` is
//! the host's half of RDMA. The node's half of all this is the crate `farmem-nic`.

mod error;
pub mod fork;
mod link;
pub mod network;
pub mod queue;
mod sealed;
pub mod session;
pub mod shape;
mod verbs;
pub mod words;

pub use error::{ConnectError, GrantError, Lost, Refusal, RegionError, WindowError};
pub use farmem_protocol::node::{BadAddress, BadDomain, BadNode, NodeAddr, RunNode};
pub use fork::ForkTicket;
pub use queue::{Bind, Completion, QueuePair, Waiter, any_away};
pub use session::{ConnectOptions, Identity, Region, RunId, Session, Slab, Transport, Trust};
