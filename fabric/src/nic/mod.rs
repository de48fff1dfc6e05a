//! The software NIC: everything a node does but its sockets and its clock.
//!
//! * [`lending`]: slabs and the limit.
//! * This file: *members* and what they hold.
//! * [`engine`]: one connection: bytes in, verbs carried out, bytes out.
//! * [`admit`]: from a key to memory, or a refusal. [`windows`]: keys for parts of it.
//! * [`pool`]: the words that say who owns what.
//! * `wires`: what members reach by an RDMA card, past all this.
//! * [`epochs`]: when what was admitted under a revoked right has ended.
//!
//! The daemon runs it over epoll, the simulator in virtual time, the fuzzer on
//! garbage; it is the same code. Time is an argument.
//!
//! A *member* is one process of a run at this node, known by a secret. It is
//! present while any connection of its stands:
//!
//! ```text
//!         Join, Ticket                         last connection closed
//!  (none) ───────────► present ────────────────────────────────────────► absent ── grace over ──► gone
//!                       │  ▲ ▲                                            │  │
//!                       │  │ └──────────── Rejoin, Attach ────────────────┘  │
//!                       │  └─ a Ticket's member begins absent                │
//!                       └── Bye, EndRun, or its Unix socket closed ──────────┴──────► gone
//! ```
//! (EndRun ends no member whose Unix socket stands.)
//!
//! A closed Unix socket proves that the process is gone, or has exec'ed; a closed
//! TCP connection proves nothing. Gone: its slabs lose one holder, its queue
//! pairs carry out nothing more.

pub mod admit;
pub mod engine;
pub mod epochs;
pub mod lending;
pub mod offer;
pub mod offload;
pub mod pool;
pub mod windows;
pub(crate) mod wires;

use epochs::{Epochs, Section};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Answer, Hello, REPLY_BYTES, Secret, Status, Verdict};
use farmem_sys::sync::Lock;
use farmem_sys::verbs::Device;
use lending::{Lending, NoSlab, Slab};
use offload::Which;
use pool::Pool;
use pool::files::File;
use pool::leases::Lease;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use windows::Windows;
use wires::Wires;

/// Members at one node, at most.
pub const MAX_MEMBERS: usize = 4096;
/// Queue pairs of one member, at most.
pub const MAX_QUEUES: usize = 8192;
/// The longest grace a member can have, in milliseconds: an hour.
pub const MAX_GRACE_MS: u64 = 3_600_000;
/// What the node adds to a member's grace: the host's clock for it starts later than ours when the
/// connection is closed here first.
const GRACE_MARGIN_NS: u64 = 1_000_000_000;

/// What a node counts, for its operator.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Tally {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub cas: AtomicU64,
    pub faa: AtomicU64,
    pub binds: AtomicU64,
    pub invalidates: AtomicU64,
    pub sends: AtomicU64,
    pub regenerated: AtomicU64,
    pub read_bytes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub records: AtomicU64,
    pub record_bytes: AtomicU64,
    pub refused_verbs: AtomicU64,
    pub grants: AtomicU64,
    pub discarded_bytes: AtomicU64,
    pub exhausted: AtomicU64,
    pub joined: AtomicU64,
    pub rejoined: AtomicU64,
    pub refused_hellos: AtomicU64,
    pub broken_connections: AtomicU64,
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Who has an owner id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The process; 0: a run, which holds slabs.
    pub pid: u32,
    /// The same for all of a run.
    pub run: u64,
}

/// Figures that a member can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Figure {
    /// Windows that members have.
    Windows = 1,
    /// Of these, bound.
    WindowsBound = 2,
    /// CPU time of draining and of the words, in nanoseconds.
    DrainNs = 3,
    /// CPU time of scrubbing, in nanoseconds.
    ScrubNs = 4,
    /// Bytes scrubbed.
    ScrubbedBytes = 5,
    /// Units made clean.
    Reclaimed = 6,
    /// Bytes of memory really taken from the system.
    InUse = 7,
}

impl Figure {
    /// From its number.
    pub const fn of(number: u64) -> Option<Figure> {
        Some(match number {
            1 => Figure::Windows,
            2 => Figure::WindowsBound,
            3 => Figure::DrainNs,
            4 => Figure::ScrubNs,
            5 => Figure::ScrubbedBytes,
            6 => Figure::Reclaimed,
            7 => Figure::InUse,
            _ => return None,
        })
    }
}

/// A node's state, shared by all its connections.
pub struct Nic {
    /// The memory.
    pub lending: Arc<Lending>,
    /// What was done so far.
    pub tally: Tally,
    /// Drawn at start; see [`farmem_protocol::wire::Welcome`].
    pub incarnation: u64,
    /// Windows bound and unbound.
    pub windows: Windows,
    /// The memory that is owned piece by piece.
    pub pool: Arc<Pool>,
    /// Chunks with windows, if the node offers any.
    offered: OnceLock<offer::Offered>,
    /// Members that are gone and may have taken some.
    departed: Lock<Vec<u64>>,
    /// Transfers under way.
    pub(crate) epochs: Epochs,
    /// Serial numbers given to members.
    serials: AtomicU64,
    members: Lock<BTreeMap<Secret, Arc<Member>>>,
    /// Owners in whose names the slabs of runs are held.
    runs: Lock<BTreeMap<Secret, Weak<Lease>>>,
    /// By which members may reach their slabs past this software.
    card: Option<Device>,
    draining: AtomicBool,
    draw: Box<dyn Fn() -> Secret + Send + Sync>,
}

/// One process of a run.
pub struct Member {
    run: Secret,
    pid: u32,
    secret: Secret,
    /// Never given to another while the node lives; from 1.
    serial: u64,
    /// By which descriptor words name what it claims.
    lease: Lease,
    /// And its run's slabs.
    tenancy: Arc<Lease>,
    /// Joined through a Unix socket, whose end is the process's end, and does not outlive it.
    local: bool,
    grace_ns: u64,
    presence: Lock<Presence>,
    holds: Lock<Holds>,
    /// Locked before `holds`.
    wires: Lock<Wires>,
}

struct Presence {
    connections: usize,
    absent_since: u64,
    queues: BTreeMap<u64, Arc<QueueTurn>>,
    answered: Option<Answer>,
}

#[derive(Default)]
struct Holds {
    gone: bool,
    slabs: BTreeMap<SlabId, Arc<Slab>>,
    /// By their indexes.
    windows: BTreeSet<u32>,
}

/// Which connection of a queue pair may carry out verbs: the one that attached last. Whoever
/// carries out a verb holds the lock, so that after an Attach nothing of the connection before
/// can still reach memory.
struct QueueTurn(Lock<u64>);

impl Member {
    /// The host's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The id by which descriptor words name it.
    pub fn owner(&self) -> u16 {
        self.lease.owner().slot()
    }

    /// Bytes held.
    pub fn held(&self) -> u64 {
        self.holds.lock().slabs.len() as u64 * farmem_protocol::addr::SLAB_BYTES
    }

    /// Whether its time here is over.
    pub fn is_gone(&self) -> bool {
        self.holds.lock().gone
    }

    /// The slab, if this member holds it.
    fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.holds.lock().slabs.get(&id).cloned()
    }

    /// False when the member is gone already.
    fn hold(&self, slab: Arc<Slab>) -> bool {
        let mut holds = self.holds.lock();
        if !holds.gone {
            holds.slabs.insert(slab.id, slab);
        }
        !holds.gone
    }
}

impl Nic {
    /// A node's state. `draw` gives 128 unguessable bits, anew each time.
    pub fn new(lending: Lending, draw: impl Fn() -> Secret + Send + Sync + 'static) -> Nic {
        let bits = draw();
        let incarnation = bits.iter().take(8).fold(0, |word, &b| word << 8 | b as u64);
        let pool = Arc::clone(lending.pool());
        pool.inscribe(incarnation.max(1));
        Nic {
            pool,
            lending: Arc::new(lending),
            runs: Lock::new(BTreeMap::new()),
            tally: Tally::default(),
            incarnation: incarnation.max(1),
            windows: Windows::default(),
            offered: OnceLock::new(),
            departed: Lock::new(Vec::new()),
            epochs: Epochs::default(),
            serials: AtomicU64::new(0),
            members: Lock::new(BTreeMap::new()),
            card: None,
            draining: AtomicBool::new(false),
            draw: Box::new(draw),
        }
    }

    /// From now on takes no new runs.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`Nic::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Everybody who is a member now.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().values().cloned().collect()
    }

    /// Lets those go whose grace is over. Returns when to look again, if anybody is absent.
    pub fn expire(&self, now_ns: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        for member in self.members() {
            let presence = member.presence.lock();
            if presence.connections > 0 {
                continue;
            }
            let until = presence.absent_since + member.grace_ns;
            drop(presence);
            if until <= now_ns {
                self.part(&member);
            } else {
                next = Some(next.map_or(until, |n| n.min(until)));
            }
        }
        next
    }

    /// Does a piece of what the node does by itself: drains, scrubs, buries. False when there was
    /// nothing to do now. `cpu_ns` is the caller's clock of CPU time.
    pub fn keep(&self, cpu_ns: &dyn Fn() -> u64) -> bool {
        if let Some(offered) = self.offered.get() {
            for member in std::mem::take(&mut *self.departed.lock()) {
                offered.recover(member, &self.windows, &mut || self.drained());
            }
            let made = offered.regenerate(&self.windows);
            count(&self.tally.regenerated, made);
        }
        self.pool.keep(&self.epochs, cpu_ns)
    }

    /// Whether [`Nic::keep`] should be called soon; else now and then will do.
    #[inline]
    pub fn is_unkept(&self) -> bool {
        self.pool.is_unkept()
    }

    /// Bytes lent now: slabs, and units that somebody holds or that are not clean yet.
    pub fn lent(&self) -> u64 {
        self.lending.lent() + self.pool.held()
    }

    /// Ends a membership.
    fn part(&self, member: &Arc<Member>) {
        self.members.lock().remove(&member.secret);
        let mut holds = member.holds.lock();
        holds.gone = true;
        let slabs = std::mem::take(&mut holds.slabs);
        let windows = std::mem::take(&mut holds.windows);
        drop(holds);
        for index in windows {
            self.windows.discard(member.serial, index);
        }
        // Off the card before anything of it is anybody else's.
        drop(member.wires.lock().end());
        member.lease.end();
        if self.offered.get().is_some() {
            self.departed.lock().push(member.serial);
        }
        // Scrubbing takes milliseconds a slab: no lock is held here.
        drop(slabs);
    }

    /// The owner of a run's slabs.
    fn tenancy(&self, run: Secret) -> Option<Arc<Lease>> {
        let mut runs = self.runs.lock();
        if let Some(lease) = runs.get(&run).and_then(Weak::upgrade) {
            return Some(lease);
        }
        runs.retain(|_, lease| lease.strong_count() > 0);
        let lease = Arc::new(Lease::new(&self.pool)?);
        runs.insert(run, Arc::downgrade(&lease));
        Some(lease)
    }

    /// `None` when there are no more owners.
    fn enrol(
        &self,
        run: Secret,
        pid: u32,
        local: bool,
        grace_ns: u64,
        connections: usize,
        now_ns: u64,
    ) -> Option<Arc<Member>> {
        let (lease, tenancy) = (Lease::new(&self.pool)?, self.tenancy(run)?);
        let serial = self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let member = Arc::new(Member {
            run,
            pid,
            secret: (self.draw)(),
            serial,
            lease,
            tenancy,
            local,
            grace_ns,
            presence: Lock::new(Presence {
                connections,
                absent_since: now_ns,
                queues: BTreeMap::new(),
                answered: None,
            }),
            holds: Lock::new(Holds::default()),
            wires: Lock::new(Wires::default()),
        });
        self.members.lock().insert(member.secret, Arc::clone(&member));
        Some(member)
    }

    fn join(&self, hello: &Hello, local: bool, now_ns: u64) -> Result<Arc<Member>, Verdict> {
        let members = self.members.lock();
        // A run that is here goes on, and its programs start programs.
        if self.is_draining() && !members.values().any(|member| member.run == hello.run) {
            return Err(Verdict::Draining);
        }
        if members.len() >= MAX_MEMBERS {
            return Err(Verdict::Full);
        }
        drop(members);
        let grace_ns = hello.grace_ms.get().min(MAX_GRACE_MS) * 1_000_000 + GRACE_MARGIN_NS;
        count(&self.tally.joined, 1);
        let local = local && hello.lasting == 0;
        self.enrol(hello.run, hello.pid.get(), local, grace_ns, 1, now_ns).ok_or(Verdict::Full)
    }

    /// Who has an owner id now.
    pub fn who(&self, owner: u16) -> Option<Who> {
        let tag = |run: &Secret| self.tag(run);
        if let Some(member) = self.member_of(owner) {
            return Some(Who { pid: member.pid, run: tag(&member.run) });
        }
        let runs = self.runs.lock();
        let found = runs.iter().find(|(_, lease)| lease.upgrade().is_some_and(|l| l.owner().slot() == owner));
        found.map(|(run, _)| Who { pid: 0, run: tag(run) })
    }

    /// A number for a run that tells it from others, and not its name: that is the right to end it. Half of
    /// the name's bits are gone before they are mixed with what only this node knows.
    fn tag(&self, run: &Secret) -> u64 {
        let half = |from: usize| run[from..from + 8].iter().fold(0u64, |word, &byte| word << 8 | byte as u64);
        let mut mixed = half(0) ^ half(8) ^ self.incarnation;
        for _ in 0..3 {
            mixed = (mixed ^ mixed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        mixed
    }

    /// One of the node's figures.
    pub fn figure(&self, figure: Figure) -> u64 {
        let kept = self.pool.kept();
        match figure {
            Figure::Windows => self.windows.count().0,
            Figure::WindowsBound => self.windows.count().1,
            Figure::DrainNs => kept.drain_ns.load(Ordering::Relaxed),
            Figure::ScrubNs => kept.scrub_ns.load(Ordering::Relaxed),
            Figure::ScrubbedBytes => kept.scrubbed_bytes.load(Ordering::Relaxed),
            Figure::Reclaimed => kept.reclaimed.load(Ordering::Relaxed),
            Figure::InUse => self.in_use(),
        }
    }

    /// The member that has this owner id now.
    fn member_of(&self, owner: u16) -> Option<Arc<Member>> {
        self.members.lock().values().find(|member| member.owner() == owner).cloned()
    }

    /// Offers chunks with windows to every member, by a strategy. Once in a node's life.
    pub fn offer(&self, offer: offer::Offer) -> Result<(), offer::NoOffer> {
        let offered = offer::Offered::new(offer, &self.lending, &self.windows)?;
        // What is offered already stays.
        let _ = self.offered.set(offered);
        Ok(())
    }

    /// A SEND to one of the node's own queues.
    fn send(
        &self,
        (member, queue): (&Member, u64),
        service: u32,
        said: &[u8],
        reply: &mut [u8; REPLY_BYTES as usize],
        section: &mut Section<'_>,
    ) -> Result<(), Status> {
        let offered = self.offered.get().ok_or(Status::Access)?;
        let which = match service {
            1 => Which::Take,
            2 => Which::Give,
            3 => {
                for (field, word) in reply.chunks_exact_mut(8).zip(offered.describe()) {
                    field.copy_from_slice(&word.to_le_bytes());
                }
                return Ok(());
            }
            _ => return Err(Status::Access),
        };
        *reply = offered.send((member.serial, queue), which, said, &self.windows, section)?;
        Ok(())
    }

    /// Waits, outside of any section, until what is under way now has ended.
    fn drained(&self) {
        let since = self.epochs.now();
        while !self.epochs.is_over(since) {
            std::thread::yield_now();
        }
    }

    /// Finds a member by its secret and counts a connection in.
    fn rejoin(&self, hello: &Hello) -> Result<Arc<Member>, Verdict> {
        if hello.incarnation.get() != self.incarnation {
            return Err(Verdict::Incarnation);
        }
        let found = self.members.lock().get(&hello.secret).cloned();
        let member = found.ok_or(Verdict::Unknown)?;
        member.presence.lock().connections += 1;
        // It may have parted between the two lines above.
        if member.is_gone() { Err(Verdict::Unknown) } else { Ok(member) }
    }

    /// Gives the queue pair's turn to the connection that asks. Returns its turn number.
    fn attach(&self, hello: &Hello) -> Result<(Arc<Member>, Arc<QueueTurn>, u64), Verdict> {
        let member = self.rejoin(hello)?;
        let mut presence = member.presence.lock();
        if presence.queues.len() >= MAX_QUEUES && !presence.queues.contains_key(&hello.queue.get()) {
            presence.connections -= 1;
            return Err(Verdict::Full);
        }
        let queue =
            Arc::clone(presence.queues.entry(hello.queue.get()).or_insert_with(|| Arc::new(QueueTurn(Lock::new(0)))));
        drop(presence);
        let mut turn = queue.0.lock();
        *turn += 1;
        let ours = *turn;
        drop(turn);
        Ok((member, queue, ours))
    }

    /// A connection of the member has closed.
    fn left(&self, member: &Arc<Member>, was_control: bool, now_ns: u64) {
        let mut presence = member.presence.lock();
        presence.connections -= 1;
        presence.absent_since = now_ns;
        drop(presence);
        if was_control && member.local {
            self.part(member);
        }
    }

    fn grant(&self, member: &Arc<Member>) -> Result<Arc<Slab>, (Status, u64)> {
        match self.lending.grant(&member.tenancy) {
            Ok(slab) if member.hold(Arc::clone(&slab)) => {
                count(&self.tally.grants, 1);
                Ok(slab)
            }
            Ok(_) => Err((Status::NotHeld, 0)),
            Err(NoSlab::Exhausted) => {
                count(&self.tally.exhausted, 1);
                Err((Status::Exhausted, self.lending.limit()))
            }
            Err(NoSlab::System(e)) => Err((Status::System, e.0 as u64)),
        }
    }

    fn release(&self, member: &Arc<Member>, id: SlabId) -> Status {
        let slab = member.holds.lock().slabs.remove(&id);
        self.unbind_slab(member, id);
        member.wires.lock().withdraw(id);
        if slab.is_some() { Status::Done } else { Status::NotHeld }
    }

    /// Gives the memory of a range back to the system. Only a slab's sole holder may: to another, who
    /// forked or was forked, the bytes may still mean something.
    fn discard(&self, member: &Arc<Member>, id: SlabId, detail: &[u8; 16]) -> Status {
        let (offset, len) = detail.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, &b| word << 8 | b as u64);
        let (offset, len) = (number(offset), number(len));
        let Some(slab) = member.slab(id) else { return Status::NotHeld };
        if !offset.is_multiple_of(4096) || !len.is_multiple_of(4096) || slab.mapping.at(offset, len).is_none() {
            return Status::Range;
        }
        if self.members().iter().any(|other| !Arc::ptr_eq(other, member) && other.slab(id).is_some()) {
            return Status::Shared;
        }
        if member.wires.lock().exposes(id) {
            // Its pages are the card's until it ends: they are not given back, but they do read as zero.
            return if slab.mapping.zero(offset, len) { Status::Done } else { Status::Range };
        }
        slab.discard(offset, len);
        count(&self.tally.discarded_bytes, len);
        Status::Done
    }

    /// A file of blocks that a member on this machine has claimed, for it to map.
    fn unit(&self, member: &Member, key: Key, detail: &[u8; 16], local: bool) -> Result<Arc<File>, (Status, i32)> {
        let (count, rest) = detail.split_at(8);
        let count = count.iter().rev().fold(0u64, |word, &b| word << 8 | b as u64);
        if !local || rest != [0; 8] {
            return Err((Status::System, libc::EOPNOTSUPP));
        }
        self.pool.file(&member.lease, key, count.min(u32::MAX as u64) as u32)
    }

    /// Bytes of memory that slabs have really taken: pages touched and not given back. At most what is
    /// lent. A system call for each slab: for an operator's view, not for a hot path.
    pub fn in_use(&self) -> u64 {
        let mut slabs = BTreeMap::new();
        for member in self.members() {
            slabs.extend(member.holds.lock().slabs.iter().map(|(id, slab)| (*id, Arc::clone(slab))));
        }
        slabs.values().map(|slab| slab.taken()).sum::<u64>() + self.pool.taken()
    }

    /// A member for a child about to be forked, holding what its parent holds.
    fn ticket(&self, parent: &Arc<Member>, now_ns: u64) -> Result<Secret, Status> {
        if self.members.lock().len() >= MAX_MEMBERS {
            return Err(Status::System);
        }
        let child = self.enrol(parent.run, parent.pid, parent.local, parent.grace_ns, 0, now_ns);
        let child = child.ok_or(Status::System)?;
        let slabs: Vec<Arc<Slab>> = parent.holds.lock().slabs.values().cloned().collect();
        for slab in slabs {
            child.hold(slab);
        }
        Ok(child.secret)
    }

    fn end_run(&self, run: &Secret) {
        for member in self.members().iter().filter(|member| member.run == *run) {
            // A Unix socket that stands is a process that lives, whatever its supervisor believes; its
            // memory is mapped there, and to be free again as soon as the process ends.
            if !(member.local && member.presence.lock().connections > 0) {
                self.part(member);
            }
        }
    }
}
