//! The pager as a policy sees it: batches, a staging ring, a prefetcher.
//!
//! Local memory holds the resident pages and the staged ones. A fault that finds
//! no room evicts a batch; its pages go into the ring, whose oldest fall out.

use crate::trace::Trace;
use farmem_cache::prefetch::{LONGEST, Prefetcher, Tally, Window};
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Fresh,
    Resident { unused: bool },
    Staged,
    Remote,
}

/// Replays a trace; `policy` is made for the given number of resident pages.
pub fn replay(trace: &Trace, setup: Setup, policy: impl FnOnce(usize) -> Box<dyn Policy>) -> Outcome {
    let staging = setup.local * setup.staging / 1000;
    let room = (setup.local - staging).max(2);
    let batch = setup.batch.min(setup.local / 8).max(1);
    let mut policy = policy(room);
    let numbers: HashMap<u64, u32> = trace.pages.iter().zip(0..).map(|(p, n)| (p.0, n)).collect();
    let mut places = vec![Place::Fresh; trace.pages.len()];
    let mut ring = VecDeque::new();
    let mut resident = 0;
    let longest = LONGEST.min(room as u32 / 8);
    let mut prefetchers: HashMap<u8, Prefetcher> = HashMap::new();
    let mut victims = Vec::new();
    let mut outcome = Outcome::default();

    for (&page, &thread) in trace.accesses.iter().zip(&trace.threads) {
        let how = match &mut places[page as usize] {
            Place::Resident { unused } => {
                outcome.useful += std::mem::take(unused) as u64;
                continue;
            }
            Place::Fresh => Arrival::FirstTouch,
            Place::Staged => Arrival::Rescue,
            Place::Remote => Arrival::Demand,
        };
        if resident >= room {
            victims.clear();
            policy.victims(batch, &mut victims);
            for victim in &victims {
                let number = numbers[&victim.0];
                places[number as usize] = Place::Staged;
                ring.push_back(number);
            }
            resident -= victims.len();
        }
        let mut window = Window::new();
        match how {
            Arrival::FirstTouch => outcome.fresh += 1,
            Arrival::Rescue => {
                outcome.rescued += 1;
                ring.retain(|p| *p != page);
            }
            _ => {
                outcome.demand += 1;
                if setup.prefetch {
                    let prefetcher = prefetchers.entry(thread).or_insert_with(|| Prefetcher::with_longest(longest));
                    prefetcher.fault(trace.pages[page as usize], &mut window);
                }
            }
        }
        while ring.len() > staging {
            if let Some(out) = ring.pop_front() {
                places[out as usize] = Place::Remote;
            }
        }
        places[page as usize] = Place::Resident { unused: false };
        resident += 1;
        policy.arrived(trace.pages[page as usize], how);
        for ahead in window.pages() {
            let Some(&number) = numbers.get(&ahead.0) else { continue };
            if places[number as usize] == Place::Remote && resident < room {
                places[number as usize] = Place::Resident { unused: true };
                resident += 1;
                outcome.prefetched += 1;
                policy.arrived(ahead, Arrival::Prefetch);
            }
        }
    }
    for prefetcher in prefetchers.values() {
        let tally = prefetcher.tally();
        outcome.tally.windows += tally.windows;
        outcome.tally.issued += tally.issued;
        outcome.tally.used += tally.used;
        outcome.tally.wasted += tally.wasted;
        outcome.tally.faults += tally.faults;
    }
    outcome
}
