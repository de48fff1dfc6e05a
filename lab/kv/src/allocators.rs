//! One store, one allocator after the other, on network cards in virtual time.
//!
//! ```text
//!   client: place for the object ─► WRITE object ∥ CAS slot ─► the old place, after the grace ─► free
//!              │ heap, else                                                                       │
//!              └ allocator ◄──────────── a piece of which nothing is used ────────────────────────┘
//! ```
//!
//! Cards, node and allocators are those of `farmem-lab bench alloc`, with its published costs, and
//! its ledger judges every grant. The verbs are the store's: an update is a WRITE and a CAS in one
//! round trip, an insert takes three. The node's line carries the objects.
//!
//! * [`Places::Own`]: each object has a piece of 4 KiB, which goes back when the object has been
//!   replaced and the grace is over. All published stores do this; it asks most of an allocator.
//! * [`Places::Shared`]: objects of 1 KiB share pieces of 4 KiB, and the store uses their places
//!   again, as this one does.
//! * [`Places::Static`]: each client has memory for all that it will write from the start.
//!
//! The model leaves out splits of tables, the owners' search for objects that others have
//! replaced but for its READs, and the near cache.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use farmem_alloc::allocators::{Allocator, Client, ask};
use farmem_alloc::ledger::Grant;
use farmem_alloc::run::{Bench, Load};
use farmem_alloc::sim::clock::{Nanos, all};
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::sim::node::Link;
use farmem_alloc::systems::{System, With};
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Spread;
use farmem_kit::report::{Bound, Report, Section, Target};
use farmem_kit::table::{Table, duration};
use serde::Serialize;

use crate::hot::{self, Looks};
use crate::memory;
use crate::mix::{Ask, Keys, Mix, Stream};

/// From the replacement of an object to the next use of its place: three epochs of a busy store.
const GRACE: Nanos = 1_500_000;
/// Replaced objects of others that an owner looks up at once.
const LOOKED_UP: usize = 64;
/// Bytes of an object beside its value, with a key of 16 bytes.
pub(crate) const BESIDE: usize = 56;
const BUCKET: usize = 64;

/// Where objects lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Places {
    /// Each in a piece of its own.
    Own,
    /// Several in a piece.
    Shared,
    /// In memory that its client has from the start.
    Static,
}

impl Places {
    fn of_piece(self) -> u32 {
        if self == Places::Own { 1 } else { 3 }
    }

    fn bytes(self) -> usize {
        BESIDE + if self == Places::Own { 3500 } else { 1024 }
    }
}

/// One run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Case {
    /// Where objects lie.
    pub places: Places,
    /// Clients.
    pub clients: u32,
    /// Keys at first; 0: new ones are inserted.
    pub keys: u32,
    /// Operations of each client.
    pub operations: u32,
    /// How keys are drawn.
    pub drawn: Keys,
    /// Whether places are used again and pieces go back.
    pub reclaims: bool,
    /// How an owner looks an object up that others may have replaced.
    pub looks: Looks,
}

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Came {
    /// Operations a second.
    pub rate: f64,
    /// 99 of 100 took at most this, ns.
    pub p99: f64,
    /// Pieces that were allocated for each operation.
    pub allocations: f64,
    /// READs, WRITEs and CASes of an operation beside those of allocations and frees.
    pub verbs: f64,
}

/// The places of a client.
#[derive(Default)]
struct Own {
    pieces: Vec<Option<Grant>>,
    used: Vec<u32>,
    free: Vec<u32>,
    retired: VecDeque<(Nanos, u32)>,
    /// Objects that others have replaced, which it has not looked up: slots and places.
    replaced: Vec<(usize, u32)>,
    /// Tells the uses of a place apart.
    uses: u64,
}

/// A run under way.
struct Store<A: Allocator> {
    bench: Bench<A>,
    case: Case,
    /// Where the index begins among the node's words.
    index: usize,
    own: Vec<RefCell<Own>>,
    took: RefCell<Vec<Nanos>>,
    allocations: Cell<u64>,
    fault: RefCell<Option<String>>,
}

/// The word of a slot: the use, the client, the place.
fn word(uses: u64, client: usize, place: u32) -> u64 {
    (uses & 0xffff) << 48 | (client as u64 + 1) << 32 | u64::from(place)
}

struct Run {
    case: Case,
    index: usize,
}

impl With for Run {
    type Output = Result<Came>;

    fn with<A: Allocator>(self, bench: Bench<A>) -> Result<Came> {
        let own = bench.clients().iter().map(|_| RefCell::default()).collect();
        let Run { case, index } = self;
        let (took, allocations, fault) = (RefCell::default(), Cell::new(0), RefCell::default());
        let store = Rc::new(Store { bench, case, index, own, took, allocations, fault });
        store.fill()?;
        store.run()
    }
}

impl<A: Allocator> Store<A> {
    /// Gives every key an object, in no time.
    fn fill(&self) -> Result<()> {
        let world = &self.bench.world;
        world.set_instant(true);
        for key in 0..self.case.keys {
            let client = key as usize % self.own.len();
            let place = world.at_once(self.place(client)).context("the pool is too small for the keys")?;
            self.bench.node.local(|words| words[self.index + key as usize] = word(0, client, place));
        }
        world.set_instant(false);
        self.allocations.set(0);
        self.bench.allocator.start();
        Ok(())
    }

    /// A place for an object.
    async fn place(&self, at: usize) -> Option<u32> {
        let place = self.own[at].borrow_mut().free.pop();
        if let Some(place) = place {
            self.taken(at, place);
            return Some(place);
        }
        let of_piece = self.case.places.of_piece();
        if self.case.places == Places::Static {
            let mut own = self.own[at].borrow_mut();
            own.used.push(1);
            return Some((own.used.len() as u32 - 1) * of_piece);
        }
        let client: &Client = &self.bench.clients()[at];
        let grant = ask(&self.bench.allocator, &self.bench.world, client, 0, true).await?;
        self.allocations.set(self.allocations.get() + 1);
        if let Err(fault) = self.bench.ledger.grant(client.id, grant) {
            self.fault.borrow_mut().get_or_insert(fault);
        }
        let mut own = self.own[at].borrow_mut();
        let piece = own.pieces.iter().position(Option::is_none).filter(|_| self.case.places == Places::Own);
        let piece = piece.unwrap_or(own.pieces.len());
        if piece == own.pieces.len() {
            own.pieces.push(None);
            own.used.push(0);
        }
        own.pieces[piece] = Some(grant);
        own.used[piece] = 1;
        let first = piece as u32 * of_piece;
        own.free.extend(first + 1..first + of_piece);
        Some(first)
    }

    fn taken(&self, at: usize, place: u32) {
        let piece = (place / self.case.places.of_piece()) as usize;
        self.own[at].borrow_mut().used[piece] += 1;
    }

    /// Frees what was retired early enough.
    async fn reap(&self, at: usize) {
        let (client, places): (&Client, _) = (&self.bench.clients()[at], self.case.places);
        loop {
            let now = self.bench.world.now();
            let grant = {
                let mut own = self.own[at].borrow_mut();
                let Some(&(since, place)) = own.retired.front() else { return };
                if since + GRACE > now {
                    return;
                }
                own.retired.pop_front();
                let piece = (place / places.of_piece()) as usize;
                own.used[piece] -= 1;
                if places != Places::Own {
                    own.free.push(place);
                    continue;
                }
                own.pieces[piece].take()
            };
            let Some(grant) = grant else { continue };
            match self.bench.ledger.release(client.id, grant) {
                Ok(()) => self.bench.allocator.free(client, grant).await,
                Err(fault) => drop(self.fault.borrow_mut().get_or_insert(fault)),
            }
        }
    }

    /// Looks objects up that others may have replaced.
    async fn search(&self, at: usize, link: &Link) {
        if self.own[at].borrow().replaced.len() < LOOKED_UP {
            return;
        }
        let replaced = std::mem::take(&mut self.own[at].borrow_mut().replaced);
        match self.case.looks {
            Looks::Buckets => {
                let reads = replaced.iter().flat_map(|_| [link.data(false, BUCKET), link.data(false, BUCKET)]);
                link.batch(all(reads)).await;
            }
            Looks::Slot => {
                let reads = replaced.iter().map(|&(slot, _)| link.read::<1>(slot));
                link.batch(all(reads)).await;
            }
            Looks::Told => (),
        }
        let now = self.bench.world.now();
        self.own[at].borrow_mut().retired.extend(replaced.into_iter().map(|(_, place)| (now, place)));
    }

    async fn update(&self, at: usize, key: u64, link: &Link) -> Option<()> {
        let (slot, bytes) = (self.index + key as usize, self.case.places.bytes());
        let place = self.place(at).await?;
        let new = {
            let mut own = self.own[at].borrow_mut();
            own.uses += 1;
            word(own.uses, at, place)
        };
        let mut old = self.bench.node.peek(slot);
        let mut found = link.together(link.data(true, bytes), link.cas(slot, old, new)).await.1;
        while found != old {
            // The slot has changed: it and its object are read again.
            let (read, ()) = link.together(link.read::<1>(slot), link.data(false, bytes)).await;
            old = read[0];
            found = link.cas(slot, old, new).await;
        }
        if !self.case.reclaims {
            return Some(());
        }
        let (owner, place) = ((old >> 32 & 0xffff) as usize - 1, old as u32);
        let mut own = self.own[owner].borrow_mut();
        match owner == at {
            true => own.retired.push_back((self.bench.world.now(), place)),
            false => own.replaced.push((slot, place)),
        }
        Some(())
    }

    async fn insert(&self, at: usize, link: &Link) -> Option<()> {
        let (place, buckets) = (self.place(at).await?, || [link.data(false, BUCKET), link.data(false, BUCKET)]);
        let slot = self.index + at * self.case.operations as usize + place as usize % self.case.operations as usize;
        link.together(link.data(true, self.case.places.bytes()), all(buckets())).await;
        link.together(link.faa(slot, 1), all(buckets())).await;
        link.faa(slot, 1).await;
        Some(())
    }

    fn run(self: &Rc<Self>) -> Result<Came> {
        let (world, begun) = (&self.bench.world, self.bench.world.now());
        for at in 0..self.own.len() {
            let store = Rc::clone(self);
            world.client(async move { store.client(at).await });
        }
        world.run();
        if let Some(fault) = self.fault.borrow().as_ref() {
            return Err(anyhow!("{fault}"));
        }
        let mut took = self.took.take();
        took.sort_unstable();
        let seconds = (world.now() - begun) as f64 / 1e9;
        let p99 = took.get(took.len().saturating_sub(1) * 99 / 100).map_or(0.0, |&took| took as f64);
        let allocations = self.allocations.get() as f64 / took.len().max(1) as f64;
        let verbs = self.bench.node.beside().posted() as f64 / took.len().max(1) as f64;
        Ok(Came { rate: took.len() as f64 / seconds, p99, allocations, verbs })
    }

    async fn client(&self, at: usize) {
        let link = Link::beside(&self.bench.node);
        let keys = u64::from(self.case.keys);
        let mut stream = (keys > 0).then(|| Stream::new(Mix::U, self.case.drawn, keys, at as u64));
        for _ in 0..self.case.operations {
            let start = self.bench.world.now();
            let done = match stream.as_mut().map(Stream::ask) {
                Some(Ask::Write(key) | Ask::Read(key)) => self.update(at, key, &link).await,
                None => self.insert(at, &link).await,
            };
            if done.is_none() {
                self.fault.borrow_mut().get_or_insert(format!("client {at} is refused"));
                return;
            }
            self.took.borrow_mut().push(self.bench.world.now() - start);
            self.search(at, &link).await;
            self.reap(at).await;
        }
    }
}

/// Runs one case on one system.
///
/// # Errors
/// As [`report`].
pub fn run(system: System, case: Case, costs: &Costs) -> Result<Came> {
    let operations = case.clients * case.operations;
    let objects = case.keys + operations;
    // Memory for all that is ever written, and for what hosts keep ahead.
    let chunks = (objects / case.places.of_piece() + case.clients * 512).next_multiple_of(512);
    let load = Load { chunks, order: 0, clients: case.clients, per_host: 32, fill: 0.0, rounds: 0, seed: 7 };
    let (index, more) = (system.words(&load), case.keys.max(operations) as usize + 1);
    system.with_words(load, costs, more, Run { case, index })
}

/// Everything that was found, for machines.
#[derive(Serialize)]
pub struct Raw {
    /// Case, system, figures.
    pub runs: Vec<(Case, System, Came)>,
    /// Clients, and the share of memory saved against grants of 1 GiB.
    pub saved: Vec<(u32, f64)>,
}

fn once(figure: f64) -> Option<Spread> {
    Spread::of([figure])
}

fn million(rate: f64) -> String {
    format!("{:.2} M", rate / 1e6)
}

/// Runs it all.
///
/// # Errors
/// An allocator gave memory to two clients, or refused.
pub fn report(quick: bool) -> Result<Report<Raw>> {
    let costs = Costs::shipped();
    let clients: &[u32] = if quick { &[1, 64] } else { &[1, 8, 32, 128, 512] };
    let most = clients.last().copied().unwrap_or(1);
    let operations = |clients: u32| (if quick { 10_000 } else { 40_000 } / clients).clamp(100, 20_000);
    let keys = if quick { 2_000 } else { 8_000 };
    let update = |places, clients, drawn| Case {
        places,
        clients,
        keys,
        operations: operations(clients),
        drawn,
        reclaims: true,
        looks: Looks::Buckets,
    };
    let mut raw = Raw { runs: Vec::new(), saved: Vec::new() };
    let mut sections = Vec::new();
    for (places, drawn, title) in [
        (Places::Own, Keys::Uniform, "Updates a second, each object in a piece of its own, uniform keys"),
        (Places::Own, Keys::Zipfian, "The same, zipfian keys"),
        (Places::Shared, Keys::Uniform, "Updates a second, objects of 1 KiB that share pieces, uniform keys"),
    ] {
        let head = ["clients".to_owned()].into_iter().chain(System::ALL.map(|system| system.name().to_owned()));
        let (mut rates, mut tails) = (Table::new(head.clone()), Table::new(head));
        for &clients in clients {
            let mut came = Vec::new();
            for system in System::ALL {
                let case = update(places, clients, drawn);
                came.push(run(system, case, &costs).with_context(|| format!("{}, {clients} clients", system.name()))?);
                raw.runs.extend(came.last().map(|&came| (case, system, came)));
            }
            let row = |show: &dyn Fn(&Came) -> String| {
                [clients.to_string()].into_iter().chain(came.iter().map(show)).collect::<Vec<_>>()
            };
            rates.row(row(&|came| million(came.rate)));
            tails.row(row(&|came| duration(came.p99)));
        }
        sections.push(Section { title: title.into(), table: rates });
        sections.push(Section { title: "99 of 100 of them took at most".into(), table: tails });
    }
    for (section, came) in
        [hot::reclamation(&costs, update(Places::Own, most, Keys::Uniform))?, hot::one_key(&costs, quick)?]
    {
        sections.push(section);
        raw.runs.extend(came.into_iter().map(|(case, came)| (case, System::Farmem, came)));
    }
    let insert = |places| Case { keys: 0, ..update(places, most, Keys::Uniform) };
    let [grown, granted] = [Places::Shared, Places::Static].map(|places| run(System::Farmem, insert(places), &costs));
    let (grown, granted) = (grown?, granted?);
    let (section, saved) = memory::saved(if quick { 200_000 } else { 10_000_000 });
    sections.push(section);
    raw.saved = saved;
    let case = update(Places::Own, most, Keys::Uniform);
    let rate_of = |raw: &Raw, case, system| {
        raw.runs.iter().find(|run| run.0 == case && run.1 == system).map_or(f64::NAN, |run| run.2.rate)
    };
    let rate = |raw: &Raw, system| rate_of(raw, case, system);
    let kept = rate_of(&raw, Case { reclaims: false, ..case }, System::Farmem);
    let at = |clients| raw.saved.iter().find(|(at, _)| *at == clients).map_or(f64::NAN, |(_, share)| *share);
    let targets = vec![
        Target::new(
            format!("updates of {most} clients: farmem against windows by calls (OneSidedMW: 10.6)"),
            Bound::AtLeast(15.0, 20.0),
            once(rate(&raw, System::Farmem) / rate(&raw, System::RpcWindows)),
        ),
        Target::new(
            "memory saved against grants of 1 GiB, inserts, 64 clients, 1 KiB",
            Bound::AtLeast(0.70, 0.80),
            once(at(64)),
        ),
        Target::new(
            "inserts: throughput against static grants",
            Bound::AtLeast(0.97, 1.0),
            once(grown.rate / granted.rate),
        ),
        Target::new(
            "inserts: p99 added to static grants, µs",
            Bound::AtMost(2.0, 0.5),
            once((grown.p99 - granted.p99) / 1e3),
        ),
        Target::new(
            "updates: throughput with reclamation against without",
            Bound::AtLeast(0.97, 1.0),
            once(rate(&raw, System::Farmem) / kept),
        ),
    ];
    let method = vec![
        "Virtual time: cards, node and allocators of `farmem-lab bench alloc`, with its costs. One run; seeds are fixed."
            .into(),
        format!("{keys} keys, updates alone; objects of 3556 bytes in pieces of their own, of 1080 where they share."),
        "An object's place is used again, or its piece goes back, 1.5 ms after it was replaced.".into(),
    ];
    let (environment, skipped) = (Environment::read(), Vec::new());
    Ok(Report { bench: "kv-allocators", method, environment, skipped, sections, targets, raw })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allocator_carries_the_store() {
        let case = Case {
            places: Places::Own,
            clients: 8,
            keys: 64,
            operations: 200,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Buckets,
        };
        for system in System::ALL {
            let came = run(system, case, &Costs::shipped()).expect("what the ledger allows");
            assert_eq!(came.allocations, 1.0, "{system:?}: an update takes a piece");
            assert!(came.rate > 1000.0 && came.p99 > 2000.0, "{system:?}: {came:?}");
            let shared = run(system, Case { places: Places::Shared, ..case }, &Costs::shipped()).expect("sound");
            assert!(shared.allocations < 0.5 && shared.rate >= came.rate, "{system:?}: {shared:?}");
        }
        let fixed = run(System::Rpc, Case { places: Places::Static, keys: 0, ..case }, &Costs::shipped());
        assert_eq!(fixed.expect("no grants").allocations, 0.0);
    }
}
