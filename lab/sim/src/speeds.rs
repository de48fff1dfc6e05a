//! Links with a rate, and nodes that take time for their work: for figures. Seeds go without.
//!
//! ```text
//!  host ─► its link ─► the node's link ─► node: busy for a time for each page
//!  host ◄─ its link ◄─ the node's link ◄─ node: busy for a time for each page, one after the other
//! ```
//!
//! Each is one server, first come, first served. A host has one link for all its networks. A node
//! works in rounds: the next round takes in all bytes that came while it was busy.

use farmem_sys::sync::Lock;
use std::collections::VecDeque;
use std::sync::Arc;

/// A page, in bytes.
const PAGE: u64 = 4096;
/// Bytes that travel together: a segment of TCP.
pub(crate) const SEGMENT: usize = 1448;

/// How fast links and nodes are.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// A page on a link, in nanoseconds.
    pub link_ns: u64,
    /// A round of a node, but for its bytes, in nanoseconds of its CPU.
    pub round_ns: u64,
    /// A page that a node sends, in nanoseconds of its CPU.
    pub sends_ns: u64,
    /// A page that a node takes, likewise.
    pub takes_ns: u64,
}

/// The directions of a link: until when each is in use.
#[derive(Default)]
struct Busy {
    out: u64,
    back: u64,
}

impl Busy {
    /// When bytes that want to pass both links from `now` on have passed.
    fn pass(of: [&mut u64; 2], now: u64, took: u64) -> u64 {
        let ends = of.iter().map(|until| **until).fold(now, u64::max) + took;
        of.into_iter().for_each(|until| *until = ends);
        ends
    }
}

/// The link of a host.
#[derive(Clone, Default)]
pub struct HostLink(Arc<Lock<Busy>>);

/// The speeds of one node and its way to a host.
pub(crate) struct Speeds {
    rates: Rates,
    host: HostLink,
    node: Busy,
    /// The node works until then.
    works: u64,
    /// When the last round of its work begins.
    round: u64,
    /// What it has to send: when it will be ready, by which connection, and the bytes.
    pub leaving: VecDeque<(u64, usize, Vec<u8>)>,
}

impl Speeds {
    pub fn new(rates: Rates, host: HostLink) -> Speeds {
        Speeds { rates, host, node: Busy::default(), works: 0, round: 0, leaving: VecDeque::new() }
    }

    /// When bytes that a host sends now have left the node's link.
    pub fn out(&mut self, now: u64, bytes: usize) -> u64 {
        let took = self.rates.link_ns * bytes as u64 / PAGE;
        Busy::pass([&mut self.host.0.lock().out, &mut self.node.out], now, took)
    }

    /// When bytes that a node sends now have left its host's link.
    pub fn back(&mut self, now: u64, bytes: usize) -> u64 {
        let took = self.rates.link_ns * bytes as u64 / PAGE;
        Busy::pass([&mut self.host.0.lock().back, &mut self.node.back], now, took)
    }

    /// The node has bytes to send by a connection, as soon as it has made them ready.
    pub fn sends(&mut self, now: u64, wire: usize, bytes: &[u8]) {
        for piece in bytes.chunks(SEGMENT) {
            self.works = self.works.max(now) + self.rates.sends_ns * piece.len() as u64 / PAGE;
            self.leaving.push_back((self.works, wire, piece.to_vec()));
        }
    }

    /// The node takes bytes that have come: in the round that begins when it is free, or now.
    pub fn takes(&mut self, now: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if now > self.round {
            self.round = self.works.max(now);
            self.works = self.round + self.rates.round_ns;
        }
        self.works += self.rates.takes_ns * bytes as u64 / PAGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates { link_ns: 4096, round_ns: 100, sends_ns: 4096, takes_ns: 8192 };

    #[test]
    fn a_hosts_link_is_one_for_all_nodes() {
        let host = HostLink::default();
        let [mut one, mut other] = [1, 2].map(|_| Speeds::new(RATES, host.clone()));
        assert_eq!((one.out(10, 100), other.out(10, 100), one.out(500, 1)), (110, 210, 501));
        assert_eq!((one.back(10, 100), other.back(20, 50)), (110, 160), "the other direction is free");
    }

    #[test]
    fn what_comes_while_a_node_is_busy_is_taken_in_by_one_round() {
        let mut node = Speeds::new(RATES, HostLink::default());
        node.takes(1000, 50);
        assert_eq!(node.works, 1200);
        node.takes(1010, 50);
        node.takes(1200, 50);
        assert_eq!(node.works, 1500, "both in the round that begins at 1200");
        node.takes(1201, 0);
        node.takes(1201, 50);
        assert_eq!(node.works, 1700, "the next one");
        node.sends(1201, 3, &[0; SEGMENT + 2]);
        let leaving = node.leaving.iter().map(|(at, wire, bytes)| (*at, *wire, bytes.len()));
        assert!(leaving.eq([(1700 + 1448, 3, SEGMENT), (1700 + 1450, 3, 2)]));
    }
}
