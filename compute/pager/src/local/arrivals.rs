//! Pages that have come in and that the policy has not heard of yet.
//!
//! For a page that arrives the policy looks up three things, each in a table larger than a CPU's
//! cache: where the page's node would be, the node that is there, and its ghost. A fault that told
//! the policy at once would wait for the three, one after another. So a fault leaves a note. The
//! next caller that asks or tells the policy anything first hands over all notes together, and
//! their lookups do not wait for one another. That caller is mostly an eviction.
//!
//! Nothing is known later than it is asked for: [`Local::policy`] is the only way to the policy.

use super::Local;
use crate::thread::WINDOW;
use farmem_cache::{Arrival, Policy};
use farmem_protocol::addr::PageId;
use farmem_sys::notes::Notes;
use farmem_sys::sync::Held;

/// The most notes. A fault that finds no room hands all of them over, so they must be few.
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

impl Local {
    /// The policy, once it has heard of all local pages.
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

    /// Pages are local now that came together: a window, or fresh pages.
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
