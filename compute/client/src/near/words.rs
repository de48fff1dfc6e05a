//! Words that hosts share: waiting for one to change, and commits.
//!
//! A node that computes does both. Otherwise they are done from here by verbs, with the same
//! result: a wait looks again and again, and a commit takes its lock by compare-and-swap. So
//! commits of hosts and of nodes exclude one another.

use super::{Call, Function, Here, NOTHING, Near, Reply};
use crate::{Addr, Error, Result};
use farmem_protocol::near::{Commit, MAX_WAIT_MS};
use std::time::{Duration, Instant};

pub use farmem_protocol::near::Committed;
pub use farmem_protocol::near::commit::MAX_LIST;

/// The first and the longest pause between two looks at a word from here.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// A commit: words that must be as expected, and what is written then. Offsets are from the first
/// byte of the range to which it is applied.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The lock: a word at a multiple of 8 that is 0 while nobody commits. All who change what it
    /// protects name the same one.
    pub lock: u32,
    /// The number in the lock meanwhile, not 0: it tells others who committed last if this process
    /// ends in the middle.
    pub owner: u64,
    /// Offsets of words, and what each must be.
    pub checks: &'a [(u64, u64)],
    /// Offsets, and the bytes to write there: 1 to 4096 each. None touches the lock.
    pub writes: &'a [(u32, &'a [u8])],
}

impl Near<'_> {
    /// Waits until the word at an address differs from `known`, `limit` at most. Returns the word.
    ///
    /// At a node that computes this takes one round trip, and 20 a second while nothing changes.
    /// It returns about a millisecond after the change at the latest. Elsewhere this thread looks
    /// once in 20 µs at first, and later once a millisecond. This lane's other operations on the
    /// node wait meanwhile.
    ///
    /// # Errors
    /// As [`crate::Lane::load`].
    pub fn wait(&mut self, at: Addr, known: u64, limit: Duration) -> Result<u64> {
        let source = self.range(at, 8)?;
        if !at.offset().is_multiple_of(8) {
            return Err(Error::Unaligned(at));
        }
        let until = Instant::now() + limit;
        let mut pause = PAUSES.0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let ms = left.as_millis().min(MAX_WAIT_MS.into()) as u32;
            let call = Call { source, list: NOTHING, function: Function::Wait { expected: known, ms } };
            let there = match self.compute(&[(at.node(), call)])?[0] {
                Some(Reply::Waited(word)) => Some(word),
                _ => None,
            };
            let word = match there {
                Some(word) => word,
                None => self.lane.load(at)?,
            };
            if word != known || left.is_zero() {
                return Ok(word);
            }
            if there.is_none() {
                std::thread::sleep(pause.min(left));
                pause = (2 * pause).min(PAUSES.1);
            }
        }
    }

    /// Carries out a change of a range, if its words are as expected: one step for all who commit
    /// with the same lock. `list` is memory of this caller alone on the same node, of
    /// [`MAX_LIST`] bytes. Readers that take no lock may see a part of a commit under way.
    ///
    /// [`Committed::Held`] is the number of a commit that is under way: try again. If that stays,
    /// its process ended in the middle, and the range may have a part of its writes.
    ///
    /// # Errors
    /// As [`crate::Lane::write`]. [`Error::Unknown`]: the connection was cut; whether all was
    /// written is unknown: look. [`Error::Size`] of a list that is empty or too long;
    /// [`Error::Unaligned`] of the lock; [`Error::Range`] where an offset leads out of the range.
    pub fn commit(&mut self, (at, len): (Addr, u64), list: Addr, change: &Change<'_>) -> Result<Committed> {
        let laid = Commit::laid(change.checks, change.writes);
        let size = || Error::Size(laid.len() as u64);
        let commit = Commit {
            lock: change.lock,
            owner: change.owner,
            checks: u16::try_from(change.checks.len()).map_err(|_| size())?,
            writes: u16::try_from(change.writes.len()).map_err(|_| size())?,
            bytes: change.writes.iter().map(|(_, bytes)| bytes.len() as u32).sum(),
        };
        if !(at + u64::from(change.lock)).offset().is_multiple_of(8) {
            return Err(Error::Unaligned(at + u64::from(change.lock)));
        }
        let (source, kept) = (self.range(at, len)?, self.range(list, laid.len() as u64)?);
        let call = Call { source, list: kept, function: Function::Commit(commit) };
        if list.node() != at.node() || call.check().is_err() {
            return Err(size());
        }
        if self.is_computed(at.node()) {
            match self.around(call, (list, &laid), (list, &mut [])) {
                Ok(Some(Reply::Committed(committed))) => return Ok(committed),
                Ok(_) => {}
                Err(e) => return Err(e),
            }
        }
        let mut here = Here { list: &laid, ..Here::new(self.lane, at) };
        match (call.run(&mut here), here.failed) {
            (Some(Reply::Committed(committed)), _) => Ok(committed),
            (_, Some(failed)) => Err(failed),
            _ => Err(Error::Range { at, len }),
        }
    }
}

/// Whether a call must not be done twice: a host that does not know whether it was done says so.
pub(super) fn is_once(call: &Call) -> bool {
    matches!(call.function, Function::Commit(_))
}
