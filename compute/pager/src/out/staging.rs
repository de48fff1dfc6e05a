//! The staging ring: bytes of pages that have left and whose WRITE is under way, or whose place in
//! the ring is not needed yet. A fault on such a page is served from here, without the fabric
//! ([`crate::incoming`], *rescue*). A rescue also tells the policy that the page was used again
//! soon after it left. The kernel tells user space nothing of uses between faults.
//!
//! The ring is for nodes whose memory is not mapped. Where it is (shm), the far slot is as near as
//! the ring would be. The ring's memory counts as local.
//!
//! ```text
//!            evict: copy, post WRITE                 ack
//!  Free ────────────────────────────► Held(unwritten) ───► Held(written) ──┐ ring comes round:
//!   ▲                                      │ rescue              │ rescue    │ page Staged → Remote
//!   │        ack: free the slot            ▼                     ▼           │
//!   ├───────────────────────── Orphan ◄─ Taken ───────────────► Free ◄───────┘
//! ```
//!
//! *Orphan*: the page went back before its WRITE was acknowledged. It will be
//! dirty and leave again, perhaps by another queue pair, and the two WRITEs could
//! arrive in either order. So the first one's slot is not used again until its
//! acknowledgement has come, and the page takes another.

use crate::page::{Bytes, Frames, Target};
use crate::word::MAX_STAGED;
use farmem_pool::Pool;
use farmem_protocol::addr::{FarSlot, PageId};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Held { written: bool },
    Taken { written: bool },
    Orphan,
}

#[derive(Clone, Copy)]
struct Entry {
    page: PageId,
    slot: FarSlot,
    state: Use,
}

/// Tells a rescuer about the copy that it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The slot holds these bytes too.
    pub written: bool,
}

/// The ring.
pub struct Staging {
    /// A page for each copy that there can be.
    bytes: Frames,
    /// Copies that there are: `most`, or none while it is closed. Without the lock: the caller may
    /// be beside a fork, whose child must not find it held.
    len: AtomicUsize,
    ring: Lock<Ring>,
}

struct Ring {
    entries: Vec<Entry>,
    next: usize,
}

impl Staging {
    /// A ring of `pages` copies, at least one, open or not yet. A closed one takes addresses only.
    pub fn new(pages: usize, open: bool) -> Result<Staging, Errno> {
        assert!(0 < pages && pages <= MAX_STAGED);
        let ring = Staging {
            len: AtomicUsize::new(0),
            bytes: Frames::reserve(pages)?,
            ring: Lock::new(Ring { entries: Vec::new(), next: 0 }),
        };
        if open {
            ring.open();
        }
        Ok(ring)
    }

    /// Opens the ring. Its memory is the caller's to have set apart.
    pub fn open(&self) {
        let free = Entry { page: PageId(0), slot: FarSlot::new(0, 0), state: Use::Free };
        self.ring.lock().entries = vec![free; self.most()];
        self.len.store(self.most(), Ordering::Release);
    }

    /// How many copies there is room for once it is open.
    pub fn most(&self) -> usize {
        self.bytes.pages()
    }

    /// How many copies there is room for.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether the ring is closed: all far memory is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy's bytes. The caller owns the entry, by the states above.
    pub fn page(&self, index: usize) -> Bytes<'static> {
        self.bytes.page(index)
    }

    /// A copy to be filled. The caller has claimed the entry.
    pub fn target(&self, index: usize) -> Target<'static> {
        self.bytes.target(index)
    }

    /// The address of a copy.
    pub fn at(&self, index: usize) -> *const u8 {
        self.bytes.at(index)
    }

    /// Tells cards of the ring's memory.
    pub fn tell(&self, pool: &Pool) {
        self.bytes.tell(pool);
    }

    /// Claims an entry for a page that is leaving to `slot`. `evicted` is asked to turn an old
    /// copy's page from Staged to Remote, and says whether it could. `None`: every copy is in use.
    pub fn claim(
        &self,
        page: PageId,
        slot: FarSlot,
        mut evicted: impl FnMut(usize, PageId, FarSlot) -> bool,
    ) -> Option<usize> {
        let mut ring = self.ring.lock();
        let n = ring.entries.len();
        for step in 0..n {
            let index = (ring.next + step) % n;
            let entry = ring.entries[index];
            let usable = match entry.state {
                Use::Free => true,
                Use::Held { written: true } => evicted(index, entry.page, entry.slot),
                _ => false,
            };
            if usable {
                ring.entries[index] = Entry { page, slot, state: Use::Held { written: false } };
                ring.next = (index + 1) % n;
                return Some(index);
            }
        }
        None
    }

    /// Where a copy under way belongs.
    pub fn slot(&self, index: usize) -> FarSlot {
        self.ring.lock().entries[index].slot
    }

    /// Whether the page of a copy under way has gone back for good. Then its slot is free when the
    /// WRITE is complete.
    pub fn is_orphan(&self, index: usize) -> bool {
        self.ring.lock().entries[index].state == Use::Orphan
    }

    /// The WRITE of a copy is complete. Returns a slot that is now free, if its page has gone back.
    pub fn written(&self, index: usize) -> Option<FarSlot> {
        let entry = &mut self.ring.lock().entries[index];
        match entry.state {
            Use::Held { .. } => entry.state = Use::Held { written: true },
            Use::Taken { .. } => entry.state = Use::Taken { written: true },
            Use::Orphan => {
                entry.state = Use::Free;
                return Some(entry.slot);
            }
            Use::Free => debug_assert!(false, "a WRITE of a free entry"),
        }
        None
    }

    /// Takes a copy for its page, which the caller has made Busy.
    pub fn take(&self, index: usize, page: PageId) -> Taken {
        let entry = &mut self.ring.lock().entries[index];
        debug_assert_eq!(entry.page, page);
        let written = entry.state == (Use::Held { written: true });
        entry.state = Use::Taken { written };
        Taken { written }
    }

    /// Puts a taken copy back, when its page could not be installed.
    pub fn put_back(&self, index: usize) {
        let entry = &mut self.ring.lock().entries[index];
        if let Use::Taken { written } = entry.state {
            entry.state = Use::Held { written };
        }
    }

    /// Ends the use of a taken copy. `keep_slot`: the page keeps the slot (only if
    /// `taken.written`). Returns a slot that is free at once.
    pub fn release(&self, index: usize, keep_slot: bool) -> Option<FarSlot> {
        let entry = &mut self.ring.lock().entries[index];
        match entry.state {
            Use::Taken { written: true } => {
                entry.state = Use::Free;
                (!keep_slot).then_some(entry.slot)
            }
            _ => {
                entry.state = Use::Orphan;
                None
            }
        }
    }

    /// Whether a page's copy is still in the ring and its WRITE acknowledged.
    pub fn is_written(&self, index: usize, page: PageId) -> bool {
        let entry = &self.ring.lock().entries[index];
        entry.page == page && entry.state == (Use::Held { written: true })
    }

    /// Whether a WRITE is under way from any entry.
    pub fn unwritten(&self) -> bool {
        let unwritten =
            |e: &Entry| matches!(e.state, Use::Held { written: false } | Use::Taken { written: false } | Use::Orphan);
        self.ring.lock().entries.iter().any(unwritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(n: u32) -> FarSlot {
        FarSlot::new(0, n)
    }

    #[test]
    fn a_copy_is_reused_only_after_its_write_and_with_its_pages_consent() {
        let ring = Staging::new(2, true).unwrap();
        let none = |_, _, _| panic!("nothing to evict");
        assert_eq!(ring.claim(PageId(1), slot(1), none), Some(0));
        assert_eq!(ring.claim(PageId(2), slot(2), none), Some(1));
        assert_eq!(ring.claim(PageId(3), slot(3), none), None, "both WRITEs are under way");
        assert_eq!(ring.written(1), None);
        assert_eq!(ring.claim(PageId(3), slot(3), |_, _, _| false), None, "page 2 is being rescued");
        assert_eq!(ring.claim(PageId(3), slot(3), |i, p, s| (i, p, s) == (1, PageId(2), slot(2))), Some(1));
    }

    #[test]
    fn a_slot_whose_write_is_under_way_comes_free_with_the_acknowledgement() {
        let ring = Staging::new(1, true).unwrap();
        ring.claim(PageId(1), slot(9), |_, _, _| false);
        assert_eq!(ring.take(0, PageId(1)), Taken { written: false });
        assert_eq!(ring.release(0, false), None);
        assert!(ring.unwritten());
        assert_eq!(ring.claim(PageId(2), slot(2), |_, _, _| true), None, "an orphan is not reused");
        assert_eq!(ring.written(0), Some(slot(9)));
        assert_eq!(ring.claim(PageId(2), slot(2), |_, _, _| false), Some(0));
    }

    #[test]
    fn an_acknowledgement_during_a_rescue_frees_the_slot_at_its_end() {
        let ring = Staging::new(1, true).unwrap();
        ring.claim(PageId(1), slot(9), |_, _, _| false);
        let taken = ring.take(0, PageId(1));
        assert_eq!(ring.written(0), None);
        assert!(!taken.written);
        assert_eq!(ring.release(0, taken.written), Some(slot(9)));
    }
}
