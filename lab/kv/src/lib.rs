//! `farmem-lab bench kv`: the store beside redis and memcached, by one load generator over real
//! sockets.
//!
//! ```text
//! generator ── sockets ──► farmem kv ──► farmem node      each started anew, by turns, in rounds
//!     │  └──── sockets ──► redis, memcached, redis under farmem run
//!     └─────── the library ───────────► farmem node
//! ```
//!
//! | file | |
//! |---|---|
//! | [`mix`] | which requests, on which keys |
//! | [`wire`] | how they reach a system |
//! | [`load`] | the generator |
//! | [`systems`] | what is measured |
//! | [`trace`] | blocks of an inference service |
//! | [`allocators`] | the store on simulated network cards, with one allocator after the other |
//! | this file | rounds, tables, targets, the chart |

pub mod allocators;
pub mod load;
pub mod mix;
pub mod systems;
pub mod trace;
pub mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_kit::alone::Alone;
use farmem_kit::chart::{Axis, COLOURS, Rows as Chart, Style, sheet};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{self, Bound, Report, Section, Skipped, Target};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};
use load::Found;
use mix::{Keys, Mix, Stream};
use serde::Serialize;
use systems::{Settings, System};
use trace::Replayed;

/// The store beside redis and memcached
///
/// One load generator asks each of them the same, by turns: YCSB's mixes, or the blocks of a trace.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Small and short: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// Keys [default: 100000; with --quick 20000]
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Bytes of a value; of a block with --trace
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    values: Vec<usize>,
    /// Mixes of YCSB, and updates alone
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Mix::ALL)]
    mix: Vec<Mix>,
    /// How keys are drawn
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Keys::Zipfian, Keys::Uniform])]
    keys: Vec<Keys>,
    /// Systems
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = System::ALL)]
    systems: Vec<System>,
    /// Percent of the data that farmem keeps local
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=200))]
    local: u64,
    /// How bytes reach the node
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "shm"])]
    transport: String,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: u16,
    /// Requests of a connection that are under way
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pipeline: u16,
    /// Milliseconds for each mix [default: 2000; with --quick 300]
    #[arg(long, value_name = "MS")]
    time: Option<u64>,
    /// Rounds in which every system runs once [default: 5; with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Replay the blocks of a trace of Mooncake's (JSON lines) instead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Swap the allocator under a store, on simulated network cards
    #[arg(long, conflicts_with = "trace")]
    allocators: bool,
    /// MiB of memory for the blocks of a trace [default: half of what they take]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rates
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench kv --quick
      All mixes on all systems, values of 1 KiB: a look.
  farmem-lab bench kv --values 64,1024,16384 --svg kv.svg
      Small and large values, in rounds.
  farmem-lab bench kv --trace lab/kv/traces/mooncake.jsonl
      The blocks of an inference service's cache, beside redis.
  farmem-lab bench kv --allocators
      Updates and inserts of 1 to 512 clients, by allocator, in virtual time.";

/// The smallest local memory: a run needs some.
const LOCAL: u64 = 8 << 20;
/// Bytes that a record takes beside its value, about.
const BESIDE: u64 = 80;

/// A system's figures of a round: one for each case, in their order.
type Cells = Vec<Found>;

/// A row of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Case {
    bytes: usize,
    keys: Keys,
    mix: Mix,
}

/// Figures of all rounds, for machines.
#[derive(Serialize)]
struct Raw {
    cases: Vec<Case>,
    found: Vec<(&'static str, Vec<Cells>)>,
}

impl Options {
    /// Runs it all. `farmem`: the binary that is measured.
    ///
    /// # Errors
    /// When a system does not start, or answered with another value than was written.
    pub fn run(&self, farmem: &Path) -> Result<()> {
        report::can_be_written([&self.json, &self.svg])?;
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { 5 });
        ensure!(rounds > 0, "--rounds must be more than 0");
        if self.allocators {
            ensure!(self.svg.is_none(), "--svg draws mixes, and no allocators");
            let report = allocators::report(self.quick)?;
            let json = || Ok(report.json()? + "\n");
            return report::tell(&report, &[(&self.json, &json)]);
        }
        let _alone = Alone::take()?;
        supervise::note_interrupts();
        let missing = systems::missing(&self.systems);
        let skipped = missing.iter().map(|(system, program)| Skipped {
            system: system.name().into(),
            reason: format!("{program} is not here: tests/peers.sh installs it"),
        });
        let skipped: Vec<Skipped> = skipped.collect();
        let here = |system: &System| missing.iter().all(|(gone, _)| gone != system);
        let systems: Vec<System> = self.systems.iter().copied().filter(here).collect();
        match &self.trace {
            Some(path) => self.replay(farmem, path, &systems, rounds, skipped),
            None => self.load(farmem, &systems, rounds, skipped),
        }
    }

    fn settings(&self, farmem: &Path, data: u64) -> Settings {
        Settings {
            farmem: farmem.to_owned(),
            transport: if self.transport == "shm" { "shm" } else { "tcp" },
            data,
            local: (data * self.local / 100).max(LOCAL),
            maxmemory: None,
            clients: usize::from(self.clients),
        }
    }

    fn values(&self, usual: usize) -> Result<Vec<usize>> {
        let values = if self.values.is_empty() { vec![usual] } else { self.values.clone() };
        let most = if self.trace.is_some() { farmem_kv::blocks::MAX_BLOCK } else { 1 << 20 };
        ensure!(values.iter().all(|bytes| (1..=most).contains(bytes)), "--values: 1 to {most} bytes can be measured");
        Ok(values)
    }

    fn load(&self, farmem: &Path, systems: &[System], rounds: usize, skipped: Vec<Skipped>) -> Result<()> {
        let records = self.records.unwrap_or(if self.quick { 20_000 } else { 100_000 });
        ensure!((100..=100_000_000).contains(&records), "--records is {records}: 100 to 100000000 can be measured");
        let time = Duration::from_millis(self.time.unwrap_or(if self.quick { 300 } else { 2000 }));
        let values = self.values(1024)?;
        let measured = Rounds::interleave(systems, rounds, |system, round| {
            let mut cells = Vec::new();
            for &bytes in &values {
                eprintln!("round {} of {rounds}: {}, values of {bytes} bytes", round + 1, system.name());
                let settings = self.settings(farmem, records * (bytes as u64 + BESIDE));
                let mut running = systems::start(system, &settings)?;
                load::fill(&mut running.wires, records, bytes)?;
                // D adds keys. It comes last, so that the others have as many as were filled in.
                let mut cases: Vec<(usize, Case)> = self.cases(&[bytes]).into_iter().enumerate().collect();
                cases.sort_by_key(|(_, case)| case.mix == Mix::D);
                let (mut found, mut there) = (Vec::new(), records);
                for (place, Case { keys, mix, .. }) in cases {
                    let mut stream = Stream::new(mix, keys, there, round as u64);
                    let depth = usize::from(self.pipeline);
                    found.push((place, load::run(&mut running.wires, &mut stream, depth, bytes, time)?));
                    there = stream.records();
                }
                found.sort_by_key(|&(place, _)| place);
                cells.extend(found.into_iter().map(|(_, found)| found));
            }
            anyhow::Ok(Some(cells))
        })?;
        let cases = self.cases(&values);
        let report = Report {
            bench: "kv",
            method: vec![
                format!(
                    "{records} keys; {} connections with {} requests under way on each; {} for a mix; {rounds} rounds.",
                    self.clients,
                    self.pipeline,
                    duration(time.as_nanos() as f64)
                ),
                format!(
                    "farmem kv, embedded and redis in run keep {} % local, at least 8 MiB, and the rest at a node over {}.",
                    self.local, self.transport
                ),
                "redis and memcached keep everything local. Embedded has one caller, in batches of a pipeline.".into(),
            ],
            environment: Environment::read(),
            skipped,
            sections: self.sections(&measured, &cases),
            targets: targets(&measured, &cases),
            raw: Raw { cases: cases.clone(), found: raw(&measured) },
        };
        let json = || Ok(report.json()? + "\n");
        let svg = || Ok(chart(&measured, &cases));
        report::tell(&report, &[(&self.json, &json), (&self.svg, &svg)])
    }

    fn cases(&self, values: &[usize]) -> Vec<Case> {
        let mut cases = Vec::new();
        for &bytes in values {
            for &keys in &self.keys {
                cases.extend(self.mix.iter().map(|&mix| Case { bytes, keys, mix }));
            }
        }
        cases
    }

    fn sections(&self, measured: &Rounds<System, Cells>, cases: &[Case]) -> Vec<Section> {
        let mut sections = Vec::new();
        for (title, figure, show) in [
            ("Requests a second", (|found| found.rate) as fn(&Found) -> f64, rate as fn(f64) -> String),
            ("99 of 100 pipelines are answered within", |found| found.p99, duration),
        ] {
            let head = ["bytes", "keys", "mix"].map(str::to_owned).into_iter();
            let mut table = Table::new(head.chain(measured.systems().map(|system| system.name().to_owned())));
            for (n, case) in cases.iter().enumerate() {
                let cell =
                    |system| spread(measured, system, n, figure).map_or("–".into(), |spread| show(spread.median));
                let head = [case.bytes.to_string(), case.keys.name().into(), case.mix.name().into()].into_iter();
                table.row(head.chain(measured.systems().map(cell)));
            }
            sections.push(Section { title: title.into(), table });
        }
        sections
    }

    fn replay(
        &self,
        farmem: &Path,
        path: &Path,
        systems: &[System],
        rounds: usize,
        skipped: Vec<Skipped>,
    ) -> Result<()> {
        let requests = trace::read(path)?;
        let bytes = self.values(64 << 10)?[0];
        let all = trace::distinct(&requests) * (bytes as u64 + BESIDE);
        let most = self.memory.map_or(all / 2, |mib| mib << 20).max(16 << 20);
        let settings = Settings { maxmemory: Some(most), ..self.settings(farmem, most) };
        // Memcached evicts by slabs of sizes, and is none that inference servers use.
        let systems: Vec<System> = systems.iter().copied().filter(|&system| system != System::Memcached).collect();
        let measured = Rounds::interleave(&systems, rounds, |system, round| {
            eprintln!("round {} of {rounds}: {}", round + 1, system.name());
            trace::replay(system, &settings, &requests, bytes).map(Some)
        })?;
        let mut table = Table::new(["system", "blocks of use", "bytes a second", "time"]);
        for system in measured.systems() {
            let median = |figure: fn(&Replayed) -> f64| {
                measured.spread(system, |found| Some(figure(found))).map_or(0.0, |spread| spread.median)
            };
            table.row([
                system.name().to_owned(),
                format!("{:.1} %", 100.0 * median(|found| found.hits as f64 / found.blocks as f64)),
                format!("{:.0} MB", median(|found| found.bytes_s) / 1e6),
                duration(median(|found| found.seconds) * 1e9),
            ]);
        }
        let report = Report {
            bench: "kv-trace",
            method: vec![format!(
                "{}: {} requests, {} distinct blocks of {bytes} bytes; {} MiB of memory for each system; {rounds} rounds.",
                path.display(),
                requests.len(),
                trace::distinct(&requests),
                most >> 20
            )],
            environment: Environment::read(),
            skipped,
            sections: vec![Section {
                title: "Blocks of prompts, fetched if they are there and else stored".into(),
                table,
            }],
            targets: Vec::new(),
            raw: measured
                .systems()
                .map(|system| (system.name(), measured.of(system).copied().collect::<Vec<_>>()))
                .collect::<Vec<_>>(),
        };
        ensure!(self.svg.is_none(), "--svg draws mixes, and no trace");
        let json = || Ok(report.json()? + "\n");
        report::tell(&report, &[(&self.json, &json)])
    }
}

fn raw(measured: &Rounds<System, Cells>) -> Vec<(&'static str, Vec<Cells>)> {
    measured.systems().map(|system| (system.name(), measured.of(system).cloned().collect())).collect()
}

fn spread(
    measured: &Rounds<System, Cells>,
    system: System,
    case: usize,
    figure: impl Fn(&Found) -> f64,
) -> Option<Spread> {
    measured.spread(system, |cells| cells.get(case).map(&figure))
}

/// Uniform keys, of which most are far: as many times faster than paging as is aimed at.
fn targets(measured: &Rounds<System, Cells>, cases: &[Case]) -> Vec<Target> {
    let mut targets = Vec::new();
    for (n, case) in cases.iter().enumerate().filter(|(_, case)| case.keys == Keys::Uniform) {
        let ratio = measured
            .within([System::Front, System::RunRedis], |[ours, paged]| Some(ours.get(n)?.rate / paged.get(n)?.rate));
        let what = format!("{} bytes, uniform, {}: farmem kv against redis in run", case.bytes, case.mix.name());
        if ratio.is_some() {
            targets.push(Target::new(what, Bound::AtLeast(3.0, 5.0), ratio));
        }
    }
    targets
}

fn chart(measured: &Rounds<System, Cells>, cases: &[Case]) -> String {
    let systems: Vec<System> = measured.systems().collect();
    let group = |(n, case): (usize, &Case)| {
        let name = format!("{} {} {}", case.bytes, case.keys.name(), case.mix.name());
        (name, systems.iter().map(|&system| spread(measured, system, n, |found| found.rate)).collect())
    };
    let groups: Vec<(String, Vec<Option<Spread>>)> = cases.iter().enumerate().map(group).collect();
    let axis = Axis::logarithmic(Chart::all(&groups).collect::<Vec<_>>(), rate).labelled("requests a second");
    let series = systems.iter().zip(COLOURS.iter().skip(1)).map(|(system, &colour)| (system.name().to_owned(), colour));
    let title = "Requests a second".into();
    let chart = Chart { title, series: series.collect(), groups, axis, style: Style::Mark, show: rate };
    sheet("A store in far memory", &[chart], 1)
}

fn rate(requests: f64) -> String {
    if requests < 10_000.0 { format!("{requests:.0}") } else { format!("{:.1} k", requests / 1e3) }
}
