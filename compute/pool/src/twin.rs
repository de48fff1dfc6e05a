//! A fork inside one process: the child is a copy of the pool. The rack in virtual time uses it.
//!
//! A real fork copies the tables by itself; this copies them by hand. The rest is the production's:
//! [`Pool::fork_prepare`], the tickets, and how each side learns that the other is gone. Not for
//! pools with a file, with sealed pages, with mapped slabs, or that share slabs already.

use crate::fork::ForkShare;
use crate::protect::Protection;
use crate::{Changing, Pool, Slabs};
use farmem_fabric::Lost;
use farmem_sys::descriptors;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

impl Pool {
    /// Forks. The child has sessions of its own, and shares all slabs with its parent.
    ///
    /// # Errors
    /// A node is lost, and a page with it.
    pub fn fork_in_place(&self) -> Result<&'static Pool, Lost> {
        let share = self.fork_prepare()?;
        let twin = self.twin().map_err(|e| Lost { node: "this process".to_owned(), reason: e.to_string() })?;
        let child: &'static Pool = Box::leak(Box::new(twin));
        if let Some((_, how)) = self.protection.pool.get() {
            let _ = child.protection.pool.set((child, *how));
        }
        let (of_parent, of_child) = share.in_two();
        self.fork_parent(of_parent, true);
        child.fork_child_in_place(of_child)?;
        Ok(child)
    }

    /// The process ends, as by kill -9: its sessions close, and the other side of a fork learns it.
    pub fn end_in_place(&self) {
        self.nodes.all().iter().filter(|node| node.is_there()).for_each(|node| node.session().leave());
        self.slabs.lock().shares.drain(..).for_each(|share| descriptors::close(share.fd));
    }

    /// Whether a fork shares slabs of it.
    pub fn shares(&self) -> bool {
        !self.slabs.lock().shares.is_empty()
    }

    fn twin(&self) -> Result<Pool, Errno> {
        let of = |count: &AtomicU64| AtomicU64::new(count.load(Ordering::Relaxed));
        let slabs = self.slabs.lock();
        assert!(slabs.shares.is_empty() && self.disk().is_none() && !self.seals(), "see the module");
        let protection = Protection::default();
        if let Some(stripes) = self.stripes() {
            let _ = protection.stripes.set(stripes.twin(slabs.list.len())?);
        }
        Ok(Pool {
            nodes: self.nodes.twin(),
            extents: self.extents.twin(slabs.list.len())?,
            changing: Lock::new(Changing::default()),
            untold: AtomicU64::new(0),
            slabs: Lock::new(Slabs {
                list: slabs.list.clone(),
                serial: slabs.serial,
                cursor: slabs.cursor,
                returning: slabs.returning,
                shares: Vec::new(),
                dropped: slabs.dropped.clone(),
                drops: slabs.drops,
            }),
            capacity: of(&self.capacity),
            used: of(&self.used),
            drawn: of(&self.drawn),
            simulated: self.simulated,
            protection,
            sealed: Default::default(),
            slip: Default::default(),
        })
    }
}

impl ForkShare {
    /// The parent's part and the child's.
    fn in_two(self) -> (ForkShare, ForkShare) {
        let ForkShare { tickets, parent_fd, child_fd } = self;
        (ForkShare { tickets: Vec::new(), parent_fd, child_fd: -1 }, ForkShare { tickets, parent_fd: -1, child_fd })
    }
}
