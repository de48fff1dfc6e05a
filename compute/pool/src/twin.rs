//! A fork inside one process: the child is a copy of the pool. The rack in virtual time uses it.
//!
//! A real fork copies the tables by itself; this copies them by hand. The rest is the production's:
//! [`crate::Forks::prepare`], the tickets, and how each side learns that the other is gone. Not for
//! pools with a file, with sealed pages, with mapped slabs, or that share slabs already.

use crate::Pool;
use crate::fork::ForkShare;
use crate::held::{Held, Slabs};
use crate::losses::Changes;
use crate::protect::Protection;
use crate::protect::reserve::Heat;
use crate::tables::Tables;
use farmem_fabric::Lost;
use farmem_sys::descriptors;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl Pool {
    /// Forks. The child has sessions of its own, and shares all slabs with its parent.
    ///
    /// # Errors
    /// A node is lost, and a page with it.
    pub fn fork_in_place(&self) -> Result<&'static Pool, Lost> {
        let share = self.forks().prepare()?;
        let twin = self.twin().map_err(|e| Lost { node: "this process".to_owned(), reason: e.to_string() })?;
        let child: &'static Pool = Box::leak(Box::new(twin));
        if let Some((_, how)) = self.tables.protection.pool.get() {
            let _ = child.tables.protection.pool.set((child, *how));
        }
        let (of_parent, of_child) = share.in_two();
        self.forks().parent(of_parent, true);
        child.forks().child_in_place(of_child)?;
        Ok(child)
    }

    /// The process ends, as by kill -9: its sessions close, and the other side of a fork learns it.
    pub fn end_in_place(&self) {
        self.tables
            .nodes
            .all()
            .iter()
            .filter(|node| node.is_there())
            .for_each(|node| node.session().standing().leave());
        self.held.slabs.lock().shares.drain(..).for_each(|share| descriptors::close(share.fd));
    }

    /// Whether a fork shares slabs of it.
    pub fn shares(&self) -> bool {
        !self.held.slabs.lock().shares.is_empty()
    }

    fn twin(&self) -> Result<Pool, Errno> {
        let of = |count: &AtomicU64| AtomicU64::new(count.load(Ordering::Relaxed));
        let slabs = self.held.slabs.lock();
        let Tables { nodes, homes, protection, sealed, .. } = &self.tables;
        assert!(slabs.shares.is_empty() && protection.disk().is_none() && !sealed.is_on(), "see the module");
        let childs = Protection::default();
        if let Some(stripes) = protection.stripes() {
            let _ = childs.stripes.set(stripes.twin(slabs.list.len())?);
        }
        let list = Slabs {
            list: slabs.list.clone(),
            serial: slabs.serial,
            cursor: slabs.cursor,
            returning: slabs.returning,
            shares: Vec::new(),
            places: Vec::new(),
            dropped: slabs.dropped.clone(),
            drops: slabs.drops,
        };
        Ok(Pool {
            tables: Tables {
                nodes: nodes.twin(),
                homes: homes.twin(slabs.list.len())?,
                protection: childs,
                sealed: Default::default(),
                slips: Default::default(),
                heat: Heat::new()?,
            },
            held: Held {
                slabs: Lock::new(list),
                capacity: of(&self.held.capacity),
                used: of(&self.held.used),
                marked: AtomicBool::new(self.held.marked.load(Ordering::Relaxed)),
            },
            changes: Changes::new(),
        })
    }
}

impl ForkShare {
    /// The parent's part and the child's.
    fn in_two(self) -> (ForkShare, ForkShare) {
        let ForkShare { tickets, parent_fd, child_fd, disk } = self;
        let parent = ForkShare { tickets: Vec::new(), parent_fd, child_fd: -1, disk };
        // One process has one disk.
        (parent, ForkShare { tickets, parent_fd: -1, child_fd, disk: None })
    }
}
