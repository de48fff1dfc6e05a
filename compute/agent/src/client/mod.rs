//! An application's side: far memory in pieces.
//!
//! ```text
//!  alloc(4 KiB) ──► cache of chunks ──► (nearly empty: WANT, and on) ──► (empty: WANT, and wait)
//!  free(4 KiB)  ──► cache of chunks ──► (nearly full: the oldest go back, merged into larger pieces)
//! ```
//!
//! Of larger pieces up to 128 KiB a few are asked for ahead, by who has asked before.
//!
//! The common allocation takes a chunk from an array under a lock that is private
//! to the process: no system call, no word to the agent. A word goes up for some
//! hundred chunks at once, and a system call only when the agent sleeps or nothing
//! is left ([`Counts`] says how often).
//!
//! *The agent ends.* The library notices when it next waits. It connects again (the agent is
//! started by [`Options::start`], if given), proves itself by its token and declares what it holds.
//! Requests under way are repeated. Memory that is held stays mapped and usable all the while.
//!
//! *Fork.* A child is no application of the agent's: its calls are refused
//! ([`AllocError::Forked`]). Memory is shared with the parent, not copied.

mod alone;
mod link;
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
use reach::Member;
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

/// Chunks that the cache holds, at most.
const CACHE: usize = 512;
/// With fewer pieces of an order than this, more are asked for ahead: of those up to 128 KiB.
const LOW: [usize; BLOCK_ORDER as usize + 1] = [96, 2, 2, 2, 2, 2, 0, 0, 0, 0];
/// Chunks requested at once.
const AHEAD: u32 = 128;
/// Larger pieces requested at once, when some were requested before and none given back since.
const FEW: u32 = 4;
/// Bytes of each size that are kept for the next who asks, and not in use: as many as the chunks of
/// a full cache.
const KEPT: u64 = CACHE as u64 * CHUNK_BYTES;
/// Pieces of a size above a chunk that are kept, however small they are.
const MANY: u64 = 7;
/// With this many kept pieces of an order, the older half goes back. One piece of 2 MiB is kept:
/// enough for a program that takes and frees one alternately. A second would be a block more that
/// an idle program keeps from all others.
const FULL: [usize; BLOCK_ORDER as usize + 1] = full();

/// How this process joins a node as a member of its own: in a run of its own, by the token that the
/// environment names.
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

/// Clients that this process has made.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

/// How to reach the agent.
pub struct Options {
    /// Its socket.
    pub socket: PathBuf,
    /// The job that this program belongs to, of at most 32 bytes; empty: none. Jobs of a user have
    /// quotas of their own, and memory apart.
    pub job: String,
    /// How long to try to reach it, at first and again.
    pub patience: Duration,
    /// Starts an agent if there is none; returns when it listens, or cannot.
    #[allow(clippy::type_complexity)]
    pub start: Option<Box<dyn Fn() -> std::io::Result<()> + Send + Sync>>,
}

/// Why the agent was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No agent listens.
    #[error("no agent answers at {0}: start one with farmem agent")]
    Nobody(String),
    /// It has no room.
    #[error("the agent serves as many programs as it can: end some, or wait")]
    Full,
    /// It speaks another version.
    #[error("the agent at {0} is of another version of farmem: install the same on both")]
    Version(String),
    /// The agent no longer knows what this program held before.
    #[error("the agent was started anew and its record of this program's memory is gone")]
    Unknown,
    /// It holds other things than the record says.
    #[error("the agent's record contradicts what this program holds; this is an error of farmem's")]
    NotHeld,
    /// The agent's memory is on another machine, and its node cannot be joined.
    #[error("the memory of the agent is elsewhere: {0}")]
    Node(String),
    /// The system refused memory or descriptors, here or there.
    #[error("the system refused what a connection to the agent needs: {0}")]
    System(String),
}

/// Why no memory was had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The tenant's quota is used up.
    #[error("the quota of this user or job is used up: free memory, or have it raised (farmem agent --quota)")]
    Quota,
    /// The node lends no more.
    #[error("the node has lent all its memory: free some, or start it with a larger --lend")]
    Exhausted,
    /// A limit of the agent's.
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
            Refusal::Stranger => AllocError::Stranger,
        }
    }
}

/// A piece of far memory that this program has. To be given back by [`Client::free`]. Read and
/// written by [`Client::reach`], wherever it is; where it is mapped, also by loads and stores.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its block: an allocation does not work out its address, which may never be asked for.
    at: At,
    /// The piece, not as a [`Piece`]: in 24 bytes there is room for the client.
    block: BlockId,
    first: u16,
    order: u8,
    /// Blocks of a run; 0: it is a piece.
    run: u8,
    /// The block's place in the client's table.
    slot: u32,
    /// Whose it is: to no other client does it say anything, not even where something is mapped.
    client: u32,
    /// Send, and not Sync: [`Reach`] copies from and to mapped pieces, which two threads must not
    /// do at once.
    one_thread: PhantomData<Cell<u8>>,
}

/// Where a block is, in one word, for every allocation carries it: the address that it is mapped
/// at; or, told by a bit that no address has and every window's key, the key of its block (of a
/// run: of the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(NonZeroU64);

impl At {
    const IS_KEY: u64 = Key::window(0, 0).0;

    /// The place `behind` bytes after an address.
    fn here(address: NonNull<u8>, behind: u64) -> At {
        At(NonZeroU64::new(address.as_ptr() as u64 + behind).unwrap_or(NonZeroU64::MIN))
    }

    /// `None`: no key of a window.
    fn elsewhere(key: Key) -> Option<At> {
        NonZeroU64::new(key.0).filter(|key| key.get() & At::IS_KEY != 0).map(At)
    }

    /// Where the byte so far behind its beginning is mapped.
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
    /// Where it is mapped: readable and writable, and zero unless this program had it before.
    /// `None`: it is elsewhere.
    #[inline]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.at.address(self.offset())
    }

    /// A number that no other piece held at this time has, and no byte of one: where it is, as if
    /// pieces lay in one range.
    #[inline]
    pub fn number(&self) -> u64 {
        match self.address() {
            Some(address) => address.as_ptr() as u64,
            // A slot has room for the largest run.
            None => (self.slot as u64 + 1) * (MAX_RUN as u64 * BLOCK_BYTES) + self.offset(),
        }
    }

    /// Its place in its block.
    #[inline]
    fn offset(&self) -> u64 {
        self.first as u64 * CHUNK_BYTES
    }

    /// Its bytes.
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
    /// As its chunks say whose they are: no other client's of this process, now or later.
    number: u32,
    /// At the node, if memory is elsewhere.
    member: Option<Member>,
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

    /// Reaches the agent if one listens. Otherwise makes one within this process, over this node
    /// and for this client alone. Its memory goes back to the node when the client or the process
    /// ends, in any way. (A forked child that keeps the client keeps the connection to the node,
    /// and all of it.) `options.start` is not used.
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
        let (link, member) = Link::connect(options, alone.clone())?;
        Ok(Client { state: Lock::new(State::new(link, number)), number, member, alone, here })
    }

    /// A piece of `4096 << order` bytes, aligned to that.
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

    /// A run of `blocks` adjacent blocks of 2 MiB, 1 to 32.
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

    /// Gives a piece or a run back. It may be kept for the next one who asks for its size.
    ///
    /// # Panics
    /// When the chunk is of another client.
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

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().link.counts
    }

    /// Bytes that this program holds, in use or kept.
    pub fn held(&self) -> u64 {
        let state = self.state.lock();
        let held = |block: &Block| {
            if block.blocks > 1 { block.blocks as u64 * 512 } else { chunks::count(&block.held) as u64 }
        };
        state.blocks.iter().flatten().map(held).sum::<u64>() * CHUNK_BYTES
    }

    /// One chunk as it would be had without granting ahead: asked for, and waited for. For
    /// measuring.
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
            if let Some(member) = &mut self.member {
                member.forget_in_child();
            }
            // Its threads are the parent's, and what it would say to the node, too.
            std::mem::forget(self.alone.take());
        }
    }
}
