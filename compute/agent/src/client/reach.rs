//! Reading and writing pieces, on this machine and elsewhere.
//!
//! ```text
//!  here       a load, a store                      the piece is mapped
//!  elsewhere  READ, WRITE, CAS, FAA ── this thread's queue pair ──► the node checks the window
//! ```
//! A program whose agent serves a node on another machine is a member of that node itself: its
//! bytes do not pass through the agent. Each thread has a queue pair of its own
//! ([`super::Client::reach`]); the windows that the agent binds are for all of them.

// Loads and stores, and verbs whose buffers are slices.
#![allow(unsafe_code)]

use super::members::Member;
use super::{Chunk, Client};
use crate::word::BLOCK_BYTES;
use farmem_fabric::{Completion, Lost, QueuePair, Refusal};
use farmem_protocol::key::Key;
use farmem_protocol::wire::MAX_VERB_BYTES;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Why a piece was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// The node is gone, and everything on it.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The node refused the verb: the piece is not this program's any more.
    #[error("the memory node refused it: {0}; the agent has ended this program's session, or its memory was recovered")]
    Refused(Refusal),
    /// A CAS or FAA was under way when the connection was cut.
    #[error("the connection was cut; whether the word was changed is unknown: read it")]
    Unknown,
    /// Not within the piece, or a word that is not aligned.
    #[error("not within the piece, or not aligned")]
    Range,
    /// This is a forked child.
    #[error("a forked child has no far memory of its own: connect anew")]
    Forked,
    /// The piece is another client's.
    #[error("a piece of another client: reach it by the client that it was had from")]
    Another,
    /// No more queue pairs for this program at once; those that there are work on.
    #[error("the memory node has as many queue pairs for this program as one can have: let some threads share one")]
    Full,
}

impl From<Refusal> for ReachError {
    fn from(refusal: Refusal) -> ReachError {
        match refusal {
            Refusal::Unknown => ReachError::Unknown,
            other => ReachError::Refused(other),
        }
    }
}

/// A thread's way to its program's pieces.
pub struct Reach<'a> {
    client: &'a Client,
    /// By the numbers of nodes, those used last behind. None: pieces are mapped.
    ways: Vec<Way>,
    done: Vec<Completion>,
}

/// A thread's queue pair to a node.
struct Way {
    node: u64,
    member: Arc<Member>,
    /// One that was lost is dropped: it touches no buffer any more.
    queue: Result<QueuePair, Lost>,
}

impl Client {
    /// A way to this program's pieces for one thread. One for each thread at a time: over tcp each
    /// is a connection, which serves the next when it is dropped. A member of a node has 8192 at
    /// most.
    pub fn reach(&self) -> Result<Reach<'_>, ReachError> {
        self.is_here()?;
        let way = |(node, member): (u64, Arc<Member>)| Ok(Way { node, queue: Ok(member.queue_pair()?), member });
        let way: Option<Result<Way, ReachError>> = self.members.last().map(way);
        Ok(Reach { client: self, ways: way.transpose()?.into_iter().collect(), done: Vec::new() })
    }

    /// By which key a byte of a piece is reached, and where behind it. `None`: it is mapped. The key
    /// of a piece that the agent has moved to another node opens nothing any more: after a READ or
    /// WRITE of the piece by [`Reach::read`] or [`Reach::write`] this returns the one that does. A key
    /// is of one node, so a program whose agent may move asks for both by [`Reach::queue_to`].
    pub fn key(&self, chunk: &Chunk, at: u64) -> Result<Option<(Key, u64)>, ReachError> {
        Ok(self.place(chunk, at)?.map(|(_, key, offset)| (key, offset)))
    }

    /// The same, behind the number of the node.
    fn place(&self, chunk: &Chunk, at: u64) -> Result<Option<(u64, Key, u64)>, ReachError> {
        self.is_its(chunk)?;
        if at >= chunk.bytes() {
            return Err(ReachError::Range);
        }
        let Some(key) = chunk.at.key() else { return Ok(None) };
        if let (0, Some(node)) = (chunk.run, self.members.only()) {
            return Ok(Some((node, key, chunk.offset() + at)));
        }
        let (of_run, offset) = match chunk.run {
            0 => (0, chunk.offset() + at),
            _ => ((at / BLOCK_BYTES) as usize, at % BLOCK_BYTES),
        };
        let (node, key) = self.state.lock().key(chunk.slot, of_run).ok_or(ReachError::Range)?;
        Ok(Some((node, key, offset)))
    }

    /// The version of the keys that a piece is reached by. Before any has moved it is the first.
    fn version(&self, chunk: &Chunk) -> Result<u32, ReachError> {
        match self.members.only() {
            Some(_) if chunk.run == 0 => Ok(0),
            _ => self.state.lock().version(chunk.slot).ok_or(ReachError::Range),
        }
    }

    /// Whether a piece that failed for this reason is elsewhere now: the agent has moved.
    #[cold]
    fn follow(&self, chunk: &Chunk, used: u32, why: &ReachError) -> bool {
        let is_lost = matches!(why, ReachError::Lost(_));
        self.is_its(chunk).is_ok() && self.state.lock().follow(chunk.slot, used, is_lost).unwrap_or(false)
    }

    /// In this process, and by this client.
    fn is_its(&self, chunk: &Chunk) -> Result<(), ReachError> {
        self.is_here()?;
        if chunk.client == self.number { Ok(()) } else { Err(ReachError::Another) }
    }

    fn is_here(&self) -> Result<(), ReachError> {
        if self.here.load(Ordering::Relaxed) == 0 { Err(ReachError::Forked) } else { Ok(()) }
    }
}

impl Reach<'_> {
    /// Reads from byte `from` of a piece.
    pub fn read(&mut self, chunk: &Chunk, from: u64, into: &mut [u8]) -> Result<(), ReachError> {
        let len = into.len() as u64;
        if let Some(at) = self.place(chunk, from, len)? {
            // SAFETY: within the piece, which is mapped as long as the chunk lives; the slice is
            // the caller's alone.
            unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), into.as_mut_ptr(), into.len()) };
            return Ok(());
        }
        self.verbs(chunk, from, len, |queue, key, offset, (done, len)| {
            // SAFETY: a part of the slice, which outlives the verb: it is awaited before `verbs`
            // returns.
            unsafe { queue.read(done, key, offset, into.as_mut_ptr().add(done as usize), len) };
        })
    }

    /// Writes to a piece from its byte `from` on.
    pub fn write(&mut self, chunk: &Chunk, from: u64, bytes: &[u8]) -> Result<(), ReachError> {
        let len = bytes.len() as u64;
        if let Some(at) = self.place(chunk, from, len)? {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
            return Ok(());
        }
        self.verbs(chunk, from, len, |queue, key, offset, (done, len)| {
            // SAFETY: as above.
            unsafe { queue.write(done, key, offset, bytes.as_ptr().add(done as usize), len) };
        })
    }

    /// Stores `new` in the aligned word at byte `at` if it is `expected`. Returns the word from
    /// before.
    pub fn cas(&mut self, chunk: &Chunk, at: u64, expected: u64, new: u64) -> Result<u64, ReachError> {
        if let Some(word) = self.word(chunk, at)? {
            let swapped = word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
            return Ok(swapped.unwrap_or_else(|found| found));
        }
        self.one(chunk, at, |queue, key, offset| queue.cas(0, key, offset, expected, new))
    }

    /// Adds to the aligned word at byte `at`. Returns the word from before.
    pub fn faa(&mut self, chunk: &Chunk, at: u64, add: u64) -> Result<u64, ReachError> {
        if let Some(word) = self.word(chunk, at)? {
            return Ok(word.fetch_add(add, Ordering::SeqCst));
        }
        self.one(chunk, at, |queue, key, offset| queue.faa(0, key, offset, add))
    }

    /// The queue pair by which pieces elsewhere are reached, for those who post several verbs at
    /// once: by [`Client::key`], if the agent does not move, or else [`Reach::queue_to`]. `None`: they are mapped. The next call here waits for what is
    /// under way, and drops its completions. It leads to the node that this program's memory was at
    /// when this way was made.
    pub fn queue(&mut self) -> Result<Option<&mut QueuePair>, ReachError> {
        self.client.is_here()?;
        let Some(way) = self.ways.first_mut() else { return Ok(None) };
        way.queue.as_mut().map(Some).map_err(|lost| lost.clone().into())
    }

    /// The queue pair to the node that a byte of a piece is at, the key that opens the piece there,
    /// and where the byte is behind it. All three are of one look, so that a key goes to no other node
    /// than its own, where it could name another piece. `None`: it is mapped.
    pub fn queue_to(&mut self, chunk: &Chunk, at: u64) -> Result<Option<(&mut QueuePair, Key, u64)>, ReachError> {
        match self.client.place(chunk, at)? {
            Some((node, key, offset)) => Ok(Some((self.way(node)?, key, offset))),
            None => Ok(None),
        }
    }

    /// Where a range of a piece is mapped; `None`: it is elsewhere.
    fn place(&self, chunk: &Chunk, from: u64, len: u64) -> Result<Option<NonNull<u8>>, ReachError> {
        self.client.is_its(chunk)?;
        if from.checked_add(len).is_none_or(|end| end > chunk.bytes()) {
            return Err(ReachError::Range);
        }
        // SAFETY: within the piece.
        Ok(chunk.address().map(|address| unsafe { address.add(from as usize) }))
    }

    fn word(&self, chunk: &Chunk, at: u64) -> Result<Option<&AtomicU64>, ReachError> {
        if !at.is_multiple_of(8) {
            return Err(ReachError::Range);
        }
        // SAFETY: aligned, within the piece, which is mapped as long as the chunk lives.
        Ok(self.place(chunk, at, 8)?.map(|address| unsafe { address.cast::<AtomicU64>().as_ref() }))
    }

    /// Verbs for a range, one for each part of it that a single key opens, and awaits them. Parts
    /// that fail because the piece has moved are posted again to where it is.
    fn verbs(
        &mut self,
        chunk: &Chunk,
        from: u64,
        len: u64,
        mut post: impl FnMut(&mut QueuePair, Key, u64, (u64, u32)),
    ) -> Result<(), ReachError> {
        self.settle()?;
        // `None`: all parts.
        let mut again: Option<Vec<(u64, u32)>> = None;
        loop {
            let used = self.client.version(chunk)?;
            let mut one = |part| self.post(chunk, from, part, &mut post);
            let posted = match &again {
                None => parts(chunk, from, len).try_for_each(&mut one),
                Some(parts) => parts.iter().copied().try_for_each(&mut one),
            };
            // In any case: the buffers are free then.
            let settled = self.settle();
            let refused = self.done.iter().find_map(|completion| completion.result.err());
            let why = match (posted.and(settled), refused) {
                (Ok(()), None) => return Ok(()),
                (_, Some(refusal)) if refusal != Refusal::Access => return Err(refusal.into()),
                (Ok(()), Some(refusal)) => refusal.into(),
                (Err(lost @ ReachError::Lost(_)), _) => lost,
                (Err(other), _) => return Err(other),
            };
            if !self.client.follow(chunk, used, &why) {
                return Err(why);
            }
            let is_done = |part: &(u64, u32)| self.done.iter().any(|ended| ended.tag == part.0 && ended.result.is_ok());
            again = Some(match again {
                None => parts(chunk, from, len).filter(|part| !is_done(part)).collect(),
                Some(parts) => parts.into_iter().filter(|part| !is_done(part)).collect(),
            });
        }
    }

    /// Posts the verb for a part of a range.
    fn post(
        &mut self,
        chunk: &Chunk,
        from: u64,
        part: (u64, u32),
        post: &mut impl FnMut(&mut QueuePair, Key, u64, (u64, u32)),
    ) -> Result<(), ReachError> {
        let (node, key, offset) = self.client.place(chunk, from + part.0)?.ok_or(ReachError::Range)?;
        post(self.way(node)?, key, offset, part);
        Ok(())
    }

    /// An atomic verb, again if the piece has moved.
    fn one(&mut self, chunk: &Chunk, at: u64, post: impl Fn(&mut QueuePair, Key, u64)) -> Result<u64, ReachError> {
        loop {
            self.settle()?;
            let used = self.client.version(chunk)?;
            let (node, key, offset) = self.client.place(chunk, at)?.ok_or(ReachError::Range)?;
            let posted = self.way(node).map(|queue| post(queue, key, offset));
            let was_posted = posted.is_ok();
            let ended = posted.and_then(|()| self.settle());
            let result = self.done.last().map_or(Ok(0), |completion| completion.result);
            let why = match (ended, result) {
                (Ok(()), Ok(value)) => return Ok(value),
                (Ok(()), Err(refusal)) if refusal != Refusal::Access => return Err(refusal.into()),
                (Ok(()), Err(refusal)) => refusal.into(),
                (Err(lost @ ReachError::Lost(_)), _) => lost,
                (Err(other), _) => return Err(other),
            };
            match self.client.follow(chunk, used, &why) {
                false => return Err(why),
                // It may have been carried out before the piece moved.
                true if matches!(why, ReachError::Lost(_)) && was_posted => return Err(ReachError::Unknown),
                true => {}
            }
        }
    }

    /// The queue pair to the node of this number.
    fn way(&mut self, node: u64) -> Result<&mut QueuePair, ReachError> {
        let at = match self.ways.iter().position(|way| way.node == node) {
            Some(at) => at,
            None => {
                let member = self.client.members.of(node).ok_or(ReachError::Range)?;
                self.ways.push(Way { node, queue: Ok(member.queue_pair()?), member });
                self.ways.len() - 1
            }
        };
        self.ways[at].queue.as_mut().map_err(|lost| lost.clone().into())
    }

    /// Waits until nothing is under way, of any caller: all its buffers are free, and no completion
    /// is to come.
    fn settle(&mut self) -> Result<(), ReachError> {
        self.done.clear();
        let mut ended = Ok(());
        for way in &mut self.ways {
            let Ok(queue) = &mut way.queue else { continue };
            if queue.in_flight() == 0 {
                continue;
            }
            let mut waited = queue.doorbell();
            while waited.is_ok() && queue.in_flight() > 0 {
                waited = queue.wait(&mut self.done, Duration::from_secs(1)).map(|_| ());
            }
            if let Err(lost) = waited {
                ended = Err(lost.clone().into());
                way.queue = Err(lost);
            }
        }
        ended
    }
}

/// The parts of a range of a piece that a single verb reaches: how far behind its beginning, and how
/// long.
fn parts(chunk: &Chunk, from: u64, len: u64) -> impl Iterator<Item = (u64, u32)> + use<> {
    let offset = chunk.offset() + from;
    let part = move |done: u64| {
        let most = BLOCK_BYTES - (offset + done) % BLOCK_BYTES;
        (done < len).then(|| (done, (len - done).min(most).min(MAX_VERB_BYTES as u64) as u32))
    };
    std::iter::successors(part(0), move |(done, len)| part(done + *len as u64))
}

impl Drop for Reach<'_> {
    fn drop(&mut self) {
        let is_here = self.client.is_here().is_ok();
        for Way { member, queue, .. } in self.ways.drain(..) {
            match queue {
                Ok(queue) if is_here => member.keep(queue),
                Ok(queue) => queue.forget_in_child(),
                Err(_) => {}
            }
        }
    }
}
