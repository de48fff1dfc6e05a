//! Moves bytes between a host and a memory node.
//!
//! The model is RDMA's, because that is the hardware to come. A member of a run holds *slabs* of a
//! node's memory. It makes *queue pairs*, posts READ, WRITE, CAS and FAA to them, and polls for
//! completions. On this path the node decides only one thing: whether the member holds the slab.
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
//! * [`words`]: operations on the words that say who owns what. `verbs`: the host's half of RDMA.
//!
//! This code runs inside signal handlers of other people's programs. So it uses no thread-locals,
//! does not panic, and holds no locks on the data path. Its system calls go through the gate of
//! [`farmem_sys::raw`], and its descriptors have numbers that the program does not use. The node's
//! half of all this is the crate `farmem-nic`.

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
pub use session::{
    Clock, ConnectOptions, Identity, Records, Region, Regions, RunId, Session, Slab, Standing, Transport, Trust,
};
