//! A node within the test's process.

use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use std::sync::atomic::{AtomicU32, Ordering};

const SLAB: u64 = 64 << 20;

/// It lends four slabs, by tcp and by shm.
pub fn node() -> Node {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("farmem-objects-{}-{number}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    Node::start(&Config::new(4 * SLAB, listen)).unwrap()
}

/// Where it is reached so.
pub fn address(node: &Node, way: Transport) -> String {
    node.addresses()[(way == Transport::Shm) as usize].to_string()
}
