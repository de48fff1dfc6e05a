//! Members of runs at this node: their identity, how long they stay, and what they hold.
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
//! A member has one control connection, and one for each queue pair. A member that was cut dials
//! again, and requests that it sent before may still be under way, at the node even already
//! received. None of them is carried out any more once the node has said welcome, because the newer
//! connection has the *turn* ([`Turn`]). The request is repeated there. By the time the older copy
//! comes, its target may be something else (a window's index, a range of a slab, a member that has
//! left).
//!
//! A closed Unix socket proves that the process is gone, or has exec'ed; a closed
//! TCP connection proves nothing. Gone: its slabs lose one holder, its queue
//! pairs carry out nothing more.

use super::Nic;
use super::carved;
use super::events::{Event, Leaving};
use super::lending::Slab;
use super::regions::Shared;
use super::service::Computed;
use super::shares::{Full, Peer, Place};
use super::tally::count;
use super::tenants::Tenant;
use super::units::leases::Lease;
use super::wires::Wires;
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::wire::{Join, Known, Names, Secret, Status, Verdict, Who, run_id};
use farmem_sys::sync::Lock;
use farmem_trust::TokenId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Members at one node, at most. Each may take two of the 16 383 owner ids, its own and its
/// run's. The others are spare: an id is not free until its owner is buried.
pub const MAX_MEMBERS: usize = 8000;
/// Members let go of together when the table is full.
const LET_GO: usize = 64;
/// How long a forked child's place is kept for its first hello before it may give way.
const AWAITED_NS: u64 = 30_000_000_000;
/// Queue pairs of one member at a time, at most.
pub const MAX_QUEUES: usize = 8192;
/// The longest grace a member can have, in milliseconds: an hour.
pub const MAX_GRACE_MS: u64 = 3_600_000;
/// Added by the node to a member's grace: the host's clock for it starts later than ours when the
/// connection is closed here first.
const GRACE_MARGIN_NS: u64 = 1_000_000_000;

/// One process of a run.
pub struct Member {
    pub(super) run: Secret,
    pub(super) pid: u32,
    /// As it said itself; of a forked child, as its parent did.
    pub(super) names: Names,
    /// Where it joined from.
    pub(super) peer: Peer,
    pub(super) secret: Secret,
    /// Never given to another while the node lives; from 1.
    pub(super) serial: u64,
    /// By which descriptor words name what it claims.
    pub(super) lease: Lease,
    /// And its run's slabs.
    pub(super) tenancy: Arc<Lease>,
    /// The token that it joined by.
    pub(super) token: Option<TokenId>,
    /// Joined through a Unix socket, whose end is the process's end, and does not outlive it.
    pub(super) local: bool,
    /// Joined through a Unix socket: its process may have the memory mapped, past the node.
    pub(super) mapped: bool,
    /// Its time here is over. Set before its end is marked in `holds`; read within sections.
    over: AtomicBool,
    pub(super) grace_ns: u64,
    /// Of its control connection.
    pub(super) control: Arc<Turn>,
    pub(super) presence: Lock<Presence>,
    pub(super) holds: Lock<Holds>,
    /// Locked before `holds`.
    pub(super) wires: Lock<Wires>,
    /// Its functions near memory.
    pub computed: Computed,
}

/// A member to be made.
struct Newcomer {
    run: Secret,
    pid: u32,
    names: Names,
    peer: Peer,
    local: bool,
    mapped: bool,
    grace_ns: u64,
    holder: Holder,
}

/// A tenant, and its token.
pub(super) type Holder = Option<(Arc<Tenant>, TokenId)>;

pub(super) struct Presence {
    pub(super) connections: usize,
    /// Of these, for control: one, but for those that were superseded and have not closed.
    pub(super) controls: usize,
    /// Announced by a ticket, and not yet here.
    awaited: bool,
    pub(super) absent_since: u64,
    /// Queue pairs with a connection, or with an older one that has not closed. Their connections
    /// hold the turns.
    pub(super) queues: BTreeMap<u64, Weak<Turn>>,
    /// Number of the last request that was carried out, and its answer as it went out.
    pub(super) answered: Option<(u64, Box<[u8]>)>,
}

#[derive(Default)]
pub(super) struct Holds {
    pub(super) gone: bool,
    /// Its part of the table of members, while it is in it.
    pub(super) place: Option<Place>,
    /// Granted to it, or to the member that it was forked from.
    pub(super) slabs: BTreeMap<SlabId, Arc<Slab>>,
    /// Regions that it has opened, and what it holds of them.
    pub(super) shared: Shared,
    /// By their indexes; the generation of the first key that each had.
    pub(super) windows: BTreeMap<u32, (u32, Place)>,
}

/// The right to carry out the verbs of a queue pair, or a member's requests: the connection that
/// came last has it. The lock is held while something is carried out. So after an Attach the
/// connection before can reach memory no more, and a Rejoin finds earlier requests either done and
/// answered, or never to be done.
///
/// A thread that waits for it is in no section and holds no other lock of the member's: the holder
/// may wait for the end of all sections.
pub struct Turn(pub(super) Lock<u64>);

impl Turn {
    /// No connection has it yet.
    fn new() -> Arc<Turn> {
        Arc::new(Turn(Lock::new(0)))
    }

    /// The turn of a connection that comes now, and nobody else's from here on. Its number.
    fn pass(&self) -> u64 {
        let mut turn = self.0.lock();
        *turn += 1;
        *turn
    }
}

impl Presence {
    /// Whether it is absent, and not about to come for the first time.
    fn is_idle(&self, now_ns: u64) -> bool {
        let late = now_ns.saturating_sub(self.absent_since) > AWAITED_NS;
        self.connections == 0 && (!self.awaited || late)
    }
}

impl Holds {
    fn is_empty(&self) -> bool {
        self.slabs.is_empty() && self.shared.is_empty() && self.windows.is_empty()
    }

    /// The slab, its own or a region's.
    pub(super) fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.get(&id).cloned().or_else(|| self.shared.slab(id))
    }

    pub(super) fn let_go(&mut self, id: SlabId) -> Option<Arc<Slab>> {
        self.slabs.remove(&id).or_else(|| self.shared.let_go(id))
    }

    /// Marks the member's end: it is granted nothing more. Returns all that it held.
    fn end(&mut self) -> Holds {
        std::mem::replace(self, Holds { gone: true, ..Holds::default() })
    }
}

impl Member {
    /// The public name of its run.
    pub fn run_id(&self) -> u64 {
        run_id(&self.run)
    }

    /// The host's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The names that it gives itself.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The tenant that its memory is for.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.lease.tenant()
    }

    /// The token that it joined by.
    pub(super) fn token(&self) -> Option<&TokenId> {
        self.token.as_ref()
    }

    /// Its tenant and its token.
    fn holder(&self) -> Holder {
        self.tenant().cloned().zip(self.token)
    }

    /// Whether its memory is for this tenant.
    fn is_of(&self, holder: &Holder) -> bool {
        self.tenant().map(|tenant| tenant.name) == holder.as_ref().map(|(tenant, _)| tenant.name)
    }

    /// The id by which descriptor words name it.
    pub fn owner(&self) -> u16 {
        self.lease.owner().slot()
    }

    /// Where it joined from.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Bytes held: slabs, and units that it claimed. Not what regions hold.
    pub fn held(&self) -> u64 {
        self.holds.lock().slabs.len() as u64 * SLAB_BYTES + self.lease.held()
    }

    /// Whether nothing is lost with it: it holds no memory, and no window.
    pub fn is_empty_handed(&self) -> bool {
        self.lease.held() == 0 && self.holds.lock().is_empty()
    }

    /// Whether it is absent and holds nothing.
    fn is_idle(&self, now_ns: u64) -> bool {
        self.presence.lock().is_idle(now_ns) && self.is_empty_handed()
    }

    /// Queue pairs that it has now.
    pub fn queue_pairs(&self) -> usize {
        self.presence.lock().queues.len() + self.wires.lock().count()
    }

    /// Whether a connection of its stands. If not, it is waited for until its grace is over.
    pub fn is_present(&self) -> bool {
        self.presence.lock().connections > 0
    }

    /// Whether its time here is over.
    pub fn is_gone(&self) -> bool {
        self.holds.lock().gone
    }

    /// [`Member::is_gone`] for use in a section. Once this is true, the member touches no memory
    /// after the sections of that moment have ended.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The slab, if this member holds it.
    pub(super) fn slab(&self, id: SlabId) -> Option<Arc<Slab>> {
        self.holds.lock().slab(id)
    }

    /// False when the member is gone already.
    pub(super) fn hold(&self, slab: Arc<Slab>) -> bool {
        let mut holds = self.holds.lock();
        if !holds.gone {
            holds.slabs.insert(slab.id, slab);
        }
        !holds.gone
    }
}

impl Nic {
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
                self.part(&member, Leaving::Grace);
            } else {
                next = Some(next.map_or(until, |n| n.min(until)));
            }
        }
        next.into_iter().chain(self.expire_volumes(now_ns)).min()
    }

    /// Members that a node waits for when it goes down: those that hold something, and those that
    /// are still connected. A shell that holds nothing may start a program that needs the node.
    pub fn awaited(&self) -> Vec<Arc<Member>> {
        let mut all = self.members();
        all.retain(|member| member.is_present() || !member.is_empty_handed());
        all
    }

    /// A place among the members for a newcomer from `peer`.
    ///
    /// When there is none, absent members that hold nothing give way: the peer's own if the peer
    /// has its share of the table, anybody's if the table is full.
    fn place(&self, peer: Peer, now_ns: u64) -> Option<Place> {
        loop {
            let full = match self.places.take(peer) {
                Ok(place) => return Some(place),
                Err(full) => full,
            };
            let mut idle = self.members();
            idle.retain(|member| (full == Full::All || member.peer == peer) && member.is_idle(now_ns));
            // The longest absent are the least likely to come back.
            idle.sort_by_cached_key(|member| (member.presence.lock().absent_since, member.serial));
            let gave_way = idle.iter().take(LET_GO).filter(|member| self.part_if_idle(member, now_ns)).count();
            if gave_way == 0 {
                return None;
            }
        }
    }

    /// Ends a membership if it is idle and holds nothing. False if it is not, or not any more.
    fn part_if_idle(&self, member: &Arc<Member>, now_ns: u64) -> bool {
        // Held until the end is marked: a member that comes back now is either counted before, and
        // stays, or finds itself gone.
        let presence = member.presence.lock();
        let mut holds = member.holds.lock();
        if holds.gone || !presence.is_idle(now_ns) || !holds.is_empty() || member.lease.held() > 0 {
            return false;
        }
        member.over.store(true, Ordering::SeqCst);
        let held = holds.end();
        drop((holds, presence));
        self.take_back(member, held, Leaving::GaveWay);
        true
    }

    /// Ends a membership.
    pub(super) fn part(&self, member: &Arc<Member>, why: Leaving) {
        let mut holds = member.holds.lock();
        let was_here = !holds.gone;
        member.over.store(true, Ordering::SeqCst);
        let held = holds.end();
        drop(holds);
        if was_here {
            self.take_back(member, held, why);
        }
    }

    /// Takes back all that a member held whose end is marked.
    fn take_back(&self, member: &Arc<Member>, held: Holds, why: Leaving) {
        self.members.lock().remove(&member.secret);
        let bytes = held.slabs.len() as u64 * SLAB_BYTES + member.lease.held();
        self.tell(Event::Left(member, why, bytes));
        drop(held.place);
        let until = carved::patience();
        for index in held.windows.into_keys() {
            self.windows.discard(member.serial, index, until);
        }
        // Off the card before anything of it is anybody else's.
        drop(member.wires.lock().end());
        member.lease.end();
        if self.service.get().is_some() {
            self.departed.lock().push(member.serial);
        }
        // Scrubbing takes milliseconds a slab: no lock is held here.
        drop((held.slabs, held.shared));
    }

    /// The owner of a run's slabs.
    pub(super) fn tenancy(&self, run: Secret, tenant: Option<Arc<Tenant>>) -> Option<Arc<Lease>> {
        let mut runs = self.runs.lock();
        if let Some(lease) = runs.get(&run).and_then(Weak::upgrade) {
            return Some(lease);
        }
        runs.retain(|_, lease| lease.strong_count() > 0);
        let lease = Arc::new(Lease::of(&self.units, tenant)?);
        runs.insert(run, Arc::downgrade(&lease));
        Some(lease)
    }

    /// `None` when there are no more places or owners.
    fn enrol(&self, new: Newcomer, controls: usize, now_ns: u64) -> Option<Arc<Member>> {
        let Newcomer { run, pid, names, peer, local, mapped, grace_ns, holder } = new;
        let (tenant, token) = holder.unzip();
        let place = self.place(peer, now_ns)?;
        let (lease, tenancy) = (Lease::of(&self.units, tenant.clone())?, self.tenancy(run, tenant)?);
        let serial = self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let member = Arc::new(Member {
            run,
            pid,
            names,
            peer,
            secret: (self.draw)(),
            serial,
            lease,
            tenancy,
            token,
            local,
            mapped,
            over: AtomicBool::new(false),
            grace_ns,
            control: Turn::new(),
            presence: Lock::new(Presence {
                connections: controls,
                controls,
                awaited: controls == 0,
                absent_since: now_ns,
                queues: BTreeMap::new(),
                answered: None,
            }),
            holds: Lock::new(Holds { place: Some(place), ..Holds::default() }),
            wires: Lock::new(Wires::default()),
            computed: Computed::default(),
        });
        self.members.lock().insert(member.secret, Arc::clone(&member));
        Some(member)
    }

    /// A new member, and the turn of its control connection.
    pub(super) fn join(
        &self,
        join: &Join,
        (peer, local): (Peer, bool),
        holder: Holder,
        now_ns: u64,
    ) -> Result<(Arc<Member>, u64), Verdict> {
        // A run that is here goes on, and its programs start programs.
        if self.is_draining() && !self.members.lock().values().any(|member| member.run == join.run) {
            return Err(Verdict::Draining);
        }
        // Nor is a run two tenants'.
        if self.members.lock().values().any(|member| member.run == join.run && !member.is_of(&holder)) {
            return Err(Verdict::Unknown);
        }
        let grace_ns = join.grace_ms.min(MAX_GRACE_MS) * 1_000_000 + GRACE_MARGIN_NS;
        count(&self.tally.joined, 1);
        let (local, mapped) = (local && !join.lasting, local);
        let Join { run, pid, names, .. } = *join;
        let new = Newcomer { run, pid, names, peer, local, mapped, grace_ns, holder };
        let member = self.enrol(new, 1, now_ns).ok_or(Verdict::Full)?;
        let ours = member.control.pass();
        self.tell(Event::Joined(&member));
        Ok((member, ours))
    }

    /// The present holder of an owner id.
    pub fn who(&self, owner: u16) -> Option<Who> {
        if let Some(member) = self.member_of(owner) {
            let leader = self.leader(&member.run).map_or(0, |leader| leader.pid);
            return Some(Who { pid: member.pid, run: member.run_id(), leader, names: member.names });
        }
        let runs = self.runs.lock();
        let is_owner = |lease: &Weak<Lease>| lease.upgrade().is_some_and(|lease| lease.owner().slot() == owner);
        if let Some(run) = runs.iter().find(|(_, lease)| is_owner(lease)).map(|(run, _)| *run) {
            drop(runs);
            let leader = self.leader(&run);
            let names = leader.as_ref().map_or_else(Names::default, |leader| leader.names);
            let leader = leader.map_or(0, |leader| leader.pid);
            return Some(Who { pid: 0, run: run_id(&run), leader, names });
        }
        drop(runs);
        if let Some(volume) = self.volume_of(owner) {
            return Some(Who { pid: volume.pid(), run: volume.name(), leader: 0, names: *volume.names() });
        }
        let region = self.regions().into_iter().find(|region| region.owner == owner)?;
        let run = run_id(&region.name.to_wire());
        Some(Who { pid: 0, run, leader: 0, names: Names::default() })
    }

    /// The member of a run that joined first, of those that are here: its supervisor, as long as
    /// that lives.
    fn leader(&self, run: &Secret) -> Option<Arc<Member>> {
        let members = self.members.lock();
        members.values().filter(|member| member.run == *run).min_by_key(|member| member.serial).cloned()
    }

    /// The member that has this owner id now.
    pub(super) fn member_of(&self, owner: u16) -> Option<Arc<Member>> {
        self.members.lock().values().find(|member| member.owner() == owner).cloned()
    }

    /// Gives the turn of its control connection to the one that asks. Returns its turn number.
    pub(super) fn rejoin(&self, known: &Known, holder: &Holder) -> Result<(Arc<Member>, u64), Verdict> {
        let member = self.present(known, holder)?;
        let mut presence = member.presence.lock();
        (presence.controls, presence.awaited) = (presence.controls + 1, false);
        drop(presence);
        let ours = member.control.pass();
        Ok((member, ours))
    }

    /// Finds a member by its secret and counts a connection in.
    pub(super) fn present(&self, known: &Known, holder: &Holder) -> Result<Arc<Member>, Verdict> {
        if known.incarnation != self.incarnation {
            return Err(Verdict::Incarnation);
        }
        let found = self.members.lock().get(&known.secret).cloned();
        // Another tenant's is no member to this one.
        let member = found.filter(|member| member.is_of(holder)).ok_or(Verdict::Unknown)?;
        member.presence.lock().connections += 1;
        // It may have parted between the two lines above.
        if member.is_gone() { Err(Verdict::Unknown) } else { Ok(member) }
    }

    /// Gives the queue pair's turn to the connection that asks. Returns its turn number.
    pub fn attach(
        &self,
        known: &Known,
        number: u64,
        holder: &Holder,
    ) -> Result<(Arc<Member>, Arc<Turn>, u64), Verdict> {
        let member = self.present(known, holder)?;
        let mut presence = member.presence.lock();
        // Under the lock: the close of this turn's last connection comes before, or finds the turn
        // in use.
        let known = presence.queues.get(&number).and_then(Weak::upgrade);
        if known.is_none() && presence.queues.len() >= MAX_QUEUES {
            presence.connections -= 1;
            return Err(Verdict::Full);
        }
        let queue = known.unwrap_or_else(Turn::new);
        presence.queues.insert(number, Arc::downgrade(&queue));
        drop(presence);
        let ours = queue.pass();
        Ok((member, queue, ours))
    }

    /// A connection of a queue pair has closed. With its last one the queue pair is forgotten:
    /// there is no older connection any more that could carry something out beside one to come.
    pub(super) fn detach(&self, member: &Member, queue: u64, turn: Arc<Turn>) {
        let mut presence = member.presence.lock();
        drop(turn);
        if presence.queues.get(&queue).is_some_and(|turn| turn.strong_count() == 0) {
            presence.queues.remove(&queue);
        }
    }

    /// A connection of the member has closed.
    ///
    /// The end of a local member's control connection is its process's end. It is not if the
    /// connection was superseded, because the member has dialled again, nor if this node closed it
    /// (`by_node`), as it closes superseded ones.
    pub(super) fn left(&self, member: &Arc<Member>, was_control: bool, by_node: bool, now_ns: u64) {
        let mut presence = member.presence.lock();
        presence.connections -= 1;
        presence.controls -= usize::from(was_control);
        presence.absent_since = now_ns;
        let ended = was_control && !by_node && member.local && presence.controls == 0;
        let is_cut = presence.connections == 0;
        drop(presence);
        if ended {
            self.part(member, Leaving::Ended);
        } else if is_cut && !member.is_gone() {
            self.tell(Event::Cut(member, member.grace_ns / 1_000_000));
        }
    }

    /// A member for a child about to be forked, holding what its parent holds.
    pub(super) fn ticket(&self, parent: &Arc<Member>, now_ns: u64) -> Result<Secret, Status> {
        let Member { run, pid, names, peer, local, mapped, grace_ns, .. } = **parent;
        let holder = parent.holder();
        let new = Newcomer { run, pid, names, peer, local, mapped, grace_ns, holder };
        let child = self.enrol(new, 0, now_ns).ok_or(Status::System)?;
        let holds = parent.holds.lock();
        let (slabs, shared) = (holds.slabs.clone(), holds.shared.inherited());
        drop(holds);
        for slab in slabs.into_values() {
            child.hold(slab);
        }
        let mut holds = child.holds.lock();
        if !holds.gone {
            holds.shared = shared;
        }
        drop(holds);
        self.tell(Event::Announced(&child));
        Ok(child.secret)
    }

    pub(super) fn end_run(&self, asks: &Member, run: &Secret) {
        let of_it = |member: &&Arc<Member>| member.run == *run && member.is_of(&asks.holder());
        for member in self.members().iter().filter(of_it) {
            // An open Unix socket means that the process lives, even if its supervisor believes
            // otherwise. Its memory is mapped there, and is free again as soon as the process ends.
            if !(member.local && member.presence.lock().connections > 0) {
                self.part(member, Leaving::Run);
            }
        }
    }
}
