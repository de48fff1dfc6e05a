//! The costs of commands: counts and times by command, and the slow ones. SLOWLOG and LATENCY.

use super::args::{int, is};
use super::{Answered, COMMANDS, Call, Command, Fail};
use crate::resp::Reply;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Slow commands that are remembered, at most.
const SLOW_MOST: usize = 1024;
/// Of a slow command: arguments, and bytes of each.
const SHOWN: (usize, usize) = (32, 128);

/// Kinds of errors that are counted, at most: a script can make up any.
const ERRORS: usize = 128;
/// Bytes of the word that names one, at most.
const ERROR: usize = 32;

/// The cost of one command.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// How often it was carried out.
    pub calls: u64,
    /// How long that took, in µs.
    pub us: u64,
    /// How often it was answered by an error.
    pub failed: u64,
    /// Calls that took at least 2^n µs and less than twice that; the first also less.
    pub histogram: [u32; 32],
}

/// A command that took long.
#[derive(Debug)]
struct Slow {
    id: u64,
    at_s: u64,
    us: u64,
    args: Vec<Vec<u8>>,
    client: String,
    name: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Stats {
    costs: RefCell<Vec<Cost>>,
    slow: RefCell<VecDeque<Slow>>,
    next: Cell<u64>,
    /// Replies that were errors, by the error's first word.
    errors: RefCell<BTreeMap<String, u64>>,
    /// Commands that take at least this many µs are slow. Negative: none is.
    pub threshold_us: Cell<i64>,
    /// Slow commands that are remembered.
    pub most: Cell<usize>,
    /// Commands in the last full second.
    pub lately: Cell<u64>,
    /// The most bytes of nodes' memory that were seen to be held.
    peak: Cell<u64>,
}

impl Default for Stats {
    fn default() -> Stats {
        let costs = vec![Cost::default(); COMMANDS.len()].into();
        let (slow, next, errors, lately) = (RefCell::default(), Cell::new(0), RefCell::default(), Cell::new(0));
        let (threshold_us, most, peak) = (Cell::new(10_000), Cell::new(128), Cell::new(0));
        Stats { costs, slow, next, errors, threshold_us, most, lately, peak }
    }
}

impl Stats {
    /// A command was carried out.
    pub fn record(&self, command: &Command, call: &Call, took: Duration, reply: &Reply) {
        let us = took.as_micros() as u64;
        let Ok(place) = COMMANDS.binary_search_by(|known| known.name.cmp(command.name)) else { return };
        let mut costs = self.costs.borrow_mut();
        let cost = &mut costs[place];
        cost.calls += 1;
        cost.us += us;
        cost.failed += u64::from(matches!(reply, Reply::Error(_)));
        cost.histogram[us.max(1).ilog2().min(31) as usize] += 1;
        drop(costs);
        // On a draft, a transaction counts the errors of its commands itself, and a script has dealt with
        // them, or fails as they do.
        if call.draft.is_none() || !call.in_exec {
            self.refused(reply);
        }
        let waits = command.name.starts_with('b') && !command.name.starts_with("bit");
        // AUTH and HELLO have passwords in them.
        let secret = matches!(command.name, "auth" | "hello");
        if self.threshold_us.get() >= 0 && us >= self.threshold_us.get() as u64 && !waits && !secret {
            self.remember(call, us);
        }
    }

    /// Counts a reply if it is an error.
    pub fn refused(&self, reply: &Reply) {
        let Reply::Error(text) = reply else { return };
        // A script makes up its errors: their words are kept short, and in one line of INFO.
        let end = text.bytes().position(|byte| !byte.is_ascii_alphanumeric() && byte != b'_').unwrap_or(text.len());
        let word = &text[..end.min(ERROR)];
        let mut errors = self.errors.borrow_mut();
        if let Some(count) = errors.get_mut(word) {
            *count += 1;
        } else if errors.len() < ERRORS {
            errors.insert(word.to_owned(), 1);
        }
    }

    /// Replies that were errors, by the error's first word.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.borrow().clone()
    }

    /// Some commands were answered at once, each in about this time.
    pub fn record_all(&self, name: &str, count: u64, each: Duration) {
        let Ok(place) = COMMANDS.binary_search_by(|known| known.name.cmp(name)) else { return };
        let cost = &mut self.costs.borrow_mut()[place];
        cost.calls += count;
        let (us, all) = (each.as_micros() as u64, each.saturating_mul(count as u32));
        cost.us += all.as_micros() as u64;
        let place = &mut cost.histogram[us.max(1).ilog2().min(31) as usize];
        *place = place.wrapping_add(count as u32);
    }

    fn remember(&self, call: &Call, us: u64) {
        let short = |arg: &Vec<u8>| match arg.len().checked_sub(SHOWN.1).filter(|&more| more > 0) {
            Some(more) => [&arg[..SHOWN.1], format!("... ({more} more bytes)").as_bytes()].concat(),
            None => arg.clone(),
        };
        let mut args: Vec<Vec<u8>> = call.args.iter().take(SHOWN.0).map(short).collect();
        if call.args.len() > SHOWN.0 {
            let more = call.args.len() - SHOWN.0 + 1;
            args[SHOWN.0 - 1] = format!("... ({more} more arguments)").into_bytes();
        }
        let id = self.next.replace(self.next.get() + 1);
        let (client, name) = (call.client.address.clone(), call.client.name.borrow().clone());
        let mut slow = self.slow.borrow_mut();
        slow.push_front(Slow { id, at_s: call.store().now_ms() / 1000, us, args, client, name });
        slow.truncate(self.most.get().min(SLOW_MOST));
    }

    /// The most bytes that were held, and are now.
    pub fn peak(&self, now: u64) -> u64 {
        self.peak.set(self.peak.get().max(now));
        self.peak.get()
    }

    /// Commands that were carried out, with their costs.
    pub fn costs(&self) -> Vec<(&'static str, Cost)> {
        let costs = self.costs.borrow();
        let used = COMMANDS.iter().zip(costs.iter()).filter(|(_, cost)| cost.calls > 0);
        used.map(|(command, cost)| (command.name, cost.clone())).collect()
    }

    /// Forgets counts and times.
    pub fn reset(&self) {
        self.costs.borrow_mut().fill(Cost::default());
        self.errors.borrow_mut().clear();
    }
}

/// SLOWLOG.
pub fn slowlog(call: &Call) -> Answered {
    let stats = &call.front.stats;
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"get", 2 | 3) => {
            let most = if call.count() == 3 { int(call.arg(2))? } else { 10 };
            if most < -1 {
                return Err(Fail::new("count should be greater than or equal to -1"));
            }
            let one = |slow: &Slow| {
                Reply::Array(vec![
                    Reply::Int(slow.id as i64),
                    Reply::Int(slow.at_s as i64),
                    Reply::Int(slow.us as i64),
                    Reply::Array(slow.args.iter().map(|arg| Reply::bulk(arg.as_slice())).collect()),
                    Reply::bulk(slow.client.as_bytes()),
                    Reply::bulk(slow.name.as_slice()),
                ])
            };
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            Ok(Reply::Array(stats.slow.borrow().iter().take(most).map(one).collect()))
        }
        (b"len", 2) => Ok(Reply::Int(stats.slow.borrow().len() as i64)),
        (b"reset", 2) => {
            stats.slow.borrow_mut().clear();
            Ok(Reply::Ok)
        }
        _ => Err(super::server::unknown(call, "slowlog")),
    }
}

/// LATENCY. There are no events to be told: every command's times are in its histogram.
pub fn latency(call: &Call) -> Answered {
    match call.arg(1).to_ascii_lowercase().as_slice() {
        b"histogram" => {
            let wanted = |name: &str| call.count() == 2 || call.args[2..].iter().any(|arg| is(arg, name));
            let one = |(name, cost): (&'static str, Cost)| {
                let mut sum = 0;
                let mut bounds = Vec::new();
                for (n, &count) in cost.histogram.iter().enumerate().filter(|(_, count)| **count > 0) {
                    sum += i64::from(count);
                    bounds.push((Reply::Int(2 << n), Reply::Int(sum)));
                }
                let about = vec![
                    (Reply::bulk("calls"), Reply::Int(cost.calls as i64)),
                    (Reply::bulk("histogram_usec"), Reply::Map(bounds)),
                ];
                (Reply::bulk(name), Reply::Map(about))
            };
            let costs = call.front.stats.costs().into_iter().filter(|(name, _)| wanted(name));
            Ok(Reply::Map(costs.map(one).collect()))
        }
        b"latest" | b"history" => Ok(Reply::Array(Vec::new())),
        b"reset" => Ok(Reply::Int(0)),
        b"graph" => {
            Err(Fail::new(format!("No samples available for event '{}'", String::from_utf8_lossy(call.arg(2)))))
        }
        b"doctor" => Ok(Reply::Text("LATENCY HISTOGRAM and SLOWLOG GET tell where time goes.".into())),
        _ => Err(super::server::unknown(call, "latency")),
    }
}
