//! One rack under one rule.

use farmem_protocol::placement::Weights;
use farmem_protocol::random::Random;

/// How a node is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Two drawn in proportion to what they lend, the smaller share by the last beat and what was
    /// placed since: the controller's code.
    Farmem,
    /// One node, blindly.
    Random,
    /// Each program in turn, from a place of its own.
    RoundRobin,
    /// The smallest share by the last beat, the same for everybody.
    Least,
    /// Infiniswap's: two drawn blindly, both asked now for their free bytes, the one with more. Its
    /// published default asks one alone (`SERVER_SELECT_NUM` 1), which is [`Rule::Random`].
    Infiniswap,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 5] = [Rule::Farmem, Rule::Random, Rule::RoundRobin, Rule::Least, Rule::Infiniswap];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Farmem => "farmem",
            Rule::Random => "random",
            Rule::RoundRobin => "round robin",
            Rule::Least => "least loaded",
            Rule::Infiniswap => "two asked (Infiniswap)",
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Standard deviation of use over the nodes, by its mean.
    pub variation: f64,
    /// The greatest use, by the mean.
    pub worst: f64,
    /// Requests that met a full node, for each placement.
    pub refused: f64,
}

/// Tries by the rule, before a node is drawn blindly until one has room.
const TRIES: u32 = 8;
/// The most slabs of a program.
const LARGEST: usize = 256;

struct Rack {
    rule: Rule,
    lends: Vec<u64>,
    used: Vec<u64>,
    /// As of the last beat.
    news: Vec<u64>,
    /// Placed since the last beat, as the controller counts it.
    since: Vec<u64>,
    weights: Weights,
    /// Nodes by their share at the last beat: for [`Rule::Least`].
    order: Vec<usize>,
    random: Random,
    turn: usize,
}

/// Simulates a rack of so many nodes for 60 placements a node; the last quarter is judged, at each
/// beat.
pub fn simulate(rule: Rule, nodes: usize, rate: f64, fill: u64, seed: u64) -> Outcome {
    let mut random = Random::nth(seed, nodes as u64);
    let lends: Vec<u64> = (0..nodes).map(|_| (lognormal(&mut random, 4.03, 0.5) as u64).max(8)).collect();
    let mut weights = Weights::default();
    lends.iter().enumerate().for_each(|(node, &lends)| weights.set(node, lends));
    let total: u64 = lends.iter().sum();
    let zeros = vec![0; nodes];
    let (used, news, since, order) = (zeros.clone(), zeros.clone(), zeros, (0..nodes).collect());
    let mut rack = Rack { rule, lends, used, news, since, weights, order, random, turn: 0 };
    let (beat, full, end) = ((rate * nodes as f64).max(1.0) as u64, total * fill / 100, (60 * nodes as u64).max(6000));
    let (mut programs, mut held, mut placed, mut refused) = (Vec::<Vec<usize>>::new(), 0, 0, 0);
    let mut seen = Vec::new();
    while placed < end {
        let size = (lognormal(&mut rack.random, 1.4, 1.4) as usize).clamp(1, LARGEST);
        while held + size as u64 > full && !programs.is_empty() {
            let ends = rack.random.index(programs.len());
            for node in programs.swap_remove(ends) {
                rack.used[node] -= 1;
                held -= 1;
            }
        }
        rack.turn = rack.random.index(nodes);
        let mut program = Vec::with_capacity(size);
        for _ in 0..size {
            let (node, tries) = rack.place();
            program.push(node);
            (held, placed, refused) = (held + 1, placed + 1, refused + u64::from(tries));
            if placed % beat == 0 {
                rack.beat();
                if placed * 4 > end * 3 {
                    seen.push(rack.look());
                }
            }
        }
        programs.push(program);
    }
    let mean = |of: fn(&(f64, f64)) -> f64| seen.iter().map(of).sum::<f64>() / seen.len().max(1) as f64;
    Outcome { variation: mean(|s| s.0), worst: mean(|s| s.1), refused: refused as f64 / placed as f64 }
}

impl Rack {
    /// Places a slab. The node, and how many that were full were asked before.
    fn place(&mut self) -> (usize, u32) {
        let mut tries = 0;
        loop {
            let node = self.choose(tries);
            if self.used[node] < self.lends[node] {
                self.used[node] += 1;
                self.since[node] += 1;
                return (node, tries);
            }
            tries += 1;
        }
    }

    fn choose(&mut self, tries: u32) -> usize {
        let nodes = self.lends.len();
        if tries >= TRIES {
            return self.random.index(nodes);
        }
        match self.rule {
            Rule::Random => self.random.index(nodes),
            Rule::RoundRobin => {
                self.turn = (self.turn + 1) % nodes;
                self.turn
            }
            Rule::Least => self.order[tries as usize % nodes],
            Rule::Infiniswap => {
                let (a, b) = (self.random.index(nodes), self.random.index(nodes));
                let free = |node: usize| self.lends[node] - self.used[node];
                if free(b) > free(a) { b } else { a }
            }
            Rule::Farmem => {
                let (random, news, since) = (&mut self.random, &self.news, &self.since);
                let used = |node: usize| news[node] + since[node];
                self.weights.better_of_two(|| random.bits(), used).expect("every node lends")
            }
        }
    }

    fn beat(&mut self) {
        self.news.clone_from(&self.used);
        self.since.fill(0);
        if self.rule == Rule::Least {
            let share = |&node: &usize| (self.news[node] << 32) / self.lends[node];
            self.order.sort_by_key(share);
        }
    }

    /// Variation of use, and the greatest by the mean.
    fn look(&self) -> (f64, f64) {
        let shares: Vec<f64> =
            self.used.iter().zip(&self.lends).map(|(&used, &lends)| used as f64 / lends as f64).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let squares = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / shares.len() as f64;
        (squares.sqrt() / mean, shares.iter().copied().fold(0.0, f64::max) / mean)
    }
}

/// exp of a normal number with this mean and deviation (Box and Muller, 1958).
fn lognormal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    let (u, v) = (1.0 - random.unit(), random.unit());
    (mean + deviation * (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figure that a rack is promised: a thousand nodes, one placement a node between beats.
    #[test]
    fn a_thousand_nodes_are_used_evenly() {
        let farmem = simulate(Rule::Farmem, 1000, 1.0, 70, 1);
        assert!(farmem.variation <= 0.05 && farmem.refused == 0.0, "{farmem:?}");
        let least = simulate(Rule::Least, 1000, 1.0, 70, 1);
        assert!(least.variation > 5.0 * farmem.variation, "on old news everybody goes to the same node: {least:?}");
    }

    #[test]
    fn a_seed_says_it_all() {
        let once = |seed| simulate(Rule::Farmem, 10, 1.0, 70, seed);
        assert_eq!(once(3), once(3));
        assert_ne!(once(3), once(4));
    }
}
