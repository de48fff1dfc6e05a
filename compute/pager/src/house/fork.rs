//! Fork, with parent and child both alive and both far.
//!
//! ```text
//! prepare   stop: no thread is in the pager; WRITEs acknowledged; nodes told (pool); mappings inheritable
//! fork      the kernel copies what is resident, lazily; userfaultfd does not follow
//! parent    mappings not inheritable again; slots shared until the child is gone (pool::fork)
//! child     a userfaultfd of its own on every region, clean pages protected again, other threads' pins
//!           and queue pairs forgotten, sessions of its own; only then does the program's code go on
//! ```
//!
//! A vfork child, or any clone with the same memory, needs none of this: it is
//! one more thread of the pager.

use super::House;
use crate::Base;
use crate::ending::{broken, die, or_end};
use crate::kernel;
use crate::maps::pages;
use crate::maps::regions::OnFork;
use crate::start::features;
use crate::thread::Inside;
use crate::word::State;
use farmem_pool::ForkShare;
use farmem_protocol::addr::{PAGE_BYTES, PageId};
use farmem_run::exit;
use farmem_sys::raw::SignalsBlocked;
use std::sync::atomic::Ordering;

/// Held by [`House::fork_prepare`] until the fork is over.
pub struct Fork<'a> {
    inside: Inside<'a>,
    share: ForkShare,
    _signals: SignalsBlocked,
}

impl House {
    /// Before a fork. Gives the ticket to exactly one of the two calls below in each process.
    pub fn fork_prepare(&self) -> Fork<'_> {
        let signals = SignalsBlocked::new();
        let inside = self.base.threads.enter();
        self.base.threads.close(&inside);
        self.out.drain_writes(&mut self.out.evictor.lock());
        let share = or_end(self.base.pool.forks().prepare());
        self.out.forks.fetch_add(1, Ordering::Relaxed);
        inheritable(self.base, true);
        Fork { inside, share, _signals: signals }
    }

    /// In the parent; `forked` false when the fork failed.
    pub fn fork_parent(&self, fork: Fork<'_>, forked: bool) {
        inheritable(self.base, false);
        self.base.pool.forks().parent(fork.share, forked);
        farmem_sys::descriptors::spare::keep();
        self.base.threads.open();
        drop(fork.inside);
    }

    /// In the child, before any code of the program runs.
    pub fn fork_child(&self, mut fork: Fork<'_>, counters: &'static farmem_run::counters::Process) {
        self.base.counters.switch(counters);
        self.pins.forget_claims();
        // Closed first: the child may have no descriptors left for both.
        self.out.evictor.lock().tasks.reopen();
        if let Err(e) = self.base.uffd.reopen(features(self.base.spec.faults)) {
            die(exit::BROKEN, &format!("a forked child could not take over its far memory: {e}"));
        }
        inheritable(self.base, false);
        let space = self.base.maps.lock();
        for (start, region) in space.iter().filter(|(_, region)| region.on_fork != OnFork::Nothing) {
            if let Err(e) = self.base.uffd.register(start, region.end - start) {
                die(exit::BROKEN, &format!("a forked child could not take over its far memory: {e}"));
            }
            self.take_over(start, region.end);
        }
        drop(space);
        self.out.evictor.lock().renew_in_child();
        self.base.threads.forget_links(&mut fork.inside);
        farmem_sys::thread::forget_in_child();
        self.base.background.forget_in_child();
        if let Some(recorder) = &self.base.recorder {
            recorder.start_in_child();
        }
        or_end(self.base.pool.forks().child(fork.share));
        self.space.forget_on_fork();
        farmem_sys::descriptors::spare::keep();
        self.base.threads.open();
        drop(fork.inside);
        self.start_handler();
    }

    /// Clean pages of a region were write-protected by the parent's userfaultfd; the child's must
    /// do it again, or first writes would go unseen. Pins belong to threads that do not exist here.
    fn take_over(&self, start: usize, end: usize) {
        let (first, last) = pages(start, end);
        self.base.table.walk(first, last, |_, word| {
            let seen = word.load();
            if seen.state() == State::Resident {
                word.set(seen.with_field(0));
            }
        });
        self.protect_clean(start, end);
    }

    /// Write-protects the clean pages of a region, by a userfaultfd that has just been opened. No
    /// other thread is in the pager.
    fn protect_clean(&self, start: usize, end: usize) {
        let mut run: Option<(PageId, usize)> = None;
        let protect = |run: Option<(PageId, usize)>| {
            if let Some((page, n)) = run
                && let Err(e) = self.base.uffd.protect(page.addr(), n * PAGE_BYTES, true)
            {
                broken(&format!("clean pages could not be protected: {e}"));
            }
        };
        let (first, last) = pages(start, end);
        self.base.table.walk(first, last, |page, word| {
            let seen = word.load();
            if seen.state() != State::Resident || seen.dirty() {
                return;
            }
            run = match run {
                Some((at, n)) if at.0 + n as u64 == page.0 => Some((at, n + 1)),
                other => {
                    protect(other);
                    Some((page, 1))
                }
            };
        });
        protect(run);
    }
}

/// Whether a child gets the mappings that it is to have.
fn inheritable(base: &Base, on: bool) {
    let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    let space = base.maps.lock();
    for (start, region) in space.iter().filter(|(_, region)| region.on_fork != OnFork::Nothing) {
        kernel::advise(start, region.end - start, advice);
    }
}
