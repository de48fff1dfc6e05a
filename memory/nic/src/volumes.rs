//! Swap volumes: a host's kernel swaps to them.
//!
//! ```text
//!  stream ── WRITE slot ─► Volume::write ─► repeated word? ─► nothing is stored
//!                                    └────► chunk of a block ─► no room: claimed from the word table
//!  stream ── TRIM ───────► Volume::trim ──► block empty? ─► quarantine, scrubbed, free       units::blocks
//!  Nic::keep ────────────► Volume::tidy ──► pages of sparse blocks move together
//! ```
//!
//! A volume's host draws its id, and knowing the id is the right to the volume. A volume belongs to
//! no process: it stays while any stream of it stands, and for its grace after the last. Its host
//! may free it earlier. It is an owner in the word table as any member is, with the node's quota.
//!
//! Pages are copied in and out, moved and freed under the volume's lock. So no page can be seen
//! while it moves, and no page is read after it was freed.
//!
//! *One stream moves pages*, the newest. The kernel may repeat a request on it that an older stream
//! had cut off. The rest of the older copy must not be carried out after that: it would put an old
//! page over a new one.
//!
//! *Freed slots.* A kernel reports them by clusters (TRIM). `farmem swap` reports single slots
//! where it can, with a mark that it asked for earlier. A slot that was written after the mark
//! stays. No clocks are compared.
//!
//! *Promises.* A volume that is larger than the node can store is refused, unless its host asks for
//! overcommitment. Other owners cannot claim memory that volumes were promised
//! ([`Units::promised`]).
//!
//! *Tokens.* A volume is its tenant's: streams of other tenants do not find it. A promise counts to
//! the tenant's quota from the beginning, so that no other program of the tenant can take what was
//! promised. The volume ends when the token of its newest stream is revoked.

use super::Nic;
use super::events::{Event, VolumeEvent};
use super::members::Holder;
use super::shares::{Peer, Place, Table};
use super::tally::count;
use super::tenants::Tenant;
use super::units::Units;
use super::units::leases::Lease;
use farmem_protocol::nbd::{GOING_DOWN, PAGE, Refusal, Report};
use farmem_protocol::wire::{Known, Names, NewVolume, Secret, Verdict, VolumeInfo, run_id};
use farmem_sys::sync::{Held, Lock};
use farmem_trust::TokenId;
use farmem_volume::{BLOCK_CHUNKS, Chunk, Content, MAX_SLOTS, Usage, repeated};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_CHUNKS as u64 * PAGE;
/// Volumes of a node, at most.
const MAX_VOLUMES: usize = 256;
/// Streams of one volume, at most.
const MAX_STREAMS: u32 = 16;
/// One part in `RESERVE` of a node's memory is promised to no volume. It is for memory that is
/// being cleaned, and for members' claims of small units.
const RESERVE: u64 = 32;
/// An overcommitted volume may have at most this many times the memory that the node lends.
const OVERCOMMIT: u64 = 4;
/// Pages that one call of [`Volume::tidy`] moves.
const MOVES: u32 = 64;
/// The longest that a volume is kept without a stream, in milliseconds: an hour.
const MAX_KEPT_MS: u64 = 3_600_000;

/// A page on its way.
pub type Page = [u8; PAGE as usize];

/// One volume.
pub struct Volume {
    id: Secret,
    pid: u32,
    names: Names,
    peer: Peer,
    kept_ns: u64,
    promised: bool,
    tenant: Option<Arc<Tenant>>,
    lease: Lease,
    slots: u32,
    state: Lock<State>,
}

struct State {
    map: farmem_volume::Volume,
    gone: bool,
    streams: u32,
    absent_since: u64,
    /// The stream that may move pages.
    turn: u64,
    /// The host tells of single slots that it frees.
    told: bool,
    place: Option<Place>,
    /// By which the last stream came.
    token: Option<TokenId>,
}

/// All volumes of a node.
pub struct Volumes {
    all: Lock<BTreeMap<Secret, Arc<Volume>>>,
    places: Arc<Table>,
    /// Some have blocks to be put together.
    sparse: AtomicBool,
    machine: AtomicU64,
}

impl Default for Volumes {
    fn default() -> Volumes {
        Volumes {
            all: Lock::new(BTreeMap::new()),
            places: Table::new(MAX_VOLUMES),
            sparse: AtomicBool::new(false),
            machine: AtomicU64::new(0),
        }
    }
}

/// A stream's part of a volume.
pub struct Attached {
    /// The volume.
    pub volume: Arc<Volume>,
    /// By which turn it moves pages; `None`: it only asks.
    pub turn: Option<u64>,
}

/// A stream is of no more use: another one has its turn, or the volume is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

/// How a page's transfer ended.
pub type Moved = Result<Result<(), Refusal>, Superseded>;

impl Volume {
    /// Pages.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The id by which descriptor words name it.
    pub fn owner(&self) -> u16 {
        self.lease.owner().slot()
    }

    /// A number for operators, by which the id cannot be told.
    pub fn name(&self) -> u64 {
        run_id(&self.id)
    }

    /// The process that made it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whose it is, as its host says.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Where it came from.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The tenant that its memory is for.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.as_ref()
    }

    /// The token by which its last stream came.
    pub(super) fn token(&self) -> Option<TokenId> {
        self.state.lock().token
    }

    /// Whether its time is over.
    pub fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// Whether its host tells of single slots that it frees.
    pub fn is_told(&self) -> bool {
        self.state.lock().told
    }

    /// How many of its pages are where.
    pub fn usage(&self) -> Usage {
        self.state.lock().map.usage()
    }

    fn state(&self, turn: Option<u64>) -> Result<Held<'_, State>, Superseded> {
        let state = self.state.lock();
        if state.gone || turn.is_some_and(|turn| turn != state.turn) { Err(Superseded) } else { Ok(state) }
    }

    /// Stores a page. `slot` is inside.
    pub(super) fn write(&self, nic: &Nic, turn: Option<u64>, slot: u32, page: &Page) -> Moved {
        let mut state = self.state(turn)?;
        let word = repeated(page);
        if word.is_some_and(|word| state.map.fill(slot, word)) {
            self.give_back(nic, &mut state);
            return Ok(Ok(()));
        }
        let chunk = match state.map.place(slot) {
            Ok(chunk) => chunk,
            Err(_) => {
                let Ok(block) = nic.units.claim_block(&self.lease) else {
                    count(&nic.tally.exhausted, 1);
                    return Ok(Err(Refusal::NoSpace));
                };
                state.map.add_block(block);
                if self.promised {
                    nic.units.promise(-(BLOCK as i64));
                }
                state.map.place(slot).map_err(|_| Superseded)?
            }
        };
        let stored = nic.units.write_chunk(at(chunk), page);
        count(&nic.tally.write_bytes, PAGE);
        Ok(if stored { Ok(()) } else { Err(Refusal::NoSpace) })
    }

    /// Reads a page. `slot` is inside.
    pub(super) fn read(&self, nic: &Nic, turn: Option<u64>, slot: u32, into: &mut Page) -> Result<(), Superseded> {
        let state = self.state(turn)?;
        match state.map.look(slot) {
            Content::Empty => into.fill(0),
            Content::Filled(word) => {
                into.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word.to_le_bytes()));
            }
            Content::At(chunk) => nic.units.read_chunk(at(chunk), into),
        }
        count(&nic.tally.read_bytes, PAGE);
        Ok(())
    }

    /// Forgets pages, some thousand in one call. With a mark: only pages not written after it.
    /// Returns the slot at which to go on; `None`: done.
    pub(super) fn trim(
        &self,
        nic: &Nic,
        turn: Option<u64>,
        mark: Option<u64>,
        (first, end): (u32, u32),
    ) -> Result<Option<u32>, Superseded> {
        /// Pages that are forgotten under one hold of the lock: some hundred microseconds.
        const AT_ONCE: u32 = 4096;
        let mut state = self.state(turn)?;
        let (mut at, mut trimmed) = (first, 0);
        while let Some(slot) = state.map.next_used(at, end).filter(|_| trimmed < AT_ONCE) {
            match mark {
                Some(mark) => {
                    state.map.freed(slot, mark);
                }
                None => state.map.trim(slot),
            }
            (at, trimmed) = (slot + 1, trimmed + 1);
        }
        self.give_back(nic, &mut state);
        Ok((trimmed == AT_ONCE).then_some(at))
    }

    /// A number for this moment ([`farmem_volume::Volume::mark`]). From now on the volume counts as
    /// one whose host reports single slots.
    pub(super) fn mark(&self) -> Result<u64, Superseded> {
        let mut state = self.state(None)?;
        state.told = true;
        Ok(state.map.mark())
    }

    /// Gives empty blocks back, and has sparse ones looked after.
    fn give_back(&self, nic: &Nic, state: &mut State) {
        while let Some(block) = state.map.empty() {
            nic.units.release_block(&self.lease, block);
            if self.promised {
                nic.units.promise(BLOCK as i64);
            }
        }
        if state.map.is_sparse() {
            nic.volumes.sparse.store(true, Ordering::Release);
        }
    }

    /// Moves some pages of sparse blocks. False: there are none.
    fn tidy(&self, nic: &Nic) -> bool {
        let mut state = self.state.lock();
        if state.gone {
            return false;
        }
        let mut page = [0; PAGE as usize];
        for _ in 0..MOVES {
            let Some(moved) = state.map.compact() else { break };
            nic.units.read_chunk(at(moved.from), &mut page);
            nic.units.write_chunk(at(moved.to), &page);
        }
        self.give_back(nic, &mut state);
        state.map.is_sparse()
    }

    /// How it is doing.
    pub(super) fn report(&self, nic: &Nic) -> Report {
        let usage = self.usage();
        let free = nic.units.free_bytes();
        let promised_to_others = if self.promised { 0 } else { nic.units.promised() };
        Report {
            size: (self.slots as u64 * PAGE).into(),
            live: (usage.live as u64 * PAGE).into(),
            filled: (usage.filled as u64 * PAGE).into(),
            held: (usage.blocks as u64 * BLOCK).into(),
            free: free.saturating_sub(promised_to_others).into(),
            machine: nic.volumes.machine.load(Ordering::Relaxed).into(),
            flags: if nic.is_draining() { GOING_DOWN } else { 0 }.into(),
        }
    }
}

/// Where a chunk begins in the arena.
fn at(chunk: Chunk) -> u64 {
    chunk.block as u64 * BLOCK + chunk.index as u64 * PAGE
}

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
    pub(super) fn are_sparse(&self) -> bool {
        self.sparse.load(Ordering::Acquire)
    }
}

impl Nic {
    /// The volume that has an owner id now.
    pub fn volume_of(&self, owner: u16) -> Option<Arc<Volume>> {
        self.volumes.all.lock().values().find(|volume| volume.owner() == owner).cloned()
    }

    /// The volume at a place in the order of ids, which nobody learns.
    pub(super) fn volume_at(&self, place: u64) -> Option<VolumeInfo> {
        let place = usize::try_from(place).ok()?;
        let volume = self.volumes.all.lock().values().nth(place).cloned()?;
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

    /// The volume that a host names. Another tenant's is none.
    pub(super) fn volume(&self, known: &Known, holder: &Holder) -> Result<Arc<Volume>, Verdict> {
        if known.incarnation != self.incarnation {
            return Err(Verdict::Incarnation);
        }
        let asks = holder.as_ref().map(|(tenant, _)| tenant.name);
        let is_theirs = |volume: &Arc<Volume>| volume.tenant().map(|tenant| tenant.name) == asks;
        self.volumes.all.lock().get(&known.secret).filter(|volume| is_theirs(volume)).cloned().ok_or(Verdict::Unknown)
    }

    /// One more stream of a volume, by this token. `data`: pages move by it, and by no other from
    /// now on.
    pub(super) fn attach_volume(
        &self,
        volume: Arc<Volume>,
        data: bool,
        token: Option<TokenId>,
    ) -> Result<Attached, Verdict> {
        let mut state = volume.state.lock();
        if state.gone {
            return Err(Verdict::Unknown);
        }
        if state.streams == MAX_STREAMS {
            return Err(Verdict::Full);
        }
        (state.streams, state.token) = (state.streams + 1, token);
        let turn = data.then(|| {
            state.turn += 1;
            state.turn
        });
        drop(state);
        self.tell(Event::Volume(&volume, VolumeEvent::Attached));
        Ok(Attached { volume, turn })
    }

    /// A new volume, without a stream.
    pub(super) fn make_volume(
        &self,
        new: &NewVolume,
        peer: Peer,
        holder: Holder,
        now_ns: u64,
    ) -> Result<Arc<Volume>, Verdict> {
        let (tenant, token) = holder.unzip();
        let size = new.size;
        if size == 0 || !size.is_multiple_of(PAGE) || size / PAGE > MAX_SLOTS as u64 {
            return Err(Verdict::Malformed);
        }
        if self.is_draining() {
            return Err(Verdict::Draining);
        }
        // Held until the volume is there: two that come together are promised one after the other.
        let mut all = self.volumes.all.lock();
        if all.contains_key(&new.id) {
            return Err(Verdict::Malformed);
        }
        let promised = !new.overcommit;
        let needed = size.next_multiple_of(BLOCK);
        let too_much = if promised { needed > self.promisable() } else { size / OVERCOMMIT > self.lending.limit() };
        if too_much {
            return Err(Verdict::NoRoom(self.promisable()));
        }
        let place = self.volumes.places.take(peer).map_err(|_| Verdict::Full)?;
        // A promise counts to the tenant here, and not again when its memory is claimed.
        let charged = if promised { None } else { tenant.clone() };
        let lease = Lease::of(&self.units, charged).ok_or(Verdict::Full)?;
        if promised && needed > self.units.quota_of(lease.owner()) {
            return Err(Verdict::NoRoom(self.units.quota_of(lease.owner())));
        }
        if let Some(tenant) = tenant.as_ref().filter(|tenant| promised && !tenant.charge(needed as i64)) {
            return Err(Verdict::NoRoom(tenant.quota().saturating_sub(tenant.held())));
        }
        if promised {
            self.units.promise(needed as i64);
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
            lease,
            slots,
            state: Lock::new(state),
        });
        all.insert(new.id, Arc::clone(&volume));
        drop(all);
        self.tell(Event::Volume(&volume, VolumeEvent::Made));
        Ok(volume)
    }

    /// Bytes that could be promised to one more volume.
    pub fn promisable(&self) -> u64 {
        let reserve = (self.lending.limit() / RESERVE).max(BLOCK);
        self.units.free_bytes().saturating_sub(self.units.promised() + reserve)
    }

    /// A stream of a volume has closed.
    pub(super) fn left_volume(&self, attached: &Attached, now_ns: u64) {
        let Attached { volume, turn } = attached;
        let mut state = volume.state.lock();
        // If another stream tells of slots, its next mark says so.
        state.told &= turn.is_some();
        state.streams -= 1;
        state.absent_since = now_ns;
        let is_cut = state.streams == 0 && !state.gone;
        drop(state);
        if is_cut {
            self.tell(Event::Volume(volume, VolumeEvent::Cut(volume.kept_ns / 1_000_000)));
        }
    }

    /// Ends a volume: nothing of it can be reached any more, and its memory is made clean.
    pub(super) fn free_volume(&self, volume: &Arc<Volume>, why: VolumeEvent) {
        let mut state = volume.state.lock();
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
        self.tell(Event::Volume(volume, why));
    }

    /// Ends volumes whose grace is over. When to look again, if any has no stream.
    pub(super) fn expire_volumes(&self, now_ns: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        for volume in self.volumes.all() {
            let state = volume.state.lock();
            let until = state.absent_since + volume.kept_ns;
            if state.streams > 0 {
                continue;
            }
            drop(state);
            if until <= now_ns {
                self.free_volume(&volume, VolumeEvent::Forgotten);
            } else {
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        next
    }

    /// Moves some pages of sparse volumes. False when there was nothing to do.
    pub(super) fn tidy_volumes(&self) -> bool {
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

impl Units {
    /// Stores a page in the arena. False: not inside.
    fn write_chunk(&self, at: u64, page: &Page) -> bool {
        self.arena().is_ok_and(|arena| arena.mapping().write_bytes(at, page))
    }

    /// Reads a page of the arena.
    fn read_chunk(&self, at: u64, into: &mut Page) {
        match self.arena().ok().and_then(|arena| arena.mapping().bytes(at, PAGE as u32)) {
            Some(bytes) => into.copy_from_slice(&bytes),
            None => into.fill(0),
        }
    }
}
