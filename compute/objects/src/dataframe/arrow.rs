//! Near tables by Arrow's C data interface: a struct array is a table, each child a column.
//!
//! * *Out*: the consumer gets the columns' own memory, without a copy, and gives it back by the
//!   release callback, on whatever thread. A far column is never in one run: rows of a frame are
//!   copied once, into a near table, which then leaves without another copy.
//! * *In*: one copy, into a near table, and from there to the nodes. What can be seen to be wrong is
//!   refused: structures that were released, rows and buffers that are missing, offsets, texts. That
//!   a buffer has as many bytes as the rows need is believed, as the interface has it.
//!
//! *Why a release is sound.* An exported structure owns its private data, a box made here, until
//! its callback takes it; then the callback is null, as the interface demands of both sides. A
//! child that the consumer has moved away has a null callback in the place it left.

#![allow(unsafe_code)] // C hands over pointers; see above.

use super::series::{Bits, Values};
use super::{Series, Table, Type};
use crate::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

/// `struct ArrowSchema`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the interface's own names")]
pub struct ArrowSchema {
    pub format: *const c_char,
    pub name: *const c_char,
    pub metadata: *const c_char,
    pub flags: i64,
    pub n_children: i64,
    pub children: *mut *mut ArrowSchema,
    pub dictionary: *mut ArrowSchema,
    pub release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the interface's own names")]
pub struct ArrowArray {
    pub length: i64,
    pub null_count: i64,
    pub offset: i64,
    pub n_buffers: i64,
    pub n_children: i64,
    pub buffers: *mut *const c_void,
    pub children: *mut *mut ArrowArray,
    pub dictionary: *mut ArrowArray,
    pub release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub private_data: *mut c_void,
}

/// Values may be null.
const NULLABLE: i64 = 2;

/// The memory of an exported array.
struct OwnedArray {
    _series: Option<Series>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
}

/// The memory of an exported schema.
struct OwnedSchema {
    format: CString,
    name: CString,
    children: Vec<*mut ArrowSchema>,
}

macro_rules! release {
    ($name:ident, $of:ident, $owned:ident) => {
        unsafe extern "C" fn $name(it: *mut $of) {
            // SAFETY: the consumer calls this once, with a structure that was filled here; the box
            // and the children's boxes were given away by `into_raw` there. A child that was moved
            // away has no callback.
            unsafe {
                let owned = Box::from_raw((*it).private_data.cast::<$owned>());
                for &child in &owned.children {
                    if let Some(release) = (*child).release {
                        release(child);
                    }
                    drop(Box::from_raw(child));
                }
                ((*it).release, (*it).private_data) = (None, null_mut());
            }
        }
    };
}
release!(release_array, ArrowArray, OwnedArray);
release!(release_schema, ArrowSchema, OwnedSchema);

fn array(length: usize, nulls: usize, owned: OwnedArray) -> ArrowArray {
    let mut owned = Box::new(owned);
    ArrowArray {
        length: length as i64,
        null_count: nulls as i64,
        offset: 0,
        n_buffers: owned.buffers.len() as i64,
        n_children: owned.children.len() as i64,
        buffers: owned.buffers.as_mut_ptr(),
        children: owned.children.as_mut_ptr(),
        dictionary: null_mut(),
        release: Some(release_array),
        private_data: Box::into_raw(owned).cast(),
    }
}

fn schema(format: &str, name: &str, children: Vec<ArrowSchema>) -> Result<ArrowSchema> {
    let text = |text: &str| CString::new(text).map_err(|_| Error::column(name, "has a zero byte in its name"));
    let texts = text(format).and_then(|format| Ok((format, text(name)?)));
    let (format, name) = texts.inspect_err(|_| children.iter().for_each(release_moved))?;
    let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
    let mut owned = Box::new(OwnedSchema { format, name, children });
    Ok(ArrowSchema {
        format: owned.format.as_ptr(),
        name: owned.name.as_ptr(),
        metadata: std::ptr::null(),
        flags: NULLABLE,
        n_children: owned.children.len() as i64,
        children: owned.children.as_mut_ptr(),
        dictionary: null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(owned).cast(),
    })
}

/// Releases a schema that was made here, and given to nobody.
fn release_moved(of: &ArrowSchema) {
    // SAFETY: made by `schema`, without children, and never used again.
    drop(unsafe { Box::from_raw(of.private_data.cast::<OwnedSchema>()) });
}

impl Series {
    fn format(kind: Type) -> &'static str {
        match kind {
            Type::U64 => "L",
            Type::I64 => "l",
            Type::F64 => "g",
            Type::I32 => "i",
            Type::Bool => "b",
            Type::Text => "U",
        }
    }

    fn into_arrow(self) -> ArrowArray {
        let (len, nulls) = (self.len(), self.nulls());
        let valid = self.valid.as_ref().map_or(std::ptr::null(), |valid| valid.bytes.as_ptr().cast());
        // The vectors' memory does not move with the series.
        let buffers: Vec<*const c_void> = match &self.values {
            Values::U64(values) => vec![valid, values.as_ptr().cast()],
            Values::I64(values) => vec![valid, values.as_ptr().cast()],
            Values::F64(values) => vec![valid, values.as_ptr().cast()],
            Values::I32(values) => vec![valid, values.as_ptr().cast()],
            Values::Bool(bits) => vec![valid, bits.bytes.as_ptr().cast()],
            Values::Text { ends, bytes } => vec![valid, ends.as_ptr().cast(), bytes.as_ptr().cast()],
        };
        array(len, nulls, OwnedArray { _series: Some(self), buffers, children: Vec::new() })
    }
}

impl Table {
    /// Its columns' names and types, as a schema that the consumer releases.
    ///
    /// # Errors
    /// [`Error::Column`]: a name has a zero byte.
    pub fn arrow_schema(&self) -> Result<ArrowSchema> {
        let mut children = Vec::new();
        for (name, series) in self.columns() {
            match schema(Series::format(series.kind()), name, Vec::new()) {
                Ok(child) => children.push(child),
                Err(e) => {
                    children.iter().for_each(release_moved);
                    return Err(e);
                }
            }
        }
        schema("+s", "", children)
    }

    /// Its values, without a copy, as an array that the consumer releases.
    pub fn into_arrow(self) -> ArrowArray {
        let len = self.len();
        let children = self.into_columns().map(|series| Box::into_raw(Box::new(series.into_arrow()))).collect();
        array(len, 0, OwnedArray { _series: None, buffers: vec![std::ptr::null()], children })
    }

    /// A table of a struct array's values, which are copied. Both structures are released, also
    /// after an error.
    ///
    /// # Errors
    /// [`Error::Column`]: a type that frames do not have, offsets that go back, text that is no
    /// UTF-8, a structure that was released or lacks what its type has.
    ///
    /// # Safety
    /// Both are as the C data interface has it. The caller does not use them any more.
    pub unsafe fn from_arrow(array: ArrowArray, schema: ArrowSchema) -> Result<Table> {
        let (mut array, mut schema) = (Held(array), HeldSchema(schema));
        let (array, schema) = (&mut array.0, &mut schema.0);
        // SAFETY: the producer's structures are whole until they are released, at the end of this
        // function.
        unsafe {
            if array.release.is_none() || schema.release.is_none() {
                return Err(Error::column("", "was released: an array and its schema can be given away once"));
            }
            let has_children = array.n_children == 0 || !array.children.is_null() && !schema.children.is_null();
            let is_sized = array.length >= 0 && array.offset >= 0 && array.n_children >= 0 && has_children;
            if !is_sized || schema.format.is_null() {
                return Err(Error::column("", "has no rows or columns that can be counted"));
            }
            if CStr::from_ptr(schema.format).to_bytes() != b"+s" || array.n_children != schema.n_children {
                return Err(Error::column("", "is no struct array: a table has one, with a child for each column"));
            }
            if array.null_count != 0 && array.n_buffers > 0 && !array.buffers.is_null() && !(*array.buffers).is_null() {
                return Err(Error::column("", "is null in whole rows: a frame has nulls in columns alone"));
            }
            let mut columns = Vec::new();
            for n in 0..array.n_children as usize {
                let (child, schema) = (*array.children.add(n), *schema.children.add(n));
                let (Some(child), Some(schema)) = (child.as_ref(), schema.as_ref()) else {
                    return Err(Error::column("", "lacks a column"));
                };
                let name = if schema.name.is_null() { "" } else { CStr::from_ptr(schema.name).to_str().unwrap_or("") };
                let end = array.offset.checked_add(array.length).filter(|&end| end <= child.length);
                let from = child.offset.checked_add(array.offset).filter(|_| child.offset >= 0);
                let (Some(_), Some(from)) = (end, from) else {
                    return Err(Error::column(name, "has fewer rows than its table"));
                };
                let range = (from, array.length);
                columns.push((name.to_owned(), column(name, child, schema, range)?));
            }
            Table::new(columns)
        }
    }
}

/// One column of an array.
///
/// # Safety
/// As [`Table::from_arrow`].
unsafe fn column(name: &str, of: &ArrowArray, schema: &ArrowSchema, (from, rows): (i64, i64)) -> Result<Series> {
    let (from, rows) = (from as usize, rows as usize);
    // SAFETY: an array has as many buffers as its format says, and each is as long as its offset and
    // length say; elements are aligned as the interface asks of producers, and read unaligned here.
    unsafe {
        if of.release.is_none() || schema.release.is_none() || schema.format.is_null() {
            return Err(Error::column(name, "was moved away or released"));
        }
        let format = CStr::from_ptr(schema.format).to_string_lossy().into_owned();
        if !schema.dictionary.is_null() {
            return Err(Error::column(name, "is a dictionary: decode it, or cast it to its values' type"));
        }
        let buffers = if matches!(format.as_str(), "u" | "U") { 3 } else { 2 };
        let has = |n: usize| n < buffers && !(*of.buffers.add(n)).is_null();
        let is_whole = !of.buffers.is_null() && of.n_buffers == buffers as i64;
        // The bytes of texts may be none.
        if rows > 0 && !(is_whole && has(1)) {
            return Err(Error::column(name, "lacks a buffer of its type"));
        }
        let buffer = |n: usize| *of.buffers.add(n);
        let bits = |at: *const c_void| -> Bits {
            let byte = |bit: usize| *at.cast::<u8>().add(bit / 8);
            (from..from + rows).map(|bit| byte(bit) >> (bit % 8) & 1 == 1).collect()
        };
        macro_rules! values {
            ($of:ty) => {
                (from..from + rows).map(|at| buffer(1).cast::<$of>().add(at).read_unaligned()).collect::<Vec<$of>>()
            };
        }
        let values = match format.as_str() {
            "L" => Values::U64(values!(u64)),
            "l" => Values::I64(values!(i64)),
            "g" => Values::F64(values!(f64)),
            "i" => Values::I32(values!(i32)),
            "b" => Values::Bool(bits(buffer(1))),
            "u" | "U" if rows == 0 => Values::Text { ends: vec![0], bytes: Vec::new() },
            "u" | "U" => {
                let end = |at: usize| match format.as_str() {
                    "u" => i64::from(buffer(1).cast::<i32>().add(at).read_unaligned()),
                    _ => buffer(1).cast::<i64>().add(at).read_unaligned(),
                };
                let ends: Vec<i64> = (from..=from + rows).map(end).collect();
                text(name, buffer(2).cast(), ends)?
            }
            other => {
                let why = format!("has Arrow's type {other:?}: frames have u64, i64, f64, i32, bool and utf8; cast it");
                return Err(Error::column(name, why));
            }
        };
        let valid = (of.null_count != 0 && rows > 0 && has(0)).then(|| bits(buffer(0)));
        Ok(Series { values, valid })
    }
}

/// # Safety
/// There are as many bytes as the ends say, if these do not go back.
unsafe fn text(name: &str, at: *const u8, ends: Vec<i64>) -> Result<Values> {
    if ends[0] < 0 || !ends.is_sorted() {
        return Err(Error::column(name, "has offsets that go back"));
    }
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    let bytes = match first == last {
        true => Vec::new(),
        false if at.is_null() => return Err(Error::column(name, "lacks a buffer of its type")),
        // SAFETY: as the caller says.
        false => unsafe { std::slice::from_raw_parts(at.add(first as usize), (last - first) as usize) }.to_vec(),
    };
    let ends: Vec<i64> = ends.iter().map(|end| end - first).collect();
    let is_text =
        std::str::from_utf8(&bytes).is_ok_and(|all| ends.iter().all(|&end| all.is_char_boundary(end as usize)));
    if is_text { Ok(Values::Text { ends, bytes }) } else { Err(Error::column(name, "has text that is no UTF-8")) }
}

/// A producer's array; released when dropped.
struct Held(ArrowArray);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the producer's callback, called once; the structure was moved here.
            unsafe { release(&raw mut self.0) };
        }
    }
}

/// A producer's schema; released when dropped.
struct HeldSchema(ArrowSchema);

impl Drop for HeldSchema {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: as above.
            unsafe { release(&raw mut self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let texts: Series = [Some("é"), None, Some(""), Some("abc")].into_iter().collect();
        let columns: [(&str, Series); 6] = [
            ("u", vec![1_u64, 2, 3, u64::MAX].into()),
            ("i", vec![Some(-1_i64), None, Some(i64::MIN), Some(5)].into()),
            ("f", vec![0.5, -0.0, f64::NAN, 1e300].into()),
            ("d", vec![Some(1_i32), Some(2), None, Some(-4)].into()),
            ("b", vec![Some(true), None, Some(false), Some(true)].into()),
            ("t", texts),
        ];
        Table::new(columns).unwrap()
    }

    #[test]
    fn tables_come_back() {
        for table in [table(), Table::new([("t", Series::new(Type::Text))]).unwrap(), Table::default()] {
            let schema = table.arrow_schema().unwrap();
            let array = table.clone().into_arrow();
            // SAFETY: made here.
            assert_eq!(unsafe { Table::from_arrow(array, schema) }.unwrap(), table);
        }
    }

    #[test]
    fn a_part_of_an_array_is_its_rows() {
        let (schema, mut array) = (table().arrow_schema().unwrap(), table().into_arrow());
        (array.offset, array.length) = (1, 2);
        // SAFETY: made here; the rows are within the array.
        let part = unsafe { Table::from_arrow(array, schema) }.unwrap();
        let rows = |table: &Table, from: usize| format!("{:?} {:?}", table.row(from), table.row(from + 1));
        assert_eq!((rows(&part, 0), part.len()), (rows(&table(), 1), 2));
    }

    /// What a program does wrong is an error, and reads no memory that is not there.
    #[test]
    fn what_is_missing_is_refused() {
        type Change = fn(&mut ArrowArray, &mut ArrowSchema);
        // SAFETY: of each change: the children and buffers of structures that were made here.
        let changes: [(Change, &str); 11] = unsafe {
            [
                (|array, _| drop(Held(std::mem::replace(array, released()))), "was released"),
                (|array, _| array.length = -1, "counted"),
                (|array, _| array.offset = i64::MIN, "counted"),
                (|array, _| array.offset = 1, "fewer rows"),
                (|array, _| array.length = i64::MAX, "fewer rows"),
                (|array, _| (**array.children).length = 3, "fewer rows"),
                (|array, _| (**array.children).offset = -1, "fewer rows"),
                (|array, _| (**array.children.add(5)).n_buffers = 2, "lacks a buffer"),
                (|array, _| *(**array.children.add(5)).buffers.add(2) = std::ptr::null(), "lacks a buffer"),
                (|array, _| *(**array.children).buffers.add(1) = std::ptr::null(), "lacks a buffer"),
                (|_, schema| schema.format = std::ptr::null(), "counted"),
            ]
        };
        for (change, why) in changes {
            let (mut schema, mut array) = (table().arrow_schema().unwrap(), table().into_arrow());
            change(&mut array, &mut schema);
            // SAFETY: made here.
            let refused = unsafe { Table::from_arrow(array, schema) }.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}: {why}");
        }
        // A child that was moved out.
        let (schema, array) = (table().arrow_schema().unwrap(), table().into_arrow());
        // SAFETY: the child's place is left without a callback.
        let moved = unsafe { Held(std::mem::replace(&mut **array.children, released())) };
        // SAFETY: made here.
        let refused = unsafe { Table::from_arrow(array, schema) }.unwrap_err().to_string();
        assert!(refused.contains("fewer rows") || refused.contains("released"), "{refused}");
        drop(moved);
    }

    fn released() -> ArrowArray {
        ArrowArray {
            length: 4,
            null_count: 0,
            offset: 0,
            n_buffers: 0,
            n_children: 0,
            buffers: null_mut(),
            children: null_mut(),
            dictionary: null_mut(),
            release: None,
            private_data: null_mut(),
        }
    }

    /// A consumer may take a child away, and release it later, on another thread.
    #[test]
    fn children_are_moved_out() {
        let array = Held(table().into_arrow());
        // SAFETY: a child's place, which is left without a callback.
        let moved = unsafe {
            let child = &mut **array.0.children;
            let moved = std::ptr::read(child);
            child.release = None;
            Held(moved)
        };
        drop(array);
        // SAFETY: the child is still whole.
        assert_eq!(unsafe { (*moved.0.buffers.add(1)).cast::<u64>().add(3).read() }, u64::MAX);
    }

    #[test]
    fn what_is_no_table_is_refused_by_name() {
        let (schema, array) = (table().arrow_schema().unwrap(), table().into_arrow());
        // SAFETY: made here; the format is a text that outlives the schema.
        let refused = unsafe {
            (**schema.children.add(3)).format = c"tdD".as_ptr();
            Table::from_arrow(array, schema)
        };
        assert!(refused.unwrap_err().to_string().starts_with("column \"d\" has Arrow's type \"tdD\""));
        let (mut schema, array) = (table().arrow_schema().unwrap(), table().into_arrow());
        schema.format = c"l".as_ptr();
        // SAFETY: as above.
        assert!(unsafe { Table::from_arrow(array, schema) }.unwrap_err().to_string().contains("struct array"));
    }
}
