//! The policy that programs run with: two queues of local pages, and ghosts of pages that left.
//!
//! ```text
//!  arrival ─┬─ unknown, or away too long ─► [ probation ] ─front─► leaves ─► ghost
//!           └─ back soon, or rescued ─────► [ protected ] ─front─┬► leaves ─► ghost
//!                                                ▲               │
//!                                                └── one credit ─┘
//! ```
//!
//! 2Q (Johnson and Shasha, VLDB '94) and S3-FIFO (SOSP '23) have the same picture with other sizes.
//! They ask whether a page was touched while on probation. A pager that sees faults alone can only
//! ask whether the page came back soon after it left. [`Shape`] holds the sizes, so that policies
//! are compared as data and not as code.
//!
//! *Scans.* A page touched once passes through probation and leaves no trace in
//! the protected queue. Victims come from probation while it has more than its
//! share, and while the protected pages are worth their place (*Balance*).
//!
//! *Balance.* A program that goes on to other pages leaves the protected queue full of pages that it
//! no longer needs. Hits of protected pages are unseen, so the new pages would push each other out
//! of their small share for ever. Therefore one victim in [`Shape::look`] is a protected page. For
//! the victims of each queue the policy counts how many come back before all of local memory has
//! been replaced. If protected pages do so less than a third as often as those on probation,
//! victims are protected pages. (ARC, FAST '03, weighs its queues by such returns, too. Here it
//! would learn nothing of protected pages.)
//!
//! *Cold.* Pages that the program has called cold wait in a queue of their own, which victims come
//! from first. They leave no ghost: their leaving says nothing about the other queues.
//!
//! *Credit.* A protected page that keeps coming back soon is in steady use. Each
//! return earns it one more round in the protected queue than the last, up to
//! [`Shape::credit`], and it leaves only when it has spent them. Reference bits do
//! the same in CLOCK; here the evidence is faults that happened anyway.

use crate::ghosts::{Ghost, Ghosts};
use crate::pages::Pages;
use crate::{Arrival, Policy, shares};
use farmem_protocol::addr::PageId;

/// The sizes, in percent of the capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Probation's share: above it, victims come from there.
    pub probation: u32,
    /// A page is back soon if at most this many others left in the meantime.
    pub soon: u32,
    /// Rounds that a page can earn at most, 0–3.
    pub credit: u8,
    /// Once in `look` times, victims are looked for in the queue that they do not come from now, to
    /// see what becomes of them (a page at its front that has a round left loses it). 0: never.
    pub look: u32,
}

/// 2Q with its authors' sizes: A1in a quarter, A1out a half.
pub const TWO_QUEUE: Shape = Shape { probation: 25, soon: 50, credit: 0, look: 0 };
/// S3-FIFO with its authors' sizes: small a tenth, ghosts for as many as main has.
pub const S3_FIFO: Shape = Shape { probation: 10, soon: 90, credit: 0, look: 0 };
/// No ghosts: protected by rescue alone. VMS's and Mach's segmented FIFO with a standby list.
pub const STANDBY: Shape = Shape { probation: 50, soon: 0, credit: 0, look: 0 };
/// The one in use.
pub const RECOMMENDED: Shape = Shape { probation: 5, soon: 25, credit: 3, look: 64 };

const PROBATION: usize = 0;
const PROTECTED: usize = 1;
const COLD: usize = 2;
/// A page's four bits of credit: returns in a row, 0–3, above the rounds it has left, 0–3.
const ROUNDS: u8 = 3;
const MOST_RETURNS: u8 = 3;
/// The number of victims over which the share that comes back is counted: the capacity divided by
/// the first number, but at least the second.
const WINDOW: (usize, u64) = (16, 16);
/// The least number of victims of which a share is taken: at most half a window, which is what
/// halving leaves.
const ENOUGH: u64 = 8;

/// Of the pages that left a queue recently, how many were *needed*. A needed page came back before
/// as many others had left as local memory holds. One queue over all of memory would have kept it.
#[derive(Clone, Copy, Default)]
struct Fate {
    left: u64,
    needed: u64,
}

impl Fate {
    /// A page leaves. Counts are halved beyond the window, so that the last ones weigh most.
    fn leaves(&mut self, window: u64) {
        self.left += 1;
        if self.left > window {
            self.left /= 2;
            self.needed /= 2;
        }
    }

    /// A needed page came back. `needed` never exceeds `left`: the page may have left before the
    /// counts were halved, or while more victims came from this queue.
    fn comes_back(&mut self) {
        self.needed = self.left.min(self.needed + 1);
    }

    /// A page that was to leave stays, because it is in use.
    fn stays(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.needed = self.left.min(self.needed);
    }

    /// Whether this queue's pages are needed less than a third as often as the other queue's.
    fn is_staler_than(&self, other: &Fate) -> bool {
        self.left >= ENOUGH && 3 * self.needed * other.left < other.needed * self.left
    }
}

/// The policy.
pub struct Segments {
    pages: Pages,
    ghosts: Ghosts,
    shape: Shape,
    /// Probation's share, pages.
    probation: usize,
    soon: u64,
    capacity: u64,
    window: u64,
    /// The fate of each queue's victims.
    fates: [Fate; 2],
    /// See [`Policy::returned`].
    returned: u64,
    /// Counts the choices between the queues, so that one in [`Shape::look`] is the other way.
    turn: u32,
}

impl Segments {
    /// For `capacity` local pages.
    pub fn new(capacity: usize, shape: Shape) -> Segments {
        let share = |percent: u32| (capacity as u64 * percent as u64 / 100) as usize;
        Segments {
            pages: Pages::new(capacity),
            ghosts: Ghosts::new(capacity),
            shape,
            probation: share(shape.probation),
            soon: share(shape.soon) as u64,
            capacity: capacity as u64,
            window: ((capacity / WINDOW.0) as u64).max(WINDOW.1),
            fates: [Fate::default(); 2],
            returned: 0,
            turn: 0,
        }
    }

    fn place(&mut self, page: PageId, how: Arrival) {
        let ghost = self.ghosts.take(page);
        if let Some(ghost) = ghost
            && matches!(how, Arrival::Demand | Arrival::Rescue)
            && ghost.distance < self.capacity
        {
            self.returned += u64::from(ghost.distance < self.capacity / shares::DEPTH);
            self.fates[queue_of(ghost.returns)].comes_back();
        }
        let soon = ghost.filter(|g| g.distance < self.soon);
        let (queue, returns) = match (how, soon) {
            // Not asked for yet; and fresh memory has no past.
            (Arrival::Prefetch | Arrival::FirstTouch, _) => (PROBATION, 0),
            (Arrival::Rescue, _) => (PROTECTED, ghost.map_or(0, |g| g.returns + 1)),
            (Arrival::Demand, Some(Ghost { returns, .. })) => (PROTECTED, returns + 1),
            (Arrival::Demand, None) => (PROBATION, 0),
        };
        let returns = returns.min(MOST_RETURNS);
        self.pages.push(page, queue, returns << 2 | returns.min(self.shape.credit));
    }

    /// The front of a queue leaves.
    fn leaves(&mut self, queue: usize, out: &mut Vec<PageId>) {
        let Some((page, credit)) = self.pages.pop(queue) else { return };
        let returns = if queue == PROTECTED { (credit >> 2).max(1) } else { 0 };
        self.ghosts.left(page, returns);
        self.fates[queue].leaves(self.window);
        out.push(page);
    }

    /// Whether the next victim is on probation.
    fn takes_probation(&mut self) -> bool {
        let on_probation = self.pages.queue_len(PROBATION);
        if on_probation == 0 || self.pages.queue_len(PROTECTED) == 0 {
            return on_probation > 0;
        }
        if self.shape.look == 0 {
            return on_probation > self.probation;
        }
        self.turn = self.turn.wrapping_add(1);
        let looks = self.turn.is_multiple_of(self.shape.look);
        on_probation > self.probation && self.protected_is_stale() == looks
    }

    fn protected_is_stale(&self) -> bool {
        self.fates[PROTECTED].is_staler_than(&self.fates[PROBATION])
    }
}

/// The queue that a ghost left. A page that leaves the protected queue has at least one hit.
fn queue_of(returns: u8) -> usize {
    if returns > 0 { PROTECTED } else { PROBATION }
}

impl Policy for Segments {
    fn arrived(&mut self, page: PageId, how: Arrival) {
        if self.pages.queue_of(page).is_none() {
            self.place(page, how);
        }
    }

    fn all_arrived(&mut self, pages: &[(PageId, Arrival)]) {
        self.pages.expect(pages.iter().map(|&(page, _)| page));
        self.ghosts.expect(pages.iter().map(|&(page, _)| page));
        pages.iter().for_each(|&(page, how)| self.arrived(page, how));
    }

    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let queue = if self.pages.queue_len(PROBATION) > self.probation { PROBATION } else { PROTECTED };
        self.pages.expect(self.pages.iter(queue).take(n).map(|(page, _)| page));
        self.ghosts.expect(self.pages.iter(queue).take(n).map(|(page, _)| page));
        let from = out.len();
        while out.len() - from < n && self.pages.len() > 0 {
            if let Some((cold, _)) = self.pages.pop(COLD) {
                out.push(cold);
                continue;
            }
            if self.takes_probation() {
                self.leaves(PROBATION, out);
                continue;
            }
            match self.pages.front_credit(PROTECTED) {
                Some(credit) if credit & ROUNDS > 0 => {
                    self.pages.rotate(PROTECTED, PROTECTED, |credit| credit - 1);
                }
                _ => self.leaves(PROTECTED, out),
            }
        }
        out[from..].sort_unstable();
    }

    /// Of both queues, in proportion to what they hold beyond the other's share: which one victims
    /// will come from depends on who arrives meanwhile. Where what is protected is stale, of that.
    fn upcoming(&self, n: usize, out: &mut Vec<PageId>) {
        let stale = self.shape.look > 0 && self.protected_is_stale();
        let protected = if stale { n } else { n - n / 2 };
        let probation = n - protected.min(self.pages.queue_len(PROTECTED));
        let spare = |(page, credit)| (credit == 0 || stale && credit & ROUNDS == 0).then_some(page);
        let from = out.len();
        out.extend(self.pages.iter(COLD).take(n).map(|(page, _)| page));
        let probation = probation.min(n - (out.len() - from));
        out.extend(self.pages.iter(PROBATION).take(probation).map(|(page, _)| page));
        let rest = n - (out.len() - from);
        out.extend(self.pages.iter(PROTECTED).take(rest).filter_map(spare));
    }

    fn kept(&mut self, page: PageId) {
        if self.pages.queue_of(page).is_none() {
            if let Some(ghost) = self.ghosts.take(page) {
                self.fates[queue_of(ghost.returns)].stays();
            }
            self.pages.push(page, PROTECTED, 0);
        }
    }

    fn demote(&mut self, page: PageId) {
        if self.pages.remove(page) {
            self.pages.push(page, COLD, 0);
        }
    }

    fn gone(&mut self, page: PageId) {
        if !self.pages.remove(page) {
            self.ghosts.take(page);
        }
    }

    fn returned(&self) -> u64 {
        self.returned
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Faults of a loop over pages that fit, in the place of others, which were protected.
    fn faults_after_a_change(shape: Shape) -> u64 {
        const CAPACITY: usize = 1000;
        let mut policy = Segments::new(CAPACITY, shape);
        let (mut local, mut out, mut faults) = (BTreeSet::new(), Vec::new(), 0);
        for step in 0..150_000u64 {
            // 800 pages, and a scan beside them that pushes some out, which come back soon; then
            // 800 others.
            let (old, scan) = (step < 50_000, step < 50_000 && step % 10 == 0);
            let page = if scan { 10_000 + step } else { step * 7 % 800 + 2_000 * (!old) as u64 };
            if local.insert(page) {
                faults += (step >= 80_000) as u64;
                policy.arrived(PageId(page), Arrival::Demand);
                while local.len() > CAPACITY {
                    out.clear();
                    policy.victims(50, &mut out);
                    out.iter().for_each(|page| _ = local.remove(&page.0));
                }
            }
        }
        faults
    }

    /// Else what is pinned would look like pages that never come back, and be named again and
    /// again.
    #[test]
    fn pages_that_cannot_leave_tell_nothing() {
        const CAPACITY: u64 = 4000;
        let mut policy = Segments::new(CAPACITY as usize, RECOMMENDED);
        let (mut local, mut out) = (BTreeSet::new(), Vec::new());
        let (mut named, mut left) = (0, 0);
        for step in 0..40 * CAPACITY {
            let page = (step * 2_654_435_761) % (3 * CAPACITY / 2);
            if local.insert(page) {
                policy.arrived(PageId(page), Arrival::Demand);
            }
            while local.len() as u64 > CAPACITY {
                out.clear();
                policy.victims(250, &mut out);
                named += out.len();
                for page in &out {
                    if page.0 < 300 {
                        policy.kept(*page);
                    } else {
                        left += local.remove(&page.0) as usize;
                    }
                }
            }
        }
        assert!(named < 2 * left, "{named} named, {left} left");
    }

    #[test]
    fn cold_pages_leave_first_in_the_order_in_which_they_were_called_so() {
        let mut policy = Segments::new(100, RECOMMENDED);
        (0..100).for_each(|page| policy.arrived(PageId(page), Arrival::Demand));
        [70, 3, 90, 500].into_iter().for_each(|page| policy.demote(PageId(page)));
        assert_eq!(policy.len(), 100, "a page that is not local stays unknown");
        let mut out = Vec::new();
        policy.upcoming(2, &mut out);
        assert_eq!(out, [70, 3].map(PageId));
        out.clear();
        policy.victims(2, &mut out);
        assert_eq!(out, [3, 70].map(PageId));
        // One cannot leave, and is in use.
        policy.kept(PageId(3));
        out.clear();
        policy.victims(2, &mut out);
        assert_eq!(out, [0, 90].map(PageId));
        (0..98).for_each(|_| policy.victims(1, &mut out));
        assert!(policy.is_empty() && out.len() == 99);
    }

    #[test]
    fn what_was_protected_gives_way_when_the_program_goes_on() {
        let never_looks = faults_after_a_change(Shape { look: 0, ..RECOMMENDED });
        let looks = faults_after_a_change(RECOMMENDED);
        assert!(looks * 20 < never_looks, "{looks}, {never_looks}");
    }
}
