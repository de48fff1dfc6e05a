//! The systems, each started anew for a round and ended with it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::wire::{Protocol, Socket, Wire};
use anyhow::{Context, Result, bail};
use farmem_kit::supervise::Group;
use farmem_kv::{Config, Store};

/// A system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// The store behind its front end, `farmem kv`
    Front,
    /// The store within the generator's process
    Embedded,
    /// redis-server, all in its own memory
    Redis,
    /// memcached, all in its own memory
    Memcached,
    /// redis-server under `farmem run`, with as much local memory as the store has
    RunRedis,
}

impl System {
    /// All, in the order of the tables.
    pub const ALL: [System; 5] = [System::Front, System::Embedded, System::Redis, System::Memcached, System::RunRedis];

    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            System::Front => "farmem kv",
            System::Embedded => "embedded",
            System::Redis => "redis",
            System::Memcached => "memcached",
            System::RunRedis => "redis in run",
        }
    }

    /// The program that it needs, if that is not here.
    pub fn missing(self) -> Option<&'static str> {
        let program = match self {
            System::Front | System::Embedded => return None,
            System::Redis | System::RunRedis => "redis-server",
            System::Memcached => "memcached",
        };
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        let here = std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file());
        (!here).then_some(program)
    }
}

/// How they are started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary of farmem.
    pub farmem: PathBuf,
    /// How bytes reach the node: "tcp" or "shm".
    pub transport: &'static str,
    /// Bytes of all keys and values.
    pub data: u64,
    /// Bytes of local memory, where some are far.
    pub local: u64,
    /// Bytes that a system may hold, which evicts beyond.
    pub maxmemory: Option<u64>,
    /// Connections; 0: the caller makes its own.
    pub clients: usize,
}

/// A system that runs.
pub struct Running {
    /// Ways to it, dropped before its processes end.
    pub wires: Vec<Box<dyn Wire>>,
    /// Its port, if it has one.
    pub port: Option<u16>,
    /// The address of its node, if it has one.
    pub node: Option<String>,
    processes: Vec<Group>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.wires.clear();
        // The node last: it waits for its members to leave.
        while self.processes.pop().is_some() {}
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn begun(command: &mut Command, port: u16) -> Result<Group> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut group = Group::start(command).with_context(|| format!("cannot start {command:?}"))?;
    let until = Instant::now() + Duration::from_secs(15);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > until || group.process().try_wait()?.is_some() {
            bail!("it does not answer: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(group)
}

fn node(settings: &Settings) -> Result<(Group, String)> {
    let port = free_port()?;
    let mut command = Command::new(&settings.farmem);
    let lend = (3 * settings.data + (512 << 20)).to_string();
    let socket = std::env::temp_dir().join(format!("farmem-lab-kv-{}-{port}.sock", std::process::id()));
    let (tcp, shm) = (format!("127.0.0.1:{port}"), format!("unix:{}", socket.display()));
    command.args(["node", "--lend", &lend, "--listen", &tcp, "--listen", &shm]);
    let group = begun(&mut command, port)?;
    Ok((group, if settings.transport == "shm" { shm } else { tcp }))
}

fn redis(command: &mut Command, port: u16, maxmemory: Option<u64>) {
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    if let Some(most) = maxmemory {
        command.args(["--maxmemory", &most.to_string(), "--maxmemory-policy", "allkeys-lru"]);
    }
}

/// The store of this process, opened at a node.
///
/// # Errors
/// The node does not answer.
pub fn store(settings: &Settings, node: &str) -> Result<Store> {
    let usual = Config::of("lab", &[node]);
    Ok(Store::open_as(&Config { local: settings.local, maxmemory: settings.maxmemory, ..usual })?)
}

/// Starts a system, and connects to it.
///
/// # Errors
/// It does not start.
pub fn start(system: System, settings: &Settings) -> Result<Running> {
    let port = free_port()?;
    let (mut processes, mut address) = (Vec::new(), None);
    if let System::Front | System::Embedded | System::RunRedis = system {
        let (group, at) = node(settings)?;
        processes.push(group);
        address = Some(at);
    }
    let node = address.clone().unwrap_or_default();
    let local = settings.local.to_string();
    let mut command = match system {
        System::Embedded => {
            let mut wires: Vec<Box<dyn Wire>> = Vec::new();
            if settings.clients > 0 {
                wires.push(Box::new(store(settings, &node)?));
            }
            return Ok(Running { wires, port: None, node: address, processes });
        }
        System::Front => {
            let mut command = Command::new(&settings.farmem);
            command.args(["kv", "--name", "lab", "--node", &node, "--transport", settings.transport]);
            command.args(["--local", &local, "--listen", &format!("127.0.0.1:{port}")]);
            if let Some(most) = settings.maxmemory {
                command.args(["--maxmemory", &most.to_string()]);
            }
            command
        }
        System::Redis => {
            let mut command = Command::new("redis-server");
            redis(&mut command, port, settings.maxmemory);
            command
        }
        System::RunRedis => {
            let mut command = Command::new(&settings.farmem);
            command.args(["run", "--no-settings", "--stats", "none", "--local", &local, "--node", &node]);
            command.args(["--transport", settings.transport, "--", "redis-server"]);
            redis(&mut command, port, settings.maxmemory);
            command
        }
        System::Memcached => {
            let mut command = Command::new("memcached");
            let mib = settings.maxmemory.unwrap_or(2 * settings.data + (64 << 20)) >> 20;
            // Root must name a user. One thread, as the others have.
            command.args(["-u", "root", "-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-t", "1"]);
            command.args(["-m", &mib.to_string()]);
            command
        }
    };
    processes.push(begun(&mut command, port)?);
    let protocol = if system == System::Memcached { Protocol::Memcached } else { Protocol::Resp };
    let wires = (0..settings.clients)
        .map(|_| -> Result<Box<dyn Wire>> { Ok(Box::new(Socket::connect(protocol, port)?)) })
        .collect::<Result<Vec<_>>>()?;
    Ok(Running { wires, port: Some(port), node: address, processes })
}

/// The systems that cannot be measured here, and the program that each lacks.
pub fn missing(systems: &[System]) -> Vec<(System, &'static str)> {
    systems.iter().filter_map(|&system| Some((system, system.missing()?))).collect()
}
