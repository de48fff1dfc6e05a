//! The stream of operations that one thread carries out, and those on content. Beside: those by system calls
//! (`calls`), and those that change the address space (`spaces`).

mod calls;
mod spaces;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commons::Commons;
use crate::estate::{Estate, SCRATCH, State};
use crate::operations::operations;
use crate::report::{self, WRONG};
use crate::stamp::{LINE, LINES, PAGE};
use crate::sys::{self, Channels};
use farmem_protocol::random::{Random, hash};

type Operation = fn(&mut Worker);

macro_rules! carried_out {
    ($($weight:literal $name:ident)*) => {
        const WEIGHTS: &[(usize, Operation)] = &[$(($weight, Worker::$name)),*];
    };
}

operations!(carried_out);

/// One thread's stream of operations.
pub struct Worker {
    estate: Estate,
    commons: Commons,
    random: Random,
    channels: Channels,
    step: u64,
    far_stacks: bool,
    heap: [Vec<u64>; 4],
    /// 0 in the process that was started, else how many forks deep.
    generation: u32,
}

impl Worker {
    /// A worker with its own memory and descriptors.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(thread: usize, pages: usize, seed: u64, far_stacks: bool, commons: Commons) -> io::Result<Worker> {
        Ok(Worker {
            estate: Estate::new(thread, pages)?,
            commons,
            random: Random::nth(seed, thread as u64),
            channels: Channels::open()?,
            step: 0,
            far_stacks,
            heap: Default::default(),
            generation: 0,
        })
    }

    /// Carries out one operation. `progress` gets the step and the operation, for the watchdog.
    pub fn step(&mut self, progress: &AtomicU64) {
        self.step += 1;
        let total: usize = WEIGHTS.iter().map(|(weight, _)| weight).sum();
        let mut draw = self.random.index(total);
        let mut index = 0;
        while draw >= WEIGHTS[index].0 {
            draw -= WEIGHTS[index].0;
            index += 1;
        }
        progress.store(self.step << 8 | index as u64, Ordering::Relaxed);
        self.estate.begin(index as u8, self.step);
        WEIGHTS[index].1(self);
    }

    /// At the end: everything once more.
    pub fn verify_all(&mut self) {
        for page in SCRATCH..self.estate.pages {
            if self.estate.state(page) >= State::Read {
                self.estate.verify(page);
            }
        }
    }

    fn any_page(&mut self) -> usize {
        SCRATCH + self.random.index(self.estate.pages - SCRATCH)
    }

    /// A page whose state is good, if a few draws find one.
    fn draw(&mut self, good: impl Fn(State) -> bool) -> Option<usize> {
        for _ in 0..8 {
            let page = self.any_page();
            if good(self.estate.state(page)) {
                return Some(page);
            }
        }
        None
    }

    /// A page in at least this state.
    fn page_in(&mut self, state: State) -> Option<usize> {
        self.draw(|s| s >= state)
    }

    /// A run of up to `most` pages that are all in exactly one of the states.
    fn run_in(&mut self, most: usize, good: impl Fn(State) -> bool) -> Option<(usize, usize)> {
        let first = self.draw(&good)?;
        let most = 1 + self.random.index(most);
        Some((first, self.estate.run(first, most, good)))
    }

    fn must<T>(&self, what: &str, result: io::Result<T>) -> T {
        result.unwrap_or_else(|e| report::broken(&format!("{what} at step {} failed: {e}", self.step)))
    }

    fn write_lines(&mut self) {
        let Some(page) = self.page_in(State::Write) else { return };
        for _ in 0..1 + self.random.index(8) {
            let line = self.random.index(LINES);
            self.estate.write(page, line);
        }
    }

    fn write_run(&mut self) {
        let Some((first, count)) = self.run_in(32, |s| s == State::Write) else { return };
        for page in first..first + count {
            for line in 0..LINES {
                self.estate.write(page, line);
            }
        }
    }

    fn verify_random(&mut self) {
        for _ in 0..12 {
            if let Some(page) = self.page_in(State::Read) {
                self.estate.verify(page);
            }
        }
    }

    fn verify_run(&mut self) {
        let Some((first, count)) = self.run_in(96, |s| s >= State::Read) else { return };
        for page in first..first + count {
            self.estate.verify(page);
        }
    }

    fn verify_strided(&mut self) {
        let (start, stride) = (self.any_page(), 1 + self.random.index(9));
        let backward = self.random.bits() & 1 == 0;
        for k in 0..24 {
            let page = if backward { start.wrapping_sub(k * stride) } else { start + k * stride };
            if (SCRATCH..self.estate.pages).contains(&page) && self.estate.state(page) >= State::Read {
                self.estate.verify(page);
            }
        }
    }

    fn copy_page(&mut self) {
        let (Some(from), Some(to)) = (self.page_in(State::Read), self.page_in(State::Write)) else { return };
        sys::copy(self.estate.at(from), self.estate.at(to), PAGE);
        self.estate.copied(from, to, 0, LINES);
    }

    fn copy_lines(&mut self) {
        let (Some(from), Some(to)) = (self.page_in(State::Read), self.page_in(State::Write)) else { return };
        let first = self.random.index(LINES);
        let lines = 1 + self.random.index(LINES - first);
        sys::copy(self.estate.at(from) + first * LINE, self.estate.at(to) + first * LINE, lines * LINE);
        self.estate.copied(from, to, first, lines);
    }

    fn add_counters(&mut self) {
        // A forked child has copies: its additions would be no one's.
        if self.generation == 0 {
            self.commons.add(&mut self.random);
        }
    }

    fn write_shared(&mut self) {
        if self.generation == 0 {
            self.commons.page(&mut self.random, self.estate.thread, self.estate.operation(), self.step);
        }
    }

    fn hold_mutex(&mut self) {
        if self.generation == 0 {
            self.commons.mutex();
        }
    }

    /// Allocations of sizes around malloc's threshold, verified when they are replaced.
    fn heap(&mut self) {
        let slot = self.random.index(4);
        let old = std::mem::take(&mut self.heap[slot]);
        if let Some(&key) = old.first()
            && let Some(at) = (1..old.len()).find(|&k| old[k] != hash(key + k as u64))
        {
            report::broken(&format!("word {at} of a heap block of {} at step {}", old.len(), self.step));
        }
        drop(old);
        let most = 64 << self.random.index(13);
        let words = 16 + self.random.index(most);
        let key = self.random.bits() >> 1;
        self.heap[slot] = (0..words as u64).map(|k| if k == 0 { key } else { hash(key + k) }).collect();
    }

    fn far_stack(&mut self) {
        if !self.far_stacks {
            return;
        }
        let (at, bytes) = (self.estate.at(2), (SCRATCH - 2) * PAGE);
        sys::Coroutine::run_on(at, bytes, || {
            self.verify_random();
            self.write_lines();
            self.through_pipe();
            self.verify_run();
            self.through_vectors();
        });
    }

    /// A child that verifies the memory of the moment, works on it and ends, while the parent goes on.
    fn fork_child(&mut self) {
        if self.generation >= 2 {
            return;
        }
        let pid = self.must("fork", sys::fork());
        if pid == 0 {
            self.generation += 1;
            self.verify_all();
            // Descriptors are the parent's too: what two processes write to one pipe is no model's.
            self.channels = self.must("channels", Channels::open());
            let silent = AtomicU64::new(0);
            for _ in 0..40 {
                self.step(&silent);
            }
            self.verify_all();
            sys::end(0);
        }
        let silent = AtomicU64::new(0);
        let deeper = self.generation;
        self.generation = 2;
        for _ in 0..40 {
            self.step(&silent);
        }
        self.generation = deeper;
        let status = self.must("waitpid", sys::wait(pid));
        if status != 0 {
            let text = format!("torture: a child forked at step {} ended with status {status:#x}\n", self.step);
            report::end(WRONG, &text);
        }
    }
}
