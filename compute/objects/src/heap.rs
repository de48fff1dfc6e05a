//! A heap: the nodes' memory, and the frames that are local of it.

mod posted;

use crate::class::{Class, SEGMENT};
use crate::evict::{Evictor, Moved};
use crate::frames::Arena;
use crate::homes::Home;
use crate::scope::Open;
use crate::share::{Local, Share};
use crate::space::At;
use crate::way::Nodes;
use crate::word::{STAMP, Word};
use crate::{
    CHUNK, Chunk, Error, Far, FarArena, FarBTree, FarBox, FarCache, FarHashMap, FarList, FarQueue, FarString, FarVec,
    Linked, Result, Scope, SharedHeap,
};
use farmem::near::{Found, Scan};
use farmem::{Addr, Lane, Memory, Transport};
use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Least chunks of a heap.
const LEAST: usize = 64;
/// Local memory where nothing else is said, bytes.
const USUAL: usize = 64 << 20;
/// Scopes between two looks at the heap's share of its run's local memory.
const SCOPES: u64 = 256;
pub struct Inner {
    /// Declared before the arena, so dropped before it: its lane ends the transfers under way.
    evictor: RefCell<Evictor>,
    pub arena: Arena,
    /// Declared after the arena, so dropped after it: memory of the share is then used no more.
    _share: Rc<Share>,
    memory: Memory,
    /// All nodes' memory is mapped here.
    is_mapped: bool,
    /// Rises with each scope.
    clock: Cell<u64>,
    /// The open scopes.
    open: Open,
    /// [`Heap::join`] runs tasks. Then loads take arrivals in at some of their polls.
    joins: Cell<bool>,
    /// Polls of loads meanwhile.
    polls: Cell<usize>,
    itself: Weak<Inner>,
}

impl Inner {
    /// The oldest stamp that open scopes need ([`Open::needed`]). A frame whose stamp is not older
    /// stays.
    #[inline]
    fn oldest(&self) -> u64 {
        self.open.needed()
    }

    #[inline]
    fn begin(&self) -> u64 {
        let stamp = self.clock.get() + 1;
        self.clock.set(stamp);
        if stamp.is_multiple_of(SCOPES) {
            self.weigh();
        }
        self.open.begin(stamp);
        stamp << STAMP
    }

    /// Gives the run what its pages gain more by, and the system what a forked child had. A heap that
    /// misses nothing would not ask.
    #[cold]
    fn weigh(&self) {
        self.arena.split();
        if let Ok(mut evictor) = self.evictor.try_borrow_mut() {
            evictor.weigh(&self.arena, self.oldest());
        }
    }

    #[inline]
    pub fn end(&self, mark: u64) {
        self.open.end(mark >> STAMP);
    }

    /// A scope of this heap.
    #[inline]
    pub fn scope_of(self: Rc<Inner>) -> Scope {
        let mark = self.begin();
        Scope::new(self, mark)
    }

    /// A frame and a home for a fresh object. The frame awaits its bytes.
    pub fn fresh(&self, class: Class) -> Result<(At, Word)> {
        let evictor = &mut *self.evictor.borrow_mut();
        let when = (class, self.clock.get() << STAMP, self.oldest());
        evictor.fresh(&self.arena, when, |homes| homes.take(class, &self.memory, &self.itself))
    }

    /// [`Inner::fresh`], at a home that the caller has.
    pub fn fresh_at(&self, class: Class, home: Home) -> Result<(At, Word)> {
        let evictor = &mut *self.evictor.borrow_mut();
        let when = (class, self.clock.get() << STAMP, self.oldest());
        evictor.fresh(&self.arena, when, |_| Ok(home))
    }

    /// A frame of which the object was let go of.
    pub fn vacant(&self, class: Class, at: At) {
        self.evictor.borrow_mut().free(class, at);
    }

    /// A block of homes that is the caller's alone: its number and address.
    pub fn block(&self, class: Class) -> Result<(usize, Addr)> {
        self.evictor.borrow_mut().homes.block(class, &self.memory, &self.itself, true)
    }

    /// Gives such a block back. No box names a slot of it.
    pub fn release(&self, number: usize) {
        self.evictor.borrow_mut().homes.release(number, &self.memory);
    }

    /// The nodes' memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Brings an object in, which awaits nothing or is on its way. Its word from now on.
    pub fn load(&self, class: Class, word: Word, mark: u64) -> Result<Word> {
        self.settle(self.arena.of_word(class, word), word);
        let evictor = &mut *self.evictor.borrow_mut();
        let at = self.arena.of_word(class, word);
        if self.arena.word(at) == word.0 {
            self.arena.stamp(at, mark);
            return Ok(word);
        }
        evictor.fetch_one(&self.arena, (class, mark, self.oldest()), word)
    }

    /// Brings objects in, by one round trip to each node for those that are away. The scope holds
    /// them.
    pub fn load_all<T: Far>(&self, boxes: &[&FarBox<T>], mark: u64) -> Result<()> {
        let class = FarBox::<T>::CLASS;
        let mut away = Vec::new();
        boxes.iter().for_each(|one| self.arena.touch(self.arena.of_word(class, one.word())));
        for one in boxes {
            let at = self.arena.of_word(class, one.word());
            self.settle(at, one.word());
            match self.arena.word(at) == one.word().0 {
                true => self.arena.stamp(at, mark),
                false => away.push(*one),
            }
        }
        // A box that is named twice is fetched once.
        away.sort_unstable_by_key(|one| one.word().home().0);
        away.dedup_by_key(|one| one.word().home().0);
        if away.is_empty() {
            return Ok(());
        }
        let words: Vec<Word> = away.iter().map(|one| one.word()).collect();
        let when = (class, mark, self.oldest());
        self.evictor.borrow_mut().fetch(&self.arena, when, &words, |n, word| away[n].set_word(word))
    }

    /// A box is dropped. `at`: its object's frame, if it was local.
    pub fn dropped(&self, class: Class, home: Home, at: Option<At>) {
        let evictor = &mut *self.evictor.borrow_mut();
        if let Some(at) = at {
            evictor.free(class, at);
            evictor.tidy(&self.arena, class);
        }
        evictor.homes.give(home, &self.memory);
    }

    pub fn is_local(&self, class: Class, word: Word) -> bool {
        self.arena.word(self.arena.of_word(class, word)) == word.0
    }

    /// After a scan has seen an object: it makes room, where room is short.
    pub fn seen(&self, class: Class, word: Word) {
        let evictor = &mut *self.evictor.borrow_mut();
        evictor.seen(&self.arena, class, word, self.oldest());
    }

    /// Looks at the first bytes of objects that are away, where they are.
    pub fn scan_away(&self, away: &[(Word, u64)], scan: &Scan) -> Result<Found> {
        self.evictor.borrow_mut().scan_away(away, scan)
    }

    /// A lane of its own, for bytes that come past the frames.
    pub fn lane(&self) -> Result<Lane> {
        Ok(self.memory.lane()?)
    }

    /// Where an object lies while it is away.
    pub fn home(&self, word: Word) -> Option<Addr> {
        self.evictor.borrow().homes.addr(word.home())
    }

    /// Objects were read past the frames.
    pub fn passed(&self, objects: usize) {
        self.evictor.borrow_mut().moved.fetched += objects as u64;
    }

    /// Chunks that can come without pushing anything out.
    pub fn room(&self) -> usize {
        self.evictor.borrow().room(FarBox::<Chunk>::CLASS)
    }

    /// Fresh chunks of these bytes, a chunk's at most in each. Their homes are neighbours, if
    /// enough neighbours are free.
    pub fn fresh_run(&self, bytes: &[u8]) -> Result<Vec<FarBox<Chunk>>> {
        let class = FarBox::<Chunk>::CLASS;
        let n = bytes.len().div_ceil(CHUNK);
        let mut homes = {
            let evictor = &mut *self.evictor.borrow_mut();
            evictor.homes.take_run(class, n, &self.memory, &self.itself)?.into_iter()
        };
        let mut chunks = Vec::with_capacity(n);
        for part in bytes.chunks(CHUNK) {
            let Some(home) = homes.next() else { break };
            let evictor = &mut *self.evictor.borrow_mut();
            let when = (class, self.clock.get() << STAMP, self.oldest());
            match evictor.fresh(&self.arena, when, |_| Ok(home)) {
                Ok((at, word)) => chunks.push(FarBox::filled(self, at, word, part)),
                Err(e) => {
                    [home].into_iter().chain(homes).for_each(|home| evictor.homes.give(home, &self.memory));
                    return Err(e);
                }
            }
        }
        Ok(chunks)
    }

    /// Objects that may be fetched ahead.
    pub fn ahead(&self, class: Class, want: usize) -> usize {
        want.min(self.evictor.borrow().most() / class.stride / 4).max(1)
    }
}

/// Far memory for objects, with a part of it local. Cheap to clone; stays on its thread.
#[derive(Clone)]
pub struct Heap {
    pub(crate) inner: Rc<Inner>,
}

/// Settings of a [`Heap`].
#[derive(Debug)]
pub struct Builder {
    local: Local,
    is_of_run: bool,
    memory: farmem::Builder,
}

impl Builder {
    /// Local memory at most: bytes, or a text such as `"512M"`. Usually 64 MiB.
    pub fn local(mut self, most: impl Into<Local>) -> Builder {
        self.local = most.into();
        self
    }

    /// Local memory is a part of the run's.
    pub(crate) fn of_run(mut self, token: Option<String>, plain: bool) -> Builder {
        self.is_of_run = true;
        self.memory = self.memory.plain(plain);
        if let Some(token) = token {
            self.memory = self.memory.token(token);
        }
        self
    }

    /// Adds a node: `host:7411`, or `unix:/path` on this machine.
    pub fn node(mut self, address: impl Into<String>) -> Builder {
        self.memory = self.memory.node(address);
        self
    }

    /// How bytes are to move. Usually the fastest way that works.
    pub fn transport(mut self, transport: Transport) -> Builder {
        self.memory = self.memory.transport(transport);
        self
    }

    /// How long a connection that was cut is tried again before its node counts as lost. Usually 10
    /// s.
    pub fn grace(mut self, grace: Duration) -> Builder {
        self.memory = self.memory.grace(grace);
        self
    }

    /// Holds TCP to a rate in bits a second, in each direction: for measuring.
    #[doc(hidden)]
    pub fn rate(mut self, bits_per_s: Option<u64>) -> Builder {
        self.memory = self.memory.rate(bits_per_s);
        self
    }

    /// Connects, and checks the limit: bytes of local memory, and the share of them.
    fn connect(self) -> Result<(usize, Share, Memory)> {
        let local = self.local.bytes()?;
        if local < LEAST * CHUNK {
            return Err(Error::TooLittleLocal(local));
        }
        let share = if self.is_of_run { Share::of_run(LEAST * CHUNK / SEGMENT)? } else { Share::own() };
        Ok((local, share, self.memory.connect()?))
    }

    /// Connects: a heap that threads share.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn build_shared(self) -> Result<SharedHeap> {
        let (local, share, memory) = self.connect()?;
        SharedHeap::new(local / SEGMENT, share, memory)
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::TooLittleLocal`], [`Error::NotASize`], [`Error::NoAddresses`], [`Error::Memory`]
    /// with what to do.
    pub fn build(self) -> Result<Heap> {
        let (local, share, memory) = self.connect()?;
        let share = Rc::new(share);
        let (lane, arena) = (memory.lane()?, Arena::new()?);
        Ok(Heap {
            inner: Rc::new_cyclic(|itself| Inner {
                evictor: RefCell::new(Evictor::new(local / SEGMENT, Rc::clone(&share), Nodes::new(lane))),
                arena,
                _share: share,
                is_mapped: (0..memory.nodes()).all(|node| memory.is_mapped(node)),
                memory,
                clock: Cell::new(1),
                open: Open::default(),
                joins: Cell::new(false),
                polls: Cell::new(0),
                itself: itself.clone(),
            }),
        })
    }
}

impl Heap {
    /// For a heap.
    pub fn builder() -> Builder {
        Builder { local: USUAL.into(), is_of_run: false, memory: Memory::builder() }
    }

    /// A scope: references that are taken by it are good as long as it lives.
    #[inline]
    pub fn scope(&self) -> Scope {
        Rc::clone(&self.inner).scope_of()
    }

    /// Puts a value into far memory.
    ///
    /// # Errors
    /// [`Error::Memory`] where the nodes have no room, [`Error::ScopeFull`].
    pub fn alloc<T: Far>(&self, value: &T) -> Result<FarBox<T>> {
        FarBox::new(&self.inner, value)
    }

    /// An empty vector.
    pub fn vec<T: Far>(&self) -> FarVec<T> {
        FarVec::new(self.clone())
    }

    /// An empty queue.
    pub fn queue<T: Far>(&self) -> FarQueue<T> {
        FarQueue::new(self.clone())
    }

    /// An empty map.
    pub fn map<K: Far + Eq + Hash, V: Far>(&self) -> FarHashMap<K, V> {
        FarHashMap::new(self.clone())
    }

    /// An empty sorted map.
    pub fn btree<K: Far + Ord, V: Far>(&self) -> FarBTree<K, V> {
        FarBTree::new(self.clone())
    }

    /// An empty list.
    pub fn list<T: Far>(&self) -> FarList<T> {
        FarList::new(self.clone())
    }

    /// An empty text.
    pub fn string(&self) -> FarString {
        FarString::new(self.clone())
    }

    /// An empty arena.
    pub fn arena<T: Linked>(&self) -> FarArena<T> {
        FarArena::new(self.clone())
    }

    /// An empty cache, of at most this many entries.
    pub fn cache<K: Eq + Hash + Clone, V: Far>(&self, most: usize) -> FarCache<K, V> {
        FarCache::new(self.clone(), most)
    }

    /// Many boxes' values, in the order of the boxes. Those that are away come by one round trip to
    /// each node.
    ///
    /// # Errors
    /// As [`FarBox::get`].
    pub fn get_many<'a, T: Far>(&self, boxes: &[&'a FarBox<T>], scope: &'a Scope) -> Result<Vec<&'a T>> {
        scope.is_of(self)?;
        self.inner.load_all(boxes, scope.mark())?;
        boxes.iter().map(|one| one.get(scope)).collect()
    }

    /// Begins to fetch what is away of these, and returns at once: a hint. As much comes as there
    /// is room for.
    pub fn prefetch<T: Far>(&self, boxes: &[&FarBox<T>]) {
        self.inner.post(boxes);
    }

    /// Objects that were fetched, and those that were written back, since the heap was built.
    pub fn moved(&self) -> (u64, u64) {
        let Moved { fetched, written, .. } = self.inner.evictor.borrow().moved;
        (fetched, written)
    }

    /// Round trips that wrote objects back.
    pub fn write_batches(&self) -> u64 {
        self.inner.evictor.borrow().moved.batches
    }

    /// Local memory in use, and the limit, bytes. Both count headers.
    pub fn local(&self) -> (usize, usize) {
        let evictor = self.inner.evictor.borrow();
        (evictor.used(), evictor.most())
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("local", &self.local().1).finish_non_exhaustive()
    }
}
