//! stub
#![allow(missing_docs, clippy::len_without_is_empty, clippy::new_without_default)]
use farmem_protocol::addr::PageId;
use std::collections::VecDeque;
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    FirstTouch,
    Demand,
    Prefetch,
    Rescue,
}
pub trait Policy: Send {
    fn arrived(&mut self, page: PageId, how: Arrival);
    fn victims(&mut self, n: usize, out: &mut Vec<PageId>);
    fn kept(&mut self, page: PageId);
    fn gone(&mut self, page: PageId);
    fn len(&self) -> usize;
}
struct Fifo(VecDeque<PageId>);
impl Policy for Fifo {
    fn arrived(&mut self, page: PageId, _: Arrival) {
        self.0.push_back(page)
    }
    fn victims(&mut self, n: usize, out: &mut Vec<PageId>) {
        let n = n.min(self.0.len());
        out.extend(self.0.drain(..n));
        out.sort_unstable();
    }
    fn kept(&mut self, page: PageId) {
        self.0.push_back(page)
    }
    fn gone(&mut self, _page: PageId) {}
    fn len(&self) -> usize {
        self.0.len()
    }
}
pub fn recommended(_: usize) -> Box<dyn Policy> {
    Box::new(Fifo(VecDeque::new()))
}
pub mod prefetch {
    use super::*;
    pub struct Prefetcher {
        last: u64,
        run: u64,
    }
    impl Prefetcher {
        pub fn new() -> Self {
            Prefetcher { last: 0, run: 0 }
        }
        pub fn fault(&mut self, page: PageId, w: &mut Window) {
            if page.0 == self.last {
                self.run = (self.run * 2).clamp(1, 32)
            } else {
                self.run = 0
            }
            w.n = self.run;
            w.from = page.0 + 1;
            self.last = page.0 + 1 + w.n;
        }
    }
    pub struct FirstTouch {
        next: u64,
        n: usize,
    }
    impl FirstTouch {
        pub fn new() -> Self {
            FirstTouch { next: 0, n: 1 }
        }
        pub fn touch(&mut self, page: PageId) -> usize {
            if page.0 == self.next {
                self.n = (self.n * 2).min(64)
            } else {
                self.n = 1
            }
            self.next = page.0 + self.n as u64;
            self.n
        }
    }
    pub struct Window {
        from: u64,
        n: u64,
    }
    impl Window {
        pub fn new() -> Self {
            Window { from: 0, n: 0 }
        }
        pub fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
            (self.from..self.from + self.n).map(PageId)
        }
    }
}
