//! Regions: memory that has a name and outlives the members that use it.
//!
//! ```text
//!  region "sessions" ── owner ── slab 0, slab 1, …
//!       ▲ opened by                ▲ held by
//!  member, member, …  ─────────────┘   as a forked child holds its parent's
//! ```
//!
//! A region is an owner like a run, with slabs of its own. A member that knows the name opens it,
//! and may then hold its slabs beside those that were granted to it. So admission, transports and
//! atomics are those of any slab.
//!
//! *Names.* Each tenant has names of its own: what another one calls by the same name is another
//! region. Members without a token have their names together.
//!
//! *Life.* The node's table of names and each member that has opened it hold a region by reference.
//! Removing the name takes the node's reference. The last one gives the slabs back.
//!
//! *Growth.* A slab is added only under the number that is next, under the region's lock. Two
//! members that ask for the same number get the same slab.

use super::lending::{Grants, Slab, bury};
use super::members::GENERATIONS;
use super::shares::{By, Place, Table};
use super::tally::count;
use super::units::Units;
use super::units::leases::Lease;
use super::{Leaving, Member, Nic};
use farmem_protocol::addr::SlabId;
pub use farmem_protocol::region::MAX_REGIONS;
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::{self, Refused, Status, Who};
use farmem_sys::sync::Lock;
use farmem_trust::Tenant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Regions that one member may have open, at most.
pub const MAX_OPEN: usize = 64;
/// Slabs of one region, at most (4 TiB).
pub const MAX_SLABS: usize = 65_535;

/// One region. Its last reference gives its memory back.
pub(super) struct Region {
    lease: Arc<Lease>,
    slabs: Lock<Vec<Arc<Slab>>>,
    /// Its part of the table of regions.
    _place: Place,
}

/// A region's name, and the tenant whose it is, if any.
type Name = (Option<Tenant>, RegionName);

impl Drop for Region {
    fn drop(&mut self) {
        bury(std::mem::take(&mut *self.slabs.lock()));
    }
}

impl Region {
    /// Whether a member may know of it and take its name away.
    fn is_shown_to(&self, member: &Member) -> bool {
        member.may_know(self.lease.tenant())
    }
}

/// The facts of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// Its name.
    pub name: RegionName,
    /// Slabs that it has.
    pub slabs: u64,
    /// The owner id by which descriptor words name it.
    pub owner: u16,
}

/// The region that is meant by a name: one of this tenant, or of none; else the only one of the name
/// that `may` be meant.
fn meant(
    regions: &BTreeMap<Name, Arc<Region>>,
    of: Option<Tenant>,
    name: RegionName,
    may: impl Fn(&Region) -> bool,
) -> Option<Name> {
    let found: Vec<Name> =
        regions.iter().filter(|((_, its), region)| *its == name && may(region)).map(|(&name, _)| name).collect();
    match found[..] {
        _ if found.contains(&(of, name)) => Some((of, name)),
        [one] => Some(one),
        _ => None,
    }
}

/// A member's share of regions.
#[derive(Default)]
pub(super) struct Shared {
    opened: BTreeMap<RegionName, Arc<Region>>,
    slabs: BTreeMap<SlabId, Arc<Slab>>,
}

impl Shared {
    pub fn is_empty(&self) -> bool {
        self.opened.is_empty()
    }

    pub fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.get(&id).cloned()
    }

    pub fn slabs(&self) -> impl Iterator<Item = &Arc<Slab>> {
        self.slabs.values()
    }

    /// The member no longer needs the slab. It can ask for it again.
    pub fn let_go(&mut self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.remove(&id)
    }

    /// As a forked child has it.
    pub fn inherited(&self) -> Shared {
        Shared { opened: self.opened.clone(), slabs: self.slabs.clone() }
    }
}

/// The regions that have names.
pub(super) struct Named {
    regions: Lock<BTreeMap<Name, Arc<Region>>>,
    /// Places of regions.
    places: Arc<Table>,
}

impl Default for Named {
    fn default() -> Named {
        Named { regions: Lock::new(BTreeMap::new()), places: Table::new(MAX_REGIONS) }
    }
}

/// The steps of members, and of the node's operator, on memory with a name.
#[derive(Clone, Copy)]
pub struct Regions<'a> {
    pub(super) named: &'a Named,
    pub(super) units: &'a Arc<Units>,
    pub(super) grants: Grants<'a>,
}

impl Regions<'_> {
    /// Has a member open a region. Returns how many slabs it has, and whether it was made beside
    /// one of the same name: of a member without a token if this one has one, or the other way
    /// round.
    pub(super) fn open(self, member: &Member, name: RegionName, make: bool) -> Result<(u64, bool), Status> {
        let is_full = |shared: &Shared| shared.opened.len() >= MAX_OPEN && !shared.opened.contains_key(&name);
        // None is made that cannot be opened.
        if is_full(&member.holds.lock().shared) {
            return Err(Status::Exhausted);
        }
        let (region, beside) = {
            let mut regions = self.named.regions.lock();
            let of = member.tenant().map(|tenant| tenant.name);
            match regions.get(&(of, name)) {
                Some(region) => (Arc::clone(region), false),
                None if make => {
                    let by = of.map_or(By::Peer(member.peer), By::Tenant);
                    let place = self.named.places.take(by).map_err(|_| Status::Exhausted)?;
                    let lease = Arc::new(Lease::of(self.units, member.tenant().cloned()).ok_or(Status::Exhausted)?);
                    let region = Arc::new(Region { lease, slabs: Lock::new(Vec::new()), _place: place });
                    let beside = regions.keys().any(|&(its, other)| other == name && its.is_some() != of.is_some());
                    regions.insert((of, name), Arc::clone(&region));
                    (region, beside)
                }
                None => return Err(Status::NotHeld),
            }
        };
        let slabs = region.slabs.lock().len() as u64;
        let mut holds = member.holds.lock();
        if holds.gone {
            return Err(Status::NotHeld);
        }
        if is_full(&holds.shared) {
            return Err(Status::Exhausted);
        }
        // One of this name that was removed since stays another's, or goes.
        let before = holds.shared.opened.insert(name, region);
        drop(holds);
        drop(before);
        Ok((slabs, beside))
    }

    /// Has a member hold a slab of a region that it has opened. `grow`: one that is not there is
    /// added, if it is the next.
    pub(super) fn slab(self, member: &Member, name: RegionName, number: u64, grow: bool) -> Result<Arc<Slab>, Refused> {
        let opened = member.holds.lock().shared.opened.get(&name).cloned();
        let region = opened.ok_or(Status::NotHeld)?;
        let mut slabs = region.slabs.lock();
        if grow && number == slabs.len() as u64 {
            if slabs.len() >= MAX_SLABS {
                return Err(Status::Range.into());
            }
            slabs.push(self.grants.grant(member, &region.lease)?);
            count(&self.grants.tally.grants, 1);
        }
        let found = usize::try_from(number).ok().and_then(|number| slabs.get(number)).cloned();
        drop(slabs);
        let slab = found.ok_or(Status::NotHeld)?;
        let mut holds = member.holds.lock();
        if holds.gone {
            return Err(Status::NotHeld.into());
        }
        holds.shared.slabs.insert(slab.id, Arc::clone(&slab));
        Ok(slab)
    }

    /// Takes a region's name away. False: there is none of this name, or tenants have several.
    pub fn remove(self, name: RegionName) -> bool {
        self.remove_if(None, name, |_| true, |_| true) == Status::Done
    }

    /// [`Regions::remove`] by a member. Another tenant's region is none to it. The node's own user has
    /// a region of its own removed, or else one that is a single tenant's.
    pub(super) fn remove_by(self, member: &Member, name: RegionName) -> bool {
        let of = member.tenant().map(|tenant| tenant.name);
        self.remove_if(of, name, |region| region.is_shown_to(member), |_| true) == Status::Done
    }

    /// [`Regions::remove_by`], unless a member other than `member` has the region open: then
    /// [`Status::Shared`], and nothing was changed. A look at the regions by another thread may count as
    /// such a member for a moment.
    pub(super) fn remove_unused(self, member: &Member, name: RegionName) -> Status {
        let of = member.tenant().map(|tenant| tenant.name);
        let own = member.holds.lock().shared.opened.get(&name).cloned();
        // A member opens a region by a reference that it takes under the lock that is held here.
        let unused = |region: &Arc<Region>| {
            let known = own.as_ref().is_some_and(|own| Arc::ptr_eq(own, region));
            Arc::strong_count(region) <= if known { 3 } else { 1 }
        };
        self.remove_if(of, name, |region| region.is_shown_to(member), unused)
    }

    fn remove_if(
        self,
        of: Option<Tenant>,
        name: RegionName,
        may: impl Fn(&Region) -> bool,
        unused: impl Fn(&Arc<Region>) -> bool,
    ) -> Status {
        let mut regions = self.named.regions.lock();
        let Some(meant) = meant(&regions, of, name, may) else { return Status::NotHeld };
        if !regions.get(&meant).is_some_and(unused) {
            return Status::Shared;
        }
        let removed = regions.remove(&meant);
        // Scrubbing takes milliseconds a slab: the lock is not held then.
        drop(regions);
        drop(removed);
        Status::Done
    }

    /// The regions that have names, in the order of these.
    pub fn list(self) -> Vec<RegionInfo> {
        self.list_if(|_| true)
    }

    fn list_if(self, is_meant: impl Fn(&Region) -> bool) -> Vec<RegionInfo> {
        let regions = self.named.regions.lock();
        let info = |((_, name), region): (&Name, &Arc<Region>)| RegionInfo {
            name: *name,
            slabs: region.slabs.lock().len() as u64,
            owner: region.lease.owner().slot(),
        };
        let mut found: Vec<RegionInfo> = regions.iter().filter(|(_, region)| is_meant(region)).map(info).collect();
        found.sort_by_key(|region| (region.name, region.owner));
        found
    }

    /// The region at a place in the order of names, of those that a member may know.
    pub(super) fn at(self, member: &Member, place: u64) -> Option<RegionInfo> {
        let list = || self.list_if(|region| region.is_shown_to(member));
        usize::try_from(place).ok().and_then(|place| list().into_iter().nth(place))
    }

    /// Their slabs, by name.
    pub(super) fn slabs(self) -> Vec<Arc<Slab>> {
        let regions: Vec<Arc<Region>> = self.named.regions.lock().values().cloned().collect();
        regions.iter().flat_map(|region| region.slabs.lock().clone()).collect()
    }
}

impl Nic {
    /// A member other than `asks` that has a region open which `asks` may know, by its place in the
    /// order in which they joined.
    pub(super) fn opener(&self, asks: &Member, name: RegionName, place: u64) -> Option<Who> {
        let region = {
            let regions = self.regions().named.regions.lock();
            let of = asks.tenant().map(|tenant| tenant.name);
            regions.get(&meant(&regions, of, name, |region| region.is_shown_to(asks))?).cloned()?
        };
        let opened = |member: &Member| {
            let holds = member.holds.lock();
            holds.shared.opened.get(&name).is_some_and(|other| Arc::ptr_eq(other, &region))
        };
        let mut found = self.roster.members();
        found.retain(|member| member.serial != asks.serial && opened(member));
        found.sort_by_key(|member| member.serial);
        let member = found.get(usize::try_from(place).ok()?)?;
        let leader = self.roster.leader(&member.run).map_or(0, |leader| leader.pid);
        Some(Who { pid: member.pid, run: member.run_id(), leader, names: member.names })
    }

    /// Ends the other members of a tag that have a region open. The member `asks` must have it
    /// open. After [`Status::Done`] none of their verbs is under way, and none will take effect.
    /// Called outside of sections.
    ///
    /// [`Status::NotHeld`]: `asks` has no such region open. [`Status::Shared`]: one of them has the
    /// memory mapped, and its process lives. Only its end would keep it from writing, so it stays a
    /// member.
    pub(super) fn expel(&self, asks: &Member, name: RegionName, tag: u32) -> Status {
        let opened = |member: &Member| member.holds.lock().shared.opened.get(&name).cloned();
        let Some(region) = opened(asks) else { return Status::NotHeld };
        let same = |member: &Member| opened(member).is_some_and(|other| Arc::ptr_eq(&other, &region));
        // Again for the children that were being made ([`Membership::ticket`]).
        for _ in 0..GENERATIONS {
            let mut found = self.roster.members();
            found.retain(|member| wire::tag(&member.run) == tag && member.serial != asks.serial && same(member));
            if found.iter().any(|member| member.is_mapped() && !member.is_gone()) {
                return Status::Shared;
            }
            if found.is_empty() {
                self.epochs.wait();
                return Status::Done;
            }
            for member in &found {
                // It may have come by a Unix socket just now.
                if !self.membership().part_unmapped(member, Leaving::Expelled) {
                    return Status::Shared;
                }
                // Another thread may be ending it too. Either way its card's keys are gone after this.
                drop(member.wires.lock().end());
            }
        }
        // Members of the tag open it as fast as they are ended: it cannot be fenced now.
        Status::Shared
    }
}
