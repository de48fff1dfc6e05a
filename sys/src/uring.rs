//! io_uring, as far as commands to a driver need it: commands out, their results back.
//!
//! ```text
//!  push ─► submission ring ─► enter ─► the kernel
//!  pop  ◄─ completion ring ◄───────────────┘
//! ```
//!
//! A ring belongs to one thread. Nothing is allocated after it is made.

use crate::mapping::Mapping;
use crate::raw::{Errno, checked};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const SETUP_CQ_SIZE: u32 = 1 << 3;
const SETUP_LONG: u32 = 1 << 10;
const FEATURE_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: usize = 1;
const OFFSET_ENTRIES: usize = 0x1000_0000;
const COMMAND: u8 = 46;
const ENTRY_BYTES: usize = 128;
/// Where a command's own bytes begin in an entry.
const OWN: usize = 48;
/// A command's own bytes, at most.
pub const COMMAND_BYTES: usize = ENTRY_BYTES - OWN;

#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread: [u32; 2],
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    /// head, tail, mask, entries, flags, dropped, array.
    sq: [u32; 7],
    sq_rest: [u32; 3],
    /// head, tail, mask, entries, overflow, completions.
    cq: [u32; 6],
    cq_rest: [u32; 4],
}

/// A command has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The tag that it was pushed with.
    pub tag: u64,
    /// The driver's result. A negative one is an error number.
    pub result: i32,
}

/// A ring.
pub struct Uring {
    fd: OwnedFd,
    rings: Mapping,
    entries: Mapping,
    params: Params,
    /// Pushed and not yet told to the kernel.
    pushed: u32,
}

impl Uring {
    /// A ring that holds `entries` commands at a time.
    ///
    /// # Errors
    /// The kernel has no io_uring, or none with entries of this length (before 5.19), or does not allow it.
    pub fn new(entries: u32) -> Result<Uring, Errno> {
        let flags = SETUP_LONG | SETUP_CQ_SIZE;
        let mut params = Params { flags, cq_entries: entries * 2, ..Params::default() };
        let at = std::ptr::from_mut(&mut params) as usize;
        // SAFETY: the kernel reads and writes `params`, whose layout is its own.
        let fd = unsafe { checked(libc::SYS_io_uring_setup, [entries as usize, at, 0, 0, 0, 0])? };
        // SAFETY: a descriptor that was just made, and is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        if params.features & FEATURE_SINGLE_MMAP == 0 {
            return Err(Errno(libc::ENOSYS));
        }
        let sq_bytes = params.sq[6] as usize + params.sq_entries as usize * 4;
        let cq_bytes = params.cq[5] as usize + params.cq_entries as usize * 16;
        let rings = Mapping::new(fd.as_raw_fd(), sq_bytes.max(cq_bytes))?;
        let entries = Mapping::at_offset(fd.as_raw_fd(), OFFSET_ENTRIES, params.sq_entries as usize * ENTRY_BYTES)?;
        Ok(Uring { fd, rings, entries, params, pushed: 0 })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let (base, len) = self.rings.extent();
        assert!(offset as usize + 4 <= len && offset.is_multiple_of(4), "a word of the rings");
        // SAFETY: within the mapping, by the line above, which lives as long as `self`; aligned; the kernel uses it as an
        // atomic word too.
        unsafe { &*base.as_ptr().add(offset as usize).cast::<AtomicU32>() }
    }

    /// Pushes a command for the driver of a file. False: the ring is full.
    ///
    /// # Safety
    /// Addresses in `own` must be what the driver's command asks for, until it is done.
    #[must_use]
    pub unsafe fn push(&mut self, file: i32, command: u32, own: &[u8], tag: u64) -> bool {
        assert!(own.len() <= COMMAND_BYTES, "a command of {} bytes", own.len());
        let (head, tail) = (self.word(self.params.sq[0]), self.word(self.params.sq[1]));
        let at = tail.load(Ordering::Relaxed);
        if at.wrapping_sub(head.load(Ordering::Acquire)) >= self.params.sq_entries {
            return false;
        }
        let index = at & (self.params.sq_entries - 1);
        let mut entry = [0u8; ENTRY_BYTES];
        entry[0] = COMMAND;
        entry[4..8].copy_from_slice(&file.to_ne_bytes());
        entry[8..12].copy_from_slice(&command.to_ne_bytes());
        entry[32..40].copy_from_slice(&tag.to_ne_bytes());
        entry[OWN..OWN + own.len()].copy_from_slice(own);
        let written = self.entries.write_bytes(u64::from(index) * ENTRY_BYTES as u64, &entry);
        debug_assert!(written, "an entry of the ring");
        self.word(self.params.sq[6] + index * 4).store(index, Ordering::Relaxed);
        // The kernel reads the entry after it has seen the tail.
        tail.store(at.wrapping_add(1), Ordering::Release);
        self.pushed += 1;
        true
    }

    /// Gives the kernel what was pushed, and waits until `least` commands are done and not popped.
    ///
    /// # Errors
    /// EINTR among others. Commands that the kernel did not take stay pushed.
    pub fn enter(&mut self, least: u32) -> Result<(), Errno> {
        let arguments = [self.fd.as_raw_fd() as usize, self.pushed as usize, least as usize, ENTER_GETEVENTS, 0, 0];
        // SAFETY: no pointers. What entries point to is the caller's of `push`.
        let taken = unsafe { checked(libc::SYS_io_uring_enter, arguments)? };
        self.pushed -= taken as u32;
        Ok(())
    }

    /// A command that is done.
    pub fn pop(&mut self) -> Option<Done> {
        let (head, tail) = (self.word(self.params.cq[0]), self.word(self.params.cq[1]));
        let at = head.load(Ordering::Relaxed);
        if at == tail.load(Ordering::Acquire) {
            return None;
        }
        let index = at & (self.params.cq_entries - 1);
        let mut entry = [0u8; 16];
        let read = self.rings.read_bytes(u64::from(self.params.cq[5]) + u64::from(index) * 16, &mut entry);
        debug_assert!(read, "a completion of the ring");
        let (tag, rest) = entry.split_at(8);
        let done = Done {
            tag: u64::from_ne_bytes(tag.try_into().expect("8 bytes")),
            result: i32::from_ne_bytes(rest[..4].try_into().expect("4 bytes")),
        };
        // The kernel may write the place again after it has seen the head.
        head.store(at.wrapping_add(1), Ordering::Release);
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_kernel_answers_every_command() {
        let mut ring = match Uring::new(4) {
            Ok(ring) => ring,
            Err(Errno(libc::ENOSYS | libc::EPERM | libc::EACCES)) => return eprintln!("skipped: no io_uring here"),
            Err(e) => panic!("{e}"),
        };
        let file = File::open("/dev/null").unwrap();
        for round in 0..5u64 {
            for tag in 0..4 {
                // SAFETY: a command without addresses, and no command of this driver's.
                assert!(unsafe { ring.push(file.as_raw_fd(), 77, &[], round * 4 + tag) });
            }
            // SAFETY: as above.
            assert!(!unsafe { ring.push(file.as_raw_fd(), 77, &[], 99) });
            ring.enter(4).unwrap();
            let mut tags: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|done| done.tag).collect();
            tags.sort_unstable();
            assert!(tags.into_iter().eq(round * 4..round * 4 + 4));
        }
    }
}
