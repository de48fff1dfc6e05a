//! Very many hostile connections, one after the other and some at a time, leave nothing behind in the node.
//!
//! FARMEM_TEST_LONG makes it a million.

mod common;

use common::{hello, within};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::{Cipher, Credential, Hello, Proof};
use farmem_trust::{Key, Token};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

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

/// One connection of a stranger: silent, cut in the midst of a Hello, nonsense, or a member that breaks the rules. At a
/// node with a token, one that names it and proves nothing, or wrongly, takes this member's place.
fn hostile(at: &str, n: usize, token: Option<&Key>) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    let run = (n as u128 | 1 << 127).to_le_bytes();
    let named = |key: &Key| Credential { id: key.id, nonce: [n as u8; 32], cipher: Cipher::Aes128Gcm };
    let whole = Hello { credential: token.map(named), ..hello(run, 0) }.frame().as_bytes().to_vec();
    let said = match n % 4 {
        0 => Vec::new(),
        1 => whole[..n % whole.len()].to_vec(),
        2 => (0..n % 4096).map(|i| (i * 31 + n) as u8).collect(),
        _ if token.is_some() && n % 8 == 3 => whole,
        _ if token.is_some() => [&whole[..], Proof { mac: [9; 32], share: Some([8; 32]) }.frame().as_bytes()].concat(),
        _ => [whole, vec![0xff; 64]].concat(),
    };
    // The node may have closed it already.
    let _ = stream.write_all(&said);
    stream
}

/// A token's key, and a store that holds it.
fn store() -> (Key, PathBuf) {
    let path = std::env::temp_dir().join(format!("farmem-flood-{}.toml", std::process::id()));
    let token = Token::new("analytics", &[5; 40]).unwrap();
    let add = |store: &mut Store| {
        store.tokens.push(Entry::new(&token, None));
        Ok(())
    };
    Store::change(&path, add).unwrap();
    (token.key(), path)
}

/// Both nodes are of this process: only one of the tests at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_flood_of_hostile_connections_leaves_nothing_behind() {
    flooded(None);
}

#[test]
fn a_flood_at_a_node_with_tokens_leaves_nothing_behind() {
    let (key, path) = store();
    flooded(Some((key, path)));
}

fn flooded(tokens: Option<(Key, PathBuf)>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = if std::env::var_os("FARMEM_TEST_LONG").is_some() { 1_000_000 } else { 4_000 };
    let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
    let mut config = Config::new(SLAB_BYTES, listen);
    config.tokens = tokens.as_ref().map(|(_, path)| path.clone());
    let node = Node::start(&config).unwrap();
    if let Some((_, path)) = &tokens {
        std::fs::remove_file(path).unwrap();
    }
    let token = tokens.as_ref().map(|(key, _)| key);
    let at = node.addresses()[0].to_string();
    let mut open = VecDeque::new();
    let mut flood = |from: usize, to: usize| {
        for n in from..to {
            open.push_back(hostile(&at, n, token));
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
