//! The extent protocol, judged.
//!
//! * [`world`]: a node, clients, a network that loses answers and delivers late,
//!   owners whose leases expire, a daemon that dies; and what must hold.
//! * [`explore`]: every history of a small world.
//! * [`scenarios`]: the small worlds, and which of them finds which seeded bug.
//!
//! The operations, guard, admission and recount are those of `farmem-protocol`.

mod client;
pub mod explore;
mod judge;
mod liar;
mod memory;
mod nic;
mod node;
pub mod scenarios;
pub mod world;
