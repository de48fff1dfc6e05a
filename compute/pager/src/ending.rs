//! Ends that a load instruction cannot report: one line, one status, no return.

#![allow(unsafe_code)] // System calls that end the process.

use farmem_fabric::Lost;
use farmem_pool::Altered;
use farmem_run::{counters, exit};
use farmem_sys::members::SOME;
use farmem_sys::raw::{Errno, sleep_ns, syscall, write_all};
use farmem_sys::{descriptors, socket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

static STDERR: AtomicI32 = AtomicI32::new(2);
/// The process that is ending. Not a flag: a vfork child that ends shares this word with its
/// parent.
static ENDING: AtomicI32 = AtomicI32::new(0);
/// … and its status.
static STATUS: AtomicI32 = AtomicI32::new(0);
static LAST_WORDS: OnceLock<&'static counters::File> = OnceLock::new();

/// Keeps a copy of standard error (the program may close its own) and the place for last words.
pub fn prepare(file: Option<&'static counters::File>) {
    // SAFETY: no pointers.
    let copy = unsafe { syscall(libc::SYS_dup, [2, 0, 0, 0, 0, 0]) };
    if copy >= 0
        && let Ok(copy) = farmem_sys::descriptors::own_fd(copy as i32)
    {
        STDERR.store(copy, Ordering::Relaxed);
    }
    if let Some(file) = file {
        let _ = LAST_WORDS.set(file);
    }
}

/// Prints one line on standard error.
pub fn say(line: &str) {
    let _ = write_all(STDERR.load(Ordering::Relaxed), format!("farmem: {line}\n").as_bytes());
}

/// Ends the process with a line and a status from [`exit`]. When threads find out together, the
/// first one speaks.
pub fn die(status: i32, line: &str) -> ! {
    let own = farmem_sys::raw::getpid() as i32;
    if ENDING.swap(own, Ordering::Relaxed) == own {
        // The first one is about to end us all. Not for ever: nothing that ends may hang.
        sleep_ns(1_000_000_000);
    } else {
        say(line);
    }
    if let Some(file) = LAST_WORDS.get() {
        counters::put_text(&file.last_words, line);
    }
    STATUS.store(status, Ordering::Relaxed);
    exit_group(status)
}

/// Ends all threads of the process.
pub(crate) fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: no pointers; does not return.
        unsafe { syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Ends this process because another one that shares its memory has ended inside the runtime.
/// Things that it held stay as they are for ever, and a thread here waits for it. The status is
/// that of the other process, if the runtime ended it. [`SOME`]: it is not known which.
pub fn member_gone(process: u32) {
    let died = process != SOME && ENDING.load(Ordering::Relaxed) == process as i32;
    let status = if died { STATUS.load(Ordering::Relaxed) } else { exit::BROKEN };
    let which = if process == SOME { "a process".to_owned() } else { format!("process {process}") };
    die(
        status,
        &format!(
            "{which}, which shared this program's memory, has ended while far memory came or went for it: \
             what it held cannot be used any more"
        ),
    )
}

/// Whether the run's supervisor has been killed, as far as can be seen. Then no process is left
/// that would end the run.
#[cold]
pub(crate) fn is_orphaned() -> bool {
    let Some(file) = LAST_WORDS.get() else { return false };
    match descriptors::pidfd_of(file.supervisor.load(Ordering::Relaxed)) {
        Ok(pidfd) => {
            let ended = socket::wait(pidfd, true, false, 0) != 0;
            descriptors::close(pidfd);
            ended
        }
        Err(e) => e == Errno(libc::ESRCH),
    }
}

/// The result of asking for far memory, or the end of the process if a page is lost with its node.
/// This is the one place where that is decided.
#[inline]
pub fn or_end<T>(had: Result<T, Lost>) -> T {
    had.unwrap_or_else(|lost| die(exit::NODE_LOST, &lost.to_string()))
}

/// A page that opened, or the end of the process: there is no copy of it that does.
#[inline]
pub(crate) fn or_altered(opened: Result<(), Altered>) {
    opened.unwrap_or_else(|altered| die(exit::ALTERED, &altered.to_string()))
}

/// The process ends now by its own will. Anything that other threads find out from here on is of no
/// interest.
pub(crate) fn leave() {
    ENDING.store(farmem_sys::raw::getpid() as i32, Ordering::Relaxed);
}

/// The kernel would not give the runtime memory for itself.
pub fn out_of_local_memory(e: Errno) -> ! {
    die(
        exit::BROKEN,
        &format!("no local memory for the runtime itself ({e}); lower --local or free memory on this machine"),
    )
}

/// The runtime found its own state broken. Stopping is the only safe thing.
pub fn broken(what: &str) -> ! {
    die(exit::BROKEN, &format!("internal error, stopped before any byte of the program was harmed: {what}"))
}
