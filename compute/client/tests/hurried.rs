//! A node that says of WRITEs that they are done before it has their bytes.

mod common;

use common::{await_that, node};
use farmem::{Memory, Transport};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Together they are more than sockets hold.
const WRITES: u32 = 8;
const BYTES: usize = 2 << 20;

/// How far the caller and the relay have come.
#[derive(Default)]
struct Seen {
    /// They are others by now.
    changed: AtomicBool,
    /// These came, too.
    leaked: AtomicBool,
    /// A connection was read to its end.
    ended: AtomicBool,
}

/// Passes on what comes. Of a connection that brings more than a WRITE's head it takes no more, and
/// completes all WRITEs at once. It reads on when the caller has done something else with the
/// bytes.
fn hurries(mut host: TcpStream, at: &str, seen: &Seen) {
    let mut node = TcpStream::connect(at).unwrap();
    let (mut back, mut to_host) = (node.try_clone().unwrap(), host.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut back, &mut to_host));
    let (mut piece, mut passed) = (vec![0; 64 << 10], 0);
    while passed <= 256 << 10 {
        let Ok(n @ 1..) = host.read(&mut piece) else { return };
        passed += n;
        let _ = node.write_all(&piece[..n]);
    }
    // A WRITE is two verbs. Of each: its number, its status, and its value.
    let done = (0..2 * WRITES).flat_map(|verb| [&verb.to_le_bytes()[..], &[0; 12]].concat()).collect::<Vec<u8>>();
    let _ = host.write_all(&done);
    await_that("the bytes are others", || seen.changed.load(Ordering::Relaxed));
    host.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while let Ok(n @ 1..) = host.read(&mut piece) {
        if piece[..n].windows(4096).any(|some| some.iter().all(|&byte| byte == 9)) {
            seen.leaked.store(true, Ordering::Relaxed);
        }
    }
    seen.ended.store(true, Ordering::Relaxed);
}

#[test]
fn bytes_are_sent_before_they_are_the_callers_again() {
    let node = node(1);
    let (at, seen) = (common::address(&node, Transport::Tcp), Arc::new(Seen::default()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().to_string();
    let relays = Arc::clone(&seen);
    thread::spawn(move || {
        for host in listener.incoming() {
            let (at, seen) = (at.clone(), Arc::clone(&relays));
            thread::spawn(move || hurries(host.unwrap(), &at, &seen));
        }
    });
    let memory =
        Memory::builder().node(here).transport(Transport::Tcp).grace(Duration::from_secs(5)).connect().unwrap();
    let mut lane = memory.lane().unwrap();
    let (piece, mut bytes) = (lane.alloc(BYTES as u64).unwrap(), vec![7; BYTES]);
    let mut batch = lane.batch();
    for _ in 0..WRITES {
        batch.write(piece, &bytes);
    }
    let went = batch.run();
    bytes.fill(9);
    seen.changed.store(true, Ordering::Relaxed);
    let next = lane.write(piece, &[1; 64]);
    await_that("a connection ends", || seen.ended.load(Ordering::Relaxed));
    assert!(!seen.leaked.load(Ordering::Relaxed), "{went:?} {next:?}");
}
