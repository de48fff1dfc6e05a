//! Measures what a page that leaves pays for its memory, and the share of held memory that is live:
//! farmem's allocator beside FineMem's and OneSidedMW's, under the recorded slots, on network cards
//! in virtual time.
//!
//! ```text
//!  recorded slots ─► writer of a host: memory for the page? ── no ─► claimer of the host ─► allocator ══ verbs ══► node
//!                            └───────────────── yes ─► WRITE of 4 KiB ═════════════════════════════════════════════► node
//! ```
//!
//! Cards, node and allocators are those of `farmem-lab bench alloc`, with its published costs, and
//! its ledger judges every grant. Each host has two queue pairs: its kernel's, which writes pages
//! one after the other, and one by which memory is claimed and given back. Each system is run three
//! times: without claims, with claims when a page needs memory, and with claims ahead of need.
//!
//! | [`Unit`] | a page's memory | goes back |
//! |---|---|---|
//! | `Volume` | a chunk of a block of 2 MiB, which [`Volume`] chooses: farmem's | when the block is empty; pages move together |
//! | `Page` | a piece of 4 KiB | when the page's slot is freed |
//! | `Block` | its place in a block of 2 MiB of the device | when the last slot of the block is freed |
//!
//! Pages that move are read and written by the host here. A node that has the volume moves them
//! without the network.

use crate::recorded::{Event, Program, slots};
use anyhow::{Result, anyhow, ensure};
use farmem_alloc::allocators::{Allocator, Client, ask};
use farmem_alloc::ledger::Grant;
use farmem_alloc::run::{Bench, Load};
use farmem_alloc::sim::clock::{Nanos, Signal, World};
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::systems::{System, With};
use farmem_kit::histogram::Histogram;
use farmem_kit::table::Table;
use farmem_volume::Volume;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Slots of a block.
const BLOCK: u32 = 512;
/// The virtual machine of the records was emulated, and slow: a millisecond of theirs, ns.
const MS: Nanos = 100_000;
/// Pages' pieces, or blocks, that are claimed ahead of need.
const AHEAD: [usize; 2] = [64, 1];
/// Between two looks at what is held.
const LOOK: Nanos = 250_000_000;

/// The memory that a page gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A chunk of a block, chosen by the production allocator of volumes.
    Volume,
    /// A piece of its own.
    Page,
    /// The block at its place on the device.
    Block,
}

impl Unit {
    fn order(self) -> u8 {
        if self == Unit::Page { 0 } else { 9 }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Volume => "2 MiB, pages packed",
            Unit::Page => "4 KiB",
            Unit::Block => "2 MiB",
        }
    }
}

/// The systems that are compared.
pub const ROWS: [(System, Unit); 5] = [
    (System::Farmem, Unit::Volume),
    (System::Finemem, Unit::Page),
    (System::Finemem, Unit::Block),
    (System::Onesidedmw, Unit::Page),
    (System::Onesidedmw, Unit::Block),
];

/// When memory is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Never: pages go to memory that is there.
    Never,
    /// When a page needs it.
    Needed,
    /// Some ahead of need.
    Ahead,
}

/// The figures of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// WRITEs.
    pub writes: u64,
    /// WRITEs for whose page memory was claimed.
    pub claims: u64,
    /// Of all WRITEs with their claims, ns.
    pub p50: Nanos,
    /// 99 %.
    pub p99: Nanos,
    /// 99.9 %.
    pub p999: Nanos,
    /// The median of those with a claim.
    pub claiming: Nanos,
    /// Live of what is held, over time.
    pub live_of_held: f64,
    /// Pages that moved.
    pub moved: u64,
}

/// Runs a system with `hosts` hosts, each with one of the programs.
///
/// # Errors
/// A fault that the ledger found; a pool that refuses.
pub fn run(programs: &[Program], hosts: u32, (system, unit): (System, Unit), when: When, seed: u64) -> Result<Outcome> {
    let most = programs.iter().map(|program| slots(&program.events)).max().unwrap_or(0).next_multiple_of(BLOCK);
    // A block more for each host, and some that are cleaned.
    let chunks = (hosts * (most + 8 * BLOCK)).next_multiple_of(64 * BLOCK);
    let load = Load { chunks, order: unit.order(), clients: 2 * hosts, per_host: 2, rounds: 1, fill: 0.0, seed };
    system.with(load, &Costs::shipped(), Swap { programs, unit, when })
}

struct Swap<'a> {
    programs: &'a [Program],
    unit: Unit,
    when: When,
}

impl With for Swap<'_> {
    type Output = Result<Outcome>;

    fn with<A: Allocator>(self, bench: Bench<A>) -> Result<Outcome> {
        bench.allocator.start();
        let found: Rc<Found> = Rc::default();
        for (host, pair) in bench.clients().chunks(2).enumerate() {
            let desk: Rc<Desk> = Rc::default();
            let events = self.programs[host % self.programs.len()].events.clone();
            let ahead = if self.when == When::Ahead { AHEAD[usize::from(self.unit != Unit::Page)] } else { 0 };
            let claimer = Claimer {
                world: bench.world.clone(),
                allocator: bench.allocator.clone(),
                ledger: bench.ledger.clone(),
                client: pair[1].clone(),
                order: self.unit.order(),
                desk: desk.clone(),
                found: found.clone(),
            };
            if self.when != When::Never {
                bench.world.client(claimer.work(ahead));
            }
            let writer = Writer {
                world: bench.world.clone(),
                client: pair[0].clone(),
                claims: self.when != When::Never,
                unit: self.unit,
                volume: Volume::new(slots(&events).next_multiple_of(BLOCK)),
                grants: BTreeMap::new(),
                used: BTreeMap::new(),
                desk,
                found: found.clone(),
            };
            bench.world.client(writer.work(events));
        }
        let (mut live, mut held) = (0.0, 0.0);
        while bench.world.clients() > 0 {
            bench.world.run_until(bench.world.now() + LOOK);
            if let Some(fault) = found.fault.borrow().as_ref() {
                return Err(anyhow!("{fault}"));
            }
            let census = bench.check(false)?;
            live += found.live.get() as f64;
            held += (census.held + census.reserved) as f64;
        }
        bench.check(true)?;
        let (all, claiming) = (found.all.borrow(), found.claiming.borrow());
        Ok(Outcome {
            writes: found.writes.get(),
            claims: found.claims.get(),
            p50: all.quantile(0.5),
            p99: all.quantile(0.99),
            p999: all.quantile(0.999),
            claiming: claiming.quantile(0.5),
            live_of_held: live / f64::max(held, 1.0),
            moved: found.moved.get(),
        })
    }
}

/// The figures of all hosts.
#[derive(Default)]
struct Found {
    all: RefCell<Histogram>,
    claiming: RefCell<Histogram>,
    writes: Cell<u64>,
    claims: Cell<u64>,
    moved: Cell<u64>,
    /// Slots in use.
    live: Cell<u64>,
    fault: RefCell<Option<String>>,
}

fn add(to: &Cell<u64>, count: u64) {
    to.set(to.get() + count);
}

/// Between the two of a host.
#[derive(Default)]
struct Desk {
    spare: RefCell<VecDeque<Grant>>,
    back: RefCell<VecDeque<Grant>>,
    /// Whether the writer waits.
    wanted: Cell<bool>,
    ended: Cell<bool>,
    told: Signal,
    supplied: Signal,
}

/// The queue pair by which memory is claimed and given back.
struct Claimer<A> {
    world: Rc<World>,
    allocator: Rc<A>,
    ledger: Rc<farmem_alloc::ledger::Ledger>,
    client: Rc<Client>,
    order: u8,
    desk: Rc<Desk>,
    found: Rc<Found>,
}

impl<A: Allocator> Claimer<A> {
    /// The writer comes first, then what goes back, then what is claimed ahead.
    async fn work(self, ahead: usize) {
        let desk = &self.desk;
        while self.found.fault.borrow().is_none() {
            let spare = desk.spare.borrow().len();
            let waits = desk.wanted.get() && spare == 0;
            let back = if waits { None } else { desk.back.borrow_mut().pop_front() };
            if let Some(grant) = back {
                self.fault(self.ledger.release(self.client.id, grant));
                self.allocator.free(&self.client, grant).await;
            } else if waits || !desk.ended.get() && spare < ahead {
                match ask(&self.allocator, &self.world, &self.client, self.order, true).await {
                    Some(grant) => {
                        self.fault(self.ledger.grant(self.client.id, grant));
                        desk.spare.borrow_mut().push_back(grant);
                    }
                    None => self.fault(Err("the pool refuses".into())),
                }
                desk.supplied.tell(&self.world);
            } else if desk.ended.get() {
                let rest = desk.spare.borrow_mut().pop_front();
                match rest {
                    Some(grant) => desk.back.borrow_mut().push_back(grant),
                    None => return,
                }
            } else {
                desk.told.wait(&self.world).await;
            }
        }
        desk.supplied.tell(&self.world);
    }

    fn fault(&self, found: Result<(), String>) {
        if let Err(fault) = found {
            self.found.fault.borrow_mut().get_or_insert(fault);
        }
    }
}

/// The kernel of a host, and what chooses where its pages lie.
struct Writer {
    world: Rc<World>,
    client: Rc<Client>,
    claims: bool,
    unit: Unit,
    /// Of [`Unit::Volume`].
    volume: Volume,
    /// By slot, block of the device, or block of the pool.
    grants: BTreeMap<u32, Grant>,
    /// Slots in use, by the same.
    used: BTreeMap<u32, u32>,
    desk: Rc<Desk>,
    found: Rc<Found>,
}

impl Writer {
    async fn work(mut self, events: Vec<Event>) {
        // Slots that are in use. One that is freed may be free already.
        let mut live = vec![false; slots(&events) as usize];
        for event in events {
            match event {
                Event::Passed(ms) => {
                    self.tidy().await;
                    self.world.sleep(u64::from(ms) * MS).await;
                }
                Event::Written(slots) => {
                    for slot in slots {
                        let is_new = !std::mem::replace(&mut live[slot as usize], true);
                        add(&self.found.live, u64::from(is_new));
                        if !self.write(slot, is_new).await {
                            return;
                        }
                    }
                }
                Event::Freed(slots) | Event::Trimmed(slots) => {
                    for slot in slots {
                        if std::mem::replace(&mut live[slot as usize], false) {
                            self.found.live.set(self.found.live.get() - 1);
                            self.forget(slot);
                        }
                    }
                }
            }
        }
        for slot in (0..).zip(live).filter_map(|(slot, live)| live.then_some(slot)) {
            self.found.live.set(self.found.live.get() - 1);
            self.forget(slot);
        }
        self.desk.ended.set(true);
        self.desk.told.tell(&self.world);
    }

    /// Writes a page, with memory for it if it has none. False: something is wrong.
    async fn write(&mut self, slot: u32, is_new: bool) -> bool {
        let begun = self.world.now();
        let mut claimed = false;
        if self.claims && is_new {
            let place = if self.unit == Unit::Block { slot / BLOCK } else { slot };
            loop {
                let lacks = match self.unit {
                    Unit::Volume => self.volume.place(slot).is_err(),
                    Unit::Page | Unit::Block => !self.grants.contains_key(&place),
                };
                if !lacks {
                    break;
                }
                let Some(grant) = self.take().await else { return false };
                claimed = true;
                match self.unit {
                    Unit::Volume => {
                        self.volume.add_block(grant.chunk / BLOCK);
                        self.grants.insert(grant.chunk / BLOCK, grant);
                    }
                    Unit::Page | Unit::Block => drop(self.grants.insert(place, grant)),
                }
            }
            *self.used.entry(place).or_default() += 1;
        }
        self.client.link.data(true, 4096).await;
        let took = self.world.now() - begun;
        self.found.all.borrow_mut().record(took);
        add(&self.found.writes, 1);
        if claimed {
            self.found.claiming.borrow_mut().record(took);
            add(&self.found.claims, 1);
        }
        true
    }

    /// Memory from the claimer.
    async fn take(&self) -> Option<Grant> {
        self.desk.wanted.set(true);
        loop {
            let grant = self.desk.spare.borrow_mut().pop_front();
            if grant.is_some() {
                self.desk.wanted.set(false);
                self.desk.told.tell(&self.world);
                return grant;
            }
            if self.found.fault.borrow().is_some() {
                return None;
            }
            let supplied = self.desk.supplied.wait(&self.world);
            self.desk.told.tell(&self.world);
            supplied.await;
        }
    }

    fn forget(&mut self, slot: u32) {
        if !self.claims {
            return;
        }
        let place = if self.unit == Unit::Block { slot / BLOCK } else { slot };
        match self.unit {
            Unit::Volume => {
                self.volume.trim(slot);
                self.give_empty();
            }
            Unit::Page | Unit::Block => {
                let used = self.used.entry(place).or_default();
                *used -= 1;
                if *used == 0 {
                    self.used.remove(&place);
                    self.give(place);
                }
            }
        }
    }

    fn give_empty(&mut self) {
        while let Some(block) = self.volume.empty() {
            self.give(block);
        }
    }

    fn give(&mut self, place: u32) {
        let grant = self.grants.remove(&place);
        self.desk.back.borrow_mut().extend(grant);
        self.desk.told.tell(&self.world);
    }

    /// Moves pages together, as a volume's node does when it has nothing else to do.
    async fn tidy(&mut self) {
        while self.claims && self.volume.compact().is_some() {
            self.client.link.data(false, 4096).await;
            self.client.link.data(true, 4096).await;
            add(&self.found.moved, 1);
        }
        self.give_empty();
    }
}

/// Compare what claims cost pages that leave: farmem's allocator, FineMem's and OneSidedMW's
///
/// Hosts swap by RDMA to one node, in virtual time, with the recorded slots of real programs. Shows
/// how long WRITEs take with the claims of their memory and without, and how much of what is held
/// is live.
#[derive(clap::Args, Debug)]
pub struct Claims {
    /// Hosts; each has one of the programs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub hosts: u32,
    /// Draws latencies
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Claims {
    /// Runs all of them, and prints a table.
    ///
    /// # Errors
    /// A fault that the ledger found.
    pub fn run(self) -> Result<()> {
        let programs = Program::all()?;
        ensure!(!programs.is_empty(), "no program was recorded");
        print!("{}", table(&programs, self.hosts, self.seed)?);
        Ok(())
    }
}

/// A row for each system and each way to claim.
///
/// # Errors
/// A fault that the ledger found.
pub fn table(programs: &[Program], hosts: u32, seed: u64) -> Result<Table> {
    let us = |ns: Nanos| format!("{:.2} µs", ns as f64 / 1000.0);
    let mut table = Table::new([
        "allocator",
        "unit",
        "claims",
        "WRITEs that claim",
        "their median",
        "all: p50",
        "p99",
        "p99.9",
        "p99 by no claims",
        "live of held",
        "moved",
    ]);
    let plain = run(programs, hosts, ROWS[0], When::Never, seed)?;
    for row in ROWS {
        for (when, name) in [(When::Needed, "when needed"), (When::Ahead, "ahead")] {
            let found = run(programs, hosts, row, when, seed)?;
            table.row([
                row.0.name().to_owned(),
                row.1.name().to_owned(),
                name.to_owned(),
                format!("{:.2} %", 100.0 * found.claims as f64 / found.writes as f64),
                us(found.claiming),
                us(found.p50),
                us(found.p99),
                us(found.p999),
                format!("{:.3}", found.p99 as f64 / plain.p99 as f64),
                format!("{:.0} %", 100.0 * found.live_of_held),
                format!("{:.0} %", 100.0 * found.moved as f64 / found.writes as f64),
            ]);
        }
    }
    Ok(table)
}
