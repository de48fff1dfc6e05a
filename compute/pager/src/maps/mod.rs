//! The record of the program's far mappings: which addresses are taken, how, and for what.
//!
//! Bookkeeping alone. The calls that change mappings are in [`crate::space`], and hold this
//! record's lock throughout. A fault takes the lock only to ask whether a page can be read.

pub(crate) mod regions;

use farmem_protocol::addr::{FAR_END, FAR_START, PAGE_BYTES, PageId, is_far};
use regions::{Region, Regions};

/// The result of a call with an impossible argument.
pub(crate) const EINVAL: isize = -(libc::EINVAL as isize);
/// The result of a call without memory or addresses.
pub(crate) const ENOMEM: isize = -(libc::ENOMEM as isize);

/// Bytes of addresses kept for the heap (`brk`).
pub const HEAP_BYTES: usize = 1 << 40;

/// Far mappings, counted as limits on addresses count them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes that may be written to.
    pub writable: u64,
}

impl Mapped {
    pub(crate) fn count(&mut self, bytes: usize, prot: i32) {
        self.bytes += bytes as u64;
        self.writable += if prot & libc::PROT_WRITE != 0 { bytes as u64 } else { 0 };
    }
}

/// The mappings of the far range.
pub(crate) struct Maps {
    /// The first [`HEAP_BYTES`], which only the program break hands out.
    heap: Regions,
    /// All addresses behind them.
    pub maps: Regions,
    /// The program break.
    pub brk: usize,
    /// Bytes committed.
    pub committed: u64,
    /// Bytes mapped.
    pub mapped: u64,
    /// Shared memory that was attached at far addresses: address and length at that time.
    pub attached: Vec<(usize, usize)>,
}

impl Maps {
    /// Nothing is mapped.
    pub fn new() -> Maps {
        Maps {
            heap: Regions::new(FAR_START, FAR_START + HEAP_BYTES),
            maps: Regions::new(FAR_START + HEAP_BYTES, FAR_END),
            brk: FAR_START,
            committed: 0,
            mapped: 0,
            attached: Vec::new(),
        }
    }

    /// The regions of the part that an address lies in.
    pub fn regions(&mut self, addr: usize) -> &mut Regions {
        if addr < FAR_START + HEAP_BYTES { &mut self.heap } else { &mut self.maps }
    }

    /// The protection of our mapping at an address, if there is one.
    fn prot(&mut self, addr: usize) -> Option<i32> {
        self.regions(addr).within(addr, addr + 1).first().map(|(_, region)| region.prot)
    }

    /// Whether an address lies in a mapping of ours that nobody may read or write.
    pub fn is_barred(&mut self, addr: usize) -> bool {
        self.prot(addr).is_some_and(|prot| prot & (libc::PROT_READ | libc::PROT_WRITE) == 0)
    }

    /// Whether an address lies in a mapping of ours that was not mapped for reading.
    pub fn is_unreadable(&mut self, addr: usize) -> bool {
        self.prot(addr).is_some_and(|prot| prot & libc::PROT_READ == 0)
    }

    /// All regions that are ours.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Region)> + '_ {
        self.heap.iter().chain(self.maps.iter()).filter(|(_, r)| !r.foreign)
    }
}

/// A length rounded up to whole pages.
pub(crate) fn page_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_BYTES)
}

/// The first page of a range that is not empty, and the page behind its last.
pub(crate) fn pages(start: usize, end: usize) -> (PageId, PageId) {
    (PageId::of(start), PageId(PageId::of(end - PAGE_BYTES).0 + 1))
}

/// Whether a call may name a range: it must be far, and not lie both in the heap and behind it.
pub(crate) fn in_range(addr: usize, len: usize) -> bool {
    let heap_end = FAR_START + HEAP_BYTES;
    is_far(addr) && len <= if addr < heap_end { heap_end - addr } else { FAR_END - addr }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regions::OnFork;

    #[test]
    fn rights_are_those_of_the_mapping_there() {
        let mut maps = Maps::new();
        for (at, prot) in [(0, libc::PROT_NONE), (1, libc::PROT_WRITE), (2, libc::PROT_READ)] {
            let start = FAR_START + HEAP_BYTES + at * PAGE_BYTES;
            let end = start + PAGE_BYTES;
            let on_fork = OnFork::Copy;
            let region = Region { end, prot, committed: false, noreserve: true, foreign: false, on_fork };
            maps.regions(start).insert(start, region);
        }
        let at = |page: usize| FAR_START + HEAP_BYTES + page * PAGE_BYTES + 5;
        assert_eq!([0, 1, 2, 3].map(|page| maps.is_barred(at(page))), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|page| maps.is_unreadable(at(page))), [true, true, false, false]);
        assert!(in_range(FAR_START, HEAP_BYTES) && !in_range(FAR_START, HEAP_BYTES + 1), "not across the heap");
    }
}
