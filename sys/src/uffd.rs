//! userfaultfd, by its ABI: the headers of the distributions we build on are
//! older than the kernels we run on, so numbers and layouts are written out here
//! and checked at compile time.

use crate::descriptors::close;
use crate::raw::{Errno, checked};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

const fn iowr(nr: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | 0xAA << 8 | nr
}
const fn ior(nr: u64, size: usize) -> u64 {
    2 << 30 | (size as u64) << 16 | 0xAA << 8 | nr
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const API: u64 = iowr(0x3F, size_of::<Api>());
const REGISTER: u64 = iowr(0x00, size_of::<Register>());
const WAKE: u64 = ior(0x02, size_of::<Range>());
const COPY: u64 = iowr(0x03, size_of::<Copy>());
const WRITEPROTECT: u64 = iowr(0x06, size_of::<WriteProtect>());
const _: () = assert!(API == 0xc018aa3f && REGISTER == 0xc020aa00);
const _: () = assert!(WAKE == 0x8010aa02 && COPY == 0xc028aa03 && WRITEPROTECT == 0xc018aa06);

const USER_MODE_ONLY: usize = 1;
// Modes of COPY, and of WRITEPROTECT, which has them the other way round.
const COPY_DONT_WAKE: u64 = 1;
const COPY_PROTECT: u64 = 2;
const PROTECT: u64 = 1;
const LIFT_DONT_WAKE: u64 = 2;

/// Feature bits of `UFFDIO_API` that farmem knows by name.
pub mod feature {
    /// Write-protect faults on anonymous memory (Linux 5.7).
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A fault raises SIGBUS in the faulting thread instead of an event (4.14).
    pub const SIGBUS: u64 = 1 << 7;
    /// A write to a protected page lifts the protection in the kernel, with no event: the page then
    /// counts as written (6.7).
    pub const WP_ASYNC: u64 = 1 << 15;
}

/// Why userfaultfd cannot be had.
#[derive(Debug)]
pub enum OpenError {
    /// The system call failed.
    Refused(Errno),
    /// The kernel lacks these feature bits.
    Lacks(u64),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Refused(Errno(libc::ENOSYS)) => f.write_str(
                "this kernel has no userfaultfd (CONFIG_USERFAULTFD), or a container's seccomp profile hides it",
            ),
            OpenError::Refused(Errno(libc::EPERM)) => f.write_str(
                "userfaultfd is forbidden here: a container's seccomp profile must allow it (Linux 5.11 or later allows it to any user otherwise)",
            ),
            OpenError::Refused(e) => write!(f, "userfaultfd: {e}"),
            OpenError::Lacks(bits) => {
                write!(f, "this kernel's userfaultfd lacks")?;
                if bits & feature::PAGEFAULT_FLAG_WP != 0 {
                    write!(f, " write protection (Linux 5.7)")?;
                }
                if bits & feature::SIGBUS != 0 {
                    write!(f, " SIGBUS faults (Linux 4.14)")?;
                }
                Ok(())
            }
        }
    }
}

/// Flags of the `userfaultfd` system call with which any user may make one.
pub const OPEN_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY as i32;

/// A userfaultfd of the caller's address space, with which nothing was agreed yet.
///
/// # Errors
/// ENOSYS or EPERM: this system has none for us.
pub fn descriptor() -> std::io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor that comes back is new and nobody else's.
    unsafe {
        match libc::syscall(libc::SYS_userfaultfd, OPEN_FLAGS) {
            -1 => Err(std::io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32)),
        }
    }
}

/// Write tracking of an address space, this process's or another's. The kernel notes which pages
/// are written, and nobody waits. It ends when it is dropped, or when the process that holds it
/// ends.
#[derive(Debug)]
pub struct WriteTracker(OwnedFd);

impl WriteTracker {
    /// Agrees with the kernel on [`feature::WP_ASYNC`] over a new userfaultfd, whose address space
    /// is that of the process that made it.
    ///
    /// # Errors
    /// EINVAL: the kernel has no `WP_ASYNC` (before Linux 6.7).
    pub fn of(fd: OwnedFd) -> std::io::Result<WriteTracker> {
        let mut api = Api { api: 0xAA, features: feature::WP_ASYNC, ioctls: 0 };
        let tracker = WriteTracker(fd);
        tracker.ioctl(API, &mut api)?;
        Ok(tracker)
    }

    /// Tracks the mappings of this range. Their pages count as written until a
    /// [scan](crate::pagemap::Pagemap::scan) protects them.
    ///
    /// # Errors
    /// EBUSY: another userfaultfd has part of it. EINVAL, ENOMEM: not all of it is mapped.
    pub fn register(&self, start: u64, len: u64) -> std::io::Result<()> {
        const WRITE_PROTECT: u64 = 2;
        self.ioctl(REGISTER, &mut Register { range: Range { start, len }, mode: WRITE_PROTECT, ioctls: 0 })
    }

    fn ioctl<T>(&self, request: u64, arg: &mut T) -> std::io::Result<()> {
        // SAFETY: `arg` is live and has the layout that `request` encodes (sizes asserted above).
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request as libc::Ioctl, arg as *mut T) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// A fault, as the handler-thread mode reads it.
#[derive(Clone, Copy, Debug)]
pub struct FaultEvent {
    /// Faulting address, not rounded.
    pub addr: usize,
    /// The access was a write, or hit write protection.
    pub write: bool,
}

/// A userfaultfd.
pub struct Uffd {
    /// Replaced only in a forked child, while it has one thread.
    fd: AtomicI32,
    /// Faults raise SIGBUS: no thread ever sleeps on an event, and none is looked for.
    sleepless: bool,
}

impl Uffd {
    /// Opens one with exactly the features asked for.
    ///
    /// With [`feature::SIGBUS`] only user-mode faults are handled, which any user
    /// may; without it the kernel's own accesses are too, if the system allows
    /// (root, or `vm.unprivileged_userfaultfd=1`), else user-mode ones only.
    pub fn open(features: u64) -> Result<Uffd, OpenError> {
        let supported = Self::raw_open(true, features)?.api(0)?;
        let lacking = features & !supported;
        if lacking != 0 {
            return Err(OpenError::Lacks(lacking));
        }
        let open = |user_only| Self::raw_open(user_only, features);
        let user_only = features & feature::SIGBUS != 0;
        let uffd = if user_only { open(true)? } else { open(false).or_else(|_| open(true))? };
        uffd.api(features)?;
        Ok(uffd)
    }

    fn raw_open(user_only: bool, features: u64) -> Result<Uffd, OpenError> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize | if user_only { USER_MODE_ONLY } else { 0 };
        // SAFETY: no pointers.
        let fd = unsafe { crate::descriptors::spare::made(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) }
            .map_err(OpenError::Refused)?;
        let fd = crate::descriptors::own_fd(fd as i32).map_err(OpenError::Refused)?;
        let sleepless = features & feature::SIGBUS != 0;
        Ok(Uffd { fd: AtomicI32::new(fd), sleepless })
    }

    fn api(&self, features: u64) -> Result<u64, OpenError> {
        let mut api = Api { api: 0xAA, features, ioctls: 0 };
        self.ioctl(API, &mut api).map_err(OpenError::Refused)?;
        Ok(api.features)
    }

    #[inline]
    fn ioctl<T>(&self, request: u64, arg: &mut T) -> Result<usize, Errno> {
        // SAFETY: `arg` is live and has the layout that `request` encodes (sizes asserted above).
        unsafe { checked(libc::SYS_ioctl, [self.fd() as usize, request as usize, arg as *mut T as usize, 0, 0, 0]) }
    }

    /// The descriptor, which the program must not close.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Continues with another userfaultfd, with which nothing is registered yet. For a forked child
    /// while it has one thread. The old one is closed first, because the program may have no
    /// descriptor left for both.
    pub fn reopen(&self, features: u64) -> Result<(), OpenError> {
        close(self.fd.swap(-1, Ordering::Relaxed));
        let own = Uffd::open(features)?;
        self.fd.store(own.fd(), Ordering::Relaxed);
        std::mem::forget(own);
        Ok(())
    }

    /// Asks for missing-page and write-protect faults of a range of anonymous memory.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = Register { range: Range { start: start as u64, len: len as u64 }, mode: 3, ioctls: 0 };
        self.ioctl(REGISTER, &mut arg).map(drop)
    }

    /// Installs pages at `dst` with the bytes at `src`, atomically per page, write-protected if
    /// asked. Returns the bytes installed; fewer than `len` when a page was already there or the
    /// range left its mapping, `Err` when not one page was installed.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes; `dst` must be the caller's to fill.
    #[inline]
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len: usize, protect: bool) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            let mut arg = Copy {
                dst: (dst + done) as u64,
                src: src as u64 + done as u64,
                len: (len - done) as u64,
                mode: if protect { COPY_PROTECT } else { 0 } | if self.sleepless { COPY_DONT_WAKE } else { 0 },
                copied: 0,
            };
            match self.ioctl(COPY, &mut arg) {
                Ok(_) => return Ok(len),
                // The mapping is changing under us, or part was done: go on from there.
                Err(Errno(libc::EAGAIN)) => done += arg.copied.max(0) as usize,
                Err(e) => {
                    done += arg.copied.max(0) as usize;
                    return if done > 0 { Ok(done) } else { Err(e) };
                }
            }
            if done == len {
                return Ok(len);
            }
        }
    }

    /// Protects a range's present pages against writes, or lifts that.
    #[inline]
    pub fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        loop {
            let lifts = if self.sleepless { LIFT_DONT_WAKE } else { 0 };
            let mode = if on { PROTECT } else { lifts };
            let mut arg = WriteProtect { range: Range { start: start as u64, len: len as u64 }, mode };
            match self.ioctl(WRITEPROTECT, &mut arg) {
                Err(Errno(libc::EAGAIN)) => std::hint::spin_loop(),
                other => return other.map(drop),
            }
        }
    }

    /// Wakes threads that wait for a page of a range (handler-thread mode).
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = Range { start: start as u64, len: len as u64 };
        self.ioctl(WAKE, &mut arg).map(drop)
    }

    /// Reads the next fault (handler-thread mode); `None` when there is none now.
    pub fn next_fault(&self) -> Option<FaultEvent> {
        const EVENT_PAGEFAULT: u8 = 0x12;
        // struct uffd_msg: 32 bytes, packed: event at 0, pagefault.flags at 8, pagefault.address at
        // 16.
        let mut message = [0u64; 4];
        // SAFETY: the buffer is 32 live bytes.
        let read = unsafe {
            checked(libc::SYS_read, [self.fd() as usize, message.as_mut_ptr() as usize, size_of_val(&message), 0, 0, 0])
        };
        match read {
            Ok(32) if message[0] as u8 == EVENT_PAGEFAULT => {
                Some(FaultEvent { addr: message[2] as usize, write: message[1] & 3 != 0 })
            }
            _ => None,
        }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        close(self.fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_copied_protected_and_refused_twice() {
        let uffd = match Uffd::open(feature::SIGBUS | feature::PAGEFAULT_FLAG_WP) {
            Ok(uffd) => uffd,
            Err(e) => panic!("userfaultfd is needed: {e}"),
        };
        let at = crate::memory::reserve(4 * 4096).unwrap();
        uffd.register(at as usize, 4 * 4096).unwrap();
        let source = [7u8; 8192];
        // SAFETY: our own mapping and buffer.
        unsafe {
            assert_eq!(uffd.copy(at as usize, source.as_ptr(), 8192, true), Ok(8192));
            assert_eq!(at.add(8191).read(), 7);
            assert_eq!(uffd.copy(at as usize, source.as_ptr(), 4096, false), Err(Errno(libc::EEXIST)));
            uffd.protect(at as usize, 4096, false).unwrap();
            at.write(8);
            assert_eq!(at.read(), 8);
        }
    }

    #[test]
    fn a_missing_feature_is_named() {
        assert!(matches!(Uffd::open(1 << 62), Err(OpenError::Lacks(bits)) if bits == 1 << 62));
    }
}
