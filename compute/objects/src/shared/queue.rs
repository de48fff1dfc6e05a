//! A queue of far chunks that threads share: several push, and several take.
//!
//! A chunk's worth of elements at either end is near ([`farmem_sys::ends`]). So most calls move
//! nothing, and hold a lock for a moment. One of many seals a full chunk, or opens the next. If that
//! one is away, those behind it come by the same round trip.

use super::{Seat, SharedBox, SharedHeap, is_forked};
use crate::boxes::elements;
use crate::frames::{copied, slice};
use crate::{CHUNK, Chunk, Error, Far, Result};
use farmem_sys::ends::Ends;
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::IntoBytes;

/// Chunks that come together, at most: each seat's share of a class has room for as many.
const AHEAD: usize = 8;
/// One part in this many of local memory is for them, at most.
const PART: usize = 16;

/// A queue of plain elements in far memory, first in, first out. Any number of threads may push and
/// take at a time. What one thread pushes comes out in the order in which it did.
///
/// Elements that come to the front next are fetched ahead, up to eight chunks by one round trip. At
/// most 8 KiB of a queue are near, beside the heap's local memory.
pub struct SharedQueue<T: Far> {
    ends: Ends<T, SharedBox<Chunk>>,
    len: AtomicUsize,
    /// Chunks that come together, by the local memory there was when some last did.
    ahead: AtomicUsize,
    heap: SharedHeap,
}

impl<T: Far> SharedQueue<T> {
    const EACH: usize = elements::<T>(CHUNK);

    pub(super) fn new(heap: SharedHeap) -> SharedQueue<T> {
        SharedQueue { ends: Ends::default(), len: AtomicUsize::new(0), ahead: AtomicUsize::new(1), heap }
    }

    /// Elements at a moment of the call.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there was none at a moment of the call.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check(&self, seat: &Seat) -> Result<()> {
        // A thread of the parent may have held a lock at the fork.
        if is_forked() { Err(Error::Memory(farmem::Error::Forked)) } else { self.heap.has(seat) }
    }

    /// Appends an element.
    ///
    /// # Errors
    /// [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`]. The queue is as it was then.
    pub fn push(&self, value: T, seat: &Seat) -> Result<()> {
        self.check(seat)?;
        // Before: who takes it subtracts it.
        self.len.fetch_add(1, Ordering::Relaxed);
        let seal = |elements: &[T]| {
            let mut chunk = Chunk::ZERO;
            let bytes = elements.as_bytes();
            chunk.0[..bytes.len()].copy_from_slice(bytes);
            seat.alloc(&chunk)
        };
        self.ends.push(value, Self::EACH, seal).inspect_err(|_| {
            self.len.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Takes the first element. `None`: there is none now.
    ///
    /// # Errors
    /// As [`SharedQueue::push`]. The element stays in the queue then.
    pub fn pop(&self, seat: &Seat) -> Result<Option<T>> {
        self.check(seat)?;
        let taken = self.ends.pop(self.ahead.load(Ordering::Relaxed), |chunks| {
            let scope = seat.scope();
            if !chunks[0].is_at_hand(&scope) {
                let most = self.heap.local().1 / CHUNK / PART;
                self.ahead.store(most.clamp(1, AHEAD), Ordering::Relaxed);
                let cells: Vec<_> = chunks.iter().map(SharedBox::cell).collect();
                // If not all of them can come, the first one may.
                let _ = scope.load_all(SharedBox::<Chunk>::CLASS, &cells);
            }
            let elements = &slice::<T>(&chunks[0].get(&scope)?.0)[..Self::EACH];
            Ok::<_, Error>(elements.iter().map(|one| copied(one.as_bytes())).collect())
        })?;
        if taken.is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(taken)
    }
}

impl<T: Far> std::fmt::Debug for SharedQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}
