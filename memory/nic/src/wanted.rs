//! How many slabs each member is to give back, while the node has lent more than it lends now.

use super::Nic;
use super::members::Member;
use super::spill::SILENT_NS;
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a member has not asked when it is counted on no more, ns. By then what a silent one has
/// was put aside, if it could be.
const COUNTED_NS: u64 = 2 * SILENT_NS;

impl Nic {
    /// Slabs that a member is to give back. All members together give back just the excess, each in
    /// proportion to what it can move: slabs that are in memory, and that no forked process shares.
    /// Not counted are members that have their slabs mapped, because they would keep them mapped, and
    /// members that have stopped asking.
    pub(crate) fn wanted_back(&self, member: &Member) -> u64 {
        let excess = self.lending.excess();
        if excess == 0 || member.is_mapped() {
            return 0;
        }
        let mut counted = self.members();
        counted.retain(|other| !other.is_mapped() && other.asked.silent_ns() < COUNTED_NS);
        let shared = shared(&counted);
        // The parts of all members up to one add up to their part of the excess, rounded down.
        let (mut before, mut own, mut all) = (0, 0, 0);
        for other in &counted {
            let holds = other.holds.lock();
            let held = holds.slabs.iter().filter(|(id, slab)| !shared.contains(id) && !slab.is_away()).count() as u64;
            all += held;
            match other.serial.cmp(&member.serial) {
                std::cmp::Ordering::Less => before += held,
                std::cmp::Ordering::Equal => own = held,
                std::cmp::Ordering::Greater => {}
            }
        }
        let part = |held: u64| (excess.min(all) * held).checked_div(all).unwrap_or(0);
        part(before + own) - part(before)
    }
}

/// Slabs that several of these members hold.
fn shared(members: &[Arc<Member>]) -> BTreeSet<SlabId> {
    let mut families: BTreeMap<Secret, Vec<&Arc<Member>>> = BTreeMap::new();
    for member in members.iter().filter(|member| !member.holds.lock().slabs.is_empty()) {
        families.entry(member.run).or_default().push(member);
    }
    let (mut once, mut more) = (BTreeSet::new(), BTreeSet::new());
    for member in families.values().filter(|family| family.len() > 1).flatten() {
        more.extend(member.holds.lock().slabs.keys().filter(|id| !once.insert(**id)));
    }
    more
}
