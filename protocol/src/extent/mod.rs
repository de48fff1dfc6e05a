//! The extent protocol: memory of a node is claimed, given back, split and
//! recovered by CAS on words that lie beside it, without the node's CPU.
//!
//! Every unit of 1 GiB (*giant*), 2 MiB (*block*) and 4 KiB (*chunk*) has one
//! 64-bit word, which is allocation state, owner record and access right at
//! once. A CAS that takes effect is the commit, the log and the grant; the CAS
//! that gives back is the revocation. There is no redo log and there are no key
//! tables. `docs/design/extents.md` has every step, every crash and what each
//! verb costs.
//!
//! * [`word`], [`place`], [`owner`], [`key`], [`geometry`]: the layout in memory and on the wire.
//! * [`guard`]: decides which changes of these words an untrusted queue pair may make, and which
//!   data verbs the words admit.
//! * [`step`]: how operations, which do no I/O, get their verbs carried out.
//! * [`want`], [`claim`], [`release`]: taking and giving back; [`block`]: the part without verbs.
//! * [`reclaim`]: the node's work before a unit is FREE again; [`hints`].
//! * [`reshape`]: publish, split, merge; [`recover`]: units that a dead owner left.
//! * [`policy`]: when to publish, to make clean, to put giants together.
//! * [`check`]: recounting everything.
//! * [`table`]: all of it in plain memory, for tests and simulations.
//! * [`rules`]: bugs to seed, for testing the checkers.
//!
//! Words:
//!
//! | word | meaning |
//! |---|---|
//! | *unit* | a giant, a block or a chunk |
//! | *open* | of a unit: its children's words are the truth (SPLITTING, SHARED, MERGING) |
//! | *owner* | one leased incarnation of a host's agent, or of a job |
//! | *claimant* | one queue pair of an owner |
//! | *line* | 64 neighbouring words, read at once |
//! | *drain* | waiting until every verb admitted so far has ended |

pub mod block;
pub mod check;
pub mod claim;
pub mod geometry;
pub mod guard;
pub mod hints;
pub mod key;
mod lots;
pub mod owner;
mod pipe;
pub mod place;
pub mod policy;
pub mod reclaim;
pub mod recover;
pub mod release;
pub mod reshape;
pub mod rules;
mod search;
pub mod step;
mod swap;
pub mod table;
pub mod want;
pub mod word;

#[cfg(test)]
mod lost_answers;
#[cfg(test)]
mod runs;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wear;

use pipe::Pipe;

pub use block::Block;
pub use claim::Claimer;
pub use geometry::{Geometry, Hint, Target};
pub use key::Key;
pub use place::{Level, Place};
pub use reclaim::{Reclaim, Reclaimed};
pub use recover::{Recover, Recovered};
pub use release::{Grant, Release};
pub use reshape::{Reshape, Reshaped};
pub use step::{Actor, Answer, Failed, Operation, Step, Verb};
pub use table::Table;
pub use want::Want;
pub use word::{Claimant, Generation, Owner, State, Word};
