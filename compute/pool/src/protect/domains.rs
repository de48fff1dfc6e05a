//! Copies in different failure domains: which slabs lie in one, and how a copy moves to another.
//!
//! ```text
//!  [whole at a, whole at b]   a and b of one domain
//!    ─► place_apart           a node of another domain grants, or nothing changes
//!    ─► move_home             [whole at a, filling at c]; b goes back when every thread has left once
//!    ─► fill, end_filling     [whole, whole]
//! ```
//!
//! While the copy is filled the slab has one whole copy. Its two copies shared a domain until then,
//! so that what is risked is the loss of one node in that time, not of the domain.

use crate::held::Slabs;
use crate::homes::{HOMES, Home, State, Word};
use crate::moves::Dropped;
use crate::protect::disk::DISK;
use crate::slab::SlabSlots;
use crate::tables::Tables;
use crate::{Lane, Moves, NoRoom, Protect, Repair, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use std::sync::atomic::Ordering;

/// A slab that a node has granted as the new place of a copy. [`Moves::move_home`] takes it.
#[derive(Debug)]
#[must_use = "it is held at its node"]
pub struct Place(pub(super) Home);

impl Tables {
    /// Whether both copies of a slab are whole and lie in one failure domain. Not one that leaves a
    /// node anyway.
    pub(crate) fn lies_together(&self, index: u32) -> bool {
        let word = self.homes.word(index);
        let home = |nth| self.homes.home(word, nth);
        let whole = (0..HOMES).all(|nth| word.state(nth) == State::Whole && home(nth).base == 0);
        let domain = |nth| self.nodes.domain(home(nth).node as usize);
        whole && !word.is_leaving() && domain(0) == domain(1)
    }

    /// The node of a slab's first home.
    fn first_node(&self, index: u32) -> u32 {
        self.homes.home(self.homes.word(index), 0).node
    }

    /// Nodes that are in, of other domains than this one, in the order in which to ask them.
    fn others_of(&self, node: u32) -> Vec<usize> {
        let (domain, mut asked) = (self.nodes.domain(node as usize), Vec::new());
        self.nodes.to_ask(&[node], &mut asked);
        asked.retain(|&other| self.nodes.domain(other) != domain);
        asked
    }
}

impl Repair<'_> {
    /// Whether one of its copies could move to another domain.
    pub(crate) fn lacks_domain(self, slabs: &Slabs, index: u32) -> bool {
        let slab = slabs.list[index as usize].as_ref();
        self.tables.protection.how() == Protect::Mirror
            && slab.is_some_and(|slab| slab.sharers == 0)
            && self.tables.lies_together(index)
            && !self.tables.nodes.all()[self.tables.first_node(index) as usize].is_put_off(self.tables.nodes.moment())
            && !self.tables.others_of(self.tables.first_node(index)).is_empty()
    }

    /// Bytes of slabs with live slots of which both copies lie in one failure domain.
    pub fn together_bytes(self) -> u64 {
        if self.tables.protection.how() == Protect::None {
            return 0;
        }
        let slabs = self.held.slabs.lock();
        let is_live = |index: &u32| slabs.list[*index as usize].as_ref().is_some_and(|slab| !slab.is_idle());
        let live = (0..slabs.list.len() as u32).filter(is_live);
        live.filter(|&index| self.tables.lies_together(index)).count() as u64 * SLAB_BYTES
    }

    /// The failure domain in which both copies of some slab lie, by its name.
    pub fn crowded_domain(self) -> Option<String> {
        let slabs = self.held.slabs.lock();
        let index = (0..slabs.list.len() as u32).find(|&index| self.tables.lies_together(index))?;
        let node = &self.tables.nodes.all()[self.tables.first_node(index) as usize];
        Some(node.session().domain().to_string())
    }
}

impl Moves<'_> {
    /// A place in another failure domain for a slab whose copies lie in one. No lock is held while
    /// nodes are asked.
    ///
    /// # Errors
    /// No node of another domain grants a slab, or the node of the copy that stays does not answer.
    pub fn place_apart(self, index: u32) -> Result<Place, NoRoom> {
        let leaves = self.leaves_first(index);
        self.stays_safely(index, leaves)?;
        let place = self.grants.first_grant(&self.tables.others_of(self.tables.first_node(index)))?;
        self.grants.backed(index, place).map(Place)
    }

    /// Moves a copy of a slab to a place at another node, where it lacks all live slots: the copy
    /// at a node that wants it back, or else one of two in a failure domain. False, and the place
    /// goes back, if the slab or the nodes have changed since.
    ///
    /// By the owner of the lane of all write-back, as [`Moves::drop_home`]. Every thread is to leave
    /// once before a slot is filled.
    pub fn move_home(self, writes: &mut Lane, index: u32, Place(place): Place) -> bool {
        let moved = writes.in_flight() == 0 && self.moved(index, place);
        if !moved {
            self.grants.decline(place);
        }
        moved
    }

    fn moved(self, index: u32, place: Home) -> bool {
        let _changing = self.changes.now.lock();
        let node = &self.tables.nodes.all()[place.node as usize];
        let mut slabs = self.held.slabs.lock();
        let slab = slabs.list.get(index as usize).and_then(Option::as_ref).filter(|slab| slab.sharers == 0);
        let Some(slab) = slab.filter(|_| node.standing() == Standing::In) else { return false };
        let seen = self.tables.homes.word(index);
        let Some(leaves) = self.leaves(slab, seen, index) else { return false };
        let [stays, goes] = [1 - leaves, leaves].map(|nth| self.tables.homes.home(seen, nth));
        if stays.node == place.node {
            return false;
        }
        // As in `add_home`: the whole one comes first, but for a disk.
        let (whole, filling) = if stays.node == DISK { (1, 0) } else { (0, 1) };
        let homes = if whole == 0 { [stays, place] } else { [place, stays] };
        let Some(record) = self.tables.homes.record(homes) else { return false };
        let next =
            |word: Word| word.with_number(record).with_state(whole, State::Whole).with_state(filling, State::Filling);
        slab.taken().for_each(|at| {
            self.tables.homes.set_stale(next(seen), filling, at, true);
        });
        // Another thread may be cut off from a home just now, and take it out of the word.
        if self.tables.homes.update(index, |word| (word == seen).then(|| next(word))).is_none() {
            self.tables.homes.free(record);
            return false;
        }
        node.held.fetch_add(1, Ordering::Relaxed);
        slabs.list[index as usize].iter_mut().for_each(|slab| slab.wanted_by = None);
        slabs.drop_later(Dropped { record: Some(seen.number()), home: Some(goes), ..Dropped::default() });
        true
    }

    /// Checks that a copy may move from this home: the other one's node answers.
    pub(super) fn stays_safely(self, index: u32, home: usize) -> Result<(), NoRoom> {
        let why = || NoRoom::Exhausted("the node of the other copy does not answer".to_owned());
        self.other_answers(index, home).then_some(()).ok_or_else(why)
    }

    /// The home of a slab with two copies that will move: the one that its node wants back, or the
    /// second.
    pub(super) fn leaves_first(self, index: u32) -> usize {
        let word = self.tables.homes.word(index);
        let slabs = self.held.slabs.lock();
        let slab = slabs.list.get(index as usize).and_then(Option::as_ref);
        slab.and_then(|slab| self.tables.wanted_home(slab, word)).unwrap_or(1)
    }

    /// The home of a slab with two copies that moves to another node, if one does.
    fn leaves(self, slab: &SlabSlots, word: Word, index: u32) -> Option<usize> {
        let whole = (0..HOMES).all(|nth| word.state(nth) == State::Whole);
        let wanted = self.tables.wanted_home(slab, word).filter(|_| whole);
        wanted.or_else(|| self.tables.lies_together(index).then_some(1))
    }
}
