//! How much of a cluster's far memory is used, and how many jobs it finishes, by how that memory is granted to hosts that
//! swap: `farmem-lab swap-cluster`.
//!
//! ```text
//!  recorded: slots of real programs ─► traces: what each holds, by grain ─► cluster: jobs, hosts, a policy ─► report
//! ```
//!
//! * [`recorded`]: what the kernel did to slots. [`traces`]: what is live and held of them, by the production allocator
//!   and others. [`cluster`]: jobs on hosts; [`calendar`]: what is booked for them. [`report`]: table, JSON, chart.
//! * [`claims`]: what claims cost pages that leave, beside the allocators of others: `farmem-lab swap-claims`.

#![forbid(unsafe_code)]

pub mod calendar;
pub mod claims;
pub mod cluster;
pub mod recorded;
pub mod report;
pub mod traces;

use anyhow::{Context, Result, ensure};
use cluster::{Outcome, Policy};
use recorded::Program;
use std::path::PathBuf;
use traces::Life;

/// Simulate a cluster that swaps to far memory, by how that is granted
///
/// Hosts run jobs that need more memory than they have. Shows how much of the far memory is used, and how
/// many jobs are finished, under static shares, grants of 1 GiB, blocks of 4 MiB and farmem's volumes.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Swap {
    /// Clusters, each with other jobs; figures are means with their 95 % interval
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(2..=100_000))]
    pub seeds: u64,
    /// Hosts of a cluster
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub hosts: u64,
    /// Write a chart here
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab swap-cluster --seeds 20
      A look, in seconds.
  farmem-lab swap-cluster --svg swap.svg
      500 clusters.

The programs were recorded while they swapped. Use is far memory that is live, of all there is;
of held: of what is granted. Jobs are compared within a seed, with static shares by the same rule.";

/// What every policy did with every seed's jobs.
pub struct Outcomes {
    /// Hosts of a cluster.
    pub hosts: usize,
    /// What runs there.
    pub programs: Vec<Program>,
    /// What each holds.
    pub lives: Vec<Life>,
    /// By policy, then by seed.
    pub by_policy: Vec<(Policy, Vec<Outcome>)>,
}

/// Simulates as many clusters.
///
/// # Errors
/// A file of the repository's is damaged.
pub fn simulate(seeds: u64, hosts: usize) -> Result<Outcomes> {
    let programs = Program::all()?;
    let lives: Vec<Life> = programs.iter().map(|program| Life::of(&program.events)).collect();
    let all = |policy| (1..=seeds).map(|seed| cluster::simulate(policy, &programs, &lives, hosts, seed)).collect();
    let by_policy = Policy::ALL.iter().map(|&policy| (policy, all(policy))).collect();
    Ok(Outcomes { hosts, programs, lives, by_policy })
}

impl Swap {
    /// Simulates, and prints what came of it.
    ///
    /// # Errors
    /// A chart that cannot be written.
    pub fn run(self) -> Result<()> {
        ensure!(self.hosts > 0, "--hosts: a cluster has one host at least");
        let outcomes = simulate(self.seeds, self.hosts as usize)?;
        let rows = report::rows(&outcomes);
        if let Some(file) = &self.svg {
            std::fs::write(file, report::chart(&rows)).with_context(|| format!("{}", file.display()))?;
        }
        match self.json {
            true => println!("{}", report::json(&rows, &outcomes)?),
            false => print!("{}", report::text(&rows, &outcomes)),
        }
        Ok(())
    }
}
