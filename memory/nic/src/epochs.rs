//! When every verb that could have begun under an old right has ended.
//!
//! Code that touches memory by a revocable right does so within a *section*, and looks at the right
//! within it. Code that revokes a right first makes that visible, then waits until the sections of
//! that moment are over:
//!
//! ```text
//!  epoch      r                r + 1              r + 2
//!  ───────────┼──────────────────┼──────────────────┼────────►
//!  revoked ───┘                  │                  └─ nothing admitted under the old right is under way
//!  sections that began in r ─────┴────── ended ─────┘
//! ```
//!
//! The epoch goes from e to e + 1 only when no section of e - 1 is left (Fraser,
//! *Practical lock-freedom*, 2004, §5.2.3). A section that finds the epoch
//! changed between reading it and counting itself in begins again, so one that
//! began after the change sees what was revoked before it.
//!
//! Sections are short: one transfer to or from a socket, or the verbs that it brought. Bytes that
//! wait for a slow peer are in none; their right is checked again before they go on. A thread that
//! waits for verbs on a card is in none either, because a peer decides when those end
//! ([`Section::renew_after`]).
//!
//! Every order in which two or three threads can go through it is tried out by
//! loom: `RUSTFLAGS="--cfg loom" cargo test -p farmem-nic --lib --release epochs`.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
use loom::thread::yield_now;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::thread::yield_now;

/// Counters of one epoch, so that workers do not share a line.
const SHARDS: usize = if cfg!(loom) { 2 } else { 8 };

#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicUsize);

/// Sections under way, by the epoch they began in.
#[derive(Debug, Default)]
pub struct Epochs {
    now: AtomicU64,
    active: [[Count; SHARDS]; 3],
}

/// One section. Ends when dropped.
#[derive(Debug)]
pub struct Section<'a> {
    epochs: &'a Epochs,
    epoch: u64,
    shard: usize,
}

impl Epochs {
    /// Begins a section; `shard` is any number, best one that this thread uses always.
    pub fn enter(&self, shard: usize) -> Section<'_> {
        let shard = shard % SHARDS;
        loop {
            let epoch = self.now.load(Ordering::SeqCst);
            let count = self.count(epoch, shard);
            // SeqCst against `advance`: either it sees the count, or we see its epoch.
            count.fetch_add(1, Ordering::SeqCst);
            in_one_order();
            if self.now.load(Ordering::SeqCst) == epoch {
                return Section { epochs: self, epoch, shard };
            }
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn count(&self, epoch: u64, shard: usize) -> &AtomicUsize {
        &self.active[(epoch % 3) as usize][shard].0
    }

    /// The epoch of a right that has just been revoked.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Whether all sections that may know a right revoked in `epoch` have ended. Helps that on,
    /// waits for nobody.
    pub fn is_over(&self, epoch: u64) -> bool {
        while self.now() < epoch + 2 {
            if !self.advance() {
                return false;
            }
        }
        true
    }

    /// Waits, outside of any section, until what is under way now has ended.
    pub fn wait(&self) {
        let since = self.now();
        while !self.is_over(since) {
            yield_now();
        }
    }

    /// One epoch on, if none of the last is left.
    fn advance(&self) -> bool {
        let now = self.now();
        let last = now + 2; // The same counters as `now - 1`.
        in_one_order();
        let idle = (0..SHARDS).all(|shard| self.count(last, shard).load(Ordering::SeqCst) == 0);
        // Lost to somebody else: that, too, is one epoch on.
        idle && (self.now.compare_exchange(now, now + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            || self.now() > now)
    }
}

impl Section<'_> {
    /// Waits, outside of any section, until everything that was under way elsewhere has ended.
    /// Rights looked at before must be looked at again.
    pub fn renew(&mut self) {
        self.renew_after(|| ());
    }

    /// As [`Section::renew`], after something that may take long and holds up nobody else.
    pub fn renew_after(&mut self, outside: impl FnOnce()) {
        // Outside, or two that wait for one another would wait for good.
        self.epochs.count(self.epoch, self.shard).fetch_sub(1, Ordering::SeqCst);
        let revoked = self.epochs.now();
        outside();
        while !self.epochs.is_over(revoked) {
            yield_now();
        }
        let entered = self.epochs.enter(self.shard);
        self.epoch = entered.epoch;
        // Its count is ours from here on.
        std::mem::forget(entered);
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.epochs.count(self.epoch, self.shard).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Nothing: SeqCst accesses are in one order by themselves. Loom takes them for AcqRel, and is told
/// so by a fence.
#[inline(always)]
fn in_one_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    fn explore(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Memory, the word that says whose it is, and sections of those who use it.
    #[derive(Default)]
    struct Unit {
        epochs: Epochs,
        revoked: AtomicU64,
        bytes: UnsafeCell<u64>,
    }

    impl Unit {
        /// A verb: within a section, if the right stands.
        fn verb(&self, shard: usize) {
            let section = self.epochs.enter(shard);
            in_one_order();
            if self.revoked.load(Ordering::SeqCst) == 0 {
                // Loom tells when this overlaps with the other's `with_mut`.
                self.bytes.with(|_| ());
            }
            drop(section);
        }

        /// A revocation, a drain, a scrub.
        fn reclaim(&self) {
            self.revoked.store(1, Ordering::SeqCst);
            in_one_order();
            let since = self.epochs.now();
            while !self.epochs.is_over(since) {
                yield_now();
            }
            self.bytes.with_mut(|_| ());
        }
    }

    #[test]
    fn a_scrub_meets_no_verb() {
        explore(|| {
            let unit = Arc::new(Unit::default());
            let other = Arc::clone(&unit);
            let user = loom::thread::spawn(move || other.verb(0));
            unit.reclaim();
            user.join().unwrap();
        });
    }

    /// With somebody who advances the epoch for reasons of his own.
    #[test]
    fn a_scrub_meets_no_verb_while_others_revoke() {
        explore(|| {
            let unit = Arc::new(Unit::default());
            let (a, b) = (Arc::clone(&unit), Arc::clone(&unit));
            let user = loom::thread::spawn(move || a.verb(1));
            let helper = loom::thread::spawn(move || {
                let since = b.epochs.now();
                b.epochs.is_over(since);
            });
            unit.reclaim();
            user.join().unwrap();
            helper.join().unwrap();
        });
    }

    #[test]
    fn two_that_renew_go_on() {
        explore(|| {
            let epochs = Arc::new(Epochs::default());
            let other = Arc::clone(&epochs);
            let renewing = loom::thread::spawn(move || other.enter(0).renew());
            epochs.enter(1).renew();
            renewing.join().unwrap();
            assert!(epochs.is_over(epochs.now()));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_section_holds_up_what_was_revoked_during_it_and_nothing_else() {
        let epochs = Epochs::default();
        let early = epochs.enter(0);
        let revoked = epochs.now();
        assert!(!epochs.is_over(revoked));
        let late = epochs.enter(1);
        assert!(!epochs.is_over(revoked));
        drop(early);
        // `late` began before the revocation could be known to be over, in the epoch after it or in
        // it.
        drop(late);
        assert!(epochs.is_over(revoked));
        let later = epochs.enter(0);
        assert!(epochs.is_over(revoked));
        assert!(!epochs.is_over(epochs.now()));
        drop(later);
    }

    #[test]
    fn who_waits_before_it_renews_holds_up_nobody() {
        let epochs = Epochs::default();
        let mut section = epochs.enter(0);
        let revoked = epochs.now();
        section.renew_after(|| {
            let mut other = epochs.enter(1);
            other.renew();
            drop(other);
            assert!(epochs.is_over(revoked));
        });
        assert!(!epochs.is_over(epochs.now()), "it is in a section again");
    }

    #[test]
    fn two_that_renew_do_not_wait_for_one_another() {
        let epochs = Epochs::default();
        std::thread::scope(|scope| {
            for shard in 0..3 {
                let epochs = &epochs;
                scope.spawn(move || {
                    let mut section = epochs.enter(shard);
                    (0..1000).for_each(|_| section.renew());
                });
            }
        });
        assert!(epochs.is_over(epochs.now()));
    }

    /// The word is a right: a thread that sees it within a section may write. After the revocation
    /// is over none does.
    #[test]
    fn nothing_is_written_after_a_revocation_is_over() {
        let (epochs, right, freed) = (Epochs::default(), AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for shard in 0..2 {
                let (epochs, right, freed, stop) = (&epochs, &right, &freed, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let section = epochs.enter(shard);
                        let seen = right.load(Ordering::SeqCst);
                        std::hint::spin_loop();
                        assert_ne!(freed.load(Ordering::SeqCst), seen, "used after it was freed");
                        drop(section);
                    }
                });
            }
            for generation in 1..2000 {
                right.store(generation, Ordering::SeqCst);
                let revoked = epochs.now();
                while !epochs.is_over(revoked) {
                    std::thread::yield_now();
                }
                freed.store(generation - 1, Ordering::SeqCst);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
