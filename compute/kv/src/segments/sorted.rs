//! Sorted sets in segments: members in the order of their scores on the first side, and by their
//! names on the second.

use super::named::{FEW, distinct};
use super::{Unit, Working, units};
use crate::shard::Trouble;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
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
    /// As of [`Working::bytes`].
    pub fn rank(&self, of: f64, name: &[u8]) -> Result<usize, Trouble> {
        let n = self.located(of, name)?;
        let bytes = self.bytes(0, n)?;
        let before = self.parts(0)[..n].iter().map(|part| part.count as usize).sum::<usize>();
        let is_before = |unit: &Unit<'_>| order((score(unit.first), unit.name), (of, name)).is_lt();
        Ok(before + units(self.kind, &bytes).take_while(is_before).count())
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
        let names: Vec<&[u8]> = names.into_iter().collect();
        if names.len() <= FEW {
            return self.change_few(&distinct(&names), edit);
        }
        let names: HashSet<&[u8]> = names.into_iter().collect();
        let parts = self.named(1, names.iter().copied());
        let bytes = self.joined(1, &parts)?;
        let before = members(units(self.kind, &bytes).filter(|unit| names.contains(unit.name)));
        let mut after = before.clone();
        let outcome = edit(&mut after)?;
        let had: BTreeMap<&[u8], f64> = before.iter().map(|(score, name)| (&name[..], *score)).collect();
        let has: BTreeMap<&[u8], f64> = after.iter().map(|(score, name)| (&name[..], *score)).collect();
        let differs = |one: &BTreeMap<&[u8], f64>, other: &BTreeMap<&[u8], f64>| -> Vec<Member> {
            let others = one
                .iter()
                .filter(|(name, score)| other.get(*name).is_none_or(|other| other.to_bits() != score.to_bits()));
            others.map(|(name, score)| (*score, name.to_vec())).collect()
        };
        let (gone, come) = (differs(&had, &has), differs(&has, &had));
        if gone.is_empty() && come.is_empty() {
            return Ok(outcome);
        }
        let (mut new, mut left) = (Vec::with_capacity(bytes.len() + 64), has);
        for unit in units(self.kind, &bytes) {
            if !names.contains(unit.name) {
                new.extend_from_slice(unit.bytes);
            } else if let Some(score) = left.remove(unit.name) {
                write(&mut new, score, unit.name);
            }
        }
        left.into_iter().for_each(|(name, score)| write(&mut new, score, name));
        self.put_back(1, &parts, &new)?;
        self.reorder(&gone, &come)?;
        Ok(outcome)
    }

    /// [`Working::change_members`] of few, each named once.
    fn change_few<T, E: From<Trouble>>(
        &mut self,
        names: &[&[u8]],
        edit: impl FnOnce(&mut Vec<Member>) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = self.scores(names)?;
        let there = |(name, score): (&&[u8], &Option<f64>)| score.map(|score| (score, name.to_vec()));
        let mut members: Vec<Member> = names.iter().zip(&before).filter_map(there).collect();
        let outcome = edit(&mut members)?;
        let mut changes = Vec::with_capacity(names.len());
        for (&name, &old) in names.iter().zip(&before) {
            let new = members.iter().find(|(_, member)| member == name).map(|(score, _)| *score);
            if old.map(f64::to_bits) != new.map(f64::to_bits) {
                changes.push((name, old, new));
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
        for (name, old, new) in changes {
            self.change_one(name, old, new)?;
        }
        Ok(outcome)
    }

    /// A member gets another score, comes, or goes.
    fn change_one(&mut self, name: &[u8], old: Option<f64>, new: Option<f64>) -> Result<(), Trouble> {
        let mut item = Vec::with_capacity(16 + name.len());
        new.into_iter().for_each(|score| write(&mut item, score, name));
        self.set_item(1, name, new.map(|_| &item[..]))?;
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

    /// Takes members out of the order, and puts others in.
    fn reorder(&mut self, gone: &[Member], come: &[Member]) -> Result<(), Trouble> {
        let mut each: BTreeMap<usize, (Vec<&Member>, Vec<&Member>)> = BTreeMap::new();
        let mut lacks = false;
        for (which, members) in [gone, come].into_iter().enumerate() {
            for member in members {
                match self.located(member.0, &member.1) {
                    Ok(n) => {
                        let (out, into) = each.entry(n).or_default();
                        if which == 0 { out.push(member) } else { into.push(member) }
                    }
                    Err(Trouble::Unread) => lacks = true,
                    Err(trouble) => return Err(trouble),
                }
            }
        }
        lacks |= self.want(0, each.keys().copied()).is_err();
        if lacks {
            return Err(Trouble::Unread);
        }
        // From the last one on: whatever becomes of a segment, the numbers of those before it stay.
        // One that has become small may be joined with the one before it, which is changed next.
        for (n, (out, mut into)) in each.into_iter().rev() {
            let old = self.bytes(0, n)?;
            into.sort_by(|one, other| order((one.0, &one.1), (other.0, &other.1)));
            let (mut into, mut new) = (into.into_iter().peekable(), Vec::with_capacity(old.len() + 64));
            let out: HashSet<&[u8]> = out.iter().map(|member| member.1.as_slice()).collect();
            for unit in units(self.kind, &old) {
                let here = (score(unit.first), unit.name);
                while let Some(member) = into.next_if(|member| order((member.0, &member.1), here).is_lt()) {
                    write(&mut new, member.0, &member.1);
                }
                if !out.contains(unit.name) {
                    new.extend_from_slice(unit.bytes);
                }
            }
            into.for_each(|member| write(&mut new, member.0, &member.1));
            self.splice(0, n..n + 1, &new);
            self.settle(0, n)?;
        }
        Ok(())
    }

    /// Takes the members of some ranks out.
    ///
    /// # Errors
    /// As of [`Working::bytes`].
    pub fn take_ranks(&mut self, of: Range<usize>) -> Result<Vec<Member>, Trouble> {
        let taken = members(self.window(of.clone())?.units());
        if taken.len() <= FEW {
            self.want(1, self.named(1, taken.iter().map(|(_, name)| &name[..])))?;
            for (_, name) in &taken {
                self.set_item(1, name, None)?;
            }
            self.take_out(of)?;
            return Ok(taken);
        }
        let parts = self.named(1, taken.iter().map(|(_, name)| &name[..]));
        let names: HashSet<&[u8]> = taken.iter().map(|(_, name)| &name[..]).collect();
        let bytes = self.joined(1, &parts)?;
        let stays = units(self.kind, &bytes).filter(|unit| !names.contains(unit.name));
        let stays: Vec<u8> = stays.flat_map(|unit| unit.bytes.iter().copied()).collect();
        self.put_back(1, &parts, &stays)?;
        self.take_out(of)?;
        Ok(taken)
    }
}
