//! A rack in virtual time: three hosts, five nodes and the controllers under one seed.
//!
//! ```text
//!  seed ─► steps: pages are written, read and dropped; nodes die, stop, are cut off, slow down and
//!          start again; leaders are replaced; nodes are drained; messages come late
//!            hosts (real pool: mirror, repair, moves) ─► networks, one clock ─► nodes (real NIC)
//!            controllers (real state), and a store that refuses a deposed leader's writes
//!  judge:  the rules that must hold, checked by its own records
//! ```
//!
//! Host 0 keeps two copies of each page. Host 1 does so in every third seed, and keeps parity in
//! the others. Host 2 keeps one copy; in every other seed it has a second one in a file. Faults are
//! drawn so that no page loses all its copies. If a page's node is away, the host waits for it or
//! uses another copy. A seed always gives the same run. A failure prints the command that repeats
//! it.
//!
//! A host forks now and then. The child is a copy of its pool, with sessions of its own. Both write
//! until the child ends and drops all that it holds. If a READ is late, by the network's clock, the
//! host reads the other copy. Nodes that want slabs back may put them aside, whether or not their
//! hosts answer.
//!
//! In three of twenty seeds the hosts seal their pages, and a node may lie: it alters pages that it holds,
//! swaps them, or puts earlier ones back. Nothing that it made up may be used, and a page with an
//! honest copy must be read from that.
//!
//! Not simulated: the pager, shared memory, RDMA, and two threads of one process at one instant.
//! For these threads `farmem_pool`'s models walk every interleaving (`tests/two_homes.rs`,
//! `tests/stripes.rs`).

pub mod control;
pub mod host;
pub mod judge;
mod reprotect;
mod world;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use judge::Broken;
pub use reprotect::Reprotect;
pub use world::{Reached, run};

/// Something that is done wrong on purpose: the judge must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mistake {
    /// Hosts that are to keep two copies keep one.
    OneCopy,
    /// A page that is live is given back.
    FreedTwice,
    /// Orders of an earlier leader are carried out.
    OldTermTaken,
    /// The store takes what a deposed leader writes.
    KeptWithoutCompare,
    /// The pool does not know failure domains.
    NoDomains,
    /// A page's bytes are used again before every home has it.
    ReusedBeforeDone,
    /// A page is read from far memory before every home has it.
    ReadBeforeDone,
    /// A home that is being filled is published before the bits of what it lacks.
    BitsAfterWord,
    /// A queue pair is used further after its node was given up for a late answer.
    KeptLateLink,
    /// A home is filled by a lane that is not the one of all write-back.
    FilledOutsideLock,
    /// A home goes back to its node while a READ from it is under way.
    ReleasedUnderRead,
    /// Parity is computed without the pages that are not new.
    ParityWithoutOthers,
    /// Parity stays as it was where a page changes by lines.
    ParityLeftBehind,
    /// A forked process overwrites what its parent can reach.
    OverwroteShared,
    /// The store does not keep nodes' shares of tenants' quotas.
    SharesNotKept,
    /// A leader keeps a share only when its bound changes, and not before each order that gives more.
    SharesKeptOnce,
    /// A node carries out orders about shares as they arrive, not as they were given.
    SharesLate,
    /// A node confirms an order about shares before it has it.
    SharesConfirmedEarly,
    /// A slab that a node has put aside comes back without its bytes.
    SpilledBytesLost,
    /// Hosts use what a node gives back, whether or not it is what they wrote.
    NotSealed,
    /// A page that does not open is not asked for at its other copy.
    OtherNotAsked,
    /// A page that does not open is lost at once, although a node that was given up may bring it back.
    AwayNotAwaited,
    /// A node's word says that a block is free which a run has.
    OwnerForgotten,
    /// A node lets two runs hold one slab.
    HeldTwice,
}

impl Mistake {
    /// The mistake's name on the command line.
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Run a rack in virtual time, seed by seed
///
/// Three hosts, five nodes and the controllers, of the code that is shipped, with faults and forks. Checks that the
/// last write wins, that a slab has one owner, that nothing freed is read, that waits end, that copies lie apart, that
/// any one node may go in the end, that old orders do nothing, and that nobody believes a node that lies.
#[derive(clap::Args, Debug)]
pub struct Rack {
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub from: u64,
    /// Steps of each
    #[arg(long, value_name = "N", default_value_t = STEPS)]
    pub steps: usize,
    /// Do something wrong on purpose; a failure is expected then
    #[arg(long, value_enum)]
    pub mistake: Option<Mistake>,
    /// Run these seeds in this process, and say nothing unless one fails
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// Steps of a seed.
pub const STEPS: usize = 120;
/// The most seeds of one process: a process never frees pools and their addresses.
const SEEDS_INSIDE: u64 = 200;

impl Rack {
    /// Runs the seeds.
    ///
    /// # Errors
    /// A rule was broken, or a process cannot be started.
    pub fn run(&self) -> Result<()> {
        if self.inside || self.seeds <= SEEDS_INSIDE {
            let begun = Instant::now();
            for seed in self.from..self.from + self.seeds {
                run(seed, self.steps, self.mistake).map_err(|broken| anyhow::anyhow!(told(seed, self, &broken)))?;
            }
            if !self.inside {
                println!("{} seeds in {:.1?}: every rule held", self.seeds, begun.elapsed());
            }
            return Ok(());
        }
        self.in_processes()
    }

    /// Runs the seeds in processes of [`SEEDS_INSIDE`] seeds each, as many at a time as there are
    /// cores. After a failure no other process begins.
    fn in_processes(&self) -> Result<()> {
        let (begun, cores) = (Instant::now(), std::thread::available_parallelism().map_or(1, usize::from));
        let own = std::env::current_exe().context("this program has no name")?;
        let end = self.from + self.seeds;
        let (next, failed) = (AtomicU64::new(self.from), AtomicBool::new(false));
        let work = || -> Result<()> {
            while !failed.load(Ordering::Relaxed) {
                let from = next.fetch_add(SEEDS_INSIDE, Ordering::Relaxed);
                if from >= end {
                    break;
                }
                let status = self.inside(&own, from, SEEDS_INSIDE.min(end - from)).status();
                let sound = status.as_ref().is_ok_and(|status| status.success());
                failed.fetch_or(!sound, Ordering::Relaxed);
                ensure!(status.context("cannot start a process")?.success(), "a seed has failed: see above");
            }
            Ok(())
        };
        let ended: Vec<Result<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| bail!("a thread has panicked"))).collect()
        });
        ended.into_iter().collect::<Result<()>>()?;
        let cpu = cpu_of_children().map_or_else(String::new, |cpu| format!(", {cpu:.1?} of CPU time"));
        println!("{} seeds in {:.1?}{cpu}: every rule held", self.seeds, begun.elapsed());
        Ok(())
    }

    /// A process that runs some of the seeds.
    fn inside(&self, own: &Path, from: u64, seeds: u64) -> Command {
        let mut command = Command::new(own);
        command.args(["rack", "--inside", "--from", &from.to_string(), "--seeds", &seeds.to_string()]);
        command.args(["--steps", &self.steps.to_string()]);
        command.args(self.mistake.map(|mistake| format!("--mistake={}", mistake.name())));
        command
    }
}

/// CPU time of the processes that this one has started and awaited.
fn cpu_of_children() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may have spaces; the fields behind it, from the third of all on, have none. The
    // kernel counts in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks(16)? + ticks(17)?)))
}

/// The text of a failure, with the command that repeats it.
fn told(seed: u64, how: &Rack, Broken(what): &Broken) -> String {
    let steps = if how.steps == STEPS { String::new() } else { format!(" --steps {}", how.steps) };
    let mistake = how.mistake.map_or_else(String::new, |mistake| format!(" --mistake {}", mistake.name()));
    format!("seed {seed}: {what}\nagain by: farmem-lab rack --from {seed} --seeds 1{steps}{mistake}")
}
