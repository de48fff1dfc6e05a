//! Blocks that the node claims one by one, in the name of a volume.

use super::{Lease, Units};
use crate::lending::NoSlab;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{Level, Place};
use farmem_protocol::extent::word::{Claimant, State, Word};
use std::sync::atomic::Ordering;

/// Chunks of a block.
const CHUNKS: i64 = 512;
/// Their bytes.
const BLOCK_BYTES: u64 = 2 << 20;
/// Their log2, as the words' order.
const ORDER: u8 = 9;

impl Units {
    /// Claims a free block for a volume. Its bytes are zero. `promised`: memory was promised to this
    /// volume. What was promised to others is not taken for one that has no promise.
    pub(crate) fn claim_block(&self, lease: &Lease, promised: bool) -> Result<u32, NoSlab> {
        let _claiming = match promised {
            false => Some(self.claiming(BLOCK_BYTES).ok_or(NoSlab::Exhausted)?),
            true => None,
        };
        let owner = lease.owner();
        if !self.charge(owner, CHUNKS) {
            return Err(NoSlab::Quota(self.reached(owner, CHUNKS as u64)));
        }
        // The arena's memory is there before a word says that somebody has it.
        if let Err(e) = self.arena() {
            self.count(owner, -CHUNKS);
            return Err(NoSlab::System(e));
        }
        // Before the claim, because the burial of an owner looks for its words.
        lease.has_claimed();
        let claim = |&block: &u32| {
            let place = Place::block(block);
            let old = self.words.word(place);
            old.generation().next().is_some_and(|next| {
                let new = Word::new(State::Owned, owner, ORDER, Claimant::default(), next);
                old.is(State::Free) && !old.generation().is_worn() && self.words.swap(place, old, new) == old.0
            })
        };
        let giants = (0..self.words.geometry().count(Level::Giant)).map(Place::giant);
        self.claim_or_split(giants, || self.words.free_by_hint().find(claim)).ok_or_else(|| {
            self.count(owner, -CHUNKS);
            NoSlab::Exhausted
        })
    }

    /// Gives a block of a volume back: it is made clean, and free.
    pub(crate) fn release_block(&self, lease: &Lease, block: u32) {
        let place = Place::block(block);
        let old = self.words.word(place);
        if !old.is_held_by(lease.owner()) {
            return;
        }
        let next = old.generation().next().unwrap_or(old.generation());
        // Only the owner changes the word of a live owner.
        if self.words.swap(place, old, Word::plain(State::Quarantine, next)) == old.0 {
            self.count(lease.owner(), -CHUNKS);
            self.reclaim(place);
        }
    }

    /// Bytes that volumes may still claim, by what was promised to them.
    #[inline]
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Bytes that are promised in addition, or fewer.
    pub(crate) fn promise(&self, bytes: i64) {
        self.promised.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// Promises bytes, unless fewer than `reserve` would be left beside all promises. The error: the
    /// bytes that can be promised now.
    ///
    /// *Claims beside it.* A promise is made before it looks at claims, and a claim is noted before it
    /// looks at promises: one of the two sees the other. Claims are read before the free bytes: one
    /// that has ended meanwhile has taken its bytes by then.
    pub(crate) fn promise_if(&self, bytes: u64, reserve: u64) -> Result<Promise<'_>, u64> {
        let before = self.promised.fetch_add(bytes, Ordering::SeqCst);
        let promise = Promise { units: self, bytes };
        let claiming = self.claiming.load(Ordering::SeqCst);
        let room = self.words.free_bytes().saturating_sub(before.saturating_add(claiming).saturating_add(reserve));
        if bytes <= room { Ok(promise) } else { Err(room) }
    }

    /// Notes that bytes are being claimed for an owner without a promise. `None`: promised bytes would
    /// not stay free. Others that are being claimed count as taken, though they may yet fail.
    #[inline]
    pub(crate) fn claiming(&self, bytes: u64) -> Option<Claiming<'_>> {
        let others = self.claiming.fetch_add(bytes, Ordering::SeqCst);
        let claiming = Claiming { units: self, bytes };
        let promised = self.promised.load(Ordering::SeqCst);
        let is_free = || self.words.free_bytes() >= promised.saturating_add(others).saturating_add(bytes);
        // Again while no giant is being split by the node: one that is counts as free in part.
        let may = promised == 0 || is_free() || {
            let _splits = self.splits.lock();
            is_free()
        };
        may.then_some(claiming)
    }
}

/// Bytes that were promised, and are taken back unless they are kept.
pub(crate) struct Promise<'a> {
    units: &'a Units,
    bytes: u64,
}

impl Promise<'_> {
    /// From now on it is the caller's to take back.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.units.promise(-(self.bytes as i64));
    }
}

/// Bytes that are being claimed without a promise, until the words and their hints say who has them.
pub(crate) struct Claiming<'a> {
    units: &'a Units,
    bytes: u64,
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        self.units.claiming.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}
