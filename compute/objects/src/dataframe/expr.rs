//! Conditions on the columns of a frame, and what they say of 512 rows.
//!
//! A comparison with a null is neither true nor false, as in SQL: such a row does not pass, and
//! does not pass the opposite condition. A NaN is unequal to all numbers, and neither less nor
//! greater.

use super::{Column, STEP, Type, Value, View, position};
use crate::{Error, Result};
use farmem::near::Kind;
use std::ops::{BitAnd, BitOr, Not};

/// A condition on a row ([`col`]).
#[derive(Clone, Debug)]
pub struct Expr(Node);

#[derive(Clone, Debug)]
enum Node {
    Compare(String, Compare, Value),
    IsNull(String),
    Both(Box<Node>, Box<Node>),
    Either(Box<Node>, Box<Node>),
    Not(Box<Node>),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Compare {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
}

/// A column in a condition: `col("day").lt(90)`.
#[derive(Clone, Debug)]
pub struct Col(String);

/// A column, by its name.
pub fn col(name: impl Into<String>) -> Col {
    Col(name.into())
}

impl Col {
    fn compare(self, how: Compare, with: impl Into<Value>) -> Expr {
        Expr(Node::Compare(self.0, how, with.into()))
    }

    /// Less than a constant.
    pub fn lt(self, than: impl Into<Value>) -> Expr {
        self.compare(Compare::Less, than)
    }

    /// Less than a constant, or equal.
    pub fn le(self, than: impl Into<Value>) -> Expr {
        self.compare(Compare::AtMost, than)
    }

    /// Greater than a constant.
    pub fn gt(self, than: impl Into<Value>) -> Expr {
        self.compare(Compare::Greater, than)
    }

    /// Greater than a constant, or equal.
    pub fn ge(self, than: impl Into<Value>) -> Expr {
        self.compare(Compare::AtLeast, than)
    }

    /// Equal to a constant.
    pub fn eq(self, to: impl Into<Value>) -> Expr {
        self.compare(Compare::Equal, to)
    }

    /// Not equal to a constant, and not null.
    pub fn ne(self, to: impl Into<Value>) -> Expr {
        self.compare(Compare::Equal, to).not()
    }

    /// Null.
    pub fn is_null(self) -> Expr {
        Expr(Node::IsNull(self.0))
    }

    /// Not null.
    pub fn not_null(self) -> Expr {
        self.is_null().not()
    }
}

impl Expr {
    /// Both hold.
    pub fn and(self, other: Expr) -> Expr {
        Expr(Node::Both(self.0.into(), other.0.into()))
    }

    /// One of them holds, or both.
    pub fn or(self, other: Expr) -> Expr {
        Expr(Node::Either(self.0.into(), other.0.into()))
    }

    /// It is false.
    #[allow(clippy::should_implement_trait, reason = "it does; this one chains")]
    pub fn not(self) -> Expr {
        Expr(Node::Not(self.0.into()))
    }
}

impl BitAnd for Expr {
    type Output = Expr;
    fn bitand(self, other: Expr) -> Expr {
        self.and(other)
    }
}

impl BitOr for Expr {
    type Output = Expr;
    fn bitor(self, other: Expr) -> Expr {
        self.or(other)
    }
}

impl Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        Expr::not(self)
    }
}

/// A condition that fits a frame: columns by their place among those it uses.
#[derive(Debug)]
pub(super) enum Test {
    Within(usize, Bounds),
    Bool(usize, bool),
    Text(usize, Compare2, Vec<u8>),
    IsNull(usize),
    Both(Box<Test>, Box<Test>),
    Either(Box<Test>, Box<Test>),
    Not(Box<Test>),
}

/// A comparison of texts, by their bytes.
pub(super) type Compare2 = fn(&[u8], &[u8]) -> bool;

/// Bounds of numbers, both included. None is within where the first is greater.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bounds {
    U64(u64, u64),
    I64(i64, i64),
    F64(f64, f64),
}

impl Bounds {
    /// As the bits of a node's bounds.
    pub fn bits(self) -> (u64, u64) {
        match self {
            Bounds::U64(least, most) => (least, most),
            Bounds::I64(least, most) => (least as u64, most as u64),
            Bounds::F64(least, most) => (least.to_bits(), most.to_bits()),
        }
    }

    fn and(self, other: Bounds) -> Option<Bounds> {
        Some(match (self, other) {
            (Bounds::U64(a, b), Bounds::U64(c, d)) => Bounds::U64(a.max(c), b.min(d)),
            (Bounds::I64(a, b), Bounds::I64(c, d)) => Bounds::I64(a.max(c), b.min(d)),
            _ => return None,
        })
    }
}

/// The kind that a node's scan sees in a column.
pub(super) fn kind(of: Type) -> Option<Kind> {
    match of {
        Type::U64 => Some(Kind::U64),
        Type::I64 => Some(Kind::I64),
        Type::F64 => Some(Kind::F64),
        Type::I32 => Some(Kind::I32),
        Type::Bool | Type::Text => None,
    }
}

impl Expr {
    /// Compiles it for a frame. `used`: the columns that it uses, which grow.
    pub(super) fn compile(&self, columns: &[Column], used: &mut Vec<usize>) -> Result<Test> {
        self.0.compile(columns, used)
    }
}

impl Node {
    fn compile(&self, columns: &[Column], used: &mut Vec<usize>) -> Result<Test> {
        Ok(match self {
            Node::Compare(name, how, with) => {
                let at = position(columns, name)?;
                let column = &columns[at];
                let at = place(used, at);
                match (column.kind, with) {
                    (_, Value::Null) => return Err(Error::column(name, "is compared with a null: use is_null()")),
                    (Type::Bool, Value::Bool(is)) if *how == Compare::Equal => Test::Bool(at, *is),
                    (Type::Text, Value::Text(text)) => Test::Text(at, how.of_texts(), text.clone().into_bytes()),
                    (kind, Value::U64(_) | Value::I64(_) | Value::F64(_)) if self::kind(kind).is_some() => {
                        Test::Within(at, bounds(kind, *how, with))
                    }
                    (kind, _) => {
                        let why = format!("is {}, and cannot be compared so with {with:?}", kind.name());
                        return Err(Error::column(name, why));
                    }
                }
            }
            Node::IsNull(name) => {
                let at = position(columns, name)?;
                Test::IsNull(place(used, at))
            }
            Node::Both(one, other) => match (one.compile(columns, used)?, other.compile(columns, used)?) {
                (Test::Within(at, one), Test::Within(same, other)) if at == same && one.and(other).is_some() => {
                    Test::Within(at, one.and(other).unwrap_or(one))
                }
                (one, other) => Test::Both(one.into(), other.into()),
            },
            Node::Either(one, other) => {
                Test::Either(one.compile(columns, used)?.into(), other.compile(columns, used)?.into())
            }
            Node::Not(one) => Test::Not(one.compile(columns, used)?.into()),
        })
    }
}

/// The place of a column among those that are used.
pub(super) fn place(used: &mut Vec<usize>, column: usize) -> usize {
    used.iter().position(|&one| one == column).unwrap_or_else(|| {
        used.push(column);
        used.len() - 1
    })
}

impl Compare {
    fn of_texts(self) -> Compare2 {
        match self {
            Compare::Less => |a, b| a < b,
            Compare::AtMost => |a, b| a <= b,
            Compare::Greater => |a, b| a > b,
            Compare::AtLeast => |a, b| a >= b,
            Compare::Equal => |a, b| a == b,
        }
    }
}

/// The range of a column's values that pass a comparison. It is exact also if the constant is of
/// another type.
fn bounds(kind: Type, how: Compare, with: &Value) -> Bounds {
    match kind {
        Type::F64 => of_floats(how, with),
        _ => of_integers(kind, how, with),
    }
}

fn of_integers(kind: Type, how: Compare, with: &Value) -> Bounds {
    let (low, high) = if kind == Type::U64 { (0, u64::MAX.into()) } else { (i64::MIN.into(), i128::from(i64::MAX)) };
    // The greatest integer that is not greater, and the least that is not less.
    let (floor, ceil) = match *with {
        Value::U64(value) => (i128::from(value), i128::from(value)),
        Value::I64(value) => (i128::from(value), i128::from(value)),
        // Beyond 64 bits the conversion saturates far outside of both types' ranges.
        Value::F64(value) if !value.is_nan() => (value.floor() as i128, value.ceil() as i128),
        _ => (i128::MIN, i128::MAX),
    };
    let is_nan = floor < ceil.saturating_sub(1);
    let (least, most) = match how {
        _ if is_nan => (1, 0),
        Compare::Less => (low, ceil.saturating_sub(1)),
        Compare::AtMost => (low, floor),
        Compare::Greater => (floor.saturating_add(1), high),
        Compare::AtLeast => (ceil, high),
        Compare::Equal => (ceil, floor),
    };
    let (least, most) = match least > high || most < low || least > most {
        true => (1, 0),
        false => (least.max(low), most.min(high)),
    };
    match kind {
        Type::U64 => Bounds::U64(least as u64, most as u64),
        _ => Bounds::I64(least as i64, most as i64),
    }
}

fn of_floats(how: Compare, with: &Value) -> Bounds {
    // The nearest floats below and above, or the number itself.
    let (below, above) = match *with {
        Value::F64(value) => (value, value),
        Value::I64(value) => around(value.into()),
        Value::U64(value) => around(value.into()),
        _ => (f64::NAN, f64::NAN),
    };
    let nothing = Bounds::F64(1.0, 0.0);
    if below.is_nan() {
        return nothing;
    }
    let (least, most) = match how {
        Compare::Less if above == f64::NEG_INFINITY => return nothing,
        Compare::Greater if below == f64::INFINITY => return nothing,
        Compare::Less => (f64::NEG_INFINITY, if below == above { down(below) } else { below }),
        Compare::AtMost => (f64::NEG_INFINITY, below),
        Compare::Greater => (if below == above { up(above) } else { above }, f64::INFINITY),
        Compare::AtLeast => (above, f64::INFINITY),
        Compare::Equal => (above, below),
    };
    Bounds::F64(least, most)
}

/// Zeros of both signs are one number.
fn down(value: f64) -> f64 {
    if value == 0.0 { -f64::from_bits(1) } else { value.next_down() }
}

fn up(value: f64) -> f64 {
    if value == 0.0 { f64::from_bits(1) } else { value.next_up() }
}

/// The floats next to an integer of at most 64 bits; both the same where it is one.
fn around(value: i128) -> (f64, f64) {
    let near = value as f64;
    match (near as i128).cmp(&value) {
        std::cmp::Ordering::Equal => (near, near),
        std::cmp::Ordering::Less => (near, near.next_up()),
        std::cmp::Ordering::Greater => (near.next_down(), near),
    }
}

/// Bits of the rows of a step.
pub(super) type Rows = [u64; STEP / 64];

/// A test's result for the rows of a step: true, false, or unknown because a value is null.
#[derive(Clone, Copy)]
pub(super) struct Said {
    /// It is true.
    pub is: Rows,
    /// It is true or false.
    known: Rows,
}

fn each(a: Rows, b: Rows, of: impl Fn(u64, u64) -> u64) -> Rows {
    std::array::from_fn(|n| of(a[n], b[n]))
}

/// The first `n` rows.
pub(super) fn first(n: usize) -> Rows {
    std::array::from_fn(|word| match n.saturating_sub(64 * word) {
        0 => 0,
        some if some >= 64 => u64::MAX,
        some => (1 << some) - 1,
    })
}

/// A bit for each of the values that pass.
#[inline]
fn passing<const N: usize>(values: &[[u8; N]], passes: impl Fn([u8; N]) -> bool) -> Rows {
    let mut rows = [0; STEP / 64];
    let (whole, rest) = values.as_chunks::<64>();
    for (row, some) in rows.iter_mut().zip(whole) {
        // Without a step that needs the one before, so that the CPU compares many at a time.
        let mut said = [0u8; 64];
        said.iter_mut().zip(some).for_each(|(said, &value)| *said = u8::from(passes(value)));
        *row = said.as_chunks::<8>().0.iter().rev().fold(0, |bits, &eight| bits << 8 | packed(eight));
    }
    if let Some(row) = rows.get_mut(whole.len()) {
        *row = rest.iter().rev().fold(0, |bits, &value| bits << 1 | u64::from(passes(value)));
    }
    rows
}

/// The lowest bits of eight bytes.
#[inline]
fn packed(eight: [u8; 8]) -> u64 {
    // Each byte's bit comes to a place of its own among the highest eight: no sum carries.
    (u64::from_le_bytes(eight) & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// A bitmap's bits of a step.
pub(super) fn bits(bytes: &[u8]) -> Rows {
    let mut rows = [0; STEP / 64];
    for (row, some) in rows.iter_mut().zip(bytes.chunks(8)) {
        *row = some.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    }
    rows
}

impl View<'_> {
    /// The rows whose value is not null.
    pub fn known(&self) -> Rows {
        let rows = first(self.rows);
        self.valid.map_or(rows, |valid| each(bits(valid), rows, |a, b| a & b))
    }
}

impl Test {
    /// Its result for a step.
    pub fn of(&self, views: &[View<'_>]) -> Said {
        let said = |at: usize, is: Rows| {
            let known = views[at].known();
            Said { is: each(is, known, |a, b| a & b), known }
        };
        match self {
            Test::Within(at, bounds) => said(*at, views[*at].within(*bounds)),
            Test::Bool(at, is) => said(*at, bits(views[*at].values).map(|row| if *is { row } else { !row })),
            Test::Text(at, passes, with) => {
                let mut rows = [0; STEP / 64];
                let view = &views[*at];
                (0..view.rows)
                    .filter(|&row| passes(view.text(row), with))
                    .for_each(|row| rows[row / 64] |= 1 << (row % 64));
                said(*at, rows)
            }
            Test::IsNull(at) => {
                let (known, all) = (views[*at].known(), first(views[*at].rows));
                Said { is: each(all, known, |a, b| a & !b), known: all }
            }
            Test::Both(one, other) => {
                let (a, b) = (one.of(views), other.of(views));
                let is_false = each(a.no(), b.no(), |a, b| a | b);
                let is = each(a.is, b.is, |a, b| a & b);
                Said { is, known: each(is, is_false, |a, b| a | b) }
            }
            Test::Either(one, other) => {
                let (a, b) = (one.of(views), other.of(views));
                let is_false = each(a.no(), b.no(), |a, b| a & b);
                let is = each(a.is, b.is, |a, b| a | b);
                Said { is, known: each(is, is_false, |a, b| a | b) }
            }
            Test::Not(one) => {
                let said = one.of(views);
                Said { is: said.no(), known: said.known }
            }
        }
    }
}

impl Said {
    fn no(&self) -> Rows {
        each(self.known, self.is, |known, is| known & !is)
    }
}

impl View<'_> {
    fn within(&self, bounds: Bounds) -> Rows {
        match bounds {
            Bounds::U64(least, most) => passing(self.eights(), |value| {
                let value = u64::from_le_bytes(value);
                least <= value && value <= most
            }),
            Bounds::I64(least, most) if self.kind == Type::I32 => passing(self.fours(), |value| {
                let value = i64::from(i32::from_le_bytes(value));
                least <= value && value <= most
            }),
            Bounds::I64(least, most) => passing(self.eights(), |value| {
                let value = i64::from_le_bytes(value);
                least <= value && value <= most
            }),
            Bounds::F64(least, most) => passing(self.eights(), |value| {
                let value = f64::from_le_bytes(value);
                least <= value && value <= most
            }),
        }
    }
}
