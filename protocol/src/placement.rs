//! Which node to ask for a slab: a pure function of what is known.
//!
//! ```text
//! open nodes outside the domains to avoid
//!   ─► two drawn, each in proportion to what it lends   the one with the smaller share used is asked first
//!   ─► all others, by the share used                    asked in turn while nodes refuse
//! ```
//!
//! Two choices, not the emptiest node: news of use is old when it arrives, and everybody who acts
//! on the same old news goes to the same node. Of two drawn at random the better one balances
//! nearly as well and never herds (Mitzenmacher, IEEE TPDS 2001). Drawing in proportion to what is
//! lent keeps small nodes from filling first.

/// The caller's knowledge of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The memory that it lends, in any unit that all candidates share. 0: not known; it counts as
    /// the smallest known.
    pub lends: u64,
    /// The used part of that, as far as the caller knows.
    pub used: u64,
    /// Its failure domain: nodes of one domain may be lost together.
    pub domain: u32,
    /// Whether slabs may come from it.
    pub open: bool,
}

impl Candidate {
    /// Whether a smaller share of `self` than of `other` is used.
    fn has_less_used(&self, other: &Candidate, unknown: u64) -> bool {
        let share = |one: &Candidate, of: &Candidate| u128::from(one.used) * u128::from(of.weight(unknown));
        share(self, other) < share(other, self)
    }

    fn weight(&self, unknown: u64) -> u64 {
        if self.lends == 0 { unknown } else { self.lends }
    }
}

/// The order in which to ask nodes for a slab, by their indices. `asked` is cleared and filled. It
/// stays empty if no candidate is open and outside the domains to `avoid`. Draw a new `random` for
/// each call.
pub fn order(candidates: &[Candidate], avoid: &[u32], random: u64, asked: &mut Vec<usize>) {
    asked.clear();
    let may = |node: &Candidate| node.open && !avoid.contains(&node.domain);
    asked.extend((0..candidates.len()).filter(|&node| may(&candidates[node])));
    let unknown = asked.iter().map(|&node| candidates[node].lends).filter(|&lends| lends > 0).min().unwrap_or(1);
    let total: u128 = asked.iter().map(|&node| u128::from(candidates[node].weight(unknown))).sum();
    if total == 0 {
        return;
    }
    // The place in `asked` of a node drawn by 32 random bits.
    let draw = |bits: u64| {
        let mut left = (u128::from(bits & u64::from(u32::MAX)) * total) >> 32;
        let weight = |&node: &usize| u128::from(candidates[node].weight(unknown));
        let drawn = asked.iter().map(weight).position(|weight| match left.checked_sub(weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        drawn.unwrap_or(asked.len() - 1)
    };
    let (a, b) = (draw(random >> 32), draw(random));
    let less = |a: usize, b: usize| candidates[a].has_less_used(&candidates[b], unknown);
    let first = if less(asked[b], asked[a]) { b } else { a };
    let second = if first == a { b } else { a };
    let drawn = [asked[first], asked[second]];
    asked.sort_by(|&a, &b| match (less(a, b), less(b, a)) {
        (true, _) => std::cmp::Ordering::Less,
        (_, true) => std::cmp::Ordering::Greater,
        _ => a.cmp(&b),
    });
    for &node in drawn.iter().rev() {
        if let Some(at) = asked.iter().position(|&other| other == node) {
            asked[..=at].rotate_right(1);
        }
    }
}

/// The memory that many nodes lend, kept for draws in proportion to it. A draw takes one step for
/// each doubling of the nodes: a binary indexed tree (Fenwick, *Software: Practice and Experience*,
/// 1994).
///
/// For whoever places often among many nodes; [`order`] looks at all of them.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    each: Vec<u64>,
    /// `sums[i - 1]` is the sum of the `i & -i` weights that end at weight `i - 1`.
    sums: Vec<u64>,
}

impl Weights {
    /// Sets the weight of a node. 0: it is not drawn. Unit: any, the same for all; the sum of all
    /// is below 2⁶⁴.
    pub fn set(&mut self, node: usize, weight: u64) {
        while self.each.len() <= node {
            let last = self.each.len() + 1;
            let below = last & last.wrapping_neg();
            let sum = self.each[last - below..].iter().sum();
            self.each.push(0);
            self.sums.push(sum);
        }
        let was = std::mem::replace(&mut self.each[node], weight);
        let mut at = node + 1;
        while at <= self.sums.len() {
            self.sums[at - 1] = self.sums[at - 1].wrapping_sub(was).wrapping_add(weight);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        let mut at = self.sums.len();
        let mut total = 0u64;
        while at > 0 {
            total = total.wrapping_add(self.sums[at - 1]);
            at &= at - 1;
        }
        total
    }

    /// A node, each in proportion to its weight. None where all are 0.
    pub fn draw(&self, random: u64) -> Option<usize> {
        let total = self.total();
        let mut left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        let (mut node, mut step) = (0, self.sums.len().next_power_of_two());
        while step > 0 {
            if let Some(&sum) = self.sums.get((node + step).wrapping_sub(1))
                && sum <= left
            {
                left -= sum;
                node += step;
            }
            step /= 2;
        }
        (total > 0).then_some(node)
    }

    /// Of two nodes drawn the one with the smaller share used: the first of [`order`]'s. `used`
    /// tells a node's use, in the unit of the weights. None where all weights are 0.
    pub fn better_of_two(&self, mut random: impl FnMut() -> u64, used: impl Fn(usize) -> u64) -> Option<usize> {
        let (a, b) = (self.draw(random())?, self.draw(random())?);
        let b_has_less =
            u128::from(used(b)) * u128::from(self.each[a]) < u128::from(used(a)) * u128::from(self.each[b]);
        Some(if b_has_less { b } else { a })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    fn node(lends: u64, used: u64) -> Candidate {
        Candidate { lends, used, domain: 0, open: true }
    }

    #[test]
    fn use_is_spread_by_what_nodes_lend() {
        let mut nodes = [node(16, 0), node(64, 0), node(160, 0), node(16, 0)];
        let (mut random, mut asked) = (Random::new(1), Vec::new());
        for _ in 0..200 {
            order(&nodes, &[], random.bits(), &mut asked);
            nodes[asked[0]].used += 1;
        }
        for node in nodes {
            let share = node.used as f64 / node.lends as f64;
            assert!((0.55..1.0).contains(&share), "{nodes:?}");
        }
    }

    #[test]
    fn nothing_known_is_an_even_draw() {
        let (mut random, mut asked, mut used) = (Random::new(1), Vec::new(), [0u64; 3]);
        for _ in 0..300 {
            let nodes = used.map(|used| node(0, used));
            order(&nodes, &[], random.bits(), &mut asked);
            used[asked[0]] += 1;
        }
        assert!(used.iter().all(|used| (80..120).contains(used)), "{used:?}");
    }

    #[test]
    fn many_nodes_are_drawn_in_proportion() {
        let mut weights = Weights::default();
        for node in (0..1000).rev() {
            weights.set(node, if node % 3 == 0 { 0 } else { node as u64 });
        }
        let (mut random, mut drawn) = (Random::new(3), vec![0u32; 1000]);
        for _ in 0..2_000_000 {
            drawn[weights.draw(random.bits()).unwrap()] += 1;
        }
        for node in [1usize, 100, 500, 998] {
            let due = 2e6 * node as f64 / weights.total() as f64;
            assert!((f64::from(drawn[node]) - due).abs() <= 6.0 * due.sqrt(), "{node}: {} for {due}", drawn[node]);
        }
        assert!(drawn.iter().step_by(3).all(|&drawn| drawn == 0));
    }

    proptest! {
        /// Draws equal those by a plain sum over a list, in whatever order the weights were set.
        #[test]
        fn a_draw_is_the_one_of_a_plain_list(
            sets in prop::collection::vec((0..40usize, 0..5u64), 0..80),
            random: u64,
        ) {
            let (mut weights, mut list) = (Weights::default(), Vec::new());
            for (node, weight) in sets {
                weights.set(node, weight);
                if list.len() <= node {
                    list.resize(node + 1, 0);
                }
                list[node] = weight;
            }
            let total: u64 = list.iter().sum();
            prop_assert_eq!(weights.total(), total);
            let mut left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
            let due = list.iter().position(|&weight| match left.checked_sub(weight) {
                Some(rest) => { left = rest; false }
                None => true,
            });
            prop_assert_eq!(weights.draw(random), due.filter(|_| total > 0));
        }

        /// Every open node outside the domains to avoid is asked once, and no other. Behind the two
        /// that were drawn they come by their shares. The first of all has no larger share than the
        /// second.
        #[test]
        fn each_usable_node_is_asked_once(
            nodes in prop::collection::vec((0..5u64, 0..50u64, 0..3u32, any::<bool>()), 0..12),
            avoid in prop::collection::vec(0..3u32, 0..2),
            random: u64,
        ) {
            let candidate = |&(lends, used, domain, open): &_| Candidate { lends, used, domain, open };
            let nodes: Vec<Candidate> = nodes.iter().map(candidate).collect();
            let mut asked = vec![99];
            order(&nodes, &avoid, random, &mut asked);
            let usable = |n: &usize| nodes[*n].open && !avoid.contains(&nodes[*n].domain);
            let mut sorted = asked.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..nodes.len()).filter(usable).collect::<Vec<_>>());
            let least = asked.iter().map(|&n| nodes[n].lends).filter(|&lends| lends > 0).min().unwrap_or(1);
            let share = |n: usize| nodes[n].used as f64 / if nodes[n].lends == 0 { least } else { nodes[n].lends } as f64;
            let from = asked.len().min(2);
            prop_assert!(asked[from..].windows(2).all(|w| share(w[0]) <= share(w[1])), "{asked:?}");
            // Where one node was drawn twice the second is the least used of the others.
            prop_assert!(from < 2 || share(asked[0]) <= share(asked[1]) || asked[1..].iter().all(|&n| share(asked[1]) <= share(n)));
        }
    }
}
