//! A key's value that another key gets, at one moment: RENAME and COPY of what is too large to be
//! held as a whole.
//!
//! The segments are written for the other key first ([`crate::segments`]). Then both keys are
//! locked. If the first has another value by then, the segments that differ are written, and the
//! keys are locked again.

use super::{BRIEF, Part};
use crate::keyspace::Keyspace;
use crate::object::{self, Type, Value};
use crate::segments::{self, Copied};
use crate::shard::Trouble;
use crate::shard::index::Found;
use crate::task::Io;
use std::cell::Cell;
use std::rc::Rc;

impl Keyspace {
    /// Gives `to` the value of `from`, which is no long string, and takes it out there if it
    /// `moves`. Some(false): something is at `to`, and it does not `replace` that. `None`: there is
    /// nothing at `from`. No attempt begins when it `is_late`.
    ///
    /// # Errors
    /// As of [`Keyspace::commit`].
    pub(crate) async fn give_value(
        &self,
        io: &Io,
        (from, to): (&[u8], &[u8]),
        (moves, replaces): (bool, bool),
        is_late: &dyn Fn() -> bool,
    ) -> Result<Option<bool>, Trouble> {
        let (shard, mut copied, mut attempts) = (Rc::clone(self.shard(to)), Copied::new(self, to), 0);
        while !is_late() {
            if attempts > 0 {
                // Others pause for another time.
                io.pause(self.random(1 << attempts.min(5)) as u32).await;
            }
            attempts += 1;
            let Some(seen) = self.find(io, from).await?.map(|found| found.object) else { return Ok(None) };
            let is_divided = seen.kind() == Type::Parts;
            // Both are there for a while. Nothing is evicted in vain.
            let (held, limit) = (segments::held(&seen), shard.space.limit.get());
            if is_divided && Rc::ptr_eq(&shard, self.shard(from)) && held > limit.saturating_sub(held) {
                return Err(Trouble::Beyond);
            }
            let value = match seen.kind() {
                Type::Parts => match self.copy_segments(io, &seen, &mut copied).await? {
                    Some(head) => head,
                    None => continue,
                },
                // The caller has another way.
                Type::Long => return Ok(None),
                kind => Value { kind, expiry: seen.expiry(), bytes: seen.value().to_vec() },
            };
            let Some(spot) = self.spot(io, &shard, object::len(to, &value.bytes), false).await? else { continue };
            let placed = is_divided.then(|| copied.take());
            let mut parts = [
                Part { change: moves.then_some(None), ..Part::new(self.shard(from), from.to_vec()) },
                Part { change: Some(Some(value)), placed, spot: Some(spot), ..Part::new(&shard, to.to_vec()) },
            ];
            let taken = Cell::new(false);
            let is_as_read = |key: &[u8], there: Option<&Found>| {
                if key == to {
                    taken.set(!replaces && there.is_some());
                    return !taken.get();
                }
                there.is_some_and(|found| found.object.checksum() == seen.checksum())
            };
            if let Some(mut verdict) = self.hold_locks(io, &mut parts).await? {
                match self.find_parts(io, &mut parts, &is_as_read, BRIEF).await? {
                    // It was found behind the other key, which somebody may have given its name meanwhile.
                    Some(false) if taken.get() => match self.find(io, from).await? {
                        Some(now) if now.object.checksum() == seen.checksum() => return Ok(Some(false)),
                        _ => {}
                    },
                    Some(true) if self.attempt(io, &mut parts, &mut verdict).await? => return Ok(Some(true)),
                    _ => {}
                }
            }
            if is_divided {
                copied.take_back(parts[1].placed.take());
            }
        }
        Err(Trouble::Contended)
    }
}
