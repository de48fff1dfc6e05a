//! Tenants of this node: their tokens, and how much all programs of a tenant hold together.

use crate::events::VolumeEvent;
use crate::{Leaving, Nic};
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
}

impl Tenant {
    /// Bytes that its programs may hold together; `u64::MAX`: all there is.
    pub fn quota(&self) -> u64 {
        self.quota.load(Ordering::Relaxed)
    }

    /// Bytes that its programs hold.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed).max(0) as u64
    }

    /// Counts bytes; false: that would be beyond the quota, and nothing is counted.
    pub(super) fn charge(&self, bytes: i64) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::AcqRel);
        let within = bytes <= 0 || before.saturating_add(bytes).max(0) as u64 <= self.quota();
        if !within {
            self.held.fetch_sub(bytes, Ordering::AcqRel);
        }
        within
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
}

/// The tokens of a node, and the tenants that have them.
pub struct Tenants {
    /// `None`: the node serves whoever can reach it.
    tokens: Lock<Option<BTreeMap<TokenId, Known>>>,
    tenants: Lock<BTreeMap<farmem_trust::Tenant, Arc<Tenant>>>,
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants { tokens: Lock::new(None), tenants: Lock::new(BTreeMap::new()) }
    }
}

impl Tenants {
    /// The token of this name, if the node knows tokens; and whether it does.
    pub(super) fn token(&self, id: &TokenId) -> (bool, Option<Known>) {
        let tokens = self.tokens.lock();
        (tokens.is_some(), tokens.as_ref().and_then(|tokens| tokens.get(id).copied()))
    }

    /// Whether the node serves holders of tokens alone.
    pub fn are_asked(&self) -> bool {
        self.tokens.lock().is_some()
    }

    /// The tenant that has a token.
    pub(super) fn of(&self, known: &Known) -> Arc<Tenant> {
        let mut tenants = self.tenants.lock();
        let tenant = tenants.entry(known.key.tenant).or_insert_with(|| {
            let (quota, held) = (AtomicU64::new(known.quota), AtomicI64::new(0));
            Arc::new(Tenant { name: known.key.tenant, quota, held })
        });
        Arc::clone(tenant)
    }
}

impl Nic {
    /// From now on serves holders of these tokens alone. Members and volumes whose token can be
    /// used no more are gone at once.
    pub fn set_tokens(&self, tokens: Vec<Known>) {
        for known in &tokens {
            self.tenants.of(known).quota.store(known.quota, Ordering::Relaxed);
        }
        let good: BTreeMap<TokenId, Known> = tokens.into_iter().map(|known| (known.key.id, known)).collect();
        let is_good = |id: &TokenId| good.get(id).is_some_and(|known| known.standing == Standing::Good);
        let ended: Vec<_> = self.members().into_iter().filter(|m| m.token().is_some_and(|id| !is_good(id))).collect();
        let mut volumes = self.volumes.all();
        volumes.retain(|volume| volume.token().is_some_and(|id| !is_good(&id)));
        *self.tenants.tokens.lock() = Some(good);
        for member in ended {
            self.part(&member, Leaving::Revoked);
        }
        for volume in volumes {
            self.free_volume(&volume, VolumeEvent::Revoked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_quota_is_exact() {
        let tenant = Tenant { name: Default::default(), quota: AtomicU64::new(100), held: AtomicI64::new(0) };
        assert!(tenant.charge(60) && tenant.charge(40) && !tenant.charge(1));
        assert!(tenant.charge(-40) && !tenant.charge(41) && tenant.charge(40));
        assert_eq!(tenant.held(), 100);
    }
}
