//! An agent's blocks, sorted by the room they have: a piece comes out of the block that has room for it and for least
//! else, of these the fullest; so those that are thinned out empty themselves, and go back. As in `compute/agent`'s stock.

use std::collections::{BTreeMap, BTreeSet};

use farmem_protocol::extent::{Block, release};

use crate::allocators::{BLOCK, BLOCK_ORDER};

/// A block that the agent owns.
pub(super) struct Owned {
    pub(super) grant: release::Grant,
    pub(super) inside: Block,
    /// A client has it in one piece. (`inside` has the two halves.)
    whole: bool,
    /// The heartbeat in which anything was last taken or given back.
    since: u32,
    /// Nothing is taken from it any more; what comes back meanwhile.
    pub(super) publishing: Option<Vec<u32>>,
    /// As it is sorted.
    room: Room,
}

/// One more than the largest order that there is room for, 0 if for none; free chunks.
type Room = (u8, u32);

impl Owned {
    pub(super) fn new(grant: release::Grant) -> Owned {
        Owned { grant, inside: Block::new(), whole: false, since: 0, publishing: None, room: (0, 0) }
    }

    /// Takes a run; 2 MiB, if nothing of it is in use.
    pub(super) fn take(&mut self, order: u8) -> Option<u32> {
        if order < BLOCK_ORDER {
            return self.inside.take(order);
        }
        if !self.inside.is_empty() {
            return None;
        }
        self.whole = true;
        let halves = [(); 2].map(|()| self.inside.take(order - 1));
        halves[0]
    }

    /// A run that was given out comes back. Its order.
    pub(super) fn give(&mut self, first: u32) -> u8 {
        let order = self.inside.give(first).expect("a run that was given out");
        if !std::mem::take(&mut self.whole) {
            return order;
        }
        self.inside.give(BLOCK / 2).expect("its other half");
        BLOCK_ORDER
    }

    fn room(&self) -> Room {
        match self.publishing {
            Some(_) => (0, 0),
            None if self.inside.is_empty() => (BLOCK_ORDER + 1, BLOCK),
            None => (self.inside.largest().map_or(0, |order| order + 1), BLOCK - self.inside.in_use()),
        }
    }
}

/// They, by number.
#[derive(Default)]
pub(super) struct Shelf {
    owned: BTreeMap<u32, Owned>,
    rooms: BTreeSet<(Room, u32)>,
    /// Heartbeats so far.
    beats: u32,
}

impl Shelf {
    pub(super) fn insert(&mut self, block: u32, mut owned: Owned) {
        (owned.room, owned.since) = (owned.room(), self.beats);
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

    /// All of them, each with the heartbeats since anything was taken or given back.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Owned, u32)> {
        self.owned.iter().map(|(&block, owned)| (block, owned, self.beats - owned.since))
    }

    pub(super) fn len(&self) -> usize {
        self.owned.len()
    }

    /// Takes from a block, or gives back to it.
    pub(super) fn change<R>(&mut self, block: u32, change: impl FnOnce(&mut Owned) -> R) -> Option<R> {
        let owned = self.owned.get_mut(&block)?;
        let result = change(owned);
        owned.since = self.beats;
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
        self.beats += 1;
    }

    /// Blocks of which nothing is in use.
    pub(super) fn empty(&self) -> impl Iterator<Item = u32> {
        self.rooms.range(((BLOCK_ORDER + 1, 0), 0)..).map(|&(_, block)| block)
    }

    /// Of these, those that were so for so many heartbeats.
    pub(super) fn idle(&self, heartbeats: u32) -> Vec<u32> {
        self.empty().filter(|block| self.beats - self.owned[block].since >= heartbeats).collect()
    }

    /// The block to take a run of this order from.
    pub(super) fn with_room(&self, order: u8) -> Option<u32> {
        self.rooms.range(((order + 1, 0), 0)..).next().map(|&(_, block)| block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::extent::{Place, Word};

    #[test]
    fn two_mib_come_out_of_an_empty_block_and_of_no_other() {
        let mut shelf = Shelf::default();
        for block in 0..2 {
            shelf.insert(block, Owned::new(release::Grant { place: Place::block(block), word: Word::ZERO }));
        }
        assert_eq!(shelf.change(0, |owned| owned.take(0)), Some(Some(0)));
        assert_eq!((shelf.change(0, |owned| owned.take(BLOCK_ORDER)), shelf.empty().count()), (Some(None), 1));
        assert_eq!(shelf.with_room(BLOCK_ORDER), Some(1));
        assert_eq!(shelf.change(1, |owned| owned.take(BLOCK_ORDER)), Some(Some(0)));
        assert_eq!((shelf.with_room(BLOCK_ORDER), shelf.empty().count()), (None, 0));
        assert_eq!(shelf.change(1, |owned| owned.give(0)), Some(BLOCK_ORDER));
        // Two halves are not a whole.
        let halves = shelf.change(1, |owned| [owned.take(8), owned.take(8)]);
        assert_eq!((halves, shelf.empty().count()), (Some([Some(0), Some(256)]), 0));
        assert_eq!(shelf.change(1, |owned| [owned.give(0), owned.give(256)]), Some([8, 8]));
        assert_eq!(shelf.empty().count(), 1);
        assert!(shelf.idle(1).is_empty());
        shelf.beat();
        assert_eq!((shelf.idle(1), shelf.idle(2).len()), (vec![1], 0));
    }
}
