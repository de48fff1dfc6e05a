//! Changes of several keys at one moment, for every front end.
//!
//! ```text
//!  slot ──► lock: what the slot was, is to be ──► verdict: the slots' addresses │ undecided, done or undone
//!  slot ──► lock ───────────────────────────────►
//! ```
//!
//! 1. Each key is found. One that is absent gets a slot by an insert of a *vacant* object, which ends.
//! 2. The new objects, a *lock* of each key and one *verdict* are written.
//! 3. A CAS of each slot puts its lock in the place of what was found. If one fails, the transaction is
//!    undone and begins again.
//! 4. One CAS decides the verdict: at that moment all slots have their new values.
//! 5. A CAS of each slot puts its new value in the place of its lock.
//!
//! Keys that are only read are locked like the others. So between the last CAS of step 3 and step 4
//! nothing that was read has changed. Nobody waits for a lock: who meets one ends it
//! ([`crate::shard::index`], `locked.rs`). Two transactions that meet are undone and begin again,
//! after pauses that differ. GET and SET of a key that is not locked are what they are without
//! transactions.
//!
//! A transaction that others have disturbed [`DISTURBED`] times *seizes* its keys: it locks them before it
//! knows what becomes of them (`seized.rs`). So it comes about beside any changes of others.
//!
//! *A crash.* Locks are ended by whoever meets them, by the verdict. An adopter of a dead front end's
//! verdict undoes it if it is undecided, and ends its locks at all nodes, before the memory is used again.

mod batch;
mod decided;
mod given;
mod part;
mod seized;

pub use batch::There;
pub use decided::Changes;
pub use seized::Seized;
pub(crate) use seized::{Changed, is_enough};

use crate::keyspace::Keyspace;
use crate::layout::{At, Hash, LOCK_BYTES, Slot, class_of};
use crate::object::{self, Type, Value};
use crate::rules::Bug;
use crate::shard::copies::{Deciding, Mode, is_done};
use crate::shard::index::Found;
use crate::shard::index::locked::{DONE, UNDONE, last_word, verdict, verdict_bytes};
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb, join};
use part::{Part, Spot};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Attempts of a transaction that others undo.
const ATTEMPTS: u32 = 200;
/// Attempts that others may disturb before a transaction seizes its keys.
pub const DISTURBED: u32 = 8;
/// Keys that are found at once. Each may have 2 MiB.
const TOGETHER: usize = 16;
/// Verbs of one batch, at most.
const BATCH: usize = 256;
/// Bytes of a found object that may stay here until a transaction's end.
const BRIEF: u32 = 4096;
/// How long a vacant object stands for an absent key, in ms.
const VACANT_MS: u64 = 2000;
/// How much longer it stands for each key of its transaction: the first must stand when the last has
/// been found.
const VACANT_FOR_EACH_MS: u64 = 2;

/// A key that a transaction has read, and what it is to be.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The key.
    pub key: Vec<u8>,
    /// `None`: it was only read. `Some(None)`: it goes.
    pub change: Option<Option<Value>>,
}

/// Futures of one transaction, side by side.
type Each<'a, T> = Vec<Pin<Box<dyn Future<Output = T> + 'a>>>;

impl Keyspace {
    /// Carries out the changes at one moment, at which every key is as `is_as_read` says. False: one of
    /// them is not, and nothing was changed. No attempt begins again when it `is_late`.
    ///
    /// # Errors
    /// Nothing was changed, unless a connection broke or this front end was shut out.
    pub async fn commit(
        &self,
        io: &Io,
        intents: Vec<Intent>,
        is_as_read: &dyn Fn(&[u8], Option<&Found>) -> bool,
        is_late: &dyn Fn() -> bool,
    ) -> Result<bool, Trouble> {
        let parts = self.parts(io, intents).await?;
        self.by_locks(io, parts, is_as_read, is_late).await
    }

    /// [`Keyspace::commit`] once there are places for the new objects.
    async fn by_locks(
        &self,
        io: &Io,
        mut parts: Vec<Part>,
        is_as_read: &dyn Fn(&[u8], Option<&Found>) -> bool,
        is_late: &dyn Fn() -> bool,
    ) -> Result<bool, Trouble> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // Others pause for another time.
                io.pause(self.random(2 << attempt.min(4)) as u32).await;
            }
            if is_late() {
                break;
            }
            parts.iter_mut().for_each(Part::reset);
            if attempt >= DISTURBED {
                parts = match Box::pin(self.by_seizing(io, parts, is_as_read)).await? {
                    Ok(done) => return Ok(done),
                    Err(parts) => parts,
                };
                continue;
            }
            let Some(mut verdict) = self.hold_locks(io, &mut parts).await? else { continue };
            match self.find_parts(io, &mut parts, is_as_read, BRIEF).await? {
                None => continue,
                Some(false) => return Ok(false),
                Some(true) => {}
            }
            if self.attempt(io, &mut parts, &mut verdict).await? {
                return Ok(true);
            }
        }
        Err(Trouble::Contended)
    }

    /// The parts of a transaction, with places for the new objects. No section is held meanwhile.
    async fn parts(&self, io: &Io, intents: Vec<Intent>) -> Result<Vec<Part>, Trouble> {
        let mut parts = Vec::with_capacity(intents.len());
        for Intent { key, mut change } in intents {
            let (shard, mut long, mut placed, mut spot) = (Rc::clone(self.shard(&key)), None, None, None);
            if let Some(Some(value)) = &mut change {
                if self.is_long(&key, value) {
                    let written = Box::pin(self.lengthen(io, &key, &value.bytes)).await?;
                    *value = written.head(value.expiry);
                    long = Some(written);
                }
                if self.is_divided(value) {
                    let whole =
                        Value { kind: value.kind, expiry: value.expiry, bytes: std::mem::take(&mut value.bytes) };
                    let (head, segments) = Box::pin(self.settle(io, &key, whole)).await?;
                    (*value, placed) = (head, Some(segments));
                }
                let len = object::len(&key, &value.bytes);
                while spot.is_none() {
                    spot = self.spot(io, &shard, len, false).await?;
                }
            }
            parts.push(Part { change, long, placed, spot, ..Part::new(&shard, key) });
        }
        Ok(parts)
    }

    /// Holds a place. `None`: there was none, and room was made. `back`: it is given back at once.
    async fn spot(&self, io: &Io, shard: &Rc<Shard>, len: u64, back: bool) -> Result<Option<Spot>, Trouble> {
        let held =
            if back { shard.space.hold_instead(io, len, u8::MAX).await } else { shard.space.hold(io, len).await };
        match held {
            Ok(held) => Ok(Some(Spot { shard: Rc::clone(shard), held, kept: false })),
            Err(Trouble::Full) => self.make_room(io, shard, class_of(len), len).await.map(|()| None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Holds places for the locks, and for the verdict. `None`: there was no room.
    async fn hold_locks(&self, io: &Io, parts: &mut [Part]) -> Result<Option<Spot>, Trouble> {
        for part in parts.iter_mut() {
            part.lock = self.spot(io, &part.shard, LOCK_BYTES, true).await?;
            if part.lock.is_none() {
                return Ok(None);
            }
        }
        let Some(first) = parts.first() else { return Ok(None) };
        self.spot(io, &first.shard, verdict_bytes(parts.len()), true).await
    }

    /// Finds every key, and gives absent ones a slot. Keeps no value of an object that is longer than
    /// `kept`. False: one is not as it was read. `None`: there was no room.
    async fn find_parts(
        &self,
        io: &Io,
        parts: &mut [Part],
        is_as_read: &dyn Fn(&[u8], Option<&Found>) -> bool,
        kept: u32,
    ) -> Result<Option<bool>, Trouble> {
        let vacant_ms = VACANT_MS + VACANT_FOR_EACH_MS * parts.len() as u64;
        for some in parts.chunks_mut(TOGETHER) {
            let find = |part: &Part| -> Pin<Box<dyn Future<Output = Result<Option<Found>, Trouble>> + '_>> {
                let (shard, key) = (Rc::clone(&part.shard), part.key.clone());
                Box::pin(async move { self.find_or_make(io, &shard, &key, vacant_ms, is_as_read).await })
            };
            let found = join(some.iter().map(find).collect::<Each<'_, _>>()).await;
            let mut full = None;
            for (part, found) in some.iter_mut().zip(found) {
                match found {
                    Ok(Some(found)) => part.found = Some(found.brief(kept)),
                    Ok(None) => return Ok(Some(false)),
                    Err(Trouble::Full) => full = Some(part),
                    Err(trouble) => return Err(trouble),
                }
            }
            if let Some(part) = full {
                let (shard, len) = (Rc::clone(&part.shard), object::len(&part.key, &[]));
                // Their sections would keep memory from coming back.
                parts.iter_mut().for_each(|part| part.found = None);
                self.make_room(io, &shard, class_of(len), len).await?;
                return Ok(None);
            }
        }
        Ok(Some(true))
    }

    /// A key's slot. If the key is absent, a vacant object has it for `vacant_ms`. `None`: the key is not
    /// as it was read.
    async fn find_or_make(
        &self,
        io: &Io,
        shard: &Rc<Shard>,
        key: &[u8],
        vacant_ms: u64,
        is_as_read: &dyn Fn(&[u8], Option<&Found>) -> bool,
    ) -> Result<Option<Found>, Trouble> {
        loop {
            let found = shard.index.find(io, key).await?;
            let there = found.as_ref().filter(|found| !self.has_ended(&found.object));
            if !is_as_read(key, there) {
                return Ok(None);
            }
            if found.is_some() {
                return Ok(found);
            }
            let expiry = Some(self.now_ms() + vacant_ms);
            let vacant = Value { kind: Type::Vacant, expiry, bytes: Vec::new() };
            shard.index.insert(io, key, &vacant).await?;
        }
    }

    /// Writes, locks and decides. False: another was first, and nothing was changed.
    async fn attempt(&self, io: &Io, parts: &mut [Part], verdict: &mut Spot) -> Result<bool, Trouble> {
        let home = Rc::clone(&verdict.shard);
        let deciding = home.reach.copies.decides(io).await;
        let (done, frozen) = self.try_once(io, parts, verdict).await?;
        drop(deciding);
        self.split_frozen(io, frozen).await?;
        Ok(done)
    }

    /// [`Keyspace::attempt`], within which no pause begins. Returns also the tables that are to be split.
    async fn try_once(&self, io: &Io, parts: &mut [Part], verdict: &mut Spot) -> Result<(bool, Vec<Frozen>), Trouble> {
        let home = Rc::clone(&verdict.shard);
        let Some(Laid { id, last, mut writes }) = self.lay(parts, verdict, false) else {
            return Ok((false, Vec::new()));
        };
        let filled = fills(&home);
        // At one node the locks go with what they refer to, and behind it.
        let together = home.reach.copies.mode() == Mode::Single && writes.len() == 1 && writes[0].1.len() <= BATCH;
        let mut before = Vec::new();
        match writes.pop() {
            Some((_, verbs)) if together => before = verbs,
            last => write_all(io, writes.into_iter().chain(last).collect()).await?,
        }
        // From here on others may read them.
        parts.iter_mut().filter_map(|part| part.lock.as_mut()).for_each(|lock| lock.kept = true);
        parts.iter_mut().for_each(|part| part.keep(true));
        verdict.kept = true;
        let failed = self.put_locks(io, parts, before, false).await?;
        let all = failed.is_empty() || home.reach.rules.get().broken(Bug::DecideUnlocked);
        let done = self.decide(io, &home, (id, last), if all { DONE } else { UNDONE }, filled).await?;
        self.end_locks(io, parts, done).await?;
        for part in parts.iter_mut() {
            part.lock.iter_mut().for_each(Spot::retire);
            part.keep(false);
            if done {
                part.took_effect();
            }
        }
        verdict.retire();
        Ok((done, if done { Vec::new() } else { frozen(parts, &failed) }))
    }

    /// Makes locks and their verdict; what is to be written. `holds`: the verdict will be undone.
    /// `None`: a part lacks a place.
    fn lay(&self, parts: &mut [Part], verdict_spot: &Spot, holds: bool) -> Option<Laid> {
        let id = (self.random(1 << 31) as u64) << 33 | (self.random(1 << 31) as u64) << 2;
        let (home, held) = (&verdict_spot.shard, verdict_spot.held);
        let last = last_word(held.at, parts.len());
        let mut writes: Vec<(Rc<Shard>, Vec<Verb>)> = Vec::new();
        let mut entries = Vec::with_capacity(parts.len());
        for part in parts.iter_mut() {
            let (lock, object, entry) = part.make(id, last, holds)?;
            // Also of a key that is only locked: its slot is not what was found.
            if part.new != part.old || !home.reach.rules.get().broken(Bug::LockUntold) {
                part.begin_writing();
            }
            into(&mut writes, &part.shard).extend(object.into_iter().chain([lock]));
            entries.push(entry);
        }
        let now_s = (self.now_ms() / 1000) as u32;
        let bytes = Rc::new(verdict(id, &entries, held.version, now_s));
        into(&mut writes, home).push(Verb::Write { at: held.at, bytes });
        Some(Laid { id, last, writes })
    }

    /// Decides a verdict, unless it is; whether its transaction takes effect. `filled`: a node was
    /// being filled when it was written.
    async fn decide(
        &self,
        io: &Io,
        home: &Rc<Shard>,
        (id, last): (u64, At),
        state: u64,
        filled: bool,
    ) -> Result<bool, Trouble> {
        let state = home.reach.decide(io, last, id, state).await?;
        if filled || fills(home) {
            // The decision was the survivor's alone. The new node has the verdict as it was written.
            let bytes = Rc::new(state.to_le_bytes().to_vec());
            write_all(io, vec![(Rc::clone(home), vec![Verb::Write { at: last, bytes }])]).await?;
        }
        Ok(state == id | DONE)
    }

    /// Splits tables whose slots were frozen.
    async fn split_frozen(&self, io: &Io, frozen: Vec<Frozen>) -> Result<(), Trouble> {
        for (shard, table, hash) in frozen {
            shard.index.split(io, table, hash).await?;
        }
        Ok(())
    }

    /// Puts the locks into the slots. Returns the parts whose slots are not what was found, and
    /// whether the table is being split. `before`: WRITEs to the only node, which come before the
    /// locks. `all`: the others are locked even so.
    async fn put_locks(
        &self,
        io: &Io,
        parts: &[Part],
        before: Vec<Verb>,
        all: bool,
    ) -> Result<Vec<(usize, bool)>, Trouble> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // In one order for all: of two transactions that meet, the second then loses the first slot already.
        let slot_at = |n: usize| parts[n].found.as_ref().map_or(0, |found| found.slot_at);
        let spares = |part: &Part| {
            let vacant = part.found.as_ref().is_some_and(|found| found.object.kind() == Type::Vacant);
            let rules = part.shard.reach.rules.get();
            part.change.is_none()
                && (vacant && rules.broken(Bug::LeaveAbsent) || part.held.is_some() && rules.broken(Bug::TrustHolds))
        };
        order.retain(|&n| !spares(&parts[n]));
        order.sort_unstable_by_key(|&n| slot_at(n));
        let mut batches: Vec<(Rc<Shard>, Vec<usize>)> = Vec::new();
        for n in order {
            into(&mut batches, &parts[n].shard).push(n);
        }
        let put = |(shard, which): &(Rc<Shard>, Vec<usize>)| -> Pin<Box<dyn Future<Output = _> + '_>> {
            let (shard, which, mut before) = (Rc::clone(shard), which.clone(), before.clone());
            Box::pin(async move {
                let swap = |&n: &usize| Verb::Cas { at: slot_at(n), old: parts[n].stands().0, new: parts[n].locked.0 };
                let mut failed = Vec::new();
                for some in which.chunks(BATCH) {
                    let writes = std::mem::take(&mut before);
                    let verbs = writes.iter().cloned().chain(some.iter().map(swap)).collect();
                    let mut written = shard.reach.verbs(io, verbs).await;
                    let answers = written.split_off(writes.len());
                    // What the locks refer to may not be there: they come out again.
                    failed.extend(some.first().filter(|_| !written.iter().all(is_done)).map(|&n| (n, false)));
                    for (&n, answer) in some.iter().zip(answers) {
                        let (old, new) = (parts[n].stands().0, parts[n].locked.0);
                        match shard.reach.settle(io, slot_at(n), old, new, answer).await {
                            Ok(Ok(())) => {}
                            Ok(Err(found)) => failed.push((n, Slot(found).is_frozen())),
                            Err(Trouble::Unsettled) => failed.push((n, false)),
                            Err(trouble) => return Err(trouble),
                        }
                    }
                    if !all && !failed.is_empty() && !shard.reach.rules.get().broken(Bug::DecideUnlocked) {
                        break;
                    }
                }
                Ok(failed)
            })
        };
        let failed = join(batches.iter().map(put).collect::<Each<'_, _>>()).await;
        let failed: Vec<(usize, bool)> = failed.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        for part in failed.iter().map(|&(n, _)| &parts[n]) {
            // What is cached of it is outdated, and the next attempt would find it again.
            part.shard.near.cache.borrow_mut().forget(&part.key, part.hash);
        }
        Ok(failed)
    }

    /// Takes the locks out of the slots again, for the new values or the old ones.
    async fn end_locks(&self, io: &Io, parts: &[Part], done: bool) -> Result<(), Trouble> {
        let end = |part: &Part| {
            let at = part.found.as_ref().map_or(0, |found| found.slot_at);
            (Rc::clone(&part.shard), (at, part.locked, if done { part.new } else { part.old }))
        };
        take_out(io, parts.iter().map(end)).await
    }
}

/// A table with a frozen slot, in which keys of this hash are.
type Frozen = (Rc<Shard>, At, Hash);

/// Locks and a verdict that are made.
struct Laid {
    id: u64,
    /// Where the verdict's last word is.
    last: At,
    writes: Vec<(Rc<Shard>, Vec<Verb>)>,
}

/// Whether a node of this shard is being filled.
fn fills(shard: &Shard) -> bool {
    matches!(shard.reach.copies.mode(), Mode::Mending(_))
}

/// The tables that are to be split before the parts can be locked.
fn frozen(parts: &[Part], failed: &[(usize, bool)]) -> Vec<Frozen> {
    let which = failed.iter().filter(|(_, frozen)| *frozen).map(|(n, _)| &parts[*n]);
    which.filter_map(|part| Some((Rc::clone(&part.shard), part.found.as_ref()?.table, part.hash))).collect()
}

/// A slot's address, the lock in it, and what it is to be.
type Out = (At, Slot, Slot);

/// Takes locks out of their slots, if they are there.
async fn take_out(io: &Io, locks: impl Iterator<Item = (Rc<Shard>, Out)>) -> Result<(), Trouble> {
    let mut batches: Vec<(Rc<Shard>, Vec<Out>)> = Vec::new();
    for (shard, lock) in locks {
        into(&mut batches, &shard).push(lock);
    }
    let end = |(shard, locks): &(Rc<Shard>, Vec<Out>)| -> Pin<Box<dyn Future<Output = _> + '_>> {
        let (shard, locks) = (Rc::clone(shard), locks.clone());
        Box::pin(async move {
            for some in locks.chunks(BATCH) {
                let swap = |&(at, locked, last): &Out| Verb::Cas { at, old: locked.0, new: last.0 };
                let answers = shard.reach.verbs(io, some.iter().map(swap).collect()).await;
                for (&(at, locked, last), answer) in some.iter().zip(answers) {
                    if !matches!(answer, Answer::Word(_)) {
                        shard.reach.take_lock_out(io, at, locked, last).await?;
                    }
                }
            }
            Ok(())
        })
    };
    join(batches.iter().map(end).collect::<Each<'_, _>>()).await.into_iter().collect()
}

/// What is meant for a shard.
fn into<'a, T>(all: &'a mut Vec<(Rc<Shard>, Vec<T>)>, shard: &Rc<Shard>) -> &'a mut Vec<T> {
    let place = all.iter().position(|(other, _)| Rc::ptr_eq(other, shard));
    let place = place.unwrap_or_else(|| {
        all.push((Rc::clone(shard), Vec::new()));
        all.len() - 1
    });
    &mut all[place].1
}

/// Writes all of it, however often connections break.
async fn write_all(io: &Io, writes: Vec<(Rc<Shard>, Vec<Verb>)>) -> Result<(), Trouble> {
    let write = |(shard, verbs): (Rc<Shard>, Vec<Verb>)| -> Pin<Box<dyn Future<Output = Result<(), Trouble>> + '_>> {
        Box::pin(async move {
            for some in verbs.chunks(BATCH) {
                while !shard.reach.verbs(io, some.to_vec()).await.iter().all(is_done) {
                    if shard.reach.shut_out.get() {
                        return Err(Trouble::ShutOut);
                    }
                }
            }
            Ok(())
        })
    };
    join(writes.into_iter().map(write).collect::<Each<'_, _>>()).await.into_iter().collect()
}
