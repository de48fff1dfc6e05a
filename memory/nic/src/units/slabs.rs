//! Slabs: 32 neighbouring blocks, claimed by the node in the name of a run.

use super::{SLAB_BLOCKS, Units};
use crate::lending::NoSlab;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{CHUNK_BYTES, Level, Place};
use farmem_protocol::extent::word::Owner;

/// Chunks of a slab.
const SLAB_CHUNKS: i64 = (SLAB_BYTES / CHUNK_BYTES) as i64;

impl Units {
    /// Claims the words of a slab's blocks for an owner. Returns the first of them. Fails if no 32
    /// neighbours are free and no giant can be split, or if the owner's quota is used up.
    pub(crate) fn claim_slab(&self, owner: Owner) -> Result<u32, NoSlab> {
        let _claiming = self.claiming(SLAB_BYTES).ok_or(NoSlab::Exhausted)?;
        if !self.charge(owner, SLAB_CHUNKS) {
            return Err(NoSlab::Quota(self.reached(owner, SLAB_CHUNKS as u64)));
        }
        let giants = (0..self.words.geometry().count(Level::Giant)).rev().map(Place::giant);
        self.claim_or_split(giants, || self.words.claim_neighbours(owner)).ok_or_else(|| {
            self.count(owner, -SLAB_CHUNKS);
            NoSlab::Exhausted
        })
    }

    /// A slab is gone, and its bytes with it: no verb of anybody's is under way on it.
    pub(crate) fn free_slab(&self, first: u32) {
        let owner = self.words.word(Place::block(first)).owner();
        self.words.free_blocks(first, SLAB_BLOCKS);
        self.count(owner, -SLAB_CHUNKS);
        self.merge_around(Place::block(first));
    }
}
