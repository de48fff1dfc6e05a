//! The page-trace recorder: which pages the program uses, in order, into a file.
//!
//! A pager sees faults, not uses. So a recorded run keeps [`LOCAL_PAGES`] pages local whatever
//! `--local` says, first in, first out, and fetches nothing ahead. Every move to a page that was
//! not among the last few dozen faults is then a fault, and recorded. A use that is missing from
//! the trace would be a hit under any limit worth replaying, because its page is among those few
//! dozen (`docs/design/cache.md`, *Traces*).
//!
//! Each record is written by a system call of its own, a tenth of the fault it
//! belongs to. Nothing is buffered, so the file is whole up to the last fault
//! however the process ends, and an exit needs no hook.
//!
//! `farmem size` asks for a sample instead ([`farmem_cache::sample`]). All pages stay local as far
//! as `--local` allows, but for a few, and the faults of those are recorded.
//!
//! Every process of a run, and every program it execs, has a file of its own:
//! encoders cannot share one. The first is FILE, the others FILE.PID, or
//! FILE.PID.2 and so on where that exists; none is ever overwritten. A process
//! that uses no more pages than are local anyway leaves none: shells and
//! launchers would leave dozens.

#![allow(unsafe_code)] // System calls on the trace.

use crate::base::Base;
use crate::ending::say;
use crate::thread::Thread;
use farmem_cache::sample::{LEAST, MOST, Rate};
use farmem_cache::trace::{Encoder, HEADER, Kind, RECORD_BYTES, Record, SAMPLED_HEADER};
use farmem_protocol::addr::PageId;
use farmem_sys::clock;
use farmem_sys::descriptors;
use farmem_sys::raw::{Errno, checked, write_all};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages that are local at most while a trace is recorded. Fewer would record more and replay no
/// better; a recorded fault evicts an eighth, so the last 40 pages at least are local.
pub(crate) const LOCAL_PAGES: u64 = 64;
/// Bytes of records held back at most before there is a file: of pages that are still local.
const HELD: usize = 4096;
/// Faults on sampled pages after which it is asked how much of the time they take.
const LOOKED_AT: u64 = 8192;
/// Names tried for one process.
const NAMES: u32 = 1000;

/// Where a process's records go.
pub(crate) struct Recorder {
    /// The file that `--trace` named.
    file: String,
    /// A fork of a process that has, or may yet have, that file.
    forked: AtomicBool,
    /// Of the sample, if it is one that is recorded.
    rate: Option<&'static Rate>,
    out: Lock<Sink>,
}

struct Sink {
    state: State,
    encoder: Encoder,
    /// Sampled pages in use.
    live: u64,
    /// Faults on sampled pages since the last look at their time; the time that they took; and when
    /// that look was. Ticks.
    faults: u64,
    spent: u64,
    looked: u64,
}

enum State {
    /// No page has come back yet: no file, but these records.
    Held(Vec<u8>),
    Open(i32),
    Failed,
}

impl Sink {
    fn new(rate: Option<&Rate>) -> Sink {
        let state = State::Held(HEADER.to_vec());
        let mut out = Sink { state, encoder: Encoder::new(), live: 0, faults: 0, spent: 0, looked: clock::ticks() };
        if let Some(rate) = rate {
            let mut bytes = [0; RECORD_BYTES];
            let n = out.encoder.encode(at_rate(rate), &mut bytes);
            out.state = State::Held([&SAMPLED_HEADER, &bytes[..n]].concat());
        }
        out
    }

    /// Counts a sampled page in or out.
    fn note(&mut self, kind: Kind) {
        match kind {
            Kind::Fresh => self.live += 1,
            Kind::Gone => self.live = self.live.saturating_sub(1),
            Kind::Fault | Kind::Touch => {}
        }
    }

    /// Whether sampled pages' faults, of which one more took so long, take more than half of the
    /// time.
    fn is_slow(&mut self, ticks: u64) -> bool {
        self.spent += ticks;
        self.faults += 1;
        if self.faults < LOOKED_AT {
            return false;
        }
        let now = clock::ticks();
        let slow = self.live > LEAST && self.spent > (now - self.looked) / 2;
        (self.faults, self.spent, self.looked) = (0, 0, now);
        slow
    }
}

/// The record that says from which rate on what follows is sampled.
fn at_rate(rate: &Rate) -> Record {
    Record { page: PageId(rate.shift().into()), kind: Kind::Touch, thread: 0 }
}

impl Recorder {
    /// Starts the trace of this process: of all pages, or of a sample.
    pub fn new(file: &str, rate: Option<&'static Rate>) -> Recorder {
        Recorder { file: file.to_owned(), forked: AtomicBool::new(false), rate, out: Lock::new(Sink::new(rate)) }
    }

    /// Whether this page's uses are recorded, and those of most others are not.
    fn samples(&self, page: PageId) -> bool {
        self.rate.is_some_and(|rate| rate.takes(page))
    }

    /// In a forked child: a file of its own. Its memory is its parent's, so its trace begins with
    /// pages that were never fresh.
    pub fn start_in_child(&self) {
        let before = std::mem::replace(&mut *self.out.lock(), Sink::new(self.rate));
        if let State::Open(fd) = before.state {
            descriptors::close(fd);
        }
        self.forked.store(true, Ordering::Relaxed);
    }

    fn write(&self, kind: Kind, thread: u32, pages: &mut dyn Iterator<Item = PageId>) {
        let out = &mut *self.out.lock();
        for page in pages {
            if self.rate.is_some() && !self.samples(page) {
                continue;
            }
            self.put(out, Record { page, kind, thread });
            out.note(kind);
            if out.live > MOST {
                self.halve(out);
            }
        }
    }

    /// A fault on a sampled page took so long: halves the sample where such faults take most of the
    /// time.
    pub fn took(&self, ticks: u64) {
        let out = &mut *self.out.lock();
        if out.is_slow(ticks) {
            self.halve(out);
        }
    }

    /// Halves the sample.
    fn halve(&self, out: &mut Sink) {
        if let Some(rate) = self.rate {
            rate.halve();
            out.live /= 2;
            self.put(out, at_rate(rate));
        }
    }

    fn put(&self, out: &mut Sink, record: Record) {
        let Sink { state, encoder, .. } = out;
        let mut bytes = [0; RECORD_BYTES];
        let n = encoder.encode(record, &mut bytes);
        let written = match state {
            State::Held(held) => {
                held.extend_from_slice(&bytes[..n]);
                if record.kind != Kind::Fault && held.len() < HELD {
                    return;
                }
                let held = std::mem::take(held);
                create(&self.file, !self.forked.load(Ordering::Relaxed)).and_then(|fd| {
                    *state = State::Open(fd);
                    write_all(fd, &held)
                })
            }
            // A full disk may take a part of a record; readers stop before it.
            State::Open(fd) => write_all(*fd, &bytes[..n]),
            State::Failed => return,
        };
        if let Err(e) = written {
            say(&format!("the trace of process {} ends here: {}: {e}", farmem_sys::raw::getpid(), self.file));
            if let State::Open(fd) = state {
                descriptors::close(*fd);
            }
            *state = State::Failed;
        }
    }
}

/// How such a file is opened.
pub const RECORD_FLAGS: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND | libc::O_CLOEXEC;

/// Creates a file that was not there before. `first`: under the name itself, if it is free.
fn create(file: &str, first: bool) -> Result<i32, Errno> {
    let pid = farmem_sys::raw::getpid();
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

impl Base {
    /// Records a fault, if that is wanted.
    #[inline(always)]
    pub(crate) fn record(&self, thread: &Thread, page: PageId, kind: Kind) {
        if let Some(recorder) = &self.recorder {
            recorder.write(kind, thread.number, &mut [page].into_iter());
        }
    }

    /// Whether a page is one of a sample that is recorded.
    #[inline(always)]
    pub(crate) fn samples(&self, page: PageId) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.samples(page))
    }

    /// Whether all pages are recorded. Then the program is to fault on each that it uses, in spite
    /// of hints.
    pub(crate) fn records_all(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.rate.is_none())
    }

    /// A page of zeros left, and will be fresh once more.
    #[inline(always)]
    pub(crate) fn record_zero(&self, page: PageId) {
        if let Some(recorder) = self.recorder.as_ref().filter(|recorder| recorder.samples(page)) {
            let out = &mut *recorder.out.lock();
            out.live = out.live.saturating_sub(1);
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
