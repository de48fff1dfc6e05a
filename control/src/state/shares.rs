//! Quotas of tenants in the whole rack, handed out to nodes in shares.
//!
//! ```text
//!  quota ≥ Σ bounds                    a node admits a tenant's programs within its share alone
//!          bound of a node ≥ its share at any moment
//!  raise: the bound is kept ─► ordered ─► the node applies it
//!  lower: ordered ─► the node applies it, and says so ─► the bound is kept, and another node's is raised
//! ```
//!
//! So a tenant's programs never hold more than its quota together, whichever machines are cut off.
//! No node asks the controller before it grants. A node that is down keeps its share until it is
//! forgotten or comes back.
//!
//! *Late orders.* A node applies the orders of a term by their serial numbers, and none of an earlier
//! term. It repeats the number of the last in its beats. Only a beat that names the last order of
//! this term lowers a bound: nothing that is under way can raise the share again.
//!
//! *Leaders that were deposed.* An order that gives a node more than it says it has is answered only
//! when the bound is kept, and etcd refuses what a deposed leader keeps. Nodes pass over an earlier
//! term. But a node that has just started knows no term.
//!
//! *The split.* The part of a quota that no program holds is handed out in whole slabs, evenly.
//! Nodes that had to refuse a request since their last beat share all of it. If there are none, all
//! nodes that are heard of share it.

use super::{Action, Intent};
use crate::api::{Beat, Term};
use farmem_protocol::addr::SLAB_BYTES;
use std::collections::BTreeMap;

/// Tenants that can have a quota in the whole rack.
pub const MOST_QUOTAS: usize = 128;
/// The most bytes of a share or a quota: the sum over all nodes of a rack then fits in 64 bits.
const MOST_BYTES: u64 = 1 << 48;
/// A share is changed by at least one part in this many, unless a node had to refuse.
const PART: u64 = 8;

/// The shares of one tenant, by node.
type OfNodes = BTreeMap<String, Bound>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bound {
    /// The most bytes that the node may admit, as the store has it.
    bytes: u64,
    /// Bytes that programs hold there, by its last beat. `None`: no beat came yet.
    held: Option<u64>,
    /// The largest request that the node had to refuse before its last beat, in bytes.
    short: u64,
}

/// All shares.
#[derive(Debug, Default)]
pub(super) struct Shares {
    quotas: BTreeMap<String, u64>,
    bounds: BTreeMap<String, OfNodes>,
    /// By node: orders in this term.
    serials: BTreeMap<String, u64>,
}

impl Shares {
    /// Sets the tenants' quotas. Tenants beyond the first [`MOST_QUOTAS`] are ignored.
    pub fn set_quotas(&mut self, quotas: BTreeMap<String, u64>) {
        let bounded = |(tenant, bytes): (String, u64)| (tenant, bytes.min(MOST_BYTES));
        self.quotas = quotas.into_iter().take(MOST_QUOTAS).map(bounded).collect();
    }

    /// Takes in a share from the store.
    pub fn restore(&mut self, tenant: String, node: String, bytes: u64) {
        let bound = Bound { bytes: bytes.min(MOST_BYTES), ..Bound::default() };
        self.bounds.entry(tenant).or_default().insert(node, bound);
    }

    pub fn intents(&self) -> impl Iterator<Item = Intent> + '_ {
        let of = |(tenant, nodes): (&String, &OfNodes)| -> Vec<Intent> {
            let one = |(node, bound): (&String, &Bound)| (bound.bytes > 0).then(|| share(tenant, node, bound.bytes));
            nodes.iter().filter_map(one).collect()
        };
        self.bounds.iter().flat_map(of)
    }

    /// Whether a node may admit anything of a quota.
    pub fn are_with(&self, node: &str) -> bool {
        self.bounds.values().any(|nodes| nodes.get(node).is_some_and(|bound| bound.bytes > 0))
    }

    /// A node does not come back: its shares go to the others.
    pub fn forget(&mut self, node: &str, actions: &mut Vec<Action>) {
        self.serials.remove(node);
        for (tenant, nodes) in &mut self.bounds {
            if nodes.remove(node).is_some_and(|bound| bound.bytes > 0) {
                actions.push(Action::Keep(share(tenant, node, 0)));
            }
        }
    }

    /// A node is down: it keeps its shares, and others are not to wait for it.
    pub fn lost(&mut self, node: &str) {
        for bound in self.bounds.values_mut().filter_map(|nodes| nodes.get_mut(node)) {
            (bound.held, bound.short) = (None, 0);
        }
    }

    /// A beat of a node. Returns the serial number of the order that answers it, and the shares in
    /// it.
    pub fn beat(&mut self, beat: &Beat, term: Term, actions: &mut Vec<Action>) -> (u64, Vec<(String, u64)>) {
        let serial = self.serials.entry(beat.name.clone()).or_default();
        // An order of this term, after which nothing was sent.
        let is_last = beat.applied == Some((term, *serial)) && *serial > 0;
        *serial += 1;
        let serial = *serial;
        let mut ordered = Vec::new();
        for (tenant, &quota) in &self.quotas {
            let said = beat.shares.iter().find(|share| share.tenant == *tenant);
            let said = said.map_or([0; 3], |said| [said.bytes, said.held, said.short]);
            let [has, held, short] = said.map(|bytes| bytes.min(MOST_BYTES));
            let nodes = self.bounds.entry(tenant.clone()).or_default();
            let bound = nodes.entry(beat.name.clone()).or_default();
            let before = bound.bytes;
            if is_last || has > bound.bytes {
                bound.bytes = has;
            }
            (bound.held, bound.short) = (Some(held), short);
            let bytes = bound.bytes;
            let target = target(nodes, quota, &beat.name);
            let far = target.abs_diff(bytes) >= (bytes / PART).max(SLAB_BYTES) || short > 0;
            let wanted = if far { target } else { bytes };
            let free = quota.saturating_sub(nodes.values().map(|bound| bound.bytes).sum());
            let most = bytes + free.min(wanted.saturating_sub(bytes)) / SLAB_BYTES * SLAB_BYTES;
            if let Some(bound) = nodes.get_mut(&beat.name) {
                bound.bytes = most;
            }
            let order = wanted.min(most);
            // Also for a bound that stays as it was: a leader that was deposed must not give a node
            // that has started anew what its successor has given to another.
            if most != before || order > has {
                actions.push(Action::Keep(share(tenant, &beat.name, most)));
            }
            ordered.push((tenant.clone(), order));
        }
        (serial, ordered)
    }

    /// A tenant's quota, and the sum of its bounds, by tenant.
    pub fn all(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.quotas.iter().map(|(tenant, &quota)| {
            let nodes = self.bounds.get(tenant);
            let held = nodes.into_iter().flat_map(BTreeMap::values).map(|bound| bound.held.unwrap_or(bound.bytes));
            (tenant.as_str(), quota, held.sum())
        })
    }
}

fn share(tenant: &str, node: &str, bytes: u64) -> Intent {
    Intent::Share { tenant: tenant.to_owned(), node: node.to_owned(), bytes }
}

/// The share that a node should have.
fn target(nodes: &OfNodes, quota: u64, name: &str) -> u64 {
    let held = |bound: &Bound| bound.held.unwrap_or(bound.bytes);
    let slabs = quota.saturating_sub(nodes.values().map(held).sum()) / SLAB_BYTES;
    let mut heard: Vec<(bool, &String)> =
        nodes.iter().filter(|(_, bound)| bound.held.is_some()).map(|(node, bound)| (bound.short == 0, node)).collect();
    // Those that had to refuse first; all of it is theirs if there are any.
    heard.sort_unstable();
    let short = heard.iter().filter(|(has_enough, _)| !has_enough).count();
    let of = if short > 0 { short } else { heard.len() } as u64;
    let at = heard.iter().position(|(_, node)| *node == name).map_or(u64::MAX, |at| at as u64);
    let own = if at < of { slabs / of + u64::from(at < slabs % of) } else { 0 };
    // A node that holds a part of a slab has the rest of it in its share.
    nodes.get(name).map_or(0, held).next_multiple_of(SLAB_BYTES).saturating_add(own * SLAB_BYTES).min(quota)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Share;

    const TERM: Term = Term { rack: 1, epoch: 1 };

    fn beat(name: &str, applied: u64, bytes: u64, held: u64, short: u64) -> Beat {
        let shares = vec![Share { tenant: "t".into(), bytes, held, short }];
        Beat { name: name.into(), shares, applied: Some((TERM, applied)), ..Beat::default() }
    }

    fn of(slabs: u64) -> Shares {
        let mut shares = Shares::default();
        shares.set_quotas([("t".to_owned(), slabs * SLAB_BYTES)].into());
        shares
    }

    fn sum(shares: &Shares) -> u64 {
        shares.bounds["t"].values().map(|bound| bound.bytes).sum::<u64>() / SLAB_BYTES
    }

    #[test]
    fn a_share_is_given_elsewhere_when_the_node_has_confirmed_a_smaller_one() {
        let mut shares = of(8);
        let mut actions = Vec::new();
        let mut says = |shares: &mut Shares, name: &str, applied, has, held, short| {
            let said = beat(name, applied, has * SLAB_BYTES, held * SLAB_BYTES, short * SLAB_BYTES);
            shares.beat(&said, TERM, &mut actions).1[0].1 / SLAB_BYTES
        };
        assert_eq!(says(&mut shares, "a", 0, 0, 0, 0), 8, "it is alone");
        assert_eq!(says(&mut shares, "b", 0, 0, 0, 0), 0, "nothing is left");
        assert_eq!(says(&mut shares, "a", 1, 8, 1, 0), 5, "half of the seven that nobody holds, and its own");
        assert_eq!(says(&mut shares, "b", 1, 0, 0, 0), 0, "it is not said yet that a has less");
        assert_eq!(says(&mut shares, "a", 1, 8, 2, 0), 5, "an order is under way");
        assert_eq!(sum(&shares), 8);
        assert_eq!(says(&mut shares, "a", 3, 5, 2, 0), 5);
        assert_eq!((says(&mut shares, "b", 2, 0, 0, 0), sum(&shares)), (3, 8));
        // One that had to refuse is given all that is free.
        assert_eq!(says(&mut shares, "b", 3, 3, 3, 1), 3);
        assert_eq!(says(&mut shares, "a", 4, 5, 2, 0), 2);
        assert_eq!(says(&mut shares, "a", 5, 2, 2, 0), 2);
        assert_eq!((says(&mut shares, "b", 4, 3, 3, 1), sum(&shares)), (6, 8));
    }

    #[test]
    fn what_is_kept_bounds_what_is_ordered() {
        let mut shares = of(6);
        let mut kept = Vec::new();
        let (_, ordered) = shares.beat(&beat("a", 0, 0, 0, 0), TERM, &mut kept);
        assert_eq!(
            (&ordered[0].1, &kept[..]),
            (&(6 * SLAB_BYTES), &[Action::Keep(share("t", "a", 6 * SLAB_BYTES))][..])
        );
        // Another leader knows it by that alone, and gives nobody what a node that is away may have.
        let mut next = of(6);
        next.restore("t".into(), "a".into(), 6 * SLAB_BYTES);
        let (_, ordered) = next.beat(&beat("b", 0, 0, 0, 0), Term { epoch: 2, ..TERM }, &mut Vec::new());
        assert_eq!(ordered[0].1, 0);
        let mut forgotten = Vec::new();
        next.forget("a", &mut forgotten);
        assert_eq!(forgotten, [Action::Keep(share("t", "a", 0))]);
        let (_, ordered) = next.beat(&beat("b", 0, 0, 0, 0), Term { epoch: 2, ..TERM }, &mut Vec::new());
        assert_eq!(ordered[0].1, 6 * SLAB_BYTES);
    }

    /// A node that has started anew has nothing and knows no term. A leader that was deposed meanwhile
    /// would give it what it had before. So the bound is kept once more, which the store refuses.
    #[test]
    fn what_a_node_had_before_it_started_anew_is_kept_again_before_it_is_ordered() {
        let (mut shares, mut kept) = (of(6), Vec::new());
        let (serial, _) = shares.beat(&beat("a", 0, 0, 0, 0), TERM, &mut kept);
        kept.clear();
        shares.beat(&beat("a", serial, 6 * SLAB_BYTES, 0, 0), TERM, &mut kept);
        assert_eq!(kept, [], "the node has what it was given");
        let anew = Beat { applied: None, ..beat("a", 0, 0, 0, 0) };
        let (_, ordered) = shares.beat(&anew, TERM, &mut kept);
        assert_eq!((ordered[0].1, &kept[..]), (6 * SLAB_BYTES, &[Action::Keep(share("t", "a", 6 * SLAB_BYTES))][..]));
    }

    /// A node may say anything: nothing overflows, and the sum of what is ordered stays below the quota.
    #[test]
    fn what_cannot_be_is_bounded() {
        let mut shares = of(8);
        shares.set_quotas([("t".to_owned(), u64::MAX)].into());
        for name in ["a", "b", "c"] {
            shares.beat(&beat(name, 0, u64::MAX, u64::MAX, u64::MAX), TERM, &mut Vec::new());
        }
        let (_, ordered) = shares.beat(&beat("d", 0, 0, 0, 1), TERM, &mut Vec::new());
        assert_eq!(ordered[0].1, 0);
        assert!(shares.all().all(|(_, quota, held)| quota == MOST_BYTES && held >= quota));
    }

    #[test]
    fn a_smaller_quota_is_reached_as_memory_comes_back() {
        let mut shares = of(8);
        shares.beat(&beat("a", 0, 0, 0, 0), TERM, &mut Vec::new());
        shares.set_quotas([("t".to_owned(), 2 * SLAB_BYTES)].into());
        let (serial, ordered) = shares.beat(&beat("a", 1, 8 * SLAB_BYTES, 5 * SLAB_BYTES, 0), TERM, &mut Vec::new());
        assert_eq!(ordered[0].1, 2 * SLAB_BYTES);
        shares.beat(&beat("a", serial, 5 * SLAB_BYTES, 5 * SLAB_BYTES, 0), TERM, &mut Vec::new());
        assert_eq!(sum(&shares), 5);
    }
}
