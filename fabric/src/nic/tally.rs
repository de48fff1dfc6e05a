//! What a node counts, and figures that operators ask for.

use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// What a node counts, for its operator.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Tally {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub cas: AtomicU64,
    pub faa: AtomicU64,
    pub binds: AtomicU64,
    pub invalidates: AtomicU64,
    pub carved: AtomicU64,
    pub sends: AtomicU64,
    pub regenerated: AtomicU64,
    pub read_bytes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub records: AtomicU64,
    pub record_bytes: AtomicU64,
    pub refused_records: AtomicU64,
    pub refused_verbs: AtomicU64,
    pub grants: AtomicU64,
    pub discarded_bytes: AtomicU64,
    pub exhausted: AtomicU64,
    pub joined: AtomicU64,
    pub rejoined: AtomicU64,
    pub refused_hellos: AtomicU64,
    pub broken_connections: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Who has an owner id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The process; 0: a run, which holds slabs.
    pub pid: u32,
    /// The same for all of a run.
    pub run: u64,
}

/// Figures that a member can ask for.
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
