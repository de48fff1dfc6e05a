//! A node over TCP joins by the background thread, while the program's one thread writes to memory
//! that is all near: no write is lost to the eviction that makes room for the staging ring.
//!
//! The nodes are in the test's process. The program is a fork of the test started again as
//! [`child`]: a forked process has one thread, where the harness has two.

#![allow(unsafe_code)] // Plays the program: touches the memory that the pager pages.

mod common;

use farmem_fabric::{NodeAddr, Transport};
use farmem_pager::{House, NotJoined};
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::random::Random;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LOCAL: u64 = 8 << 20;
const PAGES: usize = LOCAL as usize / PAGE_BYTES;
const NODES: &str = "FARMEM_TEST_NODES";

#[test]
fn the_one_thread_of_a_program_writes_while_a_node_joins() {
    let path = std::env::temp_dir().join(format!("farmem-joining-{}.sock", std::process::id()));
    let listens = vec![NodeAddr::Shm(path), NodeAddr::Tcp("127.0.0.1:0".into())];
    let (node, _session) = common::member(1 << 30, listens, Transport::Shm);
    let addresses: Vec<String> = node.addresses().iter().map(ToString::to_string).collect();
    for round in 0..5 {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads", "1"])
            .env(NODES, addresses.join(" "))
            .status()
            .unwrap();
        assert!(status.success(), "round {round}: {status}");
    }
}

/// Where the second node is.
static SECOND: OnceLock<NodeAddr> = OnceLock::new();
/// 1: the second node is to join. 2: it has joined.
static JOINS: AtomicU32 = AtomicU32::new(0);

/// By the background thread.
fn join(house: &House) {
    if JOINS.load(Ordering::SeqCst) == 1 {
        beside_a_fork(house);
        let forks = house.forks();
        house.add_node(common::connect(SECOND.get().unwrap(), Transport::Tcp), forks).unwrap();
        JOINS.store(2, Ordering::SeqCst);
    }
}

/// The process forks while it joins. The child has that connection, which ends for the node all the same.
fn beside_a_fork(house: &House) {
    let other = common::connect(SECOND.get().unwrap(), Transport::Tcp);
    let forks = house.forks();
    let joining = common::connect(SECOND.get().unwrap(), Transport::Tcp);
    let fork = house.fork_prepare();
    // SAFETY: the child waits until it is killed.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            farmem_sys::raw::sleep_ns(1_000_000_000);
        }
    }
    house.fork_parent(fork, true);
    let owner = joining.owner();
    let is_member = || other.records().who(owner).unwrap().is_some();
    assert!(is_member());
    assert!(matches!(house.add_node(joining, forks), Err(NotJoined::Forked)));
    let begun = Instant::now();
    while is_member() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is a member by its child's connection");
        farmem_sys::raw::sleep_ns(1_000_000);
    }
    // SAFETY: no pointers, and a null one that the kernel takes.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn child() {
    let Ok(nodes) = std::env::var(NODES) else { return };
    // SAFETY: the harness's other thread waits for this one and holds no lock, so the forked process
    // can do what this one can. It leaves by _exit, without unwinding into the harness.
    unsafe {
        let forked = libc::fork();
        if forked == 0 {
            let sound = std::panic::catch_unwind(|| program(&nodes)).is_ok();
            libc::_exit(i32::from(!sound));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(forked, &raw mut status, 0), forked);
        assert_eq!(status, 0, "the program's status");
    }
}

fn program(nodes: &str) {
    let nodes: Vec<NodeAddr> = nodes.split(' ').map(|node| node.parse().unwrap()).collect();
    SECOND.set(nodes[1].clone()).unwrap();
    let pool = Pool::new(vec![common::connect(&nodes[0], Transport::Shm)]).unwrap();
    let pager = farmem_pager::start(common::spec(LOCAL), pool, common::counters()).unwrap();
    common::serve_faults(pager);
    pager.house.each_tick(join);
    assert_eq!(farmem_sys::thread::others(), Some(0), "one thread of the program's");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let base = pager.space.mmap(0, PAGES * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags);
    assert!(base > 0, "{base}");
    let at = |page: usize| (base as usize + page * PAGE_BYTES + page % 512 * 8) as *mut u64;
    let mut written = [0u64; PAGES];
    let mut random = Random::nth(1, 1);
    let begun = Instant::now();
    let mut after = 0;
    for round in 0u64.. {
        let page = random.index(PAGES);
        written[page] += 1;
        // SAFETY: within the mapping, which nothing else touches.
        unsafe { at(page).write_volatile(at(page).read_volatile() + 1) };
        if round == 200_000 {
            JOINS.store(1, Ordering::SeqCst);
        }
        if round % 1024 == 0 && JOINS.load(Ordering::Relaxed) == 2 {
            after += 1;
            if after == 20 {
                break;
            }
        }
        assert!(round % 1_000_000 != 0 || begun.elapsed() < Duration::from_secs(60), "no node joins");
    }
    for (page, &expected) in written.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { at(page).read_volatile() }, expected, "page {page}");
    }
}
