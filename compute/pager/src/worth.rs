//! Do sweeps pay? They spare the protecting calls of victims that are found protected, and cost calls of their own, and
//! the program a fault for each page that it writes to once more. Which is more, nobody knows beforehand: an array
//! that is written all over gains, a heap of small values in which every page is soon written again loses. So sweeps
//! are tried, and judged by what came of them:
//!
//! ```text
//!            TRIAL batches, faults < half of the calls spared
//!            ┌──────┐
//!            ▼      │        not so
//!          trial ───┴──────────────────────────► rest: every victim by its own call
//!            ▲                                     │  8 trials long, twice as long after each
//!            └─────────────────────────────────────┘  trial that fails, at most 64
//! ```
//!
//! *Calls spared* are those that each batch's dirty pages had taken by themselves, less all that were made. A sweep that
//! takes as many as it spares, because the pages lie far apart, gains nothing and fails.
//!
//! A trial that can no longer be won, whatever its other batches spare, is over: where most pages are evicted in faults
//! ([`crate::meanwhile`]) the background thread's batches are few, and what they sweep is all written to between them.
//!
//! *Why half.* Lifting a protection takes what the call takes that sets it, and a signal more. (It was set when most calls were the
//! background thread's, and did not stop the program; over shared memory they are faults' now.) Counts, not times: on a busy machine times are of lost
//! time slices, and both kinds of call become dear together. Pages all over which is written at random are
//! written once more, before they leave, in a third of all cases at most where a quarter is local.

/// Batches of a trial.
const TRIAL: u32 = 64;
/// Trials that a rest is long, at least and at most.
const REST: [u32; 2] = [8, 64];
/// Calls that a fault weighs.
const FAULT: i64 = 2;

/// See the module.
#[derive(Debug)]
pub struct Worth {
    resting: bool,
    /// Of this trial or rest, to come.
    batches: u32,
    /// Calls spared in this trial; negative if sweeps took more.
    spared: i64,
    /// Faults on swept pages in it.
    lost: i64,
    /// Trials that the next rest is long.
    rest: u32,
    /// Calls that a batch can be spared.
    most: i64,
}

impl Worth {
    /// Begins with a trial. Batches are of at most `most` pages.
    pub fn new(most: usize) -> Worth {
        Worth { resting: false, batches: TRIAL, spared: 0, lost: 0, rest: REST[0], most: most as i64 }
    }

    /// Whether dirty victims are to be swept now.
    #[inline]
    pub fn pays(&self) -> bool {
        !self.resting
    }

    /// Hears of a batch: calls that it was spared, and faults on swept pages since the last one. `counts`: it is one of
    /// the trial's batches.
    pub fn saw(&mut self, spared: i64, lost: u64, counts: bool) {
        self.spared += spared;
        self.lost += lost as i64;
        self.batches -= counts as u32;
        let failed = !self.resting && FAULT * self.lost >= self.spared + self.batches as i64 * self.most;
        if self.batches > 0 && !failed {
            return;
        }
        self.batches = if failed { self.rest * TRIAL } else { TRIAL };
        match (self.resting, failed) {
            (false, true) => self.rest = (self.rest * 2).min(REST[1]),
            (false, false) => self.rest = REST[0],
            (true, _) => {}
        }
        (self.resting, self.spared, self.lost) = (failed, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256;

    /// How many of so many batches were swept, when a swept batch is spared 100 calls and followed by `lost` faults.
    fn swept(worth: &mut Worth, batches: u32, lost: u64) -> u32 {
        (0..batches)
            .filter(|_| {
                let pays = worth.pays();
                worth.saw(if pays { 100 } else { 0 }, if pays { lost } else { 0 }, true);
                pays
            })
            .count() as u32
    }

    #[test]
    fn sweeps_that_lose_are_tried_ever_more_seldom() {
        let mut worth = Worth::new(MOST);
        assert!(swept(&mut worth, 100 * TRIAL, 75) < 10 * TRIAL);
        // As soon as they are found to win they stay.
        assert!(swept(&mut worth, 200 * TRIAL, 5) > 130 * TRIAL);
        assert_eq!(swept(&mut worth, 50 * TRIAL, 37), 50 * TRIAL);
        assert!(swept(&mut worth, 50 * TRIAL, 75) < 8 * TRIAL, "a program that has changed its ways");
    }

    #[test]
    fn a_trial_that_cannot_be_won_is_over() {
        let batches = |lost| {
            let mut worth = Worth::new(MOST);
            (1..).find(|_| (worth.saw(100, lost, true), !worth.pays()).1)
        };
        // After n batches 100 n calls are spared, and 256 (64 - n) could be yet; n times so many faults weigh twice.
        assert_eq!([50, 250, 500, 10_000].map(batches), [64, 25, 15, 1].map(Some));
    }

    #[test]
    fn the_calls_of_sweeps_count() {
        let after = |spared: &[i64]| {
            let mut worth = Worth::new(MOST);
            (0..TRIAL as usize).for_each(|nth| worth.saw(spared[nth % spared.len()], 0, true));
            worth.pays()
        };
        assert!(after(&[200]));
        assert!(!after(&[0]), "nothing won");
        assert!(!after(&[-300, 200]));
        assert!(after(&[-100, 200]));
    }
}
