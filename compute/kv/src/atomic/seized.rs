//! Keys that are locked before it is known what becomes of them.
//!
//! A transaction that is worked out before its locks comes to nothing if one of its keys changes meanwhile.
//! Beside changes without end it might never come about. So one that was disturbed again and again *seizes*
//! its keys:
//!
//! 1. Locks are put into the slots of all keys. Where a CAS fails the other locks stay, and the key is found
//!    again. So a key is won as often as each change that competes with it, whatever the others do.
//! 2. The transaction is worked out on what is locked.
//! 3. It goes as any other does, by other locks and a verdict of its own. Only, its CAS of a slot
//!    expects the lock that holds it.
//! 4. The first verdict is undone.
//!
//! The locks that hold are those of a transaction that changes nothing. Whoever meets one waits for
//! 63 ms, and undoes its verdict then ([`crate::shard::index`], `locked.rs`). Then the old slot is
//! back, the CAS of step 3 fails, and the keys are seized anew. So is a slot in which both locks
//! have followed each other: each has the old slot, and an adopter ends either.

use super::{DISTURBED, Deciding, Frozen, Intent, Laid, Part, Spot, fills, frozen, take_out, write_all};
use crate::keyspace::{Change, Keyspace};
use crate::layout::{At, Slot, class_of};
use crate::object::{Object, Value};
use crate::segments::{self, Lent};
use crate::shard::index::Found;
use crate::shard::index::locked::UNDONE;
use crate::shard::{Shard, Trouble};
use crate::task::Io;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How often keys that others have changed are found again while the rest is held. Whoever meets
/// what is held has patience for about as many changes of a key.
const ROUNDS: u32 = 32;

/// Keys that are seized. They must be let go, or changed.
#[derive(Debug)]
pub struct Seized {
    /// In the order in which they were asked for.
    parts: Vec<Part>,
    holds: Vec<Hold>,
    /// While they live no node becomes the second one.
    _deciding: Vec<Deciding>,
}

/// A verdict, and the locks that refer to it.
#[derive(Debug)]
struct Hold {
    verdict: Spot,
    id: u64,
    /// Where its last word is.
    last: At,
    /// Whether a node was being filled when it was written.
    filled: bool,
    locks: Vec<Holding>,
}

/// A lock that is in its slot, or was meant to be.
#[derive(Debug)]
struct Holding {
    spot: Spot,
    slot_at: At,
    locked: Slot,
    old: Slot,
}

/// What has come of a change that was to seize its key.
pub(crate) enum Changed<T> {
    /// It took effect, or kept the key as it was.
    Done(T),
    /// Others were first.
    Disturbed,
    /// The value is too large to be seen as a whole, as a seized one is.
    Unwieldy,
}

/// What has come of parts that were to be seized: those that were not are free again.
type Outcome = Result<Seized, Vec<Part>>;

impl Seized {
    /// The keys, and what they are.
    pub fn there<'a>(&'a self, store: &'a Keyspace) -> impl Iterator<Item = (&'a [u8], Option<&'a Found>)> {
        let there = |found: &&Found| !store.has_ended(&found.object);
        self.parts.iter().map(move |part| (&part.key[..], part.found.as_ref().filter(there)))
    }
}

impl Keyspace {
    /// No keys yet.
    pub async fn begin_seizing(&self, io: &Io) -> Seized {
        let mut deciding = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            deciding.push(shard.reach.copies.decides(io).await);
        }
        Seized { parts: Vec::new(), holds: Vec::new(), _deciding: deciding }
    }

    /// Seizes keys, too. `None`: others were first, and all are let go.
    ///
    /// # Errors
    /// Those of the store. Nothing is held then.
    pub async fn seize(&self, io: &Io, seized: Seized, keys: &[Vec<u8>]) -> Result<Option<Seized>, Trouble> {
        let parts = keys.iter().map(|key| Part::new(self.shard(key), key.clone())).collect();
        Ok(self.seize_parts(io, seized, parts, u32::MAX).await?.ok())
    }

    /// [`Keyspace::seize`] for parts, of which no value stays here that is longer than `kept`.
    async fn seize_parts(
        &self,
        io: &Io,
        mut seized: Seized,
        mut free: Vec<Part>,
        kept: u32,
    ) -> Result<Outcome, Trouble> {
        let (count, first) = (free.len(), seized.parts.len());
        // A part's place in the order.
        let mut places: Vec<usize> = (0..count).collect();
        let mut taken: Vec<(usize, Part)> = Vec::with_capacity(count);
        let mut tables = Vec::new();
        for _ in 0..ROUNDS {
            if free.is_empty() || !tables.is_empty() {
                break;
            }
            let failed = match self.hold(io, &mut seized, &mut free, kept).await {
                Ok(Some(failed)) => failed,
                Ok(None) => break,
                Err(trouble) => {
                    self.let_all_go(io, seized).await?;
                    return Err(trouble);
                }
            };
            tables = frozen(&free, &failed);
            let (mut still, mut still_places) = (Vec::new(), Vec::new());
            for (n, (mut part, place)) in free.into_iter().zip(places).enumerate() {
                if failed.iter().any(|&(other, _)| other == n) {
                    part.reset();
                    still.push(part);
                    still_places.push(place);
                } else {
                    part.held = Some(part.locked);
                    taken.push((place, part));
                }
            }
            (free, places) = (still, still_places);
        }
        if free.is_empty() {
            taken.sort_unstable_by_key(|&(place, _)| place);
            seized.parts.extend(taken.into_iter().map(|(_, part)| part));
            return Ok(Ok(seized));
        }
        let rest = taken.into_iter().chain(places.into_iter().zip(free));
        let mut rest: Vec<(usize, Part)> = rest.collect();
        rest.sort_unstable_by_key(|&(place, _)| place);
        let mut parts = self.let_all_go(io, seized).await?;
        debug_assert_eq!(parts.len(), first);
        parts.extend(rest.into_iter().map(|(_, part)| part));
        parts.iter_mut().for_each(Part::reset);
        self.split_frozen(io, tables).await?;
        Ok(Err(parts))
    }

    /// Finds keys, and puts locks into their slots. Returns those whose slots have changed since,
    /// and whether their tables are being split. `None`: there was no room.
    async fn hold(
        &self,
        io: &Io,
        seized: &mut Seized,
        free: &mut [Part],
        kept: u32,
    ) -> Result<Option<Vec<(usize, bool)>>, Trouble> {
        free.iter_mut().for_each(Part::reset);
        let Some(mut verdict) = self.hold_locks(io, free).await? else { return Ok(None) };
        if self.find_parts(io, free, &|_, _| true, kept).await? != Some(true) {
            return Ok(None);
        }
        let Some(Laid { id, last, writes }) = self.lay(free, &verdict, true) else { return Ok(None) };
        let filled = fills(&verdict.shard);
        write_all(io, writes).await?;
        // From here on others may read them.
        verdict.kept = true;
        let hold = |part: &mut Part| {
            let (slot_at, mut spot) = (part.found.as_ref()?.slot_at, part.lock.take()?);
            spot.kept = true;
            Some(Holding { spot, slot_at, locked: part.locked, old: part.old })
        };
        let locks = free.iter_mut().filter_map(hold).collect();
        seized.holds.push(Hold { verdict, id, last, filled, locks });
        Ok(Some(self.put_locks(io, free, Vec::new(), true).await?))
    }

    /// Lets keys go as they are.
    ///
    /// # Errors
    /// This front end was shut out.
    pub async fn let_go(&self, io: &Io, seized: Seized) -> Result<(), Trouble> {
        self.let_all_go(io, seized).await.map(drop)
    }

    async fn let_all_go(&self, io: &Io, seized: Seized) -> Result<Vec<Part>, Trouble> {
        for mut hold in seized.holds {
            let home = Rc::clone(&hold.verdict.shard);
            self.decide(io, &home, (hold.id, hold.last), UNDONE, hold.filled).await?;
            let locks =
                hold.locks.iter().map(|lock| (Rc::clone(&lock.spot.shard), (lock.slot_at, lock.locked, lock.old)));
            take_out(io, locks).await?;
            hold.locks.iter_mut().for_each(|lock| lock.spot.retire());
            hold.verdict.retire();
        }
        Ok(seized.parts)
    }

    /// Changes keys that are seized at one moment, at which all are as they were found, and lets
    /// them go. False: some were held no more, and nothing was changed.
    ///
    /// # Errors
    /// As of [`Keyspace::commit`].
    pub async fn commit_seized(&self, io: &Io, mut seized: Seized, intents: Vec<Intent>) -> Result<bool, Trouble> {
        let mut changes: BTreeMap<Vec<u8>, _> = intents.into_iter().map(|intent| (intent.key, intent.change)).collect();
        for part in &mut seized.parts {
            part.change = changes.remove(&part.key).flatten();
        }
        match self.hold_new(io, &mut seized.parts).await {
            Ok(None) => Ok(self.change_seized(io, seized).await?.0),
            Ok(Some((shard, len))) => {
                // What is held would keep memory from coming back.
                drop(self.let_all_go(io, seized).await?);
                self.make_room(io, &shard, class_of(len), len).await?;
                Ok(false)
            }
            Err(trouble) => {
                self.let_go(io, seized).await?;
                Err(trouble)
            }
        }
    }

    /// Holds places for new objects, and writes the extents of long ones. An object's shard and
    /// length, if it has no place.
    async fn hold_new(&self, io: &Io, parts: &mut [Part]) -> Result<Option<(Rc<Shard>, u64)>, Trouble> {
        for part in parts.iter_mut() {
            let Some(Some(value)) = &mut part.change else { continue };
            if self.is_long(&part.key, value) {
                let written = Box::pin(self.lengthen(io, &part.key, &value.bytes)).await?;
                *value = written.head(value.expiry);
                part.long = Some(written);
            }
            if self.is_divided(value) {
                let whole = Value { kind: value.kind, expiry: value.expiry, bytes: std::mem::take(&mut value.bytes) };
                let (head, segments) = Box::pin(self.settle(io, &part.key, whole)).await?;
                (*value, part.placed) = (head, Some(segments));
            }
        }
        self.hold_objects(io, parts).await
    }

    /// Changes what is seized as the parts say, and lets it go. Returns whether it did, and the parts.
    async fn change_seized(&self, io: &Io, mut seized: Seized) -> Result<(bool, Vec<Part>), Trouble> {
        let ended = self.try_seized(io, &mut seized.parts).await;
        let mut parts = self.let_all_go(io, seized).await?;
        let (done, tables) = ended?;
        parts.iter_mut().for_each(Part::reset);
        self.split_frozen(io, tables).await?;
        Ok((done, parts))
    }

    async fn try_seized(&self, io: &Io, parts: &mut [Part]) -> Result<(bool, Vec<Frozen>), Trouble> {
        match self.hold_locks(io, parts).await? {
            Some(mut verdict) => self.try_once(io, parts, &mut verdict).await,
            None => Ok((false, Vec::new())),
        }
    }

    /// One attempt of [`Keyspace::commit`] by seizing the keys. The parts: it was disturbed.
    pub(super) async fn by_seizing(
        &self,
        io: &Io,
        parts: Vec<Part>,
        is_as_read: &dyn Fn(&[u8], Option<&Found>) -> bool,
    ) -> Result<Result<bool, Vec<Part>>, Trouble> {
        let seized = self.begin_seizing(io).await;
        let seized = match self.seize_parts(io, seized, parts, super::BRIEF).await? {
            Ok(seized) => seized,
            Err(parts) => return Ok(Err(parts)),
        };
        if !seized.there(self).all(|(key, there)| is_as_read(key, there)) {
            self.let_go(io, seized).await?;
            return Ok(Ok(false));
        }
        let (done, parts) = self.change_seized(io, seized).await?;
        Ok(if done { Ok(true) } else { Err(parts) })
    }

    /// One attempt of [`Keyspace::update_found`] by seizing the key.
    pub(crate) async fn update_seized<T, E: From<Trouble>>(
        &self,
        io: &Io,
        key: &[u8],
        change: &mut impl FnMut(Option<&Found>, Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<Changed<T>, E> {
        let seized = self.begin_seizing(io).await;
        let Some(seized) = self.seize(io, seized, &[key.to_vec()]).await? else { return Ok(Changed::Disturbed) };
        let there = seized.there(self).next().and_then(|(_, there)| there);
        if there.is_some_and(|found| segments::is_unwieldy(&found.object)) {
            self.let_go(io, seized).await?;
            return Ok(Changed::Unwieldy);
        }
        // What is seized is seen and written as a whole.
        let decided = self.decided(io, (key, there, true), &mut Lent::default(), change).await;
        let decided = decided.and_then(|change| match change {
            // A stream is changed in segments, also where it was seen as a whole. It shares none.
            Change::Parts(open, outcome) => match open.as_one() {
                Some(value) => Ok(Change::Put(value, outcome)),
                None => Err(Trouble::Corrupt.into()),
            },
            change => Ok(change),
        });
        let (changed, outcome) = match decided {
            Ok(Change::Put(value, outcome)) => (Some(Some(value)), outcome),
            Ok(Change::Delete(outcome)) => (Some(None), outcome),
            Ok(Change::Keep(outcome)) => {
                self.let_go(io, seized).await?;
                return Ok(Changed::Done(outcome));
            }
            kept => {
                self.let_go(io, seized).await?;
                return Err(kept.err().unwrap_or_else(|| Trouble::Corrupt.into()));
            }
        };
        let intent = Intent { key: key.to_vec(), change: changed };
        let done = self.commit_seized(io, seized, vec![intent]).await?;
        Ok(if done { Changed::Done(outcome) } else { Changed::Disturbed })
    }

    /// [`Keyspace::commit_by`] once it was disturbed. `None`: it was again.
    pub(super) async fn decide_seized(
        &self,
        io: &Io,
        keys: &[Vec<u8>],
        decide: &mut dyn FnMut(&[Option<&Object>]) -> Option<super::Changes>,
    ) -> Result<Option<bool>, Trouble> {
        let seized = self.begin_seizing(io).await;
        let Some(seized) = self.seize(io, seized, keys).await? else { return Ok(None) };
        let there: Vec<_> = seized.there(self).map(|(_, there)| there.map(|found| &found.object)).collect();
        let whole = match self.all_as_one(io, &there).await {
            Ok(whole) => whole,
            Err(trouble) => {
                self.let_go(io, seized).await?;
                return Err(trouble);
            }
        };
        let there: Vec<Option<&Object>> = whole.iter().map(Option::as_ref).collect();
        let Some(changes) = decide(&there) else {
            self.let_go(io, seized).await?;
            return Ok(Some(false));
        };
        let intent = |(key, change): (&Vec<u8>, _)| Intent { key: key.clone(), change };
        let intents = keys.iter().zip(changes).map(intent).collect();
        Ok(self.commit_seized(io, seized, intents).await?.then_some(true))
    }
}

/// Whether a change of a key that others have disturbed so often is to seize it.
pub(crate) const fn is_enough(disturbed: u32) -> bool {
    disturbed >= 2 * DISTURBED
}
