//! The sight of a look. Pure.

use std::time::Duration;

use crate::cover::Range;
use crate::maps::Mapping;

/// A page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its address.
    pub address: u64,
    /// Its protection told that it was written since the last look.
    pub told: bool,
}

/// The sight of a process while it stood.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// Pages that are there, in memory or in swap, in the watched part of tracked mappings, in
    /// order.
    pub present: Vec<Range>,
    /// Pages that were read, in order.
    pub pages: Vec<Page>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Pages that may have been written, and were not read.
    pub missed: Vec<Range>,
}

/// How a look ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Finding what to read.
    pub finding: Duration,
    /// Reading it.
    pub reading: Duration,
    /// Some pages were not read, because time ran out.
    pub cut: bool,
}
