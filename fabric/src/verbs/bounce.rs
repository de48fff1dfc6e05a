//! A ring of slots that the card may touch, for buffers that it may not: the words
//! that atomic verbs return, and bytes of callers who registered nothing.
//!
//! Slots are taken in the order in which verbs are posted and given back in the
//! order in which they complete, which is the same: two counters.

// Memory of our own that the card writes to.
#![allow(unsafe_code)]

use farmem_sys::holdings;
use farmem_sys::memory;
use farmem_sys::raw::Errno;
use farmem_sys::verbs::{Domain, Region, Rights};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Bytes of a slot: a page.
pub const SLOT: usize = 4096;
/// Slots.
const SLOTS: u64 = 32;

/// The ring.
pub struct Bounce {
    at: *mut u8,
    region: ManuallyDrop<Region>,
    taken: u64,
    given_back: u64,
}

// SAFETY: the memory is this ring's alone.
unsafe impl Send for Bounce {}

impl Bounce {
    /// A ring in a domain.
    pub fn new(domain: &Arc<Domain>) -> Result<Bounce, Errno> {
        let len = SLOT * SLOTS as usize;
        let at = holdings::reserve(len)?;
        // SAFETY: mapped until `drop`, which ends the region first.
        match unsafe { domain.region(at, len, Rights::Local) } {
            Ok(region) => Ok(Bounce { at, region: ManuallyDrop::new(region), taken: 0, given_back: 0 }),
            Err(e) => {
                holdings::strike(at as usize, len);
                // SAFETY: made above, used by nobody.
                unsafe { memory::unmap(at, len) };
                Err(e)
            }
        }
    }

    /// Its key.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// The next slot, if one is free.
    pub fn take(&mut self) -> Option<*mut u8> {
        if self.taken - self.given_back == SLOTS {
            return None;
        }
        let slot = (self.taken % SLOTS) as usize;
        self.taken += 1;
        // SAFETY: inside the ring.
        Some(unsafe { self.at.add(slot * SLOT) })
    }

    /// The slot that was taken first is free.
    pub fn give_back(&mut self) {
        debug_assert!(self.given_back < self.taken);
        self.given_back += 1;
    }

    /// All are: nothing is under way.
    pub fn reset(&mut self) {
        self.given_back = self.taken;
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let len = SLOT * SLOTS as usize;
        // SAFETY: once, here.
        unsafe { ManuallyDrop::drop(&mut self.region) };
        holdings::strike(self.at as usize, len);
        // SAFETY: the card uses it no more, nor does anybody else.
        unsafe { memory::unmap(self.at, len) };
    }
}
