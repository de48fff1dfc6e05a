//! The regions of a node, for those who look after them.

use crate::{Error, Result};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::region::RegionName;
use farmem_sys::process;
use std::time::Duration;

/// How long the node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

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
/// [`Error::Connect`], [`Error::Lost`]
pub fn regions(node: &str) -> Result<Vec<RegionInfo>> {
    let regions = session(node)?.regions()?;
    let info =
        |region: farmem_fabric::Region| RegionInfo { name: region.name.to_string(), bytes: region.slabs * SLAB_BYTES };
    Ok(regions.into_iter().map(info).collect())
}

/// Removes the region of this name from a node. Processes that have it open keep it; the memory is
/// free when the last of them has left. False: there is none.
///
/// # Errors
/// As [`regions`].
pub fn remove_region(node: &str, name: &str) -> Result<bool> {
    let name: RegionName = name.parse()?;
    Ok(session(node)?.remove_region(name)?)
}

fn session(node: &str) -> Result<Session> {
    let address: NodeAddr = node.parse()?;
    let mut run = [0; 16];
    process::random_bytes(&mut run).map_err(|e| Error::System(e.to_string()))?;
    let transport = Transport::Auto;
    let options = ConnectOptions {
        timeout: TIMEOUT,
        grace: TIMEOUT,
        run,
        pid: std::process::id(),
        transport,
        ..ConnectOptions::default()
    };
    Ok(Session::connect(&address, &options)?)
}
