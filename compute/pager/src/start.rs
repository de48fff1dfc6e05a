//! Starts the pager: sizes of its parts, and the parts themselves, from the settings of the run.

use crate::Pager;
use crate::base::{Base, Counters};
use crate::dirty::{Changes, Hashed, Tracker, keeps_hashes};
use crate::hints::Hints;
use crate::house::{House, Parts};
use crate::incoming::Incoming;
use crate::local::{Local, Sizes};
use crate::maps::Maps;
use crate::out::batch::Evictor;
use crate::out::log::Log;
use crate::out::staging::Staging;
use crate::out::{Out, most_at_once};
use crate::pins::Pins;
use crate::record;
use crate::record::Recorder;
use crate::room::Room;
use crate::share::Share;
use crate::space::Space;
use crate::table::Table;
use crate::thread::{Threads, WINDOW};
use crate::wake::Background;
use farmem_cache::Policy;
use farmem_cache::prefetch::longest_for;
use farmem_cache::sample::{Rate, Sampled};
use farmem_pool::{By, NoSeal, Pool, Sealing};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_run::counters;
use farmem_run::{Dirty, Faults, Feature, Prefetch, RunSpec, Seal};
use farmem_sys::clock;
use farmem_sys::lines::WHOLE_TOP;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::uffd::{OpenError, Uffd, feature};
use std::sync::atomic::Ordering;

/// The least local memory: enough for every part of a batch.
pub const MIN_LOCAL: u64 = 1 << 20;

/// The staging ring takes one part in this many of local memory, where slots are not mapped.
const STAGED: u64 = 16;
/// The same where line hashes are kept in brief, which take a fortieth: both together are a
/// sixteenth. Pages found clean pass the ring by and are many there, so what is in it stays as long
/// (`docs/design/lines.md`).
const STAGED_BESIDE_HASHES: u64 = 27;

/// Why the pager cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Below [`MIN_LOCAL`].
    #[error("--local is {0} bytes; at least {MIN_LOCAL} are needed")]
    TooLittleLocal(u64),
    /// No usable userfaultfd.
    #[error("{0}")]
    Userfaultfd(OpenError),
    /// Pages cannot be sealed.
    #[error("{0}")]
    Seal(NoSeal),
    /// The kernel refuses the pager's own tables.
    #[error(
        "no address space for the runtime's tables ({0}): they reserve 128 GiB of addresses and take no memory before they are used; raise the limit (ulimit -v, ulimit -d)"
    )]
    Memory(Errno),
}

/// Features of the userfaultfd.
pub(crate) fn features(faults: Faults) -> u64 {
    let inline = if faults == Faults::Inline { feature::SIGBUS } else { 0 };
    feature::PAGEFAULT_FLAG_WP | inline
}

/// Keeps a part for the life of the process.
fn for_good<T>(part: T) -> &'static T {
    Box::leak(Box::new(part))
}

/// How much of local memory the parts take, pages.
struct Shares {
    /// The staging ring, once it is open.
    ring: u64,
    /// The staging ring now.
    staged: u64,
    by: By,
}

impl Shares {
    fn of(spec: &RunSpec, pool: &Pool) -> Shares {
        let by = if spec.mask.has(Feature::Records) || pool.nodes().any_wired() { By::Writes } else { By::Records };
        let beside = keeps_hashes(spec.dirty) && by == By::Records;
        let part = if beside { STAGED_BESIDE_HASHES } else { STAGED };
        let ring = (spec.local / PAGE_BYTES as u64 / part).clamp(32, 8192);
        // Where all memory is mapped the ring opens when a node joins whose memory is not.
        let staged = if pool.nodes().all_mapped() { 0 } else { ring };
        Shares { ring, staged, by }
    }

    /// How line hashes are kept.
    fn hashed(&self, spec: &RunSpec) -> Hashed {
        match self.by {
            By::Writes => Hashed::InFull,
            By::Records | By::Stripes => {
                Hashed::InBrief { mask: if spec.mask.has(Feature::Changes) { 0xC00 } else { WHOLE_TOP } }
            }
        }
    }

    /// Pages of the ring that may go by their lines.
    fn logged(&self, spec: &RunSpec) -> usize {
        if keeps_hashes(spec.dirty) && spec.seal != Seal::Whole { self.staged as usize } else { 0 }
    }
}

/// The policy for `limit` local pages.
fn policy(limit: u64, rate: Option<&'static Rate>, records_all: bool) -> Box<dyn Policy> {
    match rate {
        _ if records_all => Box::new(farmem_cache::fifo::Fifo::new(limit as usize)),
        Some(rate) => Box::new(Sampled::new(rate, farmem_cache::recommended(limit as usize))),
        None => farmem_cache::recommended(limit as usize),
    }
}

/// The parts that all others use.
pub(crate) struct Ground {
    pub base: &'static Base,
    pub local: &'static Local,
    pub changes: &'static Changes,
    pub out: &'static Out,
}

impl Ground {
    /// Makes these parts, and divides `--local` between the staging ring, the log and local pages.
    fn lay(mut spec: RunSpec, pool: Pool, counters: &'static counters::Process) -> Result<Ground, StartError> {
        let rate: Option<&'static Rate> = spec.sample.then(|| for_good(Rate::new()));
        let recorder = spec.trace.as_deref().map(|file| Recorder::new(file, rate));
        let records_all = recorder.is_some() && rate.is_none();
        if records_all {
            spec.dirty = Dirty::Exact;
        }
        let sealing = match spec.seal {
            Seal::Off => None,
            Seal::Whole => Some(Sealing::Whole),
            Seal::Lines => Some(Sealing::Lines),
        };
        if let Some(how) = sealing {
            pool.seals().begin(how).map_err(StartError::Seal)?;
        }
        let uffd = Uffd::open(features(spec.faults)).map_err(StartError::Userfaultfd)?;
        let shares = Shares::of(&spec, &pool);
        let (mut log, log_bytes) = Log::new(shares.logged(&spec), shares.by).map_err(StartError::Memory)?;
        // Pages of `--local` that are left for the program.
        let left = spec.local / PAGE_BYTES as u64 - shares.staged - (log_bytes / PAGE_BYTES) as u64;
        let mut tracker = Tracker::new(
            spec.dirty,
            left,
            pool.nodes().all_mapped(),
            shares.hashed(&spec),
            spec.mask.has(Feature::Alternate),
        )
        .map_err(StartError::Memory)?;
        log.confirm_by(tracker.seed());
        let mut limit = left;
        if records_all {
            limit = limit.min(record::LOCAL_PAGES);
            spec.prefetch = Prefetch::Off;
        }
        let sizes = Sizes::of(limit, most_at_once(shares.staged as usize), WINDOW);
        let evictor = Evictor::new(!spec.mask.has(Feature::ProcessMadvise), log).map_err(StartError::Memory)?;
        let staging = Staging::new(shares.ring as usize, shares.staged > 0).map_err(StartError::Memory)?;
        let base = for_good(Base {
            spec,
            uffd,
            table: Table::new().map_err(StartError::Memory)?,
            maps: Lock::new(Maps::new()),
            // A window must not be evicted before it is used: its length follows from the limit.
            threads: Threads::new(longest_for(limit)),
            pool,
            counters: Counters::new(counters),
            recorder,
            background: Background::new(),
        });
        match sealing {
            Some(Sealing::Lines) => tracker.keep_as_sealed(base),
            Some(Sealing::Whole) => tracker.send_whole(),
            None => {}
        }
        let local = for_good(Local::new(base, limit, sizes, policy(limit, rate, records_all)));
        let changes = for_good(Changes::new(tracker));
        let out = for_good(Out::new(base, local, changes, evictor, staging));
        if shares.staged > 0 {
            out.staging.tell(&base.pool);
        }
        Ok(Ground { base, local, changes, out })
    }
}

/// Starts the pager of the process. It lives as long as the process does.
///
/// # Errors
/// See [`StartError`].
pub fn start(spec: RunSpec, pool: Pool, counters: &'static counters::Process) -> Result<&'static Pager, StartError> {
    if spec.local < MIN_LOCAL {
        return Err(StartError::TooLittleLocal(spec.local));
    }
    clock::calibrate();
    let ground = Ground::lay(spec, pool, counters)?;
    let pager = for_good(assemble(&ground).map_err(StartError::Memory)?);
    farmem_sys::descriptors::spare::keep();
    // A process that ends before this point has no mode: its program never ran.
    let mode = 1 + (ground.base.spec.faults == Faults::Thread) as u32;
    ground.base.counters.mode.store(mode, Ordering::Relaxed);
    pager.house.begin();
    Ok(pager)
}

/// The parts that stand on the ground.
fn assemble(&Ground { base, local, changes, out }: &Ground) -> Result<Pager, Errno> {
    let room = for_good(Room::new(base, local, changes, out));
    let incoming = for_good(Incoming::new(base, local, changes, out, room)?);
    let pins = for_good(Pins::new(base, local, incoming));
    let hints = for_good(Hints::new(base, local, out, room, incoming));
    let share = for_good(Share::new(base, local, room));
    let space = for_good(Space::new(crate::space::Parts { base, local, changes, out, incoming, pins, hints }));
    let house = for_good(House::new(Parts { base, local, out, incoming, pins, space }));
    Ok(Pager { base, local, incoming, pins, hints, share, space, house })
}

/// Parts for tests of parts: on a node in this very process.
#[cfg(test)]
#[allow(unsafe_code)] // Counters of zeros.
pub(crate) mod bare {
    use super::*;
    use farmem_fabric::{ConnectOptions, NodeAddr, Session};
    use std::time::Duration;

    /// The ground for so much local memory, bytes.
    pub fn ground(local: u64) -> Ground {
        clock::calibrate();
        let nodes = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
        let node = for_good(farmem_memory::Node::start(&farmem_memory::Config::new(256 << 20, nodes)).unwrap());
        let options = ConnectOptions {
            timeout: Duration::from_secs(5),
            run: [1; 16],
            pid: std::process::id(),
            ..ConnectOptions::default()
        };
        let session = Session::connect(&node.addresses()[0], &options).unwrap();
        let spec = RunSpec { local, ..RunSpec::default() };
        // SAFETY: counters are atomics, of which zero is a value.
        let counters = for_good(unsafe { std::mem::zeroed() });
        Ground::lay(spec, Pool::new(vec![session]).unwrap(), counters).unwrap()
    }
}
