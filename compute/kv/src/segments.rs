//! Collections in segments: lists, hashes, sets, sorted sets and streams that have outgrown one
//! object.
//!
//! ```text
//!  slot ─► object of type Parts: the value's type │ entries: place, checksum, bound, items, bytes    (the head)
//!                                                      │
//!                                                      ▼
//!                   object of type Segment: the key's hash │ items, one behind the other             (a segment)
//! ```
//!
//! Segments are written first. The CAS that links the head is the moment at which the change takes
//! effect. Neither is ever changed: a change writes the segments that differ, and a head that
//! shares all others with the one before. A segment is live exactly when the index refers to a head
//! that lists its place, under the hash that the segment carries. A head lists only segments that
//! the head in whose place it goes lists, or that its writer has just written. So a segment that no
//! head lists any more never comes back.
//!
//! The entries of a value are in one order or in two, its *sides*. The first side is the value as
//! one object would have it, but of a stream ([`streams`]). Lists, streams and sorted sets are cut in their order there. Hashes
//! and sets are cut by the hashes of their names: an entry's *bound* is the lowest hash that its
//! segment may have. Sorted sets and streams have a second side: of a sorted set its members, cut by
//! the hashes of their names.
//!
//! [`Working`] is a value on which commands work. A segment that is not here is *wanted*: the
//! command fails with [`Trouble::Unread`], and begins again when the segment has been read
//! ([`Segments`]). A segment that is altered is copied once. It stays as it is until the value is
//! written, however many commands alter it ([`Open`]).

mod body;
mod cache;
mod copied;
mod edit;
pub(crate) mod form;
mod head;
mod lists;
mod named;
mod ordered;
mod sorted;
mod store;
pub mod streams;
mod whole;

pub use body::Body;
pub(crate) use cache::Lent;
pub use cache::{Segments, Wanted};
pub(crate) use copied::Copied;
pub use head::type_of;
pub(crate) use head::{held, len, listed, places, taken};
pub(crate) use store::{Placed, WHOLE, is_harmless, is_segment, is_unwieldy};

use crate::keyspace::Change;
use crate::layout::At;
use crate::object::{Object, Type, Value};
use crate::shard::Trouble;
use std::ops::Deref;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

/// A segment as a head lists it.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Items: of a hash its fields, of a sorted set its members.
    pub count: u32,
    /// Bytes.
    pub len: u32,
    /// Where names are told by hashes the lowest that may be here. In the order of a sorted set the
    /// first member's score, by [`sorted::ordered`].
    pub bound: u64,
    /// Its object's first byte. 0: it is not written yet.
    at: At,
    /// Its object's checksum. Of a segment that is not written: its number in [`Open::fresh`].
    checksum: u64,
}

impl Part {
    fn wanted(&self, kind: Type) -> Wanted {
        Wanted { at: self.at, checksum: self.checksum, len: self.len, kind }
    }
}

/// The segments of a side, and their sums.
#[derive(Clone, Default, Debug)]
struct Side {
    parts: Vec<Part>,
    items: usize,
    bytes: usize,
}

type Sides = [Side; 2];

/// A segment that is not listed any more.
#[derive(Clone, Copy, Debug)]
struct Gone {
    at: At,
    checksum: u64,
    len: u32,
}

/// A value in segments, and what commands have made of it.
#[derive(Clone, Debug)]
pub struct Open {
    /// The type of the value.
    pub kind: Type,
    /// When it ends, in ms since 1970.
    expiry: Option<u64>,
    /// Shared with the head as it was looked at ([`Segments`]), until something is changed.
    sides: Rc<Sides>,
    /// Segments that are not written yet. `None`: it has gone.
    fresh: Vec<Option<Body>>,
    /// Segments of the head in whose place this goes that this has not.
    dropped: Vec<Gone>,
    /// It is to go in the place of a head, some of whose segments it may have.
    derived: bool,
    changed: bool,
    /// Bytes when it was taken up.
    began: usize,
}

impl Open {
    fn new(kind: Type) -> Open {
        let (sides, fresh, dropped) = (Rc::default(), Vec::new(), Vec::new());
        Open { kind, expiry: None, sides, fresh, dropped, derived: false, changed: true, began: 0 }
    }

    /// Items.
    pub fn count(&self) -> usize {
        self.sides[0].items
    }

    /// Bytes of the value as one object would have it.
    pub fn len(&self) -> usize {
        self.sides[..self.own_sides()].iter().map(|side| side.bytes).sum()
    }

    /// Sides of which the value is made: others say the same once more.
    fn own_sides(&self) -> usize {
        if self.kind == Type::Stream { 2 } else { 1 }
    }

    /// Whether it has nothing. A stream without entries has.
    pub fn is_empty(&self) -> bool {
        self.sides[..self.own_sides()].iter().all(|side| side.parts.is_empty())
    }

    /// By how many bytes it has grown since it was taken up.
    pub(crate) fn growth(&self) -> usize {
        self.len().saturating_sub(self.began)
    }

    /// It has grown by so many of its bytes already.
    pub(crate) fn has_grown(&mut self, bytes: usize) {
        self.began = self.began.saturating_sub(bytes);
    }

    /// As one object has it, if it shares no segment with a head. It is not written yet then.
    pub(crate) fn as_one(&self) -> Option<Value> {
        if self.derived {
            return None;
        }
        let side = |side: &Side| -> Option<Vec<u8>> {
            let body = |part: &Part| self.fresh.get(part.checksum as usize)?.as_deref().filter(|_| part.at == 0);
            Some(side.parts.iter().map(body).collect::<Option<Vec<_>>>()?.concat())
        };
        let first = side(&self.sides[0])?;
        let bytes = if self.kind == Type::Stream { streams::join(&first, &side(&self.sides[1])?)? } else { first };
        Some(Value { kind: self.kind, expiry: self.expiry, bytes })
    }

    /// Its segments.
    pub fn parts(&self, side: usize) -> &[Part] {
        &self.sides[side].parts
    }

    /// Whether it is not what it was when it was read.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// It is to be written.
    pub(crate) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// When it ends.
    pub(crate) fn expiry(&self) -> Option<u64> {
        self.expiry
    }

    /// Whether a side is cut by the hashes of names.
    fn is_hashed(&self, side: usize) -> bool {
        is_hashed(self.kind, side)
    }

    /// The segments that are not written yet, in the order of the entries.
    fn unwritten(&self) -> impl Iterator<Item = &Body> {
        let parts = self.sides.iter().flat_map(|side| &side.parts).filter(|part| part.at == 0);
        parts.filter_map(|part| self.fresh.get(part.checksum as usize)?.as_ref())
    }
}

/// Whether a side of a value of this type is cut by the hashes of names.
fn is_hashed(kind: Type, side: usize) -> bool {
    side == 1 && kind != Type::Stream || matches!(kind, Type::Hash | Type::Set)
}

/// One item: of a hash a field and its value, of a sorted set a score and its member, of a stream a
/// key and what it has.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// All of its bytes.
    pub bytes: &'a [u8],
    /// By which it is told from others.
    pub name: &'a [u8],
    /// What comes first in it: of a sorted set the score.
    pub first: &'a [u8],
}

/// The items of a segment, or of a whole value.
#[derive(Clone, Debug)]
pub struct Units<'a> {
    rest: &'a [u8],
    kind: Type,
}

/// Of a value of this type.
pub fn units(kind: Type, bytes: &[u8]) -> Units<'_> {
    Units { rest: bytes, kind }
}

fn item(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, after) = bytes.split_first_chunk::<4>()?;
    Some(after.split_at((u32::from_le_bytes(*len) as usize).min(after.len())))
}

impl<'a> Iterator for Units<'a> {
    type Item = Unit<'a>;

    #[inline]
    fn next(&mut self) -> Option<Unit<'a>> {
        let begin = self.rest;
        let (first, mut rest) = item(begin)?;
        let mut name = first;
        if matches!(self.kind, Type::Hash | Type::SortedSet | Type::Stream) {
            let (second, after) = item(rest)?;
            name = if self.kind == Type::SortedSet { second } else { first };
            rest = after;
        }
        self.rest = rest;
        Some(Unit { bytes: &begin[..begin.len() - rest.len()], name, first })
    }
}

/// The hash by which names are told apart. It has 63 bits, because it is a cursor of scans too, and
/// some clients take only numbers with a sign.
fn hash(name: &[u8]) -> u64 {
    xxh3_64(name) >> 1
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Working<'a> {
    segments: &'a Segments,
    open: Open,
    /// Something was changed since it was taken up.
    touched: bool,
}

impl Deref for Working<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
        &self.open
    }
}

impl<'a> Working<'a> {
    /// A value as one object has it.
    pub(crate) fn new(segments: &'a Segments, kind: Type, whole: &[u8]) -> Working<'a> {
        let mut new = Working::on(segments, Open::new(kind));
        new.fill(whole);
        new
    }

    /// A value that does not exist yet.
    pub(crate) fn none(segments: &'a Segments, kind: Type) -> Working<'a> {
        Working::on(segments, Open { changed: false, ..Open::new(kind) })
    }

    /// A value that is one object. `None`: it is not sound.
    pub fn opened(segments: &'a Segments, object: &Object) -> Option<Working<'a>> {
        let value = Working::new(segments, object.kind(), object.value());
        let began = value.len();
        let open = Open { expiry: object.expiry(), changed: false, began, ..value.close().0 };
        (!open.is_empty()).then(|| Working::on(segments, open))
    }

    /// One that is taken up again.
    pub(crate) fn on(segments: &'a Segments, open: Open) -> Working<'a> {
        Working { segments, open, touched: false }
    }

    /// What it is now, and whether it was changed since it was taken up.
    pub(crate) fn close(self) -> (Open, bool) {
        (self.open, self.touched)
    }

    fn fill(&mut self, whole: &[u8]) {
        if self.kind == Type::Stream {
            for (side, bytes) in streams::split(whole).unwrap_or_default().iter().enumerate() {
                self.splice_for(side, 0..0, bytes, whole.len());
            }
            return;
        }
        self.splice_for(0, 0..0, whole, whole.len());
        if self.kind == Type::SortedSet {
            self.splice_for(1, 0..0, whole, whole.len());
        }
    }

    /// The change to it. A value that has become small is one object again.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. The sides of a sorted set do not have the same members.
    pub fn change<T>(self, outcome: T) -> Result<Change<T>, Trouble> {
        if !self.changed {
            return Ok(Change::Keep(outcome));
        }
        if self.kind == Type::SortedSet && self.sides[0].items != self.sides[1].items {
            return Err(Trouble::Corrupt);
        }
        if self.is_empty() {
            return Ok(Change::Delete(outcome));
        }
        let least = self.segments.least.get();
        if self.len() <= if self.derived { least / 2 } else { least } {
            let value = Value { kind: self.kind, expiry: self.expiry, bytes: self.whole()? };
            return Ok(Change::Put(value, outcome));
        }
        Ok(Change::Parts(Box::new(self.open), outcome))
    }

    /// The items of a segment.
    ///
    /// # Errors
    /// [`Trouble::Unread`]: it is not here, and is wanted now. [`Trouble::Corrupt`]: it is not what
    /// the head says of it.
    pub fn bytes(&self, side: usize, n: usize) -> Result<Body, Trouble> {
        // What a node says of a value may be wrong.
        let part = self.parts(side).get(n).ok_or(Trouble::Corrupt)?;
        if part.at == 0 {
            return self.fresh.get(part.checksum as usize).cloned().flatten().ok_or(Trouble::Corrupt);
        }
        let body = self.segments.get(part.wanted(self.kind)).ok_or(Trouble::Unread)?;
        // Another head may list the same segment.
        let is_listed = body.holds(self.kind, part.count) && body.len() == part.len as usize;
        if is_listed { Ok(body) } else { Err(Trouble::Corrupt) }
    }

    /// Wants segments, all at once.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn want(&self, side: usize, which: impl IntoIterator<Item = usize>) -> Result<(), Trouble> {
        let mut lacks = false;
        for n in which {
            match self.bytes(side, n) {
                Err(Trouble::Unread) => lacks = true,
                looked => drop(looked?),
            }
        }
        if lacks { Err(Trouble::Unread) } else { Ok(()) }
    }

    /// The value as one object would have it.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. It is too large for that.
    pub fn whole(&self) -> Result<Vec<u8>, Trouble> {
        if self.len() as u64 > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        if self.kind == Type::Stream {
            let sides = [0, 1].map(|side| self.joined(side, &(0..self.parts(side).len()).collect::<Vec<_>>()));
            let [entries, state] = sides;
            return streams::join(&entries?, &state?).ok_or(Trouble::Corrupt);
        }
        let count = self.parts(0).len();
        self.want(0, 0..count)?;
        let mut whole = Vec::with_capacity(self.len());
        for n in 0..count {
            whole.extend_from_slice(&self.bytes(0, n)?);
        }
        Ok(whole)
    }

    /// The bytes of some segments, one behind the other.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. They are too many.
    pub fn joined(&self, side: usize, parts: &[usize]) -> Result<Vec<u8>, Trouble> {
        let len: usize = parts.iter().map(|&n| self.parts(side)[n].len as usize).sum();
        if len as u64 > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        self.want(side, parts.iter().copied())?;
        let mut bytes = Vec::with_capacity(len);
        for &n in parts {
            bytes.extend_from_slice(&self.bytes(side, n)?);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
