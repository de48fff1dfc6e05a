//! The one-sided free array, as CXL-SHM keeps it and FineMem's authors ported it (*Premmap-One-sided*): one word for
//! each 4 KiB; a client walks along it from where it last was, READs the next word or, for a larger run, words, and
//! where all are 0 takes them one CAS after another, giving back what it had when one fails. A free is one CAS a word.
//!
//! Every client begins at the pool's start, as in the published benchmark: those who walk together meet at every free
//! chunk. One key for everything: nothing is isolated, and a word names nobody, so that a dead client's chunks are lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::{Allocator, Client, OldKeys};
use crate::ledger::{Grant, Standing};
use crate::sim::node::Node;

/// It.
pub struct FreeArray {
    node: Rc<Node>,
    chunks: u32,
    cursors: RefCell<Vec<u32>>,
    /// While the pool is filled: all below is taken, so that 512 clients need not each walk there.
    filled: Cell<u32>,
}

impl FreeArray {
    /// Words that a pool of so many chunks needs.
    pub fn words(chunks: u32) -> usize {
        chunks as usize
    }

    /// On this node, for so many clients.
    pub fn new(node: &Rc<Node>, chunks: u32, clients: u32) -> Rc<FreeArray> {
        let cursors = RefCell::new(vec![0; clients as usize]);
        Rc::new(FreeArray { node: node.clone(), chunks, cursors, filled: Cell::new(0) })
    }

    /// Takes all words of a run, or none.
    async fn take(&self, client: &Client, run: std::ops::Range<u32>) -> bool {
        for chunk in run.clone() {
            client.attempt();
            if client.link.cas(chunk as usize, 0, 1).await != 0 {
                for taken in run.start..chunk {
                    client.link.cas(taken as usize, 1, 0).await;
                }
                return false;
            }
        }
        true
    }
}

impl Allocator for FreeArray {
    async fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> Option<Grant> {
        let (length, instant) = (1u32 << order, self.node.world.is_instant());
        let mut at = self.cursors.borrow()[client.id as usize];
        if instant {
            at = at.max(self.filled.get());
        }
        // Once round, and once more for what was given back behind.
        for _ in 0..2 * (self.chunks / length) {
            let run = at..at + length;
            at = if run.end + length > self.chunks { 0 } else { run.end };
            let words = client.link.read_many(run.start as usize, length as usize).await;
            if words.iter().all(|&word| word == 0) && self.take(client, run.clone()).await {
                self.cursors.borrow_mut()[client.id as usize] = at;
                if instant {
                    self.filled.set(at);
                }
                return Some(Grant { chunk: run.start, order, token: 0 });
            }
        }
        None
    }

    async fn free(self: &Rc<Self>, client: &Client, grant: Grant) {
        for chunk in grant.chunks() {
            client.link.cas(chunk as usize, 1, 0).await;
        }
    }

    fn survey<'a>(&'a self, words: &'a [u64]) -> impl Fn(u32) -> Standing + 'a {
        |chunk| if words[chunk as usize] == 0 { Standing::Free } else { Standing::Held(None) }
    }

    fn metadata_bytes(&self) -> u64 {
        8 * u64::from(self.chunks)
    }

    fn old_keys(&self) -> OldKeys {
        OldKeys::ForEver
    }
}
