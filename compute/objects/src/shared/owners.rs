//! The process's table of which shared heap owns which block of homes.

use super::{Home, Inner, Shared, Table, is_forked};
use std::sync::{Arc, PoisonError, RwLock};

static OWNERS: RwLock<Table<Shared>> = RwLock::new(Table::new());

pub fn enter(owner: &Shared) -> Option<usize> {
    OWNERS.write().unwrap_or_else(PoisonError::into_inner).enter(owner)
}

pub fn leave(number: usize, is_empty: bool) {
    if !is_forked() {
        OWNERS.write().unwrap_or_else(PoisonError::into_inner).leave(number, is_empty);
    }
}

/// The heap that owns a home. `None`: it is gone, or this is a forked child.
pub fn of(home: Home) -> Option<Arc<Inner>> {
    if is_forked() {
        return None;
    }
    OWNERS.read().unwrap_or_else(PoisonError::into_inner).of(home).and_then(|owner| owner.0.upgrade())
}
