//! Changes of strings that are carried out at once, because the node's memory is mapped here: the
//! index's half. The half that parses and replies is in `serve/connection/at_once.rs`.
//!
//! A key whose slot is known is changed by one WRITE and one CAS. On mapped memory both are
//! accesses of this process, so nothing is waited for: no task, no batch, no doorbell. The protocol
//! is that of [`Index::put`] with a known slot. The caller begins a task for anything else: an
//! unknown or old slot, a change under way, no free place, two copies, a CAS that fails.

use super::{Index, Known};
use crate::keyspace::Keyspace;
use crate::layout::{At, Hash, LARGE, Slot, class_of};
use crate::object::{self, Object, Type};
use crate::shard::copies::Mode;
use std::rc::Rc;

/// Accesses to mapped memory of a node.
pub trait Mapped {
    /// Why an access failed: the node is lost.
    type Lost;

    /// Whether the memory of this node is mapped here.
    fn has(&self, node: u8) -> bool;

    /// WRITE.
    ///
    /// # Errors
    /// The node is lost.
    fn write(&mut self, at: At, bytes: &[u8]) -> Result<(), Self::Lost>;

    /// CAS; the word that it found.
    ///
    /// # Errors
    /// The node is lost.
    fn swap(&mut self, at: At, old: u64, new: u64) -> Result<u64, Self::Lost>;
}

/// A string that may be replaced at once.
#[derive(Debug)]
pub struct Replaceable {
    /// Its object in the near cache, if that has it.
    place: Option<u32>,
    known: Known,
}

impl Index {
    /// A key that may be replaced unseen, as [`Index::put`] says, by a node whose memory is mapped.
    pub(crate) fn replaceable(&self, memory: &impl Mapped, key: &[u8], hash: Hash) -> Option<Replaceable> {
        if self.reach.copies.mode() != Mode::Single || !memory.has(self.reach.node) || self.reach.shut_out.get() {
            return None;
        }
        self.near.writes.quiet(hash)?;
        let (era, epoch) = (self.near.lease.era(), self.space.epoch());
        let mut cache = self.near.cache.borrow_mut();
        cache.at(era, epoch);
        let (place, known) = cache.place(key, hash, self.trie.borrow().table(hash))?;
        let fresh = era > 0 && known.era == era || known.epoch + 1 >= epoch;
        (fresh && known.expiry == 0).then_some(Replaceable { place, known })
    }

    /// `made` of the string that a key has, if the string is in the near cache.
    pub(crate) fn string_of<T>(&self, key: &Replaceable, made: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let cache = self.near.cache.borrow();
        let object = cache.object(key.place?).filter(|object| object.kind() == Type::String)?;
        made(object.value())
    }

    /// Replaces a key's value. False: it was not, and a task has to.
    ///
    /// # Errors
    /// The node is lost.
    pub(crate) fn replace_at_once<M: Mapped>(
        self: &Rc<Index>,
        memory: &mut M,
        (key, hash): (&[u8], Hash),
        Replaceable { place, known }: Replaceable,
        value: &[u8],
    ) -> Result<bool, M::Lost> {
        let len = object::len(key, value);
        let class = class_of(len);
        if class == LARGE {
            return Ok(false);
        }
        let left = if len <= u64::from(known.len) { 0 } else { self.space.left() };
        let Some(held) = self.space.heap.borrow_mut().take_but(left, class, len) else { return Ok(false) };
        let (writing, era, epoch) = (self.near.writing(Some(hash)), self.near.lease.era(), self.space.epoch());
        let old = place.and_then(|place| self.near.cache.borrow_mut().lend(place));
        let object = Object::string(old, (hash, key), value, held.version, (self.space.now_ms.get() / 1000) as u32);
        let slot = Slot::new(hash.fingerprint(), held.class, held.version, held.at);
        self.reach.counters.trips.set(self.reach.counters.trips.get() + 1);
        self.reach.counters.verbs.set(self.reach.counters.verbs.get() + 2);
        memory.write(held.at, object.bytes())?;
        let found = memory.swap(known.slot_at, known.slot.0, slot.0)?;
        if found != known.slot.0 {
            self.space.heap.borrow_mut().give_back(held.at);
            self.near.cache.borrow_mut().forget(key, hash);
            return Ok(false);
        }
        self.space.retire(known.slot);
        self.space.heap.borrow_mut().linked(held.at, hash.0, 0, known.slot_at);
        let known = Known { slot, len: object.len(), expiry: 0, epoch, era, ..known };
        // Nothing came between: this is the only change of the key.
        self.near.cache.borrow_mut().renew(place, (key, hash), known, object);
        drop(writing);
        Ok(true)
    }
}

impl Keyspace {
    /// Stores a string without an end at once, if that takes no more than two accesses to mapped
    /// memory; whether it did.
    ///
    /// # Errors
    /// The node is lost.
    pub fn put_at_once<M: Mapped>(&self, memory: &mut M, key: &[u8], value: &[u8]) -> Result<bool, M::Lost> {
        let hash = Hash::of(key);
        let shard = &self.shards[hash.shard(self.shards.len())];
        match shard.index.replaceable(memory, key, hash) {
            Some(there) => shard.index.replace_at_once(memory, (key, hash), there, value),
            None => Ok(false),
        }
    }

    /// Changes a string by what it is, as [`Keyspace::put_at_once`] stores one. `make` writes the new
    /// one to a buffer, or declines.
    ///
    /// # Errors
    /// The node is lost.
    pub fn update_at_once<M: Mapped, T>(
        &self,
        memory: &mut M,
        key: &[u8],
        buffer: &mut Vec<u8>,
        make: impl FnOnce(&[u8], &mut Vec<u8>) -> Option<T>,
    ) -> Result<Option<T>, M::Lost> {
        let hash = Hash::of(key);
        let shard = &self.shards[hash.shard(self.shards.len())];
        let Some(there) = shard.index.replaceable(memory, key, hash) else { return Ok(None) };
        let Some(made) = shard.index.string_of(&there, |old| make(old, buffer)) else { return Ok(None) };
        Ok(shard.index.replace_at_once(memory, (key, hash), there, buffer)?.then_some(made))
    }
}
