//! How fast copies are made again after a node was lost, and how much slower a program gets
//! meanwhile. It is in virtual time, because this needs a CPU for the program, one for repair and
//! one for each node.
//!
//! ```text
//!  pages, two copies at four nodes ─► one node dies ─► a program fetches alone ─► … beside the repair
//!
//!  program          fault ─► READ ─► page ─► fault …             its own lane; each 32nd fault evicts
//!  copying thread   piece: READs, WRITEs ─► piece ─► pause …     the pool's repair and its throttle
//!  host             one link each way, for both
//!  node             one link each way, one worker: first come, first served
//! ```
//!
//! The pool, its throttle, the nodes' NIC and the wire are the code that is shipped. CPU times are
//! measured ones. A piece holds the evictor's lock, as in the pager: a fault that evicts waits for
//! it. Pages leave without a transfer: the program only reads.

#![allow(unsafe_code)] // Buffers of reads and writes.

use anyhow::{Context, Result, ensure};
use farmem_fabric::{ConnectOptions, Session};
use farmem_pool::{Lacks, Lane, POSTS_NS, Piece, Pool, Protect, SPELL_NS, Throttle};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES, SLOTS_PER_SLAB};
use farmem_protocol::random::Random;
use farmem_run::counters::{Histogram, percentile};
use farmem_sim::{HostLink, Network, Rates, Weather, beside};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const NODES: u64 = 4;
/// One fault in this many evicts a batch.
const BATCH: u64 = 32;
/// How long a program is watched alone.
const ALONE_NS: u64 = 200_000_000;
/// Pages of a piece, at most.
const PIECE: u32 = 128;
/// Between looks of repair whether a fault waits for the evictor.
const LOOK_NS: u64 = 20_000;

/// How fast copies are made again, and what a program feels of it
///
/// A node of four is lost. A program fetches pages alone, then beside the repair. The pool, its
/// repair with its throttle, and the nodes are the code that is shipped, in virtual time. CPU times
/// are measured ones; the defaults are of this project's machine (docs/results). Aims: half of the
/// link, and a program that takes at most
/// 1.15 times as long.
#[derive(clap::Args, Debug)]
pub struct Reprotect {
    /// Slabs of 64 MiB that the program has
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub slabs: usize,
    /// The links of the host and of each node, in Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    pub link: f64,
    /// The way of a frame from a host to a node, beside the time on links, in µs, give or take a
    /// fifth
    #[arg(long, value_name = "US", default_value_t = 5.0)]
    pub way: f64,
    /// CPU time of a fetch at the host, in µs
    #[arg(long, value_name = "US", default_value_t = 6.4)]
    pub fetch: f64,
    /// CPU time of a node for a round of its work, but for pages, in µs
    #[arg(long, value_name = "US", default_value_t = 3.0)]
    pub round: f64,
    /// CPU time of the copying thread for a page, in µs
    #[arg(long, value_name = "US", default_value_t = 2.1)]
    pub copy: f64,
    /// CPU time of a node for a page that it sends, in µs
    #[arg(long, value_name = "US", default_value_t = 2.4)]
    pub sends: f64,
    /// CPU time of a node for a page that it takes, in µs
    #[arg(long, value_name = "US", default_value_t = 3.1)]
    pub takes: f64,
}

fn ns(us: f64) -> u64 {
    (us * 1000.0) as u64
}

/// The state that the program and the copying thread share.
#[derive(Default)]
struct Shared {
    /// A piece is being copied.
    holds: Cell<bool>,
    /// A fault waits until it can evict.
    wished: Cell<bool>,
    fetches: Histogram,
    /// Faults that were served, and how long they took in all.
    served: Cell<(u64, u64)>,
}

/// Where the program is.
enum Step {
    /// It computes until then.
    Computes(u64),
    /// The READ of a fault that began at the first time leaves at the second.
    Leaves(u64, u64),
    /// The fault needs room: it waits for the evictor, its READ is under way.
    Evicts(u64),
    Reads(u64),
    /// The page has come and is installed at the second time.
    Lands(u64, u64),
}

struct Program {
    pool: &'static Pool,
    lane: Lane,
    landing: Box<[u8; PAGE_BYTES]>,
    slots: Rc<Vec<FarSlot>>,
    random: Random,
    step: Step,
    faults: u64,
    /// How long it computes between two faults, and a fetch's CPU time.
    computes_ns: u64,
    fetch_ns: u64,
    shared: Rc<Shared>,
}

impl Program {
    /// The CPU time of half a fetch, give or take a quarter.
    fn half_fetch(&mut self) -> u64 {
        let half = self.fetch_ns / 2;
        half - half / 4 + self.random.below(half / 2 + 1)
    }

    /// Goes on as far as it can now; when it is to be asked again at the latest.
    fn go_on(&mut self, now: u64) -> u64 {
        loop {
            self.step = match self.step {
                Step::Computes(until) if now < until => return until,
                Step::Computes(_) => {
                    self.faults += 1;
                    Step::Leaves(now, now + self.half_fetch())
                }
                Step::Evicts(_) if self.shared.holds.get() => {
                    self.shared.wished.set(true);
                    return now + LOOK_NS;
                }
                Step::Evicts(begun) => {
                    self.shared.wished.set(false);
                    Step::Reads(begun)
                }
                Step::Leaves(_, until) if now < until => return until,
                Step::Leaves(begun, _) => {
                    let slot = self.slots[self.random.index(self.slots.len())];
                    // SAFETY: the buffer lives as long as the lane.
                    unsafe { self.lane.read(self.pool, 0, slot, 0, self.landing.as_mut_ptr(), PAGE_BYTES as u32) };
                    self.lane.doorbell(self.pool);
                    if self.faults.is_multiple_of(BATCH) { Step::Evicts(begun) } else { Step::Reads(begun) }
                }
                Step::Reads(begun) => {
                    let mut done = Vec::new();
                    if self.lane.poll(self.pool, &mut done) == 0 {
                        return now + LOOK_NS;
                    }
                    assert!(done.iter().all(|done| done.result.is_ok()), "a page is lost: {done:?}");
                    Step::Lands(begun, now + self.half_fetch())
                }
                Step::Lands(_, until) if now < until => return until,
                Step::Lands(begun, _) => {
                    self.shared.fetches.record(now - begun);
                    let (served, took) = self.shared.served.get();
                    self.shared.served.set((served + 1, took + now - begun));
                    Step::Computes(now + self.computes_ns)
                }
            }
        }
    }
}

/// Fetches of a while.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// How many.
    pub fetches: u64,
    /// How long one took, in µs.
    pub mean_us: f64,
    /// How long half of them took at most, in µs.
    pub median_us: f64,
    /// From one fetch to the next, in µs.
    pub each_us: f64,
}

/// The outcome for one program.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The program without repair, and beside it. `None`: it does nothing.
    pub program: Option<[Seen; 2]>,
    /// The bits that were copied in a nanosecond.
    pub gbit: f64,
    /// MiB that were copied.
    pub mib: u64,
}

impl Outcome {
    /// How much longer the program takes beside repair.
    pub fn slowdown(&self) -> Option<f64> {
        self.program.map(|[alone, beside]| beside.each_us / alone.each_us)
    }
}

impl Reprotect {
    /// Prints what was asked for.
    ///
    /// # Errors
    /// As [`Reprotect::outcomes`].
    pub fn run(&self) -> Result<()> {
        println!("                          a fetch, µs      median, µs");
        println!("program                 alone  beside   alone  beside  slowdown  copied again");
        let outcomes = self.outcomes()?;
        for (name, of) in &outcomes {
            let rate = format!("{:.2} Gbit/s, {} MiB", of.gbit, of.mib);
            match (of.program, of.slowdown()) {
                (Some([alone, beside]), Some(slowdown)) => println!(
                    "{name:<23}{:>6.1}{:>8.1}{:>8.1}{:>8.1}{slowdown:>9.2}×  {rate}",
                    alone.mean_us, beside.mean_us, alone.median_us, beside.median_us
                ),
                _ => println!("{name:<23}{:>6}{:>8}{:>8}{:>8}{:>10}  {rate}", "–", "–", "–", "–", "–"),
            }
        }
        let (least, most) = self.aims();
        let reached = outcomes.iter().all(|(_, of)| of.gbit >= least && of.slowdown().is_none_or(|slow| slow <= most));
        println!("aims: {least:.2} Gbit/s, {most:.2}×: {}", if reached { "reached" } else { "missed" });
        Ok(())
    }

    /// The aims: half of the link in Gbit/s at least, and the program's slowdown at most.
    pub fn aims(&self) -> (f64, f64) {
        (self.link / 2.0, 1.15)
    }

    /// The outcome for each program.
    ///
    /// # Errors
    /// The simulated host loses a page, or repair does not end.
    pub fn outcomes(&self) -> Result<Vec<(&'static str, Outcome)>> {
        ensure!(self.link > 0.0 && (1..=64).contains(&self.slabs), "1 to 64 slabs, and a link of some Gbit/s");
        let programs =
            [("stands still", None), ("computes half its time", Some(true)), ("fetches without end", Some(false))];
        programs.into_iter().map(|(name, computes)| Ok((name, self.with(computes)?))).collect()
    }

    /// One program: whether it computes as long as it fetches, or not at all. `None`: it does
    /// nothing.
    fn with(&self, computes: Option<bool>) -> Result<Outcome> {
        let host = HostLink::default();
        let rates = Rates {
            link_ns: (PAGE_BYTES as f64 * 8.0 / self.link) as u64,
            round_ns: ns(self.round),
            sends_ns: ns(self.sends),
            takes_ns: ns(self.takes),
        };
        let way = ns(self.way);
        let lends = (self.slabs as u64 + 2) * SLAB_BYTES;
        let network = |seed| {
            let weather =
                Weather { seed, least_delay_ns: way - way / 5, most_delay_ns: way + way / 5, segment: 2 * PAGE_BYTES };
            Network::new(weather, lends)
        };
        let networks: Vec<Arc<Network>> = (1..=NODES).map(network).collect();
        Network::share_clock(&networks);
        let options = ConnectOptions {
            timeout: Duration::from_millis(500),
            grace: Duration::from_secs(5),
            run: [1; 16],
            pid: 1,
            ..ConnectOptions::default()
        };
        let sessions: Result<Vec<Session>, _> = networks.iter().map(|at| Session::simulated(at, &options)).collect();
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(sessions?).context("no addresses for a pool")?));
        pool.protect(Protect::Mirror);
        let mut lane = Lane::new();
        let slots = Rc::new(written(pool, &mut lane, self.slabs)?);
        let shared = Rc::new(Shared::default());
        networks.iter().for_each(|network| network.set_rates(rates, &host));
        networks[0].kill_node();
        pool.losses().tend()?;
        let mut program = Program {
            pool,
            lane: Lane::new(),
            landing: Box::new([0; PAGE_BYTES]),
            slots: Rc::clone(&slots),
            random: Random::new(7),
            step: Step::Computes(0),
            faults: 0,
            computes_ns: 0,
            fetch_ns: ns(self.fetch),
            shared: Rc::clone(&shared),
        };
        // Connections are made before anything is measured, by all.
        for slot in slots.iter().step_by(SLOTS_PER_SLAB as usize / 4) {
            read(pool, &mut program.lane, *slot, &mut program.landing)?;
            read(pool, &mut lane, *slot, &mut program.landing)?;
        }
        let program = Rc::new(RefCell::new(program));
        let mut throttle = Throttle::default();
        let watch = |shared: &Shared, since: (u64, u64), from: u64, before: &[u64; 160]| {
            let (served, took) = shared.served.get();
            let (fetches, took) = (served - since.0, took - since.1);
            let now = shared.fetches.snapshot();
            let median = percentile(&std::array::from_fn(|at| now[at] - before[at]), 0.5);
            (fetches > 0).then(|| Seen {
                fetches,
                mean_us: took as f64 / fetches as f64 / 1000.0,
                median_us: median as f64 / 1000.0,
                each_us: (networks[0].now_ns() - from) as f64 / fetches as f64 / 1000.0,
            })
        };
        // Time passes event by event also for a program that does nothing: the host's link is one.
        beside::goes_on(|_| u64::MAX);
        let mut alone = None;
        if let Some(computes) = computes {
            let goes_on = Rc::clone(&program);
            beside::goes_on(move |now| goes_on.borrow_mut().go_on(now));
            let from = |ns| {
                let (begun, since, before) = (networks[0].now_ns(), shared.served.get(), shared.fetches.snapshot());
                networks[0].pass(ns);
                watch(&shared, since, begun, &before)
            };
            if computes {
                let seen = from(ALONE_NS / 4).context("the program does not fetch")?;
                program.borrow_mut().computes_ns = ns(seen.mean_us);
            }
            throttle.rests(&shared.fetches);
            alone = from(ALONE_NS);
            throttle.rests(&shared.fetches);
        }
        let (begun, since, before) = (networks[0].now_ns(), shared.served.get(), shared.fetches.snapshot());
        let bytes = self.repair(pool, &mut lane, &networks[0], &shared, &mut throttle);
        let beside = watch(&shared, since, begun, &before);
        let took = networks[0].now_ns() - begun;
        beside::ends();
        let bytes = bytes?;
        ensure!(alone.is_none_or(|seen: Seen| seen.fetches > 100), "the program hardly fetches");
        networks.iter().for_each(|network| network.kill_node());
        let program = alone.zip(beside).map(|(alone, beside)| [alone, beside]);
        Ok(Outcome { program, gbit: bytes as f64 * 8.0 / took as f64, mib: bytes >> 20 })
    }

    /// Repairs all, as the pager's background thread does; the bytes that were copied.
    fn repair(
        &self,
        pool: &Pool,
        lane: &mut Lane,
        time: &Network,
        shared: &Shared,
        throttle: &mut Throttle,
    ) -> Result<u64> {
        let mut buffers = vec![0_u8; PIECE as usize * PAGE_BYTES];
        let (mut bytes, mut spell) = (0, time.now_ns());
        throttle.begins(&shared.fetches, spell);
        while let Some(lacks) = pool.repair().lacks() {
            let (index, nth) = match lacks {
                Lacks::Home(index) => {
                    pool.moves().add_home(index)?;
                    pool.moves().dropped().into_iter().for_each(|number| pool.moves().all_have_left(number));
                    continue;
                }
                Lacks::Bytes(index, nth) => (index, nth),
                other => anyhow::bail!("repair wants {other:?}"),
            };
            let mut from = 0;
            loop {
                while shared.wished.get() {
                    time.pass(LOOK_NS);
                }
                shared.holds.set(true);
                let begun = time.now_ns();
                let mut goes_on = || {
                    time.pass(ns(self.copy));
                    !shared.wished.get() && time.now_ns() - begun < POSTS_NS
                };
                let piece = Piece { pages: PIECE, under_way: throttle.under_way(), goes_on: &mut goes_on };
                // SAFETY: the buffers outlive the call, and nothing is under way on the lane.
                let filled = unsafe { lane.fill(pool, index, nth, from, buffers.as_mut_ptr(), piece) };
                if let Some(filled) = filled {
                    // The first page's; that of the others has passed.
                    time.pass(ns(self.copy));
                    bytes += u64::from(filled.pages) * PAGE_BYTES as u64;
                    from = filled.next;
                    throttle.took(time.now_ns() - begun);
                }
                shared.holds.set(false);
                time.pass(0);
                let spent = time.now_ns() - spell;
                if spent > SPELL_NS {
                    throttle.ends(&shared.fetches);
                    time.pass(throttle.pause(time.now_ns(), spent));
                    spell = time.now_ns();
                    throttle.begins(&shared.fetches, spell);
                }
                if filled.is_none() {
                    break;
                }
            }
            ensure!(pool.moves().end_filling(index, nth), "a copy is not whole");
        }
        Ok(bytes)
    }
}

/// All pages of `slabs` slabs, written to both copies.
fn written(pool: &Pool, lane: &mut Lane, slabs: usize) -> Result<Vec<FarSlot>> {
    let mut slots = Vec::new();
    pool.slots().alloc(slabs * SLOTS_PER_SLAB as usize, &mut slots).context("no memory at the nodes")?;
    let page = Box::new([7_u8; PAGE_BYTES]);
    let mut done = Vec::new();
    for some in slots.chunks(64) {
        for slot in some {
            // SAFETY: the page outlives the operations, which are awaited.
            unsafe { lane.write(pool, 0, *slot, 0, page.as_ptr(), PAGE_BYTES as u32) };
        }
        lane.doorbell(pool);
        while lane.in_flight() > 0 {
            lane.wait(pool, &mut done, Duration::from_secs(1));
        }
        ensure!(done.drain(..).all(|done| done.result.is_ok()), "a page was not written");
    }
    Ok(slots)
}

/// Reads one page.
fn read(pool: &Pool, lane: &mut Lane, slot: FarSlot, into: &mut [u8; PAGE_BYTES]) -> Result<()> {
    let mut done = Vec::new();
    // SAFETY: the buffer outlives the operation, which is awaited.
    unsafe { lane.read(pool, 0, slot, 0, into.as_mut_ptr(), PAGE_BYTES as u32) };
    lane.doorbell(pool);
    while lane.in_flight() > 0 {
        lane.wait(pool, &mut done, Duration::from_secs(1));
    }
    ensure!(done.iter().all(|done| done.result.is_ok()), "a page was not read");
    Ok(())
}
