//! Descriptors of the runtime's own, in the process of a program that may close what it likes, use
//! up all it may have, and fork.
//!
//! * [`numbers`]: which are ours, and out of the program's way.
//! * [`spare`]: one can be had when the program has used up all it may have.
//! * [`lent`]: which of these a vfork child has.

mod lent;
mod numbers;
pub mod spare;

use crate::raw::{Errno, checked, getpid};
pub use numbers::{FDS, LOWEST, close, own_fd, own_fds, owns_fd};

/// A connected pair of Unix stream sockets, close-on-exec, ours (see [`own_fd`]).
pub fn socket_pair() -> Result<(i32, i32), Errno> {
    let mut pair = [0i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel fills two live ints.
    unsafe {
        spare::made(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind as usize, 0, pair.as_mut_ptr() as usize, 0, 0])?
    };
    let one = own_fd(pair[0]).inspect_err(|_| close(pair[1]))?;
    Ok((one, own_fd(pair[1]).inspect_err(|_| close(one))?))
}

/// Whether a regular file that is open for writing as `fd` is open by another descriptor, too, in
/// any process. (Copies of `fd` do not count.) False where its file system cannot tell.
///
/// The kernel grants a write lease to the only opener of a file. It is given back at once.
pub fn is_open_elsewhere(fd: i32) -> bool {
    const F_SETSIG: i32 = 10;
    let control = |command: i32, with: i32| {
        // SAFETY: these commands take numbers, and change nothing but the lease of an open file.
        unsafe { checked(libc::SYS_fcntl, [fd as usize, command as usize, with as usize, 0, 0, 0]) }
    };
    // Who opens the file while the lease stands has the kernel send a signal: one that does nothing.
    let leased = control(F_SETSIG, libc::SIGURG).and_then(|_| control(libc::F_SETLEASE, libc::F_WRLCK));
    let _ = control(libc::F_SETLEASE, libc::F_UNLCK);
    leased == Err(Errno(libc::EAGAIN))
}

/// A pidfd of this process, ours.
pub fn pidfd_of_self() -> Result<i32, Errno> {
    pidfd_of(getpid())
}

/// A pidfd of a process, ours: it is readable when the process has ended.
pub fn pidfd_of(process: u32) -> Result<i32, Errno> {
    // SAFETY: no pointers.
    unsafe { spare::made(libc::SYS_pidfd_open, [process as usize, 0, 0, 0, 0, 0]) }.and_then(|fd| own_fd(fd as i32))
}

/// How [`open_own`] opens.
pub const OPEN_MEM_FLAGS: i32 = libc::O_RDONLY | libc::O_CLOEXEC;

/// `/proc/self/mem` for reading, ours.
pub fn open_self_mem() -> Result<i32, Errno> {
    open_own(c"/proc/self/mem")
}

/// Opens for reading, and for the runtime.
pub(crate) fn open_own(path: &std::ffi::CStr) -> Result<i32, Errno> {
    // SAFETY: a live path.
    unsafe {
        spare::made(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path.as_ptr() as usize, OPEN_MEM_FLAGS as usize, 0, 0, 0],
        )
    }
    .and_then(|fd| own_fd(fd as i32))
}
