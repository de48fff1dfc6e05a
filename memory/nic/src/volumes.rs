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

pub(crate) mod table;

use super::shares::{Peer, Place, Table};
use super::tally::count;
use super::tenants::Tenant;
use super::units::Units;
use super::units::leases::Lease;
use farmem_protocol::nbd::{PAGE, Refusal, Report};
use farmem_protocol::wire::MAX_VOLUMES;
use farmem_protocol::wire::{Names, Secret, run_id};
use farmem_sys::sync::{Held, Lock};
use farmem_trust::TokenId;
use farmem_trust::agree::Agreed;
use farmem_volume::{BLOCK_CHUNKS, Chunk, Content, Usage, repeated};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table::Swap;

/// Bytes of a block.
const BLOCK: u64 = BLOCK_CHUNKS as u64 * PAGE;
/// Streams of one volume, at most.
const MAX_STREAMS: u32 = 16;
/// One part in `RESERVE` of a node's memory is promised to no volume. It is for memory that is
/// being cleaned, and for members' claims of small units.
const RESERVE: u64 = 32;
/// All overcommitted volumes of a tenant, or of a peer without one, may have at most this many times
/// the memory that it may borrow. All of a node may have twice as many times what the node lends: their
/// tables then take a twentieth of that.
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
    /// What its host and this node agreed on when it was made, by a token: a right to it beside the
    /// id, which goes over the wire.
    agreed: Option<Agreed>,
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

/// Volumes by their ids.
type All = BTreeMap<Secret, Arc<Volume>>;

/// All volumes of a node.
pub struct Volumes {
    all: Lock<All>,
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

impl Attached {
    /// Whether the stream is of no more use. A stream that is idle hears of that only when it is
    /// closed.
    pub(crate) fn is_over(&self) -> bool {
        self.volume.state(self.turn).is_err()
    }
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
    pub(super) fn write(&self, node: Swap<'_>, turn: Option<u64>, slot: u32, page: &Page) -> Moved {
        let mut state = self.state(turn)?;
        let word = repeated(page);
        if word.is_some_and(|word| state.map.fill(slot, word)) {
            self.give_back(node, &mut state);
            return Ok(Ok(()));
        }
        let chunk = match state.map.place(slot) {
            Ok(chunk) => chunk,
            Err(_) => {
                let Ok(block) = node.units.claim_block(&self.lease, self.promised) else {
                    count(&node.tally.exhausted, 1);
                    return Ok(Err(Refusal::NoSpace));
                };
                state.map.add_block(block);
                if self.promised {
                    node.units.promise(-(BLOCK as i64));
                }
                state.map.place(slot).map_err(|_| Superseded)?
            }
        };
        let stored = write_chunk(node.units, at(chunk), page);
        count(&node.tally.write_bytes, PAGE);
        Ok(if stored { Ok(()) } else { Err(Refusal::NoSpace) })
    }

    /// Reads a page. `slot` is inside.
    pub(super) fn read(&self, node: Swap<'_>, turn: Option<u64>, slot: u32, into: &mut Page) -> Result<(), Superseded> {
        let state = self.state(turn)?;
        match state.map.look(slot) {
            Content::Empty => into.fill(0),
            Content::Filled(word) => {
                into.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word.to_le_bytes()));
            }
            Content::At(chunk) => read_chunk(node.units, at(chunk), into),
        }
        count(&node.tally.read_bytes, PAGE);
        Ok(())
    }

    /// Forgets pages, some thousand in one call. With a mark: only pages not written after it.
    /// Returns the slot at which to go on; `None`: done.
    pub(super) fn trim(
        &self,
        node: Swap<'_>,
        turn: Option<u64>,
        mark: Option<u64>,
        (first, end): (u32, u32),
    ) -> Result<Option<u32>, Superseded> {
        /// Pages that are forgotten under one hold of the lock: some hundred microseconds.
        const AT_ONCE: u32 = 4096;
        /// Slots that are looked at, most of which may never have been written.
        const LOOKED_AT: u32 = 1 << 21;
        let mut state = self.state(turn)?;
        let (mut at, mut trimmed, end) = (first, 0, end.min(self.slots));
        let until = end.min(first.saturating_add(LOOKED_AT));
        while let Some(slot) = state.map.next_used(at, until).filter(|_| trimmed < AT_ONCE) {
            match mark {
                Some(mark) => {
                    state.map.freed(slot, mark);
                }
                None => state.map.trim(slot),
            }
            (at, trimmed) = (slot + 1, trimmed + 1);
        }
        self.give_back(node, &mut state);
        Ok(if trimmed == AT_ONCE { Some(at) } else { (until < end).then_some(until) })
    }

    /// A number for this moment ([`farmem_volume::Volume::mark`]). From now on the volume counts as
    /// one whose host reports single slots.
    pub(super) fn mark(&self) -> Result<u64, Superseded> {
        let mut state = self.state(None)?;
        state.told = true;
        Ok(state.map.mark())
    }

    /// Gives empty blocks back, and has sparse ones looked after.
    fn give_back(&self, node: Swap<'_>, state: &mut State) {
        while let Some(block) = state.map.empty() {
            // Promised before it is free: nobody else takes it.
            if self.promised {
                node.units.promise(BLOCK as i64);
            }
            node.units.release_block(&self.lease, block);
        }
        if state.map.is_sparse() {
            node.volumes.sparse.store(true, Ordering::Release);
        }
    }

    /// Moves some pages of sparse blocks. False: there are none.
    fn tidy(&self, node: Swap<'_>) -> bool {
        let mut state = self.state.lock();
        if state.gone {
            return false;
        }
        let mut page = [0; PAGE as usize];
        for _ in 0..MOVES {
            let Some(moved) = state.map.compact() else { break };
            read_chunk(node.units, at(moved.from), &mut page);
            write_chunk(node.units, at(moved.to), &page);
        }
        self.give_back(node, &mut state);
        state.map.is_sparse()
    }

    /// How it is doing.
    pub(super) fn report(&self, node: Swap<'_>) -> Report {
        let usage = self.usage();
        let free = node.units.words.free_bytes();
        let promised_to_others = if self.promised { 0 } else { node.units.promised() };
        Report {
            size: (self.slots as u64 * PAGE).into(),
            live: (usage.live as u64 * PAGE).into(),
            filled: (usage.filled as u64 * PAGE).into(),
            held: (usage.blocks as u64 * BLOCK).into(),
            free: free.saturating_sub(promised_to_others).into(),
            machine: node.volumes.machine.load(Ordering::Relaxed).into(),
            flags: node.leaves.into(),
        }
    }
}

/// Where a chunk begins in the arena.
fn at(chunk: Chunk) -> u64 {
    chunk.block as u64 * BLOCK + chunk.index as u64 * PAGE
}

/// Stores a page in the arena. False: not inside.
fn write_chunk(units: &Units, at: u64, page: &Page) -> bool {
    units.arena().is_ok_and(|arena| arena.mapping().write_bytes(at, page))
}

/// Reads a page of the arena.
fn read_chunk(units: &Units, at: u64, into: &mut Page) {
    if !units.arena().is_ok_and(|arena| arena.mapping().read_bytes(at, into)) {
        into.fill(0);
    }
}
