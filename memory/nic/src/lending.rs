//! The memory that a node lends, slab by slab.
//!
//! A slab is a sealed memfd of its own, made when it is granted and never granted
//! twice: a member that kept the descriptor, against the rules, reads its own old
//! slab and nobody else's. Its memory is taken as it is touched, and given back,
//! scrubbed, when the last holder lets go *and* the last verb on it has ended:
//! both hold the slab by reference, so neither has to know of the other.

use super::Member;
use super::events::{Event, Events};
use super::spill::{Aside, Whereabouts};
use super::tally::{Tally, count};
use super::units::Units;
use super::units::leases::Lease;
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Refused, Status};
use farmem_sys::mapping::{Mapping, Memfd};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The most slabs that are made clean by the thread that has let go of them.
const FEW: usize = 4;

/// How a node's memory is backed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Pages of 4 KiB.
    Small,
    /// Huge pages from the system's reserve; where there are none, transparent ones; where these
    /// are off, small pages.
    Huge,
}

/// The memory that is lent, and how much of it.
#[derive(Debug)]
pub struct Lending {
    units: Arc<Units>,
    /// Bytes that it lends now, at most: less than the limit while the machine needs them.
    most: AtomicU64,
    lent: AtomicU64,
    peak: AtomicU64,
    next: AtomicU64,
    backing: Backing,
    reserve_empty: AtomicBool,
    left_alone: AtomicBool,
    /// Slabs whose bytes are not in memory.
    pub(super) aside: Aside,
    graves: Graves,
}

/// Slabs that somebody has let go of, which wait to be made clean by another thread. They are lent
/// until then.
///
/// Cleaning takes milliseconds a slab. A worker that hears of the end of a large member has other
/// members to serve.
#[derive(Default)]
struct Graves {
    list: Lock<VecDeque<Arc<Slab>>>,
    /// Held while a slab of the list is dropped.
    digging: Lock<()>,
    /// Wakes the thread. Unset: there is none, and whoever lets go cleans.
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Graves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graves({})", self.list.lock().len())
    }
}

/// Lets go of slabs. Many are made clean by the thread that digs ([`Lending::dig`]), if there is one.
pub(super) fn bury(slabs: impl IntoIterator<Item = Arc<Slab>>) {
    let slabs: VecDeque<_> = slabs.into_iter().collect();
    let Some(lending) = slabs.front().map(|slab| Arc::clone(&slab.lending)) else { return };
    if let Some(bell) = lending.graves.bell.get().filter(|_| slabs.len() > FEW) {
        lending.graves.list.lock().extend(slabs);
        bell();
    }
}

/// Why there is no slab.
#[derive(Debug, PartialEq, Eq)]
pub enum NoSlab {
    /// Everything is lent.
    Exhausted,
    /// The owner, or its tenant, has as many bytes as it may.
    Quota(Quota),
    /// The system refused.
    System(Errno),
}

/// A limit that is reached, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Of one owner.
    OfOwner(u64),
    /// Of all owners of a tenant together.
    OfTenant(u64),
}

impl Lending {
    /// Lends up to `limit` bytes, in whole slabs.
    pub fn new(limit: u64, backing: Backing) -> Lending {
        Lending {
            units: Arc::new(Units::new(limit, backing == Backing::Huge)),
            most: AtomicU64::new(u64::MAX),
            lent: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            next: AtomicU64::new(1),
            backing,
            reserve_empty: AtomicBool::new(false),
            left_alone: AtomicBool::new(false),
            aside: Aside::default(),
            graves: Graves::default(),
        }
    }

    /// From now on another thread cleans the slabs that a large member leaves: `bell` wakes it, and it
    /// calls [`Lending::dig`]. Only the first call counts.
    pub fn ring_for_graves(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.graves.bell.set(Box::new(bell));
    }

    /// Cleans one of the slabs that wait for it. False: none waits. None is being cleaned then.
    pub fn dig(&self) -> bool {
        self.dig_first(|_| true)
    }

    /// Cleans the first slab that waits and of which this is so.
    fn dig_first(&self, is_wanted: impl FnMut(&Arc<Slab>) -> bool) -> bool {
        let _digging = self.graves.digging.lock();
        let slab = {
            let mut list = self.graves.list.lock();
            list.iter().position(is_wanted).and_then(|at| list.remove(at))
        };
        slab.is_some()
    }

    /// The node ends, perhaps before its members: from now on slabs are let go without a scrub.
    /// Memory that a member has mapped is then its own until it finds out, byte for byte, and the
    /// kernel's after that.
    pub fn leave_alone(&self) {
        self.left_alone.store(true, Ordering::Relaxed);
    }

    /// Bytes it lends, in all.
    pub fn limit(&self) -> u64 {
        self.units.words.bytes()
    }

    /// Bytes it lends now, at most.
    pub fn most(&self) -> u64 {
        self.limit().min(self.most.load(Ordering::Relaxed))
    }

    /// Limits the lent slabs to this many bytes. Slabs that are lent already stay lent.
    pub fn set_most(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    /// Whether the limit on lent slabs may be less than all that it lends.
    pub fn keeps_reserve(&self) -> bool {
        self.most.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether slabs are made of huge pages of the system's reserve, as long as there are any.
    pub fn takes_huge_pages(&self) -> bool {
        self.backing == Backing::Huge
    }

    /// Slabs in memory that are lent beyond what it lends now.
    pub fn excess(&self) -> u64 {
        self.lent_here().saturating_sub(self.most()).div_ceil(SLAB_BYTES)
    }

    /// Bytes lent now as slabs, without those whose bytes are put aside.
    pub fn lent_here(&self) -> u64 {
        self.lent().saturating_sub(self.aside.bytes())
    }

    /// The words that say who owns what.
    pub fn units(&self) -> &Arc<Units> {
        &self.units
    }

    /// Bytes lent now as slabs.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
    }

    /// The most that was ever lent.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Whether huge pages were wanted and the system's reserve had none.
    pub fn reserve_was_empty(&self) -> bool {
        self.reserve_empty.load(Ordering::Relaxed)
    }

    /// A fresh slab, zero, in an owner's name. Slabs that wait to be cleaned are, until there is one: of an
    /// owner at its quota, those that count to it.
    pub fn grant(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Arc<Slab>, NoSlab> {
        let (mut tried, mut waits) = (self.try_grant(lease), self.graves.bell.get().is_some());
        while waits {
            waits = match tried {
                Err(NoSlab::Exhausted) => self.dig(),
                Err(NoSlab::Quota(_)) => self.dig_first(|slab| slab.lease.counts_with(lease)),
                Ok(_) | Err(NoSlab::System(_)) => break,
            };
            // Once more where none was left: one may have been cleaned meanwhile.
            tried = self.try_grant(lease);
        }
        tried
    }

    fn try_grant(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Arc<Slab>, NoSlab> {
        if self.lent() + SLAB_BYTES > self.most() {
            return Err(NoSlab::Exhausted);
        }
        let first = self.units.claim_slab(lease.owner())?;
        let (memfd, mapping) = self.memory().map_err(|e| {
            self.units.free_slab(first);
            NoSlab::System(e)
        })?;
        let id = SlabId(self.next.fetch_add(1, Ordering::Relaxed));
        let before = self.lent.fetch_add(SLAB_BYTES, Ordering::Relaxed);
        self.peak.fetch_max(before + SLAB_BYTES, Ordering::Relaxed);
        let (lending, lease) = (Arc::clone(self), Arc::clone(lease));
        let (pins, whereabouts) = (Lock::new(0), Whereabouts::default());
        Ok(Arc::new(Slab { id, mapping, memfd, pins, whereabouts, first, lending, lease }))
    }

    /// Whether the system would give a slab's memory now.
    pub fn try_memory(&self) -> Result<(), Errno> {
        self.memory().map(|_| ())
    }

    fn memory(&self) -> Result<(Memfd, Mapping), Errno> {
        if self.backing == Backing::Huge && !self.reserve_was_empty() {
            // A hugetlb mapping takes its pages from the reserve when it is made: it fails here or
            // never.
            let reserved =
                Memfd::new(SLAB_BYTES, true).and_then(|m| Ok((Mapping::new(m.fd(), SLAB_BYTES as usize)?, m)));
            if let Ok((mapping, memfd)) = reserved {
                return Ok((memfd, mapping));
            }
            self.reserve_empty.store(true, Ordering::Relaxed);
        }
        let memfd = Memfd::new(SLAB_BYTES, false)?;
        let mapping = Mapping::new(memfd.fd(), SLAB_BYTES as usize)?;
        if self.backing == Backing::Huge {
            mapping.prefer_huge();
        }
        Ok((memfd, mapping))
    }
}

/// Slabs that members ask for.
#[derive(Clone, Copy)]
pub(crate) struct Grants<'a> {
    pub lending: &'a Arc<Lending>,
    pub tally: &'a Tally,
    pub events: &'a Events,
}

impl Grants<'_> {
    /// A fresh slab in an owner's name. A refusal is told to the listener as the member's.
    pub fn grant(self, member: &Member, lease: &Arc<Lease>) -> Result<Arc<Slab>, Refused> {
        self.lending.grant(lease).map_err(|why| {
            let (status, value, told) = match why {
                NoSlab::Exhausted => {
                    count(&self.tally.exhausted, 1);
                    (Status::Exhausted, self.lending.most(), "all is lent")
                }
                NoSlab::Quota(Quota::OfOwner(bytes)) => (Status::Quota, bytes, "its owner has its quota"),
                NoSlab::Quota(Quota::OfTenant(bytes)) => (Status::TenantQuota, bytes, "its tenant has its quota"),
                NoSlab::System(e) => (Status::System, e.0 as u64, "this machine has no memory or descriptors left"),
            };
            self.events.tell(Event::Granted(member, Err(told)));
            Refused { status, value }
        })
    }
}

/// One slab. Its last reference gives the memory back.
#[derive(Debug)]
pub struct Slab {
    /// Its name.
    pub id: SlabId,
    /// Its bytes.
    pub mapping: Mapping,
    memfd: Memfd,
    /// Windows by which a card has some of its pages locked: none of them is given back meanwhile.
    pub(super) pins: Lock<u32>,
    /// Where its bytes are.
    pub(super) whereabouts: Whereabouts,
    /// The first of its blocks in the word table.
    first: u32,
    lending: Arc<Lending>,
    /// Its words name this owner, which lives as long.
    lease: Arc<Lease>,
}

impl Slab {
    /// The descriptor that a member on this machine maps.
    pub fn fd(&self) -> i32 {
        self.memfd.fd()
    }

    pub(super) fn lending(&self) -> &Lending {
        &self.lending
    }

    /// The ranges that have something in them, in order: all else reads as zero.
    pub fn extents(&self) -> Vec<std::ops::Range<u64>> {
        self.memfd.extents()
    }

    /// Gives a range's memory back to the system; it reads as zero.
    pub fn discard(&self, offset: u64, len: u64) {
        self.memfd.discard(offset, len);
    }

    /// Takes a range's memory from the system.
    pub fn back(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.memfd.back(offset, len)
    }

    /// Bytes of memory it has taken from the system.
    pub fn taken(&self) -> u64 {
        self.memfd.taken()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // Before it counts as free, so that memory in use never exceeds the limit.
        if !self.lending.left_alone.load(Ordering::Relaxed) {
            self.memfd.discard(0, SLAB_BYTES);
        }
        self.ends_aside();
        self.lending.units.free_slab(self.first);
        self.lending.lent.fetch_sub(SLAB_BYTES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_a_large_member_are_cleaned_elsewhere_or_when_they_are_wanted() {
        let lending = Arc::new(Lending::new(8 * SLAB_BYTES, Backing::Small));
        let lease = Arc::new(Lease::new(lending.units()).unwrap());
        let all = || -> Vec<_> { (0..8).map(|_| lending.grant(&lease).unwrap()).collect() };
        bury(all());
        assert_eq!(lending.lent(), 0, "nobody else cleans");
        let rung = Arc::new(AtomicU64::new(0));
        let rings = Arc::clone(&rung);
        lending.ring_for_graves(move || {
            rings.fetch_add(1, Ordering::Relaxed);
        });
        let mut slabs = all();
        slabs.iter().for_each(|slab| assert_eq!(slab.mapping.faa(0, 1), Some(0)));
        bury(slabs.drain(..FEW));
        assert_eq!((lending.lent(), rung.load(Ordering::Relaxed)), (4 * SLAB_BYTES, 0), "a few");
        slabs.extend((0..FEW).map(|_| lending.grant(&lease).unwrap()));
        bury(slabs);
        assert_eq!((lending.lent(), rung.load(Ordering::Relaxed)), (8 * SLAB_BYTES, 1));
        // Who needs memory has it at once, clean.
        let fresh = lending.grant(&lease).unwrap();
        assert_eq!((fresh.mapping.faa(0, 0), lending.lent()), (Some(0), 8 * SLAB_BYTES));
        assert_eq!(std::iter::from_fn(|| lending.dig().then_some(())).count(), 7);
        assert_eq!(lending.lent(), SLAB_BYTES);
    }

    /// An owner at its quota has what it left itself cleaned. What others left is not its matter.
    #[test]
    fn who_has_its_quota_cleans_nothing_of_others() {
        let lending = Arc::new(Lending::new(16 * SLAB_BYTES, Backing::Small));
        lending.ring_for_graves(|| ());
        let large = Arc::new(Lease::new(lending.units()).unwrap());
        let left: Vec<_> = (0..8).map(|_| lending.grant(&large).unwrap()).collect();
        lending.units().set_quota(5 * SLAB_BYTES);
        let small = Arc::new(Lease::new(lending.units()).unwrap());
        let mut held: Vec<_> = (0..5).map(|_| lending.grant(&small).unwrap()).collect();
        bury(left);
        assert_eq!(lending.grant(&small).unwrap_err(), NoSlab::Quota(Quota::OfOwner(5 * SLAB_BYTES)));
        assert_eq!(lending.lent(), 13 * SLAB_BYTES, "those of the other wait");
        bury(held.drain(..));
        held.push(lending.grant(&small).unwrap());
        assert_eq!(lending.lent(), 13 * SLAB_BYTES, "one of its own was cleaned");
    }

    #[test]
    fn the_limit_holds_and_freed_slabs_can_be_had_again() {
        let lending = Arc::new(Lending::new(3 * SLAB_BYTES - 1, Backing::Small));
        let lease = Arc::new(Lease::new(lending.units()).unwrap());
        let (a, b) = (lending.grant(&lease).unwrap(), lending.grant(&lease).unwrap());
        assert_ne!(a.id, b.id);
        assert_eq!(lending.grant(&lease).unwrap_err(), NoSlab::Exhausted);
        a.mapping.faa(0, 1).unwrap();
        let verb_under_way = Arc::clone(&a);
        drop(a);
        assert_eq!(lending.grant(&lease).unwrap_err(), NoSlab::Exhausted);
        drop(verb_under_way);
        let c = lending.grant(&lease).unwrap();
        assert_eq!((c.mapping.faa(0, 0), lending.lent()), (Some(0), 2 * SLAB_BYTES));
    }
}
