//! What is compared: one interface, every allocator behind it.
//!
//! | file | who finds memory | what isolates |
//! |---|---|---|
//! | [`extent`] | farmem: the host's agent, in blocks it claimed by one CAS | the descriptor word |
//! | [`finemem`] | FineMem (OSDI '25): one-sided, bitmaps in two layers | a pair of keys for each chunk |
//! | [`onesidedmw`] | OneSidedMW (NSDI '26): chains of work requests in the NIC | a group of windows for each chunk |
//! | [`free_array`] | one-sided, chunk by chunk (CXL-SHM's way) | nothing |
//! | [`rpc`] | the memory node's core: pre-registered, windows, registration on demand | nothing, windows, regions |

pub mod buddy;
pub mod extent;
pub mod finemem;
pub mod free_array;
pub mod onesidedmw;
pub mod rpc;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use crate::ledger::{Grant, Standing};
use crate::sim::clock::{Nanos, World};
use crate::sim::node::{Link, Node};
use crate::sim::random::Random;

/// 2 MiB: the largest order that the benchmark asks for.
pub const BLOCK_ORDER: u8 = 9;
/// Chunks of a block.
pub const BLOCK: u32 = 1 << BLOCK_ORDER;

/// A thread that allocates.
pub struct Client {
    /// From 0.
    pub id: u32,
    /// Its host, from 0.
    pub host: u32,
    /// To the node.
    pub link: Link,
    /// Its own draws.
    pub random: Random,
    /// Attempts to commit by CAS since this was last asked; log and key words apart.
    pub attempts: Cell<u64>,
}

impl Client {
    /// One of this host.
    pub fn new(id: u32, host: u32, node: &Rc<Node>, seed: u64) -> Client {
        let random = Random::new(seed.wrapping_mul(0x1_0001).wrapping_add(u64::from(id)));
        Client { id, host, link: Link::new(node), random, attempts: Cell::new(0) }
    }

    /// One more attempt.
    pub fn attempt(&self) {
        self.attempts.set(self.attempts.get() + 1);
    }
}

/// How long old keys worked after their chunks had been given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldKeys {
    /// Not at all.
    #[default]
    Dead,
    /// So long: the mean and the longest.
    Until(Nanos, Nanos),
    /// For ever: there is one key for all.
    ForEver,
}

/// An allocator: clients' side and node's side.
pub trait Allocator: Sized + 'static {
    /// Gives `client` a run of at least 1 << `order` chunks, aligned to its size. `None`: the pool refuses.
    fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> impl Future<Output = Option<Grant>>;

    /// Takes a run back.
    fn free(self: &Rc<Self>, client: &Client, grant: Grant) -> impl Future<Output = ()>;

    /// What the node's words, and the hosts' own books, say of each chunk.
    fn survey<'a>(&'a self, words: &'a [u64]) -> impl Fn(u32) -> Standing + 'a;

    /// Bytes that the node keeps beside the memory it lends.
    fn metadata_bytes(&self) -> u64;

    /// How long old keys worked, so far.
    fn old_keys(&self) -> OldKeys;

    /// Most attempts to commit by CAS that one piece of memory cost somebody who works for clients beside them, since
    /// this was last asked.
    fn dearest(&self) -> u64 {
        0
    }

    /// Whether a pool that refuses may soon have something though no client gives anything back: by what the node, or
    /// other hosts, do beside the clients.
    fn mends(&self) -> bool {
        false
    }

    /// Starts what runs beside the clients.
    fn start(self: &Rc<Self>) {}
}

/// How long a client that is refused asks again before it gives up, the same for all systems: as long as farmem's agent
/// lets a program wait.
pub const PATIENCE: Nanos = 200_000_000;
/// Between two times that it asks, on average: evenly from half of it to one and a half, for clients in step with what
/// makes memory free would be served first, or never.
const ASKS: Nanos = 10_000_000;

/// Asks until there is something, or [`PATIENCE`] is over. Where nobody gives anything back meanwhile, and the system
/// itself makes nothing free, one answer is as good as twenty.
pub async fn ask<A: Allocator>(
    allocator: &Rc<A>,
    world: &World,
    client: &Client,
    order: u8,
    others_free: bool,
) -> Option<Grant> {
    let begun = world.now();
    loop {
        let grant = allocator.allocate(client, order).await;
        let over = world.is_instant() || world.now() - begun >= PATIENCE || !(others_free || allocator.mends());
        if grant.is_some() || over {
            return grant;
        }
        world.sleep(ASKS / 2 + client.random.below(ASKS as usize) as Nanos).await;
    }
}
