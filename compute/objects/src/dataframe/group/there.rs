//! Groups at the nodes that hold the columns.
//!
//! A node groups a part if one column of whole numbers is the key, at most one column is bounded,
//! and no column has nulls. All chunks of the part must be away. The node sends 40 bytes a group,
//! where the part has up to 192 KiB. It refuses parts with many groups.

use super::super::expr::{Test, kind};
use super::super::selected::Acc;
use super::super::{Column, PART, Selected, Value};
use super::{Agg, How};
use crate::Result;
use farmem::near::{Columned, Group, Grouped, Kind};

/// The most groups of a part.
const ROOM: u32 = 400;
/// Parts that are asked for before any of them is added.
pub(super) const WINDOW: usize = 64;

/// A part's groups: the bits of each key, and an account for each aggregate.
pub(super) type Part = Vec<(u64, Vec<Acc>)>;

/// Asks nodes for groups.
pub(super) struct There<'a> {
    of: &'a Selected<'a>,
    key: &'a Column,
    tested: Option<&'a Column>,
    group: Group,
    /// Columns whose values are summed, and their kinds.
    values: Vec<(&'a Column, Kind)>,
    /// Of each aggregate, which of these it is of. `None`: it counts rows.
    aggs: Vec<Option<usize>>,
}

impl<'a> There<'a> {
    /// `None`: this is nothing for a node. `values`: the column of each aggregate.
    pub fn new(
        of: &'a Selected<'a>,
        (used, test): (&[usize], Option<&Test>),
        key: usize,
        aggs: &[Agg],
        values: &[usize],
    ) -> Option<There<'a>> {
        let whole = |at: usize| Some(&of.frame.columns[at]).filter(|column| column.valid.is_none());
        let key = whole(key)?;
        let (tested, least, most) = match test {
            None => (None, 0, 0),
            Some(Test::Within(at, bounds)) => {
                let (least, most) = bounds.bits();
                (Some(whole(used[*at])?), least, most)
            }
            Some(_) => return None,
        };
        let key_kind = kind(key.kind)?;
        let test = match tested {
            Some(tested) => Some(kind(tested.kind)?),
            None => None,
        };
        let (mut summed, mut places) = (Vec::new(), Vec::new());
        for (agg, &at) in aggs.iter().zip(values) {
            let column = whole(at)?;
            places.push(match agg.how {
                How::Rows | How::Count => None,
                _ => Some((at, kind(column.kind)?)),
            });
        }
        for (at, kind) in places.iter().flatten() {
            if !summed.iter().any(|(other, _)| other == at) {
                summed.push((*at, *kind));
            }
        }
        let place = |(at, _): (usize, Kind)| summed.iter().position(|(other, _)| *other == at);
        let aggs = places.into_iter().map(|agg| agg.and_then(place)).collect();
        let mut values: Vec<_> = summed.iter().map(|&(at, kind)| (&of.frame.columns[at], kind)).collect();
        if values.is_empty() {
            values.push((key, key_kind));
        }
        // The kind of the values is each call's own.
        let group = Group { key: key_kind, value: key_kind, test, least, most, room: ROOM };
        Some(There { of, key, tested, group, values, aggs })
    }

    /// Asks for some parts. `None` for each that is to be looked at here. False: nodes are not to
    /// be asked again, because there are too many groups.
    pub fn ask(&self, parts: std::ops::Range<usize>) -> Result<(Vec<Option<Part>>, bool)> {
        let frame = self.of.frame;
        let mut lane = frame.heap.inner.lane()?;
        let mut asked = Vec::new();
        for part in parts.clone() {
            let rows = part * PART..frame.rows.min((part + 1) * PART);
            let away = |column| self.of.away(column, &rows);
            let Some(keys) = away(self.key) else { continue };
            let tests = self.tested.map(away);
            let values: Option<Vec<_>> = self.values.iter().map(|(column, _)| away(column)).collect();
            let (Some(values), false) = (values, tests == Some(None)) else { continue };
            let node = keys.0.node();
            if lane.near().computes(node) && values.iter().chain(&tests.flatten()).all(|(at, _)| at.node() == node) {
                let columned = |&values| Columned { keys, values, tests: tests.flatten() };
                asked.push((part - parts.start, values.iter().map(columned).collect::<Vec<_>>()));
            }
        }
        let mut found: Vec<Vec<Option<Vec<Grouped>>>> = vec![Vec::new(); asked.len()];
        for (n, &(_, value)) in self.values.iter().enumerate() {
            let columns: Vec<Columned> = asked.iter().map(|(_, columns)| columns[n]).collect();
            let groups = lane.near().group(&columns, &Group { value, ..self.group })?;
            let is_over = groups.iter().any(Option::is_none);
            found.iter_mut().zip(groups).for_each(|(found, groups)| found.push(groups));
            if is_over {
                return Ok((vec![None; parts.len()], false));
            }
        }
        let mut all = vec![None; parts.len()];
        for ((part, _), groups) in asked.iter().zip(found) {
            all[*part] = self.part(groups.into_iter().flatten().collect());
        }
        Ok((all, true))
    }

    /// `None`: a sum may have wrapped, or the groups of the columns are not the same.
    fn part(&self, columns: Vec<Vec<Grouped>>) -> Option<Part> {
        let (first, others) = columns.split_first()?;
        let is_same = |(a, b): (&Grouped, &Grouped)| (a.key, a.found.count) == (b.key, b.found.count);
        if !others.iter().all(|other| other.len() == first.len() && first.iter().zip(other).all(is_same)) {
            return None;
        }
        let group = |(n, group): (usize, &Grouped)| {
            let acc = |agg: &Option<usize>| match agg {
                Some(column) => Acc::of_found(&columns[*column][n].found),
                None => Some(Acc::of_rows(group.found.count)),
            };
            Some((group.key, self.aggs.iter().map(acc).collect::<Option<Vec<Acc>>>()?))
        };
        first.iter().enumerate().map(group).collect()
    }

    /// The value of a key.
    pub fn key(&self, bits: u64) -> Value {
        match self.group.key {
            Kind::U32 | Kind::U64 => Value::U64(bits),
            Kind::I32 => Value::I64((bits as u32 as i32).into()),
            Kind::I64 => Value::I64(bits as i64),
            Kind::F64 => Value::Null,
        }
    }
}
