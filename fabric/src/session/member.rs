//! What a session and its queue pairs share, and how a connection of theirs that was cut is restored: the
//! rules at the top of [`super`].

use super::dial::{NoDial, Patience, dial, exchange, greet, hello, request};
use crate::Lost;
use crate::link::{Link, Reach};
use crate::mapping::Mapping;
use crate::verbs::Card;
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::{Answer, Ask, Hello, Purpose, Secret, Verdict};
use farmem_sys::raw::{self, Errno, SignalsBlocked};
use farmem_sys::sync::Lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long a connection that stands may be silent while an answer is due, before its node counts as
/// lost. A stopped node (SIGSTOP, a suspended machine) is waited for this long.
pub const SILENT_NS: u64 = 30_000_000_000;
/// How long nobody may listen at a node's own address before it counts as dead: long enough for one
/// refusal to be an accident (a firewall being loaded), short enough to end a program within two
/// seconds on a machine that is busy with other things.
pub const REFUSED_NS: u64 = 500_000_000;
/// The least time of silence on the wire after which the kernel gives a connection up, in
/// milliseconds: more than the stop of a node that programs are promised to survive (5 s), for a
/// stopped node whose buffers are full looks silent too.
const UNACKNOWLEDGED_MS: u64 = 15_000;
/// Between attempts to restore a connection.
const RETRY_NS: u64 = 50_000_000;
/// How long a node may take to answer that a run is over.
pub const FAREWELL_NS: u64 = 1_000_000_000;

/// What a session and its queue pairs share.
pub(crate) struct Membership {
    pub node: String,
    pub reach: Reach,
    pub secret: Secret,
    pub incarnation: u64,
    /// The id by which descriptor words at the node name this member.
    pub owner: u16,
    pub grace: Duration,
    /// No middlebox was between when the member joined.
    pub direct: bool,
    /// Slabs are mapped rather than reached by frames.
    pub mapped: bool,
    /// The node's process, where slabs are mapped and it can be seen from here; else 0.
    pub process: u32,
    /// RDMA, if slabs are reached by it.
    pub card: Card,
    pub control: Lock<Control>,
    pub slabs: Lock<BTreeMap<SlabId, Mapping>>,
    pub next_queue: AtomicU64,
    /// It counts as lost because it did not answer, on a connection that stands.
    pub fell_silent: AtomicBool,
    /// Once lost, lost for all that belongs to the member.
    pub lost: Lock<Option<Lost>>,
    pub is_lost: AtomicBool,
}

pub(crate) struct Control {
    pub link: Option<Link>,
    pub number: u64,
    /// When the connection was first found cut; 0 while it stands.
    pub cut_ns: u64,
}

impl Membership {
    /// One of a forked child, from what the parent's is and the ticket says.
    pub fn of_child(&self, secret: Secret, owner: u16, link: Link, slabs: BTreeMap<SlabId, Mapping>) -> Membership {
        Membership {
            node: self.node.clone(),
            reach: self.reach.clone(),
            secret,
            incarnation: self.incarnation,
            owner,
            grace: self.grace,
            direct: self.direct,
            mapped: self.mapped,
            process: self.process,
            card: self.card.of_child(),
            control: Lock::new(Control { link: Some(link), number: 1, cut_ns: 0 }),
            slabs: Lock::new(slabs),
            next_queue: AtomicU64::new(1),
            fell_silent: AtomicBool::new(false),
            lost: Lock::new(None),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Whether it was found lost before.
    #[inline]
    pub fn check(&self) -> Result<(), Lost> {
        if self.is_lost.load(Ordering::Acquire) { Err(self.why_lost()) } else { Ok(()) }
    }

    #[cold]
    fn why_lost(&self) -> Lost {
        self.lost.lock().clone().unwrap_or_else(|| self.lost_because("it was lost before".into()))
    }

    fn lost_because(&self, reason: String) -> Lost {
        Lost { node: self.node.clone(), reason }
    }

    /// Declares the member lost, unless it is already; the first reason stands.
    pub fn give_up(&self, reason: String) -> Lost {
        let mut lost = self.lost.lock();
        let lost = lost.get_or_insert_with(|| self.lost_because(reason)).clone();
        self.is_lost.store(true, Ordering::Release);
        lost
    }

    pub fn watch_silence(&self, link: &Link) {
        link.notice_silence((self.grace.as_millis() as u64).max(UNACKNOWLEDGED_MS).min(u32::MAX as u64) as u32);
    }

    /// Sends a request and waits for its answer, over as many connections as it takes.
    pub fn ask(&self, ask: Ask, slab: SlabId, detail: [u8; 16]) -> Result<(Answer, Option<i32>), Lost> {
        // Where the caller's are open, in a fault over shm, one would end the wait early, and that looks like a cut.
        let _signals = SignalsBlocked::new();
        self.check()?;
        let mut control = self.control.lock();
        control.number += 1;
        let request = request(ask, control.number, slab, detail);
        let mut restored = false;
        loop {
            if let Some(link) = &control.link {
                match exchange(&self.reach, link, request.as_bytes(), SILENT_NS) {
                    Ok((answer, passed)) if answer.number == request.number => {
                        // A vfork child's descriptor is nothing to the process whose memory this is.
                        if restored && raw::is_away() {
                            control.link = None;
                        }
                        return Ok((answer, passed));
                    }
                    Ok(_) => return Err(self.give_up("it answers what was not asked".into())),
                    Err(Errno(libc::ETIMEDOUT)) => return Err(self.silent()),
                    Err(_) => control.link = None,
                }
            }
            let link = self.restore(Purpose::Rejoin, 0)?;
            restored = true;
            (control.link, control.cut_ns) = (Some(link), 0);
        }
    }

    /// See [`super::Session::end_run`].
    pub fn say_over(&self, run: Secret) -> Result<(), Lost> {
        self.check()?;
        let mut control = self.control.lock();
        control.number += 1;
        let request = request(Ask::EndRun, control.number, SlabId(0), run);
        let said = |link: &Link| exchange(&self.reach, link, request.as_bytes(), FAREWELL_NS).map(|_| ());
        if let Some(link) = &control.link {
            match said(link) {
                Ok(()) | Err(Errno(libc::ETIMEDOUT)) => return Ok(()),
                Err(_) => control.link = None,
            }
        }
        let dialled = self.dial(Purpose::Rejoin, 0, self.secret, FAREWELL_NS);
        let (link, _) = dialled.map_err(|failure| self.give_up(format!("its connection was cut: {failure}")))?;
        match said(&link) {
            Ok(()) | Err(Errno(libc::ETIMEDOUT)) => {
                control.link = Some(link);
                Ok(())
            }
            Err(e) => Err(self.give_up(format!("its connection was cut: {e}"))),
        }
    }

    /// A connection stands but has been silent for [`SILENT_NS`].
    pub fn silent(&self) -> Lost {
        self.fell_silent.store(true, Ordering::Release);
        self.give_up(format!("it has not answered for {} s", SILENT_NS / 1_000_000_000))
    }

    /// The control connection of the member of this secret, over a connection that its node has passed. `None` where
    /// that has come to nothing.
    pub fn present(&self, passed: i32, secret: Secret) -> Option<(Link, u16)> {
        let hello = Hello { secret, incarnation: self.incarnation.into(), ..hello(Purpose::Rejoin) };
        let (link, welcome, _) = greet(&self.reach, Link::Socket(passed), &hello, SILENT_NS).ok()?;
        Some((link, welcome.owner.get()))
    }

    /// The first connection of a queue pair. At a node that has as many queue pairs of this member
    /// as it can have none is made, and nothing else of the member is lost.
    pub fn attach(&self, purpose: Purpose, queue: u64) -> Result<Link, Lost> {
        let full = || self.lost_because("it has as many queue pairs of this program as one can have".into());
        self.restore_unless(purpose, queue, self.secret, Some(&full)).map(|(link, _)| link)
    }

    /// A new connection for `purpose` in place of one that was cut.
    pub fn restore(&self, purpose: Purpose, queue: u64) -> Result<Link, Lost> {
        self.restore_as(purpose, queue, self.secret).map(|(link, _)| link)
    }

    /// [`Membership::restore`], as the member of this secret. Its owner id with it.
    pub fn restore_as(&self, purpose: Purpose, queue: u64, secret: Secret) -> Result<(Link, u16), Lost> {
        self.restore_unless(purpose, queue, secret, None)
    }

    /// `full`: the error when the node has no room for it. `None`: room is waited for until the
    /// grace is over.
    fn restore_unless(
        &self,
        purpose: Purpose,
        queue: u64,
        secret: Secret,
        full: Option<&dyn Fn() -> Lost>,
    ) -> Result<(Link, u16), Lost> {
        let cut_ns = self.reach.now_ns();
        let mut refused_ns = None;
        loop {
            self.check()?;
            match self.dial(purpose, queue, secret, SILENT_NS) {
                Ok(found) => return Ok(found),
                Err(failure) => match full {
                    Some(full) if matches!(failure, NoDial::Verdict(Verdict::Full, _)) => return Err(full()),
                    _ => self.judge(failure, cut_ns, &mut refused_ns)?,
                },
            }
            self.reach.sleep_ns(RETRY_NS);
        }
    }

    /// One attempt.
    fn dial(&self, purpose: Purpose, queue: u64, secret: Secret, answer_ns: u64) -> Result<(Link, u16), NoDial> {
        let hello = Hello { secret, incarnation: self.incarnation.into(), queue: queue.into(), ..hello(purpose) };
        let (link, welcome, _) = dial(&self.reach, &hello, Patience { connect_ns: 500_000_000, answer_ns })?;
        self.watch_silence(&link);
        Ok((link, welcome.owner.get()))
    }

    /// Whether a failed attempt leaves hope.
    fn judge(&self, failure: NoDial, cut_ns: u64, refused_ns: &mut Option<u64>) -> Result<(), Lost> {
        let now = self.reach.now_ns();
        let refused = matches!(failure, NoDial::System(Errno(libc::ECONNREFUSED | libc::ENOENT)));
        match failure {
            NoDial::Verdict(Verdict::Incarnation, _) => {
                return Err(self.give_up("it was started anew and no longer has this program's memory".into()));
            }
            NoDial::Verdict(Verdict::Unknown, _) => {
                return Err(self
                    .give_up("it has given this program's memory back: the grace period or the run was over".into()));
            }
            NoDial::NotFarmem | NoDial::Verdict(Verdict::Version | Verdict::Malformed, _) => {
                return Err(self.give_up("something else listens at its address now".into()));
            }
            NoDial::System(Errno(libc::EACCES)) if self.mapped => {
                return Err(self.give_up("this process has given up the rights to reach its socket".into()));
            }
            _ if self.mapped => return Err(self.give_up("its process has ended".into())),
            NoDial::System(_) | NoDial::Silent | NoDial::Closed | NoDial::Verdict(..) => {}
        }
        if refused {
            let since = *refused_ns.get_or_insert(now);
            if self.direct && now - since >= REFUSED_NS {
                return Err(self.give_up("its process has ended: nobody listens at its address any more".into()));
            }
        } else {
            *refused_ns = None;
        }
        if now - cut_ns >= self.grace.as_nanos() as u64 {
            let grace = self.grace;
            return Err(
                self.give_up(format!("the connection was cut and could not be restored within {grace:?}: {failure}"))
            );
        }
        Ok(())
    }

    pub fn tend(&self, control: &mut Control) -> Result<(), Lost> {
        self.check()?;
        if control.link.as_ref().is_some_and(|link| !link.is_cut()) {
            return Ok(());
        }
        control.link = None;
        let now = self.reach.now_ns();
        if control.cut_ns == 0 {
            control.cut_ns = now;
        }
        // One attempt a call. A refusal is repeated by the calls to come; it counts from the cut.
        let mut refused_ns = Some(control.cut_ns);
        match self.dial(Purpose::Rejoin, 0, self.secret, 250_000_000) {
            Ok((link, _)) => {
                (control.link, control.cut_ns) = (Some(link), 0);
                Ok(())
            }
            // Connected and silent: stopped, perhaps. As long as a stopped node is waited for.
            Err(NoDial::Silent) if now - control.cut_ns < SILENT_NS => Ok(()),
            Err(failure) => self.judge(failure, control.cut_ns, &mut refused_ns),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::nic::MAX_QUEUES;
    use crate::sim::{Network, Weather};
    use crate::{ConnectOptions, Session};
    use farmem_protocol::addr::SLAB_BYTES;

    fn session(network: &std::sync::Arc<Network>) -> Session {
        let options = ConnectOptions {
            timeout: Duration::from_secs(2),
            grace: Duration::from_secs(5),
            run: [1; 16],
            pid: 1,
            transport: Default::default(),
        };
        Session::simulated(network, &options).unwrap()
    }

    /// A node's table of a member's queue pairs is full while as many have connections. One more is
    /// refused and loses nothing. When one closes there is room again, and one that was cut waits
    /// for it.
    #[test]
    fn a_queue_pair_too_many_loses_nothing() {
        for purpose in [Purpose::Attach, Purpose::Wire] {
            let network = Network::new(Weather::default(), SLAB_BYTES);
            let session = session(&network);
            let member = &session.member;
            let first = member.attach(purpose, 0).unwrap();
            // As over connections that stand.
            let standing = |queue: u64| {
                let (secret, incarnation) = (member.secret, member.incarnation.into());
                let hello = Hello { secret, incarnation, queue: queue.into(), ..hello(purpose) };
                network.with_nic(|nic| match purpose {
                    Purpose::Wire => nic.attach_wire(&hello).map(|_| None).unwrap(),
                    _ => nic.attach(&hello).map(Some).unwrap(),
                })
            };
            let others: Vec<_> = (1..MAX_QUEUES as u64).map(standing).collect();
            let begun = network.now_ns();
            assert!(member.attach(purpose, MAX_QUEUES as u64).is_err(), "{purpose:?}");
            assert!(network.now_ns() - begun < 1_000_000, "{purpose:?}: as long as a node that is away");
            assert!(!session.is_lost() && session.grant().is_ok(), "{purpose:?}");
            // One of them again, as after a cut, has the place that it had.
            let again = member.restore(purpose, 0).unwrap();
            assert!(member.attach(purpose, MAX_QUEUES as u64).is_err(), "{purpose:?}");
            drop((first, again));
            network.pass(1_000_000);
            assert!(member.attach(purpose, MAX_QUEUES as u64).is_ok(), "{purpose:?}");
            session.end_run([1; 16]).unwrap();
            assert!(member.restore(purpose, 0).is_err(), "{purpose:?}: a member that is gone");
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
