//! Waiting for the first of several queue pairs, to one node or to several.
//!
//! With one that has verbs under way this is its own [`QueuePair::wait`]. With several: a look at
//! each in turn for a short while, then one system call that sleeps for all of them. A node that is
//! silent counts as lost after the same time as in a wait for it alone.

use super::{Completion, Path, QueuePair};
use crate::Lost;
use farmem_sys::raw;
use farmem_sys::socket;
use farmem_sys::spin::Spin;
use std::time::Duration;

/// … where one of the queue pairs has no socket to sleep for.
const NAP_NS: u64 = 100_000;

/// State that a waiting thread keeps from one wait to the next.
pub struct Waiter {
    looks: Spin,
    done: Vec<Completion>,
    /// Completions that have come, each with the index of its queue pair. The caller drains them.
    pub came: Vec<(usize, Completion)>,
}

impl Waiter {
    /// Nothing has come, and nothing is known of how long nodes take.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Waiter {
        Waiter { looks: Spin::new(), done: Vec::new(), came: Vec::new() }
    }

    /// Takes the completions that are there, without waiting.
    ///
    /// # Errors
    /// The index of a queue pair whose member is lost, and why. Completions of other queue pairs
    /// from before have come all the same.
    pub fn poll(&mut self, queues: &mut [Option<QueuePair>]) -> Result<(), (usize, Lost)> {
        for (at, queue) in in_flight(queues) {
            let polled = queue.not_spared().and_then(|()| queue.poll(&mut self.done));
            if !self.done.is_empty() {
                queue.end_silence();
                self.came.extend(self.done.drain(..).map(|completion| (at, completion)));
            }
            polled.map_err(|lost| (at, lost))?;
        }
        Ok(())
    }

    /// Waits until a verb of any of these queue pairs has completed, at most `limit`, if any is
    /// under way. Takes the completions that are there.
    ///
    /// # Errors
    /// As [`Waiter::poll`].
    pub fn wait(&mut self, queues: &mut [Option<QueuePair>], limit: Duration) -> Result<(), (usize, Lost)> {
        let mut busy = in_flight(queues);
        let Some((first, only)) = busy.next() else { return Ok(()) };
        if busy.next().is_some() {
            drop(busy);
            return self.wait_for_any(queues, limit);
        }
        let waited = only.wait(&mut self.done, limit);
        self.came.extend(self.done.drain(..).map(|completion| (first, completion)));
        waited.map(drop).map_err(|lost| (first, lost))
    }

    fn wait_for_any(&mut self, queues: &mut [Option<QueuePair>], limit: Duration) -> Result<(), (usize, Lost)> {
        let before = self.came.len();
        let begun = now_ns(queues);
        let until = begun.saturating_add(limit.as_nanos() as u64);
        let (mut looked_ns, mut waited_ns) = (begun, 0);
        loop {
            self.poll(queues)?;
            if self.came.len() > before {
                self.looks.came(waited_ns);
                return Ok(());
            }
            if !self.looks.offers() {
                std::hint::spin_loop();
                continue;
            }
            let now = now_ns(queues);
            // Time in which this process itself was stopped does not count: only a bounded part of
            // each step does.
            for (at, queue) in in_flight(queues) {
                queue.note_silence(now.saturating_sub(looked_ns)).map_err(|lost| (at, lost))?;
            }
            looked_ns = now;
            if now >= until {
                return Ok(());
            }
            if self.looks.looks_on(now - begun) && in_flight(queues).all(|(_, queue)| queue.descriptor().is_some()) {
                raw::yield_cpu();
                let after = raw::now_ns();
                waited_ns = after - begun;
                self.looks.offered(after - now);
            } else {
                sleep(queues, until - now)?;
                waited_ns = now_ns(queues).saturating_sub(begun);
            }
        }
    }
}

/// Those that have verbs under way, with their indices.
fn in_flight(queues: &mut [Option<QueuePair>]) -> impl Iterator<Item = (usize, &mut QueuePair)> {
    let there = queues.iter_mut().enumerate().filter_map(|(at, queue)| Some((at, queue.as_mut()?)));
    there.filter(|(_, queue)| queue.in_flight() > 0)
}

/// The latest of their clocks: simulated nodes have one each.
fn now_ns(queues: &mut [Option<QueuePair>]) -> u64 {
    in_flight(queues).map(|(_, queue)| queue.now_ns()).max().unwrap_or(0)
}

/// Until one may have something, at most so long.
fn sleep(queues: &mut [Option<QueuePair>], most_ns: u64) -> Result<(), (usize, Lost)> {
    // Those without a socket are looked at more often.
    let mut all_sockets = true;
    for (at, queue) in in_flight(queues).filter(|(_, queue)| queue.descriptor().is_none()) {
        all_sockets = false;
        queue.nap(NAP_NS.min(most_ns)).map_err(|lost| (at, lost))?;
    }
    if all_sockets {
        let longest_ns = in_flight(queues).map(|(_, queue)| queue.longest_sleep()).min().unwrap_or(0);
        let sockets = in_flight(queues).filter_map(|(_, queue)| queue.descriptor());
        socket::wait_any(sockets, longest_ns.min(most_ns));
    }
    Ok(())
}

impl QueuePair {
    /// See [`super::Framed::descriptor`].
    fn descriptor(&self) -> Option<(i32, bool)> {
        match &self.path {
            Path::Framed(framed) => framed.descriptor(),
            Path::Mapped(_) | Path::Wired(_) => None,
        }
    }

    fn now_ns(&self) -> u64 {
        match &self.path {
            Path::Framed(framed) => framed.now_ns(),
            Path::Mapped(_) | Path::Wired(_) => raw::now_ns(),
        }
    }

    /// Another thread may have given the member up, and nothing comes any more.
    fn not_spared(&self) -> Result<(), Lost> {
        match &self.path {
            Path::Framed(framed) => framed.not_spared(),
            Path::Mapped(_) | Path::Wired(_) => Ok(()),
        }
    }

    fn longest_sleep(&self) -> u64 {
        match &self.path {
            Path::Framed(framed) => framed.longest_sleep(),
            Path::Mapped(_) | Path::Wired(_) => NAP_NS,
        }
    }

    fn nap(&mut self, ns: u64) -> Result<(), Lost> {
        match &mut self.path {
            Path::Framed(framed) => framed.nap(ns),
            Path::Wired(wired) => wired.nap(ns)?,
            // Copies are done when they are polled for.
            Path::Mapped(_) => {}
        }
        Ok(())
    }

    fn note_silence(&mut self, waited_ns: u64) -> Result<(), Lost> {
        match &mut self.path {
            Path::Framed(framed) => framed.note_silence(waited_ns),
            Path::Wired(wired) => wired.note_silence(waited_ns),
            Path::Mapped(_) => Ok(()),
        }
    }

    fn end_silence(&mut self) {
        match &mut self.path {
            Path::Framed(framed) => framed.end_silence(),
            Path::Wired(wired) => wired.end_silence(),
            Path::Mapped(_) => {}
        }
    }
}
