//! One sample as plain text; the columns, which the screen uses too.

use super::gather::{self, Agent, Node, Run, Store, Swap, View};
use crate::units;

/// The losses of a run, as the end of a line. Empty if there were none.
pub fn losses(run: &Run) -> String {
    let lost = match (run.nodes_lost, run.single) {
        (0, 0) => String::new(),
        (lost, 0) => format!("; {lost} lost"),
        (lost, single) => format!("; {lost} lost, {} with one copy", units::bytes(single)),
    };
    let together = match run.together {
        0 => lost,
        bytes => format!("{lost}; {} in one failure domain", units::bytes(bytes)),
    };
    let slowed = if run.repair_slowed > 0 { ", slowed for fetches" } else { "" };
    match run.repair_per_s as u64 {
        0 => together,
        rate => format!("{together}; {}/s copied{slowed}", units::bytes(rate)),
    }
}

/// Columns of a run, the program first.
pub const RUN_COLUMNS: [&str; 12] =
    ["program", "pid", "local", "limit", "far", "faults/s", "hits", "p50", "p99", "in/s", "out/s", "waiting"];

/// A run in those columns.
pub fn run_cells(run: &Run, program_width: usize) -> [String; 12] {
    [
        gather::short_program(&run.program, program_width),
        run.supervisor.to_string(),
        units::bytes(run.local),
        units::bytes(run.local_limit),
        units::bytes(run.far),
        units::count(run.faults_per_s as u64),
        share(run.hit_rate),
        units::nanos(run.fetch_latency_ns.p50),
        units::nanos(run.fetch_latency_ns.p99),
        units::bytes(run.in_per_s as u64),
        units::bytes(run.out_per_s as u64),
        // Of one thread's time: two threads that wait all the time are 200 %.
        format!("{:.0} %", run.waiting * 100.0),
    ]
}

/// All runs together, if there are several, in the same columns. Values that cannot be added up are
/// left out.
pub fn total_cells(runs: &[Run]) -> Option<[String; 12]> {
    let sum = |of: fn(&Run) -> u64| units::bytes(runs.iter().map(of).sum());
    let rate = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>();
    (runs.len() > 1).then(|| {
        [
            format!("all {}", runs.len()),
            String::new(),
            sum(|run| run.local),
            String::new(),
            sum(|run| run.far),
            units::count(rate(|run| run.faults_per_s) as u64),
            String::new(),
            String::new(),
            String::new(),
            units::bytes(rate(|run| run.in_per_s) as u64),
            units::bytes(rate(|run| run.out_per_s) as u64),
            format!("{:.0} %", rate(|run| run.waiting) * 100.0),
        ]
    })
}

/// The advice for a run that does little but wait. `None`: it works, or more local memory would not
/// help.
pub fn hint(run: &Run) -> Option<String> {
    let is_full = run.local >= run.local_limit / 10 * 8;
    (run.waiting >= MUCH && is_full).then(|| {
        format!(
            "{} waits {:.0} % of a thread's time: give it more than --local {} (farmem size says)",
            gather::short_program(&run.program, 24),
            run.waiting * 100.0,
            units::bytes(run.local_limit)
        )
    })
}

/// Waiting that is worth a word, in threads.
const MUCH: f64 = 0.9;

/// A share, 0–1, in percent.
pub fn share(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format!("{:.0} %", rate * 100.0))
}

/// Columns of a node, its addresses first.
pub const NODE_COLUMNS: [&str; 7] = ["node", "pid", "lent", "of", "clients", "read/s", "written/s"];

/// A node in those columns. `runs` of this machine may map its memory: the node does not see their
/// reads and writes.
pub fn node_cells(node: &Node, runs: &[Run]) -> [String; 7] {
    let maps = |run: &Run| {
        let mut addresses = run.nodes.split([',', ' ']).filter(|address| address.contains('/'));
        addresses.any(|address| node.status.listen.iter().any(|own| own == address))
    };
    let is_mapped = runs.iter().any(maps);
    let seen = |rate: f64| match is_mapped && rate < 1.0 {
        true => "mapped".to_owned(),
        false => units::bytes(rate as u64),
    };
    [
        match node.status.aside {
            0 => node.status.listen.join(" "),
            aside => format!("{} ({} on disk)", node.status.listen.join(" "), units::bytes(aside)),
        },
        node.status.pid.to_string(),
        units::bytes(node.status.lent),
        units::bytes(node.status.lend - node.status.held_back.min(node.status.lend)),
        match node.status.absent {
            0 => node.status.clients.to_string(),
            // Their memory is still lent, until they are back or their grace is over.
            absent => format!("{}, {absent} away", node.status.clients),
        },
        seen(node.read_per_s),
        seen(node.written_per_s),
    ]
}

/// Columns of an agent, its node last.
pub const AGENT_COLUMNS: [&str; 5] = ["agent", "programs", "held", "taken", "of"];

/// An agent in those columns.
pub fn agent_cells(agent: &Agent) -> [String; 5] {
    [
        agent.pid.to_string(),
        agent.applications.len().to_string(),
        units::bytes(agent.held()),
        units::bytes(agent.taken),
        agent.node.clone(),
    ]
}

/// Columns of a store's front end, its store first.
pub const STORE_COLUMNS: [&str; 8] = ["store", "pid", "clients", "requests/s", "hits", "verbs", "held", "listens at"];

/// A front end in those columns.
pub fn store_cells(store: &Store) -> [String; 8] {
    [
        store.status.store.clone(),
        store.status.pid.to_string(),
        store.status.clients.to_string(),
        units::count(store.commands_per_s as u64),
        share(store.hit_rate),
        // For each request.
        store.verbs_per_command.map_or("-".into(), |verbs| format!("{verbs:.1}")),
        units::bytes(store.status.held),
        store.status.listen.join(" "),
    ]
}

/// Columns of a swap device, its node last.
pub const SWAP_COLUMNS: [&str; 9] = ["swap", "size", "used", "live", "held", "ins/s", "outs/s", "read", "node"];

/// A swap device in those columns.
pub fn swap_cells(swap: &Swap) -> [String; 9] {
    [
        swap.device.clone(),
        units::bytes(swap.size),
        units::bytes(swap.used),
        units::bytes(swap.live),
        units::bytes(swap.held),
        units::count(swap.in_per_s as u64),
        units::count(swap.out_per_s as u64),
        swap.read_ns.map_or("-".into(), units::nanos),
        swap.node.clone(),
    ]
}

/// The sample as tables.
pub fn text(view: &View) -> String {
    let mut out = String::new();
    if view.runs.is_empty() {
        out += "no runs on this machine\n";
    } else {
        let mut rows = vec![RUN_COLUMNS.map(String::from)];
        rows.extend(view.runs.iter().map(|run| run_cells(run, 40)));
        rows.extend(total_cells(&view.runs));
        out += &units::aligned(&rows);
        view.runs.iter().filter_map(hint).for_each(|hint| out += &(hint + "\n"));
    }
    if view.nodes.is_empty() {
        out += "no nodes on this machine\n";
    } else {
        out.push('\n');
        let mut rows = vec![NODE_COLUMNS.map(String::from)];
        rows.extend(view.nodes.iter().map(|node| node_cells(node, &view.runs)));
        out += &units::aligned(&rows);
    }
    if !view.agents.is_empty() {
        out.push('\n');
        let mut rows = vec![AGENT_COLUMNS.map(String::from)];
        rows.extend(view.agents.iter().map(agent_cells));
        out += &units::aligned(&rows);
    }
    if !view.stores.is_empty() {
        out.push('\n');
        let mut rows = vec![STORE_COLUMNS.map(String::from)];
        rows.extend(view.stores.iter().map(store_cells));
        out += &units::aligned(&rows);
    }
    if !view.swaps.is_empty() {
        out.push('\n');
        let mut rows = vec![SWAP_COLUMNS.map(String::from)];
        rows.extend(view.swaps.iter().map(swap_cells));
        out += &units::aligned(&rows);
    }
    if let Some(crowded) = crowded(view) {
        out += &format!("\n{crowded}\n");
    }
    out
}

/// That other users' directories were not read to their ends.
pub(super) fn crowded(view: &View) -> Option<String> {
    let number = units::number(view.crowded, "directory", "directories");
    (view.crowded > 0).then(|| format!("{number} of other users with more files than are read"))
}
