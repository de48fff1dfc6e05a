//! The tables of a pool that are read without a lock, and what follows from them alone.

use crate::homes::{HOMES, Homes, State, Word};
use crate::nodes::{Node, Nodes};
use crate::protect::disk::DISK;
use crate::protect::reserve::Heat;
use crate::protect::{Disk, Protection};
use crate::seal::Sealed;
use crate::slab::SlabSlots;
use crate::slips::Slips;
use farmem_fabric::Lost;
use farmem_protocol::addr::{FarSlot, SLOTS_PER_SLAB};
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

    /// A slab's home at a node, which is given up, misses what is written from now on. One that is not
    /// whole, or that the slab cannot do without, is no home any more.
    pub(crate) fn falls_behind(&self, index: u32, node: usize) {
        let behind = self.homes.update(index, |word| {
            let at = |nth: usize| word.state(nth) == State::Whole && self.homes.home(word, nth).node as usize == node;
            let nth = (0..HOMES).find(|&nth| at(nth) && word.state(1 - nth) == State::Whole)?;
            Some(word.with_state(nth, State::Behind))
        });
        if behind.is_none() {
            self.forsake(index, node);
        }
    }

    /// The home of a slab's earlier word that was behind is no home any more, and goes back to its node if
    /// that comes back.
    pub(crate) fn give_up_behind(&self, seen: Word) {
        for nth in (0..HOMES).filter(|&nth| seen.misses(nth)) {
            let home = self.homes.home(seen, nth);
            let node = &self.nodes.all()[home.node as usize];
            node.held.fetch_sub(1, Ordering::Relaxed);
            node.owe(home.slab);
        }
    }

    /// A slot's new bytes have not reached a node, which this lane can reach no more. A home that is
    /// behind lacks them; another one is no home any more.
    #[cold]
    pub(crate) fn unreached(&self, slot: FarSlot, node: usize) {
        let word = self.homes.word(slot.slab_index());
        let at = |nth: &usize| word.misses(*nth) && self.homes.home(word, *nth).node as usize == node;
        match (0..HOMES).find(at) {
            Some(nth) => drop(self.homes.set_stale(word, nth, slot.place(), true)),
            None => self.forsake(slot.slab_index(), node),
        }
    }

    /// Whether a home that is behind, and may come back, has a slot's bytes.
    pub(crate) fn awaits(&self, word: Word, place: u32) -> bool {
        (0..HOMES).any(|nth| word.misses(nth) && !self.homes.is_stale(word, nth, place))
    }

    /// Whether all that is left of a slab is at a home that is behind, and that has each of its live slots.
    pub(crate) fn awaits_all(&self, word: Word, slab: &SlabSlots) -> bool {
        let lost = |nth: usize| self.lacks_live(word, nth, slab);
        (0..HOMES).any(|nth| word.misses(nth) && !lost(nth))
    }

    /// Whether a home lacks a slot that is taken.
    pub(crate) fn lacks_live(&self, word: Word, nth: usize, slab: &SlabSlots) -> bool {
        self.stale_places(word, nth).any(|place| slab.sharers > 0 || slab.has_taken(place))
    }

    /// A home that no other can fill lacks nothing of slots that nobody has: their first write is of the
    /// whole page. No slot is taken meanwhile.
    pub(crate) fn forgive(&self, word: Word, nth: usize, slab: &SlabSlots) {
        let is_free = |place: &u32| slab.sharers == 0 && !slab.has_taken(*place);
        for place in self.stale_places(word, nth).filter(is_free) {
            self.homes.set_stale(word, nth, place, false);
        }
    }

    fn stale_places(&self, word: Word, nth: usize) -> impl Iterator<Item = u32> {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let found = self.homes.next_stale(word, nth, from?)?;
            from = (found + 1 < SLOTS_PER_SLAB).then_some(found + 1);
            Some(found)
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
            // Where a home that is behind is all that is left, pages that change take other slots.
            let waits = !gone.is_striped() && gone.homes() == 0 && (0..HOMES).any(|home| gone.misses(home));
            (gone != word).then(|| if waits { gone.with_leaving(true) } else { gone })
        });
        if let Some((word, _)) = gone.filter(|_| node != DISK as usize) {
            let at = &self.nodes.all()[node];
            at.held.fetch_sub(1, Ordering::Relaxed);
            (0..HOMES).filter(|&home| there(word, home)).for_each(|home| {
                at.owe(self.homes.home(word, home).slab);
            });
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

    /// A page that its node has is not on the disk from now on. False, and nothing is changed, where no
    /// node has the slab any more: the page is to be written.
    ///
    /// The slot's bit is set before the disk is filling: a word that names a node as whole and the disk
    /// as filling names the bit, too, whatever becomes of the node then.
    #[must_use]
    pub(crate) fn disk_misses(&self, slot: FarSlot) -> bool {
        let index = slot.slab_index();
        let on_disk =
            |word: Word| (0..HOMES).find(|&nth| word.takes_pages(nth) && self.homes.home(word, nth).node == DISK);
        loop {
            let seen = self.homes.word(index);
            // The disk has failed, and is no home any more.
            let Some(nth) = on_disk(seen) else { return true };
            if !self.has_node(seen) {
                return false;
            }
            let is_news = self.homes.set_stale(seen, nth, slot.place(), true);
            let filling = seen.with_state(nth, State::Filling);
            if self.homes.update(index, |word| (word == seen).then_some(filling)).is_some() {
                return true;
            }
            if is_news {
                self.homes.set_stale(seen, nth, slot.place(), false);
            }
        }
    }
}
