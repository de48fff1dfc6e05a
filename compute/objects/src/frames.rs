//! Frames: where objects are while they are local. Their addresses are [`crate::space`]'s.
//!
//! ```text
//! FarBox ── word: home, place, dirty ─► frame: word | meta: stamp, arriving, seen | payload
//!                                              └─ another word? then the object is away
//! ```
//!
//! *Place*: where the frame is in its class. *Home*: where the object lies in far memory. *Stamp*:
//! the number of the scope by which the object was used last; later scopes have greater ones.
//!
//! A write sets the dirty bit in the box's word and in the frame's. So a use stores one word of the
//! header, and looks at none but the word: the stamp is stored each time.
//!
//! A place is validated, not patched: a frame has the word of the box that it serves. So a frame
//! can be taken without a search for its box. A box's place always names a header of its class
//! ([`crate::class`]), and no two boxes of a thread have one home ([`crate::homes`]). So equal
//! words mean: this frame has this box's object.
//!
//! *Why a reference stays good.* It is tied to the box's borrow and to a scope. [`FarBox::get`]
//! leaves the scope's stamp in the frame. Scopes that are open beside it may leave theirs there
//! later. A frame whose stamp is not older than what open scopes need ([`crate::scope::Open`]) is
//! neither emptied nor filled: [`Frames::transfer`] and [`Frames::empty`] assert that. The arena is
//! unmapped with the last owner of the heap, and each scope is an owner.
//!
//! *Why no write races a reference.* A payload is written through an exclusive borrow of its
//! box, or by an arrival. While its object is on the way, a frame has the complement of the box's
//! word, and is never lent.
//!
//! *Why any bytes will do.* Objects are plain data: any bytes that a node returns are a valid
//! value. A node that lies can change values, and never safety.
//!
//! *Why no other thread.* Boxes, scopes and heaps are neither `Send` nor `Sync`.

#![allow(unsafe_code)] // Lends payloads beyond the borrow of the arena; see above.

mod far_box;

use crate::Far;
use crate::space::{self, At};
use crate::way::Way;
use crate::word::{ARRIVING, SEEN, STAMP, Word};
use farmem::{Addr, Lane};
use std::cell::Cell;
use std::ptr::NonNull;

pub use far_box::FarBox;

/// The header of a frame: two words before its payload. Larger classes pad it to the payload's
/// alignment.
#[repr(C)]
pub struct Header {
    word: Cell<u64>,
    meta: Cell<u64>,
}

impl Header {
    /// Notes a use by a scope with this mark: its stamp, without bits. This clears [`SEEN`]. The
    /// object has come. A younger scope's stamp may be replaced ([`crate::scope::Open`]).
    #[inline]
    fn stamp(&self, mark: u64) {
        debug_assert!(self.meta.get() & ARRIVING == 0);
        self.meta.set(mark);
    }
}

// SAFETY: two words, all of whose values are valid; both are cells.
unsafe impl crate::space::Header for Header {
    fn is_free(&self) -> bool {
        self.word.get() == 0
    }
}

/// One arrival or departure of [`Frames::transfer`]: a frame, and the object's home.
pub type Move = (At, Addr);

/// All frames of a heap. Unmapped with it.
pub type Arena = space::Arena<Header>;
/// All frames of a heap. Valid only while the heap's [`Arena`] lives.
pub type Frames = space::Frames<Header>;

impl Frames {
    /// The word in a frame: that of the box whose object it has. The complement of a box's word:
    /// the object is on its way. 0: the frame is free.
    #[inline]
    pub fn word(&self, at: At) -> u64 {
        self.header(at).word.get()
    }

    /// Gives a free frame to a box whose object will come there. `meta`: a stamp, and bits.
    pub fn give(&self, at: At, word: Word, meta: u64) {
        assert!(self.word(at) == 0, "a frame is given away once");
        self.header(at).meta.set(meta | ARRIVING);
        self.header(at).word.set(!word.0);
    }

    /// Frees a frame whose object has left. `oldest`: the oldest stamp that open scopes need.
    pub fn empty(&self, at: At, oldest: u64) {
        assert!(self.meta(at) >> STAMP < oldest && self.meta(at) & ARRIVING == 0, "a frame that a scope holds stays");
        self.header(at).word.set(0);
    }

    /// Frees a frame whose box is dropped, or whose object did not come. No reference to its
    /// payload can exist.
    fn abandon(&self, at: At) {
        self.header(at).word.set(0);
    }

    #[inline]
    pub fn meta(&self, at: At) -> u64 {
        self.header(at).meta.get()
    }

    /// Whether the object was written to since it came.
    pub fn is_dirty(&self, at: At) -> bool {
        Word(self.word(at)).is_dirty()
    }

    /// Notes that the evictor's hand has passed the frame. The stamp stays.
    pub fn set_seen(&self, at: At) {
        let Header { meta, .. } = self.header(at);
        meta.set(meta.get() | SEEN);
    }

    /// [`Header::stamp`] of a frame.
    #[inline]
    pub fn stamp(&self, at: At, mark: u64) {
        self.header(at).stamp(mark);
    }

    /// Reads objects into frames that await them, and writes others home, by one round trip.
    /// Returns the results of the reads, then those of the writes. `oldest`: the oldest
    /// stamp that open scopes need.
    pub fn transfer(
        &self,
        way: &mut impl Way,
        reads: &[Move],
        writes: &[Move],
        oldest: u64,
    ) -> Vec<farmem::Result<u64>> {
        let into = reads.iter().enumerate().map(|(n, &(at, home))| {
            assert!(reads[..n].last().is_none_or(|&(before, _)| before != at));
            // SAFETY: a frame was given away once; the transfer ends below.
            (home, unsafe { self.awaited(at) })
        });
        // SAFETY: the transfer ends below.
        let from = writes.iter().map(|&(at, home)| (home, unsafe { self.unheld(at, oldest) }));
        way.run(into, from)
    }

    /// Writes values home that are local and dirty, by one round trip to each node, and marks them
    /// clean. Values that a scope holds may be written too, because their boxes are borrowed
    /// exclusively. Returns the first error.
    pub fn save<T: Far>(&self, lane: &mut Lane, values: Vec<(&mut FarBox<T>, Addr)>) -> farmem::Result<()> {
        let class = FarBox::<T>::CLASS;
        let is_new =
            |one: &FarBox<T>| one.word().is_dirty() && self.word(self.of_word(class, one.word())) == one.word().0;
        let values: Vec<(&mut FarBox<T>, Addr)> = values.into_iter().filter(|(one, _)| is_new(one)).collect();
        let mut batch = lane.batch();
        for (one, home) in &values {
            let at = self.of_word(class, one.word());
            // SAFETY: the frame has the value of a box that is borrowed exclusively, so no other
            // reference to its payload is left; the batch ends below.
            let payload = unsafe { std::slice::from_raw_parts(self.payload(at, class).as_ptr(), class.payload) };
            batch.write(*home, payload);
        }
        let mut saved = Ok(());
        for ((one, _), result) in values.iter().zip(batch.run()) {
            match result {
                Ok(_) => {
                    let word = one.word().clean();
                    self.header(self.of_word(class, word)).word.set(word.0);
                    one.word.set(word.0);
                }
                Err(e) => saved = saved.and(Err(e)),
            }
        }
        saved
    }

    /// The payload of a frame that awaits its object, which is lent to nobody.
    ///
    /// # Safety
    /// The caller has it once at a time, and lets go of it before the object has arrived.
    #[allow(clippy::mut_from_ref)] // What is lent is not the frames, but memory that they name.
    unsafe fn awaited<'a>(&self, at: At) -> &'a mut [u8] {
        let class = at.class();
        assert!(self.meta(at) & ARRIVING != 0);
        // SAFETY: a frame that awaits its object is lent to nobody, and as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.payload(at, class).as_ptr(), class.payload) }
    }

    /// The payload of a frame that no scope holds. `oldest`: the oldest stamp that open scopes need.
    ///
    /// # Safety
    /// The caller lets go of it before the frame's box is used again.
    unsafe fn unheld<'a>(&self, at: At, oldest: u64) -> &'a [u8] {
        let class = at.class();
        assert!(self.meta(at) & ARRIVING == 0 && self.meta(at) >> STAMP < oldest);
        // SAFETY: no scope holds it, so no reference to its payload is left, and as the caller
        // promises.
        unsafe { std::slice::from_raw_parts(self.payload(at, class).as_ptr(), class.payload) }
    }

    /// Reads one object into the frame that awaits it.
    pub fn arrive(&self, way: &mut impl Way, (at, home): Move) -> farmem::Result<()> {
        // SAFETY: as in `transfer`.
        way.read(home, unsafe { self.awaited(at) })
    }

    /// Writes an object's bytes into the frame that awaits it.
    pub fn fill(&self, at: At, bytes: &[u8]) {
        let class = at.class();
        assert!(self.meta(at) & ARRIVING != 0 && bytes.len() <= class.payload);
        // SAFETY: as in `transfer`; the source is not this frame, which is lent to nobody.
        unsafe { self.payload(at, class).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Notes that the object has come: its box may use the frame.
    pub fn arrived(&self, at: At) {
        let Header { word, meta } = self.header(at);
        assert!(meta.get() & ARRIVING != 0);
        meta.set(meta.get() & !ARRIVING);
        word.set(!word.get());
    }

    /// Notes that the object did not come, and frees the frame.
    pub fn missed(&self, at: At) {
        assert!(self.meta(at) & ARRIVING != 0);
        self.header(at).meta.set(0);
        self.abandon(at);
    }
}

// Plain data and its bytes. Each function checks length and alignment.

/// Elements of a payload.
#[inline]
pub fn slice<T: Far>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: aligned, and as many as fit; any bytes are a T, which has no interior that changes.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Elements of a payload, to write to.
#[inline]
pub fn slice_mut<T: Far>(bytes: &mut [u8]) -> &mut [T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: as above; any T is bytes.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// The bytes of a value, to write to.
fn bytes_of<T: Far>(value: &mut T) -> &mut [u8] {
    // SAFETY: any T is bytes, and any bytes are a T.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// A value by its bytes.
pub fn copied<T: Far>(bytes: &[u8]) -> T {
    assert!(bytes.len() == size_of::<T>());
    // SAFETY: enough bytes; any of them are a T.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

#[cfg(test)]
mod tests;
