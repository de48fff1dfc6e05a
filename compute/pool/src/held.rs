//! The slabs that a process holds, under one lock.

use crate::fork::{Share, SharedPlace};
use crate::homes::{HOMES, Home, State, Word};
use crate::moves::Dropped;
use crate::protect::disk::DISK;
use crate::slab::{Seat, SlabSlots};
use crate::tables::Tables;
use farmem_protocol::addr::{FarSlot, SLAB_BYTES};
use farmem_sys::sync::Lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The slabs, and counts of them that are read without the lock.
pub(crate) struct Held {
    pub slabs: Lock<Slabs>,
    /// Bytes of slabs that take pages.
    pub capacity: AtomicU64,
    /// Slots that are taken.
    pub used: AtomicU64,
    /// Some slab may be marked to leave a node that needs its memory.
    pub marked: AtomicBool,
}

/// The slabs, by index.
#[derive(Default)]
pub(crate) struct Slabs {
    pub list: Vec<Option<SlabSlots>>,
    /// Slabs so far.
    pub serial: u64,
    /// Where the last allocation ended: the next one goes on from there, so that pages that leave
    /// together lie together.
    pub cursor: usize,
    /// Runs of idle blocks on their way back to a node: their slots are taken, and free soon.
    pub returning: u32,
    pub shares: Vec<Share>,
    /// Places on the disk that slabs have left while a fork shares these.
    pub places: Vec<SharedPlace>,
    /// Homes that no word names any more, oldest first, with the number of each.
    pub dropped: VecDeque<(u64, Dropped)>,
    pub drops: u64,
}

impl Slabs {
    /// Marks slots free; how many were taken.
    pub fn give_back(&mut self, slots: &[FarSlot]) -> u64 {
        let mut given = 0;
        for slot in slots {
            if let Some(slab) = &mut self.list[slot.slab_index() as usize]
                && slab.give_back(slot.place())
            {
                given += 1;
            }
        }
        given
    }

    /// Puts a new slab under an index: that of a hole, or the next one.
    pub fn put(&mut self, index: usize, slab: SlabSlots) {
        match self.list.get_mut(index) {
            Some(hole) => *hole = Some(slab),
            None => self.list.push(Some(slab)),
        }
    }
}

impl Held {
    pub fn new() -> Held {
        let [capacity, used] = [0; 2].map(AtomicU64::new);
        Held { slabs: Lock::new(Slabs::default()), capacity, used, marked: AtomicBool::new(false) }
    }

    /// Bytes of the slabs that take pages.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Forgets a slab without a live slot. No thread can still use its record. The caller releases
    /// its homes, without the lock.
    pub fn remove(&self, tables: &Tables, slabs: &mut Slabs, index: usize) -> Option<[Home; HOMES]> {
        let slab = slabs.list[index].take()?;
        if !slab.closed && slab.seat != Seat::Parity {
            self.capacity.fetch_sub(SLAB_BYTES, Ordering::Relaxed);
        }
        let word = tables.homes.word(index as u32);
        // Others read a shared slab's place on the disk: it is given up when they have gone.
        let stays = |home: Home| home.node == DISK && slab.sharers > 0;
        let there = |home: &usize| word.state(*home) != State::Absent;
        let home = |home: usize| Some(home).filter(there).map(|home| tables.homes.home(word, home));
        let homes = std::array::from_fn(|nth| home(nth).filter(|home| !stays(*home)).unwrap_or(Home::NONE));
        let place = (0..HOMES).filter_map(home).find(|home| stays(*home));
        slabs.places.extend(place.map(|home| SharedPlace { serial: slab.serial, sharers: slab.sharers, home }));
        tables.homes.publish(index as u32, Word::FREE);
        tables.homes.free(word.number());
        tables.sealed.forget(index);
        Some(homes)
    }

    /// A slab takes new pages again.
    pub fn reopen(&self, slabs: &mut Slabs, index: u32) {
        if let Some(slab) = slabs.list[index as usize].as_mut().filter(|slab| slab.closed) {
            slab.closed = false;
            if slab.seat != Seat::Parity {
                self.capacity.fetch_add(SLAB_BYTES, Ordering::Relaxed);
            }
        }
    }
}
