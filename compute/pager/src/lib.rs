//! The pager: far pages of a program, present when touched.
//!
//! Start reading at [`fault`]: one fault from access to installation. Then:
//!
//! | file | what happens there |
//! |---|---|
//! | [`word`] | the shared word that says all about a page, and its life cycle |
//! | `table` | one word for each far page, sparsely |
//! | [`fault`] | a page comes in |
//! | `fresh` | … fresh ones, many at once |
//! | `window` | … and those that the program is expected to touch next |
//! | `reads`, `writes` | over the fabric, where slots are not mapped |
//! | `log` | … of many pages the changed lines, in one record |
//! | [`dirty`] | which bytes of a page changed while it was local |
//! | `arrivals` | … and the policy hears of it, by and by |
//! | `headroom` | room is reserved, and made |
//! | `evict` | pages go out, many at a time |
//! | `evictor` | … by what is kept between batches |
//! | `settle` | … no write to them is lost meanwhile |
//! | `held` | … for they are held by reference, and read when their mapping is gone |
//! | `still` | … or the program's only thread evicts, and nobody can write |
//! | `guess` | will a page be written this time too? |
//! | `staging` | bytes on their way out, and back |
//! | `nodes` | nodes that join and leave while the program runs |
//! | `repair` | … and what they leave undone: slabs that lack a copy |
//! | `pin` | pages that a system call is using |
//! | `crowd` | … nearly all that are local |
//! | `space`, `moves`, `regions` | mmap and its kin |
//! | `hints` | what the program says of its pages |
//! | `foreign` | what else lies at far addresses |
//! | `handler` | faults by event instead, for kernels where inline cannot be |
//! | `fork` | parent and child both go on |
//! | `thread` | what a thread brings along; the gate that a fork closes |
//! | `record` | the page trace, for the replayer |
//! | `background` | what somebody must see to while the program does not fault |
//! | `ending` | ends that a load cannot report |
//!
//! **Trap discipline.** A fault is a trap, not an asynchronous event: it can
//! interrupt only code that touches far memory. Nothing in this crate touches
//! far memory from user mode, except eviction reading pages that it owns and that
//! are present. So this crate may take its own locks in a fault, provided no
//! other signal handler of the program runs while one is held: the SIGBUS handler
//! blocks all signals or keeps what comes, and every other entry blocks them itself
//! ([`farmem_sys::raw::SignalsBlocked`]). It uses no thread-local, no allocator of
//! the program's, no libc call that could.

#![allow(unsafe_code)] // Raw program memory: reads of pages it owns, installs into pages it owns.

mod arrivals;
mod background;
mod crowd;
pub mod dirty;
pub mod ending;
mod evict;
mod evictor;
pub mod fault;
mod foreign;
mod fork;
mod fresh;
mod guess;
mod handler;
mod headroom;
mod held;
mod hints;
pub mod log;
mod moves;
mod nodes;
mod pin;
mod reads;
mod record;
mod regions;
mod repair;
mod settle;
mod space;
mod staging;
mod still;
pub mod table;
mod thread;
mod window;
pub mod word;
mod writes;

pub use fork::Fork;
pub use hints::STEP;
pub use nodes::NotJoined;
pub use record::RECORD_FLAGS;
pub use space::Mapped;

use arrivals::Arrivals;
use background::Background;
use crowd::Crowd;
use dirty::{Hashed, Tracker, keeps_hashes};
use evictor::Evictor;
use farmem_cache::Policy;
use farmem_cache::prefetch::longest_for;
use farmem_cache::sample::{Rate, Sampled};
use farmem_pool::{By, Pool};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::counters;
use farmem_run::{Dirty, Faults, Feature, Prefetch, RunSpec};
use farmem_sys::clock;
use farmem_sys::lines::WHOLE_TOP;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::uffd::{OpenError, Uffd, feature};
use guess::Rewrites;
use headroom::Headroom;
use log::Log;
use pin::Lost;
use record::Recorder;
use space::Space;
use staging::Staging;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use table::Table;
use thread::{Threads, WINDOW};

/// Least local memory that makes sense: enough for every part of a batch.
pub const MIN_LOCAL: u64 = 1 << 20;

/// The staging ring's part of local memory, where slots are not mapped.
const STAGED: u64 = 16;
/// … where line hashes are kept in brief, which take a fortieth: both together are a sixteenth. Pages found clean, which pass the ring by,
/// are many there, so that what is in it stays as long. (`docs/design/lines.md`, *The ring beside hashes*, has what both took.)
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
    /// The kernel refuses the pager's own tables.
    #[error(
        "no address space for the runtime's tables ({0}): they reserve 128 GiB of addresses and take no memory before they are used; raise the limit (ulimit -v, ulimit -d)"
    )]
    Memory(Errno),
}

/// The process's counters; a forked child switches to its own.
pub(crate) struct Counters(AtomicPtr<counters::Process>);

impl Counters {
    fn switch(&self, to: &'static counters::Process) {
        self.0.store(std::ptr::from_ref(to).cast_mut(), Ordering::Relaxed);
    }
}

impl std::ops::Deref for Counters {
    type Target = counters::Process;
    #[inline(always)]
    fn deref(&self) -> &counters::Process {
        // SAFETY: only ever set from a &'static.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

/// The pager of a process.
pub struct Pager {
    /// The run's settings, as the pager goes by them.
    spec: RunSpec,
    uffd: Uffd,
    table: Table,
    threads: Threads,
    /// By [`Pager::policy`] only, which tells it first what it has not heard yet.
    policy: Lock<Box<dyn Policy>>,
    arrivals: Arrivals,
    rewrites: Rewrites,
    tracker: Tracker,
    evictor: Lock<Evictor>,
    /// Held by upgrades that read pages (not those that evict: these hold the evictor's lock), and by who makes pages
    /// unreadable.
    reading: Lock<()>,
    /// The network has not taken all yet that eviction sent off.
    held_up: AtomicBool,
    /// This process has forked, or was forked: its memory may be another's too.
    has_forked: AtomicBool,
    staging: Staging,
    space: Lock<Space>,
    pool: Pool,
    background: Background,
    /// See [`Pager::each_second`].
    also: OnceLock<fn()>,
    /// See [`Pager::each_tick`].
    tick: OnceLock<fn(&Pager)>,
    /// See [`Pager::before_waiting`].
    before_waiting: OnceLock<fn()>,
    counters: Counters,
    recorder: Option<Recorder>,
    /// The runtime's mappings that were resident when they were last counted, bytes.
    holdings: AtomicU64,
    /// [`WINDOW`] pages that read as zero.
    zeros: *const u8,
    /// Resident far pages, with those about to be.
    resident: AtomicU64,
    /// The most that `resident` may be: `--local` less the staging ring and the log. Entries for
    /// hashes count as resident.
    limit: AtomicU64,
    /// Of those, what long system calls have claimed for pins.
    long_pins: AtomicU64,
    /// What pins leave of it.
    crowd: Crowd,
    /// Times at which pages went from under their pins.
    losses: AtomicU64,
    /// … and of which; held while they do.
    losing: Lock<Lost>,
    /// Below this much room more is made ([`headroom`]).
    low_room: u64,
    batch: usize,
    /// … where threads sleep for room.
    batch_of_many: usize,
    headroom: Headroom,
}

// SAFETY: `zeros` is never written; everything else synchronises itself.
unsafe impl Sync for Pager {}
// SAFETY: as above.
unsafe impl Send for Pager {}

/// Starts the pager. One per process, for its whole life.
pub fn start(
    mut spec: RunSpec,
    pool: Pool,
    counters: &'static counters::Process,
) -> Result<&'static Pager, StartError> {
    if spec.local < MIN_LOCAL {
        return Err(StartError::TooLittleLocal(spec.local));
    }
    clock::calibrate();
    let rate: Option<&'static Rate> = spec.sample.then(|| &*Box::leak(Box::new(Rate::new())));
    let recorder = spec.trace.as_deref().map(|file| Recorder::new(file, rate));
    let records_all = recorder.is_some() && rate.is_none();
    if records_all {
        spec.dirty = Dirty::Exact;
    }
    let uffd = Uffd::open(features(spec.faults)).map_err(StartError::Userfaultfd)?;
    let local = spec.local / PAGE_BYTES as u64;
    let by = if spec.mask.has(Feature::Records) || pool.any_wired() { By::Writes } else { By::Records };
    let beside = keeps_hashes(spec.dirty) && by == By::Records;
    let part = if beside { STAGED_BESIDE_HASHES } else { STAGED };
    let ring = (local / part).clamp(32, 8192);
    // Where all memory is mapped it opens when a node comes that is not ([`nodes`]).
    let staged = if pool.all_mapped() { 0 } else { ring };
    let logged = if keeps_hashes(spec.dirty) { staged as usize } else { 0 };
    let (mut log, log_bytes) = Log::new(logged, by).map_err(StartError::Memory)?;
    let most = most_at_once(staged as usize);
    let left = local - staged - (log_bytes / PAGE_BYTES) as u64;
    let hashed = match by {
        By::Records => Hashed::InBrief { mask: if spec.mask.has(Feature::Changes) { 0xC00 } else { WHOLE_TOP } },
        By::Writes => Hashed::InFull,
    };
    let tracker = Tracker::new(spec.dirty, left, pool.all_mapped(), hashed, spec.mask.has(Feature::Turns))
        .map_err(StartError::Memory)?;
    log.confirm_by(tracker.seed());
    let mut limit = left;
    if records_all {
        limit = limit.min(record::LOCAL_PAGES);
        spec.prefetch = Prefetch::Off;
    }
    let policy: Box<dyn Policy> = match rate {
        _ if records_all => Box::new(farmem_cache::fifo::Fifo::new(limit as usize)),
        Some(rate) => Box::new(Sampled::new(rate, farmem_cache::recommended(limit as usize))),
        None => farmem_cache::recommended(limit as usize),
    };
    let zeros = farmem_sys::memory::reserve(WINDOW * PAGE_BYTES).map_err(StartError::Memory)?;
    for page in 0..WINDOW {
        // Reading maps the kernel's one page of zeros, so that all of this costs no memory.
        // SAFETY: our own mapping.
        unsafe { zeros.add(page * PAGE_BYTES).read_volatile() };
    }
    let batch_of_many = (limit as usize / 8).clamp(8, most);
    // Room kept free is local memory that the program does not have: half a batch on the average.
    let batch = batch_of_many.min((limit as usize / 64).max(32));
    let low_room = (limit / 64).clamp(8, 2 * WINDOW as u64);
    let pager = Pager {
        uffd,
        table: Table::new().map_err(StartError::Memory)?,
        // What a window brings in must not be evicted before it is used.
        threads: Threads::new(longest_for(limit)),
        arrivals: Arrivals::new(),
        policy: Lock::new(policy),
        rewrites: Rewrites::new(),
        tracker,
        reading: Lock::new(()),
        held_up: AtomicBool::new(false),
        has_forked: AtomicBool::new(false),
        evictor: Lock::new(Evictor::new(!spec.mask.has(Feature::ProcessMadvise), log)),
        staging: Staging::new(ring as usize, staged > 0).map_err(StartError::Memory)?,
        space: Lock::new(Space::new()),
        pool,
        background: Background::new(),
        also: OnceLock::new(),
        tick: OnceLock::new(),
        before_waiting: OnceLock::new(),
        counters: Counters(AtomicPtr::new(std::ptr::from_ref(counters).cast_mut())),
        recorder,
        holdings: AtomicU64::new(0),
        zeros,
        resident: AtomicU64::new(0),
        long_pins: AtomicU64::new(0),
        crowd: Crowd::new(),
        losses: AtomicU64::new(0),
        losing: Lock::new(Lost::new()),
        limit: AtomicU64::new(limit),
        low_room,
        batch,
        batch_of_many,
        headroom: Headroom::new(),
        spec,
    };
    let pager: &'static Pager = Box::leak(Box::new(pager));
    farmem_sys::descriptors::spare::keep();
    if staged > 0 {
        // SAFETY: the ring is never unmapped, and its pages stay its own.
        unsafe { pager.pool.arena(pager.staging.bytes(0), staged as usize * PAGE_BYTES) };
    }
    // A process that ends before this point has no mode: its program never ran.
    pager.counters.mode.store(1 + (pager.spec.faults == Faults::Thread) as u32, Ordering::Relaxed);
    pager.start_handler();
    Ok(pager)
}

/// Pages that may leave together, where the staging ring has room for `staged`: they must find room
/// in it without waiting for one another.
fn most_at_once(staged: usize) -> usize {
    if staged == 0 { evictor::BATCH } else { evictor::BATCH.min(staged / 2) }
}

/// Features of the userfaultfd.
fn features(faults: Faults) -> u64 {
    let inline = if faults == Faults::Inline { feature::SIGBUS } else { 0 };
    feature::PAGEFAULT_FLAG_WP | inline
}

impl Pager {
    /// The process makes an exit_group next, and the nodes are told. Not for a vfork child, whose pager
    /// is its parent's.
    pub fn farewell(&self) {
        ending::leave();
        self.pool.farewell();
    }

    /// Whether a fault waits for nobody but the kernel and other threads here: all nodes' memory is mapped, and no trace written.
    pub fn waits_for_nobody(&self) -> bool {
        self.pool.all_mapped() && self.recorder.is_none()
    }

    /// Ends the process if one that shares this memory has ended inside the pager.
    pub fn look_for_members(&self) {
        self.threads.look();
    }

    /// What the background thread does, too, when it begins, at the first eviction, and when it keeps house: once a second then.
    pub fn each_second(&self, also: fn()) {
        let _ = self.also.set(also);
    }

    /// Has the background thread call `tick` four times a second, outside the pager. It may call
    /// [`Pager::add_node`] and [`Pager::take_out`].
    pub fn each_tick(&self, tick: fn(&Pager)) {
        let _ = self.tick.set(tick);
    }

    /// Has `before` called before faults begin to wait for a node, if they have waited for none so far.
    pub fn before_waiting(&self, before: fn()) {
        let _ = self.before_waiting.set(before);
    }

    /// Pages of local memory that may be resident now.
    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Where the program break starts in the far range.
    pub fn heap_start(&self) -> usize {
        farmem_protocol::addr::FAR_START
    }
}
