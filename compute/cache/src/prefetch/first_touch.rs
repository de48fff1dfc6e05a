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
const RUNS: usize = 8;

#[derive(Clone, Copy)]
struct Run {
    /// The pages whose touch would go on with it.
    above: u64,
    below: u64,
    pages: u32,
    used: u64,
}

/// Fresh pages to fill together: `first` and those after it.
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
        FirstTouch { runs: [Run { above: 0, below: 0, pages: 0, used: 0 }; RUNS], clock: 0 }
    }

    /// How many fresh pages to fill from `page` upwards, itself included.
    pub fn touch(&mut self, page: PageId) -> usize {
        self.clock += 1;
        let known = self.runs.iter().position(|r| r.used > 0 && r.above == page.0);
        let slot = known.unwrap_or_else(|| (0..RUNS).min_by_key(|&i| self.runs[i].used).unwrap_or(0));
        let pages = if known.is_some() { (self.runs[slot].pages * 2).min(MOST as u32) } else { 1 };
        self.runs[slot] = Run { above: page.0 + pages as u64, below: page.0.wrapping_sub(1), pages, used: self.clock };
        pages as usize
    }

    /// Which fresh pages to fill for a touch of `page`, upwards or downwards.
    pub fn batch(&mut self, page: PageId) -> Batch {
        let Some(slot) = self.runs.iter().position(|r| r.used > 0 && r.below == page.0) else {
            return Batch { first: page, pages: self.touch(page) };
        };
        self.clock += 1;
        let pages = (self.runs[slot].pages as u64 * 2).min(MOST as u64).min(page.0 + 1);
        let first = page.0 + 1 - pages;
        self.runs[slot] = Run { above: u64::MAX, below: first.wrapping_sub(1), pages: pages as u32, used: self.clock };
        Batch { first: PageId(first), pages: pages as usize }
    }
}
