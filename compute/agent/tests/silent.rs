//! A node falls silent: programs whose words need no node are served all the while.

mod common;

use common::{Host, Process, be_agent, child, tell, within};
use farmem_agent::client::Chunk;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_protocol::extent::policy::{HEARTBEAT_NS, KEPT_IDLE};
use farmem_sys::process;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: u64 = 2 << 20;

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    let Some(words) = child() else { return };
    if words[0] == "agent" {
        return be_agent(&words);
    }
    let dir = PathBuf::from(&words[1]);
    let _node = Node::start(&Config::new(64 << 20, vec![NodeAddr::Shm(dir.join("node.sock"))])).unwrap();
    tell(&dir, "lends");
    // Until it is killed.
    loop {
        std::thread::park();
    }
}

/// Whether every thread of this process stands: the signal that stops it says so to none of them
/// before it returns.
fn is_stopped(pid: u32) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.all(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// Whether a clerk of this agent waits at its connection to the node: it has the blocks' lock then.
/// (Clerks without anything to ask sleep on their program's ring, a futex.)
fn a_clerk_asks_the_node(agent: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path()).any(|thread| {
        let said = |what| std::fs::read_to_string(thread.join(what)).unwrap_or_default();
        let call = said("syscall");
        let waits = [libc::SYS_poll, libc::SYS_ppoll, libc::SYS_epoll_wait, libc::SYS_recvfrom, libc::SYS_recvmsg];
        said("comm").trim() == "clerk" && waits.iter().any(|waits| call.starts_with(&format!("{waits} ")))
    })
}

/// The clerk of a program that keeps an empty block is to give it back after some heartbeats. While
/// the node is silent, and another's clerk waits for it, it does not wait for that: its program's
/// words come first.
#[test]
fn a_clerk_that_keeps_an_empty_block_serves_beside_a_silent_node() {
    let host = Host::new(64);
    let dir = host.dir.join("silent");
    std::fs::create_dir(&dir).unwrap();
    let node = Process::start(&format!("node {}", dir.display()));
    within("the node lends", || dir.join("lends").exists());
    let agent = host.beside("agent", &format!("node={}", dir.display()));
    let taken = |blocks: u64| {
        let report = std::fs::read_to_string(agent.dir.join("agent.report")).unwrap_or_default();
        report.contains(&format!("taken: {},", blocks * BLOCK))
    };
    let (client, hungry) = (agent.client(), agent.client());
    let chunk = client.alloc(0).unwrap();
    let blocks: Vec<Chunk> = (0..2).map(|_| client.alloc(9).unwrap()).collect();
    within("three blocks are held", || taken(3));

    process::send(node.0.id(), libc::SIGSTOP).unwrap();
    within("the node is silent", || is_stopped(node.0.id()));
    let answered = Arc::new(AtomicBool::new(false));
    let said = Arc::clone(&answered);
    let asks = std::thread::spawn(move || {
        let had = hungry.alloc(9).map(|block| hungry.free(block));
        said.store(true, Ordering::Release);
        had
    });
    within("a clerk asks the node", || a_clerk_asks_the_node(agent.agent.0.id()));
    // One the library keeps, the other the agent: not for long.
    blocks.into_iter().for_each(|block| client.free(block));
    assert_eq!(client.held() / BLOCK, 1);
    for round in 0..3 * KEPT_IDLE {
        // A heartbeat is due with each of these words.
        std::thread::sleep(Duration::from_nanos(HEARTBEAT_NS));
        client.free(client.alloc_asking().unwrap());
        assert!(!answered.load(Ordering::Acquire), "round {round} was not served before the node went on");
    }
    within("it has given nothing back", || taken(3));

    process::send(node.0.id(), libc::SIGCONT).unwrap();
    asks.join().unwrap().unwrap();
    // The chunk's, and the one that the library keeps.
    within("the empty block is the node's", || taken(2));
    client.free(chunk);
    assert_eq!(client.counts().again, 0);
}
