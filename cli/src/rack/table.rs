//! The rack as `farmem status --controller` prints it.

use farmem_control::api::Rack;
use farmem_control::client::Client;

use crate::failure::Failure;
use crate::units;

/// Prints it.
pub fn show(controller: &str, json: bool) -> Result<(), Failure> {
    let rack = Client::new(controller).rack().map_err(Failure::no_node)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rack).map_err(Failure::usage)?);
    } else {
        print!("{}", text(&rack));
    }
    Ok(())
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
            node.standing.clone(),
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
    out
}
