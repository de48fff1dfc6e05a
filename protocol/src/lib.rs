//! The agreements between both ends of farmem. Pure: no I/O, no clock, no unsafe.
//!
//! * [`addr`]: pages of a program, slabs and slots of a node's memory.
//! * [`key`]: the right by which a verb reaches memory.
//! * [`wire`]: the frames between a host and a node.
//! * [`lines`]: records of the eviction log, which carry changed lines of many pages.
//! * [`extent`]: the words by which a node's memory is claimed, given back and recovered.
//! * [`fairness`]: how much of a bounded table one peer may take.
//! * [`nbd`]: requests and replies on the stream of a volume, which the kernel swaps to.
//! * [`near`]: functions that a node runs on its callers' memory.
//! * [`node`]: addresses of nodes, and how bytes move to them.
//! * [`placement`]: which node to ask for memory.
//! * [`random`]: numbers that follow from a seed.
//! * [`region`]: names of regions. [`units`]: numbers as text, for people.

#![forbid(unsafe_code)]

pub mod addr;
pub mod extent;
pub mod fairness;
pub mod key;
pub mod lines;
pub mod nbd;
pub mod near;
pub mod node;
pub mod placement;
pub mod random;
pub mod region;
pub mod units;
pub mod wire;
