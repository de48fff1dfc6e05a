//! The kernel's device mapper, by its ioctls.

#![allow(unsafe_code)] // One ioctl, whose argument is a message that says how long it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a message's head, by which the ioctls are numbered.
pub const HEAD: usize = 312;
/// Where a message says how long it is.
const SIZE: std::ops::Range<usize> = 12..16;

/// The device mapper.
#[derive(Debug)]
pub struct Mapper(File);

impl Mapper {
    /// Opens its control device.
    pub fn open() -> io::Result<Mapper> {
        OpenOptions::new().read(true).write(true).open("/dev/mapper/control").map(Mapper)
    }

    /// Carries out an order. The answer is written over the message, as far as it fits.
    ///
    /// # Errors
    /// EINVAL for a message whose head does not say its length; else as the kernel says.
    pub fn ask(&self, order: u8, message: &mut [u8]) -> io::Result<()> {
        let says = message.get(SIZE).and_then(|size| size.try_into().ok()).map(u32::from_ne_bytes);
        if message.len() < HEAD || says != u32::try_from(message.len()).ok() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // An ioctl of type 0xfd that reads and writes a head.
        let number = 3 << 30 | (HEAD as libc::c_ulong) << 16 | 0xfd << 8 | libc::c_ulong::from(order);
        // SAFETY: the kernel reads and writes at most as many bytes as the head says, and the
        // message has them.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), number, message.as_mut_ptr()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}
