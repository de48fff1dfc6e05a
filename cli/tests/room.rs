//! The memory of a service itself, with the allocator that the program has, and of its sockets.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;
#[path = "../../memory/tests/common/mod.rs"]
mod wire;

use common::{Place, eventually, free};
use farmem_protocol::wire::{Hello, Known, Purpose};
use farmem_tests::process::unsent;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

/// Connections that come and go, and the bytes that they make a node hold as long as they are there.
const QUEUES: u64 = 600;
const HOLD: u64 = 24 << 20;
/// Bytes that may stay.
const STAY: u64 = 12 << 20;

#[test]
fn connections_that_have_gone_leave_no_memory_behind() {
    farmem_sys::process::raise_descriptor_limit();
    let place = Place::new();
    let port = free();
    let listen = port.to_string();
    let options = ["node", "--lend", "64M", "--rdma", "off", "--listen", &listen];
    let mut node = place.farmem(options).stderr(Stdio::null()).spawn().unwrap();
    eventually("the node listens", || TcpStream::connect(port).is_ok());
    let resident = || {
        let pages = std::fs::read_to_string(format!("/proc/{}/statm", node.id())).unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let mut member = TcpStream::connect(port).unwrap();
    let welcome = wire::greet(&mut member, &wire::hello([7; 16], 0)).unwrap();
    let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
    let queue = |number| {
        let mut stream = TcpStream::connect(port).unwrap();
        wire::greet(&mut stream, &Hello::new(Purpose::Attach(known, number))).unwrap();
        stream
    };
    let open: Vec<TcpStream> = (0..QUEUES).map(queue).collect();
    let held = resident();
    assert!(held > before + HOLD, "{held} bytes, {before} before: the test holds little");
    drop((open, member));
    eventually("it is the system's again", || resident() < before + STAY);
    node.kill().unwrap();
    node.wait().unwrap();
}

/// Clients of a store that take nothing.
const CLIENTS: usize = 100;
/// Bytes that may wait for them in sockets. Where the kernel alone bounds them, 130 MiB do.
const MOST: u64 = 80 << 20;

/// They would fill what the kernel has for all TCP of the machine.
#[test]
fn clients_that_take_no_replies_leave_the_kernel_its_memory() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let at = format!("unix:{}", socket.display());
    let options = ["node", "--lend", "256M", "--listen", &at];
    let mut node = place.farmem(options).stderr(Stdio::null()).spawn().unwrap();
    common::listens(&socket);
    let port = free();
    let listen = port.to_string();
    let options = ["kv", "--name", "room", "--node", &at, "--listen", &listen];
    let mut front = place.farmem(options).stderr(Stdio::null()).spawn().unwrap();
    eventually("the store listens", || TcpStream::connect(port).is_ok());
    let mut client = TcpStream::connect(port).unwrap();
    client.write_all(b"SETRANGE value 262143 x\r\n").unwrap();
    let mut said = [0; 9];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b":262144\r\n");
    let open: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(port).unwrap()).collect();
    open.iter().for_each(|mut client| client.write_all(&b"GET value\r\n".repeat(10)).unwrap());
    let (mut before, mut same) = (0, 0);
    eventually("the sockets are full", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = unsent(port.port());
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
        same == 10
    });
    println!("{} KiB wait for {CLIENTS} clients", before >> 10);
    assert!(before < MOST, "{} MiB wait", before >> 20);
    client.write_all(b"PING\r\n").unwrap();
    let mut said = [0; 7];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"+PONG\r\n");
    [&mut front, &mut node].into_iter().for_each(|process| {
        process.kill().unwrap();
        process.wait().unwrap();
    });
}
