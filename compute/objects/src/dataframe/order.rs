//! Rows by their numbers, sorts and joins.
//!
//! Near memory holds what is compared: of a sort some 24 bytes a row, of a join some 16 bytes a row
//! of the right frame; and texts that are compared. Rows are moved in parts.

use super::group::key;
use super::steps::{gathered, ranges};
use super::{Column, FarFrame, PART, STEP, Series, Steps, Table, Text, Type, View, Writer, position, series};
use crate::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;

/// A number of a row that stands for none: all its values are null.
pub(super) const NONE: u64 = u64::MAX;

/// How a column is sorted. NaNs are greater than all numbers; nulls come last in either order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The least first.
    Ascending,
    /// The greatest first.
    Descending,
}

/// Which rows of the left frame a join has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// Those with a partner.
    Inner,
    /// All; those without a partner once, with nulls.
    Left,
}

/// The keys of a sort, by row. The flag puts nulls last.
enum Keys {
    Words(Vec<(bool, u64)>),
    Texts(Vec<(bool, Vec<u8>)>),
}

impl FarFrame {
    /// A frame of these rows, in this order.
    ///
    /// # Errors
    /// [`Error::Index`]: there is no such row. [`Error::Memory`]
    pub fn take(&self, rows: &[u64]) -> Result<FarFrame> {
        let mut writer = self.writer()?;
        for some in rows.chunks(PART) {
            writer.append(&self.taken(some)?)?;
        }
        writer.finish()
    }

    /// Copies of these rows, in this order.
    ///
    /// # Errors
    /// As [`FarFrame::take`].
    pub fn gather(&self, rows: &[u64]) -> Result<Table> {
        let mut all = self.taken(&[])?;
        for some in rows.chunks(PART) {
            let table = self.taken(some)?;
            all.columns_mut().zip(table.columns()).for_each(|(all, (_, some))| all.append(some));
        }
        Ok(all)
    }

    pub(super) fn taken(&self, rows: &[u64]) -> Result<Table> {
        if let Some(&row) = rows.iter().find(|&&row| row >= self.rows as u64) {
            return Err(Error::Index { index: row as usize, len: self.rows });
        }
        self.taken_or_null(rows)
    }

    /// … of which [`NONE`] has nulls alone.
    fn taken_or_null(&self, rows: &[u64]) -> Result<Table> {
        let columns = self.columns.iter().map(|column| Ok((column.name.clone(), self.column_at(column, rows)?)));
        Table::new(columns.collect::<Result<Vec<_>>>()?)
    }

    /// A column's values in these rows.
    fn column_at(&self, column: &Column, rows: &[u64]) -> Result<Series> {
        let there: Vec<usize> = rows.iter().filter(|&&row| row != NONE).map(|&row| row as usize).collect();
        let bits = |of| -> Result<series::Bits> {
            let places: Vec<usize> = there.iter().map(|row| row / 8).collect();
            let bytes = gathered(self, of, &places, 1)?;
            Ok(bytes.iter().zip(&there).map(|(byte, row)| byte >> (row % 8) & 1 == 1).collect())
        };
        let mut near = match column.kind {
            Type::Bool => Series { values: series::Values::Bool(bits(&column.values)?), valid: None },
            Type::Text => self.texts_at(column, &there)?,
            kind => {
                let each = super::width(kind) / 8;
                let places: Vec<usize> = there.iter().map(|row| row * each).collect();
                Series::of_bytes(kind, &gathered(self, &column.values, &places, each)?)
            }
        };
        near.valid = column.valid.as_ref().map(bits).transpose()?;
        if there.len() == rows.len() {
            return Ok(near);
        }
        let (mut with_nulls, mut next) = (Series::new(column.kind), 0);
        for &row in rows {
            if row == NONE {
                with_nulls.push_null();
            } else {
                with_nulls.push(near.get(next));
                next += 1;
            }
        }
        Ok(with_nulls)
    }

    fn texts_at(&self, column: &Column, rows: &[usize]) -> Result<Series> {
        let mut near = Series::new(Type::Text);
        let Some(text) = &column.text else { return Ok(near) };
        // The end of each, and of the one before it.
        let places: Vec<usize> = rows.iter().flat_map(|&row| [8 * row.saturating_sub(1), 8 * row]).collect();
        let ends = gathered(self, &column.values, &places, 8)?;
        let ends = ends.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|ends| ends.map(u64::from_le_bytes));
        let places = rows.iter().zip(ends).map(|(&row, [before, end])| {
            let part = text.of_part(row / PART);
            let from = if row == 0 { 0 } else { before as usize }.clamp(part.start, part.end);
            from..(end as usize).clamp(from, part.end)
        });
        let mut places: Vec<_> = places.collect();
        text.bound(rows, &mut places);
        let bytes = ranges(self, &text.bytes, &places)?;
        let mut rest = &bytes[..];
        for place in &places {
            let (text, more) = rest.split_at(place.len());
            near.push_text(text);
            rest = more;
        }
        Ok(near)
    }

    /// The numbers of all rows in the order of these columns, the first above all; rows that are
    /// alike keep their order.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Memory`].
    pub fn sort_index(&self, by: &[(&str, Order)]) -> Result<Vec<u64>> {
        let mut order: Vec<u64> = (0..self.rows as u64).collect();
        for &(name, how) in by.iter().rev() {
            let is_down = how == Order::Descending;
            // Rows that are alike keep the order that the later columns gave them.
            match self.keys(position(&self.columns, name)?)? {
                Keys::Words(mut keys) => {
                    if is_down {
                        keys.iter_mut().for_each(|(_, key)| *key = !*key);
                    }
                    order.sort_by_key(|&row| keys[row as usize]);
                }
                Keys::Texts(keys) => order.sort_by(|&one, &other| {
                    let (one, other) = (&keys[one as usize], &keys[other as usize]);
                    let texts = one.1.cmp(&other.1);
                    one.0.cmp(&other.0).then(if is_down { texts.reverse() } else { texts })
                }),
            }
        }
        Ok(order)
    }

    /// A frame of all rows in the order of these columns.
    ///
    /// # Errors
    /// As [`FarFrame::sort_index`].
    pub fn sort(&self, by: &[(&str, Order)]) -> Result<FarFrame> {
        self.take(&self.sort_index(by)?)
    }

    /// A column's values as words, or texts, of the same order.
    fn keys(&self, column: usize) -> Result<Keys> {
        let is_text = self.columns[column].kind == Type::Text;
        let (mut words, mut texts) = (Vec::new(), Vec::new());
        Steps::new(self, &[column])?.visit(
            0..self.rows,
            |_| true,
            |_, views| {
                let view = &views[0];
                for row in 0..view.rows {
                    let is_null = !view.is_valid(row);
                    if is_text {
                        texts.push((is_null, if is_null { Vec::new() } else { view.text(row).to_owned() }));
                    } else {
                        words.push((is_null, if is_null { 0 } else { ordered(view.kind, view.word(row)) }));
                    }
                }
                Ok(())
            },
        )?;
        // A descending sort complements words; nulls are alike all the same.
        Ok(if is_text { Keys::Texts(texts) } else { Keys::Words(words) })
    }

    /// The rows of both frames that have the same value in a column, which is in both: the left
    /// frame's columns, and the right one's others. A name that the left frame has gets `_right`.
    /// Rows are in the order of the left frame's, then of the right one's. A null has no partner.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Column`]: it has different types, or is a float.
    /// [`Error::Memory`]
    pub fn join(&self, right: &FarFrame, on: &str, how: Join) -> Result<FarFrame> {
        let (at, other) = (key(self, on)?, key(right, on)?);
        if self.columns[at].kind != right.columns[other].kind {
            let (left, right) = (self.columns[at].kind.name(), right.columns[other].kind.name());
            return Err(Error::column(on, format!("is {left} on the left, and {right} on the right")));
        }
        let partners = right.rows_by(other)?;
        let mut names: Vec<String> = self.columns.iter().map(|column| column.name.clone()).collect();
        let mut kinds: Vec<Type> = self.columns.iter().map(|column| column.kind).collect();
        for column in right.columns.iter().filter(|column| column.name != on) {
            let is_taken = names.contains(&column.name);
            names.push(if is_taken { format!("{}_right", column.name) } else { column.name.clone() });
            kinds.push(column.kind);
        }
        let mut writer = Writer::new(&self.heap, names.iter().cloned().zip(kinds))?;
        // A left row, and the right rows that it goes with. Pairs are made of some at a time: one key in
        // all rows of both frames makes as many pairs as the product of their rows.
        let mut found: Vec<(u64, &[u64])> = Vec::new();
        let mut join = |found: &mut Vec<_>| {
            let mut all = pairs(&found[..]);
            loop {
                let (left, others): (Vec<u64>, Vec<u64>) = all.by_ref().take(PART).unzip();
                if left.is_empty() {
                    break;
                }
                let (left, others) = (self.taken_or_null(&left)?, right.taken_or_null(&others)?);
                let others = others.columns().iter().filter(|(name, _)| name != on);
                let both = left.columns().iter().chain(others).map(|(_, series)| series.clone());
                writer.append(&Table::new(names.iter().cloned().zip(both))?)?;
            }
            drop(all);
            found.clear();
            Ok(())
        };
        let mut bytes = Vec::new();
        let look = |found: &mut Vec<_>, first: usize, views: &[View<'_>]| {
            for row in 0..views[0].rows {
                bytes.clear();
                views[0].append_to(row, &mut bytes);
                let left = (first + row) as u64;
                match partners.get(&bytes).filter(|_| views[0].is_valid(row)) {
                    Some(all) => found.push((left, &all[..])),
                    None if how == Join::Left => found.push((left, &[NONE][..])),
                    None => {}
                }
            }
            Ok(())
        };
        let tell = |found: &mut Vec<_>| {
            let is_part = pairs(&found[..]).nth(PART - STEP).is_some();
            if is_part { join(found) } else { Ok(()) }
        };
        Steps::new(self, &[at])?.visit_with(&mut found, 0..self.rows, |_| true, look, tell)?;
        join(&mut found)?;
        writer.finish()
    }

    /// The numbers of the rows that have each value of a column.
    fn rows_by(&self, column: usize) -> Result<HashMap<Vec<u8>, Vec<u64>>> {
        let (mut rows, mut bytes) = (HashMap::<Vec<u8>, Vec<u64>>::new(), Vec::new());
        Steps::new(self, &[column])?.visit(
            0..self.rows,
            |_| true,
            |first, views| {
                for row in (0..views[0].rows).filter(|&row| views[0].is_valid(row)) {
                    bytes.clear();
                    views[0].append_to(row, &mut bytes);
                    match rows.get_mut(&bytes) {
                        Some(all) => all.push((first + row) as u64),
                        None => {
                            rows.insert(bytes.clone(), vec![(first + row) as u64]);
                        }
                    }
                }
                Ok(())
            },
        )?;
        Ok(rows)
    }
}

/// A left row with each of the right rows that it goes with.
fn pairs<'a>(found: &'a [(u64, &'a [u64])]) -> impl Iterator<Item = (u64, u64)> + 'a {
    found.iter().flat_map(|&(left, all)| all.iter().map(move |&one| (left, one)))
}

impl Text {
    /// Empties texts that are longer than their part's longest one, and those of rows that are
    /// together longer than their part: a node lies about their places, and each might be as long
    /// as all.
    fn bound(&self, rows: &[usize], places: &mut [Range<usize>]) {
        let (mut left, mut seen) = (HashMap::new(), HashMap::new());
        for (&row, place) in rows.iter().zip(places) {
            let place_of_row = seen.entry(row).or_insert_with(|| {
                let left = left.entry(row / PART).or_insert_with(|| self.of_part(row / PART).len());
                let is_one = place.len() as u64 <= self.longest_of(row / PART);
                match left.checked_sub(place.len()).filter(|_| is_one) {
                    Some(rest) => {
                        *left = rest;
                        place.clone()
                    }
                    None => place.start..place.start,
                }
            });
            *place = place_of_row.clone();
        }
    }
}

/// The bits of a value as a word of the same order. Zeros are alike, and so are NaNs.
fn ordered(kind: Type, word: u64) -> u64 {
    match kind {
        Type::I64 => word ^ 1 << 63,
        Type::I32 => i64::from(word as u32 as i32) as u64 ^ 1 << 63,
        Type::F64 => {
            let value = f64::from_bits(word);
            let bits = match value {
                _ if value.is_nan() => f64::NAN.abs().to_bits(),
                0.0 => 0,
                _ => word,
            };
            if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
        }
        Type::U64 | Type::Bool | Type::Text => word,
    }
}

#[cfg(test)]
mod tests {
    use crate::dataframe::{PART, Table};
    use crate::{Heap, Result};
    use farmem_memory::{Config, Node};

    /// A node may say of each text that it is as long as all: rows get no more bytes than there are, and no
    /// text is longer than the longest of its part.
    #[test]
    fn ends_that_lie_give_no_more_text_than_there_is() -> Result<()> {
        const LONG: usize = 100;
        let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
        let node = Node::start(&Config::new(128 << 20, listen)).unwrap();
        let heap = Heap::builder().local("1M").node(node.addresses()[0].to_string()).build()?;
        let texts: Vec<String> = (0..PART + 1000).map(|n| format!("{n:0>LONG$}")).collect();
        let columns = [("text", texts.clone().into()), ("n", (0..texts.len() as u64).collect::<Vec<_>>().into())];
        let mut frame = heap.frame(&Table::new(columns)?)?;
        let some: Vec<u64> = (0..PART as u64 + 1000).step_by(3).chain([7, 7, 7]).collect();
        assert_eq!(frame.gather(&some)?.column("text")?.get(some.len() - 1), texts[7].as_str().into());
        // Every other text of a part is all of it.
        let all = (PART * LONG) as u64;
        for row in (0..PART).step_by(2) {
            let ends = [0, all].map(u64::to_le_bytes).concat();
            frame.columns[0].values.set_range(8 * row, &ends)?;
        }
        let bytes = |table: &Table| -> Result<usize> {
            Ok(table.column("text")?.iter().map(|text| format!("{text:?}").len() - r#"Text("")"#.len()).sum())
        };
        let rows = frame.rows(0..PART + 1000)?;
        assert!(bytes(&rows)? <= (PART + 1000) * LONG, "{}", bytes(&rows)?);
        assert_eq!(rows.column("text")?.get(PART + 999), texts[PART + 999].as_str().into());
        let taken = frame.gather(&(0..PART as u64).collect::<Vec<_>>())?;
        assert!(bytes(&taken)? <= PART * LONG, "{}", bytes(&taken)?);
        // One row of a part, and few rows of many parts, get no more than as many texts may have.
        for few in [&[1][..], &[1, 3, PART as u64 + 5]] {
            let taken = frame.gather(few)?;
            assert!(bytes(&taken)? <= few.len() * LONG, "{few:?}: {}", bytes(&taken)?);
        }
        let first = frame.rows(0..2)?;
        assert!(bytes(&first)? <= 2 * LONG, "{}", bytes(&first)?);
        assert_eq!(frame.take(&[PART as u64 + 999])?.rows(0..1)?.row(0)[0], texts[PART + 999].as_str().into());
        Ok(())
    }
}
