//! Slabs: 32 neighbouring blocks, claimed by the node in the name of a run.

use super::{SLAB_BLOCKS, Units};
use crate::lending::NoSlab;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{CHUNK_BYTES, Level, Place};
use farmem_protocol::extent::word::{Claimant, Owner, State, Word};

/// Chunks of a slab.
const SLAB_CHUNKS: i64 = (SLAB_BYTES / CHUNK_BYTES) as i64;
/// log2 of a slab's chunks, as its words' order.
const SLAB_ORDER: u8 = 14;

impl Units {
    /// Claims the words of a slab's blocks for an owner. Returns the first of them. Fails if no 32
    /// neighbours are free and no giant can be split, or if the owner's quota is used up.
    pub(crate) fn claim_slab(&self, owner: Owner) -> Result<u32, NoSlab> {
        if !self.is_unpromised(SLAB_BYTES) {
            return Err(NoSlab::Exhausted);
        }
        if !self.charge(owner, SLAB_CHUNKS) {
            return Err(NoSlab::Quota(self.least_quota_of(owner)));
        }
        loop {
            if let Some(first) = self.claim_neighbours(owner) {
                return Ok(first);
            }
            let mut whole = (0..self.geometry.count(Level::Giant)).rev().map(Place::giant);
            match whole.find(|&giant| self.word(giant).is(State::Free)) {
                Some(giant) => self.split(giant),
                None => {
                    self.charge(owner, -SLAB_CHUNKS);
                    return Err(NoSlab::Exhausted);
                }
            }
        }
    }

    fn claim_neighbours(&self, owner: Owner) -> Option<u32> {
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

    fn claim_slab_block(&self, block: u32, owner: Owner) -> bool {
        let place = Place::block(block);
        let old = self.word(place);
        let Some(next) = old.generation().next() else { return false };
        let new = Word::new(State::Owned, owner, SLAB_ORDER, Claimant::SLAB, next);
        old.is(State::Free) && !old.generation().is_worn() && self.swap(place, old, new) == old.0
    }

    /// A slab is gone, and its bytes with it: no verb of anybody's is under way on it.
    pub(crate) fn free_slab(&self, first: u32) {
        let owner = self.word(Place::block(first)).owner();
        self.free_blocks(first, SLAB_BLOCKS);
        self.charge(owner, -SLAB_CHUNKS);
        self.merge_around(Place::block(first));
    }

    fn free_blocks(&self, first: u32, count: u32) {
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
