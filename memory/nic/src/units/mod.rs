//! The node's memory, as its word table has it: the owner of each 4 KiB.
//!
//! ```text
//!            ┌──────────── word table (farmem_protocol::extent): one word a unit, owners, hints
//!  slabs ────┤  a grant claims 32 blocks in it; the slab's bytes are a memfd of its own
//!  extents ──┘  a host claims units itself, by CAS; their bytes are in the arena, one memfd
//! ```
//!
//! Both draw on the same words. So one table names every owner, and the sum never exceeds the
//! memory that the node lends. Half of its giants begin in one piece, for extents of a GiB and
//! more; slabs split them when the others are used up. The arena's addresses beneath a slab stay
//! untouched, and take no memory.
//!
//! * [`words`]: the table by itself. This file: verbs on it, and on the memory that its words stand
//!   for.
//! * [`leases`]: the owners.
//! * `slabs`: the claims of grants. `blocks`: the claims of volumes.
//! * `arena`: its memory, and the files behind it.
//! * [`files`]: the parts of it that processes on this machine map.
//! * [`keeper`]: the node's own work: drain, scrub, recover.

mod arena;
pub(crate) mod blocks;
pub mod files;
pub mod keeper;
pub mod leases;
mod slabs;
#[cfg(test)]
mod tests;
mod words;

use crate::lending::Quota;
use crate::tenants::Tenant;
pub use arena::Arena;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::geometry::{MAX_BLOCKS, Target};
use farmem_protocol::extent::guard::{self, Denied, Words};
use farmem_protocol::extent::owner::{MAX_OWNERS, OwnerField};
use farmem_protocol::extent::place::{BLOCK_BYTES, CHUNK_BYTES, Level, Place};
use farmem_protocol::extent::word::{Claimant, Owner, State, Word};
use farmem_protocol::extent::{Geometry, key};
use farmem_protocol::key::Key;
use farmem_protocol::wire::Status;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use files::Files;
use keeper::Keeping;
use leases::{Lease, Vacant};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
pub use words::WordTable;

/// Blocks of a slab.
pub const SLAB_BLOCKS: u32 = (SLAB_BYTES / BLOCK_BYTES) as u32;

/// A descriptor word that must stand as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRight {
    /// The word's place in the table.
    pub word: u32,
    /// The value that it must have.
    pub value: u64,
}

/// A node's memory and words.
pub struct Units {
    /// The words, and what is read from them alone.
    pub words: WordTable,
    arena: OnceLock<Arc<Arena>>,
    files: Arc<Files>,
    /// Chunks that an owner may hold who comes now.
    quota: AtomicU64,
    huge: bool,
    vacant: Lock<Vacant>,
    /// Of owners that have one.
    pub(super) tenants: Lock<BTreeMap<u16, Arc<Tenant>>>,
    keeping: Keeping,
    /// Bytes that volumes may still claim by promise. No other owner may have them.
    promised: AtomicU64,
    /// Bytes that are being claimed without a promise ([`blocks::Claiming`]).
    claiming: AtomicU64,
    /// How many giants the node has split. Held while it splits one.
    splits: Lock<u64>,
}

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Units({:?})", self.words.geometry())
    }
}

impl Units {
    /// Of `lend` bytes, in whole slabs; at most 4 TiB, which is what a word table can describe.
    ///
    /// # Panics
    /// When the system has no memory even for an empty table, or `lend` is below one slab.
    pub fn new(lend: u64, huge: bool) -> Units {
        let blocks = (lend / SLAB_BYTES).min((MAX_BLOCKS / SLAB_BLOCKS) as u64) as u32 * SLAB_BLOCKS;
        let geometry = Geometry::with_owners(blocks, MAX_OWNERS).expect("a node lends at least one slab");
        Units {
            words: WordTable::new(geometry),
            arena: OnceLock::new(),
            files: Arc::default(),
            quota: AtomicU64::new(u64::MAX),
            huge,
            vacant: Lock::new(Vacant::new(geometry.owners())),
            tenants: Lock::new(BTreeMap::new()),
            keeping: Keeping::default(),
            promised: AtomicU64::new(0),
            claiming: AtomicU64::new(0),
            splits: Lock::new(0),
        }
    }

    /// The layout of the table.
    pub fn geometry(&self) -> &Geometry {
        self.words.geometry()
    }

    /// Bytes that one owner may hold, a run's slabs or what a process claims itself: of those who
    /// come from now on.
    pub fn set_quota(&self, bytes: u64) {
        let chunks = if bytes == u64::MAX { u64::MAX } else { bytes / CHUNK_BYTES };
        self.quota.store(chunks, Ordering::Relaxed);
    }

    /// Bytes that this owner may hold; `u64::MAX`: all there is.
    pub fn quota_of(&self, owner: Owner) -> u64 {
        self.words.load(Target::Owner(owner, OwnerField::Quota)).saturating_mul(CHUNK_BYTES)
    }

    /// Counts chunks to an owner; false: that would be beyond its quota, and nothing is counted.
    fn charge(&self, owner: Owner, chunks: i64) -> bool {
        let held = self.words.at(self.words.offset(Target::Owner(owner, OwnerField::Held)));
        let before = held.fetch_add(chunks as u64, Ordering::AcqRel);
        let within = chunks <= 0
            || before.saturating_add(chunks as u64) <= self.words.load(Target::Owner(owner, OwnerField::Quota));
        let within = within && self.charge_tenant(owner, chunks);
        if !within {
            held.fetch_sub(chunks as u64, Ordering::AcqRel);
        }
        within
    }

    /// Counts chunks to an owner, or fewer, whatever its quota is: they are given back, or a charge is
    /// undone.
    fn count(&self, owner: Owner, chunks: i64) {
        self.words
            .at(self.words.offset(Target::Owner(owner, OwnerField::Held)))
            .fetch_add(chunks as u64, Ordering::AcqRel);
        if let Some(tenant) = self.tenant_of(owner.slot()) {
            tenant.count(chunks * CHUNK_BYTES as i64);
        }
    }

    /// The same for the owner's tenant, whose other owners count, too.
    fn charge_tenant(&self, owner: Owner, chunks: i64) -> bool {
        self.tenant_of(owner.slot()).is_none_or(|tenant| tenant.charge(chunks * CHUNK_BYTES as i64))
    }

    /// Claims what `claim` finds. Where it finds nothing, a giant is split, the first of these that is free.
    /// `None`: none is.
    ///
    /// One thread splits at a time. Another one finds neither free blocks nor a free giant meanwhile, so it
    /// looks once more when a split has ended since it began to look.
    fn claim_or_split<T>(
        &self,
        giants: impl Iterator<Item = Place> + Clone,
        claim: impl Fn() -> Option<T>,
    ) -> Option<T> {
        loop {
            let before = *self.splits.lock();
            if let Some(claimed) = claim() {
                return Some(claimed);
            }
            let mut splits = self.splits.lock();
            if *splits == before {
                let can_split = |word: Word| word.is(State::Free) && !word.generation().is_worn();
                self.split(giants.clone().find(|&giant| can_split(self.words.word(giant)))?);
                *splits += 1;
            }
        }
    }

    /// Which quota keeps an owner from so many chunks more.
    pub(crate) fn reached(&self, owner: Owner, chunks: u64) -> Quota {
        let load = |field| self.words.load(Target::Owner(owner, field));
        let is_own = load(OwnerField::Held).saturating_add(chunks) > load(OwnerField::Quota);
        match self.tenants.lock().get(&owner.slot()) {
            Some(tenant) if !is_own => Quota::OfTenant(tenant.limit()),
            _ => Quota::OfOwner(self.quota_of(owner)),
        }
    }

    /// Bytes that the system has given for units.
    pub fn taken(&self) -> u64 {
        self.arena.get().map_or(0, |arena| arena.taken()) + self.files.taken()
    }

    pub(crate) fn arena(&self) -> Result<&Arc<Arena>, Errno> {
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let arena = Arc::new(Arena::new(self.words.bytes(), self.huge)?);
        Ok(self.arena.get_or_init(|| arena))
    }

    /// Admits a verb on a unit, by its key: where its bytes begin in the arena, and the word that
    /// admits it. In a section of the epochs.
    pub(super) fn admit(
        &self,
        who: &Lease,
        key: Key,
        offset: u64,
        len: u64,
    ) -> Result<(Arc<Arena>, u64, WordRight), Status> {
        let key = key::Key(key.0);
        let key::Subject::Unit(place) = key.subject() else { return Err(Status::Access) };
        let bytes = guard::admits(self.words.geometry(), key, who.owner(), offset, len, &self.words)
            .map_err(|_| Status::Access)?;
        let word = self.words.word(place);
        // Read again: the same, or no longer admitted. A slab's bytes are not here.
        if word.generation() != key.tag() || word.claimant() == Claimant::SLAB || !self.words.is_live(who) {
            return Err(Status::Access);
        }
        let arena = self.arena().map_err(|_| Status::System)?;
        let right = WordRight { word: (self.words.word_at(place) / 8) as u32, value: word.0 };
        Ok((Arc::clone(arena), bytes.start, right))
    }

    /// A WRITE or FAA of the table, by its owner: of its own heartbeat, and of nothing else.
    pub(super) fn heartbeat(&self, who: &Lease, offset: u64) -> Result<&AtomicU64, Status> {
        match self.words.geometry().target(offset) {
            Some(Target::Owner(owner, OwnerField::Heartbeat)) if owner == who.owner() && self.words.is_live(who) => {
                Ok(self.words.at(offset))
            }
            _ => Err(Status::Access),
        }
    }

    /// A guarded CAS. Returns the word that it found; it took effect if that is the expected one.
    /// In a section.
    pub(super) fn cas(&self, who: &Lease, offset: u64, expected: u64, new: u64) -> Result<u64, Status> {
        if !self.words.is_live(who) {
            return Err(Status::Access);
        }
        let place = match self.words.geometry().target(offset) {
            Some(Target::Word(place)) => place,
            _ => return self.heartbeat(who, offset).map(|word| exchange(word, expected, new)),
        };
        // In this order: see `guard`.
        let (old, new) = (self.words.word(place), Word(new));
        if old.0 != expected {
            return Ok(old.0);
        }
        let charge = guard::permits(self.words.geometry(), place, old, new, who.owner(), &self.words)
            .and_then(|charge| is_member_matter(old, new).map(|()| charge))
            .map_err(|_| Status::Access)?;
        let takes = match place.level {
            Level::Giant => new.is(State::Owned),
            Level::Block => new.is(State::Owned) || new.is(State::Splitting),
            Level::Chunk => false,
        };
        // Held until the hints follow the word.
        let _claiming = match old.is(State::Free) && takes {
            true => {
                let bytes = self.words.geometry().bytes(place);
                Some(self.claiming(bytes.end - bytes.start).ok_or(Status::Quota)?)
            }
            false => None,
        };
        // What a member claims is counted before the word changes, and what it gives back after it: a quota
        // holds at every moment, also where the exchange fails. The member's burial waits for this section, so
        // its count is not yet another's. That of a dead member may be, after the exchange. It claims nothing.
        let (owner, chunks) = (charge.owner, charge.chunks);
        let after = if owner == who.owner() { chunks.min(0) } else { 0 };
        let before = chunks - after;
        if before != 0 && !self.charge(owner, before) {
            return Err(Status::Quota);
        }
        let undo = || self.count(owner, -before);
        // A block that is being published may not be mapped until the word says so.
        let publishing = match (old.state(), new.state()) {
            (State::Owned, State::Shared) => Some(self.files.publishing(place).ok_or_else(|| {
                undo();
                Status::Access
            })?),
            _ => None,
        };
        // Before the CAS: the burial of an owner looks for its words, if it has claimed any.
        who.has_claimed();
        let found = exchange(self.words.at(offset), old.0, new.0);
        drop(publishing);
        if found != old.0 {
            undo();
            return Ok(found);
        }
        if after != 0 {
            self.count(owner, after);
        }
        self.words.follow(place, new);
        match new.state() {
            State::Quarantine => self.reclaim(place),
            State::Shared => self.keeping.look_into(place),
            _ => {}
        }
        Ok(found)
    }
}

/// Slabs' words are the node's to change.
fn is_member_matter(old: Word, new: Word) -> Result<(), Denied> {
    let slabs = |word: Word| word.is(State::Owned) && word.claimant() == Claimant::SLAB;
    if slabs(old) || slabs(new) { Err(Denied::Transition) } else { Ok(()) }
}

fn exchange(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(found) | Err(found) => found,
    }
}
