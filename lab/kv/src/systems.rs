//! The systems, each started anew for a round and ended with it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::generator::Reach;
use crate::wire::Protocol;
use anyhow::{Context, Result, bail};
use farmem_bench::swap;
use farmem_kit::supervise::Group;
use farmem_kv::{Config, Store};

/// A system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// The store behind front ends, `farmem kv`, one for each generator
    Front,
    /// The store within the generators' processes
    Embedded,
    /// redis-server, all in its own memory
    Redis,
    /// memcached, all in its own memory
    Memcached,
    /// memcached, with as much memory as the store and the rest in a file
    Extstore,
    /// redis-server under `farmem run`, with as much local memory as the store has
    RunRedis,
    /// redis-server in a memory group of that size, which swaps to zram
    ZramRedis,
}

impl System {
    /// All, in the order of the tables.
    pub const ALL: [System; 7] = [
        System::Front,
        System::Embedded,
        System::Redis,
        System::Memcached,
        System::Extstore,
        System::RunRedis,
        System::ZramRedis,
    ];

    /// Heads a column.
    pub fn name(self) -> &'static str {
        match self {
            System::Front => "farmem kv",
            System::Embedded => "embedded",
            System::Redis => "redis",
            System::Memcached => "memcached",
            System::Extstore => "extstore",
            System::RunRedis => "redis in run",
            System::ZramRedis => "redis on zram",
        }
    }

    /// Why it cannot be measured here, if so.
    pub fn missing(self) -> Option<String> {
        let program = match self {
            System::Front | System::Embedded => return None,
            System::Redis | System::RunRedis | System::ZramRedis => "redis-server",
            System::Memcached | System::Extstore => "memcached",
        };
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        let here = std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file());
        (!here).then(|| format!("{program} is not here: tests/peers.sh installs it"))
    }

    /// Whether it can hold values of this size beyond its memory.
    pub fn holds(self, bytes: usize) -> bool {
        // Of a smaller item nearly as much stays in memory as goes to the file.
        self != System::Extstore || bytes >= 1024
    }
}

/// How they are started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary of farmem, which is also the generators'.
    pub farmem: PathBuf,
    /// How bytes reach the node: "tcp" or "shm".
    pub transport: &'static str,
    /// Bytes of all keys and values.
    pub data: u64,
    /// Bytes of local memory, where some are far.
    pub local: u64,
    /// Bytes that a system may hold, which evicts beyond.
    pub maxmemory: Option<u64>,
    /// Connections.
    pub clients: usize,
    /// Generators, and front ends of a store.
    pub processes: usize,
}

/// A system that runs.
pub struct Running<'a> {
    /// Ways to it, one for each generator.
    pub ways: Vec<Reach>,
    processes: Vec<Group>,
    files: Option<PathBuf>,
    swap: Option<(swap::Group, swap::On<'a>)>,
}

impl Running<'_> {
    /// Its processes.
    pub fn processes(&mut self) -> Vec<u32> {
        self.processes.iter_mut().map(|group| group.process().id()).collect()
    }

    /// Whether the kernel has killed one of them because its memory group found no room.
    pub fn killed(&self) -> bool {
        self.swap.as_ref().is_some_and(|(group, _)| group.killed() > 0)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // The node last: it waits for its members to leave.
        while self.processes.pop().is_some() {}
        if let Some(file) = &self.files {
            let _ = std::fs::remove_file(file);
        }
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

/// A node of its own, and the address at which it is reached.
pub(crate) fn node(settings: &Settings) -> Result<(Group, String)> {
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

/// A store of this process, opened at a node.
///
/// # Errors
/// The node does not answer.
pub fn store(local: u64, maxmemory: Option<u64>, node: &str) -> Result<Store> {
    let usual = Config::of("lab", &[node]);
    Ok(Store::open_as(&Config { local, maxmemory, ..usual })?)
}

/// Bytes that redis has beside keys and values: 3 MiB when it is empty, and some of the kernel.
const REDIS: u64 = 4 << 20;

fn front(settings: &Settings, node: &str, port: u16) -> Command {
    let mut command = Command::new(&settings.farmem);
    command.args(["kv", "--name", "lab", "--node", node, "--transport", settings.transport]);
    // Of all front ends together.
    let local = settings.local / settings.processes.max(1) as u64;
    command.args(["--local", &local.to_string(), "--listen", &format!("127.0.0.1:{port}")]);
    if let Some(most) = settings.maxmemory {
        command.args(["--maxmemory", &most.to_string()]);
    }
    command
}

fn memcached(port: u16, bytes: u64) -> Command {
    let mut command = Command::new("memcached");
    // Root must name a user. One thread, as the others have.
    command.args(["-u", "root", "-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-t", "1"]);
    command.args(["-m", &(bytes >> 20).max(1).to_string()]);
    command
}

/// Starts a system. `zram` is what a memory group may swap to.
///
/// # Errors
/// It does not start.
pub fn start<'a>(system: System, settings: &Settings, zram: Option<&'a swap::Area>) -> Result<Running<'a>> {
    let mut running = Running { ways: Vec::new(), processes: Vec::new(), files: None, swap: None };
    let mut at = String::new();
    if let System::Front | System::Embedded | System::RunRedis = system {
        let (group, address) = node(settings)?;
        running.processes.push(group);
        at = address;
    }
    let count = settings.processes.max(1);
    if system == System::Embedded {
        let local = settings.local / count as u64;
        running.ways = vec![Reach::Library { node: at, local }; count];
        return Ok(running);
    }
    if system == System::Front {
        for _ in 0..count {
            let port = free_port()?;
            running.processes.push(begun(&mut front(settings, &at, port), port)?);
            running.ways.push(Reach::Port(Protocol::Resp, port));
        }
        return Ok(running);
    }
    let port = free_port()?;
    let mut command = match system {
        System::Memcached => memcached(port, settings.maxmemory.unwrap_or(2 * settings.data + (64 << 20))),
        System::Extstore => {
            let mut command = memcached(port, settings.local + (16 << 20));
            let file = std::env::temp_dir().join(format!("farmem-lab-kv-{}-{port}.ext", std::process::id()));
            let size = ((2 * settings.data) >> 20) + 512;
            command.args(["-o", &format!("ext_path={}:{size}m", file.display())]);
            running.files = Some(file);
            command
        }
        System::RunRedis => {
            let mut command = Command::new(&settings.farmem);
            command.args(["run", "--no-settings", "--stats", "none", "--local", &settings.local.to_string()]);
            command.args(["--node", &at, "--transport", settings.transport, "--", "redis-server"]);
            command
        }
        System::ZramRedis => {
            let group = swap::Group::new(settings.local + REDIS)?;
            let on = zram.context("there is no zram")?.on()?;
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec redis-server \"$@\""]).arg(group.path());
            running.swap = Some((group, on));
            command
        }
        _ => Command::new("redis-server"),
    };
    let protocol = match system {
        System::Memcached | System::Extstore => Protocol::Memcached,
        _ => {
            redis(&mut command, port, settings.maxmemory);
            Protocol::Resp
        }
    };
    running.processes.push(begun(&mut command, port)?);
    running.ways = vec![Reach::Port(protocol, port); count];
    Ok(running)
}
