//! Probation, protection, and the memory of those who left.
//!
//! ```text
//!  arrival ─┬─ unknown, or away too long ─► [ probation ] ─front─► leaves ─► ghost
//!           └─ back soon, or rescued ─────► [ protected ] ─front─┬► leaves ─► ghost
//!                                                ▲               │
//!                                                └── one credit ─┘
//! ```
//!
//! 2Q (Johnson and Shasha, VLDB '94) and S3-FIFO (SOSP '23) are this picture
//! with different sizes, once the evidence is reduced to faults: where they ask
//! "was it touched while on probation?", here only "did it come back soon
//! after it left?" can be asked. [`Shape`] holds the sizes, so that they
//! are compared as data and not as code.
//!
//! *Scans.* A page touched once passes through probation and leaves no trace in
//! the protected queue. Victims come from probation while that has more than
//! its share.
//!
//! *Credit.* A protected page that keeps coming back soon is in steady use: each
//! return earns it one more round in the protected queue than the last, up to
//! [`Shape::credit`], and it leaves only when it has spent them. It is what
//! reference bits do in CLOCK, paid for by the faults it already cost.

use crate::ghosts::{Ghost, Ghosts};
use crate::pages::Pages;
use crate::{Arrival, Policy, Whereabouts};
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
}

/// 2Q with its authors' sizes: A1in a quarter, A1out a half.
pub const TWO_QUEUE: Shape = Shape { probation: 25, soon: 50, credit: 0 };
/// S3-FIFO with its authors' sizes: small a tenth, ghosts for as many as main has.
pub const S3_FIFO: Shape = Shape { probation: 10, soon: 90, credit: 0 };
/// No ghosts: protected by rescue alone. VMS's and Mach's segmented FIFO with a standby list.
pub const STANDBY: Shape = Shape { probation: 50, soon: 0, credit: 0 };
/// The one in use.
pub const RECOMMENDED: Shape = Shape { probation: 10, soon: 25, credit: 3 };

const PROBATION: usize = 0;
const PROTECTED: usize = 1;
/// A page's four bits of credit: returns in a row, 0–3, above the rounds it has left, 0–3.
const ROUNDS: u8 = 3;
const MOST_RETURNS: u8 = 3;

/// The policy.
pub struct Segments {
    pages: Pages,
    ghosts: Ghosts,
    shape: Shape,
    /// Pages.
    probation: usize,
    soon: u64,
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
        }
    }

    fn place(&mut self, page: PageId, how: Arrival) {
        let ghost = self.ghosts.take(page);
        let soon = ghost.filter(|g| g.distance < self.soon);
        let (queue, returns) = match (how, soon) {
            // Nobody asked for it yet; and fresh memory has no past.
            (Arrival::Prefetch | Arrival::FirstTouch, _) => (PROBATION, 0),
            (Arrival::Rescue, _) => (PROTECTED, ghost.map_or(0, |g| g.hits + 1)),
            (Arrival::Demand, Some(Ghost { hits, .. })) => (PROTECTED, hits + 1),
            (Arrival::Demand, None) => (PROBATION, 0),
        };
        let returns = returns.min(MOST_RETURNS);
        self.pages.push(page, queue, returns << 2 | returns.min(self.shape.credit));
    }
}

impl Policy for Segments {
    fn arrived(&mut self, page: PageId, how: Arrival) {
        if self.pages.queue_of(page).is_none() {
            self.place(page, how);
        }
    }

    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let from = out.len();
        while out.len() - from < n {
            let on_probation = self.pages.queue_len(PROBATION);
            if on_probation > 0 && (on_probation > self.probation || self.pages.queue_len(PROTECTED) == 0) {
                if let Some((page, _)) = self.pages.pop(PROBATION) {
                    self.ghosts.left(page, 0);
                    out.push(page);
                }
                continue;
            }
            match self.pages.front_credit(PROTECTED) {
                Some(credit) if credit & ROUNDS == 0 => {
                    if let Some((page, credit)) = self.pages.pop(PROTECTED) {
                        self.ghosts.left(page, credit >> 2);
                        out.push(page);
                    }
                }
                Some(_) => _ = self.pages.rotate(PROTECTED, PROTECTED, |credit| credit - 1),
                None => break,
            }
        }
        out[from..].sort_unstable();
    }

    /// Of both queues, in proportion to what they hold beyond the other's share: which one victims will
    /// come from depends on who arrives meanwhile.
    fn upcoming(&self, n: usize, out: &mut Vec<PageId>) {
        let spare = |(page, credit)| (credit == 0).then_some(page);
        let probation = n / 2 + (n / 2).saturating_sub(self.pages.queue_len(PROTECTED));
        let from = out.len();
        out.extend(self.pages.iter(PROBATION).take(probation).map(|(page, _)| page));
        let rest = n - (out.len() - from);
        out.extend(self.pages.iter(PROTECTED).take(rest).filter_map(spare));
    }

    fn kept(&mut self, page: PageId) {
        if self.pages.queue_of(page).is_none() {
            self.ghosts.take(page);
            self.pages.push(page, PROTECTED, 0);
        }
    }

    fn gone(&mut self, page: PageId) {
        if !self.pages.remove(page) {
            self.ghosts.take(page);
        }
    }

    fn whereabouts(&self) -> Vec<Whereabouts> {
        vec![self.pages.whereabouts(), self.ghosts.whereabouts()]
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}
