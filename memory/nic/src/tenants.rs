//! Tenants of this node: their tokens, how much all programs of a tenant hold together, and how
//! fast they move bytes.

use crate::events::VolumeEvent;
use crate::shares::{By, Peer};
use crate::{Leaving, Member, Nic};
use farmem_protocol::wire::Verdict;
use farmem_sys::sync::Lock;
use farmem_trust::{Key, TokenId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// One tenant, as long as it has a member here or a token.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub name: farmem_trust::Tenant,
    /// Bytes that its programs may hold together.
    quota: AtomicU64,
    held: AtomicI64,
    /// How fast its programs move bytes together.
    pub pace: Pace,
    /// Bytes that this node may admit for the tenant: its share of the tenant's quota in the rack.
    /// `u64::MAX`: the tenant has no quota in the rack.
    share: AtomicU64,
    /// The largest request, in bytes, that was refused because the share was used up, since
    /// [`Tenant::take_short`] was last called.
    short: AtomicU64,
}

impl Tenant {
    fn new(name: farmem_trust::Tenant) -> Arc<Tenant> {
        let [quota, share] = [u64::MAX; 2].map(AtomicU64::new);
        let (held, short, pace) = (AtomicI64::new(0), AtomicU64::new(0), Pace::new(u64::MAX));
        Arc::new(Tenant { name, quota, held, pace, share, short })
    }

    /// Bytes that its programs may hold here: by its quota, and by this node's share of what they may
    /// hold in the rack.
    pub fn limit(&self) -> u64 {
        self.quota().min(self.share.load(Ordering::SeqCst))
    }

    /// This node's share from now on.
    pub fn set_share(&self, bytes: u64) {
        self.share.store(bytes, Ordering::SeqCst);
    }

    /// Bytes that its programs hold here or may be granted, by its share; `None`: there is none.
    pub fn share(&self) -> Option<u64> {
        let share = self.share.load(Ordering::SeqCst);
        // In this order: see `charge`.
        (share != u64::MAX).then(|| share.max(self.held()))
    }

    /// Takes the largest request that was refused because the share was used up.
    pub fn take_short(&self) -> u64 {
        self.short.swap(0, Ordering::Relaxed)
    }

    /// Bytes that its programs may hold together; `u64::MAX`: all there is.
    pub fn quota(&self) -> u64 {
        self.quota.load(Ordering::Relaxed)
    }

    /// Bytes that its programs hold.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst).max(0) as u64
    }

    /// Counts bytes; false: that would be beyond the limit, and nothing is counted.
    ///
    /// They are counted before the share is read. So a share that is lowered meanwhile, and the bytes
    /// held that are read after it, tell all that was ever admitted.
    pub fn charge(&self, bytes: i64) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::SeqCst);
        let after = before.saturating_add(bytes).max(0) as u64;
        let within = bytes <= 0 || after <= self.limit();
        if !within {
            if after <= self.quota() {
                self.short.fetch_max(bytes as u64, Ordering::Relaxed);
            }
            self.held.fetch_sub(bytes, Ordering::SeqCst);
        }
        within
    }

    /// Counts bytes, or fewer, whatever the limits are.
    pub fn count(&self, bytes: i64) {
        self.held.fetch_add(bytes, Ordering::SeqCst);
    }
}

/// How far ahead of its rate a tenant may be, ns of the rate: it may be served in bursts.
const BURST_NS: u64 = 20_000_000;

/// A limit on the bytes a second that a tenant's connections move, both ways, at all workers.
///
/// ```text
///  moved ─► due ─────────── is ahead of the clock by bytes / rate
///           due > now + BURST_NS: nothing more is served until the clock is near
/// ```
#[derive(Debug)]
pub struct Pace {
    /// Bytes a second; `u64::MAX`: no limit.
    rate: AtomicU64,
    due_ns: AtomicU64,
    moved: AtomicU64,
}

impl Pace {
    /// A limit in bytes a second; `u64::MAX`: none.
    pub fn new(rate: u64) -> Pace {
        Pace { rate: AtomicU64::new(rate), due_ns: AtomicU64::new(0), moved: AtomicU64::new(0) }
    }

    /// Bytes a second; `u64::MAX`: no limit.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Bytes that were moved so far.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Sets another limit. Bytes that were moved under the one before are paid for.
    fn set(&self, rate: u64) {
        if self.rate.swap(rate, Ordering::Relaxed) != rate {
            self.due_ns.store(0, Ordering::Relaxed);
        }
    }

    /// How long the tenant is to wait, ns; 0: it may be served.
    #[inline]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        match self.rate() {
            u64::MAX => 0,
            _ => self.due_ns.load(Ordering::Relaxed).saturating_sub(now_ns + BURST_NS),
        }
    }

    /// Counts bytes that were moved.
    #[inline]
    pub fn count(&self, bytes: u64, now_ns: u64) {
        if bytes == 0 {
            return;
        }
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let rate = self.rate();
        if rate != u64::MAX {
            let ns = (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).min(1 << 50) as u64;
            // Workers may count at the same time: no byte is forgotten.
            let _ = self.due_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |due| Some(due.max(now_ns) + ns));
        }
    }
}

/// Whether a token can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It can.
    Good,
    /// It was taken back.
    Revoked,
    /// Its time is over.
    Expired,
}

/// A token that the node knows.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The key that proves it.
    pub key: Key,
    /// Whether it can be used now.
    pub standing: Standing,
    /// Bytes that its tenant may hold.
    pub quota: u64,
    /// Bytes a second that its tenant may move; `u64::MAX`: no limit.
    pub rate: u64,
}

/// The tokens of a node, and the tenants that have them.
pub struct Tenants {
    /// `None`: the node serves whoever can reach it.
    tokens: Lock<Option<BTreeMap<TokenId, Known>>>,
    /// How often they were set.
    changes: AtomicU64,
    tenants: Lock<BTreeMap<farmem_trust::Tenant, Arc<Tenant>>>,
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants { tokens: Lock::new(None), changes: AtomicU64::new(0), tenants: Lock::new(BTreeMap::new()) }
    }
}

impl Tenants {
    /// The token of this name, if the node knows tokens; and whether it does.
    pub(super) fn token(&self, id: &TokenId) -> (bool, Option<Known>) {
        let tokens = self.tokens.lock();
        (tokens.is_some(), tokens.as_ref().and_then(|tokens| tokens.get(id).copied()))
    }

    /// Another number whenever tokens have been set. One that is read before a token is looked at is
    /// another by the time that the token's standing changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Calls `then` if the token can be used. It is not taken back before that returns.
    pub(super) fn if_good(&self, id: &TokenId, then: impl FnOnce()) {
        let tokens = self.tokens.lock();
        let known = tokens.as_ref().and_then(|tokens| tokens.get(id));
        if known.is_some_and(|known| known.standing == Standing::Good) {
            then();
        }
    }

    /// Why a token cannot be used now; `None`: it can.
    pub(super) fn why_not(&self, id: &TokenId) -> Option<Verdict> {
        match self.token(id).1.map(|known| known.standing) {
            Some(Standing::Good) => None,
            Some(Standing::Expired) => Some(Verdict::Expired),
            Some(Standing::Revoked) | None => Some(Verdict::Revoked),
        }
    }

    /// Whether the node serves holders of tokens alone.
    pub fn are_asked(&self) -> bool {
        self.tokens.lock().is_some()
    }

    /// The tenant that has a token.
    pub(super) fn of(&self, known: &Known) -> Arc<Tenant> {
        self.named(known.key.tenant, |tenant| {
            tenant.quota.store(known.quota, Ordering::Relaxed);
            tenant.pace.set(known.rate);
        })
    }

    /// The tenant of this name, made as `make` has it if there is none.
    fn named(&self, name: farmem_trust::Tenant, make: impl FnOnce(&Tenant)) -> Arc<Tenant> {
        let mut tenants = self.tenants.lock();
        let tenant = tenants.entry(name).or_insert_with(|| {
            let tenant = Tenant::new(name);
            make(&tenant);
            tenant
        });
        Arc::clone(tenant)
    }

    /// To whom an entry of a table counts: to the tenant, or to the peer. Programs of the only
    /// tenant share by their addresses.
    pub(super) fn by(&self, tenant: Option<farmem_trust::Tenant>, peer: Peer) -> By {
        match tenant {
            Some(tenant) if self.tenants.lock().len() > 1 => By::Tenant(tenant),
            _ => By::Peer(peer),
        }
    }

    /// All tenants that have had a token or a member here.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        self.tenants.lock().values().cloned().collect()
    }

    /// Which tenants may hold no more than a quota in the whole rack. This node has no share of it
    /// before it is told one. Others have no such limit.
    pub fn set_in_rack(&self, names: &[farmem_trust::Tenant]) {
        for name in names {
            self.named(*name, |tenant| tenant.set_share(0));
        }
        for tenant in self.tenants.lock().values() {
            let (share, in_rack) = (tenant.share.load(Ordering::SeqCst), names.contains(&tenant.name));
            if in_rack != (share != u64::MAX) {
                tenant.set_share(if in_rack { 0 } else { u64::MAX });
            }
        }
    }

    /// Tenants with a share.
    pub fn with_shares(&self) -> Vec<Arc<Tenant>> {
        self.tenants.lock().values().filter(|tenant| tenant.share().is_some()).cloned().collect()
    }

    /// This node's share of what a tenant may hold in the rack, if that has such a quota.
    pub fn set_share(&self, name: &str, bytes: u64) {
        let tenant = self.with_shares().into_iter().find(|tenant| tenant.name.as_str() == name);
        tenant.into_iter().for_each(|tenant| tenant.set_share(bytes));
    }
}

impl Nic {
    /// From now on serves holders of these tokens alone. Members and volumes whose token can be
    /// used no more are gone at once.
    pub fn set_tokens(&self, tokens: Vec<Known>) {
        for known in &tokens {
            let tenant = self.tenants.of(known);
            tenant.quota.store(known.quota, Ordering::Relaxed);
            tenant.pace.set(known.rate);
        }
        let good: BTreeMap<TokenId, Known> = tokens.into_iter().map(|known| (known.key.id, known)).collect();
        // Set before members are listed: one that comes in meanwhile is listed, or looks at its
        // token after it has come in, and goes.
        *self.tenants.tokens.lock() = Some(good);
        self.tenants.changes.fetch_add(1, Ordering::SeqCst);
        let is_over = |id: &TokenId| self.tenants.why_not(id).is_some();
        let is_theirs = |member: &Member| member.token().is_some_and(|id| is_over(&id));
        self.membership().part_all(Leaving::Revoked, is_theirs);
        for volume in self.volumes.all().iter().filter(|volume| volume.token().is_some_and(|id| is_over(&id))) {
            self.swap().free(volume, VolumeEvent::Revoked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_quota_is_exact() {
        let tenant = Tenant::new(Default::default());
        tenant.quota.store(100, Ordering::Relaxed);
        assert!(tenant.charge(60) && tenant.charge(40) && !tenant.charge(1));
        assert!(tenant.charge(-40) && !tenant.charge(41) && tenant.charge(40));
        assert_eq!((tenant.held(), tenant.share(), tenant.take_short()), (100, None, 0));
    }

    #[test]
    fn a_share_that_is_lowered_counts_what_is_held() {
        let tenant = Tenant::new(Default::default());
        tenant.set_share(100);
        assert!(tenant.charge(60) && !tenant.charge(50));
        assert_eq!((tenant.share(), tenant.take_short(), tenant.take_short()), (Some(100), 50, 0));
        tenant.set_share(40);
        assert_eq!((tenant.share(), tenant.charge(1), tenant.charge(-30)), (Some(60), false, true));
        assert_eq!((tenant.share(), tenant.charge(11), tenant.charge(10)), (Some(40), false, true));
    }

    /// Threads are admitted while the share falls. The share that is told covers all that they hold.
    #[test]
    fn what_is_told_of_a_share_covers_what_is_admitted() {
        for _ in 0..200 {
            let tenant = Tenant::new(Default::default());
            tenant.set_share(100);
            let admitted = AtomicI64::new(0);
            let told = std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        (0..5).for_each(|_| {
                            admitted.fetch_add(if tenant.charge(10) { 10 } else { 0 }, Ordering::Relaxed);
                        })
                    });
                }
                scope
                    .spawn(|| {
                        tenant.set_share(20);
                        tenant.share()
                    })
                    .join()
            });
            assert!(told.unwrap() >= Some(admitted.load(Ordering::Relaxed) as u64));
        }
    }

    #[test]
    fn a_tenant_moves_bytes_at_its_rate() {
        const SECOND: u64 = 1_000_000_000;
        let pace = Pace::new(1 << 20);
        let mut now = 5 * SECOND;
        // Served whenever it may be, 64 KiB at a time, for ten seconds.
        while now < 15 * SECOND {
            match pace.wait_ns(now) {
                0 => pace.count(64 << 10, now),
                wait => now += wait,
            }
        }
        let most = (10 << 20) + (128 << 10);
        assert!((10 << 20..=most).contains(&pace.moved()), "{}", pace.moved());
        // It saves nothing up while it asks for nothing.
        now += 100 * SECOND;
        let before = pace.moved();
        while pace.wait_ns(now) == 0 {
            pace.count(4096, now);
        }
        assert!(pace.moved() - before < 64 << 10);
        pace.set(u64::MAX);
        assert_eq!(pace.wait_ns(now), 0);
    }
}
