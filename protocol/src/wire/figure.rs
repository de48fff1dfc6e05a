//! What a member can ask of a node about others: figures, and owners.

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// The holder of an owner id, as [`super::Ask::Who`] is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The process; 0: a run, which holds slabs.
    pub pid: u32,
    /// The same for all of a run.
    pub run: u64,
}

/// Figures that a member can ask for, by [`super::Ask::Figure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, KnownLayout, Immutable)]
#[repr(u64)]
pub enum Figure {
    /// Windows that members have.
    Windows = 1,
    /// Of these, bound.
    WindowsBound = 2,
    /// CPU time of draining and of the words, in nanoseconds.
    DrainNs = 3,
    /// CPU time of scrubbing, in nanoseconds.
    ScrubNs = 4,
    /// Bytes scrubbed.
    ScrubbedBytes = 5,
    /// Units made clean.
    Reclaimed = 6,
    /// Bytes of memory really taken from the system.
    InUse = 7,
}
