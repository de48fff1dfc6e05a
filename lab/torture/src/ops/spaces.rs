//! Operations that change the address space.

use super::Worker;
use crate::estate::State;
use crate::report;
use crate::stamp::{LINES, PAGE};
use crate::sys;

impl Worker {
    pub(super) fn discard(&mut self) {
        let Some((first, count)) = self.run_in(16, |s| s >= State::Read) else { return };
        self.must("MADV_DONTNEED", sys::advise(self.estate.at(first), count * PAGE, libc::MADV_DONTNEED));
        self.estate.zeroed(first, count);
    }

    pub(super) fn free_lazily(&mut self) {
        let Some((first, count)) = self.run_in(16, |s| s == State::Write) else { return };
        self.must("MADV_FREE", sys::advise(self.estate.at(first), count * PAGE, libc::MADV_FREE));
        // A write takes each page back: what it held before may be gone, all of it or none.
        let line = self.random.index(LINES);
        for page in first..first + count {
            self.estate.write(page, line);
        }
        for page in first..first + count {
            self.estate.settle_freed(page, line);
        }
    }

    pub(super) fn protect(&mut self) {
        // Towards writable more often than away from it.
        let state = [State::Closed, State::Read, State::Write, State::Write][self.random.index(4)];
        let Some((first, count)) = self.run_in(24, |s| s != State::Gone) else { return };
        self.must("mprotect", sys::protect(self.estate.at(first), count * PAGE, state.prot()));
        self.estate.set_state(first, count, state);
    }

    pub(super) fn unmap(&mut self) {
        let Some((first, count)) = self.run_in(8, |s| s != State::Gone) else { return };
        self.must("munmap", sys::unmap(self.estate.at(first), count * PAGE));
        self.estate.set_state(first, count, State::Gone);
    }

    pub(super) fn map_again(&mut self) {
        let Some((first, count)) = self.run_in(24, |s| s == State::Gone) else { return };
        // Another thread's mapping may have come to lie in the hole: then it stays a hole.
        match sys::map(self.estate.at(first), count * PAGE, State::Write.prot(), libc::MAP_FIXED_NOREPLACE) {
            Ok(at) if at == self.estate.at(first) => {
                self.estate.zeroed(first, count);
                self.estate.set_state(first, count, State::Write);
            }
            Ok(at) => report::broken(&format!("MAP_FIXED_NOREPLACE at step {} gave {at:#x}", self.step)),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
            Err(e) => report::broken(&format!("mmap at step {} failed: {e}", self.step)),
        }
    }

    pub(super) fn map_over(&mut self) {
        let Some((first, count)) = self.run_in(16, |s| s != State::Gone) else { return };
        self.fresh(first, count);
    }

    fn fresh(&mut self, first: usize, count: usize) {
        let at = self.estate.at(first);
        let got = sys::map(at, count * PAGE, State::Write.prot(), libc::MAP_FIXED);
        if self.must("mmap MAP_FIXED", got) != at {
            report::broken(&format!("MAP_FIXED at step {} went elsewhere", self.step));
        }
        self.estate.zeroed(first, count);
        self.estate.set_state(first, count, State::Write);
    }

    pub(super) fn move_run(&mut self) {
        let Some((from, n)) = self.run_in(12, |s| s == State::Write) else { return };
        let Some((to, m)) = self.run_in(24, |s| s != State::Gone) else { return };
        let count = n.min(m);
        // Grows when there is room.
        if from + count.max(m) > to && to + m > from {
            return;
        }
        let (source, sink) = (self.estate.at(from), self.estate.at(to));
        match sys::remap(source, count * PAGE, m * PAGE, sink) {
            Ok(()) => {
                for k in 0..count {
                    self.estate.copied(from + k, to + k, 0, LINES);
                }
                self.estate.zeroed(to + count, m - count);
                self.estate.set_state(to, m, State::Write);
                self.estate.set_state(from, count, State::Gone);
            }
            // The run is of several mappings that cannot move as one; the target is already gone.
            Err(_) => self.fresh(to, m),
        }
    }
}
