//! What operations took: verbs, round trips, attempts, time.

use std::cell::{Cell, RefCell};

use farmem_kit::histogram::Histogram;
use serde::Serialize;

use crate::allocators::Client;
use crate::sim::clock::Nanos;
use crate::sim::node::{Busy, Node, Verbs};

/// One kind of operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Operation {
    /// How many.
    pub count: u64,
    /// Of these, how many posted nothing by their client's own queue pair. Of 2 MiB: what the host had was enough, or it
    /// keeps what came back. (Smaller pieces' claims go by the agent's.)
    pub at_home: u64,
    /// Verbs posted for it: by clients, and by services on their behalf.
    pub verbs: Verbs,
    /// Verbs that services posted meanwhile, beside it: a heartbeat's.
    pub beside: Verbs,
    /// Round trips that clients waited for.
    pub trips: u64,
    /// Attempts to commit by CAS: in all, and the most for one operation.
    pub attempts: u64,
    /// The most for one operation.
    pub attempts_max: u64,
    /// Latency, ns: mean, median, 99 %, longest.
    pub mean: f64,
    /// Median.
    pub median: Nanos,
    /// 99 %.
    pub p99: Nanos,
    /// Longest.
    pub longest: Nanos,
    /// What the core was busy with meanwhile.
    pub busy: Busy,
    /// How long all of them took together, ns.
    pub time: Nanos,
}

impl Operation {
    /// Verbs for one.
    pub fn verbs_each(&self) -> f64 {
        self.each(self.verbs.posted())
    }

    /// A total, for one.
    pub fn each(&self, total: u64) -> f64 {
        total as f64 / self.count.max(1) as f64
    }

    /// Operations a second, all clients together.
    pub fn rate(&self) -> f64 {
        self.count as f64 / (self.time.max(1) as f64 / 1e9)
    }
}

/// What some operations took.
#[derive(Default)]
pub struct Tally {
    latency: RefCell<Histogram>,
    total: Cell<Nanos>,
    count: Cell<u64>,
    at_home: Cell<u64>,
    trips: Cell<u64>,
    attempts: Cell<u64>,
    attempts_max: Cell<u64>,
}

impl Tally {
    /// One more, by this client.
    pub fn count(&self, client: &Client, latency: Nanos) {
        let (_, trips) = client.link.take();
        let attempts = client.attempts.take();
        self.latency.borrow_mut().record(latency);
        self.total.set(self.total.get() + latency);
        self.count.set(self.count.get() + 1);
        self.at_home.set(self.at_home.get() + u64::from(trips == 0));
        self.trips.set(self.trips.get() + trips);
        self.attempts.set(self.attempts.get() + attempts);
        self.attempts_max.set(self.attempts_max.get().max(attempts));
    }

    /// Some operation took so many attempts, made by a service.
    pub fn took(&self, attempts: u64) {
        self.attempts_max.set(self.attempts_max.get().max(attempts));
    }

    /// All of them, and what the node saw since they began.
    pub fn operation(&self, node: &Node, before: Before) -> Operation {
        let latency = self.latency.borrow();
        Operation {
            count: self.count.get(),
            at_home: self.at_home.get(),
            verbs: node.verbs() - before.verbs,
            beside: node.beside() - before.beside,
            trips: self.trips.get(),
            attempts: self.attempts.get(),
            attempts_max: self.attempts_max.get(),
            mean: self.total.get() as f64 / self.count.get().max(1) as f64,
            median: latency.quantile(0.5),
            p99: latency.quantile(0.99),
            longest: latency.max(),
            busy: node.busy() - before.busy,
            time: node.world.now() - before.time,
        }
    }
}

/// What a node had seen before some operations began.
#[derive(Clone, Copy)]
pub struct Before {
    verbs: Verbs,
    beside: Verbs,
    busy: Busy,
    time: Nanos,
}

impl Before {
    /// Now.
    pub fn of(node: &Node) -> Before {
        Before { verbs: node.verbs(), beside: node.beside(), busy: node.busy(), time: node.world.now() }
    }
}

/// All rounds as one: counts are added; of quantiles the middle round's, which differ little.
pub fn sum(mut rounds: Vec<Operation>) -> Operation {
    let count: u64 = rounds.iter().map(|round| round.count).sum();
    let mean = rounds.iter().map(|round| round.mean * round.count as f64).sum::<f64>() / count.max(1) as f64;
    let longest = rounds.iter().map(|round| round.longest).max().unwrap_or(0);
    let attempts_max = rounds.iter().map(|round| round.attempts_max).max().unwrap_or(0);
    rounds.sort_by_key(|round| round.p99);
    let Some(middle) = rounds.get(rounds.len() / 2).cloned() else { return Operation::default() };
    let mut total = Operation {
        count,
        mean,
        longest,
        attempts_max,
        median: middle.median,
        p99: middle.p99,
        ..Operation::default()
    };
    for round in &rounds {
        total.at_home += round.at_home;
        total.verbs += round.verbs;
        total.beside += round.beside;
        total.trips += round.trips;
        total.attempts += round.attempts;
        total.time += round.time;
        total.busy.calls += round.busy.calls;
        total.busy.isolation += round.busy.isolation;
        total.busy.draining += round.busy.draining;
    }
    total
}
