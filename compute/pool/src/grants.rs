//! Slabs of nodes: which node is asked for the next one, and what happens to a slab that it grants.
//!
//! No lock of the pool is held while a node is asked. So a node can be lost, or taken out, between
//! its answer and the moment at which the slab becomes one of this process's. Then the slab goes
//! back, and others are asked.

use crate::held::Held;
use crate::homes::{HOMES, Home, MAX_SLABS, State, Word};
use crate::losses::{Changes, Losses};
use crate::nodes::Standing;
use crate::protect::disk::DISK;
use crate::slab::{SlabSlots, each_of};
use crate::tables::Tables;
use crate::{BLOCK_BYTES, NoRoom};
use farmem_fabric::GrantError;
use farmem_protocol::addr::SLAB_BYTES;
use std::sync::atomic::Ordering;

/// Slabs that nodes grant.
#[derive(Clone, Copy)]
pub(crate) struct Grants<'a> {
    pub tables: &'a Tables,
    pub held: &'a Held,
    pub changes: &'a Changes,
    pub losses: Losses<'a>,
}

impl Grants<'_> {
    /// One more slab.
    pub fn grow(self) -> Result<(), NoRoom> {
        if let Some(shape) = self.tables.protection.shape() {
            return self.grow_group(shape);
        }
        let homes = match self.granted(&[]) {
            Ok(first) => [first, self.second_for(first)?],
            // The disk is no room of its own but while there is no node.
            Err(_) if self.tables.protection.disk_in().is_some() && self.tables.nodes.without().is_some() => {
                [Home::NONE, self.tables.protection.place_on_disk(0)?]
            }
            Err(why) => return Err(why),
        };
        self.adopt(homes)
    }

    /// A slab that a node grants. `beside`: nodes that have the slab's other homes; it comes from
    /// another failure domain than theirs if one grants. No lock is held while nodes are asked.
    pub fn granted(self, beside: &[u32]) -> Result<Home, NoRoom> {
        let mut asked = Vec::new();
        self.tables.nodes.to_ask(beside, &mut asked);
        self.first_grant(&asked)
    }

    /// A slab of the first of these nodes that grants one.
    pub fn first_grant(self, asked: &[usize]) -> Result<Home, NoRoom> {
        let mut refusal = None;
        for &node in asked {
            match self.tables.nodes.all()[node].session().grant() {
                Ok(slab) => {
                    let base = slab.base.map_or(0, |at| at.as_ptr() as usize);
                    return Ok(Home { node: node as u32, slab: slab.id, base });
                }
                Err(GrantError::Lost(lost)) => {
                    self.losses.lose(node, &lost);
                    self.losses.anything_lost()?;
                    refusal = Some(lost.to_string());
                }
                Err(other) => refusal = Some(other.to_string()),
            }
        }
        let none = || match self.tables.nodes.without() {
            Some(lost) => format!("{lost}; no other node is left to take more pages"),
            None => "no node is left to take more pages".to_owned(),
        };
        Err(NoRoom::Exhausted(refusal.unwrap_or_else(none)))
    }

    /// Has the node of a slab's new home allocate memory for what is copied there, if this process maps
    /// it: the process would be charged for what it touches first. The home goes back if the node cannot.
    pub fn backed(self, index: u32, home: Home) -> Result<Home, NoRoom> {
        let node = self.tables.nodes.all().get(home.node as usize).filter(|_| home.base != 0);
        let Some(node) = node else { return Ok(home) };
        let warm = self.held.slabs.lock().list.get(index as usize).and_then(Option::as_ref).map_or(0, SlabSlots::warm);
        for block in each_of(warm) {
            match node.session().back(home.slab, u64::from(block) * BLOCK_BYTES, BLOCK_BYTES) {
                Ok(()) => {}
                Err(GrantError::Lost(lost)) => {
                    self.losses.lose(home.node as usize, &lost);
                    self.losses.anything_lost()?;
                    return Err(NoRoom::Exhausted(lost.to_string()));
                }
                Err(other) => {
                    self.decline(home);
                    return Err(NoRoom::Exhausted(other.to_string()));
                }
            }
        }
        Ok(home)
    }

    /// Makes a slab that was granted, with all its homes, one of ours.
    pub fn adopt(self, homes: [Home; HOMES]) -> Result<(), NoRoom> {
        let changing = self.changes.now.lock();
        let nodes = self.tables.nodes.all();
        let there = || (0..HOMES).filter(|&nth| homes[nth] != Home::NONE);
        // Lost or taken out since they answered: to be asked again, of others.
        let is_in = there().all(|nth| match homes[nth].node {
            DISK => self.tables.protection.disk_in().is_some(),
            node => nodes[node as usize].standing() == Standing::In,
        });
        let mut slabs = self.held.slabs.lock();
        let hole = slabs.list.iter().position(Option::is_none);
        let index = hole.or_else(|| (slabs.list.len() < MAX_SLABS).then_some(slabs.list.len())).filter(|_| is_in);
        let record = index.and_then(|_| self.tables.homes.record(homes));
        let (Some(index), Some(record)) = (index, record) else {
            drop(slabs);
            drop(changing);
            there().for_each(|nth| self.decline(homes[nth]));
            return match is_in {
                false => Ok(()),
                true => Err(too_many_slabs()),
            };
        };
        slabs.serial += 1;
        let slab = SlabSlots::new(slabs.serial);
        slabs.put(index, slab);
        there().filter(|&nth| homes[nth].node != DISK).for_each(|nth| {
            nodes[homes[nth].node as usize].held.fetch_add(1, Ordering::Relaxed);
        });
        let none = Word::of(record).with_state(0, State::Absent);
        let word = there().fold(none, |word, nth| word.with_state(nth, State::Whole));
        self.tables.homes.publish(index as u32, word);
        self.held.capacity.fetch_add(SLAB_BYTES, Ordering::Relaxed);
        Ok(())
    }

    /// Gives a slab that was granted, and is nobody's yet, back to its node.
    pub fn decline(self, home: Home) {
        match self.tables.nodes.all().get(home.node as usize) {
            Some(node) => drop(node.session().release(home.slab)),
            None => self.tables.protection.disk().into_iter().for_each(|disk| disk.give_up(home.slab)),
        }
    }

    /// Gives homes back to their nodes. A node that is lost needs not be told.
    pub fn release(self, homes: [Home; HOMES]) {
        for home in homes.into_iter().filter(|home| *home != Home::NONE) {
            let number = home.node as usize;
            let Some(node) = self.tables.nodes.all().get(number) else {
                self.decline(home);
                continue;
            };
            if node.owe(home.slab) {
                node.held.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let released = node.session().release(home.slab);
            node.held.fetch_sub(1, Ordering::Relaxed);
            if let Err(lost) = released {
                self.losses.lose(number, &lost);
            }
        }
    }
}

/// The table of slabs is full.
pub(crate) fn too_many_slabs() -> NoRoom {
    NoRoom::Exhausted(format!("this process holds {MAX_SLABS} slabs of 64 MiB, which is the limit"))
}
