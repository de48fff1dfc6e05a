//! The host's half of RDMA: verbs that go past both processors.
//!
//! * [`host`]: this process's card: domain, keys of slabs, buffers it may touch.
//! * [`bounce`]: where bytes lie whose own place the card may not touch.
//! * [`queue`]: queue pairs. [`prepare`]: one verb made a work request. [`connect`]: a queue pair
//!   and the node's.
//! * [`windows`]: memory that others lend by the card.
//!
//! `docs/design/verbs.md` says how ends find each other, what isolates members, and what a lost
//! connection is.

pub(crate) mod bounce;
pub(crate) mod connect;
pub(crate) mod host;
mod prepare;
pub(crate) mod queue;
mod windows;

pub(crate) use host::Card;
pub(crate) use queue::Wired;
