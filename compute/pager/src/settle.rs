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

/// How dirty pages that leave are settled: most of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    /// As they are: nobody else runs.
    Still,
    /// Held: their mapping goes, and then they are read.
    Held,
    /// Write-protected.
    Protected,
}

fn must_be_protected(l: &Leaving) -> bool {
    l.from.dirty() && !l.held
}

/// What a call that protects can reach: from a run's first page that must be to its last.
fn runs_to_protect(leaving: &[Leaving]) -> impl Iterator<Item = &[Leaving]> {
    leaving.chunk_by(neighbours).filter_map(|together| {
        let (first, last) =
            (together.iter().position(must_be_protected)?, together.iter().rposition(must_be_protected)?);
        Some(&together[first..=last])
    })
}

impl Pager {
    /// Settles the dirty pages of a batch; whether any are held.
    pub(crate) fn settle_dirty(&self, evictor: &mut Evictor) -> bool {
        // Where the kernel notes first writes nothing may be protected, which would give a page that was written since it was asked about
        // its mark back. There the program is still, or has ended ([`crate::marks`]).
        let still = evictor.marks.is_some() || self.is_still(evictor);
        self.headroom.found(still);
        let dirty = evictor.leaving.iter().filter(|l| l.from.dirty()).count();
        if dirty == 0 {
            return false;
        }
        let held = if still { 0 } else { self.hold_dirty(evictor) };
        let settled = match held {
            _ if still => Settled::Still,
            few if 2 * few < dirty => Settled::Protected,
            _ => Settled::Held,
        };
        if !still && held < dirty {
            self.protect_dirty(&evictor.leaving);
        }
        self.rewrites.leave(settled, self.pool.all_mapped());
        held > 0
    }

    fn protect_dirty(&self, leaving: &[Leaving]) {
        let mut calls = 0;
        for pages in runs_to_protect(leaving) {
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
        let wanted = pages.iter().filter(|l| must_be_protected(l));
        for l in wanted.clone() {
            if let Err(e) = self.uffd.protect(l.page.addr(), PAGE_BYTES, true) {
                broken(&format!("page {:#x}: write protection failed with {e}", l.page.addr()));
            }
        }
        1 + wanted.count()
    }
}
