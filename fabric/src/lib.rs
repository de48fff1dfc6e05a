//! The fabric moves bytes between a host and its memory nodes.
//!
//! Its model is RDMA's: a [`Session`] with a node grants slabs; a [`QueuePair`]
//! carries one-sided verbs (READ, WRITE, CAS, FAA) on them, posted without
//! waiting and completed in order; the caller polls. Three back ends implement
//! one contract (`contract.rs` runs one suite over all): [`shm`](NodeAddr::Shm),
//! [`tcp`](NodeAddr::Tcp) and `sim`. The `verbs` back end joins them later.
//!
//! This code runs inside fault handlers of foreign programs: it takes no lock
//! that it holds while waiting for a peer, starts no thread, and never panics
//! on what a peer sends.
