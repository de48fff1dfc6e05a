//! The data on the screen: one look at the files of runs, nodes, agents and stores, and the rates
//! between two looks.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use farmem_protocol::wire::text::printable;
use farmem_swap::report::{Look, Moved};
use serde::Serialize;

use crate::counters::{Counts, Latency, Sample};
use crate::kv::status::Status as KvStatus;
use crate::leftovers;
use crate::node::Status;
use crate::runtime_dir;

/// A run as it is now, with rates since the look before. Bytes, ns, per second.
#[derive(Clone, Serialize)]
pub struct Run {
    /// Its name, hexadecimal.
    pub run: String,
    /// Pid of its supervisor.
    pub supervisor: u32,
    /// Its living and ended processes.
    pub processes: usize,
    /// The program's command line.
    pub program: String,
    /// Its nodes.
    pub nodes: String,
    /// Since its start, s.
    pub age_s: f64,
    /// Resident far bytes.
    pub local: u64,
    /// `--local`.
    pub local_limit: u64,
    /// Bytes in far slots.
    pub far: u64,
    /// … of which one copy is left, where two were asked for.
    pub single: u64,
    /// Bytes of which both copies are in one failure domain.
    pub together: u64,
    /// Bytes a second that repair copies.
    pub repair_per_s: f64,
    /// Processes whose repair is slowed down because their fetches take longer.
    pub repair_slowed: u64,
    /// Times one of its processes lost a node and went on.
    pub nodes_lost: u64,
    /// Far memory mapped.
    pub mapped: u64,
    /// The memory of farmem itself in the run's processes.
    pub runtime: u64,
    /// Faults a second.
    pub faults_per_s: f64,
    /// Returns that waited for no node, 0–1, since the look before, or over the run if nothing
    /// returned.
    pub hit_rate: Option<f64>,
    /// Pages fetched ahead that were worth it, 0–1, over the same time.
    pub prefetch_accuracy: Option<f64>,
    /// Fetches that prefetch spared, 0–1, over the same time.
    pub prefetch_coverage: Option<f64>,
    /// Bytes a second from the nodes.
    pub in_per_s: f64,
    /// Bytes a second to the nodes.
    pub out_per_s: f64,
    /// Threads waiting in faults, on average.
    pub waiting: f64,
    /// Fetches since the look before, or over the run if there was none.
    pub fetch_latency_ns: Latency,
    /// Whether a handler thread serves faults.
    pub by_thread: bool,
}

/// A node of this machine, with rates since the look before.
#[derive(Clone, Serialize)]
pub struct Node {
    /// Its own status.
    #[serde(flatten)]
    pub status: Status,
    /// Bytes a second that it sent.
    pub read_per_s: f64,
    /// Bytes a second that it received.
    pub written_per_s: f64,
}

/// A front end of a store on this machine, with rates since the look before.
#[derive(Clone, Serialize)]
pub struct Store {
    /// Its own status.
    #[serde(flatten)]
    pub status: KvStatus,
    /// Commands a second.
    pub commands_per_s: f64,
    /// Reads that found their key, 0–1, since the look before, or since its start if nothing was
    /// read.
    pub hit_rate: Option<f64>,
    /// Verbs for each command, over the same time.
    pub verbs_per_command: Option<f64>,
}

/// A swap device of this machine on a node, with rates since the look before.
#[derive(Clone, Serialize)]
pub struct Swap {
    /// Its path.
    pub device: String,
    /// Its node.
    pub node: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that the kernel has there.
    pub used: u64,
    /// Bytes of pages that take memory at the node, as it last said.
    pub live: u64,
    /// Bytes that the node holds for it, as it last said.
    pub held: u64,
    /// Pages swapped in, a second.
    pub in_per_s: f64,
    /// Pages swapped out, a second.
    pub out_per_s: f64,
    /// Mean time of a read since the look before, ns; `None`: there was none.
    pub read_ns: Option<u64>,
}

/// An agent of this machine.
pub use crate::agent::report::Agent;

/// Everything on this machine at one moment.
#[derive(Clone, Default, Serialize)]
pub struct View {
    /// Runs, in no order.
    pub runs: Vec<Run>,
    /// Nodes, in no order.
    pub nodes: Vec<Node>,
    /// Agents, in no order.
    pub agents: Vec<Agent>,
    /// Front ends of stores, in no order.
    pub stores: Vec<Store>,
    /// Swap devices on nodes, by their number; only root sees any.
    pub swaps: Vec<Swap>,
    /// Directories of other users with more files than are read.
    pub crowded: usize,
}

/// Files of runs, nodes and stores that one look reads in another user's directory, at most: root looks
/// at all users', and what one of them leaves there must not hold it up.
const FILES: usize = 256;
/// Names of such a directory that it looks at, at most.
const NAMES: usize = 4096;

/// Looks again and again; remembers the last look.
#[derive(Default)]
pub struct Gatherer {
    runs: HashMap<PathBuf, (Instant, Counts, [u64; 160])>,
    nodes: HashMap<PathBuf, (Instant, Status)>,
    stores: HashMap<PathBuf, (Instant, KvStatus)>,
    swaps: HashMap<PathBuf, (Instant, Moved)>,
}

impl Gatherer {
    /// Looks at every run, node, agent and store that this user may see. Rates are zero at a run's
    /// first look.
    pub fn look(&mut self) -> View {
        self.look_into(runtime_dir::visible())
    }

    fn look_into(&mut self, dirs: Vec<PathBuf>) -> View {
        let mut view = View::default();
        let mut runs = HashMap::new();
        let mut nodes = HashMap::new();
        let mut stores = HashMap::new();
        for dir in dirs {
            leftovers::sweep(&dir);
            view.agents.extend(Agent::living(&dir));
            let (names, mut files) = if runtime_dir::is_own(&dir) { (usize::MAX, usize::MAX) } else { (NAMES, FILES) };
            let (mut entries, mut crowded) = (fs::read_dir(&dir).into_iter().flatten().flatten(), false);
            for entry in entries.by_ref().take(names) {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                if ![".counters", ".json"].iter().any(|end| name.ends_with(end)) {
                    continue;
                }
                if files == 0 {
                    crowded = true;
                    break;
                }
                files -= 1;
                let now = Instant::now();
                if let Some(run) = name.strip_prefix("run-").and_then(|name| name.strip_suffix(".counters")) {
                    if let Ok(sample) = Sample::read(&path) {
                        let before = self.runs.get(&path);
                        view.runs.push(as_run(
                            &printable(run),
                            &sample,
                            before.map(|(at, counts, latency)| (now - *at, counts, latency)),
                        ));
                        runs.insert(path, (now, sample.total(), sample.latency()));
                    }
                } else if name.starts_with("node-")
                    && name.ends_with(".json")
                    && let Some(status) = Status::read_living(&path)
                {
                    let before = self.nodes.get(&path);
                    view.nodes.push(as_node(&status, before.map(|(at, status)| (now - *at, status))));
                    nodes.insert(path, (now, status));
                } else if name.starts_with("kv-")
                    && name.ends_with(".json")
                    && let Some(status) = KvStatus::read_living(&path)
                {
                    let before = self.stores.get(&path);
                    view.stores.push(as_store(&status, before.map(|(at, status)| (now - *at, status))));
                    stores.insert(path, (now, status));
                }
            }
            view.crowded += usize::from(crowded || entries.next().is_some());
        }
        (self.runs, self.nodes, self.stores) = (runs, nodes, stores);
        let now = Instant::now();
        let looks = farmem_swap::report::looks();
        let before = |look: &Look| self.swaps.get(&look.device).map(|(at, moved)| (now - *at, *moved));
        view.swaps = looks.iter().map(|look| as_swap(look, before(look))).collect();
        self.swaps = looks.into_iter().map(|look| (look.device, (now, look.moved))).collect();
        view
    }
}

/// A run, from what its counters say now and said before.
pub fn as_run(name: &str, sample: &Sample, before: Option<(Duration, &Counts, &[u64; 160])>) -> Run {
    let total = sample.total();
    let latency = sample.latency();
    let zero = (Duration::from_secs(1), &total, &latency);
    let (time, earlier, earlier_latency) = before.unwrap_or(zero);
    let since = total.since(earlier);
    let latency_since: [u64; 160] = std::array::from_fn(|i| latency[i].saturating_sub(earlier_latency[i]));
    let seconds = time.as_secs_f64().max(0.001);
    // A quiet interval says nothing about the run: then the whole run speaks.
    let rated = if since.returns() > 0 { &since } else { &total };
    let fetches = if latency_since.iter().any(|&n| n > 0) { &latency_since } else { &latency };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Run {
        run: name.to_owned(),
        supervisor: sample.supervisor,
        processes: sample.processes.len(),
        program: sample.command.clone(),
        nodes: sample.nodes.clone(),
        age_s: now.as_secs_f64() - sample.started_ns as f64 / 1e9,
        local: total.local_bytes,
        local_limit: sample.local_limit,
        far: total.far_bytes,
        single: total.single_bytes,
        together: total.together_bytes,
        repair_per_s: since.repaired_bytes as f64 / seconds,
        repair_slowed: total.repair_slowed,
        nodes_lost: total.nodes_lost,
        mapped: total.mapped_bytes,
        runtime: total.runtime_bytes,
        faults_per_s: since.faults() as f64 / seconds,
        hit_rate: (rated.returns() > 0).then(|| rated.hits() as f64 / rated.returns() as f64),
        prefetch_accuracy: rated.prefetch_accuracy(),
        prefetch_coverage: rated.prefetch_coverage(),
        in_per_s: since.bytes_in as f64 / seconds,
        out_per_s: since.bytes_out as f64 / seconds,
        waiting: since.wait_ns as f64 / 1e9 / seconds,
        fetch_latency_ns: Latency::of(fetches),
        by_thread: sample.processes.iter().any(|process| process.by_thread),
    }
}

fn as_node(status: &Status, before: Option<(Duration, &Status)>) -> Node {
    let rate = |of: fn(&Status) -> u64| match before {
        Some((time, earlier)) => of(status).saturating_sub(of(earlier)) as f64 / time.as_secs_f64().max(0.001),
        None => 0.0,
    };
    Node { status: status.clone(), read_per_s: rate(|s| s.bytes_read), written_per_s: rate(|s| s.bytes_written) }
}

fn as_store(status: &KvStatus, before: Option<(Duration, &KvStatus)>) -> Store {
    let none = KvStatus::default();
    let (time, earlier) = before.unwrap_or((Duration::from_secs(1), status));
    let since = |of: fn(&KvStatus) -> u64, earlier: &KvStatus| of(status).saturating_sub(of(earlier)) as f64;
    // A quiet interval says nothing: then all since the start speaks.
    let rated = |of: fn(&KvStatus) -> u64| if since(of, earlier) > 0.0 { earlier } else { &none };
    let share = |part: fn(&KvStatus) -> u64, whole: fn(&KvStatus) -> u64| {
        let from = rated(whole);
        Some(since(whole, from)).filter(|&whole| whole > 0.0).map(|whole| since(part, from) / whole)
    };
    Store {
        status: status.clone(),
        commands_per_s: since(|s| s.commands, earlier) / time.as_secs_f64().max(0.001),
        hit_rate: share(|s| s.hits, |s| s.hits + s.misses),
        verbs_per_command: share(|s| s.verbs, |s| s.commands),
    }
}

fn as_swap(look: &Look, before: Option<(Duration, Moved)>) -> Swap {
    const PAGE: f64 = 4096.0;
    let (time, earlier) = before.unwrap_or((Duration::from_secs(1), look.moved));
    let since = |of: fn(&Moved) -> u64| of(&look.moved).saturating_sub(of(&earlier));
    let pages = |bytes: u64| bytes as f64 / PAGE / time.as_secs_f64().max(0.001);
    let reads = since(|moved| moved.reads);
    Swap {
        device: look.device.display().to_string(),
        node: look.node.clone(),
        size: look.size,
        used: look.used,
        live: look.said.live,
        held: look.said.held,
        in_per_s: pages(since(|moved| moved.bytes_in)),
        out_per_s: pages(since(|moved| moved.bytes_out)),
        read_ns: (reads > 0).then(|| since(|moved| moved.read_ms) * 1_000_000 / reads),
    }
}

/// The last component of a program's path and its arguments, in at most `width` characters.
pub fn short_program(program: &str, width: usize) -> String {
    let (path, arguments) = program.split_once(' ').unwrap_or((program, ""));
    let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
    let full = format!("{name} {arguments}");
    let full = full.trim_end();
    if full.chars().count() <= width {
        return full.to_owned();
    }
    let kept: String = full.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_cut_at_their_width() {
        assert_eq!(short_program("/usr/bin/sort -S 1G big.txt", 40), "sort -S 1G big.txt");
        assert_eq!(short_program("/usr/bin/sort -S 1G big.txt", 8), "sort -S…");
        assert_eq!(short_program("", 8), "");
    }

    #[test]
    fn rates_are_of_the_interval_and_shares_of_the_run_when_it_was_quiet() {
        let counts = Counts { joined: 300, demand: 100, rescued: 100, bytes_in: 4096, ..Counts::default() };
        let process = crate::counters::Process { pid: 1, started: true, by_thread: false, counts, latency: [0; 160] };
        let sample = Sample {
            supervisor: 1,
            started_ns: 0,
            local_limit: 0,
            command: String::new(),
            nodes: String::new(),
            last_words: String::new(),
            near: Vec::new(),
            near_others: 0,
            processes: vec![process],
        };
        let earlier = Counts { joined: 100, ..counts };
        let run = as_run("x", &sample, Some((Duration::from_secs(2), &earlier, &[0; 160])));
        assert_eq!((run.faults_per_s, run.in_per_s, run.hit_rate), (100.0, 0.0, Some(0.5)));
        let first = as_run("x", &sample, None);
        assert_eq!(first.faults_per_s, 0.0);
    }

    /// Root looks at directories that others fill.
    #[test]
    fn a_look_at_anothers_directory_has_an_end() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("farmem-crowd-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let began = farmem_sys::process::began(std::process::id());
        let status = Status { pid: std::process::id(), began, ..Status::default() };
        let text = serde_json::to_string(&status).unwrap();
        for number in 0..FILES + 9 {
            fs::write(dir.join(format!("node-{number}.json")), &text).unwrap();
        }
        let look = |mode: u32| {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            let view = Gatherer::default().look_into(vec![dir.clone()]);
            (view.nodes.len(), view.crowded)
        };
        assert_eq!((look(0o777), look(0o700)), ((FILES, 1), (FILES + 9, 0)));
        for number in 0..FILES + 9 {
            fs::rename(dir.join(format!("node-{number}.json")), dir.join(format!("{number}.json.mine"))).unwrap();
        }
        assert_eq!(look(0o777), (0, 0));
        for number in 0..NAMES {
            fs::File::create(dir.join(format!("{number}"))).unwrap();
        }
        assert_eq!((look(0o777), look(0o700)), ((0, 1), (0, 0)));
        // A name draws nothing.
        let counters = dir.join("run-a\u{9b}2J.counters");
        let beginning =
            crate::counters::Beginning { supervisor: 1, started_ns: 0, local_limit: 0, command: "", nodes: "" };
        crate::counters::create(&counters, &beginning).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let runs = Gatherer::default().look_into(vec![dir.clone()]).runs;
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(runs.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), ["a?2J"]);
    }

    #[test]
    fn a_stores_rates_are_of_the_interval_and_shares_of_its_life_when_it_was_quiet() {
        let earlier = KvStatus { commands: 100, hits: 50, misses: 50, verbs: 300, ..KvStatus::default() };
        let now = KvStatus { commands: 300, hits: 230, misses: 70, verbs: 500, ..KvStatus::default() };
        let store = as_store(&now, Some((Duration::from_secs(2), &earlier)));
        assert_eq!((store.commands_per_s, store.hit_rate, store.verbs_per_command), (100.0, Some(0.9), Some(1.0)));
        let quiet = as_store(&now, Some((Duration::from_secs(2), &now)));
        assert_eq!((quiet.commands_per_s, quiet.hit_rate), (0.0, Some(230.0 / 300.0)));
        let new = as_store(&KvStatus::default(), None);
        assert_eq!((new.commands_per_s, new.hit_rate, new.verbs_per_command), (0.0, None, None));
    }

    #[test]
    fn a_swap_devices_rates_are_of_the_interval() {
        let moved = Moved { reads: 30, bytes_in: 40 * 4096, read_ms: 9, bytes_out: 8 * 4096 };
        let look = Look {
            device: "/dev/nbd0".into(),
            node: "bighost:7411".into(),
            size: 1 << 30,
            used: 1 << 20,
            said: farmem_swap::report::Said { live: 5, held: 7 },
            moved,
        };
        let earlier = Moved { reads: 10, bytes_in: 20 * 4096, read_ms: 4, bytes_out: 8 * 4096 };
        let swap = as_swap(&look, Some((Duration::from_secs(2), earlier)));
        assert_eq!((swap.in_per_s, swap.out_per_s, swap.read_ns), (10.0, 0.0, Some(250_000)));
        let first = as_swap(&look, None);
        assert_eq!((first.in_per_s, first.read_ns), (0.0, None));
    }
}
