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

use super::{Chunk, Client, ConnectError, member_options};
use crate::word::BLOCK_BYTES;
use farmem_fabric::{Completion, Lost, NodeAddr, QueuePair, Refusal, Session, Transport};
use farmem_protocol::key::Key;
use farmem_protocol::wire::MAX_VERB_BYTES;
use farmem_sys::sync::Lock;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a connection to the node that was cut may take to come back.
const GRACE: Duration = Duration::from_secs(10);

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

/// The program as a member of the node that its memory is at.
pub(super) struct Member {
    /// Queue pairs that no thread uses, with nothing under way. A new one for every [`Reach`] would
    /// be a connection for each. `None` as below.
    idle: Option<Lock<Vec<QueuePair>>>,
    /// `None` only while it is dropped.
    session: Option<Session>,
}

impl Member {
    /// Joins the node that the agent names, as `tcp HOST:PORT` or `verbs HOST:PORT`.
    pub(super) fn join(text: &str, patience: Duration) -> Result<Member, ConnectError> {
        let nonsense = || ConnectError::System(format!("the agent names no node: {text:?}"));
        let (way, at) = text.split_once(' ').ok_or_else(nonsense)?;
        let transport = match way {
            "tcp" => Transport::Tcp,
            "verbs" => Transport::Verbs,
            _ => return Err(nonsense()),
        };
        let node: NodeAddr = at.parse().map_err(|_| nonsense())?;
        let session = Session::connect(&node, &member_options(patience, GRACE, transport)?)
            .map_err(|e| ConnectError::Node(e.to_string()))?;
        Ok(Member { idle: Some(Lock::new(Vec::new())), session: Some(session) })
    }

    pub(super) fn owner(&self) -> u16 {
        self.session.as_ref().map_or(0, Session::owner)
    }

    fn queue_pair(&self) -> Result<QueuePair, ReachError> {
        let (Some(idle), Some(session)) = (&self.idle, &self.session) else { return Err(ReachError::Forked) };
        // Of a statement of its own: the lock ends with it.
        let kept = idle.lock().pop();
        if let Some(queue) = kept {
            return Ok(queue);
        }
        session.queue_pair().map_err(|lost| if session.standing().is_lost() { lost.into() } else { ReachError::Full })
    }

    /// Keeps a queue pair for the next thread. With verbs under way it is dropped: only then are
    /// their buffers free.
    fn keep(&self, queue: QueuePair) {
        if let Some(idle) = &self.idle
            && queue.in_flight() == 0
            && !queue.is_away()
        {
            idle.lock().push(queue);
        }
    }

    /// In a forked child: closes the descriptors and says nothing.
    pub(super) fn forget_in_child(&mut self) {
        if let Some(idle) = self.idle.take() {
            if let Some(mut idle) = idle.try_lock() {
                idle.drain(..).for_each(QueuePair::forget_in_child);
            }
            // Locked by a thread that is not here, it may be anything.
            std::mem::forget(idle);
        }
        if let Some(session) = self.session.take() {
            session.forget_in_child();
        }
    }
}

/// A thread's way to its program's pieces.
pub struct Reach<'a> {
    client: &'a Client,
    /// `None`: pieces are mapped.
    queue: Option<QueuePair>,
    /// The queue pair was lost, and is dropped: it touches no buffer any more.
    lost: Option<Lost>,
    done: Vec<Completion>,
}

impl Client {
    /// A way to this program's pieces for one thread. One for each thread at a time: over tcp each
    /// is a connection, which serves the next when it is dropped. A member of a node has 8192 at
    /// most.
    pub fn reach(&self) -> Result<Reach<'_>, ReachError> {
        self.is_here()?;
        let queue = self.member.as_ref().map(Member::queue_pair).transpose()?;
        Ok(Reach { client: self, queue, lost: None, done: Vec::new() })
    }

    /// By which key a byte of a piece is reached, and where behind it. `None`: it is mapped.
    pub fn key(&self, chunk: &Chunk, at: u64) -> Result<Option<(Key, u64)>, ReachError> {
        self.is_its(chunk)?;
        if at >= chunk.bytes() {
            return Err(ReachError::Range);
        }
        let Some(key) = chunk.at.key() else { return Ok(None) };
        if chunk.run == 0 {
            return Ok(Some((key, chunk.offset() + at)));
        }
        let key = self.state.lock().key(chunk.slot, (at / BLOCK_BYTES) as usize);
        Ok(Some((key.ok_or(ReachError::Range)?, at % BLOCK_BYTES)))
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
        self.verbs(chunk, from, len, |queue, key, offset, done, len| {
            // SAFETY: a part of the slice, which outlives the verb: it is awaited before `verbs`
            // returns.
            unsafe { queue.read(0, key, offset, into.as_mut_ptr().add(done as usize), len) };
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
        self.verbs(chunk, from, len, |queue, key, offset, done, len| {
            // SAFETY: as above.
            unsafe { queue.write(0, key, offset, bytes.as_ptr().add(done as usize), len) };
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
    /// once: by [`Client::key`]. `None`: they are mapped. The next call here waits for what is
    /// under way, and drops its completions.
    pub fn queue(&mut self) -> Result<Option<&mut QueuePair>, ReachError> {
        self.client.is_here()?;
        match &self.lost {
            Some(lost) => Err(lost.clone().into()),
            None => Ok(self.queue.as_mut()),
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

    /// Verbs for a range, one for each part of it that a single key opens, and awaits them.
    fn verbs(
        &mut self,
        chunk: &Chunk,
        from: u64,
        len: u64,
        mut post: impl FnMut(&mut QueuePair, Key, u64, u64, u32),
    ) -> Result<(), ReachError> {
        self.settle()?;
        let mut done = 0;
        while done < len {
            // Earlier posts are awaited below in any case.
            let Ok(Some((key, offset))) = self.client.key(chunk, from + done) else { break };
            let part = (len - done).min(BLOCK_BYTES - offset).min(MAX_VERB_BYTES as u64);
            let Some(queue) = &mut self.queue else { return Err(self.gone()) };
            post(queue, key, offset, done, part as u32);
            done += part;
        }
        self.finish()?;
        if done < len { Err(ReachError::Range) } else { Ok(()) }
    }

    fn one(&mut self, chunk: &Chunk, at: u64, post: impl FnOnce(&mut QueuePair, Key, u64)) -> Result<u64, ReachError> {
        let (key, offset) = self.client.key(chunk, at)?.ok_or(ReachError::Range)?;
        self.settle()?;
        let Some(queue) = &mut self.queue else { return Err(self.gone()) };
        post(queue, key, offset);
        self.finish()
    }

    /// Why there is no queue pair.
    fn gone(&self) -> ReachError {
        self.lost.clone().map_or(ReachError::Range, ReachError::Lost)
    }

    /// Waits until nothing is under way, of any caller: all its buffers are free, and no completion
    /// is to come.
    fn settle(&mut self) -> Result<(), ReachError> {
        let Some(queue) = &mut self.queue else { return Err(self.gone()) };
        self.done.clear();
        if queue.in_flight() == 0 {
            return Ok(());
        }
        let mut waited = queue.doorbell();
        while waited.is_ok() && queue.in_flight() > 0 {
            waited = queue.wait(&mut self.done, Duration::from_secs(1)).map(|_| ());
        }
        if let Err(lost) = waited {
            self.queue = None;
            self.lost = Some(lost);
            return Err(self.gone());
        }
        Ok(())
    }

    /// Waits for all that was posted since nothing was under way, also when some of it fails.
    fn finish(&mut self) -> Result<u64, ReachError> {
        self.settle()?;
        let failed = self.done.iter().find_map(|completion| completion.result.err());
        match failed {
            Some(refusal) => Err(refusal.into()),
            None => Ok(self.done.last().map_or(0, |completion| completion.result.unwrap_or(0))),
        }
    }
}

impl Drop for Reach<'_> {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        match &self.client.member {
            Some(member) if self.client.is_here().is_ok() => member.keep(queue),
            _ => queue.forget_in_child(),
        }
    }
}
