//! A node's descriptions of the swap volumes that it holds.

use super::Session;
use crate::Lost;
use farmem_protocol::wire::{Ask, Reply, VolumeInfo};

impl Session {
    /// The swap volume at a place in the node's order of them. `None`: the place is beyond the
    /// last.
    pub fn volume(&self, place: u64) -> Result<Option<VolumeInfo>, Lost> {
        match self.member.ask(Ask::VolumeAt(place))?.0 {
            Ok(Reply::Volume(volume)) => Ok(Some(volume)),
            _ => Ok(None),
        }
    }
}
