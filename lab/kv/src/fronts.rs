//! `bench kv --fronts`: reads of one store by one front end and by several.
//!
//! ```text
//! generator ──► front end ─┐
//! generator ──► front end ─┴► farmem node         each of them takes CPU time of its own
//! ```
//!
//! A front end that is alone answers from its near cache without asking the node. Beside others it asks for
//! 8 bytes that prove that the object is current. Several front ends share `--local`.
//!
//! On a machine with fewer CPUs than processes requests a second show how these share the CPUs. So the
//! table also has the rate of a machine with a CPU for each front end and one for the node: of both the one
//! that is busy first limits it. That follows from the CPU time of a request, because a pipeline hides how
//! long an answer takes.

use std::time::Duration;

use crate::cpu;
use crate::generator::{Generators, Task};
use crate::mix::{Keys, Mix};
use crate::systems::{self, Settings, System};
use anyhow::Result;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread};
use farmem_kit::report::{Bound, Report, Section, Target};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};
use serde::Serialize;

/// The requests of a run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Numbers of front ends; one is always among them.
    pub fronts: Vec<u16>,
    /// Shares of the data that all front ends together keep local, in percent.
    pub local: Vec<u64>,
    /// Keys.
    pub records: u64,
    /// Bytes of a value.
    pub bytes: usize,
    /// Requests under way on each connection.
    pub depth: usize,
    /// For how long.
    pub time: Duration,
    /// Rounds.
    pub rounds: usize,
}

/// Front ends, and the share of the data that they keep local.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Case {
    fronts: u16,
    local: u64,
}

/// The figures of a run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Found {
    /// Reads a second of all.
    rate: f64,
    /// CPU time of a read, in ns: its front end's, and the node's.
    front: f64,
    node: f64,
}

impl Found {
    /// Reads a second where each front end has a CPU, and the node has one.
    fn with_cpus(&self, fronts: u16) -> f64 {
        (f64::from(fronts) / self.front.max(1.0)).min(1.0 / self.node.max(f64::MIN_POSITIVE)) * 1e9
    }
}

/// Everything that was found, for machines.
#[derive(Serialize)]
pub struct Raw {
    found: Vec<(Case, Vec<Found>)>,
}

fn measure(settings: &Settings, load: &Load, case: Case, round: usize) -> Result<Found> {
    supervise::interrupted()?;
    let local = (settings.data * case.local / 100).max(settings.local);
    let settings = Settings { processes: usize::from(case.fronts), local, ..settings.clone() };
    let mut running = systems::start(System::Front, &settings, None)?;
    let mut generators = Generators::start(&settings, &running.ways, load.bytes)?;
    generators.fill(load.records)?;
    let all = running.processes();
    // The node is started first.
    let (node, fronts) = all.split_at(1);
    let task = |seed: u64| {
        move |n| Task::Run {
            mix: Mix::C,
            keys: Keys::Uniform,
            records: load.records,
            depth: load.depth,
            seed,
            ms: load.time.as_millis() as u64,
            place: (n, u64::from(case.fronts)),
        }
    };
    // The near caches fill first.
    generators.run(task(round as u64 + 1000))?;
    let before = [cpu::of(fronts), cpu::of(node)];
    let (measured, _) = generators.run(task(round as u64))?;
    let took =
        |now: Duration, before: Duration| now.saturating_sub(before).as_nanos() as f64 / measured.asked.max(1) as f64;
    Ok(Found { rate: measured.rate, front: took(cpu::of(fronts), before[0]), node: took(cpu::of(node), before[1]) })
}

/// Runs it all. `settings.local` is the least of local memory.
///
/// # Errors
/// A front end or the node does not start, or a value is another than was written.
pub fn report(settings: &Settings, load: &Load) -> Result<Report<Raw>> {
    let mut fronts = load.fronts.clone();
    fronts.push(1);
    fronts.sort_unstable();
    fronts.dedup();
    let of = |&local: &u64| fronts.iter().map(move |&fronts| Case { fronts, local });
    let cases: Vec<Case> = load.local.iter().flat_map(of).collect();
    let measured = Rounds::interleave(&cases, load.rounds, |case, round| {
        eprintln!("round {} of {}: front ends: {}, {} % local", round + 1, load.rounds, case.fronts, case.local);
        measure(settings, load, case, round).map(Some)
    })?;
    let head = ["local", "front ends", "reads a second", "CPU time: front end", "node", "a CPU for each", "of one"];
    let (mut table, mut targets) = (Table::new(head), Vec::new());
    for &case in &cases {
        let one = Case { fronts: 1, ..case };
        let median = |figure: fn(&Found) -> f64| {
            measured.spread(case, |found| Some(figure(found))).map_or(f64::NAN, |spread| spread.median)
        };
        let pairs = measured.of(case).zip(measured.of(one));
        let ratio = Spread::of(pairs.map(|(some, one)| some.with_cpus(case.fronts) / one.with_cpus(1)));
        let with_cpus = measured.spread(case, |found| Some(found.with_cpus(case.fronts)));
        table.row([
            format!("{} %", case.local),
            case.fronts.to_string(),
            format!("{:.0}", median(|found| found.rate)),
            duration(median(|found| found.front)),
            duration(median(|found| found.node)),
            with_cpus.map_or("–".into(), |spread| format!("{:.0}", spread.median)),
            ratio.map_or("–".into(), |spread| format!("{:.2} ×", spread.median)),
        ]);
        if case.fronts == 2 {
            let what = format!("reads of two front ends against one, {} % local, a CPU for each", case.local);
            targets.push(Target::new(what, Bound::AtLeast(1.6, 1.9), ratio));
        }
    }
    let found = cases.iter().map(|&case| (case, measured.of(case).copied().collect())).collect();
    Ok(Report {
        bench: "kv-fronts",
        method: vec![
            format!(
                "GET of {} uniform keys, values of {} bytes. {} connections of all front ends, {} requests under way on \
                 each. {} rounds.",
                load.records, load.bytes, settings.clients, load.depth, load.rounds
            ),
            "A CPU for each: the rate at which a front end, or the node, is busy all the time, by CPU time.".into(),
        ],
        environment: Environment::read(),
        skipped: Vec::new(),
        sections: vec![Section { title: format!("Reads by front ends of one store, {}", settings.transport), table }],
        targets,
        raw: Raw { found },
    })
}

#[test]
fn the_first_that_is_busy_limits_the_rate() {
    let found = Found { rate: 0.0, front: 5000.0, node: 2000.0 };
    assert_eq!([1, 2, 4].map(|fronts| found.with_cpus(fronts)), [200e3, 400e3, 500e3]);
}
