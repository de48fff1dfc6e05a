//! Which of two copies a READ goes to.
//!
//! A home is as good as the other until one of its READs has taken [`SLOW`] times as long as the other's
//! usually do. Then its node is avoided, for [`REST`] times as long as that READ took. So a node that is
//! slow for good costs a sixty-fourth of a lane's time, and one that had a hiccup is asked again soon.
//! Which of two good homes is asked is the order in their record, which the placement draws.

use crate::extent::Home;
use farmem_sys::clock;

const SLOW: u64 = 4;
const REST: u64 = 64;

/// How long READs take, by node, in ticks, as one lane has seen.
#[derive(Default)]
pub(crate) struct Paces(Vec<Pace>);

#[derive(Clone, Default)]
struct Pace {
    /// A moving average; 0: nothing is known.
    usual: u64,
    /// Until when another home is preferred.
    avoided_until: u64,
}

impl Paces {
    /// The better of two homes, each with its number in the record.
    pub fn quicker(&self, first: (usize, Home), other: (usize, Home)) -> (usize, Home) {
        if first.1.base != 0 || other.1.base != 0 {
            return if first.1.base != 0 { first } else { other };
        }
        let now = clock::ticks();
        let avoided = |home: &Home| self.0.get(home.node as usize).is_some_and(|pace| pace.avoided_until > now);
        if avoided(&first.1) && !avoided(&other.1) { other } else { first }
    }

    /// A READ that began at `begun` is done.
    pub fn took(&mut self, node: usize, begun: u64) {
        self.note(node, begun, clock::ticks());
    }

    fn note(&mut self, node: usize, begun: u64, now: u64) {
        let took = now.saturating_sub(begun).max(1);
        if self.0.len() <= node {
            self.0.resize(node + 1, Pace::default());
        }
        let others = self.0.iter().enumerate().filter(|(other, pace)| *other != node && pace.usual != 0);
        let least = others.map(|(_, pace)| pace.usual).min();
        let pace = &mut self.0[node];
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
        let now = clock::ticks();
        assert_eq!(paces.quicker(a, b).0, 0);
        paces.note(3, now, now + 1000);
        paces.note(5, now, now + 1200);
        assert_eq!((paces.quicker(a, b).0, paces.quicker(b, a).0), (0, 1), "both are good");
        let long = 1 << 40;
        paces.note(3, now, now + long);
        assert_eq!((paces.quicker(a, b).0, paces.quicker(b, a).0), (1, 1));
        assert_eq!(paces.quicker((0, home(3, 4096)), b).0, 0, "a mapped one is never slow");
        paces.0[3].avoided_until = now;
        assert_eq!(paces.quicker(a, b).0, 0, "asked again");
    }
}
