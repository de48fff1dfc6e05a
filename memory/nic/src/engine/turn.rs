//! How much of its input a connection carries out before others are served: so many bytes, and so
//! much time.
//!
//! A worker has many connections, and those of other tenants wait for a turn's end. Bytes alone do
//! not bound a turn: requests of a few bytes can take a millisecond (functions near memory, ranges
//! of freed slots, memory that is taken from the system).

use super::{Engine, Phase};

/// Time after which a turn takes up no further request, ns.
pub const TURN_NS: u64 = 100_000;

impl Engine {
    /// From now on the connection takes and answers about this many bytes at a time, and then waits
    /// to be served again.
    pub fn set_turn(&mut self, bytes: usize) {
        self.turn = bytes;
    }

    /// From now on a turn also ends after [`TURN_NS`] by this clock, but not before one request was
    /// carried out.
    pub fn set_clock(&mut self, clock: fn() -> u64) {
        self.clock = Some(clock);
    }

    /// Whether the last turn ended for its time. There may be input left that no event tells of.
    pub fn was_long(&self) -> bool {
        self.was_long
    }

    /// The clock, and when this turn is over by it. `None`: bytes alone bound it. Verbs are not timed
    /// while no other tenant is there: a look at the clock costs as much as a small verb.
    pub(super) fn turn_ends(&self) -> Option<(fn() -> u64, u64)> {
        let timed = self.turn != usize::MAX || !matches!(self.phase, Phase::Queue(_));
        self.clock.filter(|_| timed).map(|clock| (clock, clock() + TURN_NS))
    }
}
