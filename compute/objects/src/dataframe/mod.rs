//! Data frames ([`FarFrame`]): tables whose columns lie in far memory. (The places of local objects
//! are called frames, too: [`crate::frames`].)
//!
//! ```text
//! frame ── column "day": values    │ chunk │ chunk │ …     8192 rows are a part
//!       │                bitmap    │ chunk │ …             (of rows that are not null)
//!       ├─ column "fare": …
//! ```
//!
//! | file | |
//! |---|---|
//! | `series` | near columns and tables: what goes in, and results |
//! | `expr` | conditions, and what they say of 512 rows |
//! | `steps` | streams of rows, and pieces at many places |
//! | `selected` | rows that pass a condition: counted, summed, collected |
//! | `group`, `order` | groups; rows by number, sorts, joins |
//! | `arrow` | in and out by Arrow's C data interface |
//!
//! A frame does not change. Each operation reads far memory in parts, and writes its result to a new
//! frame, or to a near table where the result is small.
//!
//! *Sums of floats* are the same to the last bit wherever they are taken. Within a part, values are
//! added in order, beginning with +0.0; then the parts' sums are added in order. Groups add their
//! values in the order of the rows.

mod arrow;
mod expr;
mod group;
mod order;
mod selected;
mod series;
mod steps;

use crate::frames::copied;
use crate::{CHUNK, Error, FarVec, Heap, Result};
pub use arrow::{ArrowArray, ArrowSchema};
pub use expr::{Col, Expr, col};
pub use group::{Agg, Groups};
pub use order::{Join, Order};
pub use selected::{Selected, Totals};
use series::{Bits, Values};
pub use series::{Series, Table, Type, Value};
use std::ops::Range;
use steps::{Steps, View};
use zerocopy::IntoBytes;

/// Rows of a part, which are written, read ahead and summed together.
const PART: usize = 8192;
/// Rows that are looked at together: a chunk of 8-byte values.
const STEP: usize = CHUNK / 8;
/// Rows of a frame, at most.
const MOST: usize = 1 << 40;

/// A column. Rows that are null have some value.
struct Column {
    name: String,
    kind: Type,
    /// Values one behind the other; bits of bools; of text, where each value ends, as 8 bytes.
    values: FarVec<u8>,
    /// A bit for each row that is not null. `None`: none is.
    valid: Option<FarVec<u8>>,
    text: Option<Text>,
}

/// The bytes of a column of text.
struct Text {
    bytes: FarVec<u8>,
    /// Where each part begins, and where the last ends.
    parts: Vec<u64>,
    /// Bytes of each part's longest text. A node that says of one that it is longer lies.
    longest: Vec<u64>,
}

impl Text {
    fn of_part(&self, number: usize) -> Range<usize> {
        let at = |n: usize| self.parts.get(n).map_or(self.bytes.len(), |&at| at as usize);
        at(number)..at(number + 1)
    }

    fn longest_of(&self, number: usize) -> u64 {
        self.longest.get(number).copied().unwrap_or_default()
    }
}

impl Column {
    fn new(heap: &Heap, name: &str, kind: Type) -> Column {
        let text = (kind == Type::Text).then(|| Text { bytes: heap.vec(), parts: vec![0], longest: Vec::new() });
        Column { name: name.to_owned(), kind, values: heap.vec(), valid: None, text }
    }

    /// Bytes of its values in a step.
    fn bytes_of_step(&self) -> usize {
        STEP * width(self.kind) / 8
    }

    /// Appends a part, of which the last alone may be shorter.
    fn write(&mut self, heap: &Heap, rows: usize, part: &Series) -> Result<()> {
        match &part.values {
            Values::U64(values) => self.values.append_run(values.as_bytes())?,
            Values::I64(values) => self.values.append_run(values.as_bytes())?,
            Values::F64(values) => self.values.append_run(values.as_bytes())?,
            Values::I32(values) => self.values.append_run(values.as_bytes())?,
            Values::Bool(bits) => self.values.extend_from_slice(&bits.bytes)?,
            Values::Text { ends, bytes } => {
                let Some(text) = &mut self.text else { return Ok(()) };
                let from = text.bytes.len() as u64;
                text.bytes.extend_from_slice(bytes)?;
                text.parts.push(text.bytes.len() as u64);
                text.longest.push(ends.windows(2).map(|both| (both[1] - both[0]) as u64).max().unwrap_or_default());
                let ends: Vec<u64> = ends[1..].iter().map(|&end| from + end as u64).collect();
                self.values.append_run(ends.as_bytes())?;
            }
        }
        if part.valid.is_some() && self.valid.is_none() {
            let mut valid = heap.vec();
            valid.extend_from_slice(&Bits::ones(rows).bytes)?;
            self.valid = Some(valid);
        }
        if let Some(valid) = &mut self.valid {
            let all = Bits::ones(part.len());
            valid.extend_from_slice(&part.valid.as_ref().unwrap_or(&all).bytes)?;
        }
        Ok(())
    }
}

/// How far a column is written.
struct Mark {
    values: usize,
    valid: Option<usize>,
    /// Bytes of text, and entries of [`Text::parts`].
    text: Option<(usize, usize)>,
}

impl Column {
    fn mark(&self) -> Mark {
        let text = self.text.as_ref().map(|text| (text.bytes.len(), text.parts.len()));
        Mark { values: self.values.len(), valid: self.valid.as_ref().map(FarVec::len), text }
    }

    /// Drops what was written since.
    fn cut(&mut self, mark: &Mark) {
        self.values.truncate(mark.values);
        self.valid = self.valid.take().filter(|_| mark.valid.is_some());
        if let (Some(valid), Some(len)) = (&mut self.valid, mark.valid) {
            valid.truncate(len);
        }
        if let (Some(text), Some((bytes, parts))) = (&mut self.text, mark.text) {
            text.bytes.truncate(bytes);
            text.parts.truncate(parts);
            text.longest.truncate(parts - 1);
        }
    }
}

/// Bits of a value.
fn width(kind: Type) -> usize {
    match kind {
        Type::U64 | Type::I64 | Type::F64 | Type::Text => 64,
        Type::I32 => 32,
        Type::Bool => 1,
    }
}

/// The column of this name.
fn position(columns: &[Column], name: &str) -> Result<usize> {
    let found = columns.iter().position(|column| column.name == name);
    found.ok_or_else(|| Error::no_column(name, columns.iter().map(|column| column.name.as_str())))
}

/// Writes a frame, table by table. Near it keeps the rows of one part.
pub struct Writer {
    frame: FarFrame,
    pending: Table,
}

impl Writer {
    fn new(heap: &Heap, columns: impl IntoIterator<Item = (String, Type)>) -> Result<Writer> {
        let (mut far, mut near) = (Vec::new(), Vec::new());
        for (name, kind) in columns {
            far.push(Column::new(heap, &name, kind));
            near.push((name, Series::new(kind)));
        }
        Ok(Writer { frame: FarFrame { heap: heap.clone(), columns: far, rows: 0 }, pending: Table::new(near)? })
    }

    /// Appends rows. The first table says which columns there are.
    ///
    /// # Errors
    /// [`Error::Column`]: the table's columns are not the frame's. [`Error::Memory`]: the nodes have
    /// no room. None of these rows is there then, and all that came before are.
    pub fn append(&mut self, table: &Table) -> Result<()> {
        if self.frame.columns.is_empty() && self.frame.rows == 0 {
            let columns = table.columns().iter().map(|(name, series)| (name.clone(), series.kind()));
            *self = Writer::new(&self.frame.heap, columns)?;
        }
        for (column, other) in self.frame.columns.iter().zip(table.columns()) {
            if column.name != other.0 || column.kind != other.1.kind() {
                let why =
                    format!("is {} here, and {:?} ({}) comes", column.kind.name(), other.0, other.1.kind().name());
                return Err(Error::column(&column.name, why));
            }
        }
        if let Some(missing) = self.frame.columns.get(table.columns().len()) {
            return Err(Error::column(&missing.name, "is missing from the rows"));
        }
        if let Some((more, _)) = table.columns().get(self.frame.columns.len()) {
            return Err(Error::column(more, "is none of the frame's"));
        }
        if self.frame.rows + self.pending.len() + table.len() > MOST {
            return Err(Error::HeapFull);
        }
        // Columns are written one after the other, and any of them may find no room.
        let is_written = self.pending.len() + table.len() >= PART;
        let before = is_written.then(|| {
            let marks: Vec<Mark> = self.frame.columns.iter().map(Column::mark).collect();
            (self.pending.clone(), self.frame.rows, marks)
        });
        for (near, (_, series)) in self.pending.columns_mut().zip(table.columns()) {
            near.append(series);
        }
        let written = self.write_parts();
        if let (Err(_), Some((pending, rows, marks))) = (&written, before) {
            (self.pending, self.frame.rows) = (pending, rows);
            self.frame.columns.iter_mut().zip(&marks).for_each(|(column, mark)| column.cut(mark));
        }
        written
    }

    fn write_parts(&mut self) -> Result<()> {
        while self.pending.len() >= PART {
            self.write(PART)?;
        }
        Ok(())
    }

    fn write(&mut self, rows: usize) -> Result<()> {
        let FarFrame { heap, columns, rows: before } = &mut self.frame;
        for (column, near) in columns.iter_mut().zip(self.pending.columns_mut()) {
            column.write(heap, *before, &near.remove_first(rows))?;
        }
        *before += rows;
        Ok(())
    }

    /// The frame.
    ///
    /// # Errors
    /// As [`Writer::append`].
    pub fn finish(mut self) -> Result<FarFrame> {
        self.write_parts()?;
        if !self.pending.is_empty() {
            self.write(self.pending.len())?;
        }
        Ok(self.frame)
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("rows", &(self.frame.rows + self.pending.len())).finish_non_exhaustive()
    }
}

/// A table whose columns lie in far memory.
///
/// ```no_run
/// # use farmem_objects::{Agg, Heap, Result, Table, col};
/// # fn main() -> Result<()> {
/// let heap = Heap::builder().local("512M").node("bighost:7411").build()?;
/// let trips = heap.frame(&Table::new([
///     ("day", vec![3_i32, 90, 5].into()),
///     ("fare", vec![9.5_f64, 20.0, 7.25].into()),
/// ])?)?;
/// let total = trips.filter(col("day").lt(90)).sum("fare")?;
/// let days = trips.group(&["day"]).of(&[Agg::mean("fare"), Agg::rows()])?;
/// # Ok(())
/// # }
/// ```
pub struct FarFrame {
    heap: Heap,
    columns: Vec<Column>,
    rows: usize,
}

impl FarFrame {
    /// Rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Names and types of the columns, in order.
    pub fn columns(&self) -> impl Iterator<Item = (&str, Type)> {
        self.columns.iter().map(|column| (column.name.as_str(), column.kind))
    }

    /// The rows that pass a condition. Nothing is read before it is asked of them.
    pub fn filter(&self, condition: Expr) -> Selected<'_> {
        self.all().filter(condition)
    }

    /// All rows.
    pub fn all(&self) -> Selected<'_> {
        Selected::new(self)
    }

    /// Groups of the rows that have the same values in these columns.
    pub fn group(&self, keys: &[&str]) -> Groups<'_> {
        self.all().group(keys)
    }

    /// The first rows.
    ///
    /// # Errors
    /// As [`FarFrame::rows`].
    pub fn head(&self, n: usize) -> Result<Table> {
        self.rows(0..n.min(self.rows))
    }

    /// Copies of a range of rows.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::Memory`].
    pub fn rows(&self, range: Range<usize>) -> Result<Table> {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.rows_of(&all, range)
    }

    fn rows_of(&self, columns: &[usize], range: Range<usize>) -> Result<Table> {
        if range.start > range.end || range.end > self.rows {
            return Err(Error::Index { index: range.end.max(range.start), len: self.rows });
        }
        let mut table = self.near(columns)?;
        Steps::new(self, columns)?.visit(
            range.clone(),
            |_| true,
            |first, views| {
                for (near, view) in table.columns_mut().zip(views) {
                    let rows = range.start.max(first)..range.end.min(first + view.rows);
                    rows.for_each(|row| near.push_of(view, row - first));
                }
                Ok(())
            },
        )?;
        Ok(table)
    }

    /// An empty near table of some columns.
    fn near(&self, columns: &[usize]) -> Result<Table> {
        let of = |&at: &usize| (self.columns[at].name.clone(), Series::new(self.columns[at].kind));
        Table::new(columns.iter().map(of))
    }

    fn writer(&self) -> Result<Writer> {
        Writer::new(&self.heap, self.columns.iter().map(|column| (column.name.clone(), column.kind)))
    }
}

impl std::fmt::Debug for FarFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns: Vec<_> = self.columns().collect();
        f.debug_struct("FarFrame").field("rows", &self.rows).field("columns", &columns).finish_non_exhaustive()
    }
}

impl Heap {
    /// A frame of a near table's rows. [`Heap::frame_writer`] writes more than is near.
    ///
    /// # Errors
    /// [`Error::Memory`] where the nodes have no room, [`Error::ScopeFull`].
    pub fn frame(&self, table: &Table) -> Result<FarFrame> {
        let mut writer = self.frame_writer();
        writer.append(table)?;
        writer.finish()
    }

    /// For a frame that is written table by table.
    pub fn frame_writer(&self) -> Writer {
        Writer { frame: FarFrame { heap: self.clone(), columns: Vec::new(), rows: 0 }, pending: Table::default() }
    }
}

impl Series {
    /// Appends a value of a view.
    fn push_of(&mut self, view: &View<'_>, row: usize) {
        if !view.is_valid(row) {
            return self.push_null();
        }
        match &mut self.values {
            Values::U64(values) => values.push(u64::from_le_bytes(view.eights()[row])),
            Values::I64(values) => values.push(i64::from_le_bytes(view.eights()[row])),
            Values::F64(values) => values.push(f64::from_le_bytes(view.eights()[row])),
            Values::I32(values) => values.push(i32::from_le_bytes(view.fours()[row])),
            Values::Bool(bits) => bits.push(series::bit(view.values, row)),
            Values::Text { .. } => return self.push_text(view.text(row)),
        }
        self.pushed();
    }

    /// A column of values that lie one behind the other.
    fn of_bytes(kind: Type, bytes: &[u8]) -> Series {
        let values = match kind {
            Type::U64 => Values::U64(bytes.chunks_exact(8).map(copied).collect()),
            Type::I64 => Values::I64(bytes.chunks_exact(8).map(copied).collect()),
            Type::F64 => Values::F64(bytes.chunks_exact(8).map(copied).collect()),
            Type::I32 => Values::I32(bytes.chunks_exact(4).map(copied).collect()),
            Type::Bool | Type::Text => return Series::new(kind),
        };
        Series { values, valid: None }
    }
}
