//! How much fresh memory to fill at one fault.
//!
//! Touches of fresh memory that go on where the last batch ended double the
//! batch, up to 64 pages; any other touch gets its one page and nothing more, so
//! that a sparse program stays as small as it is natively. Eight runs at once:
//! programs fill several arrays together. Downward runs (stacks, buffers filled
//! from the end) are followed as well.

use farmem_protocol::addr::PageId;

/// Pages of a batch at most.
pub const MOST: usize = 64;
/// Pages of a block. No batch crosses from one block into the next, where other mappings may begin,
/// or be coming and going.
pub const BLOCK: u64 = 512;
const RUNS: usize = 8;

#[derive(Clone, Copy)]
struct Run {
    /// The pages whose touch would go on with it.
    above: u64,
    below: u64,
    pages: u32,
    /// Pages filled since it was last cut short: the growth of its mapping, if that grows in steps.
    since: u32,
    used: u64,
}

/// Fresh pages to fill together: `first` and those after it. The touched one is the first or the
/// last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The lowest.
    pub first: PageId,
    /// How many, with the touched one.
    pub pages: usize,
}

/// A thread's touches of fresh memory.
pub struct FirstTouch {
    runs: [Run; RUNS],
    clock: u64,
}

impl FirstTouch {
    /// Knows nothing yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> FirstTouch {
        FirstTouch { runs: [Run { above: 0, below: 0, pages: 0, since: 0, used: 0 }; RUNS], clock: 0 }
    }

    /// Which fresh pages to fill for a touch of `page`: from it upwards, or downwards to it.
    pub fn touch(&mut self, page: PageId) -> Batch {
        self.clock += 1;
        let goes_on = |run: &Run, from: u64| run.used > 0 && from == page.0;
        let above = self.runs.iter().position(|run| goes_on(run, run.above));
        let below = self.runs.iter().position(|run| goes_on(run, run.below));
        let slot = above.or(below).unwrap_or_else(|| (0..RUNS).min_by_key(|&i| self.runs[i].used).unwrap_or(0));
        let run = &mut self.runs[slot];
        let doubled = (run.pages as u64 * 2).min(MOST as u64);
        let (first, pages) = match (above, below) {
            (Some(_), _) => (page.0, doubled.min(BLOCK - page.0 % BLOCK)),
            (_, Some(_)) => {
                let pages = doubled.min(page.0 % BLOCK + 1);
                (page.0 + 1 - pages, pages)
            }
            _ => (page.0, 1),
        };
        // A run of one page may go either way; a longer one goes its own.
        *run = Run {
            above: if below.is_some() && above.is_none() { NOWHERE } else { first + pages },
            below: if above.is_some() { NOWHERE } else { first.wrapping_sub(1) },
            // Grown, even if this batch was cut short at its block's end.
            pages: if above.or(below).is_some() { doubled as u32 } else { 1 },
            since: if above.or(below).is_some() { run.since.saturating_add(pages as u32) } else { 1 },
            used: self.clock,
        };
        Batch { first: PageId(first), pages: pages as usize }
    }

    /// Only `pages` pages of the last batch were filled: the touched one and those next to it. The
    /// run continues where these end, with about as many. Its mapping ended there, like a heap's
    /// that grows a little at a time, or the room did.
    pub fn shortened(&mut self, batch: Batch, pages: usize) {
        let missing = (batch.pages - pages) as u64;
        let Some(run) = self.runs.iter_mut().find(|run| run.used == self.clock) else { return };
        // A mapping that grows by equal steps has at most three times a step's pages claimed in
        // vain. (The pages of this batch alone are no measure: they may be the last one of a step
        // that had two batches.)
        run.pages = run.since.saturating_sub(missing as u32).next_power_of_two().min(run.pages);
        run.since = 0;
        if run.above == batch.first.0 + batch.pages as u64 {
            run.above -= missing;
        } else if run.below == batch.first.0.wrapping_sub(1) {
            run.below = run.below.wrapping_add(missing);
        }
    }
}

/// No page has this number.
const NOWHERE: u64 = u64::MAX;
