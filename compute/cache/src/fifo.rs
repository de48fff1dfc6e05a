//! The plain queues: first in, first out, and the clock that turns on rescues.

use crate::pages::Pages;
use crate::{Arrival, Policy};
use farmem_protocol::addr::PageId;

/// First in, first out. Blind to use, hard to fool: the baseline.
pub struct Fifo {
    pages: Pages,
}

impl Fifo {
    /// For `capacity` local pages.
    pub fn new(capacity: usize) -> Fifo {
        Fifo { pages: Pages::new(capacity) }
    }
}

impl Policy for Fifo {
    fn arrived(&mut self, page: PageId, _how: Arrival) {
        if self.pages.queue_of(page).is_none() {
            self.pages.push(page, 0, 0);
        }
    }

    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let from = out.len();
        out.extend(std::iter::from_fn(|| self.pages.pop(0)).take(n).map(|(page, _)| page));
        out[from..].sort_unstable();
    }

    fn upcoming(&self, n: usize, out: &mut Vec<PageId>) {
        out.extend(self.pages.iter(0).take(n).map(|(page, _)| page));
    }

    fn kept(&mut self, page: PageId) {
        self.arrived(page, Arrival::Demand);
    }

    fn gone(&mut self, page: PageId) {
        self.pages.remove(page);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}

/// CLOCK whose reference bit is a rescue: a page that was touched while staged gets one more round.
///
/// The fault-only form of second chance, as VMS and Mach ran it on machines without reference bits
/// (Babaoglu and Joy, SOSP '81). Where nothing is staged it is [`Fifo`].
pub struct Clock {
    pages: Pages,
}

impl Clock {
    /// For `capacity` local pages.
    pub fn new(capacity: usize) -> Clock {
        Clock { pages: Pages::new(capacity) }
    }
}

impl Policy for Clock {
    fn arrived(&mut self, page: PageId, how: Arrival) {
        if self.pages.queue_of(page).is_none() {
            self.pages.push(page, 0, (how == Arrival::Rescue) as u8);
        }
    }

    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let from = out.len();
        while out.len() - from < n {
            match self.pages.front_credit(0) {
                Some(0) => out.extend(self.pages.pop(0).map(|(page, _)| page)),
                Some(_) => _ = self.pages.rotate(0, 0, |_| 0),
                None => break,
            }
        }
        out[from..].sort_unstable();
    }

    fn kept(&mut self, page: PageId) {
        self.arrived(page, Arrival::Rescue);
    }

    fn gone(&mut self, page: PageId) {
        self.pages.remove(page);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}
