//! What is printed: costs by size and number of clients, what does not depend on them, and targets.

use std::fmt;

use farmem_bench::chart::Chart;
use farmem_bench::pairs::Spread;
use farmem_bench::table::{Table, duration};
use serde::Serialize;

use crate::command::{Row, Skipped, size_name};
use crate::recovery::Recovery;
use crate::sim::costs::Costs;
use crate::systems::System;
use crate::traces::{Lifetime, Replay};

/// All that was found.
pub struct Report<'a> {
    /// Each run.
    pub rows: Vec<Row>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// Of traces.
    pub replays: Vec<Replay>,
    /// Measured, not simulated.
    pub recovery: Option<Recovery>,
    /// The costs used.
    pub costs: &'a Costs,
    /// The seed.
    pub seed: u64,
}

/// Something to reach.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What.
    pub what: &'static str,
    /// What the papers say of whom.
    pub published: &'static str,
    /// What is wanted.
    pub wanted: &'static str,
    /// What came out, if what it is made of was run.
    pub here: Option<String>,
    /// Whether it is reached.
    pub reached: Option<bool>,
}

/// A figure and whether it will do.
fn target(what: &'static str, published: &'static str, wanted: &'static str, here: Option<(String, bool)>) -> Target {
    let (here, reached) = here.map_or((None, None), |(here, reached)| (Some(here), Some(reached)));
    Target { what, published, wanted, here, reached }
}

impl Report<'_> {
    fn row(&self, system: System, order: u8, clients: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == system && row.order == order && row.clients == clients)
    }

    /// Two systems under the same load.
    fn pair(&self, systems: [System; 2], order: u8, clients: u32) -> Option<[&Row; 2]> {
        Some([self.row(systems[0], order, clients)?, self.row(systems[1], order, clients)?])
    }

    /// What was to be reached.
    pub fn targets(&self) -> Vec<Target> {
        use System::{Farmem, Finemem, FreeArray, RpcOnDemand, RpcWindows};
        let small = self.row(Farmem, 0, 512);
        let cas = small.map(|row| {
            // With those of the fill: chunks that are allocated again came in blocks that were claimed then.
            let (all, fill) = (&row.outcome.allocations, &row.outcome.fill);
            let mean = (all.verbs.cas + fill.verbs.cas) as f64 / (all.count + fill.count) as f64;
            let most = all.attempts_max.max(row.outcome.exhausting);
            (format!("{mean:.4} / {most}"), mean <= 0.05 && most <= 8)
        });
        let verbs = self.row(Farmem, 9, 1).map(|row| {
            let (take, give) = (&row.outcome.allocations, &row.outcome.frees);
            let ones = take.verbs.cas == take.count && give.verbs.posted() == give.count;
            let reads = take.each(take.verbs.read);
            (format!("1 and 1, and {reads:.3} READs"), ones && reads < 0.05)
        });
        let on_demand = self.pair([Farmem, RpcOnDemand], 0, 1).map(|[ours, theirs]| {
            let less = 1.0 - ours.outcome.allocations.mean / theirs.outcome.allocations.mean;
            (format!("−{:.1} %", less * 100.0), less >= 0.99)
        });
        let array = self.pair([Farmem, FreeArray], 0, 512).map(|[ours, theirs]| {
            let (ours, theirs) = (&ours.outcome.allocations, &theirs.outcome.allocations);
            let (mean, p99) = (theirs.mean / ours.mean, theirs.p99 as f64 / ours.p99.max(1) as f64);
            (format!("{mean:.0}× / {p99:.0}×"), mean >= 50.0 && p99 >= 1000.0)
        });
        let least = |order: u8| {
            let [ours, theirs] = self.pair([Farmem, RpcWindows], order, 24)?;
            Some(ours.outcome.allocations.rate() / theirs.outcome.allocations.rate())
        };
        let rates: Vec<f64> = (0..=9).filter_map(least).collect();
        let rate = rates
            .iter()
            .copied()
            .reduce(f64::min)
            .map(|least| (format!("{least:.0}×, the least of {} sizes", rates.len()), least >= 20.0));
        let mine: Vec<&Row> = self.rows.iter().filter(|row| row.system == Farmem).collect();
        let isolation = mine.iter().map(|row| row.outcome.busy.isolation + row.outcome.busy.calls).max();
        let isolation = isolation.map(|busy| (if busy == 0 { "0".into() } else { duration(busy as f64) }, busy == 0));
        let old = (!mine.is_empty()).then(|| {
            let dead = mine.iter().all(|row| row.outcome.old_key == Some((0, 0)));
            (if dead { "0".into() } else { "it works on".into() }, dead)
        });
        let metadata = mine.iter().map(|row| row.outcome.metadata).reduce(f64::max);
        let metadata = metadata.map(|share| (format!("{:.3} %", share * 100.0), share <= 0.0025));
        let fuller: Vec<(f64, f64)> = (0..=9)
            .filter_map(|order| self.pair([Farmem, Finemem], order, 512))
            .map(|[ours, theirs]| (ours.outcome.full_at, theirs.outcome.full_at))
            .collect();
        let worst = fuller.iter().copied().min_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1)));
        let fuller = worst
            .map(|(ours, theirs)| (format!("{:.1} % / {:.1} %", ours * 100.0, theirs * 100.0), ours + 1e-9 >= theirs));
        let replayed = |system, lifetime| {
            self.replays.iter().find(|replay| replay.system == system && replay.lifetime == lifetime)
        };
        let against_static = [Lifetime::Quarter, Lifetime::Kept].map(|lifetime| {
            let ours = replayed(Farmem, lifetime)?;
            Some(ours.utilisation / ours.static_utilisation)
        });
        let against_static = against_static[0]
            .zip(against_static[1])
            .map(|(quarter, kept)| (format!("{quarter:.1}× (nothing freed: {kept:.1}×)"), quarter >= 2.8));
        let in_traces = replayed(Farmem, Lifetime::Quarter).zip(replayed(Finemem, Lifetime::Quarter));
        let in_traces = in_traces.map(|(ours, theirs)| {
            let (ours, theirs) = (ours.utilisation, theirs.utilisation);
            (format!("{:.1} % / {:.1} %", ours * 100.0, theirs * 100.0), ours >= theirs)
        });
        let recovery =
            self.recovery.map(|recovery| (format!("{:.1} M, measured", recovery.rate() / 1e6), recovery.rate() >= 5e6));
        vec![
            target("CAS for 4 KiB, 512 clients: mean / most", "FineMem 1.33 / 142", "≤ 0.05 / ≤ 8", cas),
            target("verbs for 2 MiB, and to free it, 1 client", "OneSidedMW ~10 requests", "1 and 1", verbs),
            target("latency of 4 KiB, against registration on demand", "FineMem −95 %", "−99 %", on_demand),
            target(
                "latency of 4 KiB, free array / ours, 512 clients: mean / p99",
                "FineMem 17× / 200×",
                "50× / 1000×",
                array,
            ),
            target("rate, ours / calls that bind windows, 24 clients", "OneSidedMW 7.6×", "≥ 20×", rate),
            target("memory node's core, for isolation", "FineMem 15 %", "0", isolation),
            target("an old key works", "FineMem up to 100 ms", "0", old),
            target("metadata, of memory lent", "FineMem 0.4 %", "≤ 0.25 %", metadata),
            target("full when refused after churn: ours / FineMem's, worst size", "–", "≥ FineMem's", fuller),
            target(
                "utilisation over time, traces, / static grants of 1 GiB",
                "FineMem 2.25–2.8×",
                "≥ 2.8×",
                against_static,
            ),
            target("utilisation over time, traces: ours / FineMem's", "–", "≥ FineMem's", in_traces),
            target("recovery of a dead owner's holdings, entries/s", "FineMem 1 M", "≥ 5 M", recovery),
        ]
    }

    fn costs_table(&self, order: u8) -> Table {
        let mut table = Table::new([
            "",
            "clients",
            "verbs",
            "trips",
            "CAS",
            "tries",
            "most",
            "mean",
            "p50",
            "p99",
            "rate/s",
            "free: verbs",
            "mean",
            "p99",
        ]);
        for row in self.rows.iter().filter(|row| row.order == order) {
            let (take, give) = (&row.outcome.allocations, &row.outcome.frees);
            table.row([
                row.system.name().into(),
                row.clients.to_string(),
                each(take.verbs_each()),
                each(take.each(take.trips)),
                each(take.each(take.verbs.cas)),
                each(take.each(take.attempts)),
                take.attempts_max.to_string(),
                duration(take.mean),
                duration(take.median as f64),
                duration(take.p99 as f64),
                rate(take.rate()),
                each(give.verbs_each()),
                duration(give.mean),
                duration(give.p99 as f64),
            ]);
        }
        table
    }

    fn standing_table(&self, order: u8) -> Table {
        let mut table = Table::new([
            "",
            "metadata",
            "old key: mean",
            "longest",
            "core: calls",
            "isolation",
            "draining",
            "idle, 100 GiB",
            "in use after frees",
            "full when refused",
        ]);
        let clients = self.rows.iter().filter(|row| row.order == order).map(|row| row.clients).max().unwrap_or(0);
        for row in self.rows.iter().filter(|row| row.order == order && row.clients == clients) {
            let outcome = &row.outcome;
            let per = |busy: u64| duration(busy as f64 / outcome.frees.count.max(1) as f64);
            let key = |ns: Option<u64>| {
                ns.map_or("for ever".into(), |ns| if ns == 0 { "0".into() } else { duration(ns as f64) })
            };
            table.row([
                row.system.name().into(),
                format!("{:.3} %", outcome.metadata * 100.0),
                key(outcome.old_key.map(|old| old.0)),
                key(outcome.old_key.map(|old| old.1)),
                per(outcome.busy.calls),
                per(outcome.busy.isolation),
                per(outcome.busy.draining),
                format!("{:.1} %", outcome.standing * 100.0),
                format!("{:.1} %", outcome.utilisation * 100.0),
                format!("{:.1} %", outcome.full_at * 100.0),
            ]);
        }
        table
    }

    fn replay_table(&self) -> Table {
        let mut table = Table::new([
            "",
            "given back",
            "allocations",
            "verbs",
            "CAS",
            "most",
            "mean",
            "p50",
            "p99",
            "in use",
            "static GiB",
        ]);
        for replay in &self.replays {
            let take = &replay.allocations;
            table.row([
                replay.system.name().into(),
                if replay.lifetime == Lifetime::Kept { "nothing".into() } else { "above a quarter".to_owned() },
                take.count.to_string(),
                each(take.verbs_each()),
                each(take.each(take.verbs.cas)),
                take.attempts_max.to_string(),
                duration(take.mean),
                duration(take.median as f64),
                duration(take.p99 as f64),
                format!("{:.1} %", replay.utilisation * 100.0),
                format!("{:.1} %", replay.static_utilisation * 100.0),
            ]);
        }
        table
    }

    fn orders(&self) -> Vec<u8> {
        let mut orders: Vec<u8> = self.rows.iter().map(|row| row.order).collect();
        orders.dedup();
        orders
    }

    /// For machines.
    pub fn json(&self) -> impl Serialize + '_ {
        #[derive(Serialize)]
        struct Json<'a> {
            bench: &'static str,
            seed: u64,
            targets: Vec<Target>,
            skipped: &'a [Skipped],
            recovery: Option<Recovery>,
            traces: &'a [Replay],
            runs: &'a [Row],
        }
        let (skipped, recovery, traces) = (&self.skipped[..], self.recovery, &self.replays[..]);
        Json { bench: "alloc", seed: self.seed, targets: self.targets(), skipped, recovery, traces, runs: &self.rows }
    }

    /// Latencies of the smallest size.
    pub fn chart(&self) -> Chart {
        let order = self.orders().first().copied().unwrap_or(0);
        let mut clients: Vec<u32> = self.rows.iter().filter(|row| row.order == order).map(|row| row.clients).collect();
        clients.dedup();
        let bar = |system, clients| {
            let take = &self.row(system, order, clients)?.outcome.allocations;
            let spread = Spread::of([take.median as f64, take.p99 as f64])?;
            Some(Spread { median: take.mean, min: spread.min, max: spread.max, rounds: 1 })
        };
        Chart {
            title: format!("Allocating {}: mean latency; lines from median to 99 % (simulated)", size_name(order)),
            series: System::ALL.map(|system| system.name().to_owned()).to_vec(),
            groups: clients
                .into_iter()
                .map(|count| {
                    let name = if count == 1 { "1 client".into() } else { format!("{count} clients") };
                    (name, System::ALL.map(|system| bar(system, count)).to_vec())
                })
                .collect(),
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, host) = (&self.costs.verb, &self.costs.host);
        writeln!(
            f,
            "simulated in virtual time · READ, WRITE {} µs, CAS {} µs · {} clients to a host · seed {} · all of it: farmem bench alloc --print-rnic",
            verb.read, verb.cas, host.clients, self.seed
        )?;
        writeln!(
            f,
            "filled to 70 %, half freed at random, allocated again; every grant checked; nothing had two owners, nothing was lost"
        )?;
        for order in self.orders() {
            writeln!(
                f,
                "\nAllocating {}: verbs and latency of one allocation, of one free\n\n{}",
                size_name(order),
                self.costs_table(order)
            )?;
            write!(
                f,
                "{} beside the clients; the core's time is for one allocation and one free\n\n{}",
                size_name(order),
                self.standing_table(order)
            )?;
        }
        if !self.replays.is_empty() {
            let about = "Traces, all tenants at once: verbs (frees' too) for one allocation, its latency; bytes held over bytes lent, over time";
            write!(f, "\n{about}\n\n{}", self.replay_table())?;
        }
        writeln!(f, "\nTargets\n")?;
        let mut table = Table::new(["", "published", "to reach", "here", ""]);
        for target in self.targets() {
            let reached = match target.reached {
                Some(true) => "reached",
                Some(false) => "MISSED",
                None => "not measured",
            };
            table.row([
                target.what.into(),
                target.published.into(),
                target.wanted.into(),
                target.here.unwrap_or("–".into()),
                reached.to_owned(),
            ]);
        }
        write!(f, "{table}")?;
        for skipped in &self.skipped {
            writeln!(f, "\nskipped: {}: {}", skipped.what, skipped.why)?;
        }
        Ok(())
    }
}

/// A count for one operation.
fn each(count: f64) -> String {
    match count {
        0.0 => "0".into(),
        count if count < 0.1 => format!("{count:.4}"),
        count if count < 100.0 => format!("{count:.2}"),
        count => format!("{count:.0}"),
    }
}

/// Operations a second.
fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate < 1e6 => format!("{:.0} k", rate / 1e3),
        rate => format!("{:.1} M", rate / 1e6),
    }
}
