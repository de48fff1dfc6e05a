//! Calls that nodes carry out while their caller does something else.
//!
//! ```text
//!  post: [list ─►] call ─► [◄─ run]      ring sends what was posted; no wait
//!  is_over, land                          in the order in which they were posted
//! ```

// Calls, lists and replies are handed to verbs as raw memory; each place says how it is kept alive.
#![allow(unsafe_code)]

use super::{Call, FRAME, Near, Reply};
use crate::lane::Lane;
use crate::ways::{AbandonOnUnwind, Number, Verb};
use crate::{Addr, Result};
use std::collections::VecDeque;

/// Bytes that are written before a call runs, or read behind it, and where.
pub(super) type Placed = (Addr, Vec<u8>);

/// A call under way. Verbs point into its vectors, whose bytes stay where they are when it moves.
struct Flight<S> {
    /// Of the list, the call and the run, as far as there are such.
    numbers: [Option<Number>; 3],
    call: (usize, Call),
    /// The call and its reply.
    frames: Vec<[u8; FRAME]>,
    list: Vec<u8>,
    run: Vec<u8>,
    state: S,
}

/// A call that has ended.
pub(super) struct Landed<S> {
    /// The caller's note of it.
    pub state: S,
    /// `None`: the node did not carry it out.
    pub reply: Result<Option<Reply>>,
    /// The bytes that were read behind it.
    pub run: Vec<u8>,
}

/// Calls under way on a lane, which nobody else uses meanwhile.
pub(super) struct Flights<'l, S> {
    lane: &'l mut Lane,
    flying: VecDeque<Flight<S>>,
    /// Something was posted and not sent.
    unsent: bool,
}

impl<'l, S> Flights<'l, S> {
    pub fn new(lane: &'l mut Lane) -> Flights<'l, S> {
        Flights { lane, flying: VecDeque::new(), unsent: false }
    }

    /// The lane's functions, which wait.
    pub fn near(&mut self) -> Near<'_> {
        self.lane.near()
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        self.flying.len()
    }

    /// Has a node carry a call out, after [`Flights::ring`]. `list` is written before the call runs.
    /// `run` is read behind it.
    pub fn post(&mut self, call: (usize, Call), list: Option<Placed>, run: Option<Placed>, state: S) {
        let node = call.0;
        let frames = vec![call.1.frame(), [0; FRAME]];
        let (list_at, list) = list.unzip();
        let (run_at, run) = run.unzip();
        let (list, run) = (list.unwrap_or_default(), run.unwrap_or_default());
        // Before a verb begins: from then on the flight keeps its bytes until all of them have ended.
        self.flying.push_back(Flight { numbers: [None; 3], call, frames, list, run, state });
        self.unsent = true;
        let Some(flight) = self.flying.back_mut() else { return };
        let (ways, inner) = self.lane.parts();
        let reply = flight.frames[1].as_mut_ptr();
        let verbs = [
            list_at.map(|at| (at, Verb::Write { from: flight.list.as_ptr(), len: flight.list.len() })),
            Some((Addr::of(node, 1, 0), Verb::Send { said: &flight.frames[0], reply })),
            run_at.map(|at| (at, Verb::Read { into: flight.run.as_mut_ptr(), len: flight.run.len() })),
        ];
        for (number, verb) in flight.numbers.iter_mut().zip(verbs) {
            // SAFETY: the bytes of vectors that the flight keeps. It is let go of by `land` alone, when
            // its verbs have ended, and by `drop`, which awaits them or drops the queue pairs.
            *number = verb.map(|(at, verb)| unsafe { ways.begin_waited(inner, at, verb) });
        }
    }

    /// Sends what was posted, by one message to each node.
    pub fn ring(&mut self) {
        self.unsent = false;
        let (ways, inner) = self.lane.parts();
        ways.ring(inner);
    }

    /// Whether the first call has ended. Does not wait. False where there is none.
    pub fn is_over(&mut self) -> bool {
        let Some(flight) = self.flying.front() else { return false };
        let (ways, _) = self.lane.parts();
        if flight.numbers.iter().flatten().all(|&number| ways.is_over(number)) {
            return true;
        }
        ways.look(None);
        flight.numbers.iter().flatten().all(|&number| ways.is_over(number))
    }

    /// Waits for the first call. `None`: there is none.
    pub fn land(&mut self) -> Option<Landed<S>> {
        // An error may have come between: without this the wait would have no end.
        if self.unsent {
            self.ring();
        }
        let flight = self.flying.front_mut()?;
        let (ways, _) = self.lane.parts();
        let [written, sent, came] =
            std::array::from_fn(|n| flight.numbers[n].take().map_or(Ok(0), |number| ways.finish(number)));
        let Flight { call, frames, run, state, .. } = self.flying.pop_front()?;
        let reply = self.near().judged(&call, &frames[1], sent);
        let reply = reply.and_then(|reply| written.and(came).map(|_| reply));
        Some(Landed { state, reply, run })
    }
}

impl<S> Drop for Flights<'_, S> {
    fn drop(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let (ways, inner) = self.lane.parts();
        let ways = AbandonOnUnwind(ways);
        if std::thread::panicking() {
            return;
        }
        ways.0.ring(inner);
        for number in self.flying.iter_mut().flat_map(|flight| flight.numbers.iter_mut()) {
            if let Some(number) = number.take() {
                let _ = ways.0.finish(number);
            }
        }
        std::mem::forget(ways);
    }
}
