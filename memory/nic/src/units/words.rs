//! The words of a node, in shared memory that hosts read and change by verbs.
//!
//! This part knows the layout of the table and nothing of memory, owners' quotas or cleaning.

use super::leases::Lease;
use super::{SLAB_BLOCKS, WordRight};
use farmem_protocol::extent::geometry::{Hint, LINE, Target};
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::{OwnerField, OwnerWord};
use farmem_protocol::extent::place::{BLOCK_BYTES, CHUNK_BYTES, Level, Place};
use farmem_protocol::extent::policy::Supply;
use farmem_protocol::extent::word::{Claimant, Owner, State, Word};
use farmem_protocol::extent::{Geometry, hints};
use farmem_sys::mapping::{Mapping, Memfd};
use std::sync::atomic::{AtomicU64, Ordering};

/// log2 of a slab's chunks, as its words' order.
const SLAB_ORDER: u8 = 14;

/// The table of words.
pub struct WordTable {
    geometry: Geometry,
    /// Where the words of chunks, blocks and giants begin, which admission needs quickly.
    levels: [u64; 3],
    mapping: Mapping,
}

impl WordTable {
    /// A table in which everything is free, half of the giants in one piece.
    ///
    /// # Panics
    /// When the system has no memory for it.
    pub(super) fn new(geometry: Geometry) -> WordTable {
        let bytes = geometry.table_bytes().next_multiple_of(4096);
        let memory = Memfd::new(bytes, false).and_then(|memfd| Mapping::new(memfd.fd(), bytes as usize));
        let mapping = memory.expect("a descriptor and address space for the word table");
        let first = |level| geometry.offset(Target::Word(Place { level, index: 0 })).expect("there is one of each");
        let words = WordTable { geometry, levels: Level::ALL.map(first), mapping };
        for level in [Level::Giant, Level::Block] {
            for index in 0..geometry.count(level) {
                let place = Place { level, index };
                words.set(place, geometry.initial(place, geometry.count(Level::Giant) / 2));
            }
        }
        words
    }

    /// The header is written when the node knows its incarnation.
    pub(crate) fn inscribe(&self, incarnation: u64) {
        for (at, bytes) in self.geometry.header(incarnation).chunks_exact(8).enumerate() {
            let word = bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | byte as u64);
            self.at(at as u64 * 8).store(word, Ordering::SeqCst);
        }
    }

    /// The layout of the table.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes lent at most.
    pub fn bytes(&self) -> u64 {
        self.geometry.lent_bytes()
    }

    /// A word of the table, by its offset, which was checked.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> &AtomicU64 {
        self.mapping.word(offset).expect("an aligned offset inside the table")
    }

    #[inline]
    pub(crate) fn offset(&self, target: Target) -> u64 {
        self.geometry.offset(target).expect("a target of this geometry")
    }

    pub(crate) fn load(&self, target: Target) -> u64 {
        self.at(self.offset(target)).load(Ordering::SeqCst)
    }

    /// The place of a unit's word, which exists.
    #[inline]
    pub(crate) fn word_at(&self, place: Place) -> u64 {
        debug_assert!(self.geometry.has(place));
        self.levels[place.level as usize - 1] + place.index as u64 * 8
    }

    pub(crate) fn set(&self, place: Place, word: Word) {
        self.at(self.word_at(place)).store(word.0, Ordering::SeqCst);
        self.follow(place, word);
    }

    /// Makes a word what no sound history makes it, to test those who look for damage. There is no
    /// such door in release builds.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn damage(&self, place: Place, word: Word) {
        self.at(self.word_at(place)).store(word.0, Ordering::SeqCst);
    }

    /// The hints, after a word has changed. They may be wrong at any time.
    pub(crate) fn follow(&self, place: Place, word: Word) {
        hints::follow(&self.geometry, place, word, |hint, set, clear| {
            let hint = self.at(self.offset(hint));
            if set != 0 {
                hint.fetch_or(set, Ordering::Relaxed);
            }
            if clear != 0 {
                hint.fetch_and(!clear, Ordering::Relaxed);
            }
        });
    }

    /// An unguarded CAS of a descriptor word by the node itself. Returns the word that it found.
    pub(crate) fn swap(&self, place: Place, old: Word, new: Word) -> u64 {
        let word = self.at(self.word_at(place));
        match word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) => {
                self.follow(place, new);
                found
            }
            Err(found) => found,
        }
    }

    /// Whether the word that admitted a verb still says so.
    #[inline]
    pub(crate) fn stands(&self, right: &WordRight) -> bool {
        self.at(right.word as u64 * 8).load(Ordering::SeqCst) == right.value
    }

    pub(crate) fn is_live(&self, who: &Lease) -> bool {
        self.owner(who.owner()).admits(who.incarnation())
    }

    /// Whether a READ of the table stays within it, and reads whole words.
    pub(crate) fn is_readable(&self, offset: u64, len: u32) -> bool {
        let end = offset.checked_add(len as u64);
        offset.is_multiple_of(8) && len.is_multiple_of(8) && end.is_some_and(|end| end <= self.geometry.table_bytes())
    }

    /// Reads whole words of the table, each by itself, from a range that is readable.
    pub(crate) fn read_into(&self, offset: u64, len: usize, into: &mut Vec<u8>) {
        into.reserve(len);
        for at in (offset..offset + len as u64).step_by(8) {
            into.extend_from_slice(&self.at(at).load(Ordering::Acquire).to_le_bytes());
        }
    }

    /// Bytes of units, slabs not included, that are held or not clean yet. Counted by each call.
    pub fn held(&self) -> u64 {
        let mut chunks = 0;
        for block in (0..self.geometry.count(Level::Block)).map(Place::block) {
            let word = self.word(block);
            let all = self.geometry.chunks_of(Level::Block) as u64;
            chunks += match word.state() {
                State::Owned if word.claimant() == Claimant::SLAB => 0,
                State::Owned | State::Quarantine => all,
                State::Shared | State::Splitting | State::Merging => {
                    let inside = self.geometry.chunks(block);
                    inside.filter(|&c| !matches!(self.word(Place::chunk(c)).state(), State::Free | State::Bad)).count()
                        as u64
                }
                State::Free | State::Bad => 0,
                // A giant in one piece.
                State::Absent => match self.geometry.parent(block).map(|giant| self.word(giant).state()) {
                    Some(State::Owned | State::Quarantine) => all,
                    _ => 0,
                },
            };
        }
        chunks * CHUNK_BYTES
    }

    /// A step of an owner's word. Only the node makes these.
    pub(crate) fn lease_word(&self, owner: Owner, step: impl FnOnce(OwnerWord) -> Option<OwnerWord>) {
        if let Some(next) = step(self.owner(owner)) {
            self.at(self.offset(Target::Owner(owner, OwnerField::Word))).store(next.0, Ordering::SeqCst);
        }
    }

    /// Blocks that their hints call free, from the first on: slabs begin at the other end.
    pub(crate) fn free_by_hint(&self) -> impl Iterator<Item = u32> {
        (0..self.geometry.lines(Level::Block)).flat_map(move |line| {
            let bits = self.load(Target::Hint { about: Hint::FreeBlocks, line });
            (0..LINE).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| line * LINE + bit)
        })
    }

    /// Bytes of blocks that are whole and free, by their hints.
    pub(crate) fn free_bytes(&self) -> u64 {
        let (giants, blocks) = self.supply();
        (giants.free as u64 * self.geometry.fanout(Level::Giant) as u64 + blocks.free as u64) * BLOCK_BYTES
    }

    /// Giants, and of these those in one piece and free; blocks of the others, and of these the
    /// free ones, by the hints.
    pub(crate) fn supply(&self) -> (Supply, Supply) {
        let free_giants =
            (0..self.geometry.count(Level::Giant)).filter(|&n| self.word(Place::giant(n)).is(State::Free));
        let giants = Supply { all: self.geometry.count(Level::Giant), free: free_giants.count() as u32 };
        let hints = (0..self.geometry.lines(Level::Block)).map(|line| Target::Hint { about: Hint::FreeBlocks, line });
        let free = hints.map(|hint| self.load(hint).count_ones()).sum();
        let whole = giants.free * self.geometry.fanout(Level::Giant);
        let blocks = Supply { all: self.geometry.count(Level::Block).saturating_sub(whole), free };
        (giants, blocks)
    }

    pub(super) fn claim_neighbours(&self, owner: Owner) -> Option<u32> {
        // From the end: hosts' own claims begin wherever their search does, and compact slabs leave
        // them room.
        let firsts = (0..self.geometry.count(Level::Block)).step_by(SLAB_BLOCKS as usize).rev();
        for first in firsts {
            let claimed = (first..first + SLAB_BLOCKS).take_while(|&block| self.claim_slab_block(block, owner)).count();
            if claimed == SLAB_BLOCKS as usize {
                return Some(first);
            }
            self.free_blocks(first, claimed as u32);
        }
        None
    }

    pub(super) fn claim_slab_block(&self, block: u32, owner: Owner) -> bool {
        let place = Place::block(block);
        let old = self.word(place);
        let Some(next) = old.generation().next() else { return false };
        let new = Word::new(State::Owned, owner, SLAB_ORDER, Claimant::SLAB, next);
        old.is(State::Free) && !old.generation().is_worn() && self.swap(place, old, new) == old.0
    }

    pub(super) fn free_blocks(&self, first: u32, count: u32) {
        for place in (first..first + count).map(Place::block) {
            let old = self.word(place);
            let next = old.generation().next().unwrap_or(old.generation());
            let state = if next.is_worn() { State::Bad } else { State::Free };
            // Only this thread changes these words. They do not go by a quarantine that others
            // could see. There is nothing to clean, and the keeper, which might start to, relies on
            // ending every quarantine itself.
            self.swap(place, old, Word::plain(state, next));
        }
    }
}

impl Words for WordTable {
    #[inline]
    fn word(&self, place: Place) -> Word {
        Word(self.at(self.word_at(place)).load(Ordering::SeqCst))
    }

    #[inline]
    fn owner(&self, owner: Owner) -> OwnerWord {
        OwnerWord(self.load(Target::Owner(owner, OwnerField::Word)))
    }
}
