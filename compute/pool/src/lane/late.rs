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

use super::Lane;
use super::operations::Verb;
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

impl Late {
    pub fn of((ns, node, begun): (u64, u32, u64)) -> Late {
        Late { node, begun, within: Duration::from_nanos(ns.max(LEAST_WAIT_NS)) }
    }
}

impl Lane {
    /// The READ that will be late first, of those that could go elsewhere.
    #[inline]
    pub(super) fn late(&self, pool: &Pool) -> Option<Late> {
        self.has_choice.then(|| self.operations.first_late(&self.paces, pool.tables.nodes.moment()))?
    }

    /// Sends the READs under way at a node elsewhere, if one is late and all can go. Whether it
    /// did.
    #[cold]
    pub(super) fn turn_away(&mut self, pool: &Pool, late: Late) -> bool {
        let here = |at: &[Option<u32>]| at.contains(&Some(late.node));
        let can_go = self.operations.all_can_go(here);
        let now = pool.tables.nodes.moment();
        if self.paces.late_in(now, late.node as usize, late.begun) != Some(0) || !can_go {
            return false;
        }
        self.met.turned += 1;
        self.paces.turn(now, late.node as usize, late.begun);
        if !pool.tables.slips.has(Slip::KeptLateLink) {
            self.links.drop_link(late.node as usize);
        }
        for number in self.operations.numbers() {
            let operation = &mut self.operations[number];
            if here(&operation.at) && matches!(operation.verb, Verb::Read { .. }) {
                operation.at = Default::default();
                self.send_read(pool, number);
            }
        }
        self.doorbell(pool);
        true
    }
}
