//! Items by their names, where a side is cut by the hashes of names.

use super::{WHOLE, Working, hash, units};
use crate::shard::Trouble;
use std::ops::Range;

/// Names in one segment that are compared with each item. Of more the item's hash is looked for.
const FEW: usize = 4;

/// A name, and where its item is.
#[derive(Clone, Debug)]
pub struct Sought<'n> {
    /// The name.
    pub name: &'n [u8],
    hash: u64,
    /// The segment that has it, or would have it.
    part: usize,
    /// Its bytes there. `None`: it is not there.
    range: Option<Range<usize>>,
}

impl Working<'_> {
    /// The segment for a hash, where a side is cut by hashes and not empty.
    pub(super) fn part_for(&self, side: usize, hash: u64) -> usize {
        self.parts(side).partition_point(|part| part.bound <= hash).saturating_sub(1)
    }

    /// The segments that have these names, if any has.
    pub fn named<'n>(&self, side: usize, names: impl IntoIterator<Item = &'n [u8]>) -> Vec<usize> {
        if self.parts(side).is_empty() {
            return Vec::new();
        }
        let mut parts: Vec<usize> = names.into_iter().map(|name| self.part_for(side, hash(name))).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// Where the item of a name is: its segment, and the bytes there. `None` in place of the bytes:
    /// it would be in that segment. The side is not empty.
    fn place(&self, side: usize, name: &[u8]) -> Result<(usize, Option<Range<usize>>), Trouble> {
        let n = self.part_for(side, hash(name));
        let (body, mut at) = (self.bytes(side, n)?, 0);
        for unit in units(self.kind, &body) {
            let end = at + unit.bytes.len();
            if unit.name == name {
                return Ok((n, Some(at..end)));
            }
            at = end;
        }
        Ok((n, None))
    }

    /// What `see` makes of the item of a name. `None`: there is none.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn item<T>(&self, side: usize, name: &[u8], see: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Trouble> {
        if self.parts(side).is_empty() {
            return Ok(None);
        }
        let (n, Some(range)) = self.place(side, name)? else { return Ok(None) };
        let body = self.bytes(side, n)?;
        Ok(Some(see(&body[range])))
    }

    /// Puts an item in the place of the one of this name, or takes that out.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn set_item(&mut self, side: usize, name: &[u8], item: Option<&[u8]>) -> Result<(), Trouble> {
        if self.parts(side).is_empty() {
            item.into_iter().for_each(|item| self.splice(side, 0..0, item));
            return Ok(());
        }
        match (self.place(side, name)?, item) {
            ((_, None), None) => Ok(()),
            ((n, None), Some(item)) => {
                let end = self.parts(side)[n].len as usize;
                self.alter(side, n, end..end, item, 1)
            }
            ((n, Some(range)), item) => {
                let with = item.unwrap_or_default();
                if self.bytes(side, n)?[range.clone()] == *with {
                    return Ok(());
                }
                self.alter(side, n, range.clone(), with, if item.is_some() { 0 } else { -1 })?;
                if with.len() < range.len() { self.settle(side, n) } else { Ok(()) }
            }
        }
    }

    /// Where the items of some names are: each name once, in the order of their segments, each of
    /// which is looked through once.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. The segments have too many bytes.
    pub fn seek<'n>(&self, side: usize, names: impl IntoIterator<Item = &'n [u8]>) -> Result<Vec<Sought<'n>>, Trouble> {
        let mut names: Vec<(u64, &[u8])> = names.into_iter().map(|name| (hash(name), name)).collect();
        names.sort_unstable();
        names.dedup();
        let place = |(hash, name)| Sought { name, hash, part: self.part_for(side, hash), range: None };
        let mut all: Vec<Sought<'n>> = names.into_iter().map(place).collect();
        if self.parts(side).is_empty() {
            return Ok(all);
        }
        let mut parts: Vec<usize> = all.iter().map(|one| one.part).collect();
        parts.dedup();
        if parts.iter().map(|&n| u64::from(self.parts(side)[n].len)).sum::<u64>() > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        self.want(side, parts)?;
        for own in all.chunk_by_mut(|one, next| one.part == next.part) {
            let (body, mut at, mut left) = (self.bytes(side, own[0].part)?, 0, own.len());
            for unit in units(self.kind, &body) {
                let end = at + unit.bytes.len();
                let place = match own.len() {
                    0..=FEW => own.iter().position(|one| one.name == unit.name),
                    _ => {
                        let here = (hash(unit.name), unit.name);
                        own.binary_search_by(|one| (one.hash, one.name).cmp(&here)).ok()
                    }
                };
                if let Some(one) = place.map(|place| &mut own[place]).filter(|one| one.range.is_none()) {
                    one.range = Some(at..end);
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
                at = end;
            }
        }
        Ok(all)
    }

    /// Has `see` look at the items that were found, each by its place among those that were sought.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn found(&self, side: usize, sought: &[Sought<'_>], mut see: impl FnMut(usize, &[u8])) -> Result<(), Trouble> {
        let mut at = 0;
        for own in sought.chunk_by(|one, next| one.part == next.part) {
            if own.iter().any(|one| one.range.is_some()) {
                let body = self.bytes(side, own[0].part)?;
                for (n, range) in own.iter().enumerate().filter_map(|(n, one)| Some((n, one.range.clone()?))) {
                    see(at + n, &body[range]);
                }
            }
            at += own.len();
        }
        Ok(())
    }

    /// Puts others in the place of the items that were sought, and nothing was changed since.
    /// `item` writes the one at a place among them, or nothing if it goes. Each segment is altered
    /// once.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn put(
        &mut self,
        side: usize,
        sought: &[Sought<'_>],
        mut item: impl FnMut(usize, &mut Vec<u8>),
    ) -> Result<(), Trouble> {
        if self.parts(side).is_empty() {
            let mut all = Vec::new();
            (0..sought.len()).for_each(|n| item(n, &mut all));
            if !all.is_empty() {
                self.splice(side, 0..0, &all);
            }
            return Ok(());
        }
        let (mut behind, mut shrunk) = (sought.len(), Vec::new());
        // From the last segment on: whatever becomes of one, the numbers of those before it stay.
        for own in sought.chunk_by(|one, next| one.part == next.part).rev() {
            behind -= own.len();
            let (n, mut new, mut edits, mut items) = (own[0].part, Vec::new(), Vec::with_capacity(own.len()), 0);
            let body = self.bytes(side, n)?;
            for (place, one) in own.iter().enumerate() {
                let from = new.len();
                item(behind + place, &mut new);
                let old = one.range.clone().unwrap_or(body.len()..body.len());
                if body[old.clone()] == new[from..] {
                    new.truncate(from);
                    continue;
                }
                items += isize::from(new.len() > from) - isize::from(!old.is_empty());
                edits.push((old, from..new.len()));
            }
            drop(body);
            if edits.is_empty() {
                continue;
            }
            // Those that come are behind all others, in their order.
            edits.sort_by_key(|(old, _)| old.start);
            if edits.iter().any(|(old, new)| new.len() < old.len()) {
                shrunk.push(self.parts(side)[n].bound);
            }
            let edits: Vec<(Range<usize>, &[u8])> = edits.into_iter().map(|(old, own)| (old, &new[own])).collect();
            self.alter_each(side, n, &edits, items)?;
        }
        for bound in shrunk {
            self.settle(side, self.part_for(side, bound))?;
        }
        Ok(())
    }
}
