//! An application's side: far memory in pieces.
//!
//! ```text
//!  alloc(4 KiB) ──► cache of chunks ──► (nearly empty: WANT, and on) ──► (empty: WANT, and wait)
//!  free(4 KiB)  ──► cache of chunks ──► (nearly full: the oldest go back, merged into larger pieces)
//! ```
//!
//! `WANT` is a word in the ring that asks for pieces ([`crate::word`]). A program that has asked
//! for larger pieces of a size up to 128 KiB gets a few of them ahead, too.
//!
//! The common allocation takes a chunk from an array, under a lock that is private to the process.
//! It makes no system call and sends no word to the agent. One word asks for a hundred chunks or
//! more. A system call is made only when the agent sleeps or no piece is left ([`Counts`] says how
//! often).
//!
//! *The agent ends.* The library notices that when it next waits. It connects again, and starts an
//! agent by [`Options::start`] if that is given. It proves itself by its token and declares what it
//! holds.
//! Requests under way are repeated. Memory that is held stays mapped and usable all the while.
//!
//! *The agent moves.* Its memory goes to another node, block by block. The keys of the old
//! place end, so the program's verbs there are refused. The library asks the agent where the piece
//! is now, joins that node, and goes on.
//!
//! *Fork.* A child is no application of the agent's: its calls are refused
//! ([`AllocError::Forked`]). Memory is shared with the parent, not copied.

mod alone;
mod link;
mod members;
mod reach;
mod state;

pub use reach::{Reach, ReachError};

use crate::chunks;
use crate::word::{BLOCK_BYTES, BLOCK_ORDER, BlockId, CHUNK_BYTES, MAX_RUN, Piece, Refusal, Up};
use alone::Alone;
use farmem_fabric::{ConnectOptions, NodeAddr, Transport};
use farmem_protocol::key::Key;
use farmem_sys::shared;
use farmem_sys::sync::Lock;
use link::Link;
use members::Members;
use state::{Asked, Block, State, chunk_of, packed};
use std::cell::Cell;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The most chunks that the cache holds.
const CACHE: usize = 512;
/// By order: with fewer kept pieces than this, more are asked for ahead. 0: above 128 KiB none are.
const LOW: [usize; BLOCK_ORDER as usize + 1] = [96, 2, 2, 2, 2, 2, 0, 0, 0, 0];
/// Chunks that one WANT asks for.
const AHEAD: u32 = 128;
/// Larger pieces that one WANT asks for, if some were requested before and none given back since.
const FEW: u32 = 4;
/// Bytes of freed pieces of each size that are kept for the next caller: those of a full cache.
const KEPT: u64 = CACHE as u64 * CHUNK_BYTES;
/// The most kept pieces of each size above a chunk.
const MANY: u64 = 7;
/// By order: with this many kept pieces, the older half goes back. One piece of 2 MiB is kept:
/// enough for a program that takes and frees one alternately. A second would be a block more that
/// an idle program keeps from all others.
const FULL: [usize; BLOCK_ORDER as usize + 1] = full();

/// The options by which this process joins a node as a member of its own. It is a run of its own,
/// and uses the token that the environment names.
fn member_options(patience: Duration, grace: Duration, transport: Transport) -> Result<ConnectOptions, ConnectError> {
    let mut run = [0; 16];
    farmem_sys::process::random_bytes(&mut run).map_err(|e| ConnectError::System(e.to_string()))?;
    let trust = farmem_trust::file::of_environment().map_err(|e| ConnectError::Node(e.to_string()))?;
    Ok(ConnectOptions {
        timeout: patience,
        grace,
        run,
        pid: std::process::id(),
        transport,
        trust: trust.into(),
        ..ConnectOptions::default()
    })
}

/// Computes [`FULL`].
const fn full() -> [usize; BLOCK_ORDER as usize + 1] {
    let mut full = [CACHE; BLOCK_ORDER as usize + 1];
    let mut order = 1;
    while order < full.len() {
        let kept = KEPT / Piece::bytes_of(order as u8);
        full[order] = 1 + if kept < MANY { kept } else { MANY } as usize;
        order += 1;
    }
    full
}

/// The number of clients that this process has made.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

/// How to reach the agent.
pub struct Options {
    /// Its socket.
    pub socket: PathBuf,
    /// The job that this program belongs to, at most 32 bytes; empty: none. Each job of a user has
    /// a quota of its own, and memory that is isolated from other jobs'.
    pub job: String,
    /// How long to try to reach it, at first and again.
    pub patience: Duration,
    /// Starts an agent if there is none. Returns when the agent listens, or fails.
    #[allow(clippy::type_complexity)]
    pub start: Option<Box<dyn Fn() -> std::io::Result<()> + Send + Sync>>,
}

/// Why the agent was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No agent listens.
    #[error("no agent answers at {0}: start one with farmem agent")]
    Nobody(String),
    /// The agent has no room for another program.
    #[error("the agent serves as many programs as it can: end some, or wait")]
    Full,
    /// The agent is of another version.
    #[error("the agent at {0} is of another version of farmem: install the same on both")]
    Version(String),
    /// The agent no longer knows what this program held before.
    #[error("the agent was started anew and its record of this program's memory is gone")]
    Unknown,
    /// This program holds memory that the agent's record does not have.
    #[error("the agent's record contradicts what this program holds; this is an error of farmem's")]
    NotHeld,
    /// The agent's memory is on another machine, and its node cannot be joined.
    #[error("the memory of the agent is elsewhere: {0}")]
    Node(String),
    /// The system refused memory or descriptors, to this process or to the agent.
    #[error("the system refused what a connection to the agent needs: {0}")]
    System(String),
}

/// Why no memory was allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The tenant's quota is used up.
    #[error("the quota of this user or job is used up: free memory, or have it raised (farmem agent --quota)")]
    Quota,
    /// The node lends no more.
    #[error("the node has lent all its memory: free some, or start it with a larger --lend")]
    Exhausted,
    /// The agent's tables are full.
    #[error("the agent's tables are full: free memory, or ask for larger pieces")]
    Tables,
    /// The node is gone; memory that is held is gone or will be.
    #[error("the agent has lost its memory node: end, and start again when the node is back")]
    Lost,
    /// The agent's share at its node is used up.
    #[error("the agent holds all that its node lets one owner have: free memory, or raise farmem node --quota")]
    Share,
    /// The system refused the agent something.
    #[error("the system refused the agent memory or descriptors: try again later")]
    System,
    /// The node has forgotten this program.
    #[error("the memory node no longer knows this program: end, and start again")]
    Stranger,
    /// The agent could not be reached again.
    #[error(transparent)]
    Agent(#[from] ConnectError),
    /// The agent has ended this program's session.
    #[error("the agent has ended this program's session: {0}")]
    Ended(String),
    /// This is a forked child.
    #[error("a forked child has no far memory of its own: connect anew")]
    Forked,
    /// No such size.
    #[error("pieces are of 4 KiB to 2 MiB (orders 0 to 9), runs of 1 to 32 blocks of 2 MiB")]
    Size,
}

impl From<Refusal> for AllocError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Quota => AllocError::Quota,
            Refusal::Exhausted => AllocError::Exhausted,
            Refusal::Tables => AllocError::Tables,
            Refusal::Lost => AllocError::Lost,
            Refusal::System => AllocError::System,
            Refusal::Share => AllocError::Share,
            Refusal::Stranger | Refusal::Moved => AllocError::Stranger,
        }
    }
}

/// A piece or a run of far memory that this program holds. [`Client::reach`] reads and writes it,
/// wherever it is. If it is mapped, loads and stores do, too. [`Client::free`] gives it back.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where its block is. The piece's own address is computed only when it is asked for.
    at: At,
    /// The parts of a [`Piece`]. Stored singly, they leave room for `client` in 24 bytes.
    block: BlockId,
    first: u16,
    order: u8,
    /// The number of blocks of a run. 0: this is a piece.
    run: u8,
    /// The block's place in the client's table.
    slot: u32,
    /// The number of the client that made it. Other clients must not use it: its slot means another
    /// block there.
    client: u32,
    /// Makes the type `Send` and not `Sync`. [`Reach`] copies from and to mapped pieces, and two
    /// threads must not do that at once.
    one_thread: PhantomData<Cell<u8>>,
}

/// Where a block is: the address at which it is mapped, or the key that reaches it at a node. Of a
/// run, the key of its first block. It is one word, because every allocation carries it. A bit that
/// every window's key has, and no address, tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(NonZeroU64);

impl At {
    const IS_KEY: u64 = Key::window(0, 0).0;

    /// The place `behind` bytes after an address.
    fn here(address: NonNull<u8>, behind: u64) -> At {
        At(NonZeroU64::new(address.as_ptr() as u64 + behind).unwrap_or(NonZeroU64::MIN))
    }

    /// The place that a key reaches. `None`: it is not the key of a window.
    fn elsewhere(key: Key) -> Option<At> {
        NonZeroU64::new(key.0).filter(|key| key.get() & At::IS_KEY != 0).map(At)
    }

    /// The address of the byte `behind` bytes after its beginning. `None`: it is not mapped.
    #[inline]
    fn address(self, behind: u64) -> Option<NonNull<u8>> {
        if self.0.get() & At::IS_KEY == 0 { NonNull::new((self.0.get() + behind) as usize as *mut u8) } else { None }
    }

    #[inline]
    fn key(self) -> Option<Key> {
        (self.0.get() & At::IS_KEY != 0).then_some(Key(self.0.get()))
    }
}

impl Chunk {
    /// The address at which it is mapped, readable and writable. Its bytes are zero unless this
    /// program had it before. `None`: it is elsewhere.
    #[inline]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.at.address(self.offset())
    }

    /// A number for the piece's first byte, as if all pieces lay in one range of addresses. Ranges
    /// of pieces that are held at the same time do not overlap.
    #[inline]
    pub fn number(&self) -> u64 {
        match self.address() {
            Some(address) => address.as_ptr() as u64,
            // Each slot of the client's table has a range of numbers as large as the largest run.
            None => (self.slot as u64 + 1) * (MAX_RUN as u64 * BLOCK_BYTES) + self.offset(),
        }
    }

    /// Its offset in its block.
    #[inline]
    fn offset(&self) -> u64 {
        self.first as u64 * CHUNK_BYTES
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        if self.run > 0 { self.run as u64 * BLOCK_BYTES } else { Piece::bytes_of(self.order) }
    }
}

/// How much passes between a program and its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Words sent.
    pub words: u64,
    /// Times the agent slept and was woken: a system call each.
    pub bells: u64,
    /// Times this program waited for an answer.
    pub waits: u64,
    /// Times it connected again.
    pub again: u64,
}

/// An application's connection to the agent. Shared by its threads.
pub struct Client {
    state: Lock<State>,
    /// The number by which its chunks name it. No other client of this process ever has it.
    number: u32,
    /// This process as a member of nodes, if memory is elsewhere.
    members: Arc<Members>,
    /// The agent, if it is within this process.
    alone: Option<Arc<Alone>>,
    /// 1 in the process that connected, 0 in its forked children.
    here: &'static AtomicU32,
}

impl Client {
    /// Reaches the agent.
    pub fn connect(options: Options) -> Result<Client, ConnectError> {
        Client::connect_by(options, None)
    }

    /// Reaches the agent if one listens. Otherwise starts one within this process, on this node and
    /// for this client alone. Its memory goes back to the node when the client or the process ends,
    /// in any way. A forked child that keeps the client also keeps the connection to the node, and
    /// so the memory. `options.start` is not used.
    pub fn alone(node: &NodeAddr, options: Options) -> Result<Client, ConnectError> {
        let nobody = |e: &std::io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        let is_alone = UnixStream::connect(&options.socket).err().is_some_and(|e| nobody(&e));
        let alone = is_alone.then(|| Alone::start(node, options.patience)).transpose()?;
        Client::connect_by(options, alone.map(Arc::new))
    }

    fn connect_by(options: Options, alone: Option<Arc<Alone>>) -> Result<Client, ConnectError> {
        let here = shared::wiped_on_fork().map_err(|e| ConnectError::System(e.to_string()))?;
        here.store(1, Ordering::Relaxed);
        let number = CLIENTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(1));
        let number = number.map_err(|_| ConnectError::System("this program has made too many clients".into()))?;
        let link = Link::connect(options, alone.clone())?;
        let members = Arc::clone(link.members());
        Ok(Client { state: Lock::new(State::new(link, number)), number, members, alone, here })
    }

    /// Allocates a piece of `4096 << order` bytes, aligned to its size.
    #[inline]
    pub fn alloc(&self, order: u8) -> Result<Chunk, AllocError> {
        if self.here.load(Ordering::Relaxed) == 0 {
            return Err(AllocError::Forked);
        }
        if order > BLOCK_ORDER {
            return Err(AllocError::Size);
        }
        let mut state = self.state.lock();
        if let Some(&last) = state.kept[order as usize].last()
            && let Some(Block { base: Some(base), id, .. }) = state.blocks[(last >> 9) as usize].as_ref()
        {
            let (slot, first) = (last >> 9, (last & 511) as u16);
            let chunk = chunk_of((*base, self.number), slot, Piece { block: *id, first, order });
            let kept = &mut state.kept[order as usize];
            kept.pop();
            if kept.len() < LOW[order as usize] {
                state.look_ahead(order);
            }
            return Ok(chunk);
        }
        state.alloc_slowly(order)
    }

    /// Allocates a run of 1 to 32 adjacent blocks of 2 MiB.
    pub fn alloc_run(&self, blocks: u32) -> Result<Chunk, AllocError> {
        match blocks {
            1 => return self.alloc(BLOCK_ORDER),
            2..=MAX_RUN => {}
            _ => return Err(AllocError::Size),
        }
        if self.here.load(Ordering::Relaxed) == 0 {
            return Err(AllocError::Forked);
        }
        self.state.lock().alloc_run(blocks)
    }

    /// Gives a piece or a run back. A piece may be kept for the next allocation of its size.
    ///
    /// # Panics
    /// If the chunk is another client's.
    #[inline]
    pub fn free(&self, chunk: Chunk) {
        if self.here.load(Ordering::Relaxed) == 0 {
            return;
        }
        assert!(chunk.client == self.number, "a chunk of another client");
        let mut state = self.state.lock();
        let order = chunk.order as usize;
        if chunk.run > 0 {
            return state.free_run(chunk.slot, chunk.run as u32);
        }
        let kept = &mut state.kept[order];
        kept.push(packed(chunk.slot, chunk.first));
        let is_full = kept.len() >= FULL[order];
        if state.link.is_recalled() {
            return state.trim();
        }
        if is_full {
            state.give_back(chunk.order, FULL[order] / 2);
        }
    }

    /// Gives back everything that is kept and not in use.
    pub fn trim(&self) {
        if self.here.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.state.lock().trim();
    }

    /// The counts so far. A forked child, which is no application, has none.
    pub fn counts(&self) -> Counts {
        // A thread of the parent's may have held the lock at the fork.
        if self.here.load(Ordering::Relaxed) == 0 {
            return Counts::default();
        }
        self.state.lock().link.counts
    }

    /// Bytes that this program holds, in use or kept. A forked child holds none.
    pub fn held(&self) -> u64 {
        if self.here.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let state = self.state.lock();
        let held = |block: &Block| {
            if block.blocks > 1 { block.blocks as u64 * 512 } else { chunks::count(&block.held) as u64 }
        };
        state.blocks.iter().flatten().map(held).sum::<u64>() * CHUNK_BYTES
    }

    /// Allocates one chunk as if nothing were granted ahead: asks the agent and waits. For
    /// measurements.
    #[doc(hidden)]
    pub fn alloc_asking(&self) -> Result<Chunk, AllocError> {
        let mut state = self.state.lock();
        state.ask(Up::Want { order: 0, count: 1 }, Asked::Pieces(0))?;
        state.alloc_slowly(0)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.here.load(Ordering::Relaxed) == 0 {
            self.members.forget_in_child();
            // The agent's threads are in the parent. To end it here would end the parent's session
            // with the node.
            std::mem::forget(self.alone.take());
        }
    }
}
