//! farmem: the protocol that is shipped (`farmem-protocol`'s `extent`), its operations driven over simulated verbs.
//!
//! ```text
//!  client ── chunks granted ahead ◄── ring ── agent of the host ── blocks it owns ◄── one CAS each ── words at the node
//!   4 KiB … 1 MiB: from what was granted ahead, else from the agent's blocks: no verb
//!   2 MiB:         an empty block that the agent has kept, else its CAS, FREE → OWNED; back: kept, or OWNED → QUARANTINE
//!                  the node's daemon: QUARANTINE → drained, zeroed → FREE
//! ```
//!
//! | file | |
//! |---|---|
//! | [`drive`] | an operation's steps over a link |
//! | [`agent`] | blocks of a host, what is granted ahead, when blocks come and go |
//! | [`shelf`] | which of its blocks a piece comes out of |
//! | [`pressure`] | when memory is short: publishing beside the requests, chunks of published blocks |
//! | [`daemon`] | the node's part |
//!
//! The words, the search, claims, releases and reclaims, and the allocator inside a block are the production code. The
//! agent's policy (which block, when to give one back, how much ahead) is modelled after `compute/agent`, whose own is
//! bound to shared memory. The clients of a host are threads of one application.
//!
//! **What the NIC must do** for the words to be rights as well: admit a data verb by the word of its unit, and keep the
//! hints where a CAS changes a word. farmem's software NIC does; no card on sale does. So these figures are the
//! protocol's at a card's latencies, as OneSidedMW's are of chains that a ConnectX-5 can be brought to run.

pub mod agent;
pub mod daemon;
pub mod drive;
pub mod pressure;
mod shelf;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::owner::{Lease, OwnerField, OwnerWord};
use farmem_protocol::extent::{
    Actor, Claimant, Claimer, Geometry, Level, Owner, Place, State, Table, Want, Word, release,
};

use super::{Allocator, BLOCK, BLOCK_ORDER, Client, OldKeys};
use crate::ledger::{CHUNK, Grant, Kept, Standing};
use crate::sim::costs::us;
use crate::sim::node::{At, Node};
use crate::sim::random::Random;
use agent::{Host, Put};

/// It.
pub struct Extent {
    node: Rc<Node>,
    geometry: Geometry,
    hosts: Vec<Host>,
    sides: Vec<RefCell<Side>>,
    /// A word has changed since the node last looked at all of them.
    changed: Cell<bool>,
    /// Words that it looked at then.
    scanned: Cell<f64>,
    /// Most CAS that one block cost an agent.
    dearest: Cell<u64>,
    /// How long who lost a race waits.
    random: Random,
}

/// What a client has on its side of the ring.
struct Side {
    /// Of the queue pair by which the agent serves it: for whole blocks.
    claimer: Option<Claimer>,
    /// Heartbeats of its host since it took anything.
    idle: u32,
    /// Granted ahead: first chunks, by order.
    ahead: [Vec<u32>; BLOCK_ORDER as usize],
}

impl Side {
    /// What was granted ahead of this order.
    fn next(&mut self, order: u8) -> Option<u32> {
        self.idle = 0;
        self.ahead[order as usize].pop()
    }
}

impl Extent {
    /// The geometry of a pool of so many chunks, for so many hosts.
    pub fn geometry(chunks: u32, hosts: u32) -> Geometry {
        let usual = Geometry::new(u64::from(chunks) * CHUNK).expect("a pool of at most 4 TiB");
        let owners = usual.owners().max(hosts as u16 + 1);
        Geometry::with_owners(chunks / BLOCK, owners).expect("a pool of at most 4 TiB")
    }

    /// Words that it needs.
    pub fn words(chunks: u32, hosts: u32) -> usize {
        (Extent::geometry(chunks, hosts).table_bytes() / 8) as usize
    }

    /// On this node.
    pub fn new(node: &Rc<Node>, chunks: u32, hosts: u32, clients: u32) -> Rc<Extent> {
        let geometry = Extent::geometry(chunks, hosts);
        let at = |target| (geometry.offset(target).expect("a target of this geometry") / 8) as At;
        // Giants are split from the start: nobody here asks for one.
        let table = Table::new(geometry, 0);
        node.local(|words| {
            for level in [Level::Giant, Level::Block] {
                for index in 0..geometry.count(level) {
                    let target = Target::Word(Place { level, index });
                    words[at(target)] = table.get(target);
                }
            }
            for about in [farmem_protocol::extent::Hint::FreeBlocks, farmem_protocol::extent::Hint::SharedBlocks] {
                for line in 0..geometry.lines(Level::Block) {
                    let target = Target::Hint { about, line };
                    words[at(target)] = table.get(target);
                }
            }
            for host in 0..hosts {
                let target = Target::Owner(Owner::new(host as u16 + 1), OwnerField::Word);
                words[at(target)] = OwnerWord::new(Lease::Live, 0).0;
            }
        });
        let actor = |host: u32, claimant: u32| Actor::new(Owner::new(host as u16 + 1), Claimant::new(claimant as u16));
        let per_host = clients.div_ceil(hosts);
        let side = |client: u32| {
            let claimer = Some(Claimer::new(actor(client / per_host, 1 + client % per_host), geometry));
            RefCell::new(Side { claimer, idle: 0, ahead: Default::default() })
        };
        Rc::new(Extent {
            node: node.clone(),
            geometry,
            hosts: (0..hosts).map(|host| Host::new(actor(host, 0), geometry, node)).collect(),
            sides: (0..clients).map(side).collect(),
            changed: Cell::new(true),
            scanned: Cell::new(0.0),
            dearest: Cell::new(0),
            random: Random::new(u64::from(chunks) << 32 | u64::from(clients)),
        })
    }

    fn at(&self, target: Target) -> At {
        (self.geometry.offset(target).expect("a target of this geometry") / 8) as At
    }

    /// Of a host's clients.
    fn sides_of(&self, host: u32) -> &[RefCell<Side>] {
        let per_host = self.sides.len().div_ceil(self.hosts.len());
        &self.sides[host as usize * per_host..((host as usize + 1) * per_host).min(self.sides.len())]
    }

    /// A whole block: one that the agent has kept, else by its queue pair for this client.
    async fn take_block(self: &Rc<Self>, client: &Client) -> Option<Grant> {
        let (side, host) = (&self.sides[client.id as usize], &self.hosts[client.host as usize]);
        host.asked(&self.node).await;
        let chunk = match host.take(BLOCK_ORDER, 1).pop() {
            Some(chunk) => chunk,
            None => {
                let mut claimer = side.borrow_mut().claimer.take().expect("a client asks for one thing at a time");
                let want = Want::one(Level::Block);
                let taken = self.try_claim(&client.link, &mut claimer, want, || client.attempt()).await;
                side.borrow_mut().claimer = Some(claimer);
                host.take_whole(*taken.ok()?.first()?)
            }
        };
        Some(Grant { chunk, order: BLOCK_ORDER, token: 0 })
    }

    async fn give_block(self: &Rc<Self>, client: &Client, chunk: u32) {
        let host = &self.hosts[client.host as usize];
        host.asked(&self.node).await;
        match host.put_back(chunk) {
            Put::Kept => {}
            Put::Shared => unreachable!("a whole block is never published"),
            Put::Surplus(grant) => {
                client.attempt();
                // (`Claimer::freed` would have the next claim try this one first, in vain before the node has zeroed it.)
                self.release(&client.link, host.actor, grant).await;
            }
        }
    }
}

impl Allocator for Extent {
    async fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> Option<Grant> {
        if order >= BLOCK_ORDER {
            return self.take_block(client).await;
        }
        self.node.world.sleep(us(self.node.costs.host.ring)).await;
        let ahead = self.sides[client.id as usize].borrow_mut().next(order);
        let chunk = match ahead {
            Some(chunk) => chunk,
            None => self.ask(client, order).await?,
        };
        Some(Grant { chunk, order, token: 0 })
    }

    async fn free(self: &Rc<Self>, client: &Client, grant: Grant) {
        if grant.order >= BLOCK_ORDER {
            return self.give_block(client, grant.chunk).await;
        }
        self.node.world.sleep(us(self.node.costs.host.ring)).await;
        self.give_back(client.host, grant.chunk);
    }

    fn survey<'a>(&'a self, words: &'a [u64]) -> impl Fn(u32) -> Standing + 'a {
        let mut waiting = HashSet::new();
        for side in &self.sides {
            let side = side.borrow();
            for (order, ahead) in side.ahead.iter().enumerate() {
                waiting.extend(ahead.iter().flat_map(|&chunk| chunk..chunk + (1 << order)));
            }
        }
        for host in &self.hosts {
            for (order, spare) in host.spare.borrow().iter().enumerate() {
                waiting.extend(spare.iter().flat_map(|&chunk| chunk..chunk + (1 << order)));
            }
        }
        move |chunk| {
            let block = chunk / BLOCK;
            let word = Word(words[self.at(Target::Word(Place::block(block)))]);
            let host = u32::from(word.owner().slot()).wrapping_sub(1);
            match word.state() {
                State::Free => Standing::Free,
                State::Owned => match self.hosts.get(host as usize) {
                    Some(holder) if holder.uses(chunk) && !waiting.contains(&chunk) => Standing::Held(Some(host)),
                    Some(_) if waiting.contains(&chunk) => Standing::Reserved(Kept::Ahead),
                    Some(holder) if holder.is_used(block) => Standing::Reserved(Kept::Part),
                    Some(_) => Standing::Reserved(Kept::Empty),
                    None => Standing::Lost,
                },
                State::Quarantine => Standing::Reserved(Kept::Cleaning),
                State::Shared => {
                    let place = Place::chunk(chunk);
                    let word = Word(words[self.at(Target::Word(place))]);
                    let (host, grant) =
                        (u32::from(word.owner().slot()).wrapping_sub(1), release::Grant { place, word });
                    match word.state() {
                        State::Free => Standing::Free,
                        State::Quarantine => Standing::Reserved(Kept::Cleaning),
                        State::Owned => match self.hosts.get(host as usize) {
                            Some(_) if waiting.contains(&chunk) => Standing::Reserved(Kept::Ahead),
                            Some(holder) if holder.releases(&grant) => Standing::Reserved(Kept::Cleaning),
                            Some(_) => Standing::Held(Some(host)),
                            None => Standing::Lost,
                        },
                        _ => Standing::Lost,
                    }
                }
                // The node merges: every chunk of it is free.
                State::Merging => Standing::Reserved(Kept::Cleaning),
                _ => Standing::Lost,
            }
        }
    }

    fn metadata_bytes(&self) -> u64 {
        self.geometry.table_bytes()
    }

    fn old_keys(&self) -> OldKeys {
        OldKeys::Dead
    }

    fn dearest(&self) -> u64 {
        self.dearest.take()
    }

    /// The node zeroes, other hosts publish.
    fn mends(&self) -> bool {
        true
    }

    fn start(self: &Rc<Self>) {
        self.start_daemon();
        (0..self.hosts.len() as u32).for_each(|host| self.start_heartbeat(host));
    }
}
