//! The state that a session shares with its queue pairs. It restores cut connections, by the rules
//! at the top of [`super`].

mod again;
mod asking;
mod redial;

use super::dial::{Broken, NoDial, Pass, Patience, exchange, greet};
use super::silence::{DOUBT_NS, Ear, Heard, KEEP_S, Outage};
use super::slabs::Slabs;
use super::spare::{SLOW_NS, Spare};
use crate::Lost;
use crate::link::{Carrier, Link, Passed, Reach};
use crate::verbs::Card;
use farmem_protocol::addr::SlabId;
use farmem_protocol::node::Domain;
use farmem_protocol::wire::{Ask, Known, Purpose, Request, Secret};
use farmem_sys::mapping::Mapping;
use farmem_sys::raw;
use farmem_sys::sync::Lock;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a connection that stands may be silent while an answer is due, ns. After that its node
/// counts as lost. A stopped node (SIGSTOP, a suspended machine) is waited for this long.
pub const SILENT_NS: u64 = 30_000_000_000;
/// How long connections to a node's own address may be refused before the node counts as dead, ns.
/// It is long enough for one refusal to be an accident (a firewall being loaded). It is short
/// enough to end a program within two seconds on a busy machine.
pub const REFUSED_NS: u64 = 500_000_000;
/// The least time of silence on the wire after which the kernel gives a connection up by itself, in
/// milliseconds. A stopped node is waited for as long: to the kernel, a node whose buffers are full
/// looks silent, too.
const UNACKNOWLEDGED_MS: u64 = SILENT_NS / 1_000_000;
/// How long a queue pair's connection is idle before the kernel asks whether it still stands, in
/// seconds. This keeps middleboxes from forgetting the connection. A silence is found by the
/// control connection.
const IDLE_S: i32 = 30;
/// Time between attempts to restore a connection, ns.
const RETRY_NS: u64 = 50_000_000;
/// How often threads that wait look after the control connection, ns.
const WATCH_NS: u64 = 100_000_000;
/// How long an attempt may take to connect, ns.
const CONNECT_NS: u64 = 500_000_000;
/// The patience of an attempt by [`Membership::tend`], which a thread makes while it waits for
/// something else.
const LOOK: Patience = Patience { connect_ns: 200_000_000, answer_ns: 250_000_000 };
/// The patience of the first attempt for a member that its holder may be able to spare.
const HASTE: Patience = Patience { connect_ns: SLOW_NS, answer_ns: SLOW_NS };
/// The reason that is told for a member that its holder could spare.
pub(crate) const SLOW: &str = "it has not answered for 200 ms";
/// The longest time between attempts to reach a node that accepts connections and does not answer,
/// ns.
const LEAVE_NS: u64 = 4_000_000_000;
/// How long a node may take to answer the message that a run is over, ns.
pub const FAREWELL_NS: u64 = 1_000_000_000;

/// The state that a session shares with its queue pairs.
pub(crate) struct Membership {
    pub node: String,
    pub reach: Reach,
    pub secret: Secret,
    pub incarnation: u64,
    /// The id by which descriptor words at the node name this member.
    pub owner: u16,
    pub grace: Duration,
    /// The token's key and the cipher, by which this member and the node trust each other. `None`:
    /// no token.
    pub pass: Option<Pass>,
    /// Its failure domain; empty: not known.
    pub domain: Domain,
    /// The node may want slabs back, and is asked.
    pub asks_back: bool,
    /// No middlebox was on the way to the node when the member joined.
    pub direct: bool,
    /// Slabs are mapped rather than reached by frames.
    pub mapped: bool,
    /// The node's process, where slabs are mapped and it can be seen from here; else 0.
    pub process: u32,
    /// RDMA, if slabs are reached by it.
    pub card: Card,
    pub control: Lock<Control>,
    pub slabs: Slabs,
    pub next_queue: AtomicU64,
    pub health: Health,
}

/// The node's signs of life, as this member has seen them, and its loss.
#[derive(Default)]
pub(crate) struct Health {
    /// The node counts as lost because it did not answer on a connection that stood.
    pub fell_silent: AtomicBool,
    /// The last sign that the node's machine was within reach.
    pub heard: Heard,
    /// When a thread that waits last looked after the control connection.
    pub watched_ns: AtomicU64,
    /// Decides whether the member is given up early; see [`super::spare`].
    pub spare: OnceLock<(&'static dyn Spare, usize)>,
    /// Once lost, lost for all that belongs to the member.
    pub lost: Lock<Option<Lost>>,
    pub is_lost: AtomicBool,
    /// The loss was found by the end of the node's process.
    pub ended: AtomicBool,
    /// Numbers of queue pairs that were dropped while WRITEs of theirs were under way: these may take
    /// effect at the node at any time.
    pub unanswered: Lock<Vec<u64>>,
}

pub(crate) struct Control {
    pub link: Option<Link>,
    pub number: u64,
    /// The number of a request on this connection whose answer was late and has not been taken yet,
    /// or 0 ([`Membership::ask_soon`]).
    owed: u64,
    /// The outage of the connection, until it is restored.
    outage: Option<Outage>,
    /// When a node that accepts connections and does not answer is dialled again, in ns of the
    /// reach's clock.
    dial_ns: u64,
}

impl Control {
    /// The state with this connection, if there is one yet. `number` is that of the last request.
    pub fn new(link: Option<Link>, number: u64) -> Control {
        Control { link, number, owed: 0, outage: None, dial_ns: 0 }
    }

    /// Gives the connection up: it has ended, or the node's machine has been mute for too long.
    fn lose(&mut self, now_ns: u64, mute_ns: u64) {
        self.link = None;
        self.owed = 0;
        self.outage.get_or_insert_with(|| Outage::begun(now_ns, mute_ns));
    }
}

impl Membership {
    /// A forked child's membership, from its parent's and from what its ticket says.
    pub fn of_child(&self, secret: Secret, owner: u16, link: Link, slabs: BTreeMap<SlabId, Mapping>) -> Membership {
        Membership {
            node: self.node.clone(),
            reach: self.reach.clone(),
            secret,
            incarnation: self.incarnation,
            owner,
            grace: self.grace,
            pass: self.pass,
            domain: self.domain,
            asks_back: self.asks_back,
            direct: self.direct,
            mapped: self.mapped,
            process: self.process,
            card: self.card.of_child(),
            control: Lock::new(Control::new(Some(link), 1)),
            slabs: Slabs::new(slabs),
            next_queue: AtomicU64::new(1),
            health: Health::default(),
        }
    }

    /// An error if the member was found lost before.
    #[inline]
    pub fn check(&self) -> Result<(), Lost> {
        if self.health.is_lost.load(Ordering::Acquire) { Err(self.why_lost()) } else { Ok(()) }
    }

    #[cold]
    fn why_lost(&self) -> Lost {
        self.health.lost.lock().clone().unwrap_or_else(|| self.lost_because("it was lost before".into()))
    }

    fn lost_because(&self, reason: String) -> Lost {
        Lost { node: self.node.clone(), reason }
    }

    /// Declares the member lost. If it is lost already, the first reason stands.
    pub fn give_up(&self, reason: String) -> Lost {
        let mut lost = self.health.lost.lock();
        let lost = lost.get_or_insert_with(|| self.lost_because(reason)).clone();
        self.health.is_lost.store(true, Ordering::Release);
        lost
    }

    /// [`Membership::give_up`] of a node whose process has certainly ended, and its memory with it.
    fn end(&self, reason: &str) -> Lost {
        self.health.ended.store(true, Ordering::Release);
        self.give_up(reason.into())
    }

    /// Whether the member may be given up early.
    #[inline]
    pub fn has_spare(&self) -> bool {
        self.health.spare.get().is_some()
    }

    /// Gives the member up if its holder can do without it; see [`super::spare`].
    ///
    /// # Errors
    /// It was given up.
    #[cold]
    pub fn end_if_spared(&self, reason: impl FnOnce() -> String) -> Result<(), Lost> {
        let Some((holder, number)) = self.health.spare.get() else { return Ok(()) };
        let lost = self.lost_because(reason());
        match holder.can_spare(*number, &lost) {
            true => Err(self.give_up(lost.reason)),
            false => Ok(()),
        }
    }

    /// Makes the kernel ask the peer for signs of life, and give the connection up after a long
    /// silence.
    fn watch_silence(&self, link: &Link, is_queue: bool) {
        // A vfork child has its own connections only, so each of them is watched closely.
        let often = !is_queue || raw::is_away();
        let ms = (self.grace.as_millis() as u64).max(UNACKNOWLEDGED_MS).min(u32::MAX as u64) as u32;
        link.notice_silence(if often { KEEP_S } else { IDLE_S }, ms);
    }

    /// Takes a connection that was just made as the control connection.
    pub fn controlled_by(&self, link: Link, number: u64) {
        self.watch_silence(&link, false);
        self.health.heard.ns.store(self.reach.now_ns(), Ordering::Relaxed);
        *self.control.lock() = Control::new(Some(link), number);
    }

    /// Listens for the node's machine while it waits for an answer.
    pub fn ear(&self) -> Ear<'_> {
        Ear::at(&self.reach, &self.health.heard)
    }

    /// Whether the control connection has heard the node's machine within the last [`DOUBT_NS`].
    pub fn is_near(&self) -> bool {
        let heard = self.health.heard.ns.load(Ordering::Relaxed);
        heard != 0 && self.reach.now_ns().saturating_sub(heard) < DOUBT_NS
    }

    /// Restores the control connection, however long it takes.
    fn rejoin(&self, control: &mut Control) -> Result<(), Lost> {
        let mut outage = control.outage.take().unwrap_or_else(|| Outage::cut(self.reach.now_ns()));
        let (link, _) = self.redial(Purpose::Rejoin(self.known()), &mut outage, None)?;
        *control = Control::new(Some(link), control.number);
        Ok(())
    }

    /// Tells the node that the run is over, and waits for the answer a short time. See
    /// [`super::Session::end_run`].
    pub fn say_over(&self, run: Secret) -> Result<(), Lost> {
        self.check()?;
        let mut control = self.control.lock();
        control.number += 1;
        let request = Request::new(control.number, Ask::EndRun(run)).frame();
        let said = |link: &Link| exchange(self.ear(), link, request.as_bytes(), FAREWELL_NS).map(|_| ());
        if let Some(link) = &control.link {
            match said(link) {
                // A node that is late is not waited for longer, nor is a machine that is not heard.
                Ok(()) | Err(Broken::Late | Broken::Mute) => return Ok(()),
                Err(Broken::Cut(_) | Broken::Nonsense) => control.link = None,
            }
        }
        let patience = Patience { connect_ns: CONNECT_NS, answer_ns: FAREWELL_NS };
        let dialled = self.dial(Purpose::Rejoin(self.known()), patience);
        let (link, _) = dialled.map_err(|failure| self.give_up(format!("its connection was cut: {failure}")))?;
        match said(&link) {
            Ok(()) | Err(Broken::Late | Broken::Mute) => {
                control.link = Some(link);
                Ok(())
            }
            Err(Broken::Nonsense) => Err(self.give_up("it answers what was not asked".into())),
            Err(Broken::Cut(e)) => Err(self.give_up(format!("its connection was cut: {e}"))),
        }
    }

    /// A connection stands but has been silent for [`SILENT_NS`].
    pub fn silent(&self) -> Lost {
        self.health.fell_silent.store(true, Ordering::Release);
        self.give_up(format!("it has not answered for {} s", SILENT_NS / 1_000_000_000))
    }

    /// Turns a connection that the node has passed into the control connection of the member with
    /// this secret. Also returns the member's owner id.
    /// `None`: the node does not welcome it.
    pub fn present(&self, passed: Passed, secret: Secret) -> Option<(Link, u16)> {
        let purpose = Purpose::Rejoin(Known { secret, ..self.known() });
        let link = Carrier::Socket(passed.into_raw()).into();
        let greeted = greet(self.ear(), link, purpose, self.pass.as_ref(), SILENT_NS).ok()?;
        Some((greeted.link, greeted.welcome.owner))
    }

    /// The name by which the node knows this member.
    pub fn known(&self) -> Known {
        Known { secret: self.secret, incarnation: self.incarnation }
    }

    /// For a thread that waits for an answer. Calls [`Membership::tend`] at most every
    /// [`WATCH_NS`], unless another thread has the control connection.
    pub fn watch(&self) -> Result<(), Lost> {
        // A vfork child's connections are nothing to the process whose memory this is.
        let (now, before) = (self.reach.now_ns(), self.health.watched_ns.load(Ordering::Relaxed));
        if now.saturating_sub(before) < WATCH_NS || raw::is_away() {
            return self.check();
        }
        match self.control.try_lock() {
            Some(mut control) => {
                self.health.watched_ns.store(now, Ordering::Relaxed);
                self.tend(&mut control)
            }
            None => self.check(),
        }
    }

    /// Checks the control connection. If it was cut or is mute, makes an attempt to restore it, and
    /// judges the failure.
    pub fn tend(&self, control: &mut Control) -> Result<(), Lost> {
        self.check()?;
        let now = self.reach.now_ns();
        if let Some(link) = &control.link {
            let mute_ns = self.ear().listen(link);
            if mute_ns < DOUBT_NS && !link.is_cut() {
                return Ok(());
            }
            control.lose(now, mute_ns);
        }
        let Control { link, outage, dial_ns, .. } = control;
        let outage = outage.get_or_insert_with(|| Outage::cut(now));
        while now >= *dial_ns {
            let over = self.is_over(outage);
            match self.dial(Purpose::Rejoin(self.known()), LOOK) {
                Ok((restored, _)) => {
                    *link = Some(restored);
                    control.outage = None;
                    return Ok(());
                }
                // The node accepts and does not answer: perhaps it is stopped. It is waited for as
                // long as a stopped node is.
                Err(NoDial::Silent) => {
                    self.end_if_spared(|| SLOW.into())?;
                    let now = self.reach.now_ns();
                    let unanswered = outage.unanswered(now);
                    *dial_ns = now + unanswered.min(LEAVE_NS);
                    return if unanswered < SILENT_NS { Ok(()) } else { Err(self.silent()) };
                }
                Err(failure) => {
                    if failure.is_the_nodes() {
                        self.end_if_spared(|| {
                            format!("its connection was cut and is not made again at once ({failure})")
                        })?;
                    }
                    self.judge(failure, outage, over)?;
                }
            }
            // An attempt decides only if it began after the grace was over. If the grace ended
            // during this one, another one follows at once.
            if over || !self.is_over(outage) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::session::simulated::Simulated;
    use crate::{ConnectOptions, Session};
    use farmem_nic::MAX_QUEUES;
    use farmem_protocol::addr::SLAB_BYTES;
    use farmem_sim::{Network, Weather};
    use std::sync::Arc;

    fn session(network: &Arc<Network>) -> Session {
        let options = ConnectOptions {
            timeout: Duration::from_secs(2),
            grace: Duration::from_secs(5),
            run: [1; 16],
            pid: 1,
            ..ConnectOptions::default()
        };
        Session::simulated(&Arc::new(Simulated(Arc::clone(network))), &options).unwrap()
    }

    /// A node's table of a member's queue pairs is full while as many have connections. One more is
    /// refused and loses nothing. When one closes there is room again, and one that was cut waits
    /// for it.
    #[test]
    fn a_queue_pair_too_many_loses_nothing() {
        for (kind, purpose) in [("framed", Purpose::Attach as fn(_, _) -> _), ("by RDMA", Purpose::Wire)] {
            let network = Network::new(Weather::default(), SLAB_BYTES);
            let session = session(&network);
            let member = &session.member;
            let purpose = |queue| purpose(member.known(), queue);
            let first = member.attach(purpose(0)).unwrap();
            // As over connections that stand.
            let standing = |queue: u64| {
                network.with_nic(|nic| match purpose(queue) {
                    Purpose::Wire(known, queue) => {
                        nic.membership().attach_wire(&known, queue, &None).map(|_| None).unwrap()
                    }
                    _ => nic.membership().attach(&member.known(), queue, &None).map(Some).unwrap(),
                })
            };
            let others: Vec<_> = (1..MAX_QUEUES as u64).map(standing).collect();
            let begun = network.now_ns();
            assert!(member.attach(purpose(MAX_QUEUES as u64)).is_err(), "{kind:?}");
            assert!(network.now_ns() - begun < 1_000_000, "{kind:?}: as long as a node that is away");
            assert!(!session.standing().is_lost() && session.grant().is_ok(), "{kind:?}");
            // One of them again, as after a cut, has the place that it had.
            let again = member.restore(purpose(0)).unwrap();
            assert!(member.attach(purpose(MAX_QUEUES as u64)).is_err(), "{kind:?}");
            drop((first, again));
            network.pass(1_000_000);
            assert!(member.attach(purpose(MAX_QUEUES as u64)).is_ok(), "{kind:?}");
            session.end_run([1; 16]).unwrap();
            assert!(member.restore(purpose(0)).is_err(), "{kind:?}: a member that is gone");
            drop(others);
        }
    }

    /// However many queue pairs there were in turn: those that have closed take no place.
    #[test]
    fn queue_pairs_are_given_back() {
        let network = Network::new(Weather::default(), SLAB_BYTES);
        let session = session(&network);
        let (slab, mut done) = (session.grant().unwrap().id, Vec::new());
        for n in 0..MAX_QUEUES as u64 + 1024 {
            let mut queue = session.queue_pair().unwrap();
            if n % 1024 == 0 {
                queue.faa(0, slab, 0, 1);
                queue.doorbell().unwrap();
                while queue.wait(&mut done, Duration::from_secs(1)).unwrap() == 0 {}
            }
        }
        assert_eq!(done.last().unwrap().result, Ok(MAX_QUEUES as u64 / 1024));
        network.pass(1_000_000);
        let queues = network.with_nic(|nic| nic.members()[0].queue_pairs());
        assert_eq!(queues, Some(0));
    }
}
