//! A key-value store on disaggregated memory that redis clients can use.
//!
//! ```text
//!  redis client ── RESP ──► serve ─► command ─► Keyspace ─► Shard: index, heap, members (steps, no I/O)
//!                             │                               │ verbs
//!                             └─────────── drive ◄────────────┘
//!                                           │ READ, WRITE, CAS on a region of the nodes' memory
//!                                           ▼
//!                                       farmem node, unaware of keys
//! ```
//!
//! Any number of front ends serve one store. None is its owner, and one that dies takes nothing
//! along. `docs/design/store.md` has the protocol and each operation by its verbs,
//! `docs/design/store-recovery.md` the state after each crash.
//!
//! * [`task`]: operations as steps that ask for verbs.
//! * [`layout`], [`object`]: the words and bytes of the store.
//! * [`long`]: strings in several pieces. [`segments`]: collections in several objects.
//! * [`shard`]: the protocol on one node's memory, in parts: places, index, near cache, front ends,
//!   what becomes of memory that dead ones leave, one node beneath it or two.
//! * [`keyspace`]: the shards of all nodes as one store.
//! * [`atomic`]: changes of several keys at one moment.
//! * [`resp`]: the redis protocol. [`command`]: the commands.
//! * [`drive`]: verbs on a region of the nodes' memory. [`serve`]: the event loop.

#![forbid(unsafe_code)]

pub mod atomic;
mod batch;
pub mod blocks;
pub mod command;
pub mod drive;
mod embedded;
mod fast;
pub mod keyspace;
pub mod layout;
pub mod long;
pub mod object;
pub mod resp;
pub mod rules;
pub mod segments;
pub mod serve;
pub mod shard;
pub mod sight;
pub mod task;

pub use batch::{Act, Op, Outcome};
pub use embedded::{Bytes, Store};
pub use serve::{Clients, Config, Failed};
pub use shard::Trouble;
