//! How a forked child becomes a member of its own.
//!
//! Before the fork the parent asks the node for a *ticket*: a second member that
//! holds every slab the parent holds, and a connection on which that member is
//! already present. The connection's descriptor is what crosses the fork, so the
//! child shakes no hands and nothing can expire. Afterwards exactly one of three
//! things happens to the ticket in each process:
//!
//! ```text
//! child    Session::from_ticket   the connection is its control connection
//! parent   handed_over            closes its copy; the child's keeps the member present
//! parent   abandon                there is no child: the member leaves
//! ```

// Taking over inherited mappings.
#![allow(unsafe_code)]

use crate::link::Link;
use crate::session::Membership;
use crate::{ConnectError, Lost, Session};
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::{Ask, Reply, Secret};
use farmem_sys::mapping::Mapping;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// A membership for a child that is about to be forked.
pub struct ForkTicket {
    parent: Arc<Membership>,
    secret: Secret,
    owner: u16,
    link: Link,
    /// Where the parent has its slabs mapped, and the child therefore too.
    slabs: Vec<(SlabId, (NonNull<u8>, usize))>,
}

// SAFETY: the pointers name mappings; nothing is done with them but in the child.
unsafe impl Send for ForkTicket {}

impl Session {
    /// Before a fork: a membership for the child, holding what this member holds at this moment.
    pub fn fork_ticket(&self) -> Result<ForkTicket, Lost> {
        let (answer, passed) = self.member.ask(Ask::Ticket)?;
        let Ok(Reply::Child(secret)) = answer else {
            return Err(self.member.give_up("it takes no more programs, and so no forked child".into()));
        };
        let slabs = self.member.slabs.extents();
        // A node on this machine passes the connection: its socket's file may be out of reach by
        // now.
        let (link, owner) = match passed.and_then(|passed| self.member.present(passed, secret)) {
            Some(present) => present,
            None => self.member.restore_as(secret)?,
        };
        Ok(ForkTicket { parent: Arc::clone(&self.member), secret, owner, link, slabs })
    }

    /// In the child.
    pub fn from_ticket(ticket: ForkTicket) -> Result<Session, ConnectError> {
        let ForkTicket { parent, secret, owner, link, slabs } = ticket;
        let mut mappings = BTreeMap::new();
        for (id, extent) in slabs {
            // SAFETY: the fork copied the parent's mapping to the same address, and the parent's
            // session in this process, which named it too, is forgotten without unmapping
            // (`Session::forget_in_child`).
            mappings.insert(id, unsafe { Mapping::inherited(extent) });
        }
        let member = Arc::new(parent.of_child(secret, owner, link, mappings));
        // The parent's count of references means nothing here, and must not reach zero.
        std::mem::forget(parent);
        Ok(Session { member })
    }
}

impl ForkTicket {
    /// In the parent, after a fork.
    pub fn handed_over(self) {}

    /// In the parent: the fork failed.
    pub fn abandon(self) {
        let ForkTicket { parent, secret, owner, link, .. } = self;
        // Says goodbye for the child that never was, as its session would.
        drop(Session { member: Arc::new(parent.of_child(secret, owner, link, BTreeMap::new())) });
    }
}
