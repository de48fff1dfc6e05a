//! `farmem-lab bench alloc`: what allocating far memory costs, by farmem's protocol and by those it is measured against.
//!
//! Real cards for all of them are not to be had, so that clients, network cards and the memory node's core are
//! simulated in virtual time, with published latencies; the allocators are not: each is implemented in full, farmem's
//! is the code that is shipped, and a ledger that knows none of them checks every grant.
//!
//! | file | |
//! |---|---|
//! | [`sim`] | time, verbs, the memory node; what they cost is in `rnic.toml` |
//! | [`allocators`] | farmem's extents, FineMem, OneSidedMW, the free array, calls |
//! | [`ledger`] | no byte with two owners, none lost |
//! | [`run`], [`tally`] | the workload of the papers; what its operations took |
//! | [`traces`] | requests of real allocators |
//! | [`recovery`] | how fast a dead owner's holdings go back |
//! | [`real`] | the same by processes at a real node, nothing simulated |
//! | [`systems`] | all of them by name |
//! | [`command`] | the command |
//! | [`found`], [`figures`], [`targets`] | all that came out; tables, chart; what was to be reached |
//!
//! What the model leaves out: `docs/design/alloc.md`.

pub mod allocators;
pub mod command;
pub mod figures;
pub mod found;
pub mod ledger;
pub mod real;
pub mod recovery;
pub mod run;
pub mod sim;
pub mod systems;
pub mod tally;
pub mod targets;
pub mod traces;

#[cfg(test)]
mod tests;
