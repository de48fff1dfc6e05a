//! Questions of consumers about a slot. An answer holds for one transfer: the next answer may be
//! another.

use crate::Pool;
use crate::homes::{HOMES, Home, State, Word};
use crate::protect::disk::DISK;
use crate::tables::Tables;
use farmem_protocol::addr::FarSlot;

/// How changed lines of a page travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Gathered with other pages' in records ([`crate::Lane::lines`]).
    Records,
    /// By a WRITE for each run of neighbouring lines: to a card, which takes no records.
    Writes,
    /// With the same lines of the parity ([`crate::Lane::change`]).
    Stripes,
}

impl Pool {
    /// The slot's bytes in this process, if they may be read where they are. They stay there, and
    /// stay readable, until every thread has left the consumer once; they change only by the
    /// consumer's own write-backs.
    #[inline]
    pub fn readable_in_place(&self, slot: FarSlot) -> Option<*const u8> {
        let word = self.tables.homes.word(slot.slab_index());
        if word.is_single() {
            return in_place(self.tables.homes.home(word, 0), slot).map(<*mut u8>::cast_const);
        }
        self.tables.one_readable_in_place(word, slot)
    }

    /// The slot's bytes in this process, if a page that leaves may be laid there and needs to go
    /// nowhere else. The writing thread asks for each page, and uses the answer before the page
    /// leaves the consumer.
    #[inline]
    pub fn writable_in_place(&self, slot: FarSlot) -> Option<*mut u8> {
        let word = self.tables.homes.word(slot.slab_index());
        // Parity would not follow.
        if word.is_striped() {
            return None;
        }
        if word.is_single() {
            return in_place(self.tables.homes.home(word, 0), slot);
        }
        self.tables.only_one_in_place(word, slot)
    }

    /// How changed lines may be laid onto what the slot holds: every home that takes pages has it.
    /// `None`: the page goes whole.
    #[inline]
    pub fn takes_lines(&self, slot: FarSlot) -> Option<By> {
        let word = self.tables.homes.word(slot.slab_index());
        if word.is_striped() {
            return self.tables.takes_changes(word, slot).then_some(By::Stripes);
        }
        // The disk gets whole pages beside the nodes' lines.
        let on_disk = |home: usize| self.tables.homes.home(word, home).node == DISK;
        let taking = || (0..HOMES).filter(|&home| word.takes_pages(home) && !on_disk(home));
        let has = |home| word.reads(home, || self.tables.homes.is_stale(word, home, slot.place()));
        let node = |home| &self.tables.nodes.all()[self.tables.homes.home(word, home).node as usize];
        let records = |home| node(home).takes_records();
        match taking().all(has) && taking().next().is_some() {
            true if taking().all(records) => Some(By::Records),
            true => Some(By::Writes),
            false => None,
        }
    }

    /// Whether a slot's slab is of a group, so that parity changes with the slot.
    #[inline]
    pub fn has_parity(&self, slot: FarSlot) -> bool {
        self.tables.homes.word(slot.slab_index()).is_striped()
    }

    /// Homes that a record of lines of this slot's slab may go to.
    pub fn copies(&self, slot: FarSlot) -> usize {
        let word = self.tables.homes.word(slot.slab_index());
        let on_disk = |home: usize| self.tables.homes.home(word, home).node == DISK;
        let takes = |home: &usize| word.state(*home) != State::Absent && !on_disk(*home);
        (0..HOMES).filter(takes).count()
    }

    /// The homes of a slab, each by its node, as they are now.
    pub fn homes(&self, index: u32) -> [Option<(usize, State)>; HOMES] {
        self.tables.homes_of(index)
    }

    /// Whether a slot may be overwritten: no other process can reach it, and its node is not being
    /// left. Takes no lock.
    #[inline]
    pub fn is_own(&self, slot: FarSlot) -> bool {
        self.tables.homes.word(slot.slab_index()).is_own()
    }

    /// Whether anybody may need a slot's bytes: it is taken, or a fork shares its slab.
    pub(crate) fn is_taken(&self, slot: FarSlot) -> bool {
        let slabs = self.held.slabs.lock();
        let slab = slabs.list.get(slot.slab_index() as usize).and_then(Option::as_ref);
        slab.is_none_or(|slab| slab.sharers > 0 || slab.has_taken(slot.place()))
    }
}

impl Tables {
    #[cold]
    fn one_readable_in_place(&self, word: Word, slot: FarSlot) -> Option<*const u8> {
        let (_, home) = self.homes.reader(word, slot, |home| home.base != 0)?;
        in_place(home, slot).map(<*mut u8>::cast_const)
    }

    #[cold]
    fn only_one_in_place(&self, word: Word, slot: FarSlot) -> Option<*mut u8> {
        let mut homes = (0..HOMES).filter(|&home| word.state(home) != State::Absent);
        let only = homes.next().filter(|&home| homes.next().is_none() && word.state(home) == State::Whole)?;
        in_place(self.homes.home(word, only), slot)
    }
}

/// Where a slot is in this process, at a home that is mapped.
#[inline]
fn in_place(home: Home, slot: FarSlot) -> Option<*mut u8> {
    (home.base != 0).then(|| (home.base + slot.offset() as usize) as *mut u8)
}
