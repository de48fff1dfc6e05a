//! Changes of strings that are carried out at once, because the node's memory is mapped here.
//!
//! A key whose slot is known is changed by one WRITE and one CAS. On mapped memory both are
//! accesses of this process, so nothing is waited for: no task, no batch, no doorbell. The protocol
//! is that of [`Shard::put`] with a known slot. Anything else is left to the caller, who begins a
//! task: an unknown or old slot, a change under way, no free place, two copies, a CAS that fails.

use super::Known;
use crate::copies::Mode;
use crate::layout::{At, Hash, LARGE, Slot, class_of};
use crate::object::{self, Object, Type};
use crate::shard::Shard;
use crate::store::Store;
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
    /// Its entry of the near cache.
    place: u32,
    known: Known,
}

impl Shard {
    /// A key that may be replaced unseen, as [`Shard::put`] says, by a node whose memory is mapped.
    pub(crate) fn replaceable(&self, memory: &impl Mapped, key: &[u8], hash: Hash) -> Option<Replaceable> {
        if self.copies.mode() != Mode::Single || !memory.has(self.node) || self.shut_out.get() {
            return None;
        }
        self.writes.quiet(hash)?;
        let (place, known) = self.cache.borrow_mut().place(key, hash)?;
        let era = self.lease.era();
        let fresh = era > 0 && known.era == era || known.epoch + 1 >= self.epoch();
        let there = known.table == self.trie.borrow().table(hash);
        (fresh && there && known.expiry == 0).then_some(Replaceable { place, known })
    }

    /// `made` of the string that a key has, if the string is in the near cache.
    pub(crate) fn string_of<T>(&self, key: &Replaceable, made: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let cache = self.cache.borrow();
        let object = cache.object(key.place).filter(|object| object.kind() == Type::String)?;
        made(object.value())
    }

    /// Replaces a key's value. False: it was not, and a task has to.
    ///
    /// # Errors
    /// The node is lost.
    pub(crate) fn replace_at_once<M: Mapped>(
        self: &Rc<Shard>,
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
        let Some(held) = self.heap.borrow_mut().take(class, len) else { return Ok(false) };
        let (writing, era, epoch) = (self.writing(Some(hash)), self.lease.era(), self.epoch());
        let old = self.cache.borrow_mut().lend(place);
        let object = Object::string(old, (hash, key), value, held.version, (self.now_ms.get() / 1000) as u32);
        let slot = Slot::new(hash.fingerprint(), held.class, held.version, held.at);
        self.counters.trips.set(self.counters.trips.get() + 1);
        self.counters.verbs.set(self.counters.verbs.get() + 2);
        memory.write(held.at, object.bytes())?;
        let found = memory.swap(known.slot_at, known.slot.0, slot.0)?;
        if found != known.slot.0 {
            self.heap.borrow_mut().give_back(held.at);
            self.cache.borrow_mut().forget(key, hash);
            return Ok(false);
        }
        self.retire(known.slot);
        self.heap.borrow_mut().linked(held.at, hash.0);
        let known = Known { slot, len: object.len(), expiry: 0, epoch, era, ..known };
        // Nothing came between: this is the only change of the key.
        self.cache.borrow_mut().renew(place, known, object);
        drop(writing);
        Ok(true)
    }
}

impl Store {
    /// Stores a string without an end at once, if that takes no more than two accesses to mapped
    /// memory; whether it did.
    ///
    /// # Errors
    /// The node is lost.
    pub fn put_at_once<M: Mapped>(&self, memory: &mut M, key: &[u8], value: &[u8]) -> Result<bool, M::Lost> {
        let hash = Hash::of(key);
        let shard = &self.shards[hash.shard(self.shards.len())];
        match shard.replaceable(memory, key, hash) {
            Some(there) => shard.replace_at_once(memory, (key, hash), there, value),
            None => Ok(false),
        }
    }

    /// Changes a string by what it is, as [`Store::put_at_once`] stores one. `make` writes the new
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
        let Some(there) = shard.replaceable(memory, key, hash) else { return Ok(None) };
        let Some(made) = shard.string_of(&there, |old| make(old, buffer)) else { return Ok(None) };
        Ok(shard.replace_at_once(memory, (key, hash), there, buffer)?.then_some(made))
    }
}
