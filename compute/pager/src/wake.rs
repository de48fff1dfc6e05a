//! Starts and wakes the background thread. The thread itself: [`crate::house`].

use farmem_sys::raw::{futex_wait, futex_wake, getpid, now_ns};
use farmem_sys::thread::spawn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// In [`Background::first`]: the program's first thread has ended.
const HAS_ENDED: u64 = 1 << 32;
/// For this long after the end of a thread the background thread looks often whether the program
/// has a thread left; ns.
const WATCHES_NS: u64 = 500_000_000;

/// Starts a thread of the runtime. Without it faults go on, but nobody keeps house.
pub(crate) fn start_thread(runs: fn(usize) -> !) {
    if let Err(e) = spawn(runs, 0) {
        crate::ending::say(&format!("a thread of the runtime could not be started: {e}"));
    }
}

/// How the background thread is started and woken.
pub(crate) struct Background {
    /// Set once, at start.
    entry: OnceLock<fn(usize) -> !>,
    /// Counts the wakings that were asked for. A futex.
    asked: AtomicU32,
    sleeping: AtomicBool,
    started: AtomicBool,
    /// The process that the thread belongs to. A vfork child shares this memory. A thread that the
    /// child started would be the child's, and would end with its exec.
    process: AtomicU32,
    /// Once the program's first thread has ended while others went on: [`HAS_ENDED`], and the
    /// status of the last thread that ended.
    first: AtomicU64,
    /// Until when the background thread looks often for the program's last thread; ns.
    watches: AtomicU64,
}

impl Background {
    /// Not started.
    pub fn new() -> Background {
        Background {
            entry: OnceLock::new(),
            asked: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
            started: AtomicBool::new(false),
            process: AtomicU32::new(getpid()),
            first: AtomicU64::new(0),
            watches: AtomicU64::new(0),
        }
    }

    /// Says what the thread runs.
    pub fn runs(&self, entry: fn(usize) -> !) {
        let _ = self.entry.set(entry);
    }

    /// Wakes the thread if it sleeps, and starts it if there is none. Cheap otherwise.
    #[inline]
    pub fn wake(&self) {
        // Relaxed is enough: a thread that misses this wakes by itself within a quarter second.
        if self.sleeping.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
            self.asked.fetch_add(1, Ordering::Release);
            futex_wake(&self.asked, 1);
        } else {
            self.begin();
        }
    }

    /// Starts the thread if there is none. From the first eviction on there must be one: the loss
    /// of a node must be noticed even if the program only sleeps.
    #[inline]
    pub fn begin(&self) {
        if !self.started.load(Ordering::Relaxed)
            && self.is_at_home()
            && !self.started.swap(true, Ordering::Relaxed)
            && let Some(&entry) = self.entry.get()
        {
            start_thread(entry);
        }
    }

    /// Whether this process is the pager's, and not a vfork child of it.
    fn is_at_home(&self) -> bool {
        self.process.load(Ordering::Relaxed) == getpid()
    }

    /// In a forked child: there is no thread yet.
    pub fn forget_in_child(&self) {
        self.process.store(getpid(), Ordering::Relaxed);
        self.started.store(false, Ordering::Relaxed);
        self.sleeping.store(false, Ordering::Relaxed);
        self.first.store(0, Ordering::Relaxed);
    }

    /// The number of wakings so far, for [`Background::sleep`].
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// Sleeps until a waking after `seen`, or for `longest_ns`. By the background thread.
    pub fn sleep(&self, seen: u32, longest_ns: u64) {
        self.sleeping.store(true, Ordering::Relaxed);
        futex_wait(&self.asked, seen, longest_ns);
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// A thread of the program ends by its system call, and is not its only one. Once the first
    /// thread has ended, the process goes on until the others have. Its status is that of the last
    /// one (as the kernel has it since Linux 5.17), and the runtime's threads see to it.
    pub fn thread_ends(&self, is_first: bool, status: i32) {
        if is_first || self.first_has_ended() {
            self.first.store(HAS_ENDED | u64::from(status as u32), Ordering::Relaxed);
            self.watches.store(now_ns() + WATCHES_NS, Ordering::Relaxed);
            // Each time: this may be the last thread, which the kernel still counts.
            if farmem_sys::thread::any() {
                self.wake();
            }
        }
    }

    /// The runtime's threads may not ask any more which threads there are.
    pub fn forget_first_thread(&self) {
        self.first.store(0, Ordering::Relaxed);
    }

    /// Whether the program's first thread has ended while others went on.
    pub fn first_has_ended(&self) -> bool {
        self.first.load(Ordering::Relaxed) != 0
    }

    /// The status of the last thread that ended.
    pub fn last_status(&self) -> i32 {
        self.first.load(Ordering::Relaxed) as u32 as i32
    }

    /// Whether a thread has ended so recently that the last one may end at any moment.
    pub fn watches(&self) -> bool {
        now_ns() < self.watches.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thread_decides_once_the_first_has_ended() {
        let background = Background::new();
        background.thread_ends(false, 3);
        assert!(!background.first_has_ended() && !background.watches());
        background.thread_ends(true, 4);
        assert!(background.first_has_ended() && background.watches());
        background.thread_ends(false, -5);
        assert_eq!(background.last_status(), -5);
        background.forget_in_child();
        assert!(!background.first_has_ended());
    }
}
