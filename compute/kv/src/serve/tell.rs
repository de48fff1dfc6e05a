//! The counters that a front end tells once a second, for whoever watches the machine.

use crate::command::Front;
use crate::shard::Shard;
use std::rc::Rc;

/// Counters of a front end since its start, and what it holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections now.
    pub clients: u64,
    /// Commands.
    pub commands: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Verbs.
    pub verbs: u64,
    /// Batches of verbs that an operation waited for.
    pub trips: u64,
    /// Bytes of pieces that it holds at the nodes.
    pub bytes: u64,
}

/// Called with the counters once a second.
pub type Tell = Rc<dyn Fn(&Counters)>;

pub(super) fn counters(front: &Front) -> Counters {
    let figures = &front.store.figures;
    let sum = |of: fn(&Shard) -> u64| front.store.shards.iter().map(|shard| of(shard)).sum();
    Counters {
        clients: front.clients.borrow().len() as u64,
        commands: figures.commands.get(),
        hits: figures.hits.get(),
        misses: figures.misses.get(),
        verbs: sum(|shard| shard.reach.counters.verbs.get()),
        trips: sum(|shard| shard.reach.counters.trips.get()),
        bytes: sum(|shard| shard.space.bytes()),
    }
}
