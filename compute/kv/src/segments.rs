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
//! one object would have it. Lists, streams and sorted sets are cut in their order there. Hashes
//! and sets are cut by the hashes of their names: an entry's *bound* is the lowest hash that its
//! segment may have. The second side is a sorted set's alone: its members, cut by the hashes of
//! their names.
//!
//! [`Working`] is a value on which commands work. A segment that is not here is *wanted*: the
//! command fails with [`Trouble::Unread`], and begins again when the segment has been read
//! ([`Segments`]).

mod cache;
mod head;
mod lists;
mod sorted;
mod store;
mod whole;

pub(crate) use cache::Lent;
pub use cache::{Segments, Wanted};
pub use head::type_of;
pub(crate) use head::{len, listed, places, taken};
pub(crate) use store::{Placed, WHOLE, is_harmless, is_segment};

use crate::layout::At;
use crate::object::{Type, Value};
use crate::shard::Trouble;
use std::ops::Range;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

/// Where a segment's bytes are.
#[derive(Clone, Debug)]
enum Source {
    /// At the node: the object's first byte and its checksum.
    Stored(At, u64),
    /// They are to be written.
    Fresh(Rc<Vec<u8>>),
}

/// A segment as a head lists it.
#[derive(Clone, Debug)]
pub struct Part {
    /// Items: of a hash its fields, of a sorted set its members.
    pub count: u32,
    /// Bytes.
    pub len: u32,
    /// Where names are told by hashes the lowest that may be here. In the order of a sorted set the
    /// first member's score, by [`sorted::ordered`].
    pub bound: u64,
    source: Source,
}

/// One item: of a hash a field and its value, of a sorted set a score and its member.
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

    fn next(&mut self) -> Option<Unit<'a>> {
        let begin = self.rest;
        let (first, mut rest) = item(begin)?;
        let mut name = first;
        if matches!(self.kind, Type::Hash | Type::SortedSet) {
            let (second, after) = item(rest)?;
            name = if self.kind == Type::Hash { first } else { second };
            rest = after;
        }
        self.rest = rest;
        Some(Unit { bytes: &begin[..begin.len() - rest.len()], name, first })
    }
}

/// The hash by which names are told apart.
fn hash(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Working<'a> {
    segments: &'a Segments,
    /// The type of the value.
    pub kind: Type,
    sides: [Vec<Part>; 2],
    /// Places and bytes that the head had in whose place this goes, and this has not.
    dropped: Vec<(At, u32)>,
    derived: bool,
    changed: bool,
}

impl<'a> Working<'a> {
    /// A value as one object has it.
    pub(crate) fn new(segments: &'a Segments, kind: Type, whole: &[u8]) -> Working<'a> {
        let (sides, dropped) = (Default::default(), Vec::new());
        let mut new = Working { segments, kind, sides, dropped, derived: false, changed: true };
        new.fill(whole);
        new
    }

    fn fill(&mut self, whole: &[u8]) {
        self.splice_for(0, 0..0, whole, whole.len());
        if self.kind == Type::SortedSet {
            self.splice_for(1, 0..0, whole, whole.len());
        }
    }

    /// The segments that are not written yet.
    fn fresh(&self) -> impl Iterator<Item = &Rc<Vec<u8>>> {
        self.sides.iter().flatten().filter_map(|part| match &part.source {
            Source::Fresh(bytes) => Some(bytes),
            Source::Stored(..) => None,
        })
    }

    /// Items.
    pub fn count(&self) -> usize {
        self.sides[0].iter().map(|part| part.count as usize).sum()
    }

    /// Bytes of the value as one object would have it.
    pub fn len(&self) -> usize {
        self.sides[0].iter().map(|part| part.len as usize).sum()
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.sides[0].is_empty()
    }

    /// Its segments.
    pub fn parts(&self, side: usize) -> &[Part] {
        &self.sides[side]
    }

    /// What has become of it. `None`: nothing. `Some(None)`: it has no items. A value that has
    /// become small is one object again.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn outcome(&self, expiry: Option<u64>) -> Result<Option<Option<Value>>, Trouble> {
        if !self.changed {
            return Ok(None);
        }
        if self.is_empty() {
            return Ok(Some(None));
        }
        Ok(Some(Some(if self.len() <= self.segments.least.get() / 2 {
            Value { kind: self.kind, expiry, bytes: self.whole()? }
        } else {
            Value { kind: Type::Parts, expiry, bytes: self.encode() }
        })))
    }

    /// Whether a side is cut by the hashes of names.
    fn is_hashed(&self, side: usize) -> bool {
        side == 1 || matches!(self.kind, Type::Hash | Type::Set)
    }

    /// The bytes of a segment.
    ///
    /// # Errors
    /// [`Trouble::Unread`]: it is not here, and is wanted now.
    pub fn bytes(&self, side: usize, n: usize) -> Result<Rc<Vec<u8>>, Trouble> {
        let part = &self.sides[side][n];
        match &part.source {
            Source::Fresh(bytes) => Ok(Rc::clone(bytes)),
            Source::Stored(at, checksum) => {
                self.segments.get(Wanted { at: *at, checksum: *checksum, len: part.len }).ok_or(Trouble::Unread)
            }
        }
    }

    /// Wants segments, all at once.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn want(&self, side: usize, which: impl IntoIterator<Item = usize>) -> Result<(), Trouble> {
        let mut lacks = false;
        for n in which {
            lacks |= self.bytes(side, n).is_err();
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
        self.want(0, 0..self.sides[0].len())?;
        let mut whole = Vec::with_capacity(self.len());
        for n in 0..self.sides[0].len() {
            whole.extend_from_slice(&self.bytes(0, n)?);
        }
        Ok(whole)
    }

    /// Bytes of a segment, at most: the more a value has the larger they are, or its head would be
    /// longer than they.
    fn most(&self, total: usize) -> usize {
        let least = self.segments.least.get();
        let most = match total / least {
            0..256 => least,
            256..2048 => 2 * least,
            _ => 4 * least,
        };
        most - (most / 4).min(64)
    }

    /// Puts items in the place of some segments of a side. Where it is cut by hashes, theirs are
    /// such as these segments may have.
    pub fn splice(&mut self, side: usize, range: Range<usize>, bytes: &[u8]) {
        let total = self.len();
        self.splice_for(side, range, bytes, total);
    }

    fn splice_for(&mut self, side: usize, range: Range<usize>, bytes: &[u8], total: usize) {
        let bound = self.sides[side].get(range.start).map_or(0, |part| part.bound);
        for part in &self.sides[side][range.clone()] {
            if let Source::Stored(at, _) = part.source {
                self.dropped.push((at, part.len));
            }
        }
        self.changed = true;
        let new = self.cut(side, bytes, bound, self.most(total));
        self.sides[side].splice(range, new);
        if self.is_hashed(side)
            && let Some(first) = self.sides[side].first_mut()
        {
            // Whatever the hash of a name, there is a segment for it.
            first.bound = 0;
        }
    }

    /// Cuts items into segments. `bound`: of the first, where it is cut by hashes.
    fn cut(&self, side: usize, bytes: &[u8], bound: u64, most: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.kind == Type::Stream {
            let part = |some: &[u8]| Part {
                count: 0,
                len: some.len() as u32,
                bound: 0,
                source: Source::Fresh(Rc::new(some.to_vec())),
            };
            return bytes.chunks(most).map(part).collect();
        }
        let hashed = self.is_hashed(side);
        let first = |unit: &Unit<'_>| match self.kind {
            Type::SortedSet if !hashed => sorted::ordered(sorted::score(unit.first)),
            _ => 0,
        };
        if bytes.len() <= most {
            let mut all = units(self.kind, bytes);
            let Some(begins) = all.next() else { return parts };
            let bound = if hashed { bound } else { first(&begins) };
            let (count, len) = (1 + all.count() as u32, bytes.len() as u32);
            parts.push(Part { count, len, bound, source: Source::Fresh(Rc::new(bytes.to_vec())) });
            return parts;
        }
        let named = |unit: Unit<'_>| if hashed { hash(unit.name) } else { 0 };
        let mut units: Vec<(u64, Unit<'_>)> = units(self.kind, bytes).map(|unit| (named(unit), unit)).collect();
        if hashed {
            units.sort_by_key(|(hash, _)| *hash);
        }
        // None is full, so that not each is cut again by the next item.
        let aim = bytes.len() / bytes.len().div_ceil((most - most / 4).max(1));
        let mut rest = &units[..];
        while !rest.is_empty() {
            let (mut n, mut own) = (0, Vec::with_capacity(aim + 64));
            // Names of one hash stay together.
            let same = |n: usize| hashed && n > 0 && rest[n].0 == rest[n - 1].0;
            while n < rest.len() && (n == 0 || own.len() + rest[n].1.bytes.len() <= aim || same(n)) {
                own.extend_from_slice(rest[n].1.bytes);
                n += 1;
            }
            let bound = match (hashed, parts.is_empty()) {
                (true, true) => bound,
                (true, false) => rest[0].0,
                (false, _) => first(&rest[0].1),
            };
            parts.push(Part { count: n as u32, len: own.len() as u32, bound, source: Source::Fresh(Rc::new(own)) });
            rest = &rest[n..];
        }
        parts
    }

    /// The segment for a hash, where a side is cut by hashes and not empty.
    fn part_for(&self, side: usize, hash: u64) -> usize {
        self.sides[side].partition_point(|part| part.bound <= hash).saturating_sub(1)
    }

    /// The segments that have these names, if any has.
    pub fn named<'n>(&self, side: usize, names: impl IntoIterator<Item = &'n [u8]>) -> Vec<usize> {
        if self.sides[side].is_empty() {
            return Vec::new();
        }
        let mut parts: Vec<usize> = names.into_iter().map(|name| self.part_for(side, hash(name))).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// The bytes of some segments, one behind the other.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn joined(&self, side: usize, parts: &[usize]) -> Result<Vec<u8>, Trouble> {
        let len: usize = parts.iter().map(|&n| self.sides[side][n].len as usize).sum();
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

    /// Puts the items of some segments back, which are changed. The side is cut by hashes.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn put_back(&mut self, side: usize, parts: &[usize], bytes: &[u8]) -> Result<(), Trouble> {
        let mut each = vec![Vec::new(); parts.len()];
        for unit in units(self.kind, bytes) {
            let n = self.part_for(side, hash(unit.name));
            if let Ok(place) = parts.binary_search(&n) {
                each[place].extend_from_slice(unit.bytes);
            }
        }
        let mut bounds = Vec::new();
        for (&n, bytes) in parts.iter().zip(&each).rev() {
            if *self.bytes(side, n)? != *bytes {
                bounds.push(self.sides[side][n].bound);
                self.splice(side, n..n + 1, bytes);
            }
        }
        for bound in bounds {
            let n = self.part_for(side, bound);
            self.settle(side, n)?;
        }
        Ok(())
    }

    /// Joins a segment that has become small with a neighbour.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    fn settle(&mut self, side: usize, n: usize) -> Result<(), Trouble> {
        let (parts, most) = (&self.sides[side], self.most(self.len()));
        let Some(part) = parts.get(n).filter(|part| (part.len as usize) < most / 4) else { return Ok(()) };
        let fits = |m: &usize| parts.get(*m).is_some_and(|other| (other.len + part.len) as usize <= most / 2);
        let Some(low) = [n, n.wrapping_sub(1)].into_iter().find(|&low| fits(&low) && fits(&(low.wrapping_add(1))))
        else {
            return Ok(());
        };
        let both = self.joined(side, &[low, low + 1])?;
        self.splice(side, low..low + 2, &both);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
