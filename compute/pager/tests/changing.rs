//! Nodes that join and are taken out while threads use far memory: a run that began with mapped
//! memory alone has pages on a node over tcp later, and none on the one that it began with.

#![allow(unsafe_code)] // Plays the program: touches the memory that the pager pages.

mod common;

use farmem_fabric::{NodeAddr, Transport};
use farmem_memory::Node;
use farmem_pager::Pager;
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::random::Random;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGES: usize = 24_000;
const LOCAL: u64 = 8 << 20;
const THREADS: usize = 3;

fn eventually(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes and checks words of its own in pages drawn at random, until it is told to stop.
fn work(base: usize, thread: usize, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut random = Random::nth(1, thread as u64);
    let mut mine = vec![0u64; PAGES];
    let at = |page: usize| (base + page * PAGE_BYTES + page % 128 * 8 + 1024 * thread) as *mut u64;
    while !stop.load(Ordering::Relaxed) {
        let page = random.index(PAGES);
        // SAFETY: within the mapping; no other thread touches this word.
        unsafe {
            assert_eq!(at(page).read_volatile(), mine[page], "page {page}");
            if random.below(16) != 0 {
                mine[page] = random.bits();
                at(page).write_volatile(mine[page]);
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    for (page, &expected) in mine.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { at(page).read_volatile() }, expected, "page {page}, in the end");
    }
}

fn map(pager: &Pager, pages: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = pager.space.mmap(0, pages * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags);
    assert!(at > 0, "{at}");
    at as usize
}

#[test]
fn nodes_join_and_are_left_while_threads_work() {
    static WAITS: AtomicU64 = AtomicU64::new(0);
    let counters = common::counters();
    let path = std::env::temp_dir().join(format!("farmem-changing-{}.sock", std::process::id()));
    let (first, session) = common::member(256 << 20, vec![NodeAddr::Shm(path.clone())], Transport::Shm);
    let pool = Pool::new(vec![session]).unwrap();
    let pager = farmem_pager::start(common::spec(LOCAL), pool, counters).unwrap();
    common::serve_faults(pager);
    assert!(pager.waits_for_nobody());
    pager.house.before_waiting(|| {
        WAITS.fetch_add(1, Ordering::Relaxed);
    });
    let base = map(pager, PAGES);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_at_work = || {
        let seen = rounds.load(Ordering::Relaxed);
        eventually("threads go on", || rounds.load(Ordering::Relaxed) > seen + 20_000);
    };
    let lent = |node: &Node| node.nic().lent();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || work(base, thread, stop, rounds));
        }
        is_at_work();
        // Over tcp: the ring opens, and whoever relied on waiting for nobody is told.
        let (second, session) = common::member(512 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())], Transport::Tcp);
        pager.house.add_node(session, pager.house.forks()).unwrap();
        assert_eq!((WAITS.load(Ordering::Relaxed), pager.waits_for_nobody()), (1, false));
        // The first one is left: pages that are written to go elsewhere, until none is there.
        let address = format!("unix:{}", path.display());
        assert!(pager.house.has_node(&address) && pager.house.take_out(&address) && !pager.house.take_out(&address));
        eventually("the first node is left", || lent(first) == 0 && first.nic().members().is_empty());
        assert!(lent(second) > 0 && second.nic().tally.writes.load(Ordering::Relaxed) > 1000);
        is_at_work();
        // One more that is mapped, and the one over tcp is left.
        let path = std::env::temp_dir().join(format!("farmem-changing-{}-2.sock", std::process::id()));
        let (third, session) = common::member(512 << 20, vec![NodeAddr::Shm(path)], Transport::Shm);
        pager.house.add_node(session, pager.house.forks()).unwrap();
        assert_eq!(WAITS.load(Ordering::Relaxed), 1, "there is a ring");
        assert!(pager.house.take_out(&second.addresses()[0].to_string()));
        eventually("the second node is left", || lent(second) == 0);
        assert!(lent(third) > 0);
        is_at_work();
        stop.store(true, Ordering::Relaxed);
    });
    let peak = counters.local_peak.load(Ordering::Relaxed);
    assert!(peak <= LOCAL, "{peak} bytes were local");
}
