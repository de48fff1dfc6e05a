//! An agent within a program, for it alone.

mod common;

use common::{Host, LIMIT, be_agent, child, tell, within, within_of};
use farmem_agent::client::{AllocError, Chunk, Client, Options, Reach, ReachError};
use farmem_fabric::NodeAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Not a test: what this binary does as a child: `alone DIR NODE`.
#[test]
fn a_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let (node, dir) = (words[0].strip_prefix("alone=").unwrap(), PathBuf::from(&words[1]));
    let client = alone(&dir, &node.parse().unwrap());
    let mut reach = client.reach().unwrap();
    let held: Vec<Chunk> = (0..3000).map(|n| stamped(&client, &mut reach, n)).collect();
    let _run = client.alloc_run(3).unwrap();
    held.iter().enumerate().for_each(|(n, chunk)| checked(&mut reach, chunk, n as u64));
    tell(&dir, "holds");
    std::thread::sleep(LIMIT);
}

fn alone(dir: &Path, node: &NodeAddr) -> Client {
    let options = Options { socket: dir.join("agent.sock"), job: String::new(), patience: LIMIT, start: None };
    Client::alone(node, options).unwrap()
}

fn stamped(client: &Client, reach: &mut Reach<'_>, stamp: u64) -> Chunk {
    let chunk = client.alloc(0).unwrap();
    reach.write(&chunk, 4088, &stamp.to_le_bytes()).unwrap();
    chunk
}

fn checked(reach: &mut Reach<'_>, chunk: &Chunk, stamp: u64) {
    let mut word = [0; 8];
    reach.read(chunk, 4088, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), stamp);
}

#[test]
fn a_program_that_is_killed_leaves_nothing_within_a_second() {
    let mut host = Host::new(256);
    let node = host.node.addresses()[0].clone();
    let tries: Vec<Duration> = (0..4)
        .map(|_| {
            let mut program = host.program(&format!("alone={node}"));
            within("it holds", || host.dir.join("holds").exists());
            std::fs::remove_file(host.dir.join("holds")).unwrap();
            assert!(host.lent() >= 3000 << 12);
            host.recount();
            program.kill();
            within_of(LIMIT, "its memory is the node's", || host.lent() == 0)
        })
        .take_while(|took| *took > Duration::from_secs(1))
        .collect();
    assert!(tries.len() < 4, "never within a second: {tries:?}");
    host.recount();
    // Somebody wants an agent meanwhile: it is another member, and served by it are those who come
    // now.
    let mut program = host.program(&format!("alone={node}"));
    within("it holds", || host.dir.join("holds").exists());
    host.agent("");
    let (client, joined) = (host.client(), alone(&host.dir, &node));
    let (piece, other) = (client.alloc(9).unwrap(), joined.alloc(9).unwrap());
    assert_eq!(host.recount().held.len(), 2, "the one that is alone, and the agent");
    program.kill();
    within("what is left is the agent's", || host.recount().held.len() == 1);
    client.free(piece);
    joined.free(other);
}

#[test]
fn one_that_ends_gives_everything_back_and_a_node_elsewhere_is_reached_alike() {
    let host = Host::new(64);
    for node in host.node.addresses() {
        let client = alone(&host.dir, node);
        let mut reach = client.reach().unwrap();
        let held: Vec<Chunk> = (0..2000).map(|n| stamped(&client, &mut reach, n)).collect();
        held.iter().enumerate().for_each(|(n, chunk)| checked(&mut reach, chunk, n as u64));
        let counts = client.counts();
        assert!(counts.words < 200, "{counts:?}");
        let mut more = Vec::new();
        let full = loop {
            match client.alloc(9) {
                Ok(chunk) => more.push(chunk),
                Err(e) => break e,
            }
        };
        assert_eq!(full, AllocError::Exhausted);
        assert_eq!(host.lent(), 64 << 20);
        held.into_iter().chain(more).for_each(|chunk| client.free(chunk));
        assert!(client.alloc_run(8).is_ok());
        drop(reach);
        drop(client);
        // It has said goodbye: nobody is waited for.
        within_of(Duration::from_secs(2), "nothing is held", || {
            host.lent() == 0 && host.node.nic().members().is_empty()
        });
        host.recount();
    }
}

/// Chunks of two clients may have the same names.
#[test]
fn a_piece_of_another_client_is_not_touched() {
    let host = Host::new(64);
    for node in host.node.addresses() {
        let (first, second) = (alone(&host.dir, node), alone(&host.dir, node));
        let (mine, theirs) = (first.alloc(0).unwrap(), second.alloc(0).unwrap());
        let mut reach = second.reach().unwrap();
        reach.write(&theirs, 0, b"theirs").unwrap();
        drop(first);
        assert_eq!(reach.write(&mine, 0, b"no"), Err(ReachError::Another));
        assert_eq!(reach.read(&mine, 0, &mut [0; 2]), Err(ReachError::Another));
        assert_eq!(reach.faa(&mine, 0, 1), Err(ReachError::Another));
        assert_eq!(second.key(&mine, 0), Err(ReachError::Another));
        let freed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.free(mine)));
        assert!(freed.is_err(), "freed by another client");
        let mut word = [0; 6];
        reach.read(&theirs, 0, &mut word).unwrap();
        assert_eq!(&word, b"theirs");
        second.free(theirs);
    }
}

/// The threads of a library handle none of the program's signals.
#[test]
fn its_threads_leave_signals_to_the_program() {
    let host = Host::new(64);
    let _client = alone(&host.dir, &host.node.addresses()[0]);
    let mut found = 0;
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let at = thread.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(at.join(name)).unwrap_or_default();
        if matches!(read("comm").trim(), "agent" | "clerk") {
            let status = read("status");
            let Some(blocked) = status.lines().find_map(|line| line.strip_prefix("SigBlk:")) else { continue };
            let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
            let ordinary = [libc::SIGUSR1, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD].map(|n| 1 << (n - 1));
            assert!(ordinary.iter().all(|signal| blocked & signal != 0), "{blocked:x}");
            found += 1;
        }
    }
    assert!(found >= 2, "the watcher and a clerk: {found}");
}
