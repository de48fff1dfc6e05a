//! Which of two copies a READ goes to.
//!
//! A home is as good as the other until one of its READs has taken [`SLOW`] times as long as the
//! other's usually do. Then its node is avoided, for [`REST`] times as long as that READ took. So a
//! node that is slow for good costs a sixty-fourth of a lane's time, and one that had a hiccup is
//! asked again soon. A READ that is late is sent to the other home ([`super::lane`]). So a node
//! that has stopped costs a few milliseconds.
//!
//! Which of two good homes is asked is the order in their record, which the placement draws.

use crate::homes::Home;
use crate::nodes::Moment;

const SLOW: u64 = 4;
/// A READ that takes this many times as long as its node's usually do, and [`LEAST_NS`], goes to
/// the other node.
const LATE: u64 = 8;
const LEAST_NS: u64 = 5_000_000;
/// Between two times that a lane turns away from a node.
const TURN_NS: u64 = 250_000_000;
const REST: u64 = 64;

/// How long READs take, by node, in ticks, as one lane has seen.
#[derive(Default)]
pub(crate) struct Paces {
    nodes: Vec<Pace>,
    /// When the lane turned away from a node last.
    turned: u64,
}

#[derive(Clone, Default)]
struct Pace {
    /// A moving average; 0: nothing is known.
    usual: u64,
    /// Until when another home is preferred.
    avoided_until: u64,
}

impl Paces {
    /// The better of two homes, each with its number in the record.
    pub fn quicker(&self, now: Moment, first: (usize, Home), other: (usize, Home)) -> (usize, Home) {
        if first.1.base != 0 || other.1.base != 0 {
            return if first.1.base != 0 { first } else { other };
        }
        let now = now.ticks;
        let avoided = |home: &Home| self.nodes.get(home.node as usize).map_or(now, |pace| pace.avoided_until.max(now));
        // Of two that are avoided, the one that was less slow.
        if avoided(&first.1) > avoided(&other.1) { other } else { first }
    }

    /// How long from now a READ from a node that began at `begun` is late, ns; `None`: the lane has
    /// turned away too recently for that to matter.
    pub fn late_in(&self, now: Moment, node: usize, begun: u64) -> Option<u64> {
        let since = |then: u64| now.ns(now.ticks.saturating_sub(then));
        if self.turned != 0 && since(self.turned) < TURN_NS {
            return None;
        }
        let usual = self.nodes.get(node).map_or(0, |pace| pace.usual);
        Some(now.ns(LATE * usual).max(LEAST_NS).saturating_sub(since(begun)))
    }

    /// The lane turns away from a node, of which a READ that began at `begun` is late.
    pub fn turn(&mut self, now: Moment, node: usize, begun: u64) {
        let now = now.ticks;
        if self.nodes.len() <= node {
            self.nodes.resize(node + 1, Pace::default());
        }
        self.turned = now;
        self.nodes[node].avoided_until = now + REST * now.saturating_sub(begun);
    }

    /// A READ that began at `begun` is done.
    pub fn took(&mut self, now: Moment, node: usize, begun: u64) {
        self.note(node, begun, now.ticks);
    }

    fn note(&mut self, node: usize, begun: u64, now: u64) {
        let took = now.saturating_sub(begun).max(1);
        if self.nodes.len() <= node {
            self.nodes.resize(node + 1, Pace::default());
        }
        let others = self.nodes.iter().enumerate().filter(|(other, pace)| *other != node && pace.usual != 0);
        let least = others.map(|(_, pace)| pace.usual).min();
        let pace = &mut self.nodes[node];
        pace.usual = if pace.usual == 0 { took } else { pace.usual - pace.usual / 8 + took / 8 };
        if least.is_some_and(|least| took > SLOW * least) {
            pace.avoided_until = now + REST * took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::addr::SlabId;

    #[test]
    fn a_slow_node_is_left_alone_and_asked_again() {
        let home = |node, base| Home { node, slab: SlabId(1), base };
        let (a, b) = ((0, home(3, 0)), (1, home(5, 0)));
        let mut paces = Paces::default();
        let now = farmem_sys::clock::ticks();
        let quicker = |paces: &Paces, a, b| paces.quicker(Moment { ticks: now, simulated: false }, a, b);
        assert_eq!(quicker(&paces, a, b).0, 0);
        paces.note(3, now, now + 1000);
        paces.note(5, now, now + 1200);
        assert_eq!((quicker(&paces, a, b).0, quicker(&paces, b, a).0), (0, 1), "both are good");
        let long = 1 << 40;
        paces.note(3, now, now + long);
        assert_eq!((quicker(&paces, a, b).0, quicker(&paces, b, a).0), (1, 1));
        assert_eq!(quicker(&paces, (0, home(3, 4096)), b).0, 0, "a mapped one is never slow");
        paces.nodes[3].avoided_until = now;
        assert_eq!(quicker(&paces, a, b).0, 0, "asked again");
    }
}
