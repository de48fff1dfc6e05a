//! How long the kernel waits for answers of one device, so that slow answers end. Pure.
//!
//! A request that has no answer within its timeout ends its stream, and is sent again on the next
//! one. If every answer takes longer than the timeout, no request would ever end. A longer timeout
//! helps new requests only: the kernel keeps a request's first timeout when it sends it again. So
//! the timeout of new requests is doubled, and meanwhile the kernel gives up no stream:
//!
//! ```text
//!  given up FUTILE times in a row ──► waits: the kernel is told 0, it gives up no stream
//!       ▲                               │ requests of before have ended, or the node is silent
//!       └────── the doubled timeout ◄───┘
//! ```
//!
//! While it waits, the watcher's questions tell whether the node is there. A node that answers them,
//! and no request for the grace, is lost. It gets no other stream, and requests fail when the kernel's own
//! grace is over. If another device has every page, this one is *spared*: it is lost sooner. A long
//! timeout from the beginning would do without this, but a node that is stopped would be noticed as
//! late.

use std::time::{Duration, Instant};

/// Streams in a row that were given up for their timeout, before requests are waited for.
const FUTILE: u32 = 2;
/// The timeout grows to at most this many times the one that the user named.
pub(crate) const MOST_TIMES: u64 = 8;
/// A device is waited for, in silence, this many times the user's timeout at least, if it is spared.
const SPARED_TIMES: u64 = 2;
/// Requests that the kernel has under way to a device, at most. The node answers in their order.
const UNDER_WAY: u64 = 128;

/// The least time between two looks at the kernel's counts.
const LOOKS_EVERY: Duration = Duration::from_millis(500);
/// Silence between two looks counts as this much, at most: a machine that was paused in between
/// has not waited.
const COUNTS_MOST: Duration = Duration::from_secs(2);

/// The kernel's counts of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Load {
    /// Requests that have ended.
    pub(crate) ended: u64,
    /// Requests that were sent and have not ended.
    pub(crate) sent: u64,
}

/// The requests of before are waited for.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Requests that had ended when it began.
    from: u64,
    /// Requests that had ended at the last look, when that was, and for how long it is that number.
    ended: u64,
    looked: Instant,
    quiet: Duration,
    /// The last look found no request under way.
    idle: bool,
}

/// The timeout of one device.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// The user's timeout, in seconds.
    named_s: u64,
    /// The timeout of new requests, in seconds.
    timeout_s: u64,
    /// The user's grace.
    grace: Duration,
    /// Another device has every page.
    spared: bool,
    given: Option<Instant>,
    futile: u32,
    waiting: Option<Waiting>,
    /// The user does not know of the last raise.
    news: bool,
    lost: bool,
}

impl Patience {
    /// With the user's timeout and grace.
    pub(crate) fn new(timeout: Duration, grace: Duration, now: Instant) -> Patience {
        let named_s = timeout.as_secs().max(1);
        Patience {
            named_s,
            timeout_s: named_s,
            grace,
            spared: false,
            given: Some(now),
            futile: 0,
            waiting: None,
            news: false,
            lost: false,
        }
    }

    /// The kernel's timeout, in seconds. 0: it gives up no stream.
    pub(crate) fn timeout_s(&self) -> u64 {
        if self.waiting.is_some() { 0 } else { self.timeout_s }
    }

    /// The timeout of requests that begin when no request is waited for, in seconds.
    pub(crate) fn raised_s(&self) -> u64 {
        self.timeout_s
    }

    /// Whether the timeout is as long as it may be.
    pub(crate) fn is_most(&self) -> bool {
        self.timeout_s == MOST_TIMES * self.named_s
    }

    /// Whether the timeout was raised since this was asked last.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Whether the node answers no request. It is to get no other stream.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Notes whether another device has every page.
    pub(crate) fn spare(&mut self, spared: bool) {
        self.spared = spared;
    }

    /// The time without an answer after which a node is lost.
    fn quiet(&self) -> Duration {
        let times = if self.spared { SPARED_TIMES } else { MOST_TIMES };
        self.grace.max(Duration::from_secs(times * self.named_s))
    }

    /// The same, in seconds.
    pub(crate) fn quiet_s(&self) -> u64 {
        self.quiet().as_secs()
    }

    /// Whether requests are waited for.
    pub(crate) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// The kernel's stream has died.
    pub(crate) fn died(&mut self, now: Instant) {
        let Some(given) = self.given.take() else { return };
        // One that was cut earlier has another cause. One that stood for long had its use.
        let stood = now.saturating_duration_since(given).as_secs();
        let is_futile = !self.waits() && (self.named_s..=MOST_TIMES * self.timeout_s).contains(&stood);
        self.futile = if is_futile { self.futile + 1 } else { 0 };
    }

    /// The kernel is about to get a stream, from a node that has just answered.
    pub(crate) fn give(&mut self, now: Instant, load: Load) {
        self.given = Some(now);
        if self.futile >= FUTILE && self.waiting.is_none() {
            self.futile = 0;
            self.timeout_s = (2 * self.timeout_s).min(MOST_TIMES * self.named_s);
            let quiet = Duration::ZERO;
            self.waiting = Some(Waiting { from: load.ended, ended: load.ended, looked: now, quiet, idle: false });
            self.news = true;
        }
    }

    /// Sees how far requests are. Ends waiting when they have ended, or will not. True: the node is
    /// lost from now on.
    pub(crate) fn look(&mut self, now: Instant, load: Load) -> bool {
        let enough = self.quiet();
        let Some(waiting) = &mut self.waiting else { return false };
        let since = now.saturating_duration_since(waiting.looked);
        if since < LOOKS_EVERY {
            return false;
        }
        waiting.looked = now;
        waiting.quiet += since.min(COUNTS_MOST);
        if load.ended != waiting.ended {
            (waiting.ended, waiting.quiet) = (load.ended, Duration::ZERO);
        }
        // Twice idle: requests that are about to be sent again are not counted as sent.
        let was_idle = std::mem::replace(&mut waiting.idle, load.sent == 0);
        let is_idle = was_idle && waiting.idle;
        let over = load.ended - waiting.from.min(load.ended) >= 2 * UNDER_WAY || is_idle;
        let lost = !over && waiting.quiet >= enough;
        if over || lost {
            self.waiting = None;
        }
        self.lost |= lost;
        lost
    }

    /// The node does not answer the watcher: the kernel may give the stream up again.
    pub(crate) fn stop(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, s: u64) -> Instant {
        begun + Duration::from_secs(s)
    }

    /// A device with a request that the node answers after `answers_s`, sent again until then.
    /// Returns when it ended, or was given up, in seconds, and the kernel's timeout then.
    fn request(patience: &mut Patience, begun: Instant, answers_s: u64) -> (Result<u64, u64>, u64) {
        let (first_s, mut given_s) = (patience.timeout_s(), 0);
        for now in 1.. {
            let stood = now - given_s;
            if stood >= answers_s {
                let load = Load { ended: 1, sent: 0 };
                for looked in 0..2 {
                    patience.look(at(begun, now + looked), load);
                }
                return (Ok(now), patience.timeout_s());
            }
            // The kernel looks at a request each time its first timeout has passed.
            if stood.is_multiple_of(first_s) && patience.timeout_s() != 0 {
                patience.died(at(begun, now));
                if patience.is_lost() {
                    return (Err(now), patience.timeout_s());
                }
                patience.give(at(begun, now), Load::default());
                given_s = now;
            }
            patience.look(at(begun, now), Load { ended: 0, sent: 1 });
        }
        unreachable!()
    }

    #[test]
    fn a_request_that_takes_longer_than_its_timeout_ends() {
        let begun = Instant::now();
        let new = || Patience::new(Duration::from_millis(2500), Duration::from_secs(30), begun);
        assert_eq!(request(&mut new(), begun, 1), (Ok(1), 2));
        // Sent at 0, 2 and 4 s.
        assert_eq!(request(&mut new(), begun, 3), (Ok(4 + 3), 4));
        assert_eq!(request(&mut new(), begun, 29), (Ok(4 + 29), 4));
        // It is given up after the grace, when the kernel looks at it next.
        assert_eq!(request(&mut new(), begun, 90), (Err(4 + 30 + 2), 4));
    }

    #[test]
    fn a_machine_that_was_paused_has_not_waited() {
        let begun = Instant::now();
        let mut patience = Patience::new(Duration::from_secs(2), Duration::from_secs(30), begun);
        for s in [3, 6] {
            patience.died(at(begun, s));
            patience.give(at(begun, s), Load::default());
        }
        let sent = Load { ended: 0, sent: 1 };
        assert!(!patience.look(at(begun, 3600), sent) && !patience.look(at(begun, 7200), sent) && patience.waits());
        let silent = (7201..8000).find(|&s| patience.look(at(begun, s), sent));
        assert_eq!((silent, patience.is_lost(), patience.waits()), (Some(7200 + 26), true, false));
    }

    #[test]
    fn the_timeout_grows_to_its_limit_and_new_requests_pass_by_it() {
        let begun = Instant::now();
        let mut patience = Patience::new(Duration::from_secs(2), Duration::from_secs(5), begun);
        let mut raised = Vec::new();
        for turn in 0..5u64 {
            let now = at(begun, turn * 1000);
            for s in [0, 3, 6] {
                patience.died(at(now, s));
                patience.give(at(now, s), Load::default());
            }
            assert!(patience.waits() && patience.timeout_s() == 0);
            assert!(patience.take_news() && !patience.take_news());
            patience.look(at(now, 7), Load { ended: 2 * UNDER_WAY - 1, sent: 9 });
            // Too early.
            patience.look(at(now, 7), Load { ended: 2 * UNDER_WAY, sent: 9 });
            assert!(patience.waits());
            patience.look(at(now, 8), Load { ended: 2 * UNDER_WAY, sent: 9 });
            assert!(!patience.waits() && !patience.is_lost());
            raised.push(patience.timeout_s());
        }
        assert_eq!(raised, [4, 8, 16, 16, 16]);
        assert!(patience.is_most());
    }

    #[test]
    fn a_device_that_is_not_needed_is_lost_sooner() {
        let begun = Instant::now();
        let lost_after = |grace_s, spared| {
            let mut patience = Patience::new(Duration::from_secs(10), Duration::from_secs(grace_s), begun);
            for s in [10, 20] {
                patience.died(at(begun, s));
                patience.give(at(begun, s), Load::default());
            }
            assert!(patience.waits());
            patience.spare(spared);
            let lost = (21..).find(|&s| patience.look(at(begun, s), Load { ended: 0, sent: 1 }));
            (lost, patience.quiet_s())
        };
        assert_eq!(lost_after(5, true), (Some(20 + 20), 20));
        assert_eq!(lost_after(30, true), (Some(20 + 30), 30));
        assert_eq!(lost_after(5, false), (Some(20 + 80), 80));
    }

    #[test]
    fn other_deaths_change_nothing_and_a_silent_node_is_given_up() {
        let begun = Instant::now();
        let mut patience = Patience::new(Duration::from_secs(2), Duration::from_secs(5), begun);
        // Cut at once, or after a long time; told twice.
        for s in [1, 2, 3, 103, 203, 206] {
            patience.died(at(begun, s));
            patience.died(at(begun, s));
            patience.give(at(begun, s), Load::default());
            assert!(!patience.waits() && !patience.take_news(), "{s}");
        }
        patience.died(at(begun, 209));
        patience.give(at(begun, 209), Load::default());
        // No request is counted right after a stream was given.
        patience.look(at(begun, 210), Load::default());
        patience.look(at(begun, 211), Load { ended: 0, sent: 1 });
        assert!(patience.waits());
        patience.stop();
        assert_eq!((patience.timeout_s(), patience.raised_s(), patience.is_lost()), (4, 4, false));
    }
}
