//! What a run tells when it is over: a few lines for people, one object for machines.
//!
//! **Hit rate.** User space sees only faults: an access to a page that is local
//! costs nothing and is not counted anywhere. So the rate is of *returns*, the
//! times that the program came back to a page that had left (or might have):
//!
//! ```text
//!                rescued + prefetch_used              waited for no node
//! hit rate = -------------------------------  =  ---------------------------
//!            demand + rescued + prefetch_used            all returns
//! ```
//!
//! First touches of fresh memory are no returns. A program whose memory fits in
//! `--local` has no returns, and no hit rate.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::watch::Ending;
use crate::counters::{Counts, Latency, Peaks, Sample};
use crate::units;

/// What to tell at the end, and where.
#[derive(Clone, Debug, PartialEq)]
pub enum Stats {
    /// Nothing.
    None,
    /// A few lines on standard error.
    Text,
    /// One JSON object on standard error.
    Json,
    /// One JSON object in a file.
    JsonFile(PathBuf),
}

impl FromStr for Stats {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, &'static str> {
        match (text, text.strip_prefix("json:")) {
            ("none", _) => Ok(Stats::None),
            ("text", _) => Ok(Stats::Text),
            ("json", _) => Ok(Stats::Json),
            (_, Some(file)) if !file.is_empty() => Ok(Stats::JsonFile(file.into())),
            _ => Err("write text, json, json:FILE or none"),
        }
    }
}

impl Stats {
    /// Sees to it that the summary can be written where it is wanted, before a run that may take hours.
    /// A file that is there keeps its content until the end.
    pub fn prepare(&self) -> Result<(), String> {
        let Stats::JsonFile(file) = self else { return Ok(()) };
        let opened = fs::OpenOptions::new().create(true).truncate(false).write(true).open(file);
        opened.map(drop).map_err(|e| format!("--stats: cannot write {}: {e}", file.display()))
    }
}

/// How a run went.
pub struct Outcome {
    /// How the program ended.
    pub ending: Ending,
    /// From its start to its end.
    pub elapsed: Duration,
    /// The counters at the end.
    pub sample: Sample,
    /// The most memory held at once.
    pub peaks: Peaks,
    /// Processes of the run that still live.
    pub others: usize,
}

/// The machine form. Bytes, nanoseconds, counts; additions keep the names.
#[derive(Serialize)]
struct Report<'a> {
    program: &'a str,
    status: Option<i32>,
    signal: Option<i32>,
    last_words: &'a str,
    elapsed_ns: u64,
    processes: usize,
    background_processes: usize,
    nodes: &'a str,
    local_limit: u64,
    hit_rate: Option<f64>,
    prefetch_accuracy: Option<f64>,
    prefetch_coverage: Option<f64>,
    demand_latency_ns: Latency,
    #[serde(flatten)]
    counts: Counts,
}

impl Stats {
    /// Tells how a run went. What cannot be written is lost: the program's status matters more.
    pub fn tell(&self, outcome: &Outcome) {
        let said = match self {
            Stats::None => Ok(()),
            Stats::Text => std::io::stderr().write_all(text(outcome).as_bytes()),
            Stats::Json => std::io::stderr().write_all(json(outcome).as_bytes()),
            Stats::JsonFile(file) => fs::write(file, json(outcome)),
        };
        if let (Err(e), Stats::JsonFile(file)) = (said, self) {
            let _ = writeln!(std::io::stderr(), "farmem: cannot write {}: {e}", file.display());
        }
    }
}

fn json(outcome: &Outcome) -> String {
    let Outcome { ending, elapsed, sample, peaks, others } = outcome;
    let mut counts = sample.total();
    // One name, one meaning: the run's peaks, not the sums of its processes'.
    (counts.local_peak, counts.far_peak) = (peaks.local, peaks.far);
    let report = Report {
        program: &sample.command,
        status: if let Ending::Exited(status) = ending { Some(*status) } else { None },
        signal: if let Ending::Killed(signal) = ending { Some(*signal) } else { None },
        last_words: &sample.last_words,
        elapsed_ns: elapsed.as_nanos() as u64,
        processes: sample.processes.len(),
        background_processes: *others,
        nodes: &sample.nodes,
        local_limit: sample.local_limit,
        hit_rate: (counts.returns() > 0).then(|| counts.hits() as f64 / counts.returns() as f64),
        prefetch_accuracy: counts.prefetch_accuracy(),
        prefetch_coverage: counts.prefetch_coverage(),
        demand_latency_ns: Latency::of(&sample.latency()),
        counts,
    };
    serde_json::to_string(&report).map(|line| line + "\n").unwrap_or_default()
}

fn text(outcome: &Outcome) -> String {
    let Outcome { ending, elapsed, sample, peaks, others } = outcome;
    let how = match ending {
        Ending::Exited(0) => String::new(),
        Ending::Exited(status) => format!(", status {status}"),
        Ending::Killed(signal) => format!(", killed by signal {signal}"),
    };
    let elapsed = units::nanos(elapsed.as_nanos() as u64);
    if sample.processes.is_empty() {
        return format!(
            "farmem: {elapsed}{how}; farmem was in none of its processes: its environment must keep LD_PRELOAD and FARMEM_RUN\n"
        );
    }
    let counts = sample.total();
    let latency = Latency::of(&sample.latency());
    let returned = match counts.returns() {
        0 => "no page left and came back".to_owned(),
        returns => {
            format!("of {} page returns; {} waited for a node", units::count(returns), units::count(counts.demand))
        }
    };
    let mut rows = vec![
        (
            "faults",
            units::count(counts.faults),
            format!(
                "{} first touches, {} fetches, {} rescues",
                units::count(counts.first_touch),
                units::count(counts.demand),
                units::count(counts.rescued)
            ),
        ),
        ("hit rate", units::share(counts.hits(), counts.returns()), returned),
        (
            "prefetch",
            units::share(counts.prefetch_used, counts.prefetched),
            format!(
                "of {} pages fetched ahead were used; they spared {} of all fetches",
                units::count(counts.prefetched),
                units::share(counts.prefetch_used, counts.demand + counts.prefetch_used)
            ),
        ),
        (
            "moved",
            units::bytes(counts.bytes_in + counts.bytes_out),
            format!(
                "{} in, {} out; {} of evicted pages were clean",
                units::bytes(counts.bytes_in),
                units::bytes(counts.bytes_out),
                units::share(counts.evicted_clean, counts.evicted)
            ),
        ),
        (
            "waiting",
            units::nanos(counts.wait_ns),
            format!(
                "in faults, all threads; a fetch took {} (median), {} (p99)",
                units::nanos(latency.p50),
                units::nanos(latency.p99)
            ),
        ),
        (
            "far memory",
            units::bytes(peaks.far),
            format!("at its peak; local {} of {}", units::bytes(peaks.local), units::bytes(sample.local_limit)),
        ),
        (
            "runtime",
            units::bytes(peaks.runtime),
            "of farmem's own, on top of the local memory of each process".to_owned(),
        ),
    ];
    if *others > 0 {
        rows.push(("background", others.to_string(), "processes of the run go on; see farmem top".to_owned()));
    }
    if counts.syscalls_unknown > 0 {
        rows.push((
            "system calls",
            units::count(counts.syscalls_unknown),
            "with far pointers, of numbers farmem does not know".to_owned(),
        ));
    }
    let value_width = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0);
    let mut out = format!("farmem: {elapsed}{how}\n");
    for (name, value, more) in rows {
        out += &format!("  {name:<12} {value:>value_width$}   {more}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Process;

    fn outcome() -> Outcome {
        let counts = Counts {
            faults: 1_240_000,
            first_touch: 262_144,
            demand: 812_000,
            rescued: 165_856,
            prefetched: 500_000,
            prefetch_used: 450_000,
            evicted: 900_000,
            evicted_clean: 300_000,
            bytes_in: 5 << 30,
            bytes_out: 3 << 29,
            wait_ns: 4_200_000_000,
            far_peak: 3 << 30,
            local_peak: 1 << 30,
            runtime_bytes: 9 << 20,
            ..Counts::default()
        };
        let mut latency = [0; 160];
        latency[40] = 100;
        let sample = Sample {
            supervisor: 1,
            started_ns: 0,
            local_limit: 1 << 30,
            command: "sort big.txt".into(),
            nodes: "bighost:7411".into(),
            last_words: String::new(),
            processes: vec![Process { pid: 2, by_thread: false, counts, latency }],
        };
        let mut peaks = Peaks::default();
        peaks.note(&sample);
        Outcome { ending: Ending::Exited(0), elapsed: Duration::from_millis(12_300), sample, peaks, others: 0 }
    }

    #[test]
    fn people_get_aligned_lines() {
        let text = text(&outcome());
        let ends: Vec<usize> = text.lines().skip(1).map(|line| line.find("   ").unwrap()).collect();
        assert!(text.starts_with("farmem: 12.3 s\n"), "{text}");
        assert_eq!(ends.len(), 7, "{text}");
        assert!(text.contains("43 %   of 1.43 M page returns; 812 k waited for a node"), "{text}");
        assert!(text.contains("9.00 MiB   of farmem's own"), "{text}");
        assert!(
            text.contains("90 %   of 500 k pages fetched ahead were used; they spared 36 % of all fetches"),
            "{text}"
        );
        assert!(text.contains("3.00 GiB   at its peak; local 1.00 GiB of 1.00 GiB"), "{text}");
    }

    #[test]
    fn a_run_without_farmem_says_so() {
        let mut outcome = outcome();
        outcome.sample.processes.clear();
        outcome.ending = Ending::Killed(9);
        let text = text(&outcome);
        assert!(text.contains("killed by signal 9; farmem was in none of its processes"), "{text}");
    }

    #[test]
    fn machines_get_one_object() {
        let text = json(&outcome());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["demand"], 812_000);
        assert_eq!(value["far_peak"], 3u64 << 30);
        assert_eq!(value["status"], 0);
        assert!(value["signal"].is_null());
        assert!((value["hit_rate"].as_f64().unwrap() - 0.431).abs() < 0.001);
        assert_eq!(value["prefetch_accuracy"], 0.9);
        assert!((value["prefetch_coverage"].as_f64().unwrap() - 0.357).abs() < 0.001);
        assert_eq!(text.matches("\"far_peak\"").count(), 1);
    }

    #[test]
    fn forms_are_read() {
        assert_eq!("json:a b".parse(), Ok(Stats::JsonFile("a b".into())));
        assert_eq!("none".parse(), Ok(Stats::None));
        for bad in ["json:", "yaml", ""] {
            assert!(bad.parse::<Stats>().is_err());
        }
    }
}
