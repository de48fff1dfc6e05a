//! The operations, and the stream of them that one thread carries out.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commons::Commons;
use crate::estate::{Estate, SCRATCH, State};
use crate::report::{self, WRONG};
use crate::stamp::{LINE, LINES, PAGE, Random, mix};
use crate::sys::{self, Channels};

type Operation = fn(&mut Worker);

macro_rules! operations {
    ($($weight:literal $name:ident)*) => {
        const WEIGHTS: &[(usize, Operation)] = &[$(($weight, Worker::$name)),*];
        /// What the operations are called in reports.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

// The weights keep most pages mapped and most work on content: operations that
// change the address space are rarer, forks rarest, for each costs a process.
operations! {
    300 write_lines
    120 write_run
    260 verify_random
    120 verify_run
    60 verify_strided
    100 copy_page
    60 copy_lines
    60 through_pipe
    60 through_file
    60 through_vectors
    30 through_messages
    20 discard
    8 free_lazily
    40 protect
    24 unmap
    60 map_again
    20 map_over
    20 move_run
    20 random_bytes
    40 wait_in_vain
    100 add_counters
    80 write_shared
    30 hold_mutex
    30 heap
    6 far_stack
    1 fork_child
}

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
            random: Random::new(seed, thread),
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
        let mut draw = self.random.below(total);
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
        SCRATCH + self.random.below(self.estate.pages - SCRATCH)
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
        let most = 1 + self.random.below(most);
        Some((first, self.estate.run(first, most, good)))
    }

    fn must<T>(&self, what: &str, result: io::Result<T>) -> T {
        result.unwrap_or_else(|e| report::broken(&format!("{what} at step {} failed: {e}", self.step)))
    }

    fn write_lines(&mut self) {
        let Some(page) = self.page_in(State::Write) else { return };
        for _ in 0..1 + self.random.below(8) {
            let line = self.random.below(LINES);
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
        let (start, stride) = (self.any_page(), 1 + self.random.below(9));
        let backward = self.random.next() & 1 == 0;
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
        let first = self.random.below(LINES);
        let lines = 1 + self.random.below(LINES - first);
        sys::copy(self.estate.at(from) + first * LINE, self.estate.at(to) + first * LINE, lines * LINE);
        self.estate.copied(from, to, first, lines);
    }

    /// Sends all bytes of a run, however many calls it takes.
    fn transfer(&self, what: &str, bytes: usize, mut call: impl FnMut(usize) -> io::Result<usize>) {
        let mut done = 0;
        while done < bytes {
            match call(done) {
                Ok(0) => report::broken(&format!("{what} at step {}: end of file after {done} bytes", self.step)),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => report::broken(&format!("{what} at step {} failed after {done} bytes: {e}", self.step)),
            }
        }
    }

    /// Two runs of the same length, readable and writable, that do not overlap.
    fn two_runs(&mut self, most: usize) -> Option<(usize, usize, usize)> {
        let (from, n) = self.run_in(most, |s| s >= State::Read)?;
        let (to, m) = self.run_in(most, |s| s == State::Write)?;
        let count = n.min(m);
        (from + count <= to || to + count <= from).then_some((from, to, count))
    }

    fn through_pipe(&mut self) {
        let Some((from, to, count)) = self.two_runs(8) else { return };
        let (source, sink, bytes) = (self.estate.at(from), self.estate.at(to), count * PAGE);
        let [out, into] = self.channels.pipe;
        self.transfer("write to a pipe", bytes, |n| sys::write_at(into, source + n, bytes - n, None));
        self.transfer("read from a pipe", bytes, |n| sys::read_at(out, sink + n, bytes - n, None));
        for k in 0..count {
            self.estate.copied(from + k, to + k, 0, LINES);
        }
    }

    fn through_file(&mut self) {
        let Some((from, to, count)) = self.two_runs(64) else { return };
        let (source, sink, bytes) = (self.estate.at(from), self.estate.at(to), count * PAGE);
        let (file, offset) = (self.channels.file, self.random.below(1 << 20) as i64);
        self.transfer("pwrite", bytes, |n| sys::write_at(file, source + n, bytes - n, Some(offset + n as i64)));
        self.transfer("pread", bytes, |n| sys::read_at(file, sink + n, bytes - n, Some(offset + n as i64)));
        for k in 0..count {
            self.estate.copied(from + k, to + k, 0, LINES);
        }
    }

    fn through_vectors(&mut self) {
        self.scatter(self.channels.pipe[1], self.channels.pipe[0], false);
    }

    fn through_messages(&mut self) {
        self.scatter(self.channels.pair[0], self.channels.pair[1], true);
    }

    /// Pieces of pages to pieces of others, cut elsewhere, the tables themselves far.
    fn scatter(&mut self, into: i32, out: i32, messages: bool) {
        let (mut gather, mut spread, mut moves) = (Vec::new(), Vec::new(), Vec::<(usize, usize, usize, usize)>::new());
        let mut bytes = 0;
        for _ in 0..1 + self.random.below(12) {
            let (Some(from), Some(to)) = (self.page_in(State::Read), self.page_in(State::Write)) else { continue };
            let first = self.random.below(LINES);
            let lines = 1 + self.random.below(LINES - first);
            // A page read after it was written to in the same call would not be as the model has it.
            if moves.iter().any(|&(f, t, ..)| f == to || t == from || t == to) || from == to {
                continue;
            }
            let cut = 1 + self.random.below(lines * LINE);
            let (source, sink) = (self.estate.at(from) + first * LINE, self.estate.at(to) + first * LINE);
            gather.push(sys::iovec(source, lines * LINE));
            spread.push(sys::iovec(sink, cut));
            spread.push(sys::iovec(sink + cut, lines * LINE - cut));
            bytes += lines * LINE;
            moves.push((from, to, first, lines));
        }
        if moves.is_empty() {
            return;
        }
        let (table, other) = (self.estate.at(0), self.estate.at(1));
        sys::place_iovecs(table, &gather);
        sys::place_iovecs(other, &spread);
        // At most 12 pages: a pipe and a socket take that at once; less is an error here.
        let once = |what: &str, result: io::Result<usize>| match result {
            Ok(n) if n == bytes => {}
            other => report::broken(&format!("{what} at step {}: {other:?} of {bytes} bytes", self.step)),
        };
        if messages {
            once("sendmsg", sys::message(into, table, gather.len(), true));
            once("recvmsg", sys::message(out, other, spread.len(), false));
        } else {
            once("writev", sys::writev(into, table, gather.len()));
            once("readv", sys::readv(out, other, spread.len()));
        }
        for (from, to, first, lines) in moves {
            self.estate.copied(from, to, first, lines);
        }
    }

    fn discard(&mut self) {
        let Some((first, count)) = self.run_in(16, |s| s >= State::Read) else { return };
        self.must("MADV_DONTNEED", sys::advise(self.estate.at(first), count * PAGE, libc::MADV_DONTNEED));
        self.estate.zeroed(first, count);
    }

    fn free_lazily(&mut self) {
        let Some((first, count)) = self.run_in(16, |s| s == State::Write) else { return };
        self.must("MADV_FREE", sys::advise(self.estate.at(first), count * PAGE, libc::MADV_FREE));
        // A write takes each page back: what it held before may be gone, all of it or none.
        let line = self.random.below(LINES);
        for page in first..first + count {
            self.estate.write(page, line);
        }
        for page in first..first + count {
            self.estate.settle_freed(page, line);
        }
    }

    fn protect(&mut self) {
        // Towards writable more often than away from it.
        let state = [State::Closed, State::Read, State::Write, State::Write][self.random.below(4)];
        let Some((first, count)) = self.run_in(24, |s| s != State::Gone) else { return };
        self.must("mprotect", sys::protect(self.estate.at(first), count * PAGE, state.prot()));
        self.estate.set_state(first, count, state);
    }

    fn unmap(&mut self) {
        let Some((first, count)) = self.run_in(8, |s| s != State::Gone) else { return };
        self.must("munmap", sys::unmap(self.estate.at(first), count * PAGE));
        self.estate.set_state(first, count, State::Gone);
    }

    fn map_again(&mut self) {
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

    fn map_over(&mut self) {
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

    fn move_run(&mut self) {
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

    fn random_bytes(&mut self) {
        let Some(page) = self.page_in(State::Write) else { return };
        let at = self.estate.at(page);
        let got = self.must("getrandom", sys::random(at, PAGE));
        let bytes = sys::snapshot(at);
        if got != PAGE || bytes.iter().filter(|&&b| b == 0).count() > PAGE / 4 {
            report::broken(&format!("getrandom at step {}: {got} bytes", self.step));
        }
        // Out of the model's sight while it holds what the model does not know.
        self.estate.set_state(page, 1, State::Closed);
        self.verify_random();
        self.verify_run();
        self.estate.set_state(page, 1, State::Write);
        if sys::snapshot(at) != bytes {
            report::broken(&format!("getrandom's page {page} changed by step {}", self.step));
        }
        for line in 0..LINES {
            self.estate.write(page, line);
        }
    }

    fn wait_in_vain(&mut self) {
        let Some(page) = self.page_in(State::Read) else { return };
        let at = self.estate.at(page);
        let value = sys::read_line(at)[0] as u32;
        if let Err(e) = sys::futex(at, libc::FUTEX_WAIT, value.wrapping_add(1))
            && e.raw_os_error() == Some(libc::EAGAIN)
        {
            self.must("FUTEX_WAKE", sys::futex(at, libc::FUTEX_WAKE, 1));
            return;
        }
        report::broken(&format!("FUTEX_WAIT at step {} read another value than the program", self.step));
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
        let slot = self.random.below(4);
        let old = std::mem::take(&mut self.heap[slot]);
        if let Some(&key) = old.first()
            && let Some(at) = (1..old.len()).find(|&k| old[k] != mix(key + k as u64))
        {
            report::broken(&format!("word {at} of a heap block of {} at step {}", old.len(), self.step));
        }
        drop(old);
        let most = 64 << self.random.below(13);
        let words = 16 + self.random.below(most);
        let key = self.random.next() >> 1;
        self.heap[slot] = (0..words as u64).map(|k| if k == 0 { key } else { mix(key + k) }).collect();
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
