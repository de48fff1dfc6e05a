//! The kernel's reports of traced threads, and the state changes that follow.

use std::io;

use farmem_sys::ptrace::{self, Told};

use super::{Event, State, Thread, Tracees};
use crate::threads::{has_returned, is_in_exec, is_zombie, process_of, tids};

impl Tracees {
    pub(super) fn drain(&mut self) -> io::Result<()> {
        loop {
            match ptrace::told() {
                Ok(Some((tid, told))) if self.is_known(tid, told) => return self.drain_each(),
                Ok(Some((tid, told))) => self.heed(tid, told),
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.threads.clear();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks each by itself: a held thread with a signal to take tells of it again and again, before
    /// others. Threads that nobody knows of yet stand meanwhile, and tell when all go on.
    fn drain_each(&mut self) -> io::Result<()> {
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            // An error: it was ended by another's exec, without a word.
            while let Ok(Some((_, told))) = ptrace::told_by(tid as i32) {
                if self.is_known(tid, told) {
                    break;
                }
                self.heed(tid, told);
            }
        }
        Ok(())
    }

    fn is_known(&self, tid: u32, told: Told) -> bool {
        let state = self.threads.get(&tid).map(|thread| thread.state);
        matches!((told, state), (Told::Signal(new), Some(State::Stopped { signal, .. })) if new == signal)
    }

    pub(super) fn heed(&mut self, tid: u32, told: Told) {
        if let Told::Exited(_) | Told::Killed(_) = told {
            if let Some(gone) = self.threads.remove(&tid)
                && !self.threads.values().any(|thread| thread.process == gone.process)
            {
                self.events.push(Event::Ended { process: gone.process, how: told });
            }
            return;
        }
        if !self.threads.contains_key(&tid) && !self.adopt(tid) {
            return;
        }
        match told {
            Told::Signal(signal) => self.stopped(tid, signal, true),
            Told::Trap => self.stopped(tid, 0, false),
            Told::GroupStop(_) if self.leaving => self.stopped(tid, 0, false),
            Told::GroupStop(_) => self.note_group_stop(tid),
            Told::Forked | Told::Vforked => {
                if let Ok(child) = ptrace::message(tid) {
                    // Its own first stop may have been told already, or is still to come.
                    self.threads.entry(child).or_insert(Thread::new(child, State::Running));
                    self.events.push(Event::Forked { child, shares: told == Told::Vforked });
                }
                self.stopped(tid, 0, true);
            }
            Told::Execed => {
                // The other threads are gone, some without a word; an exec by one of them took the
                // first's id.
                self.threads.retain(|&other, thread| thread.process != tid || other == tid);
                self.events.push(Event::Execed(tid));
                self.threads.insert(tid, Thread::new(tid, State::Stopped { signal: 0, inside: true }));
            }
            Told::Exiting => {
                let Some(&Thread { process, .. }) = self.threads.get(&tid) else { return };
                let state = if self.is_last(process, tid) { State::Last } else { State::Gone };
                match state {
                    State::Last => self.events.push(Event::Ending(process)),
                    // An error: as in `let_end`.
                    _ => drop(ptrace::resume(tid, 0)),
                }
                self.threads.insert(tid, Thread::new(process, state));
            }
            Told::Call => {
                let awaited = self.threads.get(&tid).filter(|thread| thread.awaited).map(|thread| thread.process);
                if let Some(process) = awaited
                    && has_returned(tid)
                {
                    self.events.push(Event::Returned(process));
                    let of_it = self.threads.values_mut().filter(|thread| thread.process == process);
                    of_it.for_each(|thread| thread.awaited = false);
                }
                self.stopped(tid, 0, true);
            }
            Told::Cloned | Told::Exited(_) | Told::Killed(_) => self.stopped(tid, 0, true),
        }
    }

    /// Whether nobody else will run the process's code, now that this thread stands at its end. To
    /// say so too early does no harm: its memory is looked at once more than need be.
    fn is_last(&self, process: u32, ending: u32) -> bool {
        let gone = |tid: &u32| self.threads.get(tid).is_some_and(|thread| thread.state == State::Gone);
        // One that was made a moment ago may not have told of itself yet.
        let others: Vec<u32> = tids(process).into_iter().filter(|tid| *tid != ending && !gone(tid)).collect();
        // A thread that ends by itself leaves its process to the others; one that is made to end
        // may leave it to an exec.
        let by_itself = || ptrace::registers(ending).is_ok_and(|of| of.orig_rax == libc::SYS_exit as u64);
        others.iter().all(|&tid| is_zombie(tid))
            || others.len() <= 2 && !by_itself() && others.iter().all(|&tid| is_zombie(tid) || is_in_exec(tid))
    }

    /// Takes in a thread that the kernel has attached. A process that nobody wants to follow is let
    /// go.
    fn adopt(&mut self, tid: u32) -> bool {
        let process = process_of(tid).unwrap_or(tid);
        let known = self.threads.values().any(|thread| thread.process == process);
        if !known && !self.follow.forks {
            let _ = ptrace::detach(tid, 0);
            return false;
        }
        self.threads.insert(tid, Thread::new(process, State::Running));
        if !known {
            self.unborn = Some(tid);
        }
        true
    }

    fn stopped(&mut self, tid: u32, signal: i32, inside: bool) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        // A process that is new, or wakes, waits for whoever begins to track it.
        let waits = |event: &Event| match event {
            Event::Forked { child, .. } => *child == tid,
            Event::Returned(process) => *process == thread.process,
            _ => false,
        };
        if self.held || self.events.iter().any(waits) || self.unborn.take_if(|unborn| *unborn == tid).is_some() {
            thread.state = State::Stopped { signal, inside };
        } else {
            thread.go_on(tid, signal);
        }
    }
}
