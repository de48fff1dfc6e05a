//! INSERT: a key's first slot. The module above says why a pending slot makes sure that there is no
//! second one.

use super::{Found, Index, Known, Seen, Slots};
use crate::layout::{At, Hash, SLOTS, Slot};
use crate::object::{self, Object, Type, Value};
use crate::rules::Bug;
use crate::shard::heap::second;
use crate::shard::lease::Writing;
use crate::shard::space::Section;
use crate::shard::{ATTEMPTS, Trouble};
use crate::task::{Answer, Io, Verb};
use farmem::Payload;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// An object that is to be linked.
struct Made<'a> {
    /// All of it. `None`: a block, whose bytes are written from where they lie.
    object: Option<&'a Object>,
    /// Its WRITEs. Those of a block go with the CAS of the pending slot, which nobody follows:
    /// where the key is there, none of it is sent.
    writes: RefCell<Vec<Verb>>,
    len: u32,
    expiry: Option<u64>,
    slot: Slot,
    writing: &'a Writing,
    /// Told when it is linked: the slot's address.
    linked_in: &'a Cell<At>,
    /// It may go in place of an object that the key has.
    replaces: bool,
}

/// How an insert ended.
#[derive(Debug)]
pub enum Inserted {
    /// The key is there now.
    Done,
    /// It was there already.
    Exists(Found),
}

impl Index {
    /// Stores the value if the key is absent: three round trips.
    pub async fn insert(self: &Rc<Index>, io: &Io, key: &[u8], value: &Value) -> Result<Inserted, Trouble> {
        self.link(io, key, value, false).await
    }

    /// Stores the value whatever is there: three round trips. What is there is compared with the key and not
    /// read in full. A value in several objects is found as by [`Index::insert`].
    pub(super) async fn insert_or_replace(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        value: &Value,
    ) -> Result<Inserted, Trouble> {
        self.link(io, key, value, true).await
    }

    async fn link(self: &Rc<Index>, io: &Io, key: &[u8], value: &Value, replaces: bool) -> Result<Inserted, Trouble> {
        let (hash, section) = (Hash::of(key), self.space.section());
        let writing = self.near.writing(Some(hash));
        let held = self.space.hold_of(io, value.kind, object::len(key, &value.bytes)).await?;
        let (object, slot) = self.space.made(hash, key, value, &held);
        let linked_in = Cell::new(0);
        let writes = RefCell::new(vec![Verb::Write { at: held.at, bytes: Rc::clone(object.bytes()) }]);
        let (len, expiry) = (object.len(), value.expiry);
        let made = Made {
            object: Some(&object),
            writes,
            len,
            expiry,
            slot,
            writing: &writing,
            linked_in: &linked_in,
            replaces,
        };
        let ended = Box::pin(self.insert_slot(io, key, hash, made, section)).await;
        match ended {
            Ok(Inserted::Done) => self.space.linked(held.at, hash, value, linked_in.get()),
            // Whether the slot is there is not known: the place stays held.
            Err(Trouble::Unsettled) => {}
            Ok(Inserted::Exists(_)) | Err(_) => self.space.heap.borrow_mut().give_back(held.at),
        }
        ended
    }

    /// Stores bytes that are not copied, if the key is absent: three round trips. Returns what is
    /// there instead, without its value.
    pub async fn add(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        (kind, expiry): (Type, Option<u64>),
        value: &Payload,
    ) -> Result<Option<Object>, Trouble> {
        let (hash, section) = (Hash::of(key), self.space.section());
        let writing = self.near.writing(Some(hash));
        let len = object::len(key, value);
        let held = match self.space.hold_free(object::class_of(kind, len), len) {
            Some(held) => held,
            None => {
                // Before a piece is taken for nothing.
                if let Some(there) = self.brief(io, key).await? {
                    return Ok(Some(there));
                }
                self.space.hold_of(io, kind, len).await?
            }
        };
        let slot = Slot::new(hash.fingerprint(), held.class, held.version, held.at);
        let about = (kind, expiry, &**value);
        let head = object::head((hash, key), about, held.version, (self.space.now_ms.get() / 1000) as u32);
        let taken = head.len() - object::len(key, &[]) as usize;
        let mut writes = Vec::with_capacity(2);
        if taken < value.len() {
            let bytes = value.part(taken..value.len());
            writes.push(Verb::WriteFrom { at: held.at + head.len() as u64, bytes });
        }
        writes.push(Verb::Write { at: held.at, bytes: Rc::new(head) });
        let (linked_in, writes) = (Cell::new(0), RefCell::new(writes));
        let len = len as u32;
        let made =
            Made { object: None, writes, len, expiry, slot, writing: &writing, linked_in: &linked_in, replaces: false };
        let ended = Box::pin(self.insert_slot(io, key, hash, made, section)).await;
        let mut heap = self.space.heap.borrow_mut();
        match &ended {
            Ok(Inserted::Done) => heap.linked(held.at, hash.0, second(expiry), linked_in.get()),
            // As in `link`.
            Err(Trouble::Unsettled) => {}
            Ok(Inserted::Exists(_)) | Err(_) => heap.give_back(held.at),
        }
        ended.map(|ended| match ended {
            Inserted::Done => None,
            Inserted::Exists(found) => Some(found.object),
        })
    }

    async fn insert_slot(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        hash: Hash,
        made: Made<'_>,
        section: Section,
    ) -> Result<Inserted, Trouble> {
        let (slot, era) = (made.slot, self.near.lease.era());
        let whole = made.object.is_some() && !made.replaces;
        for attempt in 0..ATTEMPTS {
            self.hesitate(io, attempt).await?;
            let table = self.trie.borrow().table(hash);
            let mut batch = if made.object.is_some() { made.writes.take() } else { Vec::new() };
            batch.extend(self.bucket_verbs(table, hash));
            let answers = self.reach.verbs(io, batch).await;
            let slots = self.slots(table, hash, &answers);
            let others = match self.look(io, (key, hash, whole), table, &slots).await {
                Seen::Key(slot_at, slot, there)
                    if made.replaces && !matches!(there.kind(), Type::Long | Type::Parts) =>
                {
                    // Its cached slot is outdated by this, or was before.
                    self.near.cache.borrow_mut().forget(key, hash);
                    match self.reach.swap(io, slot_at, slot.0, made.slot.0).await? {
                        Ok(()) => {
                            self.space.retire(slot);
                            self.is_linked(key, hash, &made, (table, slot_at, section.epoch, era));
                            return Ok(Inserted::Done);
                        }
                        Err(found) if Slot(found).is_frozen() => self.split(io, table, hash).await?,
                        Err(_) => {}
                    }
                    continue;
                }
                Seen::Key(slot_at, slot, there) => {
                    let whole =
                        if made.replaces { self.objects(io, &[slot]).await.pop().flatten() } else { Some(there) };
                    let Some(object) = whole else { continue };
                    return Ok(Inserted::Exists(Found { slot_at, slot, object, table, section }));
                }
                Seen::Absent(others) => others,
                Seen::Again | Seen::Damaged => continue,
            };
            let frozen = slots.iter().any(|(_, slot)| slot.is_frozen());
            let Some((at, was)) = empty(&slots).filter(|_| !frozen) else {
                self.split(io, table, hash).await?;
                continue;
            };
            let mut batch = made.writes.take();
            let swap = batch.len();
            batch.push(Verb::Cas { at, old: was.0, new: slot.pending().0 });
            batch.extend(self.bucket_verbs(table, hash));
            let mut answers = self.reach.verbs(io, batch).await;
            let first = std::mem::replace(&mut answers[swap], Answer::Done);
            match self.reach.settle(io, at, was.0, slot.pending().0, first).await {
                // Readers pass over a pending slot, so it may be there or not.
                Err(Trouble::Unsettled) | Ok(Err(_)) => continue,
                Err(trouble) => return Err(trouble),
                Ok(Ok(())) => {}
            }
            let slots = self.slots(table, hash, &answers);
            if !self.alone(io, key, hash, at, &slots, &others).await? {
                self.withdraw(io, at, slot).await?;
                self.cool(io, attempt).await;
                continue;
            }
            match self.reach.swap(io, at, slot.pending().0, slot.0).await? {
                Ok(()) => {
                    self.is_linked(key, hash, &made, (table, at, section.epoch, era));
                    return Ok(Inserted::Done);
                }
                // Undone by another insert of this key, or frozen.
                Err(_) => self.cool(io, attempt).await,
            }
        }
        Err(Trouble::Corrupt)
    }

    /// The object is in the index now, in the slot at this address.
    fn is_linked(&self, key: &[u8], hash: Hash, made: &Made<'_>, (table, slot_at, epoch, era): (At, At, u64, u32)) {
        made.linked_in.set(slot_at);
        let (len, expiry) = (made.len, made.expiry.unwrap_or(0));
        let known = Known { table, slot_at, slot: made.slot, len, expiry, epoch, era };
        self.near.remember_written(key, hash, known, made.object, made.writing);
    }

    /// Waits before another attempt, each front end for another time. Else two equally quick
    /// inserts of a key could undo each other for ever.
    async fn cool(&self, io: &Io, attempt: u32) {
        if attempt > 2 {
            io.pause((u32::from(self.reach.me.line) + attempt) % 7).await;
        }
    }

    /// Whether this insert is the only one of its key. `slots` were read behind its pending slot.
    async fn alone(
        self: &Rc<Index>,
        io: &Io,
        key: &[u8],
        hash: Hash,
        ours: At,
        slots: &Slots,
        others: &Slots,
    ) -> Result<bool, Trouble> {
        if self.reach.rules.get().broken(Bug::CommitUnchecked) {
            return Ok(true);
        }
        let mut new = Vec::new();
        for &(at, slot) in slots.iter().filter(|(at, _)| *at != ours) {
            if !slot.is_used() || slot.fingerprint() != hash.fingerprint() || others.contains(&(at, slot)) {
                continue;
            }
            // Under a lock may be this key.
            if slot.is_frozen() || slot.is_locked() {
                return Ok(false);
            }
            if !slot.is_pending() {
                new.push(slot);
                continue;
            }
            if self.reach.rules.get().broken(Bug::SparePending) {
                continue;
            }
            // It may be another key's, which does no harm. Undone, its insert begins again and
            // sees ours.
            if let Err(found) = self.reach.swap(io, at, slot.0, self.reach.empty().0).await? {
                let found = Slot(found);
                if found.is_frozen() || found.is_locked() {
                    return Ok(false);
                }
                if found.is_used() {
                    new.push(found);
                }
            }
        }
        let objects = self.objects(io, &new).await;
        Ok(objects.iter().all(|object| object.as_ref().is_some_and(|object| object.key() != key)))
    }

    /// Takes a pending slot back. If it was frozen meanwhile, the split leaves it out.
    async fn withdraw(&self, io: &Io, at: At, slot: Slot) -> Result<(), Trouble> {
        match self.reach.swap(io, at, slot.pending().0, self.reach.empty().0).await {
            Err(Trouble::Unsettled) | Ok(_) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}

/// An empty slot of the emptier bucket.
fn empty(slots: &Slots) -> Option<(At, Slot)> {
    let (first, second) = slots.split_at(slots.len().min(SLOTS));
    let free = |bucket: &[(At, Slot)]| bucket.iter().filter(|(_, slot)| slot.is_empty()).count();
    let fuller_last = if free(first) >= free(second) { [first, second] } else { [second, first] };
    fuller_last.into_iter().flatten().find(|(_, slot)| slot.is_empty()).copied()
}
