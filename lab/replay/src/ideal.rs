//! Policies that see what user space cannot: every access, or the future.
//!
//! One page at a time, no batches, all of local memory. Each is an [`Ideal`];
//! [`misses`] drives it and counts fetches, which fresh pages are none.

use crate::trace::{Trace, What};
use std::collections::BTreeSet;

trait Ideal {
    /// A local page is used, by the trace's event `now`.
    fn used(&mut self, page: usize, now: usize);
    /// A page becomes local.
    fn came(&mut self, page: usize, now: usize);
    /// Names a local page, which leaves.
    fn victim(&mut self) -> usize;
    /// A local page is unmapped.
    fn gone(&mut self, page: usize);
}

fn misses(trace: &Trace, capacity: usize, ideal: &mut impl Ideal) -> u64 {
    let mut local = vec![false; trace.pages.len()];
    let (mut resident, mut misses) = (0, 0);
    for (now, event) in trace.events.iter().enumerate() {
        let page = event.page as usize;
        match (event.what, local[page]) {
            (What::Gone, true) => {
                ideal.gone(page);
                local[page] = false;
                resident -= 1;
            }
            (What::Gone, false) => {}
            (_, true) => ideal.used(page, now),
            (what, false) => {
                misses += (what == What::Again) as u64;
                if resident == capacity {
                    local[ideal.victim()] = false;
                    resident -= 1;
                }
                ideal.came(page, now);
                local[page] = true;
                resident += 1;
            }
        }
    }
    misses
}

/// Least recently used.
pub fn lru(trace: &Trace, capacity: usize) -> u64 {
    misses(trace, capacity, &mut Lru(List::new(trace.pages.len())))
}

/// CLOCK with reference bits: second chance, as kernels run it.
pub fn clock(trace: &Trace, capacity: usize) -> u64 {
    let n = trace.pages.len();
    misses(trace, capacity, &mut Clock { list: List::new(n), referenced: vec![false; n] })
}

/// SIEVE (Zhang and others, NSDI '24): first in, first out, but a hand that moves over used pages without
/// moving them.
pub fn sieve(trace: &Trace, capacity: usize) -> u64 {
    let n = trace.pages.len();
    misses(trace, capacity, &mut Sieve { list: List::new(n), visited: vec![false; n], hand: NONE })
}

/// 2Q (Johnson and Shasha, VLDB '94), full version: a queue of a quarter for what is new, ghosts for half, and
/// a list by recency for what comes back.
pub fn two_queue(trace: &Trace, capacity: usize) -> u64 {
    let n = trace.pages.len();
    let mut two = TwoQueue {
        new: List::new(n),
        ghosts: List::new(n),
        often: List::new(n),
        new_most: (capacity / 4).max(1),
        ghosts_most: (capacity / 2).max(1),
    };
    misses(trace, capacity, &mut two)
}

/// S3-FIFO (Yang and others, SOSP '23) as its authors have it: a small queue of a tenth, two bits of
/// uses, ghosts for as many as the main queue holds.
pub fn s3_fifo(trace: &Trace, capacity: usize) -> u64 {
    let n = trace.pages.len();
    let mut s3 = S3 {
        small: List::new(n),
        main: List::new(n),
        uses: vec![0; n],
        left_small: vec![0; n],
        departures: 0,
        small_most: (capacity / 10).max(1),
        ghosts: (capacity - capacity / 10) as u64,
    };
    misses(trace, capacity, &mut s3)
}

/// Belady's MIN: the page whose next fetch is farthest leaves. Nothing does better.
pub fn belady(trace: &Trace, capacity: usize) -> u64 {
    // When a page that leaves now would have to be fetched again. A page that is unmapped or found
    // zero before then costs nothing.
    let mut next = vec![usize::MAX; trace.events.len()];
    let mut seen = vec![usize::MAX; trace.pages.len()];
    for (now, event) in trace.events.iter().enumerate().rev() {
        let due = if event.what == What::Again { now } else { usize::MAX };
        next[now] = std::mem::replace(&mut seen[event.page as usize], due);
    }
    misses(trace, capacity, &mut Min { next, due: vec![0; trace.pages.len()], order: BTreeSet::new() })
}

struct Lru(List);

impl Ideal for Lru {
    fn used(&mut self, page: usize, _: usize) {
        self.0.remove(page);
        self.0.push(page);
    }

    fn came(&mut self, page: usize, _: usize) {
        self.0.push(page);
    }

    fn victim(&mut self) -> usize {
        self.0.pop()
    }

    fn gone(&mut self, page: usize) {
        self.0.remove(page);
    }
}

struct Clock {
    list: List,
    referenced: Vec<bool>,
}

impl Ideal for Clock {
    fn used(&mut self, page: usize, _: usize) {
        self.referenced[page] = true;
    }

    fn came(&mut self, page: usize, _: usize) {
        self.referenced[page] = false;
        self.list.push(page);
    }

    fn victim(&mut self) -> usize {
        loop {
            let front = self.list.pop();
            if !std::mem::take(&mut self.referenced[front]) {
                return front;
            }
            self.list.push(front);
        }
    }

    fn gone(&mut self, page: usize) {
        self.list.remove(page);
    }
}

struct Sieve {
    list: List,
    visited: Vec<bool>,
    /// Where the search for a victim goes on, from old to new.
    hand: u32,
}

impl Ideal for Sieve {
    fn used(&mut self, page: usize, _: usize) {
        self.visited[page] = true;
    }

    fn came(&mut self, page: usize, _: usize) {
        self.visited[page] = false;
        self.list.push(page);
    }

    fn victim(&mut self) -> usize {
        let mut at = if self.hand == NONE { self.list.front } else { self.hand };
        while std::mem::take(&mut self.visited[at as usize]) {
            at = self.list.behind[at as usize];
            if at == NONE {
                at = self.list.front;
            }
        }
        self.hand = self.list.behind[at as usize];
        self.list.remove(at as usize);
        at as usize
    }

    fn gone(&mut self, page: usize) {
        if self.hand == page as u32 {
            self.hand = self.list.behind[page];
        }
        self.list.remove(page);
    }
}

struct TwoQueue {
    new: List,
    ghosts: List,
    often: List,
    new_most: usize,
    ghosts_most: usize,
}

impl Ideal for TwoQueue {
    fn used(&mut self, page: usize, _: usize) {
        if self.often.remove(page) {
            self.often.push(page);
        }
    }

    fn came(&mut self, page: usize, _: usize) {
        if self.ghosts.remove(page) { &mut self.often } else { &mut self.new }.push(page);
    }

    fn victim(&mut self) -> usize {
        if self.new.len <= self.new_most && self.often.len > 0 {
            return self.often.pop();
        }
        let page = self.new.pop();
        self.ghosts.push(page);
        if self.ghosts.len > self.ghosts_most {
            self.ghosts.pop();
        }
        page
    }

    fn gone(&mut self, page: usize) {
        let _ = self.new.remove(page) || self.often.remove(page);
    }
}

struct S3 {
    small: List,
    main: List,
    /// By page; uses since it came, up to 3.
    uses: Vec<u8>,
    /// By page: the departure from the small queue that was its; 0 for none.
    left_small: Vec<u64>,
    departures: u64,
    small_most: usize,
    ghosts: u64,
}

impl Ideal for S3 {
    fn used(&mut self, page: usize, _: usize) {
        self.uses[page] = (self.uses[page] + 1).min(3);
    }

    fn came(&mut self, page: usize, _: usize) {
        self.uses[page] = 0;
        let left = std::mem::take(&mut self.left_small[page]);
        let ghost = left > 0 && self.departures - left < self.ghosts;
        if ghost { &mut self.main } else { &mut self.small }.push(page);
    }

    fn victim(&mut self) -> usize {
        loop {
            if self.small.len >= self.small_most || self.main.len == 0 {
                let page = self.small.pop();
                if self.uses[page] > 1 {
                    self.uses[page] = 0;
                    self.main.push(page);
                    continue;
                }
                self.departures += 1;
                self.left_small[page] = self.departures;
                return page;
            }
            let page = self.main.pop();
            if self.uses[page] == 0 {
                return page;
            }
            self.uses[page] -= 1;
            self.main.push(page);
        }
    }

    fn gone(&mut self, page: usize) {
        if !self.small.remove(page) {
            self.main.remove(page);
        }
        self.left_small[page] = 0;
    }
}

struct Min {
    next: Vec<usize>,
    due: Vec<usize>,
    order: BTreeSet<(usize, usize)>,
}

impl Ideal for Min {
    fn used(&mut self, page: usize, now: usize) {
        self.gone(page);
        self.came(page, now);
    }

    fn came(&mut self, page: usize, now: usize) {
        self.due[page] = self.next[now];
        self.order.insert((self.due[page], page));
    }

    fn victim(&mut self) -> usize {
        self.order.pop_last().map_or(0, |(_, page)| page)
    }

    fn gone(&mut self, page: usize) {
        self.order.remove(&(self.due[page], page));
    }
}

const NONE: u32 = u32::MAX;

/// A queue of page numbers; any of them can be taken out.
struct List {
    ahead: Vec<u32>,
    behind: Vec<u32>,
    member: Vec<bool>,
    front: u32,
    back: u32,
    len: usize,
}

impl List {
    fn new(pages: usize) -> List {
        let none = vec![NONE; pages];
        List { ahead: none.clone(), behind: none, member: vec![false; pages], front: NONE, back: NONE, len: 0 }
    }

    fn push(&mut self, page: usize) {
        (self.ahead[page], self.behind[page], self.member[page]) = (self.back, NONE, true);
        match self.back {
            NONE => self.front = page as u32,
            back => self.behind[back as usize] = page as u32,
        }
        self.back = page as u32;
        self.len += 1;
    }

    /// The front; there is one.
    fn pop(&mut self) -> usize {
        let page = self.front as usize;
        self.remove(page);
        page
    }

    fn remove(&mut self, page: usize) -> bool {
        if !std::mem::take(&mut self.member[page]) {
            return false;
        }
        let (ahead, behind) = (self.ahead[page], self.behind[page]);
        match ahead {
            NONE => self.front = behind,
            ahead => self.behind[ahead as usize] = behind,
        }
        match behind {
            NONE => self.back = ahead,
            behind => self.ahead[behind as usize] = ahead,
        }
        self.len -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(trace: &Trace, capacity: usize) -> [u64; 6] {
        [lru, clock, sieve, two_queue, s3_fifo, belady].map(|ideal| ideal(trace, capacity))
    }

    #[test]
    fn a_loop_one_page_too_large_defeats_recency_and_not_foresight() {
        let trace = Trace::from_pages("loop", (0..1000).map(|i| i % 10));
        assert_eq!(lru(&trace, 9), 990);
        assert_eq!(belady(&trace, 9), 110, "one of nine stays away each round");
        assert_eq!(all(&trace, 10), [0; 6]);
    }

    #[test]
    fn a_page_in_steady_use_survives_a_scan() {
        let trace = Trace::from_pages("hot", (0..10_000).map(|i| if i % 2 == 0 { i / 2 % 4 } else { 100 + i }));
        for (misses, name) in all(&trace, 16).into_iter().zip(["LRU", "CLOCK", "SIEVE", "2Q", "S3-FIFO", "MIN"]) {
            assert!(misses < 10, "{name}: {misses} fetches of four pages");
        }
    }

    #[test]
    fn nothing_beats_the_bound() {
        for trace in crate::generate::all(3) {
            let [others @ .., min] = all(&trace, trace.peak / 4);
            assert!(others.iter().all(|&m| m >= min), "{}", trace.name);
        }
    }
}
