//! The supervisor's own connection to the nodes of its run.
//!
//! It is there to fail early, with one line instead of a program's death, and to
//! say at the end that the run is over: then the nodes free everything at once
//! instead of waiting for members that might come back.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;
use std::time::Duration;

use farmem_fabric::{ConnectOptions, NodeAddr, Session};

use super::environment::Transport;
use crate::failure::Failure;

/// How long reaching a node may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Where a node listens: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node(String);

impl FromStr for Node {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains([';', ',', '\0']) {
            return Err("contains a comma or a semicolon".into());
        }
        Ok(Node(text.to_owned()))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Addresses as `FARMEM_RUN` and the counters file have them.
pub fn list(nodes: &[Node]) -> String {
    let each: Vec<String> = nodes.iter().map(Node::to_string).collect();
    each.join(",")
}

/// The name of a run: 128 random bits, so that no two runs at one node are ever confused.
#[derive(Clone, Debug, PartialEq)]
pub struct RunName([u8; 16]);

impl RunName {
    /// A new name.
    pub fn new() -> io::Result<Self> {
        let mut bits = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bits)?;
        Ok(RunName(bits))
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for RunName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, &'static str> {
        match u128::from_str_radix(text, 16) {
            Ok(bits) if text.len() == 32 && !text.starts_with('+') => Ok(RunName(bits.to_be_bytes())),
            _ => Err("not 32 hexadecimal digits"),
        }
    }
}

/// A run's nodes, reached.
pub struct Far {
    run: RunName,
    sessions: Vec<Session>,
}

impl Far {
    /// Reaches every node, or says which one cannot be used and why.
    pub fn connect(nodes: &[Node], run: &RunName, transport: Transport, grace: Duration) -> Result<Far, Failure> {
        let options = ConnectOptions {
            timeout: CONNECT_WITHIN,
            grace,
            run: run.0,
            pid: std::process::id(),
            transport: match transport {
                Transport::Auto => farmem_fabric::Transport::Auto,
                Transport::Shm => farmem_fabric::Transport::Shm,
                Transport::Tcp => farmem_fabric::Transport::Tcp,
            },
        };
        let mut sessions = Vec::new();
        for node in nodes {
            let addr: NodeAddr = node.0.parse().map_err(Failure::usage)?;
            sessions.push(Session::connect(&addr, &options).map_err(Failure::no_node)?);
        }
        Ok(Far { run: run.clone(), sessions })
    }

    /// Tells the nodes that no process of the run is left.
    pub fn end_run(self) {
        for session in &self.sessions {
            // A node that is gone has freed everything already.
            let _ = session.end_run(self.run.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_name_reads_back() {
        let name = RunName::new().unwrap();
        assert_eq!(name.to_string().parse(), Ok(name));
        assert!("12".parse::<RunName>().is_err());
        assert!("+0000000000000000000000000000000".parse::<RunName>().is_err());
    }
}
