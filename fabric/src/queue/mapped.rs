//! Verbs on slabs that are mapped here: copies, done when they are polled for.

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

use super::{Completion, Framed, Pending, Verb};
use crate::session::Membership;
use crate::{Lost, Refusal};
use farmem_protocol::addr::SlabId;
use farmem_protocol::lines::Record;
use farmem_protocol::lines::conditional::{Conditional, lay_if};
use farmem_protocol::wire::MAX_VERB_BYTES;
use farmem_sys::lines::{Hasher, Unit};
use farmem_sys::mapping::Mapping;
use farmem_sys::memory;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Slabs are mapped here: a verb on them is a copy. Verbs by any other key are the node's to admit,
/// and travel in frames, over a connection that is made when it is first needed.
pub(super) struct Mapped {
    member: Arc<Membership>,
    number: u64,
    posted: VecDeque<Pending>,
    /// How many of `posted` are not on a slab. They are counted as they are posted. If there is
    /// none, which is nearly always so, no verb's key is looked at again.
    to_admit: usize,
    framed: Option<Box<Framed>>,
}

impl Mapped {
    pub fn new(member: Arc<Membership>, number: u64) -> Mapped {
        Mapped { member, number, posted: VecDeque::new(), to_admit: 0, framed: None }
    }

    pub fn in_flight(&self) -> usize {
        self.posted.len() + self.framed.as_ref().map_or(0, |framed| framed.in_flight())
    }

    /// See [`super::QueuePair::touch`].
    #[inline]
    pub fn touch(&self, slab: SlabId, offset: u64) {
        if let Some(mapping) = self.member.slabs.of_queue(self.number).lock().get(&slab) {
            memory::prefetch(mapping.extent().0.as_ptr() as usize + offset as usize);
        }
    }

    #[inline]
    pub fn post(&mut self, pending: Pending) {
        self.to_admit += usize::from(!pending.on_slab());
        self.posted.push_back(pending);
    }

    #[inline]
    pub fn doorbell(&mut self) -> Result<(), Lost> {
        self.member.check()?;
        let free = self.framed.as_ref().is_none_or(|framed| framed.in_flight() == 0);
        if self.to_admit > 0 && free { self.go_framed() } else { Ok(()) }
    }

    #[inline]
    pub fn poll(&mut self, done: &mut Vec<Completion>) -> Result<usize, Lost> {
        self.member.check()?;
        let before = done.len();
        if self.to_admit == 0 && self.framed.is_none() {
            self.copy(self.posted.len(), done);
        } else {
            self.poll_both(done)?;
        }
        Ok(done.len() - before)
    }

    /// Verbs take effect in the order posted: copies wait for frames and frames for copies.
    #[cold]
    fn poll_both(&mut self, done: &mut Vec<Completion>) -> Result<(), Lost> {
        loop {
            if let Some(framed) = &mut self.framed {
                framed.poll(done)?;
                if framed.in_flight() > 0 {
                    return Ok(());
                }
            }
            self.copy(self.posted.iter().take_while(|pending| pending.on_slab()).count(), done);
            if self.posted.is_empty() {
                return Ok(());
            }
            self.go_framed()?;
        }
    }

    /// In a forked child: closes the descriptor, does nothing else.
    pub fn forget_in_child(mut self) {
        if let Some(framed) = &mut self.framed {
            framed.forget_link();
        }
        std::mem::forget(self);
    }

    /// Carries out the first `n` verbs, which are on slabs.
    fn copy(&mut self, n: usize, done: &mut Vec<Completion>) {
        if n == 0 {
            return;
        }
        let slabs = self.member.slabs.of_queue(self.number).lock();
        // In place: a verb is a hundred bytes, and moving it out costs more than looking its slab
        // up.
        for pending in self.posted.iter().take(n) {
            let result = match slabs.get(&SlabId(pending.key.0)) {
                Some(mapping) => pending.carry_out(mapping).ok_or(Refusal::Range),
                None => Err(Refusal::NotHeld),
            };
            done.push(Completion { tag: pending.tag, result });
        }
        drop(slabs);
        if n == self.posted.len() { self.posted.clear() } else { drop(self.posted.drain(..n)) }
    }

    /// Sends off verbs that the node admits, up to the first on a slab.
    fn go_framed(&mut self) -> Result<(), Lost> {
        let n = self.posted.iter().take_while(|pending| !pending.on_slab()).count();
        if n == 0 {
            return Ok(());
        }
        if self.framed.is_none() {
            self.framed = Some(Box::new(Framed::new(Arc::clone(&self.member), self.number)?));
        }
        let Some(framed) = &mut self.framed else { return Ok(()) };
        self.to_admit -= n;
        self.posted.drain(..n).for_each(|pending| framed.post(pending));
        framed.doorbell()
    }

    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        let n = self.poll(done)?;
        match &mut self.framed {
            Some(framed) if n == 0 && framed.in_flight() > 0 => framed.wait(done, limit),
            _ => Ok(n),
        }
    }
}

impl Pending {
    #[inline]
    fn carry_out(&self, mapping: &Mapping) -> Option<u64> {
        if self.len > MAX_VERB_BYTES {
            return None;
        }
        match self.verb {
            // SAFETY: the buffer is the verb's until its completion (contract of `read`).
            Verb::Read { into } => unsafe { mapping.read(self.offset, into, self.len) }.then_some(0),
            // SAFETY: the buffer is the verb's until its completion (contract of `write`).
            Verb::Write { from } => unsafe { mapping.write(self.offset, from, self.len) }.then_some(0),
            _ => self.carry_out_rarer(mapping),
        }
    }

    #[inline(never)]
    fn carry_out_rarer(&self, mapping: &Mapping) -> Option<u64> {
        match self.verb {
            Verb::Lines { record, conditional } => {
                // SAFETY: the buffer is the verb's until its completion (contract of `lines`), and
                // near: no slab.
                let bytes = unsafe { std::slice::from_raw_parts(record, self.len as usize) };
                let slab = SlabId(self.key.0);
                if !conditional {
                    let record = Record::check(slab, bytes).ok()?;
                    return record.lay(|at, lines| mapping.write_lines(at, lines)).map(|()| 0);
                }
                let Conditional { record, was, seed } = Conditional::split(bytes).ok()?;
                let record = Record::check(slab, record).ok()?;
                let hasher = Hasher::new(seed, Unit::best());
                let sum = |at, lines| mapping.sum_lines(&hasher, at, lines);
                lay_if(record, was, sum, |at, lines| mapping.write_lines(at, lines)).map(|refused| refused.0)
            }
            Verb::Cas { expected, new } => mapping.cas(self.offset, expected, new),
            Verb::Faa { add } => mapping.faa(self.offset, add),
            // READ and WRITE: see above. The others are the node's alone: see `on_slab`.
            Verb::Read { .. } | Verb::Write { .. } | Verb::Bind(_) | Verb::Invalidate | Verb::Send { .. } => None,
        }
    }
}
