//! Where an agent's blocks come from: the words of a node.
//!
//! A block is claimed by one CAS of its word and given back by another
//! ([`farmem_protocol::extent`]). A run takes one for each of its blocks, in one batch. The words
//! that name the agent are the only record of what it holds. A claim that was never recorded,
//! because the agent was killed, is found by reading them:
//!
//! ```text
//!  claim:    CAS ─► recorded for an application                      killed between: held, and in no record
//!  release:            struck out of the record ─► CAS               likewise
//!  resume:   take the queue pair's turn ─► read the words ─► what is held and in no record goes back
//! ```
//!
//! The turn first: a CAS that the killed agent still had on its way is carried out
//! before that, or never.
//!
//! Of a node on this machine each grant's memory is a file of its own ([`Session::unit`]), which is
//! passed on to the one application that has it, and shows nothing else. Of any other, each block
//! is reached by a window that is bound for that application ([`crate::windows`]).

use crate::copy::Copied;
use crate::ledger::{Ledger, Membership};
use crate::windows::{User, Windows};
use crate::word::{BLOCK_BYTES, BlockId, MAX_BLOCK_ID, Refusal};
use farmem_fabric::words::{self, Words, WordsError};
use farmem_fabric::{ConnectError, ConnectOptions, GrantError, Identity, Lost, NodeAddr, QueuePair, Session};
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::reshape::{Reshape, Reshaped};
use farmem_protocol::extent::step::MAX_OUTSTANDING;
use farmem_protocol::extent::{
    Actor, Claimant, Claimer, Failed, Grant, Level, Operation, Owner, Place, Release, State, Want, Word,
};
use farmem_protocol::key::Key;
use farmem_sys::raw;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a claim waits for what the agent itself gave back a moment ago, and the node is making
/// clean.
const CLEANING_NS: u64 = 200_000_000;
/// Times that a claim splits a GiB, or tries to, also after [`CLEANING_NS`]: of a node that is slow.
/// Of one whose words lie, a claim could be tried for ever.
const SPLITS: u32 = 4;
/// Between two looks.
pub const LOOK_NS: u64 = 500_000;
/// Words that one READ asks for.
const TOGETHER: usize = 64 << 10;
/// Requests that one agent makes of its node, at most: the next one's numbers begin so much further
/// on.
const REQUESTS: u64 = 1 << 32;

/// A grant's memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Memory {
    /// To be mapped by an application.
    Here {
        /// To be closed by whoever asked.
        fd: i32,
        /// Names the memory: it is never another's name.
        name: u64,
        /// Bytes to map, from the beginning.
        len: u64,
    },
    /// To be reached by these windows, one for each block.
    Elsewhere(Vec<Key>),
}

/// A block, or neighbouring ones, just claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The name that applications know it by.
    pub block: BlockId,
    /// The first one's number at the node.
    pub place: u32,
}

/// One entry of a former agent's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The block or run.
    pub claimed: Claimed,
    /// Of how many blocks.
    pub blocks: u32,
}

/// Why there is no source.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The node cannot be joined.
    #[error(transparent)]
    Node(#[from] ConnectError),
    /// Its words cannot be read.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// A block that a former agent was splitting cannot be split.
    #[error("a GiB that the former agent was splitting cannot be split to the end: {0}")]
    Split(#[from] Failed),
}

impl From<Lost> for JoinError {
    fn from(lost: Lost) -> JoinError {
        JoinError::Words(lost.into())
    }
}

/// Blocks of a node.
pub struct Blocks {
    session: Session,
    queue: QueuePair,
    words: Words,
    actor: Actor,
    claimer: Claimer,
    ledger: Arc<Ledger>,
    /// Which of the agent's nodes this is, in the ledger.
    node: usize,
    /// `None`: memory is mapped.
    windows: Option<Windows>,
    held: HashMap<BlockId, Vec<Grant>>,
    /// The number of blocks in `held`, for readers that do not wait for the lock.
    count: Arc<AtomicU64>,
    /// When something was last given back.
    released_ns: u64,
}

impl Blocks {
    /// Joins a node as a new member. Nothing may be recorded as held.
    pub fn join(node: &NodeAddr, options: &ConnectOptions, ledger: Arc<Ledger>) -> Result<Blocks, JoinError> {
        Blocks::join_as(node, options, (ledger, 0))
    }

    /// The same, as one of the two nodes that the ledger has room for.
    pub fn join_as(
        node: &NodeAddr,
        options: &ConnectOptions,
        (ledger, at): (Arc<Ledger>, usize),
    ) -> Result<Blocks, JoinError> {
        let session = Session::connect_lasting(node, options)?;
        let Identity { secret, incarnation, number, agreed } = session.identity();
        ledger.set_membership(at, Some(&Membership { secret, incarnation, number, agreed }));
        Blocks::of(session, ledger, at)
    }

    /// Joins a node as a new member that ends with this process. Its memory is not taken over.
    pub fn join_alone(node: &NodeAddr, options: &ConnectOptions, ledger: Arc<Ledger>) -> Result<Blocks, JoinError> {
        Blocks::of(Session::connect(node, options)?, ledger, 0)
    }

    /// Is again the member that a former agent recorded, and holds what it recorded as
    /// applications' and the words confirm.
    pub fn resume(
        node: &NodeAddr,
        options: &ConnectOptions,
        (ledger, at): (Arc<Ledger>, usize),
        membership: &Membership,
        recorded: impl Iterator<Item = Recorded>,
    ) -> Result<Blocks, JoinError> {
        let Membership { secret, incarnation, number, agreed } = *membership;
        // A request of this member must not repeat a number of the former one's last requests.
        let number = number + REQUESTS;
        ledger.set_membership(at, Some(&Membership { number, ..*membership }));
        let session = Session::resume(node, options, &Identity { secret, incarnation, number, agreed })?;
        let agreed = session.identity().agreed;
        ledger.set_membership(at, Some(&Membership { number, agreed, ..*membership }));
        let mut blocks = Blocks::of(session, ledger, at)?;
        if let Err(e) = blocks.take_over(recorded) {
            // No farewell: the node would take the memory back, and the next agent needs it.
            std::mem::forget(blocks);
            return Err(e);
        }
        Ok(blocks)
    }

    fn of(session: Session, ledger: Arc<Ledger>, node: usize) -> Result<Blocks, JoinError> {
        // The member's first queue pair, by the same number in every agent: its turn is this
        // agent's from the first answer on.
        let mut queue = session.queue_pair()?;
        let words = Words::open(&mut queue)?;
        let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
        let claimer = Claimer::new(actor, words.geometry());
        let windows = (!session.is_mapped()).then(|| Windows::new(Arc::clone(&ledger), node));
        let (held, count, released_ns) = (HashMap::new(), Arc::default(), 0);
        Ok(Blocks { session, queue, words, actor, claimer, ledger, node, windows, held, count, released_ns })
    }

    fn take_over(&mut self, recorded: impl Iterator<Item = Recorded>) -> Result<(), JoinError> {
        self.end_splits()?;
        let mut mine: HashMap<u32, Grant> = HashMap::new();
        for (index, word) in self.read(Level::Block)?.into_iter().enumerate() {
            if word.is_held_by(self.actor.owner) {
                let place = Place::block(index as u32);
                mine.insert(index as u32, Grant { place, word });
            }
        }
        for Recorded { claimed: Claimed { block, place }, blocks } in recorded {
            let places = place..place.saturating_add(blocks);
            if places.clone().all(|place| mine.contains_key(&place)) {
                let grants: Vec<Grant> = places.filter_map(|place| mine.remove(&place)).collect();
                self.count.fetch_add(grants.len() as u64, Ordering::Relaxed);
                self.held.insert(block, grants);
            }
        }
        if self.windows.is_some() {
            let ledger = (Arc::clone(&self.ledger), self.node);
            self.windows = Some(Windows::resume(ledger, &self.session, &self.held)?);
        }
        let surplus: Vec<Grant> = mine.into_values().collect();
        Ok(self.give_back(&surplus)?)
    }

    /// Giants that a killed agent was about to split.
    fn end_splits(&mut self) -> Result<(), JoinError> {
        for (index, word) in self.read(Level::Giant)?.into_iter().enumerate() {
            if word.is(State::Splitting) && word.owner() == self.actor.owner {
                let giant = Place::giant(index as u32);
                let mut finish = Reshape::finish(self.actor, self.words.geometry(), giant, word);
                // Done, or somebody was faster.
                let _: Reshaped = self.run(&mut finish)??;
            }
        }
        Ok(())
    }

    fn run<T>(&mut self, operation: &mut impl Operation<Outcome = T>) -> Result<T, Lost> {
        self.words.run(&mut self.queue, operation)
    }

    /// All words of a level.
    fn read(&mut self, level: Level) -> Result<Vec<Word>, WordsError> {
        let geometry = self.words.geometry();
        let mut all = vec![0; geometry.count(level) as usize];
        for (n, part) in all.chunks_mut(TOGETHER).enumerate() {
            let first = Place { level, index: (n * TOGETHER) as u32 };
            let at = geometry.offset(Target::Word(first)).unwrap_or(u64::MAX);
            words::read(&mut self.queue, at, part)?;
        }
        Ok(all.into_iter().map(Word).collect())
    }

    /// Claims `blocks` neighbouring blocks, zeroed. `None`: not now, but blocks that this agent
    /// gave back are about to be clean (or others are in the way). Ask again [`LOOK_NS`] later, and
    /// do not hold the lock on this meanwhile. `since_ns`: when the claim was first tried, by
    /// [`raw::now_ns`]; after a fifth of a second it is refused.
    pub fn claim(&mut self, blocks: u32, since_ns: u64) -> Result<Option<Claimed>, Refusal> {
        self.claim_beside(blocks, since_ns, |_| false)
    }

    /// The same beside blocks of other nodes, whose names are not given again.
    pub(crate) fn claim_beside(
        &mut self,
        blocks: u32,
        since_ns: u64,
        is_taken: impl Fn(BlockId) -> bool,
    ) -> Result<Option<Claimed>, Refusal> {
        let Some(grants) = self.claim_units(blocks, since_ns)? else { return Ok(None) };
        let block = self.name(is_taken);
        let place = grants[0].place.index;
        self.adopt(block, grants);
        Ok(Some(Claimed { block, place }))
    }

    /// Holds what was claimed, under this name.
    pub(crate) fn adopt(&mut self, block: BlockId, grants: Vec<Grant>) {
        self.count.fetch_add(grants.len() as u64, Ordering::Relaxed);
        self.held.insert(block, grants);
    }

    /// Whether a block is of this node.
    pub(crate) fn holds(&self, block: BlockId) -> bool {
        self.held.contains_key(&block)
    }

    /// The number of a block, or of the first of a run.
    pub(crate) fn place_of(&self, block: BlockId) -> Option<u32> {
        Some(self.held.get(&block)?.first()?.place.index)
    }

    /// One of the blocks and runs of this node, and of how many blocks it is.
    pub(crate) fn any(&self) -> Option<(BlockId, u32)> {
        self.held.iter().next().map(|(block, grants)| (*block, grants.len() as u32))
    }

    /// The largest run that has fewer blocks than `than`, and how many it has.
    pub(crate) fn smaller(&self, than: u32) -> Option<(BlockId, u32)> {
        let all = self.held.iter().map(|(block, grants)| (*block, grants.len() as u32));
        all.filter(|(_, count)| *count < than).max_by_key(|(_, count)| *count)
    }

    /// Which of the agent's nodes this is, in the ledger.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// The node's incarnation: two nodes never have the same.
    pub(crate) fn incarnation(&self) -> u64 {
        self.session.identity().incarnation
    }

    /// Counts its blocks together with those of another node from now on.
    pub(crate) fn count_with(&mut self, other: &Blocks) {
        other.count.fetch_add(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count = Arc::clone(&other.count);
    }

    /// Copies one more part of a block of a run to the one that has its name at another node.
    pub(crate) fn copy_part(
        &mut self,
        to: &mut Blocks,
        (block, of_run): (BlockId, usize),
        copied: &mut Copied,
    ) -> Result<(), Refusal> {
        let keys = [&*self, &*to].map(|blocks| blocks.key_of(block, of_run));
        let [Some(old), Some(new)] = keys else { return Err(Refusal::Tables) };
        copied.extend([&mut self.queue, &mut to.queue], [old, new])
    }

    /// Ends the key of a block that is copied, and copies again what has changed meanwhile. When the
    /// key has ended, nothing is under way by it. So no later byte is left behind, and programs wait
    /// for the second copy alone.
    pub(crate) fn copy_rest(
        &mut self,
        to: &mut Blocks,
        (block, of_run): (BlockId, usize),
        copied: &Copied,
    ) -> Result<(), Refusal> {
        let keys = [&*self, &*to].map(|blocks| blocks.key_of(block, of_run));
        let [Some(old), Some(new)] = keys else { return Err(Refusal::Tables) };
        if let Some(windows) = &mut self.windows {
            let on = (&self.session, &mut self.queue);
            windows.unbind_one(on, block, of_run).map_err(|_| Refusal::Lost)?;
        }
        copied.renew([&mut self.queue, &mut to.queue], [old, new])
    }

    /// The agent's own key of a block that it holds, or of one of a run.
    fn key_of(&self, block: BlockId, of_run: usize) -> Option<Key> {
        self.held.get(&block)?.get(of_run).map(|grant| Key(grant.key().0))
    }

    pub(crate) fn claim_units(&mut self, blocks: u32, since_ns: u64) -> Result<Option<Vec<Grant>>, Refusal> {
        let want = Want::run(&self.words.geometry(), Level::Block, blocks).ok_or(Refusal::Exhausted)?;
        let in_time = || raw::now_ns().saturating_sub(since_ns) <= CLEANING_NS;
        let mut splits = SPLITS;
        loop {
            self.claimer.begin(want);
            match self.words.run(&mut self.queue, &mut self.claimer) {
                Ok(Ok(grants)) if !grants.is_empty() => return Ok(Some(grants)),
                Ok(Ok(_) | Err(Failed::NoSpace)) => {
                    if self.split_giant(&mut splits, in_time)? {
                        continue;
                    }
                    // Blocks that were given back are drained and scrubbed first: that takes the
                    // node some microseconds.
                    let cleans = since_ns.saturating_sub(self.released_ns) <= CLEANING_NS;
                    return if cleans && in_time() { Ok(None) } else { Err(Refusal::Exhausted) };
                }
                Ok(Err(Failed::Contended)) => return if in_time() { Ok(None) } else { Err(Refusal::Exhausted) },
                Ok(Err(Failed::OverQuota)) => return Err(Refusal::Share),
                Ok(Err(Failed::Fenced | Failed::Lost)) | Err(_) => return Err(Refusal::Lost),
            }
        }
    }

    /// Opens a GiB that is still in one piece. False: there is none, or it is more than the agent's
    /// share of the node, which it counts against while it is being split; or it was tried `tries`
    /// times, and not `in_time` any more.
    fn split_giant(&mut self, tries: &mut u32, in_time: impl Fn() -> bool) -> Result<bool, Refusal> {
        while *tries > 0 || in_time() {
            *tries = tries.saturating_sub(1);
            let giants = self.read(Level::Giant).map_err(|_| Refusal::Lost)?;
            let whole = |word: &Word| word.is(State::Free) && !word.generation().is_worn();
            let Some(giant) = giants.iter().rposition(whole) else { return Ok(false) };
            let mut split = Reshape::split(self.actor, self.words.geometry(), Place::giant(giant as u32));
            match self.run(&mut split) {
                Ok(Ok(Reshaped::Done(_))) => return Ok(true),
                // Another member was faster.
                Ok(Ok(_)) => {}
                Ok(Err(Failed::OverQuota | Failed::NoSpace | Failed::Contended)) => return Ok(false),
                Ok(Err(Failed::Fenced | Failed::Lost)) | Err(_) => return Err(Refusal::Lost),
            }
        }
        Ok(false)
    }

    /// A name that no block in use has. It comes again after all others.
    fn name(&mut self, is_taken: impl Fn(BlockId) -> bool) -> BlockId {
        loop {
            let next = self.ledger.next_name();
            self.ledger.set_next_name((next + 1) % MAX_BLOCK_ID as u64);
            let name = BlockId(next as u32 % MAX_BLOCK_ID);
            if !self.holds(name) && !is_taken(name) {
                return name;
            }
        }
    }

    /// Gives back blocks and runs that are no longer used. Their windows end first; then their
    /// memory goes back to the system at once.
    pub fn release(&mut self, blocks: &[BlockId]) {
        // Of a node that is lost nothing is left to give back.
        if let Some(windows) = &mut self.windows {
            let _ = windows.unbind((&self.session, &mut self.queue), blocks);
        }
        let grants: Vec<Grant> = blocks.iter().filter_map(|block| self.held.remove(block)).flatten().collect();
        if grants.is_empty() {
            return;
        }
        self.count.fetch_sub(grants.len() as u64, Ordering::Relaxed);
        self.released_ns = raw::now_ns();
        let _ = self.give_back(&grants);
    }

    pub(crate) fn give_back(&mut self, grants: &[Grant]) -> Result<(), Lost> {
        for some in grants.chunks(MAX_OUTSTANDING) {
            let mut releases: Vec<Release> = some.iter().map(|&grant| Release::new(self.actor, grant)).collect();
            self.words.run_each(&mut self.queue, &mut releases)?;
        }
        Ok(())
    }

    /// The memory of a block or run, as its application reaches it. The same every time.
    pub fn memory(&mut self, block: BlockId, user: User) -> Result<Memory, Refusal> {
        let grants = self.held.get(&block).ok_or(Refusal::Tables)?;
        if self.windows.is_some() {
            let all = 0..grants.len();
            return self.keys(block, all, user).map(Memory::Elsewhere);
        }
        let key = grants[0].key().0;
        let fd = self.session.unit(Key(key), grants.len() as u32).map_err(|e| match e {
            GrantError::Lost(_) => Refusal::Lost,
            _ => Refusal::System,
        })?;
        Ok(Memory::Here { fd, name: key, len: grants.len() as u64 * BLOCK_BYTES })
    }

    /// The keys of some blocks of a run.
    pub(crate) fn keys(&mut self, block: BlockId, some: Range<usize>, user: User) -> Result<Vec<Key>, Refusal> {
        let grants = self.held.get(&block).ok_or(Refusal::Tables)?;
        let windows = self.windows.as_mut().ok_or(Refusal::System)?;
        windows.keys((&self.session, &mut self.queue), (block, grants), some, user)
    }

    /// A few times a second. An error: the source is gone.
    pub fn tend(&mut self) -> Result<(), String> {
        self.session.tend().map_err(|lost| lost.to_string())
    }

    /// Whether memory is mapped by applications, and not reached by windows.
    pub fn is_mapped(&self) -> bool {
        self.windows.is_none()
    }

    /// Bytes claimed at the node.
    pub fn taken(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * BLOCK_BYTES
    }

    /// Blocks claimed at the node, to be looked at at any time.
    pub fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }
}
