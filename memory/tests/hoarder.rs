//! A local client that takes nothing of what it is sent: descriptors on their way are few for each user, and those of
//! the node's other clients must find room. `FARMEM_TEST_LONG=1` makes five times as many rounds.

// Sockets are asked for what waits in them, and slabs are mapped.
#![allow(unsafe_code)]

mod common;

use common::{greet, hello, say, within};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::control::MAX_REQUEST;
use farmem_protocol::wire::{Answer, Ask, Reply};
use farmem_sys::socket;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// More than a connection may have waiting, in the node and on their way.
const ASKED: u64 = 100;

fn start(name: &str) -> (Node, PathBuf) {
    let path = std::env::temp_dir().join(format!("farmem-hoarder-{name}-{}.sock", std::process::id()));
    let node = Node::start(&Config::new(4 * SLAB_BYTES, vec![NodeAddr::Shm(path.clone())])).unwrap();
    (node, path)
}

/// Joins, and has one slab, whose descriptor it takes.
fn join(path: &Path) -> (UnixStream, SlabId) {
    let mut stream = UnixStream::connect(path).unwrap();
    greet(&mut stream, &hello([9; 16], 0)).unwrap();
    say(&mut stream, 2, Ask::Grant);
    let (answer, descriptor) = take(&stream);
    drop(descriptor.expect("a slab's descriptor"));
    match answer.result {
        Ok(Reply::Slab(slab)) => (stream, slab),
        other => panic!("{other:?}"),
    }
}

fn take(stream: &UnixStream) -> (Answer, Option<socket::Passed>) {
    let mut bytes = [0; MAX_REQUEST];
    assert_ne!(socket::wait(stream.as_raw_fd(), true, false, 10_000_000_000), 0, "nothing came in 10 s");
    let (n, descriptor) = socket::receive_with_descriptor(stream.as_raw_fd(), &mut bytes).unwrap();
    // A frame with a descriptor goes alone.
    let (answer, used) = Answer::read(&bytes[..n]).unwrap().expect("a whole answer");
    assert_eq!(used, n);
    (answer, descriptor)
}

/// Bytes of an answer of small number that says no more than that it was done.
fn answered() -> usize {
    Answer { number: 3, epoch: 0, result: Ok(Reply::Done) }.frame().as_bytes().len()
}

fn take_all(stream: &UnixStream, first: u64) {
    for number in first..first + ASKED {
        let (answer, descriptor) = take(stream);
        assert_eq!(answer.number, number);
        drop(descriptor.expect("a slab's descriptor"));
    }
}

fn waiting(stream: &UnixStream) -> usize {
    let mut bytes = 0i32;
    // SAFETY: the kernel fills a live int.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &mut bytes) }, 0);
    bytes as usize
}

#[test]
fn what_is_not_taken_is_not_sent() {
    let (node, path) = start("takes-none");
    let (mut hoarder, slab) = join(&path);
    for number in 0..ASKED {
        say(&mut hoarder, 3 + number, Ask::Again(slab));
    }
    let until = Instant::now() + Duration::from_secs(10);
    while waiting(&hoarder) == 0 {
        assert!(Instant::now() < until, "nothing came in 10 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Others are served meanwhile, and one descriptor is on its way to the hoarder, however long that takes.
    let options = ConnectOptions {
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
        run: [1; 16],
        pid: std::process::id(),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    };
    let session = Session::connect(&node.addresses()[0], &options).unwrap();
    let granted = session.grant().unwrap();
    session.release(granted.id).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(waiting(&hoarder), answered());
    // It changes its mind: nothing is lost.
    take_all(&hoarder, 3);
    // Nor where it takes them as fast as they come, so that all that waits is gone at once: what it has asked besides is
    // with the node already, and no more comes.
    let rounds = if std::env::var_os("FARMEM_TEST_LONG").is_some() { 200 } else { 40 };
    for round in 1..rounds {
        let first = 3 + round * ASKED;
        for number in 0..ASKED {
            say(&mut hoarder, first + number, Ask::Again(slab));
        }
        take_all(&hoarder, first);
    }
    drop(session);
    drop(node);
    let _ = std::fs::remove_file(path);
}

/// Nor is any number of descriptors on its way to a client that ends one connection after the other, by whichever way, and
/// keeps its halves of them.
#[test]
fn what_is_not_taken_counts_as_a_connection_until_it_is() {
    let (node, path) = start("ends");
    let ends: [fn(&mut UnixStream); 3] = [
        |stream| stream.shutdown(Shutdown::Write).unwrap(),
        |stream| say(stream, 4, Ask::Bye),
        |stream| stream.write_all(&[0xEE; 40]).unwrap(),
    ];
    let mut hoarded: Vec<UnixStream> = Vec::new();
    for end in ends {
        let (mut stream, slab) = join(&path);
        say(&mut stream, 3, Ask::Again(slab));
        within("the descriptor is on its way", || waiting(&stream) == answered());
        end(&mut stream);
        hoarded.push(stream);
        within("the member is gone", || node.nic().members().is_empty());
        assert_eq!(node.connections(), hoarded.len());
    }
    // Somebody who takes it, if late, has it, and sees the end behind it; somebody who closes his end has had it.
    let mut late = hoarded.remove(0);
    drop(take(&late).1.expect("a slab's descriptor"));
    assert_eq!(late.read(&mut [0; 1]).unwrap(), 0);
    within("it is taken", || node.connections() == hoarded.len());
    hoarded.clear();
    within("they are closed", || node.connections() == 0);
    drop(node);
    let _ = std::fs::remove_file(path);
}
