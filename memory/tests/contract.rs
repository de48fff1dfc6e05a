//! The fabric's contract over a real node: shm, tcp, and tcp that turns out to be shm.

use farmem_contract::{self as contract, Subject};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use std::time::Duration;

fn node(name: &str) -> Node {
    let path = std::env::temp_dir().join(format!("farmem-contract-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    Node::start(&Config::new(
        contract::SLABS as u64 * SLAB_BYTES,
        vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(path)],
    ))
    .unwrap()
}

fn holds(node: &Node, addr: &NodeAddr, transport: Transport, mapped: bool) {
    contract::hold(&Subject {
        connect: &|options| {
            let session = Session::connect(addr, &ConnectOptions { transport, ..options.clone() })?;
            assert_eq!(session.is_mapped(), mapped);
            Ok(session)
        },
        lent: &|| node.nic().lent(),
        pass: &|| std::thread::sleep(Duration::from_millis(1)),
    });
}

#[test]
fn tcp_holds_the_contract() {
    let node = node("tcp");
    holds(&node, &node.addresses()[0], Transport::Tcp, false);
}

#[test]
fn shm_holds_the_contract() {
    let node = node("shm");
    holds(&node, &node.addresses()[1], Transport::Auto, true);
}

#[test]
fn a_near_node_is_found_to_share_memory() {
    let node = node("auto");
    holds(&node, &node.addresses()[0], Transport::Auto, true);
}
