//! Peers that ask for much and take nothing, or acknowledge nothing.

// A socket is made deaf.
#![allow(unsafe_code)]

mod common;

use common::{ask, greet, hello, within};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Ask, Batch, Hello, Known, MAX_VERB_BYTES, MAX_VERBS, Op, Purpose, Reply, Verb, Welcome};
use farmem_tests::process::unsent;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Connections that take nothing.
const MANY: u64 = 200;
/// Bytes that the kernel may have waiting for all of them. Without a bound it has 1.4 MiB for each.
const MOST: u64 = 120 << 20;

/// Those that acknowledge nothing have acknowledged much before, so that the kernel has more under way
/// for them: without a bound 0.9 MiB for each here, and up to 4 MiB where a network is slow.
const MOST_UNACKNOWLEDGED: u64 = 340 << 20;
const DEAF: u64 = 600;

/// A node, a member of it and a slab of that.
struct Lent {
    _node: Node,
    _member: TcpStream,
    at: String,
    port: u16,
    known: Known,
    /// A READ of the slab.
    read: Verb,
}

impl Lent {
    fn new() -> Lent {
        farmem_sys::process::raise_descriptor_limit();
        let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
        let node = Node::start(&Config::new(SLAB_BYTES, listen)).unwrap();
        let at = node.addresses()[0].to_string();
        let port = at.rsplit(':').next().unwrap().parse().unwrap();
        let mut member = TcpStream::connect(&at).unwrap();
        let Welcome { secret, incarnation, .. } = greet(&mut member, &hello([7; 16], 0)).unwrap();
        let known = Known { secret, incarnation };
        let Ok(Reply::Slab(slab)) = ask(&mut member, 1, Ask::Grant) else { panic!("no slab") };
        let (key, len) = (Key::from(slab).0.into(), MAX_VERB_BYTES.into());
        let read = Verb { op: Op::Read as u8, zero: [0; 3], len, key, offset: 0.into() };
        Lent { _node: node, _member: member, at, port, known, read }
    }

    fn hello(&self, queue: u64) -> Hello {
        Hello::new(Purpose::Attach(self.known, queue))
    }

    fn attach(&self, queue: u64) -> TcpStream {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        greet(&mut stream, &self.hello(queue)).unwrap();
        stream
    }

    /// READs, so many, the first of which has this number.
    fn asked(&self, reads: usize, first: u64) -> Vec<u8> {
        let batch = Batch { count: (reads as u16).into(), zero: 0.into(), bytes: 0.into(), first: first.into() };
        [batch.as_bytes(), &self.read.as_bytes().repeat(reads)].concat()
    }

    /// Bytes that wait for the node's peers, acknowledged by none, when no more come.
    fn waiting(&self) -> u64 {
        let (mut before, mut same) = (0, 0);
        within("the sockets are full", || {
            std::thread::sleep(Duration::from_millis(50));
            let now = unsent(self.port);
            same = if now == before && now > 0 { same + 1 } else { 0 };
            before = now;
            same == 10
        });
        before
    }

    /// Another's READs come as they are asked for: 128 MiB.
    fn serves(&self, queue: u64) {
        let begun = Instant::now();
        let mut other = self.attach(queue);
        other.write_all(&self.asked(MAX_VERBS, 0)).unwrap();
        take(&mut other, MAX_VERBS);
        let took = begun.elapsed();
        println!("{took:?} for another's 128 MiB");
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

fn take(stream: &mut TcpStream, reads: usize) {
    let bytes = reads as u64 * (u64::from(MAX_VERB_BYTES) + 16);
    let came = std::io::copy(&mut Read::take(stream, bytes), &mut std::io::sink()).unwrap();
    assert_eq!(came, bytes);
}

/// From here on the peer's kernel acknowledges nothing: a filter drops all that comes.
fn make_deaf(stream: &TcpStream) {
    let mut nothing = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut nothing };
    let (at, len) = ((&raw const program).cast(), size_of_val(&program) as u32);
    // SAFETY: a live program of one instruction, "return 0", which the kernel copies.
    let done = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// They would fill what the kernel has for all TCP of the machine.
#[test]
fn peers_that_take_nothing_leave_the_kernel_its_memory() {
    let lent = Lent::new();
    let asked = lent.asked(MAX_VERBS, 0);
    let open: Vec<TcpStream> = (0..MANY).map(|queue| lent.attach(queue)).collect();
    open.iter().for_each(|mut stream| stream.write_all(&asked).unwrap());
    let waiting = lent.waiting();
    println!("{} KiB wait for {MANY} connections", waiting >> 10);
    assert!(waiting < MOST, "{} MiB wait", waiting >> 20);
    lent.serves(MANY);
}

/// Nor do they by what they ask for in the same packets in which they say who they are.
#[test]
fn peers_that_ask_at_once_leave_the_kernel_its_memory() {
    let lent = Lent::new();
    let asked = lent.asked(MAX_VERBS, 0);
    let open = |queue| {
        let mut stream = TcpStream::connect(&lent.at).unwrap();
        stream.write_all(&[lent.hello(queue).frame().as_bytes(), &asked].concat()).unwrap();
        stream
    };
    let open: Vec<TcpStream> = (0..MANY).map(open).collect();
    let waiting = lent.waiting();
    println!("{} KiB wait for {MANY} connections", waiting >> 10);
    assert!(waiting < MOST, "{} MiB wait", waiting >> 20);
    lent.serves(MANY);
    drop(open);
}

/// Nor do those that have taken much, and then acknowledge nothing more. The node's kernel cannot tell
/// them from a slow network for 15 s; one that acknowledges a packet now and then it never can.
#[test]
fn peers_that_acknowledge_nothing_leave_the_kernel_its_memory() {
    let lent = Lent::new();
    let open = |queue| {
        let mut stream = lent.attach(queue);
        for first in [0, 8] {
            stream.write_all(&lent.asked(8, first)).unwrap();
            take(&mut stream, 8);
        }
        stream
    };
    let open: Vec<TcpStream> = (0..DEAF).map(open).collect();
    for mut stream in &open {
        make_deaf(stream);
        stream.write_all(&lent.asked(MAX_VERBS, 16)).unwrap();
    }
    // For less than 15 s.
    let look = |_| {
        std::thread::sleep(Duration::from_millis(50));
        unsent(lent.port)
    };
    let waiting = (0..60).map(look).max().unwrap_or_default();
    println!("{} KiB wait for {DEAF} connections", waiting >> 10);
    assert!(waiting < MOST_UNACKNOWLEDGED, "{} MiB wait", waiting >> 20);
    assert!(waiting > DEAF * (64 << 10), "{} MiB wait: connections have ended", waiting >> 20);
    lent.serves(DEAF);
}
