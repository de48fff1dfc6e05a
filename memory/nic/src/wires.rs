//! A member's memory and queue pairs on the node's RDMA card.
//!
//! Each member has a protection domain of its own: its queue pairs, and a region for each slab that
//! it asked to expose. The card refuses a key in any other domain, so that a member reaches only
//! its own slabs, even by invented keys. Everything ends on the card first:
//!
//! ```text
//! release      windows, region taken back ─► slab let go
//! a cut        queue pair broken ─► windows taken back ─► queue pair destroyed ─► the turn is another's
//! parting      windows ─► queue pairs ─► regions ─► slabs
//! ```
//!
//! *Putting a slab on the card* locks all of it, which may take longer than a worker's other members
//! should wait. A thread of its own does it, one slab of a member at a time, and the request is put
//! off until it has.
//!
//! Taking back waits, by the card's own promise, until nothing is under way. Verbs that do not end
//! by themselves are broken off, after a while or at once (`carved`). All of an exposed slab is
//! locked in memory, and none of it is discarded before it ends: the card would go on using pages
//! that are no longer the slab's.

// Regions of slabs: memory that stays mapped as long as the region.
#![allow(unsafe_code)]

use super::budget::{Budget, MEMBER_BYTES, MEMBER_WINDOWS};
use super::carved::{self, Carved, MAX_CARVED};
use super::grip::Memory;
use super::lending::Slab;
use super::members::Holder;
use super::members::coming::Membership;
use super::tally::{Tally, count};
use super::windows::{Bound, Windows};
use super::{Draw, MAX_QUEUES, Member, Nic};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::wire::{self, Known, Refused, Reply, Status, Verdict};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::verbs::{Device, Domain, Endpoint, RcQueue, Region, Rights};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Work requests of the node on a queue pair: none yet, but there is no queue without room.
const DEPTH: u32 = 4;

/// A member's objects on the card.
#[derive(Default)]
pub(super) struct Wires {
    /// Over, for good.
    gone: bool,
    /// Turns given so far.
    turns: u64,
    /// Before the regions: a queue pair that cannot be named any more need not be looked for.
    queues: BTreeMap<u64, Wire>,
    regions: BTreeMap<SlabId, Exposed>,
    /// The slab that a thread puts on the card.
    coming: Option<SlabId>,
    /// The slab that the card did not take last, and why, until that is told.
    failed: Option<(SlabId, Errno)>,
    domain: Option<Arc<Domain>>,
    /// The part of it that windows may take.
    budget: Option<Arc<Budget>>,
}

/// A queue pair, and the turn of the connection that may use it.
struct Wire {
    turn: u64,
    /// Windows on the card that are bound for it.
    carved: Vec<Arc<Carved>>,
    /// Others hold it while they end one of those, and no longer.
    queue: Option<Arc<Lock<RcQueue>>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A message that came half holds up its region, and so whoever ends its window: us, or who
        // waits for us.
        if let Some(queue) = &self.queue {
            let _ = queue.lock().break_off();
        }
        // Before the queue pair, which is destroyed here, by us: soft-RoCE waits 50 s for a window
        // else.
        let until = carved::patience();
        self.carved.iter().for_each(|carved| carved.end(until));
    }
}

/// In this order: the region goes first.
struct Exposed {
    region: Region,
    _slab: Arc<Slab>,
}

impl Wires {
    /// Everything, to be dropped by the caller. Nothing comes after.
    pub fn end(&mut self) -> impl Sized {
        self.gone = true;
        (std::mem::take(&mut self.queues), std::mem::take(&mut self.regions), self.domain.take())
    }

    /// Takes a slab off the card. Of the member's queue pairs those are broken by which it is used
    /// after `until_ns`; which these are is not known, so all are.
    pub fn withdraw(&mut self, slab: SlabId, until_ns: u64) {
        if let Some(Exposed { region, _slab }) = self.regions.remove(&slab) {
            let queues: Vec<_> = self.queues.values().filter_map(|wire| wire.queue.clone()).collect();
            carved::take_back(region, until_ns, &queues);
        }
    }

    /// Whether a slab is on it, or about to be: the card has its pages, or takes them just now.
    pub fn exposes(&self, slab: SlabId) -> bool {
        self.regions.contains_key(&slab) || self.coming == Some(slab)
    }

    /// Queue pairs on it.
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// The stream of a queue pair has closed: it is destroyed and forgotten, unless another
    /// connection has it by now.
    pub fn cut(&mut self, queue: u64, turn: u64) {
        if self.queues.get(&queue).is_some_and(|wire| wire.turn == turn) {
            self.queues.remove(&queue);
        }
    }

    fn domain(&mut self, card: &Device) -> Result<Arc<Domain>, Errno> {
        if self.domain.is_none() {
            self.domain = Some(card.domain()?);
        }
        self.domain.clone().ok_or(Errno(libc::EIO))
    }
}

impl Nic {
    /// Lets members reach their slabs by a card.
    pub fn over(mut self, card: Option<Device>) -> Nic {
        // Half of what the card has: it may have other users. Regions count what they lock each for
        // itself, so that more than is lent would be locked only where the same bytes are lent
        // several times over.
        let windows = card.as_ref().map_or(0, |card| u64::from(card.abilities().max_windows) / 2);
        self.budget = Budget::new(windows, self.lending.limit(), None);
        self.card = card;
        self
    }

    /// The card's name, if there is one.
    pub fn card(&self) -> Option<&str> {
        self.card.as_ref().map(Device::name)
    }
}

/// Memory that members reach by the node's card.
#[derive(Clone, Copy)]
pub(super) struct Cards<'a> {
    pub card: Option<&'a Device>,
    /// How much of it windows may take.
    pub budget: &'a Arc<Budget>,
    pub windows: &'a Windows,
    pub tally: &'a Tally,
    pub draw: &'a Draw,
}

impl Cards<'_> {
    /// Begins to put a slab of the member's on the card, if it is not there. Whether
    /// [`Cards::expose`] has an answer now.
    pub(super) fn prepare(self, member: &Arc<Member>, id: SlabId) -> bool {
        let Some(card) = self.card else { return true };
        let mut wires = member.wires.lock();
        let Some(slab) = member.slab(id).filter(|_| !wires.gone) else { return true };
        if wires.regions.contains_key(&id) || wires.failed.is_some_and(|(failed, _)| failed == id) {
            return true;
        }
        if wires.coming.is_some() {
            return false;
        }
        let Ok(domain) = wires.domain(card) else { return true };
        let theirs = Arc::clone(member);
        let taker = std::thread::Builder::new().name("farmem-reg".into()).stack_size(256 << 10);
        // The thread waits for the lock that is held here.
        let taken = taker.spawn(move || theirs.take_on_card(slab, &domain));
        wires.coming = taken.is_ok().then_some(id);
        // Without a thread the worker does it.
        wires.coming.is_none()
    }

    /// Puts a slab of the member's on the card. Its key there.
    pub(super) fn expose(self, member: &Member, id: SlabId) -> Result<u32, Refused> {
        let refused = |e: Errno| Refused { status: Status::System, value: e.0 as u64 };
        let Some(card) = self.card else { return Err(refused(Errno(libc::ENODEV))) };
        let mut wires = member.wires.lock();
        // Under the lock that a release takes after it has taken the slab: it finds the region, or
        // we no slab.
        let slab = member.slab(id).filter(|_| !wires.gone).ok_or(Status::NotHeld)?;
        if let Some(exposed) = wires.regions.get(&id) {
            return Ok(exposed.region.rkey());
        }
        if let Some((_, e)) = wires.failed.take_if(|(failed, _)| *failed == id) {
            return Err(refused(e));
        }
        let domain = wires.domain(card).map_err(refused)?;
        let region = region_of(&slab, &domain).map_err(refused)?;
        let rkey = region.rkey();
        wires.regions.insert(id, Exposed { region, _slab: slab });
        Ok(rkey)
    }

    /// Puts a window that is bound for the member on the card, for one of its queue pairs. Its key
    /// there and where it begins.
    pub(super) fn expose_window(self, member: &Member, key: Key, number: u64) -> Result<Reply, Status> {
        let KeyKind::Window { index, generation } = key.kind() else { return Err(Status::Access) };
        let card = self.card.filter(|card| card.abilities().windows).ok_or(Status::System)?;
        // Held to the end: the queue pair stays.
        let mut wires = member.wires.lock();
        if wires.gone {
            return Err(Status::Access);
        }
        let domain = wires.domain(card).map_err(|_| Status::System)?;
        let made = || Budget::new(MEMBER_WINDOWS, MEMBER_BYTES, Some(Arc::clone(self.budget)));
        let budget = Arc::clone(wires.budget.get_or_insert_with(made));
        let wire = wires.queues.get_mut(&number).ok_or(Status::Access)?;
        let queue = wire.queue.clone().ok_or(Status::Access)?;
        wire.carved.retain(|carved| !carved.is_over());
        let full = wire.carved.len() >= MAX_CARVED;
        let ours = |carved: &Carved| carved.is_of(&queue);
        let make = |bound: &Bound| match &bound.memory {
            // Memory whose extent's word may end at any time cannot be the card's.
            Memory::Slab(slab) if !full && bound.under.is_none() => {
                Carved::new(&domain, &queue, (slab, bound.base, bound.len), bound.rights, &budget)
            }
            _ => None,
        };
        let carved = self.windows.carve((member.serial, number), (index, generation), ours, make)?;
        if !wire.carved.iter().any(|known| Arc::ptr_eq(known, &carved)) {
            wire.carved.push(Arc::clone(&carved));
            count(&self.tally.carved, 1);
        }
        Ok(Reply::Exposed(carved.rkey(), carved.base() as u16))
    }

    /// Makes the node's end of a queue pair, connected to the host's.
    pub(super) fn connect_wire(self, member: &Member, queue: u64, turn: u64, host: &wire::Endpoint) -> wire::Endpoint {
        match self.connect(member, queue, turn, host) {
            Ok(own) => wire::Endpoint::ready(own.mtu, own.lid, own.number, own.sequence, own.gid),
            Err(e) => wire::Endpoint::refused(e.0),
        }
    }

    fn connect(self, member: &Member, queue: u64, turn: u64, host: &wire::Endpoint) -> Result<Endpoint, Errno> {
        let card = self.card.ok_or(Errno(libc::ENODEV))?;
        let mut wires = member.wires.lock();
        if wires.gone {
            return Err(Errno(libc::ESTALE));
        }
        let domain = wires.domain(card)?;
        let wire = wires.queues.get_mut(&queue).filter(|w| w.turn == turn && w.queue.is_none());
        let wire = wire.ok_or(Errno(libc::ESTALE))?;
        let bits = (self.draw)();
        let mut made = RcQueue::new(&domain, DEPTH, u32::from_le_bytes([bits[0], bits[1], bits[2], 0]))?;
        made.accept(&Endpoint {
            number: host.qpn.get(),
            sequence: host.psn.get(),
            gid: host.gid,
            lid: host.lid.get(),
            mtu: host.mtu,
        })?;
        let own = made.endpoint();
        wire.queue = Some(Arc::new(Lock::new(made)));
        Ok(own)
    }
}

/// All of a slab as a region, which must be dropped before the slab.
fn region_of(slab: &Slab, domain: &Arc<Domain>) -> Result<Region, Errno> {
    let at = slab.mapping.extent().0.as_ptr();
    // SAFETY: mapped as long as the slab, which the caller keeps beside the region; accessed raw.
    unsafe { domain.region(at, SLAB_BYTES as usize, Rights::All) }
}

impl Member {
    /// Puts a slab on the card, for [`Cards::prepare`].
    fn take_on_card(&self, slab: Arc<Slab>, domain: &Arc<Domain>) {
        let made = region_of(&slab, domain);
        let mut wires = self.wires.lock();
        wires.coming = None;
        match made {
            Err(e) => wires.failed = Some((slab.id, e)),
            // As in `expose`: a release finds the region, or we no slab.
            Ok(region) if !wires.gone && self.slab(slab.id).is_some() => {
                wires.regions.insert(slab.id, Exposed { region, _slab: slab });
            }
            Ok(region) => {
                drop(wires);
                drop(region);
            }
        }
    }
}

impl Membership<'_> {
    /// The turn of a queue pair goes to the connection that asks; the one before is destroyed.
    pub fn attach_wire(self, known: &Known, queue: u64, holder: &Holder) -> Result<(Arc<Member>, u64), Verdict> {
        let member = self.present(known, holder)?;
        let mut wires = member.wires.lock();
        let known = wires.queues.contains_key(&queue);
        let refused = match (wires.gone, known || wires.queues.len() < MAX_QUEUES) {
            (true, _) => Some(Verdict::Unknown),
            (false, false) => Some(Verdict::Full),
            (false, true) => None,
        };
        if let Some(verdict) = refused {
            drop(wires);
            member.presence.lock().connections -= 1;
            return Err(verdict);
        }
        wires.turns += 1;
        let turn = wires.turns;
        // The one before is destroyed here: nothing of it reaches memory after the welcome.
        wires.queues.insert(queue, Wire { turn, carved: Vec::new(), queue: None });
        drop(wires);
        Ok((member, turn))
    }
}
