//! How often a polling thread offers its CPU to others.
//!
//! ```text
//! look, look, offer ─┬─ returned at once: no thread wanted it ─► twice as many looks before the next,
//!                    │                                           up to MOST
//!                    ├─ took a while: another thread ran ──────► LEAST, from now on
//!                    └─ took a slice, as did the last: the CPU
//!                       is crowded ────────────────────────────► the next waits sleep at once, 16 of them,
//!                                                                or twice as many as last time, up to 1024
//! ```
//!
//! The thread that will answer may share this CPU, and must then get it. But an offer that nobody
//! takes is a wasted system call, and the answer is seen half a call later on average.
//!
//! Where other threads compute, an offer gives up a time slice: with ten computing threads on two
//! CPUs a page took 400 µs over TCP, nearly all of it such offers by the node's threads and the
//! program's. A sleeping thread, in contrast, is woken in the middle of the others' slices. A
//! single long offer says nothing: a virtual machine's host took the CPU just then, or the thread
//! that evicts did a batch. (Where the host took a quarter of the time, reacting to single ones
//! cost a reader a fifth of its speed.)
//!
//! It polls for [`SHORT_NS`] before it sleeps. It polls for [`LONG_NS`] while no other thread wants
//! the CPU and the last wait above `SHORT_NS` was below `LONG_NS`. With `SHORT_NS` alone, two ends
//! that both fell asleep too early stay asleep in turn: each wakes the other only when it has been
//! woken itself. Where a sleeping CPU wakes slowly (200 µs on a virtual machine, where a round trip
//! took 12), neither finds the other awake again.

/// Looks between two offers, at first, and wherever the CPU is wanted.
const LEAST: u32 = 2;
/// … where it is not: some 8 µs of looks at a socket, which is what somebody who begins to want it
/// waits at most.
const MOST: u32 = 32;
/// An offer that takes longer was taken, ns. Two switches and what they were made for; alone, a
/// call takes a fifth.
const TAKEN_NS: u64 = 2_000;

/// How long to look without sleeping, ns: an end that is awake answers within it, and falling
/// asleep and being woken costs more than half of it.
const SHORT_NS: u64 = 60_000;
/// … where nobody else wants the CPU, and that was too short of late.
const LONG_NS: u64 = 500_000;
/// Looks between two offers above which nobody can be said to want the CPU: two offers in turn that
/// were not taken.
const ALONE: u32 = 4 * LEAST;

/// An offer that takes longer, ns, gave a time slice to a thread that computes. A thread that
/// answers, or a kernel thread, is done earlier.
const SLICE_NS: u64 = 400_000;
/// Waits that sleep at once after the first such offer, and at most.
const CROWDED: (u32, u32) = (16, 1024);

/// The state of one spinning thread.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    between: u32,
    left: u32,
    patient: bool,
    /// The last offer took a slice.
    long: bool,
    /// Waits that are to sleep at once, and how many the last such offer meant.
    crowded: u32,
    crowds: u32,
}

impl Spin {
    /// Offers often.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Spin {
        Spin { between: LEAST, left: LEAST, patient: false, long: false, crowded: 0, crowds: 0 }
    }

    /// A look found nothing. Whether the CPU is to be offered before the next.
    #[inline]
    pub fn offers(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.between;
        true
    }

    /// An offer took so long, ns.
    #[inline]
    pub fn offered(&mut self, took_ns: u64) {
        self.between = if took_ns > TAKEN_NS { LEAST } else { (self.between * 2).min(MOST) };
        self.left = self.between;
        let again = std::mem::replace(&mut self.long, took_ns > SLICE_NS);
        if self.long && again {
            self.crowds = (2 * self.crowds).clamp(CROWDED.0, CROWDED.1);
            self.crowded = self.crowds;
        } else if took_ns <= TAKEN_NS {
            self.crowds = 0;
        }
    }

    /// Whether to look on, rather than to sleep, after so long a wait, ns.
    #[inline]
    pub fn looks_on(&self, waited_ns: u64) -> bool {
        self.crowded == 0 && (waited_ns < SHORT_NS || self.patient && self.between >= ALONE && waited_ns < LONG_NS)
    }

    /// A wait is over that took so long, ns.
    #[inline]
    pub fn came(&mut self, waited_ns: u64) {
        self.crowded = self.crowded.saturating_sub(1);
        if waited_ns >= SHORT_NS {
            self.patient = waited_ns < LONG_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until the CPU is offered.
    fn looks(spin: &mut Spin) -> u32 {
        (1..).find(|_| spin.offers()).unwrap_or(0)
    }

    #[test]
    fn a_cpu_that_nobody_wants_is_offered_seldom_until_somebody_does() {
        let mut spin = Spin::new();
        let mut offered = |took_ns| {
            let looks = looks(&mut spin);
            spin.offered(took_ns);
            looks
        };
        assert_eq!([300; 7].map(&mut offered), [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!([9_000, 9_000, 300, 300].map(&mut offered), [32, 2, 2, 4]);
    }

    #[test]
    fn waits_that_were_a_little_too_long_are_looked_through_while_nobody_wants_the_cpu() {
        let mut spin = Spin::new();
        let lasts = |spin: &Spin| [0, SHORT_NS - 1, SHORT_NS, LONG_NS - 1, LONG_NS].map(|ns| spin.looks_on(ns));
        const SHORT: [bool; 5] = [true, true, false, false, false];
        const LONG: [bool; 5] = [true, true, true, true, false];
        spin.came(200_000);
        assert_eq!(lasts(&spin), SHORT, "it is not known yet whether somebody wants the CPU");
        spin.offered(300);
        spin.offered(300);
        assert_eq!(lasts(&spin), LONG);
        spin.came(9_000);
        assert_eq!(lasts(&spin), LONG, "it may be for having looked so long");
        spin.offered(9_000);
        assert_eq!(lasts(&spin), SHORT, "somebody wants it");
        spin.offered(300);
        spin.offered(300);
        spin.came(LONG_NS);
        assert_eq!(lasts(&spin), SHORT, "looking would not have done");
    }

    #[test]
    fn where_others_compute_waits_sleep_at_once_and_the_cpu_is_tried_more_and_more_seldom() {
        let mut spin = Spin::new();
        let sleeping = |spin: &mut Spin| {
            spin.offered(3_000_000);
            (0..).take_while(|_| (!spin.looks_on(0), spin.came(9_000)).0).count()
        };
        assert_eq!([(); 9].map(|()| sleeping(&mut spin)), [0, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        spin.offered(9_000);
        assert!(spin.looks_on(0), "somebody answered");
        assert_eq!([(); 2].map(|()| sleeping(&mut spin)), [0, 1024]);
        spin.offered(300);
        assert_eq!([(); 2].map(|()| sleeping(&mut spin)), [0, 16], "there was nobody meanwhile");
    }
}
