//! Queue pairs: one thread posts verbs and polls their completions.
//!
//! ```text
//! read, write, lines, cas, faa, ─► posted ── doorbell ─► under way ── completion ─► poll, wait
//! bind, invalidate, send
//! ```
//!
//! The contract of every back end:
//! * Verbs of one queue pair take effect in the order posted, but for READs, which
//!   may see what later WRITEs of the same queue pair leave.
//! * Completions come in the order posted. One verb, one completion.
//! * A buffer handed to READ or WRITE belongs to the verb until its completion.
//! * `doorbell`, `poll` and `wait` restore a connection that was cut. READ, WRITE and LINES
//!   without a completion are then repeated, which changes nothing (a repeated LINES_IF may refuse
//!   a page that the first one took). There is one exception: another member may learn of a CAS
//!   posted behind a WRITE, and write there before the repetition. So await a WRITE before such a
//!   CAS. Every other verb under way completes with [`Refusal::Unknown`], in its order.
//! * A verb names its right by a *key* ([`farmem_protocol::key`]): a slab that the member holds, a
//!   window bound for it, a unit that it owns. A verb without the right is refused with
//!   [`Refusal::Access`], and the queue pair goes on.
//! * [`Lost`] is final, for this queue pair and all of its member.
//!
//! Three back ends: [`mapped`] (shm), [`framed`] (tcp, sim), [`crate::verbs`] (RDMA).

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

mod any;
mod away;
mod framed;
mod mapped;

pub use any::Waiter;
pub use away::any_away;
pub(crate) use framed::Framed;

use crate::session::Membership;
use crate::verbs::Wired;
use crate::{Lost, Refusal};
use away::Away;
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::wire::{ANY_QUEUE, Binding, MAX_SEND_BYTES};
use mapped::Mapped;
use std::sync::Arc;
use std::time::Duration;

/// How one verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given when it was posted.
    pub tag: u64,
    /// The word's old value for CAS and FAA, else 0.
    pub result: Result<u64, Refusal>,
}

/// The target of a window, and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The slab that the binder holds, or the unit of the pool that it owns.
    pub parent: Key,
    /// First byte, in the parent.
    pub start: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// The operations that are allowed.
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
    away: Away,
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
    Lines { record: *const u8, conditional: bool },
    Cas { expected: u64, new: u64 },
    Faa { add: u64 },
    Bind(Binding),
    Invalidate,
    Send { bytes: [u8; MAX_SEND_BYTES as usize], reply: *mut u8 },
}

// SAFETY: the pointers are used by the verb alone until its completion, by the contract of `read`
// and `write`.
unsafe impl Send for Pending {}

impl QueuePair {
    pub(crate) fn new(member: Arc<Membership>, number: u64) -> Result<QueuePair, Lost> {
        member.check()?;
        let away = if member.mapped { Away::none() } else { Away::noted() };
        let path = if member.mapped {
            Path::Mapped(Mapped::new(member, number))
        } else if member.card.wanted {
            Path::Wired(Box::new(Wired::new(member, number)?))
        } else {
            Path::Framed(Box::new(Framed::new(member, number)?))
        };
        Ok(QueuePair { number, path, away })
    }

    /// Posts a READ of `len` bytes (at most
    /// [`MAX_VERB_BYTES`](farmem_protocol::wire::MAX_VERB_BYTES)) at `offset` of a slab, or of
    /// another thing that a key names.
    ///
    /// # Safety
    /// `into` must be writable for `len` bytes, near, and left alone until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn read(&mut self, tag: u64, key: impl Into<Key>, offset: u64, into: *mut u8, len: u32) {
        self.post(Pending { tag, key: key.into(), offset, len, verb: Verb::Read { into }, sent: false });
    }

    /// Posts a WRITE of `len` bytes (at most
    /// [`MAX_VERB_BYTES`](farmem_protocol::wire::MAX_VERB_BYTES)) at `offset` of a slab, or of
    /// another thing that a key names.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes, near, and stay so until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn write(&mut self, tag: u64, key: impl Into<Key>, offset: u64, from: *const u8, len: u32) {
        self.post(Pending { tag, key: key.into(), offset, len, verb: Verb::Write { from }, sent: false });
    }

    /// Posts a record of changed lines of a slab ([`farmem_protocol::lines`]), which takes effect
    /// as one WRITE for each run of its lines would; if it is not by the rules, not at all, and the
    /// connection is of no more use.
    ///
    /// # Safety
    /// `record` must be readable for `len` bytes, near, and stay so until the completion, or until
    /// the queue pair is dropped.
    #[inline]
    pub unsafe fn lines(&mut self, tag: u64, slab: SlabId, record: *const u8, len: u32) {
        let verb = Verb::Lines { record, conditional: false };
        self.post(Pending { tag, key: slab.into(), offset: 0, len, verb, sent: false });
    }

    /// Posts a record with conditions ([`farmem_protocol::lines::conditional`]). Completes with the
    /// [`Refused`](farmem_protocol::lines::conditional::Refused) pages, of which nothing has
    /// changed. A record that was carried out before its connection was cut, without an answer, is
    /// refused when it is repeated.
    ///
    /// # Safety
    /// As [`QueuePair::lines`].
    #[inline]
    pub unsafe fn lines_if(&mut self, tag: u64, slab: SlabId, record: *const u8, len: u32) {
        let verb = Verb::Lines { record, conditional: true };
        self.post(Pending { tag, key: slab.into(), offset: 0, len, verb, sent: false });
    }

    /// Posts a compare-and-swap of the aligned word at `offset`. Completes with its old value.
    pub fn cas(&mut self, tag: u64, key: impl Into<Key>, offset: u64, expected: u64, new: u64) {
        self.post(Pending { tag, key: key.into(), offset, len: 8, verb: Verb::Cas { expected, new }, sent: false });
    }

    /// Posts a fetch-and-add on the aligned word at `offset`. Completes with its old value.
    pub fn faa(&mut self, tag: u64, key: impl Into<Key>, offset: u64, add: u64) {
        self.post(Pending { tag, key: key.into(), offset, len: 8, verb: Verb::Faa { add }, sent: false });
    }

    /// Posts a BIND of an unbound window ([`crate::Session::window`]). Completes with its key from
    /// now on.
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

    /// Posts an INVALIDATE of a bound window. Completes with the key by which it can be bound
    /// again; by then nothing that was admitted under the old one is under way any more.
    pub fn invalidate(&mut self, tag: u64, window: Key) {
        self.post(Pending { tag, key: window, offset: 0, len: 0, verb: Verb::Invalidate, sent: false });
    }

    /// Posts a SEND of at most [`MAX_SEND_BYTES`] bytes to a queue of the node's own;
    /// [`REPLY_BYTES`](farmem_protocol::wire::REPLY_BYTES) come back. Bytes beyond are cut off.
    ///
    /// # Safety
    /// `reply` must be writable for [`REPLY_BYTES`](farmem_protocol::wire::REPLY_BYTES) bytes,
    /// near, and left alone until the completion, or until the queue pair is dropped.
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

    /// Has the CPU fetch the first line of a range of a slab soon, if the slab is mapped here. A hint:
    /// it changes nothing, and needs no right.
    #[inline]
    pub fn touch(&self, slab: SlabId, offset: u64) {
        if let Path::Mapped(mapped) = &self.path {
            mapped.touch(slab, offset);
        }
    }

    #[inline]
    fn post(&mut self, pending: Pending) {
        match &mut self.path {
            Path::Mapped(mapped) => mapped.post(pending),
            Path::Framed(framed) => framed.post(pending),
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

    /// Whether the network has not taken all yet that was sent off: `poll` and `wait` go on.
    #[inline]
    pub fn is_held_up(&self) -> bool {
        matches!(&self.path, Path::Framed(framed) if framed.is_held_up())
    }

    /// Verbs without a completion.
    pub fn in_flight(&self) -> usize {
        match &self.path {
            Path::Mapped(mapped) => mapped.in_flight(),
            Path::Framed(framed) => framed.in_flight(),
            Path::Wired(wired) => wired.in_flight(),
        }
    }

    /// Bytes given to the network since the last call: frames, operands, and repeated verbs. Over
    /// RDMA they are the operands of WRITEs, and words: the card's own bytes are not known. None
    /// where slabs are mapped.
    pub fn take_sent(&mut self) -> u64 {
        match &mut self.path {
            Path::Mapped(_) => 0,
            Path::Framed(framed) => framed.take_sent(),
            Path::Wired(wired) => wired.take_sent(),
        }
    }

    /// Whether a vfork child has made its connection, or the one in its place: of no use to the
    /// process whose memory that child shares.
    pub fn is_away(&self) -> bool {
        let restored = matches!(&self.path, Path::Framed(framed) if framed.is_away());
        self.away.is() || restored
    }

    /// In a forked child, which inherited its parent's queue pair: closes the descriptor, does
    /// nothing else.
    pub fn forget_in_child(self) {
        match self.path {
            Path::Mapped(mapped) => mapped.forget_in_child(),
            Path::Framed(framed) => framed.forget_in_child(),
            Path::Wired(wired) => wired.forget_in_child(),
        }
    }
}

impl Pending {
    /// Neither READ nor WRITE nor LINES: doing it twice is not doing it once.
    pub fn counts(&self) -> bool {
        !matches!(self.verb, Verb::Read { .. } | Verb::Write { .. } | Verb::Lines { .. })
    }

    /// READ, WRITE, LINES, CAS or FAA on a slab.
    pub fn on_slab(&self) -> bool {
        self.key.is_slab() && !matches!(self.verb, Verb::Bind(_) | Verb::Invalidate | Verb::Send { .. })
    }
}
