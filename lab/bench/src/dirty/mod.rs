//! `farmem-lab bench dirty`: which policy of `--dirty` is to be the default?
//!
//! ```text
//! for each program:  native ─► all local           round: every program ─► every link and policy, in turns
//!                    (output)  (its far memory)             a quarter local, output compared
//! ```
//! Not one program decides, but many of different kinds: servers, sorts, compilers, children that share memory.
//! Each policy's time is divided by that of `none` over the same link in the same round; what is looked at is the
//! geometric mean over the programs, and the worst of them.
//!
//! | file | |
//! |---|---|
//! | [`figures`] | tables |
//! | [`plot`] | each program's ratios, drawn |
//!
//! The programs are those of [`crate::apps`], with inputs small enough that each runs some hundred times.

pub mod figures;
pub mod plot;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::apps::programs::{Job, Program, Work};
use crate::apps::runs::{Allowance, Run, Runner};
use crate::apps::{System, Workplace};
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Rounds;
use farmem_kit::report::{self, Skipped};
use farmem_kit::supervise;

/// The policies of --dirty over many programs: time against `none`, and bytes sent
///
/// Each program runs with a quarter of its own far memory local, over shared memory and over tcp held to 10 Gbit/s,
/// under every policy once a round. What it prints is compared with the native run's, byte for byte; a difference
/// fails the command.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// One round: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// Programs to run, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum, default_values_t = Program::ALL)]
    only: Vec<Program>,
    /// Only these links and policies: shm:none,shm:lines,tcp:auto,…
    #[arg(long, value_name = "WAYS", value_delimiter = ',', value_parser = way)]
    ways: Vec<Way>,
    /// Local share of a program's far memory, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,
    /// Rounds in which everything runs once, at most [default: 5; with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Begin no more runs after this long; rounds that are not whole count as far as they came
    #[arg(long, value_name = "MINUTES", default_value_t = 12)]
    within: u64,
    /// Give a run up after this long, and name it so
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    give_up: u64,
    /// Write every figure of every run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench dirty --svg dirty.svg
      All programs, as many rounds as twelve minutes allow.

  farmem-lab bench dirty --only redis,sort --ways shm:none,shm:auto,shm:lines
      Two programs, three policies over shared memory.";

/// How far memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Shared memory with a node on this machine.
    Shm,
    /// TCP over loopback, held to [`RATE`].
    Tcp,
}

/// What TCP is held to.
pub const RATE: &str = "10G";

/// The policies, in the order of the tables.
pub const POLICIES: [&str; 4] = ["none", "lines", "exact", "auto"];

/// A link and a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// The link.
    pub by: By,
    /// The policy.
    pub dirty: &'static str,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", if self.by == By::Shm { "shm" } else { "tcp" }, self.dirty)
    }
}

fn ways() -> impl Iterator<Item = Way> {
    [By::Shm, By::Tcp].into_iter().flat_map(|by| POLICIES.map(|dirty| Way { by, dirty }))
}

fn way(text: &str) -> Result<Way, String> {
    ways()
        .find(|way| way.to_string() == text)
        .ok_or_else(|| format!("not one of {}", ways().map(|way| way.to_string()).collect::<Vec<_>>().join(", ")))
}

/// A program under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The program.
    pub program: Program,
    /// Link and policy.
    pub way: Way,
}

/// A program that is ready.
pub struct Ready {
    job: Job,
    /// What it must print.
    output: Vec<u8>,
    /// Its time natively, in the one run that gave the output.
    pub native: f64,
    /// Its far memory at its peak, bytes.
    pub far: u64,
}

impl Ready {
    /// Which.
    pub fn program(&self) -> Program {
        self.job.program
    }

    fn make(runner: &Runner<'_>, program: Program) -> anyhow::Result<Ready> {
        let job = Job::prepare(program, Work::Small, runner.dir, runner.farmem)?;
        let none = Allowance { local: 0, limit: 0 };
        let (run, output) = runner.run(&job, System::Native, none, None)?;
        let native = run.wall_ns().context("natively it takes longer than --give-up")?;
        let plenty = Environment::read().memory_bytes / 2;
        let (run, _) = runner
            .far(&job, &["--transport", "shm"], plenty, Some(&output))
            .with_context(|| format!("{FAILED}all local"))?;
        let Run::Ended { stats, .. } = run else { bail!("with all its memory local it takes longer than --give-up") };
        let far = stats["local_peak"].as_u64().unwrap_or(0);
        ensure!(far > 0, "farmem saw no far memory of it");
        Ok(Ready { job, output, native, far })
    }

    /// These programs, made ready for nothing.
    #[cfg(test)]
    fn named(programs: &[Program]) -> Vec<Ready> {
        let of = |&program: &Program| {
            let (command, environment, input) = (Vec::new(), Vec::new(), None);
            let job = Job { program, command, environment, input, load: None };
            Ready { job, output: Vec::new(), native: 1e9, far: 1 << 20 }
        };
        programs.iter().map(of).collect()
    }

    fn run(&self, runner: &Runner<'_>, way: Way, share: u32) -> anyhow::Result<Run> {
        let local = Allowance::of(self.far, 0, f64::from(share) / 100.0).local;
        let link: &[&str] = match way.by {
            By::Shm => &["--transport", "shm"],
            By::Tcp => &["--transport", "tcp", "--shape", RATE],
        };
        let options = [link, &["--dirty", way.dirty]].concat();
        Ok(runner.far(&self.job, &options, local, Some(&self.output))?.0)
    }
}

/// Begins the reason for which a program is left out after it had begun.
const FAILED: &str = "failed: ";

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    report::can_be_written([&options.json, &options.svg])?;
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();
    let until = Instant::now() + Duration::from_secs(60 * options.within);
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 5 });
    ensure!(rounds > 0, "--rounds is 0: nothing would run");
    let ways: Vec<Way> = ways().filter(|way| options.ways.is_empty() || options.ways.contains(way)).collect();
    let place = Workplace::new("dirty")?;
    let limit = Duration::from_secs(options.give_up);
    let runner = Runner { farmem, dir: place.path(), limit, zram: None, nodes: Vec::new() };

    let mut skipped: Vec<Skipped> = Vec::new();
    let mut ready: Vec<Ready> = Vec::new();
    for &program in &options.only {
        supervise::interrupted()?;
        eprintln!("{}: its output, its far memory", program.name());
        match Ready::make(&runner, program) {
            Ok(one) => ready.push(one),
            Err(error) => {
                supervise::interrupted()?;
                skipped.push(Skipped { system: program.name().into(), reason: format!("{error:#}") });
            }
        }
    }
    let measured = measure(&runner, &ready, &ways, rounds, options.share, until, &mut skipped)?;
    let method = vec![
        format!(
            "small inputs · {} % of the program's far memory local · up to {rounds} rounds within {} minutes, ways in turns \
             · not pinned · every output compared with the native one",
            options.share, options.within
        ),
        format!("tcp: loopback, held to {RATE}bit/s by each process"),
        "of none: over that of none, same link, same round; median (least – greatest)".into(),
        "on a CPU: the program, its runtime and its node, wherever they wait: what to look at on a machine that does other \
         things besides"
            .into(),
    ];
    let report = figures::report(method, environment, skipped, &ready, &ways, &measured);
    let plot = || Ok(plot::draw(&ready, &ways, &measured));
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?)), (&options.svg, &plot)])?;
    // A figure beside wrong bytes is worth nothing, and neither is the exit status 0.
    match report.skipped.iter().find(|skipped| skipped.reason.starts_with(FAILED)) {
        Some(wrong) => bail!("{} {}", wrong.system, wrong.reason),
        None => Ok(()),
    }
}

/// Runs everything in every round, until the time is up. What fails or takes too long is left out of rounds to come.
fn measure(
    runner: &Runner<'_>,
    ready: &[Ready],
    ways: &[Way],
    rounds: usize,
    share: u32,
    until: Instant,
    skipped: &mut Vec<Skipped>,
) -> anyhow::Result<Rounds<Setting, Run>> {
    let each = |one: &Ready| ways.iter().map(|&way| Setting { program: one.program(), way }).collect::<Vec<_>>();
    let settings: Vec<Setting> = ready.iter().flat_map(each).collect();
    let mut out: Vec<Setting> = Vec::new();
    let mut late = 0;
    let measured = Rounds::interleave(&settings, rounds, |setting, round| {
        supervise::interrupted()?;
        if out.contains(&setting) {
            return Ok(None);
        }
        if Instant::now() >= until {
            late += 1;
            return Ok(None);
        }
        let one = ready.iter().find(|one| one.program() == setting.program).expect("made of them");
        let name = format!("{} {}", setting.program.name(), setting.way);
        match one.run(runner, setting.way, share) {
            Ok(run) => {
                match run.wall_ns() {
                    Some(ns) => eprintln!("round {}: {name}: {:.2} s", round + 1, ns / 1e9),
                    None => {
                        eprintln!("round {}: {name}: given up", round + 1);
                        out.push(setting);
                    }
                }
                Ok(Some(run))
            }
            Err(error) => {
                supervise::interrupted()?;
                eprintln!("round {}: {name}: failed", round + 1);
                out.push(setting);
                skipped.push(Skipped { system: name, reason: format!("{FAILED}{error:#}") });
                anyhow::Ok(None)
            }
        }
    })?;
    if late > 0 {
        let reason = format!("{late} of {} runs were not made: the time (--within) was up", settings.len() * rounds);
        skipped.push(Skipped { system: "the last rounds".into(), reason });
    }
    Ok(measured)
}
