//! `farmem node`: lends this machine's memory.
//!
//! The daemon itself is [`farmem_memory`]; here are its flags, its signals, and
//! the status file by which `farmem top` sees it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use farmem_fabric::NodeAddr;
use farmem_sys::process;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::runtime_dir;
use crate::size::{self, Size};

/// Lend this machine's memory to programs elsewhere
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Memory to lend, at most: 8G, or a share of this machine's RAM, 50%
    #[arg(long, value_name = "SIZE")]
    pub lend: Size,

    /// Where to listen: HOST:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<String>,

    /// Where to serve counters for Prometheus, over HTTP
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,

    /// How long to wait for programs after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::time::parse)]
    pub grace: Duration,

    /// Back the memory by huge pages where the system allows
    #[arg(long)]
    pub huge: bool,

    /// Serve one run, and end when standard input ends
    #[arg(long, hide = true)]
    pub embedded: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem node --lend 8G --listen 0.0.0.0:7411
      Programs on other machines:  farmem run --local 1G --node THISHOST:7411 -- PROGRAM
      Whoever can reach the port can borrow: keep it in a trusted network.

  farmem node --lend 50% --listen unix:/run/farmem/node.sock --metrics 127.0.0.1:9411
      For programs on this machine only.

SIGTERM: takes no new programs, waits for those it has up to --grace, says what is left.";

/// What a node says of itself, in `node-PID.json` in the runtime directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Its pid.
    pub pid: u32,
    /// Where it listens.
    pub listen: Vec<String>,
    /// Bytes it lends at most.
    pub lend: u64,
    /// Bytes it has lent now.
    pub lent: u64,
    /// Processes that borrow now.
    pub clients: u64,
    /// Bytes read by clients since its start; over shared memory it sees none.
    pub bytes_read: u64,
    /// Bytes written by clients since its start; over shared memory it sees none.
    pub bytes_written: u64,
}

impl Status {
    /// Reads a status file; removes it if its node is gone.
    pub fn read_living(path: &Path) -> Option<Status> {
        let text = fs::read(path).ok()?;
        let status: Status = serde_json::from_slice(&text).ok()?;
        if process::exists(status.pid) {
            return Some(status);
        }
        let _ = fs::remove_file(path);
        None
    }
}

/// Runs the node until it is told to end.
pub fn run(options: &Options) -> Result<(), Failure> {
    let (ram, _) = size::machine_ram().map_err(Failure::usage)?;
    let listen = options.listen.iter().map(|at| at.parse::<NodeAddr>());
    let metrics = options.metrics.as_deref().map(|at| {
        at.parse().map_err(|_| Failure::usage(format!("--metrics {at}: write an address and a port, 127.0.0.1:9411")))
    });
    let config = farmem_memory::Config {
        lend: options.lend.bytes(ram),
        listen: listen.collect::<Result<_, _>>().map_err(Failure::usage)?,
        metrics: metrics.transpose()?,
        grace: options.grace,
        huge: options.huge,
        embedded: options.embedded,
        // The run itself is what `farmem top` shows of an embedded node.
        status_dir: if options.embedded { None } else { runtime_dir::own().ok() },
    };
    farmem_memory::run(config).map_err(Failure::usage)
}
