//! What is printed.

use crate::child::{Found, WRITTEN};
use crate::patterns::Pattern;
use farmem_kit::table::{Table, duration};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// One pattern, round by round.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Its name, or its trace's.
    pub name: String,
    /// The system's malloc.
    pub system: Vec<Found>,
    /// farmem's.
    pub farmem: Vec<Found>,
}

impl Row {
    /// Without figures yet.
    pub fn new(pattern: Pattern, trace: Option<&PathBuf>) -> Row {
        let file = trace.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let name = file.map(|file| file.trim_end_matches(".gz").to_owned());
        Row { name: name.unwrap_or_else(|| self::name(pattern)), system: Vec::new(), farmem: Vec::new() }
    }
}

/// As on the command line.
pub fn name(pattern: Pattern) -> String {
    use clap::ValueEnum;
    pattern.to_possible_value().map_or(String::new(), |known| known.get_name().to_owned())
}

/// All figures.
#[derive(Debug, Serialize)]
pub struct Report {
    threads: usize,
    /// A chunk of 4 KiB granted ahead, median and 99th percentile in ns.
    chunk_ahead_ns: [u64; 2],
    /// A chunk asked for when it is wanted: a round trip to the agent.
    chunk_asked_ns: [u64; 2],
    /// One granted ahead, and 4 KiB written to it: by a copy, or over the network.
    chunk_written_ns: [u64; 2],
    /// Where the memory is, if it is not mapped.
    node: Option<String>,
    /// Words to the agent for a thousand chunks.
    chunk_words_per_1000: f64,
    rows: Vec<Row>,
}

impl Report {
    /// From the parts' figures.
    pub fn new(threads: usize, node: Option<String>, rows: Vec<Row>, chunks: &[Found]) -> Report {
        let of = |figure: fn(&Found) -> u64| median(chunks.iter().map(|found| figure(found) as f64)) as u64;
        // Asking takes a word each, 4000 of them.
        let had = |found: &Found| (found.calls / 2 + WRITTEN).max(1) as f64;
        let words = |found: &Found| found.words.saturating_sub(4000) as f64 * 1000.0 / had(found);
        Report {
            threads,
            chunk_ahead_ns: [of(|f| f.alloc_p50_ns), of(|f| f.alloc_p99_ns)],
            chunk_asked_ns: [of(|f| f.free_p50_ns), of(|f| f.free_p99_ns)],
            chunk_written_ns: [of(|f| f.written_p50_ns), of(|f| f.written_p99_ns)],
            node,
            chunk_words_per_1000: median(chunks.iter().map(words)),
            rows,
        }
    }

    /// The same for machines.
    ///
    /// # Errors
    /// None that a report could cause.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// The middle one; of two, the greater.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.threads == 1 { "" } else { "s" };
        writeln!(f, "{} thread{s}; medians of the rounds", self.threads)?;
        if let Some(node) = &self.node {
            writeln!(f, "farmem's objects are at {node}: written and looked at by verbs, which calls/s has in it")?;
        }
        writeln!(f)?;
        let mut table = Table::new([
            "pattern",
            "allocator",
            "calls/s",
            "alloc p50",
            "p99",
            "free p50",
            "p99",
            "asked",
            "taken/asked",
            "waits",
        ]);
        for row in &self.rows {
            for (allocator, found) in [("malloc", &row.system), ("farmem", &row.farmem)] {
                let of = |figure: fn(&Found) -> f64| median(found.iter().map(figure));
                let time = |figure: fn(&Found) -> f64| duration(of(figure));
                table.row([
                    if allocator == "malloc" { row.name.clone() } else { String::new() },
                    allocator.to_owned(),
                    format!("{:.2} M", of(|f| f.calls_per_s) / 1e6),
                    time(|f| f.alloc_p50_ns as f64),
                    time(|f| f.alloc_p99_ns as f64),
                    time(|f| f.free_p50_ns as f64),
                    time(|f| f.free_p99_ns as f64),
                    format!("{:.1} MiB", of(|f| f.asked as f64) / (1 << 20) as f64),
                    format!("{:.2}", of(|f| f.taken as f64 / f.asked.max(1) as f64)),
                    if allocator == "malloc" { String::new() } else { format!("{:.0}", of(|f| f.waits as f64)) },
                ]);
            }
        }
        write!(f, "{table}")?;
        let [ahead, ahead_p99] = self.chunk_ahead_ns.map(|ns| duration(ns as f64));
        let [written, written_p99] = self.chunk_written_ns.map(|ns| duration(ns as f64));
        let [asked, asked_p99] = self.chunk_asked_ns.map(|ns| duration(ns as f64));
        writeln!(
            f,
            "\na chunk of 4 KiB, granted ahead: {ahead} (p99 {ahead_p99}), {:.1} words to the agent for 1000",
            self.chunk_words_per_1000
        )?;
        writeln!(f, "the same, and 4 KiB written to it: {written} (p99 {written_p99})")?;
        writeln!(f, "the same, asked for when wanted: {asked} (p99 {asked_p99}), a futex round trip to the agent")
    }
}
