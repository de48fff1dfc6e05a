//! Homes of a slab that are added, filled and dropped: the parts of a mirror, a repair and a drain.
//!
//! ```text
//!  add_home ─► [whole, filling]  every thread leaves once ─► fill, slot by slot ─► [whole, whole]
//!  drop_home ─► [whole, absent]  every thread leaves once ─► the home goes back to its node
//! ```
//!
//! A thread may use what it has read of a record until it leaves the consumer. So a home that is
//! dropped waits until every thread has left once since ([`Moves::dropped`],
//! [`Moves::all_have_left`]).

use crate::grants::Grants;
use crate::held::{Held, Slabs};
use crate::homes::{HOMES, Home, State, Word};
use crate::losses::Changes;
use crate::protect::disk::DISK;
use crate::slab::SlabSlots;
use crate::tables::Tables;
use crate::{Lane, NoRoom, Protect, Slip, Standing};
use farmem_protocol::addr::FarSlot;
use std::sync::atomic::Ordering;

/// A record, a home, or the number of a node that has ended: no word names it any more.
#[derive(Clone, Default)]
pub(crate) struct Dropped {
    /// A record that is free, if it is to be.
    pub record: Option<u32>,
    pub home: Option<Home>,
    pub node: Option<usize>,
}

impl Slabs {
    pub(crate) fn drop_later(&mut self, dropped: Dropped) {
        self.drops += 1;
        self.dropped.push_back((self.drops, dropped));
    }
}

/// Homes of slabs that are added, filled and dropped.
#[derive(Clone, Copy)]
pub struct Moves<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) held: &'a Held,
    pub(crate) changes: &'a Changes,
    pub(crate) grants: Grants<'a>,
}

impl Moves<'_> {
    /// Gives a slab with one home a second home, at another node or on disk. A home that is behind is
    /// given up for it. The second home has none of the live slots yet. From here on the slab is not
    /// written in place.
    ///
    /// Before [`crate::Lane::fill`] copies a slot, every thread must have left the consumer's code
    /// once: a thread may still be writing in place.
    ///
    /// # Errors
    /// No other node grants a slab; or the slab has gone, or has two homes.
    pub fn add_home(self, index: u32) -> Result<(), NoRoom> {
        // A seat's stripe is written by frames: its slabs are neither mapped nor reached by RDMA.
        let is_striped = self.tables.homes.word(index).is_striped();
        self.add_home_by(index, |beside| match is_striped {
            true => self.grants.granted_unmapped(beside),
            false => self.grants.granted(beside),
        })
    }

    /// As [`Moves::add_home`], with a slab that `grant` asks for. It is told which nodes have the
    /// slab's home and those of its group.
    pub(crate) fn add_home_by(
        self,
        index: u32,
        grant: impl FnOnce(&[u32]) -> Result<Home, NoRoom>,
    ) -> Result<(), NoRoom> {
        if self.tables.homes.word(index).is_striped() && self.tables.homes.word(index).homes() == 0 {
            return self.replace_home(index);
        }
        let gone = || NoRoom::Exhausted("the slab has gone, or has two homes".to_owned());
        let only = |word: Word| {
            let only = (0..HOMES).find(|&nth| word.state(nth) == State::Whole).filter(|_| word.homes() == 1);
            only.map(|nth| (word, self.tables.homes.home(word, nth)))
        };
        let (_, first) = only(self.tables.homes.word(index)).ok_or_else(gone)?;
        let second = match self.wants_disk(first) {
            true => {
                let warm = self.held.slabs.lock().list[index as usize].as_ref().map_or(0, SlabSlots::warm);
                self.tables.protection.place_on_disk(warm)?
            }
            false => self.grants.backed(index, grant(&self.tables.nodes_beside(index))?)?,
        };
        let changing = self.changes.now.lock();
        let node = self.tables.nodes.all().get(second.node as usize);
        let mut slabs = self.held.slabs.lock();
        let is_in = node.map_or(self.tables.protection.disk_in().is_some(), |node| node.standing() == Standing::In);
        let found = only(self.tables.homes.word(index)).filter(|_| is_in);
        let found = found.filter(|_| slabs.list.get(index as usize).is_some_and(Option::is_some));
        let added = found.and_then(|(word, first)| {
            // The whole home comes first in the record, because readers look there first. But a
            // disk always comes last.
            let (whole, filling) = if first.node == DISK { (1, 0) } else { (0, 1) };
            let record = self.tables.homes.record(if whole == 0 { [first, second] } else { [second, first] })?;
            let next = word.with_number(record).with_state(whole, State::Whole).with_state(filling, State::Filling);
            if !self.tables.slips.has(Slip::BitsAfterWord) {
                self.tables.lacking(&slabs, index).into_iter().for_each(|place| {
                    self.tables.homes.set_stale(next, filling, place, true);
                });
            }
            // The update fails if another thread has lost the first home meanwhile and taken it out
            // of the word.
            let swapped = self.tables.homes.update(index, |seen| (seen == word).then_some(next));
            swapped.map(|_| (Dropped { record: Some(word.number()), ..Dropped::default() }, word)).or_else(|| {
                self.tables.homes.free(record);
                None
            })
        });
        match added {
            Some((dropped, seen)) => {
                if let Some(node) = node {
                    node.held.fetch_add(1, Ordering::Relaxed);
                }
                self.tables.give_up_behind(seen);
                slabs.drop_later(dropped);
                Ok(())
            }
            None => {
                drop(slabs);
                drop(changing);
                self.grants.decline(second);
                Err(gone())
            }
        }
    }

    /// Whether a slab's second home, beside this one, should be the disk. If this one's node is
    /// being left, the second home must be another node.
    fn wants_disk(self, first: Home) -> bool {
        let leaves = |node: &crate::nodes::Node| node.standing() == Standing::Leaving;
        let node = self.tables.nodes.all().get(first.node as usize);
        self.tables.protection.how() == Protect::Disk && node.is_some_and(|node| !leaves(node))
    }

    /// Whether the node of a slab's other home than this one answers. It is asked before this one is
    /// given up or filled from it: a node that has just died may still be in the slab's word. Where it
    /// does not answer, what needs it is put off for a second ([`crate::Repair::lacks`]). A disk is not asked, nor
    /// is a home that is absent: the step itself refuses then. No lock is held meanwhile.
    pub fn other_answers(self, index: u32, home: usize) -> bool {
        let word = self.tables.homes.word(index);
        if word.state(1 - home) == State::Absent {
            return true;
        }
        let stays = self.tables.homes.home(word, 1 - home);
        let Some(node) = self.tables.nodes.all().get(stays.node as usize) else { return true };
        let answers = node.session().records().answers();
        node.note_answer(self.tables.nodes.moment(), answers);
        answers
    }

    /// Takes one of two whole homes of a slab away; false where that is not what it has. The home
    /// goes back to its node when every thread has left once.
    ///
    /// By the owner of the lane of all write-back, with nothing under way on it: a write is decided
    /// by one record. Ask [`Moves::other_answers`] before.
    pub fn drop_home(self, writes: &mut Lane, index: u32, home: usize) -> bool {
        if writes.in_flight() > 0 {
            return false;
        }
        let mut slabs = self.held.slabs.lock();
        let whole = |word: Word| (0..HOMES).all(|home| word.state(home) == State::Whole);
        let seen = self.tables.homes.word(index);
        if !whole(seen) {
            return false;
        }
        // The one that stays comes first, where questions look first.
        let stays = self.tables.homes.home(seen, 1 - home);
        let Some(record) = self.tables.homes.record([stays, Home::NONE]) else { return false };
        // Pages may be overwritten again, unless the node of this one is being left, too.
        let stays_at = self.tables.nodes.all().get(stays.node as usize);
        let left = stays_at.is_some_and(|node| node.standing() == Standing::Leaving);
        let single = |word: Word| {
            let word = word.with_number(record).with_leaving(word.is_leaving() && left);
            word.with_state(0, State::Whole).with_state(1, State::Absent)
        };
        let moved = self
            .tables
            .homes
            .update(index, |word| (whole(word) && word.number() == seen.number()).then(|| single(word)));
        if moved.is_none() {
            self.tables.homes.free(record);
            return false;
        }
        if !left {
            self.held.reopen(&mut slabs, index);
        }
        slabs.list[index as usize].iter_mut().for_each(|slab| slab.wanted_by = None);
        let home = Some(self.tables.homes.home(seen, home));
        slabs.drop_later(Dropped { record: Some(seen.number()), home, ..Dropped::default() });
        true
    }

    /// A filling home that lacks nothing any more is whole; whether it is now. A home that was being
    /// left may have been lost before: then nothing is left any more, and pages may be overwritten
    /// again.
    pub fn end_filling(self, index: u32, home: usize) -> bool {
        // No slot is taken meanwhile: the first write of a fresh one goes to both homes.
        let mut slabs = self.held.slabs.lock();
        let homes = &self.tables.homes;
        let seen = homes.word(index);
        // A group's slots are needed with what is in them, taken or not: other seats are computed from them.
        if !seen.is_striped()
            && seen.state(home) == State::Filling
            && seen.state(1 - home) == State::Absent
            && let Some(slab) = &slabs.list[index as usize]
        {
            self.tables.forgive(seen, home, slab);
        }
        let full = |word: Word| word.state(home) == State::Filling && homes.next_stale(word, home, 0).is_none();
        // A node is marked as being left before its slabs are, under this lock.
        let leaves = |word: Word| (0..HOMES).any(|nth| word.state(nth) != State::Absent && self.is_left(word, nth));
        let ended = homes.update(index, |word| {
            full(word).then(|| word.with_state(home, State::Whole).with_leaving(word.is_leaving() && leaves(word)))
        });
        if let Some((seen, _)) = ended
            && seen.is_leaving()
            && !leaves(seen)
        {
            self.held.reopen(&mut slabs, index);
        }
        ended.is_some()
    }

    /// Whether the node of a home is being left.
    fn is_left(self, word: Word, nth: usize) -> bool {
        let node = self.tables.nodes.all().get(self.tables.homes.home(word, nth).node as usize);
        node.is_some_and(|node| node.standing() == Standing::Leaving)
    }

    /// The slots of a slab that a home lacks, from a place on: the next. None, while a fork shares
    /// the slab: a late WRITE of one side could land on what the other has written since.
    pub fn next_stale(self, index: u32, home: usize, from: u32) -> Option<FarSlot> {
        let word = self.tables.homes.word(index);
        let stale = (word.state(home) == State::Filling && !word.is_shared())
            .then(|| self.tables.homes.next_stale(word, home, from))?;
        stale.map(|place| FarSlot::new(index, place))
    }

    /// Whether homes, records or numbers of nodes wait until every thread has left the consumer
    /// once: the number of the last of them.
    pub fn dropped(self) -> Option<u64> {
        self.held.slabs.lock().dropped.back().map(|(number, _)| *number)
    }

    /// Every thread has left once since [`Moves::dropped`] gave this number, and nothing is under
    /// way on lanes to nodes that have ended.
    pub fn all_have_left(self, since: u64) {
        loop {
            let mut slabs = self.held.slabs.lock();
            let Some((_, Dropped { record, home, node })) = slabs.dropped.pop_front_if(|(number, _)| *number <= since)
            else {
                return;
            };
            drop(slabs);
            record.into_iter().for_each(|record| self.tables.homes.free(record));
            home.into_iter().for_each(|home| self.grants.release([home, Home::NONE]));
            node.into_iter().for_each(|node| self.tables.nodes.free_number(node));
        }
    }
}
