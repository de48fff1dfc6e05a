//! Changes of a few keys that are decided by the very objects that are locked.
//!
//! [`Keyspace::commit`] takes changes that were worked out before, and begins again if a key has
//! changed since. Here the changes are worked out between the look at the slots and their locks,
//! which leave in one batch. So one round trip lies between, as in a change of one key. A command
//! that competes with changes of its keys at other front ends wins as often as each of them. If it
//! has lost too often it seizes its keys (`seized.rs`).

use super::{DISTURBED, Part, Spot};
use crate::keyspace::Keyspace;
use crate::layout::class_of;
use crate::object::{self, Object, Value};
use crate::shard::{Shard, Trouble};
use crate::task::Io;
use std::rc::Rc;

/// What becomes of each key: see [`super::Intent::change`]. No value is a long one.
pub type Changes = Vec<Option<Option<Value>>>;

impl Keyspace {
    /// Changes keys at one moment, by what they are. `decide` gets their objects, and returns their
    /// changes; `None`: there are none. It may be called several times. Whether there were changes. No
    /// attempt begins when it `is_late`.
    ///
    /// # Errors
    /// As of [`Keyspace::commit`].
    pub async fn commit_by(
        &self,
        io: &Io,
        keys: &[Vec<u8>],
        decide: &mut dyn FnMut(&[Option<&Object>]) -> Option<Changes>,
        is_late: &dyn Fn() -> bool,
    ) -> Result<bool, Trouble> {
        let mut attempts = 0;
        while !is_late() {
            if attempts > 0 {
                // Others pause for another time.
                io.pause(self.random(1 << attempts.min(5)) as u32).await;
            }
            attempts += 1;
            if attempts > DISTURBED {
                match Box::pin(self.decide_seized(io, keys, decide)).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let mut parts: Vec<Part> = keys.iter().map(|key| Part::new(self.shard(key), key.clone())).collect();
            let Some(mut verdict) = self.hold_locks(io, &mut parts).await? else { continue };
            if self.find_parts(io, &mut parts, &|_, _| true, u32::MAX).await? != Some(true) {
                continue;
            }
            let found = parts.iter().map(|part| part.found.as_ref().map(|found| &found.object));
            let there: Vec<Option<&Object>> =
                found.map(|object| object.filter(|object| !self.has_ended(object))).collect();
            let whole = self.all_as_one(io, &there).await?;
            let there: Vec<Option<&Object>> = whole.iter().map(Option::as_ref).collect();
            let Some(changes) = decide(&there) else { return Ok(false) };
            parts.iter_mut().zip(changes).for_each(|(part, change)| part.change = change);
            if let Some((shard, len)) = self.hold_objects(io, &mut parts).await? {
                // Their sections would keep memory from coming back.
                drop(parts);
                self.make_room(io, &shard, class_of(len), len).await?;
                continue;
            }
            if self.attempt(io, &mut parts, &mut verdict).await? {
                return Ok(true);
            }
        }
        Err(Trouble::Contended)
    }

    /// Objects as commands see them. The caller holds what it has found.
    pub(super) async fn all_as_one(&self, io: &Io, there: &[Option<&Object>]) -> Result<Vec<Option<Object>>, Trouble> {
        let mut whole = Vec::with_capacity(there.len());
        for object in there {
            whole.push(match object {
                Some(object) => Some(self.as_one(io, object).await?),
                None => None,
            });
        }
        Ok(whole)
    }

    /// Holds places for the new objects. An object's shard and length, if it has none.
    pub(super) async fn hold_objects(&self, io: &Io, parts: &mut [Part]) -> Result<Option<(Rc<Shard>, u64)>, Trouble> {
        // Of RENAME, SMOVE and their relatives the memory of what goes comes back; not of MSETNX.
        let (mut new, mut old) = (0, 0);
        for part in parts.iter() {
            let Some(change) = &part.change else { continue };
            new += change.as_ref().map_or(0, |value| object::len(&part.key, &value.bytes));
            old += part.found.as_ref().map_or(0, |found| u64::from(found.object.len()));
        }
        for part in parts {
            let Some(Some(value)) = &part.change else { continue };
            let (shard, len) = (Rc::clone(&part.shard), object::len(&part.key, &value.bytes));
            let held = if new <= old {
                shard.space.hold_instead(io, len, u8::MAX).await
            } else {
                shard.space.hold(io, len).await
            };
            match held {
                Ok(held) => part.spot = Some(Spot { shard, held, kept: false }),
                Err(Trouble::Full) => return Ok(Some((shard, len))),
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(None)
    }
}
