//! The host's half of RDMA: the cards carry out the verbs, without the node's processor.
//!
//! * [`host`]: this process's card: domain, keys of slabs, buffers it may touch.
//! * [`bounce`]: buffers for bytes whose own memory the card may not touch.
//! * [`queue`]: queue pairs. [`prepare`]: makes one verb a work request. [`connect`]: connects a
//!   queue pair with the node's.
//! * [`windows`]: memory windows that other members lend.
//!
//! `docs/design/verbs.md` describes how the ends find each other, how members are isolated, and
//! when a connection counts as lost.

pub(crate) mod bounce;
pub(crate) mod connect;
pub(crate) mod host;
mod prepare;
pub(crate) mod queue;
mod windows;

pub(crate) use host::Card;
pub(crate) use queue::Wired;
