//! Which pages are local: decisions only.
//!
//! The pager asks three questions, and this crate answers them without I/O,
//! clock or unsafe code, so that the replayer (`lab/replay`) puts recorded page
//! traces through the very code that runs in programs:
//!
//! * *Which pages leave?* [`Policy`]; [`recommended`] is the one in use.
//! * *Which pages come along with a fault?* [`prefetch::Prefetcher`].
//! * *How much fresh memory to fill at once?* [`prefetch::FirstTouch`].
//!
//! User space has no access bits. A policy learns when a page arrives and when it leaves, and
//! nothing of its uses in between. Its one piece of evidence is a page that comes back soon after it
//! left: such a page was in use all along. So every policy here that is more than a queue remembers
//! for a while the pages that have left ([`ghosts`]). It judges a page by the number of others that
//! left before the page came back.
//! `docs/design/cache.md` has the figures by which the default was chosen.
//!
//! Everything is allocated at construction, in proportion to local memory
//! ([`Policy`]'s implementations: at most 32 bytes a local page), and every
//! operation is O(1): the pager calls in with its lock held, in a fault.

#![forbid(unsafe_code)]

pub mod fifo;
pub mod ghosts;
pub mod prefetch;
pub mod sample;
pub mod segments;
pub mod shares;
pub mod trace;

mod pages;

use farmem_protocol::addr::PageId;

/// Why a page is local now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Fresh memory, zero-filled.
    FirstTouch,
    /// Fetched because the program touched it.
    Demand,
    /// Fetched because it was expected to be touched.
    Prefetch,
    /// Touched while its bytes were still staged. Cheap, and the proof of a second use.
    Rescue,
}

/// Decides which pages leave.
///
/// Knows a page as *local* from [`Policy::arrived`] (or [`Policy::kept`]) until [`Policy::victims`]
/// names it or [`Policy::gone`] ends it. If it is told twice that a page is local, or is told the
/// end of an unknown page, nothing changes.
pub trait Policy: Send {
    /// The page is now local.
    fn arrived(&mut self, page: PageId, how: Arrival);

    /// These pages are now local. The same as [`Policy::arrived`] for each in turn, but the tables
    /// are read for all together, which is faster.
    fn all_arrived(&mut self, pages: &[(PageId, Arrival)]) {
        pages.iter().for_each(|&(page, how)| self.arrived(page, how));
    }

    /// Appends up to `n` pages that should leave, by ascending page, so that neighbours can be
    /// protected, copied and unmapped by one call. They are no longer local for the policy. Fewer
    /// than `n` only if it knows no more.
    fn victims(&mut self, n: usize, out: &mut Vec<PageId>);

    /// Appends up to `n` of the pages that would be named next if none came back, roughly in that
    /// order. For preparations; nothing changes.
    fn upcoming(&self, _n: usize, _out: &mut Vec<PageId>) {}

    /// A victim could not leave (pinned, or a thread is at it): it is local again, and in use.
    fn kept(&mut self, page: PageId);

    /// The program says that it does not need the page soon: if it is local, it is named before all
    /// others.
    fn demote(&mut self, _page: PageId) {}

    /// The program unmapped the page: it is not local, and its past means nothing.
    fn gone(&mut self, page: PageId);

    /// Pages that should leave now, however much room there is.
    fn overdue(&self) -> usize {
        0
    }

    /// Pages that came back, each before a [`shares::DEPTH`]th of local memory had left since it did.
    fn returned(&self) -> u64 {
        0
    }

    /// Pages that the policy knows as local.
    fn len(&self) -> usize;

    /// Whether it knows no page.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policy that farmem runs with: the best of those that can be built on faults alone.
///
/// `capacity`: local pages at most. Beyond it the policy still works, but allocates.
pub fn recommended(capacity: usize) -> Box<dyn Policy> {
    Box::new(segments::Segments::new(capacity, segments::RECOMMENDED))
}
