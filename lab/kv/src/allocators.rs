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
//! Clients of one front end share its memory. What one front end replaces of another's, that one
//! finds by its search, as the store does ([`farmem_kv::shard::recover`]): when its objects have
//! grown by a quarter it READs the slots of all of them.
//!
//! The model leaves out splits of tables and the near cache. A table is 70 % full.

mod report;

pub use report::{Raw, report};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use farmem_alloc::allocators::{Allocator, Client, ask};
use farmem_alloc::ledger::Grant;
use farmem_alloc::run::{Bench, Load};
use farmem_alloc::sim::clock::{Nanos, all};
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::sim::node::Link;
use farmem_alloc::systems::{System, With};
use serde::Serialize;

use crate::hot::Looks;
use crate::mix::{Ask, Keys, Mix, Stream};

/// From the replacement of an object to the next use of its place: three epochs of a busy store.
const GRACE: Nanos = 1_500_000;
/// READs of one batch of an owner's search.
const AT_ONCE: usize = 64;
/// Bytes between slots that one READ covers, and the block of addresses in which its slots lie.
const NEAR: u64 = 256;
const BLOCK: u64 = 16 << 10;
/// Objects of a front end before it begins to search: 1 MiB of them.
const FEW: usize = 256;
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
    /// Front ends that they belong to.
    pub fronts: u32,
    /// Keys at first; 0: new ones are inserted.
    pub keys: u32,
    /// Operations of each client.
    pub operations: u32,
    /// How keys are drawn.
    pub drawn: Keys,
    /// Whether places are used again and pieces go back.
    pub reclaims: bool,
    /// How an owner finds the objects that others have replaced.
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

/// The places of a front end.
#[derive(Default)]
struct Own {
    /// With the clients that took them.
    pieces: Vec<Option<(usize, Grant)>>,
    used: Vec<u32>,
    free: Vec<u32>,
    retired: VecDeque<(Nanos, u32)>,
    /// Slots in which its objects were linked.
    slots: BTreeSet<usize>,
    /// Objects that others have replaced, which it has not found: slots and places.
    replaced: Vec<(usize, u32)>,
    /// Its objects, with those; how many there were after its last search; whether it searches now.
    objects: usize,
    searched: usize,
    searches: bool,
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

/// The word of a slot: the use, the front end, the place.
fn word(uses: u64, front: usize, place: u32) -> u64 {
    (uses & 0xffff) << 48 | (front as u64 + 1) << 32 | u64::from(place)
}

struct Run {
    case: Case,
    index: usize,
}

impl With for Run {
    type Output = Result<Came>;

    fn with<A: Allocator>(self, bench: Bench<A>) -> Result<Came> {
        let Run { case, index } = self;
        let own = (0..case.fronts).map(|_| RefCell::default()).collect();
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
            let (client, slot) = (key as usize % self.bench.clients().len(), self.index + key as usize);
            let place = world.at_once(self.place(client)).context("the pool is too small for the keys")?;
            self.bench.node.local(|words| words[slot] = word(0, self.front(client), place));
            self.linked(client, slot);
        }
        for own in &self.own {
            let mut own = own.borrow_mut();
            own.searched = own.objects.max(FEW);
        }
        world.set_instant(false);
        self.allocations.set(0);
        self.bench.allocator.start();
        Ok(())
    }

    /// The front end of a client.
    fn front(&self, at: usize) -> usize {
        at * self.own.len() / self.bench.clients().len()
    }

    fn own(&self, at: usize) -> &RefCell<Own> {
        &self.own[self.front(at)]
    }

    /// A client's object is in a slot now.
    fn linked(&self, at: usize, slot: usize) {
        let mut own = self.own(at).borrow_mut();
        own.slots.insert(slot);
        own.objects += 1;
    }

    /// A place for an object.
    async fn place(&self, at: usize) -> Option<u32> {
        let place = self.own(at).borrow_mut().free.pop();
        if let Some(place) = place {
            self.taken(at, place);
            return Some(place);
        }
        let of_piece = self.case.places.of_piece();
        if self.case.places == Places::Static {
            let mut own = self.own(at).borrow_mut();
            own.used.push(1);
            return Some((own.used.len() as u32 - 1) * of_piece);
        }
        let client: &Client = &self.bench.clients()[at];
        let grant = ask(&self.bench.allocator, &self.bench.world, client, 0, true).await?;
        self.allocations.set(self.allocations.get() + 1);
        if let Err(fault) = self.bench.ledger.grant(client.id, grant) {
            self.fault.borrow_mut().get_or_insert(fault);
        }
        let mut own = self.own(at).borrow_mut();
        let piece = own.pieces.iter().position(Option::is_none).filter(|_| self.case.places == Places::Own);
        let piece = piece.unwrap_or(own.pieces.len());
        if piece == own.pieces.len() {
            own.pieces.push(None);
            own.used.push(0);
        }
        own.pieces[piece] = Some((at, grant));
        own.used[piece] = 1;
        let first = piece as u32 * of_piece;
        own.free.extend(first + 1..first + of_piece);
        Some(first)
    }

    fn taken(&self, at: usize, place: u32) {
        let piece = (place / self.case.places.of_piece()) as usize;
        self.own(at).borrow_mut().used[piece] += 1;
    }

    /// Frees what was retired early enough.
    async fn reap(&self, at: usize) {
        let places = self.case.places;
        loop {
            let now = self.bench.world.now();
            let grant = {
                let mut own = self.own(at).borrow_mut();
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
            let Some((took, grant)) = grant else { continue };
            let client: &Client = &self.bench.clients()[took];
            match self.bench.ledger.release(client.id, grant) {
                Ok(()) => self.bench.allocator.free(client, grant).await,
                Err(fault) => drop(self.fault.borrow_mut().get_or_insert(fault)),
            }
        }
    }

    /// Finds objects that others have replaced, if it is time for that.
    async fn search(&self, at: usize, link: &Link) {
        let (reads, replaced) = {
            let mut own = self.own(at).borrow_mut();
            if own.searches || own.objects <= own.searched + own.searched / 4 {
                return;
            }
            own.searches = true;
            let reads = match self.case.looks {
                Looks::Each => own.slots.iter().map(|_| 8).collect(),
                Looks::Near => reads(own.slots.iter().map(|&slot| (slot - self.index) as u64)),
                Looks::Told => Vec::new(),
            };
            (reads, std::mem::take(&mut own.replaced))
        };
        for some in reads.chunks(AT_ONCE) {
            link.batch(all(some.iter().map(|&bytes| link.data(false, bytes)))).await;
        }
        let (now, mut own) = (self.bench.world.now(), self.own(at).borrow_mut());
        let front = self.front(at) as u64 + 1;
        own.objects -= replaced.len();
        for (slot, place) in replaced {
            own.retired.push_back((now, place));
            if self.bench.node.peek(slot) >> 32 & 0xffff != front {
                own.slots.remove(&slot);
            }
        }
        own.searched = own.objects.max(FEW);
        own.searches = false;
    }

    async fn update(&self, at: usize, key: u64, link: &Link) -> Option<()> {
        let (slot, bytes) = (self.index + key as usize, self.case.places.bytes());
        let place = self.place(at).await?;
        let new = {
            let mut own = self.own(at).borrow_mut();
            own.uses += 1;
            word(own.uses, self.front(at), place)
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
        self.linked(at, slot);
        let (owner, place) = ((old >> 32 & 0xffff) as usize - 1, old as u32);
        let mut own = self.own[owner].borrow_mut();
        if owner == self.front(at) {
            own.objects -= 1;
            own.retired.push_back((self.bench.world.now(), place));
        } else {
            own.replaced.push((slot, place));
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
        for at in 0..self.bench.clients().len() {
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

/// The bytes of the READs of these slots of a table that is 70 % full, in order.
fn reads(slots: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut reads: Vec<(u64, u64)> = Vec::new();
    for at in slots.map(|slot| slot * 10 / 7 * 8) {
        match reads.last_mut() {
            Some((first, last)) if at - *last <= NEAR && at / BLOCK == *first / BLOCK => *last = at,
            _ => reads.push((at, at)),
        }
    }
    reads.into_iter().map(|(first, last)| (last + 8 - first) as usize).collect()
}

/// Runs one case on one system.
///
/// # Errors
/// As [`mod@report`].
pub fn run(system: System, case: Case, costs: &Costs) -> Result<Came> {
    let operations = case.clients * case.operations;
    let objects = case.keys + operations;
    // Memory for all that is ever written, and for what hosts keep ahead.
    let chunks = (objects / case.places.of_piece() + case.clients * 512).next_multiple_of(512);
    let load = Load { chunks, order: 0, clients: case.clients, per_host: 32, fill: 0.0, rounds: 0, seed: 7 };
    let (index, more) = (system.words(&load), case.keys.max(operations) as usize + 1);
    system.with_words(load, costs, more, Run { case, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_near_each_other_are_read_together() {
        assert_eq!(reads([0, 7, 14].into_iter()), [168]);
        assert_eq!(reads([0, 700].into_iter()), [8, 8]);
        let whole = reads(0..7000);
        assert!(whole.len() == 5 && whole.iter().sum::<usize>() < 80_000, "{whole:?}");
    }

    #[test]
    fn every_allocator_carries_the_store() {
        let case = Case {
            places: Places::Own,
            clients: 8,
            fronts: 8,
            keys: 64,
            operations: 200,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Near,
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
