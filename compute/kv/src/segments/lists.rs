//! Items by their positions: the ends and the ranges of lists, and the ranks of sorted sets.

use super::{Units, Working, units};
use crate::shard::Trouble;
use std::ops::Range;

/// Some items, and where the first of them is.
#[derive(Debug)]
pub struct Window {
    bytes: Vec<u8>,
    skip: usize,
    take: usize,
    kind: crate::object::Type,
}

impl Window {
    /// The items.
    pub fn units(&self) -> std::iter::Take<std::iter::Skip<Units<'_>>> {
        units(self.kind, &self.bytes).skip(self.skip).take(self.take)
    }
}

impl Working<'_> {
    /// The segment with the item of a position, and the position of its first item; behind the last
    /// item there is none.
    fn at(&self, position: usize) -> (usize, usize) {
        let mut first = 0;
        for (n, part) in self.parts(0).iter().enumerate() {
            if position < first + part.count as usize {
                return (n, first);
            }
            first += part.count as usize;
        }
        (self.parts(0).len(), first)
    }

    /// The segments that have items of some positions, and the position of the first item there.
    fn covering(&self, of: &Range<usize>) -> (Range<usize>, usize) {
        let (low, first) = self.at(of.start);
        let (high, _) = self.at(of.end.saturating_sub(1).max(of.start));
        (low..(high + 1).min(self.parts(0).len()), first)
    }

    /// The items of some positions.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn window(&self, of: Range<usize>) -> Result<Window, Trouble> {
        let (parts, first) = self.covering(&of);
        let bytes = if of.is_empty() { Vec::new() } else { self.joined(0, &parts.collect::<Vec<_>>())? };
        Ok(Window { bytes, skip: of.start.saturating_sub(first), take: of.len(), kind: self.kind })
    }

    /// Takes the items of some positions out of the first side. Segments of which nothing stays are
    /// not read.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn take_out(&mut self, of: Range<usize>) -> Result<(), Trouble> {
        if of.is_empty() {
            return Ok(());
        }
        let (parts, first) = self.covering(&of);
        let (last, last_first) = self.at(of.end - 1);
        let ends = last_first + self.parts(0)[last].count as usize;
        let (before, after) = (of.start > first, of.end < ends);
        self.want(0, [before.then_some(parts.start), after.then_some(last)].into_iter().flatten())?;
        let mut stays = Vec::new();
        if before {
            let bytes = self.bytes(0, parts.start)?;
            units(self.kind, &bytes).take(of.start - first).for_each(|unit| stays.extend_from_slice(unit.bytes));
        }
        if after {
            let bytes = self.bytes(0, last)?;
            units(self.kind, &bytes).skip(of.end - last_first).for_each(|unit| stays.extend_from_slice(unit.bytes));
        }
        self.splice(0, parts, &stays);
        Ok(())
    }

    /// Adds items to an end of a list. A full segment is left as it is.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn push(&mut self, front: bool, items: &[u8]) -> Result<(), Trouble> {
        let count = self.parts(0).len();
        let n = if front { 0 } else { count.saturating_sub(1) };
        let joins = self.parts(0).get(n).is_some_and(|part| part.len as usize + items.len() <= self.most(self.len()));
        if !joins {
            let at = if front { 0 } else { count };
            self.splice(0, at..at, items);
            return Ok(());
        }
        let there = self.bytes(0, n)?;
        let both = if front { [items, &there[..]].concat() } else { [&there[..], items].concat() };
        self.splice(0, n..n + 1, &both);
        Ok(())
    }

    /// Puts another item in the place of one.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn replace(&mut self, position: usize, item: &[u8]) -> Result<(), Trouble> {
        let (n, first) = self.at(position);
        let (old, mut new) = (self.bytes(0, n)?, Vec::new());
        for (at, unit) in units(self.kind, &old).enumerate() {
            new.extend_from_slice(if first + at == position { item } else { unit.bytes });
        }
        if *old != new {
            self.splice(0, n..n + 1, &new);
        }
        Ok(())
    }
}
