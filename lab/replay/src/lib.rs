//! Replays page traces through the production cache code: `farmem-lab replay`.
//!
//! ```text
//! trace (file, or generated) ─► Trace ─┬─► machine: a policy, the pager's batches and staging, the prefetcher
//!                                      └─► ideal:   what could be done seeing every access, or the future
//! ```
//!
//! *Buildable* policies are those of `farmem-cache` and see what the pager
//! shows them: faults. *Ideal* ones (LRU, CLOCK with reference bits, SIEVE,
//! S3-FIFO with counters, Belady's MIN) see every access and are the yardstick.

#![forbid(unsafe_code)]

pub mod generate;
pub mod ideal;
pub mod machine;
pub mod plot;
pub mod report;
pub mod sweep;
pub mod trace;

use anyhow::{Context, Result};
use std::path::PathBuf;
use trace::Trace;

/// Replay page traces through farmem's cache policies
///
/// Traces are recorded by `farmem run --trace FILE`. Shows, at several shares of local
/// memory, how often each policy would have had to fetch, and what prefetch would have
/// done. Policies with a star see every access, which a pager cannot; MIN* is the bound.
#[derive(clap::Args, Debug)]
pub struct Replay {
    /// Trace files; `.xz` ones through xz. None: generated traces
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Generated traces as well as the files
    #[arg(long)]
    pub generated: bool,
    /// Local memory, in percent of the most pages that a trace has mapped and touched at once
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "10%,25%,50%", value_parser = share)]
    pub local: Vec<usize>,
    /// Pages evicted together
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// The staging ring, in thousandths of local memory; there is none over shared memory, 37 over tcp (62 without line hashes)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=500))]
    pub staging: u32,
    /// Seed of the generated traces
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Compare the policy's sizes, and those of prefetch windows, instead
    #[arg(long, conflicts_with_all = ["json", "plot"])]
    pub sweep: bool,
    /// First reduce the traces to what a recorder that keeps N pages would have seen
    #[arg(long, value_name = "N")]
    pub recorded: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a plot of the misses here
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

fn share(text: &str) -> Result<usize, &'static str> {
    match text.trim_end_matches('%').parse() {
        Ok(share @ 1..=100) => Ok(share),
        _ => Err("a share from 1% to 100% is needed"),
    }
}

impl Replay {
    /// Replays, and prints what came of it.
    pub fn run(self) -> Result<()> {
        if let Some(to) = &self.plot {
            // Told now, not after a replay of hours.
            std::fs::File::options()
                .append(true)
                .create(true)
                .open(to)
                .with_context(|| format!("--plot {}", to.display()))?;
        }
        let mut traces = self.traces.iter().map(|f| Trace::open(f)).collect::<Result<Vec<_>>>()?;
        if self.generated || traces.is_empty() {
            traces.extend(generate::all(self.seed));
        }
        if let Some(local) = self.recorded {
            traces = traces.iter().map(|t| t.recorded(local)).collect();
        }
        let (batch, staging) = (self.batch as usize, self.staging as usize);
        if self.sweep {
            print!("{}", sweep::run(&traces, &self.local, batch, staging));
            return Ok(());
        }
        let report = report::run(&traces, &self.local, batch, staging);
        // Before the figures, for who reads these may want few of them (`| head`); if it fails, after them.
        let plotted = match &self.plot {
            Some(to) => std::fs::write(to, plot::svg(&report)).with_context(|| format!("--plot {}", to.display())),
            None => Ok(()),
        };
        match self.json {
            true => println!("{}", report.json()),
            false => print!("{}", report.table()),
        }
        plotted
    }
}
