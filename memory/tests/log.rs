//! The node's log: what its operator reads of members, and of floods.

mod common;

use common::{ask, greet, hello, status, within};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::log::Log;
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::{Ask, Status};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Standard error, as it is read.
#[derive(Clone, Default)]
struct Read(Arc<Mutex<Vec<u8>>>);

impl Write for Read {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }

    fn has(&self, what: &str) -> bool {
        self.lines().iter().any(|line| line.contains(what))
    }
}

fn start(verbose: bool) -> (Node, SocketAddr, Read, Log) {
    let node = Node::start(&Config::new(4 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())])).unwrap();
    let at = node.addresses()[0].to_string().parse().unwrap();
    let read = Read::default();
    let log = Log::start(node.nic(), verbose, Box::new(read.clone())).unwrap();
    (node, at, read, log)
}

fn join(node: &Node) -> Session {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(5),
        run: [1; 16],
        pid: 77,
        transport: Transport::Tcp,
        ..ConnectOptions::default()
    };
    Session::connect(&node.addresses()[0], &options).unwrap()
}

#[test]
fn who_joins_leaves_and_is_refused_has_a_line() {
    let (node, at, read, log) = start(false);
    let session = join(&node);
    session.grant().unwrap();
    session.fork_ticket().unwrap().abandon();
    drop(session);
    let mut impatient = TcpStream::connect(at).unwrap();
    greet(&mut impatient, &hello([2; 16], 0)).unwrap();
    drop(impatient);
    TcpStream::connect(at).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    within("all of it is told", || {
        read.has("farmem: refused: this machine: the peer does not speak farmem") && read.has("within its grace")
    });
    drop(log);
    let run = format!("{:016x}", farmem_protocol::wire::run_id(&[1; 16]));
    let of = |what: &str| read.lines().iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(of(&format!("farmem: joined: process 77 of this machine, run {run}")), 1);
    assert_eq!(of("farmem: joined: a child of process 77 of this machine"), 1);
    assert_eq!(of("farmem: left: process 77 of this machine: it said goodbye; it held 64.0 MiB"), 2);
    assert_eq!(of("farmem: left: process 4711 of this machine: its connection did not come back"), 1);
    assert_eq!(of("farmem: connected"), 0, "{:#?}", read.lines());
}

/// One that names the TCP address of a node on its machine goes over to the node's Unix socket.
#[test]
fn a_process_that_joins_by_both_transports_has_one_line() {
    let socket = std::env::temp_dir().join(format!("farmem-log-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket.clone())];
    let node = Node::start(&Config::new(4 * SLAB_BYTES, listen)).unwrap();
    let read = Read::default();
    let log = Log::start(node.nic(), false, Box::new(read.clone())).unwrap();
    let join = |pid| {
        let (timeout, grace) = (Duration::from_secs(30), Duration::from_secs(5));
        let options = ConnectOptions { timeout, grace, run: [1; 16], pid, ..ConnectOptions::default() };
        let at = node.addresses().iter().find(|at| matches!(at, NodeAddr::Tcp(_))).unwrap();
        let session = Session::connect(at, &options).unwrap();
        assert!(session.is_mapped());
        session
    };
    // One that only reads, and one that is granted memory.
    drop(join(77));
    let session = join(78);
    session.grant().unwrap();
    drop(session);
    within("it is told", || {
        read.has("left: process 78") && (read.has("came and went: process 77") || read.has("left: process 77"))
    });
    drop(log);
    let lines: Vec<String> = read.lines().iter().map(|line| line.replacen("farmem: ", "", 1)).collect();
    let of = |pid| lines.iter().filter(|line| line.contains(&format!("process {pid} "))).collect::<Vec<_>>();
    assert!(of(77).len() == 1 && of(77)[0].starts_with("came and went: process 77 of "), "{lines:#?}");
    assert!(of(78).len() == 2 && of(78)[0].starts_with("joined: ") && of(78)[1].starts_with("left: "), "{lines:#?}");
}

#[test]
fn with_v_slabs_and_connections_have_lines_too() {
    let (node, at, read, _log) = start(true);
    let session = join(&node);
    let slab = session.grant().unwrap();
    let queue = session.queue_pair().unwrap();
    session.release(slab.id).unwrap();
    drop((queue, session));
    let mut cut = TcpStream::connect(at).unwrap();
    greet(&mut cut, &hello([2; 16], 60_000)).unwrap();
    for number in 1..=4 {
        ask(&mut cut, number, Ask::Grant).unwrap();
    }
    assert_eq!(status(&mut cut, 5, Ask::Grant), Status::Exhausted);
    drop(cut);
    for line in ["connected: ", "granted: ", "released: ", "not granted: ", "cut off: "] {
        within(line, || read.has(&format!("farmem: {line}process ")));
    }
}

/// However many come: a few lines, and their number.
#[test]
fn a_flood_is_a_count() {
    let (_node, at, read, log) = start(false);
    let begun = Instant::now();
    for n in 0..300u16 {
        let mut stranger = TcpStream::connect(at).unwrap();
        let [low, high] = n.to_le_bytes();
        greet(&mut stranger, &hello([low, high, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7], 0)).unwrap();
    }
    within("the last has joined", || _node.nic().tally.joined.load(std::sync::atomic::Ordering::Relaxed) == 300);
    drop(log);
    let lines = read.lines();
    let counted: usize = lines
        .iter()
        .filter(|line| line.contains("more joined"))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap())
        .sum();
    let told = lines.iter().filter(|line| line.starts_with("farmem: joined: ")).count();
    assert_eq!(counted + told, 300, "{lines:#?}");
    assert!(told <= 11 + begun.elapsed().as_secs() as usize, "{told}");
}
