//! One thread's pages, and the model of what they must hold.
//!
//! The estate is one range of address space; each page of it is in one state,
//! and each line of a page that is mapped has a known stamp. Only the owning
//! thread touches it, so what is read must be exactly what the model says.
//!
//! The first [`SCRATCH`] pages are outside the model: a stack for coroutines
//! and a place for what system calls need beside their buffers.

use std::io;

use crate::report::{self, Mismatch};
use crate::stamp::{LINE, LINES, PAGE, Stamp};
use crate::sys;

/// Pages at the front that hold no stamps.
pub const SCRATCH: usize = 48;
/// Operations remembered of each page.
pub const HISTORY: usize = 8;

/// What may be done to a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    /// Not mapped, or mapped by someone else since.
    Gone = 0,
    /// PROT_NONE; keeps what it holds.
    Closed = 1,
    /// Read-only.
    Read = 2,
    /// Readable and writable.
    Write = 3,
}

impl State {
    /// As mprotect has it.
    pub fn prot(self) -> i32 {
        match self {
            State::Gone | State::Closed => libc::PROT_NONE,
            State::Read => libc::PROT_READ,
            State::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// See the file's story.
pub struct Estate {
    /// The owner.
    pub thread: usize,
    /// Pages, scratch included.
    pub pages: usize,
    base: usize,
    states: &'static mut [u8],
    stamps: &'static mut [u64],
    history: &'static mut [u64],
    generation: u64,
    /// The operation at work, for the histories: its index and the step.
    now: (u8, u64),
}

impl Estate {
    /// Maps `pages` pages for a thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(thread: usize, pages: usize) -> io::Result<Estate> {
        let base = sys::map(0, pages * PAGE, State::Write.prot(), 0)?;
        let states = sys::near_slice::<u8>(pages)?;
        states.fill(State::Write as u8);
        Ok(Estate {
            thread,
            pages,
            base,
            states,
            stamps: sys::near_slice(pages * LINES)?,
            history: sys::near_slice(pages * HISTORY)?,
            generation: 0,
            now: (0, 0),
        })
    }

    /// Says which operation is at work.
    pub fn begin(&mut self, operation: u8, step: u64) {
        self.now = (operation, step);
    }

    /// The operation at work.
    pub fn operation(&self) -> u8 {
        self.now.0
    }

    /// The page's address.
    pub fn at(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// The page's state.
    pub fn state(&self, page: usize) -> State {
        match self.states[page] {
            0 => State::Gone,
            1 => State::Closed,
            2 => State::Read,
            _ => State::Write,
        }
    }

    /// Notes a new state for a run of pages.
    pub fn set_state(&mut self, first: usize, count: usize, state: State) {
        self.states[first..first + count].fill(state as u8);
        self.note(first, count);
    }

    /// Notes that a run of pages now reads as zeros.
    pub fn zeroed(&mut self, first: usize, count: usize) {
        self.stamps[first * LINES..(first + count) * LINES].fill(0);
        self.note(first, count);
    }

    /// Notes that lines were copied from one page to another.
    pub fn copied(&mut self, from: usize, to: usize, first_line: usize, lines: usize) {
        let source = from * LINES + first_line;
        self.stamps.copy_within(source..source + lines, to * LINES + first_line);
        self.note(to, 1);
    }

    /// Adds the operation at work to the histories of a run of pages.
    pub fn note(&mut self, first: usize, count: usize) {
        let entry = self.now.1 << 8 | u64::from(self.now.0);
        for page in first..first + count {
            let ring = &mut self.history[page * HISTORY..(page + 1) * HISTORY];
            if ring[0] != entry {
                ring.rotate_right(1);
                ring[0] = entry;
            }
        }
    }

    /// The last operations on a page, the latest first: (operation, step).
    pub fn history(&self, page: usize) -> impl Iterator<Item = (u8, u64)> {
        let ring = &self.history[page * HISTORY..(page + 1) * HISTORY];
        ring.iter().filter(|&&e| e != 0).map(|&e| (e as u8, e >> 8))
    }

    /// The stamp that a line must have.
    pub fn stamp(&self, page: usize, line: usize) -> Stamp {
        Stamp(self.stamps[page * LINES + line])
    }

    /// Writes a new generation of a line.
    pub fn write(&mut self, page: usize, line: usize) {
        self.generation += 1;
        let stamp = Stamp::new(self.thread, page, self.generation);
        sys::write_line(self.at(page) + line * LINE, &stamp.words(line));
        self.stamps[page * LINES + line] = stamp.0;
        self.note(page, 1);
    }

    /// Compares a page with the model; ends the process with a report if they differ.
    pub fn verify(&self, page: usize) {
        for line in 0..LINES {
            let found = sys::read_line(self.at(page) + line * LINE);
            if found != self.stamp(page, line).words(line) {
                report::fail(&Mismatch {
                    place: &format!("page {page} of thread {} at {:#x}", self.thread, self.at(page)),
                    line,
                    expected: self.stamp(page, line),
                    found,
                    again: sys::read_line(self.at(page) + line * LINE),
                    wrong_lines: (0..LINES)
                        .filter(|&l| sys::read_line(self.at(page) + l * LINE) != self.stamp(page, l).words(l))
                        .collect(),
                    step: self.now.1,
                    operation: self.now.0,
                    history: self.history(page).collect(),
                });
            }
        }
    }

    /// After MADV_FREE: a page that reads as zeros was taken, and any line may have been
    /// written since. Lines that the model knows as written after stay; the others must
    /// all be as before or all be zero.
    pub fn settle_freed(&mut self, page: usize, written_line: usize) {
        let probe = (0..LINES).find(|&l| l != written_line && self.stamp(page, l) != Stamp::ZERO);
        if let Some(line) = probe
            && sys::read_line(self.at(page) + line * LINE) == [0; 8]
        {
            for l in (0..LINES).filter(|&l| l != written_line) {
                self.stamps[page * LINES + l] = 0;
            }
        }
        self.note(page, 1);
        self.verify(page);
    }

    /// The longest run from `first` whose pages satisfy `good`, at most `most`.
    pub fn run(&self, first: usize, most: usize, good: impl Fn(State) -> bool) -> usize {
        (first..self.pages.min(first + most)).take_while(|&page| good(self.state(page))).count()
    }
}
