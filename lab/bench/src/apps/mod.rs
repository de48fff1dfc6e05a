//! `farmem-lab bench apps`: what less and less local memory costs real programs.
//!
//! ```text
//! for each program:  native ─► all local ─► native in a memory group
//!                    (output)  (its far memory) (what it has beside)
//!                       └► rounds: native, then farmem and swap at 100, 75, 50, 25, 10 %
//! ```
//!
//! | file | |
//! |---|---|
//! | [`programs`], [`redis`] | what is run |
//! | [`runs`] | one run: started, fed, compared, timed |
//! | [`figures`], [`slowdown`], [`plot`] | tables and plots made of it all |

pub mod figures;
pub mod plot;
pub mod programs;
pub mod redis;
pub mod runs;
pub mod slowdown;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::paging::systems::Node;
use crate::swap;
use farmem_kit::affinity;
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Rounds;
use farmem_kit::report::{self, Skipped};
use farmem_kit::supervise;
use programs::{Job, Program, Work};
use runs::{Allowance, Run, Runner};

/// What far memory costs real programs, as less and less of theirs is local
///
/// Each program runs natively, then with 100, 75, 50, 25 and 10 % of its own far memory local: on farmem, and (as
/// root) in a memory group with the same limit that swaps to zram. What it prints is compared with the native run's,
/// byte for byte; a difference fails the command.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Small inputs, one round, a minute or two: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// Programs to run, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum, default_values_t = Program::USUAL)]
    programs: Vec<Program>,
    /// Local shares of a program's far memory, percent, comma separated
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [100, 75, 50, 25, 10])]
    shares: Vec<u32>,
    /// farmem over TCP too, to a node on this machine
    #[arg(long)]
    tcp: bool,
    /// farmem over TCP to one node, and with --protect mirror to two, on this machine
    #[arg(long)]
    mirror: bool,
    /// Leave swap to zram out
    #[arg(long)]
    no_swap: bool,
    /// Rounds in which everything runs once [default: 3; with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Give a run up after this long, and name it so [default: 120; with --quick 8]
    #[arg(long, value_name = "SECONDS")]
    give_up: Option<u64>,
    /// Begin no more runs after this long; what is left out is named. Programs share the time alike [default: 60;
    /// with --quick 10]
    #[arg(long, value_name = "MINUTES")]
    within: Option<u64>,
    /// Write every figure of every run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the plots into this directory: apps-PROGRAM.svg, and all on one sheet, apps.svg
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench apps --quick --svg .
      A look: small inputs, one round. As root it also shows swap to zram.

  farmem-lab bench apps --programs redis,sort --shares 50,25 --tcp --json apps.json
      Two programs, two shares, TCP beside shared memory, all figures in a file.

  farmem-lab bench apps --programs python,gcc --shares 25 --mirror --no-swap
      What a second copy of every page costs.";

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn give_up(&self) -> Duration {
        Duration::from_secs(self.give_up.unwrap_or(if self.quick { 8 } else { 120 }))
    }

    fn within(&self) -> Duration {
        Duration::from_secs(60 * self.within.unwrap_or(if self.quick { 10 } else { 60 }))
    }

    fn work(&self) -> Work {
        if self.quick { Work::Short } else { Work::Full }
    }
}

/// Whatever memory can be under a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Enough memory.
    Native,
    /// farmem, shared memory with a node on this machine.
    Shm,
    /// farmem, TCP over loopback to a node on this machine.
    Tcp,
    /// The same to two nodes that hold each page both.
    Mirror,
    /// Swap to compressed memory.
    Zram,
}

impl System {
    /// Heads a row.
    pub fn name(self) -> &'static str {
        match self {
            System::Native => "native",
            System::Shm => "farmem shm",
            System::Tcp => "farmem tcp",
            System::Mirror => "farmem tcp, mirror",
            System::Zram => "swap zram",
        }
    }
}

/// A system, and how much of the program's far memory is local under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The system.
    pub system: System,
    /// Percent; 100 natively.
    pub share: u32,
}

/// How much memory a program has.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Far, at its peak, bytes: what shares are of.
    pub far: u64,
    /// All it has natively at its peak, as a memory group counts it, bytes; 0 without root.
    pub native: u64,
    /// What of that is not far, bytes: it comes on top of the local share in a memory group.
    pub beside: u64,
}

/// What was measured of a program.
pub struct Measured {
    /// Which.
    pub program: Program,
    /// Its memory.
    pub size: Size,
    /// Its runs.
    pub rounds: Rounds<Setting, Run>,
}

impl Measured {
    fn killed(&self) -> bool {
        self.rounds.systems().any(|setting| self.rounds.of(setting).any(|run| matches!(run, Run::Killed)))
    }
}

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    ensure!(options.shares.iter().all(|share| (1..=100).contains(share)), "--shares are percent, from 1 to 100");
    ensure!(options.rounds() > 0, "--rounds is 0: nothing would run");
    if let Some(dir) = &options.svg {
        ensure!(dir.is_dir(), "--svg {}: no such directory", dir.display());
    }
    report::can_be_written([&options.json])?;
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();
    let begun = Instant::now();
    let place = Workplace::new("apps")?;
    let mut runner = Runner { farmem, dir: place.path(), limit: options.give_up(), zram: None, nodes: Vec::new() };
    let mut skipped: Vec<Skipped> = Vec::new();

    let mut ready: Vec<Ready> = Vec::new();
    for &program in &options.programs {
        supervise::interrupted()?;
        match Ready::make(&runner, program, options) {
            Ok(one) => ready.push(one),
            Err(error) => {
                supervise::interrupted()?;
                skipped.push(Skipped { system: program.name().into(), reason: format!("{error:#}") });
            }
        }
    }
    let mut systems = vec![System::Shm];
    if options.tcp || options.mirror {
        systems.push(System::Tcp);
    }
    if options.mirror {
        // Every program is done before the next one begins, and its memory is the node's again.
        let lend = 4 * ready.iter().map(|one| one.size.far).max().unwrap_or(0) + (1 << 30);
        let cpus = affinity::allowed();
        runner.nodes = vec![Node::start(farmem, lend, &cpus)?, Node::start(farmem, lend, &cpus)?];
        systems.push(System::Mirror);
    }
    if !options.no_swap {
        match zram(ready.iter().map(|one| one.size)) {
            Ok(area) => {
                runner.zram = Some(area);
                systems.push(System::Zram);
            }
            Err(error) => skipped.push(Skipped { system: System::Zram.name().into(), reason: format!("{error:#}") }),
        }
    }
    let mut method = method(options);
    method.extend(runner.zram.iter().map(|area| area.remark.clone()));

    let mut progress = Progress::new(&ready, &systems, options);
    let mut measured = Vec::new();
    for (at, one) in ready.iter().enumerate() {
        let left = options.within().saturating_sub(begun.elapsed());
        progress.until = Instant::now() + left / (ready.len() - at) as u32;
        measured.push(one.measure(&runner, &systems, options, &mut skipped, &mut progress)?);
    }
    drop(runner);

    if measured.iter().any(Measured::killed) {
        method.push(
            "killed: the kernel's out-of-memory killer ended it in its memory group, three times, though there was swap free".into(),
        );
    }
    let report = figures::report(method, environment, skipped, &measured);
    let drawn = options.svg.as_deref().map_or(Ok(()), |dir| figures::draw(&measured, dir));
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?))])?;
    drawn?;
    // A figure beside wrong bytes is worth nothing, and neither is the exit status 0.
    match report.skipped.iter().find(|skipped| skipped.reason.starts_with(FAILED)) {
        Some(wrong) => bail!("{} {}", wrong.system, wrong.reason),
        None => Ok(()),
    }
}

/// Whatever a process has beside its heap: code that it wrote to, stacks, page tables. Far memory is touched in
/// batches and may exceed what is natively touched, so that the difference alone can be too small.
const LEAST_BESIDE: u64 = 2 << 20;

/// Begins the reason for which a system is left out after it had begun.
const FAILED: &str = "failed: ";

fn method(options: &Options) -> Vec<String> {
    vec![
        format!(
            "{} inputs · {} round{}, interleaved · not pinned · every output compared with the native one",
            if options.quick { "small" } else { "full" },
            options.rounds(),
            if options.rounds() == 1 { "" } else { "s" }
        ),
        "local share: of the program's far memory at its peak, with plenty local".into(),
        "swap: a memory group whose limit is that share, and what the program has natively beside its far memory"
            .into(),
    ]
}

/// A program whose output and sizes are known.
struct Ready {
    job: Job,
    size: Size,
    output: Vec<u8>,
}

impl Ready {
    fn make(runner: &Runner<'_>, program: Program, options: &Options) -> anyhow::Result<Ready> {
        eprintln!("{}: its output, its far memory, what it has beside", program.name());
        let job = Job::prepare(program, options.work(), runner.dir, runner.farmem)?;
        let (ram, none) = (Allowance { local: physical_memory() / 2, limit: 0 }, Allowance { local: 0, limit: 0 });
        let (run, output) = runner.run(&job, System::Native, none, None)?;
        ensure!(run.wall_ns().is_some(), "natively it takes longer than --give-up: nothing to compare with");
        let (run, _) =
            runner.run(&job, System::Shm, ram, Some(&output)).with_context(|| format!("{FAILED}all local"))?;
        let Run::Ended { stats, .. } = run else {
            bail!("with all its memory local it takes longer than --give-up");
        };
        let far = stats["local_peak"].as_u64().unwrap_or(0);
        ensure!(far > 0, "farmem saw no far memory of it");
        let mut native = 0;
        if swap::privileged() && !options.no_swap {
            let group = swap::Group::unlimited()?;
            runner.grouped(&job, &group, Some(&output))?;
            native = group.peak()?;
        }
        let size = Size { far, native, beside: native.saturating_sub(far).max(LEAST_BESIDE) };
        Ok(Ready { job, size, output })
    }

    /// Runs every setting in every round. One that fails is named and left out of the rounds to come.
    fn measure(
        &self,
        runner: &Runner<'_>,
        systems: &[System],
        options: &Options,
        skipped: &mut Vec<Skipped>,
        progress: &mut Progress,
    ) -> anyhow::Result<Measured> {
        let program = self.job.program;
        let mut settings = vec![Setting { system: System::Native, share: 100 }];
        for &share in &options.shares {
            settings.extend(systems.iter().map(|&system| Setting { system, share }));
        }
        let mut out: Vec<Setting> = Vec::new();
        let mut late = 0;
        let rounds = Rounds::interleave(&settings, options.rounds(), |setting, _round| {
            supervise::interrupted()?;
            // Less memory does not help what was given up with more.
            if out.iter().any(|&out| out.system == setting.system && out.share >= setting.share) {
                progress.leave_out();
                return Ok(None);
            }
            if Instant::now() >= progress.until {
                late += 1;
                progress.leave_out();
                return Ok(None);
            }
            progress.begin(program, setting);
            let allowance = Allowance::of(self.size.far, self.size.beside, f64::from(setting.share) / 100.0);
            match runner.run(&self.job, setting.system, allowance, Some(&self.output)) {
                Ok((run, _)) => {
                    progress.end(&run);
                    if let Run::GivenUp { .. } = run {
                        out.push(setting);
                    }
                    Ok(Some(run))
                }
                Err(error) => {
                    supervise::interrupted()?;
                    progress.fail();
                    out.push(setting);
                    let system = format!("{}, {} at {} %", program.name(), setting.system.name(), setting.share);
                    skipped.push(Skipped { system, reason: format!("{FAILED}{error:#}") });
                    anyhow::Ok(None)
                }
            }
        })?;
        if late > 0 {
            let all = settings.len() * options.rounds();
            let reason = format!("{late} of {all} runs were not made: the time (--within) was up");
            skipped.push(Skipped { system: program.name().into(), reason });
        }
        Ok(Measured { program, size: self.size, rounds })
    }
}

fn physical_memory() -> u64 {
    Environment::read().memory_bytes
}

/// A swap area that the greatest of the programs fits into.
fn zram(sizes: impl Iterator<Item = Size>) -> anyhow::Result<swap::Area> {
    ensure!(swap::privileged(), "needs root");
    let most = sizes.map(|size| size.far + size.beside).max().context("no program is left to run")?;
    let whole = most + most / 4 + (64 << 20);
    swap::Area::zram(whole >> 20 << 20)
}

/// Says what is running, one line a run.
struct Progress {
    done: usize,
    all: usize,
    /// When the time of the program in hand is up.
    until: Instant,
}

impl Progress {
    fn new(ready: &[Ready], systems: &[System], options: &Options) -> Progress {
        let settings = 1 + systems.len() * options.shares.len();
        Progress { done: 0, all: ready.len() * settings * options.rounds(), until: Instant::now() }
    }

    fn leave_out(&mut self) {
        self.done += 1;
    }

    fn begin(&mut self, program: Program, setting: Setting) {
        self.done += 1;
        let what = match setting.system {
            System::Native => "native".to_owned(),
            system => format!("{}, {} % local", system.name(), setting.share),
        };
        // On a terminal the line stands while the run goes on.
        let line = format!("[{:>3} of {}] {}: {what} … ", self.done, self.all, program.name());
        let _ = write!(std::io::stderr(), "{line}");
        if std::io::stderr().is_terminal() {
            let _ = std::io::stderr().flush();
        }
    }

    fn end(&self, run: &Run) {
        match run {
            Run::Ended { wall_ns, .. } => eprintln!("{:.2} s", *wall_ns as f64 / 1e9),
            Run::GivenUp { after_ns } => eprintln!("given up after {:.0} s", *after_ns as f64 / 1e9),
            Run::Killed => eprintln!("killed by the kernel"),
        }
    }

    fn fail(&self) {
        eprintln!("failed");
    }
}

/// A directory for the programs' files, gone when it is over.
pub(crate) struct Workplace(PathBuf);

impl Workplace {
    /// For this benchmark.
    pub(crate) fn new(bench: &str) -> anyhow::Result<Workplace> {
        let dir = std::env::temp_dir().join(format!("farmem-{bench}-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Workplace(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
