//! How much of its input a connection carries out before others are served: so many bytes, and so
//! much time.
//!
//! A worker has many connections, and those of other tenants wait for a turn's end. Bytes alone do
//! not bound a turn: requests of a few bytes can take a millisecond (functions near memory, ranges
//! of freed slots, memory that is taken from the system).

use super::{Engine, Phase};

/// CPU time after which a turn takes up no further request, ns.
pub const TURN_NS: u64 = 100_000;

/// The clocks by which turns end, ns.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Time. It costs little to read.
    pub time: fn() -> u64,
    /// CPU time of the calling thread, which passes no faster.
    pub cpu: fn() -> u64,
}

/// When a turn is over.
pub(super) struct End {
    clocks: Clocks,
    /// CPU time when it began.
    begun_ns: u64,
    /// It is not over before this time.
    look_ns: u64,
}

impl End {
    /// Whether it is over. Time in which the thread did not run does not count.
    pub fn has_come(&mut self) -> bool {
        let now = (self.clocks.time)();
        if now < self.look_ns {
            return false;
        }
        let spent = (self.clocks.cpu)().saturating_sub(self.begun_ns);
        self.look_ns = now + TURN_NS.saturating_sub(spent);
        spent >= TURN_NS
    }
}

impl Engine {
    /// From now on the connection takes and answers about this many bytes at a time, and then waits
    /// to be served again.
    pub fn set_turn(&mut self, bytes: usize) {
        self.turn = bytes;
    }

    /// From now on a turn also ends after [`TURN_NS`] by these clocks, but not before one request was
    /// carried out.
    pub fn set_clocks(&mut self, clocks: Clocks) {
        self.clocks = Some(clocks);
    }

    /// Whether the last turn ended for its time, or in the midst of a request. There may be input left
    /// that no event tells of.
    pub fn was_long(&self) -> bool {
        self.was_long
    }

    /// When the turn that begins now is over. `None`: bytes alone bound it. Verbs are not timed while
    /// no other tenant is there: a look at the clock costs as much as a small verb.
    pub(super) fn turn_end(&self) -> Option<End> {
        let timed = self.turn != usize::MAX || !matches!(self.phase, Phase::Queue(_));
        let clocks = self.clocks.filter(|_| timed)?;
        Some(End { clocks, begun_ns: (clocks.cpu)(), look_ns: (clocks.time)() + TURN_NS })
    }
}
