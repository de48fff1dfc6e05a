//! The pager as a policy sees it: headroom, batches, a staging ring, a prefetcher.
//!
//! Local memory holds the resident pages and the staged ones. As in the pager,
//! eviction begins when little room is left and makes a batch more; evicted
//! pages go into the ring, whose oldest fall out. A window finds room, or makes
//! it by a batch of its own.

use crate::trace::{Event, Trace, What};
use farmem_cache::prefetch::{Prefetcher, Tally, Window, longest_for};
use farmem_cache::{Arrival, Policy};
use farmem_protocol::addr::PageId;
use std::collections::{HashMap, VecDeque};

/// The pager's sizes.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Local pages, the staged ones among them.
    pub local: usize,
    /// Pages that leave together; at most an eighth of `local` do.
    pub batch: usize,
    /// Staged pages, in thousandths of `local`.
    pub staging: usize,
    /// Fetch ahead?
    pub prefetch: bool,
    /// Windows of at most so many pages, instead of [`longest_for`]'s.
    pub longest: Option<u32>,
}

/// What a replay counts, in pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outcome {
    /// Faults served by the fabric.
    pub demand: u64,
    /// Faults served by the ring.
    pub rescued: u64,
    /// Faults on fresh memory.
    pub fresh: u64,
    /// Pages fetched ahead,
    pub prefetched: u64,
    /// … and touched before they left.
    pub useful: u64,
    /// What the prefetchers believe.
    pub tally: Tally,
}

impl Outcome {
    /// Pages moved in, for comparing what a window costs with what it saves.
    pub fn fetched(&self) -> u64 {
        self.demand + self.prefetched
    }
}

/// Replays a trace; `policy` is made for the given number of resident pages.
pub fn replay(trace: &Trace, setup: Setup, policy: impl FnOnce(usize) -> Box<dyn Policy>) -> Outcome {
    let mut machine = Machine::new(trace, setup, policy);
    for event in &trace.events {
        let number = event.page as usize;
        let how = match (event.what, &mut machine.places[number]) {
            (What::Gone, _) => {
                machine.unmap(event.page);
                continue;
            }
            (_, Place::Resident { unused }) => {
                machine.outcome.useful += std::mem::take(unused) as u64;
                continue;
            }
            (What::Fresh, _) | (_, Place::Nowhere) => Arrival::FirstTouch,
            (_, Place::Staged) => Arrival::Rescue,
            (_, Place::Remote) => Arrival::Demand,
        };
        machine.fault(*event, how);
    }
    for prefetcher in machine.prefetchers.values() {
        machine.outcome.tally.add(prefetcher.tally());
    }
    machine.outcome
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Resident { unused: bool },
    Staged,
    Remote,
}

struct Machine<'a> {
    trace: &'a Trace,
    numbers: HashMap<u64, u32>,
    policy: Box<dyn Policy>,
    places: Vec<Place>,
    resident: usize,
    /// Staged pages, the oldest in front, and how many there may be.
    ring: VecDeque<u32>,
    staging: usize,
    /// Pages that may be resident; from how few free ones on eviction begins; how many leave together.
    room: usize,
    low_room: usize,
    batch: usize,
    /// By thread; none without prefetch.
    prefetchers: HashMap<u8, Prefetcher>,
    longest: Option<u32>,
    window: Window,
    victims: Vec<PageId>,
    outcome: Outcome,
}

impl<'a> Machine<'a> {
    fn new(trace: &'a Trace, setup: Setup, policy: impl FnOnce(usize) -> Box<dyn Policy>) -> Machine<'a> {
        let staging = setup.local * setup.staging / 1000;
        let room = (setup.local - staging).max(8);
        let longest = setup.longest.unwrap_or_else(|| longest_for(room as u64));
        Machine {
            trace,
            numbers: trace.pages.iter().zip(0..).map(|(p, n)| (p.0, n)).collect(),
            policy: policy(room),
            places: vec![Place::Nowhere; trace.pages.len()],
            resident: 0,
            ring: VecDeque::new(),
            staging,
            room,
            low_room: (room / 128).clamp(8, 128).min(room / 8),
            batch: setup.batch.min(room / 8).max(1),
            prefetchers: HashMap::new(),
            longest: setup.prefetch.then_some(longest),
            window: Window::new(),
            victims: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn fault(&mut self, event: Event, how: Arrival) {
        let page = self.trace.pages[event.page as usize];
        if self.resident + self.low_room >= self.room {
            while self.resident + self.low_room + self.batch > self.room {
                self.evict();
            }
        }
        self.window.clear();
        match how {
            Arrival::FirstTouch => self.outcome.fresh += 1,
            Arrival::Rescue => self.outcome.rescued += 1,
            _ => {
                self.outcome.demand += 1;
                if let Some(longest) = self.longest {
                    let new = || Prefetcher::with_longest(longest);
                    let prefetcher = self.prefetchers.entry(event.thread).or_insert_with(new);
                    prefetcher.fault(page, &mut self.window, |page| {
                        let place = self.numbers.get(&page.0).map(|&number| self.places[number as usize]);
                        matches!(place, Some(Place::Resident { .. }))
                    });
                }
            }
        }
        self.unstage(event.page);
        self.places[event.page as usize] = Place::Resident { unused: false };
        self.resident += 1;
        self.policy.arrived(page, how);
        if !self.window.is_empty() {
            self.fetch_window(event.thread);
        }
    }

    fn evict(&mut self) {
        self.victims.clear();
        self.policy.victims(self.batch, &mut self.victims);
        self.resident -= self.victims.len();
        for victim in &self.victims {
            let number = self.numbers[&victim.0];
            self.places[number as usize] = Place::Staged;
            self.ring.push_back(number);
        }
        while self.ring.len() > self.staging
            && let Some(out) = self.ring.pop_front()
        {
            self.places[out as usize] = Place::Remote;
        }
    }

    fn fetch_window(&mut self, thread: u8) {
        let numbers = &self.numbers;
        let known = |page: PageId| numbers.get(&page.0).copied();
        let remote = |places: &[Place], n: u32| places[n as usize] == Place::Remote;
        let wanted = self.window.pages().filter_map(known).filter(|&n| remote(&self.places, n)).count();
        let most = self.room - self.low_room / 2;
        if self.resident + wanted > most {
            self.evict();
        }
        let mut fetched = 0;
        for (index, ahead) in self.window.pages().enumerate() {
            let Some(&number) = self.numbers.get(&ahead.0) else { continue };
            if !remote(&self.places, number) {
                continue;
            }
            if self.resident >= most {
                if let Some(prefetcher) = self.prefetchers.get_mut(&thread) {
                    prefetcher.shortened(&mut self.window, index);
                }
                break;
            }
            self.places[number as usize] = Place::Resident { unused: true };
            self.resident += 1;
            fetched += 1;
            self.policy.arrived(ahead, Arrival::Prefetch);
        }
        self.outcome.prefetched += fetched as u64;
        if let Some(prefetcher) = self.prefetchers.get_mut(&thread) {
            prefetcher.fetched(fetched);
        }
    }

    fn unmap(&mut self, number: u32) {
        self.unstage(number);
        if let Place::Resident { .. } = std::mem::replace(&mut self.places[number as usize], Place::Nowhere) {
            self.policy.gone(self.trace.pages[number as usize]);
            self.resident -= 1;
        }
    }

    fn unstage(&mut self, number: u32) {
        if self.places[number as usize] == Place::Staged {
            self.ring.retain(|page| *page != number);
        }
    }
}
