//! The agent of a host: blocks that it owns, and what its clients are given of them.
//!
//! * A request takes the agent's thread `host.agent`; requests queue for it.
//! * A request for 4 KiB is answered with up to `host.ahead_kib`, which the client then uses without asking.
//! * When its blocks have nothing left, the agent claims as many as the waiting requests need, in one batch; it serves
//!   others meanwhile. It claims the next before they are used up. Clients claim nothing of their own: what one agent
//!   claims for all of its clients, they cannot race each other for.
//! * When the node has no block, single chunks and small runs come out of blocks that others have published
//!   ([`super::pressure`]).
//! * An empty block goes back, but for one and one of each eight that it holds ([`policy::kept_empty`], as in
//!   `compute/agent`); 2 MiB come out of these first, without a verb and without being zeroed: they were the same
//!   application's.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use farmem_protocol::extent::policy::{self, Kept, Supply, Watermark};
use farmem_protocol::extent::{Actor, Claimer, Failed, Geometry, Level, Want, release};

use super::Extent;
use super::shelf::{Owned, Shelf};
use crate::allocators::{BLOCK, BLOCK_ORDER, Client, PATIENCE};
use crate::sim::clock::{Nanos, Signal};
use crate::sim::costs::us;
use crate::sim::node::{Link, Node};

/// A host's agent.
pub(super) struct Host {
    pub(super) actor: Actor,
    /// Claims and releases for its clients.
    pub(super) link: Link,
    /// What it does beside them: looks at the hints, publishes.
    pub(super) beside: Link,
    claimer: RefCell<Option<Claimer>>,
    /// The same, for chunks of published blocks.
    pub(super) chunk_claimer: RefCell<Option<Claimer>>,
    pub(super) watermark: Cell<Watermark>,
    blocks: RefCell<Shelf>,
    /// Chunks held one by one, in published blocks.
    chunks: RefCell<HashMap<u32, release::Grant>>,
    /// Orders of the runs that they make, by the first.
    runs: RefCell<HashMap<u32, u8>>,
    /// First chunks of runs of published blocks that no client has yet, by order.
    pub(super) spare: RefCell<[Vec<u32>; BLOCK_ORDER as usize]>,
    /// Requests that wait, by order.
    pub(super) waiting: [Cell<u32>; BLOCK_ORDER as usize],
    /// Grants of chunks that no client has, whose release is under way. (By grant: the chunk may be ours again before
    /// we know that it was given back.)
    releasing: RefCell<HashSet<release::Grant>>,
    /// Chunks free in its blocks.
    room: Cell<u32>,
    /// CAS of claims that brought nothing, since one did.
    in_vain: Cell<u64>,
    /// The node had no block: not asked again before.
    exhausted_until: Cell<Nanos>,
    claiming: Cell<bool>,
    pub(super) supplied: Signal,
    thread_free: Cell<Nanos>,
}

/// Where a run went that came back.
pub(super) enum Put {
    /// Into a block that stays the host's.
    Kept,
    /// Nowhere: it is of a published block.
    Shared,
    /// Its block is empty now, and to be given back to the node.
    Surplus(release::Grant),
}

impl Host {
    pub(super) fn new(actor: Actor, geometry: Geometry, node: &Rc<Node>) -> Host {
        Host {
            actor,
            link: Link::new(node),
            beside: Link::beside(node),
            claimer: RefCell::new(Some(Claimer::new(actor, geometry))),
            chunk_claimer: RefCell::new(Some(Claimer::new(actor, geometry))),
            watermark: Cell::default(),
            blocks: RefCell::default(),
            chunks: RefCell::default(),
            runs: RefCell::default(),
            spare: RefCell::default(),
            waiting: Default::default(),
            releasing: RefCell::default(),
            room: Cell::new(0),
            in_vain: Cell::new(0),
            exhausted_until: Cell::new(0),
            claiming: Cell::new(false),
            supplied: Signal::default(),
            thread_free: Cell::new(0),
        }
    }

    /// Whether a chunk of one of its blocks is given to a client, or waits at one.
    pub(super) fn uses(&self, chunk: u32) -> bool {
        self.blocks.borrow().get(chunk / BLOCK).is_some_and(|owned| owned.inside.is_used(chunk % BLOCK))
    }

    /// Whether clients have anything of this block, or ahead.
    pub(super) fn is_used(&self, block: u32) -> bool {
        self.blocks.borrow().get(block).is_some_and(|owned| !owned.inside.is_empty())
    }

    /// Whether its last claim lost all that it tried.
    pub(super) fn lost_last(&self) -> bool {
        self.in_vain.get() > 0
    }

    /// Whether what it owns in a published block is on its way back, or goes back when it knows that the block is
    /// published.
    pub(super) fn releases(&self, grant: &release::Grant) -> bool {
        let chunk = grant.place.index;
        let waits = |owned: &Owned| owned.publishing.as_ref().is_some_and(|back| back.contains(&chunk));
        self.releasing.borrow().contains(grant) || self.blocks.borrow().get(chunk / BLOCK).is_some_and(waits)
    }

    /// A request's way through the ring and the agent's thread.
    pub(super) async fn asked(&self, node: &Node) {
        if node.world.is_instant() {
            return;
        }
        let way = us(node.costs.host.ring_wait);
        node.world.sleep(way / 2).await;
        let done = node.world.now().max(self.thread_free.get()) + us(node.costs.host.agent);
        self.thread_free.set(done);
        node.world.until(done + way - way / 2).await;
    }

    /// Whether there is a run of this order to give.
    fn has(&self, order: u8) -> bool {
        !self.spare.borrow()[order as usize].is_empty() || self.blocks.borrow().with_room(order).is_some()
    }

    /// Runs of this order that requests wait for and nobody has claimed yet.
    pub(super) fn missing(&self, order: u8) -> u32 {
        let spare = self.spare.borrow()[order as usize].len() as u32;
        self.waiting[order as usize].get().saturating_sub(spare)
    }

    /// Up to `count` runs out of its blocks.
    pub(super) fn take(&self, order: u8, count: u32) -> Vec<u32> {
        let (mut taken, mut blocks) = (Vec::new(), self.blocks.borrow_mut());
        while taken.len() < count as usize
            && let Some(block) = blocks.with_room(order)
        {
            let first = blocks.change(block, |owned| owned.take(order));
            taken.push(block * BLOCK + first.flatten().expect("it has room"));
        }
        self.room.set(self.room.get() - ((taken.len() as u32) << order));
        taken
    }

    /// A block that was claimed for a client that wants all of it. Its first chunk.
    pub(super) fn take_whole(&self, grant: release::Grant) -> u32 {
        let mut owned = Owned::new(grant);
        owned.take(BLOCK_ORDER).expect("it is new");
        self.blocks.borrow_mut().insert(grant.place.index, owned);
        grant.place.index * BLOCK
    }

    /// A run comes back. The block that became empty by it, no longer ours to use, unless few are: an empty block
    /// that is kept is not drained and not zeroed, and serves whoever of its owner's asks next.
    pub(super) fn put_back(&self, chunk: u32) -> Put {
        let mut blocks = self.blocks.borrow_mut();
        let given = blocks.change(chunk / BLOCK, |owned| {
            let order = owned.give(chunk % BLOCK);
            match &mut owned.publishing {
                Some(back) => back.extend(chunk..chunk + (1 << order)),
                None => self.room.set(self.room.get() + (1 << order)),
            }
            owned.publishing.is_none() && owned.inside.is_empty()
        });
        match given {
            None => Put::Shared,
            Some(true) if blocks.empty().count() as u64 > policy::kept_empty(blocks.len() as u64) => {
                self.room.set(self.room.get() - BLOCK);
                Put::Surplus(blocks.remove(chunk / BLOCK).expect("it is there").grant)
            }
            Some(_) => Put::Kept,
        }
    }

    /// A heartbeat has passed.
    pub(super) fn beat(&self) {
        self.blocks.borrow_mut().beat();
    }

    /// Blocks that have been empty for so many heartbeats, no longer ours to use.
    pub(super) fn take_empty(&self, idle: u32) -> Vec<release::Grant> {
        let mut blocks = self.blocks.borrow_mut();
        let empty = blocks.idle(idle);
        self.room.set(self.room.get() - BLOCK * empty.len() as u32);
        empty.into_iter().filter_map(|block| blocks.remove(block)).map(|owned| owned.grant).collect()
    }

    /// Which blocks to publish now: nothing is taken from them any more.
    pub(super) fn begin_publishing(&self, supply: Supply) -> Vec<u32> {
        let mut blocks = self.blocks.borrow_mut();
        let left = blocks.iter().filter(|(_, owned, _)| owned.publishing.is_none());
        let chosen = policy::to_publish(
            left.map(|(block, owned, idle)| (block, Kept { in_use: owned.inside.in_use(), idle })),
            supply,
        );
        for &block in &chosen {
            blocks.change(block, |owned| {
                owned.publishing = Some(Vec::new());
                self.room.set(self.room.get() - (BLOCK - owned.inside.in_use()));
            });
        }
        chosen
    }

    /// A block to publish: its grant, its chunks in use.
    pub(super) fn being_published(&self, block: u32) -> (release::Grant, [u64; 8]) {
        let blocks = self.blocks.borrow();
        let owned = blocks.get(block).expect("it is being published");
        (owned.grant, owned.inside.live())
    }

    /// A block is published: the chunks that were in use are held one by one. Those that came back meanwhile are to be
    /// released.
    pub(super) fn published(&self, block: u32, grants: Vec<release::Grant>) -> Vec<release::Grant> {
        let owned = self.blocks.borrow_mut().remove(block).expect("it was being published");
        let (mut chunks, mut runs) = (self.chunks.borrow_mut(), self.runs.borrow_mut());
        chunks.extend(grants.iter().map(|grant| (grant.place.index, *grant)));
        for &grant in &grants {
            if let Ok(run) = owned.inside.extent(grant.place.index % BLOCK) {
                runs.insert(grant.place.index, run.len().trailing_zeros() as u8);
            }
        }
        let back = owned.publishing.unwrap_or_default();
        let back: Vec<_> = back.into_iter().filter_map(|chunk| chunks.remove(&chunk)).collect();
        self.releasing.borrow_mut().extend(&back);
        back
    }

    /// Chunks claimed one by one, in runs of 1 << `order`.
    pub(super) fn hold_chunks(&self, grants: Vec<release::Grant>, order: u8) {
        self.runs.borrow_mut().extend(grants.iter().step_by(1 << order).map(|grant| (grant.place.index, order)));
        self.chunks.borrow_mut().extend(grants.iter().map(|grant| (grant.place.index, *grant)));
    }

    /// The release of a chunk has ended.
    pub(super) fn is_released(&self, grant: &release::Grant) {
        self.releasing.borrow_mut().remove(grant);
    }
}

impl Extent {
    /// Asks the agent for a run, and for some ahead.
    pub(super) async fn ask(self: &Rc<Self>, client: &Client, order: u8) -> Option<u32> {
        let (host, world) = (&self.hosts[client.host as usize], &self.node.world);
        let count = ((self.node.costs.host.ahead_kib / 4) >> order).max(1);
        host.asked(&self.node).await;
        let (begun, waiting) = (world.now(), &host.waiting[order as usize]);
        waiting.set(waiting.get() + 1);
        let chunk = loop {
            let mut taken = host.take(order, count);
            if let Some(chunk) = taken.pop().or_else(|| host.spare.borrow_mut()[order as usize].pop()) {
                self.sides[client.id as usize].borrow_mut().ahead[order as usize] = taken;
                break Some(chunk);
            }
            if world.is_instant() {
                self.fetch(client.host).await;
                if host.has(order) {
                    continue;
                }
                break None;
            }
            let supplied = host.supplied.wait(world);
            // While the node has nothing, the next heartbeat asks for all who wait: who came first is served first.
            if host.exhausted_until.get() <= world.now() || world.now() == begun {
                self.supply(client.host);
            }
            supplied.await;
            if world.now() - begun >= PATIENCE && !host.has(order) {
                break None;
            }
        };
        waiting.set(waiting.get() - 1);
        if host.room.get() < BLOCK / 2 && host.exhausted_until.get() <= world.now() && !world.is_instant() {
            self.supply(client.host);
        }
        chunk
    }

    /// Claims what waiting requests need, unless that is under way.
    pub(super) fn supply(self: &Rc<Self>, host: u32) {
        if !self.hosts[host as usize].claiming.replace(true) {
            let all = self.clone();
            self.node.world.background(async move { all.fetch(host).await });
        }
    }

    async fn fetch(self: &Rc<Self>, host: u32) {
        let agent = &self.hosts[host as usize];
        if agent.exhausted_until.get() <= self.node.world.now() {
            self.fetch_blocks(host).await;
        }
        if agent.exhausted_until.get() > self.node.world.now() {
            self.fetch_shared(host).await;
        }
        agent.claiming.set(false);
        agent.supplied.tell(&self.node.world);
    }

    async fn fetch_blocks(&self, host: u32) {
        let agent = &self.hosts[host as usize];
        let mut claimer = agent.claimer.borrow_mut().take().expect("one claim at a time");
        let wanted: u32 = agent.waiting.iter().enumerate().map(|(order, waiting)| waiting.get() << order).sum();
        let mut attempts = 0u64;
        let want = Want::some(Level::Block, wanted.div_ceil(BLOCK).clamp(1, 16));
        let taken = self.try_claim(&agent.link, &mut claimer, want, || attempts += 1).await;
        *agent.claimer.borrow_mut() = Some(claimer);
        if let Err(Failed::NoSpace) = taken {
            let heartbeat = us(self.node.costs.host.heartbeat);
            agent.exhausted_until.set(self.node.world.now() + heartbeat.max(1));
        }
        let taken = taken.unwrap_or_default();
        self.has_cost(agent, attempts, taken.len());
        for grant in taken {
            agent.room.set(agent.room.get() + BLOCK);
            agent.blocks.borrow_mut().insert(grant.place.index, Owned::new(grant));
        }
    }

    /// CAS that an agent needed to claim so many units: those of claims that brought nothing are the next one's.
    pub(super) fn has_cost(&self, agent: &Host, attempts: u64, units: usize) {
        let attempts = attempts + agent.in_vain.take();
        match units {
            0 => agent.in_vain.set(attempts),
            units => self.dearest.set(self.dearest.get().max(attempts.div_ceil(units as u64))),
        }
    }

    /// A run comes back. The block that becomes empty by it goes back to the node, unless there are few such.
    pub(super) fn give_back(self: &Rc<Self>, host: u32, chunk: u32) {
        match self.hosts[host as usize].put_back(chunk) {
            Put::Kept => {}
            Put::Shared => self.give_back_shared(host, chunk),
            Put::Surplus(grant) => {
                let all = self.clone();
                self.node.world.background(async move {
                    let agent = &all.hosts[host as usize];
                    all.release(&agent.link, agent.actor, grant).await;
                });
            }
        }
    }

    fn give_back_shared(self: &Rc<Self>, host: u32, chunk: u32) {
        let agent = &self.hosts[host as usize];
        let order = agent.runs.borrow_mut().remove(&chunk).expect("a run that was given out");
        let mut chunks = agent.chunks.borrow_mut();
        let run = chunk..chunk + (1 << order);
        let grants: Vec<_> = run.clone().map(|chunk| chunks.remove(&chunk).expect("a chunk of that run")).collect();
        agent.releasing.borrow_mut().extend(&grants);
        let all = self.clone();
        self.node.world.background(async move { all.release_chunks(host, grants).await });
    }
}
