//! Verbs that travel in frames, over a connection of the queue pair's own.
//!
//! ```text
//!  posted ── frame ─► own, outgoing ── flush ─► the node ── receive ─► heads, buffers ── complete ─► done
//!     ▲                                             │
//!     └────────────────── withdraw ◄── cut ─────────┘
//! ```
//!
//! Replies have lengths that follow from the verbs, so they are received straight
//! into the buffers of the READs, many in one system call.

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

mod waiting;

use super::away::Away;
use super::{Completion, Pending, Verb};
use crate::link::{Link, Reach};
use crate::session::{Membership, Standstill};
use crate::{Lost, Refusal};
use farmem_protocol::wire::{self, Batch, Binding, MAX_VERBS, Op, Purpose, Status, variant};
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_sys::spin::Spin;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The longest sleep of [`Framed::wait`] between looks whether the member is lost.
const SLEEP_NS: u64 = 100_000_000;
/// How long `wait` waits before it looks whether the node's machine is still heard.
const LISTEN_NS: u64 = 1_000_000_000;
/// Completions received by one call, at most.
const SCATTER: usize = 32;
/// Parts sent by one call, at most.
const GATHER: usize = 128;

/// Bytes on their way to the node: of the frames' own, or of the buffer of a WRITE, by its verb's
/// number.
enum Outgoing {
    Own { from: usize, len: usize },
    Buffer { from: *const u8, len: usize, verb: u64 },
}

/// Verbs travel in frames.
pub(crate) struct Framed {
    member: Arc<Membership>,
    number: u64,
    link: Option<Link>,
    away: Away,
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
    /// At how much of it the next look around is due.
    listen_ns: u64,
    /// Connections in a row that brought no completion, and since when.
    fruitless: Option<(u32, u64)>,
    /// Where the member has a spare.
    standstill: Standstill,
    spin: Spin,
    /// Bytes sent since [`Framed::take_sent`].
    sent: u64,
    /// Completions that were made while a connection was restored, each due before the verb of that
    /// number: they keep their places among those that went again.
    settled: VecDeque<(u64, Completion)>,
}

// SAFETY: the buffers named in `outgoing` are those of verbs under way.
unsafe impl Send for Framed {}

const HEAD: usize = size_of::<wire::Completion>();

impl Framed {
    pub fn new(member: Arc<Membership>, number: u64) -> Result<Framed, Lost> {
        let link = member.attach(Purpose::Attach(member.known(), number))?;
        Ok(Framed {
            member,
            number,
            link: Some(link),
            away: Away::none(),
            posted: VecDeque::new(),
            under_way: VecDeque::new(),
            due: 0,
            next: 0,
            own: Vec::new(),
            outgoing: VecDeque::new(),
            heads: [[0; HEAD]; SCATTER],
            got: 0,
            silent_ns: 0,
            listen_ns: LISTEN_NS,
            fruitless: None,
            standstill: Standstill::default(),
            spin: Spin::new(),
            sent: 0,
            settled: VecDeque::new(),
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

    pub fn is_away(&self) -> bool {
        self.away.is()
    }

    /// In a forked child: closes the descriptor.
    pub fn forget_link(&mut self) {
        self.link = None;
    }

    /// In a forked child: closes the descriptor, does nothing else.
    pub fn forget_in_child(mut self) {
        self.forget_link();
        self.away = Away::none();
        std::mem::forget(self);
    }

    pub fn is_held_up(&self) -> bool {
        !self.outgoing.is_empty()
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
            let first = self.next;
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
            for (verb, p) in (first..).zip(self.posted.drain(..n)) {
                let from = self.own.len();
                match p.verb {
                    Verb::Read { .. } | Verb::Invalidate => {}
                    Verb::Bind(binding) => self.own.extend_from_slice(binding.as_bytes()),
                    Verb::Send { ref bytes, .. } => self.own.extend_from_slice(&bytes[..p.len as usize]),
                    Verb::Write { from } | Verb::Lines { record: from, .. } => {
                        self.outgoing.push_back(Outgoing::Buffer { from, len: p.len as usize, verb })
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
                    Outgoing::Buffer { from, len, .. } => Part::new(from as *mut u8, len),
                };
                n += 1;
            }
            // SAFETY: `own` is not touched meanwhile; the buffers are the verbs' (contract of
            // `write`).
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
                    Outgoing::Buffer { from, len, .. } => (*from, *len) = (unsafe { from.add(sent) }, *len - sent),
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
        let moved = self.flush().and_then(|()| self.receive(done));
        if moved.is_err() {
            self.restore()?;
        }
        self.emit_settled(done);
        Ok(done.len() - before)
    }

    /// Settled completions whose turn it is.
    #[inline]
    fn emit_settled(&mut self, done: &mut Vec<Completion>) {
        while let Some((_, completion)) = self.settled.pop_front_if(|(before, _)| *before <= self.due) {
            done.push(completion);
        }
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

    /// The first verb of whose buffer something is to be sent.
    fn first_unsent(&self) -> Option<u64> {
        self.outgoing.iter().find_map(|out| if let Outgoing::Buffer { verb, .. } = out { Some(*verb) } else { None })
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
            // Out of step: the received bytes lie in the wrong buffers, and everything not yet
            // completed must be done again. A verb whose bytes are not all sent cannot be done. Its
            // buffer is the caller's again once it completes, and must not be read after that.
            if head.number != self.due as u32 || self.first_unsent().is_some_and(|unsent| unsent <= self.due) {
                return Err(Errno(libc::EBADMSG));
            }
            let result = match variant::<Status>(head.status) {
                Some(Status::Done) => Ok(head.value.get()),
                Some(Status::NotHeld) => Err(Refusal::NotHeld),
                Some(Status::Range) => Err(Refusal::Range),
                Some(Status::Access) => Err(Refusal::Access),
                Some(Status::Window) => Err(Refusal::Window),
                Some(Status::Empty) => Err(Refusal::Empty),
                Some(Status::Quota) => Err(Refusal::Quota),
                _ => return Err(Errno(libc::EBADMSG)),
            };
            while let Some((_, settled)) = self.settled.pop_front_if(|(before, _)| *before <= self.due) {
                done.push(settled);
            }
            done.push(Completion { tag: pending.tag, result });
            self.got -= whole;
            self.due += 1;
            self.fruitless = None;
            k += 1;
            self.under_way.pop_front();
        }
        if k > 0 && k < SCATTER {
            self.heads[0] = self.heads[k];
        }
        Ok(())
    }
}

impl Drop for Framed {
    /// Notes that the node may still carry out a verb ([`Membership::again`]). That includes verbs
    /// that wait to be sent again: the connection that was cut may still bring them.
    fn drop(&mut self) {
        let may_come = |pending: &Pending| pending.sent && !matches!(pending.verb, Verb::Read { .. });
        if self.under_way.iter().chain(&self.posted).any(may_come) || !self.settled.is_empty() {
            self.member.health.unanswered.lock().push(self.number);
        }
    }
}

impl Pending {
    fn op(&self) -> Op {
        match self.verb {
            Verb::Read { .. } => Op::Read,
            Verb::Write { .. } => Op::Write,
            Verb::Lines { conditional: false, .. } => Op::Lines,
            Verb::Lines { conditional: true, .. } => Op::LinesIf,
            Verb::Cas { .. } => Op::Cas,
            Verb::Faa { .. } => Op::Faa,
            Verb::Bind(_) => Op::Bind,
            Verb::Invalidate => Op::Invalidate,
            Verb::Send { .. } => Op::Send,
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
