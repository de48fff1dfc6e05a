//! Local frames: where chunks are while they are local. The one file with unsafe code.
//!
//! ```text
//! chunk of a collection ── place ─► frame: owner, chunk number, home | bytes
//!                                          └─ another's by now? then the chunk is away
//! ```
//!
//! A place is validated, not patched: a frame names whose it is, and a chunk that finds another name
//! there knows that it has left. So nobody has to find the chunk when its frame is taken.
//!
//! *Why a reference stays good.* [`Frames::hold`] stamps a frame with the clock, and returns a pointer
//! into its bytes. A scope has a stamp of its own, from when it began, and the frame's is not older.
//! A frame whose stamp is not older than the oldest open scope's is never taken ([`Frames::victim`]).
//! The caller ties the pointer to the scope and to its collection's borrow. Frames' bytes are boxed
//! one by one and freed with the last owner of the heap, which each scope and collection is.
//!
//! *Why nobody writes beside a reference.* Bytes are written by a fetch, of a frame that is no chunk's
//! and that no scope holds, and through a pointer from an exclusive borrow of the collection.

#![allow(unsafe_code)] // Lends bytes of frames beyond the borrow of the table; see above.

use crate::{CHUNK, Error, Result};
use farmem::{Addr, Lane};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// The bytes of a chunk, aligned for any plain type.
#[repr(C, align(64))]
struct Bytes([u8; CHUNK]);

/// A frame that no chunk has.
const NOBODY: u64 = 0;

struct Frame {
    /// Whose chunk it holds: a collection's number, and the chunk's there.
    owner: u64,
    chunk: usize,
    home: Addr,
    /// Written to since it came.
    dirty: bool,
    /// Used since the hand came by.
    hot: bool,
    /// When it was last held.
    stamp: u64,
    /// From a box. Not one: to move a box is to say that nothing else refers to what is in it.
    bytes: NonNull<UnsafeCell<Bytes>>,
}

impl Frame {
    fn new(home: Addr) -> Frame {
        let bytes = Box::new(UnsafeCell::new(Bytes([0; CHUNK])));
        let bytes = NonNull::from(Box::leak(bytes));
        Frame { owner: NOBODY, chunk: 0, home, dirty: false, hot: false, stamp: 0, bytes }
    }

    /// Its bytes, to read and to write.
    fn bytes(&self) -> *mut [u8; CHUNK] {
        // SAFETY: from a box that is freed with this frame.
        unsafe { &raw mut (*self.bytes.as_ref().get()).0 }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: from a box, and dropped once. All that referred to it had the heap, which is gone.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
    }
}

/// Where a chunk may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub owner: u64,
    pub chunk: usize,
    pub home: Addr,
    /// The frame in which it was last.
    pub place: usize,
}

/// All frames of a heap.
pub struct Frames {
    frames: Vec<Frame>,
    most: usize,
    free: Vec<usize>,
    hand: usize,
    /// Rises with each scope.
    clock: u64,
    /// The stamps of open scopes.
    open: Vec<u64>,
    /// Chunks fetched, and chunks written back.
    pub fetched: u64,
    pub written: u64,
}

impl Frames {
    /// At most so many frames.
    pub fn new(most: usize) -> Frames {
        Frames {
            frames: Vec::new(),
            most,
            free: Vec::new(),
            hand: 0,
            clock: 1,
            open: Vec::new(),
            fetched: 0,
            written: 0,
        }
    }

    /// Frames at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A scope begins: its stamp.
    pub fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.open.push(self.clock);
        self.clock
    }

    /// … and ends.
    pub fn end(&mut self, stamp: u64) {
        self.open.retain(|&open| open != stamp);
    }

    /// The frame of a chunk, if it is local.
    pub fn local(&self, wanted: &Wanted) -> Option<usize> {
        let frame = self.frames.get(wanted.place)?;
        (frame.owner == wanted.owner && frame.chunk == wanted.chunk).then_some(wanted.place)
    }

    /// Uses a frame now: it stays until the scopes that are open have ended. The address of its bytes.
    pub fn hold(&mut self, place: usize, write: bool) -> NonNull<u8> {
        let clock = self.clock;
        let frame = &mut self.frames[place];
        (frame.hot, frame.stamp) = (true, clock);
        frame.dirty |= write;
        frame.bytes.cast()
    }

    /// Gives a frame to a chunk that is in none. Its bytes are whatever they were, and to be written before it is used.
    ///
    /// # Errors
    /// Open scopes hold all. A chunk that leaves cannot be written back; it stays.
    fn take(&mut self, wanted: &Wanted, lane: &mut Lane) -> Result<usize> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.frames.len() < self.most => {
                self.frames.push(Frame::new(wanted.home));
                self.frames.len() - 1
            }
            None => self.evict(lane)?,
        };
        let clock = self.clock;
        let frame = &mut self.frames[place];
        (frame.owner, frame.chunk, frame.home) = (wanted.owner, wanted.chunk, wanted.home);
        (frame.dirty, frame.hot, frame.stamp) = (false, true, clock);
        Ok(place)
    }

    /// A frame for a fresh chunk, which is zeros.
    pub fn fresh(&mut self, wanted: &Wanted, lane: &mut Lane) -> Result<usize> {
        let place = self.take(wanted, lane)?;
        let frame = &mut self.frames[place];
        frame.dirty = true;
        // SAFETY: it was taken just now: no reference to its bytes is alive.
        unsafe { (*frame.bytes()).fill(0) };
        Ok(place)
    }

    /// Brings chunks in by one round trip; all of them or none. Where they are.
    pub fn fetch(&mut self, wanted: &[Wanted], lane: &mut Lane) -> Result<Vec<usize>> {
        let mut places = Vec::with_capacity(wanted.len());
        // Neither what is taken here nor what the caller holds may be a victim of the next: as in a scope.
        let stamp = self.begin();
        let taken = wanted.iter().try_for_each(|one| self.take(one, lane).map(|place| places.push(place)));
        self.end(stamp);
        let read = taken.and_then(|()| {
            let mut batch = lane.batch();
            for (&place, one) in places.iter().zip(wanted) {
                let bytes = self.frames[place].bytes();
                // SAFETY: the frame was taken by this call, so no reference to its bytes is alive, and each place is
                // taken once. The batch ends within this call.
                batch.read(one.home, unsafe { &mut *bytes });
            }
            batch.run().into_iter().try_for_each(|done| done.map(drop)).map_err(Error::from)
        });
        match read {
            Ok(()) => {
                self.fetched += wanted.len() as u64;
                Ok(places)
            }
            Err(e) => {
                places.into_iter().for_each(|place| self.give_back(place));
                Err(e)
            }
        }
    }

    /// A chunk is gone: its frame is nobody's. No reference to it is alive.
    pub fn forget(&mut self, wanted: &Wanted) {
        if let Some(place) = self.local(wanted) {
            self.give_back(place);
        }
    }

    fn give_back(&mut self, place: usize) {
        self.frames[place].owner = NOBODY;
        self.free.push(place);
    }

    /// Empties a frame that no open scope holds, and whose turn it is.
    fn evict(&mut self, lane: &mut Lane) -> Result<usize> {
        let place = self.victim().ok_or(Error::ScopeFull(self.most))?;
        let frame = &mut self.frames[place];
        if frame.dirty {
            // SAFETY: no scope holds it, so nobody writes to it.
            lane.write(frame.home, unsafe { &*frame.bytes() })?;
            self.written += 1;
        }
        frame.owner = NOBODY;
        Ok(place)
    }

    /// By a hand that goes round: what was used since it came by last gets one more round.
    fn victim(&mut self) -> Option<usize> {
        let oldest = self.open.iter().copied().min().unwrap_or(u64::MAX);
        for _ in 0..2 * self.frames.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.frames.len();
            let frame = &mut self.frames[place];
            if frame.owner == NOBODY || frame.stamp >= oldest {
                continue;
            }
            if !std::mem::take(&mut frame.hot) {
                return Some(place);
            }
        }
        None
    }
}

/// An element of a frame's bytes.
///
/// # Safety
/// `bytes` is from [`Frames::hold`], of a frame that stays for `'a`, and nobody writes to it meanwhile.
pub unsafe fn part<'a>(bytes: NonNull<u8>, at: usize, len: usize) -> &'a [u8] {
    assert!(at + len <= CHUNK);
    // SAFETY: within the frame's bytes; the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().add(at), len) }
}

/// … to write to.
///
/// # Safety
/// As [`part`], and nobody reads it either.
pub unsafe fn part_mut<'a>(bytes: NonNull<u8>, at: usize, len: usize) -> &'a mut [u8] {
    assert!(at + len <= CHUNK);
    // SAFETY: within the frame's bytes, which are in an UnsafeCell; the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr().add(at), len) }
}
