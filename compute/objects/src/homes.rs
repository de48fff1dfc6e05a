//! Homes: the slots of nodes' memory in which objects lie while they are away. Safe code.
//!
//! ```text
//! home:  | block: 18 bits | place: 17 bits |     a block: 2 MiB, slots of one class
//! ```
//!
//! The number of a block is its own among all heaps of its thread ([`owners`]). So a word names at
//! most one object of a thread, and a scope of one heap never validates a box of another. A number
//! is used again only when no box can name it: its block was empty when it went back.

use crate::class::{CLASSES, Class};
use crate::heap::Inner;
use crate::way::Pieces;
use crate::{Error, Result};
use farmem::Addr;
use std::marker::PhantomData;
use std::rc::{Rc, Weak};

/// Bits of a home.
pub const HOME_BITS: u32 = 35;
const PLACE_BITS: u32 = 17;
/// Bytes of a block.
pub const BLOCK: u64 = 2 << 20;
/// Blocks of a thread's heaps, at most: 512 GiB.
const BLOCKS: usize = 1 << (HOME_BITS - PLACE_BITS);

/// A home: where an object lies, as a number of [`HOME_BITS`] bits. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home(pub u64);

impl Home {
    /// A slot of a block, by the number of its first byte.
    pub fn of(block: usize, offset: usize) -> Home {
        Home((block as u64) << PLACE_BITS | offset as u64 >> 4)
    }

    fn block(self) -> usize {
        (self.0 >> PLACE_BITS) as usize
    }

    fn offset(self) -> u64 {
        (self.0 & ((1 << PLACE_BITS) - 1)) << 4
    }
}

struct Block {
    at: Addr,
    class: Class,
    /// A bit for each slot, set while it is free.
    free: Vec<u64>,
    /// No word before this one has a bit.
    from: usize,
    used: usize,
    /// An arena has it: it shares out its slots itself.
    is_whole: bool,
}

impl Block {
    fn new(at: Addr, class: Class) -> Block {
        let slots = BLOCK as usize / class.payload;
        let mut free = vec![u64::MAX; slots.div_ceil(64)];
        if let Some(last) = free.last_mut().filter(|_| !slots.is_multiple_of(64)) {
            *last = (1 << (slots % 64)) - 1;
        }
        Block { at, class, free, from: 0, used: 0, is_whole: false }
    }

    fn is_full(&self) -> bool {
        self.used == BLOCK as usize / self.class.payload
    }
}

/// A heap that has blocks: their numbers are its own among all heaps of its kind.
pub trait Owner {
    /// A number for one more block of this heap. `None`: there are no more.
    fn enter(&self) -> Option<usize>;

    /// A block is no heap's any more. `is_empty`: no box names it.
    fn leave(number: usize, is_empty: bool);
}

impl Owner for Weak<Inner> {
    fn enter(&self) -> Option<usize> {
        owners::enter(self)
    }

    fn leave(number: usize, is_empty: bool) {
        owners::leave(number, is_empty);
    }
}

/// The homes of a heap.
pub struct Homes<O: Owner = Weak<Inner>> {
    /// By number; those of the thread's other heaps are `None` here.
    blocks: Vec<Option<Block>>,
    /// By class: blocks with a free slot. The last one is filled first.
    roomy: [Vec<usize>; CLASSES],
    owner: PhantomData<O>,
}

impl<O: Owner> Homes<O> {
    pub fn new() -> Homes<O> {
        Homes { blocks: Vec::new(), roomy: [const { Vec::new() }; CLASSES], owner: PhantomData }
    }

    /// A free slot.
    ///
    /// # Errors
    /// The nodes have no room for one more block, or the thread has as many as it can.
    pub fn take(&mut self, class: Class, memory: &impl Pieces, owner: &O) -> Result<Home> {
        let number = match self.roomy[class.index].last() {
            Some(&number) => number,
            None => self.widen(class, memory, owner)?,
        };
        let Some(block) = &mut self.blocks[number] else { return Err(Error::HeapFull) };
        let word = block.from + block.free[block.from..].iter().position(|&word| word != 0).unwrap_or_default();
        block.from = word;
        let bit = block.free[word].trailing_zeros() as usize;
        block.free[word] &= !(1 << bit);
        block.used += 1;
        if block.is_full() {
            self.roomy[class.index].pop();
        }
        let offset = (64 * word + bit) * class.payload;
        Ok(Home((number as u64) << PLACE_BITS | offset as u64 >> 4))
    }

    /// Free slots: neighbours, where `n` are a power of two and at most 64. A block that has not so
    /// many in a row is left to others.
    ///
    /// # Errors
    /// As [`Homes::take`].
    pub fn take_run(&mut self, class: Class, n: usize, memory: &impl Pieces, owner: &O) -> Result<Vec<Home>> {
        let group = u64::MAX.checked_shr(64u32.saturating_sub(n as u32)).unwrap_or_default();
        let is_group = |word: u64, at: usize| word >> at & group == group;
        let find = |block: &Block| {
            let words = block.free.iter().enumerate();
            words.filter(|(_, word)| **word != 0).find_map(|(number, &word)| {
                (0..64).step_by(n).find(|&at| is_group(word, at)).map(|at| 64 * number + at)
            })
        };
        if n.is_power_of_two() && n <= 64 {
            for _ in 0..2 {
                let number = self.roomy[class.index].last().copied();
                let block = number.and_then(|number| Some((number, self.blocks[number].as_mut()?)));
                if let Some((number, block)) = block
                    && let Some(first) = find(block)
                {
                    block.free[first / 64] &= !(group << (first % 64));
                    block.used += n;
                    if block.is_full() {
                        self.roomy[class.index].pop();
                    }
                    let home = |slot: usize| Home((number as u64) << PLACE_BITS | (slot * class.payload) as u64 >> 4);
                    return Ok((first..first + n).map(home).collect());
                }
                // Without one more block, slots that are no neighbours may be left.
                if self.widen(class, memory, owner).is_err() {
                    break;
                }
            }
        }
        let mut homes = Vec::with_capacity(n);
        for _ in 0..n {
            match self.take(class, memory, owner) {
                Ok(home) => homes.push(home),
                Err(e) => {
                    homes.into_iter().for_each(|home| self.give(home, memory));
                    return Err(e);
                }
            }
        }
        Ok(homes)
    }

    /// One block more for a class. Its number.
    fn widen(&mut self, class: Class, memory: &impl Pieces, owner: &O) -> Result<usize> {
        let (number, _) = self.block(class, memory, owner, false)?;
        self.roomy[class.index].push(number);
        Ok(number)
    }

    /// One block more: its number and address. A whole one is its caller's alone, with all of its
    /// slots.
    ///
    /// # Errors
    /// As [`Homes::take`].
    pub fn block(&mut self, class: Class, memory: &impl Pieces, owner: &O, is_whole: bool) -> Result<(usize, Addr)> {
        let at = memory.alloc(BLOCK)?;
        let Some(number) = owner.enter() else {
            let _ = memory.free(at);
            return Err(Error::HeapFull);
        };
        self.blocks.resize_with(self.blocks.len().max(number + 1), || None);
        self.blocks[number] = Some(Block { is_whole, ..Block::new(at, class) });
        Ok((number, at))
    }

    /// Gives a whole block back. No box names a slot of it.
    pub fn release(&mut self, number: usize, memory: &impl Pieces) {
        if let Some(block) = self.blocks[number].take_if(|block| block.is_whole) {
            // Of a node that is lost there is nothing to give back.
            let _ = memory.free(block.at);
            O::leave(number, true);
        }
    }

    /// Gives a slot back. A block in which all is free goes back to its node, unless it is the
    /// class's last with room.
    pub fn give(&mut self, home: Home, memory: &impl Pieces) {
        let number = home.block();
        let Some(Some(block)) = self.blocks.get_mut(number) else { return };
        if block.is_whole {
            return;
        }
        let slot = home.offset() as usize / block.class.payload;
        if block.is_full() {
            self.roomy[block.class.index].push(number);
        }
        block.free[slot / 64] |= 1 << (slot % 64);
        block.from = block.from.min(slot / 64);
        block.used -= 1;
        let roomy = &mut self.roomy[block.class.index];
        if block.used == 0 && roomy.len() > 1 {
            roomy.retain(|&other| other != number);
            // Of a node that is lost there is nothing to give back.
            let _ = memory.free(block.at);
            self.blocks[number] = None;
            O::leave(number, true);
        }
    }

    /// The address of a home. `None`: it is another heap's.
    pub fn addr(&self, home: Home) -> Option<Addr> {
        let block = self.blocks.get(home.block())?.as_ref()?;
        Some(block.at + home.offset())
    }
}

impl<O: Owner> Drop for Homes<O> {
    fn drop(&mut self) {
        for (number, block) in self.blocks.iter().enumerate() {
            if let Some(block) = block {
                O::leave(number, block.used == 0 && !block.is_whole);
            }
        }
    }
}

/// Which heap has which block: of a thread's heaps, or of the process's shared ones.
pub struct Table<W> {
    owners: Vec<Owned<W>>,
    free: Vec<usize>,
}

enum Owned<W> {
    /// Free: the number can be given out.
    Free,
    Of(W),
    /// Its heap is gone, and boxes that name it may be left.
    Gone,
}

impl<W: Clone> Table<W> {
    pub const fn new() -> Table<W> {
        Table { owners: Vec::new(), free: Vec::new() }
    }

    /// A number for a heap's new block. `None`: there are no more.
    pub fn enter(&mut self, owner: &W) -> Option<usize> {
        // Number 0 is nobody's, so that no home is 0.
        if self.owners.is_empty() {
            self.owners.push(Owned::Gone);
        }
        let number = self.free.pop().unwrap_or(self.owners.len());
        if number >= BLOCKS {
            return None;
        }
        match self.owners.get_mut(number) {
            Some(place) => *place = Owned::Of(owner.clone()),
            None => self.owners.push(Owned::Of(owner.clone())),
        }
        Some(number)
    }

    /// A block is no heap's any more. `is_empty`: no box names it.
    pub fn leave(&mut self, number: usize, is_empty: bool) {
        self.owners[number] = if is_empty { Owned::Free } else { Owned::Gone };
        if is_empty {
            self.free.push(number);
        }
    }

    /// The heap that has this block.
    pub fn of(&self, home: Home) -> Option<&W> {
        match self.owners.get(home.block()) {
            Some(Owned::Of(owner)) => Some(owner),
            Some(Owned::Free | Owned::Gone) | None => None,
        }
    }
}

/// The heap that has a home, if it is still there.
pub fn owner(home: Home) -> Option<Rc<Inner>> {
    owners::of(home)
}

/// Which heap of this thread has which block.
mod owners {
    use super::{Home, Inner, Table};
    use std::cell::RefCell;
    use std::rc::{Rc, Weak};

    thread_local! {
        static OWNERS: RefCell<Table<Weak<Inner>>> = const { RefCell::new(Table::new()) };
    }

    pub fn enter(owner: &Weak<Inner>) -> Option<usize> {
        // At the end of a thread the table may be gone: then a heap gets no more blocks.
        OWNERS.try_with(|owners| owners.borrow_mut().enter(owner)).ok().flatten()
    }

    pub fn leave(number: usize, is_empty: bool) {
        // At the end of a thread the table may be gone before the heap. Then nobody asks it any
        // more.
        let _ = OWNERS.try_with(|owners| owners.borrow_mut().leave(number, is_empty));
    }

    pub fn of(home: Home) -> Option<Rc<Inner>> {
        OWNERS.try_with(|owners| owners.borrow().of(home).and_then(Weak::upgrade)).ok().flatten()
    }
}
