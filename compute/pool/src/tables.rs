//! The tables of a pool that are read without a lock, and what follows from them alone.

use crate::homes::{HOMES, Homes, State, Word};
use crate::nodes::{Node, Nodes};
use crate::protect::disk::DISK;
use crate::protect::reserve::Heat;
use crate::protect::{Disk, Protection};
use crate::seal::Sealed;
use crate::slips::Slips;
use farmem_fabric::Lost;
use farmem_protocol::addr::FarSlot;
use farmem_sys::raw::Errno;
use std::sync::atomic::Ordering;

/// The tables that all parts of a pool read.
pub(crate) struct Tables {
    pub nodes: Nodes,
    /// Which homes each slab has.
    pub homes: Homes,
    /// How slabs outlive a node.
    pub protection: Protection,
    /// Keys and marks of sealed pages.
    pub sealed: Sealed,
    pub slips: Slips,
    /// How much each slab is used.
    pub heat: Heat,
}

impl Tables {
    pub fn new(nodes: Nodes) -> Result<Tables, Errno> {
        Ok(Tables {
            nodes,
            homes: Homes::new()?,
            protection: Protection::default(),
            sealed: Sealed::default(),
            slips: Slips::default(),
            heat: Heat::new()?,
        })
    }

    /// The homes of a slab, each by its node, as they are now.
    pub fn homes_of(&self, index: u32) -> [Option<(usize, State)>; HOMES] {
        let word = self.homes.word(index);
        std::array::from_fn(|home| {
            let there = word.number() != 0 && word.state(home) != State::Absent;
            there.then(|| (self.homes.home(word, home).node as usize, word.state(home)))
        })
    }

    /// A slab has no home at a node any more.
    pub(crate) fn forsake(&self, index: u32, node: usize) {
        let there = |word: Word, home: usize| {
            word.state(home) != State::Absent && self.homes.home(word, home).node as usize == node
        };
        let gone = self.homes.update(index, |word| {
            let homes = (0..HOMES).filter(|&home| there(word, home));
            let gone = homes.fold(word, |word, home| word.with_state(home, State::Absent));
            (gone != word).then_some(gone)
        });
        if gone.is_some() && node != DISK as usize {
            self.nodes.all()[node].held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Why the homes that a word's record names are of no use.
    pub(crate) fn why_lost(&self, word: Word) -> Lost {
        let at = (0..HOMES).map(|home| self.homes.home(word, home).node);
        // A disk that has failed is told before: the loss of the node is why the page is gone.
        let sessions = || at.clone().filter_map(|node| self.nodes.all().get(node as usize)).map(Node::session);
        let unsaid = || {
            let node = sessions().next().map_or_else(String::new, |session| session.node().to_owned());
            Lost { node, reason: "it has not kept a page that it was given".to_owned() }
        };
        let disk = || self.protection.disk().filter(|disk| !disk.is_in()).map(Disk::lost);
        sessions().find_map(|session| session.standing().loss()).or_else(disk).unwrap_or_else(unsaid)
    }

    /// Whether a node has all of a slab.
    pub(crate) fn has_node(&self, word: Word) -> bool {
        (0..HOMES).any(|nth| word.state(nth) == State::Whole && self.homes.home(word, nth).node != DISK)
    }

    /// A page that its node has is not on the disk. False where no node has the slab any more.
    pub(crate) fn disk_misses(&self, slot: FarSlot) -> bool {
        let index = slot.slab_index();
        let on_disk =
            |word: Word| (0..HOMES).find(|&nth| word.takes_pages(nth) && self.homes.home(word, nth).node == DISK);
        let filling = |word: Word| match on_disk(word) {
            Some(nth) if self.has_node(word) => Some(word.with_state(nth, State::Filling)),
            _ => None,
        };
        let Some((_, word)) = self.homes.update(index, filling) else {
            return on_disk(self.homes.word(index)).is_none();
        };
        if let Some(nth) = on_disk(word) {
            self.homes.set_stale(word, nth, slot.place(), true);
        }
        true
    }
}
