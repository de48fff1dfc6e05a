//! How a batch's writable victims are to be protected: each by a call of its own, with its neighbours, or by a sweep over all
//! that lies around them ([`crate::sweep`], which does it).
//!
//! ```text
//!   calls are cheap, or sweeps do not pay ──────────────────► calls
//!   more than an eighth of the batch takes a call for itself ► sweep
//!   less than an eighth is writable at all ─────────────────► where sweeps have passed: in use, they stay
//!   many, close together ───────────────────────────────────► calls
//! ```

use crate::evict::Leaving;
use crate::worth::Worth;
use farmem_protocol::addr::PageId;

/// A protecting call that takes longer interrupts other CPUs. Somewhat more than an upgrade costs.
const DEAR_NS: u64 = 2_500;
/// Writable victims, and calls for them, are few, and not worth a sweep, up to this part of a batch.
const PART: usize = 8;
/// Stretches are joined over gaps of so many pages: walking them costs some 10 ns each.
const GAP: u64 = 256;
/// A stretch in which nothing leaves now is swept from so many pages on: for fewer, their own call later is as good.
const WORTHY: usize = 4;
/// How many of the pages that leave next are swept, at most.
const AHEAD: usize = 16_384;

/// What sweeps remember.
pub struct Sweeps {
    /// However cheap calls are (for tests).
    pub always: bool,
    /// What a call for some neighbouring victims takes of late, ns.
    call_ns: u64,
    /// Pages to protect; kept for its memory.
    pub wanted: Vec<PageId>,
    /// How many of the pages that leave next go along.
    pub ahead: usize,
    worth: Worth,
    /// Faults on swept pages, as [`crate::Pager::upgrade`] counts them, when last looked at.
    lost: u64,
}

impl Sweeps {
    /// For a cache of `limit` pages, of which `batch` leave together at most. `always`: however cheap calls are.
    pub fn new(limit: usize, batch: usize, always: bool) -> Sweeps {
        let ahead = (limit / 8).min(AHEAD);
        Sweeps { always, call_ns: 0, wanted: Vec::new(), ahead, worth: Worth::new(batch), lost: 0 }
    }

    /// Whether protecting calls are dear of late.
    pub fn dear(&self) -> bool {
        self.call_ns > DEAR_NS
    }

    /// Follows the median: a mean would take one lost time slice for a thousand dear calls.
    pub fn call_took(&mut self, ns: u64) {
        let step = self.call_ns / 8;
        self.call_ns = if ns > self.call_ns { self.call_ns + step + 50 } else { self.call_ns - step };
    }

    /// How a batch's writable pages are to be protected.
    pub fn how(&self, leaving: &[Leaving]) -> How {
        let few = leaving.len() / PART;
        let pays = self.dear() && self.worth.pays();
        if !self.always && !pays {
            How::Calls
        } else if calls(leaving, |l| l.from.writable()) > few {
            How::Sweep
        } else if leaving.iter().filter(|l| l.from.writable()).count() <= few {
            How::Few
        } else {
            How::Calls
        }
    }

    /// What has come of the sweeps, for [`Worth`]: a batch that leaves has taken so many calls. Batches whose dirty pages
    /// lie together end no trial, for they take few calls in any case; what sweeps cost meanwhile is the trial's all the same.
    /// While calls are cheap nothing is learned, and nothing kept for later. Batches without a dirty page make
    /// no call that would tell what calls cost now; over some of them it is forgotten.
    pub fn judge(&mut self, leaving: &[Leaving], taken: usize, all_lost: u64) {
        let lost = all_lost - std::mem::replace(&mut self.lost, all_lost);
        if self.dear() {
            let alone = calls(leaving, |l| l.from.dirty());
            self.worth.saw(alone as i64 - taken as i64, lost, alone > leaving.len() / PART);
            if alone == 0 {
                self.call_ns -= self.call_ns / 8;
            }
        }
    }
}

/// See [`Sweeps::how`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// With all that lies around them.
    Sweep,
    /// Where sweeps have passed: all but one stay.
    Few,
    /// By themselves.
    Calls,
}

/// Protecting calls that it takes to reach all `which` of the pages that leave, which are in ascending order: one for those
/// that lie together, with nothing between them but what leaves too.
fn calls(leaving: &[Leaving], which: impl Fn(&Leaving) -> bool) -> usize {
    leaving.chunk_by(neighbours).filter(|together| together.iter().any(&which)).count()
}

pub fn neighbours(a: &Leaving, b: &Leaving) -> bool {
    a.page.0 + 1 == b.page.0
}

/// What a sweep reaches of the pages it is wanted for, in ascending order.
pub fn stretches(wanted: &[PageId], leaves: impl Fn(PageId) -> bool) -> impl Iterator<Item = &[PageId]> {
    let stretches = wanted.chunk_by(|a, b| b.0 - a.0 <= GAP);
    stretches.filter(move |stretch| stretch.len() >= WORTHY || stretch.iter().any(|&page| leaves(page)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::{State, Word};

    #[test]
    fn a_lost_time_slice_makes_no_call_dear() {
        let mut sweeps = Sweeps::new(1 << 16, 256, false);
        let mut took = |ns, n| {
            (0..n).for_each(|_| sweeps.call_took(ns));
            sweeps.call_ns
        };
        assert!((500..800).contains(&took(600, 200)));
        took(3_000_000, 3);
        assert!(took(600, 3) < DEAR_NS);
        assert!(took(15_000, 60) > DEAR_NS, "a second thread has started");
        assert!(took(600, 60) < DEAR_NS, "it has ended");
    }

    /// Pages that leave: where each is, and whether it is writable, or dirty and protected by a sweep.
    fn batch(pages: impl Iterator<Item = (u64, bool)>) -> Vec<Leaving> {
        let dirty = Word::UNTOUCHED.to(State::Resident).with_dirty(true);
        let leaving = |(page, writable): (u64, bool)| {
            let from = dirty.with_protected(!writable);
            Leaving { page: PageId(page), from, to: from }
        };
        pages.map(leaving).collect()
    }

    fn dear() -> Sweeps {
        let mut sweeps = Sweeps::new(1 << 16, 256, false);
        (0..60).for_each(|_| sweeps.call_took(15_000));
        sweeps
    }

    #[test]
    fn neighbours_take_one_call_whatever_sweeps_have_passed() {
        let every_second = batch((0..256).map(|n| (n, n % 2 == 0)));
        assert_eq!(calls(&every_second, |l| l.from.writable()), 1);
        assert_eq!(dear().how(&every_second), How::Calls, "no sweep is made for them, and none goes unjudged");
        let scattered = batch((0..256).map(|n| (2 * n, n % 2 == 0)));
        assert_eq!(calls(&scattered, |l| l.from.writable()), 128);
        assert_eq!(dear().how(&scattered), How::Sweep);
        assert_eq!(dear().how(&batch((0..256).map(|n| (2 * n, n % 16 == 0)))), How::Few);
        assert_eq!(Sweeps::new(1 << 16, 256, false).how(&scattered), How::Calls);
    }

    #[test]
    fn what_sweeps_lose_is_charged_wherever_it_falls() {
        let mut sweeps = dear();
        let (scattered, together) = (batch((0..256).map(|n| (2 * n, true))), batch((0..256).map(|n| (n, false))));
        let (mut swept, mut lost) = (0, 0);
        while sweeps.how(&scattered) == How::Sweep {
            sweeps.judge(&scattered, 1, lost);
            // All that was swept is written to while neighbours leave.
            lost += 256;
            sweeps.judge(&together, 0, lost);
            swept += 1;
        }
        assert_eq!(swept, 32, "by then the other half of the trial could not make up for it");

        // … but not what falls while calls are cheap.
        let mut sweeps = dear();
        (0..60).for_each(|_| sweeps.call_took(600));
        sweeps.judge(&scattered, 256, 1 << 20);
        (0..60).for_each(|_| sweeps.call_took(15_000));
        (0..64).for_each(|_| sweeps.judge(&scattered, 1, 1 << 20));
        assert_eq!(sweeps.how(&scattered), How::Sweep);
    }

    #[test]
    fn who_only_reads_is_forgiven() {
        let (clean, swept) = (Word::UNTOUCHED.to(State::Resident), batch((0..256).map(|n| (2 * n, false))));
        let reads: Vec<_> = (0..256).map(|n| Leaving { page: PageId(2 * n), from: clean, to: clean }).collect();
        let mut sweeps = dear();
        (0..64).for_each(|_| sweeps.judge(&swept, 0, 0));
        assert!(sweeps.dear(), "sweeps spare the calls, whose price stays");
        (0..32).for_each(|_| sweeps.judge(&reads, 0, 0));
        assert!(!sweeps.dear());
    }

    #[test]
    fn sweeps_over_pages_far_apart_are_no_gain() {
        let mut sweeps = dear();
        let far_apart = batch((0..256).map(|n| (n * 2 * GAP, true)));
        for _ in 0..64 {
            assert_eq!(sweeps.how(&far_apart), How::Sweep);
            sweeps.judge(&far_apart, 256, 0);
        }
        assert_eq!(sweeps.how(&far_apart), How::Calls);
    }

    #[test]
    fn no_call_is_made_ahead_for_hardly_a_page() {
        let wanted = [1, 2, 3, 10_000, 10_001, 20_000, 30_000, 30_256, 30_512, 30_768].map(PageId);
        let reached: Vec<u64> = stretches(&wanted, |page| page.0 == 20_000).map(|stretch| stretch[0].0).collect();
        assert_eq!(reached, [20_000, 30_000]);
    }
}
