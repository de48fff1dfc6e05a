//! Notes programs of the run that have no far memory in the run's file. Its summary names them.
//!
//! Most are noted by the process that executes them, because they do not load this library: static
//! programs, set-user-ID ones, those of another user ([`crate::image`], [`User`](Near::User)). A
//! program that loads it and finds that the kernel refuses its pager notes itself.
//!
//! A note is made before the exec and taken back if that fails. It uses no call that a filter of
//! the program's own could punish: only those that [`crate::sandbox`] allows.

use crate::{exec, image, process};
use farmem_pager::ending::say;
use farmem_run::counters::Near;
use farmem_sys::descriptors::{self, OPEN_MEM_FLAGS};
use farmem_sys::hold::PIPE_FLAGS;
use farmem_sys::raw::{Errno, checked};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Directories that a program of the run must be able to search: the library's first, then those of
/// its nodes' sockets.
static NEEDED: AtomicPtr<Vec<CString>> = AtomicPtr::new(std::ptr::null_mut());

/// Bytes of a program's name that are kept.
const NAME: usize = 55;

/// Keeps what every program of the run needs. At start.
pub fn begin<'p>(sockets: impl Iterator<Item = &'p Path>) {
    let library = Path::new(OsStr::from_bytes(exec::library()));
    let directories = std::iter::once(library).chain(sockets).filter_map(Path::parent);
    let needed = directories.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok());
    NEEDED.store(Box::leak(Box::new(needed.collect())), Ordering::Release);
}

/// The user of this process, as the kernel sees him where files are opened: a new pipe is his.
fn user() -> Option<u32> {
    let mut ends = [0i32; 2];
    // SAFETY: two live ints.
    unsafe { checked(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, PIPE_FLAGS as usize, 0, 0, 0, 0]) }.ok()?;
    let about = about(ends[0] as usize);
    ends.into_iter().for_each(descriptors::close);
    Some(about?.st_uid)
}

fn about(fd: usize) -> Option<libc::stat> {
    // SAFETY: a stat of zeros is one; a live one.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        checked(libc::SYS_fstat, [fd, &raw mut about as usize, 0, 0, 0, 0]).ok()?;
        Some(about)
    }
}

/// Whether a program of this user may not search a directory. Capabilities that this process may
/// still have (`setpriv` keeps them) do not count: an exec takes them away.
fn is_barred(directory: &CString, user: u32) -> bool {
    // SAFETY: a live, terminated path.
    let opened = unsafe {
        checked(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, directory.as_ptr() as usize, OPEN_MEM_FLAGS as usize, 0, 0, 0],
        )
    };
    match opened {
        Ok(fd) => {
            let about = about(fd);
            descriptors::close(fd as i32);
            about.is_some_and(|about| about.st_uid != user && about.st_mode & 0o011 == 0)
        }
        Err(e) => e == Errno(libc::EACCES),
    }
}

/// The reason that keeps a program near, and whether the library must be taken out of its
/// environment.
#[derive(Clone, Copy)]
pub struct Kept {
    /// Why.
    pub why: Near,
    /// Its loader would complain of the library, or end it.
    pub leaves_us: bool,
}

/// Whether this process has become a user whose programs cannot reach what the run needs.
fn as_another_user() -> Option<Kept> {
    let user = user().filter(|&user| user != 0)?;
    // SAFETY: null, or leaked by `begin`.
    let needed = unsafe { NEEDED.load(Ordering::Acquire).as_ref() }?;
    let leaves_us = needed.first().is_some_and(|library| is_barred(library, user));
    let barred = leaves_us || needed.iter().any(|directory| is_barred(directory, user));
    barred.then_some(Kept { why: Near::User, leaves_us })
}

/// The reason that keeps the program of this exec near, if any. The path is near memory, ended by
/// NUL.
pub fn stays_near(directory: usize, path: usize) -> Option<Kept> {
    match image::stays_near(directory, path) {
        Some(why) => Some(Kept { why, leaves_us: matches!(why, Near::Machine | Near::Loader) }),
        None => as_another_user(),
    }
}

/// Tells a program of another user once that it stays near: from the process that executes it, if
/// it does not load the library, or from itself.
pub fn say_another_user() {
    say("a program of another user than the run's may not reach its node: its memory stays local");
}

/// Notes a program that is about to run near.
pub fn note(path: &[u8], why: Near) -> Note {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    Note(process::run_file().and_then(|file| file.note_near(&name[..name.len().min(NAME)], why)))
}

/// A note that has been made.
pub struct Note(Option<&'static AtomicU32>);

impl Note {
    /// The program did not start.
    pub fn take_back(self) {
        if let Some(times) = self.0 {
            times.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Notes this program itself.
pub fn note_self(why: Near) {
    let (link, mut file) = (c"/proc/self/exe", [0u8; libc::PATH_MAX as usize]);
    // SAFETY: a live path, and room of that length. By no function of std's, which would call
    // libc's.
    let read = unsafe {
        let (link, to) = (link.as_ptr() as usize, file.as_mut_ptr() as usize);
        checked(libc::SYS_readlink, [link, to, file.len(), 0, 0, 0])
    };
    note(&file[..read.unwrap_or(0)], why);
}
