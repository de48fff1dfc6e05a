//! Regions of a node, as a member uses them. `memory/nic/src/regions.rs` defines them.

use super::{Membership, Session, Slab};
use crate::{GrantError, Lost, RegionError};
use farmem_protocol::region::{MAX_REGIONS, RegionName};
use farmem_protocol::wire::{Ask, Reply, Status, Who};

/// A node's description of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name.
    pub name: RegionName,
    /// Slabs that it has.
    pub slabs: u64,
    /// The owner id by which descriptor words name it.
    pub owner: u16,
}

/// How an attempt ended to remove a region that nobody uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// It has no name any more.
    Removed,
    /// There is none of this name.
    Absent,
    /// Another member has it open. Nothing was changed.
    InUse,
}

/// Members that have a region open and are told of, at most.
pub const MAX_OPENERS: usize = 64;

/// A session's part for regions.
#[derive(Clone, Copy)]
pub struct Regions<'a> {
    member: &'a Membership,
}

impl Session {
    /// The node's regions, as this member may use them.
    pub fn regions(&self) -> Regions<'_> {
        Regions { member: &self.member }
    }
}

impl Regions<'_> {
    /// Opens a region; `make`: if there is none, it is made. Returns how many slabs it has.
    ///
    /// # Errors
    /// [`RegionError::Unknown`] if there is none. [`RegionError::Full`] if no more can be made or
    /// opened.
    pub fn open(self, name: RegionName, make: bool) -> Result<u64, RegionError> {
        let node = || self.member.node.clone();
        match self.member.ask(Ask::Region(name, make))?.0 {
            Ok(Reply::Slabs(slabs)) => Ok(slabs),
            Err(refused) if refused.status == Status::Exhausted => Err(RegionError::Full(node())),
            _ => Err(RegionError::Unknown { node: node(), name }),
        }
    }

    /// Holds slab number `number`, from 0, of a region that this member has opened. `None`: it has
    /// no such slab.
    pub fn slab(self, name: RegionName, number: u64) -> Result<Option<Slab>, GrantError> {
        let (answer, passed) = self.member.ask(Ask::RegionSlab(name, number))?;
        match answer {
            Ok(_) => self.member.granted(answer, passed).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// As [`Regions::slab`]; if `number` is the next one, the region gets one more slab,
    /// zero.
    ///
    /// # Errors
    /// As [`Session::grant`]. The quota is the region's.
    pub fn grow(self, name: RegionName, number: u64) -> Result<Slab, GrantError> {
        let (answer, passed) = self.member.ask(Ask::RegionGrow(name, number))?;
        if answer.is_err_and(|refused| matches!(refused.status, Status::Range | Status::NotHeld)) {
            let reason = format!("region {name} cannot have a slab of number {number}");
            return Err(GrantError::System { node: self.member.node.clone(), reason });
        }
        self.member.granted(answer, passed)
    }

    /// Ends the rights of the other processes of this [tag](farmem_protocol::wire::tag) that have a
    /// region open. This member must have it open. After `true` none of their verbs takes effect at
    /// this node. False: one of them has the memory mapped and is alive, or this member does not
    /// have the region open.
    pub fn expel(self, name: RegionName, tag: u32) -> Result<bool, Lost> {
        Ok(self.member.ask(Ask::RegionExpel(name, tag))?.0.is_ok())
    }

    /// Takes a region's name away. Its memory is free when no member has it open. False: there is
    /// none.
    pub fn remove(self, name: RegionName) -> Result<bool, Lost> {
        Ok(self.member.ask(Ask::RegionRemove(name))?.0.is_ok())
    }

    /// As [`Regions::remove`], unless another member has the region open.
    pub fn remove_unused(self, name: RegionName) -> Result<Removal, Lost> {
        Ok(match self.member.ask(Ask::RegionRemoveUnused(name))?.0 {
            Ok(_) => Removal::Removed,
            Err(refused) if refused.status == Status::Shared => Removal::InUse,
            Err(_) => Removal::Absent,
        })
    }

    /// The other members that have a region open, the first [`MAX_OPENERS`] of them.
    pub fn openers(self, name: RegionName) -> Result<Vec<Who>, Lost> {
        let mut openers = Vec::new();
        while openers.len() < MAX_OPENERS
            && let Ok(Reply::Who(who)) = self.member.ask(Ask::RegionOpener(name, openers.len() as u64))?.0
        {
            openers.push(who);
        }
        Ok(openers)
    }

    /// The regions that have names, in the order of these.
    pub fn list(self) -> Result<Vec<Region>, Lost> {
        let mut regions: Vec<Region> = Vec::new();
        // No node has more, whatever it says.
        while regions.len() < MAX_REGIONS
            && let Ok(Reply::Region(name, slabs, owner)) = self.member.ask(Ask::RegionAt(regions.len() as u64))?.0
        {
            regions.push(Region { name, slabs, owner });
        }
        // One that was made meanwhile may have moved another to a place that was asked already.
        regions.sort_by_key(|region| (region.name, region.owner));
        regions.dedup_by_key(|region| (region.name, region.owner));
        Ok(regions)
    }
}
