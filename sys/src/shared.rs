//! Memory that two processes map, and what they need to use it: words, sleeping on
//! them, and knowing who the other is.
//!
//! Either side may write anything at any time, so bytes are reached as atomics
//! only, and no Rust reference to more than a word is ever made.

use crate::descriptors::{close, own_fd};
use crate::raw::{Errno, checked, syscall};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// `len` bytes of a new memfd, close-on-exec, of this size for good: neither side can shrink it
/// under the other.
pub fn memory(name: &CStr, len: u64) -> Result<i32, Errno> {
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { checked(libc::SYS_memfd_create, [name.as_ptr() as usize, flags, 0, 0, 0, 0])? } as i32;
    let fd = own_fd(fd)?;
    let seals = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) as usize;
    // SAFETY: no pointers.
    let sealed = unsafe {
        checked(libc::SYS_ftruncate, [fd as usize, len as usize, 0, 0, 0, 0])
            .and_then(|_| checked(libc::SYS_fcntl, [fd as usize, libc::F_ADD_SEALS as usize, seals, 0, 0, 0]))
    };
    sealed.map(|_| fd).inspect_err(|_| close(fd))
}

/// A mapping that others may share. Unmapped when dropped.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: reached through atomics only; the mapping itself does not change.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `len` bytes of a descriptor, which may be closed afterwards. The caller
    /// ensures that nobody shrinks the file: touching bytes beyond its end raises SIGBUS.
    pub fn map(fd: i32, len: usize) -> Result<Shared, Errno> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { checked(libc::SYS_mmap, [0, len, prot, libc::MAP_SHARED as usize, fd as usize, 0])? };
        NonNull::new(at as *mut u8).map(|base| Shared { base, len }).ok_or(Errno(libc::ENOMEM))
    }

    /// [`Shared::map`], at a multiple of `align`, which is a power of two and at least a page.
    pub fn map_aligned(fd: i32, len: usize, align: usize) -> Result<Shared, Errno> {
        let room = len.checked_add(align).ok_or(Errno(libc::ENOMEM))?;
        let free = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let fixed = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
        // SAFETY: room at an address of the kernel's choice; then the file inside it, and what is
        // left on both sides given back.
        unsafe {
            let room_at = checked(libc::SYS_mmap, [0, room, libc::PROT_NONE as usize, free, usize::MAX, 0])?;
            let at = room_at.next_multiple_of(align);
            let mapped = checked(libc::SYS_mmap, [at, len, prot, fixed, fd as usize, 0]);
            let trim = |from: usize, to: usize| {
                if to > from {
                    syscall(libc::SYS_munmap, [from, to - from, 0, 0, 0, 0]);
                }
            };
            let kept = if mapped.is_ok() { len.next_multiple_of(4096) } else { 0 };
            trim(room_at, at);
            trim(at + kept, room_at + room.next_multiple_of(4096));
            mapped?;
            NonNull::new(at as *mut u8).map(|base| Shared { base, len }).ok_or(Errno(libc::ENOMEM))
        }
    }

    /// Where it lies in this process.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// When it is not aligned or not inside: offsets are ours, never the other side's.
    #[inline]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned, for the mapping
        // is to a page.
        unsafe { &*self.base.as_ptr().add(offset).cast() }
    }

    /// `n` words from a byte offset.
    ///
    /// # Panics
    /// As [`Shared::word32`].
    #[inline]
    pub fn words(&self, offset: usize, n: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + n * 8 <= self.len);
        // SAFETY: as above; a slice of atomics claims nothing about what others do to them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), n) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: ours; words are borrowed from `self`.
        unsafe { syscall(libc::SYS_munmap, [self.base.as_ptr() as usize, self.len, 0, 0, 0, 0]) };
    }
}

/// A page of this process alone, zero, that a forked child finds zero again: how code knows that it
/// forked.
pub fn wiped_on_fork() -> Result<&'static AtomicU32, Errno> {
    let at = crate::memory::reserve(4096)?;
    // SAFETY: advice about our own fresh mapping.
    unsafe { checked(libc::SYS_madvise, [at as usize, 4096, libc::MADV_WIPEONFORK as usize, 0, 0, 0])? };
    // SAFETY: mapped for the rest of the process, aligned, and zero is a value.
    Ok(unsafe { &*at.cast() })
}

/// Sleeps while `*word == expected`, at most `timeout_ns`; may wake early. The word may be another
/// process's too.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let limit =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as _, tv_nsec: (timeout_ns % 1_000_000_000) as _ };
    let args =
        [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, expected as usize, &limit as *const _ as usize, 0, 0];
    // SAFETY: both pointers are to live memory for the length of the call.
    unsafe { syscall(libc::SYS_futex, args) };
}

/// Wakes whoever sleeps in [`futex_wait`] on this word, in any process.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key.
    unsafe {
        syscall(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0])
    };
}

/// The process that connected a Unix socket, as the kernel saw it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
}

/// The process at the other end of a Unix socket.
pub fn peer_of(socket: i32) -> Result<Credentials, Errno> {
    let mut about = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as u32;
    let (at, len_at) = (&mut about as *mut _ as usize, &mut len as *mut _ as usize);
    let args = [socket as usize, libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize, at, len_at, 0];
    // SAFETY: a live structure and its length.
    unsafe { checked(libc::SYS_getsockopt, args)? };
    Ok(Credentials { pid: about.pid as u32, uid: about.uid })
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(pid: u32) -> Result<i32, Errno> {
    // SAFETY: no pointers.
    unsafe { checked(libc::SYS_pidfd_open, [pid as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as i32)
}

/// Takes the lock on a whole file for as long as the descriptor is open. False when somebody else
/// has it.
pub fn lock_file(fd: i32) -> Result<bool, Errno> {
    // SAFETY: no pointers.
    match unsafe { checked(libc::SYS_flock, [fd as usize, (libc::LOCK_EX | libc::LOCK_NB) as usize, 0, 0, 0, 0]) } {
        Ok(_) => Ok(true),
        Err(Errno(libc::EWOULDBLOCK)) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_share_words_that_nobody_can_shrink() {
        let fd = memory(c"shared", 8192).unwrap();
        let (a, b) = (Shared::map(fd, 8192).unwrap(), Shared::map(fd, 8192).unwrap());
        a.word32(4092).store(7, Ordering::Relaxed);
        assert_eq!(b.word32(4092).load(Ordering::Relaxed), 7);
        // SAFETY: no pointers.
        let shrunk = unsafe { checked(libc::SYS_ftruncate, [fd as usize, 0, 0, 0, 0, 0]) };
        assert_eq!(shrunk, Err(Errno(libc::EPERM)));
        let aligned = Shared::map_aligned(fd, 8192, 2 << 20).unwrap();
        assert!((aligned.base().as_ptr() as usize).is_multiple_of(2 << 20));
        assert_eq!(aligned.word32(4092).load(Ordering::Relaxed), 7);
        assert_eq!(Shared::map_aligned(-1, 8192, 2 << 20).err(), Some(Errno(libc::EBADF)));
        close(fd);
    }

    #[test]
    fn a_sleeper_on_another_mapping_is_woken() {
        let fd = memory(c"shared", 4096).unwrap();
        let (a, b) = (Shared::map(fd, 4096).unwrap(), Shared::map(fd, 4096).unwrap());
        let waker = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            b.word32(0).store(1, Ordering::Release);
            futex_wake(b.word32(0));
        });
        while a.word32(0).load(Ordering::Acquire) == 0 {
            futex_wait(a.word32(0), 0, 10_000_000_000);
        }
        waker.join().unwrap();
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (a, b) = crate::descriptors::socket_pair().unwrap();
        let me = Credentials { pid: std::process::id(), uid: crate::process::user() };
        assert_eq!((peer_of(a), peer_of(b)), (Ok(me), Ok(me)));
        [a, b].into_iter().for_each(close);
    }
}
