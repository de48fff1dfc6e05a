//! The addresses of a heap's frames: where each lies, its header and its payload. Heaps of one
//! thread ([`crate::frames`]) and heaps that threads share ([`crate::shared`]) differ in their
//! headers alone.
//!
//! ```text
//! arena: | class 0: segment, segment, … | class 1 | …      segment: | header, payload | header, … |
//! ```
//!
//! A class fills its segments in order. When it has all of a group of 32, the kernel is asked to back
//! the group by one huge page ([`Arena::join`]): a use at random then misses one entry of the CPU's
//! table of addresses, and not one for each object. All of the group counts as local before, and as
//! much again while the kernel copies it. So the limit holds. A group for whose copy there is no room
//! stays as it is.
//!
//! An [`At`] is always the place of a header. This file makes references to headers. It gives out
//! payloads as pointers: a caller that makes a reference of one argues for itself.

#![allow(unsafe_code)] // Maps and unmaps the frames, and makes references to headers; see above.

use crate::class::{ARENA, Class, GROUP, SEGMENT};
use crate::word::Word;
use crate::{Error, Result};
#[cfg(not(miri))]
use farmem_sys::memory;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The calls of `farmem_sys::memory`, for Miri, which makes no system calls.
#[cfg(miri)]
mod memory {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 4096).expect("whole pages")
    }

    pub fn reserve(len: usize) -> Result<*mut u8, (i32,)> {
        // SAFETY: not of size 0.
        Ok(unsafe { alloc_zeroed(layout(len)) })
    }

    pub unsafe fn unmap(at: *mut u8, len: usize) {
        // SAFETY: as its caller promises, of `reserve`.
        unsafe { dealloc(at, layout(len)) };
    }

    pub unsafe fn discard(at: *mut u8, len: usize) {
        // SAFETY: as its caller promises, nobody uses the memory.
        unsafe { at.write_bytes(0, len) };
    }

    pub use self::discard as discard_part;

    pub fn is_shared(_: *mut u8, _: usize) -> bool {
        false
    }

    /// # Safety
    /// None is needed here; the mark is that of `farmem_sys::memory::split`.
    pub unsafe fn split(_: *mut u8, _: usize) -> bool {
        true
    }

    pub const HUGE_PAGE: usize = 2 << 20;

    pub unsafe fn join(_: *mut u8, _: usize) -> Result<bool, (i32,)> {
        Err((0,))
    }

    pub fn prefetch(_: usize) {}
}

/// The header of a frame.
///
/// # Safety
/// It has two words at most, any bytes that its own methods leave are valid, and so is zero. It
/// changes through shared references alone, so nobody needs a unique reference to one.
pub unsafe trait Header {
    /// Whether no box uses the frame. True for zero.
    fn is_free(&self) -> bool;
}

/// The place of a frame: always a header within its arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At(usize);

impl At {
    /// The class of the frame.
    pub fn class(self) -> Class {
        Class::at(self.0)
    }

    /// Units into its class's range.
    pub fn units(self, class: Class) -> u64 {
        ((self.0 - class.from) >> class.unit) as u64
    }

    /// The segment of the frame, and its number there.
    pub fn place(self, class: Class) -> (usize, usize) {
        let offset = self.0 - class.from;
        (offset / SEGMENT, ((offset % SEGMENT) as u32 / class.stride as u32) as usize)
    }

    /// The tag by which a posted arrival names the frame.
    pub fn tag(self) -> u64 {
        self.0 as u64
    }

    /// The frame that a tag names.
    pub fn of_tag(tag: u64) -> Option<At> {
        let at = usize::try_from(tag).ok().filter(|&at| at < ARENA)?;
        let class = Class::at(at);
        let within = (at - class.from) % SEGMENT;
        (within.is_multiple_of(class.stride) && within / class.stride < class.frames()).then_some(At(at))
    }
}

/// The address of a frame: always that of a header within its arena.
pub struct Spot<'a, H> {
    at: NonNull<u8>,
    header: PhantomData<&'a H>,
}

impl<'a, H: Header> Spot<'a, H> {
    #[inline]
    pub fn header(&self) -> &'a H {
        // SAFETY: as in `Frames::header`.
        unsafe { self.at.cast().as_ref() }
    }

    /// The payload of a frame of this class, `class.payload` bytes.
    #[inline]
    pub fn payload(&self, class: Class) -> NonNull<u8> {
        // SAFETY: the payload follows the header in the arena.
        unsafe { self.at.byte_add(class.header) }
    }
}

/// All frames of a heap. Unmapped with it.
pub struct Arena<H> {
    frames: Frames<H>,
    /// Bytes of the mapping before the first frame, so that a group of segments can be a huge page.
    before: usize,
    /// Whether the kernel may give huge pages.
    joins: AtomicBool,
    /// Whether it was asked for one.
    has_joined: AtomicBool,
    /// Huge pages, by their first byte, of which a part went back while a forked child had them.
    unsplit: Mutex<Vec<usize>>,
    /// Whether there is any.
    is_unsplit: AtomicBool,
}

/// All frames of a heap. Valid only while the heap's [`Arena`] lives.
pub struct Frames<H> {
    base: NonNull<u8>,
    headers: PhantomData<*const H>,
}

impl<H> std::ops::Deref for Arena<H> {
    type Target = Frames<H>;

    #[inline]
    fn deref(&self) -> &Frames<H> {
        &self.frames
    }
}

impl<H: Header> Arena<H> {
    pub fn new() -> Result<Arena<H>> {
        const { assert!(size_of::<H>() <= 16 && align_of::<H>() <= 16) }
        const { assert!(GROUP * SEGMENT == memory::HUGE_PAGE) }
        let whole = memory::reserve(ARENA + memory::HUGE_PAGE).map_err(|e| Error::NoAddresses(e.0))?;
        let whole = NonNull::new(whole).ok_or(Error::NoAddresses(12))?;
        let before = whole.addr().get().next_multiple_of(memory::HUGE_PAGE) - whole.addr().get();
        // SAFETY: less than a huge page, which the mapping has more than the arena.
        let frames = Frames { base: unsafe { whole.byte_add(before) }, headers: PhantomData };
        Ok(Arena {
            frames,
            before,
            joins: AtomicBool::new(true),
            has_joined: AtomicBool::new(false),
            unsplit: Mutex::default(),
            is_unsplit: AtomicBool::new(false),
        })
    }

    /// Whether [`Arena::join`] may get a huge page.
    pub fn may_join(&self) -> bool {
        self.joins.load(Ordering::Relaxed)
    }

    /// Has the kernel back a group of segments by a huge page, if it will. All of the group counts as
    /// local, and so does as much again: the kernel copies the pages before it frees them. Pages that
    /// were not touched take memory from now on. Bytes stay as they are.
    #[cold]
    pub fn join(&self, class: Class, group: usize) {
        if !self.may_join() {
            return;
        }
        // Before: a segment that another thread discards meanwhile is a part of the page.
        self.has_joined.store(true, Ordering::Relaxed);
        let at = self.frame(class, group * GROUP, 0);
        // SAFETY: all segments of the group are within the arena, which is a reservation.
        let joined = unsafe { memory::join(self.base.byte_add(at.0).as_ptr(), memory::HUGE_PAGE) };
        // Without an error, none may be free now: then the group stays as it is.
        if joined.is_err() {
            self.joins.store(false, Ordering::Relaxed);
        }
    }

    /// Gives the memory of a segment back to the system. All of its frames are free.
    pub fn discard(&self, class: Class, segment: usize) {
        let mut frames = (0..class.frames()).map(|number| self.frame(class, segment, number));
        assert!(frames.all(|at| self.header(at).is_free()));
        let at = self.frame(class, segment, 0);
        let has_joined = self.has_joined.load(Ordering::Relaxed);
        // SAFETY: within the arena; no payload of it is lent. Zero is the header of a free frame.
        unsafe {
            let at = self.base.byte_add(at.0).as_ptr();
            match has_joined {
                true => memory::discard_part(at, SEGMENT),
                false => memory::discard(at, SEGMENT),
            }
        }
        // Classes begin at huge pages.
        let group = at.0 / memory::HUGE_PAGE * memory::HUGE_PAGE;
        // SAFETY: within the arena.
        if has_joined && memory::is_shared(unsafe { self.base.byte_add(group).as_ptr() }, memory::HUGE_PAGE) {
            self.unsplit().push(group);
            self.is_unsplit.store(true, Ordering::Relaxed);
        }
    }

    /// Gives back the memory of segments that went while a forked child had their huge page, if the
    /// child has ended. Heaps ask now and then.
    #[inline]
    pub fn split(&self) {
        if self.is_unsplit.load(Ordering::Relaxed) {
            self.split_all();
        }
    }

    #[cold]
    fn split_all(&self) {
        let mut unsplit = self.unsplit();
        unsplit.sort_unstable();
        unsplit.dedup();
        // SAFETY: within the arena; no byte changes.
        unsplit.retain(|&at| unsafe { !memory::split(self.base.byte_add(at).as_ptr(), memory::HUGE_PAGE) });
        self.is_unsplit.store(!unsplit.is_empty(), Ordering::Relaxed);
    }

    fn unsplit(&self) -> MutexGuard<'_, Vec<usize>> {
        self.unsplit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames, for a caller that keeps the arena alive.
    #[inline]
    pub fn frames(&self) -> Frames<H> {
        Frames { base: self.frames.base, headers: PhantomData }
    }
}

impl<H> Drop for Arena<H> {
    fn drop(&mut self) {
        // SAFETY: each reference into the arena keeps the heap alive, and the heap is gone. The
        // mapping begins so many bytes before its first frame.
        unsafe { memory::unmap(self.base.byte_sub(self.before).as_ptr(), ARENA + memory::HUGE_PAGE) };
    }
}

// SAFETY: an arena is addresses. Its headers may be used by several threads, because `H` is `Sync`.
// Payloads are accessed by unsafe code alone, which argues for itself.
unsafe impl<H: Sync> Send for Frames<H> {}
// SAFETY: as above.
unsafe impl<H: Sync> Sync for Frames<H> {}

impl<H: Header> Frames<H> {
    /// The frame of this number in a segment of a class.
    pub fn frame(&self, class: Class, segment: usize, number: usize) -> At {
        assert!(segment < class.segments() && number < class.frames());
        At(class.from + segment * SEGMENT + number * class.stride)
    }

    /// The frame that a box of this class names by its word.
    #[inline]
    pub fn of_word(&self, class: Class, word: Word) -> At {
        At(class.from + (word.place() << class.unit) as usize)
    }

    /// [`Frames::of_word`] as an address. The class's first frame comes first, so that uses of many
    /// boxes of a class compute it once.
    #[inline]
    pub fn spot(&self, class: Class, word: Word) -> Spot<'_, H> {
        // SAFETY: the range of a class is within the arena, and a place is within its range.
        let at = unsafe { self.base.byte_add(class.from).byte_add(word.offset(class.unit)) };
        Spot { at, header: PhantomData }
    }

    #[inline]
    pub fn header(&self, at: At) -> &H {
        // SAFETY: an `At` is a header's offset in the arena, which is readable, writable, and zero
        // at first. A header has two words at most, and no unique reference to one exists.
        unsafe { self.base.byte_add(at.0).cast().as_ref() }
    }

    /// Has the CPU fetch a header soon.
    #[inline]
    pub fn touch(&self, at: At) {
        memory::prefetch(self.base.as_ptr() as usize + at.0);
    }

    /// Has the CPU fetch a byte of the payload soon that a box of this class names by its word. The
    /// object may be away: then it is another's byte.
    #[inline]
    pub fn touch_byte(&self, class: Class, word: Word, byte: usize) {
        memory::prefetch(self.base.as_ptr() as usize + class.from + word.offset(class.unit) + class.header + byte);
    }

    /// The payload of a frame of this class, `class.payload` bytes.
    #[inline]
    pub fn payload(&self, at: At, class: Class) -> NonNull<u8> {
        // SAFETY: the payload follows the header in the arena.
        unsafe { self.base.byte_add(at.0 + class.header) }
    }
}
