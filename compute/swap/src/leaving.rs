//! When swapping ends for nodes that go. Pure.
//!
//! A node that goes down waits for a while, and each page that comes back meanwhile is saved. One that
//! is to be emptied stays: without room for all pages nothing is begun, which would put the machine
//! out of memory again and again.

use crate::device::Room;
use farmem_protocol::nbd::GOING_DOWN;
use std::time::{Duration, Instant};

/// How long after a failed swapoff the next is tried. Memory may be free then.
const GOES_AGAIN: Duration = Duration::from_secs(10);

/// What was tried for nodes that go, and told.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    failed: Option<Instant>,
    /// The user was told that there is no room.
    told: bool,
}

/// What is to be done for nodes that go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Swapping goes on.
    Stays,
    /// It goes on, and the user is to be told: so many bytes are swapped out, and so many are free.
    Lacks(u64, u64),
    /// It ends.
    Leaves,
}

impl Leaving {
    /// The decision for nodes with these flags, of which no other has a copy. `room`: bytes that are
    /// swapped to them, and the room for these here.
    pub(crate) fn look(&mut self, flags: &[u64], now: Instant, room: impl FnOnce() -> (u64, Room)) -> Then {
        let again = |at: Instant| now.saturating_duration_since(at) >= GOES_AGAIN;
        if flags.is_empty() || !self.failed.is_none_or(again) {
            return Then::Stays;
        }
        if flags.iter().any(|flags| flags & GOING_DOWN != 0) {
            return Then::Leaves;
        }
        let (used, room) = room();
        if room.holds(used) {
            self.told = false;
            return Then::Leaves;
        }
        match std::mem::replace(&mut self.told, true) {
            true => Then::Stays,
            false => Then::Lacks(used, room.free),
        }
    }

    /// Swapping could not be ended.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::nbd::TO_BE_EMPTIED;

    const MIB: u64 = 1 << 20;

    fn room(free: u64) -> Room {
        Room { free: free * MIB, total: 320 * MIB }
    }

    #[test]
    fn a_node_that_is_to_be_emptied_waits_for_room() {
        let (mut leaving, begun) = (Leaving::default(), Instant::now());
        let mut look =
            |flags: &[u64], s, free| leaving.look(flags, begun + Duration::from_secs(s), || (80 * MIB, room(free)));
        // 80 MiB, an eighth of that, and a thirty-second of all memory: 100 MiB.
        assert_eq!(look(&[], 0, 0), Then::Stays);
        assert_eq!(look(&[TO_BE_EMPTIED], 0, 99), Then::Lacks(80 * MIB, 99 * MIB));
        // It is told once, however long it takes.
        for s in 1..100 {
            assert_eq!(look(&[TO_BE_EMPTIED], s, 99 - s % 50), Then::Stays);
        }
        assert_eq!(look(&[TO_BE_EMPTIED], 100, 100), Then::Leaves);
        assert_eq!(look(&[TO_BE_EMPTIED], 101, 12), Then::Lacks(80 * MIB, 12 * MIB));
    }

    #[test]
    fn a_node_that_goes_down_waits_for_none() {
        let (mut leaving, begun) = (Leaving::default(), Instant::now());
        for flags in [&[GOING_DOWN][..], &[TO_BE_EMPTIED, GOING_DOWN], &[GOING_DOWN | TO_BE_EMPTIED]] {
            assert_eq!(leaving.look(flags, begun, || unreachable!("room is not asked for")), Then::Leaves);
        }
    }

    #[test]
    fn what_failed_is_tried_again_after_a_while() {
        let (mut leaving, begun) = (Leaving::default(), Instant::now());
        let at = |s| begun + Duration::from_secs(s);
        leaving.failed(begun);
        assert_eq!(leaving.look(&[GOING_DOWN], at(9), || unreachable!()), Then::Stays);
        assert_eq!(leaving.look(&[GOING_DOWN], at(10), || unreachable!()), Then::Leaves);
        // Memory may have become less meanwhile.
        leaving.failed(at(10));
        assert_eq!(leaving.look(&[TO_BE_EMPTIED], at(19), || unreachable!()), Then::Stays);
        assert_eq!(leaving.look(&[TO_BE_EMPTIED], at(20), || (MIB, room(1))), Then::Lacks(MIB, MIB));
    }
}
