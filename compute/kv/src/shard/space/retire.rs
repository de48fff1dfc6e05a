//! What leaves the index, and with it what only its object lists.

use super::Space;
use crate::layout::{At, Slot};
use crate::long;
use crate::object::Object;
use crate::rules::Bug;
use crate::segments;

impl Space {
    /// The slot's object is not in the index any more.
    pub(crate) fn retire(&self, slot: Slot) {
        self.retire_for(slot, None, None, None);
    }

    /// [`Space::retire`] of an object that `new` has replaced. Of a long value the extents go, too,
    /// unless `new` lists the same; of a collection its segments, or only those that are `dropped`.
    /// `old`: the object, if the caller has it.
    pub(crate) fn retire_for(&self, slot: Slot, old: Option<&Object>, new: Option<u64>, dropped: Option<&[At]>) {
        // The store's epoch may be one ahead of what was read.
        let epoch = self.epochs.borrow().now + 1;
        let (mut heap, node) = (self.heap.borrow_mut(), self.reach.node);
        let own = if dropped.is_none() { heap.list_at(slot.at(node)) } else { None };
        let listed = heap.retire(slot.at(node), epoch).or(old.and_then(long::number));
        if let Some(number) = listed.filter(|_| listed != new) {
            heap.retire_long(number, epoch);
        }
        let rules = self.reach.rules.get();
        match (dropped, own.as_ref().or(old)) {
            (Some(_), _) if rules.broken(Bug::KeepDropped) => {}
            (Some(dropped), Some(head)) if rules.broken(Bug::RetireShared) => {
                let _ = dropped;
                segments::places(head, node).for_each(|at| _ = heap.retire(at, epoch));
            }
            (Some(dropped), _) => dropped.iter().for_each(|&at| _ = heap.retire(at, epoch)),
            (None, Some(head)) => segments::places(head, node).for_each(|at| _ = heap.retire(at, epoch)),
            (None, None) => {}
        }
        if self.reach.rules.get().broken(Bug::ReuseAtOnce) {
            heap.reap(u64::MAX);
        }
    }

    /// Places that are neither free nor retired.
    pub fn used_places(&self) -> usize {
        self.heap.borrow().used_places()
    }

    /// Frees what was retired early enough by this epoch.
    pub fn reap(&self, epoch: u64) {
        self.heap.borrow_mut().reap(epoch);
    }
}
