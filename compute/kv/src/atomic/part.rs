//! One key of a transaction, and the places that it holds.

use crate::layout::{Hash, LOCKED, Slot};
use crate::long::{self, Long};
use crate::object::{Object, Type, Value};
use crate::segments::Placed;
use crate::shard::Shard;
use crate::shard::heap::Held;
use crate::shard::index::locked::{Entry, Lock};
use crate::shard::index::{Found, Known};
use crate::shard::lease::Writing;
use crate::task::Verb;
use std::rc::Rc;

/// A place that is given back unless it is kept.
#[derive(Debug)]
pub(super) struct Spot {
    pub shard: Rc<Shard>,
    pub held: Held,
    pub kept: bool,
}

impl Drop for Spot {
    fn drop(&mut self) {
        if !self.kept {
            self.shard.space.heap.borrow_mut().give_back(self.held.at);
        }
    }
}

impl Spot {
    /// Its bytes may be read by others, who end their operations before it is used again.
    pub fn retire(&mut self) {
        self.kept = true;
        let epoch = self.shard.space.epoch() + 1;
        self.shard.space.heap.borrow_mut().retire(self.held.at, epoch);
    }
}

/// One key of a transaction.
#[derive(Debug)]
pub(super) struct Part {
    pub shard: Rc<Shard>,
    pub key: Vec<u8>,
    pub hash: Hash,
    pub change: Option<Option<Value>>,
    /// The new value's extents.
    pub long: Option<Long>,
    /// The new value's segments.
    pub placed: Option<Placed>,
    /// The new object's place.
    pub spot: Option<Spot>,
    pub found: Option<Found>,
    pub lock: Option<Spot>,
    /// The lock that is in the slot already, if the key is seized.
    pub held: Option<Slot>,
    /// The new object and its slot, once they are made.
    pub object: Option<(Object, Slot)>,
    pub old: Slot,
    pub new: Slot,
    pub locked: Slot,
    pub _writing: Option<Writing>,
    /// The lease's era when the change began.
    pub era: u32,
}

impl Part {
    /// Of a key that is only read.
    pub fn new(shard: &Rc<Shard>, key: Vec<u8>) -> Part {
        let none = Slot(0);
        Part {
            shard: Rc::clone(shard),
            hash: Hash::of(&key),
            key,
            change: None,
            long: None,
            placed: None,
            spot: None,
            found: None,
            lock: None,
            held: None,
            object: None,
            old: none,
            new: none,
            locked: none,
            _writing: None,
            era: 0,
        }
    }

    /// Others may read what was written for it, or may not any more.
    pub fn keep(&mut self, kept: bool) {
        self.spot.iter_mut().for_each(|spot| spot.kept = kept);
        self.placed.iter_mut().for_each(|placed| placed.kept = kept);
    }

    /// Takes back what one attempt has made.
    pub fn reset(&mut self) {
        self._writing = None;
        (self.found, self.lock, self.held) = (None, None, None);
    }

    /// What the slot is, as far as is known.
    pub fn stands(&self) -> Slot {
        self.held.unwrap_or(self.old)
    }

    /// Says that the key is being changed.
    pub fn begin_writing(&mut self) {
        if self._writing.is_some() {
            return;
        }
        self.era = self.shard.near.lease.era();
        self._writing = Some(self.shard.near.writing(Some(self.hash)));
    }

    /// What the slot is and is to be. Makes the object that a place is held for, and returns its WRITE.
    pub fn renew(&mut self) -> Option<Verb> {
        let found = self.found.as_ref()?;
        self.old = found.slot;
        let mut write = None;
        self.new = match (&self.change, &self.spot) {
            (Some(Some(value)), Some(spot)) => {
                let make = || self.shard.space.made(self.hash, &self.key, value, &spot.held);
                let (object, slot) = self.object.get_or_insert_with(make);
                write = Some(Verb::Write { at: spot.held.at, bytes: Rc::clone(object.bytes()) });
                *slot
            }
            (None, _) if found.object.kind() != Type::Vacant => found.slot,
            _ => self.shard.reach.empty(),
        };
        write
    }

    /// Makes the object and the lock that its places are held for. `holds`: only a lock that will be undone.
    pub fn make(&mut self, id: u64, verdict: u64, holds: bool) -> Option<(Verb, Option<Verb>, Entry)> {
        let write = if holds {
            (self.old, self.new) = (self.found.as_ref()?.slot, self.found.as_ref()?.slot);
            None
        } else {
            self.renew()
        };
        let (found, lock) = (self.found.as_ref()?, self.lock.as_ref()?);
        self.locked = Slot::new(self.hash.fingerprint(), LOCKED, lock.held.version, lock.held.at);
        let (old, new, slot_at) = (self.old, self.new, found.slot_at);
        let now_s = (self.shard.space.now_ms.get() / 1000) as u32;
        let bytes = Lock { id, verdict, slot_at, old, new }.object(self.hash, lock.held.version, now_s).bytes().clone();
        let lock = Verb::Write { at: lock.held.at, bytes };
        Some((lock, write, Entry { slot_at, locked: self.locked }))
    }

    /// The transaction has taken effect, and no slot refers to the lock any more.
    pub fn took_effect(&mut self) {
        if self.new == self.old {
            return;
        }
        let Some(found) = &self.found else { return };
        let object = self.object.take().map(|(object, _)| object);
        let number = object.as_ref().and_then(long::number);
        self.shard.space.retire_for(self.old, Some(&found.object), number, None);
        let near = &self.shard.near;
        match (object, &self.change, &mut self.spot, &self._writing) {
            (Some(object), Some(Some(value)), Some(spot), Some(writing)) => {
                spot.kept = true;
                self.shard.space.linked(spot.held.at, self.hash, value, found.slot_at);
                let known = Known {
                    table: found.table,
                    slot_at: found.slot_at,
                    slot: self.new,
                    len: object.len(),
                    expiry: object.expiry().unwrap_or(0),
                    epoch: found.section.epoch,
                    era: self.era,
                };
                near.remember_written(&self.key, self.hash, known, Some(&object), writing);
            }
            _ => near.cache.borrow_mut().forget(&self.key, self.hash),
        }
        // The heap keeps the extents and the segments from here on.
        self.long = None;
        self.placed.take().into_iter().for_each(Placed::linked);
    }
}
