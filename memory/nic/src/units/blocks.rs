//! Blocks that the node claims one by one, in the name of a volume.

use super::{Lease, Units};
use crate::lending::NoSlab;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{Level, Place};
use farmem_protocol::extent::word::{Claimant, State, Word};
use std::sync::atomic::Ordering;

/// Chunks of a block.
const CHUNKS: i64 = 512;
/// Their bytes.
const BLOCK_BYTES: u64 = 2 << 20;
/// Their log2, as the words' order.
const ORDER: u8 = 9;

impl Units {
    /// Claims a free block for a volume. Its bytes are zero. `promised`: memory was promised to this
    /// volume. What was promised to others is not taken for one that has no promise.
    pub(crate) fn claim_block(&self, lease: &Lease, promised: bool) -> Result<u32, NoSlab> {
        if !promised && !self.is_unpromised(BLOCK_BYTES) {
            return Err(NoSlab::Exhausted);
        }
        let owner = lease.owner();
        if !self.charge(owner, CHUNKS) {
            return Err(NoSlab::Quota(self.quota_of(owner)));
        }
        // The arena's memory is there before a word says that somebody has it.
        if let Err(e) = self.arena() {
            self.charge(owner, -CHUNKS);
            return Err(NoSlab::System(e));
        }
        // Before the claim, because the burial of an owner looks for its words.
        lease.has_claimed();
        loop {
            for block in self.words.free_by_hint() {
                let place = Place::block(block);
                let old = self.words.word(place);
                let Some(next) = old.generation().next() else { continue };
                let new = Word::new(State::Owned, owner, ORDER, Claimant::default(), next);
                if old.is(State::Free) && !old.generation().is_worn() && self.words.swap(place, old, new) == old.0 {
                    return Ok(block);
                }
            }
            let mut whole = (0..self.words.geometry().count(Level::Giant)).map(Place::giant);
            match whole.find(|&giant| self.words.word(giant).is(State::Free)) {
                Some(giant) => self.split(giant),
                None => {
                    self.charge(owner, -CHUNKS);
                    return Err(NoSlab::Exhausted);
                }
            }
        }
    }

    /// Gives a block of a volume back: it is made clean, and free.
    pub(crate) fn release_block(&self, lease: &Lease, block: u32) {
        let place = Place::block(block);
        let old = self.words.word(place);
        if !old.is_held_by(lease.owner()) {
            return;
        }
        let next = old.generation().next().unwrap_or(old.generation());
        // Only the owner changes the word of a live owner.
        if self.words.swap(place, old, Word::plain(State::Quarantine, next)) == old.0 {
            self.charge(lease.owner(), -CHUNKS);
            self.reclaim(place);
        }
    }

    /// Bytes that volumes may still claim, by what was promised to them.
    #[inline]
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Bytes that are promised in addition, or fewer.
    pub(crate) fn promise(&self, bytes: i64) {
        self.promised.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether anything but a volume may claim this many bytes: promised bytes stay free.
    #[inline]
    pub(crate) fn is_unpromised(&self, bytes: u64) -> bool {
        let promised = self.promised();
        promised == 0 || self.words.free_bytes() >= promised + bytes
    }
}
