//! The shards of all nodes as one store, with keys that expire.
//!
//! A key has *ended* when its expiry has passed. It stays in the index until a lookup, an eviction,
//! or a sweep of the front end that has its object removes it.

mod walk;

use crate::atomic::{Changed, is_enough};
use crate::blocks;
use crate::layout::{Hash, LARGE, PIECE_HEADER, class_of};
use crate::object::{self, Object, Type, Value};
use crate::segments::{self, Open, Placed, Segments};
use crate::shard::index::{Found, Inserted, Removed};
use crate::shard::space::Left;
use crate::shard::{Shard, Trouble};
use crate::task::Io;
use farmem::Payload;
use farmem_protocol::random::Random;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
pub use walk::Cursor;

/// Figures of a front end since its start.
#[derive(Debug, Default)]
pub struct Figures {
    /// Commands.
    pub commands: Cell<u64>,
    /// Connections.
    pub connections: Cell<u64>,
    /// Reads that found their key.
    pub hits: Cell<u64>,
    /// Reads that did not.
    pub misses: Cell<u64>,
    /// Keys that ended.
    pub expired: Cell<u64>,
    /// Keys that were evicted.
    pub evicted: Cell<u64>,
    /// Writes that found memory full.
    pub full: Cell<u64>,
}

/// A store as one front end serves it.
#[derive(Debug)]
pub struct Keyspace {
    /// Its name.
    pub name: String,
    /// One for each node.
    pub shards: Vec<Rc<Shard>>,
    /// Whether keys are evicted when memory is used up.
    pub evicts: bool,
    /// Milliseconds since 1970 at the start.
    pub begun_ms: u64,
    /// Figures.
    pub figures: Figures,
    /// Segments of collections that are at hand.
    pub segments: Segments,
    /// Keys that eviction passes over: see [`Keyspace::spare`].
    pub(crate) spared: RefCell<Vec<Hash>>,
    random: RefCell<Random>,
}

/// The decision of a [`Keyspace::update`] on a key.
#[derive(Debug)]
pub enum Change<T> {
    /// The key stays as it is.
    Keep(T),
    /// The key gets this value. It may be the head that was seen, with another expiry.
    Put(Value, T),
    /// The key's value in segments has become this.
    Parts(Box<Open>, T),
    /// The key is removed.
    Delete(T),
}

impl Keyspace {
    /// A store of these shards.
    pub fn new(name: &str, shards: Vec<Rc<Shard>>, evicts: bool, begun_ms: u64, seed: u64) -> Keyspace {
        let random = RefCell::new(Random::new(seed));
        for shard in &shards {
            shard.index.peers.replace(shards.iter().map(|other| Rc::downgrade(&other.index)).collect());
        }
        let (figures, segments, spared) = (Figures::default(), Segments::default(), RefCell::default());
        Keyspace { name: name.into(), shards, evicts, begun_ms, figures, segments, spared, random }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.shards[0].space.now_ms.get()
    }

    /// Has keys that end or are evicted be told of, or not.
    pub fn tell_leaving(&self, told: bool) {
        self.shards.iter().for_each(|shard| shard.space.leaving.told.set(told));
    }

    /// Those keys since the last call, and whether there were more than may wait.
    pub fn take_leaving(&self) -> (Vec<(Left, Vec<u8>)>, bool) {
        let (mut keys, mut lost) = (Vec::new(), false);
        for (some, missing) in self.shards.iter().map(|shard| shard.space.leaving.take()) {
            keys.extend(some);
            lost |= missing;
        }
        (keys, lost)
    }

    /// Tells the time.
    pub fn set_now_ms(&self, now_ms: u64) {
        self.shards.iter().for_each(|shard| shard.space.now_ms.set(now_ms));
    }

    /// Sets the time by which leases are judged, in milliseconds of a clock that never goes back.
    /// Call it after a request has come and before it is answered: a near hit takes effect then.
    pub fn set_clock_ms(&self, clock_ms: u64) {
        self.shards.iter().for_each(|shard| shard.near.lease.now_ms.set(clock_ms));
    }

    /// The key's object, if that can be told without a verb: this front end is alone and has it.
    pub fn near(&self, key: &[u8]) -> Option<Object> {
        let hash = Hash::of(key);
        let shard = &self.shards[hash.shard(self.shards.len())];
        let object = shard.near.object(key, hash)?;
        if self.has_ended(&object) {
            return None;
        }
        count_one(&shard.reach.counters.near);
        count_one(&self.figures.hits);
        Some(object)
    }

    /// A number below `bound`.
    pub fn random(&self, bound: usize) -> usize {
        self.random.borrow_mut().index(bound.max(1))
    }

    pub(crate) fn shard(&self, key: &[u8]) -> &Rc<Shard> {
        &self.shards[Hash::of(key).shard(self.shards.len())]
    }

    /// Whether an object stands for an absent key.
    pub(crate) fn has_ended(&self, object: &Object) -> bool {
        object.kind() == Type::Vacant || object.expiry().is_some_and(|at| at <= self.now_ms())
    }

    /// The key's object, unless it has ended.
    pub async fn find(&self, io: &Io, key: &[u8]) -> Result<Option<Found>, Trouble> {
        let shard = self.shard(key);
        let found = shard.index.find(io, key).await?;
        match found {
            // A transaction is about to lock it, unless its front end has died.
            Some(found)
                if found.object.kind() == Type::Vacant
                    && found.object.expiry().is_some_and(|at| at > self.now_ms()) =>
            {
                Ok(None)
            }
            Some(found) if self.has_ended(&found.object) => {
                if shard.index.replace(io, key, &found, None).await? {
                    count_one(&self.figures.expired);
                    shard.space.leaving.push(Left::Ended, found.object.kind(), key);
                }
                Ok(None)
            }
            found => Ok(found),
        }
    }

    /// [`Keyspace::find`] for a command that reads: counted.
    pub async fn get(&self, io: &Io, key: &[u8]) -> Result<Option<Found>, Trouble> {
        let found = self.find(io, key).await?;
        count_one(if found.is_some() { &self.figures.hits } else { &self.figures.misses });
        Ok(found)
    }

    /// Stores a value, whether the key exists or not.
    pub async fn put(&self, io: &Io, key: &[u8], value: &Value) -> Result<(), Trouble> {
        if self.is_long(key, value) {
            let long = Box::pin(self.lengthen(io, key, &value.bytes)).await?;
            return Box::pin(self.put(io, key, &long.head(value.expiry))).await;
        }
        if self.is_divided(value) {
            return Box::pin(self.put_divided(io, key, value)).await;
        }
        loop {
            match self.shard(key).index.put(io, key, value).await {
                Err(Trouble::Full) => {
                    let len = object::len(key, &value.bytes);
                    self.make_room(io, self.shard(key), object::class_of(value.kind, len), len).await?
                }
                ended => return ended,
            }
        }
    }

    /// Takes a key out; whether it was there. Needs memory only if a front end has died while it
    /// split the key's table.
    pub async fn remove(&self, io: &Io, key: &[u8]) -> Result<bool, Trouble> {
        let shard = self.shard(key);
        loop {
            return Ok(match shard.index.remove(io, key).await {
                Err(Trouble::Full) => {
                    let len = u64::from(shard.index.geometry.pair_bytes()) - PIECE_HEADER;
                    self.make_room(io, shard, LARGE, len).await?;
                    continue;
                }
                Ok(Removed::Absent) => false,
                Ok(Removed::Unseen) => true,
                Ok(Removed::Was(found)) => !self.has_ended(&found.object),
                Err(trouble) => return Err(trouble),
            });
        }
    }

    /// Stores bytes that are not copied, unless the key is there; whether they were stored.
    pub(crate) async fn add(
        &self,
        io: &Io,
        key: &[u8],
        (kind, expiry): (Type, Option<u64>),
        value: &Payload,
    ) -> Result<bool, Trouble> {
        let shard = self.shard(key);
        loop {
            match shard.index.add(io, key, (kind, expiry), value).await {
                Ok(None) => return Ok(true),
                Ok(Some(there)) => {
                    // One that has ended is taken out, and this begins again. A transaction's stays for
                    // a moment.
                    if !self.has_ended(&there) {
                        return Ok(false);
                    }
                    match self.find(io, key).await {
                        // It is damaged, and would count as absent in any case.
                        Err(Trouble::Corrupt) if there.kind() == Type::Block => {
                            // Unless another has put a sound one in its place.
                            if shard.index.brief(io, key).await?.is_some_and(|now| self.has_ended(&now)) {
                                self.discard(io, key, None).await?;
                            }
                        }
                        found => drop(found?),
                    }
                    io.pause(1).await;
                }
                Err(Trouble::Full) => {
                    let len = object::len(key, value);
                    self.make_room(io, shard, object::class_of(kind, len), len).await?;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// The key's object without its value, unless it has ended.
    pub(crate) async fn brief(&self, io: &Io, key: &[u8]) -> Result<Option<Object>, Trouble> {
        let found = self.shard(key).index.brief(io, key).await?;
        Ok(found.filter(|object| !self.has_ended(object)))
    }

    /// Takes a key out if its object is the one meant; whether it was there. Needs no memory.
    pub async fn remove_if(&self, io: &Io, key: &[u8], meant: impl Fn(&Object) -> bool) -> Result<bool, Trouble> {
        let shard = self.shard(key);
        loop {
            let Some(found) = shard.index.find(io, key).await?.filter(|found| meant(&found.object)) else {
                return Ok(false);
            };
            if shard.index.replace(io, key, &found, None).await? {
                return Ok(true);
            }
        }
    }

    /// Reads a key, has `change` decide, and carries the decision out. Begins again if another
    /// change of the key came between. So `change` may be called several times.
    ///
    /// # Errors
    /// The errors of `change`: the key stays as it is. The errors of the store.
    pub async fn update<T, E: From<Trouble>>(
        &self,
        io: &Io,
        key: &[u8],
        mut change: impl FnMut(Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        self.update_found(io, key, true, |_, there| change(there)).await
    }

    /// [`Keyspace::update`] for a `change` that needs the key's slot, too. It gets what was found,
    /// and the object. `whole`: also of a value in segments the object has all of it. Otherwise it
    /// is the head, and `change` may want segments of it ([`Working`](segments::Working)).
    ///
    /// # Errors
    /// As there.
    pub async fn update_found<T, E: From<Trouble>>(
        &self,
        io: &Io,
        key: &[u8],
        whole: bool,
        mut change: impl FnMut(Option<&Found>, Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        let shard = self.shard(key);
        let (mut lost, mut lent, mut seizes) = (0u32, segments::Lent::default(), true);
        loop {
            if seizes && is_enough(lost) {
                // Others change it faster than `change` can be worked out.
                match Box::pin(self.update_seized(io, key, &mut change)).await? {
                    Changed::Done(outcome) => return Ok(outcome),
                    Changed::Disturbed => {}
                    // It goes on as it began: parts of the value are changed in less time than all
                    // of it.
                    Changed::Unwieldy => seizes = false,
                }
                io.pause(1 + self.random(16) as u32).await;
                continue;
            }
            let found = shard.index.find(io, key).await?;
            let there = found.as_ref().filter(|found| !self.has_ended(&found.object));
            let (value, open, outcome) = match self.decided(io, (key, there, whole), &mut lent, &mut change).await? {
                Change::Keep(outcome) => return Ok(outcome),
                Change::Put(value, outcome) => (Some(value), None, outcome),
                Change::Parts(open, outcome) => (None, Some(open), outcome),
                Change::Delete(outcome) => (None, None, outcome),
            };
            let (mut found, mut value, mut long) = (found, value, None);
            if let Some(whole) = value.as_ref().filter(|value| self.is_long(key, value)) {
                // `found` holds a section, and retired memory does not come back while one is held.
                // So it is dropped while extents are written, and the key is read again after that.
                let seen = found.as_ref().map(|found| (found.slot, found.object.checksum()));
                drop(found);
                let written = Box::pin(self.lengthen(io, key, &whole.bytes)).await?;
                found = shard.index.find(io, key).await?;
                if seen != found.as_ref().map(|found| (found.slot, found.object.checksum())) {
                    continue;
                }
                value = Some(written.head(whole.expiry));
                long = Some(written);
            }
            let mut placed = None;
            let divided = |value: &mut Value| value.kind == Type::Parts || self.is_divided(value);
            let new = open.map(Ok).or_else(|| value.take_if(divided).map(Err));
            if let Some(new) = new {
                let old = found.as_ref().map(|found| &found.object);
                match Box::pin(self.segmented(io, key, old, new, &mut lent)).await? {
                    Ok((head, segments)) => (value, placed) = (Some(head), Some(segments)),
                    Err(len) => {
                        drop(found);
                        self.make_room(io, shard, class_of(len), len).await?;
                        continue;
                    }
                }
            }
            let dropped = placed.as_ref().and_then(Placed::dropped);
            let done = match (&found, &value) {
                (Some(found), value) => shard.index.replace_parts(io, key, found, value.as_ref(), dropped).await,
                (None, Some(value)) => {
                    shard.index.insert(io, key, value).await.map(|inserted| matches!(inserted, Inserted::Done))
                }
                (None, None) => Ok(true),
            };
            // The heap keeps the extents and segments from here on if their head is linked, or may
            // be.
            drop(long);
            match (&done, placed) {
                (Ok(true), Some(placed)) => {
                    self.segments.forget(placed.gone());
                    placed.linked();
                }
                (Err(trouble), Some(mut placed)) => placed.kept = !segments::is_harmless(*trouble),
                (_, placed) => drop(placed),
            }
            match done {
                Ok(true) => return Ok(outcome),
                Ok(false) => {
                    lost += 1;
                    if lost > 8 {
                        io.pause(self.random(lost.min(20) as usize) as u32).await;
                    }
                }
                Err(Trouble::Full) => {
                    drop(found);
                    let len = value.as_ref().map_or(0, |value| object::len(key, &value.bytes));
                    self.make_room(io, shard, class_of(len), len).await?;
                }
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// Whether other front ends serve the store, as the last tick has found. A newcomer changes
    /// nothing, and answers nobody, before this says so.
    pub fn has_others(&self) -> bool {
        self.shards[0].members.company.get()
    }

    /// Whether other front ends serve the store now.
    ///
    /// # Errors
    /// This front end was shut out.
    pub async fn has_company(&self, io: &Io) -> Result<bool, Trouble> {
        for shard in &self.shards {
            if shard.members.has_company(io).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes out parts of blocks whose writers have died before their blocks were there.
    pub(crate) async fn end_parts(&self, io: &Io, shard: &Rc<Shard>) {
        for part in shard.recovery.parts_left() {
            // Of one that is not answered for, eviction is left.
            let _ = blocks::end_part(self, io, &part).await;
        }
    }

    /// Takes keys that have ended and were written here out, about `most` of each node's; whether
    /// there may be more.
    pub async fn sweep(&self, io: &Io, most: usize) -> bool {
        let mut more = false;
        for shard in &self.shards {
            let (swept, again) = shard.recovery.sweep(io, most).await;
            self.figures.expired.set(self.figures.expired.get() + swept as u64);
            more |= again;
        }
        more
    }
}

/// The name of a type.
pub fn name(kind: Type) -> &'static str {
    match kind {
        Type::String | Type::Long => "string",
        Type::List => "list",
        Type::Set => "set",
        Type::Hash => "hash",
        Type::SortedSet => "zset",
        Type::Message => "message",
        Type::Stream => "stream",
        Type::Lock | Type::Verdict | Type::Vacant => "none",
        Type::Parts | Type::Segment | Type::Broken | Type::Block => "none",
    }
}

/// Adds one to a figure.
pub(crate) fn count_one(figure: &Cell<u64>) {
    figure.set(figure.get() + 1);
}
