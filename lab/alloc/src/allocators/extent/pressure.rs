//! What an agent gives back: what lies idle, always; when memory is short, also blocks that are partly free, whose chunks
//! others claim.
//!
//! Each host's agent looks, once a heartbeat, at the hint words that say which blocks are free, and decides by
//! `farmem-protocol`'s `policy` whether memory is short. An agent
//!
//! 1. takes back what it had granted ahead to clients that took nothing for some heartbeats (one, if memory is short),
//! 2. gives blocks back that were empty for as long,
//! 3. if memory is short, publishes the coldest of the blocks that are partly free, some in each heartbeat, more the
//!    less is free: their chunks' words first, then one CAS of the block's.
//!
//! All of it goes by a queue pair of the heartbeat's own, beside its clients' requests: nobody who asks waits for it.
//!
//! The node frees the chunks that were not in use (drained, zeroed), and an agent that finds no block claims those for
//! its waiting clients: one CAS a chunk. A published block whose chunks are all free again is merged by the node.

use std::rc::Rc;

use farmem_protocol::extent::geometry::{LINE, Target};
use farmem_protocol::extent::policy::{self, Supply};
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::{Hint, Level, Want, release};

use super::Extent;
use crate::allocators::BLOCK_ORDER;
use crate::sim::clock::all;
use crate::sim::costs::us;

/// Largest order that is claimed from published blocks: all below a block.
pub(super) const SHARED_ORDER: u8 = BLOCK_ORDER - 1;

/// Chunks of shared blocks that one claim is for, at most.
const TOGETHER: u32 = 2;

impl Extent {
    pub(super) fn start_heartbeat(self: &Rc<Self>, host: u32) {
        let all = self.clone();
        self.node.world.background(async move {
            let heartbeat = us(all.node.costs.host.heartbeat);
            // Hosts do not beat in step.
            all.node.world.sleep(heartbeat * u64::from(host) / all.hosts.len() as u64).await;
            loop {
                all.node.world.sleep(heartbeat).await;
                let supply = all.supply_now(host).await;
                let agent = &all.hosts[host as usize];
                let mut watermark = agent.watermark.get();
                let is_short = watermark.sees(supply);
                agent.watermark.set(watermark);
                all.recall(host, if is_short { 1 } else { policy::KEPT_IDLE }).await;
                if is_short {
                    all.publish(host, supply).await;
                }
                agent.beat();
                if agent.waiting.iter().any(|waiting| waiting.get() > 0) {
                    all.supply(host);
                }
                all.sides_of(host).iter().for_each(|side| side.borrow_mut().idle += 1);
            }
        });
    }

    /// What is free, by the hints.
    async fn supply_now(&self, host: u32) -> Supply {
        let (lines, agent) = (self.geometry.lines(Level::Block), &self.hosts[host as usize]);
        let mut free = 0;
        for line in (0..lines).step_by(LINE as usize) {
            let at = self.at(Target::Hint { about: Hint::FreeBlocks, line });
            let hints = agent.beside.read_many(at, LINE.min(lines - line) as usize).await;
            free += hints.iter().map(|hint| hint.count_ones()).sum::<u32>();
        }
        Supply { all: self.geometry.count(Level::Block), free }
    }

    /// Takes back what clients have ahead who took nothing for so many heartbeats, and gives back blocks that were empty
    /// for as long.
    async fn recall(self: &Rc<Self>, host: u32, idle: u32) {
        let agent = &self.hosts[host as usize];
        for side in self.sides_of(host) {
            let is_idle = side.borrow().idle >= idle;
            let ahead = if is_idle { std::mem::take(&mut side.borrow_mut().ahead) } else { Default::default() };
            for chunk in ahead.into_iter().flatten() {
                self.give_back(host, chunk);
            }
        }
        for chunk in agent.spare.take().into_iter().flatten() {
            self.give_back(host, chunk);
        }
        for grant in agent.take_empty(idle) {
            self.release(&agent.beside, agent.actor, grant).await;
        }
    }

    async fn publish(self: &Rc<Self>, host: u32, supply: Supply) {
        let agent = &self.hosts[host as usize];
        for block in agent.begin_publishing(supply) {
            let (grant, in_use) = agent.being_published(block);
            let mut publish = Reshape::publish(agent.actor, self.geometry, grant, in_use);
            let published = self.drive(&agent.beside, &mut publish, || {}).await;
            let Ok(Reshaped::Done(chunks)) = published else { panic!("our own block is not published: {published:?}") };
            let given_back = agent.published(block, chunks);
            self.release_chunks(host, given_back).await;
        }
    }

    /// Gives chunks of published blocks back, by one batch of CAS.
    pub(super) async fn release_chunks(&self, host: u32, grants: Vec<release::Grant>) {
        let agent = &self.hosts[host as usize];
        let releases = grants.iter().map(|&grant| self.release(&agent.link, agent.actor, grant));
        agent.link.batch(all(releases)).await;
        grants.iter().for_each(|grant| agent.is_released(grant));
    }

    /// Claims runs of chunks out of published blocks, as many as requests wait for.
    pub(super) async fn fetch_shared(&self, host: u32) {
        let agent = &self.hosts[host as usize];
        for order in 0..=SHARED_ORDER {
            loop {
                let missing = agent.missing(order);
                if missing == 0 {
                    break;
                }
                let want = match order {
                    // Few: others are at the same lines. One, after a claim that lost all it tried.
                    0 if agent.lost_last() => Some(Want::some(Level::Chunk, 1)),
                    0 => Some(Want::some(Level::Chunk, missing.min(TOGETHER))),
                    order => Want::run(&self.geometry, Level::Chunk, 1 << order),
                };
                let mut claimer = agent.chunk_claimer.borrow_mut().take().expect("one claim at a time");
                let mut attempts = 0;
                let want = want.expect("less than a block");
                let taken = self.try_claim(&agent.link, &mut claimer, want, || attempts += 1).await;
                *agent.chunk_claimer.borrow_mut() = Some(claimer);
                let taken = taken.unwrap_or_default();
                self.has_cost(agent, attempts, taken.len());
                if taken.is_empty() {
                    break;
                }
                let firsts = taken.iter().step_by(1 << order).map(|grant| grant.place.index);
                agent.spare.borrow_mut()[order as usize].extend(firsts);
                agent.hold_chunks(taken, order);
                agent.supplied.tell(&self.node.world);
            }
        }
    }
}
