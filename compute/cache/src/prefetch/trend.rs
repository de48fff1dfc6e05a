//! Faults that no stream explains, and what trend there is in them.
//!
//! *Adjacent*: the fault is next to recent ones, at equal small steps.
//! *Trend*: among the steps from fault to fault, one has the majority
//! (Boyer and Moore's vote), looked for in the last eight faults, then
//! sixteen, then all: Leap (ATC '20), §4.1, algorithm 1. It finds strides of
//! any length, through noise in up to every fourth fault (each spoils two steps).

use farmem_protocol::addr::PageId;

const KEPT: usize = 32;
const SHORTEST_VOTE: usize = 8;
/// Steps of adjacent faults reach this far, in pages.
const NEAR: i64 = 16;

pub(super) struct History {
    faults: [u64; KEPT],
    /// Their low halves.
    lows: [u32; KEPT],
    len: usize,
    next: usize,
    /// Bit i: the i-th last step equals the one before it. Among n steps of which more than half
    /// are equal, two equal ones are neighbours; so where no bit is set there is no majority to
    /// look for, and random faults pay for one test.
    repeats: u32,
}

impl History {
    pub fn new() -> History {
        History { faults: [0; KEPT], lows: [0; KEPT], len: 0, next: 0, repeats: 0 }
    }

    pub fn push(&mut self, page: PageId) {
        self.repeats = self.repeats << 1 | self.repeats_last_step(page) as u32;
        self.faults[self.next] = page.0;
        self.lows[self.next] = page.0 as u32;
        self.next = (self.next + 1) % KEPT;
        self.len = (self.len + 1).min(KEPT);
    }

    /// The `ago`-th last fault, from 0.
    fn ago(&self, ago: usize) -> u64 {
        self.faults[(self.next + KEPT - 1 - ago) % KEPT]
    }

    /// Whether the step to `page` is the step before it again.
    fn repeats_last_step(&self, page: PageId) -> bool {
        page.0.wrapping_sub(self.ago(0)) == self.ago(0).wrapping_sub(self.ago(1))
    }

    /// The step by which `page` continues recent faults: `steps` times for steps of one page, once
    /// more for longer ones.
    pub fn adjacent(&self, page: PageId, steps: u32) -> Option<i64> {
        // Without order and by the low halves first: a loop that the compiler turns into a few
        // vector instructions.
        let lowest = (page.0 as u32).wrapping_sub(NEAR as u32);
        let is_near = |low: &u32| low.wrapping_sub(lowest) <= 2 * NEAR as u32;
        if !self.lows.iter().fold(false, |near, fault| near | is_near(fault)) {
            return None;
        }
        for ago in 0..self.len {
            let step = page.0.wrapping_sub(self.ago(ago)) as i64;
            if step == 0 || step.unsigned_abs() > NEAR as u64 {
                continue;
            }
            let needed = steps + (step.unsigned_abs() > 1) as u32;
            if (2..=needed as i64).all(|k| self.knows(page.0.wrapping_add_signed(-step * k))) {
                return Some(step);
            }
        }
        None
    }

    fn knows(&self, page: u64) -> bool {
        self.faults[..self.len].contains(&page)
    }

    /// The majority's step up to a fault at `page`, if `page` follows it.
    pub fn trend(&self, page: PageId) -> Option<i64> {
        let repeats = self.repeats << 1 | self.repeats_last_step(page) as u32;
        if repeats == 0 {
            return None;
        }
        let mut voters = SHORTEST_VOTE;
        while voters <= self.len {
            // The oldest step's bit compares it with one that has no vote.
            if repeats & ((1u64 << (voters - 1)) - 1) as u32 == 0 {
                voters *= 2;
                continue;
            }
            if let Some(step) = self.majority(page, voters) {
                // With the majority but not on its track: this fault is the noise.
                let on_track =
                    page.0.wrapping_sub(self.ago(0)) as i64 == step || self.knows(page.0.wrapping_add_signed(-step));
                return (step != 0 && on_track).then_some(step);
            }
            voters *= 2;
        }
        None
    }

    fn majority(&self, page: PageId, voters: usize) -> Option<i64> {
        let mut newer = page.0;
        let (mut candidate, mut lead) = (0, 0u32);
        for ago in 0..voters {
            let step = newer.wrapping_sub(self.ago(ago)) as i64;
            newer = self.ago(ago);
            if lead == 0 {
                (candidate, lead) = (step, 1);
            } else if step == candidate {
                lead += 1;
            } else {
                lead -= 1;
            }
        }
        let mut newer = page.0;
        let votes = (0..voters).filter(|&ago| {
            let step = newer.wrapping_sub(self.ago(ago)) as i64;
            newer = self.ago(ago);
            step == candidate
        });
        (votes.count() > voters / 2).then_some(candidate)
    }
}
