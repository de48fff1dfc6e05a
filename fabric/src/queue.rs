//! Queue pairs: verbs posted by one thread, completions polled by the same.
//!
//! ```text
//! read, write, lines, cas, faa, bind, invalidate, send ─► posted ── doorbell ─► under way ── completion ─► poll, wait
//! ```
//!
//! The contract, whatever the back end:
//! * Verbs of one queue pair take effect in the order posted, but for READs, which
//!   may see what later WRITEs of the same queue pair leave.
//! * Completions come in the order posted. One verb, one completion.
//! * A buffer handed to READ or WRITE belongs to the verb until its completion.
//! * A connection that is cut is restored inside `doorbell`, `poll` and `wait`,
//!   and what had no completion is done again: that changes nothing for READ,
//!   WRITE and LINES. Any other verb that was on its way completes with [`Refusal::Unknown`].
//!
//! Verbs go by *keys* ([`farmem_protocol::key`]): a slab that the member holds, a
//! window that was bound for it, a unit of the pool that it owns. What a key gives
//! no right to, or no longer, is refused with [`Refusal::Access`], and all goes on.
//! * [`Lost`] is final, for this queue pair and all of its member.
//!
//! Framed (tcp, sim): replies have lengths that follow from the verbs, so they are
//! received straight into the buffers of the READs, many in one system call.

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

use crate::link::{Link, Reach};
use crate::mapping::Mapping;
use crate::session::{Membership, SILENT_NS};
use crate::verbs::Wired;
use crate::{Lost, Refusal};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::lines::Record;
use farmem_protocol::wire::{
    self, ANY_QUEUE, Batch, Binding, MAX_SEND_BYTES, MAX_VERB_BYTES, MAX_VERBS, Op, Purpose, Status,
};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// How long [`QueuePair::wait`] looks without sleeping: a node that is awake answers within it, and
/// falling asleep and being woken costs more than half of it.
pub(crate) const SPIN_NS: u64 = 50_000;
/// The longest sleep of [`QueuePair::wait`] between looks whether the member is lost.
const SLEEP_NS: u64 = 100_000_000;
/// Completions received by one call, at most.
const SCATTER: usize = 32;
/// Parts sent by one call, at most.
const GATHER: usize = 128;
/// Looks at the socket between two offers of the CPU to others.
const LOOKS_PER_YIELD: u32 = 2;

/// How one verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given when it was posted.
    pub tag: u64,
    /// The word's old value for CAS and FAA, else 0.
    pub result: Result<u64, Refusal>,
}

/// What a window is to be bound to, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The slab that the binder holds, or the unit of the pool that it owns.
    pub parent: Key,
    /// First byte, in the parent.
    pub start: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// What may be done with them.
    pub rights: Rights,
    /// The member that may, by its owner id ([`crate::Session::owner`]); 0: the binder itself.
    pub owner: u16,
    /// The number of the only queue pair that may; `None`: all of the member.
    pub queue: Option<u64>,
}

/// A queue pair. Belongs to one thread at a time.
pub struct QueuePair {
    number: u64,
    path: Path,
}

enum Path {
    Mapped(Mapped),
    Framed(Box<Framed>),
    Wired(Box<Wired>),
}

/// A verb that has no completion yet.
pub(crate) struct Pending {
    pub tag: u64,
    pub key: Key,
    pub offset: u64,
    pub len: u32,
    pub verb: Verb,
    /// Some of it may have reached the node.
    sent: bool,
}

pub(crate) enum Verb {
    Read { into: *mut u8 },
    Write { from: *const u8 },
    Lines { record: *const u8 },
    Cas { expected: u64, new: u64 },
    Faa { add: u64 },
    Bind(Binding),
    Invalidate,
    Send { bytes: [u8; MAX_SEND_BYTES as usize], reply: *mut u8 },
}

// SAFETY: the pointers are used by the verb alone until its completion, by the contract of `read` and `write`.
unsafe impl Send for Pending {}

impl QueuePair {
    pub(crate) fn new(member: Arc<Membership>, number: u64) -> Result<QueuePair, Lost> {
        member.check()?;
        let path = if member.mapped {
            Path::Mapped(Mapped { member, number, posted: VecDeque::new(), keyed: None })
        } else if member.card.wanted {
            Path::Wired(Box::new(Wired::new(member, number)?))
        } else {
            Path::Framed(Box::new(Framed::new(member, number)?))
        };
        Ok(QueuePair { number, path })
    }

    /// Posts a READ of `len` bytes (at most [`MAX_VERB_BYTES`]) at `offset` of a slab, or of what else a key names.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, near, and left alone until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn read(&mut self, tag: u64, key: impl Into<Key>, offset: u64, into: *mut u8, len: u32) {
        self.post(Pending { tag, key: key.into(), offset, len, verb: Verb::Read { into }, sent: false });
    }

    /// Posts a WRITE of `len` bytes (at most [`MAX_VERB_BYTES`]) at `offset` of a slab, or of what else a key names.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes, near, and stay so until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn write(&mut self, tag: u64, key: impl Into<Key>, offset: u64, from: *const u8, len: u32) {
        self.post(Pending { tag, key: key.into(), offset, len, verb: Verb::Write { from }, sent: false });
    }

    /// Posts a record of changed lines of a slab ([`farmem_protocol::lines`]), which takes effect as one WRITE
    /// for each run of its lines would; if it is not by the rules, not at all, and the connection is of no
    /// more use.
    ///
    /// # Safety
    /// `record` must be readable for `len` bytes, near, and stay so until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn lines(&mut self, tag: u64, slab: SlabId, record: *const u8, len: u32) {
        self.post(Pending { tag, key: slab.into(), offset: 0, len, verb: Verb::Lines { record }, sent: false });
    }

    /// Posts a compare-and-swap of the aligned word at `offset`. Completes with its old value.
    pub fn cas(&mut self, tag: u64, key: impl Into<Key>, offset: u64, expected: u64, new: u64) {
        self.post(Pending { tag, key: key.into(), offset, len: 8, verb: Verb::Cas { expected, new }, sent: false });
    }

    /// Posts a fetch-and-add on the aligned word at `offset`. Completes with its old value.
    pub fn faa(&mut self, tag: u64, key: impl Into<Key>, offset: u64, add: u64) {
        self.post(Pending { tag, key: key.into(), offset, len: 8, verb: Verb::Faa { add }, sent: false });
    }

    /// Posts a BIND of an unbound window ([`crate::Session::window`]). Completes with its key from now on.
    pub fn bind(&mut self, tag: u64, window: Key, to: &Bind) {
        let binding = Binding {
            parent: to.parent.0.into(),
            start: to.start.into(),
            len: to.len.into(),
            queue: to.queue.unwrap_or(ANY_QUEUE).into(),
            owner: to.owner.into(),
            rights: to.rights.bits(),
            zero: [0; 5],
        };
        self.post(Pending { tag, key: window, offset: 0, len: 0, verb: Verb::Bind(binding), sent: false });
    }

    /// Posts an INVALIDATE of a bound window. Completes with the key by which it can be bound again; by
    /// then nothing that was admitted under the old one is under way any more.
    pub fn invalidate(&mut self, tag: u64, window: Key) {
        self.post(Pending { tag, key: window, offset: 0, len: 0, verb: Verb::Invalidate, sent: false });
    }

    /// Posts a SEND of at most [`MAX_SEND_BYTES`] bytes to a queue of the node's own;
    /// [`REPLY_BYTES`](wire::REPLY_BYTES) come back. What is longer is cut off.
    ///
    /// # Safety
    /// `reply` must be writable for [`REPLY_BYTES`](wire::REPLY_BYTES) bytes, near, and left alone until
    /// the completion, or until the queue pair is dropped.
    pub unsafe fn send(&mut self, tag: u64, queue: Key, said: &[u8], reply: *mut u8) {
        let mut bytes = [0; MAX_SEND_BYTES as usize];
        let len = said.len().min(bytes.len());
        bytes[..len].copy_from_slice(&said[..len]);
        let verb = Verb::Send { bytes, reply };
        self.post(Pending { tag, key: queue, offset: 0, len: len as u32, verb, sent: false });
    }

    /// Its number among its member's, by which windows are bound to it.
    pub fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn post(&mut self, pending: Pending) {
        match &mut self.path {
            Path::Mapped(mapped) => mapped.posted.push_back(pending),
            Path::Framed(framed) => framed.posted.push_back(pending),
            Path::Wired(wired) => wired.post(pending),
        }
    }

    /// Sends off what was posted, in as few messages as possible, as far as the node takes it now;
    /// `poll` and `wait` send the rest.
    pub fn doorbell(&mut self) -> Result<(), Lost> {
        match &mut self.path {
            Path::Mapped(mapped) => mapped.doorbell(),
            Path::Framed(framed) => framed.doorbell(),
            Path::Wired(wired) => wired.doorbell(),
        }
    }

    /// Appends the completions that are there. Returns how many. Does not wait.
    pub fn poll(&mut self, done: &mut Vec<Completion>) -> Result<usize, Lost> {
        match &mut self.path {
            Path::Mapped(mapped) => mapped.poll(done),
            Path::Framed(framed) => framed.poll(done),
            Path::Wired(wired) => wired.poll(done),
        }
    }

    /// Waits for at least one completion, at most `limit`, if any verb is under way; appends those
    /// that are there. Looks for a short while without sleeping.
    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        match &mut self.path {
            Path::Mapped(mapped) => mapped.wait(done, limit),
            Path::Framed(framed) => framed.wait(done, limit),
            Path::Wired(wired) => wired.wait(done, limit),
        }
    }

    /// Verbs without a completion.
    pub fn in_flight(&self) -> usize {
        match &self.path {
            Path::Mapped(mapped) => mapped.in_flight(),
            Path::Framed(framed) => framed.in_flight(),
            Path::Wired(wired) => wired.in_flight(),
        }
    }

    /// Bytes handed to the network since this was last asked: frames, operands, and what went again (over RDMA the
    /// operands of WRITEs, and words: what the card adds is not known). None where
    /// slabs are mapped.
    pub fn take_sent(&mut self) -> u64 {
        match &mut self.path {
            Path::Mapped(_) => 0,
            Path::Framed(framed) => std::mem::take(&mut framed.sent),
            Path::Wired(wired) => wired.take_sent(),
        }
    }

    /// In a forked child, which inherited its parent's queue pair: closes the descriptor, does nothing else.
    pub fn forget_in_child(self) {
        match self.path {
            Path::Mapped(mut mapped) => {
                if let Some(keyed) = &mut mapped.keyed {
                    keyed.link = None;
                }
                std::mem::forget(mapped);
            }
            Path::Framed(mut framed) => {
                framed.link = None;
                std::mem::forget(framed);
            }
            Path::Wired(wired) => wired.forget_in_child(),
        }
    }
}

/// Slabs are mapped here: a verb on them is a copy. What goes by any other key is the node's to admit,
/// and travels in frames, over a connection that is made when it is first needed.
struct Mapped {
    member: Arc<Membership>,
    number: u64,
    posted: VecDeque<Pending>,
    keyed: Option<Box<Framed>>,
}

impl Mapped {
    fn in_flight(&self) -> usize {
        self.posted.len() + self.keyed.as_ref().map_or(0, |keyed| keyed.in_flight())
    }

    fn doorbell(&mut self) -> Result<(), Lost> {
        self.member.check()?;
        if self.keyed.as_ref().is_none_or(|keyed| keyed.in_flight() == 0) { self.go_keyed() } else { Ok(()) }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> Result<usize, Lost> {
        self.member.check()?;
        let before = done.len();
        // Verbs take effect in the order posted: copies wait for frames and frames for copies.
        loop {
            if let Some(keyed) = &mut self.keyed {
                keyed.poll(done)?;
                if keyed.in_flight() > 0 {
                    break;
                }
            }
            self.copy(done);
            if self.posted.is_empty() {
                break;
            }
            self.go_keyed()?;
        }
        Ok(done.len() - before)
    }

    /// Carries out verbs on slabs, up to the first that is none.
    fn copy(&mut self, done: &mut Vec<Completion>) {
        if !self.posted.front().is_some_and(Pending::on_slab) {
            return;
        }
        let slabs = self.member.slabs.lock();
        while self.posted.front().is_some_and(Pending::on_slab) {
            let Some(pending) = self.posted.pop_front() else { break };
            let slab = SlabId(pending.key.0);
            let result = match slabs.get(&slab) {
                Some(mapping) => pending.carry_out(mapping).ok_or(Refusal::Range),
                None => Err(Refusal::NotHeld),
            };
            done.push(Completion { tag: pending.tag, result });
        }
    }

    /// Sends off verbs that the node admits, up to the first on a slab.
    fn go_keyed(&mut self) -> Result<(), Lost> {
        let n = self.posted.iter().take_while(|pending| !pending.on_slab()).count();
        if n == 0 {
            return Ok(());
        }
        if self.keyed.is_none() {
            self.keyed = Some(Box::new(Framed::new(Arc::clone(&self.member), self.number)?));
        }
        let Some(keyed) = &mut self.keyed else { return Ok(()) };
        keyed.posted.extend(self.posted.drain(..n));
        keyed.doorbell()
    }

    fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        let n = self.poll(done)?;
        match &mut self.keyed {
            Some(keyed) if n == 0 && keyed.in_flight() > 0 => keyed.wait(done, limit),
            _ => Ok(n),
        }
    }
}

impl Pending {
    fn op(&self) -> Op {
        match self.verb {
            Verb::Read { .. } => Op::Read,
            Verb::Write { .. } => Op::Write,
            Verb::Lines { .. } => Op::Lines,
            Verb::Cas { .. } => Op::Cas,
            Verb::Faa { .. } => Op::Faa,
            Verb::Bind(_) => Op::Bind,
            Verb::Invalidate => Op::Invalidate,
            Verb::Send { .. } => Op::Send,
        }
    }

    /// Neither READ nor WRITE nor LINES: doing it twice is not doing it once.
    pub fn counts(&self) -> bool {
        !matches!(self.verb, Verb::Read { .. } | Verb::Write { .. } | Verb::Lines { .. })
    }

    /// READ, WRITE, LINES, CAS or FAA on a slab.
    pub fn on_slab(&self) -> bool {
        self.key.is_slab() && !matches!(self.verb, Verb::Bind(_) | Verb::Invalidate | Verb::Send { .. })
    }

    fn carry_out(&self, mapping: &Mapping) -> Option<u64> {
        if self.len > MAX_VERB_BYTES {
            return None;
        }
        match self.verb {
            // SAFETY: the buffer is the verb's until its completion (contract of `read`).
            Verb::Read { into } => unsafe { mapping.read(self.offset, into, self.len) }.then_some(0),
            // SAFETY: the buffer is the verb's until its completion (contract of `write`).
            Verb::Write { from } => unsafe { mapping.write(self.offset, from, self.len) }.then_some(0),
            Verb::Lines { record } => {
                // SAFETY: the buffer is the verb's until its completion (contract of `lines`), and near: no slab.
                let bytes = unsafe { std::slice::from_raw_parts(record, self.len as usize) };
                let record = Record::check(SlabId(self.key.0), bytes).ok()?;
                record.runs().all(|(offset, bytes)| mapping.write_bytes(offset, bytes)).then_some(0)
            }
            Verb::Cas { expected, new } => mapping.cas(self.offset, expected, new),
            Verb::Faa { add } => mapping.faa(self.offset, add),
            // Of the node's alone; see `on_slab`.
            Verb::Bind(_) | Verb::Invalidate | Verb::Send { .. } => None,
        }
    }

    /// Bytes that follow its completion.
    fn reply_bytes(&self) -> usize {
        match self.verb {
            Verb::Read { .. } => self.len as usize,
            Verb::Send { .. } => wire::REPLY_BYTES as usize,
            _ => 0,
        }
    }
}

/// Bytes on their way to the node: of the frames' own, or of a WRITE's buffer.
enum Outgoing {
    Own { from: usize, len: usize },
    Buffer { from: *const u8, len: usize },
}

/// Verbs travel in frames.
pub(crate) struct Framed {
    member: Arc<Membership>,
    number: u64,
    link: Option<Link>,
    posted: VecDeque<Pending>,
    /// Sent, or about to be; completions are due in this order.
    under_way: VecDeque<Pending>,
    /// Number of the first verb under way, and of the next, on this connection.
    due: u64,
    next: u64,
    own: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    /// Heads of the completions being received, the first that is due at 0.
    heads: [[u8; HEAD]; SCATTER],
    /// Bytes of the first due reply that have come.
    got: usize,
    /// How long `wait` has waited without a byte coming. Time in which this process itself was
    /// stopped does not count.
    silent_ns: u64,
    /// Bytes sent since [`QueuePair::take_sent`].
    sent: u64,
    /// Completions that were made while a connection was restored.
    settled: Vec<Completion>,
}

// SAFETY: the buffers named in `outgoing` are those of verbs under way.
unsafe impl Send for Framed {}

const HEAD: usize = size_of::<wire::Completion>();

impl Framed {
    pub fn new(member: Arc<Membership>, number: u64) -> Result<Framed, Lost> {
        let link = member.restore(Purpose::Attach, number)?;
        Ok(Framed {
            member,
            number,
            link: Some(link),
            posted: VecDeque::new(),
            under_way: VecDeque::new(),
            due: 0,
            next: 0,
            own: Vec::new(),
            outgoing: VecDeque::new(),
            heads: [[0; HEAD]; SCATTER],
            got: 0,
            silent_ns: 0,
            sent: 0,
            settled: Vec::new(),
        })
    }

    fn reach(&self) -> &Reach {
        &self.member.reach
    }

    pub fn post(&mut self, pending: Pending) {
        self.posted.push_back(pending);
    }

    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// In a forked child.
    pub fn forget_link(&mut self) {
        self.link = None;
    }

    pub fn in_flight(&self) -> usize {
        self.posted.len() + self.under_way.len() + self.settled.len()
    }

    pub fn doorbell(&mut self) -> Result<(), Lost> {
        self.member.check()?;
        self.frame();
        match self.flush() {
            Ok(()) => Ok(()),
            Err(_) => self.restore(),
        }
    }

    /// Makes frames of what was posted.
    fn frame(&mut self) {
        while !self.posted.is_empty() {
            let n = self.posted.len().min(MAX_VERBS);
            let verbs = self.posted.iter().take(n);
            let operands: usize = verbs
                .map(|p| match p.verb {
                    Verb::Read { .. } | Verb::Invalidate => 0,
                    Verb::Write { .. } | Verb::Lines { .. } | Verb::Send { .. } => p.len as usize,
                    Verb::Cas { .. } => 16,
                    Verb::Faa { .. } => 8,
                    Verb::Bind(_) => size_of::<Binding>(),
                })
                .sum();
            let batch = Batch {
                count: (n as u16).into(),
                zero: 0.into(),
                bytes: (operands as u32).into(),
                first: self.next.into(),
            };
            self.next += n as u64;
            let from = self.own.len();
            self.own.extend_from_slice(batch.as_bytes());
            for p in self.posted.iter().take(n) {
                let verb = wire::Verb {
                    op: p.op() as u8,
                    zero: [0; 3],
                    len: p.len.into(),
                    key: p.key.0.into(),
                    offset: p.offset.into(),
                };
                self.own.extend_from_slice(verb.as_bytes());
            }
            self.outgoing.push_back(Outgoing::Own { from, len: self.own.len() - from });
            for p in self.posted.drain(..n) {
                let from = self.own.len();
                match p.verb {
                    Verb::Read { .. } | Verb::Invalidate => {}
                    Verb::Bind(binding) => self.own.extend_from_slice(binding.as_bytes()),
                    Verb::Send { ref bytes, .. } => self.own.extend_from_slice(&bytes[..p.len as usize]),
                    Verb::Write { from } | Verb::Lines { record: from } => {
                        self.outgoing.push_back(Outgoing::Buffer { from, len: p.len as usize })
                    }
                    Verb::Cas { expected, new } => {
                        self.own.extend_from_slice([expected.to_le(), new.to_le()].as_bytes())
                    }
                    Verb::Faa { add } => self.own.extend_from_slice(&add.to_le_bytes()),
                }
                let len = self.own.len() - from;
                if len > 0 {
                    self.outgoing.push_back(Outgoing::Own { from, len });
                }
                self.under_way.push_back(Pending { sent: true, ..p });
            }
        }
    }

    /// Sends as much as the node takes now.
    fn flush(&mut self) -> Result<(), Errno> {
        let Some(link) = &self.link else { return Err(Errno(libc::ENOTCONN)) };
        while !self.outgoing.is_empty() {
            let mut parts = [Part::new(std::ptr::null_mut(), 0); GATHER];
            let mut n = 0;
            for (part, out) in parts.iter_mut().zip(&self.outgoing) {
                *part = match *out {
                    Outgoing::Own { from, len } => Part::new(self.own[from..].as_ptr() as *mut u8, len),
                    Outgoing::Buffer { from, len } => Part::new(from as *mut u8, len),
                };
                n += 1;
            }
            // SAFETY: `own` is not touched meanwhile; the buffers are the verbs' (contract of `write`).
            let mut sent = match unsafe { link.send(&parts[..n]) } {
                Ok(sent) => sent,
                Err(Errno(libc::EAGAIN)) => return Ok(()),
                Err(e) => return Err(e),
            };
            self.sent += sent as u64;
            while let Some(front) = self.outgoing.front_mut() {
                let (Outgoing::Own { len, .. } | Outgoing::Buffer { len, .. }) = front;
                if sent >= *len {
                    sent -= *len;
                    self.outgoing.pop_front();
                    continue;
                }
                match front {
                    Outgoing::Own { from, len } => (*from, *len) = (*from + sent, *len - sent),
                    // SAFETY: within the buffer, of which at least `len` bytes are left.
                    Outgoing::Buffer { from, len } => (*from, *len) = (unsafe { from.add(sent) }, *len - sent),
                }
                break;
            }
        }
        self.own.clear();
        Ok(())
    }

    pub fn poll(&mut self, done: &mut Vec<Completion>) -> Result<usize, Lost> {
        self.member.check()?;
        let before = done.len();
        done.append(&mut self.settled);
        let moved = self.flush().and_then(|()| self.receive(done));
        if moved.is_err() {
            self.restore()?;
            done.append(&mut self.settled);
        }
        Ok(done.len() - before)
    }

    /// Takes what has come, until nothing more is there. Restores nothing.
    fn receive(&mut self, done: &mut Vec<Completion>) -> Result<(), Errno> {
        while !self.under_way.is_empty() {
            let Some(link) = &self.link else { return Err(Errno(libc::ENOTCONN)) };
            let mut parts = [Part::new(std::ptr::null_mut(), 0); 2 * SCATTER];
            let mut n = 0;
            let mut skip = self.got;
            let mut room = 0;
            for (head, pending) in self.heads.iter_mut().zip(&self.under_way) {
                let into = match pending.verb {
                    Verb::Read { into } | Verb::Send { reply: into, .. } => into,
                    _ => std::ptr::null_mut(),
                };
                for (at, len) in [(head.as_mut_ptr(), HEAD), (into, pending.reply_bytes())] {
                    let skipped = skip.min(len);
                    skip -= skipped;
                    if skipped < len {
                        parts[n] = Part::new(at.wrapping_add(skipped), len - skipped);
                        n += 1;
                        room += len - skipped;
                    }
                }
            }
            // SAFETY: the heads are ours, the buffers the verbs' (contract of `read`).
            let got = match unsafe { link.receive(&parts[..n]) } {
                Ok(0) => return Err(Errno(libc::ECONNRESET)),
                Ok(got) => got,
                Err(Errno(libc::EAGAIN)) => return Ok(()),
                Err(e) => return Err(e),
            };
            self.got += got;
            self.complete(done)?;
            if got < room {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes completions of replies that have come whole.
    fn complete(&mut self, done: &mut Vec<Completion>) -> Result<(), Errno> {
        let mut k = 0;
        while let Some(pending) = self.under_way.front() {
            let whole = HEAD + pending.reply_bytes();
            if k == SCATTER || self.got < whole {
                break;
            }
            let Ok(head) = wire::Completion::read_from_bytes(&self.heads[k]) else { break };
            // Out of step: what was received lies in the wrong buffers, and everything not yet
            // completed must be done again.
            if head.number != self.due as u32 {
                return Err(Errno(libc::EBADMSG));
            }
            let result = match Status::of(head.status) {
                Some(Status::Done) => Ok(head.value.get()),
                Some(Status::NotHeld) => Err(Refusal::NotHeld),
                Some(Status::Range) => Err(Refusal::Range),
                Some(Status::Access) => Err(Refusal::Access),
                Some(Status::Window) => Err(Refusal::Window),
                Some(Status::Empty) => Err(Refusal::Empty),
                Some(Status::Exhausted) => Err(Refusal::Quota),
                _ => return Err(Errno(libc::EBADMSG)),
            };
            done.push(Completion { tag: pending.tag, result });
            self.got -= whole;
            self.due += 1;
            k += 1;
            self.under_way.pop_front();
        }
        if k > 0 && k < SCATTER {
            self.heads[0] = self.heads[k];
        }
        Ok(())
    }

    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        let before = done.len();
        let begun = self.reach().now_ns();
        let until = begun.saturating_add(limit.as_nanos() as u64);
        let (mut looks, mut looked_ns) = (0u32, begun);
        loop {
            let got_before = self.got;
            if self.poll(done)? > 0 || self.under_way.is_empty() {
                self.silent_ns = 0;
                return Ok(done.len() - before);
            }
            looks += 1;
            // Cheap looks first: the clock is read now and then.
            if !looks.is_multiple_of(LOOKS_PER_YIELD) {
                std::hint::spin_loop();
                continue;
            }
            let now = self.reach().now_ns();
            self.silent_ns += (now - looked_ns).min(2 * SLEEP_NS);
            looked_ns = now;
            if self.got != got_before {
                self.silent_ns = 0;
            }
            if self.silent_ns > SILENT_NS {
                return Err(self.member.silent());
            }
            if now >= until {
                return Ok(0);
            }
            let Some(link) = &self.link else { continue };
            if now - begun < SPIN_NS {
                link.pause();
            } else {
                link.wait(!self.outgoing.is_empty(), SLEEP_NS.min(until - now));
            }
        }
    }

    /// A new connection; what had no completion goes again, in order.
    #[cold]
    fn restore(&mut self) -> Result<(), Lost> {
        loop {
            self.withdraw();
            self.link = Some(self.member.restore(Purpose::Attach, self.number)?);
            self.silent_ns = 0;
            self.frame();
            if self.flush().is_ok() {
                return Ok(());
            }
        }
    }

    /// Takes everything under way back to what is posted, in order; what may have happened and must
    /// not happen twice completes as unknown.
    fn withdraw(&mut self) {
        self.link = None;
        self.own.clear();
        self.outgoing.clear();
        self.got = 0;
        (self.due, self.next) = (0, 0);
        let newer = std::mem::take(&mut self.posted);
        for pending in std::mem::take(&mut self.under_way).into_iter().chain(newer) {
            if pending.sent && pending.counts() {
                self.settled.push(Completion { tag: pending.tag, result: Err(Refusal::Unknown) });
            } else {
                self.posted.push_back(pending);
            }
        }
    }
}
