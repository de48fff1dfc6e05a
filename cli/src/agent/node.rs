//! The node that an agent starts when none is named: a process of its own, which
//! outlives the agent and ends when nobody holds memory there any more.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};

use crate::failure::Failure;

/// How long it stays without members.
const IDLE: Duration = Duration::from_secs(10);
/// How long it may take to listen.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The hidden command that it runs as.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Bytes to lend.
    #[arg(long)]
    pub lend: u64,
    /// Where to listen.
    #[arg(long)]
    pub listen: PathBuf,
}

/// Lends memory until nobody has held any for a while.
pub fn run(options: &Options) -> Result<(), Failure> {
    let config = Config {
        embedded: true,
        confined: true,
        ..Config::new(options.lend, vec![NodeAddr::Shm(options.listen.clone())])
    };
    let node = Node::start(&config).map_err(Failure::usage)?;
    let mut last_held = Instant::now();
    while last_held.elapsed() < IDLE {
        std::thread::sleep(Duration::from_millis(500));
        if !node.nic().members().is_empty() {
            last_held = Instant::now();
        }
    }
    let _ = std::fs::remove_file(&options.listen);
    Ok(())
}

/// The socket of this directory's node, which is started if it is not there.
pub fn at_hand(dir: &Path, lend: u64) -> Result<PathBuf, Failure> {
    let socket = dir.join("agent-node.sock");
    if listens(&socket) {
        return Ok(socket);
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("farmem")
        .args(["agent-node", "--lend", &lend.to_string(), "--listen"])
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env_remove("LD_PRELOAD")
        .process_group(0);
    let failed = |e: std::io::Error| Failure::no_node(format!("cannot start a node for the agent: {e}"));
    let mut child = command.spawn().map_err(failed)?;
    let until = Instant::now() + READY_WITHIN;
    while !listens(&socket) {
        if let Some(status) = child.try_wait().map_err(failed)? {
            let why = format!("the node started for the agent is not usable ({status}): try farmem node --lend {lend}");
            return Err(Failure::no_node(why));
        }
        if Instant::now() > until {
            return Err(Failure::no_node("the node started for the agent does not answer"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(socket)
}

fn listens(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}
