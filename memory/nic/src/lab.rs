//! Doors for the rack in virtual time (`lab/racksim`): what a node's words and members say, and the
//! bytes of its slabs, which a node that lies changes.
//!
//! A build without the feature `lab` has none of them.

use crate::Nic;
use crate::lending::Slab;
use farmem_protocol::addr::SlabId;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{Level, Place};
use farmem_protocol::extent::word::{State, Word};
use farmem_protocol::wire::Secret;
use std::sync::Arc;

/// What one member holds.
pub struct Holding {
    /// The run that it is of.
    pub run: Secret,
    /// The owner in whose name its run's slabs are claimed, as words name it.
    pub owner: u16,
    /// The slabs, by name.
    pub slabs: Vec<SlabId>,
}

impl Nic {
    /// What each member holds.
    pub fn holdings(&self) -> Vec<Holding> {
        let of = |member: &Arc<crate::members::Member>| Holding {
            run: member.run,
            owner: member.tenancy.owner().slot(),
            slabs: member.holds.lock().slabs.keys().copied().collect(),
        };
        self.members().iter().map(of).collect()
    }

    /// The words of all blocks, as they lie in the table.
    pub fn block_words(&self) -> Vec<u64> {
        let blocks = self.units.words.geometry().count(Level::Block);
        (0..blocks).map(|block| self.units.words.word(Place::block(block)).0).collect()
    }

    /// Forgets who owns a block: its word says that it is free, whoever holds it.
    pub fn forget_owner(&self, block: u32) {
        let place = Place::block(block);
        let word = self.units.words.word(place);
        self.units.words.set(place, Word::plain(State::Free, word.generation()));
    }

    /// Lets a member of another run hold a slab, too.
    pub fn hold_twice(&self) {
        let members = self.members();
        let slab =
            members.iter().find_map(|one| one.holds.lock().slabs.values().next().cloned().map(|slab| (one, slab)));
        if let Some((one, slab)) = slab
            && let Some(other) = members.iter().find(|other| other.run != one.run)
        {
            other.hold(slab);
        }
    }

    /// A slab that a member holds.
    fn held_slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.members().iter().find_map(|member| member.holds.lock().slabs.get(&id).cloned())
    }

    /// Bytes of a slab that a member holds. `None`: nobody holds it, or it ends before.
    pub fn peek(&self, id: SlabId, offset: u64, len: u32) -> Option<Vec<u8>> {
        self.held_slab(id)?.mapping.bytes(offset, len)
    }

    /// Puts other bytes in their place. Returns whether it did.
    pub fn poke(&self, id: SlabId, offset: u64, bytes: &[u8]) -> bool {
        self.held_slab(id).is_some_and(|slab| slab.mapping.write_bytes(offset, bytes))
    }
}
