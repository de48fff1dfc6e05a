//! OneSidedMW (NSDI '26): the memory node's NIC allocates, by chains of work requests that a client's SEND releases.
//!
//! ```text
//!   head ─► ring of pointers to entries, 0 where nobody has written ◄─ tail
//!   entry: a chunk's base, its group of windows, its owner
//!
//!   allocate: RECV scatters the queue pairs' numbers ─ FAA head ─ READ slot ─ READ entry ─ BIND × group
//!             ─ WRITE slot := 0 ─ WRITE owner ─ WRITE result to the client
//!   free:     READ entry ─ INVALIDATE (checks the queue pair: the proof of ownership) ─ INVALIDATE × (group - 1)
//!             ─ WRITE owner := 0 ─ FAA tail ─ WRITE slot := entry ─ WRITE result
//! ```
//!
//! Implemented after the paper's text (section 4); its code is not public, and where the zeroing WRITE stands it does
//! not say. Three defects that models of it show are corrected:
//!
//! * A slow chain's zero could erase an entry that came back in the meantime: the ring is twice as long as there are
//!   entries, and the zero comes after the READ of the entry, which a null pointer breaks off.
//! * Tickets drawn from an empty ring leave `head` beyond `tail`, and what comes back is never drawn: the core, told
//!   by the broken chain, puts `head` back to `tail`. A ticket may then be drawn twice; the BIND, which requires an
//!   unbound window, stops the second.
//! * A ticket below `tail` whose slot is not written yet breaks its chain, and the entry that then arrives is behind
//!   `head`: the core waits for it and queues it again.
//!
//! None of it costs anything while the ring is not near empty.
//!
//! One chunk size to a pool. What is larger is refused, what is smaller gets a whole chunk.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::rc::Rc;

use super::{Allocator, Client, OldKeys};
use crate::ledger::{Grant, Standing};
use crate::sim::costs::us;
use crate::sim::node::{At, Node, Work};

/// Why a chain broke off.
enum Broken {
    /// At a slot without an entry.
    Null(u64),
    /// At a window that is bound.
    Bound,
}

const HEAD: At = 0;
const TAIL: At = 1;
const RING: At = 2;

/// It.
pub struct OneSidedMw {
    node: Rc<Node>,
    order: u8,
    entries: u32,
    /// Which windows are bound to which client, by entry: what the NIC knows.
    bound: RefCell<Vec<Option<u32>>>,
}

impl OneSidedMw {
    /// Words that a pool of so many chunks in units of 1 << `order` needs.
    pub fn words(chunks: u32, order: u8) -> usize {
        RING + 3 * (chunks >> order) as usize
    }

    /// On this node: every entry in the ring.
    pub fn new(node: &Rc<Node>, chunks: u32, order: u8) -> Rc<OneSidedMw> {
        let entries = chunks >> order;
        node.local(|words| {
            (0..entries as usize).for_each(|entry| words[RING + entry] = entry as u64 + 1);
            words[TAIL] = u64::from(entries);
        });
        Rc::new(OneSidedMw { node: node.clone(), order, entries, bound: RefCell::new(vec![None; entries as usize]) })
    }

    fn slot(&self, ticket: u64) -> At {
        RING + (ticket % (2 * u64::from(self.entries))) as At
    }

    fn owner(&self, entry: u32) -> At {
        RING + (2 * self.entries + entry) as At
    }

    async fn step(&self) {
        self.node.world.sleep(us(self.node.costs.window.chain_step)).await;
    }

    fn steps(&self) -> u64 {
        7 + u64::from(self.node.costs.window.group)
    }

    /// The allocating chain.
    async fn claim(&self, client: &Client) -> Result<u32, Broken> {
        let node = &self.node;
        // The RECV's scatter.
        self.step().await;
        self.step().await;
        let ticket = node.bump(HEAD);
        self.step().await;
        let pointer = node.peek(self.slot(ticket));
        self.step().await;
        let Some(entry) = pointer.checked_sub(1) else { return Err(Broken::Null(ticket)) };
        let entry = entry as u32;
        for place in 0..node.costs.window.group {
            node.world.sleep(us(node.costs.window.bind)).await;
            if place == 0 {
                let windows = &mut self.bound.borrow_mut()[entry as usize];
                if windows.is_some() {
                    return Err(Broken::Bound);
                }
                *windows = Some(client.id);
            }
        }
        self.step().await;
        node.set(self.slot(ticket), 0);
        self.step().await;
        node.set(self.owner(entry), u64::from(client.id) + 1);
        self.step().await;
        Ok(entry)
    }

    /// What the core does about a chain that found a null pointer.
    async fn mend(&self, ticket: u64) {
        let node = &self.node;
        node.world.until(node.core(us(node.costs.core.call), Work::Call)).await;
        if ticket >= node.peek(TAIL) {
            return node.set(HEAD, node.peek(HEAD).min(node.peek(TAIL)));
        }
        while node.peek(HEAD) > ticket {
            let slot = self.slot(ticket);
            let entry = node.peek(slot);
            if entry != 0 {
                node.set(slot, 0);
                let place = node.bump(TAIL);
                return node.set(self.slot(place), entry);
            }
            node.world.sleep(us(node.costs.window.chain_step)).await;
        }
    }

    async fn release(&self, client: &Client, entry: u32) {
        let node = &self.node;
        self.step().await;
        let bound = self.bound.borrow_mut()[entry as usize].take();
        assert_eq!(bound, Some(client.id), "a window is invalidated by the queue pair that it is bound to");
        for _ in 0..node.costs.window.group {
            node.world.sleep(us(node.costs.window.invalidate)).await;
        }
        self.step().await;
        node.set(self.owner(entry), 0);
        self.step().await;
        let ticket = node.bump(TAIL);
        self.step().await;
        node.set(self.slot(ticket), u64::from(entry) + 1);
        self.step().await;
        self.step().await;
        self.step().await;
    }
}

impl Allocator for OneSidedMw {
    async fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> Option<Grant> {
        if order > self.order {
            return None;
        }
        loop {
            match client.link.chain(self.steps(), self.claim(client)).await {
                Ok(entry) => return Some(Grant { chunk: entry << self.order, order: self.order, token: entry }),
                Err(Broken::Bound) => {}
                Err(Broken::Null(ticket)) => {
                    self.mend(ticket).await;
                    let (head, tail) = (self.node.peek(HEAD), self.node.peek(TAIL));
                    if head >= tail {
                        return None;
                    }
                }
            }
        }
    }

    fn free(self: &Rc<Self>, client: &Client, grant: Grant) -> impl Future<Output = ()> {
        client.link.chain(self.steps(), self.release(client, grant.token))
    }

    fn survey<'a>(&'a self, words: &'a [u64]) -> impl Fn(u32) -> Standing + 'a {
        let queued: HashSet<u64> = words[RING..RING + 2 * self.entries as usize].iter().copied().collect();
        move |chunk| {
            let entry = chunk >> self.order;
            match words[self.owner(entry)] {
                0 if queued.contains(&(u64::from(entry) + 1)) => Standing::Free,
                0 => Standing::Lost,
                _ => Standing::Held(None),
            }
        }
    }

    fn metadata_bytes(&self) -> u64 {
        // A ring of pointers, twice as long as the table; a table of base, keys and owner.
        let entry = 8 + 4 * u64::from(self.node.costs.window.group) + 8;
        u64::from(self.entries) * (2 * 8 + entry) + 16
    }

    fn old_keys(&self) -> OldKeys {
        OldKeys::Dead
    }
}
