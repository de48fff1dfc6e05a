//! A node whose machine needs its memory asks for slabs back: those that are used least move to
//! other nodes.
//!
//! ```text
//!  each second: how many slabs does the node want? ─► that many are marked, the coldest first
//!  marked, one home   ─► add_home ─► fill ─► drop_home of the marked one
//!  marked, two copies ─► a place at another node ─► move_home of the marked one ─► fill
//! ```
//!
//! A slab that moves takes new pages and is overwritten as before, so the program is refused
//! nothing. A mark on a slab whose move has not begun is renewed at each question, and forgotten if
//! no other node has room.
//!
//! *Heat* counts the reads and writes of a slab at its nodes. It loses an eighth a second. Threads
//! may overwrite each other's counts, because it only puts slabs in an order.

use super::domains::Place;
use crate::homes::{HOMES, MAX_SLABS, State, Word};
use crate::nodes::{Node, Standing};
use crate::slab::SlabSlots;
use crate::tables::Tables;
use crate::{Moves, NoRoom, Protect};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A part of the heat that is lost each second: one in this many.
const COOLS: u32 = 8;
/// Slabs that one node may have moved within [`MINUTE`] questions, at least. Else half of those that
/// it has: two nodes that want slabs and grant some by turns do not have them move without end.
const LEAST_MOVES: u32 = 8;
/// Questions in which a node may have so many slabs moved: about a minute's.
const MINUTE: u32 = 60;
/// Questions for which a slab is left alone that could go nowhere.
const STAYS: u8 = 4;

/// How much each slab is used, by its index.
pub(crate) struct Heat {
    counts: SparseArray<AtomicU32>,
    /// Some node may ask for slabs. Until then nothing is counted.
    is_on: AtomicBool,
}

impl Heat {
    pub fn new() -> Result<Heat, Errno> {
        Ok(Heat { counts: SparseArray::new(MAX_SLABS)?, is_on: AtomicBool::new(false) })
    }

    /// A slab is read or written at a node.
    #[inline]
    pub fn touch(&self, index: u32) {
        if self.is_on.load(Ordering::Relaxed) {
            let heat = &self.counts[index as usize];
            heat.store(heat.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        }
    }

    fn of(&self, index: u32) -> u32 {
        self.counts[index as usize].load(Ordering::Relaxed)
    }

    fn cool(&self, slabs: usize) {
        self.is_on.store(true, Ordering::Relaxed);
        for heat in (0..slabs).map(|index| &self.counts[index]) {
            let now = heat.load(Ordering::Relaxed);
            if now > 0 {
                heat.store(now - now.div_ceil(COOLS), Ordering::Relaxed);
            }
        }
    }
}

impl Tables {
    /// The home that a slab is marked to leave, if it is whole there and the node is still in.
    pub(crate) fn wanted_home(&self, slab: &SlabSlots, word: Word) -> Option<usize> {
        let (number, life) = slab.wanted_by?;
        let node = self.nodes.all().get(number as usize)?;
        let is_in = node.life() == life && node.standing() == Standing::In;
        (0..HOMES).find(|&nth| is_in && word.state(nth) == State::Whole && self.homes.home(word, nth).node == number)
    }

    /// Whether a slab of which one home is dropped lacks a copy, if the other one is this.
    pub(crate) fn needs_two(&self, word: Word, stays: usize) -> bool {
        let copies = matches!(self.protection.how(), Protect::Mirror | Protect::Disk);
        copies && !word.is_striped() && self.homes.home(word, stays).base == 0
    }

    /// Whether a marked slab is on its way: its other home is there, or is being filled.
    fn is_on_its_way(&self, word: Word) -> bool {
        let whole = (0..HOMES).all(|nth| word.state(nth) == State::Whole);
        word.homes() == HOMES && (!whole || (0..HOMES).all(|nth| !self.needs_two(word, nth)))
    }

    /// Whether a slab can leave a node: it is whole there, and has all the copies that it should.
    fn can_leave(&self, word: Word, node: u32) -> bool {
        let at = |nth: usize| word.state(nth) == State::Whole && self.homes.home(word, nth).node == node;
        // A group's seats stay: a new place would have to be of a kind that stripes can be written to.
        !word.is_striped()
            && (0..HOMES).find(|&nth| at(nth)).is_some_and(|nth| match word.homes() {
                1 => !self.needs_two(word, nth),
                _ => word.state(1 - nth) == State::Whole,
            })
    }
}

impl Moves<'_> {
    /// Asks the nodes that may need their memory how many slabs they want back, and marks as many.
    /// [`crate::Repair::lacks`] then says [`crate::Lacks::Room`]. Waits for a node for 20 ms at most,
    /// and takes a late answer a call later. Call it once a second, from one thread.
    pub fn ask_back(self) {
        let asks = |node: &Node| node.standing() == Standing::In && node.session().records().may_ask_back();
        let nodes = self.tables.nodes.all();
        if !nodes.iter().any(asks) {
            return;
        }
        let slabs = self.held.slabs.lock().list.len();
        self.tables.heat.cool(slabs);
        for (number, node) in nodes.iter().enumerate().filter(|(_, node)| asks(node)) {
            let life = node.life();
            if let Some(wanted) = node.session().records().wanted_back() {
                node.is_short.store(wanted > 0, Ordering::Relaxed);
                self.mark((number as u32, life), wanted);
            }
        }
    }

    /// Marks the coldest slabs of a node, of those that can leave it. Together with those on their
    /// way they are as many as it wants.
    fn mark(self, node: (u32, u32), wanted: u64) {
        let may = self.may_mark(node.0);
        let mut slabs = self.held.slabs.lock();
        let goes_back = |home: crate::homes::Home| home.node == node.0;
        let mut begun = slabs.dropped.iter().filter(|(_, dropped)| dropped.home.is_some_and(goes_back)).count() as u64;
        let mut can = Vec::new();
        for (index, slab) in slabs.list.iter_mut().enumerate() {
            let Some(slab) = slab else { continue };
            let word = self.tables.homes.word(index as u32);
            if slab.wanted_by == Some(node) {
                if self.tables.is_on_its_way(word) {
                    begun += 1;
                    continue;
                }
                slab.wanted_by = None;
            }
            // A mark of a node that has gone since.
            if self.tables.wanted_home(slab, word).is_none() && !self.tables.is_on_its_way(word) {
                slab.wanted_by = None;
            }
            let stays = slab.stays > 0;
            slab.stays = slab.stays.saturating_sub(1);
            let can_go = slab.wanted_by.is_none() && slab.sharers == 0 && !slab.closed && !stays;
            if can_go && self.tables.can_leave(word, node.0) {
                can.push((self.tables.heat.of(index as u32), slab.live(), index));
            }
        }
        can.sort_unstable();
        let more = u32::try_from(wanted.saturating_sub(begun)).unwrap_or(u32::MAX).min(may);
        for (.., index) in can.into_iter().take(more as usize) {
            if let Some(slab) = &mut slabs.list[index] {
                slab.wanted_by = Some(node);
            }
        }
        let any = slabs.list.iter().flatten().any(|slab| slab.wanted_by.is_some());
        self.held.marked.store(any, Ordering::Relaxed);
    }

    /// Slabs that a node may have marked now. Called once for each question.
    fn may_mark(self, node: u32) -> u32 {
        let node = &self.tables.nodes.all()[node as usize];
        let minute = node.minute.load(Ordering::Relaxed);
        if minute == 0 {
            let half = node.held.load(Ordering::Relaxed).div_ceil(2);
            node.may_move.store(half.max(LEAST_MOVES), Ordering::Relaxed);
        }
        node.minute.store(if minute == 0 { MINUTE } else { minute - 1 }, Ordering::Relaxed);
        node.may_move.load(Ordering::Relaxed)
    }

    /// Finds room for a slab that lacks it ([`crate::Lacks::Room`]). `None`: it has another home
    /// now, which is to be filled. A place is to be taken by [`Moves::move_home`]. No lock is held
    /// while nodes are asked.
    ///
    /// # Errors
    /// No other node grants a slab, or that of the other copy does not answer. Call [`Moves::stay`] then.
    pub fn find_room(self, index: u32) -> Result<Option<Place>, NoRoom> {
        let by = self.held.slabs.lock().list.get(index as usize).and_then(|slab| slab.as_ref()?.wanted_by);
        let found = self.room_for(index)?;
        if let Some(node) = by.and_then(|(number, _)| self.tables.nodes.all().get(number as usize)) {
            let left = node.may_move.load(Ordering::Relaxed);
            node.may_move.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        Ok(found)
    }

    fn room_for(self, index: u32) -> Result<Option<Place>, NoRoom> {
        let word = self.tables.homes.word(index);
        if word.homes() == 1 {
            return self
                .add_home_by(index, |beside| self.grants.first_grant(&self.with_room(beside, None)))
                .map(|()| None);
        }
        let leaves = self.leaves_first(index);
        self.stays_safely(index, leaves)?;
        let stays = self.tables.homes.home(word, 1 - leaves).node as usize;
        // Two copies in two domains stay in two.
        let apart = (!self.tables.lies_together(index)).then(|| self.tables.nodes.domain(stays));
        let asked = self.with_room(&self.tables.nodes_beside(index), apart);
        let place = self.grants.first_grant(&asked)?;
        self.grants.backed(index, place).map(|home| Some(Place(home)))
    }

    /// Nodes to ask for the new place of a slab, without those that want slabs back themselves: two
    /// of these would send a slab to each other for ever. `not`: a failure domain to keep out of.
    fn with_room(self, beside: &[u32], not: Option<u32>) -> Vec<usize> {
        let mut asked = Vec::new();
        self.tables.nodes.to_ask(beside, &mut asked);
        let nodes = self.tables.nodes.all();
        asked.retain(|&node| !nodes[node].is_short.load(Ordering::Relaxed));
        asked.retain(|&node| not.is_none_or(|domain| self.tables.nodes.domain(node) != domain));
        asked
    }

    /// Forgets the mark on a slab that can go nowhere now. Others may find room: its node may want
    /// them in its place.
    pub fn stay(self, index: u32) {
        let mut slabs = self.held.slabs.lock();
        let Some(Some(slab)) = slabs.list.get_mut(index as usize) else { return };
        if !self.tables.is_on_its_way(self.tables.homes.word(index)) {
            (slab.wanted_by, slab.stays) = (None, STAYS);
        }
    }
}
