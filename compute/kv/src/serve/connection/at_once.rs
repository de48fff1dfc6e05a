//! Commands that are answered at once: no task, no copy of their arguments.
//!
//! * GET of a value that is in the near cache, by a front end that is alone.
//! * SET, INCR, DECR, INCRBY and DECRBY of a string whose slot is known, if its node's memory is
//!   mapped here ([`crate::shard::index::Mapped`]).
//!
//! Such a command is carried out only if everything that its connection asked before is answered.
//! The first that needs more ends the run; it begins as others do.

use super::Connection;
use crate::command::{Front, Replies, parse_int};
use crate::drive::Drive;
use crate::fast::Set;
use crate::layout::Hash;
use crate::object::Type;
use crate::resp::{Reply, bulk};
use std::io::Write;
use std::time::Instant;

/// Commands of one connection in one run. Others have their turn then.
const RUN: u64 = 1024;

/// The commands that are answered at once, as they are counted.
const NAMES: [&str; 6] = ["get", "set", "incr", "decr", "incrby", "decrby"];

/// The parts of a front end that commands at once need.
pub struct Means<'a> {
    /// The front end.
    pub front: &'a Front,
    /// The way to mapped memory; `None`: nothing is changed now.
    pub drive: Option<&'a mut Drive>,
    /// Keys that a command under way changes.
    pub writing: &'a Set<u64>,
    /// From which the front end's clock counts.
    pub start: Instant,
    /// For a new value.
    pub buffer: &'a mut Vec<u8>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// The next command, if there is one, begins as a task.
    Ended,
    /// There is more of the same.
    Paused,
}

impl Connection {
    /// Answers commands at once, as long as such come next.
    ///
    /// # Errors
    /// A node is lost.
    pub fn answer_at_once(&mut self, means: &mut Means<'_>) -> Result<Run, farmem::Error> {
        let (client, stats) = (&self.client, &means.front.stats);
        // While an argument streams in, what is read is the argument's, and is read only as there is room.
        let held_up = self.next.is_some()
            || self.inlet.is_some()
            || !self.begun.is_empty()
            || client.collects()
            || !client.authenticated.get();
        // With a threshold of 0 every command is to be logged.
        let paused = means.front.pause.get().until_ms > means.front.store.now_ms();
        let silent = client.replies.get() != Replies::On;
        let listens = client.version.get() < 3 && client.listens();
        if held_up
            || paused
            || silent
            || listens
            || client.closing.get()
            || self.broken
            || stats.threshold_us.get() == 0
            || means.front.monitors.is_any()
        {
            return Ok(Run::Ended);
        }
        if self.parser.waiting() == 0 && self.readable && !self.ended {
            self.fill();
        }
        if !std::mem::take(&mut self.filled) && self.parser.waiting() == 0 {
            return Ok(Run::Ended);
        }
        let begun = Instant::now();
        means.front.store.set_clock_ms(begun.duration_since(means.start).as_millis() as u64);
        self.client.seen_ms.set(means.front.store.now_ms());
        let (mut counts, mut last, mut sum) = ([0; NAMES.len()], None, 0);
        while sum < RUN
            && !self.holds_back()
            && let Some(which) = self.answer_next(means)?
        {
            counts[which] += 1;
            (last, sum) = (Some(NAMES[which]), sum + 1);
        }
        if let Some(last) = last {
            self.client.last.set(last);
            let figures = &means.front.store.figures;
            figures.commands.set(figures.commands.get() + sum);
            let each = begun.elapsed() / sum as u32;
            NAMES.iter().zip(counts).filter(|(_, count)| *count > 0).for_each(|(name, count)| {
                means.front.stats.record_all(name, count, each);
            });
            self.count();
        }
        Ok(if sum == RUN { Run::Paused } else { Run::Ended })
    }

    /// Answers the next command; which of [`NAMES`] it was. `None`: it takes a task, or has not
    /// come in full.
    fn answer_next(&mut self, means: &mut Means<'_>) -> Result<Option<usize>, farmem::Error> {
        let Some(short) = self.parser.short() else { return Ok(None) };
        let (which, by) = match *short.args() {
            [name, key] if name.eq_ignore_ascii_case(b"get") => {
                let Some(object) = means.front.store.near(key).filter(|object| object.kind() == Type::String) else {
                    return Ok(None);
                };
                bulk(&mut self.out, object.value());
                self.parser.skip(short.end);
                return Ok(Some(0));
            }
            [name, key, value] if name.eq_ignore_ascii_case(b"set") => {
                let done = match means.way_to(key) {
                    Some((front, drive)) => front.store.put_at_once(drive, key, value)?,
                    None => false,
                };
                if !done {
                    return Ok(None);
                }
                self.out.extend_from_slice(b"+OK\r\n");
                self.parser.skip(short.end);
                return Ok(Some(1));
            }
            [name, _] if name.eq_ignore_ascii_case(b"incr") => (2, Some(1)),
            [name, _] if name.eq_ignore_ascii_case(b"decr") => (3, Some(-1)),
            [name, _, by] if name.eq_ignore_ascii_case(b"incrby") => (4, parse_int(by)),
            [name, _, by] if name.eq_ignore_ascii_case(b"decrby") => (5, parse_int(by).and_then(i64::checked_neg)),
            _ => return Ok(None),
        };
        let (Some(by), key, end) = (by, short.args()[1], short.end) else { return Ok(None) };
        let Some(new) = means.add(key, by)? else { return Ok(None) };
        Reply::Int(new).write(2, &mut self.out);
        self.parser.skip(end);
        Ok(Some(which))
    }
}

impl Means<'_> {
    /// The way to change a key now, unless a command under way does.
    fn way_to(&mut self, key: &[u8]) -> Option<(&Front, &mut Drive)> {
        // A change that is published takes a task.
        let free = self.writing.is_empty() || !self.writing.contains(&Hash::of(key).0);
        let free = free && !self.front.events.is_any() && self.front.in_turn.is_free(key);
        self.drive.as_deref_mut().filter(|_| free).map(|drive| (self.front, drive))
    }

    /// Adds to a number; the sum.
    fn add(&mut self, key: &[u8], by: i64) -> Result<Option<i64>, farmem::Error> {
        let mut buffer = std::mem::take(self.buffer);
        let added = match self.way_to(key) {
            Some((front, drive)) => front.store.update_at_once(drive, key, &mut buffer, |old, new| {
                let sum = parse_int(old)?.checked_add(by)?;
                new.clear();
                // Writing to memory cannot fail.
                write!(new, "{sum}").ok()?;
                Some(sum)
            }),
            None => Ok(None),
        };
        *self.buffer = buffer;
        added
    }
}
