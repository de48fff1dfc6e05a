//! The rows of a frame that pass a condition: counted, summed, collected.
//!
//! A node that computes sums the parts of which nothing is local here, where a condition bounds one
//! column of numbers and no column has nulls. All other parts are streamed. Both ways add in the
//! same order.

use super::expr::{Bounds, Rows, Test, first, kind, place};
use super::{Column, Expr, FarFrame, Groups, PART, STEP, Steps, Table, Type, Value, View, position, series, width};
use crate::{Chunk, Error, FarBox, Result};
use farmem::near::{Columns, Found, Kind, Scanning};
use farmem::{Addr, Lane};
use std::ops::Range;

/// Rows that are collected together.
const TOGETHER: usize = PART;

/// The rows of a frame that pass a condition ([`FarFrame::filter`]).
#[derive(Clone, Debug)]
pub struct Selected<'a> {
    pub(super) frame: &'a FarFrame,
    condition: Option<Expr>,
}

/// Count, sum and extremes of a column's values that are not null.
#[derive(Clone, PartialEq, Debug)]
pub struct Totals {
    /// Values that are not null.
    pub count: u64,
    /// Their sum; of bools, how many are true.
    pub sum: Value,
    /// The least, null if there is none. NaNs are passed by.
    pub min: Value,
    /// The greatest, in the same way.
    pub max: Value,
    /// Their mean, null if there is none.
    pub mean: Value,
}

/// Running sums of values: count, sum, least, greatest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acc {
    pub count: u64,
    whole: i128,
    float: f64,
    least: i128,
    most: i128,
    low: f64,
    high: f64,
}

impl Acc {
    pub const NONE: Acc = Acc {
        count: 0,
        whole: 0,
        float: 0.0,
        least: i128::MAX,
        most: i128::MIN,
        low: f64::INFINITY,
        high: f64::NEG_INFINITY,
    };

    /// The count of some rows alone.
    pub fn of_rows(count: u64) -> Acc {
        Acc { count, ..Acc::NONE }
    }

    #[inline]
    fn whole(&mut self, value: i128) {
        self.count += 1;
        self.whole += value;
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    #[inline]
    fn float(&mut self, value: f64) {
        self.count += 1;
        self.float += value;
        self.low = if value < self.low { value } else { self.low };
        self.high = if value > self.high { value } else { self.high };
    }

    /// Both, `other` behind.
    pub fn and(self, other: Acc) -> Acc {
        Acc {
            count: self.count + other.count,
            whole: self.whole + other.whole,
            float: self.float + other.float,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            low: if other.low < self.low { other.low } else { self.low },
            high: if other.high > self.high { other.high } else { self.high },
        }
    }

    /// One value of a column of numbers or bools.
    #[inline]
    pub fn add(&mut self, view: &View<'_>, row: usize) {
        match view.kind {
            Type::U64 => self.whole(u64::from_le_bytes(view.eights()[row]).into()),
            Type::I64 => self.whole(i64::from_le_bytes(view.eights()[row]).into()),
            Type::I32 => self.whole(i32::from_le_bytes(view.fours()[row]).into()),
            Type::F64 => self.float(f64::from_le_bytes(view.eights()[row])),
            Type::Bool => self.whole(series::bit(view.values, row).into()),
            Type::Text => self.count += 1,
        }
    }

    /// The values of these rows, in order.
    fn add_all(&mut self, view: &View<'_>, rows: &Rows) {
        match view.kind {
            Type::F64 => self.add_floats(view.eights(), rows),
            _ => each(rows, |row| self.add(view, row)),
        }
    }

    /// The floats of these rows, in order. A copy is added to, which the CPU keeps in registers.
    fn add_floats(&mut self, values: &[[u8; 8]], rows: &Rows) {
        let mut acc = *self;
        for (some, &bits) in values.chunks(64).zip(rows) {
            if bits == u64::MAX {
                some.iter().for_each(|&value| acc.float(f64::from_le_bytes(value)));
                continue;
            }
            let mut bits = bits;
            while let Some(value) = some.get(bits.trailing_zeros() as usize) {
                acc.float(f64::from_le_bytes(*value));
                bits &= bits - 1;
            }
        }
        *self = acc;
    }

    /// A node's sum of a part; `None` where it may have wrapped.
    pub fn of_found(found: &Found) -> Option<Acc> {
        let mut acc = Acc { count: found.count, ..Acc::NONE };
        let [sum, least, most] = [found.sum, found.least, found.most];
        match found.kind {
            Kind::F64 => {
                (acc.float, acc.low, acc.high) = (f64::from_bits(sum), f64::from_bits(least), f64::from_bits(most));
                return Some(acc);
            }
            Kind::U32 | Kind::U64 => {
                (acc.whole, acc.least, acc.most) = (sum.into(), least.into(), most.into());
            }
            Kind::I32 | Kind::I64 => {
                let wide = |bits: u64| i128::from(bits as i64);
                (acc.whole, acc.least, acc.most) = (wide(sum), wide(least), wide(most));
            }
        }
        if found.count == 0 {
            return Some(Acc::NONE);
        }
        let far = acc.least.unsigned_abs().max(acc.most.unsigned_abs());
        (far.saturating_mul(found.count.into()) <= i64::MAX as u128).then_some(acc)
    }

    /// The sum, as a value of a column of this type.
    pub fn sum(&self, name: &str, kind: Type) -> Result<Value> {
        let fits = |value: Option<Value>| value.ok_or_else(|| Error::column(name, "has a sum beyond 64 bits"));
        match kind {
            Type::F64 => Ok(Value::F64(self.float)),
            Type::U64 | Type::Bool => fits(u64::try_from(self.whole).ok().map(Value::U64)),
            Type::I64 | Type::I32 => fits(i64::try_from(self.whole).ok().map(Value::I64)),
            Type::Text => Err(Error::column(name, "is text, which has no sum")),
        }
    }

    pub fn mean(&self, kind: Type) -> Value {
        match (self.count, kind) {
            (0, _) | (_, Type::Text) => Value::Null,
            (count, Type::F64) => Value::F64(self.float / count as f64),
            (count, _) => Value::F64(self.whole as f64 / count as f64),
        }
    }

    pub fn min(&self, kind: Type) -> Value {
        self.extreme(kind, self.least, self.low)
    }

    pub fn max(&self, kind: Type) -> Value {
        self.extreme(kind, self.most, self.high)
    }

    fn extreme(&self, kind: Type, whole: i128, float: f64) -> Value {
        match kind {
            _ if self.count == 0 => Value::Null,
            // Of NaNs alone, the low bound is above the high one.
            Type::F64 if self.low > self.high => Value::Null,
            Type::F64 => Value::F64(float),
            Type::U64 => Value::U64(whole as u64),
            Type::I64 | Type::I32 => Value::I64(whole as i64),
            Type::Bool => Value::Bool(whole == 1),
            Type::Text => Value::Null,
        }
    }
}

/// Calls `of` with the number of each row that has a bit.
#[inline]
pub(super) fn each(rows: &Rows, mut of: impl FnMut(usize)) {
    for (word, &bits) in rows.iter().enumerate() {
        let mut bits = bits;
        if bits == u64::MAX {
            (64 * word..64 * (word + 1)).for_each(&mut of);
            continue;
        }
        while bits != 0 {
            of(64 * word + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

impl<'a> Selected<'a> {
    pub(super) fn new(frame: &'a FarFrame) -> Selected<'a> {
        Selected { frame, condition: None }
    }

    /// Those that pass another condition, too.
    pub fn filter(mut self, condition: Expr) -> Selected<'a> {
        self.condition = Some(match self.condition {
            Some(before) => before.and(condition),
            None => condition,
        });
        self
    }

    /// Groups of them that have the same values in these columns.
    pub fn group(&self, keys: &[&str]) -> Groups<'a> {
        Groups::new(self.clone(), keys)
    }

    /// The columns that the condition uses, and the condition.
    pub(super) fn compiled(&self) -> Result<(Vec<usize>, Option<Test>)> {
        let mut used = Vec::new();
        let test = self.condition.as_ref().map(|condition| condition.compile(&self.frame.columns, &mut used));
        Ok((used, test.transpose()?))
    }

    /// How many there are.
    ///
    /// # Errors
    /// [`Error::NoColumn`], [`Error::Column`] of the condition; [`Error::Memory`].
    pub fn count(&self) -> Result<u64> {
        let (used, test) = self.compiled()?;
        let Some(test) = test else { return Ok(self.frame.rows as u64) };
        if let Test::Within(at, bounds) = test {
            let value = used[at];
            return Ok(self.gathered(used, Some(&Test::Within(at, bounds)), value)?.count);
        }
        let mut count = 0;
        let steps = Steps::new(self.frame, &used)?;
        steps.visit(
            0..self.frame.rows,
            |_| true,
            |_, views| {
                count += test.of(views).is.iter().map(|row| u64::from(row.count_ones())).sum::<u64>();
                Ok(())
            },
        )?;
        Ok(count)
    }

    /// The sum of a column: of floats a float, of `u64` and bools a `u64`, else an `i64`.
    ///
    /// # Errors
    /// As [`Selected::count`]; [`Error::Column`]: it is text, or the sum is beyond 64 bits.
    pub fn sum(&self, column: &str) -> Result<Value> {
        let (acc, kind) = self.acc(column)?;
        acc.sum(column, kind)
    }

    /// The least value of a column.
    ///
    /// # Errors
    /// As [`Selected::sum`].
    pub fn min(&self, column: &str) -> Result<Value> {
        self.acc(column).map(|(acc, kind)| acc.min(kind))
    }

    /// The greatest value of a column.
    ///
    /// # Errors
    /// As [`Selected::sum`].
    pub fn max(&self, column: &str) -> Result<Value> {
        self.acc(column).map(|(acc, kind)| acc.max(kind))
    }

    /// The mean of a column.
    ///
    /// # Errors
    /// As [`Selected::sum`].
    pub fn mean(&self, column: &str) -> Result<Value> {
        self.acc(column).map(|(acc, kind)| acc.mean(kind))
    }

    /// All of these, by one look.
    ///
    /// # Errors
    /// As [`Selected::sum`].
    pub fn totals(&self, column: &str) -> Result<Totals> {
        let (acc, kind) = self.acc(column)?;
        let (min, max, mean) = (acc.min(kind), acc.max(kind), acc.mean(kind));
        Ok(Totals { count: acc.count, sum: acc.sum(column, kind)?, min, max, mean })
    }

    fn acc(&self, column: &str) -> Result<(Acc, Type)> {
        let (used, test) = self.compiled()?;
        let value = position(&self.frame.columns, column)?;
        let kind = self.frame.columns[value].kind;
        if kind == Type::Text {
            return Err(Error::column(column, "is text: numbers and bools are summed"));
        }
        Ok((self.gathered(used, test.as_ref(), value)?, kind))
    }

    /// The sums of a column's values in the rows that pass.
    fn gathered(&self, mut used: Vec<usize>, test: Option<&Test>, value: usize) -> Result<Acc> {
        let frame = self.frame;
        let mut parts = vec![None; frame.rows.div_ceil(PART)];
        let mut lane = frame.heap.inner.lane()?;
        let (asked, mut scanning) = self.ask(&mut lane, &used, test, value).unzip();
        let asked = asked.unwrap_or_default();
        if let Some(scanning) = &mut scanning {
            scanning.go_on()?;
        }
        let at = place(&mut used, value);
        let mut streamed = vec![true; parts.len()];
        asked.iter().for_each(|&part| streamed[part] = false);
        loop {
            if streamed.contains(&true) {
                Steps::new(frame, &used)?.visit(
                    0..frame.rows,
                    |part| streamed[part],
                    |row, views| {
                        // Nodes look at their parts meanwhile.
                        if let Some(scanning) = &mut scanning {
                            scanning.go_on()?;
                        }
                        let known = views[at].known();
                        let rows = match test {
                            Some(test) => {
                                let said = test.of(views);
                                std::array::from_fn(|n| said.is[n] & known[n])
                            }
                            None => known,
                        };
                        parts[row / PART].get_or_insert(Acc::NONE).add_all(&views[at], &rows);
                        Ok(())
                    },
                )?;
            }
            let Some(scanning) = scanning.take() else { break };
            streamed.fill(false);
            for (&part, found) in asked.iter().zip(scanning.finish()?) {
                // A sum that may have wrapped is taken again here.
                parts[part] = Acc::of_found(&found);
                streamed[part] = parts[part].is_none();
            }
        }
        Ok(parts.into_iter().flatten().fold(Acc::NONE, Acc::and))
    }

    /// The parts that are nodes' to sum, and the scan of these. `None`: there are none.
    fn ask<'l>(
        &self,
        lane: &'l mut Lane,
        used: &[usize],
        test: Option<&Test>,
        value: usize,
    ) -> Option<(Vec<usize>, Scanning<'l>)> {
        let frame = self.frame;
        let value = &frame.columns[value];
        let (Some(summed), None) = (kind(value.kind), &value.valid) else { return None };
        let (tested, test, bounds) = match test {
            Some(Test::Within(at, bounds)) => {
                let column = &frame.columns[used[*at]];
                let (Some(kind), None) = (kind(column.kind), &column.valid) else { return None };
                (column, kind, *bounds)
            }
            // Any bits are within these.
            None if width(value.kind) == 64 => (value, Kind::U64, Bounds::U64(0, u64::MAX)),
            None => (value, Kind::U32, Bounds::U64(0, u32::MAX.into())),
            Some(_) => return None,
        };
        let (least, most) = bounds.bits();
        let columns = Columns { test, least, most, value: summed };
        let (mut numbers, mut pairs) = (Vec::new(), Vec::new());
        for number in 0..frame.rows.div_ceil(PART) {
            let rows = number * PART..frame.rows.min((number + 1) * PART);
            let both = (self.away(tested, &rows), self.away(value, &rows));
            if let (Some(tests), Some(values)) = both
                && tests.0.node() == values.0.node()
                && lane.near().computes(tests.0.node())
            {
                numbers.push(number);
                pairs.push((tests, values));
            }
        }
        (!numbers.is_empty()).then(|| (numbers, lane.near().scanning_columns(pairs, &columns)))
    }

    /// Where the values of some rows lie one behind the other, away.
    pub(super) fn away(&self, column: &Column, rows: &Range<usize>) -> Option<(Addr, u64)> {
        let inner = &self.frame.heap.inner;
        let bytes = |row: usize| row * width(column.kind) / 8;
        let (from, until) = (bytes(rows.start), bytes(rows.end));
        let chunks = &column.values.chunks()[from / crate::CHUNK..until.div_ceil(crate::CHUNK)];
        let mut first: Option<Addr> = None;
        for (n, chunk) in chunks.iter().enumerate() {
            if inner.is_local(FarBox::<Chunk>::CLASS, chunk.word()) {
                return None;
            }
            let at = inner.home(chunk.word())?;
            if !first.get_or_insert(at).is_beside((n * crate::CHUNK) as u64, at) {
                return None;
            }
        }
        Some((first?, (until - from) as u64))
    }

    /// The numbers of the rows that pass, by parts: `found` is called with some at a time.
    pub(super) fn numbers(&self, mut found: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
        let (used, test) = self.compiled()?;
        let mut numbers: Vec<u64> = Vec::new();
        let Some(test) = test else {
            for part in (0..self.frame.rows).step_by(TOGETHER) {
                numbers.clear();
                numbers.extend(part as u64..self.frame.rows.min(part + TOGETHER) as u64);
                found(&numbers)?;
            }
            return Ok(());
        };
        let look = |numbers: &mut Vec<u64>, first: usize, views: &[View<'_>]| {
            each(&test.of(views).is, |row| numbers.push((first + row) as u64));
            Ok(())
        };
        let tell = |numbers: &mut Vec<u64>| {
            if numbers.len() >= TOGETHER {
                found(numbers)?;
                numbers.clear();
            }
            Ok(())
        };
        Steps::new(self.frame, &used)?.visit_with(&mut numbers, 0..self.frame.rows, |_| true, look, tell)?;
        if numbers.is_empty() { Ok(()) } else { found(&numbers) }
    }

    /// Their numbers, near: 8 bytes a row.
    ///
    /// # Errors
    /// As [`Selected::count`].
    pub fn indices(&self) -> Result<Vec<u64>> {
        let mut all = Vec::new();
        self.numbers(|some| {
            all.extend_from_slice(some);
            Ok(())
        })?;
        Ok(all)
    }

    /// A frame of them.
    ///
    /// # Errors
    /// As [`Selected::count`], and where the nodes have no room.
    pub fn collect(&self) -> Result<FarFrame> {
        let mut writer = self.frame.writer()?;
        self.numbers(|some| writer.append(&self.frame.taken(some)?))?;
        writer.finish()
    }

    /// Copies of the first of them.
    ///
    /// # Errors
    /// As [`Selected::count`].
    pub fn head(&self, n: usize) -> Result<Table> {
        // A stream that has enough is ended by an error of our own.
        let (mut all, mut enough) = (Vec::new(), false);
        let ended = self.numbers(|some| {
            all.extend_from_slice(&some[..some.len().min(n - all.len())]);
            enough = all.len() == n;
            if enough { Err(Error::Index { index: n, len: n }) } else { Ok(()) }
        });
        match ended {
            Err(e) if !enough => Err(e),
            _ => self.frame.taken(&all),
        }
    }

    /// Rows that pass, of a step: all of them without a condition.
    pub(super) fn passing(test: Option<&Test>, views: &[View<'_>], rows: usize) -> Rows {
        test.map_or_else(|| first(rows.min(STEP)), |test| test.of(views).is)
    }
}
