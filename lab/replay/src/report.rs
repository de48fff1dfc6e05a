//! Every trace at every share through every policy, and how to show it.

use crate::ideal;
use crate::machine::{Outcome, Setup, replay};
use crate::trace::Trace;
use farmem_cache::segments::{RECOMMENDED, S3_FIFO, STANDBY, Segments, Shape, TWO_QUEUE};
use farmem_cache::{Policy, fifo};
use serde_json::{Value, json};
use std::fmt::Write;

/// Policies that could be built, then those that only a replayer can run.
pub const POLICIES: [&str; 11] =
    ["FIFO", "clock", "standby", "2Q", "S3-FIFO", "farmem", "LRU*", "CLOCK*", "SIEVE*", "S3-FIFO*", "MIN*"];
/// How many of [`POLICIES`] are buildable.
pub const BUILDABLE: usize = 6;

/// One trace at one share.
pub struct Row {
    /// The trace.
    pub trace: String,
    /// Pages it has at most.
    pub pages: usize,
    /// Entries it has.
    pub accesses: usize,
    /// Local share, percent.
    pub share: usize,
    /// Fetches per access to a page touched before, by [`POLICIES`].
    pub misses: [f64; POLICIES.len()],
    /// The policy in use, with prefetch.
    pub ahead: Outcome,
    /// The same without.
    pub alone: Outcome,
}

/// All rows.
pub struct Report {
    /// By trace, then share.
    pub rows: Vec<Row>,
}

fn buildable(name: usize) -> impl Fn(usize) -> Box<dyn Policy> {
    let shaped = |shape: Shape| move |n| Box::new(Segments::new(n, shape)) as Box<dyn Policy>;
    move |n| match name {
        0 => Box::new(fifo::Fifo::new(n)),
        1 => Box::new(fifo::Clock::new(n)),
        2 => shaped(STANDBY)(n),
        3 => shaped(TWO_QUEUE)(n),
        4 => shaped(S3_FIFO)(n),
        _ => shaped(RECOMMENDED)(n),
    }
}

/// A share of a trace's pages as local memory.
pub(crate) fn setup(trace: &Trace, share: usize, batch: usize, staging: usize) -> Setup {
    Setup { local: (trace.peak * share / 100).max(64), batch, staging, prefetch: false, longest: None }
}

/// Replays everything. `staging`: thousandths of local memory.
pub fn run(traces: &[Trace], shares: &[usize], batch: usize, staging: usize) -> Report {
    let mut rows = Vec::new();
    for trace in traces {
        for &share in shares {
            let setup = setup(trace, share, batch, staging);
            let local = setup.local;
            let repeats = trace.again.max(1) as f64;
            let misses = std::array::from_fn(|i| {
                let misses = match POLICIES[i] {
                    "LRU*" => ideal::lru(trace, local),
                    "CLOCK*" => ideal::clock(trace, local),
                    "SIEVE*" => ideal::sieve(trace, local),
                    "S3-FIFO*" => ideal::s3_fifo(trace, local),
                    "MIN*" => ideal::belady(trace, local),
                    _ => replay(trace, setup, buildable(i)).demand,
                };
                misses as f64 / repeats
            });
            let in_use = |prefetch| replay(trace, Setup { prefetch, ..setup }, farmem_cache::recommended);
            rows.push(Row {
                trace: trace.name.clone(),
                pages: trace.peak,
                accesses: trace.events.len(),
                share,
                misses,
                ahead: in_use(true),
                alone: in_use(false),
            });
        }
    }
    Report { rows }
}

impl Report {
    /// Geometric mean over rows of misses relative to MIN's, by policy: 1 is the bound.
    pub fn over_bound(&self) -> [f64; POLICIES.len()] {
        std::array::from_fn(|i| {
            let ratio = |row: &Row| (row.misses[i] + 1e-4) / (row.misses[POLICIES.len() - 1] + 1e-4);
            let sum: f64 = self.rows.iter().map(|row| ratio(row).ln()).sum();
            (sum / self.rows.len().max(1) as f64).exp()
        })
    }

    /// Two tables, aligned, in Markdown.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut line = |cells: &[String]| {
            let padded: Vec<String> =
                cells.iter().enumerate().map(|(i, c)| pad(c, if i == 0 { 12 } else { 8 })).collect();
            let _ = writeln!(out, "| {} |", padded.join(" | "));
        };
        let head = |first: &[&str], rest: &[&str]| first.iter().chain(rest).map(|s| s.to_string()).collect::<Vec<_>>();
        let rule = |n: usize| (0..n).map(|i| if i == 0 { "---".into() } else { "--:".to_string() }).collect::<Vec<_>>();
        line(&head(&["trace", "local"], &POLICIES));
        line(&rule(2 + POLICIES.len()));
        for row in &self.rows {
            let mut cells = vec![row.trace.clone(), format!("{} %", row.share)];
            cells.extend(row.misses.iter().map(|m| format!("{:.2}", m * 100.0)));
            line(&cells);
        }
        let mut cells = vec!["over MIN".to_string(), String::new()];
        cells.extend(self.over_bound().iter().map(|r| format!("{r:.2}×")));
        line(&cells);
        let _ = writeln!(out);
        let mut line = |cells: &[String]| {
            let padded: Vec<String> =
                cells.iter().enumerate().map(|(i, c)| pad(c, if i == 0 { 12 } else { 9 })).collect();
            let _ = writeln!(out, "| {} |", padded.join(" | "));
        };
        line(&head(
            &["prefetch", "local"],
            &["faults", "without", "windows", "fetched", "accuracy", "inferred", "coverage"],
        ));
        line(&rule(9));
        for Row { trace, share, ahead, alone, .. } in &self.rows {
            let percent = |part: u64, of: u64| (part * 100).checked_div(of).map_or("-".into(), |p| format!("{p} %"));
            line(&[
                trace.clone(),
                format!("{share} %"),
                (ahead.demand + ahead.rescued).to_string(),
                (alone.demand + alone.rescued).to_string(),
                ahead.tally.windows.to_string(),
                ahead.prefetched.to_string(),
                percent(ahead.useful, ahead.prefetched),
                percent(ahead.tally.used, ahead.tally.issued),
                percent(ahead.useful, ahead.useful + ahead.demand),
            ]);
        }
        out
    }

    /// The same for machines.
    pub fn json(&self) -> Value {
        let row = |r: &Row| {
            let misses: serde_json::Map<String, Value> =
                POLICIES.iter().zip(r.misses).map(|(name, m)| (name.to_string(), json!(m))).collect();
            json!({
                "trace": r.trace, "pages": r.pages, "events": r.accesses, "local_percent": r.share,
                "miss_ratio": misses,
                "faults": r.ahead.demand + r.ahead.rescued, "faults_without_prefetch": r.alone.demand + r.alone.rescued,
                "prefetched": r.ahead.prefetched, "prefetch_useful": r.ahead.useful,
                "prefetch_issued": r.ahead.tally.issued, "prefetch_inferred_used": r.ahead.tally.used,
            })
        };
        json!({ "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}
