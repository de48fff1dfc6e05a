//! A queue with two ends, of which the chunks are far.

use crate::boxes::elements;
use crate::frames::{copied, slice, slice_mut};
use crate::vec::Ahead;
use crate::{CHUNK, Chunk, Far, FarBox, Heap, Result};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// Chunks that are under way ahead of the front.
const AHEAD: usize = 16;

/// A queue of plain elements in far memory: both ends can grow and shrink, as those of std's
/// `VecDeque`.
///
/// Its middle is away when local memory is short. Elements that come to the front next are fetched
/// ahead.
pub struct FarQueue<T: Far> {
    chunks: VecDeque<FarBox<Chunk>>,
    /// Elements of the first chunk that are before the front.
    skip: usize,
    len: usize,
    heap: Heap,
    elements: PhantomData<T>,
}

impl<T: Far> FarQueue<T> {
    const EACH: usize = elements::<T>(CHUNK);

    pub(crate) fn new(heap: Heap) -> FarQueue<T> {
        FarQueue { chunks: VecDeque::new(), skip: 0, len: 0, heap, elements: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn read(&self, place: usize) -> Result<T> {
        let scope = self.heap.scope();
        let chunk = self.chunks[place / Self::EACH].get(&scope)?;
        Ok(copied(slice::<T>(&chunk.0)[place % Self::EACH].as_bytes()))
    }

    fn write(&mut self, place: usize, value: T) -> Result<()> {
        let scope = self.heap.scope();
        let chunk = self.chunks[place / Self::EACH].get_mut(&scope)?;
        slice_mut(&mut chunk.0)[place % Self::EACH] = value;
        Ok(())
    }

    /// Appends an element at the back.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], [`crate::Error::ScopeFull`]. The queue is as it was then.
    pub fn push_back(&mut self, value: T) -> Result<()> {
        let place = self.skip + self.len;
        if place == self.chunks.len() * Self::EACH {
            self.chunks.push_back(self.heap.alloc(&Chunk::ZERO)?);
        }
        self.write(place, value)?;
        self.len += 1;
        Ok(())
    }

    /// Puts an element before the first.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn push_front(&mut self, value: T) -> Result<()> {
        if self.skip == 0 {
            self.chunks.push_front(self.heap.alloc(&Chunk::ZERO)?);
            self.skip = Self::EACH;
        }
        if let Err(e) = self.write(self.skip - 1, value) {
            if self.skip == Self::EACH {
                self.chunks.pop_front();
                self.skip = 0;
            }
            return Err(e);
        }
        self.skip -= 1;
        self.len += 1;
        Ok(())
    }

    /// Takes the first element.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn pop_front(&mut self) -> Result<Option<T>> {
        if self.len == 0 {
            return Ok(None);
        }
        if self.skip == 0 && self.chunks.len() > 1 {
            // A chunk begins: the next ones are on their way while it is read.
            let ahead = self.heap.inner.ahead(FarBox::<Chunk>::CLASS, AHEAD);
            let next: Vec<&FarBox<Chunk>> = self.chunks.iter().take(ahead).collect();
            self.heap.prefetch(&next);
        }
        let value = self.read(self.skip)?;
        self.skip += 1;
        self.len -= 1;
        if self.skip == Self::EACH || self.len == 0 {
            self.chunks.pop_front();
            self.skip = 0;
        }
        self.trim();
        Ok(Some(value))
    }

    /// Takes the last element.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn pop_back(&mut self) -> Result<Option<T>> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(None) };
        let value = self.read(self.skip + last)?;
        self.len = last;
        self.trim();
        Ok(Some(value))
    }

    /// Chunks behind the last element go back.
    fn trim(&mut self) {
        if self.len == 0 {
            self.skip = 0;
        }
        self.chunks.truncate((self.skip + self.len).div_ceil(Self::EACH));
    }

    /// A copy of the first element.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn front(&self) -> Result<Option<T>> {
        if self.len == 0 { Ok(None) } else { self.read(self.skip).map(Some) }
    }

    /// A copy of the last element.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn back(&self) -> Result<Option<T>> {
        if self.len == 0 { Ok(None) } else { self.read(self.skip + self.len - 1).map(Some) }
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.len = 0;
        self.trim();
    }

    /// Calls `visit` for all elements from front to back, some at a time. The next ones are under
    /// way meanwhile.
    ///
    /// # Errors
    /// As [`FarQueue::push_back`].
    pub fn scan(&self, mut visit: impl FnMut(&[T])) -> Result<()> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, chunk) in self.chunks.iter().enumerate() {
            ahead.go(number, self.chunks.len(), |n| &self.chunks[n]);
            let from = if number == 0 { self.skip } else { 0 };
            let until = Self::EACH.min(self.skip + self.len - number * Self::EACH);
            let scope = self.heap.scope();
            visit(&slice(&chunk.get(&scope)?.0)[from..until]);
            drop(scope);
            ahead.seen(chunk);
        }
        Ok(())
    }
}

impl<T: Far> std::fmt::Debug for FarQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarQueue").field("len", &self.len).finish_non_exhaustive()
    }
}
