//! The rules that must hold. The judge has records of its own, and uses no code that it judges.

use std::collections::BTreeMap;

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
}
