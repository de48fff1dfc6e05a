//! The slabs that a member has mapped here.
//!
//! ```text
//! queue pair ─► its table: lock, slab ─► mapping ◄─ the same in the other tables
//! ```
//!
//! A copy holds its table's lock. So when a slab is gone from all tables no copy of it is under way,
//! and its memory may become another member's. Queue pairs that use different tables do not wait for
//! one another's copies: one that misses the cache takes longer than all the rest of a verb.

use farmem_protocol::addr::SlabId;
use farmem_sys::mapping::Mapping;
use farmem_sys::sync::Lock;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// Tables of a member.
const TABLES: usize = 8;

/// Mappings by their slabs. A line of the cache to itself.
#[repr(align(128))]
#[derive(Default)]
struct Table(Lock<BTreeMap<SlabId, Arc<Mapping>>>);

/// See the module.
#[derive(Default)]
pub(crate) struct Slabs([Table; TABLES]);

impl Slabs {
    pub fn new(all: BTreeMap<SlabId, Mapping>) -> Slabs {
        let slabs = Slabs::default();
        all.into_iter().for_each(|(id, mapping)| slabs.insert(id, mapping));
        slabs
    }

    /// The table of a queue pair, by its number. It is locked while its bytes are copied.
    #[inline]
    pub fn of_queue(&self, number: u64) -> &Lock<BTreeMap<SlabId, Arc<Mapping>>> {
        &self.0[number as usize % TABLES].0
    }

    pub fn insert(&self, id: SlabId, mapping: Mapping) {
        let mapping = Arc::new(mapping);
        self.0.iter().for_each(|table| drop(table.0.lock().insert(id, Arc::clone(&mapping))));
    }

    /// Unmaps a slab. All copies of it have ended then.
    pub fn remove(&self, id: SlabId) {
        self.0.iter().for_each(|table| {
            let mapping = table.0.lock().remove(&id);
            drop(mapping);
        });
    }

    /// Where all of them are mapped.
    pub fn extents(&self) -> Vec<(SlabId, (NonNull<u8>, usize))> {
        self.0[0].0.lock().iter().map(|(id, mapping)| (*id, mapping.extent())).collect()
    }

    /// [`Mapping::discard`] of a slab. False: it is not mapped. A copy of another table that is under
    /// way may come before or after: the caller is whose range it is, and has none under way.
    pub fn discard(&self, id: SlabId, offset: u64, len: u64) -> bool {
        self.0[0].0.lock().get(&id).is_some_and(|mapping| mapping.discard(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn mapping() -> Mapping {
        let fd = farmem_sys::shared::memory(c"slab", 4096).unwrap();
        let mapping = Mapping::new(fd, 4096).unwrap();
        farmem_sys::descriptors::close(fd);
        mapping
    }

    /// Whichever queue pair copies: a slab that was removed is used by none any more.
    #[test]
    fn a_slab_goes_when_no_copy_uses_it() {
        let (one, other) = (SlabId(1), SlabId(2));
        let slabs = Slabs::new(BTreeMap::from([(one, mapping())]));
        slabs.insert(other, mapping());
        assert_eq!(slabs.extents().len(), 2);
        let is_gone = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for number in 0..3 {
                let (slabs, is_gone) = (&slabs, &is_gone);
                threads.spawn(move || {
                    loop {
                        let table = slabs.of_queue(number).lock();
                        let Some(mapping) = table.get(&one) else { break };
                        assert!(!is_gone.load(Ordering::SeqCst), "it is gone, and in a table");
                        assert!(mapping.write_bytes(8 * number, &[number as u8; 8]));
                    }
                });
            }
            slabs.remove(one);
            is_gone.store(true, Ordering::SeqCst);
        });
        let all = (0..2 * TABLES as u64).map(|number| slabs.of_queue(number).lock().len());
        assert!(all.into_iter().all(|len| len == 1));
        slabs.remove(other);
        assert!(slabs.extents().is_empty() && !slabs.discard(other, 0, 4096));
    }
}
