//! Sorted sets in segments: members in the order of their scores on the first side, and by their
//! names on the second.

use super::named::Sought;
use super::{Unit, Working, units};
use crate::shard::Trouble;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

/// A score of an item.
pub fn score(item: &[u8]) -> f64 {
    f64::from_le_bytes(item.try_into().unwrap_or_default())
}

/// A score as a number that has the same order.
pub fn ordered(score: f64) -> u64 {
    let bits = score.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The bound of a segment in the order of scores that begins with this item.
pub(super) fn bound(first: &Unit<'_>) -> u64 {
    ordered(score(first.first))
}

fn write(bytes: &mut Vec<u8>, score: f64, name: &[u8]) {
    bytes.extend_from_slice(&8u32.to_le_bytes());
    bytes.extend_from_slice(&score.to_le_bytes());
    bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
    bytes.extend_from_slice(name);
}

/// Score and name.
type Member = (f64, Vec<u8>);

fn members<'a>(units: impl Iterator<Item = Unit<'a>>) -> Vec<Member> {
    units.map(|unit| (score(unit.first), unit.name.to_vec())).collect()
}

/// The score of an item of the second side.
fn item_score(item: &[u8]) -> f64 {
    units(crate::object::Type::SortedSet, item).next().map_or(0.0, |unit| score(unit.first))
}

fn order(one: (f64, &[u8]), other: (f64, &[u8])) -> Ordering {
    one.0.total_cmp(&other.0).then_with(|| one.1.cmp(other.1))
}

impl Working<'_> {
    /// The scores of some members.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn scores(&self, names: &[&[u8]]) -> Result<Vec<Option<f64>>, Trouble> {
        self.want(1, self.named(1, names.iter().copied()))?;
        names.iter().map(|name| self.item(1, name, item_score)).collect()
    }

    /// The segment in which a member of this score is, or would be.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    fn located(&self, of: f64, name: &[u8]) -> Result<usize, Trouble> {
        let (parts, bound) = (self.parts(0), ordered(of));
        // The last segment that begins with this score or a lower one, and those before it that
        // begin with it too.
        let (mut low, mut high) = (
            parts.partition_point(|part| part.bound < bound).saturating_sub(1),
            parts.partition_point(|part| part.bound <= bound).saturating_sub(1),
        );
        while low < high {
            let middle = (low + high).div_ceil(2);
            let bytes = self.bytes(0, middle)?;
            let first = units(self.kind, &bytes).next().ok_or(Trouble::Corrupt)?;
            if order((score(first.first), first.name), (of, name)).is_le() {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(low)
    }

    /// How many members come before one, which is there.
    ///
    /// # Errors
    /// As of [`Working::bytes`]. [`Trouble::Corrupt`]: it is on the other side alone.
    pub fn rank(&self, of: f64, name: &[u8]) -> Result<usize, Trouble> {
        let n = self.located(of, name)?;
        let bytes = self.bytes(0, n)?;
        let before = self.parts(0)[..n].iter().map(|part| part.count as usize).sum::<usize>();
        let is_it = |unit: Unit<'_>| order((score(unit.first), unit.name), (of, name)).is_eq();
        let there = units(self.kind, &bytes).position(is_it).ok_or(Trouble::Corrupt)?;
        Ok(before + there)
    }

    /// How many members have a score that is not `beyond` one: a lower one, or the same if `with`
    /// says so.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn below(&self, of: f64, with: bool) -> Result<usize, Trouble> {
        // There is one zero.
        let (parts, bound) = (self.parts(0), ordered(of + 0.0));
        let is_below = |other: u64| other < bound || with && other == bound;
        let n = parts.partition_point(|part| is_below(part.bound));
        let Some(n) = n.checked_sub(1) else { return Ok(0) };
        let bytes = self.bytes(0, n)?;
        let before = parts[..n].iter().map(|part| part.count as usize).sum::<usize>();
        Ok(before + units(self.kind, &bytes).take_while(|unit| is_below(ordered(score(unit.first)))).count())
    }

    /// Changes the members of some names. `edit` gets those, in no order.
    ///
    /// # Errors
    /// Those of `edit`, and as of [`Working::bytes`].
    pub fn change_members<'n, T, E: From<Trouble>>(
        &mut self,
        names: impl IntoIterator<Item = &'n [u8]>,
        edit: impl FnOnce(&mut Vec<Member>) -> Result<T, E>,
    ) -> Result<T, E> {
        let sought = self.seek(1, names)?;
        let mut scores = vec![None; sought.len()];
        self.found(1, &sought, |n, item| scores[n] = Some(item_score(item)))?;
        let there = |(one, score): (&Sought<'_>, &Option<f64>)| score.map(|score| (score, one.name.to_vec()));
        let mut members: Vec<Member> = sought.iter().zip(&scores).filter_map(there).collect();
        let outcome = edit(&mut members)?;
        let mut after: HashMap<&[u8], f64> = members.iter().map(|(score, name)| (&name[..], *score)).collect();
        let after: Vec<Option<f64>> = sought.iter().map(|one| after.remove(one.name)).collect();
        let mut changes = Vec::with_capacity(sought.len());
        for (one, (&old, &new)) in sought.iter().zip(scores.iter().zip(&after)) {
            if old.map(f64::to_bits) != new.map(f64::to_bits) {
                changes.push((one.name, old, new));
            }
        }
        // All that they need is wanted at once.
        let places =
            changes.iter().flat_map(|&(name, old, new)| [old, new].into_iter().flatten().map(move |at| (name, at)));
        let mut lacks = false;
        for (name, at) in places {
            match self.located(at, name).and_then(|n| self.want(0, [n])) {
                Err(Trouble::Unread) => lacks = true,
                looked => looked?,
            }
        }
        if lacks {
            return Err(Trouble::Unread.into());
        }
        self.put(1, &sought, |n, item| after[n].into_iter().for_each(|score| write(item, score, sought[n].name)))?;
        for (name, old, new) in changes {
            self.reorder(name, old, new)?;
        }
        Ok(outcome)
    }

    /// A member has another score in the order, comes there, or goes.
    fn reorder(&mut self, name: &[u8], old: Option<f64>, new: Option<f64>) -> Result<(), Trouble> {
        if let Some(old) = old {
            let n = self.located(old, name)?;
            let (body, mut at) = (self.bytes(0, n)?, 0);
            let mut range = None;
            for unit in units(self.kind, &body) {
                if unit.name == name {
                    range = Some(at..at + unit.bytes.len());
                    break;
                }
                at += unit.bytes.len();
            }
            drop(body);
            self.alter(0, n, range.ok_or(Trouble::Corrupt)?, &[], -1)?;
            self.settle(0, n)?;
        }
        let Some(new) = new else { return Ok(()) };
        let mut item = Vec::with_capacity(16 + name.len());
        write(&mut item, new, name);
        if self.parts(0).is_empty() {
            self.splice(0, 0..0, &item);
            return Ok(());
        }
        let n = self.located(new, name)?;
        let body = self.bytes(0, n)?;
        let comes_before = |unit: &Unit<'_>| order((score(unit.first), unit.name), (new, name)).is_lt();
        let at: usize = units(self.kind, &body).take_while(comes_before).map(|unit| unit.bytes.len()).sum();
        drop(body);
        self.alter(0, n, at..at, &item, 1)
    }

    /// Takes the members of some ranks out.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn take_ranks(&mut self, of: Range<usize>) -> Result<Vec<Member>, Trouble> {
        let taken = members(self.window(of.clone())?.units());
        let sought = self.seek(1, taken.iter().map(|(_, name)| &name[..]))?;
        self.put(1, &sought, |_, _| {})?;
        self.take_out(of)?;
        Ok(taken)
    }
}
