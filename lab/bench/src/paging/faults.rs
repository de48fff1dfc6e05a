//! How many faults a phase took, by who counted them.
//!
//! Times without counts can be those of a system that did something else: a
//! "fast" random read may be one that hit. The kernel counts its own faults
//! (`getrusage`); farmem counts in the run's counters file, which the measured
//! program, if it is on farmem, finds by its environment and reads between phases.

#![allow(unsafe_code)] // getrusage.

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;

use farmem_run::RunSpec;
use farmem_run::counters::{self, MAGIC, PROCESSES};
use serde::{Deserialize, Serialize};

/// Counts, of a process so far or between two moments.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Faults of the kernel's that needed I/O.
    pub major: u64,
    /// Faults of the kernel's that did not.
    pub minor: u64,
    /// farmem's.
    pub far: Option<Far>,
}

macro_rules! far_counters {
    ($($(#[doc = $doc:literal])* $field:ident,)*) => {
        /// Counters of farmem's, by the names they have in [`counters::Process`].
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
        pub struct Far { $($(#[doc = $doc])* pub $field: u64,)* }

        impl Far {
            fn read(at: impl Fn(usize) -> u64) -> Far {
                Far { $($field: at(offset_of!(counters::Process, $field)),)* }
            }
            fn add(&mut self, other: &Far) { $(self.$field += other.$field;)* }
            fn since(&self, before: &Far) -> Far {
                Far { $($field: self.$field.saturating_sub(before.$field),)* }
            }
        }
    };
}

far_counters! {
    /// Faults on fresh memory.
    first_touch,
    /// … fetched while the program waited.
    demand,
    /// … staged pages taken back.
    rescued,
    /// … first writes to clean pages.
    upgrades,
    /// Pages installed ahead.
    prefetched,
    /// … and used.
    prefetch_used,
    /// Pages that left.
    evicted,
    /// … clean.
    evicted_clean,
    /// Batches of them.
    evict_batches,
    /// Pages evicted by the faulting thread.
    reclaimed_inline,
    /// Bytes from nodes.
    bytes_in,
    /// Bytes to nodes.
    bytes_out,
    /// Time in the fault path, ns.
    wait_ns,
    /// Level: resident far bytes.
    local_bytes,
    /// Level: far memory mapped.
    mapped_bytes,
    /// Level: the runtime's own memory, by its own account.
    runtime_bytes,
}

impl Faults {
    /// What was counted since `before`. Levels are differences too: read them from a [`Meter::now`].
    pub fn since(&self, before: &Faults) -> Faults {
        Faults {
            major: self.major - before.major,
            minor: self.minor - before.minor,
            far: self.far.zip(before.far).map(|(now, then)| now.since(&then)),
        }
    }

    /// Faults that fetched a page, per access: the kernel's major ones, or farmem's demand fetches.
    pub fn fetches(&self) -> u64 {
        self.far.map_or(self.major, |far| far.demand)
    }
}

/// Reads the counts of this process.
pub struct Meter {
    counters: Option<File>,
}

impl Meter {
    /// `run` is the value of `FARMEM_RUN`, if this program is on farmem.
    pub fn new(run: Option<&str>) -> Meter {
        let path = run.and_then(|text| RunSpec::parse(text).ok()?.counters);
        Meter { counters: path.and_then(|path| File::open(path).ok()) }
    }

    /// The counts so far.
    pub fn now(&self) -> Faults {
        // SAFETY: zero is a valid rusage, and the call fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        Faults { major: usage.ru_majflt as u64, minor: usage.ru_minflt as u64, far: self.far() }
    }

    fn far(&self) -> Option<Far> {
        let mut bytes = vec![0; size_of::<counters::File>()];
        self.counters.as_ref()?.read_exact_at(&mut bytes, 0).ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(offset_of!(counters::File, magic)) != MAGIC {
            return None;
        }
        let mut sum = Far::default();
        for process in 0..PROCESSES {
            let at = offset_of!(counters::File, processes) + process * size_of::<counters::Process>();
            sum.add(&Far::read(|field| word(at + field)));
        }
        Some(sum)
    }
}
