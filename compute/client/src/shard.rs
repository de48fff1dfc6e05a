//! One node of a memory: the session there, and the slabs.

use crate::{Addr, Result};
use farmem_fabric::Session;
use farmem_protocol::addr::SlabId;
use farmem_protocol::region::RegionName;
use farmem_sys::sync::Lock;
use std::sync::atomic::AtomicBool;

/// Slabs that a memory can have at one node, as many as addresses can name.
pub(crate) const MAX_SLABS: usize = (1 << 16) - 1;

pub(crate) struct Shard {
    /// `None` only while it is dropped.
    session: Option<Session>,
    region: Option<RegionName>,
    /// By their numbers less one. They are added, and never taken away.
    slabs: Lock<Vec<SlabId>>,
    /// It has refused a function near memory: it does none.
    pub refuses: AtomicBool,
    /// Pieces for lists of functions near memory, which nothing uses now.
    pub scratch: Lock<Vec<Addr>>,
}

impl Shard {
    pub fn new(session: Session, region: Option<RegionName>) -> Shard {
        Shard {
            session: Some(session),
            region,
            slabs: Lock::new(Vec::new()),
            refuses: AtomicBool::new(false),
            scratch: Lock::new(Vec::new()),
        }
    }

    pub fn session(&self) -> &Session {
        match &self.session {
            Some(session) => session,
            None => unreachable!("a shard that is being dropped"),
        }
    }

    /// Those that are known here.
    pub fn known(&self) -> Vec<SlabId> {
        self.slabs.lock().clone()
    }

    /// Those that are there, with what other processes have added to the region, up to this many.
    pub fn up_to(&self, count: usize) -> Result<Vec<SlabId>> {
        let mut slabs = self.slabs.lock();
        if let Some(name) = self.region {
            while slabs.len() < count.min(MAX_SLABS)
                && let Some(slab) = self.session().regions().slab(name, slabs.len() as u64)?
            {
                slabs.push(slab.id);
            }
        }
        Ok(slabs.clone())
    }

    /// One more slab, zero or of other processes' making. `count`: as many as the caller knew.
    /// Returns all.
    pub fn grow(&self, count: usize) -> Result<Vec<SlabId>> {
        let mut slabs = self.slabs.lock();
        if slabs.len() > count || slabs.len() >= MAX_SLABS {
            return Ok(slabs.clone());
        }
        let slab = match self.region {
            Some(name) => self.session().regions().grow(name, slabs.len() as u64)?,
            None => self.session().grant()?,
        };
        slabs.push(slab.id);
        Ok(slabs.clone())
    }

    /// In a forked child: closes the descriptors and says nothing.
    pub fn forget_in_child(&mut self) {
        if let Some(session) = self.session.take() {
            session.forget_in_child();
        }
    }
}
