//! Functions near memory. A node that computes (`farmem node --compute`) runs them; for other nodes
//! this library runs them on the bytes that it reads.
//!
//! ```text
//!                       ┌─ node computes, not mapped ──► SENDs, one round trip for many ──► replies
//!  scan, gather, … ─────┤
//!                       └─ refused, busy, or mapped ───► READs ──► the same function here
//! ```
//!
//! A node's answer is checked for being possible ([`Reply::parse`]); an impossible answer counts as
//! a refusal. So a node that lies can make a sum wrong, as it can the bytes of a READ, and no more.

// Calls and replies are handed to verbs as raw memory; each place says how it is kept alive.
#![allow(unsafe_code)]

use crate::lane::Lane;
use crate::ways::{AbandonOnUnwind, Verb};
use crate::{Addr, Error, Result};
use farmem_fabric::Refusal;
use farmem_protocol::key::Key;
use farmem_protocol::near::{Bytes, Call, FRAME, Function, MAX_BYTES, MAX_HOPS, Range, Reply, Which, laid};
use std::sync::atomic::Ordering;

mod columns;
mod flights;
mod gather;
mod group;
pub mod mark;
mod wasm;
mod words;

pub use columns::{Pair, Scanning};
pub use gather::Gathering;
pub use group::Columned;
pub use words::{Change, Committed, MAX_LIST};

pub use farmem_protocol::near::{Columns, Found, Group, Grouped, Kind, Scan};

/// Calls under way together. More would delay other members at the node.
const TOGETHER: usize = 16;

/// For fewer pieces READs take no more bytes than a GATHER.
const FEW: usize = 4;

/// Where a chase ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chased {
    /// The offset of the last object, from the range's first byte.
    pub at: u64,
    /// Links that were followed.
    pub hops: u32,
    /// Whether its field is as wanted.
    pub found: bool,
}

/// The parameters of a chase through the objects of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chase {
    /// The offset of the first object.
    pub from: u32,
    /// Where an object has the offset of the next one, as 8 bytes; 0: there is none.
    pub next: u16,
    /// Where an object has the field that is compared.
    pub field: u16,
    /// The value of the field in the wanted object.
    pub wanted: u64,
    /// Links to follow, at most.
    pub hops: u32,
}

/// The part of a [`Lane`] that has nodes run functions: see [`Lane::near`].
#[derive(Debug)]
pub struct Near<'l> {
    lane: &'l mut Lane,
}

impl Lane {
    /// Functions near memory, on this thread's connections.
    pub fn near(&mut self) -> Near<'_> {
        Near { lane: self }
    }
}

impl Near<'_> {
    /// Runs a [`Scan`] over the records of these ranges. A range holds whole records, and lies
    /// within one piece.
    ///
    /// Sums of `f64` are taken in parts of 256 KiB, and then in the order of the parts, at the node
    /// and here alike.
    ///
    /// # Errors
    /// As [`Lane::read`]; [`Error::Size`] where a range does not hold whole records, or a field
    /// does not lie in one.
    pub fn scan(&mut self, ranges: &[(Addr, u64)], scan: &Scan) -> Result<Found> {
        let stride = u64::from(scan.stride);
        if !scan.is_sound() {
            return Err(Error::Size(stride));
        }
        let part = MAX_BYTES / stride * stride;
        let mut parts = Vec::new();
        for &(at, len) in ranges {
            if !len.is_multiple_of(stride) {
                return Err(Error::Size(len));
            }
            parts.extend((0..len).step_by(part as usize).map(|skip| (at + skip, part.min(len - skip))));
        }
        let mut found = Found::none(scan.value);
        for some in parts.chunks(TOGETHER) {
            let calls = some.iter().map(|&(at, len)| {
                Ok((at.node(), Call { source: self.range(at, len)?, list: NOTHING, function: Function::Scan(*scan) }))
            });
            let calls = calls.collect::<Result<Vec<(usize, Call)>>>()?;
            let replies = self.compute(&calls)?;
            for (&(at, len), reply) in some.iter().zip(replies) {
                found = found.and(match reply {
                    Some(Reply::Found(found)) => found,
                    _ => self.scan_here(at, len, scan)?,
                });
            }
        }
        Ok(found)
    }

    fn scan_here(&mut self, at: Addr, len: u64, scan: &Scan) -> Result<Found> {
        let mut bytes = vec![0; len as usize];
        self.lane.read(at, &mut bytes)?;
        let mut found = Found::none(scan.value);
        scan.run(&bytes, &mut found);
        Ok(found)
    }

    /// Whether functions on memory of this node are carried out there: it has not refused any, and
    /// its memory is not mapped here.
    pub fn computes(&self, node: usize) -> bool {
        self.is_computed(node)
    }

    /// Copies within one node, or between two. The ranges do not overlap.
    ///
    /// # Errors
    /// As [`Lane::read`]. A part may have been copied.
    pub fn copy(&mut self, from: Addr, to: Addr, len: u64) -> Result<()> {
        for skip in (0..len).step_by(MAX_BYTES as usize) {
            let part = MAX_BYTES.min(len - skip);
            let (source, list) = (self.range(from + skip, part)?, self.range(to + skip, part)?);
            let call = Call { source, list, function: Function::Copy };
            let there = match from.node() == to.node() && call.check().is_ok() {
                true => self.compute(&[(from.node(), call)])?[0],
                false => None,
            };
            if there.is_none() {
                let mut bytes = vec![0; part as usize];
                self.lane.read(from + skip, &mut bytes)?;
                self.lane.write(to + skip, &bytes)?;
            }
        }
        Ok(())
    }

    /// Writes a word over and over.
    ///
    /// # Errors
    /// As [`Lane::write`]. A part may have been filled.
    pub fn fill(&mut self, at: Addr, len: u64, word: u64) -> Result<()> {
        for skip in (0..len).step_by(MAX_BYTES as usize) {
            let part = MAX_BYTES.min(len - skip);
            let call = Call { source: self.range(at + skip, part)?, list: NOTHING, function: Function::Fill(word) };
            if self.compute(&[(at.node(), call)])?[0].is_none() {
                let bytes: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(part as usize).collect();
                self.lane.write(at + skip, &bytes)?;
            }
        }
        Ok(())
    }

    /// Follows links among the objects of a range that lies within one piece.
    ///
    /// # Errors
    /// As [`Lane::read`]; [`Error::Range`] when a link leaves the range.
    pub fn chase(&mut self, at: Addr, len: u64, chase: &Chase) -> Result<Chased> {
        let source = self.range(at, len)?;
        let (mut from, mut done) = (chase.from, 0);
        loop {
            let Chase { next, field, wanted, hops, .. } = *chase;
            let hops = (hops - done).min(MAX_HOPS);
            let function = Function::Chase { from, next, field, wanted, hops };
            let call = Call { source, list: NOTHING, function };
            let reply = match self.compute(&[(at.node(), call)])?[0] {
                Some(reply) => reply,
                None => {
                    let mut here = Here::new(self.lane, at, len);
                    let reply = call.run(&mut here);
                    match (reply, here.failed) {
                        (Some(reply), _) => reply,
                        (None, failed) => return Err(failed.unwrap_or(Error::Range { at, len })),
                    }
                }
            };
            let Reply::Chased { at: ended, hops: followed, found } = reply else {
                return Err(Error::Range { at, len });
            };
            done += followed;
            let Some(next) = u32::try_from(ended).ok().filter(|_| !found && followed == hops && done < chase.hops)
            else {
                return Ok(Chased { at: ended, hops: done, found });
            };
            from = next;
        }
    }

    /// Whether functions are to be asked of a node: it is not mapped here, and has not refused any.
    fn is_computed(&self, node: usize) -> bool {
        let shards = &self.lane.memory().inner.shards;
        shards.get(node).is_some_and(|shard| !shard.session().is_mapped() && !shard.refuses.load(Ordering::Relaxed))
    }

    /// Has nodes carry out calls, all at once. `None` for each that its node did not.
    fn compute(&mut self, calls: &[(usize, Call)]) -> Result<Vec<Option<Reply>>> {
        if calls.iter().any(|&(node, _)| !self.is_computed(node)) {
            return Ok(vec![None; calls.len()]);
        }
        let frames: Vec<[u8; FRAME]> = calls.iter().map(|(_, call)| call.frame()).collect();
        let mut replies = vec![[0u8; FRAME]; calls.len()];
        let (ways, inner) = self.lane.parts();
        let ways = AbandonOnUnwind(ways);
        let mut numbers = Vec::with_capacity(calls.len());
        for ((&(node, _), said), reply) in calls.iter().zip(&frames).zip(&mut replies) {
            let verb = Verb::Send { said, reply: reply.as_mut_ptr() };
            // SAFETY: both outlive the operation, which is awaited below; if that unwinds, the
            // queue pairs are dropped.
            numbers.push(unsafe { ways.0.begin_waited(inner, Addr::of(node, 1, 0), verb) });
        }
        ways.0.ring(inner);
        let done: Vec<Result<u64>> = numbers.into_iter().map(|number| ways.0.finish(number)).collect();
        std::mem::forget(ways);
        let reply = |(n, done): (usize, Result<u64>)| self.judged(&calls[n], &replies[n], done);
        done.into_iter().enumerate().map(reply).collect()
    }

    /// Writes a call's list, sends the call, and reads what it made, all in one round trip.
    fn around(&mut self, call: Call, list: (Addr, &[u8]), run: (Addr, &mut [u8])) -> Result<Option<Reply>> {
        let (said, mut reply) = (call.frame(), [0; FRAME]);
        let node = list.0.node();
        let (ways, inner) = self.lane.parts();
        let ways = AbandonOnUnwind(ways);
        let write = Verb::Write { from: list.1.as_ptr(), len: list.1.len() };
        let send = Verb::Send { said: &said, reply: reply.as_mut_ptr() };
        let read = Verb::Read { into: run.1.as_mut_ptr(), len: run.1.len() };
        let places = [(list.0, write), (Addr::of(node, 1, 0), send), (run.0, read)];
        // SAFETY: as in `compute`.
        let numbers = places.map(|(at, verb)| unsafe { ways.0.begin_waited(inner, at, verb) });
        ways.0.ring(inner);
        let [written, sent, came] = numbers.map(|number| ways.0.finish(number));
        std::mem::forget(ways);
        let reply = self.judged(&(node, call), &reply, sent)?;
        written.and(came)?;
        Ok(reply)
    }

    /// A node's reply to a call. `None`: it refused, or its reply is an impossible one.
    fn judged(&self, (node, call): &(usize, Call), reply: &[u8; FRAME], done: Result<u64>) -> Result<Option<Reply>> {
        match done {
            Ok(_) => match Reply::parse(reply, call) {
                None if words::is_once(call) => Err(Error::Unknown),
                reply => Ok(reply),
            },
            Err(Error::Unknown) if words::is_once(call) => Err(Error::Unknown),
            Err(Error::Refused(Refusal::Access)) => {
                self.lane.memory().inner.shards[*node].refuses.store(true, Ordering::Relaxed);
                Ok(None)
            }
            // The node is busy, or refuses a range or a link: READs and WRITEs then find a better
            // error. Or the connection was cut. Each function may be done twice.
            Err(Error::Refused(_) | Error::Unknown) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn range(&mut self, at: Addr, len: u64) -> Result<Range> {
        let (ways, inner) = self.lane.parts();
        let slab = ways.slab(inner, at, len)?;
        Ok(Range { key: Key::from(slab), at: at.offset(), len })
    }

    /// A piece for lists and runs. `None`: the node has no room for one.
    fn scratch(&mut self, node: usize) -> Result<Option<Addr>> {
        if let Some(kept) = self.lane.memory().inner.take_scratch(node) {
            return Ok(Some(kept));
        }
        match self.lane.alloc_on(node, MAX_BYTES) {
            Ok(at) => Ok(Some(at)),
            Err(Error::Full(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

const NOTHING: Range = Range { key: Key(0), at: 0, len: 0 };

/// A range whose bytes a function run here reads and writes by verbs.
struct Here<'a> {
    lane: &'a mut Lane,
    at: Addr,
    /// Bytes of the range.
    len: u64,
    /// The call's list, which is read here.
    list: &'a [u8],
    failed: Option<Error>,
}

impl<'a> Here<'a> {
    fn new(lane: &'a mut Lane, at: Addr, len: u64) -> Here<'a> {
        Here { lane, at, len, list: &[], failed: None }
    }

    /// Where so many bytes from `at` on lie. `None`: not within the range.
    fn place(&self, at: u64, len: usize) -> Option<Addr> {
        at.checked_add(len as u64).filter(|&end| end <= self.len).map(|_| self.at + at)
    }
}

impl Bytes for Here<'_> {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        if of == Which::List {
            into.copy_from_slice(self.list.get(at as usize..)?.get(..into.len())?);
            return Some(());
        }
        let at = self.place(at, into.len())?;
        self.lane.read(at, into).map_err(|e| self.failed = Some(e)).ok()
    }

    fn write(&mut self, _: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let at = self.place(at, bytes.len())?;
        self.lane.write(at, bytes).map_err(|e| self.failed = Some(e)).ok()
    }

    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Option<u64> {
        let at = self.place(at, 8)?;
        let swapped = words::swap(expected, new, || self.lane.compare_swap(at, expected, new));
        swapped.map_err(|e| self.failed = Some(e)).ok()
    }
}
