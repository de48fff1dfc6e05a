//! A vector of which the chunks are far.

use crate::boxes::elements;
use crate::frames::{copied, slice, slice_mut};
use crate::{CHUNK, Chunk, Error, Far, FarBox, Heap, Result, Scope};
use std::marker::PhantomData;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Chunks that a scan has under way.
const AHEAD: usize = 32;

/// A growable array of plain elements in far memory.
pub struct FarVec<T: Far> {
    len: usize,
    chunks: Vec<FarBox<Chunk>>,
    heap: Heap,
    elements: PhantomData<T>,
}

impl<T: Far> FarVec<T> {
    /// Elements of a chunk. An element that is empty, or larger than a chunk, does not compile.
    pub(crate) const EACH: usize = elements::<T>(CHUNK);

    pub(crate) fn new(heap: Heap) -> FarVec<T> {
        FarVec { len: 0, chunks: Vec::new(), heap, elements: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(crate) fn chunks(&self) -> &[FarBox<Chunk>] {
        &self.chunks
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
    pub fn get<'a>(&'a self, index: usize, scope: &'a Scope) -> Result<&'a T> {
        self.check(index)?;
        let chunk = self.chunks[index / Self::EACH].get(scope)?;
        Ok(&slice(&chunk.0)[index % Self::EACH])
    }

    /// An element to write to.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    #[inline]
    pub fn get_mut<'a>(&'a mut self, index: usize, scope: &'a Scope) -> Result<&'a mut T> {
        self.check(index)?;
        let chunk = self.chunks[index / Self::EACH].get_mut(scope)?;
        Ok(&mut slice_mut(&mut chunk.0)[index % Self::EACH])
    }

    /// Many elements, in the order of their indices. Elements that are away come by one round trip
    /// to each node.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn get_many<'a>(&'a self, indices: &[usize], scope: &'a Scope) -> Result<Vec<&'a T>> {
        scope.is_of(&self.heap)?;
        indices.iter().try_for_each(|&index| self.check(index))?;
        let chunks: Vec<&FarBox<Chunk>> = indices.iter().map(|index| &self.chunks[index / Self::EACH]).collect();
        self.heap.inner.load_all(&chunks, scope.mark())?;
        indices.iter().map(|&index| self.get(index, scope)).collect()
    }

    /// An element, for a task that lets others go on while it comes: see [`Heap::join`].
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub async fn load<'a>(&'a self, index: usize, scope: &'a Scope) -> Result<&'a T> {
        self.check(index)?;
        let chunk = self.chunks[index / Self::EACH].load(scope).await?;
        Ok(&slice(&chunk.0)[index % Self::EACH])
    }

    /// A copy of an element.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn read(&self, index: usize) -> Result<T> {
        let scope = self.heap.scope();
        Ok(copied(self.get(index, &scope)?.as_bytes()))
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.check(index)?;
        let scope = self.heap.scope();
        let chunk = self.chunks[index / Self::EACH].get_mut(&scope)?;
        slice_mut(&mut chunk.0)[index % Self::EACH] = value;
        Ok(())
    }

    /// Replaces elements, from an index on.
    ///
    /// # Errors
    /// As [`FarVec::get`]. The first of them may be replaced then.
    pub fn set_range(&mut self, index: usize, elements: &[T]) -> Result<()> {
        let end = index.saturating_add(elements.len());
        if end > self.len {
            return Err(Error::Index { index: end, len: self.len });
        }
        let (size, mut next, mut left) = (size_of::<T>(), index, elements);
        while !left.is_empty() {
            let at = next % Self::EACH;
            let (now, rest) = left.split_at(left.len().min(Self::EACH - at));
            let scope = self.heap.scope();
            let chunk = self.chunks[next / Self::EACH].get_mut(&scope)?;
            chunk.0[at * size..(at + now.len()) * size].copy_from_slice(now.as_bytes());
            (next, left) = (next + now.len(), rest);
        }
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As [`FarVec::get`], and where the nodes have no room. The vector is as it was then.
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len == self.chunks.len() * Self::EACH {
            self.chunks.push(self.heap.alloc(&Chunk::ZERO)?);
        }
        self.len += 1;
        self.set(self.len - 1, value).inspect_err(|_| self.len -= 1)
    }

    /// Appends elements.
    ///
    /// # Errors
    /// As [`FarVec::push`]. The first of them may be there then.
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<()> {
        let (size, mut left) = (size_of::<T>(), elements);
        while !left.is_empty() {
            if self.len == self.chunks.len() * Self::EACH {
                self.chunks.push(self.heap.alloc(&Chunk::ZERO)?);
            }
            let at = self.len % Self::EACH;
            let (now, rest) = left.split_at(left.len().min(Self::EACH - at));
            let scope = self.heap.scope();
            let chunk = self.chunks[self.len / Self::EACH].get_mut(&scope)?;
            chunk.0[at * size..(at + now.len()) * size].copy_from_slice(now.as_bytes());
            self.len += now.len();
            left = rest;
        }
        Ok(())
    }

    /// Appends elements that begin a chunk; others as [`FarVec::extend_from_slice`] does. Their
    /// chunks are neighbours at home, if enough neighbours are free.
    pub(crate) fn append_run(&mut self, elements: &[T]) -> Result<()> {
        if self.len != self.chunks.len() * Self::EACH || !CHUNK.is_multiple_of(size_of::<T>()) {
            return self.extend_from_slice(elements);
        }
        self.chunks.extend(self.heap.inner.fresh_run(elements.as_bytes())?);
        self.len += elements.len();
        Ok(())
    }

    /// Copies of the elements of a range. The next ones are under way meanwhile.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn get_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        let (mut next, until) = (range.start, range.end);
        if next > until || until > self.len {
            return Err(Error::Index { index: until.max(next), len: self.len });
        }
        let mut elements = Vec::with_capacity(until - next);
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        while next < until {
            let number = next / Self::EACH;
            ahead.go(number, until.div_ceil(Self::EACH), |n| &self.chunks[n]);
            let (from, end) = (next % Self::EACH, Self::EACH.min(until - number * Self::EACH));
            let scope = self.heap.scope();
            let chunk = slice::<T>(&self.chunks[number].get(&scope)?.0);
            elements.extend(chunk[from..end].iter().map(|one| copied::<T>(one.as_bytes())));
            drop(scope);
            ahead.seen(&self.chunks[number]);
            next += end - from;
        }
        Ok(elements)
    }

    /// Takes the last element.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn pop(&mut self) -> Result<Option<T>> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(None) };
        let value = self.read(last)?;
        self.truncate(last);
        Ok(Some(value))
    }

    /// Drops the elements from `len` on. Memory that is not needed goes back to the nodes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.chunks.truncate(self.len.div_ceil(Self::EACH));
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Calls `visit` for all elements in order, some at a time, with the index of the first. The
    /// next ones are under way meanwhile. Where local memory is short, elements that were seen make
    /// room at once, and push out nothing else.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn scan(&self, mut visit: impl FnMut(usize, &[T])) -> Result<()> {
        let mut ahead = Ahead::new(&self.heap, AHEAD);
        for (number, chunk) in self.chunks.iter().enumerate() {
            ahead.go(number, self.chunks.len(), |n| &self.chunks[n]);
            let first = number * Self::EACH;
            let scope = self.heap.scope();
            let elements = slice(&chunk.get(&scope)?.0[..Self::EACH * size_of::<T>()]);
            visit(first, &elements[..Self::EACH.min(self.len - first)]);
            drop(scope);
            ahead.seen(chunk);
        }
        Ok(())
    }

    /// Copies of all elements in order. The next ones are under way meanwhile.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { of: self, ahead: Ahead::new(&self.heap, AHEAD), next: 0 }
    }
}

/// Keeps objects under way ahead of a reader that goes through them in order.
pub(crate) struct Ahead<'a> {
    heap: &'a Heap,
    /// Objects before this one were asked for.
    asked: usize,
    most: usize,
}

impl<'a> Ahead<'a> {
    pub fn new(heap: &'a Heap, want: usize) -> Ahead<'a> {
        Ahead { heap, asked: 0, most: want }
    }

    /// The reader comes to object `now` of `len`. Objects are asked for by the half of what may be
    /// under way.
    pub fn go<T: Far>(&mut self, now: usize, len: usize, of: impl Fn(usize) -> &'a FarBox<T>) {
        self.asked = self.asked.max(now);
        if self.asked < len && self.asked - now <= self.most / 2 {
            let most = self.heap.inner.ahead(FarBox::<T>::CLASS, self.most);
            self.most = most;
            let until = len.min(now + most);
            let boxes: Vec<&FarBox<T>> = (self.asked..until).map(of).collect();
            self.heap.prefetch(&boxes);
            self.asked = until;
        }
    }

    /// The reader is done with an object.
    pub fn seen<T: Far>(&self, one: &FarBox<T>) {
        self.heap.inner.seen(FarBox::<T>::CLASS, one.word());
    }
}

/// Copies of a vector's elements ([`FarVec::iter`]).
pub struct Iter<'a, T: Far> {
    of: &'a FarVec<T>,
    ahead: Ahead<'a>,
    next: usize,
}

impl<T: Far> Iterator for Iter<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let index = self.next;
        if index >= self.of.len {
            return None;
        }
        let (of, chunk) = (self.of, index / FarVec::<T>::EACH);
        if index.is_multiple_of(FarVec::<T>::EACH) {
            if let Some(before) = chunk.checked_sub(1) {
                self.ahead.seen(&of.chunks[before]);
            }
            self.ahead.go(chunk, of.chunks.len(), |n| &of.chunks[n]);
        }
        self.next += 1;
        Some(of.read(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.len - self.next;
        (left, Some(left))
    }
}

impl<'a, T: Far> IntoIterator for &'a FarVec<T> {
    type Item = Result<T>;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T: Far> std::fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<T: Far> std::fmt::Debug for FarVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarVec").field("len", &self.len).finish_non_exhaustive()
    }
}
