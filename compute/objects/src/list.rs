//! A list that grows and shrinks anywhere, of which the parts are far.
//!
//! ```text
//! near: box, elements │ box, elements │ …          far: chunks of 4 KiB, each filled from its beginning
//! ```
//!
//! An insertion moves the elements of one chunk. Finding an index looks at near counts alone.

use crate::boxes::elements;
use crate::frames::{copied, slice, slice_mut};
use crate::vec::Ahead;
use crate::{CHUNK, Chunk, Error, Far, FarBox, Heap, Result, Scope};
use std::marker::PhantomData;

/// Parts that a walk has under way.
const AHEAD: usize = 16;

struct Part {
    chunk: FarBox<Chunk>,
    /// Elements; none only while it is made.
    len: usize,
}

/// A list of plain elements in far memory, for changes in its middle.
pub struct FarList<T: Far> {
    parts: Vec<Part>,
    len: usize,
    heap: Heap,
    elements: PhantomData<T>,
}

impl<T: Far> FarList<T> {
    const EACH: usize = elements::<T>(CHUNK / 2);

    pub(crate) fn new(heap: Heap) -> FarList<T> {
        FarList { parts: Vec::new(), len: 0, heap, elements: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of an element, and its place there. Behind the last: in the last part.
    fn place(&self, index: usize) -> (usize, usize) {
        let mut left = index;
        for (number, part) in self.parts.iter().enumerate() {
            if left < part.len || number + 1 == self.parts.len() {
                return (number, left);
            }
            left -= part.len;
        }
        (0, 0)
    }

    fn check(&self, index: usize) -> Result<()> {
        if index < self.len { Ok(()) } else { Err(Error::Index { index, len: self.len }) }
    }

    /// An element.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`].
    pub fn get<'a>(&'a self, index: usize, scope: &'a Scope) -> Result<&'a T> {
        self.check(index)?;
        let (part, at) = self.place(index);
        Ok(&slice(&self.parts[part].chunk.get(scope)?.0)[at])
    }

    /// An element to write to.
    ///
    /// # Errors
    /// As [`FarList::get`].
    pub fn get_mut<'a>(&'a mut self, index: usize, scope: &'a Scope) -> Result<&'a mut T> {
        self.check(index)?;
        let (part, at) = self.place(index);
        Ok(&mut slice_mut(&mut self.parts[part].chunk.get_mut(scope)?.0)[at])
    }

    /// Puts an element before the one with this index, or behind the last.
    ///
    /// # Errors
    /// As [`FarList::get`], and where the nodes have no room. The list is as it was then.
    pub fn insert(&mut self, index: usize, value: T) -> Result<()> {
        if index > self.len {
            return Err(Error::Index { index, len: self.len });
        }
        if self.parts.is_empty() {
            self.parts.push(Part { chunk: self.heap.alloc(&Chunk::ZERO)?, len: 0 });
        }
        let (mut number, mut at) = self.place(index);
        if self.parts[number].len == Self::EACH {
            // At an end nothing moves, so that lists that grow there have full parts.
            let keep = if at == Self::EACH { Self::EACH } else { Self::EACH / 2 };
            self.split(number, keep)?;
            if at > keep || keep == Self::EACH {
                (number, at) = (number + 1, at - keep);
            }
        }
        let scope = self.heap.scope();
        let Part { chunk, len } = &mut self.parts[number];
        let bytes = match chunk.get_mut(&scope) {
            Ok(bytes) => &mut bytes.0,
            Err(e) if *len > 0 => return Err(e),
            Err(e) => {
                self.parts.remove(number);
                return Err(e);
            }
        };
        let size = size_of::<T>();
        bytes.copy_within(at * size..*len * size, (at + 1) * size);
        slice_mut(bytes)[at] = value;
        *len += 1;
        self.len += 1;
        Ok(())
    }

    /// Moves the elements of a part from `keep` on to a fresh part behind it.
    fn split(&mut self, number: usize, keep: usize) -> Result<()> {
        let mut fresh = Chunk::ZERO;
        let len = self.parts[number].len;
        if keep < len {
            let (from, until) = (keep * size_of::<T>(), len * size_of::<T>());
            let scope = self.heap.scope();
            fresh.0[..until - from].copy_from_slice(&self.parts[number].chunk.get(&scope)?.0[from..until]);
        }
        let chunk = self.heap.alloc(&fresh)?;
        self.parts.insert(number + 1, Part { chunk, len: len - keep });
        self.parts[number].len = keep;
        Ok(())
    }

    /// Takes an element out.
    ///
    /// # Errors
    /// As [`FarList::get`].
    pub fn remove(&mut self, index: usize) -> Result<T> {
        self.check(index)?;
        let (number, at) = self.place(index);
        let scope = self.heap.scope();
        let Part { chunk, len } = &mut self.parts[number];
        let (bytes, size) = (&mut chunk.get_mut(&scope)?.0, size_of::<T>());
        let removed = copied(&bytes[at * size..(at + 1) * size]);
        bytes.copy_within((at + 1) * size..*len * size, at * size);
        *len -= 1;
        self.len -= 1;
        if *len == 0 {
            self.parts.remove(number);
        }
        Ok(removed)
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As [`FarList::insert`].
    pub fn push_back(&mut self, value: T) -> Result<()> {
        self.insert(self.len, value)
    }

    /// Puts an element before the first.
    ///
    /// # Errors
    /// As [`FarList::insert`].
    pub fn push_front(&mut self, value: T) -> Result<()> {
        self.insert(0, value)
    }

    /// Takes the last element.
    ///
    /// # Errors
    /// As [`FarList::get`].
    pub fn pop_back(&mut self) -> Result<Option<T>> {
        self.len.checked_sub(1).map(|last| self.remove(last)).transpose()
    }

    /// Takes the first element.
    ///
    /// # Errors
    /// As [`FarList::get`].
    pub fn pop_front(&mut self) -> Result<Option<T>> {
        if self.is_empty() { Ok(None) } else { self.remove(0).map(Some) }
    }

    /// Moves the elements from an index on to a list of their own.
    ///
    /// # Errors
    /// As [`FarList::insert`].
    pub fn split_off(&mut self, index: usize) -> Result<FarList<T>> {
        if index > self.len {
            return Err(Error::Index { index, len: self.len });
        }
        let mut rest = FarList::new(self.heap.clone());
        if index < self.len {
            let (mut number, at) = self.place(index);
            if at > 0 {
                self.split(number, at)?;
                number += 1;
            }
            rest.parts = self.parts.split_off(number);
            rest.len = self.len - index;
            self.len = index;
        }
        Ok(rest)
    }

    /// Moves all elements of another list behind the last. No element moves at the nodes.
    ///
    /// # Errors
    /// [`Error::OtherHeap`]: then both are as they were.
    pub fn append(&mut self, other: &mut FarList<T>) -> Result<()> {
        self.heap.scope().is_of(&other.heap)?;
        self.parts.append(&mut other.parts);
        self.len += std::mem::take(&mut other.len);
        Ok(())
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// Calls `visit` for all elements in order, some at a time. The next ones are under way
    /// meanwhile.
    ///
    /// # Errors
    /// As [`FarList::get`].
    pub fn scan(&self, mut visit: impl FnMut(&[T])) -> Result<()> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, part) in self.parts.iter().enumerate() {
            ahead.go(number, self.parts.len(), |n| &self.parts[n].chunk);
            let scope = self.heap.scope();
            visit(&slice(&part.chunk.get(&scope)?.0)[..part.len]);
            drop(scope);
            ahead.seen(&part.chunk);
        }
        Ok(())
    }
}

impl<T: Far> std::fmt::Debug for FarList<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarList").field("len", &self.len).finish_non_exhaustive()
    }
}
