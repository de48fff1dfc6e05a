//! A thread's own way to a memory: blocking verbs, batches, and posted operations.
//!
//! ```text
//!  read, write, …        one operation, one round trip
//!  batch() … run()       many operations, one round trip to each node; buffers are borrowed
//!  post_… ring … wait    many operations under way while the thread works; buffers are moved in
//! ```

// Buffers are handed to verbs as raw memory; each method says how it is kept alive.
#![allow(unsafe_code)]

use crate::memory::{Inner, Memory};
use crate::ways::{AbandonOnUnwind, Buffer, Verb, Ways};
use crate::{Addr, Payload, Result};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// A thread's own connections to the nodes of a [`Memory`]. One for each thread at a time.
///
/// Operations on one node take effect in the order in which they were posted. The exception: a read
/// may see the effect of operations posted behind it. Operations on different nodes are not
/// ordered.
///
/// A lane over tcp has a connection to each node that it has used; 8192 lanes of a process can have
/// one to a node.
pub struct Lane {
    ways: Option<Ways>,
    memory: Memory,
}

/// How a posted operation ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// As given when it was posted.
    pub tag: u64,
    /// The old value of `compare_swap` and `fetch_add`, else 0.
    pub result: Result<u64>,
    /// The buffer of `post_read`, filled, and of `post_write`; else empty. After an error its bytes
    /// mean nothing.
    pub buffer: Vec<u8>,
}

impl Lane {
    pub(crate) fn new(memory: Memory, ways: Ways) -> Lane {
        Lane { ways: Some(ways), memory }
    }

    /// All verbs go through here. In a forked child the connections are the parent's, and nothing is
    /// sent or taken by them.
    pub(crate) fn parts(&mut self) -> (&mut Ways, &Inner) {
        let inner = &*self.memory.inner;
        let ways = self.ways.get_or_insert_with(|| Ways::new(inner.shards.len()));
        if inner.is_forked() {
            ways.end_in_child();
        }
        (ways, inner)
    }

    /// See [`Memory::read`].
    pub fn read(&mut self, at: Addr, into: &mut [u8]) -> Result<()> {
        let (ways, inner) = self.parts();
        // SAFETY: the slice outlives the operation, which ends before `run` returns.
        unsafe { ways.run(inner, at, read(into)) }.map(drop)
    }

    /// Has the CPU fetch the bytes at an address soon, if the node's memory is mapped here: a hint for
    /// a caller that does something else before it reads them.
    #[inline]
    pub fn touch(&mut self, at: Addr) {
        let (ways, inner) = self.parts();
        ways.touch(inner, at);
    }

    /// See [`Memory::write`].
    pub fn write(&mut self, at: Addr, bytes: &[u8]) -> Result<()> {
        let (ways, inner) = self.parts();
        // SAFETY: as above.
        unsafe { ways.run(inner, at, write(bytes)) }.map(drop)
    }

    /// See [`Memory::compare_swap`].
    pub fn compare_swap(&mut self, at: Addr, expected: u64, new: u64) -> Result<u64> {
        self.atomic(at, Verb::CompareSwap { expected, new })
    }

    /// See [`Memory::fetch_add`].
    pub fn fetch_add(&mut self, at: Addr, add: u64) -> Result<u64> {
        self.atomic(at, Verb::FetchAdd { add })
    }

    /// See [`Memory::load`].
    pub fn load(&mut self, at: Addr) -> Result<u64> {
        self.fetch_add(at, 0)
    }

    /// See [`Memory::store`].
    pub fn store(&mut self, at: Addr, value: u64) -> Result<()> {
        let mut found = 0;
        loop {
            match self.compare_swap(at, found, value)? {
                old if old == found => return Ok(()),
                old => found = old,
            }
        }
    }

    fn atomic(&mut self, at: Addr, verb: Verb) -> Result<u64> {
        let (ways, inner) = self.parts();
        // SAFETY: it points to nothing.
        unsafe { ways.run(inner, at, verb) }
    }

    /// Operations to be done together: one round trip to each node.
    pub fn batch<'b>(&mut self) -> Batch<'_, 'b> {
        Batch { lane: self, operations: Vec::new(), buffers: PhantomData }
    }

    /// Posts a read of as many bytes as the buffer has. The completion returns it.
    pub fn post_read(&mut self, tag: u64, at: Addr, mut into: Vec<u8>) {
        let (verb, (ways, inner)) = (read(&mut into), self.parts());
        // SAFETY: the bytes of the vector, which do not move with it.
        unsafe { ways.post(inner, tag, at, verb, Buffer::Own(into)) };
    }

    /// Posts a write. The completion returns the buffer.
    pub fn post_write(&mut self, tag: u64, at: Addr, bytes: Vec<u8>) {
        let (verb, (ways, inner)) = (write(&bytes), self.parts());
        // SAFETY: as above.
        unsafe { ways.post(inner, tag, at, verb, Buffer::Own(bytes)) };
    }

    /// Posts a write of bytes that are kept as long as they are needed, and not copied. The
    /// completion has no buffer.
    pub fn post_write_of(&mut self, tag: u64, at: Addr, payload: Payload) {
        let (verb, (ways, inner)) = (write(&payload), self.parts());
        // SAFETY: the payload's bytes stay while it lives.
        unsafe { ways.post(inner, tag, at, verb, Buffer::Kept(payload)) };
    }

    /// Posts a `compare_swap`.
    pub fn post_compare_swap(&mut self, tag: u64, at: Addr, expected: u64, new: u64) {
        let (ways, inner) = self.parts();
        // SAFETY: it points to nothing.
        unsafe { ways.post(inner, tag, at, Verb::CompareSwap { expected, new }, Buffer::Own(Vec::new())) };
    }

    /// Posts a `fetch_add`.
    pub fn post_fetch_add(&mut self, tag: u64, at: Addr, add: u64) {
        let (ways, inner) = self.parts();
        // SAFETY: it points to nothing.
        unsafe { ways.post(inner, tag, at, Verb::FetchAdd { add }, Buffer::Own(Vec::new())) };
    }

    /// Sends what was posted, one message to each node, and returns at once. A loss is told by
    /// completions.
    pub fn ring(&mut self) {
        let (ways, inner) = self.parts();
        ways.ring(inner);
    }

    /// Appends the completions that are there. Returns how many. Does not wait.
    pub fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        let (ways, _) = self.parts();
        ways.look(None);
        told(ways, done)
    }

    /// Rings, and waits for a completion of any node, at most `limit`, if anything is under way.
    /// Appends those that are there. Returns how many.
    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> usize {
        let (ways, inner) = self.parts();
        ways.ring(inner);
        ways.wait(limit);
        told(ways, done)
    }

    /// Posted operations without a completion.
    pub fn in_flight(&self) -> usize {
        self.ways.as_ref().map_or(0, Ways::in_flight)
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

fn read(into: &mut [u8]) -> Verb {
    Verb::Read { into: into.as_mut_ptr(), len: into.len() }
}

fn write(bytes: &[u8]) -> Verb {
    Verb::Write { from: bytes.as_ptr(), len: bytes.len() }
}

fn told(ways: &mut Ways, done: &mut Vec<Completion>) -> usize {
    ways.take_ended(|ended| done.push(Completion { tag: ended.tag, result: ended.result, buffer: ended.buffer }))
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(ways) = self.ways.take() {
            self.memory.inner.keep(ways);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// Operations that are done together by [`Batch::run`]; until then nothing is.
#[must_use = "nothing is done before run"]
pub struct Batch<'l, 'b> {
    lane: &'l mut Lane,
    operations: Vec<(Addr, Verb)>,
    buffers: PhantomData<&'b mut [u8]>,
}

impl<'b> Batch<'_, 'b> {
    /// Adds a read.
    pub fn read(&mut self, at: Addr, into: &'b mut [u8]) -> &mut Self {
        self.add(at, read(into))
    }

    /// Adds a write.
    pub fn write(&mut self, at: Addr, bytes: &'b [u8]) -> &mut Self {
        self.add(at, write(bytes))
    }

    /// Adds a `compare_swap`.
    pub fn compare_swap(&mut self, at: Addr, expected: u64, new: u64) -> &mut Self {
        self.add(at, Verb::CompareSwap { expected, new })
    }

    /// Adds a `fetch_add`.
    pub fn fetch_add(&mut self, at: Addr, add: u64) -> &mut Self {
        self.add(at, Verb::FetchAdd { add })
    }

    fn add(&mut self, at: Addr, verb: Verb) -> &mut Self {
        self.operations.push((at, verb));
        self
    }

    /// Does all of it. Returns each operation's result in the order in which they were added: the
    /// old value of `compare_swap` and `fetch_add`, else 0. One that fails keeps no other from
    /// being done.
    pub fn run(self) -> Vec<Result<u64>> {
        let (ways, inner) = self.lane.parts();
        let ways = AbandonOnUnwind(ways);
        let begin = |ways: &mut Ways, (at, verb)| {
            // SAFETY: the buffers are borrowed for `'b`, which outlives this call. Each operation
            // is awaited below; if that unwinds, the queue pairs are dropped.
            unsafe { ways.begin_waited(inner, at, verb) }
        };
        let numbers: Vec<_> = self.operations.into_iter().map(|operation| begin(ways.0, operation)).collect();
        ways.0.ring(inner);
        let results = numbers.into_iter().map(|number| ways.0.finish(number)).collect();
        std::mem::forget(ways);
        results
    }
}

impl fmt::Debug for Batch<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("operations", &self.operations.len()).finish_non_exhaustive()
    }
}
