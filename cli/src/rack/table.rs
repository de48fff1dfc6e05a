//! The rack as `farmem status --controller` prints it.

use farmem_control::api::{NodeView, Rack, RunView};
use farmem_control::client::Client;
use farmem_trust::Key;

use crate::failure::Failure;
use crate::units;

/// Prints it.
pub fn show(controller: &str, token: Option<Key>, json: bool) -> Result<(), Failure> {
    let rack = Client::new(controller).by(token).rack().map_err(Failure::no_node)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rack).map_err(Failure::usage)?);
    } else {
        print!("{}", text(&rack));
    }
    Ok(())
}

/// The text of `farmem top --rack`: nodes with the progress of their drains, runs with their
/// latencies and copies, and the latest events.
pub fn screen(rack: &Rack) -> String {
    let mut out = text(&Rack { runs: Vec::new(), ..rack.clone() });
    if !rack.runs.is_empty() {
        let head = ["program", "host", "far", "p50", "p99", "p99.9", "in/s", "out/s", "copies"];
        let mut rows = vec![head.map(String::from)];
        rows.extend(rack.runs.iter().map(run_cells));
        out += &format!("\n{}", units::aligned(&rows));
    }
    if !rack.events.is_empty() {
        out += "\n";
    }
    for event in rack.events.iter().take(15) {
        out += &format!("{:>8} ago  {}\n", ago(event.ago_s), event.what);
    }
    out
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn run_cells(run: &RunView) -> [String; 9] {
    let Some(of) = &run.figures else {
        return [run.run.as_str(), &run.host, "-", "-", "-", "-", "-", "-", "-"].map(String::from);
    };
    let copies = match (of.single, of.together) {
        (0, 0) => "whole".to_owned(),
        (0, together) => format!("{} in one domain", units::bytes(together)),
        (single, _) => format!("{} with one copy", units::bytes(single)),
    };
    [
        of.program.clone(),
        run.host.clone(),
        units::bytes(of.far),
        units::nanos(of.p50_ns),
        units::nanos(of.p99_ns),
        units::nanos(of.p999_ns),
        units::bytes(of.read_rate),
        units::bytes(of.write_rate),
        copies,
    ]
}

/// A node's standing, and how far its drain has come.
fn standing(node: &NodeView) -> String {
    let left = node.lent.min(node.drain_from);
    match (100 * (node.drain_from - left)).checked_div(node.drain_from) {
        Some(done) if node.standing == "draining" => format!("draining {done} %"),
        _ => node.standing.clone(),
    }
}

fn text(rack: &Rack) -> String {
    if rack.nodes.is_empty() {
        return "the rack has no node yet: farmem node --lend SIZE --listen ADDR --controller HOST:PORT\n".into();
    }
    let head = ["node", "domain", "standing", "lends", "lent", "programs", "read/s", "written/s"];
    let mut rows = vec![head.map(String::from)];
    for node in &rack.nodes {
        rows.push([
            node.name.clone(),
            node.domain.clone(),
            standing(node),
            units::bytes(node.lends),
            units::bytes(node.lent),
            node.members.to_string(),
            units::bytes(node.read_rate),
            units::bytes(node.write_rate),
        ]);
    }
    let mut out = units::aligned(&rows);
    for run in &rack.runs {
        let crowded = if run.crowded { " (in one failure domain: no node of another has room)" } else { "" };
        out += &format!("run {} on {}: {}{crowded}\n", run.run, run.host, run.nodes.join(", "));
    }
    if rack.more_runs > 0 {
        out += &format!("{} more runs, which have less\n", rack.more_runs);
    }
    for tenant in &rack.tenants {
        out += &format!("tenant {}: {} of {}\n", tenant.name, units::bytes(tenant.held), units::bytes(tenant.quota));
    }
    out
}
