//! The background thread: evicts ahead of need, so that faults find room; takes
//! in acknowledgements; sees to it that a node's death is noticed even while
//! nothing is fetched from it; gives far memory back that the program has freed;
//! and once a second does the housekeeping.
//!
//! It is started on the first shortage or eviction, not at start: a child that forks and
//! execs, and a program that fits, have none.

use crate::Pager;
use crate::ending::say;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_sys::raw::{futex_wait, futex_wake, getpid, now_ns};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How often the nodes are looked after: well within the two seconds in which a run whose node was
/// killed is to end.
const TEND_NS: u64 = 250_000_000;

/// The first look for acknowledgements after an eviction; each that finds none is followed by a sleep twice as long. A page
/// that comes back before its own is heard of leaves whole, and cards go on only when somebody looks.
const LOOK_NS: u64 = 1_000_000;

/// How the background thread is woken.
pub struct Background {
    /// Bumped at each wake-up that somebody asked for; futex.
    asked: AtomicU32,
    sleeping: AtomicBool,
    started: AtomicBool,
    /// The process that the thread belongs to. A vfork child shares this memory, but a thread that it
    /// started would be a thread of its own, and end with its exec wherever it is.
    process: AtomicU32,
}

/// What a thread of the runtime's does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Evicts ahead of need.
    Background,
    /// Serves fault events.
    Handler,
}

impl Background {
    /// Not started.
    pub fn new() -> Background {
        Background {
            asked: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
            started: AtomicBool::new(false),
            process: AtomicU32::new(getpid()),
        }
    }

    /// Wakes the thread if it sleeps. Cheap when it does not.
    #[inline]
    pub fn wake(&self, pager: &Pager) {
        // Relaxed is enough: a wake-up that is missed is asked for again by the next fault.
        if self.sleeping.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
            self.asked.fetch_add(1, Ordering::Release);
            futex_wake(&self.asked, 1);
        } else {
            self.begin(pager);
        }
    }

    /// Starts the thread if there is none. From the first eviction on there must be one: somebody has to
    /// notice when a node is lost, even if the program only sleeps.
    #[inline]
    pub fn begin(&self, pager: &Pager) {
        if !self.started.load(Ordering::Relaxed) && self.is_at_home() && !self.started.swap(true, Ordering::Relaxed) {
            pager.spawn(Job::Background);
        }
    }

    /// Whether this is the process that the pager belongs to, and not a vfork child of it.
    pub fn is_at_home(&self) -> bool {
        self.process.load(Ordering::Relaxed) == getpid()
    }

    /// In a forked child there is no thread yet.
    pub fn forget_in_child(&self) {
        self.process.store(getpid(), Ordering::Relaxed);
        self.started.store(false, Ordering::Relaxed);
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

/// How long to sleep, and what is in flight; from what these were.
fn until_next_look((slept, before): (u64, usize), in_flight: usize) -> (u64, usize) {
    let sleep = match in_flight {
        0 => TEND_NS,
        same if same == before => (slept * 2).min(TEND_NS),
        _ => LOOK_NS,
    };
    (sleep, in_flight)
}

impl Pager {
    /// Starts a runtime thread. Without it things go on, if more slowly: faults evict for themselves.
    pub(crate) fn spawn(&self, job: Job) {
        fn run(pager: usize, job: Job) -> ! {
            // SAFETY: the address of the process's one pager, which is never freed (see `start`).
            let pager = unsafe { &*(pager as *const Pager) };
            match job {
                Job::Background => pager.run_background(),
                Job::Handler => pager.run_handler(),
            }
        }
        let entry = match job {
            Job::Background => |pager| run(pager, Job::Background),
            Job::Handler => |pager| run(pager, Job::Handler),
        };
        if let Err(e) = farmem_sys::thread::spawn(entry, self as *const Pager as usize) {
            say(&format!("a thread of the runtime could not be started: {e}"));
        }
    }

    fn run_background(&self) -> ! {
        let mut sleep = (TEND_NS, 0);
        let (mut last_housekeeping, mut last_tended) = (now_ns(), now_ns());
        loop {
            while self.resident.load(Ordering::Relaxed) > self.limit - self.high_room {
                let _inside = self.threads.enter();
                let mut evictor = self.evictor.lock();
                if self.evict(&mut evictor, self.batch) == 0 {
                    break;
                }
            }
            if self.staging.len() > 0 {
                let _inside = self.threads.enter();
                let mut evictor = self.evictor.lock();
                self.collect_writes(&mut evictor, Duration::ZERO);
                sleep = until_next_look(sleep, Self::writes_in_flight(&evictor));
            }
            if now_ns() - last_tended > TEND_NS {
                let _inside = self.threads.enter();
                if let Err(lost) = self.pool.tend() {
                    self.node_lost(&lost);
                }
                self.give_back();
                self.take_stock();
                last_tended = now_ns();
            }
            if now_ns() - last_housekeeping > 1_000_000_000 {
                last_housekeeping = now_ns();
                self.keep_house();
            }
            let seen = self.background.asked.load(Ordering::Acquire);
            self.background.sleeping.store(true, Ordering::Relaxed);
            futex_wait(&self.background.asked, seen, sleep.0);
            self.background.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Far memory that the program has freed goes back to the nodes: within two rounds of [`TEND_NS`], unless
    /// evictions are more urgent.
    fn give_back(&self) {
        let room = || self.resident.load(Ordering::Relaxed) <= self.limit - self.low_room;
        if let Err(lost) = self.pool.give_back_idle(&room) {
            self.node_lost(&lost);
        }
    }

    /// Levels for readers, slots whose sharers have gone, slabs that are empty.
    fn keep_house(&self) {
        let _inside = self.threads.enter();
        farmem_sys::spare::keep();
        self.pool.end_shares();
        if let Err(lost) = self.pool.shrink(self.far_needed(self.space.lock().committed())) {
            self.node_lost(&lost);
        }
        self.publish_levels();
    }

    /// Counts what the runtime's own mappings take. Some hundred microseconds: not for the fault path.
    pub fn take_stock(&self) {
        self.holdings.store(farmem_sys::holdings::resident(), Ordering::Relaxed);
        self.publish_runtime();
    }

    /// What the runtime takes: its mappings as they were last counted, and the page table as it is.
    pub(crate) fn publish_runtime(&self) {
        let bytes = self.holdings.load(Ordering::Relaxed) + self.table.bytes();
        self.counters.runtime_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Writes the levels into the counters page.
    pub(crate) fn publish_levels(&self) {
        let local = self.resident.load(Ordering::Relaxed) * PAGE_BYTES as u64;
        self.counters.local_bytes.store(local, Ordering::Relaxed);
        let far = self.pool.used();
        self.counters.far_bytes.store(far, Ordering::Relaxed);
        self.counters.far_peak.fetch_max(far, Ordering::Relaxed);
        self.publish_runtime();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_looked_for_while_there_are_any_to_come() {
        let mut sleep = (TEND_NS, 0);
        let mut look = |in_flight| {
            sleep = until_next_look(sleep, in_flight);
            sleep.0
        };
        assert_eq!([300, 172, 44, 44, 44, 0].map(&mut look), [1, 1, 1, 2, 4, 250].map(|ms| ms * 1_000_000));
        assert_eq!(
            (0..10).map(|_| look(1)).last(),
            Some(TEND_NS),
            "a node that is silent is not asked a thousand times"
        );
    }
}
