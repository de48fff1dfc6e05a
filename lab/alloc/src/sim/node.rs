//! The memory node: words of metadata, a NIC that executes verbs on them, one core.
//!
//! A verb flies half its latency, waits for the NIC, is executed, and flies back:
//!
//! ```text
//!   client ──latency/2──► NIC: waits its turn ──executed here──► latency/2 ──► client
//!                          │ one engine: `verb_occupancy` or `atomic_occupancy` each
//!                          └ atomics on one word: `same_word` apart
//! ```
//!
//! Verbs take effect in the order in which they arrive, a READ of many words at
//! one moment. (A real NIC may tear a long READ; every protocol here takes what
//! it reads as a hint and commits by CAS.) Waiting only puts off the answer,
//! which changes no order, for one engine serves in order of arrival.
//!
//! With a [`Card`] the words are a real node's, and verbs are carried out there.
//!
//! The core is a queue of its own: two-sided calls, and what the daemon does. What is zeroed may be so by others of the
//! node's cores at the same time ([`Node::zeroing`]).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::{Add, AddAssign, Sub};
use std::rc::Rc;

use serde::Serialize;

use super::card::Card;
use super::clock::{Nanos, World, both};
use super::costs::{Costs, us};
use super::random::Random;

/// A word's place in the node's metadata: its index, in units of 8 bytes.
pub type At = usize;

/// How often what was asked of the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verbs {
    /// READs posted.
    pub read: u64,
    /// WRITEs posted.
    pub write: u64,
    /// Atomics posted.
    pub cas: u64,
    /// SENDs posted: calls, and triggers of chains.
    pub send: u64,
    /// Requests that the node's NIC executed without anybody having posted them then: a chain's steps.
    pub chained: u64,
}

impl Verbs {
    /// Posted by clients.
    pub fn posted(&self) -> u64 {
        self.read + self.write + self.cas + self.send
    }
}

impl Add for Verbs {
    type Output = Verbs;
    fn add(self, other: Verbs) -> Verbs {
        Verbs {
            read: self.read + other.read,
            write: self.write + other.write,
            cas: self.cas + other.cas,
            send: self.send + other.send,
            chained: self.chained + other.chained,
        }
    }
}

impl AddAssign for Verbs {
    fn add_assign(&mut self, other: Verbs) {
        *self = *self + other;
    }
}

impl Sub for Verbs {
    type Output = Verbs;
    fn sub(self, other: Verbs) -> Verbs {
        Verbs {
            read: self.read - other.read,
            write: self.write - other.write,
            cas: self.cas - other.cas,
            send: self.send - other.send,
            chained: self.chained - other.chained,
        }
    }
}

/// What the core was busy with, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Busy {
    /// Calls, while their clients wait.
    pub calls: Nanos,
    /// Keys and windows, beside the clients.
    pub isolation: Nanos,
    /// Waiting until old verbs are done, and zeroing.
    pub draining: Nanos,
}

impl Sub for Busy {
    type Output = Busy;
    fn sub(self, other: Busy) -> Busy {
        Busy {
            calls: self.calls - other.calls,
            isolation: self.isolation - other.isolation,
            draining: self.draining - other.draining,
        }
    }
}

/// What the core is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A call.
    Call,
    /// Keys and windows.
    Isolation,
    /// Draining and zeroing.
    Draining,
}

/// The node.
pub struct Node {
    /// Its time.
    pub world: Rc<World>,
    /// What things cost.
    pub costs: Costs,
    pub(super) words: RefCell<Vec<u64>>,
    word_free: RefCell<Vec<Nanos>>,
    engine_free: Cell<Nanos>,
    chains_free: Cell<Nanos>,
    core_free: Cell<Nanos>,
    /// Of the cores beside it, which only zero.
    beside_free: RefCell<Vec<Nanos>>,
    busy: Cell<Busy>,
    verbs: Cell<Verbs>,
    beside: Cell<Verbs>,
    random: Random,
    watch: RefCell<Option<Watch>>,
    pub(super) card: RefCell<Option<Box<dyn Card>>>,
}

/// Called after every verb that changed a word.
type Watch = Box<dyn Fn(&[u64])>;

impl Node {
    /// One with so many words, all 0.
    pub fn new(world: Rc<World>, costs: Costs, words: usize, seed: u64) -> Rc<Node> {
        let beside_free = RefCell::new(vec![0; costs.core.scrub_cores as usize - 1]);
        Rc::new(Node {
            world,
            costs,
            words: RefCell::new(vec![0; words]),
            word_free: RefCell::new(vec![0; words]),
            engine_free: Cell::new(0),
            chains_free: Cell::new(0),
            core_free: Cell::new(0),
            beside_free,
            busy: Cell::default(),
            verbs: Cell::default(),
            beside: Cell::default(),
            random: Random::new(seed ^ 0x6E6F_6465),
            watch: RefCell::new(None),
            card: RefCell::new(None),
        })
    }

    /// All verbs so far that were posted for allocations and frees.
    pub fn verbs(&self) -> Verbs {
        self.verbs.get()
    }

    /// Those that services posted beside them.
    pub fn beside(&self) -> Verbs {
        self.beside.get()
    }

    /// What the core did so far.
    pub fn busy(&self) -> Busy {
        self.busy.get()
    }

    /// Changes words without a posted verb: a chain's steps, and the daemon's, which go through the same NIC.
    pub fn local<R>(&self, change: impl FnOnce(&mut [u64]) -> R) -> R {
        let result = change(&mut self.words.borrow_mut());
        self.changed();
        result
    }

    /// Calls `watch` whenever a word has changed.
    pub fn watch(&self, watch: impl Fn(&[u64]) + 'static) {
        *self.watch.borrow_mut() = Some(Box::new(watch));
    }

    fn changed(&self) {
        if let Some(watch) = &*self.watch.borrow() {
            watch(&self.words.borrow());
        }
    }

    /// A latency, a little more or less.
    fn drawn(&self, latency: f64) -> Nanos {
        let jitter = self.costs.verb.jitter;
        us(latency * (1.0 - jitter + 2.0 * jitter * self.random.share()))
    }

    /// How long a request that arrives now waits for the NIC.
    fn engine(&self, occupancy: f64, word: Option<At>) -> Nanos {
        let now = self.world.now();
        let mut start = now.max(self.engine_free.get());
        self.engine_free.set(start + us(occupancy));
        if let Some(word) = word {
            let free = &mut self.word_free.borrow_mut()[word];
            start = start.max(*free);
            *free = start + us(self.costs.nic.same_word);
        }
        start - now
    }

    /// How long a chain of `steps` that arrives now waits for the work-request engine.
    fn chains(&self, steps: u64) -> Nanos {
        if self.world.is_instant() {
            return 0;
        }
        let start = self.world.now().max(self.chains_free.get());
        self.chains_free.set(start + us(self.costs.window.chain_occupancy * steps as f64));
        start - self.world.now()
    }

    /// Keeps the core busy for `time` once it is free; when that is over.
    pub fn core(&self, time: Nanos, work: Work) -> Nanos {
        if self.world.is_instant() {
            return self.world.now();
        }
        let end = self.world.now().max(self.core_free.get()) + time;
        self.core_free.set(end);
        let mut busy = self.busy.get();
        match work {
            Work::Call => busy.calls += time,
            Work::Isolation => busy.isolation += time,
            Work::Draining => busy.draining += time,
        }
        self.busy.set(busy);
        end
    }

    /// Keeps one of the cores that zero busy for `time`: the one that is free first, of several the last, for the first
    /// is the one that calls wait for. When that is over.
    pub fn zeroing(&self, time: Nanos) -> Nanos {
        let (now, mut beside) = (self.world.now(), self.beside_free.borrow_mut());
        match beside.iter_mut().min_by_key(|free| **free) {
            Some(free) if !self.world.is_instant() && (*free).max(now) <= self.core_free.get().max(now) => {
                *free = (*free).max(now) + time;
                let busy = self.busy.get();
                self.busy.set(Busy { draining: busy.draining + time, ..busy });
                *free
            }
            _ => self.core(time, Work::Draining),
        }
    }
}

/// A connection to the node. Counts what it posts.
pub struct Link {
    /// The other end.
    pub node: Rc<Node>,
    beside: bool,
    posted: Cell<Verbs>,
    trips: Cell<u64>,
}

impl Link {
    /// To this node.
    pub fn new(node: &Rc<Node>) -> Link {
        Link { node: node.clone(), beside: false, posted: Cell::default(), trips: Cell::default() }
    }

    /// For what is done beside allocations and frees, and counted apart from theirs.
    pub fn beside(node: &Rc<Node>) -> Link {
        Link { beside: true, ..Link::new(node) }
    }

    /// What was posted since this was last asked, and how many round trips it took.
    pub fn take(&self) -> (Verbs, u64) {
        (self.posted.take(), self.trips.take())
    }

    fn count(&self, verbs: Verbs) {
        self.posted.set(self.posted.get() + verbs);
        self.trips.set(self.trips.get() + 1);
        let count = if self.beside { &self.node.beside } else { &self.node.verbs };
        count.set(count.get() + verbs);
    }

    /// A verb that takes `cost` µs, occupies the NIC for `occupancy` µs, and moves so many bytes.
    async fn verb<R>(&self, cost: f64, occupancy: f64, bytes: usize, effect: impl FnOnce(&[u64]) -> R) -> R {
        let node = &*self.node;
        if node.world.is_instant() {
            return effect(&node.words.borrow());
        }
        let latency = node.drawn(cost + bytes as f64 / node.costs.verb.bytes_per_us);
        node.world.sleep(latency / 2).await;
        let wait = node.engine(occupancy, None);
        let result = effect(&node.words.borrow());
        node.world.sleep(wait + latency - latency / 2).await;
        result
    }

    /// A verb that changes one word.
    async fn change(&self, cost: f64, occupancy: f64, at: At, atomic: bool, effect: impl FnOnce(u64) -> u64) -> u64 {
        self.change_and(cost, occupancy, at, atomic, effect, |_| ()).await
    }

    async fn change_and(
        &self,
        cost: f64,
        occupancy: f64,
        at: At,
        atomic: bool,
        effect: impl FnOnce(u64) -> u64,
        then: impl FnOnce(u64),
    ) -> u64 {
        let node = &*self.node;
        let latency = if node.world.is_instant() { 0 } else { node.drawn(cost) };
        node.world.sleep(latency / 2).await;
        let wait = if node.world.is_instant() { 0 } else { node.engine(occupancy, atomic.then_some(at)) };
        let was = node.words.borrow()[at];
        node.words.borrow_mut()[at] = effect(was);
        then(was);
        node.changed();
        node.world.sleep(wait + latency - latency / 2).await;
        was
    }

    /// READ of `N` words. What is read was so at one moment, and may be no more when it is here.
    pub async fn read<const N: usize>(&self, at: At) -> [u64; N] {
        self.count(Verbs { read: 1, ..Verbs::default() });
        let mut found = [0; N];
        if self.node.on_card(|card| card.read(at, &mut found)).is_some() {
            return found;
        }
        let (cost, occupancy) = (self.node.costs.verb.read, self.node.costs.nic.verb_occupancy);
        self.verb(cost, occupancy, 8 * N, |words| std::array::from_fn(|n| words[at + n])).await
    }

    /// READ of so many words.
    pub async fn read_many(&self, at: At, count: usize) -> Vec<u64> {
        self.count(Verbs { read: 1, ..Verbs::default() });
        let mut found = vec![0; count];
        if self.node.on_card(|card| card.read(at, &mut found)).is_some() {
            return found;
        }
        let (cost, occupancy) = (self.node.costs.verb.read, self.node.costs.nic.verb_occupancy);
        self.verb(cost, occupancy, 8 * count, |words| words[at..at + count].to_vec()).await
    }

    /// READ or WRITE of bytes that are no metadata. They occupy the NIC for as long as its line
    /// takes to carry them.
    pub async fn data(&self, write: bool, bytes: usize) {
        let costs = &self.node.costs;
        let (verbs, cost) = match write {
            true => (Verbs { write: 1, ..Verbs::default() }, costs.verb.write),
            false => (Verbs { read: 1, ..Verbs::default() }, costs.verb.read),
        };
        self.count(verbs);
        let occupancy = costs.nic.verb_occupancy.max(bytes as f64 / costs.verb.bytes_per_us);
        self.verb(cost, occupancy, bytes, |_| ()).await;
    }

    /// WRITE of one word.
    pub async fn write(&self, at: At, word: u64) {
        self.count(Verbs { write: 1, ..Verbs::default() });
        if self.node.on_card(|card| card.write(at, &[word])).is_some() {
            return;
        }
        let (cost, occupancy) = (self.node.costs.verb.write, self.node.costs.nic.verb_occupancy);
        self.change(cost, occupancy, at, false, |_| word).await;
    }

    /// CAS. The word that was there: `expected` if it took effect.
    pub async fn cas(&self, at: At, expected: u64, word: u64) -> u64 {
        self.count(Verbs { cas: 1, ..Verbs::default() });
        if let Some(was) = self.node.on_card(|card| card.cas(at, expected, word)) {
            return was;
        }
        let (cost, occupancy) = (self.node.costs.verb.cas, self.node.costs.nic.atomic_occupancy);
        self.change(cost, occupancy, at, true, |was| if was == expected { word } else { was }).await
    }

    /// CAS, after which the NIC does something more if it took effect.
    pub async fn cas_and(&self, at: At, expected: u64, word: u64, then: impl FnOnce(&mut [u64])) -> u64 {
        let node = self.node.clone();
        let effect = |was| if was == expected { word } else { was };
        self.count(Verbs { cas: 1, ..Verbs::default() });
        let (cost, occupancy) = (self.node.costs.verb.cas, self.node.costs.nic.atomic_occupancy);
        self.change_and(cost, occupancy, at, true, effect, |was| {
            if was == expected {
                then(&mut node.words.borrow_mut());
            }
        })
        .await
    }

    /// FAA. The word that was there.
    pub async fn faa(&self, at: At, add: u64) -> u64 {
        self.count(Verbs { cas: 1, ..Verbs::default() });
        if let Some(was) = self.node.on_card(|card| card.faa(at, add)) {
            return was;
        }
        let (cost, occupancy) = (self.node.costs.verb.cas, self.node.costs.nic.atomic_occupancy);
        self.change(cost, occupancy, at, true, |was| was.wrapping_add(add)).await
    }

    /// A two-sided call. The core runs `body` when its turn has come, in order of arrival, and is busy for `service` µs
    /// and what `body` says in addition.
    pub async fn call<R>(&self, service: f64, body: impl FnOnce() -> (R, Nanos)) -> R {
        self.count(Verbs { send: 1, ..Verbs::default() });
        let node = &*self.node;
        let latency = if node.world.is_instant() { 0 } else { node.drawn(node.costs.verb.send) };
        node.world.sleep(latency / 2).await;
        let (result, more) = body();
        let done = node.core(us(service) + more, Work::Call);
        node.world.until(done + latency - latency / 2).await;
        result
    }

    /// Triggers a chain of `steps` prepared work requests by one SEND. When it has arrived and the engine has come to
    /// it, they run one after another: `body`, which takes their time itself.
    pub async fn chain<R>(&self, steps: u64, body: impl Future<Output = R>) -> R {
        self.count(Verbs { send: 1, chained: steps, ..Verbs::default() });
        let node = &*self.node;
        let latency = if node.world.is_instant() { 0 } else { node.drawn(node.costs.verb.send) };
        node.world.sleep(latency / 2).await;
        let wait = node.chains(steps);
        node.world.sleep(wait).await;
        let result = body.await;
        node.world.sleep(latency - latency / 2).await;
        result
    }

    /// Verbs posted together: one round trip.
    pub async fn batch<F: Future>(&self, verbs: F) -> F::Output {
        let before = self.trips.get();
        let results = verbs.await;
        self.trips.set(self.trips.get().min(before + 1));
        results
    }

    /// Two verbs posted together: one round trip.
    pub async fn together<A: Future, B: Future>(&self, a: A, b: B) -> (A::Output, B::Output) {
        self.batch(both(a, b)).await
    }
}
