//! What is printed: costs by size and number of clients, what does not depend on them, traces.

use std::fmt;

use farmem_kit::chart::rows::power;
use farmem_kit::chart::{Axis, COLOURS, Rows, Style};
use farmem_kit::pairs::Spread;
use farmem_kit::table::{Table, duration};
use serde::Serialize;

use crate::found::{Report, Row, Skipped, size_name};
use crate::recovery::Recovery;
use crate::systems::System;
use crate::targets::Target;
use crate::traces::{Lifetime, Replay};

impl Report<'_> {
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
            "pool, GiB",
            "allocations",
            "verbs",
            "CAS",
            "most",
            "mean",
            "p50",
            "p99",
            "in use",
            "guarded",
            "wanted",
            "static GiB",
            "unserved",
        ]);
        for replay in &self.replays {
            let take = &replay.allocations;
            table.row([
                replay.system.name().into(),
                if replay.lifetime == Lifetime::Kept { "nothing".into() } else { "above a quarter".to_owned() },
                format!("{}{}", replay.pool >> 30, if replay.is_tight { ", tight" } else { "" }),
                take.count.to_string(),
                each(take.verbs_each()),
                each(take.each(take.verbs.cas)),
                take.attempts_max.to_string(),
                duration(take.mean),
                duration(take.median as f64),
                duration(take.p99 as f64),
                format!("{:.1} %", replay.utilisation * 100.0),
                format!("{:.1} %", replay.guarded_utilisation * 100.0),
                replay.wanted.map_or_else(|| "–".to_owned(), |wanted| format!("{:.1} %", wanted * 100.0)),
                format!("{:.1} %", replay.static_utilisation * 100.0),
                share(replay.unserved, replay.unserved + take.count),
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
    pub fn chart(&self) -> Rows {
        let order = self.orders().first().copied().unwrap_or(0);
        let mut clients: Vec<u32> = self.rows.iter().filter(|row| row.order == order).map(|row| row.clients).collect();
        clients.dedup();
        let bar = |system, clients| {
            let take = &self.row(system, order, clients)?.outcome.allocations;
            let spread = Spread::of([take.median as f64, take.p99 as f64])?;
            Some(Spread { median: take.mean, rounds: 1, ..spread })
        };
        let group = |count| {
            let name = if count == 1 { "1 client".into() } else { format!("{count} clients") };
            (name, System::ALL.map(|system| bar(system, count)).to_vec())
        };
        let groups: Vec<_> = clients.into_iter().map(group).collect();
        Rows {
            title: format!("Allocating {}: mean latency; lines from median to 99 % (simulated)", size_name(order)),
            series: System::ALL
                .iter()
                .map(|system| system.name().to_owned())
                .zip(COLOURS.into_iter().cycle())
                .collect(),
            axis: Axis::decades(Rows::all(&groups), power),
            groups,
            style: Style::Bar,
            show: duration,
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, host) = (&self.costs.verb, &self.costs.host);
        writeln!(
            f,
            "simulated in virtual time · READ, WRITE {} µs, CAS {} µs · {} clients to a host · seed {} · all of it: farmem-lab bench alloc --print-rnic",
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
            let about = "Traces, all tenants at once: verbs (frees' too) for one allocation, its latency; bytes held over bytes lent, over time; guarded: over those and what an old key still reaches; wanted: bytes held over the pool, while requests waited for memory";
            write!(f, "\n{about}\n\n{}", self.replay_table())?;
            for replay in self.replays.iter().filter(|replay| replay.kept.iter().any(|&kept| kept > 0.0)) {
                let [ahead, part, empty, cleaning] = replay.kept.map(|kept| format!("{:.1} %", kept * 100.0));
                writeln!(
                    f,
                    "\n{}, {:?}{}: of the bytes lent, granted ahead {ahead}, free in blocks of which clients hold a part {part}, empty blocks {empty}, being made clean {cleaning}",
                    replay.system.name(),
                    replay.lifetime,
                    if replay.is_tight { ", tight" } else { "" }
                )?;
            }
            for (replay, first) in self.replays.iter().filter_map(|replay| Some((replay, replay.first_refused?))) {
                let (held, pool, size) = (gib(first.held), gib(first.pool), size_name(first.order));
                writeln!(
                    f,
                    "\n{}: refused {} clients, which asked for nothing more; the first for {size}, with {held:.2} of {pool:.0} GiB held by {} clients",
                    replay.system.name(),
                    replay.refused,
                    first.clients
                )?;
            }
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

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// A share of all.
fn share(some: u64, all: u64) -> String {
    if some == 0 { "0".into() } else { format!("{:.1} %", some as f64 / all.max(1) as f64 * 100.0) }
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
