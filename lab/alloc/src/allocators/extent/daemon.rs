//! The node's part: what is in quarantine becomes free. It drains (waits until every verb admitted before has ended),
//! zeroes, and sets the word free, by the production code's `Reclaim`, several at a time
//! where several cores zero; published blocks that are all free it merges; beside the clients.

use std::collections::VecDeque;
use std::rc::Rc;

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::reshape::Reshape;
use farmem_protocol::extent::{Actor, Answer, Level, Operation, Place, Reclaim, State, Step, Verb, Word};

use super::Extent;
use super::drive::Brought;
use crate::allocators::BLOCK;
use crate::sim::clock::{Nanos, all};
use crate::sim::costs::us;
use crate::sim::node::Work;

/// Units that share one drain.
const TOGETHER: usize = 64;

impl Extent {
    pub(super) fn start_daemon(self: &Rc<Self>) {
        let all = self.clone();
        self.node.world.background(async move {
            loop {
                all.node.world.sleep(us(all.node.costs.core.drain_interval)).await;
                all.round().await;
            }
        });
    }

    async fn round(&self) {
        let (node, blocks) = (&self.node, self.geometry.count(Level::Block));
        let word = |place| Word(node.peek(self.at(Target::Word(place))));
        let scan =
            |words: f64| node.world.until(node.core((words * node.costs.core.drain_scan_ns) as Nanos, Work::Draining));
        // The daemon looks at them all the same, which takes its core's time; the simulation need not.
        if !self.changed.replace(false) {
            return scan(self.scanned.get()).await;
        }
        let shared: Vec<Place> = (0..blocks).map(Place::block).filter(|&block| word(block).is(State::Shared)).collect();
        self.scanned.set(f64::from(blocks) + shared.len() as f64 * f64::from(BLOCK));
        scan(self.scanned.get()).await;
        for &block in &shared {
            let mut chunks = self.geometry.chunks(block).map(Place::chunk);
            if chunks.all(|chunk| word(chunk).is(State::Free)) {
                self.run_all(vec![Reshape::merge(Actor::NODE, self.geometry, block)]).await;
            }
        }
        let waits = |place: &Place| word(*place).is(State::Quarantine);
        let chunks = shared.iter().flat_map(|&block| self.geometry.chunks(block).map(Place::chunk));
        let waiting: Vec<Place> = (0..blocks).map(Place::block).chain(chunks).filter(waits).collect();
        let reclaim = |&place: &Place| Reclaim::new(Actor::NODE, self.geometry, place);
        for some in waiting.chunks(TOGETHER) {
            self.run_all(some.iter().map(reclaim).collect()).await;
        }
    }

    /// Runs the node's own operations, with one drain for all that wait for one.
    async fn run_all<O: Operation>(&self, mut operations: Vec<O>) {
        let node = &self.node;
        while !operations.is_empty() {
            let (mut left, mut draining) = (Vec::new(), false);
            // Side by side, for several cores zero.
            let ran = all(operations.iter_mut().map(|operation| self.run_on(operation))).await;
            for (operation, ran) in operations.into_iter().zip(ran) {
                if let Some(drains) = ran {
                    draining |= drains;
                    left.push(operation);
                }
            }
            if draining {
                // The slowest verb that may be under way; the core need not look on.
                let slowest = node.costs.verb.cas.max(node.costs.verb.read) * (1.0 + node.costs.verb.jitter);
                node.world.sleep(us(slowest)).await;
                left.iter_mut().for_each(|operation| operation.complete(Answer::Ready));
            }
            operations = left;
        }
    }

    /// Until it ends (`None`) or wants a drain.
    async fn run_on<O: Operation>(&self, operation: &mut O) -> Option<bool> {
        let (node, mut posted) = (&self.node, VecDeque::new());
        loop {
            match operation.step() {
                Step::Verb(verb) => posted.push_back(verb),
                Step::Wait => {
                    let verb = posted.pop_front().expect("it waits for what it posted");
                    operation.complete(self.at_node(verb).answer());
                }
                Step::Drain => return Some(true),
                Step::Scrub(place, _) => {
                    let bytes = self.geometry.bytes(place);
                    node.world.until(node.zeroing(node.costs.scrub(bytes.end - bytes.start))).await;
                    operation.complete(Answer::Ready);
                }
                Step::Done(_) => return None,
            }
        }
    }

    /// The daemon's own verbs go through the same NIC, which is beside it: they take no time worth naming.
    fn at_node(&self, verb: Verb) -> Brought {
        self.node.local(|words| match verb {
            Verb::Read { at, words: count } => {
                let at = self.at(at);
                Brought::Words(words[at..at + count as usize].to_vec())
            }
            Verb::Cas { at, old, new } => {
                let found = words[self.at(at)];
                if found == old {
                    words[self.at(at)] = new;
                    self.follow(words, at, new);
                }
                Brought::Found(found)
            }
        })
    }
}
