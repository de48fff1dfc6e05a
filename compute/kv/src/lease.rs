//! When a front end may answer from its near cache, and with how many verbs.
//!
//! ```text
//!  others serve the store   one READ of the slot: if it is what it was, so is the object, which is immutable
//!  alone, by a lease        none
//! ```
//!
//! *The lease.* A tick that finds no other member alive gives this front end a lease of
//! [`STALE_MS`] from when the tick began. A front end that joins changes nothing before every
//! member that it found has shown itself twice, or a lease would be over ([`Shard::await_others`]).
//! A member's second sign comes after a tick that saw the newcomer, and that tick ended the lease.
//! So nobody else changes the store under a lease. A hit takes effect when the clock was read that
//! found the lease in force, which is after the request came.
//!
//! *Eras.* A lease that follows another without a gap goes on with its era; else a new era begins.
//! An entry of an older era is looked after by one READ before it counts again.
//!
//! *Its own writes.* A change that is under way may have taken effect at the node and not be known
//! here. Until it has ended its key is not answered from here, and what was read meanwhile is not
//! kept ([`Writes`]).

use crate::index::Known;
use crate::layout::{HEAD_BYTES, Hash, MEMBERS, Slot, word};
use crate::member::{STALE_MS, line_word, state};
use crate::object::Object;
use crate::rules::Bug;
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How long a newcomer waits for the others: a lease, and more for clocks that differ.
const AWAIT_MS: u32 = 2500;
/// Between its looks.
const LOOK_MS: u32 = 20;
const _: () = assert!(AWAIT_MS as u64 > STALE_MS + STALE_MS / 5);

/// A front end's lease on one shard. Times are in milliseconds of a clock that never goes back.
#[derive(Debug, Default)]
pub struct Lease {
    /// The time, as last read.
    pub now_ms: Cell<u64>,
    until_ms: Cell<u64>,
    era: Cell<u32>,
}

impl Lease {
    /// The era, if the lease is in force; else 0.
    #[inline]
    pub fn era(&self) -> u32 {
        if self.now_ms.get() < self.until_ms.get() { self.era.get() } else { 0 }
    }

    /// A tick that began at `begun_ms` found nobody else; it is `now_ms` now.
    pub fn renew(&self, begun_ms: u64, now_ms: u64) {
        if now_ms >= self.until_ms.get() {
            self.era.set(self.era.get() + 1);
        }
        self.until_ms.set(begun_ms + STALE_MS);
    }

    /// Ends the lease: another front end is there.
    pub fn end(&self) {
        self.until_ms.set(0);
    }
}

/// Groups of keys by hash, whose writes are counted together.
const GROUPS: usize = 4096;

/// Changes of keys by this front end: those under way, and how many began or ended.
#[derive(Debug)]
pub struct Writes {
    groups: RefCell<Vec<(u32, u32)>>,
    /// Changes of all keys at once.
    all: Cell<(u32, u32)>,
}

impl Default for Writes {
    fn default() -> Writes {
        Writes { groups: vec![(0, 0); GROUPS].into(), all: Cell::default() }
    }
}

/// The known changes of a key when a read of it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet(u32, u32);

/// A change under way.
#[derive(Debug)]
pub struct Writing {
    shard: Rc<Shard>,
    /// `None`: of all keys.
    hash: Option<Hash>,
    begun: Quiet,
}

impl Writes {
    /// No change of the key is under way.
    #[inline]
    pub fn quiet(&self, hash: Hash) -> Option<Quiet> {
        let ((open, count), all) = (self.groups.borrow()[hash.0 as usize % GROUPS], self.all.get());
        (open == 0 && all.0 == 0).then_some(Quiet(count, all.1))
    }

    fn change(&self, hash: Option<Hash>, by: i32) -> Quiet {
        let (mut groups, mut all) = (self.groups.borrow_mut(), self.all.get());
        let one = match hash {
            Some(hash) => &mut groups[hash.0 as usize % GROUPS],
            None => &mut all,
        };
        (one.0, one.1) = (one.0.wrapping_add_signed(by), one.1.wrapping_add(1));
        let count = hash.map_or(0, |hash| groups[hash.0 as usize % GROUPS].1);
        self.all.set(all);
        Quiet(count, all.1)
    }

    /// Whether the change is the only one since it began.
    fn is_sole(&self, writing: &Writing) -> bool {
        let Some(hash) = writing.hash else { return false };
        let ((open, count), all) = (self.groups.borrow()[hash.0 as usize % GROUPS], self.all.get());
        open == 1 && all.0 == 0 && Quiet(count, all.1) == writing.begun
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shard.writes.change(self.hash, -1);
    }
}

impl Shard {
    /// Begins a change of a key; `None`: of all.
    pub(crate) fn writing(self: &Rc<Shard>, hash: Option<Hash>) -> Writing {
        if hash.is_none() {
            self.cache.borrow_mut().clear();
        }
        let begun = self.writes.change(hash, 1);
        Writing { shard: Rc::clone(self), hash, begun }
    }

    /// Remembers what a read has found, if nothing was changed since it began.
    pub(crate) fn remember(&self, key: &[u8], hash: Hash, known: Known, object: &Object, quiet: Option<Quiet>) {
        if quiet.is_some() && self.writes.quiet(hash) == quiet || self.rules.broken(Bug::KeepUnderWrite) {
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
    pub(crate) fn near(&self, key: &[u8], hash: Hash) -> Option<(Known, Object)> {
        let era = self.lease.era();
        if era == 0 || self.writes.quiet(hash).is_none() {
            return None;
        }
        match self.cache.borrow_mut().get(key, hash)? {
            (known, Some(object)) if known.era == era || self.rules.broken(Bug::TrustOldEra) => {
                Some((known, object.clone()))
            }
            _ => None,
        }
    }

    /// The object of a slot that is known, if the slot is what it was. `cached` is believed then:
    /// the slot's version would have to have come round for it to be another's.
    pub(crate) async fn verify(&self, io: &Io, key: &[u8], known: Known, cached: Option<Object>) -> Option<Object> {
        let slot = Verb::Read { at: known.slot_at, len: 8 };
        if let Some(object) = cached {
            let answers = self.verbs(io, vec![slot]).await;
            let same = matches!(&answers[..], [Answer::Bytes(slot)] if Slot(word(slot, 0)) == known.slot);
            return same.then_some(object);
        }
        let object = Verb::Read { at: known.slot.at(self.node), len: known.len };
        let mut answers = self.verbs(io, vec![slot, object]).await;
        match (answers.pop(), answers.pop()) {
            (Some(Answer::Bytes(object)), Some(Answer::Bytes(slot))) if Slot(word(&slot, 0)) == known.slot => {
                Object::decode(object).filter(|object| object.key() == key)
            }
            _ => None,
        }
    }

    /// Waits until every other member knows of this one: none counts on being alone any more.
    pub async fn await_others(&self, io: &Io) -> Result<(), Trouble> {
        if self.rules.broken(Bug::JoinAtOnce) {
            return Ok(());
        }
        let mut others: Option<Vec<(usize, u64, u64)>> = None;
        for _ in 0..=AWAIT_MS / LOOK_MS {
            let bytes = self.read(io, self.root, HEAD_BYTES as u32).await;
            let lines = (0..MEMBERS).filter(|&line| line != usize::from(self.me.line));
            let now = lines.map(|line| (line, state(&bytes, line), line_word(&bytes, line, 1)));
            let now: Vec<_> =
                now.filter(|(_, state, _)| state.is_alive()).map(|(n, state, beat)| (n, state.0, beat)).collect();
            let awaited = others.get_or_insert_with(|| now.clone());
            awaited.retain(|&(line, state, beat)| now.iter().any(|&(n, s, b)| n == line && s == state && b < beat + 2));
            if awaited.is_empty() {
                return Ok(());
            }
            io.pause(LOOK_MS).await;
        }
        Ok(())
    }
}
