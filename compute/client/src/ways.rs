//! One thread's queue pairs to the nodes of a memory, and the operations under way on them.
//!
//! ```text
//!  start(operation) ─► verbs of at most 1 MiB on the node's queue pair ── ring ─► completions ─► ended
//!                      └─ the node is lost: its queue pair is dropped, and its operations end with it
//! ```
//! An operation goes to one node. It has ended when each of its verbs has, or when the node's queue
//! pair is gone. From then on nobody touches its buffer. Starting and ringing return no error: the
//! operation's result has it.

// Verbs get the callers' buffers as raw memory.
#![allow(unsafe_code)]

use crate::memory::Inner;
use crate::{Addr, Error, Payload, Result};
use farmem_fabric::{Completion, QueuePair, Refusal, Waiter};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::Key;
use farmem_protocol::near::FRAME;
use farmem_protocol::wire::MAX_VERB_BYTES;
use std::time::{Duration, Instant};

/// The longest wait for one look at all nodes.
const LOOK: Duration = Duration::from_secs(1);

/// The operation on the bytes at its address.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Read {
        into: *mut u8,
        len: usize,
    },
    Write {
        from: *const u8,
        len: usize,
    },
    CompareSwap {
        expected: u64,
        new: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// A function near memory ([`crate::near`]). The address names the node alone.
    Send {
        said: *const [u8; FRAME],
        reply: *mut u8,
    },
}

impl Verb {
    fn bytes(self) -> u64 {
        match self {
            Verb::Read { len, .. } | Verb::Write { len, .. } => len as u64,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => 8,
            Verb::Send { .. } => 0,
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Verb::CompareSwap { .. } | Verb::FetchAdd { .. })
    }
}

/// The number of an operation among those of its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Number(u32);

/// The memory of a posted operation.
pub(crate) enum Buffer {
    /// Comes back with the completion.
    Own(Vec<u8>),
    /// Of a write: kept until its end is told.
    #[expect(dead_code, reason = "it is held, not read")]
    Kept(Payload),
}

impl Buffer {
    fn returned(self) -> Vec<u8> {
        match self {
            Buffer::Own(bytes) => bytes,
            Buffer::Kept(_) => Vec::new(),
        }
    }
}

struct Operation {
    tag: u64,
    node: usize,
    /// Verbs that have not completed.
    left: u32,
    result: Result<u64>,
    buffer: Buffer,
    /// Its end is reported by a completion. Else its caller waits in [`Ways::finish`].
    posted: bool,
}

/// An operation that has ended.
pub(crate) struct Ended {
    pub tag: u64,
    pub result: Result<u64>,
    pub buffer: Vec<u8>,
}

/// One thread's queue pairs, at most one to each node, and the operations under way on them.
pub(crate) struct Ways {
    /// By node.
    links: Vec<Option<QueuePair>>,
    /// By node: why there is no queue pair, and will be none.
    barred: Vec<Option<Error>>,
    /// By node: its slabs, as far as this thread has asked for them.
    slabs: Vec<Vec<SlabId>>,
    /// By [`Number`]. Entries that are not used are in `idle`.
    operations: Vec<Operation>,
    idle: Vec<Number>,
    /// Posted operations that have ended and that [`Ways::take_ended`] has not returned yet.
    ready: Vec<Number>,
    under_way: usize,
    waiter: Waiter,
    /// Empty between calls. Kept so that a call allocates nothing.
    done: Vec<Completion>,
}

impl Ways {
    pub fn new(nodes: usize) -> Ways {
        Ways {
            links: (0..nodes).map(|_| None).collect(),
            barred: vec![None; nodes],
            slabs: vec![Vec::new(); nodes],
            operations: Vec::new(),
            idle: Vec::new(),
            ready: Vec::new(),
            under_way: 0,
            waiter: Waiter::new(),
            done: Vec::new(),
        }
    }

    /// Operations under way, and posted ones whose end is not reported yet.
    pub fn in_flight(&self) -> usize {
        self.under_way + self.ready.len()
    }

    /// Whether nothing is under way, so that another lane may use these queue pairs.
    pub fn is_quiet(&self) -> bool {
        self.in_flight() == 0 && self.links.iter().flatten().all(|link| link.in_flight() == 0)
    }

    /// Lets go of the queue pairs in a forked child, where they are the parent's.
    pub fn forget_in_child(&mut self) {
        self.links.iter_mut().filter_map(Option::take).for_each(QueuePair::forget_in_child);
    }

    /// In a forked child: ends the parent's operations here, as refused. No queue pair is made again.
    #[cold]
    pub fn end_in_child(&mut self) {
        self.forget_in_child();
        self.end_all(Error::Forked, |_| true);
    }

    /// Ends the operations under way at such nodes.
    fn end_all(&mut self, why: Error, at_node: impl Fn(usize) -> bool) {
        for at in 0..self.operations.len() {
            let operation = &mut self.operations[at];
            if operation.left > 0 && at_node(operation.node) {
                operation.left = 0;
                self.under_way -= 1;
                self.fail(Number(at as u32), why.clone());
            }
        }
    }

    /// Drops all queue pairs: from here on nobody touches a buffer.
    pub fn abandon(&mut self) {
        self.links.iter_mut().for_each(|link| *link = None);
    }

    /// Starts an operation that is told by a completion.
    ///
    /// # Safety
    /// The verb must point to `buffer`'s memory.
    pub unsafe fn post(&mut self, inner: &Inner, tag: u64, at: Addr, verb: Verb, buffer: Buffer) {
        let number = self.begin(tag, at, buffer, true);
        // SAFETY: the operation keeps the buffer until it has ended.
        unsafe { self.start(inner, number, at, verb) };
    }

    /// Starts an operation that the caller awaits by [`Ways::finish`].
    ///
    /// # Safety
    /// The verb's pointers must be valid for it, and point to memory of this process that is not
    /// far. The memory must be left alone until [`Ways::finish`] or [`Ways::abandon`].
    pub unsafe fn begin_waited(&mut self, inner: &Inner, at: Addr, verb: Verb) -> Number {
        let number = self.begin(0, at, Buffer::Own(Vec::new()), false);
        // SAFETY: the caller's promise.
        unsafe { self.start(inner, number, at, verb) };
        number
    }

    /// Waits for an operation of [`Ways::begin_waited`]. Its result.
    pub fn finish(&mut self, number: Number) -> Result<u64> {
        while self.operations[number.0 as usize].left > 0 {
            self.look(Some(LOOK));
        }
        self.end(number).result
    }

    /// Whether an operation of [`Ways::begin_waited`] has ended, as far as completions were taken.
    pub fn is_over(&self, number: Number) -> bool {
        self.operations[number.0 as usize].left == 0
    }

    /// Starts one operation, rings and waits for it.
    ///
    /// # Safety
    /// The verb's pointers must be valid for it, and point to memory of this process that is not
    /// far, until this returns.
    pub unsafe fn run(&mut self, inner: &Inner, at: Addr, verb: Verb) -> Result<u64> {
        let ways = AbandonOnUnwind(self);
        let result = if ways.0.under_way == 0 {
            // SAFETY: the caller's promise; it is awaited here, or the queue pairs are dropped.
            unsafe { ways.0.run_alone(inner, at, verb) }
        } else {
            // SAFETY: as above.
            let number = unsafe { ways.0.begin_waited(inner, at, verb) };
            ways.0.ring(inner);
            ways.0.finish(number)
        };
        std::mem::forget(ways);
        result
    }

    /// [`Ways::run`] while nothing else is under way. Waits on the node's queue pair alone, and
    /// needs no [`Operation`].
    ///
    /// # Safety
    /// As [`Ways::run`].
    unsafe fn run_alone(&mut self, inner: &Inner, at: Addr, verb: Verb) -> Result<u64> {
        inner.watch();
        let slab = self.place(inner, at, verb)?;
        let mut done = std::mem::take(&mut self.done);
        let link = self.link(inner, at.node())?;
        // SAFETY: the caller's promise: all of its verbs are awaited here, or the queue pair is
        // dropped.
        let verbs = unsafe { post(link, 0, (slab, at.offset()), verb) } as usize;
        let mut waited = link.doorbell();
        while waited.is_ok() && done.len() < verbs {
            waited = link.wait(&mut done, LOOK).map(drop);
        }
        let result = done.drain(..).try_fold(0, |_, one| one.result).map_err(refused);
        self.done = done;
        waited.map_err(|lost| {
            let lost = Error::from(lost);
            self.lose(at.node(), lost.clone());
            lost
        })?;
        result
    }

    fn begin(&mut self, tag: u64, at: Addr, buffer: Buffer, posted: bool) -> Number {
        let operation = Operation { tag, node: at.node(), left: 0, result: Ok(0), buffer, posted };
        match self.idle.pop() {
            Some(number) => {
                self.operations[number.0 as usize] = operation;
                number
            }
            None => {
                self.operations.push(operation);
                Number(self.operations.len() as u32 - 1)
            }
        }
    }

    /// # Safety
    /// As [`Ways::begin_waited`].
    unsafe fn start(&mut self, inner: &Inner, number: Number, at: Addr, verb: Verb) {
        let placed = match self.place(inner, at, verb) {
            Ok(slab) => self.link(inner, at.node()).map(|link| (slab, link)),
            Err(e) => Err(e),
        };
        let (slab, link) = match placed {
            Ok(placed) => placed,
            Err(e) => return self.fail(number, e),
        };
        // SAFETY: the caller's promise.
        let verbs = unsafe { post(link, number.0 as u64, (slab, at.offset()), verb) };
        self.operations[number.0 as usize].left = verbs;
        self.under_way += usize::from(verbs > 0);
        if verbs == 0 {
            self.ended(number);
        }
    }

    /// The slab of an address, if the range lies within it and suits the verb.
    fn place(&mut self, inner: &Inner, at: Addr, verb: Verb) -> Result<SlabId> {
        let slab = self.slab(inner, at, verb.bytes())?;
        match verb.is_atomic() && !at.offset().is_multiple_of(8) {
            true => Err(Error::Unaligned(at)),
            false => Ok(slab),
        }
    }

    /// The slab of an address, if the range lies within it.
    pub fn slab(&mut self, inner: &Inner, at: Addr, len: u64) -> Result<SlabId> {
        let range = Error::Range { at, len };
        inner.unless_forked()?;
        let Some(number) = at.slab().checked_sub(1).filter(|_| at.node() < self.slabs.len()) else { return Err(range) };
        if at.offset() + len > SLAB_BYTES {
            return Err(range);
        }
        if let Some(&slab) = self.slabs[at.node()].get(number) {
            return Ok(slab);
        }
        self.slabs[at.node()] = inner.shard(at.node())?.up_to(number + 1)?;
        self.slabs[at.node()].get(number).copied().ok_or(range)
    }

    fn link(&mut self, inner: &Inner, node: usize) -> Result<&mut QueuePair> {
        let link = &mut self.links[node];
        if link.is_none() {
            if let Some(lost) = &self.barred[node] {
                return Err(lost.clone());
            }
            let session = inner.shards[node].session();
            let made = session.queue_pair();
            *link = Some(made.map_err(|lost| match session.standing().is_lost() {
                true => lost.into(),
                false => Error::Lanes(session.node().to_owned()),
            })?);
        }
        link.as_mut().ok_or(Error::Forked)
    }

    /// See [`crate::Lane::touch`].
    #[inline]
    pub fn touch(&mut self, inner: &Inner, at: Addr) {
        if let Ok(slab) = self.slab(inner, at, 1)
            && let Some(link) = &self.links[at.node()]
        {
            link.touch(slab, at.offset());
        }
    }

    /// Sends what was started.
    pub fn ring(&mut self, inner: &Inner) {
        inner.watch();
        for node in 0..self.links.len() {
            if let Some(link) = &mut self.links[node]
                && let Err(lost) = link.doorbell()
            {
                self.lose(node, lost.into());
            }
        }
    }

    /// Takes the completions that are there. With a limit, first waits for one that long, if any
    /// operation is under way.
    pub fn look(&mut self, limit: Option<Duration>) {
        let looked = match limit {
            Some(limit) => self.waiter.wait(&mut self.links, limit),
            None => self.waiter.poll(&mut self.links),
        };
        // The vector is kept: a call by which one operation ends makes none.
        let mut came = std::mem::take(&mut self.waiter.came);
        for (_, completion) in came.drain(..) {
            self.came(Number(completion.tag as u32), completion.result);
        }
        self.waiter.came = came;
        if let Err((node, lost)) = looked {
            self.lose(node, lost.into());
        }
    }

    fn came(&mut self, number: Number, result: std::result::Result<u64, Refusal>) {
        let operation = &mut self.operations[number.0 as usize];
        if operation.result.is_ok() {
            operation.result = result.map_err(refused);
        }
        operation.left -= 1;
        if operation.left == 0 {
            self.under_way -= 1;
            self.ended(number);
        }
    }

    fn fail(&mut self, number: Number, why: Error) {
        self.operations[number.0 as usize].result = Err(why);
        self.ended(number);
    }

    fn ended(&mut self, number: Number) {
        if self.operations[number.0 as usize].posted {
            self.ready.push(number);
        }
    }

    /// Notes that a node is lost, and ends all operations there.
    #[cold]
    fn lose(&mut self, node: usize, why: Error) {
        self.links[node] = None;
        self.barred[node] = Some(why.clone());
        self.end_all(why, |at| at == node);
    }

    fn end(&mut self, number: Number) -> Ended {
        let operation = &mut self.operations[number.0 as usize];
        self.idle.push(number);
        let result = std::mem::replace(&mut operation.result, Ok(0));
        let buffer = std::mem::replace(&mut operation.buffer, Buffer::Own(Vec::new())).returned();
        Ended { tag: operation.tag, result, buffer }
    }

    /// Passes posted operations that have ended to `told`, in the order of their ends. Returns how
    /// many there were.
    pub fn take_ended(&mut self, mut told: impl FnMut(Ended)) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        let count = ready.len();
        for number in ready.drain(..) {
            told(self.end(number));
        }
        self.ready = ready;
        count
    }

    /// Waits until a posted operation has ended, at most so long, if any is under way.
    pub fn wait(&mut self, limit: Duration) {
        let begun = Instant::now();
        self.look(None);
        while self.ready.is_empty() && self.under_way > 0 {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            self.look(Some(left.min(LOOK)));
        }
    }
}

/// Posts the verbs of an operation, and returns their number.
///
/// # Safety
/// As [`Ways::begin_waited`].
unsafe fn post(link: &mut QueuePair, tag: u64, (slab, offset): (SlabId, u64), verb: Verb) -> u32 {
    // SAFETY: the caller's promise; each part is within the buffer.
    unsafe {
        match verb {
            Verb::Read { into, len } => {
                parts(len, |skip, len| link.read(tag, slab, offset + skip as u64, into.add(skip), len))
            }
            Verb::Write { from, len } => {
                parts(len, |skip, len| link.write(tag, slab, offset + skip as u64, from.add(skip), len))
            }
            Verb::CompareSwap { expected, new } => {
                link.cas(tag, slab, offset, expected, new);
                1
            }
            Verb::FetchAdd { add } => {
                link.faa(tag, slab, offset, add);
                1
            }
            Verb::Send { said, reply } => {
                link.send(tag, Key::COMPUTE, &*said, reply);
                1
            }
        }
    }
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Unknown => Error::Unknown,
        other => Error::Refused(other),
    }
}

/// Keeps buffers that are borrowed for a call from being touched after it has unwound.
pub(crate) struct AbandonOnUnwind<'a>(pub &'a mut Ways);

impl Drop for AbandonOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Calls `part` with the beginning and length of each verb of a transfer. Returns their number.
fn parts(len: usize, mut part: impl FnMut(usize, u32)) -> u32 {
    let mut verbs = 0;
    for from in (0..len).step_by(MAX_VERB_BYTES as usize) {
        part(from, (len - from).min(MAX_VERB_BYTES as usize) as u32);
        verbs += 1;
    }
    verbs
}
