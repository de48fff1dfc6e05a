//! A queue pair over RDMA.
//!
//! ```text
//!  verbs:  [ settled | on the card … | waiting … ]      front: the next completion that is due
//!                                ▲ posted
//! ```
//!
//! Verbs on slabs go to the card, in chains, as many as its queue has room for. Each reports its
//! completion, except WRITEs in the middle of a chain: a later verb's success implies theirs. READ
//! and WRITE by a window go the same way, once the node has bound the window on its card for this
//! queue pair.
//!
//! Other verbs need the node's admission: units, CAS and FAA by other keys than slabs', records of
//! lines, sends, BIND. They travel in frames over a connection of their own (`framed`). Frames wait
//! until the card is done, and the card waits until the frames are answered: verbs take effect in
//! the order posted.
//!
//! A verb that the card refuses breaks the queue pair, by RDMA's rules. So all that can be checked
//! here is checked here: the range, and whether the slab is held. The card then refuses only liars,
//! and users of a window that was taken from them. A break for any reason is treated as a cut: a
//! new queue pair is made by the rules of [`crate::session`]. Verbs without a completion are
//! repeated, except those that must not happen twice.

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

use super::bounce::Bounce;
use super::connect::{DEPTH, establish};
use super::host::{Host, Known, Right};
use crate::link::Link;
use crate::queue::{Framed, Pending, Verb};
use crate::session::{Membership, SILENT_NS, SLOW, Standstill};
use crate::{Completion, Lost, Refusal};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::KeyKind;
use farmem_sys::memory::copy_bytes;
use farmem_sys::raw;
use farmem_sys::spin::Spin;
use farmem_sys::verbs::{Done, Outcome, RcQueue, Region, WorkRequest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The card reports a WRITE's completion only if its number is a multiple of this, or it ends a
/// chain.
pub(super) const UNTOLD: u64 = 16;
/// How long to sleep between looks once spinning was in vain, ns.
const NAP_NS: u64 = 100_000;
/// How long a silence lasts before the control connection is asked whether the node's machine is
/// still heard, ns.
const LISTEN_NS: u64 = 1_000_000_000;
/// How many times in a row a queue pair may break without the completion of a verb in between.
const FAILURES: u32 = 8;

/// A posted verb whose completion was not reported yet.
pub(super) struct Flight {
    pub(super) pending: Pending,
    pub(super) fate: Fate,
}

/// How a posted verb is carried out.
pub(super) enum Fate {
    /// Not begun.
    Waiting,
    /// A READ or WRITE that travels in frames all the same. Either its buffer cannot be locked for
    /// the card, or the card does not have the window. Or the verb was refused, here or by the
    /// card, and only the node can say why.
    Frames,
    /// Its result is known without the card.
    Settled(Result<u64, Refusal>),
    /// On the card.
    Card {
        id: u64,
        slot: Option<*mut u8>,
        /// A registration of the caller's buffer for this verb alone.
        _region: Option<Region>,
    },
}

/// A queue pair over RDMA. See the top of this file.
pub(crate) struct Wired {
    pub(super) member: Arc<Membership>,
    pub(super) number: u64,
    pub(super) host: Arc<Host>,
    /// The stream that the queue pair lives with.
    link: Option<Link>,
    /// Declared, and so dropped, before the memory that it uses.
    pub(super) queue: Option<RcQueue>,
    pub(super) bounce: Bounce,
    /// In the order posted by the caller.
    pub(super) verbs: VecDeque<Flight>,
    /// How many of them, from the front, are settled or on the card.
    pub(super) posted: usize,
    /// Work requests so far on this queue pair. `confirmed`: how many of them are known to be done.
    pub(super) next: u64,
    confirmed: u64,
    /// The registered ranges that had the buffers of the last READ and of the last WRITE.
    pub(super) hints: [Known; 2],
    pub(super) chain: Vec<WorkRequest<'static>>,
    /// The connection for verbs that travel in frames, once there was one.
    framed: Option<Box<Framed>>,
    /// By a window's index: its generation, and how the card knows it, if it does.
    pub(super) windows: BTreeMap<u32, (u32, Option<Right>)>,
    failures: u32,
    silent_ns: u64,
    /// Measures how long nothing has moved, for a member that may be given up early.
    standstill: Standstill,
    spin: Spin,
    /// Bytes of operands sent since [`Wired::take_sent`] was last called.
    pub(super) sent: u64,
}

// SAFETY: the pointers are slots of the bounce ring, or the verbs' buffers.
unsafe impl Send for Wired {}

impl Wired {
    pub fn new(member: Arc<Membership>, number: u64) -> Result<Wired, Lost> {
        let no_card = |e: &dyn std::fmt::Display| member.give_up(format!("this machine cannot reach it by RDMA: {e}"));
        let host = member.card.host().map_err(|e| no_card(&e))?;
        let bounce = Bounce::new(&host.domain).map_err(|e| no_card(&e))?;
        let (link, queue) = establish(&member, &host, number, true)?;
        Ok(Wired {
            member,
            number,
            host,
            link: Some(link),
            queue: Some(queue),
            bounce,
            verbs: VecDeque::new(),
            posted: 0,
            next: 0,
            confirmed: 0,
            hints: Default::default(),
            chain: Vec::new(),
            framed: None,
            windows: BTreeMap::new(),
            failures: 0,
            silent_ns: 0,
            standstill: Standstill::default(),
            spin: Spin::new(),
            sent: 0,
        })
    }

    pub fn post(&mut self, pending: Pending) {
        self.verbs.push_back(Flight { pending, fate: Fate::Waiting });
    }

    pub fn in_flight(&self) -> usize {
        self.verbs.len() + self.framed.as_ref().map_or(0, |framed| framed.in_flight())
    }

    /// See [`crate::QueuePair::take_sent`].
    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent) + self.framed.as_mut().map_or(0, |framed| framed.take_sent())
    }

    pub fn doorbell(&mut self) -> Result<(), Lost> {
        self.member.check()?;
        if self.in_frames() {
            return Ok(());
        }
        self.push()?;
        self.go_framed()
    }

    pub fn poll(&mut self, done: &mut Vec<Completion>) -> Result<usize, Lost> {
        self.member.check()?;
        let before = done.len();
        loop {
            if let Some(framed) = &mut self.framed {
                framed.poll(done)?;
                if framed.in_flight() > 0 {
                    break;
                }
            }
            self.collect(done)?;
            self.push()?;
            self.emit(done);
            self.go_framed()?;
            if !self.in_frames() {
                break;
            }
        }
        Ok(done.len() - before)
    }

    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        let begun = raw::now_ns();
        let until = begun.saturating_add(limit.as_nanos() as u64);
        let (mut looked_ns, mut waited_ns) = (begun, 0);
        loop {
            let n = self.poll(done)?;
            if n > 0 || self.in_flight() == 0 {
                self.end_silence();
                self.spin.came(waited_ns);
                return Ok(n);
            }
            if !self.spin.offers() {
                std::hint::spin_loop();
                continue;
            }
            let now = raw::now_ns();
            // Only time in which this process ran counts.
            self.note_silence(now - looked_ns)?;
            looked_ns = now;
            if now >= until {
                return Ok(0);
            }
            if let Some(framed) = &mut self.framed
                && framed.in_flight() > 0
            {
                return framed.wait(done, Duration::from_nanos(until - now));
            }
            if self.spin.looks_on(now - begun) {
                raw::yield_cpu();
                let after = raw::now_ns();
                waited_ns = after - begun;
                self.spin.offered(after - now);
                continue;
            }
            // When the node's process ends, its end of the stream is closed, long before the card
            // gives up.
            match &self.link {
                Some(link) if !link.is_cut() => link.wait(false, NAP_NS.min(until - now)),
                _ => self.restore()?,
            }
            waited_ns = raw::now_ns() - begun;
        }
    }

    /// Sleeps a little, unless the stream that the queue pair lives with has ended: then restores
    /// it.
    pub fn nap(&mut self, ns: u64) -> Result<(), Lost> {
        match &self.link {
            Some(link) if !link.is_cut() => link.wait(false, NAP_NS.min(ns)),
            _ => self.restore()?,
        }
        Ok(())
    }

    /// Counts time that was spent without a completion. When it is long, looks whether the node can
    /// still be reached.
    pub fn note_silence(&mut self, waited_ns: u64) -> Result<(), Lost> {
        let Wired { member, standstill, .. } = self;
        // What the card has sent is not known, only what it has completed. So a standstill may be a
        // large message under way, or a card that others use too. The process says whether the node
        // is there. A way that is down is told by the card, which then fails the verbs.
        if member.has_spare()
            && standstill.note(waited_ns, || member.card.moved())
            && !standstill.is_borne(|| member.lives())
        {
            member.end_if_spared(|| SLOW.into())?;
        }
        self.silent_ns += waited_ns.min(2 * NAP_NS);
        if self.silent_ns < LISTEN_NS {
            Ok(())
        } else if self.silent_ns < SILENT_NS {
            self.member.watch()
        } else {
            Err(self.member.silent())
        }
    }

    /// A completion has come.
    pub fn end_silence(&mut self) {
        self.silent_ns = 0;
        self.standstill.end();
    }

    /// In a forked child: closes the descriptors, does nothing else.
    pub fn forget_in_child(mut self) {
        self.link = None;
        if let Some(framed) = &mut self.framed {
            framed.forget_link();
        }
        std::mem::forget(self);
    }

    /// Whether frames are under way. The card gets no verb meanwhile.
    fn in_frames(&self) -> bool {
        self.framed.as_ref().is_some_and(|framed| framed.in_flight() > 0)
    }

    /// Puts verbs on the card, as many as it has room for, up to the first that travels in frames.
    fn push(&mut self) -> Result<(), Lost> {
        self.chain.clear();
        while self.posted < self.verbs.len() && self.next - self.confirmed < DEPTH {
            let flight = &self.verbs[self.posted];
            match flight.fate {
                Fate::Waiting if !flight.pending.is_one_sided() => break,
                Fate::Waiting => {}
                Fate::Frames => break,
                Fate::Settled(_) | Fate::Card { .. } => {
                    self.posted += 1;
                    continue;
                }
            }
            let (key, empty) = (flight.pending.key, flight.pending.len == 0);
            let right = match (key.kind(), flight.pending.judge()) {
                // It goes in frames: the node says why it is refused.
                (KeyKind::Window { .. }, Err(_)) => Ok(None),
                (KeyKind::Window { index, generation }, Ok(())) => Ok(self.window(index, generation)?),
                (_, Err(refusal)) => Err(refusal),
                (_, Ok(())) => self.host.key(&self.member, SlabId(key.0))?.map(|rkey| Some(Right { rkey, base: 0 })),
            };
            let fate = match right {
                Err(refusal) => Fate::Settled(Err(refusal)),
                Ok(_) if empty && key.is_slab() => Fate::Settled(Ok(0)),
                Ok(None) => Fate::Frames,
                Ok(Some(_)) if empty => Fate::Frames,
                Ok(Some(right)) => match self.prepare(right) {
                    Some(fate) => fate,
                    None => break,
                },
            };
            let frames = matches!(fate, Fate::Frames);
            self.verbs[self.posted].fate = fate;
            if frames {
                break;
            }
            self.posted += 1;
        }
        if let Some(last) = self.chain.last_mut() {
            last.told = true;
            let chain = std::mem::take(&mut self.chain);
            let posted = match &mut self.queue {
                // SAFETY: buffers are in their regions and the verbs' until their completions,
                // before which neither the regions nor the slots are let go of; or until the queue
                // pair is destroyed.
                Some(queue) => unsafe { queue.post(&chain) }.is_ok(),
                None => false,
            };
            self.chain = chain;
            if !posted {
                return self.restore();
            }
        }
        Ok(())
    }

    /// Takes the card's completions. Restores the queue pair if one of them is a failure.
    fn collect(&mut self, done: &mut Vec<Completion>) -> Result<(), Lost> {
        let mut told = [Done { id: 0, outcome: Outcome::SUCCESS }; 16];
        let mut failed: Option<Done> = None;
        while let Some(queue) = &mut self.queue {
            let n = match queue.poll(&mut told) {
                Ok(n) => n,
                Err(_) => {
                    failed = Some(Done { id: u64::MAX, outcome: Outcome::FLUSHED });
                    break;
                }
            };
            if told[..n].iter().any(|one| one.outcome == Outcome::SUCCESS) {
                self.member.card.note_moved();
            }
            for one in &told[..n] {
                match one.outcome {
                    Outcome::SUCCESS if failed.is_none() => self.confirmed = self.confirmed.max(one.id + 1),
                    Outcome::SUCCESS => {}
                    _ => failed = failed.or(Some(*one)),
                }
            }
            if n < told.len() || failed.is_some() {
                break;
            }
        }
        self.emit(done);
        match failed {
            None => Ok(()),
            Some(Done { id, .. }) if self.goes_in_frames(id) => self.restore(),
            Some(Done { outcome, .. }) => {
                // The slab may have been taken from this member: its key is asked for again, or
                // refused.
                if outcome == Outcome::REMOTE_ACCESS {
                    self.host.forget_keys();
                }
                self.failures += 1;
                // One attempt was made to go on after the first failure.
                if self.failures > 1 && outcome != Outcome::REMOTE_ACCESS {
                    self.member.end_if_spared(|| format!("its RDMA card does not answer: {outcome}"))?;
                }
                if self.failures > FAILURES {
                    return Err(self.member.give_up(format!("its RDMA card refuses what it granted: {outcome}")));
                }
                self.restore()
            }
        }
    }

    /// Reports the completions of verbs at the front that are done.
    fn emit(&mut self, done: &mut Vec<Completion>) {
        while self.posted > 0 {
            let Some(front) = self.verbs.front() else { break };
            let result = match &front.fate {
                Fate::Settled(result) => *result,
                Fate::Card { id, slot, .. } if *id < self.confirmed => {
                    self.failures = 0;
                    let pending = &front.pending;
                    let mut value = 0;
                    if let Some(slot) = *slot {
                        match pending.verb {
                            // SAFETY: the card has written the slot, and does so no more; the
                            // target is the verb's.
                            Verb::Read { into } => unsafe { copy_bytes(slot, into, pending.len as usize) },
                            // SAFETY: as above; slots are aligned.
                            Verb::Cas { .. } | Verb::Faa { .. } => value = unsafe { slot.cast::<u64>().read() },
                            _ => {}
                        }
                        self.bounce.give_back();
                    }
                    Ok(value)
                }
                _ => break,
            };
            done.push(Completion { tag: front.pending.tag, result });
            self.verbs.pop_front();
            self.posted -= 1;
        }
    }

    /// Sends the verbs at the front that travel in frames, once nothing is on the card.
    fn go_framed(&mut self) -> Result<(), Lost> {
        if self.posted > 0 {
            return Ok(());
        }
        let framed = |flight: &&Flight| match flight.fate {
            Fate::Frames => true,
            Fate::Waiting => !flight.pending.is_one_sided(),
            _ => false,
        };
        let n = self.verbs.iter().take_while(framed).count();
        if n == 0 {
            return Ok(());
        }
        if self.framed.is_none() {
            self.framed = Some(Box::new(Framed::new(Arc::clone(&self.member), self.number)?));
        }
        let Some(framed) = &mut self.framed else { return Ok(()) };
        self.verbs.drain(..n).for_each(|flight| framed.post(flight.pending));
        framed.doorbell()
    }

    /// Makes a new queue pair. Verbs without a completion are repeated, in order. Those that must
    /// not happen twice (CAS, FAA) end with [`Refusal::Unknown`].
    #[cold]
    fn restore(&mut self) -> Result<(), Lost> {
        // The old queue pair is destroyed first: after that the card uses no buffer any more.
        self.queue = None;
        self.link = None;
        for flight in self.verbs.iter_mut().take(self.posted) {
            if let Fate::Card { .. } = flight.fate {
                flight.fate =
                    if flight.pending.counts() { Fate::Settled(Err(Refusal::Unknown)) } else { Fate::Waiting };
            }
        }
        // All verbs are looked at again. [`Wired::push`] passes over those that are settled.
        self.posted = 0;
        self.bounce.reset();
        // The windows were bound for the old queue pair.
        self.windows.clear();
        (self.next, self.confirmed) = (0, 0);
        self.silent_ns = 0;
        let (link, queue) = establish(&self.member, &self.host, self.number, false)?;
        (self.link, self.queue) = (Some(link), Some(queue));
        Ok(())
    }
}
