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
//! host reads the other copy.
//!
//! Not simulated: the pager, shared memory, RDMA, and two threads of one process at one instant.
//! For these threads `farmem_pool`'s models walk every interleaving (`tests/two_homes.rs`,
//! `tests/stripes.rs`).

pub mod control;
pub mod host;
pub mod judge;
mod world;

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use judge::Broken;
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
    /// A forked process overwrites what its parent can reach.
    OverwroteShared,
    /// The store does not keep nodes' shares of tenants' quotas.
    SharesNotKept,
    /// A node carries out orders about shares as they arrive, not as they were given.
    SharesLate,
    /// A node confirms an order about shares before it has it.
    SharesConfirmedEarly,
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
/// last write wins, that nothing freed is read, that waits end, that copies lie apart, that any one node may go in
/// the end, and that old orders do nothing.
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
    /// cores.
    fn in_processes(&self) -> Result<()> {
        let (begun, cores) = (Instant::now(), std::thread::available_parallelism().map_or(1, usize::from));
        let own = std::env::current_exe().context("this program has no name")?;
        let mut firsts = (self.from..self.from + self.seeds).step_by(SEEDS_INSIDE as usize);
        loop {
            let mut running = Vec::new();
            for from in firsts.by_ref().take(cores) {
                let seeds = SEEDS_INSIDE.min(self.from + self.seeds - from);
                let mut command = Command::new(&own);
                command.args(["rack", "--inside", "--from", &from.to_string(), "--seeds", &seeds.to_string()]);
                command.args(["--steps", &self.steps.to_string()]);
                command.args(self.mistake.map(|mistake| format!("--mistake={}", mistake.name())));
                running.push(command.spawn().context("cannot start a process")?);
            }
            if running.is_empty() {
                break;
            }
            for mut process in running {
                ensure!(process.wait()?.success(), "a seed has failed: see above");
            }
        }
        println!("{} seeds in {:.1?}: every rule held", self.seeds, begun.elapsed());
        Ok(())
    }
}

/// The text of a failure, with the command that repeats it.
fn told(seed: u64, how: &Rack, Broken(what): &Broken) -> String {
    let steps = if how.steps == STEPS { String::new() } else { format!(" --steps {}", how.steps) };
    let mistake = how.mistake.map_or_else(String::new, |mistake| format!(" --mistake {}", mistake.name()));
    format!("seed {seed}: {what}\nagain by: farmem-lab rack --from {seed} --seeds 1{steps}{mistake}")
}
