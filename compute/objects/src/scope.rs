//! Scopes: objects that were reached by one stay local, and where they are, until its end.
//!
//! A scope is a stamp of the heap's clock. A use leaves the stamp in the frame ([`crate::frames`]).

use crate::frames::Frames;
use crate::heap::Inner;
use crate::word::STAMP;
use crate::{Error, Heap, Result};
use std::fmt;
use std::rc::Rc;

/// Keeps local the objects that are reached by it.
///
/// A use needs `arena` and `mark`. They stay in registers over a loop of uses only if the address
/// of the scope goes nowhere. So its heap leaves it by value when it ends.
pub struct Scope {
    /// `None` when it has ended.
    inner: Option<Rc<Inner>>,
    /// The frames of `inner`, which the scope keeps alive. A copy here saves a use one pointer.
    pub(crate) arena: Frames,
    /// Its stamp, shifted to where a frame's `meta` has it; the bits below are 0.
    pub(crate) mark: u64,
}

impl Scope {
    #[inline]
    pub(crate) fn new(inner: Rc<Inner>, mark: u64) -> Scope {
        Scope { arena: inner.arena.frames(), inner: Some(inner), mark }
    }

    /// Its heap.
    ///
    /// # Errors
    /// [`Error::OtherHeap`]: the scope has ended, which no caller sees.
    #[inline]
    pub(crate) fn inner(&self) -> Result<&Inner> {
        self.inner.as_deref().ok_or(Error::OtherHeap)
    }

    pub(crate) fn is_of(&self, heap: &Heap) -> Result<()> {
        if std::ptr::eq(self.inner()?, &*heap.inner) { Ok(()) } else { Err(Error::OtherHeap) }
    }

    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }
}

impl Drop for Scope {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            ended(inner, self.mark);
        }
    }
}

/// Ends a scope of a heap. A call, so that what drops a scope is small enough to be a part of each
/// caller: if it is not, the scope is in memory.
#[inline(never)]
fn ended(inner: Rc<Inner>, mark: u64) {
    inner.end(mark);
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("stamp", &(self.mark >> STAMP)).finish_non_exhaustive()
    }
}
