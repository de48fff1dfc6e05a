//! A value in segments that becomes another one as a whole, and keeps the segments that do not
//! differ: for commands that are not made for segments.

use super::{Unit, Working, hash, streams, units};
use crate::object::Type;
use crate::shard::Trouble;

impl Working<'_> {
    /// Makes it this value, and keeps the segments that do not differ.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn become_whole(&mut self, whole: &[u8]) -> Result<(), Trouble> {
        if self.kind == Type::Stream {
            for (side, bytes) in streams::split(whole).ok_or(Trouble::Corrupt)?.iter().enumerate() {
                self.want(side, 0..self.parts(side).len())?;
                self.become_in_order(side, bytes, whole.len())?;
            }
            return Ok(());
        }
        if self.is_empty() || self.kind == Type::SortedSet && self.parts(1).is_empty() {
            for side in 0..2 {
                self.splice_for(side, 0..self.parts(side).len(), &[], 0);
            }
            self.fill(whole);
            return Ok(());
        }
        for side in 0..2 {
            self.want(side, 0..self.parts(side).len())?;
            match self.is_hashed(side) {
                _ if self.parts(side).is_empty() => {}
                true => self.become_by_hash(side, whole)?,
                false => self.become_in_order(side, whole, whole.len())?,
            }
        }
        Ok(())
    }

    fn become_by_hash(&mut self, side: usize, whole: &[u8]) -> Result<(), Trouble> {
        let mut each: Vec<Vec<Unit<'_>>> = vec![Vec::new(); self.parts(side).len()];
        for unit in units(self.kind, whole) {
            each[self.part_for(side, hash(unit.name))].push(unit);
        }
        for (n, new) in each.into_iter().enumerate().rev() {
            let old = self.bytes(side, n)?;
            // In which order they are in a segment tells nothing.
            let mut had: Vec<&[u8]> = units(self.kind, &old).map(|unit| unit.bytes).collect();
            let mut has: Vec<&[u8]> = new.iter().map(|unit| unit.bytes).collect();
            had.sort_unstable();
            has.sort_unstable();
            if had != has {
                let bytes: Vec<u8> = new.iter().flat_map(|unit| unit.bytes.iter().copied()).collect();
                self.splice_for(side, n..n + 1, &bytes, whole.len());
            }
        }
        Ok(())
    }

    fn become_in_order(&mut self, side: usize, whole: &[u8], total: usize) -> Result<(), Trouble> {
        let count = self.parts(side).len();
        let (mut low, mut from) = (0, 0);
        while low < count && whole[from..].starts_with(&self.bytes(side, low)?) {
            from += self.parts(side)[low].len as usize;
            low += 1;
        }
        // The same bytes may begin within an item.
        let mut at = from;
        let begin = |unit: Unit<'_>| {
            at += unit.bytes.len();
            at - unit.bytes.len()
        };
        let mut begins: Vec<usize> = units(self.kind, &whole[from..]).map(begin).collect();
        begins.push(whole.len());
        let (mut high, mut to) = (count, whole.len());
        while high > low && whole[from..to].ends_with(&self.bytes(side, high - 1)?) {
            let begin = to - self.parts(side)[high - 1].len as usize;
            if begins.binary_search(&begin).is_err() {
                break;
            }
            to = begin;
            high -= 1;
        }
        if low < high || from < to {
            self.splice_for(side, low..high, &whole[from..to], total);
        }
        Ok(())
    }
}
