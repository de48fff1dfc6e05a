//! A member of a run at one node, and how it stays one.
//!
//! A session has one connection for control (grants, releases, tickets) and
//! lends its identity, a secret, to queue pairs with connections of their own.
//! Any of these may be cut; each is restored by whoever next needs it:
//!
//! ```text
//!  cut ─► dial again, with secret and incarnation
//!          ├─ welcome ──────────────────────────► go on; repeat what had no answer
//!          ├─ unknown, other incarnation ───────► Lost: the memory is gone
//!          ├─ refused, no middlebox between ────► Lost after REFUSED_NS: nobody listens
//!          ├─ refused by a middlebox, unreachable, closed at once ─► again, until grace is over
//!          └─ connected, silent ────────────────► wait: a stopped node answers when it continues
//! ```
//!
//! Whether a middlebox is between is known from the first Welcome: the node says
//! which address of its own the connection came in at. The reasoning behind these
//! rules is in `docs/design/fabric.md`.
//!
//! Over shared memory there is no path to be cut: a closed Unix socket is a dead node.

use crate::link::{Link, Reach};
use crate::mapping::Mapping;
use crate::nic::{Figure, Who};
use crate::shape::Shaper;
use crate::verbs::{Card, queue::try_once};
use crate::{ConnectError, GrantError, Lost, NodeAddr, QueuePair, WindowError};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::Key;
use farmem_protocol::wire::{
    Answer, Ask, Hello, MAGIC, MAX_PATH, OFFERS_RDMA, Purpose, Request, Secret, Status, VERSION, Verdict, Welcome,
};
use farmem_sys::raw::{self, Errno};
use farmem_sys::sync::Lock;
use farmem_sys::verbs::Device;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// The name of a run: 128 bits that only its members know.
pub type RunId = Secret;

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
/// How long a node may take to answer that a run is over.
pub const FAREWELL_NS: u64 = 1_000_000_000;
/// Between attempts to restore a connection.
const RETRY_NS: u64 = 50_000_000;

/// How bytes are to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Shared memory where the node is on this machine and offers it; RDMA where both have a card and
    /// it works between them; else TCP.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA: slabs are reached past the node's processor.
    Verbs,
}

/// What a member is, and what it wants.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// How long the first connection may take.
    pub timeout: Duration,
    /// How long a cut connection may take to come back. The node keeps the member's memory as long.
    pub grace: Duration,
    /// The run it belongs to.
    pub run: RunId,
    /// Its process, for the node's records.
    pub pid: u32,
    /// How bytes are to move.
    pub transport: Transport,
}

/// One slab, as granted: zero.
#[derive(Debug)]
pub struct Slab {
    /// Its name at the node.
    pub id: SlabId,
    /// Where it is mapped (shm). It stays mapped until released.
    pub base: Option<NonNull<u8>>,
}

/// What a member is known by at its node; see [`Session::resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its secret.
    pub secret: Secret,
    /// The node's incarnation.
    pub incarnation: u64,
    /// Number of its last request. A request under the number of the one before is answered as that one
    /// was, and not carried out again.
    pub number: u64,
}

/// One member of a run at one node. Shared by the threads of a process.
///
/// Dropping it leaves the node in good order. In a forked child, use
/// [`Session::forget_in_child`].
pub struct Session {
    pub(crate) member: Arc<Membership>,
}

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
    /// RDMA, if slabs are reached by it.
    pub card: Card,
    pub control: Lock<Control>,
    pub slabs: Lock<BTreeMap<SlabId, Mapping>>,
    next_queue: AtomicU64,
    /// Once lost, lost for all that belongs to the member.
    lost: Lock<Option<Lost>>,
    is_lost: AtomicBool,
}

pub(crate) struct Control {
    pub link: Option<Link>,
    pub number: u64,
    /// When the connection was first found cut; 0 while it stands.
    pub cut_ns: u64,
}

/// The session, the node's Unix path, and what else it offers.
type Joined = (Session, Option<PathBuf>, u8);

impl Session {
    /// Joins a node.
    ///
    /// A host's name is resolved here and only here.
    pub fn connect(addr: &NodeAddr, options: &ConnectOptions) -> Result<Session, ConnectError> {
        Session::connect_at_rate(addr, options, None)
    }

    /// [`Session::connect`], with what goes over TCP held to so many bits a second each way ([`crate::shape`]).
    pub fn connect_at_rate(
        addr: &NodeAddr,
        options: &ConnectOptions,
        bits_per_s: Option<u64>,
    ) -> Result<Session, ConnectError> {
        let shaper = bits_per_s.map(|rate| Arc::new(Shaper::new(rate)));
        let reach = |at| match &shaper {
            Some(shaper) => Reach::Shaped(at, Arc::clone(shaper)),
            None => Reach::Tcp(at),
        };
        let node = addr.to_string();
        match (addr, options.transport) {
            (NodeAddr::Shm(_), Transport::Verbs) => Err(ConnectError::NoRdma {
                node,
                reason: "it is a Unix socket on this machine: give its HOST:PORT".into(),
            }),
            (NodeAddr::Shm(_), Transport::Tcp) => Err(ConnectError::NotShared(node)),
            (NodeAddr::Shm(path), _) => {
                Session::join(Reach::Unix(path.clone()), node, options).map(|(session, ..)| session)
            }
            (NodeAddr::Tcp(host), transport) => {
                let mut failed = None;
                for at in resolve(host)? {
                    match Session::join(reach(at), node.clone(), options) {
                        Ok((session, path, offers)) => {
                            let session = session.shared_if_possible(path, transport, options)?;
                            // A rate is TCP's.
                            let by_card = !session.member.mapped && shaper.is_none();
                            return if by_card { session.by_card(offers, transport) } else { Ok(session) };
                        }
                        Err(e) => failed = Some(e),
                    }
                }
                Err(failed.unwrap_or(ConnectError::Name { node, reason: "it has none".into() }))
            }
        }
    }

    /// Joins a node on this machine as a member that outlives its process: when the connection ends without a
    /// farewell the node keeps the member's slabs for the grace, and [`Session::resume`] has them again.
    pub fn connect_lasting(path: &std::path::Path, options: &ConnectOptions) -> Result<Session, ConnectError> {
        let (reach, node) = (Reach::Unix(path.to_owned()), format!("unix:{}", path.display()));
        Session::join_as(reach, node, options, 1).map(|(session, ..)| session)
    }

    /// The member again, in another process: what the last one said [`Session::identity`] was. It holds
    /// the slabs that it held; none is mapped here.
    pub fn resume(
        path: &std::path::Path,
        options: &ConnectOptions,
        identity: &Identity,
    ) -> Result<Session, ConnectError> {
        let (reach, node) = (Reach::Unix(path.to_owned()), format!("unix:{}", path.display()));
        let Identity { secret, incarnation, number } = *identity;
        let hello = Hello { secret, incarnation: incarnation.into(), ..hello(Purpose::Rejoin) };
        let patience = Patience::both(options.timeout.as_nanos() as u64);
        let (link, welcome, _) = dial(&reach, &hello, patience).map_err(|e| e.at_start(&node))?;
        let control = Lock::new(Control { link: Some(link), number, cut_ns: 0 });
        let member = Membership {
            node,
            secret,
            owner: welcome.owner.get(),
            incarnation,
            grace: options.grace,
            direct: true,
            mapped: true,
            card: Card::default(),
            control,
            slabs: Lock::new(BTreeMap::new()),
            next_queue: AtomicU64::new(1),
            lost: Lock::new(None),
            is_lost: AtomicBool::new(false),
            reach,
        };
        Ok(Session { member: Arc::new(member) })
    }

    /// What [`Session::resume`] needs to know.
    pub fn identity(&self) -> Identity {
        let number = self.member.control.lock().number;
        Identity { secret: self.member.secret, incarnation: self.member.incarnation, number }
    }

    /// Another descriptor of a slab that is held, for a process to map that the caller answers for. The
    /// caller closes it. `None`: the slab is not held, or not shared.
    pub fn descriptor(&self, id: SlabId) -> Result<Option<i32>, Lost> {
        self.member.ask(Ask::Again, id, [0; 16]).map(|(_, passed)| passed)
    }

    /// The memory of `blocks` neighbouring blocks (of 2 MiB, 1 to 512) that this member claimed through the
    /// node's words, the first by this key: a descriptor of just these, for processes on this machine to map.
    /// The same memory every time, and what verbs by the blocks' keys reach. The caller closes it.
    ///
    /// # Errors
    /// [`GrantError::System`], too, when the blocks are not this member's, or the node is not on this machine.
    pub fn unit(&self, first: Key, blocks: u32) -> Result<i32, GrantError> {
        let mut detail = [0; 16];
        detail[..8].copy_from_slice(&(blocks as u64).to_le_bytes());
        let (answer, passed) = self.member.ask(Ask::Unit, SlabId(first.0), detail)?;
        let system = |reason| Err(GrantError::System { node: self.member.node.clone(), reason });
        match (Status::of(answer.status), passed) {
            (Some(Status::Done), Some(fd)) => Ok(fd),
            // The node passed one; this process had no room for it.
            (Some(Status::Done), None) => system(format!("here: {}", Errno(libc::EMFILE))),
            (Some(Status::System), _) => system(format!("there: {}", Errno(answer.value.get() as i32))),
            (Some(Status::Shared), _) => system("some of these blocks were mapped together with others".into()),
            _ => system("these blocks are not this program's".into()),
        }
    }

    /// Joins the node of a simulated network.
    pub fn simulated(network: &Arc<crate::sim::Network>, options: &ConnectOptions) -> Result<Session, ConnectError> {
        Session::join(Reach::Sim(Arc::clone(network)), "sim".into(), options).map(|(session, ..)| session)
    }

    fn join(reach: Reach, node: String, options: &ConnectOptions) -> Result<Joined, ConnectError> {
        Session::join_as(reach, node, options, 0)
    }

    fn join_as(reach: Reach, node: String, options: &ConnectOptions, lasting: u8) -> Result<Joined, ConnectError> {
        let (run, pid, grace_ms) = (options.run, options.pid.into(), (options.grace.as_millis() as u64).into());
        let hello = Hello { run, pid, grace_ms, lasting, ..hello(Purpose::Join) };
        let patience = Patience::both(options.timeout.as_nanos() as u64);
        let (link, welcome, path) = dial(&reach, &hello, patience).map_err(|e| e.at_start(&node))?;
        let mapped = matches!(reach, Reach::Unix(_));
        let own_end = SocketAddr::new(IpAddr::V6(Ipv6Addr::from(welcome.address)), welcome.port.get());
        let dialled = link.peer_address().map(|at| SocketAddr::new(canonical(at.ip()), at.port()));
        let member = Membership {
            node,
            secret: welcome.secret,
            incarnation: welcome.incarnation.get(),
            owner: welcome.owner.get(),
            grace: options.grace,
            direct: matches!(reach, Reach::Sim(_))
                || dialled == Some(SocketAddr::new(canonical(own_end.ip()), own_end.port())),
            mapped,
            card: Card::default(),
            control: Lock::new(Control { link: None, number: 1, cut_ns: 0 }),
            slabs: Lock::new(BTreeMap::new()),
            next_queue: AtomicU64::new(1),
            lost: Lock::new(None),
            is_lost: AtomicBool::new(false),
            reach,
        };
        member.watch_silence(&link);
        member.control.lock().link = Some(link);
        Ok((Session { member: Arc::new(member) }, path, welcome.offers))
    }

    /// A node on this machine may have told a Unix path: goes over to it, if the same node answers there.
    fn shared_if_possible(
        self,
        path: Option<PathBuf>,
        transport: Transport,
        options: &ConnectOptions,
    ) -> Result<Session, ConnectError> {
        if matches!(transport, Transport::Tcp | Transport::Verbs) {
            return Ok(self);
        }
        let shared = path.map(|path| Session::join(Reach::Unix(path), self.member.node.clone(), options));
        match shared {
            Some(Ok((shared, ..))) if shared.member.incarnation == self.member.incarnation => Ok(shared),
            _ if transport == Transport::Shm => Err(ConnectError::NotShared(self.member.node.clone())),
            _ => Ok(self),
        }
    }

    /// Goes over to RDMA, if that is wanted and works.
    fn by_card(mut self, offers: u8, transport: Transport) -> Result<Session, ConnectError> {
        let works = match transport {
            Transport::Tcp | Transport::Shm => return Ok(self),
            Transport::Auto if offers & OFFERS_RDMA == 0 => return Ok(self),
            Transport::Verbs if offers & OFFERS_RDMA == 0 => {
                Err("it has no RDMA card, or was started with --rdma off".into())
            }
            Transport::Auto | Transport::Verbs => self.open_card(),
        };
        match works {
            Ok(()) => Ok(self),
            Err(reason) if transport == Transport::Verbs => {
                Err(ConnectError::NoRdma { node: self.member.node.clone(), reason })
            }
            Err(_) => {
                if let Some(member) = Arc::get_mut(&mut self.member) {
                    member.card = Card::default();
                }
                Ok(self)
            }
        }
    }

    fn open_card(&mut self) -> Result<(), String> {
        let opened = Device::open(None).and_then(Card::opened).map_err(|e| e.to_string())?;
        if let Some(member) = Arc::get_mut(&mut self.member) {
            member.card = opened;
        }
        try_once(&self.member, self.member.next_queue.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether verbs on slabs go by RDMA.
    pub fn is_wired(&self) -> bool {
        self.member.card.wanted
    }

    /// Whether slabs are mapped in this process.
    pub fn is_mapped(&self) -> bool {
        self.member.mapped
    }

    /// Whether nothing relays between this host and the node: who refuses a connection is the node's own
    /// machine.
    pub fn is_direct(&self) -> bool {
        self.member.direct || self.member.mapped
    }

    /// The node's address, as given.
    pub fn node(&self) -> &str {
        &self.member.node
    }

    /// The id by which windows and descriptor words at the node name this member.
    pub fn owner(&self) -> u16 {
        self.member.owner
    }

    /// A window, unbound; the key by which a BIND names it. A member has 65 536 at most.
    pub fn window(&self) -> Result<Key, WindowError> {
        let (answer, _) = self.member.ask(Ask::Window, SlabId(0), [0; 16])?;
        match Status::of(answer.status) {
            Some(Status::Done) => Ok(Key(answer.value.get())),
            _ => Err(WindowError::Exhausted(self.member.node.clone())),
        }
    }

    /// Who has an owner id at the node now; `None`: nobody.
    pub fn who(&self, owner: u16) -> Result<Option<Who>, Lost> {
        let (answer, _) = self.member.ask(Ask::Who, SlabId(owner as u64), [0; 16])?;
        let run = answer.secret.iter().take(8).rev().fold(0u64, |word, &byte| word << 8 | byte as u64);
        let done = Status::of(answer.status) == Some(Status::Done);
        Ok(done.then_some(Who { pid: answer.value.get() as u32, run }))
    }

    /// A figure of the node's.
    pub fn figure(&self, figure: Figure) -> Result<u64, Lost> {
        self.member.ask(Ask::Figure, SlabId(figure as u64), [0; 16]).map(|(answer, _)| answer.value.get())
    }

    /// The window, bound or not, by any key it ever had, is no longer needed.
    pub fn drop_window(&self, key: Key) -> Result<(), Lost> {
        self.member.ask(Ask::DropWindow, SlabId(key.0), [0; 16]).map(|_| ())
    }

    /// One more slab, zero.
    pub fn grant(&self) -> Result<Slab, GrantError> {
        let (answer, passed) = self.member.ask(Ask::Grant, SlabId(0), [0; 16])?;
        let system = |reason| GrantError::System { node: self.member.node.clone(), reason };
        match Status::of(answer.status) {
            Some(Status::Done) => {}
            Some(Status::Exhausted) => {
                return Err(GrantError::Exhausted {
                    node: self.member.node.clone(),
                    lend_mib: answer.value.get() >> 20,
                });
            }
            Some(Status::System) => return Err(system(format!("there: {}", Errno(answer.value.get() as i32)))),
            _ => {
                let reason = "it no longer knows this program".to_owned();
                return Err(self.member.give_up(reason).into());
            }
        }
        let id = SlabId(answer.value.get());
        if !self.member.mapped {
            return Ok(Slab { id, base: None });
        }
        let mapping = match passed {
            Some(fd) => {
                let mapping = Mapping::new(fd, SLAB_BYTES as usize);
                raw::close(fd);
                mapping
            }
            // The node passed one; this process had no room for it.
            None => Err(Errno(libc::EMFILE)),
        };
        match mapping {
            Ok(mapping) => {
                let base = mapping.extent().0;
                self.member.slabs.lock().insert(id, mapping);
                Ok(Slab { id, base: Some(base) })
            }
            Err(e) => {
                self.release(id)?;
                Err(system(format!("here: {e}")))
            }
        }
    }

    /// This member no longer needs the slab. It is unmapped; no queue pair may use it any more.
    pub fn release(&self, id: SlabId) -> Result<(), Lost> {
        let mapping = self.member.slabs.lock().remove(&id);
        drop(mapping);
        self.member.card.forget_key(id);
        self.member.ask(Ask::Release, id, [0; 16]).map(|_| ())
    }

    /// Gives the memory of a range of a slab back to the node's system: it reads as zero from now on.
    /// The slab stays held. False when that cannot be, for a fork has made it another member's too.
    ///
    /// No verb on the range may be under way. Where slabs are mapped nobody is asked, and it is for the
    /// caller to know that the slab is not shared.
    pub fn discard(&self, id: SlabId, offset: u64, len: u64) -> Result<bool, Lost> {
        if self.member.mapped {
            return Ok(self.member.slabs.lock().get(&id).is_some_and(|mapping| mapping.discard(offset, len)));
        }
        let mut detail = [0; 16];
        detail[..8].copy_from_slice(&offset.to_le_bytes());
        detail[8..].copy_from_slice(&len.to_le_bytes());
        let (answer, _) = self.member.ask(Ask::Discard, id, detail)?;
        Ok(Status::of(answer.status) == Some(Status::Done))
    }

    /// A queue pair of its own for a thread.
    pub fn queue_pair(&self) -> Result<QueuePair, Lost> {
        let number = self.member.next_queue.fetch_add(1, Ordering::Relaxed);
        QueuePair::new(Arc::clone(&self.member), number)
    }

    /// Looks whether the node is still there, and restores the control connection if it was cut. For
    /// a background thread, a few times a second: a queue pair over shared memory would never know.
    /// Waits half a second at most.
    pub fn tend(&self) -> Result<(), Lost> {
        // Held: somebody is asking the node something, and will notice.
        match self.member.control.try_lock() {
            Some(mut control) => self.member.tend(&mut control),
            None => self.member.check(),
        }
    }

    /// The run is over: its members' slabs are free now. For the run's supervisor.
    ///
    /// The run's end waits for this, and the node can do without it (it sees the members go, and waits
    /// for their graces): a connection that was cut is dialled once, and a node that does not answer
    /// within [`FAREWELL_NS`] finds the request when it looks.
    pub fn end_run(&self, run: RunId) -> Result<(), Lost> {
        self.member.say_over(run)
    }

    /// This process is about to end: over framed transports says goodbye, so that the node need not wait
    /// for a member that might come back. Waits for nobody. Verbs of other threads are refused from here
    /// on. Where slabs are mapped the node sees the end itself, and must not know of it before.
    pub fn farewell(&self) {
        if !self.member.mapped
            && let Some(mut control) = self.member.control.try_lock()
        {
            say_bye(&mut control);
        }
    }

    /// In a forked child, which inherited its parent's session: closes the descriptors and says
    /// nothing on them. Mappings of slabs stay, for the child's own session owns them now.
    pub fn forget_in_child(self) {
        let control = self.member.control.try_lock().unwrap_or_else(|| {
            // Its holder was another thread at the moment of the fork and does not exist here.
            self.member.control.release_after_fork();
            self.member.control.lock()
        });
        { control }.link = None;
        self.member.card.forget_in_child();
        std::mem::forget(self);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        say_bye(&mut self.member.control.lock());
    }
}

/// Best effort: a node that does not read it sees the connection close.
fn say_bye(control: &mut Control) {
    if let Some(link) = control.link.take() {
        let bye = request(Ask::Bye, control.number + 1, SlabId(0), [0; 16]);
        let _ = send_now(&link, bye.as_bytes());
    }
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
            card: self.card.of_child(),
            control: Lock::new(Control { link: Some(link), number: 1, cut_ns: 0 }),
            slabs: Lock::new(slabs),
            next_queue: AtomicU64::new(1),
            lost: Lock::new(None),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Whether it was found lost before.
    pub fn check(&self) -> Result<(), Lost> {
        if !self.is_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.lost.lock().clone().unwrap_or_else(|| self.lost_because("it was lost before".into())))
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

    fn watch_silence(&self, link: &Link) {
        link.notice_silence((self.grace.as_millis() as u64).max(UNACKNOWLEDGED_MS).min(u32::MAX as u64) as u32);
    }

    /// Sends a request and waits for its answer, over as many connections as it takes.
    pub fn ask(&self, ask: Ask, slab: SlabId, detail: [u8; 16]) -> Result<(Answer, Option<i32>), Lost> {
        self.check()?;
        let mut control = self.control.lock();
        control.number += 1;
        let request = request(ask, control.number, slab, detail);
        loop {
            if let Some(link) = &control.link {
                match exchange(&self.reach, link, request.as_bytes(), SILENT_NS) {
                    Ok((answer, passed)) if answer.number == request.number => return Ok((answer, passed)),
                    Ok(_) => return Err(self.give_up("it answers what was not asked".into())),
                    Err(Errno(libc::ETIMEDOUT)) => return Err(self.silent()),
                    Err(_) => control.link = None,
                }
            }
            let link = self.restore(Purpose::Rejoin, 0)?;
            (control.link, control.cut_ns) = (Some(link), 0);
        }
    }

    /// See [`Session::end_run`].
    fn say_over(&self, run: Secret) -> Result<(), Lost> {
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
        self.give_up(format!("it has not answered for {} s", SILENT_NS / 1_000_000_000))
    }

    /// A new connection for `purpose` in place of one that was cut.
    pub fn restore(&self, purpose: Purpose, queue: u64) -> Result<Link, Lost> {
        self.restore_as(purpose, queue, self.secret).map(|(link, _)| link)
    }

    /// [`Membership::restore`], as the member of this secret. Its owner id with it.
    pub fn restore_as(&self, purpose: Purpose, queue: u64, secret: Secret) -> Result<(Link, u16), Lost> {
        let cut_ns = self.reach.now_ns();
        let mut refused_ns = None;
        loop {
            self.check()?;
            match self.dial(purpose, queue, secret, SILENT_NS) {
                Ok(found) => return Ok(found),
                Err(failure) => self.judge(failure, cut_ns, &mut refused_ns)?,
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

    fn tend(&self, control: &mut Control) -> Result<(), Lost> {
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

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(crate) enum NoDial {
    System(Errno),
    /// Connected, and no answer.
    Silent,
    /// Connected, and closed without an answer.
    Closed,
    NotFarmem,
    Verdict(Verdict, u16),
}

impl NoDial {
    fn at_start(self, node: &str) -> ConnectError {
        let node = node.to_owned();
        match self {
            NoDial::System(Errno(libc::ECONNREFUSED | libc::ENOENT)) => ConnectError::Refused(node),
            NoDial::System(Errno(libc::ETIMEDOUT)) | NoDial::Silent => ConnectError::Silent(node),
            NoDial::System(reason @ Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
                ConnectError::Here { node, reason }
            }
            NoDial::System(reason) => ConnectError::Unreachable { node, reason },
            NoDial::Closed | NoDial::NotFarmem => ConnectError::NotFarmem(node),
            NoDial::Verdict(Verdict::Version, theirs) => ConnectError::Version { node, theirs },
            NoDial::Verdict(Verdict::Draining, _) => ConnectError::Draining(node),
            NoDial::Verdict(Verdict::Full, _) => ConnectError::Full(node),
            NoDial::Verdict(Verdict::Unknown | Verdict::Incarnation, _) => ConnectError::Unknown(node),
            NoDial::Verdict(..) => ConnectError::NotFarmem(node),
        }
    }
}

impl std::fmt::Display for NoDial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoDial::System(e) => e.fmt(f),
            NoDial::Silent => f.write_str("no answer"),
            NoDial::Closed => f.write_str("closed at once"),
            NoDial::NotFarmem => f.write_str("not a farmem node"),
            NoDial::Verdict(verdict, _) => write!(f, "{verdict:?}"),
        }
    }
}

/// How long an attempt may take.
#[derive(Clone, Copy)]
struct Patience {
    connect_ns: u64,
    answer_ns: u64,
}

impl Patience {
    fn both(ns: u64) -> Patience {
        Patience { connect_ns: ns, answer_ns: ns }
    }
}

fn hello(purpose: Purpose) -> Hello {
    Hello { magic: MAGIC, version: VERSION.into(), purpose: purpose as u8, ..Hello::new_zeroed() }
}

fn request(ask: Ask, number: u64, slab: SlabId, detail: [u8; 16]) -> Request {
    Request { ask: ask as u8, zero: [0; 7], number: number.into(), slab: slab.0.into(), detail }
}

/// Connects, says hello, and reads the welcome.
fn dial(reach: &Reach, hello: &Hello, patience: Patience) -> Result<(Link, Welcome, Option<PathBuf>), NoDial> {
    let link = reach.connect(patience.connect_ns).map_err(NoDial::System)?;
    let until = reach.now_ns() + patience.answer_ns;
    send_now(&link, hello.as_bytes()).map_err(|_| NoDial::Closed)?;
    let mut welcome = Welcome::new_zeroed();
    let bytes = welcome.as_mut_bytes();
    // Magic and version first: of another version nothing more is known.
    receive_until(reach, &link, &mut bytes[..8], until)?;
    if welcome.magic != MAGIC {
        return Err(NoDial::NotFarmem);
    }
    if welcome.version != VERSION {
        return Err(NoDial::Verdict(Verdict::Version, welcome.version.get()));
    }
    receive_until(reach, &link, &mut welcome.as_mut_bytes()[8..], until)?;
    let len = welcome.path_len.get() as usize;
    match Verdict::of(welcome.verdict) {
        Some(Verdict::Welcome) if len <= MAX_PATH => {}
        Some(Verdict::Welcome) | None => return Err(NoDial::NotFarmem),
        Some(verdict) => return Err(NoDial::Verdict(verdict, VERSION)),
    }
    let mut path = [0; MAX_PATH];
    receive_until(reach, &link, &mut path[..len], until)?;
    let path = (len > 0).then(|| PathBuf::from(OsStr::from_bytes(&path[..len])));
    Ok((link, welcome, path))
}

/// Sends a frame that fits any socket's buffer.
pub(crate) fn send_now(link: &Link, bytes: &[u8]) -> Result<(), Errno> {
    match link.send_bytes(bytes) {
        Ok(n) if n == bytes.len() => Ok(()),
        // Control frames go one at a time; a buffer that does not take one is no connection.
        Ok(_) => Err(Errno(libc::EPIPE)),
        Err(e) => Err(e),
    }
}

fn receive_until(reach: &Reach, link: &Link, into: &mut [u8], until: u64) -> Result<(), NoDial> {
    match receive_all(reach, link, into, until) {
        Ok(_) => Ok(()),
        Err(Errno(libc::ETIMEDOUT)) if reach.now_ns() >= until => Err(NoDial::Silent),
        // What begins like nothing of ours and ends there is not a node.
        Err(_) if into[0] != 0 && !MAGIC.starts_with(&into[..1]) => Err(NoDial::NotFarmem),
        Err(_) => Err(NoDial::Closed),
    }
}

/// Receives exactly `into`, and a descriptor if one came along.
pub(crate) fn receive_all(reach: &Reach, link: &Link, into: &mut [u8], until: u64) -> Result<Option<i32>, Errno> {
    let mut got = 0;
    let mut passed = None;
    while got < into.len() {
        match link.receive_passed(&mut into[got..]) {
            Ok((0, _)) => return Err(Errno(libc::ECONNRESET)),
            Ok((n, fd)) => (got, passed) = (got + n, passed.or(fd)),
            Err(Errno(libc::EAGAIN)) => match until.saturating_sub(reach.now_ns()) {
                0 => return Err(Errno(libc::ETIMEDOUT)),
                left => link.wait(false, left),
            },
            Err(e) => return Err(e),
        }
    }
    Ok(passed)
}

fn exchange(reach: &Reach, link: &Link, request: &[u8], within_ns: u64) -> Result<(Answer, Option<i32>), Errno> {
    send_now(link, request)?;
    let mut answer = Answer::new_zeroed();
    let until = reach.now_ns() + within_ns;
    let passed = receive_all(reach, link, answer.as_mut_bytes(), until)?;
    Ok((answer, passed))
}

/// The addresses of `host:port`; numbers are read, names are asked for.
fn resolve(text: &str) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(number) = text.parse::<SocketAddr>() {
        return Ok(vec![number]);
    }
    let found = text.to_socket_addrs();
    found.map(Iterator::collect).map_err(|e| ConnectError::Name { node: text.to_owned(), reason: e.to_string() })
}

fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
