//! The agreements between `farmem run` and the processes of a run: settings, shared files, and exit
//! statuses. Pure: no I/O, no clock, no unsafe.
//!
//! * [`spec`]: a run's settings, and the text by which they reach its processes.
//! * [`choice`]: settings that are one of several names.
//! * [`mask`]: features that tests switch off, or on.
//! * [`counters`]: the counters page that a run shares with `farmem run` and `farmem top`.
//! * [`exit`]: the exit statuses by which a run says how it ended.
//! * [`waits`]: where in their code the programs of a run wait.
//!
//! It runs inside programs, in the constructor of the runtime: no thread-locals, no panics.

#![forbid(unsafe_code)]

pub mod choice;
pub mod counters;
pub mod exit;
pub mod mask;
pub mod spec;
pub mod waits;

pub use choice::{Choice, Dirty, Faults, Prefetch, Protect, Seal};
pub use farmem_protocol::node::{NodeAddr, RunNode, Transport};
pub use mask::{Feature, Mask};
pub use spec::{BadSpec, RunSpec, Unwritable};
