//! `farmem node`: lends this machine's memory.
//!
//! The daemon itself is [`farmem_memory`]; here are its flags, and the reading of
//! the status file by which `farmem top` and `farmem run` find it.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Rdma, StartError};
use farmem_sys::{probe, process};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::forbidden;
use crate::leftovers;
use crate::rack;
use crate::runtime_dir::{self, LONGEST};
use crate::size::{self, Size};
use crate::units;

/// Lend this machine's memory to programs elsewhere
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Memory to lend, at most: 8G, or a share of this machine's RAM, 50%
    #[arg(long, value_name = "SIZE")]
    pub lend: Size,

    /// Memory to leave to this machine, 4G or a share of its RAM, 20%: while less is available,
    /// less is lent
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<Size>,

    /// With --reserve: a directory on a disk. Memory of programs that do not answer goes there while
    /// this machine needs it
    #[arg(long, value_name = "DIR", requires = "reserve")]
    pub spill: Option<PathBuf>,

    /// Where to listen: HOST:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<NodeAddr>,

    /// Where to serve counters for Prometheus, over HTTP
    #[arg(long, value_name = "IP:PORT", value_parser = metrics)]
    pub metrics: Option<SocketAddr>,

    /// How long to wait for programs after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::time::parse)]
    pub grace: Duration,

    /// Back the memory by huge pages where the system allows
    #[arg(long)]
    pub huge: bool,

    /// RDMA card to offer beside TCP: auto (the first that is up, if any), off, or a name as
    /// `ibv_devices` has it
    #[arg(long, value_name = "CARD", default_value = "auto", value_parser = rdma)]
    pub rdma: Rdma,

    /// What one run, or one process that claims by itself (an agent), may hold of it: 2G, or a
    /// share of RAM
    #[arg(long, value_name = "SIZE")]
    pub quota: Option<Size>,

    /// How many functions near memory (sums, gathers) may run at a time for its programs; 0: none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = at_once())]
    pub compute: usize,

    /// The rack it belongs to
    #[command(flatten)]
    pub rack: rack::member::Rack,

    /// The store of the tokens that programs must have, as `farmem token` makes it
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    pub tokens: Option<PathBuf>,

    /// Let whoever reaches the node borrow, also from other machines
    #[arg(long)]
    pub open: bool,

    /// Log every connection and every slab, too, and not only who joins, leaves and is refused
    #[arg(short, long)]
    pub verbose: bool,

    /// Serve one run, and end when standard input ends
    #[arg(long, hide = true)]
    pub embedded: bool,
}

const EXAMPLES: &str = "\
Examples:
  farmem token create --tenant me --store tokens.toml > me.token
  farmem node --lend 8G --listen 0.0.0.0:7411 --tokens tokens.toml
      Programs on other machines:
      farmem run --local 1G --token me.token --node THISHOST:7411 -- PROGRAM
      With --open instead of --tokens whoever can reach the port can borrow:
      keep it in a trusted network.

  farmem node --lend 50% --listen unix:/run/node.sock --metrics 127.0.0.1:9411
      For programs on this machine only.

Programs on this machine map the node's memory, whichever address they name, if its user is theirs or it \
listens on a socket that they may open; else they are served over tcp.

SIGTERM, Ctrl-C, or the end of its terminal (but under nohup): takes no new programs, waits for those it has up to --grace, says what is left.";

fn metrics(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address of this machine and a port, as 127.0.0.1:9411")
}

fn rdma(text: &str) -> Result<Rdma, &'static str> {
    match text {
        "auto" => Ok(Rdma::Auto),
        "off" => Ok(Rdma::Off),
        "" => Err("name a card, or say auto or off"),
        name => Ok(Rdma::Card(name.to_owned())),
    }
}

/// Functions near memory at a time: each has a thread.
fn at_once() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}

/// The status of a node, in `node-PID.json` in the runtime directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Its pid.
    pub pid: u32,
    /// When its process began, in ticks since the machine did: another may have the pid by now.
    #[serde(default)]
    pub began: Option<u64>,
    /// Where it listens.
    pub listen: Vec<String>,
    /// Where it tells its counters.
    pub metrics: Option<String>,
    /// Bytes it lends at most.
    pub lend: u64,
    /// … of these, not lent now, because its machine needs them.
    #[serde(default)]
    pub held_back: u64,
    /// Bytes it has lent now.
    pub lent: u64,
    /// … of these, on the disk, because their owners do not answer (`--spill`).
    #[serde(default)]
    pub aside: u64,
    /// Processes that borrow now, and are there.
    pub clients: u64,
    /// Processes that are not: their memory is kept for their grace.
    #[serde(default)]
    pub absent: u64,
    /// How it is confined.
    #[serde(default)]
    pub confined: Option<String>,
    /// Whether it is going down.
    pub draining: bool,
    /// Bytes read by members since its start; over shared memory it sees none.
    pub bytes_read: u64,
    /// Bytes written by members since its start; over shared memory it sees none.
    pub bytes_written: u64,
}

impl Status {
    /// Where the node with this pid says it.
    pub fn path(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("node-{pid}.json"))
    }

    /// Reads a status file. `None`: its node is gone.
    pub fn read_living(path: &Path) -> Option<Status> {
        runtime_dir::status(path, LONGEST).filter(|status: &Status| status.lives(path))
    }

    /// Reads a status file in a directory of this user's; removes it if its node is gone.
    pub fn read_or_remove(path: &Path) -> Option<Status> {
        let status: Status = runtime_dir::status(path, LONGEST)?;
        if status.lives(path) {
            return Some(status);
        }
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(path.with_extension("sock"));
        None
    }

    /// Whether the node is there that has this status in a file.
    fn lives(&self, path: &Path) -> bool {
        // Its own, if it made one (`farmem_memory::Config::status_dir`).
        let socket = path.with_extension("sock");
        let lives = match self.began {
            Some(began) => process::began(self.pid) == Some(began),
            None => process::exists(self.pid),
        };
        // In another pid namespace, as a container's, the number says nothing. A socket that
        // answers does.
        lives || leftovers::answers(&socket)
    }
}

/// A socket as it is to be named wherever one looks for the node from.
fn absolute(at: &NodeAddr) -> Result<NodeAddr, Failure> {
    match at {
        NodeAddr::Tcp(_) => Ok(at.clone()),
        NodeAddr::Shm(path) => {
            let path = std::path::absolute(path);
            path.map(NodeAddr::Shm).map_err(|e| Failure::usage(format!("--listen {at}: no directory to be in: {e}")))
        }
    }
}

/// A node that other machines can reach says who may borrow.
fn refuse_strangers(options: &Options) -> Result<(), Failure> {
    if options.tokens.is_some() || options.open || options.embedded {
        return Ok(());
    }
    let is_near = |at: &NodeAddr| match at {
        NodeAddr::Shm(_) => true,
        // A name that means nothing here is told where it is listened on.
        NodeAddr::Tcp(at) => {
            at.to_socket_addrs().is_ok_and(|mut all| all.all(|at| at.ip().to_canonical().is_loopback()))
        }
    };
    match options.listen.iter().find(|at| !is_near(at)) {
        None => Ok(()),
        Some(at) => Err(Failure::usage(format!(
            "--listen {at}: other machines can reach this, and whoever does could borrow: name a store of tokens by \
             --tokens FILE (farmem token create makes one), or say --open"
        ))),
    }
}

/// Runs the node until it is told to stop and its members are gone.
pub fn run(options: &Options) -> Result<(), Failure> {
    // The run that has started it has made sure.
    if !options.embedded {
        forbidden::check(&[probe::COMMON, probe::NODE])?;
    }
    refuse_strangers(options)?;
    let machine = size::ram().map_err(Failure::usage)?;
    let ram = machine.total;
    if let Some(reserve) = options.reserve.map(|reserve| reserve.bytes(ram)).filter(|&reserve| reserve > ram) {
        let reserve = units::bytes(reserve);
        return Err(Failure::usage(format!(
            "--reserve is {reserve}, and {machine}: nothing would be lent; leave less"
        )));
    }
    let again = (1..options.listen.len()).find(|&at| {
        let is_any = matches!(&options.listen[at], NodeAddr::Tcp(at) if at.ends_with(":0"));
        !is_any && options.listen[..at].contains(&options.listen[at])
    });
    if let Some(again) = again {
        let at = &options.listen[again];
        return Err(Failure::usage(format!("--listen: {at} is named twice: name each address once")));
    }
    let config = Config {
        lend: options.lend.bytes(ram),
        reserve: options.reserve.map_or(0, |reserve| reserve.bytes(ram)),
        spill: options.spill.clone(),
        listen: options.listen.iter().map(absolute).collect::<Result<_, _>>()?,
        metrics: options.metrics,
        grace: options.grace,
        huge: options.huge,
        verbose: options.verbose,
        tokens: options.tokens.clone(),
        embedded: options.embedded,
        rdma: options.rdma.clone(),
        quota: options.quota.map(|quota| quota.bytes(ram)),
        compute: options.compute,
        confined: true,
        domain: options.rack.domain.unwrap_or_default(),
        // systemd gives a service a directory of its own. Where there is none the node works all
        // the same, and top does not show it.
        status_dir: std::env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from).or_else(|| runtime_dir::own().ok()),
    };
    // Of nodes that were killed here. A run sweeps before it starts a node.
    if let Some(dir) = config.status_dir.as_ref().filter(|_| !options.embedded) {
        leftovers::sweep(dir);
    }
    options.rack.check(&config.listen)?;
    let key = options.rack.key()?;
    let begun = |node: &_| options.rack.begin(node, key).map(|beats| move || beats.leave());
    farmem_memory::run_with(config, begun).map_err(|refused| match refused {
        StartError::Listen(at, reason) => Failure::listen(at, &reason),
        refused => Failure::usage(refused),
    })
}
