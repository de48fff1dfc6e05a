//! The way by which the objects of a heap come and leave: a lane to nodes. Tests have another one, plain
//! memory, by which the eviction of a heap runs without system calls: under Miri, too.

use crate::heap::Inner;
use crate::homes::Owner;
use farmem::{Addr, Completion, Lane, Memory};
use std::rc::Weak;
use std::time::Duration;

/// Where blocks of homes come from.
pub trait Pieces {
    /// See [`Memory::alloc`].
    fn alloc(&self, bytes: u64) -> farmem::Result<Addr>;
    /// See [`Memory::free`].
    fn free(&self, at: Addr) -> farmem::Result<()>;
}

impl Pieces for Memory {
    fn alloc(&self, bytes: u64) -> farmem::Result<Addr> {
        Memory::alloc(self, bytes)
    }

    fn free(&self, at: Addr) -> farmem::Result<()> {
        Memory::free(self, at)
    }
}

/// Moves objects. See the methods of [`Lane`].
pub trait Way {
    /// The owner of the blocks of the heap's homes.
    type Owner: Owner;

    fn touch(&mut self, at: Addr);
    fn read(&mut self, at: Addr, into: &mut [u8]) -> farmem::Result<()>;
    /// Reads and writes by one round trip to each node. The results of the reads, then those of the
    /// writes.
    fn run<'b>(
        &mut self,
        reads: impl Iterator<Item = (Addr, &'b mut [u8])>,
        writes: impl Iterator<Item = (Addr, &'b [u8])>,
    ) -> Vec<farmem::Result<u64>>;
    fn post_read(&mut self, tag: u64, at: Addr, into: Vec<u8>);
    fn ring(&mut self);
    /// Hands the posted reads over that have ended: the tag, whether the bytes have come, and the
    /// buffer. `wait`: how long to wait for one if any is under way.
    fn ended(&mut self, wait: Option<Duration>, take: impl FnMut(u64, bool, Vec<u8>));
}

/// A lane to nodes.
pub struct Nodes {
    pub lane: Lane,
    /// Kept empty between calls for its allocation.
    done: Vec<Completion>,
}

impl Nodes {
    pub fn new(lane: Lane) -> Nodes {
        Nodes { lane, done: Vec::new() }
    }
}

impl Way for Nodes {
    type Owner = Weak<Inner>;

    #[inline]
    fn touch(&mut self, at: Addr) {
        self.lane.touch(at);
    }

    #[inline]
    fn read(&mut self, at: Addr, into: &mut [u8]) -> farmem::Result<()> {
        self.lane.read(at, into)
    }

    #[inline]
    fn run<'b>(
        &mut self,
        reads: impl Iterator<Item = (Addr, &'b mut [u8])>,
        writes: impl Iterator<Item = (Addr, &'b [u8])>,
    ) -> Vec<farmem::Result<u64>> {
        let mut batch = self.lane.batch();
        reads.for_each(|(at, into)| {
            batch.read(at, into);
        });
        writes.for_each(|(at, bytes)| {
            batch.write(at, bytes);
        });
        batch.run()
    }

    fn post_read(&mut self, tag: u64, at: Addr, into: Vec<u8>) {
        self.lane.post_read(tag, at, into);
    }

    fn ring(&mut self) {
        self.lane.ring();
    }

    fn ended(&mut self, wait: Option<Duration>, mut take: impl FnMut(u64, bool, Vec<u8>)) {
        match wait {
            Some(limit) => self.lane.wait(&mut self.done, limit),
            None => self.lane.poll(&mut self.done),
        };
        self.done.drain(..).for_each(|one| take(one.tag, one.result.is_ok(), one.buffer));
    }
}
