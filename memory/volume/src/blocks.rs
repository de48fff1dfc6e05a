//! Chunks of 4 KiB, in blocks of 2 MiB. This table knows which chunks are taken, and by which
//! slots. It chooses the block that is filled or emptied next.
//!
//! A chunk's *number* is the block's place in this table times 512, plus its index in the block.
//! The block's *name* is the caller's.

use std::collections::BTreeSet;

/// Chunks of a block.
pub const BLOCK_CHUNKS: u32 = 512;
/// Blocks with room are sorted into classes by their number of taken chunks. A class spans this
/// many.
const CLASS: u16 = 32;
/// The class of full blocks; empty ones have class 0.
const FULL: u8 = 1 + (BLOCK_CHUNKS as u16 / CLASS) as u8;
/// Pages move only when more than one block in `SPARE` could be given back.
const SPARE: u32 = 20;

/// 4 KiB of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Chunk {
    /// The block's name.
    pub block: u32,
    /// Which of its chunks: 0 to 511.
    pub index: u32,
}

#[derive(Clone, Debug)]
struct Block {
    name: u32,
    /// Taken chunks.
    live: u16,
    /// A bit for each chunk.
    taken: [u64; 8],
    /// The slot of each taken chunk.
    slots: Box<[u32; BLOCK_CHUNKS as usize]>,
}

impl Block {
    fn class(&self) -> u8 {
        match self.live {
            0 => 0,
            live if live as u32 == BLOCK_CHUNKS => FULL,
            live => 1 + ((live - 1) / CLASS) as u8,
        }
    }

    /// The first chunk that is taken, or else the first that is free.
    fn first(&self, taken: bool) -> Option<u32> {
        let flip = if taken { 0 } else { u64::MAX };
        let (at, word) = self.taken.iter().map(|word| word ^ flip).enumerate().find(|(_, word)| *word != 0)?;
        Some(at as u32 * 64 + word.trailing_zeros())
    }

    fn has(&self, index: u32) -> bool {
        self.taken[index as usize / 64] >> (index % 64) & 1 == 1
    }
}

/// The blocks of a volume.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// By place. Places of blocks that were given back are used again.
    table: Vec<Option<Block>>,
    /// Places without a block.
    vacant: Vec<u32>,
    /// All blocks, by class and place.
    order: BTreeSet<(u8, u32)>,
    live: u32,
    /// The block that takes new pages until it is full, in order of arrival.
    filling: Option<u32>,
}

impl Blocks {
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn count(&self) -> u32 {
        self.order.len() as u32
    }

    pub fn names(self) -> Vec<u32> {
        self.table.into_iter().flatten().map(|block| block.name).collect()
    }

    pub fn add(&mut self, name: u32) {
        let block = Block { name, live: 0, taken: [0; 8], slots: Box::new([0; BLOCK_CHUNKS as usize]) };
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.table[place as usize] = Some(block);
        self.order.insert((0, place));
    }

    pub fn take_empty(&mut self) -> Option<u32> {
        let &(_, place) = self.order.range(..(1, 0)).next()?;
        self.order.remove(&(0, place));
        self.vacant.push(place);
        if self.filling == Some(place) {
            self.filling = None;
        }
        self.table[place as usize].take().map(|block| block.name)
    }

    /// The chunk of this number.
    pub fn chunk(&self, number: u32) -> Chunk {
        Chunk { block: self.block(number / BLOCK_CHUNKS).name, index: number % BLOCK_CHUNKS }
    }

    /// A chunk for a slot. `None` when no block has room.
    pub fn take(&mut self, slot: u32) -> Option<u32> {
        let has_room = |place: &u32| self.table[*place as usize].as_ref().is_some_and(|block| block.class() < FULL);
        let place = self.filling.filter(has_room).or_else(|| self.fullest(0, None))?;
        self.filling = Some(place);
        Some(self.take_in(place, slot))
    }

    /// The fullest block with room of this class or a higher one, but not this one.
    fn fullest(&self, class: u8, but: Option<u32>) -> Option<u32> {
        let with_room = self.order.range((class, 0)..(FULL, 0)).rev().map(|&(_, place)| place);
        with_room.into_iter().find(|place| Some(*place) != but)
    }

    fn take_in(&mut self, place: u32, slot: u32) -> u32 {
        let index = self.block(place).first(false).expect("a block with room");
        self.change(place, |block| {
            block.taken[index as usize / 64] |= 1 << (index % 64);
            block.slots[index as usize] = slot;
            block.live += 1;
        });
        self.live += 1;
        place * BLOCK_CHUNKS + index
    }

    pub fn free(&mut self, number: u32) {
        let (place, index) = (number / BLOCK_CHUNKS, number % BLOCK_CHUNKS);
        debug_assert!(self.block(place).has(index));
        self.change(place, |block| {
            block.taken[index as usize / 64] &= !(1 << (index % 64));
            block.live -= 1;
        });
        self.live -= 1;
    }

    /// Whether more than a twentieth of the blocks needed could be spared.
    pub fn is_sparse(&self) -> bool {
        let needed = self.live.div_ceil(BLOCK_CHUNKS);
        let empty = self.order.range(..(1, 0)).count() as u32;
        self.count() - empty > needed + needed / SPARE
    }

    /// The numbers of a chunk of the sparsest block and of a new one for its slot in the fullest,
    /// and the slot. The old chunk is still taken.
    pub fn compact(&mut self) -> Option<(u32, u32, u32)> {
        if !self.is_sparse() {
            return None;
        }
        let &(class, from) = self.order.range((1, 0)..(FULL, 0)).next()?;
        // Only a block as full or fuller takes the page, never an empty one: pages would move back
        // and forth.
        let to = self.fullest(class, Some(from))?;
        let index = self.block(from).first(true)?;
        let slot = self.block(from).slots[index as usize];
        // The block that is emptied is not to be filled meanwhile.
        self.filling = Some(to);
        Some((from * BLOCK_CHUNKS + index, self.take_in(to, slot), slot))
    }

    fn block(&self, place: u32) -> &Block {
        self.table[place as usize].as_ref().expect("a block that is held")
    }

    /// Changes a block, and moves it in `order` if its class has changed.
    fn change(&mut self, place: u32, change: impl FnOnce(&mut Block)) {
        let block = self.table[place as usize].as_mut().expect("a block that is held");
        let before = block.class();
        change(block);
        let after = block.class();
        if before != after {
            self.order.remove(&(before, place));
            self.order.insert((after, place));
        }
    }

    /// The slot that has a chunk, if one has.
    pub fn slot_of(&self, number: u32) -> Option<u32> {
        let block = self.table.get((number / BLOCK_CHUNKS) as usize)?.as_ref()?;
        let index = number % BLOCK_CHUNKS;
        block.has(index).then(|| block.slots[index as usize])
    }

    pub fn check(&self) -> Result<(), String> {
        let mut order = BTreeSet::new();
        let mut live = 0;
        for (place, block) in self.table.iter().enumerate() {
            let Some(block) = block else { continue };
            let taken = block.taken.iter().map(|word| word.count_ones()).sum::<u32>();
            if taken != block.live as u32 {
                return Err(format!("block {} has {taken} taken, counted {}", block.name, block.live));
            }
            live += taken;
            order.insert((block.class(), place as u32));
        }
        if live != self.live || order != self.order {
            return Err(format!("{live} live, counted {}; the order is {:?}", self.live, self.order));
        }
        Ok(())
    }
}
