//! Items by their positions: the ends and the ranges of lists, and the ranks of sorted sets.

use super::{Body, Unit, WHOLE, Working, units};
use crate::shard::Trouble;
use std::ops::Range;

/// Some items, and where the first of them is.
#[derive(Debug)]
pub struct Window {
    bodies: Vec<Body>,
    skip: usize,
    take: usize,
    kind: crate::object::Type,
}

impl Window {
    /// The items.
    pub fn units(&self) -> impl Iterator<Item = Unit<'_>> {
        self.bodies.iter().flat_map(|body| units(self.kind, body)).skip(self.skip).take(self.take)
    }
}

impl Working<'_> {
    /// The segment with the item of a position, and the position of its first item; behind the last
    /// item there is none.
    fn at(&self, side: usize, position: usize) -> (usize, usize) {
        let mut first = 0;
        for (n, part) in self.parts(side).iter().enumerate() {
            if position < first + part.count as usize {
                return (n, first);
            }
            first += part.count as usize;
        }
        (self.parts(side).len(), first)
    }

    /// The segments that have items of some positions, and the position of the first item there.
    fn covering(&self, of: &Range<usize>) -> (Range<usize>, usize) {
        let (low, first) = self.at(0, of.start);
        let (high, _) = self.at(0, of.end.saturating_sub(1).max(of.start));
        (low..(high + 1).min(self.parts(0).len()), first)
    }

    /// The items of some positions.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. They are too many.
    pub fn window(&self, of: Range<usize>) -> Result<Window, Trouble> {
        let (parts, first) = self.covering(&of);
        let parts = if of.is_empty() { 0..0 } else { parts };
        let len: usize = self.parts(0)[parts.clone()].iter().map(|part| part.len as usize).sum();
        if len as u64 > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        self.want(0, parts.clone())?;
        let bodies = parts.map(|n| self.bytes(0, n)).collect::<Result<Vec<_>, _>>()?;
        Ok(Window { bodies, skip: of.start.saturating_sub(first), take: of.len(), kind: self.kind })
    }

    /// Bytes before the item of this number in a segment.
    fn before(&self, side: usize, n: usize, items: usize) -> Result<usize, Trouble> {
        let part = self.parts(side)[n];
        if items == 0 || items == part.count as usize {
            return Ok(if items == 0 { 0 } else { part.len as usize });
        }
        let body = self.bytes(side, n)?;
        Ok(units(self.kind, &body).take(items).map(|unit| unit.bytes.len()).sum())
    }

    /// Takes the items of some positions out of the first side. Segments of which nothing stays are
    /// not read.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn take_out(&mut self, of: Range<usize>) -> Result<(), Trouble> {
        self.take_out_of(0, of)
    }

    /// [`Working::take_out`] of any side in its order.
    ///
    /// # Errors
    /// As there.
    pub fn take_out_of(&mut self, side: usize, of: Range<usize>) -> Result<(), Trouble> {
        if of.is_empty() {
            return Ok(());
        }
        let (low, first) = self.at(side, of.start);
        let (last, last_first) = self.at(side, of.end - 1);
        let ends = last_first + self.parts(side)[last].count as usize;
        let (before, after) = (of.start > first, of.end < ends);
        self.want(side, [before.then_some(low), after.then_some(last)].into_iter().flatten())?;
        if low == last && (before || after) {
            let (from, to) = (self.before(side, low, of.start - first)?, self.before(side, low, of.end - first)?);
            self.alter(side, low, from..to, &[], -(of.len() as isize))?;
            return self.settle(side, low);
        }
        // From the last one on, so that the numbers of the others stay.
        if after {
            let to = self.before(side, last, of.end - last_first)?;
            self.alter(side, last, 0..to, &[], -((of.end - last_first) as isize))?;
        }
        let gone = low + usize::from(before)..last + usize::from(!after);
        if !gone.is_empty() {
            self.splice(side, gone.clone(), &[]);
        }
        if before {
            let (from, to) = (self.before(side, low, of.start - first)?, self.parts(side)[low].len as usize);
            let items = self.parts(side)[low].count as usize - (of.start - first);
            self.alter(side, low, from..to, &[], -(items as isize))?;
        }
        if after {
            self.settle(side, gone.start)?;
        }
        if before { self.settle(side, low) } else { Ok(()) }
    }

    /// Adds items to an end of a list. A full segment is left as it is.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn push(&mut self, front: bool, items: &[u8]) -> Result<(), Trouble> {
        let count = self.parts(0).len();
        let n = if front { 0 } else { count.saturating_sub(1) };
        let part = self.parts(0).get(n).filter(|part| part.len as usize + items.len() <= self.most(self.len()));
        let Some(end) = part.map(|part| part.len as usize) else {
            let at = if front { 0 } else { count };
            self.splice(0, at..at, items);
            return Ok(());
        };
        let at = if front { 0 } else { end };
        self.alter(0, n, at..at, items, units(self.kind, items).count() as isize)
    }

    /// Puts another item in the place of one.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn replace(&mut self, position: usize, item: &[u8]) -> Result<(), Trouble> {
        let (n, first) = self.at(0, position);
        let body = self.bytes(0, n)?;
        let from: usize = units(self.kind, &body).take(position - first).map(|unit| unit.bytes.len()).sum();
        let old = units(self.kind, &body[from..]).next().ok_or(Trouble::Corrupt)?.bytes;
        let (same, range) = (old == item, from..from + old.len());
        drop(body);
        if same { Ok(()) } else { self.alter(0, n, range, item, 0) }
    }
}
