//! Owners: every member has an owner id of its own, given by the node; so has every run, in whose
//! name its slabs are held (a fork makes a slab two members', but it stays one run's).
//!
//! ```text
//!  lease ─► LIVE ── member gone, or the run's last slab and member ─► FENCED ── [`super::keeper`] ─► VACANT
//! ```

use super::Units;
use crate::tenants::Tenant;
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::{OwnerField, OwnerWord};
use farmem_protocol::extent::place::CHUNK_BYTES;
use farmem_protocol::extent::word::Owner;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slots that are nobody's.
#[derive(Debug)]
pub(super) struct Vacant {
    /// Used before.
    slots: Vec<u16>,
    /// The first never used.
    fresh: u16,
    end: u16,
}

impl Vacant {
    pub fn new(owners: u16) -> Vacant {
        Vacant { slots: Vec::new(), fresh: 1, end: owners }
    }

    fn take(&mut self) -> Option<u16> {
        self.slots.pop().or_else(|| {
            let fresh = self.fresh;
            (fresh < self.end).then(|| {
                self.fresh += 1;
                fresh
            })
        })
    }
}

/// One incarnation of an owner. Ends when dropped, at the latest.
#[derive(Debug)]
pub struct Lease {
    units: Arc<Units>,
    owner: Owner,
    incarnation: u32,
    tenant: Option<Arc<Tenant>>,
    claimed: Arc<AtomicBool>,
    ended: AtomicBool,
}

impl Lease {
    /// A new one, of no tenant. `None` when all slots are taken.
    pub fn new(units: &Arc<Units>) -> Option<Lease> {
        Lease::of(units, None)
    }

    /// A new one, whose memory counts to a tenant's. `None` when all slots are taken.
    pub fn of(units: &Arc<Units>, tenant: Option<Arc<Tenant>>) -> Option<Lease> {
        // A slot whose incarnations are used up is nobody's for good.
        let (owner, word) = std::iter::from_fn(|| units.vacant.lock().take())
            .find_map(|slot| Some((Owner::new(slot), units.words.owner(Owner::new(slot)).registered()?)))?;
        for (field, value) in [
            (OwnerField::Heartbeat, 0),
            (OwnerField::Quota, units.quota.load(Ordering::Relaxed)),
            (OwnerField::Held, 0),
        ] {
            units.words.at(units.words.offset(Target::Owner(owner, field))).store(value, Ordering::SeqCst);
        }
        if let Some(tenant) = &tenant {
            units.tenants.lock().insert(owner.slot(), Arc::clone(tenant));
        }
        // Last: from here on its verbs are admitted.
        units.words.at(units.words.offset(Target::Owner(owner, OwnerField::Word))).store(word.0, Ordering::SeqCst);
        Some(Lease {
            units: Arc::clone(units),
            owner,
            incarnation: word.incarnation(),
            tenant,
            claimed: Arc::default(),
            ended: AtomicBool::new(false),
        })
    }

    /// The owner.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The tenant that its memory is for.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.as_ref()
    }

    /// Whether the other's memory counts to the same quota.
    pub(crate) fn counts_with(&self, other: &Lease) -> bool {
        let tenants = self.tenant.as_ref().zip(other.tenant.as_ref());
        std::ptr::eq(self, other) || tenants.is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Which one of those that have had this slot.
    #[inline]
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Bytes of units that it holds: a run's slabs, or what a member claimed itself.
    pub fn held(&self) -> u64 {
        self.units.words.load(Target::Owner(self.owner, OwnerField::Held)) * CHUNK_BYTES
    }

    /// Words may name it that only a scan finds.
    pub(super) fn has_claimed(&self) {
        self.claimed.store(true, Ordering::Relaxed);
    }

    /// Its verbs are admitted no more; the rest is the keeper's.
    pub fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.units.words.lease_word(self.owner, OwnerWord::fenced);
            self.units.keeping.bury(self.owner, Arc::clone(&self.claimed));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}

impl Units {
    /// The tenant that the memory of an owner id counts to.
    pub(crate) fn tenant_of(&self, owner: u16) -> Option<Arc<Tenant>> {
        self.tenants.lock().get(&owner).cloned()
    }

    /// The slot can be leased again.
    pub(super) fn vacate(&self, owner: Owner) {
        // Units that it still counted were taken back by their words, one by one, and no longer
        // count for its tenant.
        if let Some(tenant) = self.tenants.lock().remove(&owner.slot()) {
            let left = self.words.load(Target::Owner(owner, OwnerField::Held)) * CHUNK_BYTES;
            tenant.count(-(left as i64));
        }
        self.words.lease_word(owner, OwnerWord::died);
        self.words.lease_word(owner, OwnerWord::vacated);
        self.vacant.lock().slots.push(owner.slot());
    }
}
