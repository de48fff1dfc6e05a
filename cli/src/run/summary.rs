//! The summary of a run: a few lines for people, one object for machines.
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

use super::sites::Sites;
use super::watch::Ending;
use crate::counters::{Counts, Latency, Near, Peaks, Sample};
use crate::settings::Origin;
use crate::units;

/// The kind of report at the end, and its place.
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
    /// Checks, before a run that may take hours, that the summary can be written. A file that
    /// exists keeps its content until the run's end.
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
    /// The origin of `--local`.
    pub local_from: Origin,
    /// Processes of the run that still live.
    pub others: usize,
    /// Where its programs waited, or why that is lost. `None`: it was not asked for.
    pub sites: Option<Result<Sites, String>>,
}

/// The summary for machines, in bytes, nanoseconds and counts. A later version may add names, and
/// keeps these.
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
    near: &'a [Near],
    local_limit: u64,
    local_from: String,
    hit_rate: Option<f64>,
    prefetch_accuracy: Option<f64>,
    prefetch_coverage: Option<f64>,
    demand_latency_ns: Latency,
    /// All faults: the sum of the six kinds in `counts`.
    faults: u64,
    #[serde(flatten)]
    counts: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    sites: Option<&'a Sites>,
}

impl Stats {
    /// Reports how a run went. Output that cannot be written is lost: the program's status matters
    /// more.
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
    let Outcome { ending, elapsed, sample, peaks, local_from, others, sites } = outcome;
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
        near: &sample.near,
        local_limit: sample.local_limit,
        local_from: local_from.to_string(),
        hit_rate: (counts.returns() > 0).then(|| counts.hits() as f64 / counts.returns() as f64),
        prefetch_accuracy: counts.prefetch_accuracy(),
        prefetch_coverage: counts.prefetch_coverage(),
        demand_latency_ns: Latency::of(&sample.latency()),
        faults: counts.faults(),
        counts,
        sites: sites.as_ref().and_then(|sites| sites.as_ref().ok()),
    };
    serde_json::to_string(&report).map(|line| line + "\n").unwrap_or_default()
}

fn text(outcome: &Outcome) -> String {
    let Outcome { ending, elapsed, sample, peaks, local_from, others, sites } = outcome;
    let how = match ending {
        Ending::Exited(0) => String::new(),
        Ending::Exited(status) => format!(", status {status}"),
        Ending::Killed(signal) => format!(", killed by signal {signal}"),
    };
    let elapsed = units::nanos(elapsed.as_nanos() as u64);
    if !sample.processes.iter().any(|process| process.started) {
        return match (outcome.never_ran(), near(sample)) {
            (true, _) => String::new(),
            (false, Some((_, which))) => format!("farmem: {elapsed}{how}; no far memory: {which}\n"),
            (false, None) => format!(
                "farmem: {elapsed}{how}; farmem was in none of its processes: its environment must keep LD_PRELOAD and FARMEM_RUN\n"
            ),
        };
    }
    let mut rows = rows(sample, peaks);
    if *others > 0 {
        rows.push(("background", others.to_string(), "processes of the run go on; see farmem top".to_owned()));
    }
    let value_width = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0);
    let limit = match local_from {
        Origin::Default => "by default, half of what was available".to_owned(),
        from => from.to_string(),
    };
    let mut out = format!("farmem: {elapsed}{how}; {} local ({limit})\n", units::bytes(sample.local_limit));
    for (name, value, more) in rows {
        out += &format!("  {name:<12} {value:>value_width$}   {more}\n");
    }
    match sites {
        None => {}
        Some(Ok(sites)) => out += &sites.text(),
        Some(Err(why)) => out += &format!("farmem: where the program waited is lost: {why}\n"),
    }
    out
}

/// A line of the summary: a name, a figure, and its parts.
type Line = (&'static str, String, String);

/// The lines of every run with far memory. Lines about things that did not happen are left out.
fn rows(sample: &Sample, peaks: &Peaks) -> Vec<Line> {
    let counts = sample.total();
    let mut rows = vec![("faults", units::count(counts.faults()), kinds(&counts))];
    if counts.returns() > 0 {
        let (returns, waited) = (units::count(counts.returns()), units::count(counts.demand));
        let more = format!("of {returns} page returns; {waited} waited for a node");
        rows.push(("hit rate", units::share(counts.hits(), counts.returns()), more));
    }
    if counts.prefetched > 0 {
        let fetches = counts.demand + counts.prefetch_used;
        let (pages, spared) = (units::count(counts.prefetched), units::share(counts.prefetch_used, fetches));
        let more = format!("of {pages} pages fetched ahead were used; they spared {spared} of all fetches");
        rows.push(("prefetch", units::share(counts.prefetch_used, counts.prefetched), more));
    }
    if counts.hinted + counts.paged_out > 0 {
        let more = format!("pages came in ahead, {} left, as the program said", units::count(counts.paged_out));
        rows.push(("hints", units::count(counts.hinted), more));
    }
    if counts.objects_peak > 0 {
        let more = "of local memory had far objects of the program's, at most".to_owned();
        rows.push(("objects", units::bytes(counts.objects_peak), more));
    }
    if counts.evicted > 0 {
        let clean = units::share(counts.evicted_clean, counts.evicted);
        let (came, went) = (units::bytes(counts.bytes_in), units::bytes(counts.bytes_out));
        let more = format!("{came} in, {went} out; {clean} of evicted pages were clean");
        rows.push(("moved", units::bytes(counts.bytes_in + counts.bytes_out), more));
    }
    let fetch = match Latency::of(&sample.latency()) {
        _ if counts.demand == 0 => String::new(),
        Latency { p50, p99, .. } => {
            format!("; a fetch took {} (median), {} (p99)", units::nanos(p50), units::nanos(p99))
        }
    };
    rows.push(("waiting", units::nanos(counts.wait_ns), format!("in faults, all threads{fetch}")));
    let (local, limit) = (units::bytes(peaks.local), units::bytes(sample.local_limit));
    rows.push(("far memory", units::bytes(peaks.far), format!("at its peak; local {local} of {limit}")));
    let beside = "of farmem's own, on top of the local memory of each process";
    rows.push(("runtime", units::bytes(peaks.runtime), beside.to_owned()));
    if let Some((times, which)) = near(sample) {
        rows.push(("near", units::count(times), format!("programs of the run had no far memory: {which}")));
    }
    if counts.nodes_lost > 0 {
        let more = "times a process of the run lost a node and went on";
        rows.push(("nodes lost", units::count(counts.nodes_lost), more.to_owned()));
    }
    if counts.single_bytes > 0 {
        let more = "lacked a copy, or parity, at the end";
        rows.push(("one copy", units::bytes(counts.single_bytes), more.to_owned()));
    }
    if counts.together_bytes > 0 {
        let more = "had both copies in one failure domain at the end";
        rows.push(("one domain", units::bytes(counts.together_bytes), more.to_owned()));
    }
    if counts.syscalls_unknown > 0 {
        let more = "with far pointers, of numbers farmem does not know";
        rows.push(("system calls", units::count(counts.syscalls_unknown), more.to_owned()));
    }
    rows
}

/// The kinds of faults that there were. Together they are all faults.
fn kinds(counts: &Counts) -> String {
    let kinds = [
        (counts.first_touch, "first touches"),
        (counts.demand, "fetches"),
        (counts.rescued, "rescues"),
        (counts.upgrades, "first writes"),
        (counts.joined, "served by another thread"),
        (counts.unmapped, "at addresses without memory"),
    ];
    let there = kinds.into_iter().filter(|&(times, _)| times > 0);
    let said: Vec<String> = there.map(|(times, kind)| format!("{} {kind}", units::count(times))).collect();
    if said.is_empty() { "no far memory was used".to_owned() } else { said.join(", ") }
}

/// Executions of programs that had no far memory, and their names; `None` if there were none.
fn near(sample: &Sample) -> Option<(u64, String)> {
    let named: u64 = sample.near.iter().map(|near| u64::from(near.times)).sum();
    let times = named + sample.near_others;
    let name = |near: &Near| match near.times {
        1 => format!("{} ({})", near.program, near.why),
        times => format!("{} ({}, {times} times)", near.program, near.why),
    };
    let mut names: Vec<String> = sample.near.iter().map(name).collect();
    if sample.near_others > 0 {
        names.push(format!("and {} others", units::count(sample.near_others)));
    }
    (times > 0).then(|| (times, names.join(", ")))
}

impl Outcome {
    /// Whether the program never ran, and the user knows why: the runtime ended it before `main`
    /// and said so, or the loader could not load it and said so.
    pub fn never_ran(&self) -> bool {
        let by_loader = self.sample.processes.is_empty() && matches!(self.ending, Ending::Exited(126 | 127));
        by_loader || !self.sample.last_words.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Process;

    fn outcome() -> Outcome {
        let counts = Counts {
            first_touch: 262_144,
            demand: 812_000,
            rescued: 165_856,
            upgrades: 40_000,
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
            near: vec![Near { program: "hello".into(), why: "static", times: 2 }],
            near_others: 0,
            processes: vec![Process { pid: 2, started: true, by_thread: false, counts, latency }],
        };
        let mut peaks = Peaks::default();
        peaks.note(&sample);
        Outcome {
            ending: Ending::Exited(0),
            elapsed: Duration::from_millis(12_300),
            sample,
            peaks,
            local_from: Origin::Flag("local"),
            others: 0,
            sites: None,
        }
    }

    #[test]
    fn people_get_aligned_lines() {
        let text = text(&outcome());
        let ends: Vec<usize> = text.lines().skip(1).map(|line| line.find("   ").unwrap()).collect();
        assert!(text.starts_with("farmem: 12.3 s; 1.00 GiB local (--local)\n"), "{text}");
        assert_eq!(ends.len(), 8, "{text}");
        assert!(
            text.contains("1.28 M   262 k first touches, 812 k fetches, 166 k rescues, 40.0 k first writes\n"),
            "{text}"
        );
        assert!(text.contains("2   programs of the run had no far memory: hello (static, 2 times)\n"), "{text}");
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
        outcome.sample.near.clear();
        outcome.ending = Ending::Killed(9);
        let text = text(&outcome);
        assert!(text.contains("killed by signal 9; farmem was in none of its processes"), "{text}");
    }

    #[test]
    fn a_program_that_never_started_has_no_summary() {
        let mut outcome = outcome();
        outcome.sample.near.clear();
        outcome.sample.processes[0].started = false;
        outcome.sample.last_words = "no address space for the runtime's tables".into();
        assert_eq!(text(&outcome), "");
        outcome.sample.last_words.clear();
        outcome.sample.processes.clear();
        outcome.ending = Ending::Exited(127);
        assert_eq!(text(&outcome), "", "the loader has said what it lacks");
    }

    #[test]
    fn a_program_that_fits_is_told_of_what_happened_alone() {
        let mut outcome = outcome();
        outcome.sample.near.clear();
        outcome.sample.processes[0].counts = Counts { first_touch: 5, ..Counts::default() };
        let text = text(&outcome);
        let names: Vec<&str> = text.lines().skip(1).map(|line| line[2..14].trim_end()).collect();
        assert_eq!(names, ["faults", "waiting", "far memory", "runtime"], "{text}");
        assert!(!text.contains("fetch"), "{text}");
    }

    #[test]
    fn machines_get_one_object() {
        let text = json(&outcome());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["demand"], 812_000);
        let kinds = ["first_touch", "demand", "rescued", "upgrades", "joined", "unmapped"];
        let sum: u64 = kinds.iter().map(|kind| value[kind].as_u64().unwrap()).sum();
        assert_eq!(value["faults"], sum);
        assert_eq!(value["near"][0]["program"], "hello");
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
