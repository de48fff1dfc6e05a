//! The pager as a policy sees it: headroom, batches, a staging ring, a prefetcher.
//!
//! Local memory holds the resident pages and the staged ones. As in the pager,
//! eviction begins when a thirty-second of the room is left, and goes on until
//! a sixteenth is; evicted pages go into the ring, whose oldest fall out.

use crate::trace::{Trace, What};
use farmem_cache::prefetch::{Prefetcher, Tally, Window, longest_for};
use farmem_cache::{Arrival, Policy};
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Resident { unused: bool },
    Staged,
    Remote,
}

/// Replays a trace; `policy` is made for the given number of resident pages.
pub fn replay(trace: &Trace, setup: Setup, policy: impl FnOnce(usize) -> Box<dyn Policy>) -> Outcome {
    let staging = setup.local * setup.staging / 1000;
    let room = (setup.local - staging).max(8);
    let batch = setup.batch.min(setup.local / 8).max(1);
    let low_room = (room / 32).clamp(1, 1024);
    let mut policy = policy(room);
    let numbers: HashMap<u64, u32> = trace.pages.iter().zip(0..).map(|(p, n)| (p.0, n)).collect();
    let mut places = vec![Place::Nowhere; trace.pages.len()];
    let mut ring = VecDeque::new();
    let mut resident = 0;
    let longest = setup.longest.unwrap_or_else(|| longest_for(room as u64));
    let mut prefetchers: HashMap<u8, Prefetcher> = HashMap::new();
    let mut victims = Vec::new();
    let mut window = Window::new();
    let mut outcome = Outcome::default();

    for event in &trace.events {
        let number = event.page as usize;
        let page = trace.pages[number];
        let how = match (event.what, &mut places[number]) {
            (What::Gone, place) => {
                match std::mem::replace(place, Place::Nowhere) {
                    Place::Resident { .. } => {
                        policy.gone(page);
                        resident -= 1;
                    }
                    Place::Staged => ring.retain(|p| *p != event.page),
                    _ => {}
                }
                continue;
            }
            (_, Place::Resident { unused }) => {
                outcome.useful += std::mem::take(unused) as u64;
                continue;
            }
            (What::Fresh, _) | (_, Place::Nowhere) => Arrival::FirstTouch,
            (_, Place::Staged) => Arrival::Rescue,
            (_, Place::Remote) => Arrival::Demand,
        };
        if resident + low_room >= room {
            while resident + 2 * low_room > room {
                victims.clear();
                policy.victims(batch, &mut victims);
                for victim in &victims {
                    let number = numbers[&victim.0];
                    places[number as usize] = Place::Staged;
                    ring.push_back(number);
                }
                resident -= victims.len();
            }
        }
        window.clear();
        match how {
            Arrival::FirstTouch => outcome.fresh += 1,
            Arrival::Rescue => outcome.rescued += 1,
            _ => {
                outcome.demand += 1;
                if setup.prefetch {
                    prefetchers
                        .entry(event.thread)
                        .or_insert_with(|| Prefetcher::with_longest(longest))
                        .fault(page, &mut window);
                }
            }
        }
        if how != Arrival::Demand && places[number] == Place::Staged {
            ring.retain(|p| *p != event.page);
        }
        while ring.len() > staging {
            if let Some(out) = ring.pop_front() {
                places[out as usize] = Place::Remote;
            }
        }
        places[number] = Place::Resident { unused: false };
        resident += 1;
        policy.arrived(page, how);
        let mut fetched = 0;
        for (index, ahead) in window.pages().enumerate() {
            let Some(&number) = numbers.get(&ahead.0) else { continue };
            if places[number as usize] != Place::Remote {
                continue;
            }
            if resident + low_room / 2 >= room {
                if let Some(prefetcher) = prefetchers.get_mut(&event.thread) {
                    prefetcher.shortened(&mut window, index);
                }
                break;
            }
            places[number as usize] = Place::Resident { unused: true };
            resident += 1;
            fetched += 1;
            policy.arrived(ahead, Arrival::Prefetch);
        }
        outcome.prefetched += fetched;
        if let Some(prefetcher) = prefetchers.get_mut(&event.thread).filter(|_| !window.is_empty()) {
            prefetcher.fetched(fetched as u32);
        }
    }
    for prefetcher in prefetchers.values() {
        outcome.tally.add(prefetcher.tally());
    }
    outcome
}
