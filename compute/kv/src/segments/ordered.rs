//! Sides that are in the order of their keys: those of streams.

use super::{Unit, WHOLE, Working, units};
use crate::shard::Trouble;
use std::ops::ControlFlow;

/// Segments that a walk wants at once at most.
const AHEAD: usize = 64;

/// The bound of a segment that begins with this key: the first bytes of it. Those of two keys may be
/// the same.
pub(super) fn bound(key: &[u8]) -> u64 {
    let (mut first, len) = ([0; 8], key.len().min(8));
    first[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(first)
}

/// An item of a key and what it has.
pub(super) fn write(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    for part in [key, value] {
        bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        bytes.extend_from_slice(part);
    }
}

/// What an item has behind its key.
pub(super) fn value<'a>(unit: &Unit<'a>) -> &'a [u8] {
    unit.bytes.get(8 + unit.name.len()..).unwrap_or_default()
}

/// Where an item is, or would be.
struct Spot {
    part: usize,
    /// Its first byte in the segment, and how many items are before it there.
    at: usize,
    before: usize,
    /// Its bytes; 0: it is not there.
    len: usize,
}

impl Working<'_> {
    /// The segment with the last key that is not behind this one. The side is not empty.
    fn home(&self, side: usize, key: &[u8]) -> Result<usize, Trouble> {
        let (parts, bound) = (self.parts(side), bound(key));
        // The last segment that begins before this bound, and those that begin with it too.
        let (mut low, mut high) = (
            parts.partition_point(|part| part.bound < bound).saturating_sub(1),
            parts.partition_point(|part| part.bound <= bound).saturating_sub(1),
        );
        while low < high {
            let middle = (low + high).div_ceil(2);
            let body = self.bytes(side, middle)?;
            let first = units(self.kind, &body).next().ok_or(Trouble::Corrupt)?;
            if first.name <= key {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(low)
    }

    fn spot(&self, side: usize, key: &[u8]) -> Result<Spot, Trouble> {
        let part = self.home(side, key)?;
        let (body, mut at, mut before) = (self.bytes(side, part)?, 0, 0);
        for unit in units(self.kind, &body) {
            if unit.name >= key {
                return Ok(Spot { part, at, before, len: if unit.name == key { unit.bytes.len() } else { 0 } });
            }
            (at, before) = (at + unit.bytes.len(), before + 1);
        }
        Ok(Spot { part, at, before, len: 0 })
    }

    /// Wants the segments of some keys, all at once.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. The segments have too many bytes.
    pub fn want_keyed<K: AsRef<[u8]>>(&self, side: usize, keys: impl IntoIterator<Item = K>) -> Result<(), Trouble> {
        if self.parts(side).is_empty() {
            return Ok(());
        }
        let (mut parts, mut lacks) = (Vec::new(), false);
        for key in keys {
            match self.home(side, key.as_ref()) {
                Err(Trouble::Unread) => lacks = true,
                part => parts.push(part?),
            }
        }
        parts.sort_unstable();
        parts.dedup();
        if parts.iter().map(|&n| u64::from(self.parts(side)[n].len)).sum::<u64>() > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        self.want(side, parts)?;
        if lacks { Err(Trouble::Unread) } else { Ok(()) }
    }

    /// Wants the segments of keys in their order, all at once: those of the first key, and of more
    /// while the segments have `most` bytes together. Of how many keys, and the segments' bytes.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn want_some<K: AsRef<[u8]>>(
        &self,
        side: usize,
        keys: impl IntoIterator<Item = K>,
        most: usize,
    ) -> Result<(usize, usize), Trouble> {
        let (mut parts, mut lacks, mut bytes, mut count): (Vec<usize>, _, _, _) = (Vec::new(), false, 0, 0);
        for key in keys {
            match self.home(side, key.as_ref()) {
                _ if self.parts(side).is_empty() => {}
                Err(Trouble::Unread) => lacks = true,
                part => {
                    let part = part?;
                    let len = if parts.last() == Some(&part) { 0 } else { self.parts(side)[part].len as usize };
                    if len > 0 && bytes + len > most && bytes > 0 {
                        break;
                    }
                    bytes += len;
                    parts.extend(Some(part).filter(|_| len > 0));
                }
            }
            count += 1;
        }
        self.want(side, parts)?;
        if lacks { Err(Trouble::Unread) } else { Ok((count, bytes)) }
    }

    /// What a key has.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn keyed<T>(&self, side: usize, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Trouble> {
        if self.parts(side).is_empty() {
            return Ok(None);
        }
        let spot = self.spot(side, key)?;
        let body = self.bytes(side, spot.part)?;
        let unit = units(self.kind, &body[spot.at..spot.at + spot.len]).next();
        Ok(unit.map(|unit| see(value(&unit))))
    }

    /// Gives a key something else, or takes it out; whether it was there.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn set_keyed(&mut self, side: usize, key: &[u8], value: Option<&[u8]>) -> Result<bool, Trouble> {
        let mut item = Vec::with_capacity(8 + key.len() + value.map_or(0, <[u8]>::len));
        value.into_iter().for_each(|value| write(&mut item, key, value));
        if self.parts(side).is_empty() {
            if value.is_some() {
                self.splice(side, 0..0, &item);
            }
            return Ok(false);
        }
        let Spot { part, at, len, .. } = self.spot(side, key)?;
        let (own, was) = (self.parts(side)[part], len > 0);
        if !was && value.is_none() {
            return Ok(false);
        }
        let is_behind_all = at == own.len as usize && part + 1 == self.parts(side).len();
        if is_behind_all && at + item.len() > self.most(self.len()) {
            // A full segment is left as it is.
            self.splice(side, part + 1..part + 1, &item);
            return Ok(false);
        }
        if was && self.bytes(side, part)?[at..at + len] == item[..] {
            return Ok(true);
        }
        self.alter(side, part, at..at + len, &item, isize::from(value.is_some()) - isize::from(was))?;
        if item.len() < len {
            self.settle(side, part)?;
        }
        Ok(was)
    }

    /// How many items have lower keys.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn place_of(&self, side: usize, key: &[u8]) -> Result<usize, Trouble> {
        if self.parts(side).is_empty() {
            return Ok(0);
        }
        let spot = self.spot(side, key)?;
        Ok(self.parts(side)[..spot.part].iter().map(|part| part.count as usize).sum::<usize>() + spot.before)
    }

    /// Has `see` look at items in their order, from a key on, until it has seen enough. `most`: it
    /// looks at about as many.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. The segments have too many bytes.
    pub fn walk(
        &self,
        side: usize,
        from: &[u8],
        most: usize,
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Trouble> {
        if self.parts(side).is_empty() {
            return Ok(());
        }
        let (Spot { part, at, .. }, mut bytes) = (self.spot(side, from)?, 0);
        for n in part..self.parts(side).len() {
            let body = self.next_of(side, (n..self.parts(side).len()).take(AHEAD.max(n - part)), most, &mut bytes)?;
            let body = &body[if n == part { at } else { 0 }..];
            if units(self.kind, body).any(|unit| see(unit.name, value(&unit)).is_break()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// [`Working::walk`] from a key back to the first.
    ///
    /// # Errors
    /// As there.
    pub fn walk_back(
        &self,
        side: usize,
        from: &[u8],
        most: usize,
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Trouble> {
        if self.parts(side).is_empty() {
            return Ok(());
        }
        let (Spot { part, at, len, .. }, mut bytes) = (self.spot(side, from)?, 0);
        for n in (0..=part).rev() {
            let body = self.next_of(side, (0..=n).rev().take(AHEAD.max(part - n)), most, &mut bytes)?;
            let body = &body[..if n == part { at + len } else { body.len() }];
            let all: Vec<Unit<'_>> = units(self.kind, body).collect();
            if all.iter().rev().any(|unit| see(unit.name, value(unit)).is_break()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first of some segments. If it is not here, others are wanted that a walk comes to.
    fn next_of(
        &self,
        side: usize,
        mut which: impl Iterator<Item = usize>,
        most: usize,
        bytes: &mut u64,
    ) -> Result<super::Body, Trouble> {
        let first = which.next().ok_or(Trouble::Corrupt)?;
        *bytes += u64::from(self.parts(side)[first].len);
        if *bytes > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        self.bytes(side, first).inspect_err(|_| {
            let mut count = self.parts(side)[first].count as usize;
            for n in which.take_while(|&n| {
                let more = count < most;
                count += self.parts(side)[n].count as usize;
                more
            }) {
                // It is wanted.
                let _ = self.bytes(side, n);
            }
        })
    }
}
