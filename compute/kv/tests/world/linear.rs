//! Whether a history of one key is linearizable.
//!
//! Goes through the events in time and keeps every *configuration* that explains them so far: which
//! of the open operations have taken effect, and the value they left (Wing and Gong's search, breadth
//! first, as Lowe's). An operation that was never answered stays open for ever.

use std::collections::HashSet;
use std::hash::Hash;

/// What a key may hold and what operations make of it.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Operation;

    /// The states in which it can have answered as it did, or been carried out unanswered; `None`: it cannot.
    fn apply(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;
}

/// An operation between two moments.
#[derive(Clone, Debug)]
pub struct Call<O> {
    pub operation: O,
    pub begun: u64,
    /// `None`: never answered.
    pub ended: Option<u64>,
}

/// Whether the calls can be put into an order that explains them.
pub fn check<M: Model>(start: M::State, calls: &[Call<M::Operation>]) -> bool {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        events.push((call.begun, false, n));
        events.extend(call.ended.map(|ended| (ended, true, n)));
    }
    events.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    let mut configurations: HashSet<(Vec<usize>, M::State)> = HashSet::from([(Vec::new(), start)]);
    for (_, is_end, n) in events {
        if !is_end {
            open.push(n);
            continue;
        }
        let mut kept = HashSet::new();
        let mut seen = configurations.clone();
        let mut queue: Vec<_> = configurations.into_iter().collect();
        while let Some((done, state)) = queue.pop() {
            if done.contains(&n) {
                let done = done.into_iter().filter(|&other| other != n).collect();
                kept.insert((done, state));
                continue;
            }
            for &other in open.iter().filter(|other| !done.contains(other)) {
                if let Some(next) = M::apply(&state, &calls[other].operation) {
                    let mut done = done.clone();
                    done.push(other);
                    done.sort_unstable();
                    if seen.insert((done.clone(), next.clone())) {
                        queue.push((done, next));
                    }
                }
            }
        }
        if kept.is_empty() {
            return false;
        }
        open.retain(|&other| other != n);
        configurations = kept;
    }
    true
}

/// A register: absent, or a number.
pub struct Register;

/// What is done to a register, and what was answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Get(Option<u64>),
    Set(u64),
    /// Whether it was set.
    SetIfAbsent(u64, bool),
    /// Whether it was there; `None`: unknown.
    Delete(Option<bool>),
    /// What it is now.
    Add(u64, Option<u64>),
}

impl Model for Register {
    type State = Option<u64>;
    type Operation = Step;

    fn apply(state: &Option<u64>, operation: &Step) -> Option<Option<u64>> {
        match *operation {
            Step::Get(seen) => (seen == *state).then_some(*state),
            Step::Set(value) => Some(Some(value)),
            Step::SetIfAbsent(value, true) => state.is_none().then_some(Some(value)),
            Step::SetIfAbsent(_, false) => state.is_some().then_some(*state),
            Step::Delete(was) => was.is_none_or(|was| was == state.is_some()).then_some(None),
            Step::Add(by, now) => {
                let sum = state.unwrap_or(0) + by;
                now.is_none_or(|now| now == sum).then_some(Some(sum))
            }
        }
    }
}

#[test]
fn a_history_is_judged() {
    let call = |operation, begun, ended| Call { operation, begun, ended };
    let sound =
        [call(Step::Set(1), 0, Some(9)), call(Step::Get(Some(1)), 1, Some(2)), call(Step::Get(Some(1)), 3, Some(4))];
    assert!(check::<Register>(None, &sound));
    let back =
        [call(Step::Set(1), 0, Some(9)), call(Step::Get(Some(1)), 1, Some(2)), call(Step::Get(None), 3, Some(4))];
    assert!(!check::<Register>(None, &back));
    let lost = [call(Step::Set(1), 0, None), call(Step::Get(None), 1, Some(2)), call(Step::Get(Some(1)), 3, Some(4))];
    assert!(check::<Register>(None, &lost));
    let both = [call(Step::SetIfAbsent(1, true), 0, Some(5)), call(Step::SetIfAbsent(2, true), 0, Some(5))];
    assert!(!check::<Register>(None, &both));
}
