//! The node's part: what is in quarantine becomes free. It drains (waits until every verb admitted before has ended),
//! zeroes, and sets the word free, by the production code's `Reclaim`; beside the clients, on the node's core.

use std::rc::Rc;

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::{Actor, Level, Operation, Place, Reclaim, State, Step, Verb, Word};

use super::Extent;
use super::drive::Brought;
use crate::sim::clock::Nanos;
use crate::sim::costs::us;
use crate::sim::node::Work;

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
        let scan = (f64::from(blocks) * node.costs.core.drain_scan_ns) as Nanos;
        node.world.until(node.core(scan, Work::Draining)).await;
        let at = |block| self.at(Target::Word(Place::block(block)));
        let waiting: Vec<u32> = (0..blocks).filter(|&block| Word(node.peek(at(block))).is(State::Quarantine)).collect();
        for block in waiting {
            self.reclaim(Place::block(block)).await;
        }
    }

    async fn reclaim(&self, place: Place) {
        let node = &self.node;
        let mut reclaim = Reclaim::new(Actor::NODE, self.geometry, place);
        let mut posted = std::collections::VecDeque::new();
        loop {
            match reclaim.step() {
                Step::Verb(verb) => posted.push_back(verb),
                Step::Wait => {
                    let verb = posted.pop_front().expect("it waits for what it posted");
                    let brought = self.at_node(verb);
                    reclaim.complete(brought.answer());
                }
                Step::Drain => {
                    // The slowest verb that may be under way; the core need not look on.
                    let slowest = node.costs.verb.cas.max(node.costs.verb.read) * (1.0 + node.costs.verb.jitter);
                    node.world.sleep(us(slowest)).await;
                    reclaim.complete(farmem_protocol::extent::Answer::Ready);
                }
                Step::Scrub(place) => {
                    let bytes = self.geometry.bytes(place);
                    node.world.until(node.core(node.costs.scrub(bytes.end - bytes.start), Work::Draining)).await;
                    reclaim.complete(farmem_protocol::extent::Answer::Ready);
                }
                Step::Done(_) => return,
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
