//! Looks at several keys, and whether all of them were so at one moment.

use crate::keyspace::{Keyspace, count_one};
use crate::layout::{At, Hash, SLOTS, word};
use crate::object::{Object, Type};
use crate::shard::Trouble;
use crate::shard::index::Found;
use crate::shard::lease::Quiet;
use crate::task::{Answer, Io, Verb, join};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Keys that are looked at once more at a time.
const TOGETHER: usize = 64;

/// What a look at a key has found.
#[derive(Debug)]
pub struct Sight {
    /// The key's object, which may have ended.
    pub object: Option<Object>,
    /// Words of the index: the key's slot, or all slots in which it would be. As long as they are the same, so is
    /// the key, because no slot's word comes back while a section is held that began before it was read
    /// ([`crate::layout::Slot::emptied`]). None: nothing tells.
    pub words: Vec<(At, u64)>,
}

impl Keyspace {
    /// Looks at a key.
    pub async fn sight(&self, io: &Io, key: &[u8]) -> Result<Sight, Trouble> {
        Ok(match self.shard(key).index.find_or_slots(io, key).await? {
            Ok(Found { slot_at, slot, object, .. }) => {
                let object = Some(object).filter(|object| object.kind() != Type::Vacant);
                Sight { object, words: vec![(slot_at, slot.0)] }
            }
            // Frozen words stay when the table that was split leads elsewhere.
            Err(slots) if slots.iter().any(|(_, slot)| slot.is_frozen()) => Sight { object: None, words: Vec::new() },
            Err(slots) => Sight { object: None, words: slots.into_iter().map(|(at, slot)| (at, slot.0)).collect() },
        })
    }

    /// Counts a key as read.
    pub(crate) fn count_read(&self, object: Option<&Object>) {
        let there = object.is_some_and(|object| !self.has_ended(object));
        count_one(if there { &self.figures.hits } else { &self.figures.misses });
    }

    /// Whether all that was seen is still so. The caller has held sections since before.
    pub async fn are_unchanged(&self, io: &Io, seen: &[(Vec<u8>, Sight)]) -> bool {
        let look = |(key, sight): &(Vec<u8>, Sight)| -> Pin<Box<dyn Future<Output = bool> + '_>> {
            let (reach, words) = (Rc::clone(&self.shard(key).reach), sight.words.clone());
            Box::pin(async move {
                let runs = words.chunks(SLOTS);
                let read = |run: &[(At, u64)]| Verb::Read { at: run[0].0, len: 8 * run.len() as u32 };
                let answers = reach.verbs(io, runs.clone().map(read).collect()).await;
                let same = |(run, answer): (&[(At, u64)], &Answer)| match answer {
                    Answer::Bytes(bytes) => run.iter().enumerate().all(|(n, (_, was))| word(bytes, n) == *was),
                    _ => false,
                };
                runs.zip(&answers).all(same)
            })
        };
        if seen.iter().any(|(_, sight)| sight.words.is_empty()) {
            return false;
        }
        for some in seen.chunks(TOGETHER) {
            if join(some.iter().map(look).collect()).await.contains(&false) {
                return false;
            }
        }
        true
    }

    /// Tells that this front end is alone and changes the key not now. As long as it says the same nobody has
    /// changed the key.
    pub(crate) fn quiet(&self, key: &[u8]) -> Option<(u32, Quiet)> {
        let near = &self.shard(key).near;
        let (era, quiet) = (near.lease.era(), near.writes.quiet(Hash::of(key))?);
        (era > 0).then_some((era, quiet))
    }
}
