//! The node at which an agent claims blocks, and the node that it is leaving.
//!
//! ```text
//!  claim a block ─► copy ─► end the old keys ─► copy what changed ─► record ─► give the old one back
//!  at the new node          └ the program's verbs are refused until it asks again
//! ```
//!
//! *No write is lost.* The end of a key is answered when nothing is under way by it. So a WRITE is
//! in the copy, or it is refused and its program is told.
//!
//! *A kill at any moment.* The record of a block's place is one word. Before it is stored the block
//! is at the old node, and the new one's is in no record: the next agent gives it back. After it,
//! the same holds with the nodes exchanged. The next agent is a member of both nodes again.
//!
//! Memory of a node on this machine is mapped by programs, and cannot be called back. It does not
//! move.

// Verbs whose buffer is one of this file's.
#![allow(unsafe_code)]

use crate::blocks::{Blocks, Claimed, Memory};
use crate::ledger::Ledger;
use crate::windows::{User, finish};
use crate::word::{BLOCK_BYTES, BlockId, MAX_NODES, Refusal};
use farmem_fabric::QueuePair;
use farmem_protocol::key::Key;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of one READ or WRITE of a copy.
const PART: usize = 64 << 10;

/// A node of an agent.
struct Source {
    blocks: Blocks,
    /// Rises with each node that the agent moves to.
    number: u64,
    /// How applications reach it, as [`crate::hello::Entry::Elsewhere`] has it; empty: they map it.
    text: String,
}

/// The nodes of an agent.
pub struct Sources {
    ledger: Arc<Ledger>,
    now: Source,
    left: Option<Source>,
}

/// The outcome of a step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A block, or a run, has moved.
    Moved,
    /// The new node has no room now for anything that is left.
    Later,
    /// Nothing is left at the old node.
    Done,
}

impl Sources {
    /// The agent's only node. `text`: how applications reach it.
    pub fn new(ledger: Arc<Ledger>, blocks: Blocks, text: String) -> Sources {
        let (_, number) = ledger.current();
        Sources { ledger, now: Source { blocks, number, text }, left: None }
    }

    /// The move to `now` that a former agent has begun goes on.
    pub fn leaving(mut self, mut blocks: Blocks, text: String) -> Sources {
        blocks.count_with(&self.now.blocks);
        let number = self.now.number.saturating_sub(1);
        self.left = Some(Source { blocks, number, text });
        self
    }

    /// Whether a node is being left.
    pub fn is_moving(&self) -> bool {
        self.left.is_some()
    }

    /// The number that the next node gets. `None`: this agent can move no more.
    pub fn next_number(&self) -> Option<u64> {
        Some(self.now.number + 1).filter(|next| *next < MAX_NODES && self.left.is_none())
    }

    /// Claims blocks at another node from now on, and leaves the one that it had. False: they are
    /// the same node, or memory is mapped.
    pub fn begin(&mut self, mut blocks: Blocks, number: u64, text: String) -> bool {
        let had = &self.now.blocks;
        if blocks.incarnation() == had.incarnation() || blocks.is_mapped() || had.is_mapped() || self.left.is_some() {
            return false;
        }
        blocks.count_with(had);
        self.ledger.set_current(blocks.node(), number);
        self.left = Some(std::mem::replace(&mut self.now, Source { blocks, number, text }));
        true
    }

    /// Moves one block or run. `records` stores where it is now. `since_ns`: when room for it was
    /// first asked for.
    pub fn step(&mut self, since_ns: u64, records: impl FnOnce(BlockId, u32, usize)) -> Result<Step, Refusal> {
        let Some(left) = &mut self.left else { return Ok(Step::Done) };
        let Some((mut block, mut count)) = left.blocks.any() else { return Ok(Step::Done) };
        let to = &mut self.now.blocks;
        let grants = loop {
            match to.claim_units(count, since_ns) {
                Ok(Some(grants)) => break grants,
                // The new node has no room for so long a run. It may have room for a shorter one.
                Ok(None) | Err(Refusal::Exhausted | Refusal::Share) => match left.blocks.smaller(count) {
                    Some(fewer) => (block, count) = fewer,
                    None => return Ok(Step::Later),
                },
                Err(refusal) => return Err(refusal),
            }
        };
        if let Err(refusal) = left.blocks.copy_out(block, to, &grants) {
            let _ = to.give_back(&grants);
            return if refusal == Refusal::Lost { Err(refusal) } else { Ok(Step::Later) };
        }
        records(block, grants[0].place.index, to.node());
        to.adopt(block, grants);
        left.blocks.release(&[block]);
        Ok(Step::Moved)
    }

    /// The node that nothing is at any more. The caller drops it, which may wait for it.
    pub fn end(&mut self) -> Option<impl Sized + use<>> {
        let left = self.left.take_if(|left| left.blocks.any().is_none())?;
        // Before the node forgets the member: the next agent must not look for it.
        self.ledger.set_membership(left.blocks.node(), None);
        Some(left)
    }

    fn of(&mut self, block: BlockId) -> &mut Source {
        match &mut self.left {
            Some(left) if left.blocks.holds(block) => left,
            _ => &mut self.now,
        }
    }

    /// As [`Blocks::claim`].
    pub fn claim(&mut self, blocks: u32, since_ns: u64) -> Result<Option<(Claimed, usize)>, Refusal> {
        let left = self.left.as_ref().map(|left| &left.blocks);
        let node = self.now.blocks.node();
        let claimed = self.now.blocks.claim_beside(left, blocks, since_ns)?;
        Ok(claimed.map(|claimed| (claimed, node)))
    }

    /// As [`Blocks::release`].
    pub fn release(&mut self, blocks: &[BlockId]) {
        if let Some(left) = &mut self.left {
            left.blocks.release(blocks);
        }
        self.now.blocks.release(blocks);
    }

    /// As [`Blocks::memory`], with the number of the node. `user`: the application as a member of
    /// the node of a number.
    pub fn memory(&mut self, block: BlockId, user: impl FnOnce(u64) -> Option<User>) -> Result<(u64, Memory), Refusal> {
        let source = self.of(block);
        let user = user(source.number);
        let user = user.or(source.blocks.is_mapped().then(User::default)).ok_or(Refusal::Moved)?;
        Ok((source.number, source.blocks.memory(block, user)?))
    }

    /// How applications reach the node that a block is at.
    pub fn text(&mut self, block: BlockId) -> String {
        self.of(block).text.clone()
    }

    /// As [`Blocks::tend`].
    pub fn tend(&mut self) -> Result<(), String> {
        self.left.as_mut().map_or(Ok(()), |left| left.blocks.tend())?;
        self.now.blocks.tend()
    }

    /// Blocks claimed at all nodes, to be looked at at any time.
    pub fn count(&self) -> Arc<AtomicU64> {
        self.now.blocks.count()
    }
}

/// A copy of a block at another node, and what it has.
#[derive(Default)]
pub(crate) struct Copied(Vec<u8>);

impl Copied {
    /// Reads the block, and writes to its copy those parts that differ from what that has. By queue
    /// pairs of the agent's with nothing under way.
    pub fn renew(&mut self, [from, to]: [&mut QueuePair; 2], [old, new]: [Key; 2]) -> Result<(), Refusal> {
        let mut bytes = vec![0u8; BLOCK_BYTES as usize];
        for (at, part) in bytes.chunks_mut(PART).enumerate() {
            // SAFETY: a part of the buffer, which outlives the verbs: they are awaited below. If the
            // node is lost meanwhile, the buffer is leaked.
            unsafe { from.read(at as u64, old, (at * PART) as u64, part.as_mut_ptr(), PART as u32) };
        }
        let read = done(from, BLOCK_BYTES as usize / PART);
        if read == Err(Refusal::Lost) {
            std::mem::forget(bytes);
            return read;
        }
        read?;
        let mut written = 0;
        for (at, part) in bytes
            .chunks(PART)
            .enumerate()
            .filter(|(at, part)| self.0.get(at * PART..).is_none_or(|had| !had.starts_with(part)))
        {
            // SAFETY: as above.
            unsafe { to.write(at as u64, new, (at * PART) as u64, part.as_ptr(), PART as u32) };
            written += 1;
        }
        let ended = done(to, written);
        if ended == Err(Refusal::Lost) {
            std::mem::forget(bytes);
            return ended;
        }
        self.0 = bytes;
        ended
    }
}

/// Awaits this many verbs.
fn done(queue: &mut QueuePair, verbs: usize) -> Result<(), Refusal> {
    match finish(queue, verbs) {
        Ok(results) if results.iter().all(Result::is_ok) => Ok(()),
        Ok(_) => Err(Refusal::System),
        Err(_) => Err(Refusal::Lost),
    }
}
