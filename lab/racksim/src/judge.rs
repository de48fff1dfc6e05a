//! The rules that must hold. The judge has records of its own, and uses no code that it judges.

use std::collections::{BTreeMap, BTreeSet};

/// A rule that was broken, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

/// The result of checking a rule once.
pub type Verdict = Result<(), Broken>;

/// The longest that an operation may take on a host that has two copies of every page. The host may
/// have to give up two nodes, one after the other.
const MIRRORED_NS: u64 = 1_000_000_000;
/// The longest that an operation may take on another host. Its only node may be stopped for up to 2
/// s.
const SINGLE_NS: u64 = 8_000_000_000;

/// The number of the write in a value ([`Judge::value`]).
const NUMBER: u64 = (1 << 48) - 1;

/// A copy's place: a node of the rack, and its incarnation.
pub type Home = (usize, u64);

/// The copies of a group of slabs that go together, as a host knows them: one slab and its copies, or
/// the seats of a group with parity.
#[derive(Clone, Default, Debug)]
pub struct Copies {
    /// The group's number at its host.
    pub group: u32,
    /// Seats that each page can be had from, at least.
    pub needs: usize,
    /// The seat of each home. A seat that moves has two homes.
    pub seats: BTreeMap<Home, usize>,
    /// Homes that are whole.
    pub whole: BTreeSet<Home>,
    /// Homes that are being filled.
    pub filling: BTreeSet<Home>,
    /// Homes of nodes that were given up and may come back: they miss what is written meanwhile.
    pub behind: BTreeSet<Home>,
}

/// What the judge knows of a group's copies.
struct Known {
    needs: usize,
    seats: BTreeMap<Home, usize>,
    /// Homes whose bytes came from the host, or from homes like them.
    honest: BTreeSet<Home>,
    /// Homes that were whole at the last look.
    seen: BTreeSet<Home>,
    /// Homes that were being filled while another one could have lied.
    suspect: BTreeSet<Home>,
    /// Writes so far at the last look.
    looked: u64,
    /// Honest homes that have fallen behind, each with the writes of which it has all.
    behind: BTreeMap<Home, u64>,
}

impl Known {
    /// Whether enough seats have an honest home, without this one.
    fn is_enough(&self, without: Option<Home>) -> bool {
        let homes = self.honest.iter().filter(|home| Some(**home) != without);
        homes.filter_map(|home| self.seats.get(home)).collect::<BTreeSet<_>>().len() >= self.needs
    }
}

/// The records.
#[derive(Default)]
pub struct Judge {
    /// The value that was written last, by host and page.
    written: BTreeMap<(usize, u64), u64>,
    /// The number of writes so far. It makes each value unique.
    writes: u64,
    /// By receiver: the greatest epoch whose order took effect.
    epochs: BTreeMap<String, u64>,
    /// By node: whether the last confirmed order was to drain it.
    drains: BTreeMap<String, bool>,
    /// Slabs that tenants hold, by tenant and node.
    held: BTreeMap<(String, String), u64>,
    /// Nodes that have lied.
    liars: BTreeSet<Home>,
    /// By host and group.
    copies: BTreeMap<(usize, u32), Known>,
}

/// Breaks a rule unless it holds.
pub fn holds(is: bool, what: impl FnOnce() -> String) -> Verdict {
    if is { Ok(()) } else { Err(Broken(what())) }
}

impl Judge {
    /// A value that no page ever had. Its upper bits name the program's family: a host, and the
    /// processes that it forked.
    pub fn value(&mut self, family: usize) -> u64 {
        self.writes += 1;
        (family as u64 + 1) << 48 | self.writes
    }

    /// Records that a page has this value from now on.
    pub fn wrote(&mut self, host: usize, page: u64, value: u64) {
        self.written.insert((host, page), value);
    }

    /// Records that a forked process has a page with its parent's value.
    pub fn inherited(&mut self, parent: usize, child: usize, page: u64) {
        if let Some(&value) = self.written.get(&(parent, page)) {
            self.written.insert((child, page), value);
        }
    }

    /// Records that a page was dropped.
    pub fn dropped(&mut self, host: usize, page: u64) {
        self.written.remove(&(host, page));
    }

    /// Checks that a READ finds the value that was written last.
    pub fn read(&self, host: usize, page: u64, found: u64) -> Verdict {
        let expected = self.written.get(&(host, page)).copied();
        holds(expected == Some(found), || {
            format!("host {host} page {page}: {found:#x} was read, {expected:x?} was written last")
        })
    }

    /// Checks that a new page has no bytes of another family: freed memory is zeroed first.
    pub fn fresh(&self, host: usize, family: usize, found: u64) -> Verdict {
        let of = found >> 48;
        holds(found == 0 || of == family as u64 + 1, || format!("host {host} finds a page of another: {found:#x}"))
    }

    /// Checks that an operation did not take too long. `doubled`: the host has two copies of every
    /// page.
    pub fn took(&self, host: usize, doubled: bool, ns: u64) -> Verdict {
        let most = if doubled { MIRRORED_NS } else { SINGLE_NS };
        holds(ns <= most, || format!("host {host} waited for {} ms", ns / 1_000_000))
    }

    /// Checks that no order of an old epoch takes effect.
    pub fn took_effect(&mut self, receiver: &str, epoch: u64) -> Verdict {
        let latest = self.epochs.entry(receiver.to_owned()).or_default();
        let before = *latest;
        *latest = before.max(epoch);
        holds(epoch >= before, || format!("{receiver} does what epoch {epoch} says, and has heard of epoch {before}"))
    }

    /// Records that an order to drain a node, or to open it, was confirmed.
    pub fn ordered(&mut self, node: &str, drain: bool) {
        self.drains.insert(node.to_owned(), drain);
    }

    /// Checks that a confirmed order is known. `drain`: whether the store or the leader has the
    /// drain.
    pub fn knows(&self, node: &str, drain: bool) -> Verdict {
        let wanted = self.drains.get(node).copied().unwrap_or(false);
        holds(wanted == drain, || format!("{node} is to be drained: {wanted} was confirmed, {drain} is known"))
    }

    /// Records that a node lets a tenant hold this many slabs.
    pub fn holds_now(&mut self, tenant: &str, node: &str, slabs: u64) {
        self.held.insert((tenant.to_owned(), node.to_owned()), slabs);
    }

    /// Records that a node has died: tenants hold nothing there any more.
    pub fn died(&mut self, node: &str) {
        self.held.retain(|(_, of), _| of != node);
    }

    /// Slabs that a tenant holds at a node.
    pub fn held(&self, tenant: &str, node: &str) -> u64 {
        self.held.get(&(tenant.to_owned(), node.to_owned())).copied().unwrap_or(0)
    }

    /// Checks that a tenant holds at most its quota in the whole rack.
    pub fn within_quota(&self, tenant: &str, slabs: u64) -> Verdict {
        let sum: u64 = self.held.iter().filter(|((of, _), _)| of == tenant).map(|(_, slabs)| slabs).sum();
        holds(sum <= slabs, || format!("tenant {tenant} holds {sum} slabs, its quota in the rack is {slabs}"))
    }

    /// Checks that all nodes together may admit at most a tenant's quota.
    pub fn within_shares(&self, tenant: &str, bytes: u64, quota: u64) -> Verdict {
        holds(bytes <= quota, || {
            format!("nodes may admit {bytes} bytes of tenant {tenant}, its quota in the rack is {quota}")
        })
    }

    /// Checks that a host holds at most its quota at a node.
    pub fn within(&self, host: usize, node: &str, slabs: u64, quota: u64) -> Verdict {
        holds(slabs <= quota, || format!("host {host} holds {slabs} slabs at {node}, its quota is {quota}"))
    }

    /// Records that a node lies from now on, or is no more: none of its copies is honest.
    pub fn is_not_honest(&mut self, node: usize, life: u64) {
        self.liars.insert((node, life));
        self.copies.values_mut().for_each(|known| {
            known.honest.remove(&(node, life));
            known.behind.remove(&(node, life));
        });
    }

    /// Takes down which copies a host has now. A copy that was filled is honest if all those that it
    /// could come from are.
    pub fn has_copies(&mut self, host: usize, all: Vec<Copies>) {
        let named = |group: u32| all.iter().any(|copies| copies.group == group);
        self.copies.retain(|(of, group), _| *of != host || named(*group));
        for Copies { group, needs, seats, whole, filling, behind } in all {
            let honest = whole.difference(&self.liars).copied().collect();
            let fresh = || {
                let (suspect, looked, behind) = (BTreeSet::new(), self.writes, BTreeMap::new());
                Known { needs, seats: seats.clone(), honest, seen: whole.clone(), suspect, looked, behind }
            };
            let known = self.copies.entry((host, group)).or_insert_with(fresh);
            let sound = known.is_enough(None) && known.seen.is_subset(&known.honest);
            let come = whole.difference(&known.seen).filter(|home| sound && !known.suspect.contains(home));
            known.honest.extend(come.filter(|home| !self.liars.contains(home)).copied().collect::<Vec<_>>());
            // It was whole at the last look, and may have missed all that was written since.
            known.behind.retain(|home, _| behind.contains(home));
            let fell = behind.iter().filter(|home| known.honest.contains(home));
            fell.for_each(|home| _ = known.behind.entry(*home).or_insert(known.looked));
            (known.looked, known.seats) = (self.writes, seats);
            known.honest.retain(|home| whole.contains(home));
            known.seen = whole;
            if !sound || !known.seen.is_subset(&known.honest) {
                known.suspect.extend(filling);
            }
        }
    }

    /// Whether every group keeps enough honest copies without this node.
    pub fn spares(&self, node: usize, life: u64) -> bool {
        self.copies.values().all(|known| !known.is_enough(None) || known.is_enough(Some((node, life))))
    }

    /// Whether a group has honest copies enough for each of its pages.
    pub fn has_honest(&self, host: usize, group: u32) -> bool {
        self.copies.get(&(host, group)).is_some_and(|known| known.is_enough(None))
    }

    /// Checks that a page which no copy gives has no honest copies: neither whole homes, nor one that
    /// has been behind since the page was written.
    pub fn copies_are_gone(&self, host: usize, group: u32, page: u64) -> Verdict {
        let Some(known) = self.copies.get(&(host, group)) else { return Ok(()) };
        let written = self.written.get(&(host, page)).map_or(u64::MAX, |value| value & NUMBER);
        let behind: Vec<&Home> =
            known.behind.iter().filter(|(_, had)| written <= **had).map(|(home, _)| home).collect();
        let honest = &known.honest;
        holds(!known.is_enough(None) && behind.is_empty(), || {
            format!("host {host} page {page}: no copy opens, and honest ones are at {honest:?}, behind at {behind:?}")
        })
    }

    /// Checks that a slab of a node has one owner. `named`: by name, each with the families that have
    /// it by their own account, or by the node's.
    pub fn one_owner(&self, node: &str, named: &BTreeMap<u64, BTreeSet<usize>>) -> Verdict {
        let several = named.iter().find(|(_, families)| families.len() > 1);
        holds(several.is_none(), || format!("{node}: a slab has several owners: {several:?}"))
    }

    /// Checks that a node's words name an owner as often as it has slabs. `words`: of blocks, as they
    /// lie in the table. `slabs`: by owner.
    pub fn words_name(&self, node: &str, words: &[u64], slabs: &BTreeMap<u16, BTreeSet<u64>>) -> Verdict {
        // The state is in the upper 4 bits, the owner in the 14 below, the claimant at 32: all ones
        // for slabs. State 2 is owned.
        let is_slabs = |word: &&u64| **word >> 60 == 2 && **word >> 32 & 1023 == 1023;
        for (owner, slabs) in slabs {
            let named = words.iter().filter(is_slabs).filter(|word| (**word >> 46) as u16 & 0x3FFF == *owner).count();
            holds(named >= 32 * slabs.len(), || {
                format!("{node}: {} slabs of owner {owner} have {named} words of their own", slabs.len())
            })?;
        }
        Ok(())
    }
}
