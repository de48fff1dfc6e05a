//! Near columns and tables. They are a frame's input and its results.
//!
//! A near column is laid out as Arrow lays it out, so that it is handed over without a copy.

use crate::{Error, Result};

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// 64 bits without a sign.
    U64,
    /// 64 bits with a sign.
    I64,
    /// Floating point, 64 bits.
    F64,
    /// 32 bits with a sign.
    I32,
    /// True or false.
    Bool,
    /// UTF-8.
    Text,
}

impl Type {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Type::U64 => "u64",
            Type::I64 => "i64",
            Type::F64 => "f64",
            Type::I32 => "i32",
            Type::Bool => "bool",
            Type::Text => "text",
        }
    }
}

/// One value of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// There is none.
    Null,
    /// Of a column of `u64`; a count.
    U64(u64),
    /// Of a column of `i64` or `i32`.
    I64(i64),
    /// Of a column of `f64`; a mean.
    F64(f64),
    /// Of a column of `bool`.
    Bool(bool),
    /// Of a column of text.
    Text(String),
}

macro_rules! value_from {
    ($($from:ty => |$value:ident| $into:expr),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Value {
                $into
            }
        })*
    };
}
value_from! {
    u64 => |value| Value::U64(value),
    i64 => |value| Value::I64(value),
    i32 => |value| Value::I64(value.into()),
    f64 => |value| Value::F64(value),
    bool => |value| Value::Bool(value),
    &str => |value| Value::Text(value.to_owned()),
    String => |value| Value::Text(value),
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

/// Bits, the first in the lowest bit of the first byte. Bits behind the last are 0.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Bits {
    pub bytes: Vec<u8>,
    pub len: usize,
}

impl Bits {
    pub fn ones(len: usize) -> Bits {
        let mut bytes = vec![0xFF; len.div_ceil(8)];
        if let Some(last) = bytes.last_mut().filter(|_| !len.is_multiple_of(8)) {
            *last = (1 << (len % 8)) - 1;
        }
        Bits { bytes, len }
    }

    pub fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if bit {
            self.bytes[self.len / 8] |= 1 << (self.len % 8);
        }
        self.len += 1;
    }

    pub fn get(&self, at: usize) -> bool {
        bit(&self.bytes, at)
    }

    fn remove_first(&mut self, n: usize) -> Bits {
        let first: Bits = (0..n).map(|at| self.get(at)).collect();
        *self = (n..self.len).map(|at| self.get(at)).collect();
        first
    }
}

impl FromIterator<bool> for Bits {
    fn from_iter<I: IntoIterator<Item = bool>>(bits: I) -> Bits {
        let mut all = Bits::default();
        bits.into_iter().for_each(|one| all.push(one));
        all
    }
}

#[inline]
pub(crate) fn bit(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (at % 8) & 1 == 1
}

/// The values of a near column. A null has some value, which means nothing.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    Bool(Bits),
    /// Value n lies between `ends[n]` and `ends[n + 1]`.
    Text {
        ends: Vec<i64>,
        bytes: Vec<u8>,
    },
}

/// A near column.
#[derive(Clone, Debug)]
pub struct Series {
    pub(crate) values: Values,
    /// A bit for each value that is not null. `None`: none is.
    pub(crate) valid: Option<Bits>,
}

impl Series {
    /// An empty column.
    pub fn new(kind: Type) -> Series {
        let values = match kind {
            Type::U64 => Values::U64(Vec::new()),
            Type::I64 => Values::I64(Vec::new()),
            Type::F64 => Values::F64(Vec::new()),
            Type::I32 => Values::I32(Vec::new()),
            Type::Bool => Values::Bool(Bits::default()),
            Type::Text => Values::Text { ends: vec![0], bytes: Vec::new() },
        };
        Series { values, valid: None }
    }

    /// The type of its values.
    pub fn kind(&self) -> Type {
        match self.values {
            Values::U64(_) => Type::U64,
            Values::I64(_) => Type::I64,
            Values::F64(_) => Type::F64,
            Values::I32(_) => Type::I32,
            Values::Bool(_) => Type::Bool,
            Values::Text { .. } => Type::Text,
        }
    }

    /// Values, nulls with them.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::U64(values) => values.len(),
            Values::I64(values) => values.len(),
            Values::F64(values) => values.len(),
            Values::I32(values) => values.len(),
            Values::Bool(bits) => bits.len,
            Values::Text { ends, .. } => ends.len() - 1,
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nulls.
    pub fn nulls(&self) -> usize {
        self.valid.as_ref().map_or(0, |valid| (0..valid.len).filter(|&at| !valid.get(at)).count())
    }

    /// A value; behind the end, a null.
    pub fn get(&self, at: usize) -> Value {
        if at >= self.len() || self.valid.as_ref().is_some_and(|valid| !valid.get(at)) {
            return Value::Null;
        }
        match &self.values {
            Values::U64(values) => Value::U64(values[at]),
            Values::I64(values) => Value::I64(values[at]),
            Values::F64(values) => Value::F64(values[at]),
            Values::I32(values) => Value::I64(values[at].into()),
            Values::Bool(bits) => Value::Bool(bits.get(at)),
            Values::Text { ends, bytes } => {
                let text = &bytes[ends[at] as usize..ends[at + 1] as usize];
                Value::Text(String::from_utf8_lossy(text).into_owned())
            }
        }
    }

    /// Its values in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Appends a value of its type; one of another type is null.
    pub(crate) fn push(&mut self, value: Value) {
        match (&mut self.values, value) {
            (Values::U64(values), Value::U64(value)) => values.push(value),
            (Values::I64(values), Value::I64(value)) => values.push(value),
            (Values::I32(values), Value::I64(value)) => values.push(value as i32),
            (Values::F64(values), Value::F64(value)) => values.push(value),
            (Values::Bool(bits), Value::Bool(value)) => bits.push(value),
            (Values::Text { .. }, Value::Text(text)) => return self.push_text(text.as_bytes()),
            _ => return self.push_null(),
        }
        self.pushed();
    }

    /// Appends a null.
    pub(crate) fn push_null(&mut self) {
        let len = self.len();
        match &mut self.values {
            Values::U64(values) => values.push(0),
            Values::I64(values) => values.push(0),
            Values::F64(values) => values.push(0.0),
            Values::I32(values) => values.push(0),
            Values::Bool(bits) => bits.push(false),
            Values::Text { ends, .. } => ends.push(ends[len]),
        }
        self.valid.get_or_insert_with(|| Bits::ones(len)).push(false);
    }

    /// Notes that the value that was pushed last is none that is null.
    pub(crate) fn pushed(&mut self) {
        if let Some(valid) = &mut self.valid {
            valid.push(true);
        }
    }

    pub(crate) fn push_text(&mut self, text: &[u8]) {
        if let Values::Text { ends, bytes } = &mut self.values {
            bytes.extend_from_slice(text);
            ends.push(bytes.len() as i64);
        }
        self.pushed();
    }

    /// Appends all values of a column of the same type.
    pub(crate) fn append(&mut self, other: &Series) {
        let (before, more) = (self.len(), other.len());
        match (&mut self.values, &other.values) {
            (Values::U64(values), Values::U64(other)) => values.extend_from_slice(other),
            (Values::I64(values), Values::I64(other)) => values.extend_from_slice(other),
            (Values::F64(values), Values::F64(other)) => values.extend_from_slice(other),
            (Values::I32(values), Values::I32(other)) => values.extend_from_slice(other),
            (Values::Bool(bits), Values::Bool(other)) => (0..other.len).for_each(|at| bits.push(other.get(at))),
            (Values::Text { ends, bytes }, Values::Text { ends: other, bytes: more }) => {
                let from = bytes.len() as i64;
                bytes.extend_from_slice(more);
                ends.extend(other[1..].iter().map(|end| from + end));
            }
            _ => return,
        }
        if other.valid.is_some() && self.valid.is_none() {
            self.valid = Some(Bits::ones(before));
        }
        if let Some(valid) = &mut self.valid {
            (0..more).for_each(|at| valid.push(other.valid.as_ref().is_none_or(|other| other.get(at))));
        }
    }

    /// Takes the first `n` values out.
    pub(crate) fn remove_first(&mut self, n: usize) -> Series {
        fn first<T>(all: &mut Vec<T>, n: usize) -> Vec<T> {
            let rest = all.split_off(n);
            std::mem::replace(all, rest)
        }
        let values = match &mut self.values {
            Values::U64(values) => Values::U64(first(values, n)),
            Values::I64(values) => Values::I64(first(values, n)),
            Values::F64(values) => Values::F64(first(values, n)),
            Values::I32(values) => Values::I32(first(values, n)),
            Values::Bool(bits) => Values::Bool(bits.remove_first(n)),
            Values::Text { ends, bytes } => {
                let cut = ends[n];
                let mut head = first(ends, n);
                head.push(cut);
                ends.iter_mut().for_each(|end| *end -= cut);
                Values::Text { ends: head, bytes: first(bytes, cut as usize) }
            }
        };
        Series { values, valid: self.valid.as_mut().map(|valid| valid.remove_first(n)) }
    }
}

/// Two columns are equal when their types, nulls and values are. NaNs are equal.
impl PartialEq for Series {
    fn eq(&self, other: &Series) -> bool {
        let alike = |a: Value, b: Value| match (a, b) {
            (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            (a, b) => a == b,
        };
        self.kind() == other.kind()
            && self.len() == other.len()
            && self.iter().zip(other.iter()).all(|(a, b)| alike(a, b))
    }
}

macro_rules! series_from {
    ($($of:ty => $variant:ident),*) => {
        $(impl From<Vec<$of>> for Series {
            fn from(values: Vec<$of>) -> Series {
                Series { values: Values::$variant(values), valid: None }
            }
        }

        impl From<Vec<Option<$of>>> for Series {
            fn from(values: Vec<Option<$of>>) -> Series {
                let valid = values.iter().map(Option::is_some).collect();
                let values = values.into_iter().map(Option::unwrap_or_default).collect();
                Series { values: Values::$variant(values), valid: Some(valid) }
            }
        })*
    };
}
series_from!(u64 => U64, i64 => I64, f64 => F64, i32 => I32);

impl From<Vec<bool>> for Series {
    fn from(values: Vec<bool>) -> Series {
        Series { values: Values::Bool(values.into_iter().collect()), valid: None }
    }
}

impl From<Vec<Option<bool>>> for Series {
    fn from(values: Vec<Option<bool>>) -> Series {
        let valid = values.iter().map(Option::is_some).collect();
        let values = values.into_iter().map(Option::unwrap_or_default).collect();
        Series { values: Values::Bool(values), valid: Some(valid) }
    }
}

impl<T: AsRef<str>> FromIterator<Option<T>> for Series {
    /// A column of text.
    fn from_iter<I: IntoIterator<Item = Option<T>>>(values: I) -> Series {
        let mut series = Series::new(Type::Text);
        for value in values {
            match value {
                Some(text) => series.push_text(text.as_ref().as_bytes()),
                None => series.push_null(),
            }
        }
        series
    }
}

impl From<Vec<&str>> for Series {
    fn from(values: Vec<&str>) -> Series {
        values.into_iter().map(Some).collect()
    }
}

impl From<Vec<String>> for Series {
    fn from(values: Vec<String>) -> Series {
        values.into_iter().map(Some).collect()
    }
}

/// Near columns of the same length, by their names.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Table {
    columns: Vec<(String, Series)>,
}

impl Table {
    /// Columns in this order.
    ///
    /// # Errors
    /// [`Error::Column`]: a name is there twice, or a column is shorter or longer than the first.
    pub fn new<N: Into<String>>(columns: impl IntoIterator<Item = (N, Series)>) -> Result<Table> {
        let mut table = Table::default();
        for (name, series) in columns {
            let name = name.into();
            let rows = table.columns.first().map_or(series.len(), |(_, first)| first.len());
            if table.columns.iter().any(|(other, _)| *other == name) {
                return Err(Error::column(&name, "is there twice"));
            }
            if series.len() != rows {
                return Err(Error::column(&name, format!("has {} values, and the first column {rows}", series.len())));
            }
            table.columns.push((name, series));
        }
        Ok(table)
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |(_, series)| series.len())
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns, in order.
    pub fn columns(&self) -> &[(String, Series)] {
        &self.columns
    }

    pub(crate) fn into_columns(self) -> impl ExactSizeIterator<Item = Series> {
        self.columns.into_iter().map(|(_, series)| series)
    }

    pub(crate) fn columns_mut(&mut self) -> impl Iterator<Item = &mut Series> {
        self.columns.iter_mut().map(|(_, series)| series)
    }

    /// A column by its name.
    ///
    /// # Errors
    /// [`Error::NoColumn`]
    pub fn column(&self, name: &str) -> Result<&Series> {
        let found = self.columns.iter().find(|(other, _)| other == name);
        found
            .map(|(_, series)| series)
            .ok_or_else(|| Error::no_column(name, self.columns.iter().map(|(name, _)| name.as_str())))
    }

    /// One row, in the order of the columns.
    pub fn row(&self, at: usize) -> Vec<Value> {
        self.columns.iter().map(|(_, series)| series.get(at)).collect()
    }
}
