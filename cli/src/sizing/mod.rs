//! `farmem size`: how much local memory a program needs, from one run of it.
//!
//! ```text
//! run with plenty ─► the pager records a sample of page uses ─► returns by local memory ─► table
//!                    (farmem_cache::sample)                     × time of a fetch (estimate.rs)  (report.rs)
//! ```

mod estimate;
mod report;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::borrow;
use crate::failure::Failure;
use crate::run::{self, Nodes, Plan, names};
use crate::size::Size;
use estimate::Trace;
use farmem_run::Transport;
use report::Report;

/// Run a program once, and suggest a --local for it
///
/// The program runs with plenty of local memory. A table says how often it would wait for a node
/// with less, and a line which --local would cost it little. Most programs take little longer than
/// usual; one that jumps about in its memory all the time may take several times as long.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A node as for farmem run: what a fetch costs is measured there [default: one started on this
    /// machine]
    #[arg(long, value_name = "ADDR")]
    pub node: Vec<Nodes>,

    /// How bytes move [default: auto]
    #[arg(long, value_parser = names::<Transport>())]
    pub transport: Option<Transport>,

    #[command(flatten)]
    pub token: borrow::Flag,

    /// Print the table as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Ignore variables and configuration files (farmem run --help lists them)
    #[arg(long)]
    pub no_settings: bool,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  farmem size -- python3 analysis.py
      Far memory of a second process on this machine.

  farmem size --node bighost:7411 -- ./simulate small.cfg
      What a fetch costs is measured with bighost.

The table goes to standard error, after the program's own output. Its columns:
  --local      most memory here for each process's far pages
  of peak      the same as a share of the most that one process used at once
  returns      times that the program comes back to a page that has left
  in order     of these, right after a neighbour: such pages are fetched ahead
  waiting      what the returns cost, all threads and processes added up
  of the run   the same as a share of the time that the program took

It is an estimate from a sample of the pages, for this input and this node. An input twice as \
large needs about twice as much. Run it with the suggested --local and look at \"waiting\": \
farmem top shows it meanwhile, the summary at the end.

Exit status: the program's own, as in farmem run.";

/// The share of available memory that may be local while measuring.
const PLENTY: f64 = 0.9;

/// Runs the program, and tells what it would need; returns only if it could not be started.
pub fn run(options: &Options) -> Result<Infallible, Failure> {
    let asked = run::Options {
        node: options.node.clone(),
        transport: options.transport,
        token: options.token.clone(),
        no_settings: options.no_settings,
        local: Some(Size::Bytes(1 << 30)),
        ..run::Options::plain(options.command.clone())
    };
    let mut plan = Plan::of(&asked)?;
    plan.spec.local = (plan.ram.available as f64 * PLENTY) as u64 & !4095;
    let place = Recordings::new().map_err(|e| Failure::usage(format!("no directory for recordings: {e}")))?;
    plan.spec.trace = Some(place.0.join("trace").display().to_string());
    plan.spec.sample = true;
    let outcome = run::carry_out(&asked, &plan)?;
    let traces = place.take();
    match outcome.never_ran() {
        true => {}
        false => Report::of(&outcome, &traces).tell(options.json),
    }
    outcome.ending.imitate()
}

/// A directory of its own for what the run's processes record, removed with what is in it.
struct Recordings(PathBuf);

impl Recordings {
    fn new() -> std::io::Result<Recordings> {
        let dir = std::env::temp_dir().join(format!("farmem-size-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Recordings(dir))
    }

    /// The traces that are there. The directory goes.
    fn take(self) -> Vec<Trace> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        files.filter_map(|file| read(&file.path())).collect()
    }
}

impl Drop for Recordings {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process's trace. It is removed as soon as it is read: all of them may be large.
fn read(path: &Path) -> Option<Trace> {
    let trace = Trace::new(fs::read(path).ok()?);
    let _ = fs::remove_file(path);
    trace
}
