//! The near cache of one shard. A front end fills it as it reads and writes, and answers from it
//! when [`crate::shard::lease`] allows that.

use crate::layout::{Hash, Slot, word};
use crate::object::Object;
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
    pub(crate) fn new(reach: &Rc<Reach>, local: u64) -> Near {
        Near {
            reach: Rc::clone(reach),
            cache: RefCell::new(Cache::new(local)),
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
            self.cache.borrow_mut().put(key, hash, known, Some(object));
        }
    }

    /// Remembers what a change has made.
    pub(crate) fn remember_written(&self, key: &[u8], hash: Hash, known: Known, object: Option<&Object>, by: &Writing) {
        let mut cache = self.cache.borrow_mut();
        match self.writes.is_sole(by) {
            true => cache.put(key, hash, known, object),
            // Of two changes the one that is told of last need not be the last.
            false => cache.forget(key, hash),
        }
    }

    /// A key's slot and object, if they need no look.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], hash: Hash) -> Option<(Known, Object)> {
        let era = self.lease.era();
        if era == 0 || self.writes.quiet(hash).is_none() {
            return None;
        }
        match self.cache.borrow_mut().get(key, hash)? {
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
            Some(Answer::Bytes(object)) => Object::decode(object).filter(|object| object.key() == key),
            _ => None,
        }
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
            (Some(Answer::Bytes(object)), Some(Answer::Bytes(slot))) if Slot(word(&slot, 0)) == known.slot => {
                Object::decode(object).filter(|object| object.key() == key)
            }
            _ => None,
        }
    }
}
