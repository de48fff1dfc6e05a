//! Changes of several keys whatever they are: MSET and DEL.
//!
//! A front end that is alone changes keys that are there by one batch:
//!
//! 1. the WRITEs of the new objects, and of a *record*: each slot's address, what it is, and what
//!    it is to be;
//! 2. a WRITE of the front end's word in the head, which refers to the record from then on;
//! 3. a CAS of each slot;
//! 4. a WRITE of the word: it refers to nothing.
//!
//! Its clients' other verbs come before the batch or after it. So they see all of it or nothing,
//! and no locks are needed. A front end that is killed meanwhile has changed nothing yet, or leaves
//! the word behind. A front end that comes looks at these words when the others know of it, and
//! before it does anything else. It carries out what is left ([`Shard::end_batches`]). Until then
//! nobody has read or changed a key since, because the dead one was alone.
//!
//! The batch cannot make keys, and does not go over several nodes or two copies. These go by locks.

use super::part::{Part, Spot};
use super::{BATCH, BRIEF, Each, Intent, TOGETHER, write_all};
use crate::keyspace::Keyspace;
use crate::layout::{Hash, MEMBERS, Slot, head, word};
use crate::object::{self, Value};
use crate::rules::Bug;
use crate::shard::copies::{Mode, is_done};
use crate::shard::index::Found;
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb, join};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Bytes of a key's part of a record.
const ENTRY: usize = 24;

/// Keys that were there.
pub type There = BTreeSet<Vec<u8>>;

impl Keyspace {
    /// Gives each of these keys its value, or takes it out, at one moment; which of them were there. None of the
    /// keys is named twice, and each has a change. No attempt begins again when it `is_late`.
    ///
    /// # Errors
    /// Nothing was changed, unless a connection broke or this front end was shut out.
    pub async fn change_all(
        &self,
        io: &Io,
        intents: Vec<Intent>,
        is_late: &dyn Fn() -> bool,
    ) -> Result<There, Trouble> {
        let mut parts = self.parts(io, intents).await?;
        let before = self.in_one_batch(io, &mut parts).await?;
        if parts.is_empty() {
            return Ok(before);
        }
        let there = RefCell::new(There::new());
        let look = |key: &[u8], found: Option<&Found>| {
            match found {
                Some(_) => there.borrow_mut().insert(key.to_vec()),
                None => there.borrow_mut().remove(key),
            };
            true
        };
        self.by_locks(io, parts, &look, is_late).await?;
        let mut there = there.into_inner();
        there.extend(before);
        Ok(there)
    }

    /// Whether a batch of these verbs would be one moment for everybody.
    pub(crate) fn is_one_batch(&self, verbs: usize) -> bool {
        let [shard] = &self.shards[..] else { return false };
        shard.reach.copies.mode() == Mode::Single && verbs <= BATCH && !self.has_others()
    }

    /// Changes keys by one batch, if that is one moment for everybody. Takes those out of `parts` that it has
    /// changed, and returns which of them were there.
    async fn in_one_batch(&self, io: &Io, parts: &mut Vec<Part>) -> Result<There, Trouble> {
        let mut there = There::new();
        let [shard] = &self.shards[..] else { return Ok(there) };
        let verbs: usize = parts.iter().map(|part| 1 + usize::from(part.spot.is_some())).sum();
        if !self.is_one_batch(verbs) || parts.iter().any(|part| part.long.is_some()) {
            return Ok(there);
        }
        // A moment before the rest: nothing is waited for between the look and the batch.
        let len = object::len(b"", &vec![0; parts.len() * ENTRY]);
        let Ok(held) = shard.space.hold_instead(io, len, u8::MAX).await else { return Ok(there) };
        let record = Spot { shard: Rc::clone(shard), held, kept: false };
        let quiet = |parts: &[Part]| parts.iter().map(|part| self.quiet(&part.key)).collect::<Option<Vec<_>>>();
        let Some(before) = quiet(&parts[..]) else { return Ok(there) };
        for some in parts.chunks_mut(TOGETHER) {
            let find = |part: &Part| -> Pin<Box<dyn Future<Output = Result<Option<Found>, Trouble>> + '_>> {
                let (shard, key) = (Rc::clone(&part.shard), part.key.clone());
                Box::pin(async move { shard.index.find(io, &key).await })
            };
            let found = join(some.iter().map(find).collect::<Each<'_, _>>()).await;
            for (part, found) in some.iter_mut().zip(found) {
                part.found = found?.map(|found| found.brief(BRIEF));
            }
        }
        let is_there = |part: &Part| part.found.as_ref().is_some_and(|found| !self.has_ended(&found.object));
        let splits =
            |part: &Part| part.found.as_ref().is_some_and(|found| !shard.index.is_settled(found.table, part.hash));
        let makes = |part: &Part| part.spot.is_some() && !is_there(part);
        if quiet(&parts[..]) != Some(before) || parts.iter().any(|part| makes(part) || splits(part)) {
            parts.iter_mut().for_each(Part::reset);
            return Ok(there);
        }
        // Nobody has changed them since they were found. Nothing is waited for before the batch is handed over.
        parts.retain(is_there);
        there.extend(parts.iter().map(|part| part.key.clone()));
        self.replace_all(io, parts, record).await?;
        parts.iter().for_each(|part| _ = there.remove(&part.key));
        Ok(there)
    }

    /// Replaces what was found, by one batch. Leaves the parts whose slots were no more what was found: of a table
    /// that a front end was splitting when it died.
    async fn replace_all(&self, io: &Io, parts: &mut Vec<Part>, mut record: Spot) -> Result<(), Trouble> {
        let Some(shard) = parts.first().map(|part| Rc::clone(&part.shard)) else { return Ok(()) };
        let word = shard.reach.root + head::BATCHES + 8 * u64::from(shard.reach.me.line);
        let (mut batch, mut swaps) = (Vec::with_capacity(2 * parts.len() + 3), Vec::with_capacity(parts.len()));
        let mut entries = Vec::with_capacity(parts.len() * ENTRY);
        for part in parts.iter_mut() {
            part.begin_writing();
            batch.extend(part.renew());
            let slot_at = part.found.as_ref().map_or(0, |found| found.slot_at);
            entries.extend([slot_at, part.old.0, part.new.0].into_iter().flat_map(u64::to_le_bytes));
            swaps.push(Verb::Cas { at: slot_at, old: part.old.0, new: part.new.0 });
            part.keep(true);
        }
        // No slot refers to it: an adopter takes its place for free.
        let (object, slot) = shard.space.made(Hash(0), b"", &Value::string(entries), &record.held);
        batch.push(Verb::Write { at: record.held.at, bytes: Rc::clone(object.bytes()) });
        let refers = |slot: u64| Verb::Write { at: word, bytes: Rc::new(slot.to_le_bytes().to_vec()) };
        batch.push(refers(slot.0));
        record.kept = true;
        let written = batch.len();
        batch.extend(swaps);
        batch.push(refers(0));
        let mut answers = shard.reach.verbs(io, batch).await;
        let is_told = answers.iter().all(|answer| is_done(answer) || matches!(answer, Answer::Word(_)));
        answers.truncate(written + parts.len());
        let answers = answers.split_off(written);
        let (mut left, mut failed) = (Vec::new(), None);
        for (mut part, answer) in std::mem::take(parts).into_iter().zip(answers) {
            let slot_at = part.found.as_ref().map_or(0, |found| found.slot_at);
            match shard.reach.settle(io, slot_at, part.old.0, part.new.0, answer).await {
                Ok(Ok(())) => {
                    part.keep(false);
                    part.took_effect();
                }
                Ok(Err(_)) => {
                    shard.near.cache.borrow_mut().forget(&part.key, part.hash);
                    part.keep(false);
                    part.reset();
                    left.push(part);
                }
                // The new object may be linked: its place stays held.
                Err(trouble) => {
                    shard.near.cache.borrow_mut().forget(&part.key, part.hash);
                    failed = Some(trouble);
                }
            }
        }
        if !is_told {
            // The connection broke. The word must not lead to what has been used for something else since.
            write_all(io, vec![(Rc::clone(&shard), vec![refers(0)])]).await?;
        }
        record.retire();
        *parts = left;
        failed.map_or(Ok(()), Err)
    }
}

impl Shard {
    /// The record of each front end's batch under way, or 0.
    pub(crate) async fn batches(&self, io: &Io) -> Vec<u64> {
        if self.reach.copies.mode() != Mode::Single {
            return Vec::new();
        }
        let words = self.reach.read(io, self.reach.root + head::BATCHES, 8 * MEMBERS as u32).await;
        (0..MEMBERS).map(|line| word(&words, line)).collect()
    }

    /// Carries out what is left of the batches of front ends that have died in them. To be called
    /// by a front end that comes, when the others know of it, and before it reads or changes a key.
    ///
    /// # Errors
    /// This front end was shut out.
    pub async fn end_batches(&self, io: &Io) -> Result<(), Trouble> {
        if self.reach.copies.mode() != Mode::Single || self.reach.rules.get().broken(Bug::LeaveBatch) {
            return Ok(());
        }
        // While it lives no slot's word comes back: a CAS that was carried out already does nothing.
        let _section = self.space.section();
        let at = self.reach.root + head::BATCHES;
        let words = self.reach.read(io, at, 8 * MEMBERS as u32).await;
        for line in 0..MEMBERS {
            let slot = word(&words, line);
            if slot == 0 {
                continue;
            }
            let record = self.index.objects(io, &[Slot(slot)]).await.pop().flatten();
            for entry in record.iter().flat_map(|record| record.value().chunks_exact(ENTRY)) {
                let [slot_at, old, new] = [0, 1, 2].map(|n| word(entry, n));
                let _ = self.reach.swap(io, slot_at, old, new).await?;
            }
            let _ = self.reach.swap(io, at + 8 * line as u64, slot, 0).await?;
        }
        Ok(())
    }
}
