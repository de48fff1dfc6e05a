//! A connection to nodes: its parts, and its blocking verbs.

use crate::lane::Lane;
use crate::pieces::{Piece, Pieces};
use crate::shard::Shard;
use crate::ways::Ways;
use crate::{Addr, Builder, Error, Result};
use farmem_protocol::region::RegionName;
use farmem_sys::sync::Lock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Lanes that wait for their next user, at most.
const KEPT: usize = 64;
/// How often nodes are looked after whose memory is mapped here.
const WATCH_MS: u64 = 50;
/// Words of a region that every process finds: see [`Memory::root`].
pub const ROOTS: usize = 64;
/// Where they begin in a region's first slab; the identity is the word at [`IDENTITY`].
const ROOT_OFFSET: u64 = 4096 + 512;
pub(crate) const IDENTITY: u64 = 4096;

/// Remote memory: private to this process, or a region that others share.
///
/// Cloning it gives another handle to the same connection. All methods can be called by any number
/// of threads. When the last handle and the last [`Lane`] are dropped the nodes are told goodbye.
/// Private memory is then theirs again; it also is when the process ends, however it does.
#[derive(Clone)]
pub struct Memory {
    pub(crate) inner: Arc<Inner>,
    pub(crate) numbers: Option<Arc<[usize]>>,
}

pub(crate) struct Inner {
    /// Dropped before the sessions.
    idle: Lock<Vec<Ways>>,
    pub pieces: Pieces,
    pub shards: Vec<Shard>,
    pub region: Option<RegionName>,
    /// By which the openers of a region tell one another apart.
    tag: u32,
    /// 1 in the process that connected, 0 in its forked children.
    here: &'static AtomicU32,
    /// Whether nodes must be looked after that are reached without asking them.
    is_watched: bool,
    begun: Instant,
    /// Milliseconds from `begun` to the last look.
    watched_ms: AtomicU64,
}

impl Inner {
    pub fn new(shards: Vec<Shard>, region: Option<RegionName>, tag: u32, here: &'static AtomicU32) -> Inner {
        here.store(1, Ordering::Relaxed);
        let is_watched = region.is_some() && shards.iter().any(|shard| shard.session().is_mapped());
        let (idle, pieces) = (Lock::new(Vec::new()), Pieces::new(shards.len()));
        let (begun, watched_ms) = (Instant::now(), AtomicU64::new(0));
        Inner { idle, pieces, shards, region, tag, here, is_watched, begun, watched_ms }
    }

    /// Checks, if it was not done lately, whether the nodes whose memory is mapped are still there.
    /// Private memory of a node that has ended can be used as before. Using a region would be a
    /// mistake: other processes may have made another one since.
    #[inline]
    pub fn watch(&self) {
        if !self.is_watched || self.is_forked() {
            return;
        }
        let (now, before) = (self.begun.elapsed().as_millis() as u64, self.watched_ms.load(Ordering::Relaxed));
        if now < before + WATCH_MS {
            return;
        }
        if self.watched_ms.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            for shard in self.shards.iter().filter(|shard| shard.session().is_mapped()) {
                // A loss is told by the next operation there.
                let _ = shard.session().tend();
            }
        }
    }

    #[inline]
    pub fn is_forked(&self) -> bool {
        self.here.load(Ordering::Relaxed) == 0
    }

    /// # Errors
    /// [`Error::Forked`] in a forked child.
    #[inline]
    pub fn unless_forked(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// A node, to be asked for something: by its parent's connection a child would be given, or take,
    /// the answers to the parent's questions.
    pub fn shard(&self, node: usize) -> Result<&Shard> {
        self.unless_forked().map(|()| &self.shards[node])
    }

    fn ways(&self) -> Ways {
        let kept = self.idle.lock().pop();
        kept.unwrap_or_else(|| Ways::new(self.shards.len()))
    }

    /// A scratch piece of a node's that nothing uses.
    pub fn take_scratch(&self, node: usize) -> Option<Addr> {
        self.shards[node].scratch.lock().pop()
    }

    pub fn keep_scratch(&self, node: usize, at: Addr) {
        self.shards[node].scratch.lock().push(at);
    }

    /// Keeps them for the next lane. With operations under way they are dropped: only then are the
    /// buffers free.
    pub fn keep(&self, mut ways: Ways) {
        if self.is_forked() {
            ways.forget_in_child();
        } else if ways.is_quiet() {
            let mut idle = self.idle.lock();
            if idle.len() < KEPT {
                idle.push(ways);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_forked() {
            return;
        }
        // Locked by a thread that is not here, it may be anything.
        if let Some(mut idle) = self.idle.try_lock() {
            idle.iter_mut().for_each(Ways::forget_in_child);
        }
        self.shards.iter_mut().for_each(Shard::forget_in_child);
    }
}

impl Memory {
    /// Private memory on one node: `host:7411`, or `unix:/path` on this machine.
    ///
    /// # Errors
    /// [`Error::Connect`] says what to do.
    pub fn connect(node: &str) -> Result<Memory> {
        Memory::builder().node(node).connect()
    }

    /// For several nodes, a named region, or other than the usual settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A thread's own way, for batches and posted operations.
    ///
    /// # Errors
    /// [`Error::Forked`]
    pub fn lane(&self) -> Result<Lane> {
        match self.inner.is_forked() {
            true => Err(Error::Forked),
            false => Ok(Lane::new(self.clone(), self.inner.ways())),
        }
    }

    /// A piece of at least `bytes` bytes: a power of two from 4 KiB to 2 MiB, aligned to itself.
    /// Its bytes are not cleared. Pieces come from the nodes alternately.
    ///
    /// # Errors
    /// [`Error::Full`] when no node has room. [`Error::Size`]
    pub fn alloc(&self, bytes: u64) -> Result<Addr> {
        self.with_lane(|lane| lane.alloc(bytes))
    }

    /// [`Memory::alloc`] on one node, by its number.
    ///
    /// # Errors
    /// As [`Memory::alloc`]; [`Error::Nodes`] when there is no such node.
    pub fn alloc_on(&self, node: usize, bytes: u64) -> Result<Addr> {
        self.with_lane(|lane| lane.alloc_on(node, bytes))
    }

    /// [`Memory::alloc`], with its bytes cleared.
    ///
    /// # Errors
    /// As [`Memory::alloc`].
    pub fn alloc_zeroed(&self, bytes: u64) -> Result<Addr> {
        self.with_lane(|lane| lane.alloc_zeroed(bytes))
    }

    /// Gives a piece back, by its first byte. No process may use it any more.
    ///
    /// # Errors
    /// [`Error::NotAPiece`]. After [`Error::Unknown`] part of the piece may stay taken.
    pub fn free(&self, piece: Addr) -> Result<()> {
        self.with_lane(|lane| lane.free(piece))
    }

    /// All pieces that are taken, those of other processes included. Pieces taken or freed
    /// meanwhile may be missing. After a process was killed, pieces that nothing refers to can be
    /// freed.
    ///
    /// # Errors
    /// [`Error::Lost`]
    pub fn pieces(&self) -> Result<Vec<Piece>> {
        self.with_lane(Lane::pieces)
    }

    /// One of the [`ROOTS`] words of a region that every process finds without being told an
    /// address: zero at first, changed by atomic operations. They lie on the region's first node.
    ///
    /// # Panics
    /// When `n` is not below [`ROOTS`], or the memory is private.
    pub fn root(&self, n: usize) -> Addr {
        assert!(n < ROOTS && self.inner.region.is_some(), "a region has {ROOTS} roots, private memory has none");
        Addr::of(0, 1, ROOT_OFFSET + 8 * n as u64)
    }

    /// Reads from an address on. The bytes of a concurrent write may be seen in part.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Lost`], [`Error::Refused`]
    pub fn read(&self, at: Addr, into: &mut [u8]) -> Result<()> {
        self.with_lane(|lane| lane.read(at, into))
    }

    /// Writes from an address on.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn write(&self, at: Addr, bytes: &[u8]) -> Result<()> {
        self.with_lane(|lane| lane.write(at, bytes))
    }

    /// Stores `new` in the aligned word at an address if it is `expected`. Returns what was there:
    /// if that is `expected`, the word was changed.
    ///
    /// # Errors
    /// As [`Memory::read`]; [`Error::Unaligned`], [`Error::Unknown`].
    pub fn compare_swap(&self, at: Addr, expected: u64, new: u64) -> Result<u64> {
        self.with_lane(|lane| lane.compare_swap(at, expected, new))
    }

    /// Adds to the aligned word at an address, wrapping. Returns what was there.
    ///
    /// # Errors
    /// As [`Memory::compare_swap`].
    pub fn fetch_add(&self, at: Addr, add: u64) -> Result<u64> {
        self.with_lane(|lane| lane.fetch_add(at, add))
    }

    /// Reads the aligned word at an address, whole.
    ///
    /// # Errors
    /// As [`Memory::compare_swap`].
    pub fn load(&self, at: Addr) -> Result<u64> {
        self.with_lane(|lane| lane.load(at))
    }

    /// Changes the aligned word at an address, whole, from any value.
    ///
    /// # Errors
    /// As [`Memory::compare_swap`].
    pub fn store(&self, at: Addr, value: u64) -> Result<()> {
        self.with_lane(|lane| lane.store(at, value))
    }

    /// A random number of 32 bits by which the openers of a region tell one another apart. It is
    /// drawn when a process connects, and is the same at all nodes.
    pub fn tag(&self) -> u32 {
        self.inner.tag
    }

    /// Takes all rights at a node from the other processes with this [`Memory::tag`] that have this
    /// memory's region open. Protocols that declare a silent process dead need it: after `true`
    /// none of its operations takes effect at that node, however early it was posted. They fail
    /// with [`Error::Lost`].
    ///
    /// False: one of them has the node's memory mapped (shared memory), and its process still
    /// lives. Only its end keeps it from writing. Ask again later.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node is lost.
    ///
    /// # Panics
    /// If there is no such node, or the memory is private.
    pub fn expel(&self, node: usize, tag: u32) -> Result<bool> {
        if self.inner.is_forked() {
            return Err(Error::Forked);
        }
        let Some(region) = self.inner.region else { panic!("only a region has other openers") };
        Ok(self.inner.shards[node].session().regions().expel(region, tag)?)
    }

    /// [`Memory::pieces`] of one node, by its number.
    ///
    /// # Errors
    /// As there; [`Error::Nodes`] when there is no such node.
    pub fn pieces_on(&self, node: usize) -> Result<Vec<Piece>> {
        self.with_lane(|lane| lane.pieces_on(node))
    }

    /// Takes the piece of `bytes` bytes at this very place, for protocols that keep one layout at
    /// several nodes of a region. The node is made larger as far as need be.
    ///
    /// # Errors
    /// [`Error::NotAPiece`]: part of it is taken, or no piece of this size can begin there. Else as
    /// [`Memory::alloc`].
    pub fn alloc_at(&self, at: Addr, bytes: u64) -> Result<()> {
        self.with_lane(|lane| lane.alloc_at(at, bytes))
    }

    /// Whether a node is there, by its number.
    ///
    /// # Errors
    /// [`Error::Lost`]
    pub fn check_node(&self, number: usize) -> Result<()> {
        match self.inner.shards.get(number) {
            _ if self.inner.is_forked() => Err(Error::Forked),
            Some(shard) => Ok(shard.session().tend()?),
            None => Err(Error::Nodes(number)),
        }
    }

    /// After [`Error::Lost`]: whether the node's process has certainly ended. Another process may
    /// still reach a node that was lost by its silence.
    pub fn has_ended(&self, number: usize) -> bool {
        self.inner.shards.get(number).is_some_and(|shard| shard.session().standing().node_has_ended())
    }

    /// The numbers that the nodes have in their region: not one behind the other if
    /// [`Builder::partial`] has left some out.
    pub fn numbers(&self) -> &[usize] {
        self.numbers.as_deref().map_or(&[], |numbers| numbers)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.inner.shards.len()
    }

    /// The address of a node, as it was given. `None`: there is no such node.
    pub fn node(&self, number: usize) -> Option<&str> {
        self.inner.shards.get(number).map(|shard| shard.session().node())
    }

    /// Whether a node's memory is mapped here: a read or write there is a copy, and posting it
    /// early gains nothing.
    pub fn is_mapped(&self, number: usize) -> bool {
        self.inner.shards.get(number).is_some_and(|shard| shard.session().is_mapped())
    }

    /// Whether all nodes are there. One that is silent is waited for: a second at most.
    ///
    /// # Errors
    /// [`Error::Lost`] for the first that is not.
    pub fn check(&self) -> Result<()> {
        if self.inner.is_forked() {
            return Err(Error::Forked);
        }
        self.inner.shards.iter().try_for_each(|shard| Ok(shard.session().tend()?))
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        work(&mut self.lane()?)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = (0..self.nodes()).filter_map(|number| self.node(number)).collect();
        f.debug_struct("Memory").field("nodes", &nodes).field("region", &self.inner.region).finish_non_exhaustive()
    }
}
