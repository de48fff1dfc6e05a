//! Limits on the memory that tenants hold.

use crate::word::BLOCK_BYTES;
use std::collections::BTreeMap;

/// A user and the name of a job of that user; empty: no job. Blocks of one tenant are isolated from
/// those of others.
pub type Tenant = (u32, String);

/// The quotas of tenants.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    /// Bytes that the programs of a user may hold if `named` has no entry for the user; `None`: no
    /// limit.
    pub each: Option<u64>,
    /// Bytes for a user, or for one job of a user.
    pub named: BTreeMap<Tenant, u64>,
}

impl Quotas {
    /// The most blocks that an account may have.
    pub(crate) fn blocks(&self, tenant: &Tenant) -> u64 {
        let default = if tenant.1.is_empty() { self.each } else { None };
        self.named.get(tenant).copied().or(default).map_or(u64::MAX, |bytes| bytes / BLOCK_BYTES)
    }
}
