//! Scopes: objects that were reached by one stay local, and where they are, until its end.
//!
//! A scope is a stamp of the heap's clock. A use leaves the stamp in the frame ([`crate::frames`]),
//! whatever was there: one store, and no look. So an older scope may replace a younger one's stamp.
//! [`Open`] knows which stamps a scope's objects may have:
//!
//! ```text
//! stamp 1  ├────── a ──────┤                 a uses X: 1
//! stamp 2       ├──────── b ────────┤        b uses X: 2; then a uses X: 1
//! stamp 3                  ├──── c ────┤     a has ended: what b holds has 1, and c's has 2 at least
//! ```

use crate::frames::Frames;
use crate::heap::Inner;
use crate::word::STAMP;
use crate::{Error, Heap, Result};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

/// Later than all stamps.
pub const NO_SCOPE: u64 = u64::MAX >> STAMP;

/// The open scopes of a heap. Pure.
///
/// What a scope holds has the stamp of a scope that was open beside it: the oldest of these was the
/// oldest one when the scope began, because all that begin later have greater stamps.
pub struct Open {
    /// The oldest open scope's stamp, or [`NO_SCOPE`].
    first: Cell<u64>,
    /// The oldest stamp of what it holds.
    needed: Cell<u64>,
    /// The other open scopes, in the order in which they began: the stamp of each, and the oldest of
    /// what it holds.
    younger: RefCell<Vec<(u64, u64)>>,
}

impl Default for Open {
    fn default() -> Open {
        Open { first: Cell::new(NO_SCOPE), needed: Cell::new(NO_SCOPE), younger: RefCell::default() }
    }
}

impl Open {
    /// A frame whose stamp is not older than this may be held by an open scope. It never becomes
    /// older while one is open: each later scope needs no older stamp than those before it.
    #[inline]
    pub fn needed(&self) -> u64 {
        self.needed.get()
    }

    /// A scope begins. Its stamp is greater than all before.
    #[inline]
    pub fn begin(&self, stamp: u64) {
        if self.first.get() == NO_SCOPE {
            self.first.set(stamp);
            self.needed.set(stamp);
        } else {
            self.younger.borrow_mut().push((stamp, self.first.get()));
        }
    }

    /// A scope ends.
    #[inline]
    pub fn end(&self, stamp: u64) {
        let mut younger = self.younger.borrow_mut();
        if younger.is_empty() {
            self.first.set(NO_SCOPE);
            self.needed.set(NO_SCOPE);
        } else if stamp == self.first.get() {
            let (next, needed) = younger.remove(0);
            self.first.set(next);
            self.needed.set(needed);
        } else if younger.last().is_some_and(|&(last, _)| last == stamp) {
            younger.pop();
        } else {
            younger.retain(|&(one, _)| one != stamp);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that knows for each object which open scopes hold it, under scopes and uses in every
    /// order of a random walk.
    #[test]
    fn no_object_of_an_open_scope_is_older_than_what_is_needed() {
        let (open, mut clock, mut draw) = (Open::default(), 0u64, 7u64);
        let mut below = |most: usize| {
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            (draw % most as u64) as usize
        };
        // Of each object its stamp, and the open scopes that have used it.
        let mut objects: Vec<(u64, Vec<u64>)> = vec![(0, Vec::new()); 8];
        let (mut scopes, mut free): (Vec<u64>, usize) = (Vec::new(), 0);
        for _ in 0..50_000 {
            match below(4) {
                0 if scopes.len() < 6 => {
                    clock += 1;
                    open.begin(clock);
                    scopes.push(clock);
                }
                1 if !scopes.is_empty() => {
                    let ended = scopes.remove(below(scopes.len()));
                    open.end(ended);
                    objects.iter_mut().for_each(|(_, by)| by.retain(|&one| one != ended));
                }
                _ if !scopes.is_empty() => {
                    let (object, by) = (below(objects.len()), scopes[below(scopes.len())]);
                    // One that may leave has left, and comes back by this use.
                    objects[object].0 = by;
                    objects[object].1.push(by);
                }
                _ => {}
            }
            for (stamp, by) in &objects {
                assert!(by.is_empty() || *stamp >= open.needed(), "{by:?} hold what has stamp {stamp}");
                free += usize::from(!scopes.is_empty() && *stamp < open.needed());
            }
            assert_eq!(open.needed() == NO_SCOPE, scopes.is_empty());
        }
        assert!(free > 100, "nothing could leave while a scope was open");
    }
}
