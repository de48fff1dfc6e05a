//! [`FarBox`]: the value whose object a frame has. Why its references stay good is in [`super`].

#![allow(unsafe_code)] // Lends payloads beyond the borrow of the arena: see `frames`.

use super::{Frames, Header, bytes_of, copied};
use crate::boxes::check;
use crate::class::Class;
use crate::heap::Inner;
use crate::homes::{self, Home};
use crate::space::{At, Spot};
use crate::word::Word;
use crate::{Error, Far, Load, Result, Scope};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

/// A value in far memory: 8 bytes here, and the value in a frame or at its home. As `Box`, it owns
/// the value.
///
/// The box does not keep its heap alive. If the heap's last handle is dropped before the box, the
/// value is lost: each use returns [`Error::OtherHeap`].
pub struct FarBox<T: Far> {
    pub(super) word: Cell<u64>,
    /// A pointer type: so the box is not `Send`, and stays on its thread.
    value: PhantomData<*const T>,
}

impl<T: Far> FarBox<T> {
    pub(crate) const CLASS: Class = {
        let class = Class::of(size_of::<T>());
        check::<T>();
        assert!(align_of::<T>() <= class.header, "a far object's alignment is at most 16");
        class
    };

    pub(crate) fn new(inner: &Inner, value: &T) -> Result<FarBox<T>> {
        let (at, word) = inner.fresh(Self::CLASS)?;
        inner.arena.fill(at, value.as_bytes());
        inner.arena.arrived(at);
        Ok(FarBox { word: Cell::new(word.0), value: PhantomData })
    }

    /// A box of a fresh frame, with these bytes and zeros behind them.
    pub(crate) fn filled(inner: &Inner, at: At, word: Word, bytes: &[u8]) -> FarBox<T> {
        inner.arena.fill(at, &[bytes, &vec![0; size_of::<T>() - bytes.len()]].concat());
        inner.arena.arrived(at);
        FarBox { word: Cell::new(word.0), value: PhantomData }
    }

    /// A box whose object is at this home, and away. No other box has this home.
    pub(crate) fn away(home: Home) -> FarBox<T> {
        FarBox { word: Cell::new(Word::away(home).0), value: PhantomData }
    }

    /// Gives the box a new value, without fetching the one at its home.
    pub(crate) fn renew(&mut self, inner: &Inner, value: &T) -> Result<()> {
        self.forget(inner);
        let (at, word) = inner.fresh_at(Self::CLASS, self.word().home())?;
        inner.arena.fill(at, value.as_bytes());
        inner.arena.arrived(at);
        self.word.set(word.0);
        Ok(())
    }

    /// Drops the local value. The bytes at the home are the box's value from now on.
    pub(crate) fn forget(&mut self, inner: &Inner) {
        let at = inner.arena.of_word(Self::CLASS, self.word());
        inner.settle(at, self.word());
        if inner.arena.word(at) == self.word.get() {
            // The box is borrowed exclusively: nothing can refer to the payload.
            inner.arena.abandon(at);
            inner.vacant(Self::CLASS, at);
        }
        self.word.set(Word::away(self.word().home()).0);
    }

    pub(crate) fn word(&self) -> Word {
        Word(self.word.get())
    }

    pub(crate) fn set_word(&self, word: Word) {
        debug_assert_eq!(word.home(), self.word().home());
        self.word.set(word.0);
    }

    /// The frame with the value, which the scope holds from now on. Fetches the value if it is
    /// away.
    #[inline]
    fn hold<'a>(&self, scope: &'a Scope) -> Result<Spot<'a, Header>> {
        match self.local(&scope.arena, scope.mark) {
            Some(spot) => Ok(spot),
            None => self.fetch(scope.inner()?, scope.mark),
        }
    }

    /// [`FarBox::hold`] of a value that is local. `mark`: the scope's.
    #[inline]
    pub(super) fn local<'a>(&self, frames: &'a Frames, mark: u64) -> Option<Spot<'a, Header>> {
        let spot = frames.spot(Self::CLASS, self.word());
        if spot.header().word.get() != self.word.get() {
            return None;
        }
        spot.header().stamp(mark);
        Some(spot)
    }

    /// [`FarBox::hold`] of a value that is away. It takes the parts of a scope, not the scope: a caller
    /// of many uses then keeps these parts in registers.
    #[cold]
    #[inline(never)]
    fn fetch<'a>(&self, inner: &'a Inner, mark: u64) -> Result<Spot<'a, Header>> {
        let word = inner.load(Self::CLASS, self.word(), mark)?;
        self.set_word(word);
        Ok(inner.arena.spot(Self::CLASS, word))
    }

    /// The value.
    ///
    /// # Errors
    /// [`Error::ScopeFull`], [`Error::OtherHeap`], [`Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, scope: &'a Scope) -> Result<&'a T> {
        let spot = self.hold(scope)?;
        // SAFETY: this box holds it, for a scope that lives for 'a.
        Ok(unsafe { self.lent(&spot) })
    }

    /// The value in the frame.
    ///
    /// # Safety
    /// [`FarBox::hold`] has returned the frame, and its scope lives for 'a.
    #[inline]
    pub(super) unsafe fn lent<'a>(&'a self, spot: &Spot<'a, Header>) -> &'a T {
        // SAFETY: the frame has this box's value: `size_of::<T>()` bytes, aligned, any of which are
        // a T. The scope holds it for 'a, and writing needs an exclusive borrow of this box.
        unsafe { spot.payload(Self::CLASS).cast().as_ref() }
    }

    /// The value in the frame, to write to. From now on it is dirty.
    ///
    /// # Safety
    /// As [`FarBox::lent`].
    #[inline]
    pub(super) unsafe fn lent_mut<'a>(&'a mut self, spot: &Spot<'a, Header>) -> &'a mut T {
        let word = self.word().dirty();
        self.word.set(word.0);
        spot.header().word.set(word.0);
        // SAFETY: as in `lent`; the borrow is exclusive, and a box is the only way to its value.
        unsafe { spot.payload(Self::CLASS).cast().as_mut() }
    }

    /// The value, for a task that lets others go on while it comes: see [`Heap::join`].
    ///
    /// [`Heap::join`]: crate::Heap::join
    pub fn load<'a>(&'a self, scope: &'a Scope) -> Load<'a, T> {
        Load::new(self, scope)
    }

    /// The value, to write to.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    #[inline]
    pub fn get_mut<'a>(&'a mut self, scope: &'a Scope) -> Result<&'a mut T> {
        let spot = self.hold(scope)?;
        // SAFETY: as in `get`.
        Ok(unsafe { self.lent_mut(&spot) })
    }

    /// A copy of the value.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn read(&self) -> Result<T> {
        let scope = self.heap()?.scope_of();
        Ok(copied(self.get(&scope)?.as_bytes()))
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn set(&mut self, value: &T) -> Result<()> {
        let scope = self.heap()?.scope_of();
        bytes_of(self.get_mut(&scope)?).copy_from_slice(value.as_bytes());
        Ok(())
    }

    fn heap(&self) -> Result<Rc<Inner>> {
        homes::owner(self.word().home()).ok_or(Error::OtherHeap)
    }

    /// Whether the value is local now.
    pub fn is_local(&self) -> bool {
        self.heap().is_ok_and(|inner| inner.is_local(Self::CLASS, self.word()))
    }
}

impl<T: Far> Drop for FarBox<T> {
    fn drop(&mut self) {
        let Some(inner) = homes::owner(self.word().home()) else { return };
        let at = inner.arena.of_word(Self::CLASS, self.word());
        inner.settle(at, self.word());
        let is_here = inner.arena.word(at) == self.word.get();
        if is_here {
            inner.arena.abandon(at);
        }
        inner.dropped(Self::CLASS, self.word().home(), is_here.then_some(at));
    }
}

impl<T: Far> fmt::Debug for FarBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarBox").field("local", &self.is_local()).finish_non_exhaustive()
    }
}
