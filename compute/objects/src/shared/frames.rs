//! Frames that threads share, and the boxes that name them. Their addresses are
//! [`crate::space`]'s.
//!
//! ```text
//! SharedBox ── word: home, place, dirty ─► frame: word | state | payload
//! ```
//!
//! Boxes, places and homes are those of [`crate::frames`]. No two boxes of all shared heaps have one
//! home ([`super::owners`]). So equal words mean: this frame has this box's object.
//!
//! *Why a reference stays good.* It is tied to the box's borrow and to a scope. It is taken within
//! the scope from a frame whose word is the box's. Such a frame is claimed only when all scopes of
//! that time are over ([`farmem_sys::epochs`]), and bytes come only into frames that were claimed
//! or are free. The frames are unmapped with the last owner of the heap. The seat of each scope is
//! an owner.
//!
//! *Why no write races a reference.* A payload is written through an exclusive borrow of its
//! box, or by an arrival into a frame that nobody can find. It is read for its way home when its
//! frame was claimed.
//!
//! *Why threads may share and send boxes.* A box is an atomic word. Values are plain data, which
//! are `Send` and `Sync`. `&SharedBox` gives out `&T` alone.
//!
//! *Why any bytes will do.* As in [`crate::frames`].

#![allow(unsafe_code)] // Lends payloads beyond the borrow of the frames; see above.

use super::{Inner, Seat, SharedScope, owners};
use crate::boxes::check;
use crate::class::Class;
use crate::homes::Home;
use crate::space::{self, At, Spot};
use crate::word::Word;
use crate::{Far, Result};
use farmem::{Addr, Lane};
use farmem_sys::epochs::{Header, State};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A frame that its holder alone may fill or read: it was nobody's, or it was claimed.
#[derive(Debug)]
pub struct Grip(At);

impl Grip {
    pub fn at(&self) -> At {
        self.0
    }
}

/// All frames of a heap. Unmapped with it.
pub type Arena = space::Arena<Header>;
/// All frames of a heap, for those that keep its [`Arena`].
pub type Frames = space::Frames<Header>;

// SAFETY: two atomics. Zero is the header of a frame that is nobody's.
unsafe impl space::Header for Header {
    fn is_free(&self) -> bool {
        self.peek() == 0
    }
}

impl Frames {
    /// Claims a free frame to which the object of a home will come. The caller holds the heap's
    /// lock.
    pub fn give(&self, at: At, home: Home) -> Grip {
        let header = self.header(at);
        assert!(header.peek() == 0 && header.state() == State::Free, "a frame is given away once");
        header.set_state(State::Arriving(home.0));
        Grip(at)
    }

    /// Grips a frame whose object was made cold in this epoch and was not used since. The caller
    /// holds the heap's lock.
    pub fn claim(&self, at: At, (word, epoch, oldest): (Word, u64, u64)) -> Option<Grip> {
        let header = self.header(at);
        if !header.claim(word.0, epoch, oldest) {
            return None;
        }
        header.set_state(State::Leaving(word.home().0));
        Some(Grip(at))
    }

    /// The frame has its object, and boxes with this word find it.
    pub fn publish(&self, grip: Grip, word: Word) {
        let header = self.header(grip.0);
        assert_eq!(self.of_word(grip.0.class(), word), grip.0);
        header.set_state(State::Present(0));
        header.publish(word.0);
    }

    /// The frame is nobody's.
    pub fn vacate(&self, grip: Grip) -> At {
        self.header(grip.0).set_state(State::Free);
        grip.0
    }

    /// The frame of a box that is dropped is nobody's. The caller had the box for itself, so there
    /// is no reference to its value.
    pub fn abandon(&self, at: At) {
        self.header(at).clear();
        self.header(at).set_state(State::Free);
    }

    /// The bytes of an object that is new.
    pub fn fill(&self, grip: &Grip, bytes: &[u8]) {
        let class = grip.0.class();
        assert!(bytes.len() <= class.payload);
        // SAFETY: the grip's holder alone accesses the payload; the source is no frame of this kind,
        // because values are given by reference and a frame that is gripped is lent to nobody.
        unsafe { self.payload(grip.0, class).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Reads objects into frames, and writes others home, by one round trip. One result for each,
    /// in this order.
    pub fn transfer(
        &self,
        lane: &mut Lane,
        reads: &[(Grip, Addr)],
        writes: &[(Grip, Addr)],
    ) -> Vec<farmem::Result<u64>> {
        let bytes = |grip: &Grip| {
            let class = grip.0.class();
            (self.payload(grip.0, class).as_ptr(), class.payload)
        };
        let mut batch = lane.batch();
        for (grip, home) in reads {
            let (at, len) = bytes(grip);
            // SAFETY: the grip's holder alone accesses the payload, each grip is of another frame,
            // and the batch ends below.
            batch.read(*home, unsafe { std::slice::from_raw_parts_mut(at, len) });
        }
        for (grip, home) in writes {
            let (at, len) = bytes(grip);
            // SAFETY: as above.
            batch.write(*home, unsafe { std::slice::from_raw_parts(at, len) });
        }
        batch.run()
    }
}

/// A value in far memory that threads can share: 8 bytes here, and the value in a frame or at its
/// home. As `Box`, it owns the value.
///
/// When the heap's last handle is gone before the box, the value is lost: each use returns
/// [`crate::Error::OtherHeap`].
pub struct SharedBox<T: Far> {
    word: AtomicU64,
    value: PhantomData<T>,
}

impl<T: Far> SharedBox<T> {
    pub(super) const CLASS: Class = {
        let class = Class::of(size_of::<T>());
        check::<T>();
        assert!(align_of::<T>() <= class.header, "a far object's alignment is at most 16");
        class
    };

    pub(super) fn new(inner: &Inner, seat: &Seat, value: &T) -> Result<SharedBox<T>> {
        let word = inner.fresh(seat, Self::CLASS, value.as_bytes())?;
        Ok(SharedBox { word: AtomicU64::new(word.0), value: PhantomData })
    }

    /// The word: other threads that share the box may change it.
    pub(super) fn cell(&self) -> &AtomicU64 {
        &self.word
    }

    /// Whether a use takes no lock now: the value is local, and was used or came lately.
    pub(super) fn is_at_hand(&self, scope: &SharedScope<'_>) -> bool {
        let word = Word(self.word.load(Ordering::Relaxed));
        scope.frames().spot(Self::CLASS, word).header().is(word.0)
    }

    #[inline]
    fn hold<'a>(&self, scope: &'a SharedScope<'_>) -> Result<Spot<'a, Header>> {
        let word = Word(self.word.load(Ordering::Relaxed));
        let spot = scope.frames().spot(Self::CLASS, word);
        if spot.header().is(word.0) { Ok(spot) } else { self.load(scope.seat()) }
    }

    #[cold]
    #[inline(never)]
    fn load<'a>(&self, seat: &'a Seat) -> Result<Spot<'a, Header>> {
        let word = seat.load(Self::CLASS, &self.word)?;
        Ok(seat.frames().spot(Self::CLASS, word))
    }

    /// The value.
    ///
    /// # Errors
    /// [`crate::Error::ScopeFull`], [`crate::Error::OtherHeap`], [`crate::Error::Memory`].
    #[inline]
    pub fn get<'a>(&'a self, scope: &'a SharedScope<'_>) -> Result<&'a T> {
        let spot = self.hold(scope)?;
        // SAFETY: the frame has this box's value: `size_of::<T>()` bytes, aligned, any of which are
        // a T. The scope holds it for 'a, and writing needs an exclusive borrow of this box.
        Ok(unsafe { spot.payload(Self::CLASS).cast().as_ref() })
    }

    /// The value, to write to.
    ///
    /// # Errors
    /// As [`SharedBox::get`].
    #[inline]
    pub fn get_mut<'a>(&'a mut self, scope: &'a SharedScope<'_>) -> Result<&'a mut T> {
        let spot = loop {
            let spot = self.hold(scope)?;
            let word = Word(*self.word.get_mut());
            if word.is_dirty() {
                break spot;
            }
            if spot.header().soil(word.0, word.dirty().0) {
                *self.word.get_mut() = word.dirty().0;
                break spot;
            }
        };
        // SAFETY: as in `get`; the borrow is exclusive, and a box is the only way to its value.
        Ok(unsafe { spot.payload(Self::CLASS).cast().as_mut() })
    }

    /// A copy of the value.
    ///
    /// # Errors
    /// As [`SharedBox::get`].
    pub fn read(&self, seat: &Seat) -> Result<T> {
        let scope = seat.scope();
        Ok(crate::frames::copied(self.get(&scope)?.as_bytes()))
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// As [`SharedBox::get`].
    pub fn set(&mut self, seat: &Seat, value: T) -> Result<()> {
        let scope = seat.scope();
        *self.get_mut(&scope)? = value;
        Ok(())
    }
}

impl<T: Far> Drop for SharedBox<T> {
    fn drop(&mut self) {
        let word = Word(*self.word.get_mut());
        if let Some(inner) = owners::of(word.home()) {
            inner.dropped(Self::CLASS, word);
        }
    }
}

impl<T: Far> fmt::Debug for SharedBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBox").finish_non_exhaustive()
    }
}
