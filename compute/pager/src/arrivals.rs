//! What the policy has not heard yet: pages that have just come in.
//!
//! Of a page that arrives the policy looks three things up, each in a table larger than a CPU's cache: where its node would
//! be, the node that is there, its ghost. A fault that told it at once would wait for them, one after another. So a
//! fault leaves a note; whoever asks or tells the policy anything else tells it first what there is, all notes together,
//! whose lookups do not wait for one another. That is eviction mostly.
//!
//! Nothing is known later than it is asked for: [`Pager::policy`] is the only way to the policy.

use crate::Pager;
use crate::thread::WINDOW;
use farmem_cache::{Arrival, Policy};
use farmem_protocol::addr::PageId;
use farmem_sys::notes::Notes;
use farmem_sys::sync::Held;

/// Notes at most. Who finds no room tells them all, in a fault: not too many for that.
const MOST: usize = 64;

/// ```text
/// 63                 2 1   0
/// |    page + 1       | how |
/// ```
fn note(page: PageId, how: Arrival) -> u64 {
    (page.0 + 1) << 2 | HOW.iter().position(|&one| one == how).unwrap_or(0) as u64
}

fn read(note: u64) -> (PageId, Arrival) {
    (PageId((note >> 2) - 1), HOW[(note & 3) as usize])
}

const HOW: [Arrival; 4] = [Arrival::Demand, Arrival::Rescue, Arrival::Prefetch, Arrival::FirstTouch];

/// The notes.
pub(crate) struct Arrivals {
    notes: Notes<MOST>,
}

impl Arrivals {
    /// None.
    pub fn new() -> Arrivals {
        Arrivals { notes: Notes::new() }
    }

    fn tell(&self, policy: &mut dyn Policy) {
        let mut heard = [(PageId(0), Arrival::Demand); MOST];
        let mut n = 0;
        self.notes.collect(|note| {
            heard[n] = read(note);
            n += 1;
        });
        if n > 0 {
            policy.all_arrived(&heard[..n]);
        }
    }
}

impl Pager {
    /// The policy, which has heard of all pages that are local.
    pub(crate) fn policy(&self) -> Held<'_, Box<dyn Policy>> {
        let mut policy = self.policy.lock();
        self.arrivals.tell(&mut **policy);
        policy
    }

    /// A page is local now.
    pub(crate) fn arrived(&self, page: PageId, how: Arrival) {
        if !self.arrivals.notes.leave(note(page, how)) {
            self.policy().arrived(page, how);
        }
    }

    /// Pages are local now, that came together: a window, or fresh ones.
    pub(crate) fn all_arrived(&self, mut pages: impl Iterator<Item = PageId>, how: Arrival) {
        let mut policy = self.policy();
        let mut together = [(PageId(0), how); WINDOW];
        loop {
            let n = together.iter_mut().zip(&mut pages).map(|(place, page)| place.0 = page).count();
            policy.all_arrived(&together[..n]);
            if n < WINDOW {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_page_and_way() {
        for how in HOW {
            for page in [0, 1, (1 << 40) - 1] {
                assert!(note(PageId(page), how) != 0 && read(note(PageId(page), how)) == (PageId(page), how));
            }
        }
    }
}
