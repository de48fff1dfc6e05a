//! Items by their names, where a side is cut by the hashes of names.

use super::{Working, hash, units};
use crate::shard::Trouble;
use std::ops::Range;

/// A command that names more takes the items of all segments that it needs together.
pub(crate) const FEW: usize = 16;

/// Names of a command, each once. They are few.
pub(crate) fn distinct<'n>(names: &[&'n [u8]]) -> Vec<&'n [u8]> {
    let mut each: Vec<&[u8]> = Vec::with_capacity(names.len());
    for &name in names {
        if !each.contains(&name) {
            each.push(name);
        }
    }
    each
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
            if self.bytes(side, n)?[..] != bytes[..] {
                bounds.push(self.parts(side)[n].bound);
                self.splice(side, n..n + 1, bytes);
            }
        }
        for bound in bounds {
            let n = self.part_for(side, bound);
            self.settle(side, n)?;
        }
        Ok(())
    }
}
