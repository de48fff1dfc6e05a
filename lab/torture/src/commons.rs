//! What all threads share: counters that they add to without a lock, pages that
//! they write under one, and a mutex that is itself far.
//!
//! The counters are the sharpest test of eviction: two threads add to words of
//! one page while it leaves. A write that lands between the pager's look and
//! its unmap is a sum that is too small at the end.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::report::{self, Mismatch};
use crate::stamp::{LINE, LINES, PAGE, Stamp};
use crate::sys;
use farmem_protocol::random::Random;

const COUNTER_PAGES: usize = 512;
const SHARED_PAGES: usize = 64;
/// Pages of the signal handler's counters.
pub const SIGNAL_PAGES: usize = 512;

type Line = (Stamp, u64);

/// Locks and model of the shared pages: static, so never far.
static SHARED: [Mutex<[Line; LINES]>; SHARED_PAGES] = [const { Mutex::new([(Stamp::ZERO, 0); LINES]) }; SHARED_PAGES];
/// What the counters must add up to.
static ADDED: AtomicU64 = AtomicU64::new(0);
/// How often the far mutex was held.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Where the shared memory is.
#[derive(Clone, Copy)]
pub struct Commons {
    counters: usize,
    shared: usize,
    mutex: usize,
    signals: usize,
}

impl Commons {
    /// Maps it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Commons> {
        let pages = COUNTER_PAGES + SHARED_PAGES + 2 + SIGNAL_PAGES;
        let base = sys::map(0, pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let shared = base + COUNTER_PAGES * PAGE;
        let mutex = shared + SHARED_PAGES * PAGE;
        Ok(Commons { counters: base, shared, mutex, signals: mutex + 2 * PAGE })
    }

    /// Where the signal handler counts.
    pub fn signals(&self) -> usize {
        self.signals
    }

    /// Adds to some counters, with nobody's leave.
    pub fn add(&self, random: &mut Random) {
        for _ in 0..24 {
            let word = random.index(COUNTER_PAGES * PAGE / 8);
            let amount = random.bits() % 1000;
            sys::atomic(self.counters + word * 8).fetch_add(amount, Ordering::Relaxed);
            ADDED.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Verifies a shared page and writes some of its lines, under its lock.
    pub fn page(&self, random: &mut Random, thread: usize, operation: u8, step: u64) {
        let page = random.index(SHARED_PAGES);
        let at = self.shared + page * PAGE;
        let Ok(mut lines) = SHARED[page].lock() else { report::broken("a lock is poisoned") };
        for (line, (stamp, _)) in lines.iter().enumerate() {
            let found = sys::read_line(at + line * LINE);
            if found != stamp.words(line) {
                report::fail(&Mismatch {
                    place: &format!("shared page {page} at {at:#x}"),
                    line,
                    expected: *stamp,
                    found,
                    again: sys::read_line(at + line * LINE),
                    wrong_lines: (0..LINES).filter(|&l| sys::read_line(at + l * LINE) != lines[l].0.words(l)).collect(),
                    step,
                    operation,
                    history: lines.iter().take(1).map(|&(_, step)| (operation, step)).collect(),
                });
            }
        }
        for _ in 0..1 + random.index(6) {
            let line = random.index(LINES);
            let stamp = Stamp::new(thread, page, step + 1);
            sys::write_line(at + line * LINE, &stamp.words(line));
            lines[line] = (stamp, step);
        }
    }

    /// Holds the mutex that lies in far memory, while adding to a word beside it without atomics.
    pub fn mutex(&self) {
        let lock = sys::atomic(self.mutex);
        // Drepper's mutex, on the low half: 0 free, 1 held, 2 held and waited for.
        let mut state = 0;
        let taken = lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if let Err(seen) = taken {
            state = seen;
        }
        if taken.is_err() {
            if state != 2 {
                state = lock.swap(2, Ordering::Acquire);
            }
            while state != 0 {
                let _ = sys::futex(self.mutex, libc::FUTEX_WAIT, 2);
                state = lock.swap(2, Ordering::Acquire);
            }
        }
        let word = sys::atomic(self.mutex + PAGE);
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        HELD.fetch_add(1, Ordering::Relaxed);
        if lock.swap(0, Ordering::Release) == 2 {
            let _ = sys::futex(self.mutex, libc::FUTEX_WAKE, 1);
        }
    }

    /// When all threads have ended: every sum is right.
    pub fn close(&self) {
        let sum = |at: usize, words: usize| {
            (0..words).fold(0u64, |sum, w| sum.wrapping_add(sys::atomic(at + 8 * w).load(Ordering::Relaxed)))
        };
        let check = |what: &str, found: u64, expected: u64| {
            if found != expected {
                report::broken(&format!("{what}: {found}, expected {expected}: a write was lost or made twice"));
            }
        };
        check("unlocked counters", sum(self.counters, COUNTER_PAGES * PAGE / 8), ADDED.load(Ordering::Relaxed));
        check("word under the far mutex", sum(self.mutex + PAGE, 1), HELD.load(Ordering::Relaxed));
        check("signals", sum(self.signals, SIGNAL_PAGES * PAGE / 8), sys::SIGNALS.load(Ordering::Relaxed));
    }
}
