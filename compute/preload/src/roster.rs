//! The nodes of a run that change while it goes on.
//!
//! The supervisor writes the list into the run's file of counters ([`File::roster`]), as addresses
//! that need no resolver, with their failure domains. The background thread of each process reads
//! it four times a second. It joins new nodes, one after the other, and takes out nodes that have
//! left the list. A program that the run starts later begins with the list of that moment.
//!
//! This runs beside the program, so it takes no lock of the program's, and calls nothing of libc
//! that could take one.

use crate::process;
use farmem_fabric::{ConnectOptions, RunNode, Session};
use farmem_pager::ending::say;
use farmem_pager::{House, NotJoined};
use farmem_pool::Protect;
use farmem_run::RunSpec;
use farmem_run::counters::File;
use farmem_sys::raw::{getpid, now_ns};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a node that joins may take to answer: the background thread does nothing else
/// meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How this process joins a node.
static JOIN: OnceLock<(ConnectOptions, Option<u64>)> = OnceLock::new();
/// The change that has been seen to, and the one whose failure was told.
static SEEN: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);

/// The nodes that the run began with, where one that was lost is to join again.
static PROTECTED: OnceLock<String> = OnceLock::new();
/// When nodes that were lost are looked for next, and how long after that.
static SEEK_AT_NS: AtomicU64 = AtomicU64::new(0);
static SEEK_NS: AtomicU64 = AtomicU64::new(SOON_NS);
static SOUGHT: AtomicUsize = AtomicUsize::new(0);

/// Between looks for a node that was lost: at first, and at most. A node that comes and goes costs
/// a place in the table of nodes each time.
const SOON_NS: u64 = 1_000_000_000;
const LATE_NS: u64 = 60_000_000_000;
/// How often a node is joined anew at once because the program forked meanwhile.
const FORKED: u32 = 3;
/// How long such a node may take to answer.
const SEEK_WITHIN: Duration = Duration::from_millis(300);

/// Keeps what joining takes. The nodes to begin with, if they have changed since the run began.
pub fn begin(run: &RunSpec, join: &ConnectOptions, file: Option<&File>) -> Option<Vec<RunNode>> {
    let options = ConnectOptions { timeout: ANSWER_WITHIN, ..join.clone() };
    let _ = JOIN.set((options, run.shape));
    if run.protect != Protect::None {
        let nodes: Vec<String> = run.nodes.iter().map(RunNode::to_string).collect();
        let _ = PROTECTED.set(nodes.join(","));
    }
    let (change, nodes) = file.filter(|_| run.changes)?.roster(0)?;
    SEEN.store(change, Ordering::Relaxed);
    Some(entries(&nodes).filter_map(|node| node.parse().ok()).collect())
}

/// The nodes of a list, each as [`RunNode`] reads it.
fn entries(nodes: &str) -> impl Iterator<Item = &str> {
    nodes.split(',').filter(|node| !node.is_empty())
}

/// A node's address alone, by which the pager knows it.
fn address(node: &str) -> &str {
    RunNode::split(node).0
}

/// Carries out a change of the nodes, if there is one. The next look tries failed parts again.
pub fn look(house: &House) {
    seek(house);
    let Some((change, nodes)) = process::run_file().and_then(|file| file.roster(SEEN.load(Ordering::Relaxed))) else {
        return;
    };
    for node in entries(&nodes).filter(|node| !house.has_node(address(node))) {
        if let Err(why) = join(house, node, ANSWER_WITHIN) {
            if TOLD.swap(change, Ordering::Relaxed) != change {
                say(&format!("{why}; tried again until it joins or is taken from the list"));
            }
            return;
        }
    }
    for joined in house.nodes_in() {
        if !entries(&nodes).any(|node| address(node) == joined) {
            house.take_out(&joined);
        }
    }
    SEEN.store(change, Ordering::Relaxed);
}

/// A node that the run has lost joins again when it is back, without what it had.
fn seek(house: &House) {
    let Some(first) = PROTECTED.get() else { return };
    let now = now_ns();
    if now < SEEK_AT_NS.load(Ordering::Relaxed) {
        return;
    }
    let listed = process::run_file().and_then(|file| file.roster(0)).map(|(_, nodes)| nodes);
    let nodes = listed.as_ref().unwrap_or(first);
    let lost: Vec<&str> = entries(nodes).filter(|node| house.has_lost(address(node))).collect();
    // Of several, each in its turn.
    let Some(lost) = lost.get(SOUGHT.fetch_add(1, Ordering::Relaxed) % lost.len().max(1)) else { return };
    let wait = SEEK_NS.load(Ordering::Relaxed);
    SEEK_NS.store((2 * wait).min(LATE_NS), Ordering::Relaxed);
    if join(house, lost, SEEK_WITHIN).is_ok() {
        say(&format!("memory node {} is back, and used again", address(lost)));
    }
    SEEK_AT_NS.store(now_ns() + wait, Ordering::Relaxed);
}

fn join(house: &House, node: &str, within: Duration) -> Result<(), String> {
    let RunNode { at, domain } = node.parse::<RunNode>().map_err(|e| e.to_string())?;
    let Some((options, shape)) = JOIN.get() else { return Ok(()) };
    let options = ConnectOptions { pid: getpid(), timeout: within, ..options.clone() };
    let mut tries = FORKED;
    loop {
        let forks = house.forks();
        let session = Session::connect_at_rate(&at, &options, *shape).map_err(|e| e.to_string())?;
        match house.add_node(session.in_domain(domain), forks) {
            Err(NotJoined::Forked) if tries > 0 => tries -= 1,
            joined => return joined.map_err(|e| format!("node {at}: cannot join: {e}")),
        }
    }
}
