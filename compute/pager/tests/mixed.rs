//! A pool over two nodes of two kinds: of neighbours in the program one page lies in a mapped slot, the next in one that
//! is not. So a fault finds its page at hand while its window is under way, or the other way round.

#![allow(unsafe_code)] // Plays the program: touches the memory that the pager pages.

mod common;

use farmem_fabric::{NodeAddr, Transport};
use farmem_memory::Node;
use farmem_pager::Pager;
use farmem_pool::Pool;
use farmem_protocol::addr::{PAGE_BYTES, SLOTS_PER_SLAB};
use farmem_protocol::random::Random;
use farmem_run::counters::Process;
use std::sync::atomic::Ordering;

/// A slab of each node, full.
const PAGES: usize = 2 * SLOTS_PER_SLAB as usize;
const LOCAL: u64 = 8 << 20;

struct Program {
    counters: &'static Process,
    tcp: &'static Node,
    base: usize,
    random: Random,
}

impl Program {
    fn start() -> (Program, &'static Pager) {
        let counters = common::counters();
        let path = std::env::temp_dir().join(format!("farmem-mixed-{}.sock", std::process::id()));
        let (_, mapped) = common::member(256 << 20, vec![NodeAddr::Shm(path)], Transport::Shm);
        let (tcp, wired) = common::member(256 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())], Transport::Tcp);
        let spec = common::spec(LOCAL);
        let pager = farmem_pager::start(spec, Pool::new(vec![mapped, wired]).unwrap(), counters).unwrap();
        common::serve_faults(pager);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = pager.space.mmap(0, PAGES * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags);
        assert!(base > 0, "{base}");
        (Program { counters, tcp, base: base as usize, random: Random::new(1) }, pager)
    }

    fn word(&self, page: usize) -> *mut u64 {
        (self.base + page * PAGE_BYTES + page % 512 * 8) as *mut u64
    }

    fn write(&self, page: usize, round: usize) {
        // SAFETY: within the mapping, which stays.
        unsafe { self.word(page).write_volatile((page * 8 + round + 1) as u64) };
    }

    fn check(&self, page: usize, round: usize) {
        // SAFETY: as above.
        assert_eq!(unsafe { self.word(page).read_volatile() }, (page * 8 + round + 1) as u64, "page {page}");
    }

    /// READs of the node over tcp, and faults that waited for a page.
    fn reads(&self) -> (u64, u64) {
        (self.tcp.nic().tally.reads.load(Ordering::Relaxed), self.counters.demand.load(Ordering::Relaxed))
    }
}

#[test]
fn windows_and_demand_pages_come_from_slots_of_both_kinds() {
    let (mut program, pager) = Program::start();
    (0..PAGES).for_each(|page| program.write(page, 0));
    // Half of all pages, drawn at random, give their slots back, and take others in an order drawn at random: first all
    // that are free in one slab, then in the other.
    let mut drawn: Vec<usize> = (0..PAGES).filter(|_| program.random.below(2) == 0).collect();
    for &page in &drawn {
        assert_eq!(pager.space.madvise(program.base + page * PAGE_BYTES, PAGE_BYTES, libc::MADV_DONTNEED), 0);
    }
    program.random.shuffle(&mut drawn);
    drawn.iter().for_each(|&page| program.write(page, 0));
    for round in 0..3 {
        let before = program.reads();
        (0..PAGES).for_each(|page| program.check(page, round));
        (0..PAGES).rev().for_each(|page| program.check(page, round));
        let (reads, demand) = (program.reads().0 - before.0, program.reads().1 - before.1);
        let pages = 2 * PAGES as u64;
        // Both slabs have pages all over; and so few faults waited that nearly all of these came in windows.
        assert!(reads > pages / 8 && reads < pages * 7 / 8, "{reads} READs for {pages} pages");
        assert!(demand < pages / 8, "{demand} pages of {pages} were waited for");
        for _ in 0..20_000 {
            let page = program.random.index(PAGES);
            program.check(page, round);
        }
        // Written in order: pages come in for writing, their windows for reading.
        (0..PAGES).for_each(|page| program.write(page, round + 1));
    }
}
