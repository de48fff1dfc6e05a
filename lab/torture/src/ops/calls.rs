//! Operations by system calls, whose buffers are far.

use super::Worker;
use crate::estate::State;
use crate::report;
use crate::stamp::{LINE, LINES, PAGE};
use crate::sys;
use std::io;

impl Worker {
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

    pub(super) fn through_pipe(&mut self) {
        let Some((from, to, count)) = self.two_runs(8) else { return };
        let (source, sink, bytes) = (self.estate.at(from), self.estate.at(to), count * PAGE);
        let [out, into] = self.channels.pipe;
        self.transfer("write to a pipe", bytes, |n| sys::write_at(into, source + n, bytes - n, None));
        self.transfer("read from a pipe", bytes, |n| sys::read_at(out, sink + n, bytes - n, None));
        for k in 0..count {
            self.estate.copied(from + k, to + k, 0, LINES);
        }
    }

    pub(super) fn through_file(&mut self) {
        let Some((from, to, count)) = self.two_runs(64) else { return };
        let (source, sink, bytes) = (self.estate.at(from), self.estate.at(to), count * PAGE);
        let (file, offset) = (self.channels.file, self.random.index(1 << 20) as i64);
        self.transfer("pwrite", bytes, |n| sys::write_at(file, source + n, bytes - n, Some(offset + n as i64)));
        self.transfer("pread", bytes, |n| sys::read_at(file, sink + n, bytes - n, Some(offset + n as i64)));
        for k in 0..count {
            self.estate.copied(from + k, to + k, 0, LINES);
        }
    }

    pub(super) fn through_vectors(&mut self) {
        self.scatter(self.channels.pipe[1], self.channels.pipe[0], false);
    }

    pub(super) fn through_messages(&mut self) {
        self.scatter(self.channels.pair[0], self.channels.pair[1], true);
    }

    /// Pieces of pages to pieces of others, cut elsewhere, the tables themselves far.
    fn scatter(&mut self, into: i32, out: i32, messages: bool) {
        let (mut gather, mut spread, mut moves) = (Vec::new(), Vec::new(), Vec::<(usize, usize, usize, usize)>::new());
        let mut bytes = 0;
        for _ in 0..1 + self.random.index(12) {
            let (Some(from), Some(to)) = (self.page_in(State::Read), self.page_in(State::Write)) else { continue };
            let first = self.random.index(LINES);
            let lines = 1 + self.random.index(LINES - first);
            // A page read after it was written to in the same call would not be as the model has it.
            if moves.iter().any(|&(f, t, ..)| f == to || t == from || t == to) || from == to {
                continue;
            }
            let cut = 1 + self.random.index(lines * LINE);
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

    pub(super) fn random_bytes(&mut self) {
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

    pub(super) fn wait_in_vain(&mut self) {
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
}
