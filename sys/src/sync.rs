//! A lock for code that runs inside signal handlers of other people's programs.
//!
//! Sleeps by futex through the gate; no poisoning, no thread-locals, no
//! allocation. It may be taken in a SIGBUS handler because of the trap
//! discipline: the handler interrupts only code that touches far memory, and no
//! holder of such a lock does.
//!
//! [`Lock::hold_across_fork`] takes it before a fork; [`Lock::release_after_fork`]
//! gives it back on both sides.

use crate::raw::{futex_wait, futex_wake};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A mutual exclusion lock around a `T`.
pub struct Lock<T> {
    /// 0 free, 1 held, 2 held and perhaps awaited.
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Proof that the lock is held.
pub struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock { state: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        if self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
        Held(self)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Held(self))
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..100 {
            std::hint::spin_loop();
            if self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        while self.state.swap(2, Ordering::Acquire) != 0 {
            futex_wait(&self.state, 2, 1_000_000_000);
        }
    }

    fn unlock(&self) {
        if self.state.swap(0, Ordering::Release) == 2 {
            futex_wake(&self.state, 1);
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

#[cfg(test)]
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
}
