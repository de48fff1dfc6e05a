//! Slabs that the node has granted to a member, and their mappings.

use super::{Membership, Slab};
use crate::link::Passed;
use crate::{GrantError, Lost};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Ask, Refused, Reply, Status};
use farmem_sys::descriptors;
use farmem_sys::mapping::Mapping;
use farmem_sys::raw::Errno;

impl Membership {
    /// The slab that an answer grants, mapped if slabs are mapped here.
    pub fn granted(&self, answer: Result<Reply, Refused>, passed: Option<Passed>) -> Result<Slab, GrantError> {
        let node = || self.node.clone();
        let system = |reason| GrantError::System { node: node(), reason };
        let id = match answer {
            Ok(Reply::Slab(id)) => id,
            Err(refused) if refused.status == Status::Exhausted => {
                return Err(GrantError::Exhausted { node: node(), lend_mib: refused.value >> 20 });
            }
            Err(refused) if refused.status == Status::Quota => {
                return Err(GrantError::Quota { node: node(), quota_mib: refused.value >> 20, of_tenant: false });
            }
            Err(refused) if refused.status == Status::TenantQuota => {
                return Err(GrantError::Quota { node: node(), quota_mib: refused.value >> 20, of_tenant: true });
            }
            Err(refused) if refused.status == Status::System => {
                return Err(system(format!("there: {}", Errno(refused.value as i32))));
            }
            _ => {
                let reason = "it no longer knows this program".to_owned();
                return Err(self.give_up(reason).into());
            }
        };
        if !self.mapped {
            return Ok(Slab { id, base: None });
        }
        let mapping = match passed {
            Some(passed) => {
                let fd = passed.into_raw();
                let mapping = Mapping::new(fd, SLAB_BYTES as usize);
                descriptors::close(fd);
                mapping
            }
            // The node passed one; this process had no room for it.
            None => Err(Errno(libc::EMFILE)),
        };
        match mapping {
            Ok(mapping) => {
                let base = mapping.extent().0;
                self.slabs.insert(id, mapping);
                Ok(Slab { id, base: Some(base) })
            }
            Err(e) => {
                self.release(id)?;
                Err(system(format!("here: {e}")))
            }
        }
    }

    /// This member no longer needs the slab. It is unmapped; no queue pair may use it any more.
    pub fn release(&self, id: SlabId) -> Result<(), Lost> {
        self.slabs.remove(id);
        self.card.forget_key(id);
        self.ask(Ask::Release(id)).map(|_| ())
    }
}
