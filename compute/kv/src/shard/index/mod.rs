//! The index: extendible hashing by one-sided verbs.
//!
//! ```text
//!  first tables (8)         a table: 126 buckets of 8 slots     a split table: frozen, forwards to two
//!   ├─ table ── forward ─► pair ─┬─ table                        key's bit 0 ─► first, 1 ─► second;
//!   └─ table                     └─ table ── forward ─► pair     every slot keeps its place
//! ```
//!
//! A key's object is referred to by one slot of the two buckets that its hash names. A slot changes
//! by one CAS, which is when the operation takes effect:
//!
//! * GET reads the slot, then the object. The object is immutable, so the GET takes effect when the
//!   slot is read.
//! * UPDATE and DELETE replace the very slot that they saw.
//! * INSERT must not make a key's second slot. It CASes a *pending* slot, which readers pass over.
//!   Then it reads both buckets again. If it finds no other insert of the key it makes its slot
//!   plain. Of two inserts, the one whose pending slot came second sees the other's. It undoes that
//!   slot if it is pending still, and its own if the other's is plain.
//!
//! * A TRANSACTION on several keys puts locks into their slots first. Who meets one ends it, and reads
//!   the slot again ([`locked`]).
//!
//! The buckets hold nothing but slots. A front end that knows a key's slot and finds it unchanged
//! needs no bucket: [`Cache`]. A front end that knows an outdated table finds it frozen: [`split`].

mod at_once;
pub(crate) mod brief;
mod cache;
mod hints;
mod insert;
pub(crate) mod locked;
mod split;
pub(crate) use split::slots;
mod trie;
mod walk;

pub use at_once::Mapped;
pub use cache::{Cache, Known};
pub use insert::Inserted;
pub use trie::Trie;

use crate::blocks;
use crate::layout::{At, Geometry, Hash, LARGE, SLOTS, Slot, UNIT, class_bytes, word};
use crate::long;
use crate::object::{self, Object, Value};
use crate::rules::Bug;
use crate::shard::lease::Quiet;
use crate::shard::near::Near;
use crate::shard::reach::Reach;
use crate::shard::space::{Section, Space};
use crate::shard::{ATTEMPTS, Trouble};
use crate::task::{Answer, Io, Verb};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::{Rc, Weak};

/// Whether an unchanged slot proves an unchanged object in this epoch. A slot's version are the low
/// bits of the epoch in which the object's place was taken. A place is used again
/// [`crate::shard::heap::GRACE`] epochs after its object has gone, at the earliest. So the slot can
/// be another object's only if an epoch with these bits has come since it was verified. What a
/// front end knows of the epoch may be one behind.
fn proves(known: &Known, epoch: u64) -> bool {
    let from = known.epoch + 1;
    let next = from + (u64::from(known.slot.version()).wrapping_sub(from) & 0xfff);
    next > epoch + 1
}

/// A key's object and the slot that referred to it.
#[derive(Debug)]
pub struct Found {
    /// The slot's address.
    pub slot_at: At,
    /// The slot, not frozen.
    pub slot: Slot,
    /// The object.
    pub object: Object,
    pub(crate) table: At,
    /// Keeps the object's place from being reused.
    pub(crate) section: Section,
}

impl Found {
    /// The same, without the value if the object is longer than `kept`. A list of extents stays.
    pub(crate) fn brief(self, kept: u32) -> Found {
        let object = if self.object.len() > kept { self.object.brief() } else { self.object };
        Found { object, ..self }
    }
}

/// The result of a look at two buckets.
enum Seen {
    /// The key: its slot and object.
    Key(At, Slot, Object),
    /// No such key. The slots have its fingerprint, and refer to other keys' objects.
    Absent(Vec<(At, Slot)>),
    /// The key: its object is a damaged block.
    Damaged,
    /// The table was split, or the objects changed under the look.
    Again,
}

/// Slots with their addresses.
pub(crate) type Slots = Vec<(At, Slot)>;

/// The keys of one shard, as one front end knows them.
#[derive(Debug)]
pub struct Index {
    reach: Rc<Reach>,
    space: Rc<Space>,
    near: Rc<Near>,
    /// The size of the tables.
    pub geometry: Geometry,
    pub(crate) trie: RefCell<Trie>,
    /// Tables that this front end is splitting.
    splitting: RefCell<HashSet<At>>,
    /// Those of the store's other nodes, where a transaction may have its verdict.
    pub(crate) peers: RefCell<Vec<Weak<Index>>>,
}

impl Index {
    pub(crate) fn new(reach: &Rc<Reach>, space: &Rc<Space>, near: &Rc<Near>, geometry: Geometry) -> Index {
        Index {
            reach: Rc::clone(reach),
            space: Rc::clone(space),
            near: Rc::clone(near),
            geometry,
            trie: RefCell::new(Trie::new(reach.root, geometry)),
            splitting: RefCell::default(),
            peers: RefCell::default(),
        }
    }

    /// The cached slot of a key, and its object if that is cached. A split leaves the slot in its
    /// place, in another table.
    fn known(&self, key: &[u8], hash: Hash) -> Option<(Known, Option<Object>)> {
        let mut cache = self.near.cache.borrow_mut();
        cache.at(self.near.lease.era(), self.space.epoch());
        let (known, object) = cache.get(key, hash, self.trie.borrow().table(hash))?;
        Some((known, object.cloned()))
    }

    /// Whether keys of this hash are in this table, and this front end does not split it.
    pub(crate) fn is_settled(&self, table: At, hash: Hash) -> bool {
        let moved = self.trie.borrow().table(hash) != table && !self.reach.rules.get().broken(Bug::BatchMoved);
        !moved && !self.splitting.borrow().contains(&table)
    }

    fn bucket_verbs(&self, table: At, hash: Hash) -> [Verb; 2] {
        let buckets = hash.buckets(self.geometry.buckets);
        buckets.map(|bucket| Verb::Read { at: self.geometry.bucket(table, bucket), len: UNIT as u32 })
    }

    /// The slots of the last two answers, which [`Index::bucket_verbs`] asked for.
    fn slots(&self, table: At, hash: Hash, answers: &[Answer]) -> Slots {
        let buckets = hash.buckets(self.geometry.buckets);
        let mut slots = Vec::with_capacity(2 * SLOTS);
        for (bucket, answer) in buckets.into_iter().zip(&answers[answers.len().saturating_sub(2)..]) {
            let Answer::Bytes(bytes) = answer else { continue };
            let at = self.geometry.bucket(table, bucket);
            slots.extend((0..SLOTS).map(|n| (at + n as u64 * 8, Slot(word(bytes, n)))));
        }
        slots
    }

    /// Reads objects by their slots. `None`: no sound object is there, so the slot is outdated.
    pub(crate) async fn objects(&self, io: &Io, slots: &[Slot]) -> Vec<Option<Object>> {
        if slots.is_empty() {
            return Vec::new();
        }
        let first = |slot: &Slot| Verb::Read { at: slot.at(self.reach.node), len: class_bytes(slot.class()) as u32 };
        let answers = self.reach.verbs(io, slots.iter().map(first).collect()).await;
        let mut objects = Vec::with_capacity(slots.len());
        for (slot, answer) in slots.iter().zip(answers) {
            objects.push(match answer {
                Answer::Bytes(bytes) => self.near.whole(io, *slot, bytes).await,
                _ => None,
            });
        }
        objects
    }

    /// Searches the slots of both buckets for a key. `whole`: with its value, or without ([`brief`]).
    async fn look(
        self: &Rc<Index>,
        io: &Io,
        (key, hash, whole): (&[u8], Hash, bool),
        table: At,
        slots: &Slots,
    ) -> Seen {
        if slots.iter().any(|(_, slot)| slot.is_frozen()) && !self.reach.rules.get().broken(Bug::TrustFrozen) {
            // Frozen slots are valid until the table forwards. The forward word is read after them.
            let forward = word(&self.reach.read(io, table, 8).await, 0);
            if forward != 0 {
                self.trie.borrow_mut().learn(table, forward);
                return Seen::Again;
            }
        }
        let alike: Slots = slots
            .iter()
            .filter(|(_, slot)| slot.is_used() && !slot.is_pending() && slot.fingerprint() == hash.fingerprint())
            .copied()
            .collect();
        if alike.iter().any(|(_, slot)| slot.is_locked()) {
            // A lock that cannot be ended is met again, and the attempts come to an end.
            let _ = self.unlock_all(io, &alike).await;
            return Seen::Again;
        }
        let referred: Vec<Slot> = alike.iter().map(|&(_, slot)| slot).collect();
        let objects = if whole { self.objects(io, &referred).await } else { self.briefs(io, &referred).await };
        for (&(at, slot), object) in alike.iter().zip(objects) {
            match object {
                // No look may stumble over a damaged block of another key.
                None => match self.damaged_in(io, (at, slot)).await {
                    Some(block) if block.key() != key => {}
                    Some(_) => return Seen::Damaged,
                    None => return Seen::Again,
                },
                Some(object) if object.key() == key || self.reach.rules.get().broken(Bug::SkipKey) => {
                    return Seen::Key(at, slot.thawed(), object);
                }
                Some(_) => {}
            }
        }
        Seen::Absent(alike)
    }

    /// The damaged block, or part of one, to which a slot refers now.
    #[cold]
    pub(crate) async fn damaged_in(&self, io: &Io, (at, slot): (At, Slot)) -> Option<Object> {
        let block = self.damaged(io, slot).await?;
        (word(&self.reach.read(io, at, 8).await, 0) == slot.0).then_some(block)
    }

    /// What a slot refers to, if its writer may have changed the bytes while they were sent: it has
    /// a key, and its checksum is wrong.
    pub(crate) async fn damaged(&self, io: &Io, slot: Slot) -> Option<Object> {
        self.briefs(io, &[slot]).await.pop().flatten().filter(blocks::is_lent)
    }

    /// The key's object. Takes no verb if this front end is alone and has cached the object. Takes
    /// one round trip if it has cached the slot, else two.
    pub async fn find(self: &Rc<Index>, io: &Io, key: &[u8]) -> Result<Option<Found>, Trouble> {
        Ok(self.find_or_slots(io, key).await?.ok())
    }

    /// [`Index::find`]. Of a key that is absent it returns the slots in which it would be.
    pub(crate) async fn find_or_slots(self: &Rc<Index>, io: &Io, key: &[u8]) -> Result<Result<Found, Slots>, Trouble> {
        let (hash, section) = (Hash::of(key), self.space.section());
        let table = self.trie.borrow().table(hash);
        if let Some((known, object)) = self.near.get(key, hash, table) {
            let Known { table, slot_at, slot, .. } = known;
            self.reach.counters.near.set(self.reach.counters.near.get() + 1);
            return Ok(Ok(Found { slot_at, slot, object, table, section }));
        }
        let (era, quiet) = (self.near.lease.era(), self.near.writes.quiet(hash));
        if let Some((known, cached)) = self.known(key, hash) {
            self.reach.counters.warm.set(self.reach.counters.warm.get() + 1);
            let cached = cached.filter(|_| proves(&known, section.epoch));
            // Alone, this front end would know of a change. The object is read by what it knows.
            let sure = era > 0 && known.era == era && quiet.is_some();
            let known = Known { epoch: section.epoch, era, ..known };
            let verified = match cached {
                None if sure => self.near.fetch(io, key, known).await,
                cached => self.near.verify(io, key, known, cached).await,
            };
            if let Some(object) = verified {
                let Known { table, slot_at, slot, .. } = known;
                self.near.remember(key, hash, known, &object, quiet);
                return Ok(Ok(Found { slot_at, slot, object, table, section }));
            }
            self.near.cache.borrow_mut().forget(key, hash);
        }
        self.reach.counters.cold.set(self.reach.counters.cold.get() + 1);
        Box::pin(self.search(io, key, hash, section, (era, quiet))).await
    }

    /// [`Index::find`] of a key whose slot is not cached. The lease's era and the key's own writes
    /// were noted before the first READ.
    async fn search(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        hash: Hash,
        section: Section,
        (era, quiet): (u32, Option<Quiet>),
    ) -> Result<Result<Found, Slots>, Trouble> {
        for attempt in 0..ATTEMPTS {
            let table = self.trie.borrow().table(hash);
            let answers = self.reach.verbs(io, self.bucket_verbs(table, hash).into()).await;
            let slots = self.slots(table, hash, &answers);
            match self.look(io, (key, hash, true), table, &slots).await {
                Seen::Key(slot_at, slot, object) => {
                    let (len, expiry) = (object.len(), object.expiry().unwrap_or(0));
                    let known = Known { table, slot_at, slot, len, expiry, epoch: section.epoch, era };
                    self.near.remember(key, hash, known, &object, quiet);
                    return Ok(Ok(Found { slot_at, slot, object, table, section }));
                }
                Seen::Absent(_) => return Ok(Err(slots)),
                Seen::Damaged => return Err(Trouble::Corrupt),
                Seen::Again => self.hesitate(io, attempt).await?,
            }
        }
        Err(Trouble::Corrupt)
    }

    /// Called before another attempt. The first 40 come at once, later ones after a pause.
    async fn hesitate(&self, io: &Io, attempt: u32) -> Result<(), Trouble> {
        if self.reach.shut_out.get() {
            return Err(Trouble::ShutOut);
        }
        if attempt > 40 {
            io.pause(1 + attempt / 100).await;
        }
        Ok(())
    }

    /// Replaces a found object by a value, or removes it if there is none. False: the slot has
    /// changed since. One round trip.
    pub async fn replace(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        found: &Found,
        value: Option<&Value>,
    ) -> Result<bool, Trouble> {
        self.replace_parts(io, key, found, value, None).await
    }

    /// [`Index::replace`] by a value that shares all segments of what was found with it, but those
    /// that are `dropped`. `None`: none.
    pub(crate) async fn replace_parts(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        found: &Found,
        value: Option<&Value>,
        dropped: Option<&[At]>,
    ) -> Result<bool, Trouble> {
        let hash = Hash::of(key);
        let epoch = found.section.epoch;
        let known = Known {
            table: found.table,
            slot_at: found.slot_at,
            slot: found.slot,
            len: found.object.len(),
            expiry: found.object.expiry().unwrap_or(0),
            epoch,
            era: 0,
        };
        self.exchange(io, key, hash, known, value, Some((&found.object, dropped))).await
    }

    /// Replaces or removes the object of a known slot: one WRITE, one CAS. `there`: the object, if
    /// it is known, and as of [`Index::replace_parts`].
    async fn exchange(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        hash: Hash,
        known: Known,
        value: Option<&Value>,
        there: Option<(&Object, Option<&[At]>)>,
    ) -> Result<bool, Trouble> {
        let (section, writing, era) = (self.space.section(), self.near.writing(Some(hash)), self.near.lease.era());
        let Known { slot_at: at, slot: old, table, .. } = known;
        let mut made = None;
        let mut batch = Vec::with_capacity(2);
        if let Some(value) = value {
            let len = object::len(key, &value.bytes);
            let held = match len <= u64::from(known.len) {
                true => self.space.hold_instead(io, len, old.class()).await?,
                false => self.space.hold(io, len).await?,
            };
            let (object, slot) = self.space.made(hash, key, value, &held);
            batch.push(Verb::Write { at: held.at, bytes: Rc::clone(object.bytes()) });
            made = Some((held, object, slot));
        }
        let new = made.as_ref().map_or_else(|| self.reach.empty(), |(_, _, slot)| *slot).0;
        batch.push(Verb::Cas { at, old: old.0, new });
        let answer = self.reach.verbs(io, batch).await.pop().unwrap_or(Answer::Unknown);
        let ended = self.reach.settle(io, at, old.0, new, answer).await;
        if !matches!(ended, Ok(Ok(()))) || made.is_none() {
            self.near.cache.borrow_mut().forget(key, hash);
        }
        match ended {
            Ok(Ok(())) => {
                let (there, dropped) = there.map_or((None, None), |(object, dropped)| (Some(object), dropped));
                let number = made.as_ref().and_then(|(_, object, _)| long::number(object));
                self.space.retire_for(old, there, number, dropped);
                if let (Some((held, object, slot)), Some(value)) = (made, value) {
                    self.space.linked(held.at, hash, value, at);
                    let (len, expiry) = (object.len(), object.expiry().unwrap_or(0));
                    let known = Known { table, slot_at: at, slot, len, expiry, epoch: section.epoch, era };
                    self.near.remember_written(key, hash, known, Some(&object), &writing);
                }
                Ok(true)
            }
            Ok(Err(found)) => {
                if let Some((held, ..)) = made {
                    self.space.heap.borrow_mut().give_back(held.at);
                }
                if Slot(found).is_frozen() {
                    Box::pin(self.split(io, table, hash)).await?;
                }
                Ok(false)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// The cached slot of a key, if it may be replaced without a READ. It was verified at most an
    /// epoch ago, or under the lease that is in force. So its object's place cannot have been
    /// reused since. A key with an expiry is read first, because it may have ended.
    fn fresh(&self, key: &[u8], hash: Hash, section: &Section) -> Option<Known> {
        let known = self.known(key, hash)?.0;
        let era = self.near.lease.era();
        let alone = era > 0 && known.era == era && self.near.writes.quiet(hash).is_some();
        let fresh = alone || known.epoch + 1 >= section.epoch || self.reach.rules.get().broken(Bug::BlindForever);
        (fresh && known.expiry == 0).then_some(known)
    }

    /// Stores the value whatever is there: one round trip if the key's slot is known.
    pub async fn put(self: &Rc<Index>, io: &Io, key: &[u8], value: &Value) -> Result<(), Trouble> {
        let (hash, section) = (Hash::of(key), self.space.section());
        if let Some(known) = self.fresh(key, hash, &section) {
            match self.exchange(io, key, hash, known, Some(value), None).await {
                Ok(true) => return Ok(()),
                // The value may be shorter than the old one, whose length a hint does not tell.
                Err(Trouble::Full) if known.slot.class() == LARGE => {}
                Ok(false) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Box::pin(self.put_seen(io, key, hash, value)).await
    }

    /// [`Index::put`] of a key whose slot must be looked at first.
    async fn put_seen(self: &Rc<Index>, io: &Io, key: &[u8], hash: Hash, value: &Value) -> Result<(), Trouble> {
        for attempt in 0..ATTEMPTS {
            self.hesitate(io, attempt).await?;
            if self.near.cache.borrow().has(key, hash)
                && let Some(found) = self.find(io, key).await?
                && self.replace(io, key, &found, Some(value)).await?
            {
                return Ok(());
            }
            match self.insert_or_replace(io, key, value).await? {
                Inserted::Done => return Ok(()),
                Inserted::Exists(found) => {
                    if self.replace(io, key, &found, Some(value)).await? {
                        return Ok(());
                    }
                }
            }
        }
        Err(Trouble::Corrupt)
    }

    /// Takes the key out. One round trip, without reading the object, if the slot is known.
    pub async fn remove(self: &Rc<Index>, io: &Io, key: &[u8]) -> Result<Removed, Trouble> {
        let (hash, section) = (Hash::of(key), self.space.section());
        if let Some(known) = self.fresh(key, hash, &section)
            && self.exchange(io, key, hash, known, None, None).await?
        {
            return Ok(Removed::Unseen);
        }
        Box::pin(self.remove_seen(io, key)).await
    }

    /// [`Index::remove`] of a key whose slot must be looked at first.
    async fn remove_seen(self: &Rc<Index>, io: &Io, key: &[u8]) -> Result<Removed, Trouble> {
        for attempt in 0..ATTEMPTS {
            self.hesitate(io, attempt).await?;
            let Some(found) = self.find(io, key).await? else { return Ok(Removed::Absent) };
            if self.replace(io, key, &found, None).await? {
                return Ok(Removed::Was(found));
            }
        }
        Err(Trouble::Corrupt)
    }
}

/// The result of a DELETE.
#[derive(Debug)]
pub enum Removed {
    /// Nothing: there was no such key.
    Absent,
    /// A key without an expiry, whose object was not read.
    Unseen,
    /// This.
    Was(Found),
}
