//! `farmem-lab bench kv`: the store beside redis and memcached, by one load generator over real
//! sockets.
//!
//! ```text
//! generators ── sockets ──► farmem kv ──► farmem node      each started afresh, by turns, in rounds
//!     │  └───── sockets ──► redis, memcached, redis under farmem run, redis on zram
//!     └──────── the library ───────────► farmem node
//! ```
//!
//! | file | |
//! |---|---|
//! | [`mix`] | which requests, on which keys |
//! | [`wire`] | how they reach a system |
//! | [`load`] | asks, and takes the time |
//! | [`generator`] | processes that do so side by side |
//! | [`systems`] | what is measured |
//! | [`cpu`] | the time that it takes of a CPU |
//! | [`figures`] | tables, targets, the chart |
//! | [`trace`] | blocks of an inference service |
//! | [`allocators`] | the store on simulated network cards, with one allocator after the other |
//! | [`hot`] | the same: one key of many clients, and what reclamation costs |
//! | [`memory`] | the same: how much memory pieces save |
//! | [`fronts`] | reads by one front end and by several |
//! | [`near`] | the near cache's policy beside others, replayed |
//! | [`calls`] | one call of the libraries for Rust, C and Python |
//! | this file | options, and rounds |

pub mod allocators;
pub mod calls;
pub mod cpu;
pub mod figures;
pub mod fronts;
pub mod generator;
pub mod hot;
pub mod load;
pub mod memory;
pub mod mix;
pub mod near;
pub mod systems;
pub mod trace;
pub mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_bench::swap;
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Rounds;
use farmem_kit::report::{self, Report, Section, Skipped};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};
use figures::{Case, Cells, Figures, Found};
use generator::{Generators, Task};
use mix::{Keys, Mix};
use serde::Serialize;
use systems::{Running, Settings, System};
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
    /// Keys [default: 96 MiB of keys and values, 20000 at least; with --quick 20000]
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
    /// Processes that ask, each with a front end of its own where there are several [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=32))]
    processes: Vec<u16>,
    /// Connections of all processes
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
    /// Time one call of the libraries for Rust, C and Python
    #[arg(long, conflicts_with_all = ["trace", "allocators"])]
    calls: bool,
    /// Replay requests through the near cache's policy and others; --trace adds the blocks of a trace
    #[arg(long, conflicts_with_all = ["allocators", "calls"])]
    near: bool,
    /// Reads by one front end and by --processes of them [default: 2], 10 % local and all
    #[arg(long, conflicts_with_all = ["trace", "allocators", "calls", "near"])]
    fronts: bool,
    /// MiB of memory for the blocks of a trace [default: half of what they take]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rates
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Be a generator
    #[arg(long, value_name = "PART", hide = true)]
    generator: Option<String>,
    /// Be the program in Rust
    #[arg(long, value_name = "PART", hide = true)]
    call: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab bench kv --quick
      All mixes on all systems, values of 1 KiB: a look.
  farmem-lab bench kv --values 64,1024,16384 --svg kv.svg
      Small and large values, in rounds.
  farmem-lab bench kv --processes 1,2,4,8 --systems front,embedded
      Several front ends of one store.
  farmem-lab bench kv --trace lab/kv/traces/mooncake.jsonl
      The blocks of an inference service's cache, beside redis.
  farmem-lab bench kv --allocators
      Updates and inserts of 1 to 512 clients, by allocator, in virtual time.
  farmem-lab bench kv --calls
      A get and a put of each library, by CPU time and instructions.
  farmem-lab bench kv --fronts
      Reads by two front ends against one, also where there is a CPU for each.
  farmem-lab bench kv --near --trace lab/kv/traces/mooncake.jsonl
      The near cache's policy beside LRU, SIEVE, 2Q, S3-FIFO and the bound.";

/// The smallest local memory: a run needs some.
const LOCAL: u64 = 2 << 20;
/// Bytes that a record takes beside its value, about.
const BESIDE: u64 = 80;

/// Bytes of keys and values, if their number is not given.
const DATA: u64 = 96 << 20;
/// Keys at least, then.
const KEYS: u64 = 20_000;

impl Options {
    /// Runs it all. `farmem`: the binary that is measured.
    ///
    /// # Errors
    /// When a system does not start, or answered with another value than was written.
    pub fn run(&self, farmem: &Path) -> Result<()> {
        if let Some(part) = &self.generator {
            return generator::serve(part);
        }
        if let Some(part) = &self.call {
            return calls::serve(part);
        }
        report::can_be_written([&self.json, &self.svg])?;
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { 5 });
        ensure!(rounds > 0, "--rounds must be more than 0");
        if self.allocators {
            ensure!(self.svg.is_none(), "--svg draws mixes, and no allocators");
            let report = allocators::report(self.quick)?;
            let json = || Ok(report.json()? + "\n");
            return report::tell(&report, &[(&self.json, &json)]);
        }
        if self.near {
            ensure!(self.svg.is_none(), "--svg draws mixes, and no policies");
            let report = near::report(self.trace.as_deref(), self.quick)?;
            let json = || Ok(report.json()? + "\n");
            return report::tell(&report, &[(&self.json, &json)]);
        }
        let _alone = Alone::take()?;
        supervise::note_interrupts();
        if self.calls {
            ensure!(self.svg.is_none(), "--svg draws mixes, and no calls");
            let report = calls::report(farmem, rounds, self.quick)?;
            let json = || Ok(report.json()? + "\n");
            return report::tell(&report, &[(&self.json, &json)]);
        }
        if self.fronts {
            ensure!(self.svg.is_none(), "--svg draws mixes, and no front ends");
            let report = self.by_fronts(farmem, rounds)?;
            let json = || Ok(report.json()? + "\n");
            return report::tell(&report, &[(&self.json, &json)]);
        }
        let (mut systems, mut skipped) = (Vec::new(), Vec::new());
        for &system in &self.systems {
            match system.missing() {
                None => systems.push(system),
                Some(reason) => skipped.push(Skipped { system: system.name().into(), reason }),
            }
        }
        match &self.trace {
            Some(path) => self.replay(farmem, path, &systems, rounds, skipped),
            None => self.load(farmem, systems, rounds, skipped),
        }
    }

    fn by_fronts(&self, farmem: &Path, rounds: usize) -> Result<report::Report<fronts::Raw>> {
        let bytes = self.values(1024)?[0];
        let records = self.records(bytes);
        let settings = Settings { local: LOCAL, ..self.settings(farmem, records * (bytes as u64 + BESIDE)) };
        let load = fronts::Load {
            fronts: if self.processes.is_empty() { vec![2] } else { self.processes.clone() },
            local: vec![self.local, 200],
            records,
            bytes,
            depth: usize::from(self.pipeline),
            time: Duration::from_millis(self.time.unwrap_or(if self.quick { 300 } else { 2000 })),
            rounds,
        };
        fronts::report(&settings, &load)
    }

    fn settings(&self, farmem: &Path, data: u64) -> Settings {
        Settings {
            farmem: farmem.to_owned(),
            transport: if self.transport == "shm" { "shm" } else { "tcp" },
            data,
            local: (data * self.local / 100).max(LOCAL),
            maxmemory: None,
            clients: usize::from(self.clients),
            processes: 1,
        }
    }

    fn values(&self, usual: usize) -> Result<Vec<usize>> {
        let values = if self.values.is_empty() { vec![usual] } else { self.values.clone() };
        let most = if self.trace.is_some() { farmem_kv::blocks::MAX_BLOCK } else { 1 << 20 };
        ensure!(values.iter().all(|bytes| (1..=most).contains(bytes)), "--values: 1 to {most} bytes can be measured");
        Ok(values)
    }

    fn records(&self, bytes: usize) -> u64 {
        let usual = if self.quick { KEYS } else { (DATA / (bytes as u64 + BESIDE)).max(KEYS) };
        self.records.unwrap_or(usual)
    }

    fn load(&self, farmem: &Path, mut systems: Vec<System>, rounds: usize, mut skipped: Vec<Skipped>) -> Result<()> {
        let values = self.values(1024)?;
        let records = values.iter().map(|&bytes| self.records(bytes));
        for records in records {
            ensure!((100..=100_000_000).contains(&records), "--records is {records}: 100 to 100000000 can be measured");
        }
        let zram = self.zram(&mut systems, &values, &mut skipped);
        let time = Duration::from_millis(self.time.unwrap_or(if self.quick { 300 } else { 2000 }));
        let cases = self.cases(&values);
        let mut kills = BTreeMap::new();
        let measured = Rounds::interleave(&systems, rounds, |system, round| {
            let mut cells = Vec::new();
            for case in cases.chunk_by(Case::is_beside) {
                let Case { processes, bytes, .. } = case[0];
                eprintln!(
                    "round {} of {rounds}: {}, values of {bytes} bytes, processes: {processes}",
                    round + 1,
                    system.name()
                );
                if !system.holds(bytes) {
                    cells.extend(vec![Found::NONE; case.len()]);
                    continue;
                }
                let (found, killed) = self.measure(farmem, (system, zram.as_ref()), case, (round, time))?;
                cells.extend(found);
                if killed {
                    *kills.entry((system.name(), bytes)).or_insert(0) += 1;
                }
            }
            anyhow::Ok(Some(cells))
        })?;
        skipped.extend(kills.into_iter().map(|((system, bytes), times)| Skipped {
            system: system.into(),
            reason: format!("values of {bytes} bytes: the kernel killed it {times} times for its group's limit"),
        }));
        let figures = Figures { measured: &measured, cases: &cases };
        let report = Report {
            bench: "kv",
            method: vec![
                format!(
                    "{} connections with {} requests under way on each; {} for a mix; {rounds} rounds.",
                    self.clients,
                    self.pipeline,
                    duration(time.as_nanos() as f64)
                ),
                format!(
                    "farmem kv, embedded, redis in run and on zram, extstore keep {} % local, at least 2 MiB. farmem: \
                     the rest at a node over {}.",
                    self.local, self.transport
                ),
                "redis and memcached keep everything local. Redis on zram has 4 MiB beside, extstore 16 MiB.".into(),
                "CPU time: the system's processes with its node's; embedded: with the generator's.".into(),
            ],
            environment: Environment::read(),
            skipped,
            sections: figures.sections(),
            targets: figures.targets(),
            raw: Raw { cases: cases.clone(), found: figures.raw() },
        };
        let json = || Ok(report.json()? + "\n");
        let svg = || Ok(figures.chart());
        report::tell(&report, &[(&self.json, &json), (&self.svg, &svg)])
    }

    /// The swap area of redis on zram, if that is measured.
    fn zram(&self, systems: &mut Vec<System>, values: &[usize], skipped: &mut Vec<Skipped>) -> Option<swap::Area> {
        if !systems.contains(&System::ZramRedis) {
            return None;
        }
        let most = values.iter().map(|&bytes| self.records(bytes) * (bytes as u64 + 3 * BESIDE)).max().unwrap_or(0);
        let area = match swap::privileged() {
            true => swap::Area::zram((2 * most + (64 << 20)) >> 20 << 20),
            false => Err(anyhow::anyhow!("needs root")),
        };
        match area {
            Ok(area) => Some(area),
            Err(error) => {
                let system = System::ZramRedis.name().into();
                skipped.push(Skipped { system, reason: format!("{error:#}") });
                systems.retain(|&system| system != System::ZramRedis);
                None
            }
        }
    }

    /// Measures cases on one system, started for them. Says whether the kernel killed it on the way
    /// because its memory group found no room: then the cases that were not ended have no figures.
    fn measure(
        &self,
        farmem: &Path,
        (system, zram): (System, Option<&swap::Area>),
        cases: &[Case],
        (round, time): (usize, Duration),
    ) -> Result<(Cells, bool)> {
        let Case { processes, bytes, .. } = cases[0];
        let settings = self.settings(farmem, self.records(bytes) * (bytes as u64 + BESIDE));
        let settings = Settings { processes: usize::from(processes), ..settings };
        let mut running = systems::start(system, &settings, zram)?;
        let mut found = vec![Found::NONE; cases.len()];
        match self.ask(&mut running, (system, &settings), cases, (round, time), &mut found) {
            Err(_) if running.killed() => supervise::interrupted()?,
            ended => ended?,
        }
        Ok((found, running.killed()))
    }

    /// Asks for what the cases say, and puts down what is found.
    fn ask(
        &self,
        running: &mut Running<'_>,
        (system, settings): (System, &Settings),
        cases: &[Case],
        (round, time): (usize, Duration),
        found: &mut [Found],
    ) -> Result<()> {
        let Case { processes, bytes, .. } = cases[0];
        let mut there = self.records(bytes);
        let mut generators = Generators::start(settings, &running.ways, bytes)?;
        generators.fill(there)?;
        let mut counted = running.processes();
        if system == System::Embedded {
            counted.extend(generators.processes());
        }
        // D adds keys. It comes last, so that the others have as many as were filled in.
        let mut order: Vec<usize> = (0..cases.len()).collect();
        order.sort_by_key(|&at| cases[at].mix == Mix::D);
        for at in order {
            let Case { keys, mix, .. } = cases[at];
            let before = cpu::of(&counted);
            let (measured, records) = generators.run(|n| Task::Run {
                mix,
                keys,
                records: there,
                depth: usize::from(self.pipeline),
                seed: round as u64,
                ms: time.as_millis() as u64,
                place: (n, u64::from(processes)),
            })?;
            let cpu = cpu::of(&counted).saturating_sub(before).as_nanos() as f64 / measured.asked.max(1) as f64;
            there = records;
            found[at] = Found { measured, cpu };
        }
        Ok(())
    }

    fn cases(&self, values: &[usize]) -> Vec<Case> {
        let processes = if self.processes.is_empty() { &[1][..] } else { &self.processes };
        let mut cases = Vec::new();
        for &processes in processes {
            for &bytes in values {
                for (nth, &keys) in self.keys.iter().enumerate() {
                    // D draws by age, however the others draw.
                    let mixes = self.mix.iter().filter(|&&mix| mix != Mix::D || nth == 0);
                    cases.extend(mixes.map(|&mix| Case { processes, bytes, keys, mix }));
                }
            }
        }
        cases
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
        let others = [System::Memcached, System::Extstore, System::ZramRedis];
        let systems: Vec<System> = systems.iter().copied().filter(|system| !others.contains(system)).collect();
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

/// Figures of all rounds, for machines.
#[derive(Serialize)]
struct Raw<'a> {
    cases: Vec<Case>,
    found: Vec<(&'static str, Vec<&'a Cells>)>,
}
