//! A thread's seat at a shared heap, and the scopes that it opens there.

use super::frames::Frames;
use super::{Inner, SharedBox, is_forked};
use crate::class::Class;
use crate::word::Word;
use crate::{Error, Far, Result};
use farmem::Lane;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Scopes of a seat between two looks at the heap's share of its run's local memory.
const SCOPES: u64 = 256;

/// A thread's seat at a shared heap. It may be sent to another thread, and is used by one at a time.
pub struct Seat {
    /// Declared before the heap, so dropped before it: the lane uses the heap's memory.
    pub(super) lane: RefCell<Lane>,
    /// Its number in the heap's epochs.
    pub(super) slot: usize,
    /// Open scopes, one within the other.
    pub(super) depth: Cell<usize>,
    /// Its shares are to be filled before the next scope begins.
    pub(super) is_low: Cell<bool>,
    /// The epoch of a scope for whose end it waited in vain.
    pub(super) gave_up: Cell<u64>,
    /// Outermost scopes that began.
    pub(super) scopes: Cell<u64>,
    pub(super) inner: Arc<Inner>,
}

impl Seat {
    /// Opens a scope. References that are taken by it are valid as long as it lives. Scopes nest:
    /// objects stay local until the outermost one ends.
    #[inline]
    pub fn scope(&self) -> SharedScope<'_> {
        if self.depth.replace(self.depth.get() + 1) == 0 {
            self.scopes.set(self.scopes.get() + 1);
            if self.scopes.get().is_multiple_of(SCOPES) {
                self.inner.weigh(self);
            }
            if self.is_low.get() {
                self.inner.settle(self);
            }
            self.inner.epochs.enter(self.slot);
        }
        SharedScope { frames: self.inner.arena.frames(), seat: self }
    }

    /// Puts a value into far memory.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the nodes have no room, [`crate::Error::ScopeFull`].
    pub fn alloc<T: Far>(&self, value: &T) -> Result<SharedBox<T>> {
        SharedBox::new(&self.inner, self, value)
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.inner.arena
    }

    /// Brings in a box's object if it is away. Returns the box's word.
    pub(super) fn load(&self, class: Class, cell: &AtomicU64) -> Result<Word> {
        let word = Word(cell.load(Ordering::Relaxed));
        if self.inner.arena.header(self.inner.arena.of_word(class, word)).warm(word.0) {
            return Ok(word);
        }
        self.inner.load_all(self, class, &[cell])?;
        Ok(Word(cell.load(Ordering::Relaxed)))
    }
}

impl Seat {
    /// Calls `visit` with the values of boxes, by number. So many come together. `of`: the box of a
    /// number.
    pub(super) fn visit<'b, T: Far>(
        &self,
        (numbers, together): (Range<usize>, usize),
        of: impl Fn(usize) -> &'b SharedBox<T>,
        mut visit: impl FnMut(usize, &T),
    ) -> Result<()> {
        let mut next = numbers.start;
        while next < numbers.end {
            let mut until = numbers.end.min(next + together);
            let scope = self.scope();
            let cells: Vec<_> = (next..until).map(|n| of(n).cell()).collect();
            if let Err(Error::ScopeFull(_)) = scope.load_all(SharedBox::<T>::CLASS, &cells) {
                // A small heap cannot hold all of them at once.
                until = next + 1;
            }
            for n in next..until {
                visit(n, of(n).get(&scope)?);
            }
            next = until;
        }
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !is_forked() {
            let mut core = self.inner.lock();
            // A scope may have been leaked. None of its references lives: they borrowed this seat.
            self.inner.epochs.leave(self.slot);
            core.rise(self.slot);
        }
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("slot", &self.slot).finish_non_exhaustive()
    }
}

/// Keeps local the objects that are reached by it. It stays on its thread.
pub struct SharedScope<'s> {
    /// The heap's frames, which the seat keeps alive. A copy here saves a use one pointer.
    frames: Frames,
    seat: &'s Seat,
}

impl SharedScope<'_> {
    #[inline]
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// See [`crate::boxes::Boxed::touch`].
    #[inline]
    pub(crate) fn touch<T: Far>(&self, one: &SharedBox<T>, byte: usize) {
        self.frames.touch_byte(SharedBox::<T>::CLASS, Word(one.cell().load(Ordering::Relaxed)), byte);
    }

    pub(super) fn seat(&self) -> &Seat {
        self.seat
    }

    /// The values of many boxes, in their order. Those that are away come by one round trip to each
    /// node.
    ///
    /// # Errors
    /// As [`SharedBox::get`].
    pub fn get_many<'a, T: Far>(&'a self, boxes: &[&'a SharedBox<T>]) -> Result<Vec<&'a T>> {
        self.load_all(SharedBox::<T>::CLASS, &boxes.iter().map(|one| one.cell()).collect::<Vec<_>>())?;
        boxes.iter().map(|one| one.get(self)).collect()
    }

    pub(super) fn load_all(&self, class: Class, cells: &[&AtomicU64]) -> Result<()> {
        self.seat.inner.load_all(self.seat, class, cells)
    }
}

impl Drop for SharedScope<'_> {
    #[inline]
    fn drop(&mut self) {
        let depth = self.seat.depth.get() - 1;
        self.seat.depth.set(depth);
        if depth == 0 {
            self.seat.inner.epochs.leave(self.seat.slot);
        }
    }
}

impl fmt::Debug for SharedScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedScope").finish_non_exhaustive()
    }
}
