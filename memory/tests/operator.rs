//! What the operator of a node sees and does: counters, the status of limits, going down.

// Mapped memory is looked at as a program would.
#![allow(unsafe_code)]

use farmem_fabric::contract::put;
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node, StartError};
use farmem_protocol::addr::SLAB_BYTES;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn config() -> Config {
    Config {
        lend: 2 * SLAB_BYTES,
        listen: vec![NodeAddr::Tcp("127.0.0.1:0".into())],
        metrics: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grace: Duration::ZERO,
        huge: true,
        embedded: false,
        rdma: farmem_memory::Rdma::Off,
        status_dir: None,
    }
}

fn join(node: &Node) -> Result<Session, ConnectError> {
    join_run(node, [1; 16])
}

fn join_run(node: &Node, run: [u8; 16]) -> Result<Session, ConnectError> {
    let options = ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(5),
        run,
        pid: std::process::id(),
        transport: if matches!(node.addresses()[0], NodeAddr::Shm(_)) { Transport::Shm } else { Transport::Tcp },
    };
    Session::connect(&node.addresses()[0], &options)
}

fn fetch(at: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn counters_tell_what_was_done() {
    let node = Node::start(&config()).unwrap();
    let session = join(&node).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    put(&mut queue, slab, 0, &[1; 5000]).unwrap();
    let at = node.metrics().unwrap();
    let answer = fetch(at, "GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"));
    for line in [
        "farmem_node_lend_bytes 134217728",
        "farmem_node_lent_bytes 67108864",
        "farmem_node_members 1",
        "farmem_node_verbs_total{verb=\"write\"} 1",
        "farmem_node_write_bytes_total 5000",
        "# TYPE farmem_node_verbs_total counter",
    ] {
        assert!(answer.lines().any(|l| l == line), "{line} is not in\n{answer}");
    }
    assert!(fetch(at, "GET /nothing").starts_with("HTTP/1.1 404"));
    assert!(fetch(at, "POST /metrics").starts_with("HTTP/1.1 405"));
}

#[test]
fn a_node_that_goes_down_serves_the_runs_it_has_and_takes_no_more() {
    let node = Node::start(&config()).unwrap();
    let session = join(&node).unwrap();
    assert_eq!(node.drain(Duration::from_millis(50)), 1);
    assert!(matches!(join_run(&node, [2; 16]), Err(ConnectError::Draining(_))));
    // A program that a run starts now.
    drop(join(&node).unwrap());
    session.grant().unwrap();
    session.fork_ticket().unwrap().abandon();
    drop(session);
    assert_eq!(node.drain(Duration::from_secs(5)), 0);
}

#[test]
fn impossible_wishes_are_refused_at_start() {
    let tiny = Node::start(&Config { lend: 1 << 20, ..config() }).err();
    assert!(matches!(tiny, Some(StartError::TooLittle)));
    let vast = Node::start(&Config { lend: 1 << 60, ..config() }).err();
    assert!(matches!(vast, Some(StartError::TooMuch { .. })));
    let node = Node::start(&config()).unwrap();
    let taken = Node::start(&Config { listen: node.addresses().to_vec(), ..config() }).err();
    assert!(matches!(taken, Some(StartError::Listen(..))));
}

#[test]
fn a_node_that_ends_first_leaves_mapped_memory_as_it_is() {
    let socket = std::env::temp_dir().join(format!("farmem-operator-{}.sock", std::process::id()));
    let node = Node::start(&Config { listen: vec![NodeAddr::Shm(socket)], ..config() }).unwrap();
    let session = join(&node).unwrap();
    let slab = session.grant().unwrap();
    let mut queue = session.queue_pair().unwrap();
    put(&mut queue, slab.id, 4096, b"of a living program").unwrap();
    drop(node);
    let mut bytes = [0; 19];
    // SAFETY: the slab stays mapped until the session releases it.
    unsafe { slab.base.unwrap().add(4096).copy_to(std::ptr::NonNull::from(&mut bytes).cast(), bytes.len()) };
    assert_eq!(&bytes, b"of a living program");
    assert!(session.tend().is_err());
}

#[test]
fn a_file_where_a_socket_is_to_be_is_left_alone() {
    let dir = std::env::temp_dir().join(format!("farmem-operator-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let at = |name: &str| Config { listen: vec![NodeAddr::Shm(dir.join(name))], ..config() };
    std::fs::write(dir.join("file"), "somebody's").unwrap();
    assert!(matches!(Node::start(&at("file")).err(), Some(StartError::Listen(..))));
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "somebody's");
    // What a killed node left is taken over; what lies there when a node ends, and is not its own, stays.
    drop(std::os::unix::net::UnixListener::bind(dir.join("left")).unwrap());
    let node = Node::start(&at("left")).unwrap();
    std::fs::rename(dir.join("file"), dir.join("left")).unwrap();
    drop(node);
    assert_eq!(std::fs::read_to_string(dir.join("left")).unwrap(), "somebody's");
    std::fs::remove_dir_all(&dir).unwrap();
}
