//! The fabric's contract over a real node: shm, tcp, and tcp that turns out to be shm.

use farmem_fabric::contract::{self, Subject};
use farmem_fabric::nic::offer::Strategy;
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
fn every_strategy_holds_over_tcp_and_shm() {
    for strategy in [Strategy::Offloaded, Strategy::Prebound, Strategy::Rpc] {
        for (at, transport) in [(0, Transport::Tcp), (1, Transport::Shm)] {
            let node = node(&format!("{strategy:?}-{at}"));
            node.nic().offer(contract::strategies::offer(strategy)).unwrap();
            let subject = Subject {
                connect: &|options| {
                    Session::connect(&node.addresses()[at], &ConnectOptions { transport, ..options.clone() })
                },
                lent: &|| node.nic().lent(),
                pass: &|| std::thread::sleep(Duration::from_millis(1)),
            };
            contract::strategies::holds(&subject, strategy);
        }
    }
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

/// What a slow network does not take at once is told, and goes on with every look.
#[test]
#[expect(unsafe_code, reason = "a WRITE is of a buffer that the caller keeps")]
fn what_is_held_up_goes_on() {
    let node = node("held-up");
    let options = ConnectOptions {
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
        run: [1; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
    };
    let session = Session::connect_at_rate(&node.addresses()[0], &options, Some(20_000_000)).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    let (bytes, mut done) = (vec![7u8; 128 << 10], Vec::new());
    // SAFETY: the buffer outlives the queue pair.
    unsafe { queue.write(0, slab, 0, bytes.as_ptr(), bytes.len() as u32) };
    assert!(!queue.is_held_up(), "nothing was sent off");
    queue.doorbell().unwrap();
    assert!(queue.is_held_up(), "a link of 20 Mbit/s took 128 KiB at once");
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while queue.poll(&mut done).unwrap() == 0 {
        assert!(std::time::Instant::now() < until, "52 ms of sending took 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(done[0].result.is_ok() && !queue.is_held_up());
}
