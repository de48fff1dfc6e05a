//! The pins of a thread's calls, those under way and those that were left. [`crate::guard::abandoned`]
//! says how it is used.
//!
//! ```text
//!  place     0 free ── CAS ─► odd: being written ── store ─► serial: noted ── CAS ─► 0, by whoever unpins
//! ```
//! The CAS to 0 succeeds once, so that nobody unpins twice: the call itself at its return, or a
//! later one that finds it gone.

use crate::process::pager;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Calls of a thread that are under way, one interrupted by the next, or were left.
const PLACES: usize = 4;
/// Ranges of a call that are noted.
const RANGES: usize = 4;

struct Place {
    /// 0: free. Odd: being written. Else no other note's, ever.
    serial: AtomicU64,
    /// The frames' memory.
    low: AtomicUsize,
    high: AtomicUsize,
    /// See [`farmem_pager::Pins::losses`].
    losses: AtomicU64,
    count: AtomicUsize,
    ranges: [(AtomicUsize, AtomicUsize); RANGES],
}

impl Place {
    const fn new() -> Place {
        Place {
            serial: AtomicU64::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            ranges: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES],
        }
    }

    fn take(&self, serial: u64) -> bool {
        self.serial.compare_exchange(serial, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The notes of a thread's calls.
pub struct Held {
    last: AtomicU64,
    places: [Place; PLACES],
}

/// A note.
#[derive(Clone, Copy)]
pub struct Note {
    place: &'static Place,
    serial: u64,
}

impl Note {
    /// The call has returned; whether its pins are its own to take back.
    pub fn take(&self) -> bool {
        self.place.take(self.serial)
    }
}

impl Held {
    /// Nothing.
    pub const fn new() -> Held {
        Held { last: AtomicU64::new(0), places: [const { Place::new() }; PLACES] }
    }

    /// In a forked child.
    pub fn forget(&self) {
        self.places.iter().for_each(|place| place.serial.store(0, Ordering::Relaxed));
    }

    /// The record's thread ends: releases the pins of calls whose frames lie on its own stack,
    /// `stack`, or its near alternate one. (Other calls may be of threads that share the record,
    /// and go on.)
    pub fn end(&self, is_alternate: impl Fn(usize) -> bool, stack: std::ops::Range<usize>) {
        let within = |from: usize, to: usize| {
            stack.start <= from && to <= stack.end || is_alternate(from) && is_alternate(to - 1)
        };
        self.places.iter().for_each(|place| release(place, within, &unpin_left));
    }

    /// Notes what a call has pinned whose frames lie from `low` to `high`; `unpin` is for what
    /// calls had that are gone. `None`: there is no place.
    pub fn add(
        &'static self,
        (low, high): (usize, usize),
        losses: u64,
        ranges: &[(usize, usize)],
        unpin: impl Fn(&[(usize, usize)], u64),
    ) -> Option<Note> {
        let overlapped = |from: usize, to: usize| from < high && low < to;
        self.places.iter().for_each(|place| release(place, overlapped, &unpin));
        let serial = self.last.fetch_add(2, Ordering::Relaxed) + 2;
        let free = |place: &&Place| {
            place.serial.load(Ordering::Relaxed) == 0
                && place.serial.compare_exchange(0, serial | 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let place = self.places.iter().find(free)?;
        place.low.store(low, Ordering::Relaxed);
        place.high.store(high, Ordering::Relaxed);
        place.losses.store(losses, Ordering::Relaxed);
        let count = ranges.len().min(RANGES);
        for (to, &(at, len)) in place.ranges.iter().zip(&ranges[..count]) {
            to.0.store(at, Ordering::Relaxed);
            to.1.store(len, Ordering::Relaxed);
        }
        place.count.store(count, Ordering::Relaxed);
        place.serial.store(serial, Ordering::Release);
        Some(Note { place, serial })
    }
}

/// Releases the pins of a noted call, if the place of its frames shows that it is gone.
#[inline]
fn release(place: &Place, is_gone: impl Fn(usize, usize) -> bool, unpin: &impl Fn(&[(usize, usize)], u64)) {
    let serial = place.serial.load(Ordering::Acquire);
    if serial == 0 || serial & 1 != 0 || !is_gone(place.low.load(Ordering::Relaxed), place.high.load(Ordering::Relaxed))
    {
        return;
    }
    let mut ranges = [(0, 0); RANGES];
    let count = place.count.load(Ordering::Relaxed).min(RANGES);
    for (to, from) in ranges.iter_mut().zip(&place.ranges) {
        *to = (from.0.load(Ordering::Relaxed), from.1.load(Ordering::Relaxed));
    }
    let losses = place.losses.load(Ordering::Relaxed);
    let _signals = SignalsBlocked::new();
    // If it succeeds, all that was read is of this note: another's would have another serial.
    if place.take(serial) {
        unpin(&ranges[..count], losses);
    }
}

/// Undoes the pins of a call that is gone.
pub fn unpin_left(ranges: &[(usize, usize)], losses: u64) {
    pager().pins.unpin_since(ranges.iter(), losses);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn only_what_lay_where_others_are_now_is_gone() {
        static HELD: Held = Held::new();
        let gone = RefCell::new(Vec::new());
        let add = |low, high, ranges: &[(usize, usize)]| {
            HELD.add((low, high), 7, ranges, |ranges, losses| gone.borrow_mut().push((ranges.to_vec(), losses)))
        };
        let waits = add(0x8000, 0x8800, &[(1, 2)]).unwrap();
        // Handlers': below, on another stack, right beside.
        for at in [0x7000, 0x1_0000, 0x7800, 0x8800] {
            assert!(add(at, at + 0x800, &[(3, 4)]).unwrap().take());
        }
        assert!(gone.borrow().is_empty());
        let left = add(0x7000, 0x7800, &[(5, 6), (7, 8), (9, 10), (11, 12), (13, 14)]).unwrap();
        let next = add(0x77ff, 0x7fff, &[(15, 16)]).unwrap();
        assert_eq!(*gone.borrow(), [(vec![(5, 6), (7, 8), (9, 10), (11, 12)], 7)]);
        assert_eq!((left.take(), waits.take(), next.take(), next.take()), (false, true, true, false));
        let many: Vec<_> = (0..PLACES + 1).map(|i| add(i * 0x1000, i * 0x1000 + 8, &[(1, 1)])).collect();
        assert!(many[PLACES].is_none() && many[..PLACES].iter().all(Option::is_some));
        HELD.forget();
        assert!(!many[0].unwrap().take(), "a child has no pins");
        assert_eq!(gone.borrow().len(), 1);
    }
}
