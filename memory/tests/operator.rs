//! What the operator of a node sees and does: counters, the status of limits, going down.

// Mapped memory is looked at as a program would.
#![allow(unsafe_code)]

use farmem_contract::put;
use farmem_fabric::words::Words;
use farmem_fabric::{ConnectError, ConnectOptions, GrantError, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node, StartError};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::{Actor, Claimant, Claimer, Failed, Level, Owner, Release, Want};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn config() -> Config {
    Config {
        metrics: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        huge: true,
        ..Config::new(2 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())])
    }
}

fn join(node: &Node) -> Result<Session, ConnectError> {
    join_run(node, [1; 16])
}

fn join_run(node: &Node, run: [u8; 16]) -> Result<Session, ConnectError> {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(5),
        run,
        pid: std::process::id(),
        transport: if matches!(node.addresses()[0], NodeAddr::Shm(_)) { Transport::Shm } else { Transport::Tcp },
        ..ConnectOptions::default()
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

/// A supervisor that waits for the node's port asks for its counters the moment it is there.
#[test]
fn who_can_reach_the_node_can_ask_for_its_counters() {
    let free =
        |octet| std::net::TcpListener::bind(SocketAddr::from(([127, 0, octet, 9], 0))).unwrap().local_addr().unwrap();
    for _ in 0..50 {
        let (at, counters) = (free(1), free(2));
        // It listens at one address after another.
        let others = (0..64).map(|_| "127.0.0.1:0".to_owned());
        let listen = std::iter::once(at.to_string()).chain(others).map(NodeAddr::Tcp).collect();
        let config = Config { metrics: Some(counters), listen, ..config() };
        let (begun, asked) = (Instant::now(), Duration::from_secs(20));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                while TcpStream::connect(at).is_err() && begun.elapsed() < asked {}
                TcpStream::connect(counters)
            });
            let node = Node::start(&config).unwrap();
            waiting.join().unwrap().expect("the node listens, and so do its counters");
            drop(node);
        });
    }
}

/// Somebody who says his request a byte at a time has as long as everybody, not as long for each byte.
#[test]
fn who_drips_his_request_keeps_nobody_waiting() {
    let node = Node::start(&config()).unwrap();
    let at = node.metrics().unwrap();
    let mut slow = TcpStream::connect(at).unwrap();
    slow.write_all(b"G").unwrap();
    std::thread::scope(|scope| {
        let dripping = scope.spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) && slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let begun = Instant::now();
        assert!(fetch(at, "GET /metrics").starts_with("HTTP/1.1 200 OK"));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        dripping.join().unwrap();
    });
}

/// Nor do those who connect and say nothing, as browsers do ahead of their users, however many.
#[test]
fn who_says_nothing_keeps_nobody_waiting() {
    let node = Node::start(&config()).unwrap();
    let at = node.metrics().unwrap();
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    let begun = Instant::now();
    assert!(fetch(at, "GET /metrics").starts_with("HTTP/1.1 200 OK"));
    // One after the other they would have had two seconds each.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(silent);
    assert!(fetch(at, "GET /metrics?collect[]=all").starts_with("HTTP/1.1 200 OK"));
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

/// Of a run's slabs, and of what a process claims by itself: to the byte, and told as what it is.
#[test]
fn an_owner_holds_no_more_than_its_quota() {
    let config = Config::new(4 * SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    let node = Node::start(&Config { quota: Some(SLAB_BYTES + (3 << 20)), ..config }).unwrap();
    let one = join_run(&node, [1; 16]).unwrap();
    let slab = one.grant().unwrap().id;
    let refused = one.grant().unwrap_err();
    assert!(matches!(refused, GrantError::Quota { quota_mib: 67, of_tenant: false, .. }), "{refused}");
    // Of the same run, though another process; and of another run.
    assert!(matches!(join_run(&node, [1; 16]).unwrap().grant(), Err(GrantError::Quota { .. })));
    let other = join_run(&node, [2; 16]).unwrap();
    other.grant().unwrap();
    one.release(slab).unwrap();
    one.grant().unwrap();

    let mut queue = other.queue_pair().unwrap();
    let mut words = Words::open(&mut queue).unwrap();
    let actor = Actor::new(Owner::new(other.owner()), Claimant::new(0));
    let mut claimer = Claimer::new(actor, words.geometry());
    let mut held = Vec::new();
    let refused = loop {
        claimer.begin(Want::one(Level::Block));
        match words.run(&mut queue, &mut claimer).unwrap() {
            Ok(grants) => held.extend(grants),
            Err(failed) => break failed,
        }
    };
    assert_eq!((refused, held.len()), (Failed::OverQuota, 33));
    let mut release = [Release::new(actor, held[7]), Release::new(actor, held[8])];
    assert_eq!(words.run_each(&mut queue, &mut release).unwrap(), [Ok(()), Ok(())]);
    claimer.begin(Want::run(&words.geometry(), Level::Block, 3).unwrap());
    assert_eq!(words.run(&mut queue, &mut claimer).unwrap(), Err(Failed::OverQuota), "two, but not three");
    claimer.begin(Want::some(Level::Block, 2));
    assert_eq!(words.run(&mut queue, &mut claimer).unwrap().map(|grants| grants.len()), Ok(2));
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
    let none = Node::start(&Config { quota: Some(1), ..config() }).err();
    assert!(matches!(none, Some(StartError::LittleQuota)));
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
    let refused = Node::start(&at("file")).err().unwrap().to_string();
    assert!(refused.starts_with("cannot listen on unix:") && refused.contains("no socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "somebody's");
    // What a killed node left is taken over; what lies there when a node ends, and is not its own, stays.
    drop(std::os::unix::net::UnixListener::bind(dir.join("left")).unwrap());
    let node = Node::start(&at("left")).unwrap();
    std::fs::rename(dir.join("file"), dir.join("left")).unwrap();
    drop(node);
    assert_eq!(std::fs::read_to_string(dir.join("left")).unwrap(), "somebody's");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A slab takes memory block by block, as it is used, and the node takes it: its memory group pays.
#[test]
fn a_slab_takes_the_memory_of_the_blocks_that_were_asked_for() {
    let socket = std::env::temp_dir().join(format!("farmem-backed-{}.sock", std::process::id()));
    let node = Node::start(&Config::new(SLAB_BYTES, vec![NodeAddr::Shm(socket)])).unwrap();
    let session = join(&node).unwrap();
    let slab = session.grant().unwrap();
    assert_eq!(node.nic().in_use(), 0);
    session.back(slab.id, 2 << 20, 2 << 20).unwrap();
    session.back(slab.id, SLAB_BYTES - 4096, 4096).unwrap();
    assert_eq!(node.nic().in_use(), (2 << 20) + 4096);
    // A block is taken once.
    session.back(slab.id, 2 << 20, 2 << 20).unwrap();
    assert_eq!(node.nic().in_use(), (2 << 20) + 4096);
    assert!(session.discard(slab.id, 2 << 20, 2 << 20).unwrap());
    assert_eq!(node.nic().in_use(), 4096);
}

/// A member that asks for more than a block at once, or beyond its slab, is one that breaks the rules.
#[test]
fn no_more_is_backed_than_a_block_at_once() {
    for (offset, len) in [(0, 0), (0, (2 << 20) + 4096), (SLAB_BYTES, 4096), (u64::MAX - 4095, 4096), (100, 4096)] {
        let node = Node::start(&config()).unwrap();
        let session = join(&node).unwrap();
        let slab = session.grant().unwrap();
        assert!(session.back(slab.id, offset, len).is_err(), "{offset} {len}");
        assert_eq!(node.nic().in_use(), 0, "{offset} {len}");
    }
}
