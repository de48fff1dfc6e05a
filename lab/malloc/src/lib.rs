//! `farmem-lab malloc-bench`: an allocator on far memory in pieces, against the system's.
//!
//! ```text
//! malloc-bench ──► farmem agent-node, farmem agent      of its own, in a private directory
//!      │      └──► malloc-child: one pattern, one allocator   by turns: system, farmem, farmem, system, …
//!      └─ table, JSON
//! ```
//!
//! | file | |
//! |---|---|
//! | [`classes`], [`heap`] | the allocator: size classes, spans, caches of threads |
//! | [`memory`], [`meter`] | what is measured, and how |
//! | [`patterns`] | threadtest, shbench, larson, FineMem's traces |
//! | [`child`] | one of them, in a process of its own |
//! | [`report`] | what is printed |

pub mod child;
pub mod classes;
pub mod heap;
pub mod memory;
pub mod meter;
pub mod patterns;
pub mod report;
mod service;

use anyhow::{Context, Result};
use child::Found;
use farmem_fabric::NodeAddr;
use farmem_kit::alone::Alone;
use farmem_kit::supervise;
use patterns::Pattern;
use report::{Report, Row};
use service::Service;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// An allocator on far memory, against the system's malloc
///
/// Runs allocation patterns on farmem's own allocator, whose memory is pieces that an
/// agent grants from a node on this machine or another, and on the system's malloc, by turns.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Patterns to run; all that need no file, if none is named
    #[arg(long, value_enum, value_name = "PATTERN")]
    pub pattern: Vec<Pattern>,

    /// A recorded trace of FineMem's, plain or .gz; may be repeated
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,

    /// No agent beside the parts: each has one within itself
    #[arg(long)]
    pub alone: bool,

    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: u8,

    /// Allocations of each pattern, of all threads together (a trace has its own) [default: 2000000; with --node 100000]
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,

    /// Memory of this node, HOST:PORT, which objects are written to and looked at by verbs; without it, of one that is
    /// started on this machine, and mapped
    #[arg(long, value_name = "ADDR")]
    pub node: Option<NodeAddr>,

    /// Times that everything is run; medians are printed
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: u8,

    /// A twentieth of the work: a look
    #[arg(long)]
    pub quick: bool,

    /// Write the figures as JSON: to a file, or - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab malloc-bench --quick
      threadtest, shbench and larson in a few seconds: a look.
  farmem-lab malloc-bench --node bighost:7411 --ops 50000
      On memory of another machine, by verbs over tcp.
  farmem-lab malloc-bench --trace trace.je.larson.16.gz --trace trace.mi.lean.16.gz
      What jemalloc and mimalloc asked for, of FineMem's traces
      (github.com/MemoryDisaggregation/FineMem, microbench/traces; one of them
      is in lab/malloc/traces).

taken/asked: memory taken from the agent (or, for malloc, from the kernel) for each byte asked for, \
at the moment when most was asked for. One benchmark runs at a time.";

/// Bytes that the benchmark's own node lends, at most.
const LEND: u64 = 2 << 30;

impl Options {
    /// Runs it all. `farmem`: the binary that is measured, and runs the parts.
    ///
    /// # Errors
    /// When a part failed: an object was overwritten, memory ran out, or no agent could be started.
    pub fn run(self, farmem: &Path) -> Result<()> {
        // A file that cannot be read is told before anything runs.
        for trace in &self.trace {
            child::read_trace(trace)?;
        }
        anyhow::ensure!(!self.pattern.contains(&Pattern::Trace), "--pattern trace: name the file: --trace FILE");
        if self.json.as_deref() != Some(Path::new("-")) {
            farmem_kit::report::can_be_written([&self.json])?;
        }
        let _alone = Alone::take()?;
        supervise::note_interrupts();
        let service = Service::start(farmem, self.node.as_ref(), LEND, self.alone)?;
        let ops = self.ops.unwrap_or(if self.node.is_some() { 100_000 } else { 2_000_000 });
        let ops = if self.quick { ops / 20 } else { ops }.max(20_000);
        let mut works: Vec<(Pattern, Option<&PathBuf>)> = self.pattern.iter().map(|&pattern| (pattern, None)).collect();
        if works.is_empty() && self.trace.is_empty() {
            works = [Pattern::Threadtest, Pattern::Shbench, Pattern::Larson].map(|pattern| (pattern, None)).into();
        }
        works.extend(self.trace.iter().map(|trace| (Pattern::Trace, Some(trace))));
        let threads = self.threads.max(1) as usize;
        let alone = self.alone.then(|| service.node());
        let run = |agent: Option<&Path>, pattern: Option<Pattern>, trace: Option<&PathBuf>| {
            part(farmem, (agent, alone), pattern, trace, threads, ops)
        };
        let agent = Some(service.socket());
        let mut rows: Vec<Row> = works.iter().map(|(pattern, trace)| Row::new(*pattern, *trace)).collect();
        let mut chunks = Vec::new();
        for round in 0..self.rounds.max(1) {
            chunks.push(run(agent, None, None)?);
            for (row, &(pattern, trace)) in rows.iter_mut().zip(&works) {
                let mut turns = [None, agent];
                if round % 2 == 1 {
                    turns.reverse();
                }
                for turn in turns {
                    let found = run(turn, Some(pattern), trace)?;
                    if turn.is_some() { &mut row.farmem } else { &mut row.system }.push(found);
                }
            }
        }
        let report = Report::new(threads, self.node.as_ref().map(NodeAddr::to_string), rows, &chunks);
        match &self.json {
            Some(path) if path == Path::new("-") => println!("{}", report.json()?),
            _ => farmem_kit::report::tell(&report, &[(&self.json, &|| Ok(report.json()? + "\n"))])?,
        }
        Ok(())
    }
}

/// One child's figures.
fn part(
    farmem: &Path,
    (agent, alone): (Option<&Path>, Option<&str>),
    pattern: Option<Pattern>,
    trace: Option<&PathBuf>,
    threads: usize,
    ops: u64,
) -> Result<Found> {
    let mut command = Command::new(farmem);
    command.args(["malloc-child", "--threads", &threads.to_string(), "--ops", &ops.to_string()]);
    if let Some(agent) = agent {
        command.arg("--agent").arg(agent);
        if let Some(node) = alone {
            command.args(["--alone", node]);
        }
    }
    if let Some(pattern) = pattern {
        command.arg("--pattern").arg(report::name(pattern));
    }
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    // How much is asked for is the user's choice, and so is how long that takes.
    let year = Duration::from_secs(365 * 86_400);
    let (status, told, complaint) = supervise::ended(&mut command, year)?;
    anyhow::ensure!(status.success(), "{}", complaint.trim().trim_start_matches("farmem: "));
    serde_json::from_str(&told).context("a part told nothing")
}
