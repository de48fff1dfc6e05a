//! Groups of rows that have the same values in some columns.
//!
//! The table of groups is near: some 200 bytes a group and aggregate. Groups are in the order in
//! which their first rows come. Nulls are a group of their own.
//!
//! Parts that are away are grouped by their nodes where these compute ([`there`]), and others here.
//! Both add floats in the same order: within a part in the order of its rows, and then the parts'
//! sums.

mod there;

use super::expr::place;
use super::selected::{Acc, each};
use super::{FarFrame, PART, Selected, Series, Steps, Table, Type, Value, View, position};
use crate::{Error, Result};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use there::There;

/// One column of the result: an aggregate of a column's values, by group.
#[derive(Clone, Debug)]
pub struct Agg {
    how: How,
    column: String,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Sum,
    Min,
    Max,
    Mean,
    Count,
    Rows,
}

impl Agg {
    fn new(how: How, column: impl Into<String>) -> Agg {
        Agg { how, column: column.into() }
    }

    /// The sum of a column, named `column_sum`. Floats are added by parts of 8192 rows,
    /// and then in the order of the parts.
    pub fn sum(column: impl Into<String>) -> Agg {
        Agg::new(How::Sum, column)
    }

    /// The least value, named `column_min`.
    pub fn min(column: impl Into<String>) -> Agg {
        Agg::new(How::Min, column)
    }

    /// The greatest value, named `column_max`.
    pub fn max(column: impl Into<String>) -> Agg {
        Agg::new(How::Max, column)
    }

    /// The mean, named `column_mean`.
    pub fn mean(column: impl Into<String>) -> Agg {
        Agg::new(How::Mean, column)
    }

    /// Values that are not null, named `column_count`.
    pub fn count(column: impl Into<String>) -> Agg {
        Agg::new(How::Count, column)
    }

    /// Rows, named `rows`.
    pub fn rows() -> Agg {
        Agg::new(How::Rows, "")
    }

    fn name(&self) -> String {
        let how = match self.how {
            How::Sum => "sum",
            How::Min => "min",
            How::Max => "max",
            How::Mean => "mean",
            How::Count => "count",
            How::Rows => return "rows".into(),
        };
        format!("{}_{how}", self.column)
    }

    /// The type of its column in the result.
    fn kind(&self, of: Type) -> Type {
        match (self.how, of) {
            (How::Count | How::Rows, _) => Type::U64,
            (How::Mean, _) | (How::Sum, Type::F64) => Type::F64,
            (How::Sum, Type::U64 | Type::Bool) => Type::U64,
            (How::Sum, _) => Type::I64,
            (How::Min | How::Max, kind) => kind,
        }
    }

    fn value(&self, acc: &Acc, kind: Type) -> Result<Value> {
        Ok(match self.how {
            How::Sum => acc.sum(&self.column, kind)?,
            How::Min => acc.min(kind),
            How::Max => acc.max(kind),
            How::Mean => acc.mean(kind),
            How::Count | How::Rows => Value::U64(acc.count),
        })
    }
}

/// Groups of a frame's rows ([`FarFrame::group`]).
#[derive(Clone, Debug)]
pub struct Groups<'a> {
    of: Selected<'a>,
    keys: Vec<String>,
}

/// The numbers of groups.
enum Numbers {
    /// By one key of a fixed width, and of rows where it is null.
    Words(HashMap<u64, usize, Mix>, Option<usize>),
    /// By all keys, one behind the other.
    Bytes(HashMap<Vec<u8>, usize>, Vec<u8>),
}

/// Hashes one word, by a multiplication with a number that is drawn for each table. So a choice of
/// keys does not choose their places.
#[derive(Clone, Copy)]
struct Mix(u64);

impl Mix {
    fn new() -> Mix {
        Mix(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Mix {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        *self
    }
}

impl Hasher for Mix {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(word ^ self.0) * u128::from(self.0 | 1);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Numbers {
    /// The number of a row's group. `new`: the number of one that comes first here.
    #[inline]
    fn of(&mut self, keys: &[&View<'_>], row: usize, new: usize) -> usize {
        match self {
            Numbers::Words(_, null) if !keys[0].is_valid(row) => *null.get_or_insert(new),
            Numbers::Words(words, _) => *words.entry(keys[0].word(row)).or_insert(new),
            Numbers::Bytes(known, bytes) => {
                bytes.clear();
                keys.iter().for_each(|key| key.append_to(row, bytes));
                match known.get(bytes) {
                    Some(&number) => number,
                    None => {
                        known.insert(bytes.clone(), new);
                        new
                    }
                }
            }
        }
    }
}

impl View<'_> {
    /// The bits of a value of fixed width.
    #[inline]
    pub(super) fn word(&self, row: usize) -> u64 {
        match self.kind {
            Type::I32 => u32::from_le_bytes(self.fours()[row]).into(),
            Type::Bool => super::series::bit(self.values, row).into(),
            _ => u64::from_le_bytes(self.eights()[row]),
        }
    }

    /// A value as bytes that no other value of its column has, and that tell where they end.
    pub(super) fn append_to(&self, row: usize, bytes: &mut Vec<u8>) {
        if !self.is_valid(row) {
            return bytes.push(0);
        }
        bytes.push(1);
        if self.kind == Type::Text {
            let text = self.text(row);
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text);
        } else {
            bytes.extend_from_slice(&self.word(row).to_le_bytes());
        }
    }
}

/// The place of a key column, which floats cannot be.
pub(super) fn key(frame: &FarFrame, name: &str) -> Result<usize> {
    let at = position(&frame.columns, name)?;
    match frame.columns[at].kind {
        Type::F64 => Err(Error::column(name, "is f64: rows are put together by integers, bools and texts")),
        _ => Ok(at),
    }
}

impl<'a> Groups<'a> {
    pub(super) fn new(of: Selected<'a>, keys: &[&str]) -> Groups<'a> {
        Groups { of, keys: keys.iter().map(|&key| key.to_owned()).collect() }
    }

    /// A row for each group: its keys, and its aggregates. Groups are in the order in which their
    /// first rows come.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Column`], [`Error::Memory`].
    pub fn of(&self, aggs: &[Agg]) -> Result<Table> {
        let frame = self.of.frame;
        let (mut used, test) = self.of.compiled()?;
        let mut keys = Vec::new();
        for name in &self.keys {
            keys.push(place(&mut used, key(frame, name)?));
        }
        if keys.is_empty() {
            return Err(Error::column("", "is no key: name the columns whose values make a group"));
        }
        let mut values = Vec::new();
        for agg in aggs {
            let at = if agg.how == How::Rows { used[keys[0]] } else { position(&frame.columns, &agg.column)? };
            let kind = frame.columns[at].kind;
            if kind == Type::Text && !matches!(agg.how, How::Rows | How::Count) {
                return Err(Error::column(&agg.column, "is text: numbers and bools are summed"));
            }
            values.push((place(&mut used, at), kind));
        }
        let is_word = keys.len() == 1 && frame.columns[used[keys[0]]].kind != Type::Text;
        let numbers = match is_word {
            true => Numbers::Words(HashMap::with_hasher(Mix::new()), None),
            false => Numbers::Bytes(HashMap::new(), Vec::new()),
        };
        let of = |&key: &usize| (frame.columns[used[key]].name.clone(), Series::new(frame.columns[used[key]].kind));
        let table = keys.iter().map(of).collect();
        let there = match is_word {
            true => {
                let columns: Vec<usize> = values.iter().map(|&(at, _)| used[at]).collect();
                There::new(&self.of, (&used, test.as_ref()), used[keys[0]], aggs, &columns)
            }
            false => None,
        };
        let mut gathered = Gathered { aggs, values: &values, keys: &keys, numbers, table, accs: Vec::new(), groups: 0 };
        gathered.all(frame, &used, test.as_ref(), there)?;
        let Gathered { mut table, accs, .. } = gathered;
        for (n, (agg, &(_, kind))) in aggs.iter().zip(&values).enumerate() {
            let mut near = Series::new(agg.kind(kind));
            for acc in accs.iter().skip(n).step_by(aggs.len()) {
                near.push(agg.value(&acc.whole(), kind)?);
            }
            table.push((agg.name(), near));
        }
        Table::new(table)
    }
}

/// The account of a group and an aggregate: of all parts before the last one, and of that one.
#[derive(Clone, Copy)]
struct Parts {
    before: Acc,
    last: Acc,
    number: usize,
}

impl Parts {
    const NONE: Parts = Parts { before: Acc::NONE, last: Acc::NONE, number: 0 };

    /// The account of a part. Parts come in order.
    #[inline]
    fn of(&mut self, number: usize) -> &mut Acc {
        if self.number != number {
            *self = Parts { before: self.whole(), last: Acc::NONE, number };
        }
        &mut self.last
    }

    fn whole(&self) -> Acc {
        self.before.and(self.last)
    }
}

/// Groups as they are found.
struct Gathered<'a> {
    aggs: &'a [Agg],
    /// Of each aggregate, the place of its column among the views, and its type.
    values: &'a [(usize, Type)],
    /// The places of the keys.
    keys: &'a [usize],
    numbers: Numbers,
    table: Vec<(String, Series)>,
    /// Of each group, one for each aggregate.
    accs: Vec<Parts>,
    groups: usize,
}

impl Gathered<'_> {
    fn all(
        &mut self,
        frame: &FarFrame,
        used: &[usize],
        test: Option<&super::expr::Test>,
        mut there: Option<There<'_>>,
    ) -> Result<()> {
        let parts = frame.rows.div_ceil(PART);
        let mut first = 0;
        while first < parts {
            let end = if there.is_some() { parts.min(first + there::WINDOW) } else { parts };
            let mut found = vec![None; end - first];
            if let Some(asks) = &there {
                let (groups, again) = asks.ask(first..end)?;
                found = groups;
                if !again {
                    there = None;
                }
            }
            let is_here: Vec<bool> = found.iter().map(Option::is_none).collect();
            let mut found = (first..end).zip(found).peekable();
            let rows = first * PART..frame.rows.min(end * PART);
            if is_here.contains(&true) {
                Steps::new(frame, used)?.visit(
                    rows,
                    |part| is_here[part - first],
                    |row, views| {
                        let part = row / PART;
                        while let Some((number, groups)) = found.next_if(|(number, _)| *number < part) {
                            self.add(number, groups, there.as_ref());
                        }
                        self.look(part, views, &Selected::passing(test, views, views[0].rows));
                        Ok(())
                    },
                )?;
            }
            found.for_each(|(number, groups)| self.add(number, groups, there.as_ref()));
            first = end;
        }
        Ok(())
    }

    /// Adds rows of a part.
    fn look(&mut self, part: usize, views: &[View<'_>], rows: &super::expr::Rows) {
        let keys: Vec<&View<'_>> = self.keys.iter().map(|&key| &views[key]).collect();
        each(rows, |row| {
            let number = self.numbers.of(&keys, row, self.groups);
            if number == self.groups {
                self.table.iter_mut().zip(&keys).for_each(|((_, near), key)| near.push_of(key, row));
                self.grow();
            }
            let accs = &mut self.accs[number * self.aggs.len()..][..self.aggs.len()];
            for ((agg, &(at, _)), acc) in self.aggs.iter().zip(self.values).zip(accs) {
                if agg.how == How::Rows {
                    acc.of(part).count += 1;
                } else if views[at].is_valid(row) {
                    acc.of(part).add(&views[at], row);
                }
            }
        });
    }

    /// Adds a part that its node has grouped.
    fn add(&mut self, part: usize, groups: Option<there::Part>, there: Option<&There<'_>>) {
        let (Some(groups), Some(there)) = (groups, there) else { return };
        for (key, accs) in groups {
            let Numbers::Words(words, _) = &mut self.numbers else { return };
            let number = *words.entry(key).or_insert(self.groups);
            if number == self.groups {
                self.table[0].1.push(there.key(key));
                self.grow();
            }
            for (acc, of_part) in self.accs[number * self.aggs.len()..].iter_mut().zip(accs) {
                let acc = acc.of(part);
                *acc = acc.and(of_part);
            }
        }
    }

    fn grow(&mut self) {
        self.groups += 1;
        self.accs.resize(self.groups * self.aggs.len(), Parts::NONE);
    }
}
