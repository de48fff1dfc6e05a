//! An agent's blocks, sorted by the room they have: a piece comes out of the block that has room for it and for least
//! else, of these the fullest; so those that are thinned out empty themselves, and go back. As in `compute/agent`'s stock.

use std::collections::{BTreeMap, BTreeSet};

use farmem_protocol::extent::{Block, release};

use crate::allocators::BLOCK;

/// A block that the agent owns.
pub(super) struct Owned {
    pub(super) grant: release::Grant,
    pub(super) inside: Block,
    /// Heartbeats since anything was taken or given back.
    pub(super) idle: u32,
    /// Nothing is taken from it any more; what comes back meanwhile.
    pub(super) publishing: Option<Vec<u32>>,
    /// As it is sorted.
    room: Room,
}

/// One more than the largest order that there is room for, 0 if for none; free chunks.
type Room = (u8, u32);

impl Owned {
    pub(super) fn new(grant: release::Grant) -> Owned {
        Owned { grant, inside: Block::new(), idle: 0, publishing: None, room: (0, 0) }
    }

    fn room(&self) -> Room {
        match self.publishing {
            Some(_) => (0, 0),
            None => (self.inside.largest().map_or(0, |order| order + 1), BLOCK - self.inside.in_use()),
        }
    }
}

/// They, by number.
#[derive(Default)]
pub(super) struct Shelf {
    owned: BTreeMap<u32, Owned>,
    rooms: BTreeSet<(Room, u32)>,
}

impl Shelf {
    pub(super) fn insert(&mut self, block: u32, mut owned: Owned) {
        owned.room = owned.room();
        self.rooms.insert((owned.room, block));
        self.owned.insert(block, owned);
    }

    pub(super) fn remove(&mut self, block: u32) -> Option<Owned> {
        let owned = self.owned.remove(&block)?;
        self.rooms.remove(&(owned.room, block));
        Some(owned)
    }

    pub(super) fn get(&self, block: u32) -> Option<&Owned> {
        self.owned.get(&block)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Owned)> {
        self.owned.iter().map(|(&block, owned)| (block, owned))
    }

    pub(super) fn len(&self) -> usize {
        self.owned.len()
    }

    /// Changes what is in a block.
    pub(super) fn change<R>(&mut self, block: u32, change: impl FnOnce(&mut Owned) -> R) -> Option<R> {
        let owned = self.owned.get_mut(&block)?;
        let result = change(owned);
        let room = owned.room();
        if room != owned.room {
            self.rooms.remove(&(owned.room, block));
            self.rooms.insert((room, block));
            owned.room = room;
        }
        Some(result)
    }

    /// A heartbeat has passed.
    pub(super) fn beat(&mut self) {
        self.owned.values_mut().for_each(|owned| owned.idle += 1);
    }

    /// The block to take a run of this order from.
    pub(super) fn with_room(&self, order: u8) -> Option<u32> {
        self.rooms.range(((order + 1, 0), 0)..).next().map(|&(_, block)| block)
    }
}
