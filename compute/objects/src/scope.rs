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
pub struct Scope {
    pub(crate) inner: Rc<Inner>,
    /// The frames of `inner`, which the scope keeps alive. A copy here saves a use one pointer.
    pub(crate) arena: Frames,
    /// Its stamp, shifted to where a frame's `meta` has it; the bits below are 0.
    pub(crate) mark: u64,
}

impl Scope {
    #[inline]
    pub(crate) fn new(inner: Rc<Inner>, mark: u64) -> Scope {
        Scope { arena: inner.arena.frames(), inner, mark }
    }

    pub(crate) fn is_of(&self, heap: &Heap) -> Result<()> {
        if Rc::ptr_eq(&self.inner, &heap.inner) { Ok(()) } else { Err(Error::OtherHeap) }
    }

    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        self.inner.end(self.mark);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("stamp", &(self.mark >> STAMP)).finish_non_exhaustive()
    }
}
