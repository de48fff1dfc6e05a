//! A member whose bytes have another copy is given up early.
//!
//! A cut connection is restored within a grace, and a silent node is waited for: that is right for
//! the only copy of a page. Where there is another copy, waiting is the worse choice. So a holder
//! of such members ([`Spare`]) is asked, at the first of these:
//!
//! * A connection was cut, and one attempt to restore it has failed. (Of a node that was killed:
//!   within a millisecond.)
//! * An answer is due, and for [`SLOW_NS`] of waiting no byte has gone or come on the connection. Over
//!   RDMA: no verb of the member has completed.
//! * A request on the control connection has had no answer for [`SLOW_NS`].
//!
//! *A node that is busy.* Some answers take longer at a node that is well: a slab comes back from a
//! disk, or is locked for a card. Where that may be so, the node's process is asked on a connection
//! of its own ([`Membership::lives`](super::Membership)). While it answers, it is waited for
//! [`MOST_BORNE`] times as long. Not where nothing acknowledges what was sent: that is no busy node,
//! but a connection that is lost, of which the next retransmission may be seconds away.
//!
//! If the holder can do without the member it says so, and already does when it answers. The member
//! is lost then, for good: nothing of it is sent again, and its node is told to forget it. If not,
//! the member is waited for as long as one without a holder.
//!
//! A thread that the system kept from running has not waited: each look adds [`STEP_NS`] at most.

use crate::Lost;

/// How long nothing may move while an answer is due, where there is another copy.
pub const SLOW_NS: u64 = 200_000_000;
/// Between looks, and what one look adds to a standstill, at most.
pub(crate) const STEP_NS: u64 = 20_000_000;
/// How many standstills in a row are borne of a node whose process answers elsewhere.
pub(crate) const MOST_BORNE: u32 = 10;

/// Holds members, and knows which it can do without.
pub trait Spare: Sync {
    /// Whether the holder can do without a member from now on. If so, it does when this returns:
    /// nothing is read from or written to the member that another copy would miss.
    ///
    /// Called by any thread that waits for the member's node, with locks of the session held.
    fn can_spare(&self, number: usize, lost: &Lost) -> bool;
}

/// How long an answer has been due while nothing moved, as far as the waiting thread looked.
#[derive(Default)]
pub(crate) struct Standstill {
    lasted_ns: u64,
    looked_ns: u64,
    /// Bytes that had gone and come at the last look.
    moved: Option<u64>,
    /// Standstills in a row that were borne.
    borne: u32,
}

impl Standstill {
    /// A completion has come.
    pub fn end(&mut self) {
        *self = Standstill::default();
    }

    /// Counts time that was spent waiting; whether it is too long. `moved`: the bytes that have
    /// gone and come on the connection, asked each [`STEP_NS`].
    pub fn note(&mut self, waited_ns: u64, moved: impl FnOnce() -> u64) -> bool {
        self.lasted_ns += waited_ns.min(STEP_NS);
        if self.lasted_ns < self.looked_ns + STEP_NS {
            return false;
        }
        let moved = moved();
        if self.moved.replace(moved).is_some_and(|before| before != moved) {
            (self.lasted_ns, self.borne) = (0, 0);
        }
        self.looked_ns = self.lasted_ns;
        let long = self.lasted_ns >= SLOW_NS;
        if long {
            *self = Standstill { borne: self.borne, ..Standstill::default() };
        }
        long
    }

    /// Whether a standstill that is too long is borne: the node's process `lives`, and this is not the
    /// last of many.
    pub fn is_borne(&mut self, lives: impl FnOnce() -> bool) -> bool {
        self.borne += 1;
        self.borne <= MOST_BORNE && lives()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_without_movement_counts() {
        let mut still = Standstill::default();
        let steps = |still: &mut Standstill, moved: u64| (1..100).find(|_| still.note(STEP_NS, || moved));
        assert_eq!(steps(&mut still, 7), Some(10));
        assert_eq!(steps(&mut still, 7), Some(10), "asked again after as long");
        assert!((0..9).all(|_| !still.note(STEP_NS, || 7)));
        assert_eq!(steps(&mut still, 8), Some(11), "a byte has come");
        assert!((0..9).all(|_| !still.note(10 * STEP_NS, || 8)), "a thread that was stopped");
        still.end();
        assert_eq!(steps(&mut still, 8), Some(10));
    }

    #[test]
    fn a_standstill_of_a_node_that_lives_is_borne_for_a_while() {
        let mut still = Standstill::default();
        let steps = |still: &mut Standstill, moved: u64| (1..100).find(|_| still.note(STEP_NS, || moved));
        for _ in 0..MOST_BORNE {
            assert!(steps(&mut still, 7).is_some() && still.is_borne(|| true));
        }
        assert!(steps(&mut still, 7).is_some() && !still.is_borne(|| true));
        assert!(
            steps(&mut still, 8).is_some() && !still.is_borne(|| false),
            "a completion has come; then the node dies"
        );
        still.end();
        assert!(steps(&mut still, 8).is_some() && still.is_borne(|| true));
    }
}
