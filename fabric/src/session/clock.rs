//! The time by which a session waits.

use super::Session;
use crate::link::Reach;

/// A session's part for time: the system's clock, or the simulator's where the node is.
#[derive(Clone, Copy)]
pub struct Clock<'a> {
    reach: &'a Reach,
}

impl Session {
    /// The clock that the session waits by.
    pub fn clock(&self) -> Clock<'_> {
        Clock { reach: &self.member.reach }
    }
}

impl Clock<'_> {
    /// The time, in nanoseconds: the simulator's where the node is.
    pub fn now_ns(self) -> u64 {
        self.reach.now_ns()
    }

    /// Whether the node is a simulator's, whose time is not the system's.
    pub fn is_simulated(self) -> bool {
        matches!(self.reach, Reach::Inside(_))
    }

    /// Sleeps, or lets the simulator's time pass.
    pub fn sleep_ns(self, ns: u64) {
        self.reach.sleep_ns(ns);
    }
}
