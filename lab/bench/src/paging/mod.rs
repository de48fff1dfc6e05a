//! `farmem-lab bench paging`: what an access to far memory costs.
//!
//! | file | |
//! |---|---|
//! | [`workload`] | the program that is measured: one array, random and in order, checked |
//! | [`mod@array`], [`mod@measure`], [`faults`], [`footprint`] | its memory, its clock, its fault counts, its resident set |
//! | [`floor`], `bare`, [`roundtrip`] | what cannot be beaten: the bare mechanism, with what leaves, the bare network |
//! | [`small`] | programs that fit |
//! | [`systems`] | what the program is run on |
//! | [`figures`] | tables, targets and the chart made of it all |

pub mod array;
mod bare;
pub mod faults;
pub mod figures;
pub mod floor;
pub mod footprint;
pub mod measure;
pub mod roundtrip;
pub mod small;
pub mod systems;
pub mod workload;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use serde::Serialize;

use farmem_kit::alone::Alone;
use farmem_kit::chart::sheet;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Rounds;
use farmem_kit::report::{self, Report, Skipped};
use farmem_kit::{affinity, supervise};
use measure::Threads;
use small::{Which, Work};
use systems::{Node, Runner, Swap, System};
use workload::Outcome;

/// `farmem-lab bench paging …`
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Small and short: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// MiB of the array [default: 1024; with --quick 256]
    #[arg(long, value_name = "MIB")]
    array: Option<u64>,
    /// MiB of it that may be local [default: a quarter]
    #[arg(long, value_name = "MIB")]
    local: Option<u64>,
    /// Timed random accesses of each kind [default: 100000; with --quick 20000]
    #[arg(long, value_name = "N")]
    accesses: Option<usize>,
    /// Rounds in which every system runs once [default: 5; with --quick 3]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Systems to run
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = System::USUAL)]
    systems: Vec<System>,
    /// Leave out the programs that fit into local memory
    #[arg(long)]
    no_small: bool,
    /// Draws pages and content; every round takes the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// farmem does without these, as `farmem run --mask` (which rounds of runs with and without compare)
    #[arg(long, value_name = "FEATURES", hide = true)]
    mask: Option<String>,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the costs
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Options {
    fn accesses(&self) -> usize {
        self.accesses.unwrap_or(if self.quick { 20_000 } else { 100_000 })
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }
}

/// How much memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Of the array, bytes.
    pub array: u64,
    /// Of it local, bytes.
    pub local: u64,
}

impl Size {
    fn of(options: &Options) -> anyhow::Result<Size> {
        let array = options.array.unwrap_or(if options.quick { 256 } else { 1024 });
        let local = options.local.unwrap_or(array / 4);
        ensure!(local >= 8, "--local is {local} MiB; at least 8 are needed");
        ensure!(local < array, "--local {local} is not less than --array {array}: nothing would be far");
        ensure!(array <= 64 << 10, "--array is {array} MiB; 65536 is the most");
        Ok(Size { array: array << 20, local: local << 20 })
    }

    fn array_bytes(&self) -> u64 {
        self.array
    }
    fn array_pages(&self) -> u64 {
        self.array / 4096
    }
    fn local_pages(&self) -> u64 {
        self.local / 4096
    }
    /// So many random accesses that nearly all of local memory has been replaced since the phase before: with a
    /// quarter local, three of four accesses replace a page.
    fn warm_up(&self) -> u64 {
        self.local_pages() * 3 / 2
    }
    /// The swap baselines' limit counts everything the process has, its code and page tables too, so it is more: by
    /// about what the program has resident natively beside its array.
    fn group_limit(&self) -> u64 {
        self.local + self.array / 512 + (4 << 20)
    }
    fn small_bytes(&self) -> u64 {
        self.local / 2
    }
}

/// A system, and whether its threads stay where they are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The system.
    pub system: System,
    /// Pinned.
    pub pinned: bool,
}

/// All that was measured.
pub struct Measured {
    /// How much memory.
    pub size: Size,
    /// The array.
    pub paging: Rounds<Setting, Outcome>,
    /// Programs that fit.
    pub small: Vec<(Which, Rounds<System, Work>)>,
}

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    let size = Size::of(options)?;
    let allowed = affinity::allowed();
    let [first, second, ..] = allowed[..] else {
        bail!("two CPUs are needed, one for the program and one for its second thread or its node");
    };
    report::can_be_written([&options.json, &options.svg])?;
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();

    let mut skipped: Vec<Skipped> = Vec::new();
    let mut skip = |system: System, reason: String| {
        skipped.push(Skipped { system: system.name().into(), reason });
    };
    let swap = Swap::prepare(&options.systems, &size, &mut skip);
    let remote = [System::Tcp, System::Rdma].map(|system| options.systems.contains(&system).then_some(system));
    let node = if remote.iter().any(Option::is_some) {
        // The array, what is freed a little later than allocated, and programs that fit.
        match Node::start(farmem, size.array * 2 + (256 << 20), &[second]) {
            Ok(node) => Some(node),
            Err(error) => {
                remote.into_iter().flatten().for_each(|system| skip(system, format!("{error:#}")));
                None
            }
        }
    } else {
        None
    };
    let mut method = method(options, &size, [first, second]);
    method.extend(swap.iter().flat_map(Swap::remarks).map(str::to_owned));
    let runner = Runner { farmem, options, size, swap, node, cpus: [first, second], started: Cell::new(0) };

    let left_out: Vec<String> = skipped.iter().map(|skipped| skipped.system.clone()).collect();
    let systems: Vec<System> =
        options.systems.iter().copied().filter(|system| !left_out.iter().any(|name| name == system.name())).collect();
    let measured = measure(&runner, &systems, &mut skipped)?;
    drop(runner);

    let report = figures::report(method, environment, skipped, &measured);
    let plot = || Ok(sheet("", &[figures::chart(&measured)], 1));
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?)), (&options.svg, &plot)])?;
    fail_on_wrong_bytes(&report)
}

fn method(options: &Options, size: &Size, cpus: [usize; 2]) -> Vec<String> {
    vec![
        format!(
            "array {} MiB, {} MiB local · {} random accesses of each kind after {} to warm up · {} rounds, interleaved · seed {}",
            size.array >> 20,
            size.local >> 20,
            options.accesses(),
            size.warm_up(),
            options.rounds(),
            options.seed
        ),
        format!(
            "pinned: the program on CPU {} with all its threads but a second one of its own, which is on CPU {}, as are the far ends of TCP (raw and farmem)",
            cpus[0], cpus[1]
        ),
        format!(
            "swap: memory limit {} MiB (the local memory, page tables, and 4 MiB for the rest of the program); content compresses about 2:1",
            size.group_limit() >> 20
        ),
    ]
}

/// Runs every system in every round. A system that fails is named and left out of the rounds to come.
fn measure(runner: &Runner<'_>, systems: &[System], skipped: &mut Vec<Skipped>) -> anyhow::Result<Measured> {
    let options = runner.options;
    let pinned = systems.iter().map(|&system| Setting { system, pinned: true });
    let unpinned = systems.iter().map(|&system| Setting { system, pinned: false });
    let settings: Vec<Setting> = pinned.chain(unpinned).collect();
    let mut failed: Vec<Setting> = Vec::new();
    let paging = Rounds::interleave(&settings, options.rounds(), |setting, round| {
        supervise::interrupted()?;
        if failed.contains(&setting) {
            return Ok(None);
        }
        eprintln!(
            "round {} of {}: {}{}",
            round + 1,
            options.rounds(),
            setting.system.name(),
            if setting.pinned { "" } else { ", unpinned" }
        );
        let threads: &[Threads] =
            if setting.pinned { &[Threads::Solo, Threads::Spinner, Threads::Both] } else { &[Threads::Solo] };
        let mut outcome = runner.paging(setting.system, setting.pinned, threads, options.seed + round as u64);
        // A group whose pages are all in use, by two threads at once, makes the kernel give up reclaiming now and
        // then, and kill. The run says nothing; another does.
        for _ in 0..2 {
            if !matches!(&outcome, Err(error) if is_kill(setting.system, error)) {
                break;
            }
            supervise::interrupted()?;
            eprintln!("  the kernel's OOM killer ended it; once more");
            outcome = runner.paging(setting.system, setting.pinned, threads, options.seed + round as u64);
        }
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(error) => {
                supervise::interrupted()?;
                failed.push(setting);
                let system = setting.system.name();
                let system = if setting.pinned { system.into() } else { format!("{system}, unpinned") };
                skipped.push(Skipped { system, reason: format!("failed in round {}: {error:#}", round + 1) });
                anyhow::Ok(None)
            }
        }
    })?;

    let mut small = Vec::new();
    let both = [System::Native, System::Shm];
    if !options.no_small && both.iter().all(|system| systems.contains(system)) {
        for which in [Which::Join, Which::Sort, Which::Churn] {
            eprintln!("a program that fits: {which:?}");
            // Differences of a hundredth need more rounds than factors do.
            let rounds = Rounds::interleave(&both, options.rounds() * 3, |system, round| {
                supervise::interrupted()?;
                match runner.small(system, which, options.seed + round as u64) {
                    Ok(work) => Ok(Some(work)),
                    Err(error) => {
                        supervise::interrupted()?;
                        let system = format!("{which:?} on {}", system.name());
                        skipped.push(Skipped { system, reason: format!("{error:#}") });
                        anyhow::Ok(None)
                    }
                }
            })?;
            small.push((which, rounds));
        }
    }
    Ok(Measured { size: runner.size, paging, small })
}

fn is_kill(system: System, error: &anyhow::Error) -> bool {
    matches!(system, System::Zram | System::Loop) && format!("{error:#}").contains("SIGKILL")
}

/// A figure of a system that returned wrong bytes is worth nothing, and neither is the exit status 0.
fn fail_on_wrong_bytes<R>(report: &Report<R>) -> anyhow::Result<()> {
    let wrong = report.skipped.iter().find(|skipped| skipped.reason.starts_with("failed in round"));
    match wrong {
        Some(wrong) => bail!("{} {}", wrong.system, wrong.reason),
        None => Ok(()),
    }
}
