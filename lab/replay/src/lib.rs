//! Replays page traces through the production cache code.
//!
//! ```text
//! trace (file, or generated) ─► Trace ─┬─► machine: a policy, the pager's batches and staging, the prefetcher
//!                                      └─► ideal:   what could be done seeing every access, or the future
//! ```
//!
//! *Buildable* policies are those of `farmem-cache` and see what the pager
//! shows them: faults. *Ideal* ones (LRU, CLOCK with reference bits,
//! Belady's MIN) see every access and are the yardstick.

#![forbid(unsafe_code)]

pub mod generate;
pub mod ideal;
pub mod machine;
pub mod plot;
pub mod record;
pub mod report;
pub mod trace;
