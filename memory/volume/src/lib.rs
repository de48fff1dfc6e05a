//! Where the pages of a swap volume lie. Pure: no I/O, no clock, no memory but its own tables.
//!
//! ```text
//!  slot ──► Empty                         never written, or trimmed: reads as zero
//!       ──► Filled(word)                  a page of one repeated word: takes no memory
//!       ──► At(chunk) ──► block, index    4 KiB in one of the blocks of 2 MiB that the volume holds
//! ```
//!
//! The host names slots and nothing else, so the node may put a page wherever it likes, and move it
//! later. Three rules keep the memory held close to the memory live:
//!
//! * A new page goes to the fullest block that has room, so that sparse blocks run empty by
//!   themselves.
//! * An empty block is given back at once ([`Volume::empty`]).
//! * When more than a twentieth of the blocks could be spared, pages of the sparsest block move to
//!   the fullest ([`Volume::compact`]).
//!
//! A host may report single slots that it has freed ([`Volume::freed`]). The report comes late, and
//! the slot may be in use again. So the host first asks for a [`Volume::mark`]. A slot that was
//! written after the mark is kept.
//!
//! The caller holds the memory. It claims a block when [`Volume::place`] asks for one, copies what
//! [`Volume::compact`] moves, and does both under the lock that guards the volume.
//!
//! * This file: slots. `blocks`: chunks and blocks. `fills`: repeated words.

#![forbid(unsafe_code)]

mod blocks;
mod fills;

pub use blocks::{BLOCK_CHUNKS, Chunk};
pub use fills::{MAX_FILLS, repeated};

use blocks::Blocks;
use fills::Fills;

/// Slots of one leaf of the table: as many as the kernel's swap has in a cluster.
const LEAF: usize = 512;
/// The most slots of a volume: 4 TiB.
pub const MAX_SLOTS: u32 = 1 << 30;
/// Marks an entry that names a repeated word.
const FILLED: u32 = 1 << 31;

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing: it reads as zero.
    Empty,
    /// This word, 512 times.
    Filled(u64),
    /// The bytes of a chunk.
    At(Chunk),
}

/// No block has room for another page: claim one and [`Volume::add_block`] it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// A page that moves. The caller copies its 4 KiB before any thread looks at the slot again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// From here.
    pub from: Chunk,
    /// To there: a chunk that holds no page.
    pub to: Chunk,
}

/// How many slots and blocks are in use.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Slots that have a chunk.
    pub live: u32,
    /// Slots that are a repeated word.
    pub filled: u32,
    /// Blocks held.
    pub blocks: u32,
}

/// The entries of neighbouring slots. A leaf exists while any of them is not empty.
#[derive(Clone, Debug)]
struct Leaf {
    /// Entries that are not empty.
    used: u16,
    /// 0: empty. [`FILLED`] with an index of `fills`. Else one more than a chunk's number.
    entries: [u32; LEAF],
    /// The low bits of [`Volume::era`] at each slot's last write.
    written: [u16; LEAF],
}

/// A volume's tables.
#[derive(Debug)]
pub struct Volume {
    slots: u32,
    leaves: Vec<Option<Box<Leaf>>>,
    blocks: Blocks,
    fills: Fills,
    filled: u32,
    /// Counts marks: one more for each mark that had a write before it since the last.
    era: u64,
    /// Whether anything was written in this era.
    wrote: bool,
}

impl Volume {
    /// An empty volume of `slots` slots. Its tables take 6 bytes for each slot of a leaf that is in
    /// use. They take 4 for each chunk of a block that is held.
    ///
    /// # Panics
    /// With more than [`MAX_SLOTS`].
    pub fn new(slots: u32) -> Volume {
        assert!(slots <= MAX_SLOTS, "a volume has at most {MAX_SLOTS} slots");
        let leaves = vec![None; (slots as usize).div_ceil(LEAF)];
        let (blocks, fills) = (Blocks::default(), Fills::default());
        Volume { slots, leaves, blocks, fills, filled: 0, era: 1, wrote: false }
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// How many slots and blocks are in use.
    pub fn usage(&self) -> Usage {
        Usage { live: self.blocks.live(), filled: self.filled, blocks: self.blocks.count() }
    }

    /// The content of a slot. A slot beyond the end is empty.
    pub fn look(&self, slot: u32) -> Content {
        match self.entry(slot) {
            0 => Content::Empty,
            entry if entry & FILLED != 0 => Content::Filled(self.fills.word(entry & !FILLED)),
            entry => Content::At(self.blocks.chunk(entry - 1)),
        }
    }

    /// The chunk to which the caller writes the bytes of a slot: the slot's own if it has one, or
    /// else a new one. From now on the slot's content is that chunk, so the caller must overwrite
    /// all 4 KiB of it.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing has changed then.
    ///
    /// # Panics
    /// With a slot beyond the end, as [`Volume::fill`] and [`Volume::trim`].
    pub fn place(&mut self, slot: u32) -> Result<Chunk, NoRoom> {
        let entry = self.entry(slot);
        if entry != 0 && entry & FILLED == 0 {
            self.stamp(slot);
            return Ok(self.blocks.chunk(entry - 1));
        }
        let number = self.blocks.take(slot).ok_or(NoRoom)?;
        self.drop_entry(entry);
        self.set(slot, number + 1);
        self.stamp(slot);
        Ok(self.blocks.chunk(number))
    }

    /// The slot is a repeated word from now on. False when there are too many different words
    /// already: the page then takes a chunk as any other.
    #[must_use]
    pub fn fill(&mut self, slot: u32, word: u64) -> bool {
        let Some(index) = self.fills.take(word) else { return false };
        self.drop_entry(self.entry(slot));
        self.set(slot, FILLED | index);
        self.stamp(slot);
        self.filled += 1;
        true
    }

    /// The slot holds nothing any more.
    pub fn trim(&mut self, slot: u32) {
        let entry = self.entry(slot);
        if entry != 0 {
            self.drop_entry(entry);
            self.set(slot, 0);
        }
    }

    /// Returns a moment in the order of writes. Every write so far is before it, and every later
    /// one after it.
    pub fn mark(&mut self) -> u64 {
        if std::mem::take(&mut self.wrote) {
            self.era += 1;
        }
        self.era - 1
    }

    /// The host freed the slot after it had learned this mark. The slot holds nothing any more,
    /// unless it was written after the mark: then its bytes may be those of its next use. True: it
    /// holds nothing.
    ///
    /// A mark that this volume never gave frees no slot.
    pub fn freed(&mut self, slot: u32, mark: u64) -> bool {
        let leaf = self.leaves.get(slot as usize / LEAF).and_then(Option::as_ref);
        let Some(leaf) = leaf.filter(|_| self.entry(slot) != 0) else { return true };
        // Only the low 16 bits of an era are kept with a slot. A longer age looks shorter than it
        // is, so the page may be kept.
        let age = (self.era as u16).wrapping_sub(leaf.written[slot as usize % LEAF]);
        let old = self.era.checked_sub(mark).is_some_and(|since| since > 0 && u64::from(age) >= since);
        if old {
            self.trim(slot);
        }
        old
    }

    /// The first slot from this one on, before `end`, that is not empty. Absent leaves are stepped
    /// over.
    pub fn next_used(&self, slot: u32, end: u32) -> Option<u32> {
        let (mut at, end) = (slot, end.min(self.slots));
        while at < end {
            match &self.leaves[at as usize / LEAF] {
                None => at = (at / LEAF as u32 + 1) * LEAF as u32,
                Some(leaf) if leaf.entries[at as usize % LEAF] != 0 => return Some(at),
                Some(_) => at += 1,
            }
        }
        None
    }

    /// Adds a block that the caller has claimed. No other block of the volume may have this name.
    pub fn add_block(&mut self, name: u32) {
        self.blocks.add(name);
    }

    /// Takes out a block that holds no page. The caller gives its memory back.
    pub fn empty(&mut self) -> Option<u32> {
        self.blocks.take_empty()
    }

    /// Takes out all blocks: the volume is gone.
    pub fn clear(&mut self) -> Vec<u32> {
        let blocks = std::mem::take(&mut self.blocks);
        (self.leaves, self.fills, self.filled) = (vec![None; self.leaves.len()], Fills::default(), 0);
        blocks.names()
    }

    /// Whether [`Volume::compact`] would move something.
    pub fn is_sparse(&self) -> bool {
        self.blocks.is_sparse()
    }

    /// Moves one page of the sparsest block to the fullest that has room. `None`: nothing needs to
    /// move.
    pub fn compact(&mut self) -> Option<Move> {
        let (old, new, slot) = self.blocks.compact()?;
        let moved = Move { from: self.blocks.chunk(old), to: self.blocks.chunk(new) };
        self.blocks.free(old);
        self.set(slot, new + 1);
        Some(moved)
    }

    fn entry(&self, slot: u32) -> u32 {
        let leaf = self.leaves.get(slot as usize / LEAF).and_then(Option::as_ref);
        leaf.map_or(0, |leaf| leaf.entries[slot as usize % LEAF])
    }

    fn set(&mut self, slot: u32, entry: u32) {
        assert!(slot < self.slots, "a slot of this volume");
        let place = &mut self.leaves[slot as usize / LEAF];
        let leaf = place.get_or_insert_with(|| Box::new(Leaf { used: 0, entries: [0; LEAF], written: [0; LEAF] }));
        let old = std::mem::replace(&mut leaf.entries[slot as usize % LEAF], entry);
        leaf.used += u16::from(entry != 0);
        leaf.used -= u16::from(old != 0);
        if leaf.used == 0 {
            *place = None;
        }
    }

    /// The slot, which is not empty, was written now.
    fn stamp(&mut self, slot: u32) {
        self.wrote = true;
        if let Some(leaf) = &mut self.leaves[slot as usize / LEAF] {
            leaf.written[slot as usize % LEAF] = self.era as u16;
        }
    }

    /// Gives back what an entry stands for.
    fn drop_entry(&mut self, entry: u32) {
        match entry {
            0 => {}
            entry if entry & FILLED != 0 => {
                self.fills.release(entry & !FILLED);
                self.filled -= 1;
            }
            entry => self.blocks.free(entry - 1),
        }
    }

    /// Checks every table against every other, for tests. An error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (mut live, mut filled) = (0, 0);
        for slot in 0..self.slots {
            match self.entry(slot) {
                0 => {}
                entry if entry & FILLED != 0 => filled += 1,
                entry => {
                    live += 1;
                    let owner = self.blocks.slot_of(entry - 1);
                    if owner != Some(slot) {
                        return Err(format!("slot {slot} has a chunk of {owner:?}"));
                    }
                }
            }
        }
        if (live, filled, self.fills.references()) != (self.blocks.live(), self.filled, self.filled) {
            return Err(format!("{live} live, {filled} filled; counted {:?}", self.usage()));
        }
        self.blocks.check()
    }
}
