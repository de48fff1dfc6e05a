//! A host that seals its pages, because a node of its rack may lie.
//!
//! A page that does not open is read once more from another copy, after the node that sent it was
//! given up: what the pager does. Where no copy opens, a real program ends; this one drops the page,
//! and the judge says whether a sound copy was there.

use super::{Host, Page};
use crate::Mistake;
use crate::judge::{Broken, Copies, Home, Judge, Verdict};
use farmem_pool::homes::State;
use farmem_pool::{Back, Doubt, MAX_NODES, Protect, Sealing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SlabId};
use farmem_protocol::random::Random;
use std::collections::BTreeSet;

/// Between looks whether a node is back.
const PAUSE_NS: u64 = 20_000_000;

/// A page of a node's memory: its slab's name there, and where the page lies in it.
pub type Spot = (SlabId, u64);

impl Host {
    /// From now on pages leave sealed. Before the first does.
    pub fn seal(&mut self, mistake: Option<Mistake>) {
        self.seals = true;
        if mistake != Some(Mistake::NotSealed) {
            self.pool.seals().begin(Sealing::Whole).expect("a CPU that seals, and addresses");
        }
    }

    /// Seals a page for its slot, where it lies.
    pub(super) fn seal_page(&self, slot: FarSlot, page: &mut [u64; PAGE_BYTES / 8]) {
        if self.seals && self.mistake != Some(Mistake::NotSealed) {
            let at = page.as_mut_ptr().cast::<u8>();
            // SAFETY: a page of this function's caller, which nothing else uses.
            let sealed = unsafe { self.pool.seals().seal(slot, at.cast_const(), at) };
            assert!(sealed, "a process that did not fork has a key");
        }
    }

    /// Opens the page that has landed, read from the slot. Where it does not open, gives up the node
    /// that sent it, and reads another copy. False: no copy opens.
    pub(super) fn open_page(&mut self, slot: FarSlot, mut from: Option<u32>) -> Result<bool, Broken> {
        if !self.seals || self.mistake == Some(Mistake::NotSealed) {
            return Ok(true);
        }
        loop {
            let at = self.landing.as_mut_ptr().cast::<u8>();
            // SAFETY: a page of ours. Nothing lands there now.
            let Err(altered) = (unsafe { self.pool.seals().open(slot, at.cast_const(), at) }) else { return Ok(true) };
            if self.mistake == Some(Mistake::OtherNotAsked) {
                return Ok(false);
            }
            match self.pool.seals().distrust(from, &altered) {
                Doubt::Again => {}
                Doubt::Wait if self.mistake == Some(Mistake::AwayNotAwaited) => return Ok(false),
                Doubt::Wait => {
                    self.wait_for_away();
                    continue;
                }
                Doubt::Lost => return Ok(false),
            }
            self.told += 1;
            let of = self.joined.iter().find(|(.., number)| Some(*number as u32) == from);
            self.distrusted.extend(of.map(|(node, life, _)| (*node, *life)));
            match self.land_awaited(slot)? {
                Some(sender) => from = sender,
                None => return Ok(false),
            }
        }
    }

    /// As [`Host::land`]. Waits for a node that was given up, while that may come back and no other one
    /// has the page.
    pub(super) fn land_awaited(&mut self, slot: FarSlot) -> Result<Option<Option<u32>>, Broken> {
        loop {
            let landed = self.land(slot)?;
            let waits = landed.is_none() && self.mistake != Some(Mistake::AwayNotAwaited);
            if !waits || !self.pool.seals().awaits(slot) {
                return Ok(landed);
            }
            self.wait_for_away();
        }
    }

    /// Lets time pass, as what the caller needs is at a node that was given up and may come back.
    fn wait_for_away(&mut self) {
        self.pool.losses().pause(PAUSE_NS);
        let _ = self.pool.losses().tend();
        self.take_back();
    }

    /// Takes nodes that were given up and are back into use again.
    pub(super) fn take_back(&mut self) {
        for Back { numbers: (old, new), .. } in self.pool.moves().take_back(&mut self.writes) {
            let was = self.joined.iter().find(|(.., number)| *number == old).copied();
            self.joined.retain(|(.., number)| *number != new);
            self.joined.extend(was.map(|(node, life, _)| (node, life, new)));
            self.returned += 1;
        }
    }

    /// The page of a slot has no copy that can be had: a program would end. The judge says whether
    /// that may be.
    pub(super) fn lose_page(&mut self, at: usize, judge: &mut Judge) -> Verdict {
        let Page { number, slot, .. } = self.pages[at];
        // A node may have been given up just now, because another one had its copies.
        judge.has_copies(self.number, self.copies());
        judge.copies_are_gone(self.number, self.group(slot.slab_index()), number)?;
        judge.dropped(self.number, number);
        self.lost_to_lies += 1;
        self.pages.swap_remove(at);
        self.pool.slots().free(&[slot]);
        Ok(())
    }

    /// Drops the pages of slabs that no node has any more. The judge says whether that may be.
    pub(super) fn lose_slabs(&mut self, judge: &mut Judge) -> Verdict {
        let gone = |slab: u32| {
            let homes = self.pool.repair().beside(slab).into_iter().map(|index| self.pool.homes(index));
            let has = homes.filter(|homes| homes.iter().flatten().any(|(_, state)| *state == State::Whole));
            self.pool.homes(slab).iter().all(Option::is_none) && has.count() < self.needs()
        };
        let lost: BTreeSet<u32> = self.slabs().into_iter().filter(|slab| gone(*slab)).collect();
        while let Some(at) = self.pages.iter().position(|page| lost.contains(&page.slot.slab_index())) {
            self.lose_page(at, judge)?;
        }
        Ok(())
    }

    /// Whether a slab's group has honest copies enough.
    pub(super) fn has_honest(&self, slab: u32, judge: &Judge) -> bool {
        judge.has_honest(self.number, self.group(slab))
    }

    /// Copies of one group of slabs that its pages can be had from, at least.
    pub(super) fn needs(&self) -> usize {
        if let Protect::Ec { data, .. } = self.protect { data as usize } else { 1 }
    }

    /// The number of a slab's group: of the first slab that goes with it.
    fn group(&self, slab: u32) -> u32 {
        self.pool.repair().beside(slab).into_iter().min().unwrap_or(slab)
    }

    /// The copies of all groups with live pages, as the host knows them.
    pub fn copies(&self) -> Vec<Copies> {
        let groups: BTreeSet<u32> = self.slabs().into_iter().map(|slab| self.group(slab)).collect();
        let of = |group: &u32| {
            let homes = |index: u32| self.pool.homes(index).into_iter().flatten();
            let seats = self.pool.repair().beside(*group).into_iter().enumerate();
            let mut copies = Copies { group: *group, needs: self.needs(), ..Copies::default() };
            for (seat, (number, state)) in seats.flat_map(|(seat, index)| homes(index).map(move |home| (seat, home))) {
                copies.seats.extend(self.place(number).map(|home| (home, seat)));
                match (self.place(number), state) {
                    (Some(home), State::Whole) => copies.whole.insert(home),
                    (Some(home), State::Behind) => copies.behind.insert(home),
                    (Some(home), _) => copies.filling.insert(home),
                    (None, _) => false,
                };
            }
            copies
        };
        groups.iter().map(of).collect()
    }

    /// A home by its node's number here: the node in the rack, and its incarnation. The file is none
    /// of them.
    fn place(&self, number: usize) -> Option<Home> {
        if number == MAX_NODES {
            return Some((usize::MAX, 0));
        }
        self.joined.iter().find(|(.., at)| *at == number).map(|(node, life, _)| (*node, *life))
    }

    /// Draws a page that a node holds for this host, its own or one with parity.
    pub fn spot_at(&self, node: usize, life: u64, random: &mut Random) -> Option<Spot> {
        let page = (!self.pages.is_empty()).then(|| self.pages[random.index(self.pages.len())])?;
        let beside = self.pool.repair().beside(page.slot.slab_index()).into_iter();
        let homes = beside.flat_map(|index| self.pool.names(index)).flatten();
        let there = homes.filter(|(number, _)| self.place(*number) == Some((node, life)));
        let slabs: Vec<SlabId> = there.map(|(_, slab)| slab).collect();
        (!slabs.is_empty()).then(|| (slabs[random.index(slabs.len())], page.slot.offset()))
    }

    /// The slabs that it has by its own account: the node in the rack, its incarnation, and the slab's
    /// name there.
    pub fn owns(&self) -> Vec<(Home, u64)> {
        let names = self.slabs().into_iter().flat_map(|slab| self.pool.repair().beside(slab));
        let mut all: BTreeSet<(Home, u64)> = BTreeSet::new();
        for (number, slab) in names.flat_map(|index| self.pool.names(index)).flatten() {
            all.extend(self.place(number).filter(|_| number != MAX_NODES).map(|home| (home, slab.0)));
        }
        all.into_iter().collect()
    }

    /// The runs by which nodes know the process: its parent's by what it has inherited, its own by the
    /// nodes that it has joined itself.
    pub fn runs(&self) -> [[u8; 16]; 2] {
        [self.family, self.number].map(|number| super::options(number).run)
    }
}
