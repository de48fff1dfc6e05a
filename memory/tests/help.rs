//! Much is given back at once: a worker that sleeps is called, and scrubs with the one that is awake.

// Blocks are written from a buffer here.
#![allow(unsafe_code)]

use farmem_fabric::words::Words;
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_protocol::extent::{Actor, Claimant, Claimer, Level, Owner, Want};
use farmem_protocol::key::Key;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BLOCK: usize = 2 << 20;
/// Given back at once: what one core zeroes in some tens of milliseconds.
const BLOCKS: u32 = 128;
/// A machine that is busy may leave a worker that was called without a CPU until the others are done; not each time.
const TRIES: usize = 10;
const LIMIT: Duration = Duration::from_secs(60);

fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "not so within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A worker of the node, by its directory among this process's threads.
struct Worker(std::path::PathBuf);

impl Worker {
    fn all() -> Vec<Worker> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
        let name = |thread: &std::path::PathBuf| std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
        let mut all: Vec<_> = threads.filter(|thread| name(thread).starts_with("worker ")).collect();
        all.sort_by_key(name);
        all.into_iter().map(Worker).collect()
    }

    /// Nanoseconds on a CPU.
    fn ran(&self) -> u64 {
        let said = std::fs::read_to_string(self.0.join("schedstat")).unwrap();
        said.split(' ').next().unwrap().parse().unwrap()
    }

    /// Whether it sleeps until somebody wakes it: in epoll, without a time.
    fn sleeps(&self) -> bool {
        let said = std::fs::read_to_string(self.0.join("syscall")).unwrap();
        let fields: Vec<&str> = said.split_whitespace().collect();
        let epoll = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].map(|call| call.to_string());
        epoll.iter().any(|call| fields[0] == call) && fields[4].ends_with("ffffffff")
    }
}

/// Joins the node and leaves, having written to all that it claimed. What is left of it is recovered, and scrubbed.
/// For each worker but the first: how long it ran since all of them slept.
fn give_back_at_once(node: &Node, run: u8) -> Vec<u64> {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::ZERO,
        run: [run; 16],
        pid: std::process::id(),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    };
    let session = Session::connect(&node.addresses()[0], &options).unwrap();
    let mut queue = session.queue_pair().unwrap();
    let mut words = Words::open(&mut queue).unwrap();
    let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
    let mut claimer = Claimer::new(actor, words.geometry());
    let mut held = Vec::new();
    while (held.len() as u32) < BLOCKS {
        claimer.begin(Want::some(Level::Block, 16));
        held.extend(words.run(&mut queue, &mut claimer).unwrap().unwrap());
    }
    let bytes = vec![7u8; BLOCK / 4];
    for grant in &held {
        for at in (0..BLOCK).step_by(bytes.len()) {
            let mut done = Vec::new();
            // SAFETY: the buffer outlives the verb, which is awaited.
            unsafe { queue.write(0, Key(grant.key().0), at as u64, bytes.as_ptr(), bytes.len() as u32) };
            queue.doorbell().unwrap();
            while done.is_empty() {
                queue.wait(&mut done, Duration::from_secs(1)).unwrap();
            }
            done[0].result.unwrap();
        }
    }
    drop(queue);
    // The session is the first one's, to which connections are dealt out first, and who minds the time besides.
    let others = &Worker::all()[1..];
    within("all workers but the first sleep", || others.iter().all(Worker::sleeps));
    let before: Vec<u64> = others.iter().map(Worker::ran).collect();
    let scrubbed = || node.nic().units.kept().scrubbed_bytes.load(Ordering::Relaxed);
    let due = scrubbed() + held.len() as u64 * BLOCK as u64;
    drop(session);
    within("all of it is scrubbed", || scrubbed() >= due && !node.nic().is_unkept());
    others.iter().zip(before).map(|(worker, before)| worker.ran() - before).collect()
}

#[test]
fn a_sleeping_worker_is_called_to_scrub() {
    let socket = std::env::temp_dir().join(format!("farmem-help-{}.sock", std::process::id()));
    // Of which more than an eighth stays free: no hurry, in which the one worker would do more at a time.
    let node = Node::start(&Config::new(1 << 30, vec![NodeAddr::Shm(socket)])).unwrap();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    if workers < 2 {
        eprintln!("skipped: a node on one CPU has one worker");
        return;
    }
    // They take their names themselves.
    within("all workers run", || Worker::all().len() == workers);
    let kept = node.nic().units.kept();
    let scrub_ns = || kept.scrub_ns.load(Ordering::Relaxed);
    let mut seen = Vec::new();
    for run in 0..TRIES as u8 {
        let before = scrub_ns();
        let ran = give_back_at_once(&node, run);
        let all = scrub_ns() - before;
        // Ten of the blocks, which to wake, look and sleep again does not take.
        if ran.iter().any(|&ran| ran > all / 12) {
            return;
        }
        seen.push((ran, all));
    }
    panic!("only one worker scrubbed: CPU time of the others, and of all scrubs: {seen:?}");
}
