//! READs that are late go to the slab's other home.
//!
//! ```text
//!  wait ─► nothing for max(5 ms, 8 × what the node's READs usually take)
//!       ─► the queue pair to that node is dropped, and all of its READs are sent to their other homes
//! ```
//!
//! *Budget.* A lane does so at most once in 250 ms, and sends again no more than what is under way
//! to one node. A node that was turned away from is avoided for 64 times as long as its READ took.
//!
//! *Buffers.* A late answer could land in a buffer that is the caller's again. So the queue pair is
//! dropped before the READ is sent elsewhere: nothing of it lands any more. The lane makes another
//! when it next needs one.
//!
//! *Writes* are never turned away: whether a home has one must be known. A node that answers none
//! is given up by its session.

use super::{Lane, Verb};
use crate::{Pool, Slip};
use std::time::Duration;

/// A wait ends a little late rather than too early, again and again.
const LEAST_WAIT_NS: u64 = 100_000;

/// The READ that will be late first.
#[derive(Clone, Copy)]
pub(super) struct Late {
    node: u32,
    begun: u64,
    /// From now.
    pub within: Duration,
}

impl Lane {
    /// The READ that will be late first, of those that could go elsewhere.
    #[inline]
    pub(super) fn late(&self, pool: &Pool) -> Option<Late> {
        if self.has_choice { self.first_late(pool) } else { None }
    }

    #[cold]
    fn first_late(&self, pool: &Pool) -> Option<Late> {
        let now = pool.moment();
        let reads = self.operations.iter().filter(|operation| operation.begun != 0);
        let under_way = reads.filter_map(|read| Some((read.at.iter().flatten().next().copied()?, read.begun)));
        let late =
            under_way.filter_map(|(node, begun)| Some((self.paces.late_in(now, node as usize, begun)?, node, begun)));
        let (ns, node, begun) = late.min()?;
        Some(Late { node, begun, within: Duration::from_nanos(ns.max(LEAST_WAIT_NS)) })
    }

    /// Sends the READs under way at a node elsewhere, if one is late and all can go. Whether it
    /// did.
    #[cold]
    pub(super) fn turn_away(&mut self, pool: &Pool, late: Late) -> bool {
        let here = |at: &[Option<u32>]| at.contains(&Some(late.node));
        let can_go = self.operations.iter().filter(|one| here(&one.at)).all(|one| one.begun != 0);
        let now = pool.moment();
        if self.paces.late_in(now, late.node as usize, late.begun) != Some(0) || !can_go {
            return false;
        }
        self.met.turned += 1;
        self.paces.turn(now, late.node as usize, late.begun);
        if !pool.slips(Slip::KeptLateLink) {
            self.links[late.node as usize] = None;
        }
        for number in 0..self.operations.len() as u32 {
            let operation = &mut self.operations[number as usize];
            if here(&operation.at) && matches!(operation.verb, Verb::Read { .. }) {
                operation.at = Default::default();
                self.send_read(pool, number);
            }
        }
        self.doorbell(pool);
        true
    }
}
