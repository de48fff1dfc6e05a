//! `farmem-lab bench kona`: what Kona's authors measured about dirty memory, again.
//!
//! ```text
//! own stores:  a program of ours notes its every store ─► exact bytes, lines, pages, blocks
//! from outside: the same programs, and redis, under farmem track ─► what content comparison sees
//! cost:        operations a second, untracked and under each way of tracking, in rounds
//! ```
//!
//! | file | |
//! |---|---|
//! | [`workloads`], [`graph`] | the programs |
//! | [`stores`] | their own stores, counted |
//! | [`tracked`] | they, and [`redis`], under `farmem track` |
//! | [`child`] | one of them as a process |
//!
//! What the figures mean, beside Kona's: `docs/kona.md`.

pub mod child;
pub mod graph;
pub mod stores;
pub mod tracked;
pub mod workloads;

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::Serialize;

use crate::redis::{self, Order, Place};
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{self, Report, Section, Skipped};
use farmem_kit::supervise;
use farmem_kit::table::Table;
use stores::Touched;
use tracked::{Cost, Dirtied, Program, Tracker};
use workloads::{Name, Workload};

/// Dirty bytes, lines, pages: what programs store, what is seen of it, and what seeing it costs
///
/// Small programs after those of Kona's evaluation (ASPLOS '21) count their own stores to the byte; the same programs,
/// and redis, run under farmem track; and their speed is compared untracked and under each way of tracking.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Small memories, few windows, one round: a look
    #[arg(long)]
    quick: bool,
    /// Which tables, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_enum, default_values_t = [Part::Stores, Part::Tracked, Part::Cost])]
    parts: Vec<Part>,
    /// Memory of a program: 2^N KiB [default: 16; with --quick 14]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(12..=22))]
    scale: Option<u32>,
    /// Windows of a second under farmem track [default: 6; with --quick 3]
    #[arg(long, value_name = "N")]
    windows: Option<usize>,
    /// Rounds of the cost comparison [default: 3; with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seed of inputs, graphs and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every figure
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench kona --quick
      All tables, in some two minutes; without --quick in less than six.
  farmem-lab bench kona --parts stores
      The programs' own stores alone: no tracker, no clock, the same figures
      everywhere.";

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Own stores, counted
    Stores,
    /// The same programs and redis under farmem track
    Tracked,
    /// What tracking costs
    Cost,
}

/// Whose speed.
#[derive(Clone, Copy)]
enum Subject {
    Ours(Name),
    /// Values overwritten at random.
    Redis,
}

impl Subject {
    fn text(self) -> &'static str {
        match self {
            Subject::Ours(name) => name.text(),
            Subject::Redis => "redis, random keys",
        }
    }
}

/// Everything measured.
#[derive(Default, Serialize)]
struct Raw {
    own_stores: Vec<(Name, Touched)>,
    tracked: Vec<(String, Dirtied)>,
    cost: Vec<Costs>,
}

/// One program's.
#[derive(Serialize)]
struct Costs {
    program: &'static str,
    /// By round.
    trackers: Vec<(Tracker, Vec<Cost>)>,
}

/// Windows in which own stores are counted: two passes.
const COUNTED: usize = 20;
/// Programs whose speed is compared: much dirt, as much behind a socket, hardly any.
const COSTLY: [Subject; 3] = [Subject::Ours(Name::KvRandom), Subject::Redis, Subject::Ours(Name::Histogram)];
const TRACKERS: [Tracker; 4] = [Tracker::None, Tracker::Lines, Tracker::Reading, Tracker::Pages];

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    let scale = options.scale.unwrap_or(if options.quick { 14 } else { 16 });
    let windows = options.windows.unwrap_or(if options.quick { 3 } else { 6 });
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
    ensure!(windows > 0 && rounds > 0, "--windows and --rounds must be more than 0");
    report::can_be_written([&options.json])?;
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();
    let place = Place::new("kona")?;
    let keys = (1024 << scale) / redis::EACH;
    let (mut raw, mut sections, mut skipped) = (Raw::default(), Vec::new(), Vec::new());

    if options.parts.contains(&Part::Stores) {
        for name in Name::ALL {
            supervise::interrupted()?;
            let touched = child::count(&mut Workload::new(name, scale, options.seed), COUNTED);
            raw.own_stores.push((name, touched));
        }
        sections.push(Section { title: own_stores_title(), table: own_stores(&raw.own_stores) });
    }
    if options.parts.contains(&Part::Tracked) {
        let pace = [format!("--seed={}", options.seed), format!("--pass-seconds={}", tracked::PASS_SECONDS)];
        for name in Name::ALL {
            eprintln!("tracked: {}", name.text());
            let mut program = Program::start(farmem, name, scale, &pace)?;
            raw.tracked.push((name.text().into(), tracked::dirtied(farmem, program.pid(), windows)?));
        }
        for (name, order) in [("redis, random keys", Order::Random), ("redis, keys in order", Order::InOrder)] {
            eprintln!("tracked: {name}");
            match tracked::redis_dirtied(farmem, place.path(), keys, order, windows) {
                Ok(dirtied) => raw.tracked.push((name.into(), dirtied)),
                Err(error) => {
                    supervise::interrupted()?;
                    skipped.push(Skipped { system: name.into(), reason: format!("{error:#}") });
                }
            }
        }
        let title = format!(
            "Seen from outside: farmem track, {windows} windows of 1 s, a tenth of a pass each, idle ones left out"
        );
        sections.push(Section { title, table: tracked_table(&raw.tracked) });
    }
    if options.parts.contains(&Part::Cost) {
        let seconds = if options.quick { 2.0 } else { 3.0 };
        for subject in COSTLY {
            eprintln!("cost: {}", subject.text());
            let measured = Rounds::interleave(&TRACKERS, rounds, |tracker, _round| {
                supervise::interrupted()?;
                let cost = match subject {
                    Subject::Ours(name) => tracked::cost(farmem, name, scale, seconds, tracker),
                    Subject::Redis => tracked::redis_cost(farmem, place.path(), keys, seconds, tracker),
                };
                cost.map(Some)
            });
            let measured = match measured {
                Ok(measured) => measured,
                Err(error) => {
                    supervise::interrupted()?;
                    skipped.push(Skipped { system: subject.text().into(), reason: format!("{error:#}") });
                    continue;
                }
            };
            let title = format!("What tracking costs: {}, looked at once a second", subject.text());
            sections.push(Section { title, table: cost_table(&measured) });
            let all = TRACKERS.map(|tracker| (tracker, measured.of(tracker).copied().collect()));
            raw.cost.push(Costs { program: subject.text(), trackers: all.to_vec() });
        }
    }
    let method = vec![
        format!("{} of memory, seed {} · programs not pinned", size(scale), options.seed),
        "per byte: bytes of dirty lines, pages, blocks for each byte stored (own stores) or changed (from outside)"
            .into(),
    ];
    let report = Report { bench: "kona", method, environment, skipped, sections, targets: Vec::new(), raw };
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?))])
}

fn size(scale: u32) -> String {
    if scale >= 20 { format!("{} GiB", 1 << (scale - 20)) } else { format!("{} MiB", (1_u64 << scale) / 1024) }
}

fn own_stores_title() -> String {
    format!("Own stores, to the byte: {COUNTED} windows of a tenth of a pass")
}

fn own_stores(all: &[(Name, Touched)]) -> Table {
    let mut table = Table::new(["", "bytes", "lines", "pages", "blocks", "×64 B", "×4 KiB", "×2 MiB", "pages/lines"]);
    for (name, touched) in all {
        let mut row = vec![name.text().to_owned()];
        row.extend([touched.bytes, touched.lines, touched.pages, touched.blocks].map(|n| n.to_string()));
        row.extend(touched.amplification().map(|ratio| times(Some(ratio))));
        row.push(times(Some(touched.pages_over_lines())));
        table.row(row);
    }
    table
}

fn tracked_table(all: &[(String, Dirtied)]) -> Table {
    let mut table = Table::new(["", "windows", "pages/s", "bytes/s", "×64 B", "×4 KiB", "×2 MiB", "pages/lines"]);
    for (name, of) in all {
        let per_second = |n: u64| if of.seconds > 0.0 { format!("{:.0}", n as f64 / of.seconds) } else { "–".into() };
        let mut row =
            vec![name.clone(), of.windows.to_string(), per_second(of.dirty_pages), per_second(of.changed_bytes)];
        row.extend([of.per_byte_64, of.per_byte_4k, of.per_byte_2m, of.pages_over_lines].map(times));
        table.row(row);
    }
    table
}

fn cost_table(measured: &Rounds<Tracker, Cost>) -> Table {
    let mut table = Table::new(["", "ops/s", "of untracked", "", "while it ran", "", "stood still"]);
    for tracker in TRACKERS {
        let spread =
            |of: Option<Spread>| of.map_or(["–".into(), String::new()], |of| [percent(of.median), range(of)]);
        let [speed, _] = measured
            .spread(tracker, |cost| Some(cost.per_second))
            .map_or(["–".into(), String::new()], |of| [format!("{:.3e}", of.median), String::new()]);
        let [wall, wall_range] =
            spread(measured.within([tracker, Tracker::None], |[it, none]| Some(it.per_second / none.per_second)));
        let running = |[it, none]: [&Cost; 2]| Some(it.per_running_second() / none.per_second);
        let [running, running_range] = spread(measured.within([tracker, Tracker::None], running));
        let stood = measured.spread(tracker, |cost| Some(cost.stood)).map_or("–".into(), |of| percent(of.median));
        table.row([tracker.name().into(), speed, wall, wall_range, running, running_range, stood]);
    }
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn range(of: Spread) -> String {
    if of.rounds < 2 { String::new() } else { format!("({:.1} – {:.1})", 100.0 * of.min, 100.0 * of.max) }
}

fn times(ratio: Option<f64>) -> String {
    match ratio.filter(|ratio| ratio.is_finite()) {
        None => "–".into(),
        Some(ratio) if ratio < 99.95 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.0}"),
    }
}
