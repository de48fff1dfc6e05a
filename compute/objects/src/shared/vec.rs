//! A vector of far chunks that threads share.

use super::{Seat, SharedBox, SharedHeap, SharedScope};
use crate::boxes::elements;
use crate::frames::{copied, slice, slice_mut};
use crate::{CHUNK, Chunk, Error, Far, Result};
use std::marker::PhantomData;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Chunks that a scan brings in together.
const TOGETHER: usize = 16;

/// A growable array of plain elements in far memory. Any number of threads may read it at a time,
/// or one may change it, as with a `Vec`.
pub struct SharedVec<T: Far> {
    len: usize,
    chunks: Vec<SharedBox<Chunk>>,
    heap: SharedHeap,
    elements: PhantomData<T>,
}

impl<T: Far> SharedVec<T> {
    /// Elements of a chunk. An element that is empty, or larger than a chunk, does not compile.
    const EACH: usize = elements::<T>(CHUNK);

    pub(super) fn new(heap: SharedHeap) -> SharedVec<T> {
        SharedVec { len: 0, chunks: Vec::new(), heap, elements: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn check(&self, index: usize) -> Result<()> {
        if index < self.len { Ok(()) } else { Err(Error::Index { index, len: self.len }) }
    }

    /// An element.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, index: usize, scope: &'a SharedScope<'_>) -> Result<&'a T> {
        self.check(index)?;
        let chunk = self.chunks[index / Self::EACH].get(scope)?;
        Ok(&slice(&chunk.0)[index % Self::EACH])
    }

    /// An element to write to.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    #[inline]
    pub fn get_mut<'a>(&'a mut self, index: usize, scope: &'a SharedScope<'_>) -> Result<&'a mut T> {
        self.check(index)?;
        let chunk = self.chunks[index / Self::EACH].get_mut(scope)?;
        Ok(&mut slice_mut(&mut chunk.0)[index % Self::EACH])
    }

    /// Many elements, in the order of their indices. Elements that are away come by one round trip
    /// to each node.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    pub fn get_many<'a>(&'a self, indices: &[usize], scope: &'a SharedScope<'_>) -> Result<Vec<&'a T>> {
        indices.iter().try_for_each(|&index| self.check(index))?;
        let chunks: Vec<_> = indices.iter().map(|index| self.chunks[index / Self::EACH].cell()).collect();
        scope.load_all(SharedBox::<Chunk>::CLASS, &chunks)?;
        indices.iter().map(|&index| self.get(index, scope)).collect()
    }

    /// A copy of an element.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    pub fn read(&self, index: usize, seat: &Seat) -> Result<T> {
        let scope = seat.scope();
        Ok(copied(self.get(index, &scope)?.as_bytes()))
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    pub fn set(&mut self, index: usize, value: T, seat: &Seat) -> Result<()> {
        let scope = seat.scope();
        *self.get_mut(index, &scope)? = value;
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As [`SharedVec::get`], and where the nodes have no room. The vector is as it was then.
    pub fn push(&mut self, value: T, seat: &Seat) -> Result<()> {
        self.extend_from_slice(std::slice::from_ref(&value), seat)
    }

    /// Appends elements.
    ///
    /// # Errors
    /// As [`SharedVec::push`]. The first of them may be there then.
    pub fn extend_from_slice(&mut self, elements: &[T], seat: &Seat) -> Result<()> {
        self.heap.has(seat)?;
        let (size, mut left) = (size_of::<T>(), elements);
        while !left.is_empty() {
            let at = self.len % Self::EACH;
            let (now, rest) = left.split_at(left.len().min(Self::EACH - at));
            if self.len == self.chunks.len() * Self::EACH {
                let mut chunk = Chunk::ZERO;
                chunk.0[..now.len() * size].copy_from_slice(now.as_bytes());
                self.chunks.push(seat.alloc(&chunk)?);
            } else {
                let scope = seat.scope();
                let chunk = self.chunks[self.len / Self::EACH].get_mut(&scope)?;
                chunk.0[at * size..(at + now.len()) * size].copy_from_slice(now.as_bytes());
            }
            self.len += now.len();
            left = rest;
        }
        Ok(())
    }

    /// Takes the last element.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    pub fn pop(&mut self, seat: &Seat) -> Result<Option<T>> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(None) };
        let value = self.read(last, seat)?;
        self.truncate(last);
        Ok(Some(value))
    }

    /// Drops the elements from `len` on. Memory that is not needed goes back to the nodes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.chunks.truncate(self.len.div_ceil(Self::EACH));
    }

    /// Calls `visit` for the elements of a range in order, some at a time, with the index of the
    /// first. Chunks come by 16 at a time. Threads that share a scan take a range each.
    ///
    /// # Errors
    /// As [`SharedVec::get`].
    pub fn scan(&self, range: Range<usize>, seat: &Seat, mut visit: impl FnMut(usize, &[T])) -> Result<()> {
        let Range { start, end } = range;
        if start > end || end > self.len {
            return Err(Error::Index { index: end.max(start), len: self.len });
        }
        let chunks = start / Self::EACH..end.div_ceil(Self::EACH);
        seat.visit(
            (if start < end { chunks } else { 0..0 }, TOGETHER),
            |n| &self.chunks[n],
            |n, chunk| {
                let first = n * Self::EACH;
                let (from, until) = (start.max(first), end.min(first + Self::EACH));
                visit(from, &slice::<T>(&chunk.0)[from - first..until - first]);
            },
        )
    }
}

impl<T: Far> std::fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedVec").field("len", &self.len).finish_non_exhaustive()
    }
}
