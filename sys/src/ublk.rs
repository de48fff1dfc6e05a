//! A block device that a process serves: the kernel's ublk driver (Linux 6.0 and later).
//!
//! ```text
//!  kernel: request ─► Queue::next: READ | WRITE | DISCARD of sectors, by tag ─► the server
//!                     Queue::complete(tag)  ◄──────────────────────────────────┘
//! ```
//!
//! Each tag has a buffer of the caller's. The kernel puts a WRITE's bytes there before it tells of
//! the request. It takes a READ's bytes from there when the request is completed. The thread that
//! makes the queue serves it. Nothing is allocated while it serves.
//!
//! A device below swap must not wait for memory. The caller locks its own memory, and moves bytes
//! without allocating.

use crate::mapping::Mapping;
use crate::raw::Errno;
use crate::uring::{Done, Uring};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const CONTROL: &str = "/dev/ublk-control";
const ADD: u32 = cmd(4, 32);
const DELETE: u32 = cmd(5, 32);
const START: u32 = cmd(6, 32);
const STOP: u32 = cmd(7, 32);
const SET_PARAMS: u32 = cmd(8, 32);
const FETCH: u32 = cmd(0x20, 16);
const COMMIT_AND_FETCH: u32 = cmd(0x21, 16);
/// Tells the driver that commands are encoded as ioctls are.
const BY_IOCTL: u64 = 1 << 6;
const HAS_BASIC_AND_DISCARD: u32 = 3;
const PAGE_SHIFT: u8 = 12;
const SECTOR: u64 = 512;
const DESCRIPTOR: usize = 24;
const ABORTED: i32 = -libc::ENODEV;

/// `_IOWR('u', number, size)`: of a command's own bytes, 32 to the control device and 16 to a queue.
const fn cmd(number: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | (b'u' as u32) << 8 | number
}

/// The kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
    /// All earlier WRITEs are to be durable. They always are here.
    Flush,
    /// The bytes are no longer needed. Reads of them may bring anything.
    Discard,
    /// The bytes are zero from now on.
    Zeroes,
    /// Something that this version does not know.
    Unknown,
}

/// A request of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Names it, and the buffer, until it is completed.
    pub tag: u16,
    /// Its kind.
    pub what: What,
    /// The first byte of the device.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// A device.
pub struct Device {
    control: File,
    ring: Mutex<Uring>,
    id: u32,
    depth: u16,
    most: u32,
}

impl Device {
    /// A device of `bytes` bytes. `depth` requests can be under way, each of at most `most` bytes. It
    /// has no queue yet.
    ///
    /// # Errors
    /// The kernel has no ublk, or does not allow it.
    pub fn new(bytes: u64, depth: u16, most: u32) -> Result<Device, Errno> {
        let control = open(CONTROL)?;
        let mut device = Device { control, ring: Mutex::new(Uring::new(4)?), id: u32::MAX, depth, most };
        let mut about = [0u8; 64];
        put(&mut about, 0, &1u16.to_ne_bytes());
        put(&mut about, 2, &depth.to_ne_bytes());
        put(&mut about, 8, &most.to_ne_bytes());
        put(&mut about, 12, &u32::MAX.to_ne_bytes());
        put(&mut about, 16, &std::process::id().to_ne_bytes());
        put(&mut about, 24, &BY_IOCTL.to_ne_bytes());
        device.command(ADD, Some(&mut about), 0)?;
        device.id = u32::from_ne_bytes(about[12..16].try_into().expect("4 bytes"));
        let mut params = [0u8; 60];
        put(&mut params, 0, &60u32.to_ne_bytes());
        put(&mut params, 4, &HAS_BASIC_AND_DISCARD.to_ne_bytes());
        put(&mut params, 12, &[PAGE_SHIFT; 4]);
        put(&mut params, 16, &(most / SECTOR as u32).to_ne_bytes());
        put(&mut params, 24, &(bytes / SECTOR).to_ne_bytes());
        put(&mut params, 44, &4096u32.to_ne_bytes());
        for at in [48, 52] {
            put(&mut params, at, &(1u32 << 20).to_ne_bytes());
        }
        put(&mut params, 56, &1u16.to_ne_bytes());
        device.command(SET_PARAMS, Some(&mut params), 0)?;
        Ok(device)
    }

    /// Its place in /dev.
    pub fn path(&self) -> String {
        format!("/dev/ublkb{}", self.id)
    }

    /// Its queue, which the calling thread serves. `buffers`: `depth` times `most` bytes.
    ///
    /// # Safety
    /// The buffers stay mapped, and nobody else's, until the queue is dropped.
    ///
    /// # Errors
    /// The system's.
    pub unsafe fn queue(&self, buffers: *mut u8) -> Result<Queue, Errno> {
        let path = format!("/dev/ublkc{}", self.id);
        let deadline = Instant::now() + Duration::from_secs(10);
        let file = loop {
            match open(&path) {
                // The file comes a moment after the device.
                Err(Errno(libc::ENOENT | libc::EACCES)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => break opened?,
            }
        };
        let bytes = (usize::from(self.depth) * DESCRIPTOR).next_multiple_of(4096);
        let descriptors = Mapping::read_only(file.as_raw_fd(), 0, bytes)?;
        let ring = Uring::new(u32::from(self.depth))?;
        let mut queue = Queue { file, descriptors, ring, buffers, most: self.most, has_ended: false };
        for tag in 0..self.depth {
            queue.tell(FETCH, tag, 0);
        }
        queue.ring.enter(0)?;
        Ok(queue)
    }

    /// The device appears, and gets requests. Every queue must have been made, and be served by
    /// another thread meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self) -> Result<(), Errno> {
        self.command(START, None, u64::from(std::process::id()))
    }

    /// The device ends: its queue says so.
    ///
    /// # Errors
    /// The system's.
    pub fn stop(&self) -> Result<(), Errno> {
        self.command(STOP, None, 0)
    }

    fn command(&self, what: u32, about: Option<&mut [u8]>, data: u64) -> Result<(), Errno> {
        let (at, len) = about.map_or((0, 0), |about| (about.as_mut_ptr() as u64, about.len() as u16));
        let mut own = [0u8; 32];
        put(&mut own, 0, &self.id.to_ne_bytes());
        put(&mut own, 4, &u16::MAX.to_ne_bytes());
        put(&mut own, 6, &len.to_ne_bytes());
        put(&mut own, 8, &at.to_ne_bytes());
        put(&mut own, 16, &data.to_ne_bytes());
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `about` outlives the command, which is awaited here.
        let pushed = unsafe { ring.push(self.control.as_raw_fd(), what, &own, 0) };
        assert!(pushed, "one command at a time");
        loop {
            match ring.enter(1) {
                Ok(()) | Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
            match ring.pop() {
                Some(Done { result, .. }) if result < 0 => return Err(Errno(-result)),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Best effort: it may have stopped already.
        let _ = self.stop();
        let _ = self.command(DELETE, None, 0);
    }
}

/// The requests of a device. Belongs to the thread that made it.
pub struct Queue {
    file: File,
    descriptors: Mapping,
    ring: Uring,
    buffers: *mut u8,
    most: u32,
    has_ended: bool,
}

impl Queue {
    /// The next request. With `waits`: sleeps until there is one, or the device has ended. `None`:
    /// there is none now.
    ///
    /// # Errors
    /// The system's.
    pub fn next(&mut self, waits: bool) -> Result<Option<Request>, Errno> {
        loop {
            if let Some(done) = self.ring.pop() {
                if done.result == ABORTED {
                    self.has_ended = true;
                    continue;
                }
                return match done.result {
                    0 => Ok(Some(self.request(done.tag as u16))),
                    error => Err(Errno(-error)),
                };
            }
            match self.ring.enter(u32::from(waits && !self.has_ended)) {
                Ok(()) | Err(Errno(libc::EINTR)) => {}
                Err(e) => return Err(e),
            }
            match self.ring.pop() {
                Some(done) if done.result == ABORTED => self.has_ended = true,
                Some(done) if done.result == 0 => return Ok(Some(self.request(done.tag as u16))),
                Some(done) => return Err(Errno(-done.result)),
                None if waits && !self.has_ended => {}
                None => return Ok(None),
            }
        }
    }

    /// Whether the device has ended: no request will come.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The buffer of a tag.
    pub fn buffer(&self, tag: u16) -> *mut u8 {
        self.buffers.wrapping_add(usize::from(tag) * self.most as usize)
    }

    /// A request is done. `result` is the number of its bytes that were moved, or a negative error
    /// number. The kernel hears of it at the next [`Queue::next`].
    pub fn complete(&mut self, tag: u16, result: i32) {
        self.tell(COMMIT_AND_FETCH, tag, result);
    }

    fn tell(&mut self, what: u32, tag: u16, result: i32) {
        let mut own = [0u8; 16];
        put(&mut own, 2, &tag.to_ne_bytes());
        put(&mut own, 4, &result.to_ne_bytes());
        put(&mut own, 8, &(self.buffer(tag) as u64).to_ne_bytes());
        // SAFETY: the buffer is the caller's of `Device::queue`, and stays.
        let pushed = unsafe { self.ring.push(self.file.as_raw_fd(), what, &own, u64::from(tag)) };
        assert!(pushed, "a tag has one command at a time, and the ring a place for each");
    }

    fn request(&self, tag: u16) -> Request {
        let mut bytes = [0u8; DESCRIPTOR];
        let read = self.descriptors.read_bytes(u64::from(tag) * DESCRIPTOR as u64, &mut bytes);
        assert!(read, "a tag of this queue");
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let first = u64::from(word(8)) | u64::from(word(12)) << 32;
        let what = match bytes[0] {
            0 => What::Read,
            1 => What::Write,
            2 => What::Flush,
            3 => What::Discard,
            5 => What::Zeroes,
            _ => What::Unknown,
        };
        Request { tag, what, offset: first * SECTOR, len: word(4) * SECTOR as u32 }
    }
}

fn open(path: &str) -> Result<File, Errno> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}
