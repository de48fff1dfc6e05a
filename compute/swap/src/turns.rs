//! When the thread that reports freed slots looks for events again.
//!
//! ```text
//!  idle:             wait for an event of the kernel's ──► turn
//!  events are left:  turn ─► as long as it took ─► turn      a program gives back, or ends
//!  they come on:     turn ─► three times that ───► turn      a quarter of a CPU, for ever
//! ```
//!
//! Pure: times are arguments.

use std::time::{Duration, Instant};

/// Shortest rest while slots are written or freed. A slot that lives shorter than this may be kept.
const BUSY: Duration = Duration::from_millis(20);
/// Longest wait for an event. The kernel does not report writes: they are looked for this often.
pub(crate) const IDLE: Duration = Duration::from_millis(250);
/// How long after the last event or write the thread is busy.
const RESTS_AFTER: Duration = Duration::from_secs(1);
/// Longest rest, also when a node let the thread wait.
const LONGEST: Duration = Duration::from_millis(500);
/// One part in `SHARE` of the time is for turns, in the long run.
const SHARE: u32 = 4;
/// Time for turns beyond that share: enough for the events of a program that ends.
const AHEAD: Duration = Duration::from_secs(1);

/// The pause between two turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Sleep. Events gather.
    Sleep(Duration),
    /// Wait until the kernel has an event, at most this long.
    Wait(Duration),
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Its duration.
    pub(crate) took: Duration,
    /// Slots were written or freed.
    pub(crate) any: bool,
    /// Events are left.
    pub(crate) left: bool,
}

/// The turns until now.
#[derive(Debug)]
pub(crate) struct Turns {
    /// End of the last turn.
    last: Instant,
    /// End of the last turn that found something.
    found: Instant,
    /// Time for turns beyond the share.
    ahead: Duration,
    /// The thread waited for this turn.
    waited: bool,
}

impl Turns {
    pub(crate) fn new(now: Instant) -> Turns {
        Turns { last: now, found: now, ahead: Duration::ZERO, waited: false }
    }

    /// The rest after a turn that has just ended.
    pub(crate) fn after(&mut self, turn: Turn, now: Instant) -> Rest {
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        self.ahead = self.ahead.saturating_sub(passed / SHARE) + turn.took;
        if turn.any || turn.left {
            self.found = now;
        }
        let busy = now.saturating_duration_since(self.found) < RESTS_AFTER;
        // A tracing option of the kernel's (`block`) has each wait end at once.
        let in_vain = std::mem::take(&mut self.waited) && !busy && passed < IDLE / 2;
        let rest = if self.ahead > AHEAD {
            BUSY.max(turn.took * (SHARE - 1))
        } else if turn.left {
            turn.took
        } else if busy {
            BUSY.max(turn.took)
        } else if in_vain {
            IDLE
        } else {
            self.waited = true;
            return Rest::Wait(IDLE);
        };
        // A node that was waited for took no CPU time: what it took is soon forgotten.
        self.ahead = self.ahead.min(2 * AHEAD);
        Rest::Sleep(rest.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Turns of this kind for a while, and the time that they took.
    fn turns_for(turns: &mut Turns, now: &mut Instant, turn: Turn, long: Duration) -> Duration {
        let (until, mut worked) = (*now + long, Duration::ZERO);
        while *now < until {
            *now += turn.took;
            worked += turn.took;
            let (Rest::Sleep(rest) | Rest::Wait(rest)) = turns.after(turn, *now);
            *now += rest;
        }
        worked
    }

    #[test]
    fn an_idle_thread_waits_for_an_event() {
        let mut now = Instant::now();
        let mut turns = Turns::new(now);
        now += ms(10);
        assert_eq!(turns.after(Turn { any: true, ..Turn::default() }, now), Rest::Sleep(BUSY));
        now += ms(999);
        assert_eq!(turns.after(Turn::default(), now), Rest::Sleep(BUSY));
        now += ms(20);
        assert_eq!(turns.after(Turn::default(), now), Rest::Wait(IDLE));
        // The event came at once.
        now += ms(1);
        assert_eq!(turns.after(Turn { any: true, ..Turn::default() }, now), Rest::Sleep(BUSY));
    }

    #[test]
    fn a_turn_that_leaves_events_rests_as_long_as_it_took() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        let full = |took| Turn { took: ms(took), any: true, left: true };
        assert_eq!(turns.after(full(3), now + ms(3)), Rest::Sleep(ms(3)));
        assert_eq!(turns.after(full(90), now + ms(96)), Rest::Sleep(ms(90)));
        let last = Turn { left: false, ..full(5) };
        assert_eq!(turns.after(last, now + ms(191)), Rest::Sleep(BUSY));
    }

    #[test]
    fn a_machine_that_frees_without_end_costs_a_quarter_of_a_cpu() {
        for (took, left) in [(1, true), (8, true), (100, true), (100, false), (500, true)] {
            let mut now = Instant::now();
            let mut turns = Turns::new(now);
            let turn = Turn { took: ms(took), any: true, left };
            turns_for(&mut turns, &mut now, turn, Duration::from_secs(60));
            let worked = turns_for(&mut turns, &mut now, turn, Duration::from_secs(100));
            // A rest is never longer than `LONGEST`.
            let most = if took > 166 { 51 } else { 26 };
            assert!(worked <= Duration::from_secs(most), "turns of {took} ms: {worked:?} of 100 s");
            // It may be ahead again once it was idle for a while.
            turns_for(&mut turns, &mut now, Turn::default(), Duration::from_secs(9));
            assert_eq!(turns.after(Turn { took: ms(8), any: true, left: true }, now + ms(8)), Rest::Sleep(ms(8)));
        }
    }

    #[test]
    fn a_wait_that_always_ends_at_once_is_no_loop() {
        let mut now = Instant::now();
        let mut turns = Turns::new(now);
        now += ms(2000);
        let mut waits = 0;
        for _ in 0..1000 {
            match turns.after(Turn::default(), now) {
                Rest::Wait(_) => waits += 1,
                Rest::Sleep(rest) => now += rest,
            }
        }
        assert_eq!(waits, 500);
    }

    #[test]
    fn a_node_that_is_waited_for_delays_no_turn_for_long() {
        let mut now = Instant::now();
        let mut turns = Turns::new(now);
        now += ms(30_000);
        let waited = Turn { took: ms(30_000), any: true, left: false };
        assert_eq!(turns.after(waited, now), Rest::Sleep(LONGEST));
        turns_for(&mut turns, &mut now, Turn::default(), Duration::from_secs(5));
        now += ms(4);
        assert_eq!(turns.after(Turn { took: ms(4), any: true, left: true }, now), Rest::Sleep(ms(4)));
    }
}
