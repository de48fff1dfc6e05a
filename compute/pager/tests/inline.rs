//! The pager against a model, with a SIGBUS handler of the test's and a real node: pages come, go,
//! move, are discarded, forked, shared by threads, and keep their bytes.
//!
//! A process has one pager, so each way of running it is a process of its own: this file's tests
//! start themselves again as [`child`], with the way in the environment.

#![allow(unsafe_code)] // Plays the program: touches the memory that the pager pages.

mod common;

use farmem_fabric::{NodeAddr, Session, Transport};
use farmem_pager::Pager;
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::random::Random;
use farmem_run::counters::Process;
use farmem_run::{Dirty, Faults, Feature, Mask, Prefetch, RunSpec, Seal};
use std::sync::atomic::Ordering;

/// A member of a node in this very process, which lives as long as the test.
fn session(mapped: bool) -> Session {
    let path = std::env::temp_dir().join(format!("farmem-pager-{}.sock", std::process::id()));
    let listens = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(path)];
    common::member(1 << 30, listens, if mapped { Transport::Shm } else { Transport::Tcp }).1
}

/// A way of running the pager.
struct Way {
    mapped: bool,
    faults: Faults,
    prefetch: Prefetch,
    mask: Mask,
    dirty: Dirty,
    seal: Seal,
}

impl Way {
    /// With one more feature masked.
    const fn without(self, feature: Feature) -> Way {
        Way { mask: self.mask.with(feature), ..self }
    }
}

const PLAIN: Way = Way {
    mapped: true,
    faults: Faults::Inline,
    prefetch: Prefetch::On,
    mask: Mask::NONE,
    dirty: Dirty::Auto,
    seal: Seal::Off,
};
const TCP: Way = Way { mapped: false, ..PLAIN };
const SEALED: Way = Way { seal: Seal::Whole, ..TCP };
const SEALED_LINES: Way = Way { seal: Seal::Lines, ..TCP_LINES };
const TCP_LINES: Way = Way { dirty: Dirty::Lines, ..TCP };
const WAYS: &[(&str, Way)] = &[
    ("shm", PLAIN),
    ("tcp", TCP),
    ("shm-protecting", PLAIN.without(Feature::Hold)),
    ("tcp-protecting", TCP.without(Feature::Hold)),
    ("thread", Way { faults: Faults::Thread, ..PLAIN }),
    ("no-prefetch", Way { prefetch: Prefetch::Off, ..PLAIN }),
    ("shm-lines", Way { dirty: Dirty::Lines, ..PLAIN }),
    ("tcp-lines", TCP_LINES),
    ("tcp-lines-protecting", TCP_LINES.without(Feature::Hold)),
    ("tcp-lines-writes", TCP_LINES.without(Feature::Records)),
    ("tcp-overlooking", TCP.without(Feature::Changes)),
    ("tcp-lines-overlooking", TCP_LINES.without(Feature::Changes)),
    ("shm-lines-alternate", Way { dirty: Dirty::Lines, ..PLAIN }.without(Feature::Alternate)),
    ("tcp-exact", Way { dirty: Dirty::Exact, ..TCP }),
    ("shm-none", Way { dirty: Dirty::None, ..PLAIN }),
    ("tcp-none", Way { dirty: Dirty::None, ..TCP }),
    ("sealed", SEALED),
    ("sealed-exact", Way { dirty: Dirty::Exact, ..SEALED }),
    ("sealed-lines", SEALED_LINES),
    ("sealed-lines-guessing", Way { dirty: Dirty::Auto, ..SEALED_LINES }),
    ("sealed-lines-overlooking", SEALED_LINES.without(Feature::Changes)),
    ("sealed-lines-writes", SEALED_LINES.without(Feature::Records)),
    ("sealed-none-thread", Way { dirty: Dirty::None, faults: Faults::Thread, ..SEALED }),
    ("tcp-one-by-one", Way { prefetch: Prefetch::Off, ..TCP }.without(Feature::ProcessMadvise)),
];

const WAY: &str = "FARMEM_PAGER_TEST";

fn in_its_own_process(way: &str) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(WAY, way)
        .status()
        .unwrap();
    assert!(status.success(), "{way}: {status}");
}

#[test]
fn over_shm() {
    in_its_own_process("shm");
}

#[test]
fn over_tcp() {
    in_its_own_process("tcp");
}

#[test]
fn over_shm_protecting() {
    in_its_own_process("shm-protecting");
}

#[test]
fn over_tcp_protecting() {
    in_its_own_process("tcp-protecting");
}

#[test]
fn with_a_handler_thread() {
    in_its_own_process("thread");
}

#[test]
fn without_prefetch() {
    in_its_own_process("no-prefetch");
}

#[test]
fn over_tcp_without_vectored_madvise() {
    in_its_own_process("tcp-one-by-one");
}

#[test]
fn by_line_hashes() {
    ["shm-lines", "tcp-lines", "tcp-lines-protecting", "tcp-lines-writes"]
        .iter()
        .for_each(|way| in_its_own_process(way));
}

/// A changed line in four is overlooked: nodes refuse, and pages go whole.
#[test]
fn by_line_hashes_that_miss() {
    in_its_own_process("tcp-lines-overlooking");
}

/// The same where pages come in protected, and are hashed at their first write.
#[test]
fn by_line_hashes_taken_late_that_miss() {
    in_its_own_process("tcp-overlooking");
}

/// Compared and copied whole alternately, by which a bench tells the two apart.
#[test]
fn by_lines_and_whole_alternately() {
    in_its_own_process("shm-lines-alternate");
}

#[test]
fn by_pages_and_not_at_all() {
    ["tcp-exact", "shm-none", "tcp-none"].iter().for_each(|way| in_its_own_process(way));
}

/// For a node that is not trusted.
#[test]
fn sealed() {
    in_its_own_process("sealed");
    if std::env::var_os("FARMEM_TEST_LONG").is_some() {
        ["sealed-exact", "sealed-none-thread"].iter().for_each(|way| in_its_own_process(way));
    }
}

/// Changed lines alone go to a node that is not trusted. It confirms them, and refuses those that are not as expected.
#[test]
fn sealed_by_lines() {
    in_its_own_process("sealed-lines-overlooking");
    if std::env::var_os("FARMEM_TEST_LONG").is_some() {
        ["sealed-lines", "sealed-lines-guessing", "sealed-lines-writes"].iter().for_each(|way| in_its_own_process(way));
    }
}

/// What the tests above run; nothing by itself.
#[test]
fn child() {
    let Ok(name) = std::env::var(WAY) else { return };
    let (_, way) = WAYS.iter().find(|(n, _)| *n == name).unwrap();
    let program = Program::start(way);
    let counters = program.counters;
    let [lines, whole] = program.run();
    // The harness's own thread beside: the program is not still. (Pages of a block that was barred
    // are protected in any case.)
    let [held, protecting] =
        [&counters.held, &counters.protecting_calls].map(|counter| counter.load(Ordering::Relaxed));
    let as_told =
        if !way.mask.has(Feature::Hold) { held > 100 && protecting < held / 2 } else { protecting > 100 && held == 0 };
    assert!(as_told, "{name}: {held} pages held, {protecting} calls");
    match way.seal {
        Seal::Off => {}
        Seal::Whole => {
            assert_eq!(counters.lines_sent.load(Ordering::Relaxed), 0, "{name}: a sealed page went by lines")
        }
        // Two lines of each page that is written change.
        Seal::Lines => assert!(lines > whole && lines > 1000, "{name}: {lines} lines and {whole} pages were sent"),
    }
    let refused = counters.pages_refused.load(Ordering::Relaxed);
    // (One line in 4096 is overlooked anyhow.)
    assert!(!way.mask.has(Feature::Changes) || refused > 100, "{name}: {refused} pages were refused");
    assert!(
        !way.mask.has(Feature::Alternate) || lines.min(whole) > 1000,
        "{name}: {lines} lines and {whole} pages were sent"
    );
}

const PAGES: usize = 8192;
const LOCAL: u64 = 4 << 20;

fn start(way: &Way, counters: &'static Process) -> &'static Pager {
    let Way { faults, prefetch, mask, dirty, seal, .. } = *way;
    let spec = RunSpec { faults, prefetch, mask, dirty, seal, ..common::spec(LOCAL) };
    let pool = Pool::new(vec![session(way.mapped)]).unwrap();
    let pager = farmem_pager::start(spec, pool, counters).unwrap();
    common::serve_faults(pager);
    pager
}

/// All faults that a process's counters know.
fn counted(of: &Process) -> u64 {
    let kinds = [&of.first_touch, &of.demand, &of.rescued, &of.upgrades, &of.joined, &of.unmapped];
    kinds.iter().map(|kind| kind.load(Ordering::Relaxed)).sum()
}

/// Two words in each far page, in other lines of each, and what they must be.
struct Program {
    pager: &'static Pager,
    counters: &'static Process,
    /// Faults come by signals, which the harness counts.
    inline: bool,
    base: usize,
    model: Vec<u64>,
    /// Of the second word.
    echo: Vec<u64>,
    random: Random,
}

impl Program {
    fn start(way: &Way) -> Program {
        let counters = common::counters();
        let pager = start(way, counters);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = pager.space.mmap(0, PAGES * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags);
        assert!(at > 0, "{at}");
        Program {
            pager,
            counters,
            inline: way.faults == Faults::Inline,
            base: at as usize,
            model: vec![0; PAGES],
            echo: vec![0; PAGES],
            random: Random::new(1),
        }
    }

    fn word(&self, page: usize) -> *mut u64 {
        (self.base + page * PAGE_BYTES + page % 64 * 64 + 56) as *mut u64
    }

    fn read(&self, page: usize) -> u64 {
        // SAFETY: within the mapping, which stays.
        unsafe { self.word(page).read_volatile() }
    }

    fn write(&mut self, page: usize, value: u64) {
        // SAFETY: as above; the model is not shared.
        unsafe {
            self.word(page).write_volatile(value);
            self.second(page).write_volatile(!value);
        }
        (self.model[page], self.echo[page]) = (value, !value);
    }

    fn verify(&self) {
        for (page, &expected) in self.model.iter().enumerate() {
            assert_eq!(self.read(page), expected, "page {page}");
            // SAFETY: within the mapping.
            assert_eq!(unsafe { self.second(page).read_volatile() }, self.echo[page], "page {page}, second word");
        }
    }

    fn second(&self, page: usize) -> *mut u64 {
        (self.base + page * PAGE_BYTES + (page + 20) % 64 * 64 + 56) as *mut u64
    }

    /// How many lines were sent by themselves, and how many pages whole, while nothing was fresh or shared with a child.
    fn run(mut self) -> [u64; 2] {
        let counters = self.counters;
        let sent = || [&counters.lines_sent, &counters.pages_whole].map(|counter| counter.load(Ordering::Relaxed));
        [33, 3, 1].iter().for_each(|&step| self.grow_a_heap(step));
        self.commit_parts();
        self.touch_in_order();
        self.protect_parts();
        let before = sent();
        self.touch_at_random();
        let after = sent();
        self.move_and_discard();
        if self.inline {
            let (faults, counted) = (common::FAULTS.load(Ordering::Relaxed), counted(counters));
            assert_eq!(counted, faults, "every fault is counted once, as one kind");
        }
        self.hint();
        self.pin();
        self.fork();
        self.share_with_threads();
        [after[0] - before[0], after[1] - before[1]]
    }

    /// By so many pages at a time: 33 as malloc's does, 1 as its other arenas do. Each step costs a fault, and now and then
    /// another at a block's end.
    fn grow_a_heap(&self, step: usize) {
        const STEPS: usize = 20;
        let start = self.pager.space.brk(0);
        let before = self.counters.first_touch.load(Ordering::Relaxed);
        for at in (0..step * STEPS).map(|page| start + page * PAGE_BYTES) {
            if ((at - start) / PAGE_BYTES).is_multiple_of(step) {
                assert_eq!(self.pager.space.brk(at + step * PAGE_BYTES), at + step * PAGE_BYTES);
            }
            // SAFETY: within the break.
            unsafe {
                assert_eq!((at as *const u64).read_volatile(), 0);
                (at as *mut u64).write_volatile(at as u64);
            }
        }
        let faults = (self.counters.first_touch.load(Ordering::Relaxed) - before) as usize;
        let one_by_one = step * STEPS;
        assert!(faults == one_by_one || faults < 2 * STEPS, "{faults} faults");
        assert_eq!(self.pager.space.brk(start), start);
    }

    /// Reserved memory of which parts are committed, as run times' heaps are: what is touched in order up to a part's end,
    /// or down to it, brings in nothing of the reservation beyond, which nobody can read.
    fn commit_parts(&self) {
        const PART: usize = 160;
        const PARTS: usize = 6;
        const BYTES: usize = PART * PAGE_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = self.pager.space.mmap(0, PARTS * BYTES, libc::PROT_NONE, flags);
        assert!(start > 0);
        let start = start as usize;
        for part in (1..PARTS).step_by(2) {
            let at = start + part * BYTES;
            assert_eq!(self.pager.space.mprotect(at, BYTES, libc::PROT_READ | libc::PROT_WRITE), 0);
            for page in 0..PART {
                let page = if part % 4 == 1 { page } else { PART - 1 - page };
                // SAFETY: committed.
                unsafe { ((at + page * PAGE_BYTES) as *mut u64).write_volatile(page as u64) };
            }
        }
        for part in (0..PARTS).step_by(2) {
            let mut present = [0u8; PART];
            assert_eq!(
                self.pager.space.mincore(start + part * BYTES, BYTES, |page, here| present[page] = here as u8),
                0
            );
            assert_eq!(
                present.iter().map(|&is| is as usize).sum::<usize>(),
                0,
                "of part {part}, which is reserved only"
            );
        }
        assert_eq!(self.pager.space.munmap(start, PARTS * BYTES), 0);
    }

    fn touch_in_order(&mut self) {
        (0..PAGES).for_each(|page| self.write(page, page as u64 + 1));
        self.verify();
        (0..PAGES).rev().for_each(|page| assert_eq!(self.read(page), page as u64 + 1));
    }

    /// Windows go over the borders of mappings: neighbours that have another protection.
    fn protect_parts(&self) {
        const PART: usize = 24;
        let protect = |prot: i32| {
            for part in (0..PAGES / PART).step_by(2) {
                let at = self.base + part * PART * PAGE_BYTES;
                assert_eq!(self.pager.space.mprotect(at, PART * PAGE_BYTES, prot), 0);
            }
        };
        let demand = || self.counters.demand.load(Ordering::Relaxed);
        let before = demand();
        self.verify();
        let whole = demand() - before;
        protect(libc::PROT_READ);
        let before = demand();
        self.verify();
        let parts = demand() - before;
        // Were windows given up at borders, most of their pages would fault one by one: six times as many.
        assert!(parts < 2 * whole + 256, "{parts} demand faults, {whole} without borders");
        protect(libc::PROT_READ | libc::PROT_WRITE);
    }

    fn touch_at_random(&mut self) {
        for _ in 0..40_000 {
            let (page, value) = (self.random.index(PAGES), self.random.bits());
            assert_eq!(self.read(page), self.model[page]);
            if value % 2 == 0 {
                self.write(page, value);
            }
        }
        self.verify();
    }

    fn move_and_discard(&mut self) {
        let len = PAGES * PAGE_BYTES;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = self.pager.space.mremap(self.base, len, len, flags, self.base + (1 << 35));
        assert_eq!(moved as usize, self.base + (1 << 35));
        self.base = moved as usize;
        self.verify();
        assert_eq!(self.pager.space.madvise(self.base + 100 * PAGE_BYTES, 50 * PAGE_BYTES, libc::MADV_DONTNEED), 0);
        self.model[100..150].fill(0);
        self.echo[100..150].fill(0);
        self.verify();
    }

    /// What is said of pages, right or wrong, between accesses that are checked: no byte changes, and pages move as told.
    fn hint(&mut self) {
        let (pager, counters) = (self.pager, self.counters);
        let [hinted, paged_out] = [&counters.hinted, &counters.paged_out];
        let advices = [
            libc::MADV_NORMAL,
            libc::MADV_RANDOM,
            libc::MADV_SEQUENTIAL,
            libc::MADV_WILLNEED,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
        ];
        for round in 0..4000 {
            let (page, value) = (self.random.index(PAGES), self.random.bits());
            let count = (value as usize / 8 % 100).min(PAGES - page);
            let at = self.base + page * PAGE_BYTES;
            match value % 8 {
                0 | 1 => {
                    let advice = advices[value as usize / 1024 % advices.len()];
                    assert_eq!(pager.space.madvise(at, count * PAGE_BYTES, advice), 0);
                }
                2 => pager.hints.will_use(at + 77, count % 30, round % 2 == 0),
                3 => {
                    let some: Vec<usize> = (0..20).map(|_| self.base + self.random.index(PAGES) * PAGE_BYTES).collect();
                    pager.hints.will_use_each(&some, round % 2 == 0);
                }
                4 | 5 => self.write(page, value),
                _ => assert_eq!(self.read(page), self.model[page]),
            }
        }
        let moved = [hinted, paged_out].map(|counter| counter.load(Ordering::Relaxed));
        assert!(moved.iter().all(|&pages| pages > 300), "{moved:?}");
        self.verify();
        // What is said of one run of pages is done with it, and not with others.
        let (at, pages) = (self.base + 4096 * PAGE_BYTES, 30);
        let present = |pager: &Pager| {
            let mut present = [0u8; 30];
            assert_eq!(pager.space.mincore(at, pages * PAGE_BYTES, |page, here| present[page] = here as u8), 0);
            present.iter().map(|&is| is as usize).sum::<usize>()
        };
        assert_eq!(pager.space.madvise(at, pages * PAGE_BYTES, libc::MADV_PAGEOUT), 0);
        assert_eq!(present(pager), 0);
        assert_eq!(pager.space.madvise(at, pages * PAGE_BYTES, libc::MADV_WILLNEED), 0);
        assert_eq!(present(pager), pages);
        let before = [&counters.demand, &counters.upgrades].map(|counter| counter.load(Ordering::Relaxed));
        pager.hints.will_use(at, pages, true);
        let upgraded = counters.upgrades.load(Ordering::Relaxed) - before[1];
        (4096..4096 + pages).for_each(|page| self.write(page, page as u64));
        let after = [&counters.demand, &counters.upgrades].map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(after, [before[0], before[1] + upgraded], "no fault in what was said to be written to");
        let hole = self.base + PAGES * PAGE_BYTES;
        assert_eq!(
            pager.space.madvise(hole - PAGE_BYTES, 2 * PAGE_BYTES, libc::MADV_WILLNEED),
            -(libc::ENOMEM as isize)
        );
        pager.hints.will_use(hole, 1000, true);
        pager.hints.will_use(usize::MAX, usize::MAX, true);
        pager.hints.will_use_each(&[0, hole, usize::MAX], true);
        assert_eq!(pager.space.madvise(self.base, PAGES * PAGE_BYTES, libc::MADV_NORMAL), 0);
        self.verify();
    }

    /// The kernel's own accesses, to pages that are pinned, and refused where nothing is mapped.
    fn pin(&mut self) {
        let (pager, at) = (self.pager, self.base);
        assert_eq!(pager.pins.pin(at, 10 * PAGE_BYTES, true), 10 * PAGE_BYTES);
        let mut pipe = [0; 2];
        // SAFETY: two live ints; ten pages that are pinned, eight bytes of each.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            for page in 0..10 {
                assert_eq!(libc::write(pipe[1], (&page as *const usize).cast(), 8), 8);
                assert_eq!(libc::read(pipe[0], self.word(page).cast(), 8), 8);
                self.model[page] = page as u64;
            }
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        pager.pins.unpin(at, 10 * PAGE_BYTES);
        let end = at + PAGES * PAGE_BYTES;
        assert_eq!(pager.pins.pin(end - PAGE_BYTES, 3 * PAGE_BYTES, false), PAGE_BYTES);
        pager.pins.unpin(end - PAGE_BYTES, PAGE_BYTES);
        self.verify();
    }

    fn fork(&mut self) {
        let fork = self.pager.house.fork_prepare();
        // SAFETY: the child does what this block says and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            self.pager.house.fork_child(fork, common::counters());
            self.verify();
            (0..PAGES).for_each(|page| self.write(page, page as u64 ^ 0x5555));
            self.verify();
            // SAFETY: ends the child without unwinding into the harness.
            unsafe { libc::_exit(0) }
        }
        self.pager.house.fork_parent(fork, true);
        (0..PAGES).rev().for_each(|page| self.write(page, page as u64 ^ 0x77));
        let mut status = 0;
        // SAFETY: a live int.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "the child saw wrong bytes");
        self.verify();
    }

    /// Four threads on the same pages, each on words of its own.
    fn share_with_threads(self) {
        let base = self.base;
        let work = move |thread: usize| {
            let mut random = Random::nth(2, thread as u64);
            let mut mine = vec![0u64; PAGES];
            for n in 1..20_000u64 {
                let page = random.index(PAGES);
                let word = (base + page * PAGE_BYTES + 512 + 8 * thread) as *mut u64;
                // SAFETY: within the mapping; no other thread touches this word.
                unsafe {
                    assert_eq!(word.read_volatile(), mine[page], "page {page}");
                    word.write_volatile(n);
                }
                mine[page] = n;
            }
        };
        let threads: Vec<_> = (0..4).map(|t| std::thread::spawn(move || work(t))).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
