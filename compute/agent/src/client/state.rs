//! A client's state, and its conversation with the agent, under the client's lock.

use super::link::Link;
use super::{AHEAD, AllocError, At, Chunk, ConnectError, FEW, FULL, LOW};
use crate::chunks::{self, EMPTY, Map};
use crate::word::{BLOCK_BYTES, BLOCK_ORDER, BlockId, Down, Piece, Refusal, Up};
use farmem_protocol::key::Key;
use farmem_sys::raw;
use farmem_sys::shared;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::time::Duration;

/// How long the next agent is waited for when a node is lost.
const LOST_WITHIN: Duration = Duration::from_secs(2);
/// How long it is not looked for again.
const ALONE_NS: u64 = 10_000_000_000;

/// A block that this program holds pieces of.
pub struct Block {
    pub id: BlockId,
    /// The number of blocks: 1, or that of a run.
    pub blocks: u32,
    /// Where it is. `None`: the agent was not asked yet.
    pub base: Option<At>,
    /// The name of the memory that it is mapped from: its key in [`State::memories`].
    name: u64,
    /// By what it is reached, if it is elsewhere.
    keys: Keys,
    /// How often that has become something else.
    version: u32,
    /// The chunks that this program holds, in use or kept.
    pub held: Map,
}

/// The keys of a block, or of the blocks of a run, and where they are valid.
#[derive(Default, PartialEq, Eq)]
pub struct Keys {
    pub all: Box<[Key]>,
    /// The number of the node.
    pub node: u64,
    /// The number of the node that the run moves to.
    pub to: u64,
    /// The number of the first keys that are valid there.
    pub moved: usize,
}

/// A question that has no answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Pieces(u8),
    Run,
    Map,
}

/// A client's state.
pub struct State {
    pub link: Link,
    /// The client's number.
    client: u32,
    /// Blocks by slot.
    pub blocks: Vec<Option<Block>>,
    free_slots: Vec<u32>,
    by_id: HashMap<BlockId, u32>,
    /// By order: pieces that are held and not in use, as [`packed`] has them. The oldest come
    /// first.
    pub kept: [Vec<u32>; BLOCK_ORDER as usize + 1],
    /// By order: the number of pieces that the next WANT asks for.
    at_once: [u32; BLOCK_ORDER as usize + 1],
    /// Questions without an answer, the oldest first.
    pub asked: VecDeque<Asked>,
    /// The slot of the run that was granted last.
    run: Option<u32>,
    /// Mapped memories by name, with the number of blocks in each.
    memories: HashMap<u64, (shared::Shared, u32)>,
    /// When it was last found that a node and the agent are both gone.
    alone_ns: Option<u64>,
}

/// A kept piece in one word: its block's slot, and its first chunk.
pub fn packed(slot: u32, first: u16) -> u32 {
    slot << 9 | first as u32
}

#[inline]
pub fn chunk_of((base, client): (At, u32), slot: u32, piece: Piece) -> Chunk {
    let Piece { block, first, order } = piece;
    Chunk { at: base, block, first, order, run: 0, slot, client, one_thread: PhantomData }
}

impl State {
    pub fn new(link: Link, client: u32) -> State {
        State {
            link,
            client,
            blocks: Vec::new(),
            free_slots: Vec::new(),
            by_id: HashMap::new(),
            kept: std::array::from_fn(|order| Vec::with_capacity(FULL[order])),
            at_once: std::array::from_fn(|order| if order == 0 { AHEAD } else { 1 }),
            asked: VecDeque::new(),
            run: None,
            memories: HashMap::new(),
            alone_ns: None,
        }
    }

    /// Takes in answers, and asks for more pieces before they are needed. It does not wait. While
    /// an answer is due it does nothing, and kept pieces are used up.
    #[cold]
    pub fn look_ahead(&mut self, order: u8) {
        if !self.asked.is_empty() {
            return;
        }
        if self.link.is_recalled() {
            return self.trim();
        }
        // An error of the ring is reported by the next call that has to wait.
        let _ = self.collect();
        let count = self.at_once[order as usize];
        // A count of 1: the program uses pieces of this larger order only now and then. None is
        // asked for ahead.
        let few = self.kept[order as usize].len() < LOW[order as usize] && count > 1;
        if few && self.link.room() > 0 {
            self.asked.push_back(Asked::Pieces(order));
            self.link.send(Up::Want { order, count });
            self.link.ring();
        }
    }

    /// Allocates a piece when none is kept that is mapped: maps one, or asks the agent and waits.
    #[cold]
    pub fn alloc_slowly(&mut self, order: u8) -> Result<Chunk, AllocError> {
        if self.link.is_recalled() {
            self.trim();
        }
        loop {
            self.collect()?;
            // The piece is removed before it is mapped: mapping waits, and other pieces may come
            // meanwhile.
            if let Some(last) = self.kept[order as usize].pop() {
                let (slot, first) = (last >> 9, (last & 511) as u16);
                let base = self.mapped(slot).inspect_err(|_| self.kept[order as usize].push(last))?;
                let id = self.blocks[slot as usize].as_ref().map_or(BlockId(0), |block| block.id);
                return Ok(chunk_of((base, self.client), slot, Piece { block: id, first, order }));
            }
            // The pieces asked for ahead may be enough.
            if self.asked.contains(&Asked::Pieces(order)) {
                self.await_answers()?;
                if !self.kept[order as usize].is_empty() {
                    continue;
                }
            }
            let count = self.at_once[order as usize];
            if order > 0 && LOW[order as usize] > 0 {
                self.at_once[order as usize] = FEW;
            }
            let refusal = self.ask(Up::Want { order, count }, Asked::Pieces(order))?;
            if self.kept[order as usize].is_empty() {
                if self.is_worth_asking_again(refusal) {
                    continue;
                }
                return Err(refusal.map_or(AllocError::Tables, AllocError::from));
            }
        }
    }

    pub fn alloc_run(&mut self, blocks: u32) -> Result<Chunk, AllocError> {
        if self.link.is_recalled() {
            self.trim();
        }
        let slot = loop {
            self.run = None;
            let refusal = self.ask(Up::Run(blocks), Asked::Run)?;
            match self.run.take() {
                Some(slot) => break slot,
                None if self.is_worth_asking_again(refusal) => {}
                None => return Err(refusal.map_or(AllocError::Tables, AllocError::from)),
            }
        };
        // A run that cannot be mapped is given back at once.
        let base = self.mapped(slot).inspect_err(|_| self.free_run(slot, blocks))?;
        let id = self.blocks[slot as usize].as_ref().map_or(BlockId(0), |block| block.id);
        let piece = Piece { block: id, first: 0, order: BLOCK_ORDER };
        Ok(Chunk { run: blocks as u8, ..chunk_of((base, self.client), slot, piece) })
    }

    /// Gives back all kept pieces if their memory may be what the agent lacks. Returns whether it
    /// did. Kept pieces of other sizes count against the quota like those in use.
    fn is_worth_asking_again(&mut self, refusal: Option<Refusal>) -> bool {
        let short = matches!(refusal, Some(Refusal::Quota | Refusal::Exhausted | Refusal::Share));
        let worth = short && self.kept.iter().any(|kept| !kept.is_empty());
        if worth {
            self.trim();
        }
        worth
    }

    pub fn free_run(&mut self, slot: u32, blocks: u32) {
        let Some(block) = self.blocks[slot as usize].as_ref().map(|block| block.id) else { return };
        self.drop_block(slot);
        self.say(Up::FreeRun(block, blocks));
        self.link.ring();
    }

    /// Gives back everything that is kept and not in use.
    #[cold]
    pub fn trim(&mut self) {
        for order in 0..=BLOCK_ORDER {
            let all = self.kept[order as usize].len();
            self.give_back(order, all);
        }
    }

    /// Gives back the `count` oldest kept pieces of an order, merged into larger pieces.
    pub fn give_back(&mut self, order: u8, count: usize) {
        if order > 0 {
            self.at_once[order as usize] = 1;
        }
        let mut back: Vec<u32> = self.kept[order as usize].drain(..count).collect();
        back.sort_unstable();
        let mut at = 0;
        while at < back.len() {
            let (slot, first) = (back[at] >> 9, (back[at] & 511) as u16);
            // Grows the piece that begins here while its other half goes back, too.
            let mut merged = order;
            let step = 1u32 << order;
            while merged < BLOCK_ORDER && first.is_multiple_of(2 << merged) {
                let pieces = 2usize << (merged - order);
                let whole =
                    back.get(at + pieces - 1).is_some_and(|&last| last == back[at] + (pieces as u32 - 1) * step);
                if !whole {
                    break;
                }
                merged += 1;
            }
            at += 1 << (merged - order);
            if let Some(block) = self.blocks[slot as usize].as_mut() {
                let piece = Piece { block: block.id, first, order: merged };
                chunks::free(&mut block.held, first, merged);
                if block.held == EMPTY {
                    self.drop_block(slot);
                }
                self.say(Up::Free(piece));
            }
        }
        self.link.ring();
    }

    /// Forgets a block. Unmaps its memory if no other block is in it.
    fn drop_block(&mut self, slot: u32) {
        let Some(block) = self.blocks[slot as usize].take() else { return };
        self.by_id.remove(&block.id);
        self.free_slots.push(slot);
        if block.base.is_some_and(|base| base.address(0).is_some())
            && let Some((_, users)) = self.memories.get_mut(&block.name)
        {
            *users -= 1;
            if *users == 0 {
                self.memories.remove(&block.name);
            }
        }
    }

    /// Sends a word that has no answer. If the agent ends before it reads the word, nothing is
    /// lost: the next agent frees memory that is not declared.
    fn say(&mut self, word: Up) {
        while self.link.room() == 0 {
            self.link.ring();
            if !self.link.stands() {
                return;
            }
            farmem_sys::raw::sleep_ns(100_000);
        }
        self.link.send(word);
    }

    /// Sends a question and waits for the answer. If the agent ends meanwhile, asks the next one.
    /// Returns the refusal, if the answer is one.
    pub fn ask(&mut self, word: Up, asked: Asked) -> Result<Option<Refusal>, AllocError> {
        loop {
            let again = self.link.counts.again;
            while self.asked.len() >= 2 {
                self.await_answers()?;
            }
            if self.link.room() == 0 {
                self.say(word);
            } else {
                self.link.send(word);
            }
            self.asked.push_back(asked);
            self.link.ring();
            let refusal = self.await_answers()?;
            if self.link.counts.again == again {
                return Ok(refusal);
            }
        }
    }

    /// Waits until all questions are answered. Returns the refusal of the last answer, if it is
    /// one.
    fn await_answers(&mut self) -> Result<Option<Refusal>, AllocError> {
        self.link.counts.waits += 1;
        let mut refusal = None;
        loop {
            if let Some(last) = self.collect()? {
                refusal = last;
            }
            if self.asked.is_empty() {
                return Ok(refusal);
            }
            if !self.link.sleep()? {
                // The agent is gone. The next one knows nothing of what was asked.
                self.asked.clear();
                self.reconnect()?;
                return Ok(None);
            }
        }
    }

    /// Takes in the words that have come. `Some`: questions were answered. It has the refusal of
    /// the last answer, if that is one.
    fn collect(&mut self) -> Result<Option<Option<Refusal>>, AllocError> {
        let mut answered = None;
        while let Some(word) = self.link.receive()? {
            match word {
                Down::Grant(piece) => {
                    let order = match self.asked.front() {
                        Some(Asked::Pieces(order)) => *order,
                        _ => return Err(self.link.nonsense()),
                    };
                    let slot = self.hold(piece.block, 1);
                    if let Some(block) = self.blocks[slot as usize].as_mut() {
                        chunks::take(&mut block.held, piece.first, piece.order);
                    }
                    for first in (piece.first..piece.first + piece.chunks()).step_by(1 << order).rev() {
                        self.kept[order as usize].push(packed(slot, first));
                    }
                }
                Down::Run(block, blocks) => {
                    let slot = self.hold(block, blocks);
                    if let Some(block) = self.blocks[slot as usize].as_mut() {
                        block.held = [u64::MAX; 8];
                    }
                    self.run = Some(slot);
                }
                Down::Done(refusal) => {
                    self.asked.pop_front();
                    answered = Some(refusal);
                }
            }
        }
        Ok(answered)
    }

    /// The slot of a block. A block that is not known gets one.
    fn hold(&mut self, id: BlockId, blocks: u32) -> u32 {
        if let Some(&slot) = self.by_id.get(&id) {
            return slot;
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u32 - 1
        });
        self.blocks[slot as usize] =
            Some(Block { id, blocks, base: None, name: 0, keys: Keys::default(), version: 0, held: EMPTY });
        self.by_id.insert(id, slot);
        slot
    }

    /// The key of a block, and the number of its node. `of_run`: its index in a run.
    pub fn key(&self, slot: u32, of_run: usize) -> Option<(u64, Key)> {
        let keys = &self.blocks.get(slot as usize)?.as_ref()?.keys;
        let node = if of_run < keys.moved { keys.to } else { keys.node };
        keys.all.get(of_run).map(|key| (node, *key))
    }

    /// How often the keys of a block have become others.
    pub fn version(&self, slot: u32) -> Option<u32> {
        self.blocks.get(slot as usize)?.as_ref().map(|block| block.version)
    }

    /// Asks again by which keys a block is reached. Returns whether they are others than this
    /// program used, which are those of a version: then it has moved. `is_lost`: the node is lost. If
    /// its agent has ended, too, the next one is not waited for long.
    #[cold]
    pub fn follow(&mut self, slot: u32, used: u32, is_lost: bool) -> Result<bool, AllocError> {
        if self.version(slot) != Some(used) {
            // Another thread has asked meanwhile.
            return Ok(true);
        }
        if is_lost && !self.link.stands() && !self.reconnects() {
            return Ok(false);
        }
        let Some(block) = self.blocks[slot as usize].as_mut() else { return Ok(false) };
        let before = block.base.take();
        let asked = self.mapped(slot);
        if let (Err(_), Some(block)) = (&asked, self.blocks[slot as usize].as_mut()) {
            block.base = before;
        }
        asked?;
        Ok(self.version(slot) != Some(used))
    }

    /// Joins the node that a block is at, and tells the agent by which member.
    #[cold]
    fn join_node_of(&mut self, id: BlockId) -> Result<(), AllocError> {
        if let Some(refusal) = self.ask(Up::Where(id), Asked::Map)? {
            return Err(refusal.into());
        }
        let (number, owner) = self.link.receive_node(id)?;
        self.say(Up::Member { node: number as u32, owner });
        Ok(())
    }

    /// Where a block is. At first use, maps it or asks the agent for its keys.
    fn mapped(&mut self, slot: u32) -> Result<At, AllocError> {
        // An agent moves seldom: one that says so again and again means nothing.
        let mut moves = 0..4;
        loop {
            let Some(block) = self.blocks[slot as usize].as_ref() else { return Err(AllocError::Tables) };
            if let Some(base) = block.base {
                return Ok(base);
            }
            let (id, blocks) = (block.id, block.blocks);
            match self.ask(Up::Map(id), Asked::Map)? {
                None => {}
                Some(Refusal::Moved) if moves.next().is_some() => {
                    self.join_node_of(id)?;
                    continue;
                }
                Some(refusal) => return Err(refusal.into()),
            }
            if self.link.is_elsewhere() {
                let keys = self.link.receive_keys(id, blocks as usize)?;
                let base = keys.all.first().and_then(|key| At::elsewhere(*key)).ok_or_else(|| self.link.nonsense())?;
                if let Some(block) = self.blocks[slot as usize].as_mut() {
                    let members = self.link.members();
                    [keys.node, keys.to].into_iter().for_each(|node| members.reached(node));
                    if !block.keys.all.is_empty() && block.keys != keys {
                        // Before a thread sees the version, pieces' own keys are not used any more.
                        members.have_moved();
                        block.version += 1;
                    }
                    block.base = Some(base);
                    block.keys = keys;
                }
                continue;
            }
            let (mapped, fd) = self.link.receive_memory(id)?;
            let unknown = match self.memories.entry(mapped.name) {
                Entry::Vacant(unknown) => {
                    let memory = shared::Shared::map_aligned(fd, mapped.len as usize, BLOCK_BYTES as usize);
                    memory.map(|memory| _ = unknown.insert((memory, 0)))
                }
                Entry::Occupied(_) => Ok(()),
            };
            farmem_sys::descriptors::close(fd);
            unknown.map_err(|e| ConnectError::System(e.to_string()))?;
            if let Some((memory, users)) = self.memories.get_mut(&mapped.name)
                && let Some(block) = self.blocks[slot as usize].as_mut()
            {
                *users += 1;
                block.base = Some(At::here(memory.base(), mapped.offset));
                block.name = mapped.name;
            }
        }
    }

    /// Reaches the agent that has replaced the last one, and declares what this program holds.
    fn reconnect(&mut self) -> Result<(), AllocError> {
        let held = self.held();
        self.link.again(&held, None).map_err(AllocError::from)
    }

    /// The same without waiting for long. False: there is none, or it knows nothing of this program,
    /// now or a moment ago.
    fn reconnects(&mut self) -> bool {
        let now = raw::now_ns();
        if self.alone_ns.is_some_and(|then| now.saturating_sub(then) < ALONE_NS) {
            return false;
        }
        let held = self.held();
        // No request under way is answered any more. Threads that wait ask again.
        self.asked.clear();
        let is_back = self.link.again(&held, Some(LOST_WITHIN)).is_ok();
        self.alone_ns = (!is_back).then_some(now);
        is_back
    }

    fn held(&self) -> Vec<(BlockId, u32, Map)> {
        self.blocks.iter().flatten().map(|block| (block.id, block.blocks, block.held)).collect()
    }
}
