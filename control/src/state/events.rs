//! What has happened lately, for the operator's view.
//!
//! Runs say how their copies are. One that says much keeps no other's events out: if there are too
//! many, the oldest of the source that has most gives way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most events that are kept.
const MOST: usize = 100;

/// The source of an event: a tenant, of whose runs it is. `None`: the rack itself.
type Source = Option<String>;

/// An event: when it was, and what.
struct Event {
    at: Duration,
    what: String,
    of: Source,
}

/// Events, the newest first.
#[derive(Default)]
pub struct Events(VecDeque<Event>);

impl Events {
    /// Notes one.
    pub fn note(&mut self, at: Duration, what: String, of: Source) {
        if self.0.len() >= MOST {
            let mut counts = BTreeMap::new();
            self.0.iter().for_each(|event| *counts.entry(&event.of).or_insert(0) += 1);
            // Of two that have as many, the rack itself comes first, and the last one gives way.
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(of, _)| of.clone());
            let oldest = self.0.iter().rposition(|event| Some(&event.of) == most.as_ref());
            oldest.into_iter().for_each(|at| _ = self.0.remove(at));
        }
        self.0.push_front(Event { at, what, of });
    }

    /// When each was, and what.
    pub fn all(&self) -> impl Iterator<Item = (Duration, &str)> {
        self.0.iter().map(|event| (event.at, event.what.as_str()))
    }
}
