//! The trusted allocation service of a host.
//!
//! Applications get far memory in *pieces* of 4 KiB to 2 MiB, and in *runs* of adjacent *blocks* of
//! 2 MiB. A *chunk* is 4 KiB. Most allocations need no system call and no message to a node,
//! because the agent granted the next pieces ahead:
//!
//! ```text
//!  application                                     agent                              node
//!  client ── cache of chunks ◄─┐         ┌─► clerk ─► stock ── blocks of 2 MiB ◄── one CAS each
//!   4 KiB: from the cache      └── ring ─┘     │        who holds what, quotas
//!   (no system call)                           └─ ledger: the same, in a file that survives the agent
//! ```
//!
//! | file | |
//! |---|---|
//! | [`ring`], [`word`], [`desk`] | memory shared by an application and the agent |
//! | [`hello`] | the socket: handshake, descriptors |
//! | [`chunks`], [`stock`] | the allocator: no I/O |
//! | [`ledger`] | which application has which chunk, in a file that survives the agent |
//! | [`blocks`] | claiming blocks at a node |
//! | [`sources`] | the node that blocks are claimed at, and the one that is being left |
//! | [`windows`] | the keys to blocks of a node elsewhere |
//! | [`serve`], [`host`] | the agent's threads; the agent as a process, with its files |
//! | [`client`] | the library of applications, and an agent that runs within one |
//!
//! `docs/design/agent-crashes.md` describes which parts trust each other, the cost of a lie, and the
//! state that each crash leaves.

pub mod chunks;
pub mod desk;
pub mod hello;
pub mod ledger;
pub mod ring;
pub mod word;

#[cfg(not(loom))]
pub mod blocks;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
mod copy;
#[cfg(all(test, not(loom)))]
mod cuts;
#[cfg(not(loom))]
pub mod host;
#[cfg(not(loom))]
mod quotas;
#[cfg(not(loom))]
pub mod serve;
#[cfg(not(loom))]
pub mod sources;
#[cfg(not(loom))]
pub mod stock;
#[cfg(not(loom))]
pub mod windows;
