//! The runtime's descriptors and threads, which the program does not see.
//!
//! The descriptors lie in the program's own table, above the numbers that it gets. Programs look for
//! descriptors that they do not know: daemons before they close all, test suites to find leaks.
//!
//! * A call that names one as its first argument finds it closed ([`names`]).
//! * A listing of `/proc/self/fd` leaves them out, and one of `/proc/self/task` the threads ([`list`]).
//!   (Their number in other files: [`crate::counted`].)
//!
//! Not hidden: from calls outside libc, from `poll` and `select`, and by their paths under `/proc`.

use crate::call::Call;
use crate::process::pager;
use crate::{confined, guard};
use farmem_protocol::addr::is_far;
use farmem_sys::descriptors::owns_fd;
use farmem_sys::raw::{checked, getpid};
use farmem_sys::thread;
use std::io::Write;
use std::mem::offset_of;

/// Calls whose first argument is a descriptor, but for `close_range`, which goes around ours.
const CALLS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_ioctl,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fstatfs,
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_getdents,
    libc::SYS_getdents64,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_signalfd,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_fanotify_mark,
    libc::SYS_setns,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    // Of their descriptors' own files; by a path these take no descriptor of ours.
    libc::SYS_newfstatat,
    libc::SYS_statx,
];

/// A bit for each of [`CALLS`].
const NUMBERS: [u64; 8] = {
    let (mut bits, mut n) = ([0; 8], 0);
    while n < CALLS.len() {
        bits[CALLS[n] as usize / 64] |= 1 << (CALLS[n] % 64);
        n += 1;
    }
    bits
};

/// Whether a call of the program's names a descriptor of the runtime's as its first argument.
#[inline]
pub fn names(call: &Call) -> bool {
    let number = call.nr as usize;
    owns_fd(call.args[0] as i32)
        && NUMBERS.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
        && match call.nr {
            libc::SYS_newfstatat => call.args[3] & libc::AT_EMPTY_PATH as usize != 0,
            libc::SYS_statx => call.args[2] & libc::AT_EMPTY_PATH as usize != 0,
            _ => true,
        }
}

/// Lists of this process under `/proc` that hold something of the runtime's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Listed {
    Descriptors,
    Threads,
}

impl Listed {
    fn is_own(self, number: u32) -> bool {
        match self {
            Listed::Descriptors => owns_fd(number as i32),
            Listed::Threads => thread::is_one(number),
        }
    }
}

/// getdents64. Where it lists this process's descriptors or threads, ours are taken out of what the
/// kernel tells.
pub fn list(call: &Call) -> isize {
    loop {
        pager().count_guarded_syscall();
        let told = guard::call(pager(), call);
        if told <= 0 {
            return told;
        }
        let Some(listed) = in_proc(call.args[0], |path| listed(path, getpid())) else { return told };
        // Nothing left is no end of the directory: the kernel is asked for more.
        match edit(call.args[1], told as usize, |entries| without(entries, |number| listed.is_own(number))) {
            0 => {}
            left => return left as isize,
        }
    }
}

/// Looks for something in the path of a descriptor's file, if that is in the file system of
/// processes. It needs calls that a program's filter may forbid, so in a confined process no file is.
pub fn in_proc<T>(fd: usize, find: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    const PROC: i64 = 0x9fa0;
    if confined::alone().is_some() {
        return None;
    }
    // SAFETY: zero is valid for it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: live, and the kernel's to fill.
    let asked = unsafe { checked(libc::SYS_fstatfs, [fd, &raw mut about as usize, 0, 0, 0, 0]) };
    if asked.is_err() || about.f_type != PROC {
        return None;
    }
    // Nothing is allocated: a handler of the program's may come between, and allocate too.
    let mut link = [0u8; 40];
    // Longer than any number needs; the rest stays 0.
    let _ = write!(&mut link[..39], "/proc/self/fd/{fd}");
    let mut path = [0u8; 256];
    // SAFETY: a live path, and room for another.
    let read = unsafe {
        let (link, to) = (link.as_ptr() as usize, path.as_mut_ptr() as usize);
        checked(libc::SYS_readlink, [link, to, path.len(), 0, 0, 0])
    };
    find(&path[..read.ok()?])
}

fn listed(path: &[u8], pid: u32) -> Option<Listed> {
    match of_process(path, pid)? {
        b"fd" | b"fdinfo" => Some(Listed::Descriptors),
        b"task" => Some(Listed::Threads),
        _ => None,
    }
}

/// The last name of a path that ends in `/PID/NAME`, or in that of a thread, `/PID/task/TID/NAME`.
pub fn of_process(path: &[u8], pid: u32) -> Option<&[u8]> {
    let mut names = path.rsplit(|&byte| byte == b'/');
    let (name, number, above) = (names.next()?, names.next()?, names.next());
    let of = if above == Some(b"task") { names.next()? } else { number };
    (number_of(of) == Some(pid)).then_some(name)
}

fn number_of(name: &[u8]) -> Option<u32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Has `change` shorten `len` bytes that the kernel has just written to the program's buffer.
/// Returns how many are left.
pub fn edit(at: usize, len: usize, change: impl FnOnce(&mut [u8]) -> usize) -> usize {
    // Near memory was written by the kernel just now.
    let pinned = if is_far(at) { pager().pins.pin(at, len, true) } else { 0 };
    let left = if is_far(at) && pinned < len {
        len
    } else {
        // SAFETY: so many bytes of the program's, which are there, and which it has given to the
        // kernel.
        change(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) })
    };
    pager().pins.unpin(at, pinned);
    left
}

/// An entry of a directory as the kernel lays it down; its name follows, ended by NUL.
#[repr(C)]
struct Entry {
    inode: u64,
    place: i64,
    len: u16,
    kind: u8,
    name: [u8; 0],
}

/// Moves the entries together that do not name a number that is `hidden`.
fn without(entries: &mut [u8], hidden: impl Fn(u32) -> bool) -> usize {
    let (mut from, mut to) = (0, 0);
    while let Some(len) = entries.get(from..).and_then(entry_len) {
        let name = &entries[from + offset_of!(Entry, name)..from + len];
        let name = name.split(|&byte| byte == 0).next().unwrap_or(name);
        if !number_of(name).is_some_and(&hidden) {
            entries.copy_within(from..from + len, to);
            to += len;
        }
        from += len;
    }
    to
}

/// The length of the first entry, if it is all there: another thread of the program's may write to
/// the buffer.
fn entry_len(entries: &[u8]) -> Option<usize> {
    let at = offset_of!(Entry, len);
    let len = usize::from(u16::from_le_bytes([*entries.get(at)?, *entries.get(at + 1)?]));
    (len > offset_of!(Entry, name) && len <= entries.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<u8> {
        let mut all = Vec::new();
        for name in names {
            let len = (offset_of!(Entry, name) + name.len() + 1).next_multiple_of(8);
            all.extend([7; offset_of!(Entry, len)]);
            all.extend((len as u16).to_le_bytes());
            all.push(4);
            all.extend(name.as_bytes());
            all.resize(all.len().next_multiple_of(8).max(all.len() + 1).next_multiple_of(8), 0);
        }
        all
    }

    #[test]
    fn entries_of_hidden_numbers_are_left_out() {
        let hidden = |fd| fd >= 900;
        let left = |names: &[&str]| {
            let mut all = entries(names);
            let len = without(&mut all, hidden);
            all.truncate(len);
            all
        };
        assert_eq!(left(&[".", "..", "0", "899", "900", "1", "913"]), entries(&[".", "..", "0", "899", "1"]));
        assert_eq!(left(&["900", "32768"]), entries(&[]));
        assert_eq!(left(&["900x", "-900", "9000000000000", "09"]), entries(&["900x", "-900", "9000000000000", "09"]));
        // A length that leads nowhere ends it.
        let mut broken = entries(&["1", "2"]);
        broken[offset_of!(Entry, len)] = 0;
        assert_eq!(without(&mut broken, hidden), 0);
        let mut cut = entries(&["1", "2"]);
        let half = cut.len() - 1;
        assert_eq!(without(&mut cut[..half], hidden), half.div_ceil(2));
    }

    #[test]
    fn directories_of_this_process_are_known_by_their_paths() {
        let listed = |path: &str| listed(path.as_bytes(), 77);
        for path in ["/proc/77/fd", "/proc/77/fdinfo", "/proc/77/task/78/fd", "/jail/proc/77/task/77/fdinfo"] {
            assert_eq!(listed(path), Some(Listed::Descriptors), "{path}");
        }
        for path in ["/proc/77/task", "/jail/proc/77/task"] {
            assert_eq!(listed(path), Some(Listed::Threads), "{path}");
        }
        for path in ["/proc/78/fd", "/proc/77", "/proc/78/task", "/proc/78/task/77/fd", "/77/fds", "fd", "task", ""] {
            assert_eq!(listed(path), None, "{path}");
        }
    }
}
