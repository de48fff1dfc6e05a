//! The report of an agent about itself, in `agent.json` in its directory. `farmem agent --status`,
//! `farmem top` and `farmem status` read it, and ask nobody.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use farmem_agent::serve::Report;
use farmem_sys::process;
use serde::{Deserialize, Serialize};

use crate::{runtime_dir, units};

/// The longest report that is read: of some ten thousand programs.
const LONGEST: u64 = 4 << 20;

/// An agent, as it was when anything last changed. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Its pid.
    pub pid: u32,
    /// The node whose memory it serves.
    pub node: String,
    /// Claimed at the node.
    pub taken: u64,
    /// Programs that were shown out for breaking the protocol.
    pub violations: usize,
    /// The programs that have memory of it.
    pub applications: Vec<Program>,
}

/// One of its programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its pid.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its job; empty: none.
    pub job: String,
    /// The bytes of its blocks.
    pub held: u64,
}

impl Agent {
    /// Where the agent of a directory says it.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("agent.json")
    }

    /// The agent of a directory, if it lives.
    pub fn living(dir: &Path) -> Option<Agent> {
        let agent: Agent = runtime_dir::status(&Agent::path(dir), LONGEST)?;
        process::exists(agent.pid).then_some(agent)
    }

    /// The bytes that its programs hold.
    pub fn held(&self) -> u64 {
        self.applications.iter().map(|program| program.held).sum()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = format!("agent {}: {} taken from {}\n", self.pid, units::bytes(self.taken), self.node);
        if self.violations > 0 {
            out += &format!("{} programs were shown out for breaking the protocol\n", self.violations);
        }
        if self.applications.is_empty() {
            return out + "no programs\n";
        }
        let mut rows = vec![["pid", "user", "job", "held"].map(String::from)];
        for program in &self.applications {
            let job = if program.job.is_empty() { "-" } else { &program.job };
            rows.push([program.pid.to_string(), program.uid.to_string(), job.to_owned(), units::bytes(program.held)]);
        }
        out + &units::aligned(&rows)
    }
}

/// Writes the report when it changes.
pub struct Publisher {
    path: PathBuf,
    /// The node that it uses, which may change.
    node: Arc<Mutex<String>>,
    last: Option<(Report, String)>,
}

impl Publisher {
    /// For the agent of this directory, on this node.
    pub fn new(dir: &Path, node: Arc<Mutex<String>>) -> Publisher {
        Publisher { path: Agent::path(dir), node, last: None }
    }

    /// The function that the agent calls a few times a second.
    pub fn publish(mut self) -> impl FnMut(&Report) {
        move |report| {
            let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if self.last.as_ref().is_some_and(|(last, at)| last == report && *at == node) {
                return;
            }
            let program = |(pid, uid, job, held): &(u32, u32, String, u64)| Program {
                pid: *pid,
                uid: *uid,
                job: job.clone(),
                held: *held,
            };
            let agent = Agent {
                pid: std::process::id(),
                node: node.clone(),
                taken: report.taken,
                violations: report.violations,
                applications: report.applications.iter().map(program).collect(),
            };
            let draft = self.path.with_extension("json.new");
            let text = serde_json::to_string(&agent).unwrap_or_default();
            // A full directory costs the view, no more.
            let _ = fs::write(&draft, text + "\n").and_then(|()| fs::rename(&draft, &self.path));
            self.last = Some((report.clone(), node));
        }
    }
}
