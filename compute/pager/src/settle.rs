//! Step 2 of an eviction: from here on no write to a page that leaves is lost.
//!
//! ```text
//!  the program is still      nothing can be written ([`crate::still`])               read in place, then dropped
//!  else                      what is written goes to what is held ([`crate::held`])  dropped, then read
//!  where that cannot be      dirty pages are write-protected, by a call for each     read in place, then dropped
//! ```
//!
//! The last is the dear one: a call takes 0.5 to 0.7 µs, and 3 to 15 where it interrupts other CPUs that the program runs on. (Until 25 November 2026
//! one call protected many pages, with what lay between, where calls were dear: what that cost is in `docs/design/pager.md`, *Dirty pages leave by reference*.)

use crate::Pager;
use crate::ending::broken;
use crate::evict::{Evictor, Leaving, neighbours};
use farmem_protocol::addr::PAGE_BYTES;

/// How dirty pages that leave are settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    /// As they are: nobody else runs.
    Still,
    /// Held: their mapping goes, and then they are read.
    Held,
    /// Write-protected.
    Protected,
}

/// What a call that protects can reach: from a run's first dirty page to its last.
fn runs_of_dirty(leaving: &[Leaving]) -> impl Iterator<Item = &[Leaving]> {
    leaving.chunk_by(neighbours).filter_map(|together| {
        let dirty = |l: &Leaving| l.from.dirty();
        let (first, last) = (together.iter().position(dirty)?, together.iter().rposition(dirty)?);
        Some(&together[first..=last])
    })
}

impl Pager {
    /// Settles the dirty pages of a batch, all in one way.
    pub(crate) fn settle_dirty(&self, evictor: &mut Evictor) -> Settled {
        // Where the kernel notes first writes nothing may be protected, which would give a page that was written since it was asked about
        // its mark back. There the program is still, or has ended ([`crate::marks`]).
        let still = evictor.marks.is_some() || self.is_still(evictor);
        let settled = if still {
            Settled::Still
        } else if self.hold_dirty(evictor) {
            Settled::Held
        } else {
            self.protect_dirty(&evictor.leaving);
            Settled::Protected
        };
        self.headroom.found(still);
        self.rewrites.leave(settled, self.pool.all_mapped());
        settled
    }

    fn protect_dirty(&self, leaving: &[Leaving]) {
        let mut calls = 0;
        for pages in runs_of_dirty(leaving) {
            calls += self.protect_together(pages);
        }
        self.count(&self.counters.protecting_calls, calls as u64);
    }

    /// Protects neighbours that leave, by how many calls. What is protected among them stays so: nobody else touches a page that leaves.
    fn protect_together(&self, pages: &[Leaving]) -> usize {
        if self.uffd.protect(pages[0].page.addr(), pages.len() * PAGE_BYTES, true).is_ok() {
            return 1;
        }
        // They span mappings; each page lies in one.
        let dirty = pages.iter().filter(|l| l.from.dirty());
        for l in dirty.clone() {
            if let Err(e) = self.uffd.protect(l.page.addr(), PAGE_BYTES, true) {
                broken(&format!("page {:#x}: write protection failed with {e}", l.page.addr()));
            }
        }
        1 + dirty.count()
    }
}
