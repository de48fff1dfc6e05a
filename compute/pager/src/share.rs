//! A share of local memory for the program's far objects (`farmem-objects`): one `--local` for
//! both.
//!
//! Objects take their pages here before they touch them. The pages count as resident, so the limit
//! holds at every instant over both, and pages of the program leave where that is needed.
//!
//! How much they may have is weighed by gain ([`farmem_cache::shares`]). Heaps ask now and then
//! ([`Share::weigh`]): they tell what their misses cost, and learn how much they may take or have to
//! give. Pages always have a quarter of local memory, so that the program itself can go on. Scopes
//! that hold all their objects can count on half, if pages had gained more before ([`Share::need`]).
//!
//! Long calls pin pages. These and the pages of objects together are not more than local memory. The
//! one that comes later waits, or goes without ([`crate::local::crowd`]).

use crate::base::Base;
use crate::local::Local;
use crate::room::Room;
use farmem_cache::shares::{Shares, Side};
use farmem_protocol::addr::PAGE_BYTES;
use farmem_run::counters::Histogram;
use farmem_sys::raw::SignalsBlocked;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that are reserved together: fewer than the smallest batch of evictions.
const STEP: u64 = 8;
/// Scopes can count on one part in this many of local memory, …
const SURE: u64 = 2;
/// … and get it by one part in this many, …
const NEEDED: u64 = 32;
/// … or by this many pages, if that is more.
const LEAST_NEEDED: u64 = 32;
/// A fault that was held up counts for this many at most.
const HELD_UP: u64 = 4;
/// Rounds in which the mean without them is found: each brings it nearer by half and more.
const ROUNDS: usize = 16;

/// The share of far objects.
pub struct Share {
    base: &'static Base,
    local: &'static Local,
    room: &'static Room,
    /// Pages that objects have.
    taken: AtomicU64,
    /// Pages that they may have now.
    may: AtomicU64,
    weighed: Lock<Weighed>,
}

/// The shares, and what was counted when they were last weighed.
struct Weighed {
    shares: Shares,
    demand: u64,
    soon: u64,
}

impl Share {
    pub(crate) fn new(base: &'static Base, local: &'static Local, room: &'static Room) -> Share {
        let shares = Shares::new(local.limit());
        let may = AtomicU64::new(shares.objects(local.limit()));
        let weighed = Lock::new(Weighed { shares, demand: 0, soon: 0 });
        Share { base, local, room, taken: AtomicU64::new(0), may, weighed }
    }

    /// Pages that objects can ever have in all.
    pub fn most(&self) -> u64 {
        *Shares::bounds(self.local.limit()).end()
    }

    /// Objects have missed this much since the last call. Returns how many pages they may take now,
    /// or have to give if negative.
    ///
    /// As [`Share::take`].
    pub fn weigh(&self, objects: Side) -> i64 {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let soon = self.local.policy().returned();
        let demand = self.base.counters.demand.load(Ordering::Relaxed);
        let (limit, taken) = (self.local.limit(), self.taken.load(Ordering::Relaxed));
        let mut weighed = self.weighed.lock();
        let (misses, back) = (demand.saturating_sub(weighed.demand), soon.saturating_sub(weighed.soon));
        (weighed.demand, weighed.soon) = (demand, soon);
        let each = mean(&self.base.counters.latency);
        let pages = Side { pages: misses, cost: misses * each, saved: back.min(misses) * each };
        if weighed.shares.count(limit, taken, pages, objects) {
            self.may.store(weighed.shares.objects(limit), Ordering::Relaxed);
        }
        self.may.load(Ordering::Relaxed).cast_signed() - taken.cast_signed()
    }

    /// A scope holds all that objects may have, and needs more. They may have a step more until the
    /// next look at the shares. Returns how many pages they may take now.
    pub fn need(&self) -> u64 {
        let (limit, taken) = (self.local.limit(), self.taken.load(Ordering::Relaxed));
        let enough = (taken + LEAST_NEEDED.max(limit / NEEDED)).min(limit / SURE);
        self.may.fetch_max(enough, Ordering::Relaxed).max(enough).saturating_sub(taken)
    }

    /// Takes pages for objects: all of them, or none if the share has no room. Pages of the program
    /// leave meanwhile.
    ///
    /// Not from a signal handler of the runtime's. No far memory may be in use by the caller.
    pub fn take(&self, pages: u64) -> bool {
        let may = self.may.load(Ordering::Relaxed).min(self.most());
        let more = |taken: u64| taken.checked_add(pages).filter(|&after| after <= may);
        let Ok(before) = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else { return false };
        if !self.local.crowd.promise(pages, before + pages, self.local.limit()) {
            self.taken.fetch_sub(pages, Ordering::Relaxed);
            return false;
        }
        for from in (0..pages).step_by(STEP as usize) {
            let step = STEP.min(pages - from);
            let _signals = SignalsBlocked::new();
            let _inside = self.base.threads.enter();
            self.room.reserve(step);
            // They leave by `give` alone, as pages that are pinned.
            self.local.crowd.keep(step);
            self.local.crowd.kept_promise(step);
        }
        let bytes = pages * PAGE_BYTES as u64;
        let before = self.base.counters.objects_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.base.counters.objects_peak.fetch_max(before + bytes, Ordering::Relaxed);
        true
    }

    /// Gives pages back that objects had. Nothing is in them any more. More than were taken is
    /// refused: false.
    pub fn give(&self, pages: u64) -> bool {
        let less = |taken: u64| taken.checked_sub(pages);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return false;
        }
        self.local.crowd.unkeep(pages);
        self.local.unreserve(pages);
        self.base.counters.objects_bytes.fetch_sub(pages * PAGE_BYTES as u64, Ordering::Relaxed);
        true
    }
}

/// The mean of what was recorded, ns. A fault that was held up does not count for more than
/// [`HELD_UP`] of the others, as with a heap's fetches. Otherwise a few faults whose threads the
/// kernel had not let run would be worth more than all others, and objects would get nothing.
fn mean(latency: &Histogram) -> u64 {
    let counts = latency.snapshot();
    let all = counts.iter().sum::<u64>().max(1);
    let mut most = u64::MAX;
    for _ in 0..ROUNDS {
        let time = |at: usize| Histogram::bucket_floor(at).min(most);
        let mean = counts.iter().enumerate().filter(|&(_, &n)| n > 0).map(|(at, &n)| n * time(at)).sum::<u64>() / all;
        if mean.saturating_mul(HELD_UP) >= most {
            break;
        }
        most = mean.saturating_mul(HELD_UP);
    }
    most / HELD_UP
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::{Ground, bare};

    #[test]
    fn objects_get_half_at_first_and_what_they_gain_by_later() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let share = Share::new(base, local, Box::leak(Box::new(Room::new(base, local, changes, out))));
        let (resident, half) = (|| local.resident.load(Ordering::Relaxed), local.limit() / 2);
        assert!(share.take(half - 16));
        assert!(!share.take(17) && !share.take(u64::MAX) && resident() == half - 16);
        assert!(share.take(16) && resident() == half && !share.take(1));
        assert_eq!(base.counters.objects_bytes.load(Ordering::Relaxed), half * PAGE_BYTES as u64);
        // They miss what they had not long ago, and pages miss nothing: up to three quarters.
        let misses = Side { pages: local.limit(), cost: 1000, saved: 900 };
        let more = (0..64).map(|_| share.weigh(misses)).max().unwrap().cast_unsigned();
        assert_eq!(half + more, share.most());
        assert!(share.take(more) && !share.take(1) && resident() == share.most());
        assert!(!share.give(share.most() + 1) && !share.give(u64::MAX) && share.give(share.most()));
        assert_eq!((resident(), base.counters.objects_bytes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn faults_that_were_held_up_count_little() {
        let recorded = |faults: &[(u64, u64)]| {
            let latency = Histogram::default();
            faults.iter().for_each(|&(n, ns)| (0..n).for_each(|_| latency.record(ns)));
            mean(&latency)
        };
        assert_eq!((recorded(&[]), recorded(&[(1, 4096)])), (0, 4096));
        // Ten threads were not let run for as long as a loaded machine keeps one waiting.
        let loaded = recorded(&[(750, 4096), (10, 20_000_000)]);
        assert!((4096..5000).contains(&loaded), "{loaded}");
        // Of slow faults that are not few, each counts.
        let both = recorded(&[(500, 2048), (500, 65_536)]);
        assert!((30_000..35_000).contains(&both), "{both}");
    }

    /// A look at shares on a machine that is busy: objects that miss all the time, and a few faults of
    /// which some were held up.
    #[test]
    fn a_busy_machine_keeps_no_memory_from_objects() {
        let Ground { base, local, changes, out } = bare::ground(12 << 20);
        let share = Share::new(base, local, Box::leak(Box::new(Room::new(base, local, changes, out))));
        let half = local.limit() / 2;
        assert!(share.take(half));
        // For each fault there are 63 misses of objects, of 500 ns each, and 8 objects are a page.
        let objects = Side { pages: 8, cost: 63 * 500, saved: 63 * 150 };
        for n in 0..400 {
            base.counters.demand.fetch_add(1, Ordering::Relaxed);
            base.counters.latency.record(if n % 10 == 0 { 10_000_000 } else { 4000 });
            share.weigh(objects);
        }
        assert!(share.may.load(Ordering::Relaxed) > half);
    }

    #[test]
    fn scopes_get_half_by_need_though_pages_gained_more() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let share = Share::new(base, local, Box::leak(Box::new(Room::new(base, local, changes, out))));
        let limit = local.limit();
        share.may.store(limit / 8, Ordering::Relaxed);
        assert!(share.take(limit / 8) && !share.take(1));
        let mut steps = 0;
        loop {
            let more = share.need();
            if more == 0 {
                break;
            }
            assert!(more <= LEAST_NEEDED.max(limit / NEEDED) && share.take(more) && !share.take(1));
            steps += 1;
        }
        assert!(share.taken.load(Ordering::Relaxed) == limit / 2 && steps > 4, "{steps}");
        // The gain of pages is not forgotten.
        share.may.store(limit / 8, Ordering::Relaxed);
        assert_eq!(share.weigh(Side::default()), (limit / 8).cast_signed() - (limit / 2).cast_signed());
    }

    #[test]
    fn objects_do_not_take_what_long_calls_have_claimed() {
        let Ground { base, local, changes, out } = bare::ground(4 << 20);
        let share = Share::new(base, local, Box::leak(Box::new(Room::new(base, local, changes, out))));
        let limit = local.limit();
        share.may.store(share.most(), Ordering::Relaxed);
        assert!(local.crowd.claim(limit / 2, limit) && share.take(limit / 2) && !share.take(2));
        local.crowd.unclaim(limit / 2);
        assert!(share.take(limit / 4) && !local.crowd.claim(limit / 4, limit));
        let left = local.crowd.most_pins(limit);
        assert!(left > 0 && left < limit / 4 && local.crowd.claim(left, limit));
        assert!(share.give(limit / 2 + limit / 4) && local.crowd.claim(limit / 2 - left, limit));
    }
}
