//! The nodes of a run from a file that may change while the run goes on (`--node-file`).
//!
//! One address a line; empty lines and those that begin with `#` are passed over. When the file has
//! changed, nodes that are new are reached first, here, so that what is wrong is said once and not
//! by every process. Then the run's processes are told the list, by the run's file of counters.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use farmem_fabric::{NodeAddr, Transport};

use super::far::{self, Far};
use crate::counters;

/// Reads the file.
///
/// # Errors
/// A line that says what is wrong.
pub fn read(file: &Path) -> Result<Vec<NodeAddr>, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("--node-file {}: {e}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let nodes = lines.map(far::node).collect::<Result<Vec<_>, _>>();
    let nodes = nodes.map_err(|e| format!("--node-file {}: {e}", file.display()))?;
    if nodes.is_empty() {
        return Err(format!("--node-file {}: it names no node", file.display()));
    }
    Ok(nodes)
}

/// The file as it was read last.
pub struct Roster {
    file: PathBuf,
    counters: PathBuf,
    changed: Option<SystemTime>,
    /// How the run's processes call each node that has joined since the run began.
    told: HashMap<NodeAddr, String>,
    transport: Transport,
    grace: Duration,
}

impl Roster {
    /// As the run begins with it.
    pub fn begin(file: &Path, counters: &Path, far: &Far, transport: Transport, grace: Duration) -> Roster {
        let told = far.nodes().iter().map(|node| (node.clone(), node.to_string())).collect();
        let (file, counters) = (file.to_owned(), counters.to_owned());
        let mut roster = Roster { file, counters, changed: None, told, transport, grace };
        roster.changed = roster.age();
        roster
    }

    fn age(&self) -> Option<SystemTime> {
        fs::metadata(&self.file).and_then(|about| about.modified()).ok()
    }

    /// Sees to a change of the file, if there is one. What is wrong is said, and the run goes on as
    /// before.
    pub fn look(&mut self, far: &mut Far) {
        let now = self.age();
        if now.is_none() || now == self.changed {
            return;
        }
        self.changed = now;
        if let Err(why) = self.change(far) {
            eprintln!("farmem: {why}; the run goes on with the nodes that it has");
        }
    }

    fn change(&mut self, far: &mut Far) -> Result<(), String> {
        let nodes = read(&self.file)?;
        for node in &nodes {
            if !self.told.contains_key(node) {
                let told = far.join(node, self.transport, self.grace).map_err(|e| e.line)?;
                self.told.insert(node.clone(), told);
            }
        }
        let list: Vec<&str> = nodes.iter().filter_map(|node| self.told.get(node)).map(String::as_str).collect();
        counters::tell_roster(&self.counters, &list.join(",")).map_err(|e| format!("the nodes cannot be told: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_nodes_is_read_by_lines() {
        let file = std::env::temp_dir().join(format!("farmem-roster-{}", std::process::id()));
        let reads = |text: &str| {
            fs::write(&file, text).unwrap();
            read(&file).map(|nodes| nodes.iter().map(NodeAddr::to_string).collect::<Vec<_>>())
        };
        assert_eq!(reads("# mine\n a:1 \n\nunix:/s\n"), Ok(vec!["a:1".to_owned(), "unix:/s".to_owned()]));
        for bad in ["", "# none\n", "a:1,b:2\n", "a\n"] {
            assert!(reads(bad).is_err(), "{bad:?}");
        }
        fs::remove_file(&file).unwrap();
        assert!(read(&file).is_err());
    }
}
