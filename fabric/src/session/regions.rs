//! Regions of a node, as a member uses them. What they are: `memory/nic/src/regions.rs`.

use super::{Session, Slab};
use crate::{GrantError, Lost, RegionError};
use farmem_protocol::addr::SlabId;
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::{Answer, Ask, Status, variant};

/// What a node tells of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name.
    pub name: RegionName,
    /// Slabs that it has.
    pub slabs: u64,
    /// The owner id by which descriptor words name it.
    pub owner: u16,
}

impl Session {
    /// Opens a region; `make`: if there is none, it is made. Returns how many slabs it has.
    ///
    /// # Errors
    /// [`RegionError::Unknown`] if there is none. [`RegionError::Full`] if no more can be made or opened.
    pub fn open_region(&self, name: RegionName, make: bool) -> Result<u64, RegionError> {
        let answer = self.of_region(Ask::Region, name, u64::from(make))?.0;
        let node = || self.member.node.clone();
        match variant::<Status>(answer.status) {
            Some(Status::Done) => Ok(answer.value.get()),
            Some(Status::Exhausted) => Err(RegionError::Full(node())),
            _ => Err(RegionError::Unknown { node: node(), name }),
        }
    }

    /// Holds slab number `number`, from 0, of a region that this member has opened. `None`: it has no such slab.
    pub fn region_slab(&self, name: RegionName, number: u64) -> Result<Option<Slab>, GrantError> {
        let (answer, passed) = self.of_region(Ask::RegionSlab, name, number)?;
        match variant::<Status>(answer.status) {
            Some(Status::Done) => self.granted(&answer, passed).map(Some),
            _ => Ok(None),
        }
    }

    /// As [`Session::region_slab`]; if `number` is the next one, the region gets one more slab, zero.
    ///
    /// # Errors
    /// As [`Session::grant`]. The quota is the region's.
    pub fn grow_region(&self, name: RegionName, number: u64) -> Result<Slab, GrantError> {
        let (answer, passed) = self.of_region(Ask::RegionGrow, name, number)?;
        if matches!(variant::<Status>(answer.status), Some(Status::Range | Status::NotHeld)) {
            let reason = format!("region {name} cannot have a slab of number {number}");
            return Err(GrantError::System { node: self.member.node.clone(), reason });
        }
        self.granted(&answer, passed)
    }

    /// Takes a region's name away. Its memory is free when no member has it open. False: there is none.
    pub fn remove_region(&self, name: RegionName) -> Result<bool, Lost> {
        let (answer, _) = self.of_region(Ask::RegionRemove, name, 0)?;
        Ok(variant::<Status>(answer.status) == Some(Status::Done))
    }

    /// The regions that have names, in the order of these.
    pub fn regions(&self) -> Result<Vec<Region>, Lost> {
        let mut regions: Vec<Region> = Vec::new();
        loop {
            let (answer, _) = self.member.ask(Ask::RegionAt, SlabId(regions.len() as u64), [0; 16])?;
            let name = RegionName::from_wire(answer.secret);
            match (variant::<Status>(answer.status), name) {
                (Some(Status::Done), Some(name)) => {
                    let value = answer.value.get();
                    regions.push(Region { name, slabs: value & 0xffff_ffff, owner: (value >> 48) as u16 });
                }
                _ => break,
            }
        }
        // One that was made meanwhile may have moved another to a place that was asked already.
        regions.sort_by_key(|region| region.name);
        regions.dedup_by_key(|region| region.name);
        Ok(regions)
    }

    fn of_region(&self, ask: Ask, name: RegionName, number: u64) -> Result<(Answer, Option<i32>), Lost> {
        self.member.ask(ask, SlabId(number), name.to_wire())
    }
}
