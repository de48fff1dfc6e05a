//! The parts of a thread's far stack that stay local, and until when.
//!
//! ```text
//! ┌── its stack ──────────────┬── first frames, thread-locals ──┬── control block ──┐
//! │ comes and goes            │ until its last call             │ until it is gone  │
//! └───────────────────────────┴─────────────────────────────────┴───────────────────┘
//! ```
//! The control block is what the kernel writes to at any time (rseq) and at the thread's end (its
//! number, robust locks). A thread cannot see its own end, so that this is left to others: the next
//! that makes a thread looks which numbers the kernel still knows.

use crate::confined;
use crate::process::pager;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::raw::{getpid, syscall};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A far range that was pinned, as the pager is to be told to unpin it.
#[derive(Clone, Copy)]
pub struct Range {
    /// Where it begins.
    pub at: usize,
    /// Its bytes; 0: none.
    pub len: usize,
    /// See [`farmem_pager::Pins::losses`].
    pub losses: u64,
}

impl Range {
    /// Nothing.
    pub const NONE: Range = Range { at: 0, len: 0, losses: 0 };

    /// Pins a range of a far stack for writing.
    pub fn pin(at: usize, len: usize) -> Range {
        let losses = pager().pins.losses();
        Range { at, len: pager().pins.pin(at, len, true), losses }
    }

    /// Undoes it.
    pub fn unpin(&self) {
        pager().pins.unpin_since([(self.at, self.len)].iter(), self.losses);
    }

    /// The parts below an address and from there on.
    fn split(self, at: usize) -> [Range; 2] {
        let below = at.saturating_sub(self.at).min(self.len);
        [Range { len: below, ..self }, Range { at: self.at + below, len: self.len - below, ..self }]
    }
}

/// A range that a thread notes.
struct Place {
    at: AtomicUsize,
    len: AtomicUsize,
    losses: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place { at: AtomicUsize::new(0), len: AtomicUsize::new(0), losses: AtomicU64::new(0) }
    }

    fn put(&self, range: Range) {
        self.at.store(range.at, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.losses.store(range.losses, Ordering::Relaxed);
    }

    fn take(&self) -> Range {
        let (at, losses) = (self.at.load(Ordering::Relaxed), self.losses.load(Ordering::Relaxed));
        Range { at, len: self.len.swap(0, Ordering::Relaxed), losses }
    }
}

/// Ranges of a thread: of its stack, and what two calls have named (robust locks, rseq).
const RANGES: usize = 3;

/// The ranges that a thread has pinned until its end.
pub struct Pinned([Place; RANGES]);

impl Pinned {
    /// Nothing.
    pub const fn new() -> Pinned {
        Pinned([const { Place::new() }; RANGES])
    }

    /// The thread begins, on a stack of which this is pinned.
    pub fn stack(&self, range: Range) {
        self.0[0].put(range);
    }

    /// The thread has named a range by call `nr`. It is noted if each thread makes that call as it
    /// begins. Else it stays pinned for good.
    pub fn named(&self, nr: i64, range: Range) {
        match nr {
            libc::SYS_set_robust_list => self.0[1].put(range),
            libc::SYS_rseq => self.0[2].put(range),
            _ => {}
        }
    }

    /// In a forked child, which has no pins.
    pub fn forget(&self) {
        self.0.iter().for_each(|place| place.put(Range::NONE));
    }

    /// The thread `number`, whose control block is at `block`, makes its last call next, from
    /// another stack.
    pub fn end(&self, number: usize, block: usize) {
        let ranges = [0, 1, 2].map(|place| self.0[place].take());
        if ranges.iter().all(|range| range.len == 0) {
            return;
        }
        let [below, from] = ranges[0].split(block & !(PAGE_BYTES - 1));
        below.unpin();
        let ranges = [from, ranges[1], ranges[2]];
        let place = || LEFT.iter().find(|left| left.turn(FREE, TAKEN));
        let place = place().or_else(|| {
            unpin_left();
            place()
        });
        // Where there is no place it stays local.
        if let Some(left) = place {
            left.ranges.iter().zip(ranges).for_each(|(place, range)| place.put(range));
            left.number.store(number, Ordering::Release);
        }
    }
}

/// The ranges that are still pinned of a thread that has made its last call.
struct Left {
    /// The thread's number, or [`FREE`] or [`TAKEN`].
    number: AtomicUsize,
    ranges: [Place; RANGES],
}

/// An empty place.
const FREE: usize = 0;
/// Being written or read. (The number of no thread but init.)
const TAKEN: usize = 1;

/// Threads that end between two that begin, at most.
static LEFT: [Left; 256] =
    [const { Left { number: AtomicUsize::new(FREE), ranges: [const { Place::new() }; RANGES] } }; _];

impl Left {
    fn turn(&self, from: usize, to: usize) -> bool {
        self.number.load(Ordering::Relaxed) == from
            && self.number.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Unpins what threads have left that are gone by now. Not on a far stack.
pub fn unpin_left() {
    // A filter of the program's may forbid the question.
    if confined::alone().is_some() {
        return;
    }
    for left in &LEFT {
        let number = left.number.load(Ordering::Relaxed);
        if number > TAKEN && is_gone(number) && left.turn(number, TAKEN) {
            left.ranges.iter().for_each(|place| place.take().unpin());
            left.number.store(FREE, Ordering::Release);
        }
    }
}

/// Whether this process has no thread of this number. (A later one may have it, and is waited for.)
fn is_gone(number: usize) -> bool {
    // SAFETY: no pointers; no signal is sent.
    unsafe { syscall(libc::SYS_tgkill, [getpid() as usize, number, 0, 0, 0, 0]) == -(libc::ESRCH as isize) }
}

/// In a forked child, where none of them was.
pub fn forget_left() {
    LEFT.iter().for_each(|left| left.number.store(FREE, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_where_the_block_begins() {
        let range = Range { at: 0x5000, len: 0x4000, losses: 7 };
        let parts = |at| range.split(at).map(|part| (part.at, part.len, part.losses));
        assert_eq!(parts(0x8000), [(0x5000, 0x3000, 7), (0x8000, 0x1000, 7)]);
        assert_eq!(parts(0x4000), [(0x5000, 0, 7), (0x5000, 0x4000, 7)]);
        assert_eq!(parts(0xa000), [(0x5000, 0x4000, 7), (0x9000, 0, 7)]);
        assert_eq!(Range::NONE.split(0x8000).map(|part| part.len), [0, 0]);
    }
}
