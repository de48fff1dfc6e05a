//! The regions of a node, for those who look after them.

use crate::{Builder, Error, Memory, Result};
use farmem_fabric::Session;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::region::RegionName;
use farmem_sys::process;

/// A region of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes of the node's memory that it holds.
    pub bytes: u64,
}

/// The regions of a node, in the order of their names.
///
/// # Errors
/// As [`Builder::regions`].
pub fn regions(node: &str) -> Result<Vec<RegionInfo>> {
    Memory::builder().node(node).regions()
}

/// Removes the region of this name from a node.
///
/// # Errors
/// As [`Builder::regions`].
pub fn remove_region(node: &str, name: &str) -> Result<bool> {
    Memory::builder().node(node).remove_region(name)
}

impl Builder {
    /// The regions of the nodes, in the order of their names. With several nodes: one after the
    /// other.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Lost`], [`Error::Token`]
    pub fn regions(&self) -> Result<Vec<RegionInfo>> {
        let info = |region: farmem_fabric::Region| RegionInfo {
            name: region.name.to_string(),
            bytes: region.slabs * SLAB_BYTES,
        };
        let mut all = Vec::new();
        for session in self.sessions()? {
            all.extend(session.regions().list()?.into_iter().map(info));
        }
        Ok(all)
    }

    /// Removes the region of this name from the nodes. Processes that have it open keep it; the
    /// memory is free when the last of them has left. False: there is no such region.
    ///
    /// # Errors
    /// As [`Builder::regions`].
    pub fn remove_region(&self, name: &str) -> Result<bool> {
        let name: RegionName = name.parse()?;
        let mut removed = false;
        for session in self.sessions()? {
            removed |= session.regions().remove(name)?;
        }
        Ok(removed)
    }

    fn sessions(&self) -> Result<Vec<Session>> {
        let mut run = [0; 16];
        process::random_bytes(&mut run).map_err(|e| Error::System(e.to_string()))?;
        self.addresses().iter().map(|node| self.session(node, run)).collect()
    }
}
