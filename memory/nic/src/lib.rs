//! The software NIC: everything a node does except its sockets and its clock.
//!
//! * This file: the state that all connections share. [`members`]: the processes that connections
//!   belong to, and what these hold.
//! * [`lending`]: slabs and the limit.
//! * [`engine`]: one connection. Bytes come in, verbs are carried out, bytes go out.
//! * [`admit`]: from a key to memory, or a refusal. [`grip`]: admitted memory. [`windows`]: keys
//!   for parts of it.
//! * [`units`]: memory by the unit of 4 KiB, and the words that say who owns each.
//! * `wires`: memory that members reach by an RDMA card, without the node's processor. `carved`:
//!   memory windows on the card. `budget`: how much of the card they may take.
//! * [`tenants`]: tokens, and the quotas of their tenants.
//! * [`tally`]: figures for operators. [`events`]: events for their log.
//! * [`regions`]: memory with a name, which outlives its members.
//! * `graces`: how long members and volumes may be absent.
//! * [`service`]: a hook for services that members ask by SEND.
//! * `wanted`: how many slabs each member should give back.
//! * [`volumes`]: the volumes that hosts' kernels swap to.
//! * [`shares`]: bounded tables, and how much of them a peer may have.
//! * [`spill`]: slabs of silent owners, whose bytes are put on a disk.
//! * [`epochs`]: when the last transfer under a revoked right has ended.
//!
//! The daemon runs this code over epoll, the simulator in virtual time, the fuzzer on garbage. Time
//! is an argument.

pub mod admit;
pub(crate) mod budget;
pub(crate) mod carved;
pub mod engine;
pub mod epochs;
pub mod events;
pub(crate) mod graces;
pub mod grip;
#[cfg(feature = "lab")]
pub mod lab;
pub mod lending;
pub mod members;
pub mod regions;
pub mod service;
pub mod shares;
pub mod spill;
pub mod tally;
pub mod tenants;
pub mod units;
pub mod volumes;
pub(crate) mod wanted;
pub mod windows;
pub(crate) mod wires;

pub use members::{MAX_GRACE_MS, MAX_MEMBERS, MAX_QUEUES, Member};
pub use tally::Tally;

use admit::Admission;
use epochs::Epochs;
use events::{Event, Events, Leaving};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
use farmem_protocol::nbd;
use farmem_protocol::node::Domain;
use farmem_protocol::wire::Range;
use farmem_protocol::wire::{Figure, MAX_BACKED, OFFERS_RDMA, OFFERS_RESERVE, Refused, Secret, Status};
use farmem_sys::sync::Lock;
use farmem_sys::verbs::Device;
use lending::{Grants, Lending, Slab};
use members::Turn;
use members::coming::{Membership, Roster};
use regions::Regions;
use service::Service;
use shares::Table;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tally::count;
use units::Units;
use units::files::{Copying, File};
use volumes::Volumes;
use volumes::table::Swap;
use windows::Windows;
use wires::Cards;

/// The most connections of a node.
pub const MAX_CONNECTIONS: usize = 32_768;
/// The most connections that may have much output waiting at once. See `engine::Engine::must_wait`.
const MAX_ROOMY: usize = 1024;

/// How long a member is told the same of the memory in use, ns: each slab costs a system call.
const USED_NS: u64 = 100_000_000;

/// Draws unguessable bits, new ones each time.
pub(crate) type Draw = Box<dyn Fn() -> Secret + Send + Sync>;

/// A node's state, shared by all its connections. The work is done by its parts, such as
/// [`Nic::swap`]. Each is a view with references to the fields that it uses.
pub struct Nic {
    /// The memory.
    pub lending: Arc<Lending>,
    /// The counts so far.
    pub tally: Tally,
    /// Drawn at start; see [`farmem_protocol::wire::Welcome`].
    pub incarnation: u64,
    /// Its failure domain, which every member is told. Empty: not known.
    pub domain: Domain,
    /// Windows bound and unbound.
    pub windows: Windows,
    /// The memory that is owned unit by unit.
    pub units: Arc<Units>,
    /// Counts of the functions near memory that were run, for all members.
    pub computed: service::Computed,
    /// Answers SENDs, if anything does.
    served: service::Served,
    /// Transfers under way.
    pub(crate) epochs: Epochs,
    /// The tenants that may borrow, and their tokens.
    pub tenants: tenants::Tenants,
    /// The members.
    roster: Roster,
    /// Places of connections that have said who they are. The daemon sets it at start, by the
    /// descriptors that the process may have.
    pub connections: Arc<Table>,
    /// Places of windows.
    window_places: Arc<Table>,
    /// Places of connections with much output waiting.
    roomy: Arc<Table>,
    /// Memory with a name.
    named: regions::Named,
    /// The volumes that hosts' kernels swap to.
    pub volumes: Volumes,
    /// The RDMA card by which members may reach their slabs without this software.
    card: Option<Device>,
    /// How much of the card windows may take.
    budget: Arc<budget::Budget>,
    draining: AtomicBool,
    /// Its rack has ordered that it be emptied.
    emptied: AtomicBool,
    /// [`Nic::in_use`] as it was found last for a member, and when.
    used: Lock<Option<(u64, u64)>>,
    /// Hears of events.
    pub events: Events,
    draw: Draw,
}

impl Nic {
    /// A node's state. `draw` gives 128 unguessable bits, new ones each time.
    pub fn new(lending: Lending, draw: impl Fn() -> Secret + Send + Sync + 'static) -> Nic {
        let bits = draw();
        let incarnation = bits.iter().take(8).fold(0, |word, &b| word << 8 | b as u64);
        let units = Arc::clone(lending.units());
        units.words.inscribe(incarnation.max(1));
        Nic {
            units,
            lending: Arc::new(lending),
            tally: Tally::default(),
            incarnation: incarnation.max(1),
            domain: Domain::EMPTY,
            windows: Windows::default(),
            computed: service::Computed::default(),
            served: service::Served::default(),
            epochs: Epochs::default(),
            tenants: tenants::Tenants::default(),
            roster: Roster::default(),
            connections: Table::new(MAX_CONNECTIONS),
            window_places: Table::new(farmem_protocol::key::WINDOWS as usize),
            roomy: Table::new(MAX_ROOMY),
            named: regions::Named::default(),
            volumes: Volumes::default(),
            card: None,
            budget: budget::Budget::new(0, 0, None),
            draining: AtomicBool::new(false),
            emptied: AtomicBool::new(false),
            used: Lock::new(None),
            events: Events::default(),
            draw: Box::new(draw),
        }
    }

    /// The way from keys to memory.
    #[inline]
    pub(crate) fn admission(&self) -> Admission<'_> {
        let places = &self.window_places;
        Admission { units: &self.units, windows: &self.windows, places, roster: &self.roster }
    }

    /// Members that come and go.
    pub fn membership(&self) -> Membership<'_> {
        let Nic { roster, units, windows, served, events, tally, incarnation, draining, draw, .. } = self;
        Membership { roster, units, windows, served, events, tally, incarnation: *incarnation, draining, draw }
    }

    fn grants(&self) -> Grants<'_> {
        Grants { lending: &self.lending, tally: &self.tally, events: &self.events }
    }

    /// Memory with a name.
    pub fn regions(&self) -> Regions<'_> {
        Regions { named: &self.named, units: &self.units, grants: self.grants() }
    }

    /// Memory that members reach by the node's card.
    pub(crate) fn cards(&self) -> Cards<'_> {
        let Nic { card, budget, windows, tally, draw, .. } = self;
        Cards { card: card.as_ref(), budget, windows, tally, draw }
    }

    /// Volumes that are made, found and ended.
    pub fn swap(&self) -> Swap<'_> {
        let Nic { volumes, units, lending, tally, tenants, events, incarnation, .. } = self;
        let flag = |flag, is_set: bool| if is_set { flag } else { 0 };
        let leaves =
            flag(nbd::GOING_DOWN, self.is_draining()) | flag(nbd::TO_BE_EMPTIED, self.emptied.load(Ordering::Relaxed));
        Swap { volumes, units, lending, tally, tenants, events, incarnation: *incarnation, leaves }
    }

    /// From now on takes no new runs.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`Nic::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether its rack wants it to be emptied. Runs learn of that by the controller; hosts that
    /// swap to it, by their volumes' reports. It takes no new volume meanwhile.
    pub fn set_emptied(&self, wanted: bool) {
        self.emptied.store(wanted, Ordering::Relaxed);
    }

    /// Does a piece of the node's own work: it drains and scrubs units, and recovers those of dead
    /// owners. Returns false when there was nothing to do now. `cpu_ns` is the caller's clock of
    /// CPU time.
    pub fn keep(&self, cpu_ns: &dyn Fn() -> u64) -> bool {
        self.served.keep(&self.windows, &self.epochs);
        let tidied = self.swap().tidy();
        self.units.keep(&self.epochs, cpu_ns) || tidied
    }

    /// Whether [`Nic::keep`] should be called soon. If not, a call now and then is enough.
    #[inline]
    pub fn is_unkept(&self) -> bool {
        self.units.is_unkept() || self.volumes.are_sparse()
    }

    /// Drained units that wait to be scrubbed, and that no thread has taken up. Another thread that
    /// calls [`Nic::keep`] would help.
    #[inline]
    pub fn unscrubbed(&self) -> usize {
        self.units.unscrubbed()
    }

    /// Entries in the tables that strangers can fill: members and windows.
    pub fn entries(&self) -> usize {
        self.roster.places.taken() + self.window_places.taken()
    }

    /// Bytes lent now: slabs, and units that somebody holds or that are not clean yet.
    pub fn lent(&self) -> u64 {
        self.lending.lent() + self.units.words.held()
    }

    /// Bytes that it lends now, at most: all, but for slabs that its machine needs itself.
    pub fn most(&self) -> u64 {
        self.lending.limit().min(self.lending.most() + self.units.words.held())
    }

    /// One of the node's figures. Any member may ask, often.
    pub fn figure(&self, figure: Figure, now_ns: u64) -> u64 {
        let kept = self.units.kept();
        match figure {
            Figure::Windows => self.windows.count().0,
            Figure::WindowsBound => self.windows.count().1,
            Figure::DrainNs => kept.drain_ns.load(Ordering::Relaxed),
            Figure::ScrubNs => kept.scrub_ns.load(Ordering::Relaxed),
            Figure::ScrubbedBytes => kept.scrubbed_bytes.load(Ordering::Relaxed),
            Figure::Reclaimed => kept.reclaimed.load(Ordering::Relaxed),
            Figure::InUse => {
                let mut known = self.used.lock();
                if known.is_none_or(|(at_ns, _)| now_ns >= at_ns + USED_NS) {
                    *known = Some((now_ns, self.in_use()));
                }
                known.map_or(0, |(_, bytes)| bytes)
            }
            Figure::Aside => self.aside(),
        }
    }

    /// The offers in a Welcome.
    fn offers(&self) -> u8 {
        let card = if self.card.is_some() { OFFERS_RDMA } else { 0 };
        card | if self.lending.keeps_reserve() { OFFERS_RESERVE } else { 0 }
    }

    /// Makes `service` answer SENDs from now on. Once one was set, further calls change nothing.
    pub fn serve(&self, service: impl Service + 'static) {
        self.served.set(service);
    }

    /// Everybody who is a member now.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.roster.members()
    }

    fn grant(&self, member: &Arc<Member>) -> Result<Arc<Slab>, Refused> {
        let slab = self.grants().grant(member, &member.tenancy)?;
        if !member.hold(Arc::clone(&slab)) {
            return Err(Status::NotHeld.into());
        }
        count(&self.tally.grants, 1);
        self.events.tell(Event::Granted(member, Ok(())));
        Ok(slab)
    }

    fn release(&self, member: &Arc<Member>, id: SlabId) -> Status {
        let slab = member.holds.lock().let_go(id);
        self.admission().unbind_slab(member, id);
        member.wires.lock().withdraw(id, carved::patience());
        if slab.is_none() {
            return Status::NotHeld;
        }
        self.events.tell(Event::Released(member));
        Status::Done
    }

    /// Gives the memory of a range back to the system. Only a slab's sole holder may: after a fork
    /// the bytes may still mean something to the other holder.
    fn discard(&self, member: &Arc<Member>, Range { slab: id, offset, len }: Range) -> Status {
        let Some(slab) = member.slab(id) else { return Status::NotHeld };
        if !offset.is_multiple_of(4096) || !len.is_multiple_of(4096) || slab.mapping.at(offset, len).is_none() {
            return Status::Range;
        }
        let of_region = !member.holds.lock().slabs.contains_key(&id);
        if of_region
            || self.roster.members().iter().any(|other| !Arc::ptr_eq(other, member) && other.slab(id).is_some())
        {
            return Status::Shared;
        }
        let exposed = member.wires.lock().exposes(id);
        // Held until the range is given back: no window can pin its pages for the card meanwhile.
        let pins = slab.pins.lock();
        if exposed || *pins > 0 {
            // The card holds the slab's pages, so they cannot be given back to the system. They are
            // zeroed instead.
            return if slab.mapping.zero(offset, len) { Status::Done } else { Status::Range };
        }
        slab.discard(offset, len);
        count(&self.tally.discarded_bytes, len);
        Status::Done
    }

    /// Has the system back a range of a slab with memory now.
    fn back(&self, member: &Member, Range { slab: id, offset, len }: Range) -> Result<(), Refused> {
        let slab = member.slab(id).ok_or(Status::NotHeld)?;
        if !offset.is_multiple_of(4096) || !len.is_multiple_of(4096) || len == 0 || len > MAX_BACKED {
            return Err(Status::Range.into());
        }
        slab.mapping.at(offset, len).ok_or(Status::Range)?;
        slab.back(offset, len).map_err(|e| Refused { status: Status::System, value: e.0 as u64 })
    }

    /// A file of blocks that a member on this machine has claimed, for mapping. `None`: it is not done
    /// yet, as [`Units::file_step`] has it.
    fn unit(
        &self,
        member: &Member,
        (key, blocks): (Key, u32),
        copying: &mut Option<Copying>,
    ) -> Result<Option<Arc<File>>, Refused> {
        let refused = |(status, error): (Status, i32)| Refused { status, value: error as u64 };
        self.units.file_step((&member.lease, member.peer), (key, blocks), copying).map_err(refused)
    }

    /// Bytes of memory that slabs have really taken: pages touched and not given back. At most what
    /// is lent. A system call for each slab: for an operator's view, not for a hot path.
    pub fn in_use(&self) -> u64 {
        let mut slabs = BTreeMap::new();
        for member in self.roster.members() {
            let holds = member.holds.lock();
            slabs.extend(holds.slabs.values().chain(holds.shared.slabs()).map(|slab| (slab.id, Arc::clone(slab))));
        }
        slabs.extend(self.regions().slabs().into_iter().map(|slab| (slab.id, slab)));
        slabs.values().map(|slab| slab.taken()).sum::<u64>() + self.units.taken()
    }
}
