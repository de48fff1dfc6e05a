//! Nodes for tests: within the test's process, or as processes that can be killed.

#![allow(dead_code, reason = "each test uses a part")]

use farmem::{Builder, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const SLAB: u64 = 64 << 20;
/// Says that the test's binary is to be a node, on so many MiB.
const IS_NODE: &str = "FARMEM_TEST_NODE";

fn socket() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("farmem-client-{}-{number}.sock", std::process::id()))
}

/// A node in this process that lends so many slabs: its tcp and its shm address.
pub fn node(slabs: u64) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket())];
    Node::start(&Config::new(slabs * SLAB, listen)).unwrap()
}

/// How nodes are reached.
pub const WAYS: [Transport; 2] = [Transport::Tcp, Transport::Shm];

pub fn address(node: &Node, way: Transport) -> String {
    let at = if way == Transport::Shm { 1 } else { 0 };
    node.addresses()[at].to_string()
}

pub fn builder(nodes: &[&Node], way: Transport) -> Builder {
    let named = nodes.iter().fold(Memory::builder(), |builder, node| builder.node(address(node, way)));
    named.transport(way).grace(Duration::from_secs(1))
}

/// A node as a process of its own. Killed when dropped.
pub struct Process {
    child: Child,
    pub tcp: String,
    pub shm: String,
}

impl Process {
    /// The test's binary has a test `node_process` that calls [`be_a_node`].
    pub fn start(slabs: u64) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["node_process", "--exact", "--nocapture"])
            .env(IS_NODE, slabs.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find(|line| line.contains("node at ")).unwrap();
        let addresses: Vec<&str> = line.split("node at ").nth(1).unwrap().split(' ').collect();
        Process { child, tcp: addresses[0].to_owned(), shm: addresses[1].to_owned() }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process that [`Process::start`] has started: is the node, until it is killed.
pub fn be_a_node() {
    let Ok(slabs) = std::env::var(IS_NODE) else { return };
    let node = node(slabs.parse::<u64>().unwrap());
    println!("node at {} {}", node.addresses()[0], node.addresses()[1]);
    // With the test that started it.
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::process::exit(0);
}

pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not so after 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
