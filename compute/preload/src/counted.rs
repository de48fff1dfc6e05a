//! The number of the process's threads, without the runtime's.
//!
//! The runtime's threads belong to the program's process, and the kernel counts them. Some programs
//! ask whether they have one thread: Python warns before it forks if they have more.
//!
//! Reads are not dispatched as a rule. So each file that libc opens is looked at. While one of those
//! that tell the number is open, reads are dispatched.
//!
//! ```text
//!  open ─► /proc/self/stat or status? ─► watched ── read ─► still that file? ─► its number is lowered
//!                                           └────── close ─► no longer watched
//! ```
//!
//! The kernel also tells it by the links of the directory `/proc/self/task`, which Chromium reads. So
//! each call that asks for a file's status is looked at, if it has told of a directory.
//!
//! Not lowered: in calls outside libc, by `readv`, in a text of which the number is cut, by
//! descriptors of [`MOST`] and above, and in a confined process. (A listing of the threads:
//! [`crate::hidden`].)

use crate::call::{Call, issue};
use crate::process::pager;
use crate::{confined, guard, hidden, sites};
use farmem_protocol::addr::is_far;
use farmem_sys::raw::{checked, getpid};
use farmem_sys::thread;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The calls that open files: dispatched where libc's instructions are patched, and not by the
/// filter elsewhere.
pub const OPENS: [i64; 2] = [libc::SYS_open, libc::SYS_openat];
/// The calls that tell a file's status, dispatched likewise.
pub const STATS: [i64; 5] = [libc::SYS_stat, libc::SYS_lstat, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx];
const READS: [i64; 2] = [libc::SYS_read, libc::SYS_pread64];

/// Descriptors that can be watched.
const MOST: usize = 1024;
/// A bit for each descriptor that may be of such a file. Each read asks which file it is.
static WATCHED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// The files that tell the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum File {
    Stat,
    Status,
}

/// Whether a descriptor may be of such a file.
#[inline]
pub fn watches(fd: usize) -> bool {
    WATCHED.get(fd / 64).is_some_and(|bits| bits.load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
}

/// open and openat.
pub fn open(call: &Call) -> isize {
    let opened = made(call);
    if (0..MOST as isize).contains(&opened) && file(opened as usize).is_some() {
        WATCHED[opened as usize / 64].fetch_or(1 << (opened % 64), Ordering::SeqCst);
        dispatch_reads();
    }
    opened
}

fn made(call: &Call) -> isize {
    if !call.args.iter().any(|&arg| is_far(arg)) {
        return issue(call);
    }
    pager().count_guarded_syscall();
    guard::call(pager(), call)
}

/// stat and its kin.
pub fn stat(call: &Call) -> isize {
    let told = made(call);
    if told != 0 || !thread::any() || confined::alone().is_some() {
        return told;
    }
    let (at, len, lower): (_, _, fn(&mut [u8], u32)) = match call.nr {
        libc::SYS_statx => (call.args[4], size_of::<libc::statx>(), fewer_links_x),
        libc::SYS_newfstatat => (call.args[2], size_of::<libc::stat>(), fewer_links),
        _ => (call.args[1], size_of::<libc::stat>(), fewer_links),
    };
    hidden::edit(at, len, |about| {
        lower(about, thread::started());
        len
    });
    told
}

fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// Whether a file, by its device and number, is the directory of this process's threads.
fn lists_threads(device: u64, number: u64) -> bool {
    // SAFETY: zero is valid for it.
    let mut own: libc::stat = unsafe { std::mem::zeroed() };
    let path = c"/proc/self/task".as_ptr() as usize;
    let args = [libc::AT_FDCWD as usize, path, &raw mut own as usize, 0, 0, 0];
    // SAFETY: a live path and stat.
    let asked = unsafe { checked(libc::SYS_newfstatat, args) };
    asked.is_ok() && (own.st_dev, own.st_ino) == (device, number)
}

/// Lowers the links in a status that the kernel has written, if it is that of the directory.
fn fewer_links(about: &mut [u8], own: u32) {
    // SAFETY: so many bytes (the caller's), and plain data.
    let mut told = unsafe { about.as_ptr().cast::<libc::stat>().read_unaligned() };
    if is_directory(told.st_mode)
        && let Some(left) = links_left(told.st_nlink, own)
        && lists_threads(told.st_dev, told.st_ino)
    {
        told.st_nlink = left;
        // SAFETY: as above.
        unsafe { about.as_mut_ptr().cast::<libc::stat>().write_unaligned(told) };
    }
}

/// The same of `statx`.
fn fewer_links_x(about: &mut [u8], own: u32) {
    // SAFETY: so many bytes (the caller's), and plain data.
    let mut told = unsafe { about.as_ptr().cast::<libc::statx>().read_unaligned() };
    let device = libc::makedev(told.stx_dev_major, told.stx_dev_minor);
    if is_directory(told.stx_mode.into())
        && let Some(left) = links_left(told.stx_nlink.into(), own)
        && lists_threads(device, told.stx_ino)
    {
        told.stx_nlink = left as u32;
        // SAFETY: as above.
        unsafe { about.as_mut_ptr().cast::<libc::statx>().write_unaligned(told) };
    }
}

/// A link for each thread, and the two that every directory has: without `own` threads, if one is
/// left.
fn links_left(links: u64, own: u32) -> Option<u64> {
    links.checked_sub(own.into()).filter(|&left| left > 2)
}

/// close of a watched descriptor.
pub fn close(call: &Call) -> isize {
    forget(call.args[0]);
    issue(call)
}

fn forget(fd: usize) {
    WATCHED[fd / 64].fetch_and(!(1 << (fd % 64)), Ordering::SeqCst);
    dispatch_reads();
}

/// Has reads dispatched while a descriptor is watched. Each change of the bits is followed by a call
/// of this, so the last call decides.
fn dispatch_reads() {
    let any = || WATCHED.iter().any(|bits| bits.load(Ordering::SeqCst) != 0);
    READS.iter().for_each(|&nr| sites::dispatches(nr, any()));
    if any() {
        READS.iter().for_each(|&nr| sites::dispatches(nr, true));
    }
}

/// read or pread of a watched descriptor.
pub fn read(call: &Call) -> isize {
    pager().count_guarded_syscall();
    let told = guard::call(pager(), call);
    if told <= 0 {
        return told;
    }
    let Some(file) = file(call.args[0]) else {
        forget(call.args[0]);
        return told;
    };
    hidden::edit(call.args[1], told as usize, |text| fewer(text, file, thread::started())) as isize
}

fn file(fd: usize) -> Option<File> {
    hidden::in_proc(fd, |path| match hidden::of_process(path, getpid())? {
        b"stat" => Some(File::Stat),
        b"status" => Some(File::Status),
        _ => None,
    })
}

/// Lowers the number of threads by `own`, if that leaves one. Returns the text's length.
fn fewer(text: &mut [u8], file: File, own: u32) -> usize {
    let len = text.len();
    let Some(at) = number_in(text, file) else { return len };
    let all: Option<u32> = std::str::from_utf8(&text[at.clone()]).ok().and_then(|digits| digits.parse().ok());
    let Some(left) = all.and_then(|all| all.checked_sub(own)).filter(|&left| left > 0) else { return len };
    let left = left.to_string();
    let end = at.start + left.len();
    text[at.start..end].copy_from_slice(left.as_bytes());
    text.copy_within(at.end.., end);
    len - (at.end - end)
}

/// Where the number is; `None` if not all of it is there.
fn number_in(text: &[u8], file: File) -> Option<Range<usize>> {
    const NAME: &[u8] = b"\nThreads:\t";
    let start = match file {
        File::Status => text.windows(NAME.len()).position(|part| part == NAME)? + NAME.len(),
        File::Stat => {
            // The state is the first field behind the name, which may hold anything, and this is
            // the eighteenth.
            let after = text.iter().rposition(|&byte| byte == b')')? + 2;
            let fields = text.get(after..)?.iter().enumerate().filter(|(_, byte)| **byte == b' ');
            after + fields.map(|(at, _)| at + 1).nth(16)?
        }
    };
    let len = text[start..].iter().position(|byte| !byte.is_ascii_digit())?;
    Some(start..start + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowered(text: &str, file: File, own: u32) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let len = fewer(&mut bytes, file, own);
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    #[test]
    fn the_number_of_stat_is_lowered() {
        let stat = |name: &str, threads: u32| {
            format!("77 ({name}) S 1 77 77 34816 77 4194304 99 0 0 0 1 2 3 4 20 0 {threads} 0 4155 2899968 233 1 2\n")
        };
        for name in ["cat", "a) S 1 2 3 (b", "\nThreads:\t9\n"] {
            assert_eq!(lowered(&stat(name, 2), File::Stat, 1), stat(name, 1));
            assert_eq!(lowered(&stat(name, 10), File::Stat, 1), stat(name, 9));
            assert_eq!(lowered(&stat(name, 101), File::Stat, 2), stat(name, 99));
            // A vfork child has none of its parent's.
            assert_eq!(lowered(&stat(name, 1), File::Stat, 1), stat(name, 1));
        }
        let whole = stat("cat", 12);
        for cut in 0..whole.find("12 0 4155").unwrap() + 2 {
            assert_eq!(lowered(&whole[..cut], File::Stat, 1), &whole[..cut]);
        }
    }

    #[test]
    fn links_are_left_for_the_programs_threads() {
        assert_eq!([links_left(4, 1), links_left(15, 2)], [Some(3), Some(13)]);
        // A vfork child has none of its parent's, and a file has one link.
        assert_eq!([links_left(3, 1), links_left(1, 2)], [None, None]);
    }

    #[test]
    fn the_number_of_status_is_lowered() {
        let status = |threads: u32| {
            format!(
                "Name:\ta)b\nState:\tS (sleeping)\nGroups:\t0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 \n\
                     VmPeak:\t    2832 kB\nThreads:\t{threads}\nSigQ:\t0/95840\n"
            )
        };
        assert_eq!(lowered(&status(3), File::Status, 1), status(2));
        assert_eq!(lowered(&status(100), File::Status, 1), status(99));
        let cut = status(12).find("12\nSigQ").unwrap() + 2;
        for cut in 0..=cut {
            assert_eq!(lowered(&status(12)[..cut], File::Status, 1), &status(12)[..cut]);
        }
    }
}
