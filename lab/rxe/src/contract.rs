//! The fabric's contract over RDMA: the suite that every back end passes, between a node and hosts in this
//! process.

use crate::{half, revoked};
use farmem_contract::{self as contract, Subject};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node, Rdma};
use farmem_protocol::addr::SLAB_BYTES;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A node that offers a card.
pub fn node(slabs: usize) -> Result<Node, String> {
    Node::start(&Config {
        rdma: Rdma::Auto,
        ..Config::new(slabs as u64 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())])
    })
    .map_err(|e| e.to_string())
}

/// Runs the suite; says each test's name and time.
pub fn hold() -> Result<(), String> {
    let node = node(contract::SLABS)?;
    println!("node offers {:?}", node.nic().card());
    let joined = std::cell::Cell::new(0);
    contract::hold(&Subject {
        connect: &|options| {
            let options = ConnectOptions { transport: Transport::Verbs, ..options.clone() };
            let session = Session::connect(&node.addresses()[0], &options)?;
            assert!(session.is_wired());
            joined.set(joined.get() + 1);
            Ok(session)
        },
        lent: &|| node.nic().lent(),
        pass: &|| std::thread::sleep(Duration::from_millis(1)),
    });
    let on_card = node.nic().tally.carved.load(Ordering::Relaxed);
    println!("the contract holds over RDMA: {} members joined, {on_card} windows bound on the card", joined.get());
    if on_card == 0 {
        return Err("no window was the card's".into());
    }
    revoked::hold(&node)?;
    half::hold(&node)
}
