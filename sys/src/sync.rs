//! A lock for code that runs inside signal handlers of other people's programs.
//!
//! Sleeps by futex through the gate; no poisoning, no thread-locals, no
//! allocation. It may be taken in a SIGBUS handler because of the trap
//! discipline: the handler interrupts only code that touches far memory, and no
//! holder of such a lock does.
//!
//! A holder that shares this memory from another process may be killed. So the lock's word names
//! the holder. A thread that has waited a second asks whether that process still is
//! ([`crate::members`]).
//!
//! [`Lock::hold_across_fork`] takes it before a fork; [`Lock::release_after_fork`]
//! gives it back on both sides.
//!
//! Every order in which two or three threads can go through it is tried out by
//! loom: `RUSTFLAGS="--cfg loom" cargo test -p farmem-sys --lib --release models`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use word::Word;

/// The lock's word: an atomic that threads can sleep on.
#[cfg(not(loom))]
mod word {
    use crate::raw::{futex_wait, futex_wake};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub const SPINS: usize = 100;
    pub use crate::members::{Doubt, judge, own_name};
    pub use std::hint::spin_loop;

    pub struct Word(AtomicU32);

    impl Word {
        pub const fn new(value: u32) -> Word {
            Word(AtomicU32::new(value))
        }

        #[inline(always)]
        pub fn compare_exchange(&self, from: u32, to: u32, success: Ordering, failure: Ordering) -> Result<u32, u32> {
            self.0.compare_exchange(from, to, success, failure)
        }

        pub fn load(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        #[inline(always)]
        pub fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.0.swap(value, order)
        }

        pub fn sleep_while(&self, value: u32) {
            futex_wait(&self.0, value, 1_000_000_000);
        }

        pub fn wake_one(&self) {
            futex_wake(&self.0, 1);
        }
    }
}

/// The same under loom: no more than a futex guarantees. A wake-up does not fall between the look
/// at the value and the sleep. There is no time limit here, so that a lost wake-up is a deadlock,
/// which loom reports.
#[cfg(loom)]
mod word {
    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Condvar, Mutex};
    use std::sync::atomic::Ordering;

    pub const SPINS: usize = 1;
    pub use loom::hint::spin_loop;

    pub fn own_name() -> u32 {
        crate::members::UNNAMED
    }

    pub struct Doubt;

    impl Doubt {
        pub fn new() -> Doubt {
            Doubt
        }
    }

    pub fn judge(_: &Doubt, _: u32, _: u32) {}

    pub struct Word {
        value: AtomicU32,
        queue: Mutex<()>,
        awake: Condvar,
    }

    impl Word {
        pub fn new(value: u32) -> Word {
            Word { value: AtomicU32::new(value), queue: Mutex::new(()), awake: Condvar::new() }
        }

        pub fn compare_exchange(&self, from: u32, to: u32, success: Ordering, failure: Ordering) -> Result<u32, u32> {
            self.value.compare_exchange(from, to, success, failure)
        }

        pub fn load(&self) -> u32 {
            self.value.load(Ordering::Relaxed)
        }

        pub fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.value.swap(value, order)
        }

        pub fn sleep_while(&self, value: u32) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Relaxed) == value {
                drop(self.awake.wait(queue).unwrap());
            }
        }

        pub fn wake_one(&self) {
            let _queue = self.queue.lock().unwrap();
            self.awake.notify_one();
        }
    }
}

/// In a lock's word: some thread may sleep until it is free.
const AWAITED: u32 = 1 << 31;

/// A mutual exclusion lock around a `T`.
pub struct Lock<T> {
    /// 0: free. Otherwise the holder's name, and [`AWAITED`].
    state: Word,
    /// Which holding is awaited. Grows when [`AWAITED`] has been set in the word, and at no other
    /// time: once for each holding that is waited for.
    /// (Not one of loom's: nobody is kept out or let in by it.)
    awaited: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Proof that the lock is held.
pub struct Held<'a, T>(&'a Lock<T>);

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The guarded value is not read: another thread may hold the lock.
        f.write_str("Lock")
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Lock { state: Word::new(0), awaited: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Lock { state: Word::new(0), awaited: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        let own = word::own_name();
        if self.state.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly(own);
        }
        Held(self)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let own = word::own_name();
        self.state.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Held(self))
    }

    #[cold]
    fn lock_slowly(&self, own: u32) {
        for _ in 0..word::SPINS {
            word::spin_loop();
            if self.state.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        let doubt = word::Doubt::new();
        loop {
            let seen = self.state.load();
            // Others may sleep as well: the next holder wakes one at its end.
            let to = if seen == 0 { own | AWAITED } else { seen | AWAITED };
            if seen != to {
                if self.state.compare_exchange(seen, to, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    continue;
                }
                // A look in between takes this holding for the last: it counts one round too many.
                self.awaited.fetch_add(1, Ordering::Relaxed);
            }
            if seen == 0 {
                return;
            }
            // At most a second.
            self.state.sleep_while(to);
            if self.state.load() == to {
                word::judge(&doubt, to & !AWAITED, self.awaited.load(Ordering::Relaxed));
            }
        }
    }

    fn unlock(&self) {
        if self.state.swap(0, Ordering::Release) & AWAITED != 0 {
            self.state.wake_one();
        }
    }

    /// Takes the lock and leaves it taken.
    pub fn hold_across_fork(&self) {
        std::mem::forget(self.lock());
    }

    /// Gives back what [`Lock::hold_across_fork`] took. Only its caller may, in parent and child.
    pub fn release_after_fork(&self) {
        self.unlock();
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists only while its thread holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in deref; the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A counter that loom watches: two accesses that nothing orders fail the model.
    struct Counter(UnsafeCell<usize>);
    // SAFETY: accessed by holders of the lock only; loom checks that.
    unsafe impl Send for Counter {}

    impl Counter {
        fn add(&mut self) -> usize {
            self.0.with_mut(|count| {
                // SAFETY: exclusive, as loom has just checked.
                unsafe {
                    *count += 1;
                    *count
                }
            })
        }
    }

    fn counted(threads: usize, work: impl Fn(&Lock<Counter>) + Copy + Send + Sync + 'static, expected: usize) {
        loom::model(move || {
            let lock = Arc::new(Lock::new(Counter(UnsafeCell::new(0))));
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || work(&lock))
                })
                .collect();
            work(&lock);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(lock.lock().add(), expected + 1);
        });
    }

    #[test]
    fn two_holders_exclude_each_other_twice() {
        counted(
            2,
            |lock| {
                lock.lock().add();
                lock.lock().add();
            },
            4,
        );
    }

    #[test]
    fn of_three_nobody_sleeps_for_ever() {
        counted(
            3,
            |lock| {
                lock.lock().add();
            },
            3,
        );
    }

    #[test]
    fn what_a_fork_holds_is_given_back() {
        counted(
            2,
            |lock| {
                lock.hold_across_fork();
                assert!(lock.try_lock().is_none());
                lock.release_after_fork();
                lock.lock().add();
            },
            2,
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn holders_exclude_each_other() {
        let sum = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let sum = Arc::clone(&sum);
                std::thread::spawn(move || (0..10_000).for_each(|_| *sum.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*sum.lock(), 40_000);
        assert!(sum.try_lock().is_some());
    }

    /// All of one process: their names are the same.
    #[test]
    fn each_holding_that_is_waited_for_has_a_number() {
        let lock = Arc::new(Lock::new(false));
        let mut held = lock.lock();
        let waiter = std::thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                while !*lock.lock() {
                    std::thread::yield_now();
                }
            }
        });
        let mut last = None;
        for _ in 0..50 {
            while lock.state.load() & AWAITED == 0 {
                std::thread::yield_now();
            }
            while last == Some(lock.awaited.load(Ordering::Relaxed)) {
                std::thread::yield_now();
            }
            last = Some(lock.awaited.load(Ordering::Relaxed));
            drop(held);
            held = lock.lock();
        }
        *held = true;
        drop(held);
        waiter.join().unwrap();
    }
}
