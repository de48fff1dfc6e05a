//! Parity: pages that are lost with a node are computed from pages of other nodes. A page *follows*
//! from others if enough of them are left for that.
//!
//! ```text
//!  group   slab a ┬ slab b ┬ … ┬ parity p ┬ parity q      each at another node; an index of the host's table each
//!  stripe   page n│  page n│   │   page n │   page n      the same place of each: any `data` of them give the rest
//! ```
//!
//! The slabs of a group are granted together and given back together. Each slab has one home, so
//! the rules of homes hold for data and parity alike. A lost home is replaced by one at another
//! node, and filled from the other seats.
//!
//! *Who writes.* One lane does all write-back, and updates a stripe only once at a time
//! ([`crate::Lane`]). An update writes the new pages, and the parity that it computes from all data
//! of the stripe. Or it writes the changed lines, and the parity's same lines, which it computes from
//! the old ones. It says what bytes are, so a repeated verb changes nothing. An update ends when
//! every home that is left has all of it. Its pages stay in the staging ring until then.
//!
//! *Who reads.* Any thread reads a page from its home. If that is lost, it reads other seats. Their
//! bytes belong together only if no update of the stripe is under way. The stripe's *version* is
//! odd during an update. As with a sequence lock, a reader compares the version before and after.
//! Version 0 says that all bytes of the stripe are zeros.
//!
//! *What is not done.* No block of a group goes back while the group stays: zeros in one seat would
//! contradict the parity. A slab that a fork shares is not written, and nor is its parity then.
//! `docs/design/parity.md` has the argument, `tests/stripes.rs` the model.

pub mod code;

use crate::grants::{Grants, too_many_slabs};
use crate::held::Slabs;
use crate::homes::{HOMES, Home, MAX_SLABS, State, Word};
use crate::moves::Dropped;
use crate::slab::{Seat, SlabSlots};
use crate::tables::Tables;
use crate::{Moves, NoRoom, Protect, Standing};
use code::{MAX_SEATS, Shape};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SLOTS_PER_SLAB};
use farmem_sys::gf::Unit;
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Groups that one process can hold: the smallest has two slabs.
const MAX_GROUPS: usize = MAX_SLABS / 2;
const PLACES: usize = SLOTS_PER_SLAB as usize;

/// Whether an update of a stripe with this version is under way.
pub fn is_under_way(version: u32) -> bool {
    version & 1 != 0
}

/// The version after this one, when an update begins or ends. It is never 0 again: 0 says that
/// nothing was written.
pub fn next_version(version: u32) -> u32 {
    match version.wrapping_add(1) {
        0 => 2,
        next => next,
    }
}

/// The groups of a process, and its stripes' versions.
pub(crate) struct Stripes {
    pub shape: Shape,
    pub unit: Unit,
    /// By slab index: in the lowest byte the seat, above it the group's number plus one. 0: the
    /// slab is in no group.
    seats: SparseArray<AtomicU64>,
    /// By group and seat: the slab index.
    members: SparseArray<AtomicU32>,
    /// By group and place.
    versions: SparseArray<AtomicU32>,
    /// Numbers of groups that are free: the first that was never used, and those that were given
    /// back.
    free: Lock<(u32, Vec<u32>)>,
}

impl Stripes {
    pub fn new(shape: Shape) -> Result<Stripes, Errno> {
        assert!(shape.data > 0 && shape.parity > 0 && shape.seats() <= MAX_SEATS);
        Ok(Stripes {
            shape,
            unit: Unit::best(),
            seats: SparseArray::new(MAX_SLABS)?,
            members: SparseArray::new(MAX_GROUPS * MAX_SEATS)?,
            versions: SparseArray::new(MAX_GROUPS * PLACES)?,
            free: Lock::new((0, Vec::new())),
        })
    }

    /// A copy for slab indices below `slabs`, as a forked child has it.
    #[cfg(feature = "lab")]
    pub fn twin(&self, slabs: usize) -> Result<Stripes, Errno> {
        let twin = Stripes::new(self.shape)?;
        let free = self.free.lock();
        let groups = free.0 as usize;
        let copy = |from: &SparseArray<AtomicU32>, to: &SparseArray<AtomicU32>, n: usize| {
            (0..n).for_each(|at| to[at].store(from[at].load(Ordering::Relaxed), Ordering::Relaxed));
        };
        (0..slabs).for_each(|at| twin.seats[at].store(self.seats[at].load(Ordering::Relaxed), Ordering::Relaxed));
        copy(&self.members, &twin.members, groups * MAX_SEATS);
        copy(&self.versions, &twin.versions, groups * PLACES);
        *twin.free.lock() = (free.0, free.1.clone());
        Ok(twin)
    }

    /// The group and the seat of a slab that has one.
    pub fn seat(&self, index: u32) -> Option<(u32, usize)> {
        let seat = self.seats[index as usize].load(Ordering::Acquire);
        (seat != 0).then(|| ((seat >> 8) as u32 - 1, (seat & 0xFF) as usize))
    }

    /// The slab in a seat of a group.
    pub fn member(&self, group: u32, seat: usize) -> u32 {
        self.members[group as usize * MAX_SEATS + seat].load(Ordering::Acquire)
    }

    /// The slabs of a group, data first.
    pub fn members(&self, group: u32) -> impl Iterator<Item = u32> {
        (0..self.shape.seats()).map(move |seat| self.member(group, seat))
    }

    /// The slot in a seat of a stripe.
    pub fn slot(&self, group: u32, seat: usize, place: u32) -> FarSlot {
        FarSlot::new(self.member(group, seat), place)
    }

    fn at(&self, group: u32, place: u32) -> &AtomicU32 {
        &self.versions[group as usize * PLACES + place as usize]
    }

    pub fn version(&self, group: u32, place: u32) -> u32 {
        self.at(group, place).load(Ordering::SeqCst)
    }

    /// An update of the stripe begins or ends. Only the lane of write-back calls it.
    pub fn turn(&self, group: u32, place: u32) {
        let version = self.at(group, place);
        version.store(next_version(version.load(Ordering::Relaxed)), Ordering::SeqCst);
    }

    /// Makes these slabs a group, and returns its number. Call it before the slabs' words are
    /// published.
    fn join(&self, indices: &[u32]) -> u32 {
        let mut free = self.free.lock();
        let group = free.1.pop().unwrap_or_else(|| {
            free.0 += 1;
            free.0 - 1
        });
        drop(free);
        for (seat, &index) in indices.iter().enumerate() {
            self.members[group as usize * MAX_SEATS + seat].store(index, Ordering::Release);
            self.seats[index as usize].store(u64::from(group + 1) << 8 | seat as u64, Ordering::Release);
        }
        group
    }

    /// Frees the number of a group whose slabs have all gone.
    fn disband(&self, group: u32) {
        self.members(group).for_each(|index| self.seats[index as usize].store(0, Ordering::Release));
        self.versions.clear(group as usize * PLACES, (group as usize + 1) * PLACES);
        self.free.lock().1.push(group);
    }
}

impl Slabs {
    /// Whether one of these slabs is closed; and the bytes of those slabs that take pages.
    pub(crate) fn takes(&self, indices: &[usize]) -> (bool, u64) {
        let all = || indices.iter().filter_map(|&index| self.list[index].as_ref());
        let takes = |slab: &&SlabSlots| !slab.closed && slab.seat != Seat::Parity;
        (all().any(|slab| slab.closed), all().filter(takes).count() as u64 * SLAB_BYTES)
    }
}

impl Tables {
    /// The group and the seat of a slab that has one.
    pub(crate) fn seat(&self, index: u32) -> Option<(&Stripes, u32, usize)> {
        let stripes = self.protection.stripes()?;
        stripes.seat(index).map(|(group, seat)| (stripes, group, seat))
    }

    /// The slabs that come and go with this one: itself, and the others of its group.
    pub fn beside(&self, index: u32) -> Vec<u32> {
        match self.seat(index) {
            Some((stripes, group, _)) => stripes.members(group).collect(),
            None => vec![index],
        }
    }

    /// Counts the seats of a group that have all their pages; those at `node` do not count.
    /// `filling`: seats that are being filled count too.
    fn seats_apart(&self, stripes: &Stripes, group: u32, node: Option<usize>, filling: bool) -> usize {
        let counts = |index: u32| {
            let word = self.homes.word(index);
            (0..HOMES).any(|nth| {
                let state = word.state(nth);
                let away = node.is_none_or(|node| self.homes.home(word, nth).node as usize != node);
                away && (state == State::Whole || filling && state == State::Filling)
            })
        };
        stripes.members(group).filter(|&index| counts(index)).count()
    }

    /// Whether the pages of a slab without a home follow from other seats.
    pub(crate) fn follows(&self, index: u32) -> bool {
        let Some((stripes, group, _)) = self.seat(index) else { return false };
        self.seats_apart(stripes, group, None, true) >= stripes.shape.data
    }

    /// Whether the pages of a slab would still be at a home, or follow from other seats, if `node`
    /// were lost.
    pub(crate) fn follows_without(&self, index: u32, node: usize) -> bool {
        let Some((stripes, group, _)) = self.seat(index) else { return false };
        self.seats_apart(stripes, group, Some(node), false) >= stripes.shape.data
    }

    /// The slab that takes slots when a row of this one is full: the next seat, so that pages that
    /// leave together fill stripes.
    pub(crate) fn next_in_row(&self, index: usize) -> usize {
        match self.seat(index as u32) {
            Some((stripes, group, seat)) => stripes.member(group, (seat + 1) % stripes.shape.data) as usize,
            None => index,
        }
    }

    /// The slabs that go with this one, itself among them. Empty if one of them holds a live slot.
    /// Of a group only the slab in seat 0 returns them, so that each group is found once.
    pub(crate) fn idle_with(&self, slabs: &Slabs, index: usize) -> Vec<usize> {
        let is_idle = |index: usize| slabs.list[index].as_ref().is_some_and(SlabSlots::is_idle);
        let all: Vec<usize> = match self.seat(index as u32) {
            None => vec![index],
            Some((stripes, group, 0)) => stripes.members(group).map(|index| index as usize).collect(),
            Some(_) => Vec::new(),
        };
        if all.iter().all(|&index| is_idle(index)) { all } else { Vec::new() }
    }

    /// A slab has been forgotten. If it was in seat 0 of a group, the group's number is freed: its
    /// other slabs are forgotten in the same step.
    pub(crate) fn forgotten(&self, index: u32) {
        if let Some((stripes, group, 0)) = self.seat(index) {
            stripes.disband(group);
        }
    }

    /// Places of a slab whose bytes a new home of it lacks. The caller holds the lock of the slabs
    /// until the home is in the word.
    ///
    /// A slab of a group lacks a place for either of two reasons. The place's stripe was written:
    /// even a slot that is free now counts, because the parity covers its bytes. Or a slot of the
    /// stripe is taken: its first update may be using the old word just now.
    pub(crate) fn lacking(&self, slabs: &Slabs, index: u32) -> Vec<u32> {
        let slots = |index: u32| slabs.list[index as usize].as_ref();
        let Some((stripes, group, _)) = self.seat(index) else {
            return slots(index).into_iter().flat_map(SlabSlots::taken).collect();
        };
        let mut lacks = vec![false; PLACES];
        stripes.members(group).filter_map(slots).flat_map(SlabSlots::taken).for_each(|at| lacks[at as usize] = true);
        let lacks = |at: &u32| lacks[*at as usize] || stripes.version(group, *at) != 0;
        (0..SLOTS_PER_SLAB).filter(lacks).collect()
    }

    /// The numbers of the nodes that hold slabs of this one's group, this slab's own node included.
    /// A node that was taken out and has joined again has two numbers, and both are named. If this
    /// slab's own node is being left, only its old number is named: the slab may move to the same
    /// node under its new one.
    pub(crate) fn nodes_beside(&self, index: u32) -> Vec<u32> {
        let nodes = self.nodes.all();
        let mut beside = Vec::new();
        for other in self.beside(index) {
            let word = self.homes.word(other);
            for home in (0..HOMES).filter(|&nth| word.state(nth) != State::Absent) {
                let number = self.homes.home(word, home).node;
                beside.push(number);
                let Some(node) = nodes.get(number as usize) else { continue };
                if other != index || node.standing() != Standing::Leaving {
                    let same = |at: &u32| nodes[*at as usize].session().is_beside(node.session());
                    beside.extend((0..nodes.len() as u32).filter(|at| *at != number).filter(same));
                }
            }
        }
        beside
    }
}

impl Grants<'_> {
    /// Adds a group of slabs, or one slab that is mapped here and needs no parity.
    pub(crate) fn grow_group(self, shape: Shape) -> Result<(), NoRoom> {
        let first = self.granted(&[])?;
        if first.base != 0 {
            return self.adopt([first, Home::NONE]);
        }
        if self.tables.nodes.is_wired(first.node) {
            self.decline(first);
            return Err(NoRoom::Exhausted("parity is not kept over RDMA: add --transport tcp".to_owned()));
        }
        let mut homes = vec![first];
        let mut refused = None;
        while homes.len() < shape.seats() && refused.is_none() {
            let beside: Vec<u32> = homes.iter().map(|home| home.node).collect();
            match self.granted_unmapped(&beside) {
                Ok(home) => homes.push(home),
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            None => {}
            // The program can go on with fewer homes, so it does not end here. Repair looks for
            // places for the rest.
            Some(_) if self.tables.nodes.any_lost() && homes.len() >= shape.data => {
                homes.resize(shape.seats(), Home::NONE);
            }
            Some(why) => {
                homes.into_iter().for_each(|home| self.decline(home));
                return Err(match why {
                    NoRoom::Exhausted(why) => {
                        NoRoom::Exhausted(format!("no {} nodes for a group of slabs: {why}", shape.seats()))
                    }
                    lost => lost,
                });
            }
        }
        self.adopt_group(shape, &homes)
    }

    /// Has a node grant a slab. Nodes whose memory is mapped here, nodes over RDMA, and the nodes
    /// `beside` are not asked.
    pub(crate) fn granted_unmapped(self, beside: &[u32]) -> Result<Home, NoRoom> {
        let mut asked = Vec::new();
        self.tables.nodes.to_ask(beside, &mut asked);
        let nodes = &self.tables.nodes;
        asked.retain(|&node| !nodes.all()[node].session().is_mapped() && !nodes.is_wired(node as u32));
        self.first_grant(&asked)
    }

    /// Makes slabs that nodes have granted one group of this process.
    fn adopt_group(self, shape: Shape, homes: &[Home]) -> Result<(), NoRoom> {
        let Some(stripes) = self.tables.protection.stripes() else { return Ok(()) };
        let changing = self.changes.now.lock();
        let nodes = self.tables.nodes.all();
        let there = || homes.iter().filter(|home| **home != Home::NONE);
        // If a node was lost or taken out since it answered, nothing is adopted, and the caller
        // asks other nodes.
        let are_in = there().all(|home| nodes[home.node as usize].standing() == Standing::In);
        let mut slabs = self.held.slabs.lock();
        let holes = (0..slabs.list.len()).filter(|&index| slabs.list[index].is_none());
        let holes = holes.chain(slabs.list.len()..MAX_SLABS).take(homes.len());
        let indices: Vec<u32> = holes.map(|index| index as u32).collect();
        let mut records = Vec::new();
        if are_in && indices.len() == homes.len() {
            records.extend(homes.iter().map_while(|&home| self.tables.homes.record([home, Home::NONE])));
        }
        if records.len() < homes.len() {
            records.into_iter().for_each(|record| self.tables.homes.free(record));
            drop(slabs);
            drop(changing);
            there().for_each(|&home| self.decline(home));
            return match are_in {
                false => Ok(()),
                true => Err(too_many_slabs()),
            };
        }
        stripes.join(&indices);
        for (seat, (&index, &record)) in indices.iter().zip(&records).enumerate() {
            slabs.serial += 1;
            let seat_of = if seat < shape.data { Seat::Data } else { Seat::Parity };
            let slab = SlabSlots::new(slabs.serial).in_group(seat_of);
            slabs.put(index as usize, slab);
            let state = if homes[seat] == Home::NONE { State::Absent } else { State::Whole };
            self.tables.homes.publish(index, Word::of(record).with_striped().with_state(0, state));
        }
        there().for_each(|home| {
            nodes[home.node as usize].held.fetch_add(1, Ordering::Relaxed);
        });
        self.held.capacity.fetch_add(shape.data as u64 * SLAB_BYTES, Ordering::Relaxed);
        Ok(())
    }
}

impl Moves<'_> {
    /// Gives a slab of a group a new home in place of the lost one, at a node that holds no slab of
    /// the group. The new home lacks all that was written.
    pub(crate) fn replace_home(self, index: u32) -> Result<(), NoRoom> {
        let gone = || NoRoom::Exhausted("the slab has gone, or has a home".to_owned());
        let lost = |word: Word| word.is_lost() && word.homes() == 0 && self.tables.follows(index);
        if !lost(self.tables.homes.word(index)) {
            return Err(gone());
        }
        let home = self.grants.granted_unmapped(&self.tables.nodes_beside(index))?;
        let changing = self.changes.now.lock();
        let node = &self.tables.nodes.all()[home.node as usize];
        let mut slabs = self.held.slabs.lock();
        let seen = self.tables.homes.word(index);
        let mut replaced = None;
        let own = slabs.list.get(index as usize).and_then(Option::as_ref).is_some_and(|slab| slab.sharers == 0);
        if own && lost(seen) && node.standing() == Standing::In {
            replaced = self.tables.homes.record([home, Home::NONE]).and_then(|record| {
                let next = seen.with_number(record).with_state(0, State::Filling).with_leaving(false);
                self.tables.lacking(&slabs, index).into_iter().for_each(|at| {
                    self.tables.homes.set_stale(next, 0, at, true);
                });
                let swapped = self.tables.homes.update(index, |word| (word == seen).then_some(next));
                swapped.map(|_| seen.number()).or_else(|| {
                    self.tables.homes.free(record);
                    None
                })
            });
        }
        match replaced {
            Some(record) => {
                node.held.fetch_add(1, Ordering::Relaxed);
                slabs.drop_later(Dropped { record: Some(record), ..Dropped::default() });
                self.held.reopen(&mut slabs, index);
                Ok(())
            }
            None => {
                drop(slabs);
                drop(changing);
                self.grants.decline(home);
                Err(gone())
            }
        }
    }
}

/// The numbers of data and parity slabs that a protection names, if it is parity.
pub(crate) fn shape_of(how: Protect) -> Option<Shape> {
    match how {
        Protect::Ec { data, parity } => Some(Shape { data: data as usize, parity: parity as usize }),
        _ => None,
    }
}
