//! The settings that `farmem run` and the processes of a run agree on. Pure: no I/O, no clock, no
//! unsafe.
//!
//! * [`spec`]: a run's settings, and the text by which they reach its processes.
//! * [`choice`]: settings that are one of several names.
//! * [`mask`]: features that tests switch off, or on.
//!
//! It runs inside programs, in the constructor of the runtime: no thread-locals, no panics.

#![forbid(unsafe_code)]

pub mod choice;
pub mod mask;
pub mod spec;

pub use choice::{Choice, Dirty, Faults, Prefetch, Protect};
pub use farmem_protocol::node::{NodeAddr, RunNode, Transport};
pub use mask::{Feature, Mask};
pub use spec::{BadSpec, RunSpec, Unwritable};
