//! Counters of a node.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of a node, as its operator sees them.
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
