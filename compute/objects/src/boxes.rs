//! What collections need of a heap, whether one thread has it or threads share it: boxes, and scopes
//! by which they are used. So the two kinds of a collection differ in their handles alone.

use crate::{CHUNK, Far, FarBox, Heap, Result, Scope, Seat, SharedBox, SharedScope};

/// A box of a value, which scopes of this type use.
pub trait Boxed<S, T: Far> {
    fn value<'a>(&'a self, scope: &'a S) -> Result<&'a T>;
    fn value_mut<'a>(&'a mut self, scope: &'a S) -> Result<&'a mut T>;
    /// Has the CPU fetch a byte of the value soon, if the value is local: a hint.
    fn touch(&self, scope: &S, byte: usize);
}

/// Opens scopes, and makes boxes.
pub trait Place<T: Far> {
    type Scope;
    type Box: Boxed<Self::Scope, T>;

    fn open(&self) -> Self::Scope;
    fn put(&self, value: &T) -> Result<Self::Box>;
}

impl<T: Far> Boxed<Scope, T> for FarBox<T> {
    #[inline]
    fn value<'a>(&'a self, scope: &'a Scope) -> Result<&'a T> {
        self.get(scope)
    }

    #[inline]
    fn value_mut<'a>(&'a mut self, scope: &'a Scope) -> Result<&'a mut T> {
        self.get_mut(scope)
    }

    #[inline]
    fn touch(&self, scope: &Scope, byte: usize) {
        scope.arena.touch_byte(Self::CLASS, self.word(), byte);
    }
}

impl<'s, T: Far> Boxed<SharedScope<'s>, T> for SharedBox<T> {
    #[inline]
    fn value<'a>(&'a self, scope: &'a SharedScope<'s>) -> Result<&'a T> {
        self.get(scope)
    }

    #[inline]
    fn value_mut<'a>(&'a mut self, scope: &'a SharedScope<'s>) -> Result<&'a mut T> {
        self.get_mut(scope)
    }

    #[inline]
    fn touch(&self, scope: &SharedScope<'s>, byte: usize) {
        scope.touch(self, byte);
    }
}

impl<T: Far> Place<T> for Heap {
    type Scope = Scope;
    type Box = FarBox<T>;

    fn open(&self) -> Scope {
        self.scope()
    }

    fn put(&self, value: &T) -> Result<FarBox<T>> {
        self.alloc(value)
    }
}

impl<'s, T: Far> Place<T> for &'s Seat {
    type Scope = SharedScope<'s>;
    type Box = SharedBox<T>;

    fn open(&self) -> SharedScope<'s> {
        self.scope()
    }

    fn put(&self, value: &T) -> Result<SharedBox<T>> {
        self.alloc(value)
    }
}

/// Refuses types that have something to do when a value is dropped: values are copied as bytes, so
/// nobody could say when that is.
pub const fn check<T>() {
    assert!(size_of::<T>() > 0, "a far value has at least one byte");
    assert!(!std::mem::needs_drop::<T>(), "a far value is copied as bytes: its type must not implement Drop");
}

/// Elements of a chunk, of at most so many bytes each. Others do not compile.
pub const fn elements<T>(most: usize) -> usize {
    check::<T>();
    assert!(size_of::<T>() <= most, "an element lies in one chunk of 4096 bytes, of a list in half of one");
    assert!(align_of::<T>() <= 64, "an element's alignment is at most 64");
    CHUNK / size_of::<T>()
}
