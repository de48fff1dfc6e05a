//! How fast repair copies: as fast as fetches of the program bear it.
//!
//! ```text
//!  spell: piece, piece, …   a few pages under way at a time         fetches beside it
//!  pause                    a part of the spell, or many times it  fetches alone
//!
//!  every LOOK_NS: the program takes > 1.15 × as long as alone ─► slower
//!                                   < 1.13 ×                 ─► faster
//! ```
//!
//! *What is compared.* The mean of all fetches since the last look, and the mean of those in pauses,
//! weighed by the share of the time that the program fetches. No fetch counts for more than
//! [`MOST_TIMES`] the median of the pauses. A fetch that waits behind a page of repair moves the
//! mean. It moves the median only when half of the fetches wait. Without the bound, one fetch that
//! waited for a stopped node would hold repair up. A mean without the slowest twentieth would not
//! see the fetches that wait for the evictor: few do, and for long.
//!
//! *Why pauses.* They show how long fetches take alone, also after the program has changed its ways.
//!
//! *What it costs.* A ninth of the time is pause, at least. A fetch that begins in a spell and ends
//! in the pause counts as alone, so a slowdown is taken for a little less than it is. Times are
//! known by buckets that are 19 % wide. If all fetches take the same time, a slowdown may be taken
//! for 7 % more or less than it is. Of several threads, all are taken to fetch all the time if
//! their fetches make as much as one thread's time.
//!
//! Repair never stops: a slab without its copy is lost with the next node.

use farmem_run::counters::{Histogram, percentile};

/// The longest that is copied without a pause.
pub const SPELL_NS: u64 = 4_000_000;
/// How long a piece posts READs. It ends when they and their WRITEs are done.
pub const POSTS_NS: u64 = 350_000;
/// The time that a piece should take, at most.
const PIECE_NS: u64 = 500_000;
/// Between looks, if enough was fetched.
const LOOK_NS: u64 = 20_000_000;
/// Between looks, at most.
const LONG_NS: u64 = 40_000_000;
/// Fetches that are enough for a look, and those of the pauses among them.
const ENOUGH: u64 = 256;
const ENOUGH_ALONE: u64 = 64;
/// Fetches without which nothing is known of how long they take.
const FEW: u64 = 16;
/// A fetch counts for this many times the median at most.
const MOST_TIMES: u64 = 8;
/// How much longer the program may take, in percent: above the first, repair slows down, by two
/// steps above the second. Below the last it speeds up.
const SLOW: u64 = 15;
const MUCH: u64 = 25;
const FAST: u64 = 13;
/// The pages under way at a time, and the pause, in [`PARTS`] of the spell before it: the slowest
/// first.
const STEPS: [(u32, u64); 13] =
    [(4, 128), (4, 64), (4, 32), (4, 16), (4, 8), (4, 3), (4, 1), (6, 1), (8, 1), (10, 1), (12, 1), (14, 1), (16, 1)];
const PARTS: u64 = 16;
/// Where a repair begins.
const FIRST: usize = 8;
/// The least pages under way, on a slow link.
const LEAST: u32 = 4;

/// See the module.
pub struct Throttle {
    seen: [u64; 160],
    /// Fetches of pauses. Those of earlier looks count less and less.
    alone: Fetches,
    /// All fetches since the last look.
    all: Fetches,
    looked_ns: Option<u64>,
    step: usize,
    /// The link is so slow that a piece of more pages under way would take too long.
    most: u32,
}

/// How long fetches took.
#[derive(Clone, Copy)]
struct Fetches([u64; 160]);

impl Fetches {
    const NONE: Fetches = Fetches([0; 160]);

    fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The mean, where none counts for more than `most`. Each counts as the middle of its bucket.
    fn mean(&self, most: u64) -> u64 {
        let middle = |at: usize| Histogram::bucket_floor(at).midpoint(Histogram::bucket_floor(at + 1)).min(most);
        let sum = self.0.iter().enumerate().map(|(at, &n)| u128::from(n) * u128::from(middle(at))).sum::<u128>();
        (sum / u128::from(self.count().max(1))) as u64
    }

    fn add(&mut self, other: &Fetches) {
        self.0.iter_mut().zip(other.0).for_each(|(n, more)| *n += more);
    }

    /// Halves the counts until at most `to` are left.
    fn fade(&mut self, to: u64) {
        while self.count() > to {
            self.0.iter_mut().for_each(|n| *n /= 2);
        }
    }
}

impl Default for Throttle {
    fn default() -> Throttle {
        let (alone, all) = (Fetches::NONE, Fetches::NONE);
        Throttle { seen: [0; 160], alone, all, looked_ns: None, step: FIRST, most: Throttle::MOST }
    }
}

impl Throttle {
    /// The most pages under way.
    pub const MOST: u32 = STEPS[STEPS.len() - 1].0;

    /// The fetches since this was last asked.
    fn since(&mut self, fetches: &Histogram) -> Fetches {
        let now = fetches.snapshot();
        let before = std::mem::replace(&mut self.seen, now);
        Fetches(std::array::from_fn(|i| now[i].saturating_sub(before[i])))
    }

    /// Nothing is to be copied.
    pub fn rests(&mut self, fetches: &Histogram) {
        let since = self.since(fetches);
        if since.count() >= FEW {
            self.alone = since;
        }
        (self.all, self.looked_ns, self.step) = (Fetches::NONE, None, FIRST);
    }

    /// A spell of copying begins.
    pub fn begins(&mut self, fetches: &Histogram, now_ns: u64) {
        let since = self.since(fetches);
        match self.looked_ns {
            Some(_) => {
                self.alone.add(&since);
                self.all.add(&since);
            }
            None => {
                // Since the last look, at which nothing was to be copied.
                if since.count() >= FEW {
                    self.alone = since;
                }
                self.looked_ns = Some(now_ns);
            }
        }
    }

    /// A spell has ended.
    pub fn ends(&mut self, fetches: &Histogram) {
        let since = self.since(fetches);
        self.all.add(&since);
    }

    /// How long to pause after a spell of `spent_ns` that has ended.
    pub fn pause(&mut self, now_ns: u64, spent_ns: u64) -> u64 {
        let since = now_ns.saturating_sub(*self.looked_ns.get_or_insert(now_ns));
        let enough = self.all.count() >= ENOUGH && self.alone.count() >= ENOUGH_ALONE;
        if since >= LONG_NS || since >= LOOK_NS && enough {
            self.look(since);
            self.looked_ns = Some(now_ns);
        }
        spent_ns * STEPS[self.step].1 / PARTS
    }

    /// Compares all fetches of a while with those alone.
    fn look(&mut self, since_ns: u64) {
        let most = MOST_TIMES * percentile(&self.alone.0, 0.5);
        let (all, alone) = (self.all.mean(most), self.alone.mean(most));
        let known = self.all.count().min(self.alone.count()) >= FEW;
        // Of a program that computes most of the time, fetches may slow down more.
        let fetching = (self.all.count() * all).min(since_ns);
        let felt = all.saturating_sub(alone) * 100 / alone.max(1) * fetching / since_ns.max(1);
        self.step = match felt {
            _ if !known => self.step + 2,
            ..FAST => self.step + 1,
            FAST..=SLOW => self.step,
            _ => self.step.saturating_sub(if felt > MUCH { 2 } else { 1 }),
        };
        self.step = self.step.min(STEPS.len() - 1);
        self.all = Fetches::NONE;
        self.alone.fade(ENOUGH / 2);
    }

    /// A piece has taken so long: on a slow link fewer pages are under way.
    pub fn took(&mut self, ns: u64) {
        self.most = match ns {
            PIECE_NS.. => (self.under_way() / 2).max(LEAST),
            _ if ns < PIECE_NS - PIECE_NS / 4 => (self.most * 2).min(Throttle::MOST),
            _ => self.most,
        };
    }

    /// The pages to have under way at a time.
    pub fn under_way(&self) -> u32 {
        STEPS[self.step].0.min(self.most)
    }

    /// Whether it is slower than it began.
    pub fn is_slow(&self) -> bool {
        self.step < FIRST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;
    use proptest::prelude::*;

    /// A program that fetches, and repair beside it.
    struct Beside {
        fetches: Histogram,
        throttle: Throttle,
        now: u64,
        random: Random,
    }

    impl Beside {
        fn new(throttle: Throttle) -> Beside {
            Beside { fetches: Histogram::default(), throttle, now: 1, random: Random::new(3) }
        }

        /// Fetches for a while, one after the other, that take so long, give or take an eighth.
        fn fetch(&mut self, ns: u64, each: u64) {
            let until = self.now + ns;
            while self.now < until {
                let took = each - each / 8 + self.random.below(each / 4 + 1);
                self.fetches.record(took);
                self.now += took;
            }
        }

        /// A spell, in which fetches take so long, and the pause behind it.
        fn spell(&mut self, beside: u64, alone: u64) {
            let begun = self.now;
            self.throttle.begins(&self.fetches, begun);
            self.fetch(SPELL_NS, beside);
            self.throttle.ends(&self.fetches);
            let spent = self.now - begun;
            let pause = self.throttle.pause(self.now, spent);
            assert!(pause >= spent / PARTS && pause <= 8 * spent, "a pause of {pause} after {spent}");
            self.fetch(pause, alone);
        }

        /// Spells for so long; the step at their end.
        fn spells(&mut self, ns: u64, beside: u64, alone: u64) -> usize {
            let until = self.now + ns;
            while self.now < until {
                self.spell(beside, alone);
            }
            self.throttle.step
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn copying_slows_down_when_fetches_do_and_recovers() {
        let mut beside = Beside::new(Throttle::default());
        assert_eq!(beside.throttle.under_way(), 8);
        assert_eq!(beside.spells(SECOND, 20_000, 20_000), STEPS.len() - 1, "nothing is felt");
        assert_eq!(beside.throttle.under_way(), Throttle::MOST);
        // Ten times as long counts for MOST_TIMES.
        assert!(beside.spells(SECOND, 200_000, 20_000) <= 2 && beside.throttle.is_slow());
        assert_eq!(beside.spells(SECOND, 50_000, 50_000), STEPS.len() - 1, "the program fetches slower alone, too");
    }

    #[test]
    fn a_mean_counts_no_fetch_for_more_than_the_most() {
        let mean = |of: &[u64], most| {
            let histogram = Histogram::default();
            of.iter().for_each(|&ns| histogram.record(ns));
            Fetches(histogram.snapshot()).mean(most)
        };
        assert_eq!(mean(&[], u64::MAX), 0);
        // The buckets from 16384 and from 65536 on.
        assert_eq!(mean(&[17_000, 17_000, 17_000, 70_000], u64::MAX), (3 * 18_432 + 73_728) / 4);
        assert_eq!(mean(&[17_000, 70_000], 20_000), (18_432 + 20_000) / 2);
        assert_eq!(mean(&[u64::MAX], 7), 7);
    }

    /// A quarter of the fetches waits, and the median stays as it is.
    #[test]
    fn a_part_of_the_fetches_that_waits_is_felt() {
        let mut beside = Beside::new(Throttle::default());
        for _ in 0..200 {
            beside.throttle.begins(&beside.fetches, beside.now);
            (0..100).for_each(|n| beside.fetches.record(if n % 4 == 0 { 60_000 } else { 20_000 }));
            beside.now += SPELL_NS;
            beside.throttle.ends(&beside.fetches);
            let pause = beside.throttle.pause(beside.now, SPELL_NS);
            (0..pause / 20_000).for_each(|_| beside.fetches.record(20_000));
            beside.now += pause;
        }
        assert!(beside.throttle.is_slow());
    }

    #[test]
    fn one_fetch_that_waited_for_long_does_not_hold_repair_up() {
        let mut beside = Beside::new(Throttle::default());
        for _ in 0..40 {
            beside.spells(SECOND / 20, 20_000, 20_000);
            beside.fetches.record(30 * SECOND);
        }
        assert_eq!(beside.throttle.step, STEPS.len() - 1);
    }

    #[test]
    fn few_fetches_say_nothing() {
        let mut beside = Beside::new(Throttle::default());
        for _ in 0..800 {
            beside.throttle.begins(&beside.fetches, beside.now);
            beside.now += SPELL_NS;
            beside.throttle.ends(&beside.fetches);
            beside.now += beside.throttle.pause(beside.now, SPELL_NS);
            if beside.now.is_multiple_of(7) {
                beside.fetches.record(900_000);
            }
        }
        assert_eq!(beside.throttle.step, STEPS.len() - 1);
    }

    #[test]
    fn fewer_pages_are_under_way_on_a_slow_link() {
        let mut throttle = Throttle { step: STEPS.len() - 1, ..Throttle::default() };
        let mut after = |ns| {
            throttle.took(ns);
            throttle.under_way()
        };
        assert_eq!([100_000, 300_000, 400_000].map(&mut after), [16, 16, 16]);
        assert_eq!([900_000, 600_000, 2_000_000, 2_000_000].map(&mut after), [8, LEAST, LEAST, LEAST]);
        assert_eq!([400_000, 300_000, 90_000, 90_000].map(&mut after), [LEAST, 8, 16, 16]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// However much repair slows fetches down, it ends where they bear it, or at its slowest.
        #[test]
        fn it_ends_where_fetches_bear_it(alone in 4_000..200_000_u64, per_page in 0..25_u64, cpu in 0..60_u64) {
            let mut beside = Beside::new(Throttle::default());
            let slower = |throttle: &Throttle| alone + alone * (cpu + per_page * u64::from(throttle.under_way())) / 100;
            let mut rounds = |ns: u64| {
                let (begun, before) = (beside.now, beside.fetches.snapshot());
                while beside.now < begun + ns {
                    let with = slower(&beside.throttle);
                    beside.spell(with, alone);
                }
                let fetched = beside.fetches.snapshot().iter().zip(before).map(|(now, before)| now - before).sum::<u64>();
                ((beside.now - begun) * 100 / (fetched * alone), beside.throttle.step)
            };
            rounds(3 * SECOND);
            let (percent, step) = rounds(SECOND);
            // Buckets make 7 % of the limit, and the step before a look that slows down the rest.
            prop_assert!(percent <= 130, "{percent} %, step {step}");
            let most = 100 + cpu + per_page * u64::from(Throttle::MOST);
            prop_assert!(most > 103 || step == STEPS.len() - 1, "step {step} where {most} % are felt");
        }
    }
}
