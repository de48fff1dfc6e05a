//! Do sweeps pay? They spare a protecting call for each run of victims that they find protected, and cost
//! the program a fault for each page that it writes to once more. Which is more, nobody knows beforehand: an array
//! that is written all over gains, a heap of small values in which every page is soon written again loses. So sweeps
//! are tried, and judged by what came of them:
//!
//! ```text
//!            TRIAL batches, balance ≥ 0
//!            ┌──────┐
//!            ▼      │        balance < 0
//!          trial ───┴──────────────────────────► rest: every victim by its own call
//!            ▲                                     │  8 trials long, twice as long after each
//!            └─────────────────────────────────────┘  trial that fails, at most 64
//! ```
//!
//! A fault stops the program for all of its time. A call in the background interrupts it for a part, on another CPU, or for
//! all, on its own: calls of evictions that nobody waits for count three quarters.
//!
//! Pure: what calls and faults took comes in.

/// Batches of a trial.
const TRIAL: u32 = 64;
/// Trials that a rest is long, at least and at most.
const REST: [u32; 2] = [8, 64];

/// See the module.
#[derive(Debug)]
pub struct Worth {
    resting: bool,
    /// Of this trial or rest, to come.
    batches: u32,
    /// What sweeps have won in this trial, ns.
    balance: i64,
    /// Trials that the next rest is long.
    rest: u32,
}

/// What became of one batch.
#[derive(Clone, Copy, Default, Debug)]
pub struct Batch {
    /// Calls that it was spared: runs of victims that were protected already.
    pub spared: u64,
    /// What a call takes of late, ns.
    pub call_ns: u64,
    /// What a sweep takes of late, if it had one, ns.
    pub sweep_ns: u64,
    /// The program waits for it.
    pub awaited: bool,
    /// Faults on swept pages since the last one.
    pub lost: u64,
    /// What such a fault takes, ns.
    pub fault_ns: u64,
}

impl Worth {
    /// Begins with a trial.
    pub fn new() -> Worth {
        Worth { resting: false, batches: TRIAL, balance: 0, rest: REST[0] }
    }

    /// Whether dirty victims are to be swept now.
    #[inline]
    pub fn pays(&self) -> bool {
        !self.resting
    }

    /// Hears of a batch.
    pub fn saw(&mut self, batch: Batch) {
        if !self.resting {
            let calls = (batch.spared * batch.call_ns) as i64 - batch.sweep_ns as i64;
            self.balance += if batch.awaited { calls } else { calls * 3 / 4 };
            self.balance -= (batch.lost * batch.fault_ns) as i64;
        }
        self.batches -= 1;
        if self.batches > 0 {
            return;
        }
        let failed = !self.resting && self.balance < 0;
        self.batches = if failed { self.rest * TRIAL } else { TRIAL };
        match (self.resting, failed) {
            (false, true) => self.rest = (self.rest * 2).min(REST[1]),
            (false, false) => self.rest = REST[0],
            (true, _) => {}
        }
        (self.resting, self.balance) = (failed, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many batches were swept, when a swept batch is followed by `lost` faults.
    fn swept(worth: &mut Worth, batches: u32, lost: u64, awaited: bool) -> u32 {
        (0..batches)
            .filter(|_| {
                let pays = worth.pays();
                let spared = if pays { 100 } else { 0 };
                let lost = if pays { lost } else { 0 };
                worth.saw(Batch { spared, call_ns: 15_000, sweep_ns: 50_000, awaited, lost, fault_ns: 16_000 });
                pays
            })
            .count() as u32
    }

    #[test]
    fn sweeps_that_lose_are_tried_ever_more_seldom() {
        let mut worth = Worth::new();
        assert!(swept(&mut worth, 100 * TRIAL, 80, false) < 10 * TRIAL);
        // As soon as they are found to win they stay.
        assert!(swept(&mut worth, 200 * TRIAL, 5, false) > 130 * TRIAL);
        assert_eq!(swept(&mut worth, 50 * TRIAL, 5, false), 50 * TRIAL);
        assert!(swept(&mut worth, 50 * TRIAL, 80, false) < 8 * TRIAL, "a program that has changed its ways");
    }

    #[test]
    fn where_the_program_waits_for_calls_they_count_in_full() {
        assert!(swept(&mut Worth::new(), 50 * TRIAL, 80, false) < 8 * TRIAL);
        assert_eq!(swept(&mut Worth::new(), 50 * TRIAL, 80, true), 50 * TRIAL);
    }
}
