//! What must hold, by records of its own: no code of what is judged is in here.

use std::collections::BTreeMap;

/// A rule that was broken, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

/// What a rule says of a moment.
pub type Verdict = Result<(), Broken>;

/// The longest that an operation of a host may take that has two copies of every page. Two nodes may be given up one after the other.
const MIRRORED_NS: u64 = 1_000_000_000;
/// … and of another, whose only node is stopped for 2 s at most.
const SINGLE_NS: u64 = 8_000_000_000;

/// The records.
#[derive(Default)]
pub struct Judge {
    /// What was written last: by host, page.
    written: BTreeMap<(usize, u64), u64>,
    /// Writes so far: no two have the same value.
    writes: u64,
    /// The greatest epoch of which an order took effect, by receiver.
    epochs: BTreeMap<String, u64>,
    /// Drains as they were confirmed last.
    drains: BTreeMap<String, bool>,
    /// Slabs that tenants hold, by tenant and node.
    held: BTreeMap<(String, String), u64>,
}

/// Breaks a rule unless it holds.
pub fn holds(is: bool, what: impl FnOnce() -> String) -> Verdict {
    if is { Ok(()) } else { Err(Broken(what())) }
}

impl Judge {
    /// A value that no other page ever had. It names the program, and those that are forked from it.
    pub fn value(&mut self, family: usize) -> u64 {
        self.writes += 1;
        (family as u64 + 1) << 48 | self.writes
    }

    /// A page has this value from now on.
    pub fn wrote(&mut self, host: usize, page: u64, value: u64) {
        self.written.insert((host, page), value);
    }

    /// A forked process has a page as its parent has it.
    pub fn inherited(&mut self, parent: usize, child: usize, page: u64) {
        if let Some(&value) = self.written.get(&(parent, page)) {
            self.written.insert((child, page), value);
        }
    }

    /// A page is no more.
    pub fn dropped(&mut self, host: usize, page: u64) {
        self.written.remove(&(host, page));
    }

    /// The last write wins.
    pub fn read(&self, host: usize, page: u64, found: u64) -> Verdict {
        let expected = self.written.get(&(host, page)).copied();
        holds(expected == Some(found), || {
            format!("host {host} page {page}: {found:#x} was read, {expected:x?} was written last")
        })
    }

    /// Nothing that was freed is read by another.
    pub fn fresh(&self, host: usize, family: usize, found: u64) -> Verdict {
        let of = found >> 48;
        holds(found == 0 || of == family as u64 + 1, || format!("host {host} finds a page of another: {found:#x}"))
    }

    /// Every wait ends.
    pub fn took(&self, host: usize, doubled: bool, ns: u64) -> Verdict {
        let most = if doubled { MIRRORED_NS } else { SINGLE_NS };
        holds(ns <= most, || format!("host {host} waited for {} ms", ns / 1_000_000))
    }

    /// No order of an old epoch takes effect.
    pub fn took_effect(&mut self, receiver: &str, epoch: u64) -> Verdict {
        let latest = self.epochs.entry(receiver.to_owned()).or_default();
        let before = *latest;
        *latest = before.max(epoch);
        holds(epoch >= before, || format!("{receiver} does what epoch {epoch} says, and has heard of epoch {before}"))
    }

    /// An order to drain a node, or to open it, was confirmed.
    pub fn ordered(&mut self, node: &str, drain: bool) {
        self.drains.insert(node.to_owned(), drain);
    }

    /// What was confirmed is known.
    pub fn knows(&self, node: &str, drain: bool) -> Verdict {
        let wanted = self.drains.get(node).copied().unwrap_or(false);
        holds(wanted == drain, || format!("{node} is to be drained: {wanted} was confirmed, {drain} is known"))
    }

    /// A node lets a tenant hold this many slabs.
    pub fn holds_now(&mut self, tenant: &str, node: &str, slabs: u64) {
        self.held.insert((tenant.to_owned(), node.to_owned()), slabs);
    }

    /// A node has died, with what tenants held there.
    pub fn died(&mut self, node: &str) {
        self.held.retain(|(_, of), _| of != node);
    }

    /// Slabs that a tenant holds at a node.
    pub fn held(&self, tenant: &str, node: &str) -> u64 {
        self.held.get(&(tenant.to_owned(), node.to_owned())).copied().unwrap_or(0)
    }

    /// No tenant holds more than its quota in the whole rack.
    pub fn within_quota(&self, tenant: &str, slabs: u64) -> Verdict {
        let sum: u64 = self.held.iter().filter(|((of, _), _)| of == tenant).map(|(_, slabs)| slabs).sum();
        holds(sum <= slabs, || format!("tenant {tenant} holds {sum} slabs, its quota in the rack is {slabs}"))
    }

    /// Nodes may not admit more of a tenant together than its quota.
    pub fn within_shares(&self, tenant: &str, bytes: u64, quota: u64) -> Verdict {
        holds(bytes <= quota, || {
            format!("nodes may admit {bytes} bytes of tenant {tenant}, its quota in the rack is {quota}")
        })
    }

    /// Nobody holds more than his quota at a node.
    pub fn within(&self, host: usize, node: &str, slabs: u64, quota: u64) -> Verdict {
        holds(slabs <= quota, || format!("host {host} holds {slabs} slabs at {node}, its quota is {quota}"))
    }
}
