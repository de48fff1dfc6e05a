//! A node and an agent for the benchmark alone, as processes of their own.

use anyhow::{Context, Result, ensure};
use farmem_fabric::NodeAddr;
use farmem_kit::supervise::{Group, interrupted};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// They end with it, and are killed if this process is.
pub struct Service {
    dir: PathBuf,
    socket: PathBuf,
    node: String,
    processes: Vec<Group>,
}

impl Service {
    /// Starts both, or an agent of the node that is named, and waits until they listen. `alone`: no agent.
    pub fn start(farmem: &Path, node: Option<&NodeAddr>, lend: u64, alone: bool) -> Result<Service> {
        let dir = std::env::temp_dir().join(format!("farmem-malloc-{}", std::process::id()));
        // Closed to others: who reaches the agent's socket is served.
        std::fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| dir.display().to_string())?;
        let mut service = Service { socket: dir.join("agent.sock"), node: String::new(), dir, processes: Vec::new() };
        let at = match node {
            Some(node) => node.to_string(),
            None => {
                let node = service.dir.join("node.sock");
                let of_node = ["agent-node", "--lend", &lend.to_string(), "--listen"];
                service.spawn(Command::new(farmem).args(of_node).arg(&node), &node)?;
                format!("unix:{}", node.display())
            }
        };
        service.node = at.clone();
        if alone {
            return Ok(service);
        }
        let socket = service.socket.clone();
        // When it is killed, its node is to know soon that nobody comes after it.
        let of_agent = ["agent", "--quiet", "--idle", "0", "--grace", "1s", "--node", &at, "--dir"];
        service.spawn(Command::new(farmem).args(of_agent).arg(service.dir.clone()), &socket)?;
        Ok(service)
    }

    /// The node's address.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The agent's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn spawn(&mut self, command: &mut Command, socket: &Path) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.processes.push(Group::start(command).context("cannot start myself")?);
        let until = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(socket).is_err() {
            let ended = self.processes.iter_mut().any(|group| !matches!(group.process().try_wait(), Ok(None)));
            interrupted()?;
            ensure!(!ended && Instant::now() < until, "the node or the agent of the benchmark does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for mut group in self.processes.drain(..).rev() {
            // Asked to end, either would wait for the other, or for whoever comes next.
            let _ = group.process().kill();
            let _ = group.process().wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
