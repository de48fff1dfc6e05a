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

/// The longest wait that is reckoned with at a time.
const LONG: Duration = Duration::from_secs(1);
/// How often an atomic operation is tried of which it is not known whether it took effect.
const CUTS: usize = 64;

/// A commit: words that must be as expected, and what is written then. Offsets are from the first
/// byte of the range to which it is applied.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The lock: a word at a multiple of 8 that is 0 while nobody commits. All who change what it
    /// protects name the same one.
    pub lock: u32,
    /// The number in the lock meanwhile: not 0, and unlike that of any other commit under way. By
    /// it a commit knows its own lock after its connection was cut. It also tells others whose
    /// commit it was if this process ends in the middle.
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
        // Beyond the clock: without a limit.
        let until = Instant::now().checked_add(limit);
        let mut pause = PAUSES.0;
        loop {
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
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
        let mut here = Here { list: &laid, ..Here::new(self.lane, at, len) };
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

/// Compares and swaps the lock of a commit: 0 by its owner's number, or that by 0. Where the
/// connection is cut, the operation may have taken effect: it is tried again, and the word tells.
pub(super) fn swap(expected: u64, new: u64, mut once: impl FnMut() -> Result<u64>) -> Result<u64> {
    let mut cut = false;
    for _ in 0..CUTS {
        match once() {
            Err(Error::Unknown) => cut = true,
            Err(e) => return Err(e),
            // The owner's number is there, and nobody else writes it; or it is not there any more,
            // and nobody else takes it away.
            Ok(found) if cut && (found == new || expected != 0) => return Ok(expected),
            Ok(found) => return Ok(found),
        }
    }
    Err(Error::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::key::Key;
    use farmem_protocol::near::{Bytes, Range, Which};

    /// Memory whose connection is cut at some of the operations on the lock.
    struct Cut {
        source: Vec<u8>,
        list: Vec<u8>,
        /// Of each operation on the lock, whether it is cut, and whether it took effect.
        cuts: Vec<Option<bool>>,
        /// The number that another commit writes to the lock when it is free, behind such a cut.
        other: u64,
    }

    impl Cut {
        fn lock(&mut self) -> &mut [u8; 8] {
            self.source.first_chunk_mut().unwrap()
        }

        fn once(&mut self, expected: u64, new: u64) -> Result<u64> {
            let cut = if self.cuts.is_empty() { None } else { self.cuts.remove(0) };
            let found = u64::from_le_bytes(*self.lock());
            if found == expected && cut != Some(false) {
                *self.lock() = new.to_le_bytes();
            }
            if cut == Some(true) && new == 0 && self.other != 0 {
                *self.lock() = self.other.to_le_bytes();
            }
            if cut.is_some() { Err(Error::Unknown) } else { Ok(found) }
        }
    }

    impl Bytes for Cut {
        fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
            let from = if of == Which::List { &self.list } else { &self.source };
            into.copy_from_slice(&from[at as usize..][..into.len()]);
            Some(())
        }

        fn write(&mut self, _: Which, at: u64, bytes: &[u8]) -> Option<()> {
            self.source[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Some(())
        }

        fn swap(&mut self, _: u64, expected: u64, new: u64) -> Option<u64> {
            swap(expected, new, || self.once(expected, new)).ok()
        }
    }

    /// A commit whose connection is cut at any of its operations on the lock ends, and leaves the
    /// lock free: as it was taken, as a word differed, and as all was written.
    #[test]
    fn a_cut_leaves_no_lock_behind() {
        let some = [None, Some(false), Some(true)];
        for (expected, other) in [(0u64, 0), (0, 77), (5, 0), (5, 77)] {
            for cuts in some.iter().flat_map(|&a| some.iter().flat_map(move |&b| some.map(|c| vec![a, b, c]))) {
                let list = Commit::laid(&[(8, expected)], &[(16, &[9; 8])]);
                let commit = Commit { lock: 0, owner: 3, checks: 1, writes: 1, bytes: 8 };
                let range = |len: usize| Range { key: Key(1), at: 0, len: len as u64 };
                let call = Call { source: range(24), list: range(list.len()), function: Function::Commit(commit) };
                let mut memory = Cut { source: vec![0; 24], list, cuts: cuts.clone(), other };
                let ended = call.run(&mut memory);
                let wanted = match expected {
                    0 => Committed::Done,
                    _ => Committed::Differs { nth: 0, found: 0 },
                };
                assert_eq!(ended, Some(Reply::Committed(wanted)), "{cuts:?}");
                let lock = u64::from_le_bytes(*memory.lock());
                assert!(lock == 0 || lock == other, "{cuts:?}: the lock has {lock}");
                assert_eq!(memory.source[16..] == [9; 8], expected == 0, "{cuts:?}");
            }
        }
    }

    #[test]
    fn a_connection_that_is_always_cut_is_an_error() {
        assert!(matches!(swap(0, 3, || Err(Error::Unknown)), Err(Error::Unknown)));
    }
}
