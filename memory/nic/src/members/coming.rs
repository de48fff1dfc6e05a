//! Members come and go: Join, Ticket, Rejoin, the ends of their connections, and their own ends.

use super::{GENERATIONS, GRACE_MARGIN_NS, Holder, Holds, LET_GO, MAX_GRACE_MS, MAX_MEMBERS, MAX_QUEUES, Member};
use super::{Newcomer, Presence, Turn};
use crate::carved;
use crate::events::{Event, Events, Leaving};
use crate::graces::Graces;
use crate::lending::bury;
use crate::service::{Computed, Served};
use crate::shares::{By, Full, Peer, Place, Table};
use crate::spill::Heard;
use crate::tally::{Tally, count};
use crate::tenants::Tenant;
use crate::units::Units;
use crate::units::leases::Lease;
use crate::windows::Windows;
use crate::wires::Wires;
use crate::{Draw, Nic};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::wire::{Join, Known, Names, Secret, Status, Verdict, Who, run_id};
use farmem_sys::sync::{Held, Lock};
use farmem_trust::agree::Agreed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The members, and the runs that they belong to.
pub(crate) struct Roster {
    members: Lock<BTreeMap<Secret, Arc<Member>>>,
    /// Places of members.
    pub places: Arc<Table>,
    /// Serial numbers given to members.
    serials: AtomicU64,
    /// For each run, the owner of its slabs.
    runs: Lock<BTreeMap<Secret, Weak<Lease>>>,
}

impl Default for Roster {
    fn default() -> Roster {
        let (members, runs) = (Lock::new(BTreeMap::new()), Lock::new(BTreeMap::new()));
        Roster { members, places: Table::new(MAX_MEMBERS), serials: AtomicU64::new(0), runs }
    }
}

impl Roster {
    /// Everybody who is a member now.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().values().cloned().collect()
    }

    /// The owner of a run's slabs. `None`: no owner is left, or it is another tenant's still. It may
    /// outlive the run's members by a moment.
    pub(crate) fn tenancy(&self, units: &Arc<Units>, run: Secret, tenant: Option<Arc<Tenant>>) -> Option<Arc<Lease>> {
        let mut runs = self.runs.lock();
        if let Some(lease) = runs.get(&run).and_then(Weak::upgrade) {
            let name = |tenant: Option<&Arc<Tenant>>| tenant.map(|tenant| tenant.name);
            return (name(lease.tenant()) == name(tenant.as_ref())).then_some(lease);
        }
        runs.retain(|_, lease| lease.strong_count() > 0);
        let lease = Arc::new(Lease::of(units, tenant)?);
        runs.insert(run, Arc::downgrade(&lease));
        Some(lease)
    }

    /// The run whose slabs this owner id names.
    fn run_of(&self, owner: u16) -> Option<Secret> {
        let runs = self.runs.lock();
        let is_owner = |lease: &Weak<Lease>| lease.upgrade().is_some_and(|lease| lease.owner().slot() == owner);
        runs.iter().find(|(_, lease)| is_owner(lease)).map(|(run, _)| *run)
    }

    /// The member of a run that joined first, of those that are here: its supervisor, as long as
    /// that lives.
    pub(crate) fn leader(&self, run: &Secret) -> Option<Arc<Member>> {
        let members = self.members.lock();
        members.values().filter(|member| member.run == *run).min_by_key(|member| member.serial).cloned()
    }

    /// The member that has this owner id now.
    pub(crate) fn member_of(&self, owner: u16) -> Option<Arc<Member>> {
        self.members.lock().values().find(|member| member.owner() == owner).cloned()
    }
}

/// Members that come and go, with what their coming and going touches.
#[derive(Clone, Copy)]
pub struct Membership<'a> {
    pub(crate) roster: &'a Roster,
    pub(crate) units: &'a Arc<Units>,
    pub(crate) windows: &'a Windows,
    pub(crate) served: &'a Served,
    pub(crate) events: &'a Events,
    pub(crate) tally: &'a Tally,
    pub(crate) incarnation: u64,
    pub(crate) draining: &'a AtomicBool,
    pub(crate) draw: &'a Draw,
}

impl Membership<'_> {
    /// Ends the membership of members whose grace is over. Returns when to look again, if a member
    /// is absent.
    pub fn expire(self, now_ns: u64) -> Option<u64> {
        let mut graces = Graces::at(now_ns);
        for member in self.roster.members() {
            let presence = member.presence.lock();
            let absent = (presence.connections == 0).then_some(presence.absent_since);
            drop(presence);
            if graces.is_over(absent, member.grace_ns) {
                self.part(&member, Leaving::Grace);
            }
        }
        graces.next_ns
    }

    /// A place among the members for a newcomer.
    ///
    /// If there is none, absent members that hold nothing give way. If the peer, or the tenant, has
    /// used up its share of the table, its own do. If the table is full, those of any other do.
    fn place(self, by: By, now_ns: u64) -> Option<Place> {
        loop {
            let full = match self.roster.places.take(by) {
                Ok(place) => return Some(place),
                Err(full) => full,
            };
            let mut idle = self.roster.members();
            idle.retain(|member| (full == Full::All || member.by == by) && member.is_idle(now_ns));
            // The longest absent are the least likely to come back.
            idle.sort_by_cached_key(|member| (member.presence.lock().absent_since, member.serial));
            let gave_way = idle.iter().take(LET_GO).filter(|member| self.part_if_idle(member, now_ns)).count();
            if gave_way == 0 {
                return None;
            }
        }
    }

    /// Ends a membership if it is idle and holds nothing. False if it is not, or not any more.
    fn part_if_idle(self, member: &Arc<Member>, now_ns: u64) -> bool {
        // Locked until the end is marked. A member that comes back now was counted before, and
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
    pub(crate) fn part(self, member: &Arc<Member>, why: Leaving) {
        self.part_held(member, member.holds.lock(), why);
    }

    /// Ends a membership, unless its process may have memory mapped. False if it may, and is not gone.
    pub(crate) fn part_unmapped(self, member: &Arc<Member>, why: Leaving) -> bool {
        let holds = member.holds.lock();
        // What is passed is looked up under this lock, by a member that is not gone and is marked.
        if !holds.gone && member.is_mapped() {
            return false;
        }
        self.part_held(member, holds, why);
        true
    }

    fn part_held(self, member: &Arc<Member>, mut holds: Held<'_, Holds>, why: Leaving) {
        let was_here = !holds.gone;
        member.over.store(true, Ordering::SeqCst);
        let held = holds.end();
        drop(holds);
        if was_here {
            self.take_back(member, held, why);
        }
    }

    /// Takes back all that a member held. Its end must be marked already.
    fn take_back(self, member: &Arc<Member>, held: Holds, why: Leaving) {
        self.roster.members.lock().remove(&member.secret);
        let bytes = held.slabs.len() as u64 * SLAB_BYTES + member.lease.held();
        self.events.tell(Event::Left(member, why, bytes));
        drop(held.place);
        let until = carved::patience();
        for index in held.windows.into_keys() {
            self.windows.discard(member.serial, index, until);
        }
        // Its memory leaves the card before any of it goes to another member.
        drop(member.wires.lock().end());
        member.lease.end();
        self.served.departed(member.serial);
        // Scrubbing takes milliseconds a slab: no lock is held here.
        bury(held.slabs.into_values());
        drop(held.shared);
    }

    /// Makes a newcomer a member, with this number of control connections. `None`: no place or no
    /// owner is left.
    fn enrol(self, new: Newcomer, controls: usize, now_ns: u64) -> Option<Arc<Member>> {
        let Newcomer { run, pid, names, peer, by, local, mapped, grace_ns, holder, agreed, lasting } = new;
        let (tenant, token) = holder.unzip();
        let place = self.place(by, now_ns)?;
        let lease = Lease::of(self.units, tenant.clone())?;
        let tenancy = self.roster.tenancy(self.units, run, tenant)?;
        let serial = self.roster.serials.fetch_add(1, Ordering::Relaxed) + 1;
        let member = Arc::new(Member {
            run,
            pid,
            names,
            peer,
            by,
            secret: (self.draw)(),
            serial,
            lease,
            tenancy,
            token: Lock::new(token),
            agreed: Lock::new(agreed),
            lasting,
            local,
            mapped: AtomicBool::new(mapped),
            served: AtomicBool::new(false),
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
            heard: Heard::default(),
            asked: Heard::default(),
            wires: Lock::new(Wires::default()),
            computed: Computed::default(),
        });
        self.roster.members.lock().insert(member.secret, Arc::clone(&member));
        Some(member)
    }

    /// A new member, and the turn of its control connection.
    pub(crate) fn join(
        self,
        join: &Join,
        (peer, by, local): (Peer, By, bool),
        holder: Holder,
        agreed: Option<Agreed>,
        now_ns: u64,
    ) -> Result<(Arc<Member>, u64), Verdict> {
        // A draining node takes no new runs. Members of a run that is here may join: its programs
        // start programs.
        if self.draining.load(Ordering::Relaxed)
            && !self.roster.members.lock().values().any(|member| member.run == join.run)
        {
            return Err(Verdict::Draining);
        }
        // Nor can a run belong to two tenants.
        if self.roster.members.lock().values().any(|member| member.run == join.run && !member.is_of(&holder)) {
            return Err(Verdict::Unknown);
        }
        let grace_ns = join.grace_ms.min(MAX_GRACE_MS) * 1_000_000 + GRACE_MARGIN_NS;
        count(&self.tally.joined, 1);
        let (local, mapped) = (local && !join.lasting, local);
        let Join { run, pid, names, lasting, .. } = *join;
        let new = Newcomer { run, pid, names, peer, by, local, mapped, grace_ns, holder, agreed, lasting };
        let member = self.enrol(new, 1, now_ns).ok_or(Verdict::Full)?;
        let ours = member.control.pass();
        self.events.tell(Event::Joined(&member));
        Ok((member, ours))
    }

    /// Passes the turn of a member's control connection to the connection that asks. Returns its
    /// turn number. `local`: it comes through a Unix socket.
    pub(crate) fn rejoin(self, known: &Known, local: bool, holder: &Holder) -> Result<(Arc<Member>, u64), Verdict> {
        let member = self.present(known, holder)?;
        member.mapped.fetch_or(local, Ordering::SeqCst);
        let mut presence = member.presence.lock();
        (presence.controls, presence.awaited) = (presence.controls + 1, false);
        drop(presence);
        let ours = member.control.pass();
        Ok((member, ours))
    }

    /// The member of a secret, if it is here.
    pub(crate) fn known(self, known: &Known) -> Option<Arc<Member>> {
        let found = self.roster.members.lock().get(&known.secret).cloned();
        found.filter(|_| known.incarnation == self.incarnation)
    }

    /// Finds a member by its secret and counts a connection in.
    pub(crate) fn present(self, known: &Known, holder: &Holder) -> Result<Arc<Member>, Verdict> {
        if known.incarnation != self.incarnation {
            return Err(Verdict::Incarnation);
        }
        let found = self.roster.members.lock().get(&known.secret).cloned();
        // A member of another tenant is unknown to this one.
        let member = found.filter(|member| member.is_of(holder)).ok_or(Verdict::Unknown)?;
        member.presence.lock().connections += 1;
        // The membership may have ended between the look-up and the count.
        if member.is_gone() { Err(Verdict::Unknown) } else { Ok(member) }
    }

    /// Passes the turn of a queue pair to the connection that asks. Returns its turn number.
    pub fn attach(self, known: &Known, number: u64, holder: &Holder) -> Result<(Arc<Member>, Arc<Turn>, u64), Verdict> {
        let member = self.present(known, holder)?;
        let mut presence = member.presence.lock();
        // Looked up under the lock. The close of this turn's last connection comes before, or finds
        // the turn in use.
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

    /// A connection of the member has closed.
    ///
    /// The end of a local member's control connection means that its process has ended. There are
    /// two exceptions. The member may have dialled again, so that the connection was superseded. Or
    /// this node closed it (`by_node`), as it closes superseded ones.
    pub(crate) fn left(self, member: &Arc<Member>, was_control: bool, by_node: bool, now_ns: u64) {
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
            self.events.tell(Event::Cut(member, member.grace_ns / 1_000_000));
        }
    }

    /// A connection of the member broke the rules and has closed. If the member holds nothing, its
    /// membership ends: its grace would keep nothing, and a flood of such members would fill the
    /// table. A member with a token stays, because an attacker on the path may have changed its
    /// bytes.
    pub(crate) fn broke(self, member: &Arc<Member>) {
        if member.token().is_none() && !member.is_present() && member.is_empty_handed() {
            self.part(member, Leaving::Broke);
        }
    }

    /// A member for a child about to be forked, holding what its parent holds. It is listed before it
    /// is filled, and filled under the lock under which its parent ends. So whoever ends members, and
    /// lists them again until none is found, ends the child too, or the child holds nothing.
    pub(crate) fn ticket(self, parent: &Arc<Member>, now_ns: u64) -> Result<Secret, Status> {
        let Member { run, pid, names, peer, by, local, grace_ns, .. } = **parent;
        let mapped = parent.is_mapped();
        let (holder, agreed, lasting) = (parent.holder(), *parent.agreed.lock(), false);
        let new = Newcomer { run, pid, names, peer, by, local, mapped, grace_ns, holder, agreed, lasting };
        let child = self.enrol(new, 0, now_ns).ok_or(Status::System)?;
        let of_parent = parent.holds.lock();
        if of_parent.gone {
            drop(of_parent);
            self.part(&child, Leaving::Run);
            return Err(Status::NotHeld);
        }
        // Nobody locks what two members hold in the other order.
        let mut holds = child.holds.lock();
        if !holds.gone {
            // One that is lost may have been taken from its holders before.
            let here = of_parent.slabs.iter().filter(|(_, slab)| !slab.is_lost());
            holds.slabs = here.map(|(&id, slab)| (id, Arc::clone(slab))).collect();
            holds.shared = of_parent.shared.inherited();
        }
        drop((holds, of_parent));
        self.events.tell(Event::Announced(&child));
        Ok(child.secret)
    }

    /// Ends the memberships of all members of a run, if it belongs to the tenant of the member that
    /// asks.
    pub(crate) fn end_run(self, asks: &Member, run: &Secret) {
        // An open Unix socket means that the process lives, even if its supervisor believes
        // otherwise. Its memory is mapped there, and is free again as soon as the process ends.
        let lives = |member: &Member| member.local && member.presence.lock().connections > 0;
        self.part_all(Leaving::Run, |member| member.run == *run && member.is_of(&asks.holder()) && !lives(member));
    }

    /// Ends all members that are meant, with the children that they were making.
    pub(crate) fn part_all(self, why: Leaving, is_meant: impl Fn(&Member) -> bool) {
        for _ in 0..GENERATIONS {
            let mut found = self.roster.members();
            found.retain(|member| is_meant(member) && !member.is_gone());
            if found.is_empty() {
                return;
            }
            found.iter().for_each(|member| self.part(member, why));
        }
    }
}

impl Nic {
    /// Ends members and volumes whose grace is over. Returns when to look again, if one is absent.
    pub fn expire(&self, now_ns: u64) -> Option<u64> {
        let members = self.membership().expire(now_ns);
        members.into_iter().chain(self.swap().expire(now_ns)).min()
    }

    /// Members that a node waits for when it goes down: those that hold something, and those that
    /// are still connected. A shell that holds nothing may start a program that needs the node. A
    /// program of an agent has nothing here but what the agent holds, which is waited for.
    pub fn awaited(&self) -> Vec<Arc<Member>> {
        let mut all = self.roster.members();
        all.retain(|member| {
            let is_served = member.served.load(Ordering::Relaxed);
            member.is_present() && !is_served || !member.is_empty_handed()
        });
        all
    }

    /// The present holder of an owner id, if the member that asks may know of it.
    pub fn who(&self, asks: &Member, owner: u16) -> Option<Who> {
        // A volume's memory counts to its tenant by the volume, not by its owner id.
        let volume = self.swap().of_owner(owner);
        let tenant = volume.as_ref().map_or_else(|| self.units.tenant_of(owner), |of| of.tenant().cloned());
        if !asks.may_know(tenant.as_ref()) {
            return None;
        }
        if let Some(member) = self.roster.member_of(owner) {
            let leader = self.roster.leader(&member.run).map_or(0, |leader| leader.pid);
            return Some(Who { pid: member.pid, run: member.run_id(), leader, names: member.names });
        }
        if let Some(run) = self.roster.run_of(owner) {
            let leader = self.roster.leader(&run);
            let names = leader.as_ref().map_or_else(Names::default, |leader| leader.names);
            let leader = leader.map_or(0, |leader| leader.pid);
            return Some(Who { pid: 0, run: run_id(&run), leader, names });
        }
        if let Some(volume) = volume {
            return Some(Who { pid: volume.pid(), run: volume.name(), leader: 0, names: *volume.names() });
        }
        let region = self.regions().list().into_iter().find(|region| region.owner == owner)?;
        let run = run_id(&region.name.to_wire());
        Some(Who { pid: 0, run, leader: 0, names: Names::default() })
    }
}

impl Member {
    /// A connection of a queue pair has closed. With its last one the queue pair is forgotten: no
    /// older connection is left that could carry out verbs beside a later one.
    pub(crate) fn detach(&self, queue: u64, turn: Arc<Turn>) {
        let mut presence = self.presence.lock();
        drop(turn);
        if presence.queues.get(&queue).is_some_and(|turn| turn.strong_count() == 0) {
            presence.queues.remove(&queue);
        }
    }
}
