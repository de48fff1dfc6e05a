//! When memory is short: blocks that are partly free are published, chunks of others' blocks are claimed.
//!
//! Each host's agent looks, once a heartbeat, at the hint words that say which blocks are free. Under a sixteenth of
//! them is *pressure*. Then an agent
//!
//! 1. takes back what it had granted ahead to clients that took nothing since the last heartbeat,
//! 2. gives its empty blocks back, all of them,
//! 3. publishes the blocks that are partly free and were not touched since the last heartbeat: their chunks' words
//!    first, then one CAS of the block's.
//!
//! The node frees the chunks that were not in use (drained, zeroed), and whoever finds no block claims those: one CAS a
//! chunk. A published block whose chunks are all free again is merged by the node.

use std::rc::Rc;

use farmem_protocol::extent::geometry::{LINE, Target};
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::{Hint, Level, Want, release};

use super::Extent;
use crate::allocators::{BLOCK, Client};
use crate::sim::clock::all;
use crate::sim::costs::us;

/// Free blocks of all: below one in so many there is pressure.
const PRESSURE: u32 = 16;
/// Largest order that is claimed from published blocks: a line of chunks.
pub(super) const SHARED_ORDER: u8 = 6;

impl Extent {
    pub(super) fn start_heartbeat(self: &Rc<Self>, host: u32) {
        let all = self.clone();
        self.node.world.background(async move {
            let heartbeat = us(all.node.costs.host.heartbeat);
            // Hosts do not beat in step.
            all.node.world.sleep(heartbeat * u64::from(host) / all.hosts.len() as u64).await;
            loop {
                all.node.world.sleep(heartbeat).await;
                if all.is_short(host).await {
                    all.relieve(host).await;
                }
                all.hosts[host as usize].beat();
                all.sides.iter().for_each(|side| side.borrow_mut().is_idle = true);
            }
        });
    }

    async fn is_short(&self, host: u32) -> bool {
        let (lines, link) = (self.geometry.lines(Level::Block), &self.hosts[host as usize].link);
        let mut free = 0;
        for line in (0..lines).step_by(LINE as usize) {
            let at = self.at(Target::Hint { about: Hint::FreeBlocks, line });
            let hints = link.read_many(at, LINE.min(lines - line) as usize).await;
            free += hints.iter().map(|hint| hint.count_ones()).sum::<u32>();
        }
        free * PRESSURE < self.geometry.count(Level::Block)
    }

    async fn relieve(self: &Rc<Self>, host: u32) {
        let agent = &self.hosts[host as usize];
        for side in self.sides_of(host) {
            let idle = side.borrow().is_idle;
            let ahead = if idle { std::mem::take(&mut side.borrow_mut().ahead) } else { Default::default() };
            for chunk in ahead.into_iter().flatten() {
                self.give_back(host, chunk);
            }
        }
        for grant in agent.take_empty() {
            self.release(&agent.link, agent.actor, grant).await;
        }
        for block in agent.begin_publishing() {
            let (grant, in_use) = agent.being_published(block);
            let mut publish = Reshape::publish(agent.actor, self.geometry, grant, in_use);
            let published = self.drive(&agent.link, &mut publish, || {}).await;
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
        grants.iter().for_each(|grant| agent.is_released(grant.place.index));
    }

    /// A run of chunks out of published blocks, and of single ones some ahead.
    pub(super) async fn claim_shared(&self, client: &Client, order: u8, count: u32) -> Option<Vec<u32>> {
        let want = match order {
            0 => Want::some(Level::Chunk, count),
            1..=SHARED_ORDER => Want::run(&self.geometry, Level::Chunk, 1 << order)?,
            _ => return None,
        };
        let side = &self.sides[client.id as usize];
        let mut claimer = side.borrow_mut().chunk_claimer.take().expect("a client asks for one thing at a time");
        let mut attempts = 0u64;
        let taken = self.try_claim(&client.link, &mut claimer, want, || attempts += 1).await;
        side.borrow_mut().chunk_claimer = Some(claimer);
        let taken = taken.ok()?;
        self.dearest.set(self.dearest.get().max(attempts.div_ceil(taken.len() as u64)));
        let agent = &self.hosts[client.host as usize];
        let firsts = taken.iter().step_by(1 << order).map(|grant| grant.place.index).collect();
        agent.hold_chunks(taken, order);
        Some(firsts)
    }
}

const _: () = assert!(1 << SHARED_ORDER == LINE && LINE < BLOCK);
