//! One sample as plain text; the columns, which the screen uses too.

use super::gather::{self, Agent, Node, Run, View};
use crate::units;

/// The losses of a run, for the end of a line. Empty if there were none.
pub fn losses(run: &Run) -> String {
    match (run.nodes_lost, run.single) {
        (0, 0) => String::new(),
        (lost, 0) => format!("; {lost} lost"),
        (lost, single) => format!("; {lost} lost, {} with one copy", units::bytes(single)),
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

/// A share, 0–1, in percent.
pub fn share(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format!("{:.0} %", rate * 100.0))
}

/// Columns of a node, its addresses first.
pub const NODE_COLUMNS: [&str; 7] = ["node", "pid", "lent", "of", "clients", "read/s", "written/s"];

/// A node in those columns.
pub fn node_cells(node: &Node) -> [String; 7] {
    [
        node.status.listen.join(" "),
        node.status.pid.to_string(),
        units::bytes(node.status.lent),
        units::bytes(node.status.lend),
        match node.status.absent {
            0 => node.status.clients.to_string(),
            // Their memory is still lent, until they are back or their grace is over.
            absent => format!("{}, {absent} away", node.status.clients),
        },
        units::bytes(node.read_per_s as u64),
        units::bytes(node.written_per_s as u64),
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

/// The sample as tables.
pub fn text(view: &View) -> String {
    let mut out = String::new();
    if view.runs.is_empty() {
        out += "no runs on this machine\n";
    } else {
        let mut rows = vec![RUN_COLUMNS.map(String::from)];
        rows.extend(view.runs.iter().map(|run| run_cells(run, 40)));
        out += &units::aligned(&rows);
    }
    if view.nodes.is_empty() {
        out += "no nodes on this machine\n";
    } else {
        out.push('\n');
        let mut rows = vec![NODE_COLUMNS.map(String::from)];
        rows.extend(view.nodes.iter().map(node_cells));
        out += &units::aligned(&rows);
    }
    if !view.agents.is_empty() {
        out.push('\n');
        let mut rows = vec![AGENT_COLUMNS.map(String::from)];
        rows.extend(view.agents.iter().map(agent_cells));
        out += &units::aligned(&rows);
    }
    out
}
