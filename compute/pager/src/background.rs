//! The background thread: takes in acknowledgements; sees to it that a node's death is noticed even while
//! nothing is fetched from it; gives far memory back that the program has freed;
//! once a second does the housekeeping; and ends a process of which only the
//! runtime's threads are left.
//!
//! It is started on the first eviction, not at start: a child that forks and
//! execs, and a program that fits, have none.

use crate::Pager;
use crate::ending::{is_orphaned, or_end, say};
use crate::repair::Repair;
use farmem_pool::Loss;
use farmem_protocol::addr::{PAGE_BYTES, SLAB_BYTES};
use farmem_protocol::units::bytes;
use farmem_sys::raw::{futex_wait, futex_wake, getpid, now_ns, syscall};
use farmem_sys::thread;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often the nodes are looked after: well within the two seconds in which a run whose node was
/// killed is to end.
const TEND_NS: u64 = 250_000_000;

/// How often they are while one is out of reach: the grace is to end the process soon after it is
/// over.
const SEEK_NS: u64 = 50_000_000;

/// The first look for acknowledgements after an eviction; each that finds none is followed by a sleep twice as long. A page
/// that comes back before its own is heard of leaves whole, and cards go on only when somebody looks.
const LOOK_NS: u64 = 1_000_000;

/// Between looks whether the program has a thread left, once its first has ended by itself; and for how long after the
/// end of a thread. Then it is seen within [`TEND_NS`].
const WATCH_NS: u64 = 10_000_000;
const WATCHES_NS: u64 = 500_000_000;
/// In [`Background::first`]: it has.
const HAS_ENDED: u64 = 1 << 32;

/// How the background thread is woken.
pub struct Background {
    /// Bumped at each wake-up that somebody asked for; futex.
    asked: AtomicU32,
    sleeping: AtomicBool,
    started: AtomicBool,
    /// The process that the thread belongs to. A vfork child shares this memory, but a thread that it
    /// started would be a thread of its own, and end with its exec wherever it is.
    process: AtomicU32,
    /// Once the program's first thread has ended while others went on: [`HAS_ENDED`], and the status of the last that has.
    first: AtomicU64,
    /// Until when it is looked for often; ns.
    watches: AtomicU64,
}

/// What a thread of the runtime's does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Keeps house.
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
            first: AtomicU64::new(0),
            watches: AtomicU64::new(0),
        }
    }

    /// Wakes the thread if it sleeps. Cheap when it does not.
    #[inline]
    pub fn wake(&self, pager: &Pager) {
        // Relaxed is enough: who misses it wakes by itself, within [`TEND_NS`].
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
        self.first.store(0, Ordering::Relaxed);
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
    /// Starts a runtime thread. Without it faults go on, but nobody keeps house.
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

    /// A thread of the program's is about to end by its system call, and is not its only one. Once its first has, the
    /// process goes on until the others have, and its status is that of the last (as the kernel's, since Linux 5.17): the
    /// runtime's threads, if there are any, see to it.
    pub fn thread_ends(&self, is_first: bool, status: i32) {
        if is_first || self.background.first.load(Ordering::Relaxed) != 0 {
            self.background.first.store(HAS_ENDED | u64::from(status as u32), Ordering::Relaxed);
            self.background.watches.store(now_ns() + WATCHES_NS, Ordering::Relaxed);
            // Each time: it may be the last, which the kernel still counts.
            if thread::any() {
                self.background.wake(self);
            }
        }
    }

    /// The calling thread ends, and touches no far memory any more.
    pub fn thread_is_gone(&self) {
        self.threads.leave();
    }

    /// The runtime's threads may not ask any more what threads there are.
    pub fn forget_first_thread(&self) {
        self.background.first.store(0, Ordering::Relaxed);
    }

    fn end_with_the_last(&self) {
        if thread::others() == Some(0) && thread::first_has_ended() {
            self.farewell();
            let status = self.background.first.load(Ordering::Relaxed) as u32;
            // SAFETY: no pointers; no thread of the program's is left.
            unsafe { syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
        }
    }

    fn run_background(&self) -> ! {
        self.also.get().iter().for_each(|also| also());
        let mut sleep = (TEND_NS, 0);
        let (mut last_housekeeping, mut last_tended, mut near) = (now_ns(), now_ns(), true);
        let mut repair = Repair::default();
        loop {
            if !self.staging.is_empty() {
                let _inside = self.threads.enter();
                let mut evictor = self.evictor.lock();
                self.collect_writes(&mut evictor, Duration::ZERO);
                sleep = until_next_look(sleep, Self::writes_in_flight(&evictor));
            }
            if !near || now_ns() - last_tended > TEND_NS {
                self.tick.get().iter().for_each(|tick| tick(self));
                self.free_dropped();
                let _inside = self.threads.enter();
                or_end(self.pool.tend());
                near = self.pool.all_near();
                self.tell_losses();
                self.pool.give_back_idle();
                self.take_stock();
                last_tended = now_ns();
            }
            if now_ns() - last_housekeeping > 1_000_000_000 {
                last_housekeeping = now_ns();
                self.keep_house();
            }
            let pause = self.repair(&mut repair).unwrap_or(TEND_NS);
            let seen = self.background.asked.load(Ordering::Acquire);
            let mut longest = if near { sleep.0.min(pause) } else { sleep.0.min(SEEK_NS).min(pause) };
            if self.background.first.load(Ordering::Relaxed) != 0 {
                self.end_with_the_last();
                if now_ns() < self.background.watches.load(Ordering::Relaxed) {
                    longest = longest.min(WATCH_NS);
                }
            }
            self.background.sleeping.store(true, Ordering::Relaxed);
            futex_wait(&self.background.asked, seen, longest);
            self.background.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Says which nodes were lost without the end of the process, each in a line.
    pub(crate) fn tell_losses(&self) {
        for Loss { lost, slabs, kept, single } in self.pool.losses() {
            // The node was started for the run, and has ended with its supervisor: so does the run.
            if kept && is_orphaned() {
                return or_end(Err(lost));
            }
            self.count(&self.counters.nodes_lost, 1);
            let bytes = bytes(u64::from(slabs) * SLAB_BYTES);
            match (slabs, kept) {
                (0, _) => say(&format!("{lost}; the program goes on: it had nothing there")),
                (_, true) => say(&format!(
                    "{lost}; the program goes on: the {bytes} that it has there are mapped here and stay, and no more is taken there"
                )),
                (_, false) if single > 0 => {
                    let left = farmem_protocol::units::bytes(u64::from(single) * SLAB_BYTES);
                    say(&format!("{lost}; the program goes on with one copy of {left}"));
                }
                (_, false) => say(&format!("{lost}; the program goes on: no page was there alone")),
            }
        }
    }

    /// Levels for readers, slots whose sharers have gone, slabs that are empty.
    fn keep_house(&self) {
        let _inside = self.threads.enter();
        self.also.get().iter().for_each(|also| also());
        farmem_sys::descriptors::spare::keep();
        self.pool.end_shares();
        self.pool.shrink(self.far_needed(self.space.lock().committed()));
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
        self.counters.single_bytes.store(self.pool.single_bytes(), Ordering::Relaxed);
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
