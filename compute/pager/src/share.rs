//! A share of local memory for the program's far objects (`farmem-objects`): one `--local` for
//! both.
//!
//! Objects take their pages here before they touch them. The pages count as resident, so the limit
//! holds at every instant over both, and pages of the program leave where that is needed. Objects
//! get at most one part in [`PART`], so that the program itself can always go on.

use crate::base::Base;
use crate::local::Local;
use crate::room::Room;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects get one part in this many of local memory.
const PART: u64 = 2;
/// Pages that are reserved together: fewer than the smallest batch of evictions.
const STEP: u64 = 8;

/// The share of far objects.
pub struct Share {
    base: &'static Base,
    local: &'static Local,
    room: &'static Room,
    /// Pages that objects have.
    taken: AtomicU64,
}

impl Share {
    pub(crate) fn new(base: &'static Base, local: &'static Local, room: &'static Room) -> Share {
        Share { base, local, room, taken: AtomicU64::new(0) }
    }

    /// Pages that objects can have in all.
    pub fn most(&self) -> u64 {
        self.local.limit() / PART
    }

    /// Takes pages for objects: all of them, or none if the share has no room. Pages of the program
    /// leave meanwhile.
    ///
    /// Not from a signal handler of the runtime's. No far memory may be in use by the caller.
    pub fn take(&self, pages: u64) -> bool {
        let most = self.most();
        let more = |taken: u64| taken.checked_add(pages).filter(|&after| after <= most);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return false;
        }
        for from in (0..pages).step_by(STEP as usize) {
            let step = STEP.min(pages - from);
            let _signals = SignalsBlocked::new();
            let _inside = self.base.threads.enter();
            self.room.reserve(step);
            // They leave by `give` alone, as pages that are pinned.
            self.local.crowd.keep(step);
        }
        let bytes = pages * PAGE_BYTES as u64;
        let before = self.base.counters.objects_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.base.counters.objects_peak.fetch_max(before + bytes, Ordering::Relaxed);
        true
    }

    /// Gives pages back that objects had. Nothing is in them any more. More than were taken is
    /// refused: false.
    pub fn give(&self, pages: u64) -> bool {
        let less = |taken: u64| taken.checked_sub(pages);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return false;
        }
        self.local.crowd.unkeep(pages);
        self.local.unreserve(pages);
        self.base.counters.objects_bytes.fetch_sub(pages * PAGE_BYTES as u64, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{Ground, bare};

    #[test]
    fn objects_get_half_and_no_more() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let share = Share::new(base, local, Box::leak(Box::new(Room::new(base, local, changes, out))));
        let (resident, most) = (|| local.resident.load(Ordering::Relaxed), share.most());
        assert!(most == local.limit() / 2 && share.take(most - 16));
        assert!(!share.take(17) && !share.take(u64::MAX) && resident() == most - 16);
        assert!(share.take(16) && resident() == most && !share.take(1));
        assert_eq!(base.counters.objects_bytes.load(Ordering::Relaxed), most * PAGE_BYTES as u64);
        assert!(!share.give(most + 1) && !share.give(u64::MAX) && share.give(most));
        assert_eq!((resident(), base.counters.objects_bytes.load(Ordering::Relaxed)), (0, 0));
    }
}
