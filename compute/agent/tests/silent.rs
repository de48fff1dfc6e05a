//! A node falls silent: programs whose words need no node are served all the while.

mod common;

use common::pieces::{checked, stamped};
use common::{Host, LIMIT, Process, be_agent, child, tell, within};
use farmem_agent::client::Chunk;
use farmem_agent::host::{self, Agent, StartError};
use farmem_agent::ledger::{Ledger, MAX_ENTRIES};
use farmem_agent::stock::Quotas;
use farmem_fabric::{ConnectError, NodeAddr, Transport, Trust};
use farmem_memory::{Config, Node};
use farmem_protocol::extent::policy::{HEARTBEAT_NS, KEPT_IDLE};
use farmem_sys::process;
use std::os::fd::AsRawFd;
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
    let listens = vec![NodeAddr::Shm(dir.join("node.sock")), NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(64 << 20, listens)).unwrap();
    std::fs::write(dir.join("address"), node.addresses()[1].to_string()).unwrap();
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

/// An agent is killed between two nodes. The one that it moved to is silent at the next start, which
/// names the other. It lives, and keeps what it holds.
#[test]
fn a_node_that_is_silent_at_a_start_is_not_lost() {
    let mut host = Host::new(256);
    let from = host.node.addresses()[1].clone();
    let grace = format!("grace={}", LIMIT.as_millis());
    host.agent_elsewhere(&grace);
    let client = host.client();
    let mut reach = client.reach().unwrap();
    // More than the node has room for. Some stay where they are.
    let held: Vec<(Chunk, u64)> = (0..50).map(|n| (stamped(&client, &mut reach, 9, n), n)).collect();
    let dir = host.dir.join("full");
    std::fs::create_dir(&dir).unwrap();
    let to = Process::start(&format!("node {}", dir.display()));
    within("it lends", || dir.join("lends").exists());
    std::fs::rename(dir.join("address"), host.dir.join("move-to")).unwrap();
    within("it is full", || host.dir.join("waits-for-room").exists() && host.lent() <= 36 << 20);
    let stop = || {
        process::send(to.0.id(), libc::SIGSTOP).unwrap();
        within("it is silent", || is_stopped(to.0.id()));
    };
    host.kill_agent();
    stop();
    let file = std::fs::File::options().read(true).write(true).open(host.dir.join("agent.ledger")).unwrap();
    let (ledger, _) = Ledger::open(file.as_raw_fd()).unwrap();
    let record = || {
        let owned: Vec<_> = (0..MAX_ENTRIES).filter_map(|entry| ledger.owned(entry)).collect();
        let secrets = [0, 1, 2].map(|at| ledger.membership(at).map(|member| (member.secret, ledger.address(at))));
        (owned, secrets, ledger.current())
    };
    let before = record();
    assert!(before.0.len() == 50 && before.1.iter().flatten().count() == 2);
    let dir = host.dir.clone();
    let config = |grace| host::Config {
        dir: dir.clone(),
        node: from.clone(),
        transport: Transport::Tcp,
        quotas: Quotas::default(),
        idle: None,
        grace,
        trust: Trust::default(),
    };
    let begin = |grace, waits: &mut dyn FnMut(&ConnectError) -> bool| loop {
        // A killed agent's lock is free as soon as the kernel has closed it.
        match Agent::start_with(config(grace), waits) {
            Err(StartError::Running(_)) => std::thread::sleep(Duration::from_millis(5)),
            done => break done,
        }
    };
    let mut waited = 0;
    let failed = begin(LIMIT, &mut |why| {
        assert!(matches!(why, ConnectError::Silent(_)), "{why}");
        waited += 1;
        waited < 2
    });
    assert!(matches!(failed.err(), Some(StartError::Node(ConnectError::Silent(_)))));
    assert!(record() == before, "the record is as it was");
    process::send(to.0.id(), libc::SIGCONT).unwrap();
    host.agent_elsewhere(&grace);
    assert_eq!(host.agent_said(), "recovered 1");
    held.iter().for_each(|(chunk, stamp)| checked(&mut reach, chunk, *stamp));
    // After the grace it counts as lost.
    host.kill_agent();
    stop();
    assert_eq!(begin(Duration::from_millis(100), &mut |_| true).unwrap().recovered, 0);
    assert_eq!(record().0.len(), 0);
}
