//! A vector of which the chunks are far.

#![allow(unsafe_code)] // Ties references into frames to a scope and to this vector's borrow ([`crate::frames`]).

use crate::frames::{Wanted, part, part_mut};
use crate::{CHUNK, Error, Far, Heap, Result, Scope};
use farmem::Addr;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Chunks that a scan fetches by one round trip.
const AHEAD: usize = 16;

struct Chunk {
    home: Addr,
    place: Cell<usize>,
}

/// A growable array of plain elements in far memory.
pub struct FarVec<T: Far> {
    heap: Heap,
    number: u64,
    len: usize,
    chunks: Vec<Chunk>,
    elements: PhantomData<T>,
}

impl<T: Far> FarVec<T> {
    /// Elements of a chunk. An element that is empty, or larger than a chunk, does not compile.
    const EACH: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>() <= CHUNK && align_of::<T>() <= 64);
        CHUNK / size_of::<T>()
    };

    pub(crate) fn new(heap: Heap, number: u64) -> FarVec<T> {
        FarVec { heap, number, len: 0, chunks: Vec::new(), elements: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, index: usize) -> Result<()> {
        if index < self.len { Ok(()) } else { Err(Error::Index { index, len: self.len }) }
    }

    fn wanted(&self, chunk: usize) -> Wanted {
        let Chunk { home, place } = &self.chunks[chunk];
        Wanted { owner: self.number, chunk, home: *home, place: place.get() }
    }

    /// Makes these chunks local, by one round trip for those that are away. Ascending, each once. They stay as long as
    /// the scopes that are open.
    fn bring(&self, chunks: &[usize]) -> Result<()> {
        let frames = &mut *self.heap.inner.frames.borrow_mut();
        let mut away = Vec::new();
        for &chunk in chunks {
            let wanted = self.wanted(chunk);
            match frames.local(&wanted) {
                Some(place) => _ = frames.hold(place, false),
                None => away.push(wanted),
            }
        }
        if !away.is_empty() {
            let places = frames.fetch(&away, &mut self.heap.inner.lane.borrow_mut())?;
            away.iter().zip(places).for_each(|(wanted, place)| self.chunks[wanted.chunk].place.set(place));
        }
        Ok(())
    }

    /// The bytes of a chunk, local and held from now on.
    fn hold(&self, chunk: usize, write: bool) -> Result<NonNull<u8>> {
        let wanted = self.wanted(chunk);
        let frames = &mut *self.heap.inner.frames.borrow_mut();
        let place = match frames.local(&wanted) {
            Some(place) => place,
            None => {
                let place = frames.fetch(&[wanted], &mut self.heap.inner.lane.borrow_mut())?[0];
                self.chunks[chunk].place.set(place);
                place
            }
        };
        Ok(frames.hold(place, write))
    }

    /// An element.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`].
    pub fn get<'a>(&'a self, index: usize, scope: &'a Scope) -> Result<&'a T> {
        scope.is_of(&self.heap)?;
        self.check(index)?;
        let bytes = self.hold(index / Self::EACH, false)?;
        // SAFETY: the frame was held after the scope began, and the scope lives for 'a; this vector, which alone writes
        // to it, is borrowed for 'a.
        let bytes = unsafe { part(bytes, index % Self::EACH * size_of::<T>(), size_of::<T>()) };
        Ok(element(bytes))
    }

    /// An element to write to.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn get_mut<'a>(&'a mut self, index: usize, scope: &'a Scope) -> Result<&'a mut T> {
        scope.is_of(&self.heap)?;
        self.check(index)?;
        let bytes = self.hold(index / Self::EACH, true)?;
        // SAFETY: as in `get`; the borrow of the vector is exclusive.
        let bytes = unsafe { part_mut(bytes, index % Self::EACH * size_of::<T>(), size_of::<T>()) };
        Ok(element_mut(bytes))
    }

    /// Many elements, in the order of their indices. What is away comes by one round trip to each node.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn get_many<'a>(&'a self, indices: &[usize], scope: &'a Scope) -> Result<Vec<&'a T>> {
        scope.is_of(&self.heap)?;
        indices.iter().try_for_each(|&index| self.check(index))?;
        let mut chunks: Vec<usize> = indices.iter().map(|index| index / Self::EACH).collect();
        chunks.sort_unstable();
        chunks.dedup();
        self.bring(&chunks)?;
        indices.iter().map(|&index| self.get(index, scope)).collect()
    }

    /// A copy of an element.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn read(&self, index: usize) -> Result<T> {
        self.check(index)?;
        let bytes = self.hold(index / Self::EACH, false)?;
        // SAFETY: nothing else is done with frames before the bytes are read.
        let bytes = unsafe { part(bytes, index % Self::EACH * size_of::<T>(), size_of::<T>()) };
        Ok(copied(bytes))
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        self.check(index)?;
        let bytes = self.hold(index / Self::EACH, true)?;
        // SAFETY: nothing else is done with frames before the bytes are written.
        let bytes = unsafe { part_mut(bytes, index % Self::EACH * size_of::<T>(), size_of::<T>()) };
        bytes.copy_from_slice(value.as_bytes());
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As [`FarVec::get`], and where the nodes have no room. The vector is as it was then.
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len == self.chunks.len() * Self::EACH {
            let inner = &*self.heap.inner;
            let home = inner.memory.alloc(CHUNK as u64)?;
            let wanted = Wanted { owner: self.number, chunk: self.chunks.len(), home, place: 0 };
            let fresh = inner.frames.borrow_mut().fresh(&wanted, &mut inner.lane.borrow_mut());
            match fresh {
                Ok(place) => self.chunks.push(Chunk { home, place: Cell::new(place) }),
                Err(e) => {
                    let _ = inner.memory.free(home);
                    return Err(e);
                }
            }
        }
        self.len += 1;
        self.set(self.len - 1, value).inspect_err(|_| self.len -= 1)
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
        while self.chunks.len() > self.len.div_ceil(Self::EACH) {
            let wanted = self.wanted(self.chunks.len() - 1);
            self.heap.inner.frames.borrow_mut().forget(&wanted);
            self.chunks.pop();
            // Of a node that is lost there is nothing to give back.
            let _ = self.heap.inner.memory.free(wanted.home);
        }
    }

    /// Drops all elements.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Calls `visit` for all elements in order, some at a time, with the index of the first. What comes next is
    /// fetched many chunks at once.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn scan(&self, mut visit: impl FnMut(usize, &[T])) -> Result<()> {
        let ahead = AHEAD.min(self.heap.inner.frames.borrow().most() / 4);
        for from in (0..self.chunks.len()).step_by(ahead) {
            let scope = self.heap.scope();
            let chunks: Vec<usize> = (from..self.chunks.len().min(from + ahead)).collect();
            self.bring(&chunks)?;
            for chunk in chunks {
                let first = chunk * Self::EACH;
                let elements = Self::EACH.min(self.len - first);
                let bytes = self.hold(chunk, false)?;
                // SAFETY: as in `get`, for the time of the visit.
                visit(first, slice(unsafe { part(bytes, 0, elements * size_of::<T>()) }));
            }
            drop(scope);
        }
        Ok(())
    }
}

impl<T: Far> Drop for FarVec<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<T: Far> std::fmt::Debug for FarVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarVec").field("len", &self.len).finish_non_exhaustive()
    }
}

// Frames are aligned for every T that compiles, and elements lie at multiples of its size: these casts are plain
// data seen as what it is.

fn element<T: Far>(bytes: &[u8]) -> &T {
    &slice(bytes)[0]
}

fn element_mut<T: Far>(bytes: &mut [u8]) -> &mut T {
    assert!(bytes.len() == size_of::<T>() && bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: bytes enough and aligned; any bytes are a T, and any T is bytes.
    unsafe { &mut *bytes.as_mut_ptr().cast() }
}

fn slice<T: Far>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: aligned, and so many of them; any bytes are a T, which has no interior that changes.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

fn copied<T: Far>(bytes: &[u8]) -> T {
    assert!(bytes.len() == size_of::<T>());
    // SAFETY: bytes enough; any bytes are a T.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}
