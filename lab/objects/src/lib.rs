//! `farmem-lab objects`: far objects, paging and near memory under programs of one source.
//!
//! ```text
//! objects ──► farmem node                       of its own
//!     └─────► objects-child, or farmem run -- objects-child      by turns, in rounds
//! ```
//!
//! | file | |
//! |---|---|
//! | [`child`] | the programs, over near memory and over far objects |
//! | `graph.rs`, `records.rs`, … | programs with a file of their own |
//! | [`systems`] | what they run on |
//! | this file | rounds, tables, targets, the chart |

pub mod child;
pub mod systems;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use child::{Found, Work};
use farmem_kit::alone::Alone;
use farmem_kit::chart::{Axis, COLOURS, Rows as Chart, Style, sheet};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{self, Bound, Report, Section, Target};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};
use systems::{Bench, System};

/// Far objects against paging and near memory
///
/// Programs of one source run on near memory, on far objects and under farmem run, by turns.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Small and short: a look, not a figure to quote
    #[arg(long)]
    quick: bool,
    /// MiB of objects [default: 64; with --quick 32]
    #[arg(long, value_name = "MIB")]
    objects: Option<usize>,
    /// Timed accesses of each kind [default: 30000; with --quick 10000]
    #[arg(long, value_name = "N")]
    accesses: Option<usize>,
    /// Rounds in which every system runs once [default: 5; with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Begin no round that would last beyond this many minutes
    #[arg(long, value_name = "N", default_value_t = 5)]
    minutes: u64,
    /// Programs to run
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Work::ALL)]
    work: Vec<Work>,
    /// Draws places; every round takes the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every figure of every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the costs
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  farmem-lab objects --quick
      All programs on all systems, in a minute: a look.
  farmem-lab objects --work random,together --rounds 9
      Random objects of 64 bytes alone, one by one and 16 at a time.";

/// One system's figures of one round.
type Cells = Vec<Found>;

impl Options {
    /// Runs it all. `farmem`: the binary that is measured, and runs the programs.
    ///
    /// # Errors
    /// When a program failed, or read other values than the same program did near.
    pub fn run(&self, farmem: &Path) -> Result<()> {
        report::can_be_written([&self.json, &self.svg])?;
        let mib = self.objects.unwrap_or(if self.quick { 32 } else { 64 });
        ensure!((32..=16 << 10).contains(&mib), "--objects is {mib} MiB: 32 to 16384 can be measured");
        let accesses = self.accesses.unwrap_or(if self.quick { 10_000 } else { 30_000 });
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { 5 });
        ensure!(rounds > 0 && accesses > 0, "--rounds and --accesses must be more than 0");
        let _alone = Alone::take()?;
        supervise::note_interrupts();
        let bench = Bench::start(farmem, mib << 20, accesses, &self.work)?;
        let begun = Instant::now();
        let systems = bench.systems();
        let limit = Duration::from_secs(60 * self.minutes);
        let mut progress = Progress { rounds, systems: systems.len(), begun, limit, round: 0, done: 0 };
        let measured = Rounds::interleave(&systems, rounds, |system, round| {
            supervise::interrupted()?;
            match progress.begins(system, round) {
                true => bench.run(system, self.seed + round as u64).map(Some),
                false => Ok(None),
            }
        })?;
        let rounds = progress.whole();
        let near: Vec<&Cells> = measured.of(System::Near).collect();
        for system in System::ALL {
            for (cells, near) in measured.of(system).zip(&near) {
                let alike =
                    cells.iter().all(|one| near.iter().any(|near| near.work == one.work && near.sum == one.sum));
                ensure!(alike, "{} read other values than near memory", system.name());
            }
        }
        let report = Report { skipped: bench.lacks(), ..self.report(&measured, mib, accesses, rounds) };
        let json = || Ok(report.json()? + "\n");
        let svg = || Ok(self.chart(&measured));
        report::tell(&report, &[(&self.json, &json), (&self.svg, &svg)])
    }

    fn report(
        &self,
        measured: &Rounds<System, Cells>,
        mib: usize,
        accesses: usize,
        rounds: usize,
    ) -> Report<Vec<(&'static str, Vec<Cells>)>> {
        let mut table = Table::new(
            ["an access, median".to_owned()].into_iter().chain(System::ALL.map(|system| system.name().to_owned())),
        );
        for &work in &self.work {
            let cell = |system| of(measured, system, work).map_or("–".into(), |spread| shown(spread.median));
            table.row([text(work).to_owned()].into_iter().chain(System::ALL.map(cell)));
        }
        let mut method = format!("{mib} MiB of objects of 64 bytes, a quarter local, {accesses} accesses of each kind");
        let _ = write!(method, ", {rounds} rounds; ratios within a round.");
        let about = "Far objects count headers as local; their boxes, 8 bytes an object, are beside that. \
                     “fits”: all may be local.";
        Report {
            bench: "objects",
            method: vec![method, about.into()],
            environment: Environment::read(),
            skipped: Vec::new(),
            sections: vec![Section { title: "What an access costs".into(), table }],
            targets: self.targets(measured),
            raw: System::ALL.map(|system| (system.name(), measured.of(system).cloned().collect())).to_vec(),
        }
    }

    fn targets(&self, measured: &Rounds<System, Cells>) -> Vec<Target> {
        let has = |work| self.work.contains(&work);
        let gain = |slow, fast, work: Work| {
            measured.within([slow, fast], |[slow, fast]| Some(ns(slow, work)? / ns(fast, work)?))
        };
        let mut targets = Vec::new();
        if has(Work::Deref) {
            let hot = of(measured, System::Fits, Work::Deref);
            targets.push(Target::new("a use of a local object, scopes of 64, ns", Bound::AtMost(1.5, 1.0), hot));
        }
        if has(Work::Random) {
            let ratio = gain(System::RunShm, System::Shm, Work::Random);
            targets.push(Target::new("random objects, shm, against paging", Bound::AtLeast(8.0, 10.0), ratio));
        }
        if has(Work::Pair) {
            let ratio = gain(System::RunShm, System::Shm, Work::Pair);
            let what = "random objects, two threads, shm, against paging";
            targets.push(Target::new(what, Bound::AtLeast(7.0, 9.0), ratio));
        }
        for work in [Work::Filter, Work::Gather].into_iter().filter(|&work| has(work)) {
            let what = format!("{}, 10 Gbit/s: at the node against fetched", text(work));
            let ratio = gain(System::Plain10, System::Tcp10, work);
            targets.push(Target::new(what, Bound::AtLeast(3.0, 5.0), ratio));
        }
        if has(Work::Collect) {
            let ratio = gain(System::Plain10, System::Tcp10, Work::Collect);
            let what = "a collection, 10 Gbit/s: marked at the node against fetched";
            let near = gain(System::Plain10, System::Near, Work::Collect);
            targets.push(Target::new(what, Bound::AtLeast(5.0, 10.0), ratio).with_floor(near));
        }
        if has(Work::Together) {
            let ratio = gain(System::RunTcp, System::Tcp, Work::Together);
            targets.push(Target::new("16 in flight, tcp, against paging", Bound::AtLeast(12.0, 16.0), ratio));
        }
        for work in [Work::Web, Work::Frame].into_iter().filter(|&work| has(work)) {
            for system in [System::Tcp, System::Tcp10] {
                let what = format!("{}, {}, a quarter local: share of near memory's speed", text(work), system.name());
                targets.push(Target::new(what, Bound::AtLeast(0.5, 1.0), gain(System::Near, system, work)));
            }
            let what = format!("{}, objects at 10 Gbit/s against zram", text(work));
            let target = Target::new(what, Bound::AtLeast(5.0, 8.0), gain(System::Zram, System::Tcp10, work));
            // With all of it near nothing is fetched at all.
            targets.push(target.with_floor(gain(System::Zram, System::Near, work)));
        }
        for work in [Work::Random, Work::Scan, Work::Map, Work::Frame].into_iter().filter(|&work| has(work)) {
            let what = format!("{}, all local, against near memory", text(work));
            targets.push(Target::new(what, Bound::AtMost(1.1, 1.0), gain(System::Fits, System::Near, work)));
        }
        targets
    }

    fn chart(&self, measured: &Rounds<System, Cells>) -> String {
        let group = |&work: &Work| {
            let spreads = System::ALL.map(|system| of(measured, system, work));
            (text(work).to_owned(), spreads.to_vec())
        };
        let groups: Vec<(String, Vec<Option<Spread>>)> = self.work.iter().map(group).collect();
        let axis = Axis::logarithmic(Chart::all(&groups).collect::<Vec<_>>(), duration).labelled("an access");
        let series = System::ALL.iter().zip(COLOURS).map(|(system, colour)| (system.name().to_owned(), colour));
        let title = "What an access costs".into();
        let chart = Chart { title, series: series.collect(), groups, axis, style: Style::Mark, show: shown };
        sheet("Far objects", &[chart], 1)
    }
}

/// Tells how far the rounds are, and begins none that would last too long.
struct Progress {
    rounds: usize,
    /// Systems of a round.
    systems: usize,
    begun: Instant,
    limit: Duration,
    /// The round that was begun last, and its systems.
    round: usize,
    done: usize,
}

impl Progress {
    /// Whether a system is to run in a round. The first round always runs, and each runs as a whole.
    fn begins(&mut self, system: System, round: usize) -> bool {
        let spent = self.begun.elapsed();
        if round > self.round {
            let whole = self.done == self.systems;
            if !whole || !fits(spent, round, self.limit) {
                return false;
            }
            (self.round, self.done) = (round, 0);
        }
        self.done += 1;
        let (of, name) = (self.rounds, system.name());
        let (spent, round, done, systems) = (spent.as_secs(), round + 1, self.done, self.systems);
        eprintln!("{spent:>4} s: round {round} of {of}, {done} of {systems}: {name}");
        true
    }

    /// Rounds that ran.
    fn whole(&self) -> usize {
        self.round + 1
    }
}

/// Whether one more round, as long as those before, ends within the limit.
fn fits(spent: Duration, rounds: usize, limit: Duration) -> bool {
    spent + spent / (rounds as u32).max(1) <= limit
}

fn ns(cells: &Cells, work: Work) -> Option<f64> {
    cells.iter().find(|found| found.work == work).map(|found| found.ns)
}

fn of(measured: &Rounds<System, Cells>, system: System, work: Work) -> Option<Spread> {
    measured.spread(system, |cells| ns(cells, work))
}

fn shown(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.2} ns") } else { duration(ns) }
}

fn text(work: Work) -> &'static str {
    match work {
        Work::Deref => "local object",
        Work::Random => "random read",
        Work::Together => "16 together",
        Work::Writes => "half writes",
        Work::Scan => "scan, a word",
        Work::Map => "map lookup",
        Work::Frame => "table, a row",
        Work::Web => "web front, a request",
        Work::Pair => "two threads, a read",
        Work::Compress => "compression, 4 KiB",
        Work::Graph => "graph search, a node",
        Work::Collect => "collection, a node",
        Work::Filter => "filtered sum, a record",
        Work::Gather => "words of records, each",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_end_in_time_and_whole() {
        let seconds = Duration::from_secs;
        assert!(fits(seconds(100), 1, seconds(200)) && !fits(seconds(101), 1, seconds(200)));
        assert!(fits(seconds(150), 3, seconds(200)) && !fits(seconds(151), 3, seconds(200)));
        let mut progress = Progress {
            rounds: 9,
            systems: System::ALL.len(),
            begun: Instant::now(),
            limit: seconds(0),
            round: 0,
            done: 0,
        };
        assert!(System::ALL.iter().all(|&system| progress.begins(system, 0)));
        // Time is over: neither the next round nor one after it begins.
        std::thread::sleep(Duration::from_millis(1));
        let later = (1..3).flat_map(|round| System::ALL.map(|system| (system, round)));
        assert!(later.into_iter().all(|(system, round)| !progress.begins(system, round)));
        assert_eq!(progress.whole(), 1);
    }
}
