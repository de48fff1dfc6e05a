//! The page-trace recorder: which pages the program uses, in order, into a file.
//!
//! A pager sees faults, not uses. So a run that is recorded keeps [`LOCAL_PAGES`]
//! pages local, whatever `--local` says, first in, first out, and fetches nothing
//! ahead: every move to a page that was not among the last few dozen faults, and
//! is recorded. What is not recorded is a use that any memory worth replaying
//! would have kept anyway (`docs/design/cache.md`, *Traces*).
//!
//! Each record is written by a system call of its own, a tenth of the fault it
//! belongs to. Nothing is buffered, so the file is whole up to the last fault
//! however the process ends, and an exit needs no hook.
//!
//! Every process of a run, and every program it execs, has a file of its own:
//! encoders cannot share one. The first is FILE, the others FILE.PID, or
//! FILE.PID.2 and so on where that exists; none is ever overwritten. A process
//! that uses no more pages than are local anyway leaves none: shells and
//! launchers would leave dozens.

use crate::Pager;
use crate::ending::say;
use crate::thread::Thread;
use farmem_cache::trace::{Encoder, HEADER, Kind, RECORD_BYTES, Record};
use farmem_protocol::addr::PageId;
use farmem_sys::descriptors;
use farmem_sys::raw::{Errno, checked};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages that are local at most while a trace is recorded. Fewer would record more and replay no
/// better; a recorded fault evicts an eighth, so the last 40 pages at least are local.
pub(crate) const LOCAL_PAGES: u64 = 64;
/// Bytes of records held back at most before there is a file: of pages that are still local.
const HELD: usize = 4096;
/// Names tried for one process.
const NAMES: u32 = 1000;

/// Where a process's records go.
pub(crate) struct Recorder {
    /// What `--trace` named.
    file: String,
    /// A fork of a process that has, or may yet have, that file.
    forked: AtomicBool,
    out: Lock<Out>,
}

struct Out {
    state: State,
    encoder: Encoder,
}

enum State {
    /// No page has come back yet: no file, but these records.
    Held(Vec<u8>),
    Open(i32),
    Failed,
}

impl Out {
    fn new() -> Out {
        Out { state: State::Held(HEADER.to_vec()), encoder: Encoder::new() }
    }
}

impl Recorder {
    /// Starts the trace of this process.
    pub fn new(file: &str) -> Recorder {
        Recorder { file: file.to_owned(), forked: AtomicBool::new(false), out: Lock::new(Out::new()) }
    }

    /// In a forked child: a file of its own. Its memory is its parent's, so its trace begins with
    /// pages that were never fresh.
    pub fn start_in_child(&self) {
        let before = std::mem::replace(&mut *self.out.lock(), Out::new());
        if let State::Open(fd) = before.state {
            descriptors::close(fd);
        }
        self.forked.store(true, Ordering::Relaxed);
    }

    fn write(&self, kind: Kind, thread: u32, pages: &mut dyn Iterator<Item = PageId>) {
        let Out { state, encoder } = &mut *self.out.lock();
        for page in pages {
            let mut bytes = [0; RECORD_BYTES];
            let n = encoder.encode(Record { page, kind, thread }, &mut bytes);
            let written = match state {
                State::Held(held) => {
                    held.extend_from_slice(&bytes[..n]);
                    if kind != Kind::Fault && held.len() < HELD {
                        continue;
                    }
                    let held = std::mem::take(held);
                    create(&self.file, !self.forked.load(Ordering::Relaxed)).and_then(|fd| {
                        *state = State::Open(fd);
                        append(fd, &held)
                    })
                }
                State::Open(fd) => append(*fd, &bytes[..n]),
                State::Failed => return,
            };
            if let Err(e) = written {
                say(&format!("the trace of process {} ends here: {}: {e}", std::process::id(), self.file));
                if let State::Open(fd) = state {
                    descriptors::close(*fd);
                }
                *state = State::Failed;
            }
        }
    }
}

/// How such a file is opened.
pub const RECORD_FLAGS: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND | libc::O_CLOEXEC;

/// Creates a file that was not there before. `first`: under the name itself, if it is free.
fn create(file: &str, first: bool) -> Result<i32, Errno> {
    let pid = std::process::id();
    for name in (if first { 0 } else { 1 })..NAMES {
        let path = match name {
            0 => format!("{file}\0"),
            1 => format!("{file}.{pid}\0"),
            n => format!("{file}.{pid}.{n}\0"),
        };
        // SAFETY: a live, terminated path.
        let opened = unsafe {
            checked(
                libc::SYS_openat,
                [libc::AT_FDCWD as usize, path.as_ptr() as usize, RECORD_FLAGS as usize, 0o644, 0, 0],
            )
        };
        match opened {
            Ok(fd) => return descriptors::own_fd(fd as i32),
            Err(Errno(libc::EEXIST)) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno(libc::EEXIST))
}

/// Writes all of it. A full disk may take a part of a record; readers stop before it.
fn append(fd: i32, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: a live slice in near memory.
        match unsafe { checked(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Pager {
    /// Records a fault, if that is wanted.
    #[inline(always)]
    pub(crate) fn record(&self, thread: &Thread, page: PageId, kind: Kind) {
        if let Some(recorder) = &self.recorder {
            recorder.write(kind, thread.number, &mut [page].into_iter());
        }
    }

    /// Records that pages are no longer mapped, if that is wanted.
    #[inline]
    pub(crate) fn record_gone(&self, pages: &[PageId]) {
        if let Some(recorder) = &self.recorder {
            recorder.write(Kind::Gone, 0, &mut pages.iter().copied());
        }
    }
}
