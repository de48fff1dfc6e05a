//! Two loads on one local memory: its shares against a half for each, and against the best fixed
//! shares.

use farmem_cache::shares::{DEPTH, Shares, Side};
use farmem_protocol::random::Random;
use std::collections::{BTreeMap, HashMap};

/// Local memory, pages.
const LOCAL: u64 = 1024;

/// How a side uses its pages.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Any of so many, alike often.
    Uniform(u64),
    /// Any of so many, low ones more often: the first hundredth gets about a third of the uses.
    Skewed(u64),
    /// So many in a circle.
    Circle(u64),
}

impl Load {
    fn page(self, n: u64, random: &mut Random) -> u64 {
        match self {
            Load::Uniform(pages) => random.below(pages),
            Load::Skewed(pages) => (random.unit().powi(4) * pages as f64) as u64,
            Load::Circle(pages) => n % pages,
        }
    }
}

/// A side with the least recently used page leaving first.
#[derive(Default)]
struct Memory {
    uses: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    left: HashMap<u64, u64>,
    departures: u64,
    now: u64,
}

impl Memory {
    fn len(&self) -> u64 {
        self.uses.len() as u64
    }

    /// Whether a page was local; if not, whether it came back soon. It is now.
    fn touch(&mut self, page: u64) -> (bool, bool) {
        self.now += 1;
        let before = self.uses.insert(page, self.now);
        self.order.insert(self.now, page);
        match before {
            Some(at) => {
                self.order.remove(&at);
                (true, false)
            }
            None => {
                let is_soon = |at: u64| self.departures - at < LOCAL / DEPTH;
                (false, self.left.remove(&page).is_some_and(is_soon))
            }
        }
    }

    fn shrink(&mut self, most: u64) {
        while self.len() > most
            && let Some((_, page)) = self.order.pop_first()
        {
            self.uses.remove(&page);
            self.left.insert(page, self.departures);
            self.departures += 1;
        }
    }
}

/// For some uses: the loads of pages and of objects, and how many uses of a hundred are pages'.
type Phase = (u64, Load, Load, u64);

/// What became of a phase.
struct Outcome {
    /// What all its misses cost.
    cost: u64,
    misses: u64,
    /// What objects might have, after each move.
    shares: Vec<u64>,
}

/// Runs phases. `fixed`: what objects may have, in place of shares by gain. A miss of a page costs
/// five times what a page of objects costs.
fn run(phases: &[Phase], fixed: Option<u64>, seed: u64) -> Vec<Outcome> {
    let (mut random, mut shares) = (Random::new(seed), Shares::new(LOCAL));
    let mut sides = [Memory::default(), Memory::default()];
    let mut outcomes = Vec::new();
    for &(uses, pages, objects, part) in phases {
        let mut outcome = Outcome { cost: 0, misses: 0, shares: vec![shares.objects(LOCAL)] };
        let mut n = [0; 2];
        for _ in 0..uses {
            let which = usize::from(random.below(100) >= part);
            let (load, price) = [(pages, 5), (objects, 1)][which];
            n[which] += 1;
            let (is_here, is_soon) = sides[which].touch(load.page(n[which], &mut random));
            sides[1].shrink(fixed.unwrap_or(shares.objects(LOCAL)));
            let used = sides[1].len();
            sides[0].shrink(LOCAL - used);
            if !is_here {
                (outcome.cost, outcome.misses) = (outcome.cost + price, outcome.misses + 1);
                let mut seen = [Side::default(); 2];
                seen[which] = Side { pages: 1, cost: price, saved: price * u64::from(is_soon) };
                shares.count(LOCAL, used, seen[0], seen[1]);
                if outcome.shares.last() != Some(&shares.objects(LOCAL)) {
                    outcome.shares.push(shares.objects(LOCAL));
                }
            }
        }
        outcomes.push(outcome);
    }
    outcomes
}

fn cost(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|outcome| outcome.cost).sum()
}

/// `cost` is at most `percent` more than `other`.
fn within(cost: u64, other: u64, percent: u64) -> bool {
    100 * cost <= (100 + percent) * other
}

/// The least that the last phase costs with fixed shares.
fn best_fixed(phases: &[Phase]) -> u64 {
    let cost = |sixteenths| run(phases, Some(LOCAL * sixteenths / 16), 1).last().unwrap().cost;
    (2..=12).step_by(2).map(cost).min().unwrap()
}

/// After some thousand misses the shares are about the best, and stay where they are.
#[test]
fn memory_goes_where_it_gains_and_stays_there() {
    for (pages, objects, part) in [
        (Load::Uniform(3000), Load::Skewed(300), 50),
        (Load::Skewed(2000), Load::Skewed(2000), 50),
        (Load::Uniform(200), Load::Uniform(900), 50),
        (Load::Skewed(4000), Load::Uniform(1500), 20),
        (Load::Uniform(1200), Load::Skewed(4000), 80),
        (Load::Circle(400), Load::Uniform(3000), 50),
        (Load::Circle(900), Load::Skewed(500), 50),
    ] {
        let said = format!("{pages:?}, {objects:?}");
        // Of the first phase no more than 30 looks at the shares have misses.
        let phases = [(8000, pages, objects, part), (120_000, pages, objects, part)];
        let (found, best) = (run(&phases, None, 1), best_fixed(&phases));
        let half = cost(&run(&phases, Some(LOCAL / 2), 1));
        assert!(within(cost(&found), half, 5), "{said}: {} with halves, {}", half, cost(&found));
        let [first, second] = &found[..] else { panic!() };
        assert!(first.misses < 8 * LOCAL && within(second.cost, best, 5), "{said}: {best} is best, {}", second.cost);
        let looks = second.misses / (LOCAL / 8);
        let [least, most] = [second.shares.iter().min(), second.shares.iter().max()].map(|share| *share.unwrap());
        eprintln!(
            "{said}: {} best {best} half {half} all {} looks {looks} moves {:?}",
            second.cost,
            cost(&found),
            second.shares
        );
        let moves = second.shares.len() as u64 - 1;
        assert!(moves <= 4 + looks / 12 && most - least <= LOCAL / 4, "{said}: {looks} looks, {:?}", second.shares);
    }
}

/// Loads that change: never much worse than halves, and better where it counts.
#[test]
fn shares_follow_loads_that_change() {
    let small = |load| (Load::Uniform(100), load);
    let phases: Vec<Phase> = [
        small(Load::Uniform(850)),
        (Load::Uniform(850), Load::Uniform(100)),
        (Load::Skewed(3000), Load::Skewed(3000)),
        small(Load::Skewed(2000)),
        (Load::Circle(700), Load::Uniform(200)),
        (Load::Uniform(2000), Load::Circle(300)),
    ]
    .map(|(pages, objects)| (40_000, pages, objects, 50))
    .to_vec();
    for seed in 1..4 {
        let (found, half) = (run(&phases, None, seed), run(&phases, Some(LOCAL / 2), seed));
        let each: Vec<_> = found.iter().zip(&half).map(|(one, other)| (one.cost, other.cost)).collect();
        eprintln!("{each:?}");
        assert!(10 * cost(&found) < 9 * cost(&half), "{each:?}");
        // A phase begins with the shares of the one before.
        assert!(each.iter().all(|&(one, other)| within(one, other + 5 * 4 * LOCAL, 5)), "{each:?}");
    }
}

/// One side needs more than half, and the other is hardly used. The first one gains more by a step,
/// and ends with more than half from any start.
#[test]
fn whoever_gains_more_ends_with_more_than_half() {
    let mut random = Random::new(9);
    for n in 0..60 {
        let mut load = || {
            let pages = 50 + random.below(3000);
            [Load::Uniform, Load::Skewed, Load::Circle][random.index(3)](pages)
        };
        let before = (20_000, load(), load(), 10 + random.below(81));
        let used = 50 + random.below(800);
        let (many, few) = (Load::Uniform(700 + random.below(800)), Load::Uniform(used));
        // Of a fresh start, too, of which the first phase is too short for a look.
        let before = if n % 4 == 0 { (100, before.1, before.2, 50) } else { before };
        for are_objects in [true, false] {
            let last = if are_objects { (40_000, few, many, 2) } else { (40_000, many, few, 98) };
            let found = run(&[before, last], None, n);
            let most = *found[1].shares.last().unwrap();
            // Pages have what objects do not use.
            let has_more = if are_objects { most > LOCAL / 2 } else { most.min(used) < LOCAL / 2 };
            assert!(has_more, "{n}: {before:?}, {last:?}: {:?}", found[1].shares);
        }
    }
}

/// Any two loads: never worse than halves by more than 5 %.
#[test]
fn shares_by_gain_are_as_good_as_halves() {
    let mut random = Random::new(5);
    for n in 0..40 {
        let mut load = || {
            let pages = 50 + random.below(3000);
            [Load::Uniform, Load::Skewed, Load::Circle][random.index(3)](pages)
        };
        let (pages, objects) = (load(), load());
        let phases = [(80_000, pages, objects, 10 + random.below(81))];
        let [found, half] = [None, Some(LOCAL / 2)].map(|fixed| cost(&run(&phases, fixed, n)));
        eprintln!("{phases:?}: {found}, {half} {:.3}", found as f64 / half as f64);
        assert!(within(found, half, 5), "{phases:?}: {found}, {half} with halves");
    }
}
