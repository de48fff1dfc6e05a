//! The steps of a repair and of a move. A slab that lost a copy gets another one. A slab whose node
//! is being left gets another node. A background thread takes the steps; any of them may be the
//! last.
//!
//! ```text
//!  lacks ─► Home(index)      add_home; every thread leaves once
//!        ─► Bytes(index, nth) fill, chunk by chunk; end_filling
//!        ─► Way(index, nth)  drop_home: the other has all
//!        ─► Domain(index)    place_apart, move_home; then as after add_home
//!        ─► Room(index)      find_room, move_home; then as after add_home ([`super::reserve`])
//! ```
//!
//! A slab that a fork has made another process's too is left alone: a WRITE of the one process
//! could arrive after the other has made the slab its own again, and has overwritten the slot.

use super::disk::{DISK, Disk};
use crate::held::{Held, Slabs};
use crate::homes::{HOMES, State, Word};
use crate::nodes::Node;
use crate::slab::Seat;
use crate::tables::Tables;
use crate::{Protect, Standing};
use std::sync::atomic::Ordering;

/// A slab's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacks {
    /// A home ([`crate::Moves::add_home`]).
    Home(u32),
    /// Bytes at the home of this number ([`crate::Lane::fill`], [`crate::Moves::end_filling`]).
    Bytes(u32, usize),
    /// Nothing but to leave the home of this number ([`crate::Moves::drop_home`]).
    Way(u32, usize),
    /// A second failure domain ([`crate::Moves::place_apart`], [`crate::Moves::move_home`]).
    Domain(u32),
    /// Room at another node: this one's needs its memory ([`crate::Moves::find_room`],
    /// [`crate::Moves::move_home`]).
    Room(u32),
}

/// Finds the slabs that lack something. It changes nothing.
#[derive(Clone, Copy)]
pub struct Repair<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) held: &'a Held,
}

impl Repair<'_> {
    /// Whether it is worth asking [`Repair::lacks`].
    pub fn may_lack(self) -> bool {
        let leaves = |node: &Node| node.standing() == Standing::Leaving;
        let marked = self.held.marked.load(Ordering::Relaxed);
        self.tables.protection.how() != Protect::None || marked || self.tables.nodes.all().iter().any(leaves)
    }

    /// Slabs that go with this one, itself among them: those of its group with parity.
    pub fn beside(self, index: u32) -> Vec<u32> {
        self.tables.beside(index)
    }

    /// The next step. Slabs that are being filled or left come first. A step that needs a node which
    /// did not answer a moment ago is put off ([`crate::Moves::other_answers`]).
    pub fn lacks(self) -> Option<Lacks> {
        self.lacks_but(&[])
    }

    /// As [`Repair::lacks`], of other slabs than these.
    pub fn lacks_but(self, stuck: &[u32]) -> Option<Lacks> {
        let slabs = self.held.slabs.lock();
        let all = || (0..slabs.list.len() as u32).filter(|index| !stuck.contains(index));
        let first = |urgent: fn(&Lacks) -> bool| all().find_map(|index| self.lacks_of(&slabs, index).filter(urgent));
        let under_way = first(|lacks| matches!(lacks, Lacks::Bytes(..) | Lacks::Way(..)));
        let copies = under_way.or_else(|| first(|lacks| matches!(lacks, Lacks::Home(_))));
        let copies = copies.or_else(|| all().find(|&index| self.lacks_domain(&slabs, index)).map(Lacks::Domain));
        copies.or_else(|| first(|lacks| matches!(lacks, Lacks::Room(_))))
    }

    fn lacks_of(self, slabs: &Slabs, index: u32) -> Option<Lacks> {
        let slab = slabs.list[index as usize].as_ref().filter(|slab| slab.sharers == 0)?;
        let word = self.tables.homes.word(index);
        let whole = |nth: usize| word.state(nth) == State::Whole;
        let leaving = |nth: usize| word.state(nth) != State::Absent && self.is_left(word, nth);
        let striped = (0..HOMES).find(|&nth| word.state(nth) == State::Filling).filter(|_| word.is_striped());
        if let Some(nth) = striped {
            return Some(Lacks::Bytes(index, nth));
        }
        if word.is_striped() && word.homes() == 0 {
            let beside = self.tables.nodes_beside(index);
            let apart = |(number, node): (usize, &Node)| {
                node.standing() == Standing::In && !beside.contains(&(number as u32)) && !node.session().is_mapped()
            };
            let any = self.tables.follows(index) && self.tables.nodes.all().iter().enumerate().any(apart);
            return any.then_some(Lacks::Home(index));
        }
        let on_disk = |nth: usize| self.tables.homes.home(word, nth).node == DISK;
        // One whose other home is lost is whole where it lacks nothing.
        let alone = |nth: usize| word.state(1 - nth) == State::Absent && !self.tables.lacks_live(word, nth, slab);
        let filling = |nth: &usize| word.state(*nth) == State::Filling && (whole(1 - nth) || alone(*nth));
        if let Some(nth) = (0..HOMES).find(filling) {
            let may = !on_disk(nth) || self.tables.protection.disk().is_some_and(Disk::may_fill);
            let waits = whole(1 - nth) && self.is_put_off(word, 1 - nth);
            return (may && !waits).then_some(Lacks::Bytes(index, nth));
        }
        let way = (0..HOMES).find(|&nth| leaving(nth) && whole(nth) && whole(1 - nth));
        if let Some(nth) = way {
            return (!self.is_put_off(word, 1 - nth)).then_some(Lacks::Way(index, nth));
        }
        if let Some(nth) = self.tables.wanted_home(slab, word) {
            match word.homes() {
                1 => return Some(Lacks::Room(index)),
                _ if !whole(1 - nth) => {}
                _ if self.is_put_off(word, 1 - nth) => return None,
                _ if self.tables.needs_two(word, 1 - nth) => return Some(Lacks::Room(index)),
                _ => return Some(Lacks::Way(index, nth)),
            }
        }
        let only = (0..HOMES).find(|&nth| whole(nth)).filter(|_| word.homes() == 1)?;
        let copies = matches!(self.tables.protection.how(), Protect::Mirror | Protect::Disk);
        let protects = copies && self.tables.homes.home(word, only).base == 0;
        if protects && !leaving(only) && self.tables.protection.how() == Protect::Disk && !on_disk(only) {
            return self.tables.protection.disk_in().map(|_| Lacks::Home(index));
        }
        // An empty one of a node that is left goes back by itself.
        let moves = leaving(only) && (!slab.is_idle() || slab.seat == Seat::Parity);
        let beside = self.tables.nodes_beside(index);
        let elsewhere = |(number, grants): (usize, bool)| grants && !beside.contains(&(number as u32));
        let nodes = self.tables.nodes.all().iter().map(Node::grants).enumerate();
        ((protects && !leaving(only) || moves) && nodes.into_iter().any(elsewhere)).then_some(Lacks::Home(index))
    }

    /// Whether a slab with live slots still has fewer copies than it should, or is at a node that is
    /// being left. [`Repair::lacks`] names no step of it while no node takes a copy, while a node
    /// does not answer, or while a fork shares the slab.
    pub fn owes(self) -> bool {
        if self.single_bytes() > 0 {
            return true;
        }
        let slabs = self.held.slabs.lock();
        let is_used = |index: u32| slabs.list[index as usize].as_ref().is_some_and(|slab| !slab.is_idle());
        let leaves = |index: u32| {
            let word = self.tables.homes.word(index);
            (0..HOMES).any(|nth| word.state(nth) != State::Absent && self.is_left(word, nth))
        };
        (0..slabs.list.len() as u32).any(|index| is_used(index) && leaves(index))
    }

    /// Whether the node of a home did not answer a moment ago.
    fn is_put_off(self, word: Word, nth: usize) -> bool {
        let node = self.tables.nodes.all().get(self.tables.homes.home(word, nth).node as usize);
        node.is_some_and(|node| node.is_put_off(self.tables.nodes.moment()))
    }

    fn is_left(self, word: Word, nth: usize) -> bool {
        let home = self.tables.homes.home(word, nth);
        home.node != DISK && self.tables.nodes.all()[home.node as usize].standing() == Standing::Leaving
    }

    /// Bytes of slabs with live slots that have one copy where there should be two, and of slabs of
    /// groups, parity or not, whose bytes follow from others alone.
    pub fn single_bytes(self) -> u64 {
        if self.tables.protection.how() == Protect::None {
            return 0;
        }
        let slabs = self.held.slabs.lock();
        let single = |index: &u32| {
            let word = self.tables.homes.word(*index);
            if word.is_striped() {
                return word.state(0) != State::Whole && word.state(1) != State::Whole;
            }
            let whole = (0..HOMES).filter(|&nth| word.state(nth) == State::Whole);
            let mapped = || whole.clone().any(|nth| self.tables.homes.home(word, nth).base != 0);
            slabs.list[*index as usize].as_ref().is_some_and(|slab| !slab.is_idle())
                && whole.clone().count() < HOMES
                && !mapped()
        };
        let count = (0..slabs.list.len() as u32).filter(single).count();
        count as u64 * farmem_protocol::addr::SLAB_BYTES
    }
}
