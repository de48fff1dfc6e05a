//! Segments that are altered, cut and joined.
//!
//! A segment that is altered is taken from those that are here: its bytes are copied once, and it
//! is *fresh* from then on. What comes later alters the same bytes. A segment above its limit is
//! cut, and one of which little is left is joined with a neighbour.

use super::{Body, Gone, Part, Unit, Working, hash, ordered, sorted, units};
use crate::object::Type;
use crate::shard::Trouble;
use std::ops::Range;
use std::rc::Rc;

/// The bound of a segment that begins with an item, where the side is not cut by hashes.
fn bound(kind: Type, first: &Unit<'_>) -> u64 {
    match kind {
        Type::SortedSet => sorted::bound(first),
        Type::Stream => ordered::bound(first.name),
        _ => 0,
    }
}

impl Working<'_> {
    /// Bytes of a segment, at most. The more a value has the larger they are, or its head would be
    /// much longer than they.
    pub(super) fn most(&self, total: usize) -> usize {
        let least = self.segments.least.get();
        let most = match total / least {
            0..128 => least / 2,
            128..1024 => least,
            1024..8192 => 2 * least,
            _ => 4 * least,
        };
        most - (most / 4).min(64)
    }

    /// Puts bytes in the place of some of a segment's, which then has so many `items` more. What is
    /// wrong with the segment then is put right, but that it may have become small
    /// ([`Working::settle`]).
    ///
    /// # Errors
    /// As of [`Working::bytes`]. Nothing was changed then.
    pub(super) fn alter(
        &mut self,
        side: usize,
        n: usize,
        range: Range<usize>,
        with: &[u8],
        items: isize,
    ) -> Result<(), Trouble> {
        self.alter_each(side, n, &[(range, with)], items)
    }

    /// [`Working::alter`] of several ranges, each behind the one before it.
    ///
    /// # Errors
    /// As there.
    pub(super) fn alter_each(
        &mut self,
        side: usize,
        n: usize,
        edits: &[(Range<usize>, &[u8])],
        items: isize,
    ) -> Result<(), Trouble> {
        let body = self.bytes(side, n)?;
        let most = self.most(self.len());
        let begins = edits.first().is_some_and(|(range, _)| range.start == 0);
        let hashed = self.is_hashed(side);
        let open = &mut self.open;
        let own = &mut Rc::make_mut(&mut open.sides)[side];
        let part = &mut own.parts[n];
        if part.at != 0 {
            open.dropped.push(Gone { at: part.at, checksum: part.checksum, len: part.len });
            (part.at, part.checksum) = (0, open.fresh.len() as u64);
            open.fresh.push(None);
        }
        let place = &mut open.fresh[part.checksum as usize];
        // Now nobody else refers to a fresh segment, which is not copied then.
        *place = None;
        let body = place.insert(body);
        body.splice_each(edits);
        let (count, len) = ((part.count as usize).saturating_add_signed(items), body.len());
        (own.items, own.bytes) = (own.items + count - part.count as usize, own.bytes + len - part.len as usize);
        (part.count, part.len) = (count as u32, len as u32);
        if count > 0 && begins && !hashed {
            part.bound = units(open.kind, body).next().map_or(0, |unit| bound(open.kind, &unit));
        }
        (open.changed, self.touched) = (true, true);
        if count == 0 {
            self.splice(side, n..n + 1, &[]);
        } else if len > most && count > 1 {
            let body = self.bytes(side, n)?;
            self.splice(side, n..n + 1, &body);
        }
        Ok(())
    }

    /// Puts items in the place of some segments of a side. Where it is cut by hashes, theirs are
    /// such as these segments may have.
    pub fn splice(&mut self, side: usize, range: Range<usize>, bytes: &[u8]) {
        let total = self.len();
        self.splice_for(side, range, bytes, total);
    }

    pub(super) fn splice_for(&mut self, side: usize, range: Range<usize>, bytes: &[u8], total: usize) {
        let bound = self.parts(side).get(range.start).map_or(0, |part| part.bound);
        let come = self.cut(side, bytes, bound, self.most(total));
        let hashed = self.is_hashed(side);
        let open = &mut self.open;
        let own = &mut Rc::make_mut(&mut open.sides)[side];
        for part in &own.parts[range.clone()] {
            (own.items, own.bytes) = (own.items - part.count as usize, own.bytes - part.len as usize);
            match part.at {
                0 => open.fresh[part.checksum as usize] = None,
                at => open.dropped.push(Gone { at, checksum: part.checksum, len: part.len }),
            }
        }
        let mut parts = Vec::with_capacity(come.len());
        for (part, body) in come {
            (own.items, own.bytes) = (own.items + part.count as usize, own.bytes + part.len as usize);
            parts.push(Part { at: 0, checksum: open.fresh.len() as u64, ..part });
            open.fresh.push(Some(body));
        }
        own.parts.splice(range, parts);
        if hashed && let Some(first) = own.parts.first_mut() {
            // Whatever the hash of a name, there is a segment for it.
            first.bound = 0;
        }
        (open.changed, self.touched) = (true, true);
    }

    /// Cuts items into segments. `bound`: of the first, where it is cut by hashes.
    fn cut(&self, side: usize, bytes: &[u8], bound: u64, most: usize) -> Vec<(Part, Body)> {
        let mut parts = Vec::new();
        let mut add = |count: usize, bound: u64, body: Body| {
            let part = Part { count: count as u32, len: body.len() as u32, bound, at: 0, checksum: 0 };
            parts.push((part, body));
        };
        let hashed = self.is_hashed(side);
        let first = |unit: &Unit<'_>| self::bound(self.kind, unit);
        if bytes.len() <= most {
            let mut all = units(self.kind, bytes);
            if let Some(begins) = all.next() {
                add(1 + all.count(), if hashed { bound } else { first(&begins) }, Body::of(bytes));
            }
            return parts;
        }
        let named = |unit: Unit<'_>| if hashed { hash(unit.name) } else { 0 };
        let mut units: Vec<(u64, Unit<'_>)> = units(self.kind, bytes).map(|unit| (named(unit), unit)).collect();
        if hashed {
            units.sort_by_key(|(hash, _)| *hash);
        }
        // None is full, so that not each is cut again by the next item.
        let aim = bytes.len() / bytes.len().div_ceil((most - most / 4).max(1));
        let (mut rest, mut begun) = (&units[..], false);
        while !rest.is_empty() {
            let (mut n, mut own) = (0, Body::with_room(aim + 64));
            // Names of one hash stay together.
            let same = |n: usize| hashed && n > 0 && rest[n].0 == rest[n - 1].0;
            while n < rest.len() && (n == 0 || own.len() + rest[n].1.bytes.len() <= aim || same(n)) {
                own.push(rest[n].1.bytes);
                n += 1;
            }
            let bound = match (hashed, begun) {
                (true, false) => bound,
                (true, true) => rest[0].0,
                (false, _) => first(&rest[0].1),
            };
            add(n, bound, own);
            (rest, begun) = (&rest[n..], true);
        }
        parts
    }

    /// Joins a segment that has become small with a neighbour.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub(super) fn settle(&mut self, side: usize, n: usize) -> Result<(), Trouble> {
        let (parts, most) = (self.parts(side), self.most(self.len()));
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
