//! The regions of a node, for those who look after them.

use crate::{Builder, Error, Memory, Result};
use farmem_fabric::Session;
use farmem_fabric::session::Removal;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::Who;
use farmem_sys::process;
use std::time::Duration;

/// How often a region is tried again that is in use by nobody; a quarter as often if by others.
const LOOKS: u32 = 50;
/// Between two attempts.
const LOOK: Duration = Duration::from_millis(20);

/// A region of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes of the node's memory that it holds.
    pub bytes: u64,
}

/// A process that has a region open. Texts are as it told the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opener {
    /// Its pid, on its machine.
    pub pid: u32,
    /// Its machine.
    pub host: String,
    /// Its user.
    pub user: String,
    /// Its program.
    pub program: String,
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

    /// As [`Builder::remove_region`], unless other processes have the region open.
    ///
    /// # Errors
    /// As [`Builder::regions`]. [`Error::InUse`]: nothing was changed at the node that says so.
    pub fn remove_unused_region(&self, name: &str) -> Result<bool> {
        let region: RegionName = name.parse()?;
        let mut removed = false;
        for session in self.sessions()? {
            // A process that has just closed it may not have left yet. A look by another one counts as a
            // use for a moment.
            let mut looks = 0;
            removed |= loop {
                match session.regions().remove_unused(region)? {
                    Removal::Removed => break true,
                    Removal::Absent => break false,
                    Removal::InUse => {}
                }
                let by = openers(&session, region)?;
                looks += if by.is_empty() { 1 } else { 4 };
                if looks > LOOKS {
                    return Err(Error::InUse { region: name.to_owned(), by });
                }
                std::thread::sleep(LOOK);
            };
        }
        Ok(removed)
    }

    /// The other processes that have the region of this name open, 64 of each node at most.
    ///
    /// # Errors
    /// As [`Builder::regions`].
    pub fn openers(&self, name: &str) -> Result<Vec<Opener>> {
        let region: RegionName = name.parse()?;
        let mut all = Vec::new();
        for session in self.sessions()? {
            all.extend(openers(&session, region)?);
        }
        Ok(all)
    }

    fn sessions(&self) -> Result<Vec<Session>> {
        let mut run = [0; 16];
        process::random_bytes(&mut run).map_err(|e| Error::System(e.to_string()))?;
        self.addresses().iter().map(|node| self.session(node, run)).collect()
    }
}

fn openers(session: &Session, name: RegionName) -> Result<Vec<Opener>> {
    let opener = |who: Who| Opener {
        pid: who.pid,
        host: who.names.host.to_string(),
        user: who.names.user.to_string(),
        program: who.names.program.to_string(),
    };
    Ok(session.regions().openers(name)?.into_iter().map(opener).collect())
}
