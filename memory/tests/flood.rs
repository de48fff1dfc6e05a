//! Very many hostile connections, one after the other and some at a time, leave nothing behind in the node.
//!
//! FARMEM_TEST_LONG makes it a million.

mod common;

use common::{hello, within};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;

/// Connections that stand at a time: more than a node lets strangers have.
const AT_ONCE: usize = 300;
/// Bytes by which the process may grow: less than four for each of a million.
const GROWTH: u64 = 3 << 20;
/// Bytes by which it may grow after a fifth of the connections: it does not grow with their number.
const LATER_GROWTH: u64 = 1 << 20;

/// Resident memory of this process, which is the node's, too.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// One connection of a stranger: silent, cut in the midst of a Hello, nonsense, or a member that breaks the rules.
fn hostile(at: &str, n: usize) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    let run = (n as u128 | 1 << 127).to_le_bytes();
    let whole = hello(run, 0).frame().as_bytes().to_vec();
    let said = match n % 4 {
        0 => Vec::new(),
        1 => whole[..n % whole.len()].to_vec(),
        2 => (0..n % 4096).map(|i| (i * 31 + n) as u8).collect(),
        _ => [whole, vec![0xff; 64]].concat(),
    };
    // The node may have closed it already.
    let _ = stream.write_all(&said);
    stream
}

#[test]
fn a_flood_of_hostile_connections_leaves_nothing_behind() {
    let count = if std::env::var_os("FARMEM_TEST_LONG").is_some() { 1_000_000 } else { 4_000 };
    let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(SLAB_BYTES, listen)).unwrap();
    let at = node.addresses()[0].to_string();
    let mut open = VecDeque::new();
    let mut flood = |from: usize, to: usize| {
        for n in from..to {
            open.push_back(hostile(&at, n));
            if open.len() > AT_ONCE {
                open.pop_front();
            }
        }
        open.clear();
        within("all connections are closed", || node.connections() == 0);
    };
    // Returns the memory that stays when the node has let go of all that came.
    let mut flood = |from: usize, to: usize, most: u64| {
        flood(from, to);
        within("no member is left", || node.nic().members().is_empty());
        let mut after = 0;
        within(&format!("less than {} KiB are left", most >> 10), || {
            if after != resident() {
                after = resident();
                println!("after {to} connections: {} KiB", after >> 10);
            }
            after < most
        });
        after
    };
    let before = flood(0, 1000, u64::MAX);
    let fifth = flood(1000, 1000 + count / 5, before + GROWTH);
    let most = (before + GROWTH).min(fifth + LATER_GROWTH);
    flood(1000 + count / 5, 1000 + count, most);
}
