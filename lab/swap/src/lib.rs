//! How much of a cluster's far memory is used, and how many jobs it finishes, by how that memory is granted to hosts that
//! swap: `farmem-lab swap-cluster`.
//!
//! ```text
//!  kinds of programs ─► traces: what each holds over its life, by grain ─► cluster: jobs, hosts, a policy ─► report
//! ```
//!
//! * [`device`]: a swap device as the kernel allocates on it. [`traces`]: what is live and held of it, by the production
//!   allocator and others. [`cluster`]: jobs on hosts. [`report`]: table, JSON, chart.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod device;
pub mod report;
pub mod traces;

use anyhow::{Context, Result, ensure};
use cluster::{Outcome, Policy};
use std::path::PathBuf;
use traces::{Kind, Life};

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

Use is far memory that is live, of all there is; of held: of what is granted. Jobs are compared
within a seed.";

/// What every policy did with every seed's jobs.
pub struct Outcomes {
    /// Hosts of a cluster.
    pub hosts: usize,
    /// By policy, then by seed.
    pub by_policy: Vec<(Policy, Vec<Outcome>)>,
}

/// Simulates as many clusters.
pub fn simulate(seeds: u64, hosts: usize) -> Outcomes {
    let lives: Vec<Life> = Kind::ALL.iter().map(|&kind| Life::of(kind, 1)).collect();
    let all = |policy| (1..=seeds).map(|seed| cluster::simulate(policy, &lives, hosts, seed)).collect();
    Outcomes { hosts, by_policy: Policy::ALL.iter().map(|&policy| (policy, all(policy))).collect() }
}

impl Swap {
    /// Simulates, and prints what came of it.
    ///
    /// # Errors
    /// A chart that cannot be written.
    pub fn run(self) -> Result<()> {
        ensure!(self.hosts > 0, "--hosts: a cluster has one host at least");
        let outcomes = simulate(self.seeds, self.hosts as usize);
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
