//! The extent protocol, judged.
//!
//! * [`scenario`]: what there is at the start, and what may go wrong.
//! * [`world`], [`moves`]: a node, clients, a network that loses answers and delivers late,
//!   owners whose leases expire, a daemon that dies; and what must hold.
//! * [`explore`]: every history of a small world.
//! * [`scenarios`]: the small worlds, and which of them finds which seeded bug.
//! * [`figures`]: what the pure parts cost.
//! * [`simulation`]: long histories of 64 clients in virtual time, by seed.
//!
//! The operations, guard, admission and recount are those of `farmem-protocol`.

mod client;
pub mod explore;
pub mod figures;
mod judge;
mod liar;
mod lies;
mod memory;
pub mod moves;
mod nic;
mod node;
pub mod scenario;
pub mod scenarios;
pub mod simulation;
mod task;
mod trace;
pub mod world;
