//! Keys: each chunk has a main key, which its holder uses, and a backup. A free puts the backup in the main one's
//! place by one CAS; the memory node's rebinder, which looks at all pairs each 100 ms, revokes what was the main key
//! and makes a new backup. Until then whoever freed the chunk can still reach it, whoever has it now.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::allocators::{Client, OldKeys};
use crate::ledger::Grant;
use crate::sim::clock::Nanos;
use crate::sim::costs::us;
use crate::sim::node::{At, Node, Work};

/// In a backup's place: it is in use, and there is none yet.
const NONE: u64 = 0xFFFF_FFFF;

/// The table and what was seen of it.
pub struct Keys {
    node: Rc<Node>,
    table: At,
    chunks: u32,
    made: Cell<u64>,
    /// Chunks freed whose old key still works, and since when.
    stale: RefCell<Vec<(u32, Nanos)>>,
    /// The same runs, by their first chunk: their orders.
    exposed: RefCell<HashMap<u32, u8>>,
    revoked: Cell<(u64, Nanos, Nanos)>,
    unrotated: Cell<u64>,
}

impl Keys {
    pub(super) fn new(node: &Rc<Node>, table: At, chunks: u32) -> Rc<Keys> {
        let mut made = 0;
        node.local(|words| {
            for pair in &mut words[table..table + chunks as usize] {
                *pair = (made + 1) << 32 | made;
                made += 2;
            }
        });
        let (node, made) = (node.clone(), Cell::new(made));
        Rc::new(Keys {
            node,
            table,
            chunks,
            made,
            stale: RefCell::default(),
            exposed: RefCell::default(),
            revoked: Cell::default(),
            unrotated: Cell::default(),
        })
    }

    fn at(&self, chunk: u32) -> At {
        self.table + chunk as At
    }

    /// The key for whoever has just taken a run.
    pub(super) async fn read(&self, client: &Client, chunk: u32) -> u32 {
        self.read_pair(client, chunk).await as u32
    }

    /// Both.
    pub(super) async fn read_pair(&self, client: &Client, chunk: u32) -> u64 {
        client.link.read::<1>(self.at(chunk)).await[0]
    }

    /// Puts the backup in the main key's place. Where there is none yet, the key stays as it is.
    pub(super) async fn revoke(&self, client: &Client, grant: Grant, pair: u64) {
        let chunk = grant.chunk;
        self.exposed.borrow_mut().insert(chunk, grant.order);
        self.stale.borrow_mut().push((chunk, self.node.world.now()));
        if pair >> 32 == NONE {
            self.unrotated.set(self.unrotated.get() + 1);
            return;
        }
        client.link.cas(self.at(chunk), pair, NONE << 32 | pair >> 32).await;
    }

    /// Frees that found no backup, so that even the chunk's next holder has the old key.
    pub fn unrotated(&self) -> u64 {
        self.unrotated.get()
    }

    /// Chunks that an old key still reaches.
    pub(super) fn exposed(&self) -> HashSet<u32> {
        self.exposed.borrow().iter().flat_map(|(&chunk, &order)| chunk..chunk + (1 << order)).collect()
    }

    pub(super) fn old(&self) -> OldKeys {
        // What nobody has revoked yet has worked until now.
        let now = self.node.world.now();
        let (mut count, mut total, mut longest) = self.revoked.get();
        for &(_, since) in self.stale.borrow().iter() {
            count += 1;
            total += now - since;
            longest = longest.max(now - since);
        }
        total.checked_div(count).map_or(OldKeys::Dead, |mean| OldKeys::Until(mean, longest))
    }

    pub(super) fn start(self: &Rc<Keys>) {
        let keys = self.clone();
        self.node.world.background(async move {
            loop {
                keys.node.world.sleep(us(keys.node.costs.core.rebind_interval)).await;
                keys.round().await;
            }
        });
    }

    async fn round(&self) {
        let node = &self.node;
        let scan = (f64::from(self.chunks) * node.costs.core.rebind_scan_ns) as Nanos;
        node.world.until(node.core(scan, Work::Isolation)).await;
        let consumed: Vec<u32> = (0..self.chunks).filter(|&chunk| node.peek(self.at(chunk)) >> 32 == NONE).collect();
        let mut stale = std::mem::take(&mut *self.stale.borrow_mut());
        stale.sort_unstable();
        for chunk in consumed {
            node.world.until(node.core(us(node.costs.window.regenerate), Work::Isolation)).await;
            let backup = self.made.get() & 0x7FFF_FFFF;
            self.made.set(self.made.get() + 1);
            self.exposed.borrow_mut().remove(&chunk);
            node.local(|words| words[self.at(chunk)] = backup << 32 | words[self.at(chunk)] & 0xFFFF_FFFF);
            let (mut count, mut total, mut longest) = self.revoked.get();
            for &(_, since) in
                &stale[stale.partition_point(|&(at, _)| at < chunk)..stale.partition_point(|&(at, _)| at <= chunk)]
            {
                let worked = node.world.now() - since;
                (count, total, longest) = (count + 1, total + worked, longest.max(worked));
            }
            self.revoked.set((count, total, longest));
        }
    }
}
