//! The near cache of one shard. A front end fills it as it reads and writes, and answers from it
//! when [`crate::shard::lease`] allows that.

use crate::layout::{At, Geometry, Hash, LARGE, MAX_OBJECT, Slot, word};
use crate::object::{Header, Object};
use crate::rules::Bug;
use crate::shard::index::{Cache, Known};
use crate::shard::lease::{Lease, Quiet, Writes, Writing};
use crate::shard::reach::Reach;
use crate::task::{Answer, Io, Verb};
use std::cell::RefCell;
use std::rc::Rc;

/// One front end's near cache of one shard.
#[derive(Debug)]
pub struct Near {
    reach: Rc<Reach>,
    pub(crate) cache: RefCell<Cache>,
    /// Whether this front end may count on being alone.
    pub lease: Lease,
    pub(crate) writes: Writes,
}

impl Near {
    /// A cache of `local` bytes.
    pub(crate) fn new(reach: &Rc<Reach>, local: u64, geometry: Geometry) -> Near {
        Near {
            reach: Rc::clone(reach),
            cache: RefCell::new(Cache::new(local, geometry)),
            lease: Lease::default(),
            writes: Writes::default(),
        }
    }

    /// Begins a change of a key; `None`: of all.
    pub(crate) fn writing(self: &Rc<Near>, hash: Option<Hash>) -> Writing {
        if hash.is_none() {
            self.cache.borrow_mut().clear();
        }
        let begun = self.writes.change(hash, 1);
        Writing { near: Rc::clone(self), hash, begun }
    }

    /// Remembers what a read has found, if nothing was changed since it began.
    pub(crate) fn remember(&self, key: &[u8], hash: Hash, known: Known, object: &Object, quiet: Option<Quiet>) {
        if quiet.is_some() && self.writes.quiet(hash) == quiet || self.reach.rules.get().broken(Bug::KeepUnderWrite) {
            let mut cache = self.cache.borrow_mut();
            cache.at(self.lease.era(), known.epoch);
            cache.put(key, hash, known, Some(object));
        }
    }

    /// Remembers what a change has made.
    pub(crate) fn remember_written(&self, key: &[u8], hash: Hash, known: Known, object: Option<&Object>, by: &Writing) {
        let mut cache = self.cache.borrow_mut();
        cache.at(self.lease.era(), known.epoch);
        match self.writes.is_sole(by) {
            true => cache.put(key, hash, known, object),
            // Of two changes the one that is told of last need not be the last.
            false => cache.forget(key, hash),
        }
    }

    /// A key's object, if it needs no look.
    #[inline]
    pub(crate) fn object(&self, key: &[u8], hash: Hash) -> Option<Object> {
        self.get(key, hash, 0).map(|(_, object)| object)
    }

    /// A key's slot and object, if they need no look. `table`: where the key is.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], hash: Hash, table: At) -> Option<(Known, Object)> {
        let era = self.lease.era();
        if era == 0 || self.writes.quiet(hash).is_none() {
            return None;
        }
        match self.cache.borrow_mut().get(key, hash, table)? {
            (known, Some(object)) if known.era == era || self.reach.rules.get().broken(Bug::TrustOldEra) => {
                Some((known, object.clone()))
            }
            _ => None,
        }
    }

    /// The object of a slot that is known to be what it was, by the lease: as [`Near::get`] knows it.
    pub(crate) async fn fetch(&self, io: &Io, key: &[u8], known: Known) -> Option<Object> {
        let object = Verb::Read { at: known.slot.at(self.reach.node), len: known.len };
        match self.reach.verbs(io, vec![object]).await.pop() {
            Some(Answer::Bytes(bytes)) => self.whole(io, known.slot, bytes).await.filter(|object| object.key() == key),
            _ => None,
        }
    }

    /// The object of a slot whose first bytes are these. `None`: it is not sound.
    pub(crate) async fn whole(&self, io: &Io, slot: Slot, mut bytes: Vec<u8>) -> Option<Object> {
        let (len, first) = (Header::peek(&bytes).map_or(0, |header| header.len), bytes.len() as u64);
        if slot.class() == LARGE && len > first && len <= MAX_OBJECT {
            let rest = (len - first) as u32;
            bytes.extend(self.reach.read(io, slot.at(self.reach.node) + first, rest).await);
        }
        Object::decode(bytes)
    }

    /// The object of a slot that is known, if the slot is what it was. `cached` is believed then:
    /// the slot's version would have to have come round for it to be another's.
    pub(crate) async fn verify(&self, io: &Io, key: &[u8], known: Known, cached: Option<Object>) -> Option<Object> {
        let slot = Verb::Read { at: known.slot_at, len: 8 };
        if let Some(object) = cached {
            let answers = self.reach.verbs(io, vec![slot]).await;
            let same = matches!(&answers[..], [Answer::Bytes(slot)] if Slot(word(slot, 0)) == known.slot);
            return same.then_some(object);
        }
        let object = Verb::Read { at: known.slot.at(self.reach.node), len: known.len };
        let mut answers = self.reach.verbs(io, vec![slot, object]).await;
        match (answers.pop(), answers.pop()) {
            (Some(Answer::Bytes(bytes)), Some(Answer::Bytes(slot))) if Slot(word(&slot, 0)) == known.slot => {
                self.whole(io, known.slot, bytes).await.filter(|object| object.key() == key)
            }
            _ => None,
        }
    }
}
