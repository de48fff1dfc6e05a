//! An arena: objects that refer to one another in any way, freed when no root leads to them.
//!
//! ```text
//! Gc ── word: block + 1 | slot ─► block: boxes (8 bytes a slot) | live (a bit a slot)
//!                                        └─► FarBox: a frame here, or the slot at its node
//! ```
//!
//! [`FarArena::collect`] borrows the arena exclusively. So no reference into it lives: the borrow
//! checker is the safepoint. Objects are marked where they lie ([`mark`]), and blocks with few
//! objects are emptied into others ([`compact`]).
//!
//! A word is checked before it is followed. One that names no live slot is no object. Blocks never
//! change their type. So a word that was kept too long is wrong at most, and never unsafe.

mod compact;
mod links;
mod mark;

pub use links::Linked;
#[doc(hidden)]
pub use links::{count_of, links_of};

use crate::homes::{BLOCK, Home};
use crate::{Far, FarBox, Heap, Result, Scope};
use farmem::Addr;
use farmem::near::mark::{named, word};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

/// Boxes whose values are written home together.
const TOGETHER: usize = 256;

/// Refers to an object of an arena: 8 bytes, plain data, and `Copy`. It keeps nothing alive, unless
/// it lies in an object that can be reached, at one of its type's [`Linked::LINKS`].
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(transparent)]
pub struct Gc<T> {
    word: u64,
    object: PhantomData<fn() -> T>,
}

impl<T> Gc<T> {
    /// Refers to nothing.
    pub const NONE: Gc<T> = Gc { word: 0, object: PhantomData };

    fn new(word: u64) -> Gc<T> {
        Gc { word, object: PhantomData }
    }

    /// Whether it is [`Gc::NONE`].
    pub fn is_none(self) -> bool {
        self.word == 0
    }
}

impl<T> Clone for Gc<T> {
    fn clone(&self) -> Gc<T> {
        *self
    }
}

impl<T> Copy for Gc<T> {}

impl<T> PartialEq for Gc<T> {
    fn eq(&self, other: &Gc<T>) -> bool {
        self.word == other.word
    }
}

impl<T> Eq for Gc<T> {}

impl<T> std::hash::Hash for Gc<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.word.hash(state);
    }
}

impl<T> fmt::Debug for Gc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gc({:#x})", self.word)
    }
}

#[derive(Default)]
struct Roots {
    /// 0: free.
    words: Vec<u64>,
    free: Vec<usize>,
}

/// Keeps an object of an arena alive, with all that can be reached from it.
pub struct Root<T> {
    roots: Rc<RefCell<Roots>>,
    number: usize,
    object: PhantomData<Gc<T>>,
}

impl<T> Root<T> {
    fn new(roots: &Rc<RefCell<Roots>>, word: u64) -> Root<T> {
        let all = &mut *roots.borrow_mut();
        let number = all.free.pop().unwrap_or(all.words.len());
        all.words.resize(all.words.len().max(number + 1), 0);
        all.words[number] = word;
        Root { roots: Rc::clone(roots), number, object: PhantomData }
    }

    /// The object. A collection may move it: ask again after one.
    pub fn gc(&self) -> Gc<T> {
        Gc::new(self.roots.borrow().words[self.number])
    }
}

impl<T> Clone for Root<T> {
    fn clone(&self) -> Root<T> {
        Root::new(&self.roots, self.gc().word)
    }
}

impl<T> Drop for Root<T> {
    fn drop(&mut self) {
        let roots = &mut *self.roots.borrow_mut();
        roots.words[self.number] = 0;
        roots.free.push(self.number);
    }
}

impl<T> fmt::Debug for Root<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.gc()).finish()
    }
}

/// The result of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Collected {
    /// Objects that are left.
    pub live: usize,
    /// Objects that were freed.
    pub freed: usize,
    /// Objects that moved to other blocks.
    pub moved: usize,
    /// Blocks of 2 MiB that went back to their nodes.
    pub blocks: usize,
    /// Objects that nodes looked at.
    pub at_nodes: usize,
    /// Objects whose links were read to here.
    pub here: usize,
}

/// One block of homes.
struct Block<T: Far> {
    /// Its number among the thread's homes.
    number: usize,
    at: Addr,
    boxes: Vec<FarBox<T>>,
    /// A bit for each slot that has an object.
    live: Vec<u64>,
    used: usize,
    /// No word of `live` before this one has a free slot.
    from: usize,
    /// Its objects are in other blocks; [`FarArena::moved`] has their words.
    is_moved: bool,
}

impl<T: Far> Block<T> {
    const SLOTS: usize = BLOCK as usize / FarBox::<T>::CLASS.payload;

    fn new((number, at): (usize, Addr)) -> Block<T> {
        let away = |slot| FarBox::away(Home::of(number, slot * FarBox::<T>::CLASS.payload));
        Block {
            number,
            at,
            boxes: (0..Self::SLOTS).map(away).collect(),
            live: vec![0; Self::SLOTS.div_ceil(64)],
            used: 0,
            from: 0,
            is_moved: false,
        }
    }

    fn has(&self, slot: usize) -> bool {
        self.live.get(slot / 64).is_some_and(|bits| bits >> (slot % 64) & 1 != 0)
    }

    /// A free slot, which is live from now on.
    fn take(&mut self) -> Option<usize> {
        let free = |slot: usize| (slot < Self::SLOTS).then_some(slot);
        let first = (self.from..self.live.len()).find(|&n| self.live[n] != u64::MAX)?;
        self.from = first;
        let slot = free(64 * first + self.live[first].trailing_ones() as usize)?;
        self.live[slot / 64] |= 1 << (slot % 64);
        self.used += 1;
        Some(slot)
    }

    fn give(&mut self, slot: usize) {
        self.live[slot / 64] &= !(1 << (slot % 64));
        self.used -= 1;
        self.from = self.from.min(slot / 64);
    }

    fn place(&self, slot: usize) -> Addr {
        self.at + (slot * FarBox::<T>::CLASS.payload) as u64
    }
}

/// Objects in far memory that refer to one another as they like, cycles included.
///
/// ```no_run
/// # use farmem_objects::{Gc, Heap, Linked, Result};
/// # #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
/// # #[repr(C)]
/// # struct Node { next: Gc<Node>, value: u64 }
/// # impl Linked for Node { const LINKS: &[usize] = &[0]; }
/// # fn circle(heap: &Heap) -> Result<()> {
/// let mut arena = heap.arena::<Node>();
/// let first = arena.alloc(&Node { next: Gc::NONE, value: 1 })?;
/// let second = arena.alloc(&Node { next: first, value: 2 })?;
/// arena.get_mut(first, &heap.scope())?.unwrap().next = second;
/// let root = arena.root(first);
/// assert_eq!(arena.collect()?.live, 2);
/// drop(root);
/// assert_eq!(arena.collect()?.freed, 2);
/// # Ok(())
/// # }
/// ```
///
/// A [`Gc`] that is kept in a variable over a collection may name nothing any more, or another
/// object of its type. Keep a [`Root`] instead. No reference outlives a collection:
///
/// ```compile_fail,E0502
/// # use farmem_objects::{FarArena, Gc, Linked, Scope};
/// fn keeps<T: Linked>(arena: &mut FarArena<T>, one: Gc<T>, scope: &Scope) {
///     let kept = arena.get(one, scope).unwrap();
///     arena.collect().unwrap();
///     drop(kept);
/// }
/// ```
pub struct FarArena<T: Linked> {
    /// By number.
    blocks: Vec<Option<Block<T>>>,
    /// Numbers of blocks that may have a free slot. The last one is filled first.
    roomy: Vec<usize>,
    roots: Rc<RefCell<Roots>>,
    /// New words of objects whose links may not know them yet: only if a collection failed.
    moved: HashMap<u64, u64>,
    len: usize,
    /// By node: memory for markings.
    states: Vec<mark::State>,
    heap: Heap,
}

impl<T: Linked> FarArena<T> {
    const SOUND: () = {
        let mut n = 0;
        while n < T::LINKS.len() {
            let at = T::LINKS[n];
            assert!(at % 8 == 0 && at + 8 <= size_of::<T>(), "a link lies at a multiple of 8 within its object");
            n += 1;
        }
    };

    pub(crate) fn new(heap: Heap) -> FarArena<T> {
        const { Self::SOUND };
        FarArena {
            blocks: Vec::new(),
            roomy: Vec::new(),
            roots: Rc::default(),
            moved: HashMap::new(),
            len: 0,
            states: Vec::new(),
            heap,
        }
    }

    /// Objects, with those that nothing leads to any more.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an object into the arena. The next collection frees it, unless something leads to it.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the nodes have no room: collect, and try again.
    /// [`crate::Error::ScopeFull`].
    pub fn alloc(&mut self, value: &T) -> Result<Gc<T>> {
        let (block, slot) = self.take()?;
        let inner = &self.heap.inner;
        if let Some(Some(there)) = self.blocks.get_mut(block) {
            there.boxes[slot].renew(inner, value).inspect_err(|_| there.give(slot))?;
        }
        self.len += 1;
        Ok(Gc::new(word(block as u32, slot as u32)))
    }

    /// A free slot, which is live from now on.
    fn take(&mut self) -> Result<(usize, usize)> {
        loop {
            let Some(&block) = self.roomy.last() else {
                let number = self.blocks.iter().position(Option::is_none).unwrap_or(self.blocks.len());
                let fresh = Block::new(self.heap.inner.block(FarBox::<T>::CLASS)?);
                self.blocks.resize_with(self.blocks.len().max(number + 1), || None);
                self.blocks[number] = Some(fresh);
                self.roomy.push(number);
                continue;
            };
            match self.blocks[block].as_mut().and_then(Block::take) {
                Some(slot) => return Ok((block, slot)),
                None => self.roomy.pop(),
            };
        }
    }

    /// The block and the slot of an object.
    fn find(&self, gc: Gc<T>) -> Option<(usize, usize)> {
        let (mut block, mut slot) = named(gc.word)?;
        if self.blocks.get(block as usize)?.as_ref()?.is_moved {
            (block, slot) = named(*self.moved.get(&gc.word)?)?;
        }
        let (block, slot) = (block as usize, slot as usize);
        self.blocks.get(block)?.as_ref()?.has(slot).then_some((block, slot))
    }

    fn lookup(&self, gc: Gc<T>) -> Option<&FarBox<T>> {
        let (block, slot) = self.find(gc)?;
        Some(&self.blocks[block].as_ref()?.boxes[slot])
    }

    /// An object. `None`: there is none of this name.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn get<'a>(&'a self, gc: Gc<T>, scope: &'a Scope) -> Result<Option<&'a T>> {
        self.lookup(gc).map(|one| one.get(scope)).transpose()
    }

    /// An object, to write to.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn get_mut<'a>(&'a mut self, gc: Gc<T>, scope: &'a Scope) -> Result<Option<&'a mut T>> {
        let Some((block, slot)) = self.find(gc) else { return Ok(None) };
        let block = self.blocks[block].as_mut();
        block.map(|block| block.boxes[slot].get_mut(scope)).transpose()
    }

    /// Many objects, in this order. Those that are away come by one round trip to each node.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn get_many<'a>(&'a self, many: &[Gc<T>], scope: &'a Scope) -> Result<Vec<Option<&'a T>>> {
        let boxes: Vec<Option<&FarBox<T>>> = many.iter().map(|&gc| self.lookup(gc)).collect();
        let there: Vec<&FarBox<T>> = boxes.iter().flatten().copied().collect();
        let mut values = self.heap.get_many(&there, scope)?.into_iter();
        Ok(boxes.into_iter().map(|one| one.and_then(|_| values.next())).collect())
    }

    /// Begins to fetch what is away of these: a hint.
    pub fn prefetch(&self, many: &[Gc<T>]) {
        let boxes: Vec<&FarBox<T>> = many.iter().filter_map(|&gc| self.lookup(gc)).collect();
        self.heap.prefetch(&boxes);
    }

    /// Keeps an object alive. One that is not there is kept as nothing.
    pub fn root(&self, gc: Gc<T>) -> Root<T> {
        let word = self.find(gc).map_or(0, |(block, slot)| word(block as u32, slot as u32));
        Root::new(&self.roots, word)
    }

    /// Frees all objects to which no root leads, and empties blocks that have few objects.
    ///
    /// Nodes that compute mark their parts (`farmem node --compute`); of others the links are read.
    /// Objects that moved have new [`Gc`]s: in all objects, and in all roots.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: a node is lost. Nothing was freed, and every object is found as before.
    pub fn collect(&mut self) -> Result<Collected> {
        let mut done = Collected::default();
        self.save()?;
        self.mark_and_sweep(&mut done)?;
        if self.evacuate(&mut done)? {
            self.mark_and_sweep(&mut done)?;
        }
        done.live = self.len;
        Ok(done)
    }

    fn mark_and_sweep(&mut self, done: &mut Collected) -> Result<()> {
        let marked = self.mark(done)?;
        self.patch(&marked.patches)?;
        self.sweep(&marked.bits, done);
        Ok(())
    }

    /// Writes all objects home that were written to.
    fn save(&mut self) -> Result<()> {
        let mut lane = self.heap.inner.memory().lane()?;
        for block in self.blocks.iter_mut().flatten() {
            let at = block.at;
            let live = |slot: usize| block.live[slot / 64] >> (slot % 64) & 1 != 0;
            let place = |slot| at + (slot * FarBox::<T>::CLASS.payload) as u64;
            let mut all = block.boxes.iter_mut().enumerate().filter(|(slot, one)| live(*slot) && one.word().is_dirty());
            loop {
                let some: Vec<_> = all.by_ref().take(TOGETHER).map(|(slot, one)| (one, place(slot))).collect();
                if some.is_empty() {
                    break;
                }
                self.heap.inner.arena.save(&mut lane, some)?;
            }
        }
        Ok(())
    }

    /// Frees what is not marked, and gives back blocks in which nothing is left.
    fn sweep(&mut self, marked: &[Vec<u64>], done: &mut Collected) {
        let inner = &self.heap.inner;
        for (block, marked) in self.blocks.iter_mut().zip(marked) {
            let Some(there) = block else { continue };
            for (n, marked) in marked.iter().enumerate() {
                let mut dead = there.live[n] & !marked;
                while dead != 0 {
                    let slot = 64 * n + dead.trailing_zeros() as usize;
                    dead &= dead - 1;
                    there.boxes[slot].forget(inner);
                    there.give(slot);
                    self.len -= 1;
                    done.freed += 1;
                }
            }
            if there.used == 0 {
                let number = there.number;
                // Its boxes go first: they name it.
                *block = None;
                inner.release(number);
                done.blocks += 1;
            }
        }
        self.moved.clear();
        let has_room = |n: &usize| self.blocks[*n].as_ref().is_some_and(|block| block.used < Block::<T>::SLOTS);
        self.roomy = (0..self.blocks.len()).filter(has_room).collect();
        // The fullest is filled first: it sorts last.
        self.roomy.sort_by_key(|&n| self.blocks[n].as_ref().map_or(0, |block| block.used));
    }
}

impl<T: Linked> Drop for FarArena<T> {
    fn drop(&mut self) {
        let inner = &self.heap.inner;
        for block in self.blocks.drain(..).flatten() {
            let number = block.number;
            drop(block);
            inner.release(number);
        }
        self.states.drain(..).for_each(|state| state.free(inner));
    }
}

impl<T: Linked> fmt::Debug for FarArena<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarArena").field("len", &self.len).finish_non_exhaustive()
    }
}
