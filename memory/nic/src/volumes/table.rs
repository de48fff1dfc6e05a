//! The volumes of a node: made, found, left by their streams, ended.

use super::{All, Attached, BLOCK, MAX_KEPT_MS, MAX_STREAMS, OVERCOMMIT, RESERVE, State, Volume, Volumes};
use crate::events::{Event, Events, VolumeEvent};
use crate::graces::Graces;
use crate::lending::Lending;
use crate::members::{Holder, Member};
use crate::shares::{By, Peer};
use crate::tally::Tally;
use crate::tenants::{Tenant, Tenants};
use crate::units::Units;
use crate::units::blocks::Promise;
use crate::units::leases::Lease;
use farmem_protocol::nbd::PAGE;
use farmem_protocol::wire::{Known, NewVolume, Purpose, Verdict, VolumeInfo};
use farmem_sys::sync::{Held, Lock};
use farmem_trust::TokenId;
use farmem_trust::agree::Agreed;
use farmem_volume::MAX_SLOTS;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Volumes {
    /// The kernel beneath this node, by [`farmem_protocol::nbd::machine`].
    pub fn set_machine(&self, machine: u64) {
        self.machine.store(machine, Ordering::Relaxed);
    }

    /// All that there are.
    pub fn all(&self) -> Vec<Arc<Volume>> {
        self.all.lock().values().cloned().collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Whether blocks wait to be put together.
    #[inline]
    pub(crate) fn are_sparse(&self) -> bool {
        self.sparse.load(Ordering::Acquire)
    }
}

/// The volumes, with what making and ending one touches.
#[derive(Clone, Copy)]
pub struct Swap<'a> {
    pub(crate) volumes: &'a Volumes,
    pub(crate) units: &'a Arc<Units>,
    pub(crate) lending: &'a Lending,
    pub(crate) tally: &'a Tally,
    pub(crate) tenants: &'a Tenants,
    pub(crate) events: &'a Events,
    pub(crate) incarnation: u64,
    /// The flags of a report: the node goes down, or is to be emptied.
    pub(crate) leaves: u64,
}

impl Swap<'_> {
    /// The volume that has an owner id now.
    pub fn of_owner(self, owner: u16) -> Option<Arc<Volume>> {
        self.volumes.all.lock().values().find(|volume| volume.owner() == owner).cloned()
    }

    /// The volume at a place in the order of ids, which nobody learns, of those that the member that
    /// asks may know.
    pub(crate) fn at(self, asks: &Member, place: u64) -> Option<VolumeInfo> {
        let place = usize::try_from(place).ok()?;
        let all = self.volumes.all.lock();
        let volume = all.values().filter(|volume| asks.may_know(volume.tenant())).nth(place).cloned()?;
        drop(all);
        let (usage, bytes) = (volume.usage(), |pages: u32| u64::from(pages) * PAGE);
        Some(VolumeInfo {
            owner: volume.owner(),
            size: bytes(volume.slots),
            live: bytes(usage.live),
            filled: bytes(usage.filled),
            told: volume.is_told(),
            host: volume.names.host,
        })
    }

    /// The secret by which alone streams of the volume come, of which there may be none.
    pub(crate) fn agreed(self, purpose: &Purpose) -> Option<Agreed> {
        let Purpose::Volume(known, _) = purpose else { return None };
        self.volumes.all.lock().get(&known.secret).and_then(|volume| volume.agreed)
    }

    /// The volume that a host names. Another tenant's is none, nor is one with another secret than was
    /// proven: it may have been made since the proof was looked at.
    pub(crate) fn find(self, known: &Known, holder: &Holder, proven: Option<Agreed>) -> Result<Arc<Volume>, Verdict> {
        if known.incarnation != self.incarnation {
            return Err(Verdict::Incarnation);
        }
        let asks = holder.as_ref().map(|(tenant, _)| tenant.name);
        let is_theirs =
            |volume: &Arc<Volume>| volume.tenant().map(|tenant| tenant.name) == asks && volume.agreed == proven;
        self.volumes.all.lock().get(&known.secret).filter(|volume| is_theirs(volume)).cloned().ok_or(Verdict::Unknown)
    }

    /// One more stream of a volume, by this token. `data`: pages move by it, and by no other from
    /// now on. The token may have been revoked since it was proven: then nothing has changed.
    pub(crate) fn attach(self, volume: Arc<Volume>, data: bool, token: Option<TokenId>) -> Result<Attached, Verdict> {
        let mut state = volume.state.lock();
        if state.gone {
            return Err(Verdict::Unknown);
        }
        if state.streams == MAX_STREAMS {
            return Err(Verdict::Full);
        }
        // Under the lock. A token that is revoked after this is found in `state` by `set_tokens`.
        if let Some(over) = token.and_then(|token| self.tenants.why_not(&token)) {
            return Err(over);
        }
        (state.streams, state.token) = (state.streams + 1, token);
        let turn = data.then(|| {
            state.turn += 1;
            state.turn
        });
        drop(state);
        self.events.tell(Event::Volume(&volume, VolumeEvent::Attached));
        Ok(Attached { volume, turn })
    }

    /// A new volume, without a stream.
    pub(crate) fn make(
        self,
        new: &NewVolume,
        (peer, by): (Peer, By),
        (holder, agreed): (Holder, Option<Agreed>),
        now_ns: u64,
    ) -> Result<Arc<Volume>, Verdict> {
        let (tenant, token) = holder.unzip();
        let size = new.size;
        if size == 0 || !size.is_multiple_of(PAGE) || size / PAGE > MAX_SLOTS as u64 {
            return Err(Verdict::Malformed);
        }
        if self.leaves != 0 {
            return Err(Verdict::Draining);
        }
        // Held until the volume is there: two that come together are promised one after the other.
        let mut all = self.volumes.all.lock();
        if all.contains_key(&new.id) {
            return Err(Verdict::Malformed);
        }
        let promised = !new.overcommit;
        let needed = size.next_multiple_of(BLOCK);
        let promise = match promised {
            true => Some(self.units.promise_if(needed, self.reserve()).map_err(Verdict::NoRoom)?),
            false => match self.addressable(&all, tenant.as_deref(), peer) {
                room if size > room => return Err(Verdict::NoRoom(room)),
                _ => None,
            },
        };
        let place = self.volumes.places.take(by).map_err(|_| Verdict::Full)?;
        // A promise counts to the tenant here, and not again when its memory is claimed.
        let charged = if promised { None } else { tenant.clone() };
        let lease = Lease::of(self.units, charged).ok_or(Verdict::Full)?;
        if promised && needed > self.units.quota_of(lease.owner()) {
            return Err(Verdict::NoRoom(self.units.quota_of(lease.owner())));
        }
        if let Some(tenant) = tenant.as_ref().filter(|tenant| promised && !tenant.charge(needed as i64)) {
            return Err(Verdict::NoRoom(tenant.limit().saturating_sub(tenant.held())));
        }
        let slots = (size / PAGE) as u32;
        let state = State {
            map: farmem_volume::Volume::new(slots),
            gone: false,
            streams: 0,
            absent_since: now_ns,
            turn: 0,
            told: false,
            place: Some(place),
            token,
        };
        let volume = Arc::new(Volume {
            id: new.id,
            pid: new.pid,
            names: new.names,
            peer,
            kept_ns: new.kept_ms.min(MAX_KEPT_MS) * 1_000_000,
            promised,
            tenant,
            agreed,
            lease,
            slots,
            state: Lock::new(state),
        });
        all.insert(new.id, Arc::clone(&volume));
        drop(all);
        // The volume's end takes it back.
        promise.into_iter().for_each(Promise::keep);
        self.events.tell(Event::Volume(&volume, VolumeEvent::Made));
        Ok(volume)
    }

    /// Bytes that one more overcommitted volume may have, of a tenant or else a peer. Its pages need
    /// memory only as they are written, but its tables need some for a single page in two MiB.
    fn addressable(self, all: &All, tenant: Option<&Tenant>, peer: Peer) -> u64 {
        let overcommitted = || all.values().filter(|volume| !volume.promised);
        let is_theirs = |volume: &&Arc<Volume>| match (tenant, volume.tenant()) {
            (Some(tenant), Some(other)) => tenant.name == other.name,
            (None, None) => volume.peer == peer,
            _ => false,
        };
        let bytes = |volume: &Arc<Volume>| u64::from(volume.slots) * PAGE;
        let lends = self.lending.limit();
        let own = OVERCOMMIT.saturating_mul(tenant.map_or(lends, |tenant| tenant.quota().min(lends)));
        let of_all = (2 * OVERCOMMIT).saturating_mul(lends);
        let left = own.saturating_sub(overcommitted().filter(is_theirs).map(bytes).sum());
        left.min(of_all.saturating_sub(overcommitted().map(bytes).sum()))
    }

    /// Bytes that could be promised to one more volume.
    pub fn promisable(self) -> u64 {
        self.units.words.free_bytes().saturating_sub(self.units.promised() + self.reserve())
    }

    /// Bytes that are never promised.
    fn reserve(self) -> u64 {
        (self.lending.limit() / RESERVE).max(BLOCK)
    }

    /// A stream of a volume has closed.
    pub(crate) fn left(self, attached: &Attached, now_ns: u64) {
        let Attached { volume, turn } = attached;
        let mut state = volume.state.lock();
        // If another stream tells of slots, its next mark says so.
        state.told &= turn.is_some();
        state.streams -= 1;
        state.absent_since = now_ns;
        let is_cut = state.streams == 0 && !state.gone;
        drop(state);
        if is_cut {
            self.events.tell(Event::Volume(volume, VolumeEvent::Cut(volume.kept_ns / 1_000_000)));
        }
    }

    /// Ends a volume: nothing of it can be reached any more, and its memory is made clean.
    pub(crate) fn free(self, volume: &Arc<Volume>, why: VolumeEvent) {
        self.free_locked(volume, volume.state.lock(), why);
    }

    /// The same, by one that has its lock.
    fn free_locked(self, volume: &Arc<Volume>, mut state: Held<'_, State>, why: VolumeEvent) {
        if std::mem::replace(&mut state.gone, true) {
            return;
        }
        let blocks = state.map.usage().blocks as u64;
        let place = state.place.take();
        state.map = farmem_volume::Volume::new(0);
        drop(state);
        if volume.promised {
            let needed = (volume.slots as u64 * PAGE).next_multiple_of(BLOCK);
            self.units.promise(-(needed.saturating_sub(blocks * BLOCK) as i64));
            if let Some(tenant) = volume.tenant() {
                tenant.charge(-(needed as i64));
            }
        }
        // Its words are found by a scan, as those of a member that was killed.
        volume.lease.end();
        self.volumes.all.lock().remove(&volume.id);
        drop(place);
        self.events.tell(Event::Volume(volume, why));
    }

    /// Ends volumes whose grace is over. When to look again, if any has no stream.
    pub(crate) fn expire(self, now_ns: u64) -> Option<u64> {
        let mut graces = Graces::at(now_ns);
        for volume in self.volumes.all() {
            let state = volume.state.lock();
            let absent = (state.streams == 0).then_some(state.absent_since);
            // Under the same lock: no stream comes between the look and the end.
            if graces.is_over(absent, volume.kept_ns) {
                self.free_locked(&volume, state, VolumeEvent::Forgotten);
            }
        }
        graces.next_ns
    }

    /// Moves some pages of sparse volumes. False when there was nothing to do.
    pub(crate) fn tidy(self) -> bool {
        if !self.volumes.sparse.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut more = false;
        for volume in self.volumes.all() {
            more |= volume.tidy(self);
        }
        if more {
            self.volumes.sparse.store(true, Ordering::Release);
        }
        true
    }
}
