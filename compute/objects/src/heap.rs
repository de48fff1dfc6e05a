//! A heap: the nodes' memory, and the frames that are local of it.

use crate::frames::Frames;
use crate::{CHUNK, Error, Far, FarVec, Result};
use farmem::{Lane, Memory, Transport};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Least frames of a heap.
const LEAST: usize = 64;
/// Local memory where nothing else is said, bytes.
const USUAL: usize = 64 << 20;

pub(crate) struct Inner {
    pub memory: Memory,
    pub lane: RefCell<Lane>,
    pub frames: RefCell<Frames>,
    collections: Cell<u64>,
}

/// Far memory for objects, with a part of it local. Cheap to clone; stays on its thread.
#[derive(Clone)]
pub struct Heap {
    pub(crate) inner: Rc<Inner>,
}

/// Settings of a [`Heap`].
#[derive(Debug)]
pub struct Builder {
    local: usize,
    memory: farmem::Builder,
}

impl Builder {
    /// Local memory at most, bytes. Usually 64 MiB.
    pub fn local(mut self, bytes: usize) -> Builder {
        self.local = bytes;
        self
    }

    /// Adds a node: `host:7411`, or `unix:/path` on this machine.
    pub fn node(mut self, address: impl Into<String>) -> Builder {
        self.memory = self.memory.node(address);
        self
    }

    /// How bytes are to move. Usually the fastest way that works.
    pub fn transport(mut self, transport: Transport) -> Builder {
        self.memory = self.memory.transport(transport);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::TooLittleLocal`], [`Error::Memory`] with what to do.
    pub fn build(self) -> Result<Heap> {
        if self.local < LEAST * CHUNK {
            return Err(Error::TooLittleLocal(self.local));
        }
        let memory = self.memory.connect()?;
        let lane = RefCell::new(memory.lane()?);
        let frames = RefCell::new(Frames::new(self.local / CHUNK));
        Ok(Heap { inner: Rc::new(Inner { memory, lane, frames, collections: Cell::new(0) }) })
    }
}

impl Heap {
    /// For a heap.
    pub fn builder() -> Builder {
        Builder { local: USUAL, memory: Memory::builder() }
    }

    /// A scope: references that are taken by it are good as long as it lives.
    pub fn scope(&self) -> Scope {
        Scope { heap: self.clone(), stamp: self.inner.frames.borrow_mut().begin() }
    }

    /// An empty vector.
    pub fn vec<T: Far>(&self) -> FarVec<T> {
        self.inner.collections.set(self.inner.collections.get() + 1);
        FarVec::new(self.clone(), self.inner.collections.get())
    }

    /// Chunks that were fetched, and those that were written back, since the heap was built.
    pub fn moved(&self) -> (u64, u64) {
        let frames = self.inner.frames.borrow();
        (frames.fetched, frames.written)
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("local", &(self.inner.frames.borrow().most() * CHUNK)).finish_non_exhaustive()
    }
}

/// Keeps local what is reached by it.
#[derive(Debug)]
pub struct Scope {
    heap: Heap,
    stamp: u64,
}

impl Scope {
    pub(crate) fn is_of(&self, heap: &Heap) -> Result<()> {
        if Rc::ptr_eq(&self.heap.inner, &heap.inner) { Ok(()) } else { Err(Error::OtherHeap) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.heap.inner.frames.borrow_mut().end(self.stamp);
    }
}
