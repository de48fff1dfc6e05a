//! The agent of a host: blocks that it owns, and what its clients are given of them.
//!
//! * A request takes the agent's thread `host.agent`; requests queue for it.
//! * A request for 4 KiB is answered with up to `host.ahead_kib`, which the client then uses without asking.
//! * When its blocks have nothing left, the agent claims as many as the waiting requests need, in one batch; it serves
//!   others meanwhile. It claims the next before they are used up.
//! * An empty block goes back, but for one and one of each eight that it holds, as in `compute/agent`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farmem_protocol::extent::{Actor, Block, Claimer, Geometry, Level, Want, release};

use super::Extent;
use crate::allocators::{BLOCK, Client};
use crate::sim::clock::{Nanos, Signal};
use crate::sim::costs::us;
use crate::sim::node::{Link, Node};

/// A block that the agent owns.
struct Owned {
    grant: release::Grant,
    inside: Block,
}

/// A host's agent.
pub(super) struct Host {
    pub(super) actor: Actor,
    link: Link,
    claimer: RefCell<Option<Claimer>>,
    blocks: RefCell<BTreeMap<u32, Owned>>,
    /// Chunks free in them.
    room: Cell<u32>,
    /// Chunks that waiting requests need.
    wanted: Cell<u32>,
    /// The node had nothing when it was last asked, and nothing has come back to us since.
    exhausted: Cell<bool>,
    claiming: Cell<bool>,
    supplied: Signal,
    thread_free: Cell<Nanos>,
}

impl Host {
    pub(super) fn new(actor: Actor, geometry: Geometry, node: &Rc<Node>) -> Host {
        Host {
            actor,
            link: Link::new(node),
            claimer: RefCell::new(Some(Claimer::new(actor, geometry))),
            blocks: RefCell::default(),
            room: Cell::new(0),
            wanted: Cell::new(0),
            exhausted: Cell::new(false),
            claiming: Cell::new(false),
            supplied: Signal::default(),
            thread_free: Cell::new(0),
        }
    }

    /// Whether a chunk of one of its blocks is given to a client, or waits at one.
    pub(super) fn uses(&self, chunk: u32) -> bool {
        self.blocks.borrow().get(&(chunk / BLOCK)).is_some_and(|owned| owned.inside.is_used(chunk % BLOCK))
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

    /// Up to `count` runs out of its blocks.
    fn take(&self, order: u8, count: u32) -> Vec<u32> {
        let mut taken = Vec::new();
        for (block, owned) in self.blocks.borrow_mut().iter_mut() {
            while taken.len() < count as usize
                && let Some(first) = owned.inside.take(order)
            {
                taken.push(block * BLOCK + first);
            }
            if taken.len() == count as usize {
                break;
            }
        }
        self.room.set(self.room.get() - ((taken.len() as u32) << order));
        taken
    }
}

impl Extent {
    /// Asks the agent for a run, and for some ahead.
    pub(super) async fn ask(self: &Rc<Self>, client: &Client, order: u8) -> Option<u32> {
        let host = &self.hosts[client.host as usize];
        let count = ((self.node.costs.host.ahead_kib / 4) >> order).max(1);
        host.asked(&self.node).await;
        loop {
            let mut taken = host.take(order, count);
            if let Some(chunk) = taken.pop() {
                self.sides[client.id as usize].borrow_mut().ahead[order as usize] = taken;
                if host.room.get() < BLOCK / 2 && !host.exhausted.get() && !self.node.world.is_instant() {
                    self.supply(client.host);
                }
                return Some(chunk);
            }
            if host.exhausted.get() {
                return None;
            }
            host.wanted.set(host.wanted.get() + (1 << order));
            if self.node.world.is_instant() {
                self.fetch(client.host).await;
            } else {
                let supplied = host.supplied.wait(&self.node.world);
                self.supply(client.host);
                supplied.await;
            }
        }
    }

    /// Claims blocks, unless that is under way.
    fn supply(self: &Rc<Self>, host: u32) {
        if !self.hosts[host as usize].claiming.replace(true) {
            let all = self.clone();
            self.node.world.background(async move { all.fetch(host).await });
        }
    }

    async fn fetch(self: &Rc<Self>, host: u32) {
        let agent = &self.hosts[host as usize];
        let mut claimer = agent.claimer.borrow_mut().take().expect("one claim at a time");
        let count = agent.wanted.take().div_ceil(BLOCK).clamp(1, 16);
        let mut attempts = 0u64;
        let taken = self.claim(&agent.link, &mut claimer, Want::some(Level::Block, count), || attempts += 1).await;
        *agent.claimer.borrow_mut() = Some(claimer);
        let taken = taken.unwrap_or_default();
        if !taken.is_empty() {
            self.dearest.set(self.dearest.get().max(attempts.div_ceil(taken.len() as u64)));
        }
        agent.exhausted.set(taken.is_empty());
        for grant in taken {
            agent.room.set(agent.room.get() + BLOCK);
            agent.blocks.borrow_mut().insert(grant.place.index, Owned { grant, inside: Block::new() });
        }
        agent.claiming.set(false);
        agent.supplied.tell(&self.node.world);
    }

    /// A run comes back. The block that becomes empty by it goes back to the node, unless there are few such.
    pub(super) fn give_back(self: &Rc<Self>, host: u32, chunk: u32) {
        let agent = &self.hosts[host as usize];
        let mut blocks = agent.blocks.borrow_mut();
        let owned = blocks.get_mut(&(chunk / BLOCK)).expect("a run of one of its blocks");
        let order = owned.inside.give(chunk % BLOCK).expect("a run that was given out");
        agent.room.set(agent.room.get() + (1 << order));
        agent.exhausted.set(false);
        if !owned.inside.is_empty() {
            return;
        }
        let empty = blocks.values().filter(|owned| owned.inside.is_empty()).count();
        if empty > 1 + blocks.len() / 8 {
            let owned = blocks.remove(&(chunk / BLOCK)).expect("it is there");
            agent.room.set(agent.room.get() - BLOCK);
            drop(blocks);
            let all = self.clone();
            self.node.world.background(async move {
                let agent = &all.hosts[host as usize];
                all.release(&agent.link, agent.actor, owned.grant).await;
            });
        }
    }
}
