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

use crate::copies::Dropped;
use crate::extent::{HOMES, Home, State, Word};
use crate::{Lane, NoRoom, Pool, Protect, Slabs, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use std::sync::atomic::Ordering;

/// A slab that a node granted, for a copy to move to. [`Pool::move_home`] takes it.
#[derive(Debug)]
#[must_use = "it is held at its node"]
pub struct Place(Home);

impl Pool {
    /// Whether both copies of a slab are whole and lie in one failure domain. Not one that leaves a
    /// node anyway.
    fn lies_together(&self, index: u32) -> bool {
        let word = self.extents.word(index);
        let home = |nth| self.extents.home(word, nth);
        let whole = (0..HOMES).all(|nth| word.state(nth) == State::Whole && home(nth).base == 0);
        whole && !word.is_leaving() && self.domain(home(0).node as usize) == self.domain(home(1).node as usize)
    }

    /// Whether one of its copies could move to another domain.
    pub(crate) fn lacks_domain(&self, slabs: &Slabs, index: u32) -> bool {
        let slab = slabs.list[index as usize].as_ref();
        self.protection() == Protect::Mirror
            && slab.is_some_and(|slab| slab.sharers == 0)
            && self.lies_together(index)
            && !self.others_of(self.extents.home(self.extents.word(index), 0).node).is_empty()
    }

    /// Nodes that are in, of other domains than this one, in the order in which to ask them.
    fn others_of(&self, node: u32) -> Vec<usize> {
        let (domain, mut asked) = (self.domain(node as usize), Vec::new());
        self.to_ask(&[node], &mut asked);
        asked.retain(|&other| self.domain(other) != domain);
        asked
    }

    /// A place in another failure domain for a slab whose copies lie in one. No lock is held while
    /// nodes are asked.
    ///
    /// # Errors
    /// No node of another domain grants a slab.
    pub fn place_apart(&self, index: u32) -> Result<Place, NoRoom> {
        let first = self.extents.home(self.extents.word(index), 0);
        self.first_grant(&self.others_of(first.node)).map(Place)
    }

    /// Moves a copy of a slab, whose copies lie in one failure domain, to a place in another: it
    /// lacks all live slots there. False, and the place goes back, if the slab or the nodes have
    /// changed since.
    ///
    /// By the owner of the lane of all write-back, as [`Pool::drop_home`]. Every thread is to leave
    /// once before a slot is filled.
    pub fn move_home(&self, writes: &mut Lane, index: u32, Place(place): Place) -> bool {
        let moved = writes.in_flight() == 0 && self.moved(index, place);
        if !moved {
            self.decline(place);
        }
        moved
    }

    fn moved(&self, index: u32, place: Home) -> bool {
        let _changing = self.changing.lock();
        let node = &self.nodes.all()[place.node as usize];
        let mut slabs = self.slabs.lock();
        if node.standing() != Standing::In || !self.lies_together(index) {
            return false;
        }
        let Some(slab) = slabs.list[index as usize].as_ref().filter(|slab| slab.sharers == 0) else { return false };
        let seen = self.extents.word(index);
        let [stays, goes] = [0, 1].map(|nth| self.extents.home(seen, nth));
        let Some(record) = self.extents.record([stays, place]) else { return false };
        let next = |word: Word| word.with_number(record).with_state(0, State::Whole).with_state(1, State::Filling);
        slab.taken().for_each(|at| {
            self.extents.set_stale(next(seen), 1, at, true);
        });
        // Another thread may be cut off from a home just now, and take it out of the word.
        if self.extents.update(index, |word| (word == seen).then(|| next(word))).is_none() {
            self.extents.free(record);
            return false;
        }
        node.held.fetch_add(1, Ordering::Relaxed);
        slabs.drop_later(Dropped { record: Some(seen.number()), home: Some(goes) });
        true
    }

    /// Bytes of slabs with live slots of which both copies lie in one failure domain.
    pub fn together_bytes(&self) -> u64 {
        if self.protection() == Protect::None {
            return 0;
        }
        let slabs = self.slabs.lock();
        let is_live = |index: &u32| slabs.list[*index as usize].as_ref().is_some_and(|slab| !slab.is_idle());
        let live = (0..slabs.list.len() as u32).filter(is_live);
        live.filter(|&index| self.lies_together(index)).count() as u64 * SLAB_BYTES
    }

    /// The failure domain in which both copies of some slab lie, by its name.
    pub fn crowded_domain(&self) -> Option<String> {
        let slabs = self.slabs.lock();
        let index = (0..slabs.list.len() as u32).find(|&index| self.lies_together(index))?;
        let home = self.extents.home(self.extents.word(index), 0);
        Some(self.nodes.all()[home.node as usize].session().domain().to_string())
    }
}
