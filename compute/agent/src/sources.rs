//! The node at which an agent claims blocks, and the nodes that it is leaving.
//!
//! ```text
//!  claim a run ─► each block: copy ─► end its key ─► copy changes ─► record ─► give the run back
//!  at the new node         in parts    └ its verbs are refused until the program asks again
//! ```
//!
//! *No write is lost.* The end of a key is answered when nothing is under way by it. So a WRITE is
//! in the copy, or it is refused and its program is told.
//!
//! *A program waits for one block* of a run. Blocks that have moved answer at the new node, the
//! others at the old one. Other programs ask for keys between any two parts of a copy.
//!
//! *A kill at any moment.* The record of a block's place is one word. Before it is stored the block
//! is at the old node, and the new one's is in no record: the next agent gives it back. After it,
//! the same holds with the nodes exchanged. A run in the middle of its move has a second word in the
//! record: its place at the new node, and how many of its blocks are there. So the next agent holds
//! the run at both nodes, and goes on with the first block that has not moved.
//!
//! *Two nodes may be left.* If there is no room at the node that an agent moves to, it may go to a
//! third one, or back.
//!
//! Memory of a node on this machine is mapped by programs, and cannot be called back. It does not
//! move.

use crate::blocks::{Blocks, Claimed, Memory};
use crate::copy::Copied;
use crate::ledger::{Ledger, NODES, Owned, Progress};
use crate::windows::User;
use crate::word::{BlockId, MAX_NODES, Refusal};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    /// The last is the one that is used. The others are being left.
    all: Vec<Source>,
    moving: Option<Moving>,
}

/// A block or run that moves. Both nodes hold it.
struct Moving {
    block: BlockId,
    /// Its blocks.
    count: u32,
    /// The nodes, by their places in the ledger.
    from: usize,
    to: usize,
    /// The number of its blocks that have moved.
    done: u32,
    /// The copy of the next.
    copied: Copied,
}

/// The outcome of a step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part of a block was copied.
    Copied,
    /// A block has moved.
    Moved,
    /// The new node has no room now for anything that is left.
    Later,
    /// Nothing is left at another node than the one that is used.
    Done,
}

/// How a move to another node began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Blocks are claimed there from now on.
    There,
    /// The same, at a node that was being left.
    Back,
    /// They were before, or memory is mapped, or too many nodes are being left.
    Not,
}

/// How an application reaches a block or a run.
pub struct Reached {
    /// The number of the node that it is at.
    pub node: u64,
    /// Its memory.
    pub memory: Memory,
    /// The number of the node that it moves to.
    pub to: u64,
    /// The number of its first blocks that are there.
    pub moved: u64,
}

impl Sources {
    /// The agent's only node. `text`: how applications reach it.
    pub fn new(ledger: Arc<Ledger>, blocks: Blocks, text: String) -> Sources {
        let number = ledger.number(blocks.node());
        Sources { ledger, all: vec![Source { blocks, number, text }], moving: None }
    }

    /// A move that a former agent has begun goes on, from this node.
    pub fn leaving(mut self, mut blocks: Blocks, text: String) -> Sources {
        blocks.count_with(&self.now().blocks);
        let number = self.ledger.number(blocks.node());
        self.all.insert(self.all.len() - 1, Source { blocks, number, text });
        self
    }

    /// The move of this run goes on.
    pub fn resume(&mut self, run: &Owned) {
        let Some(Progress { node: to, done, .. }) = run.progress else { return };
        let (block, count, from, copied) = (run.block, run.blocks, run.node, Copied::default());
        let holds = |node: usize| self.all.iter().any(|at| at.blocks.node() == node && at.blocks.holds(block));
        if holds(from) && holds(to) {
            self.moving = Some(Moving { block, count, from, to, done, copied });
        } else {
            // A part of it is lost, and its application is told so when it asks.
            self.release(&[block]);
        }
    }

    /// Whether a node is being left.
    pub fn is_moving(&self) -> bool {
        self.all.len() > 1
    }

    /// The number that the next node gets. `None`: this agent can move no more now.
    pub fn next_number(&self) -> Option<u64> {
        Some(self.ledger.current().1 + 1).filter(|next| *next < MAX_NODES && self.all.len() < NODES)
    }

    /// Claims blocks at another node from now on, and leaves the one that it had.
    pub fn begin(&mut self, mut blocks: Blocks, number: u64, text: String) -> Begun {
        let incarnation = blocks.incarnation();
        let had = &self.now().blocks;
        if had.incarnation() == incarnation || blocks.is_mapped() || had.is_mapped() {
            return Begun::Not;
        }
        // A block of which no part is at the node that it was to go to stays for now. A run that is
        // at two nodes goes on to where it was to go, and follows from there.
        if let Some(Moving { block, to, .. }) = self.moving.take_if(|moving| moving.done == 0)
            && let Some(to) = self.at(to)
        {
            to.blocks.release(&[block]);
        }
        if let Some(at) = self.all.iter().position(|source| source.blocks.incarnation() == incarnation) {
            let back = self.all.remove(at);
            self.ledger.set_current(back.blocks.node(), self.ledger.current().1);
            self.all.push(back);
            return Begun::Back;
        }
        if self.all.len() >= NODES {
            return Begun::Not;
        }
        blocks.count_with(&self.now().blocks);
        self.ledger.set_current(blocks.node(), number);
        self.all.push(Source { blocks, number, text });
        Begun::There
    }

    /// Copies a part of a block, or moves a block that is copied. `records` stores how far its run
    /// has moved. `since_ns`: when room was first asked for.
    pub fn step(&mut self, since_ns: u64, records: impl FnOnce(BlockId, Progress)) -> Result<Step, Refusal> {
        let Some(mut moving) = self.moving.take() else { return self.choose(since_ns) };
        let Moving { block, count, from, to, done, .. } = moving;
        // Its application may have freed it.
        let Some([from, to]) = self.pair(from, to).filter(|[from, _]| from.blocks.holds(block)) else {
            return Ok(Step::Copied);
        };
        let (from, to) = (&mut from.blocks, &mut to.blocks);
        let of_run = (block, done as usize);
        let is_copied = moving.copied.is_whole();
        let stepped = match is_copied {
            false => from.copy_part(to, of_run, &mut moving.copied),
            true => from.copy_rest(to, of_run, &moving.copied),
        };
        match (stepped, to.place_of(block)) {
            (Ok(()), _) if !is_copied => {
                self.moving = Some(moving);
                return Ok(Step::Copied);
            }
            (Ok(()), Some(place)) => {
                moving.done += 1;
                records(block, Progress { node: to.node(), place, done: moving.done });
            }
            (Err(Refusal::Lost), _) => {
                // The agent ends soon. Until then no block that has moved is given as if it had not.
                self.moving = Some(moving);
                return Err(Refusal::Lost);
            }
            (Err(_), _) | (_, None) if done == 0 => {
                to.release(&[block]);
                return Ok(Step::Later);
            }
            (Err(_), _) | (_, None) => {
                self.moving = Some(Moving { copied: Copied::default(), ..moving });
                return Ok(Step::Later);
            }
        }
        if moving.done < count {
            self.moving = Some(Moving { copied: Copied::default(), ..moving });
        } else {
            from.release(&[block]);
        }
        Ok(Step::Moved)
    }

    /// Claims room for a block or run that is to move.
    fn choose(&mut self, since_ns: u64) -> Result<Step, Refusal> {
        let Some((now, left)) = self.all.split_last_mut() else { return Ok(Step::Done) };
        let mut step = Step::Done;
        for source in left {
            let (from, to) = (&source.blocks, &mut now.blocks);
            let mut next = from.any();
            while let Some((block, count)) = next {
                step = Step::Later;
                match to.claim_units(count, since_ns) {
                    Ok(Some(grants)) => {
                        to.adopt(block, grants);
                        let (from, to) = (from.node(), to.node());
                        self.moving = Some(Moving { block, count, from, to, done: 0, copied: Copied::default() });
                        return Ok(Step::Copied);
                    }
                    // The new node has no room for so long a run. It may have room for a shorter one.
                    Ok(None) | Err(Refusal::Exhausted | Refusal::Share) => next = from.smaller(count),
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Ok(step)
    }

    /// A node that nothing is at any more. The caller drops it, which may wait for it.
    pub fn end(&mut self) -> Option<impl Sized + use<>> {
        let left = &self.all[..self.all.len() - 1];
        let at = left.iter().position(|source| source.blocks.any().is_none())?;
        // Before the node forgets the member: the next agent must not look for it.
        self.ledger.set_membership(left[at].blocks.node(), None);
        Some(self.all.remove(at))
    }

    fn now(&self) -> &Source {
        &self.all[self.all.len() - 1]
    }

    /// A node by its place in the ledger.
    fn at(&mut self, node: usize) -> Option<&mut Source> {
        self.all.iter_mut().find(|source| source.blocks.node() == node)
    }

    /// Two nodes by their places in the ledger.
    fn pair(&mut self, from: usize, to: usize) -> Option<[&mut Source; 2]> {
        let of = |node: usize| self.all.iter().position(|source| source.blocks.node() == node);
        let (from, to) = (of(from)?, of(to)?);
        self.all.get_disjoint_mut([from, to]).ok()
    }

    /// The node that a block is at, or the rest of a run that moves.
    fn of(&mut self, block: BlockId) -> &mut Source {
        let from = self.moving.as_ref().filter(|moving| moving.block == block).map(|moving| moving.from);
        let is_of = |source: &Source| from.map_or(source.blocks.holds(block), |from| source.blocks.node() == from);
        let last = self.all.len() - 1;
        let at = self.all.iter().position(is_of).unwrap_or(last);
        &mut self.all[at]
    }

    /// A run of which a part has moved: the node of the rest and that of the part, and how many blocks
    /// the part and the whole have.
    fn parted(&mut self, block: BlockId) -> Option<([&mut Source; 2], usize, usize)> {
        let moving = self.moving.as_ref().filter(|moving| moving.block == block && moving.done > 0)?;
        let (from, to, done, count) = (moving.from, moving.to, moving.done as usize, moving.count as usize);
        Some((self.pair(from, to)?, done, count))
    }

    /// As [`Blocks::claim`].
    pub fn claim(&mut self, blocks: u32, since_ns: u64) -> Result<Option<(Claimed, usize)>, Refusal> {
        let Some((now, left)) = self.all.split_last_mut() else { return Err(Refusal::Lost) };
        let is_taken = |name: BlockId| left.iter().any(|source| source.blocks.holds(name));
        let claimed = now.blocks.claim_beside(blocks, since_ns, is_taken)?;
        Ok(claimed.map(|claimed| (claimed, now.blocks.node())))
    }

    /// As [`Blocks::release`].
    pub fn release(&mut self, blocks: &[BlockId]) {
        self.moving.take_if(|moving| blocks.contains(&moving.block));
        self.all.iter_mut().for_each(|source| source.blocks.release(blocks));
    }

    /// As [`Blocks::memory`]. `user`: the application as a member of the node of a number.
    pub fn memory(&mut self, block: BlockId, user: impl Fn(u64) -> Option<User>) -> Result<Reached, Refusal> {
        if let Some(([from, to], done, count)) = self.parted(block) {
            let [of_rest, of_part] = [&*from, &*to].map(|source| user(source.number).ok_or(Refusal::Moved));
            let mut keys = to.blocks.keys(block, 0..done, of_part?)?;
            keys.extend(from.blocks.keys(block, done..count, of_rest?)?);
            let memory = Memory::Elsewhere(keys);
            return Ok(Reached { node: from.number, memory, to: to.number, moved: done as u64 });
        }
        let source = self.of(block);
        let user = user(source.number);
        let user = user.or(source.blocks.is_mapped().then(User::default)).ok_or(Refusal::Moved)?;
        let memory = source.blocks.memory(block, user)?;
        Ok(Reached { node: source.number, memory, to: source.number, moved: 0 })
    }

    /// How applications reach the node that a block is at. Of two the one of which the application is
    /// no member yet.
    pub fn text(&mut self, block: BlockId, is_known: impl Fn(u64) -> bool) -> String {
        match self.parted(block) {
            Some(([from, to], ..)) if is_known(from.number) => to.text.clone(),
            _ => self.of(block).text.clone(),
        }
    }

    /// How applications reach the node that is used.
    pub fn text_now(&self) -> String {
        self.now().text.clone()
    }

    /// As [`Blocks::tend`].
    pub fn tend(&mut self) -> Result<(), String> {
        self.all.iter_mut().try_for_each(|source| source.blocks.tend())
    }

    /// Blocks claimed at all nodes, to be looked at at any time.
    pub fn count(&self) -> Arc<AtomicU64> {
        self.now().blocks.count()
    }
}
