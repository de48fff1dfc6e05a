//! `farmem-lab bench evict --redis`: a whole program instead of pages on their own.
//!
//! ```text
//! redis, filled ─► a quarter of its far memory local ─► values overwritten at random ─┬─ requests a second
//!                                                                                      └─ farmem's counters
//! ```
//!
//! *CPU a request* is what the server itself took, faults and evictions in it, wherever it waited: the figure to look
//! at on a machine that does other things besides.
//!
//! Each of the policies below once a round, over shared memory and over tcp held to 10 Gbit/s. The servers of a round are all filled first and
//! then have their turns, [`TURNS`] each, one at a time: a machine that slows down for a second does so for all of them, and what is left of its noise in a
//! round's ratio is a fifth.
//!
//! That fifth is more than `none` and `lines` differ by over shared memory, where all that they do
//! differently is to copy what leaves or to compare it with its slot. So where both are asked for
//! there is one more server a round, which does both alternately ([`super::alternate`]): in it what is
//! compared differs by nothing else, not by what memory a server was given. Counters are those of
//! the overwriting alone: filling is over. *Sent* are the bytes of write-back with 90 for each
//! 1448, as they would be on Ethernet: acknowledgements and fetches are not in it. *Changed* are
//! the bytes of lines found changed, whole lines. A page of which it is not known what changed
//! (fresh, or back before its record was acknowledged) is sent and counts as nothing changed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use farmem_fabric::shape::on_the_wire;
use farmem_pager::dirty::alternate::SPAN;
use farmem_protocol::lines::LINE_BYTES;
use farmem_sys::raw::now_ns;
use serde::Serialize;

use super::Options;
use super::alternate::Alternated;
use super::trusted::{Trusted, WAYS};
use crate::counters::{self, Counts};
use crate::redis::{EACH, Order, Place, Server};
use farmem_kit::alone::Alone;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::{Rounds, Spread, in_turn};
use farmem_kit::report::{self, Bound, Report, Section, Target};
use farmem_kit::supervise;
use farmem_kit::table::{Table, duration};

/// Held to.
const RATE: &str = "10G";

/// Parts in which a server has its requests overwritten, between those of the others: long beside the millisecond that it takes to have what it
/// works with in the CPU's caches again, short beside what disturbs a shared machine.
const TURNS: usize = 40;

/// How much longer the server that compares and copies alternately is looked at than others, which have one thing to do.
const LONGER: u64 = 2;

/// How far memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    Shm,
    /// Held to [`RATE`].
    Tcp,
    /// The same, at a node that asks for a token ([`super::trusted`]).
    Token,
}

/// A link, and a policy; of [`By::Token`], a way of [`super::trusted::WAYS`].
type System = (By, &'static str);

const SYSTEMS: [System; 6] = [
    (By::Shm, "none"),
    (By::Shm, "lines"),
    (By::Shm, "auto"),
    (By::Tcp, "none"),
    (By::Tcp, "lines"),
    (By::Tcp, "auto"),
];

/// Only where they are asked for.
const TRUSTED: [System; 3] = [(By::Token, WAYS[0]), (By::Token, WAYS[1]), (By::Token, WAYS[2])];

/// They do the same but for comparing and copying.
const BOTH: [System; 2] = [(By::Shm, "none"), (By::Shm, "lines")];

/// One run's overwriting.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    requests: u64,
    seconds: f64,
    /// Of the server, its runtime in it, on a CPU.
    cpu_seconds: f64,
    counts: Counts,
}

impl Sample {
    fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    fn changed(&self) -> f64 {
        (self.counts.lines_changed * LINE_BYTES as u64) as f64
    }

    /// Bytes sent for each byte of changed lines.
    fn sent(&self) -> Option<f64> {
        (self.counts.lines_changed > 0).then(|| on_the_wire(self.counts.wire_out) as f64 / self.changed())
    }
}

#[derive(Serialize)]
struct Raw {
    keys: usize,
    local: u64,
    runs: Vec<(By, &'static str, Vec<Sample>)>,
    /// Of each round's server that compares and copies alternately: how many times as many requests a second while it compares.
    alternated: Vec<Spread>,
}

struct Bench<'a> {
    farmem: &'a Path,
    keys: usize,
    /// For [`By::Token`].
    trusted: Option<Trusted>,
}

/// A server of a round, filled.
struct Filled {
    server: Server,
    counters: PathBuf,
    /// When it was filled.
    before: Counts,
    cpu_before: f64,
    requests: u64,
    seconds: f64,
    /// It is gone with the server.
    _place: Place,
}

/// Runs it and prints the report.
///
/// # Errors
/// See [`crate::Bench::run`].
pub fn run(options: &Options, farmem: &Path) -> anyhow::Result<()> {
    let systems = systems(&options.ways)?;
    let _alone = Alone::take()?;
    supervise::note_interrupts();
    let environment = Environment::read();
    let (keys, requests) = if options.quick { (40_000, 40_000) } else { (160_000, 120_000) };
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
    let by_token = systems.iter().any(|system| system.0 == By::Token);
    let trusted = by_token.then(|| Trusted::start(farmem)).transpose()?;
    let bench = Bench { farmem, keys, trusted };
    eprintln!("what it has with plenty");
    // Twice what keys and values take, and as much again.
    let plenty = (4 * keys * EACH) as u64;
    let local = bench.fill((By::Shm, "auto"), plenty.max(64 << 20), None)?.end()?.counts.local_peak / 4;
    let both = BOTH.iter().all(|system| systems.contains(system));
    let mut alternated = Vec::new();
    let measured = Rounds::together(&systems, rounds, |round| {
        eprintln!("round {} of {rounds}", round + 1);
        let samples = bench.round(&systems, round, local, requests)?;
        if both {
            alternated.push(bench.alternated(local, LONGER * requests)?);
        }
        anyhow::Ok(samples)
    })?;
    let asked = [By::Shm, By::Tcp, By::Token].into_iter().filter(|by| systems.iter().any(|system| system.0 == *by));
    let mut sections: Vec<Section> = asked.map(|by| section(by, &measured)).collect();
    let mut method = vec![
        format!(
            "redis, {keys} keys of {} bytes, {requests} overwritten at random in {TURNS} turns, {rounds} rounds",
            crate::redis::VALUE
        ),
        format!(
            "--local {:.1} MiB, a quarter of its far memory · not pinned · CPU: the server's, by ticks of 10 ms",
            local as f64 / f64::from(1 << 20)
        ),
        "sent: write-back with 90 bytes for each 1448; changed: whole lines found changed".into(),
    ];
    if both {
        sections.push(section_alternated(&alternated));
        method.push(format!(
            "alternately: one more server a round, {} overwritten, which compares what leaves and copies it, {} ms each; medians of pairs of spans",
            LONGER * requests,
            SPAN.as_millis()
        ));
    }
    let runs = systems.iter().map(|&(by, dirty)| (by, dirty, measured.of((by, dirty)).copied().collect())).collect();
    let mut targets = targets(&measured, &alternated);
    // Those of what was not asked for are left out.
    targets.retain(|target| target.ratio.is_some());
    let skipped = Vec::new();
    let raw = Raw { keys, local, runs, alternated };
    let report = Report { bench: "evict-redis", method, environment, skipped, sections, targets, raw };
    report::tell(&report, &[(&options.json, &|| Ok(report.json()?))])
}

/// As `--ways` has it.
fn name((by, dirty): System) -> String {
    let link = match by {
        By::Shm => "shm",
        By::Tcp => "tcp",
        By::Token => "token",
    };
    format!("{link}:{dirty}")
}

/// Those that are asked for by name.
fn systems(ways: &[String]) -> anyhow::Result<Vec<System>> {
    let all = || SYSTEMS.into_iter().chain(TRUSTED);
    if let Some(unknown) = ways.iter().find(|way| !all().any(|system| name(system) == **way)) {
        let all: Vec<String> = all().map(name).collect();
        bail!("--ways {unknown}: not one of {}", all.join(", "));
    }
    if ways.is_empty() {
        return Ok(SYSTEMS.into());
    }
    Ok(all().filter(|&system| ways.contains(&name(system))).collect())
}

impl Bench<'_> {
    /// Servers of all these systems, which have their turns. Who is filled first is another in each round: what memory a server gets of the
    /// machine is decided then, and rounds differ by more than what is compared here.
    fn round(&self, systems: &[System], round: usize, local: u64, requests: u64) -> anyhow::Result<Vec<Sample>> {
        let fill = |place: usize| Ok((place, self.fill(systems[place], local, None)?));
        let mut filled = in_turn(systems.len(), round).map(fill).collect::<anyhow::Result<Vec<(usize, Filled)>>>()?;
        filled.sort_by_key(|(place, _)| *place);
        for turn in 0..TURNS {
            for place in in_turn(filled.len(), turn) {
                filled[place].1.overwrite(requests / TURNS as u64)?;
            }
        }
        filled.into_iter().map(|(_, server)| server.end()).collect()
    }

    /// One server that does alternately what both do.
    fn alternated(&self, local: u64, requests: u64) -> anyhow::Result<Spread> {
        let mut filled = self.fill((By::Shm, "lines"), local, Some("alternate"))?;
        let mut alternated = Alternated::default();
        filled.server.overwrite(|done| {
            alternated.begins(now_ns());
            done < requests
        })?;
        let counts = filled.end()?.counts;
        // A server that did one of the two all the time would find them alike.
        let whole = counts.pages_whole as f64 / (counts.evicted - counts.evicted_clean).max(1) as f64;
        ensure!(
            (0.2..0.8).contains(&whole),
            "{:.0} % of the pages went whole: they are not compared and copied alternately",
            100.0 * whole
        );
        alternated.compared().context("too few requests for a pair of spans")
    }

    fn fill(&self, (by, dirty): System, local: u64, mask: Option<&str>) -> anyhow::Result<Filled> {
        supervise::interrupted()?;
        let place = Place::new(&format!("evict-{}", name((by, dirty)).replace(':', "-")))?;
        let dir = place.path();
        let mut command = Command::new(self.farmem);
        command.env("XDG_RUNTIME_DIR", dir);
        command.args(["run", "--no-settings", "--stats", "none", "--local", &local.to_string()]);
        match by {
            By::Shm => command.args(["--transport", "shm", "--dirty", dirty]),
            By::Tcp | By::Token => command.args(["--transport", "tcp", "--shape", RATE]),
        };
        match (by, &self.trusted) {
            (By::Token, Some(trusted)) => trusted.reach(dirty, &mut command),
            (By::Token, None) => bail!("no node that asks for a token"),
            (By::Shm, _) => {}
            (By::Tcp, _) => _ = command.args(["--dirty", dirty]),
        }
        command.args(mask.iter().flat_map(|mask| ["--mask", mask]));
        command.args(["--", "redis-server"]);
        let server = Server::start(command, dir, self.keys, Order::Random)?;
        let counters = counters::file(dir)?;
        let (before, cpu_before) = (counters::read(&counters)?, counters::cpu_seconds(&counters)?);
        Ok(Filled { server, counters, before, cpu_before, requests: 0, seconds: 0.0, _place: place })
    }
}

impl Filled {
    fn overwrite(&mut self, requests: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.requests += self.server.overwrite(|done| done < requests)?;
        self.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }

    fn end(self) -> anyhow::Result<Sample> {
        let counts = counters::read(&self.counters)?.since(self.before);
        let cpu_seconds = counters::cpu_seconds(&self.counters)? - self.cpu_before;
        self.server.end()?;
        Ok(Sample { requests: self.requests, seconds: self.seconds, cpu_seconds, counts })
    }
}

fn against(measured: &Rounds<System, Sample>, one: System, other: System) -> Option<Spread> {
    measured.within([one, other], |[one, other]| Some(one.per_second() / other.per_second()))
}

fn section(by: By, measured: &Rounds<System, Sample>) -> Section {
    let (what, base) = if by == By::Token { ("", WAYS[0]) } else { ("--dirty", "none") };
    let mut table = Table::new([
        what,
        "requests/s",
        &format!("of {base}"),
        "",
        "CPU a request",
        "sent/changed",
        "lines/page",
        "fetches",
        "whole",
        "clean",
        "first-write faults",
    ]);
    for system in measured.systems().filter(|system| system.0 == by) {
        let median = |figure: &dyn Fn(&Sample) -> Option<f64>| measured.spread(system, figure).map(|of| of.median);
        let shown = |figure: Option<f64>, digits: usize| figure.map_or("–".into(), |of| format!("{of:.digits$}"));
        let none = against(measured, system, (by, base));
        let share = |part: u64, of: u64| (of > 0).then(|| 100.0 * part as f64 / of as f64);
        table.row([
            system.1.to_owned(),
            shown(median(&|run| Some(run.per_second())), 0),
            shown(none.map(|of| of.median), 2),
            none.filter(|of| of.rounds > 1).map_or(String::new(), |of| format!("({:.2} – {:.2})", of.min, of.max)),
            median(&|run| Some(run.cpu_seconds / run.requests as f64 * 1e9)).map_or("–".into(), duration),
            shown(median(&|run| run.sent().filter(|_| by != By::Shm)), 2),
            shown(
                median(&|run| {
                    let dirty = run.counts.evicted - run.counts.evicted_clean;
                    (run.counts.lines_changed > 0).then(|| run.counts.lines_changed as f64 / dirty as f64)
                }),
                1,
            ),
            shown(median(&|run| Some(run.counts.demand as f64)), 0),
            shown(median(&|run| share(run.counts.pages_whole, run.counts.evicted)), 1) + " %",
            shown(median(&|run| share(run.counts.evicted_clean, run.counts.evicted)), 1) + " %",
            shown(median(&|run| Some(run.counts.upgrades as f64)), 0),
        ]);
    }
    let over = match by {
        By::Shm => "over shared memory".to_owned(),
        By::Tcp => format!("over tcp, held to {RATE}bit/s"),
        By::Token => format!("over tcp, held to {RATE}bit/s, by token"),
    };
    Section { title: format!("redis, a quarter local, {over}"), table }
}

fn section_alternated(rounds: &[Spread]) -> Section {
    let mut table = Table::new(["round", "lines of none, requests/s", "with 95 %", "pairs of spans"]);
    for (round, pairs) in rounds.iter().enumerate() {
        let likely = pairs.likely.map_or("–".into(), |(from, to)| format!("{from:.3} – {to:.3}"));
        table.row([format!("{}", round + 1), format!("{:.3}", pairs.median), likely, pairs.rounds.to_string()]);
    }
    Section { title: "redis, a quarter local, over shared memory: one server, alternately".into(), table }
}

fn targets(measured: &Rounds<System, Sample>, alternated: &[Spread]) -> Vec<Target> {
    let speed = |by| against(measured, (by, "lines"), (by, "none"));
    let time = |way| against(measured, (By::Token, WAYS[0]), (By::Token, way));
    let within_one = Spread::of(alternated.iter().map(|pairs| pairs.median));
    vec![
        Target::new(
            "bytes sent for each byte of changed lines, tcp, lines",
            Bound::AtMost(1.3, 1.15),
            measured.spread((By::Tcp, "lines"), Sample::sent),
        ),
        Target::new("requests/s, lines against none, shm", Bound::AtLeast(1.0, 1.2), speed(By::Shm)),
        Target::new(
            "requests/s, lines against none, shm, alternately in one server",
            Bound::AtLeast(1.0, 1.2),
            within_one,
        ),
        Target::new("requests/s, lines against none, tcp at 10 Gbit/s", Bound::AtLeast(1.0, 1.2), speed(By::Tcp)),
        Target::new("time, encrypted against plain, by token", Bound::AtMost(1.05, 1.0), time("encrypted")),
        Target::new("time, sealed against plain, by token", Bound::AtMost(1.10, 1.0), time("sealed")),
    ]
}
