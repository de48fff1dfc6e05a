//! Kernel interfaces for swapping: swapon, swapoff, files of devices, locked memory, and a generic
//! netlink socket.

use crate::raw::{Errno, checked};
use crate::socket::set_option;
use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The device's priority among swap devices: 0 to 32767, the highest is used first.
const PRIORITY_MASK: u32 = 0x7fff;
const PREFER: u32 = 0x8000;
const DISCARD: u32 = 0x1_0000;
const DISCARD_PAGES: u32 = 0x4_0000;
/// Bytes that can be read of what is kept beside a file.
const MAX_BESIDE: usize = 4096;
/// libc has no name for it.
const PR_SET_IO_FLUSHER: i32 = 57;

fn call(number: i64, path: &Path, flags: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: a terminated path, which the call only reads.
    let done = unsafe { checked(number, [path.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

/// Has the kernel swap to a device that bears a swap header. It tells the device of clusters of
/// slots that are free again.
pub fn swapon(device: &Path, priority: u16) -> io::Result<()> {
    call(libc::SYS_swapon, device, PREFER | priority as u32 & PRIORITY_MASK | DISCARD | DISCARD_PAGES)
}

/// Brings back every page that is on the device. Takes as long as that takes, and fails when there
/// is no memory for it.
pub fn swapoff(device: &Path) -> io::Result<()> {
    call(libc::SYS_swapoff, device, 0)
}

/// Makes a file that is the block device of this number, for root alone.
pub fn make_node(path: &Path, (major, minor): (u32, u32)) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let (mode, number) = ((libc::S_IFBLK | 0o600) as usize, libc::makedev(major, minor) as usize);
    // SAFETY: a terminated path, which the call only reads.
    let done = unsafe { checked(libc::SYS_mknod, [path.as_ptr() as usize, mode, number, 0, 0, 0]) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

fn attribute(path: &Path, name: &str) -> io::Result<(CString, CString)> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let path = CString::new(path.as_os_str().as_bytes()).map_err(invalid)?;
    Ok((path, CString::new(format!("trusted.{name}")).map_err(invalid)?))
}

/// Keeps bytes beside a file, for root alone, all or nothing. On tmpfs the kernel keeps them in
/// memory of its own, which is never swapped out, as the file's content may be.
pub fn keep_beside(path: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (path, name) = attribute(path, name)?;
    let arguments = [path.as_ptr() as usize, name.as_ptr() as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0];
    // SAFETY: two terminated texts, and bytes of the length that is told; the call only reads them.
    let done = unsafe { checked(libc::SYS_setxattr, arguments) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

/// The bytes that [`keep_beside`] kept.
pub fn kept_beside(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = attribute(path, name)?;
    let mut room = vec![0; MAX_BESIDE];
    let arguments = [path.as_ptr() as usize, name.as_ptr() as usize, room.as_mut_ptr() as usize, room.len(), 0, 0];
    // SAFETY: two terminated texts, and room of the length that is told, which the call fills.
    let n = unsafe { checked(libc::SYS_getxattr, arguments) };
    room.truncate(n.map_err(|Errno(e)| io::Error::from_raw_os_error(e))?);
    Ok(room)
}

/// No page of this process, now or later, leaves memory once it was touched.
pub fn stay_resident() -> io::Result<()> {
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: no pointers.
    let done = unsafe { checked(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

/// This thread, and those that it starts, allocate without waiting for pages to leave: for one on
/// whom the way of those pages depends.
pub fn wait_for_no_page() -> io::Result<()> {
    // SAFETY: no pointers.
    let done = unsafe { checked(libc::SYS_prctl, [PR_SET_IO_FLUSHER as usize, 1, 0, 0, 0, 0]) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

/// This thread, but none that it starts, runs before others, and may allocate from a part of what
/// the kernel keeps back when memory is out. It must sleep nearly always.
pub fn come_first() -> io::Result<()> {
    let (class, lowest) = (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1i32);
    let parameters = std::ptr::from_ref(&lowest) as usize;
    // SAFETY: the kernel reads a `sched_param`, which is one number.
    let done = unsafe { checked(libc::SYS_sched_setscheduler, [0, class as usize, parameters, 0, 0, 0]) };
    done.map(drop).map_err(|Errno(e)| io::Error::from_raw_os_error(e))
}

/// A generic netlink socket. A write is one message to the kernel, a read one message of the
/// kernel's.
pub fn netlink() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let arguments = [libc::AF_NETLINK as usize, kind as usize, libc::NETLINK_GENERIC as usize, 0, 0, 0];
    // SAFETY: no pointers.
    let fd = unsafe { checked(libc::SYS_socket, arguments) }.map_err(|Errno(e)| io::Error::from_raw_os_error(e))?;
    // SAFETY: a descriptor that was just made, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Has a netlink socket receive what is told to a multicast group.
pub fn listen_to(fd: i32, group: u32) {
    set_option(fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group as i32);
}
