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
//! * This file: verbs on words, and on the memory that the words stand for.
//! * [`leases`]: the owners.
//! * `slabs`: the claims of grants. `blocks`: the claims of volumes.
//! * `arena`: its memory, and the files behind it.
//! * [`files`]: the parts of it that processes on this machine map.
//! * [`keeper`]: the node's own work: drain, scrub, recover.

mod arena;
mod blocks;
pub mod files;
pub mod keeper;
pub mod leases;
mod slabs;
#[cfg(test)]
mod tests;

use crate::tenants::Tenant;
pub use arena::Arena;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::extent::geometry::{Hint, MAX_BLOCKS, Target};
use farmem_protocol::extent::guard::{self, Denied, Words};
use farmem_protocol::extent::owner::{MAX_OWNERS, OwnerField, OwnerWord};
use farmem_protocol::extent::place::{BLOCK_BYTES, CHUNK_BYTES, Level, Place};
use farmem_protocol::extent::word::{Claimant, Owner, State, Word};
use farmem_protocol::extent::{Geometry, hints, key};
use farmem_protocol::key::Key;
use farmem_protocol::wire::Status;
use farmem_sys::mapping::{Mapping, Memfd};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use files::Files;
use keeper::Keeping;
use leases::{Lease, Vacant};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
    geometry: Geometry,
    /// Where the words of chunks, blocks and giants begin, which admission needs quickly.
    levels: [u64; 3],
    table: Mapping,
    arena: OnceLock<Arc<Arena>>,
    files: Files,
    /// Chunks that an owner may hold who comes now.
    quota: AtomicU64,
    huge: bool,
    vacant: Lock<Vacant>,
    /// Of owners that have one.
    pub(super) tenants: Lock<BTreeMap<u16, Arc<Tenant>>>,
    keeping: Keeping,
    /// Bytes that volumes may still claim by promise. No other owner may have them.
    promised: AtomicU64,
}

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Units({:?})", self.geometry)
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
        let bytes = geometry.table_bytes().next_multiple_of(4096);
        let memory = Memfd::new(bytes, false).and_then(|memfd| Mapping::new(memfd.fd(), bytes as usize));
        let table = memory.expect("a descriptor and address space for the word table");
        let first = |level| geometry.offset(Target::Word(Place { level, index: 0 })).expect("there is one of each");
        let units = Units {
            geometry,
            levels: Level::ALL.map(first),
            table,
            arena: OnceLock::new(),
            files: Files::default(),
            quota: AtomicU64::new(u64::MAX),
            huge,
            vacant: Lock::new(Vacant::new(geometry.owners())),
            tenants: Lock::new(BTreeMap::new()),
            keeping: Keeping::default(),
            promised: AtomicU64::new(0),
        };
        for level in [Level::Giant, Level::Block] {
            for index in 0..geometry.count(level) {
                let place = Place { level, index };
                units.set(place, geometry.initial(place, geometry.count(Level::Giant) / 2));
            }
        }
        units
    }

    /// The header is written when the node knows its incarnation.
    pub(super) fn inscribe(&self, incarnation: u64) {
        for (at, bytes) in self.geometry.header(incarnation).chunks_exact(8).enumerate() {
            let word = bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | byte as u64);
            self.at(at as u64 * 8).store(word, Ordering::SeqCst);
        }
    }

    /// The layout of the table.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes lent at most.
    pub fn bytes(&self) -> u64 {
        self.geometry.lent_bytes()
    }

    /// Bytes that one owner may hold, a run's slabs or what a process claims itself: of those who
    /// come from now on.
    pub fn set_quota(&self, bytes: u64) {
        let chunks = if bytes == u64::MAX { u64::MAX } else { bytes / CHUNK_BYTES };
        self.quota.store(chunks, Ordering::Relaxed);
    }

    /// Bytes that this owner may hold; `u64::MAX`: all there is.
    pub fn quota_of(&self, owner: Owner) -> u64 {
        self.load(Target::Owner(owner, OwnerField::Quota)).saturating_mul(CHUNK_BYTES)
    }

    /// Counts chunks to an owner; false: that would be beyond its quota, and nothing is counted.
    fn charge(&self, owner: Owner, chunks: i64) -> bool {
        let held = self.at(self.offset(Target::Owner(owner, OwnerField::Held)));
        let before = held.fetch_add(chunks as u64, Ordering::AcqRel);
        let within =
            chunks <= 0 || before.saturating_add(chunks as u64) <= self.load(Target::Owner(owner, OwnerField::Quota));
        let within = within && self.charge_tenant(owner, chunks);
        if !within {
            held.fetch_sub(chunks as u64, Ordering::AcqRel);
        }
        within
    }

    /// The same for the owner's tenant, whose other owners count, too.
    fn charge_tenant(&self, owner: Owner, chunks: i64) -> bool {
        let tenant = self.tenants.lock().get(&owner.slot()).cloned();
        tenant.is_none_or(|tenant| tenant.charge(chunks * CHUNK_BYTES as i64))
    }

    /// Bytes that the owner may hold, or all owners of its tenant, whichever is less.
    pub fn least_quota_of(&self, owner: Owner) -> u64 {
        let tenant = self.tenants.lock().get(&owner.slot()).map_or(u64::MAX, |tenant| tenant.quota());
        self.quota_of(owner).min(tenant)
    }

    /// Bytes that the system has given for units.
    pub fn taken(&self) -> u64 {
        self.arena.get().map_or(0, |arena| arena.taken()) + self.files.taken()
    }

    pub(crate) fn arena(&self) -> Result<&Arc<Arena>, Errno> {
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let arena = Arc::new(Arena::new(self.bytes(), self.huge)?);
        Ok(self.arena.get_or_init(|| arena))
    }

    /// A word of the table, by its offset, which was checked.
    #[inline]
    fn at(&self, offset: u64) -> &AtomicU64 {
        self.table.word(offset).expect("an aligned offset inside the table")
    }

    #[inline]
    fn offset(&self, target: Target) -> u64 {
        self.geometry.offset(target).expect("a target of this geometry")
    }

    pub(super) fn load(&self, target: Target) -> u64 {
        self.at(self.offset(target)).load(Ordering::SeqCst)
    }

    /// The place of a unit's word, which exists.
    #[inline]
    fn word_at(&self, place: Place) -> u64 {
        debug_assert!(self.geometry.has(place));
        self.levels[place.level as usize - 1] + place.index as u64 * 8
    }

    fn set(&self, place: Place, word: Word) {
        self.at(self.word_at(place)).store(word.0, Ordering::SeqCst);
        self.follow(place, word);
    }

    /// Makes a word what no sound history makes it, to test those who look for damage. There is no
    /// such door in release builds.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn damage(&self, place: Place, word: Word) {
        self.at(self.word_at(place)).store(word.0, Ordering::SeqCst);
    }

    /// The hints, after a word has changed. They may be wrong at any time.
    fn follow(&self, place: Place, word: Word) {
        hints::follow(&self.geometry, place, word, |hint, set, clear| {
            let hint = self.at(self.offset(hint));
            if set != 0 {
                hint.fetch_or(set, Ordering::Relaxed);
            }
            if clear != 0 {
                hint.fetch_and(!clear, Ordering::Relaxed);
            }
        });
    }

    /// An unguarded CAS of a descriptor word by the node itself. Returns the word that it found.
    fn swap(&self, place: Place, old: Word, new: Word) -> u64 {
        let word = self.at(self.word_at(place));
        match word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) => {
                self.follow(place, new);
                found
            }
            Err(found) => found,
        }
    }

    /// Whether the word that admitted a verb still says so.
    #[inline]
    pub(super) fn stands(&self, right: &WordRight) -> bool {
        self.at(right.word as u64 * 8).load(Ordering::SeqCst) == right.value
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
        let bytes = guard::admits(&self.geometry, key, who.owner(), offset, len, self).map_err(|_| Status::Access)?;
        let word = self.word(place);
        // Read again: the same, or no longer admitted. A slab's bytes are not here.
        if word.generation() != key.tag() || word.claimant() == Claimant::SLAB || !self.is_live(who) {
            return Err(Status::Access);
        }
        let arena = self.arena().map_err(|_| Status::System)?;
        let right = WordRight { word: (self.word_at(place) / 8) as u32, value: word.0 };
        Ok((Arc::clone(arena), bytes.start, right))
    }

    fn is_live(&self, who: &Lease) -> bool {
        self.owner(who.owner()).admits(who.incarnation())
    }

    /// Whether a READ of the table stays within it, and reads whole words.
    pub(super) fn is_readable(&self, offset: u64, len: u32) -> bool {
        let end = offset.checked_add(len as u64);
        offset.is_multiple_of(8) && len.is_multiple_of(8) && end.is_some_and(|end| end <= self.geometry.table_bytes())
    }

    /// Reads whole words of the table, each by itself, from a range that is readable.
    pub(super) fn read_into(&self, offset: u64, len: usize, into: &mut Vec<u8>) {
        into.reserve(len);
        for at in (offset..offset + len as u64).step_by(8) {
            into.extend_from_slice(&self.at(at).load(Ordering::Acquire).to_le_bytes());
        }
    }

    /// A WRITE or FAA of the table, by its owner: of its own heartbeat, and of nothing else.
    pub(super) fn heartbeat(&self, who: &Lease, offset: u64) -> Result<&AtomicU64, Status> {
        match self.geometry.target(offset) {
            Some(Target::Owner(owner, OwnerField::Heartbeat)) if owner == who.owner() && self.is_live(who) => {
                Ok(self.at(offset))
            }
            _ => Err(Status::Access),
        }
    }

    /// A guarded CAS. Returns the word that it found; it took effect if that is the expected one.
    /// In a section.
    pub(super) fn cas(&self, who: &Lease, offset: u64, expected: u64, new: u64) -> Result<u64, Status> {
        if !self.is_live(who) {
            return Err(Status::Access);
        }
        let place = match self.geometry.target(offset) {
            Some(Target::Word(place)) => place,
            _ => return self.heartbeat(who, offset).map(|word| exchange(word, expected, new)),
        };
        // In this order: see `guard`.
        let (old, new) = (self.word(place), Word(new));
        if old.0 != expected {
            return Ok(old.0);
        }
        let charge = guard::permits(&self.geometry, place, old, new, who.owner(), self)
            .and_then(|charge| self.is_member_matter(old, new).map(|()| charge))
            .map_err(|_| Status::Access)?;
        let takes = match place.level {
            Level::Giant => new.is(State::Owned),
            Level::Block => new.is(State::Owned) || new.is(State::Splitting),
            Level::Chunk => false,
        };
        if old.is(State::Free)
            && takes
            && !self.is_unpromised(self.geometry.bytes(place).end - self.geometry.bytes(place).start)
            || !self.charge(charge.owner, charge.chunks)
        {
            return Err(Status::Quota);
        }
        let undo = || self.charge(charge.owner, -charge.chunks);
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
        let found = exchange(self.at(offset), old.0, new.0);
        drop(publishing);
        if found != old.0 {
            undo();
            return Ok(found);
        }
        self.follow(place, new);
        match new.state() {
            State::Quarantine => self.reclaim(place),
            State::Shared => self.keeping.look_into(place),
            _ => {}
        }
        Ok(found)
    }

    /// Slabs' words are the node's to change.
    fn is_member_matter(&self, old: Word, new: Word) -> Result<(), Denied> {
        let slabs = |word: Word| word.is(State::Owned) && word.claimant() == Claimant::SLAB;
        if slabs(old) || slabs(new) { Err(Denied::Transition) } else { Ok(()) }
    }

    /// Bytes of units, slabs not included, that are held or not clean yet. Counted by each call.
    pub fn held(&self) -> u64 {
        let mut chunks = 0;
        for block in (0..self.geometry.count(Level::Block)).map(Place::block) {
            let word = self.word(block);
            let all = self.geometry.chunks_of(Level::Block) as u64;
            chunks += match word.state() {
                State::Owned if word.claimant() == Claimant::SLAB => 0,
                State::Owned | State::Quarantine => all,
                State::Shared | State::Splitting | State::Merging => {
                    let inside = self.geometry.chunks(block);
                    inside.filter(|&c| !matches!(self.word(Place::chunk(c)).state(), State::Free | State::Bad)).count()
                        as u64
                }
                State::Free | State::Bad => 0,
                // A giant in one piece.
                State::Absent => match self.geometry.parent(block).map(|giant| self.word(giant).state()) {
                    Some(State::Owned | State::Quarantine) => all,
                    _ => 0,
                },
            };
        }
        chunks * CHUNK_BYTES
    }

    /// Free runs, for operators: the longest, in blocks.
    pub fn longest_free_run(&self) -> u32 {
        let (mut longest, mut run) = (0, 0u32);
        for line in 0..self.geometry.lines(Level::Block) {
            let mut bits = self.load(Target::Hint { about: Hint::FreeBlocks, line });
            for _ in 0..64 {
                run = if bits & 1 == 1 { run + 1 } else { 0 };
                longest = longest.max(run);
                bits >>= 1;
            }
        }
        longest
    }
}

fn exchange(word: &AtomicU64, expected: u64, new: u64) -> u64 {
    match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(found) | Err(found) => found,
    }
}

impl Words for Units {
    #[inline]
    fn word(&self, place: Place) -> Word {
        Word(self.at(self.word_at(place)).load(Ordering::SeqCst))
    }

    #[inline]
    fn owner(&self, owner: Owner) -> OwnerWord {
        OwnerWord(self.load(Target::Owner(owner, OwnerField::Word)))
    }
}
