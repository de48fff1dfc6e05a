//! A node in this process, agents and applications as processes of their own.
//!
//! A child is this test binary again, told by the environment what to be (the test
//! `a_child`, which is none).

#![allow(dead_code)] // Each test file is a program of its own, and uses a part.

pub mod liar;
pub mod pieces;
pub mod programs;
pub mod stranger;

use farmem_agent::client::{Client, Options};
use farmem_agent::host::{self, Agent, Config};
use farmem_agent::serve::MoveError;
use farmem_agent::stock::Quotas;
use farmem_fabric::{NodeAddr, Transport, Trust};
use farmem_memory::Node;
use farmem_protocol::extent::check::{Recount, recount};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything takes on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A directory, a node that lends memory, and, as asked, an agent.
pub struct Host {
    pub dir: PathBuf,
    pub node: Node,
    agents: Vec<Process>,
}

impl Host {
    pub fn new(lend_mib: u64) -> Host {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-agent-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let listens = vec![NodeAddr::Shm(dir.join("node.sock")), NodeAddr::Tcp("127.0.0.1:0".into())];
        let node = Node::start(&farmem_memory::Config::new(lend_mib << 20, listens));
        Host { dir, node: node.unwrap(), agents: Vec::new() }
    }

    /// Starts an agent in a process of its own, in place of the one before, if any; waits until it
    /// listens.
    pub fn agent(&mut self, arguments: &str) {
        let said = self.dir.join("agent.says");
        let _ = std::fs::remove_file(&said);
        let agent = Process::start(&format!("agent {} {arguments}", self.dir.display()));
        within("the agent listens", || said.exists());
        self.agents.push(agent);
    }

    /// An agent of the same node with files of its own, in a directory of this name: another
    /// host's, so to speak.
    pub fn beside(&self, name: &str, arguments: &str) -> Beside {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let said = dir.join("agent.says");
        let _ = std::fs::remove_file(&said);
        let agent = Process::start(&format!("agent {} node={} {arguments}", dir.display(), self.dir.display()));
        within("the agent listens", || said.exists());
        Beside { agent, dir }
    }

    /// Tells its agent to move to another node.
    pub fn move_to(&self, other: &Host) {
        let part = self.dir.join("move-to.part");
        std::fs::write(&part, other.node.addresses()[1].to_string()).unwrap();
        std::fs::rename(part, self.dir.join("move-to")).unwrap();
    }

    /// Whether the move to another node has ended.
    pub fn has_moved(&self, other: &Host) -> bool {
        let to = std::fs::read_to_string(self.dir.join("moved")).unwrap_or_default();
        to == other.node.addresses()[1].to_string()
    }

    /// Every word of the node, counted: nothing may be wrong.
    pub fn recount(&self) -> Recount {
        let pool = &self.node.nic().units;
        let sum = recount(pool.geometry(), &pool.words);
        assert_eq!(sum.problems, []);
        assert_eq!(sum.total(), pool.geometry().lent_bytes() / 4096);
        sum
    }

    /// What the last agent said at its start.
    pub fn agent_said(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.says")).unwrap_or_default()
    }

    /// Starts an agent that reaches the node as if it were on another machine.
    pub fn agent_elsewhere(&mut self, arguments: &str) {
        let at = self.node.addresses()[1].to_string();
        self.agent(&format!("tcp={at} {arguments}"));
    }

    pub fn kill_agent(&mut self) {
        self.agents.pop().expect("an agent").kill();
    }

    pub fn agent_pid(&self) -> u32 {
        self.agents.last().expect("an agent").0.id()
    }

    pub fn socket(&self) -> PathBuf {
        host::socket(&self.dir)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.options("")).unwrap()
    }

    pub fn options(&self, job: &str) -> Options {
        Options { socket: self.socket(), job: job.into(), patience: LIMIT, start: None }
    }

    /// A program that uses the agent.
    pub fn program(&self, work: &str) -> Process {
        Process::start(&format!("{work} {}", self.dir.display()))
    }

    /// Bytes the node has lent.
    pub fn lent(&self) -> u64 {
        self.node.nic().lent()
    }

    /// Bytes really taken.
    pub fn used(&self) -> u64 {
        self.node.nic().in_use()
    }
}

/// One of several agents of a node.
pub struct Beside {
    pub agent: Process,
    pub dir: PathBuf,
}

impl Beside {
    pub fn client(&self) -> Client {
        let (socket, job) = (host::socket(&self.dir), String::new());
        Client::connect(Options { socket, job, patience: LIMIT, start: None }).unwrap()
    }

    pub fn program(&self, work: &str) -> Process {
        Process::start(&format!("{work} {}", self.dir.display()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.agents.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Waits until a churner that was started in this directory is at work.
pub fn at_work(dir: &Path, churner: &Process) {
    let told = dir.join(format!("churns-{}", churner.0.id()));
    within("it works", || told.exists());
}

/// A child, killed when dropped.
pub struct Process(pub Child);

impl Process {
    pub fn start(what: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["a_child", "--exact", "--nocapture", "--test-threads=1"]).env("FARMEM_AGENT_TEST_CHILD", what);
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Whether it ended by itself, and well.
    pub fn ended_well(&mut self) -> bool {
        within("the program ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What this process is to be, if it is a child: its words.
pub fn child() -> Option<Vec<String>> {
    let what = std::env::var("FARMEM_AGENT_TEST_CHILD").ok()?;
    Some(what.split_whitespace().map(str::to_owned).collect())
}

/// An agent until it is killed: `agent DIR [node=DIR | tcp=ADDR] [quota=MIB] [job=NAME:MIB]
/// [idle=MS] [grace=MS]`. It moves to the node that the file `move-to` in its directory names.
pub fn be_agent(words: &[String]) {
    let dir = PathBuf::from(&words[1]);
    let (mut quotas, mut idle) = (Quotas::default(), None);
    let (mut node, mut grace) = (NodeAddr::Shm(dir.join("node.sock")), Duration::from_secs(10));
    for word in &words[2..] {
        let (name, value) = word.split_once('=').unwrap();
        match name {
            "quota" => quotas.each = Some(value.parse::<u64>().unwrap() << 20),
            "job" => {
                let (job, mib) = value.split_once(':').unwrap();
                let tenant = (farmem_sys::process::user(), job.to_owned());
                quotas.named.insert(tenant, mib.parse::<u64>().unwrap() << 20);
            }
            "node" => node = NodeAddr::Shm(PathBuf::from(value).join("node.sock")),
            "tcp" => node = NodeAddr::Tcp(value.into()),
            "grace" => grace = Duration::from_millis(value.parse().unwrap()),
            "idle" => idle = Some(Duration::from_millis(value.parse().unwrap())),
            _ => panic!("{word}"),
        }
    }
    let config =
        Config { dir: dir.clone(), node, transport: Transport::Tcp, quotas, idle, grace, trust: Trust::default() };
    // A killed agent's lock is free as soon as the kernel has closed it.
    let until = Instant::now() + LIMIT;
    let agent = loop {
        match Agent::start(config.clone()) {
            Ok(agent) => break agent,
            Err(host::StartError::Running(_)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => panic!("{e}"),
        }
    };
    std::fs::write(dir.join("agent.part"), format!("recovered {}", agent.recovered)).unwrap();
    std::fs::rename(dir.join("agent.part"), dir.join("agent.says")).unwrap();
    let state = dir.join("agent.report");
    let (mover, order, has_moved) = (agent.mover(), dir.join("move-to"), dir.join("moved"));
    std::thread::spawn(move || {
        let mut last = String::new();
        loop {
            let to = std::fs::read_to_string(&order).unwrap_or_default();
            if !to.is_empty() && to != last {
                match mover.to(&NodeAddr::Tcp(to.clone())) {
                    Ok(_) => {
                        std::fs::write(&has_moved, &to).unwrap();
                        last = to;
                    }
                    Err(e) => {
                        assert!(matches!(e, host::StartError::Move(MoveError::Room)), "{e}");
                        tell(&dir, "waits-for-room");
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    agent.run(&mut |report| drop(std::fs::write(&state, format!("{report:?}")))).unwrap();
    agent.close();
}

/// Waits for a condition.
pub fn within(what: &str, condition: impl FnMut() -> bool) {
    within_of(LIMIT, what, condition);
}

/// Waits for a condition, at most `limit`; returns how long it took.
pub fn within_of(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "not so within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    begun.elapsed()
}

/// Says to the parent that this child is so far, in a file of its directory.
pub fn tell(dir: &Path, what: &str) {
    std::fs::write(dir.join(what), "").unwrap();
}
