//! GROUP: sums the values of one column by the values of another, as SQL's GROUP BY.
//!
//! ```text
//! source: the keys                       list: | Named | group, group, … |
//! ```
//!
//! Three dense columns: keys, values, and, if rows are to be tested, those whose values must be
//! within bounds. The caller's memory names the last two. The node lays the groups behind the names,
//! in the order in which their first rows come. It lays none if there are more than there is room
//! for: the caller then groups by itself.

use super::scan::{Field, Found, Kind, eight, four};
use super::{Bytes, MAX_BYTES, Range, Which};
use crate::key::Key;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most groups of one call: work ranges of 16 calls are less than 256 KiB.
pub const MAX_GROUPS: u32 = 400;
/// Rows that are looked at together.
const ROWS: usize = 1024;
/// Places of the table by which a key's group is found. Not half of them are used.
const PLACES: usize = 1024;
const _: () = assert!(PLACES > 2 * MAX_GROUPS as usize && PLACES.is_power_of_two());
/// Of a place that no group has.
const NONE: u16 = u16::MAX;

/// The parameters of a grouping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The elements of the keys. Rows are in one group if their keys' bytes are equal.
    pub key: Kind,
    /// The elements of the values.
    pub value: Kind,
    /// The elements of the column that is tested. `None`: all rows are meant.
    pub test: Option<Kind>,
    /// The lower bound, as that of [`super::Scan`]. 0 without a test.
    pub least: u64,
    /// The upper bound. 0 without a test.
    pub most: u64,
    /// Groups that there is room for, at most [`MAX_GROUPS`].
    pub room: u32,
}

/// The columns besides the keys, at the beginning of the work range.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default, Debug)]
#[repr(C)]
pub struct Named {
    /// Key and offset of the values.
    pub values: [U64; 2],
    /// Key and offset of the column that is tested.
    pub tests: [U64; 2],
    zero: U64,
}

/// A group.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Grouped {
    /// The key's bytes, with zeros above.
    pub key: u64,
    /// Its rows' values.
    pub found: Found,
}

/// A group in memory: key, count, sum, least, most.
const EACH: usize = 40;
const _: () = assert!(size_of::<Named>() == EACH);

impl Named {
    /// Names these ranges.
    pub fn new(values: Range, tests: Option<Range>) -> Named {
        let place = |range: Range| [range.key.0, range.at].map(U64::new);
        Named { values: place(values), tests: tests.map(place).unwrap_or_default(), zero: U64::new(0) }
    }

    /// As bytes of a work range.
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Groups that were found, and by which places.
pub struct Table {
    places: [u16; PLACES],
    groups: Vec<Grouped>,
    room: usize,
    none: Found,
}

impl Group {
    /// Bytes of the work range.
    pub fn work(&self) -> u64 {
        EACH as u64 * (1 + u64::from(self.room))
    }

    /// Where the work range has its groups.
    pub const GROUPS_AT: u64 = EACH as u64;

    /// Whether it is within its bounds for keys of this many bytes.
    pub fn is_sound(&self, keys: u64) -> bool {
        let each = u64::from(self.key.bytes());
        let row = each + u64::from(self.value.bytes()) + self.test.map_or(0, |test| test.bytes().into());
        let bounded = keys > 0 && keys.is_multiple_of(each) && (keys / each).saturating_mul(row) <= MAX_BYTES;
        bounded && (1..=MAX_GROUPS).contains(&self.room) && (self.test.is_some() || self.least == 0 && self.most == 0)
    }

    /// A table with no groups.
    pub fn table(&self) -> Table {
        let (room, none) = (self.room as usize, Found::none(self.value));
        Table { places: [NONE; PLACES], groups: Vec::with_capacity(room), room, none }
    }

    /// Adds rows, in order. `tests` is empty if rows are not tested. False: there are more groups
    /// than there is room for.
    pub fn add(&self, keys: &[u8], values: &[u8], tests: &[u8], table: &mut Table) -> bool {
        let of = |kind: Kind| ROWS * usize::from(kind.bytes());
        let mut tests = tests.chunks(self.test.map_or(1, of));
        keys.chunks(of(self.key)).zip(values.chunks(of(self.value))).all(|(keys, values)| {
            let (mut rows, mut group) = ([0; ROWS], [0; ROWS]);
            let all = keys.len() / usize::from(self.key.bytes());
            let passing = match self.test {
                Some(test) => self.test(test, tests.next().unwrap_or_default(), &mut rows),
                None => {
                    rows.iter_mut().zip(0..).for_each(|(row, number)| *row = number);
                    ROWS
                }
            };
            let rows = &rows[..passing.min(all)];
            let numbered = match self.key.bytes() {
                4 => table.number(keys.as_chunks::<4>().0, |key| four(key, 0).into(), rows, &mut group),
                _ => table.number(keys.as_chunks::<8>().0, |key| eight(key, 0), rows, &mut group),
            };
            if numbered {
                table.sum(self.value, values, rows, &group);
            }
            numbered
        })
    }

    /// Notes the rows that pass, and returns how many.
    fn test(&self, kind: Kind, tests: &[u8], rows: &mut [u16; ROWS]) -> usize {
        match kind {
            Kind::U32 => self.bounded(tests.as_chunks::<4>().0, |one| u64::from(four(one, 0)), rows),
            Kind::I32 => self.bounded(tests.as_chunks::<4>().0, |one| i64::from(four(one, 0) as i32), rows),
            Kind::U64 => self.bounded(tests.as_chunks::<8>().0, |one| eight(one, 0), rows),
            Kind::I64 => self.bounded(tests.as_chunks::<8>().0, |one| eight(one, 0) as i64, rows),
            Kind::F64 => self.bounded(tests.as_chunks::<8>().0, |one| f64::from_bits(eight(one, 0)), rows),
        }
    }

    fn bounded<T: Field, const N: usize>(
        &self,
        tests: &[[u8; N]],
        test: impl Fn(&[u8; N]) -> T,
        rows: &mut [u16; ROWS],
    ) -> usize {
        let (least, most) = (T::of(self.least), T::of(self.most));
        let mut passing = 0;
        for (row, one) in tests.iter().take(ROWS).enumerate() {
            let tested = test(one);
            // A row that does not pass is written over by the next one. No jump is to be guessed.
            rows[passing % ROWS] = row as u16;
            passing += usize::from((least <= tested) & (tested <= most));
        }
        passing
    }

    /// The groups of a work range's bytes behind the names.
    pub fn groups(&self, bytes: &[u8]) -> Vec<Grouped> {
        let group = |one: &[u8; EACH]| {
            let [key, count, sum, least, most] = [0, 8, 16, 24, 32].map(|at| eight(one, at));
            Grouped { key, found: Found { kind: self.value, count, sum, least, most } }
        };
        bytes.as_chunks::<EACH>().0.iter().map(group).collect()
    }

    pub(super) fn run(&self, keys: u64, memory: &mut impl Bytes) -> Option<Option<u32>> {
        let mut named = [0; EACH];
        memory.read(Which::List, 0, &mut named)?;
        let named = Named::read_from_bytes(&named).ok()?;
        let rows = keys / u64::from(self.key.bytes());
        let range = |place: [U64; 2], kind: Kind| {
            let [key, at] = place.map(U64::get);
            Range { key: Key(key), at, len: rows * u64::from(kind.bytes()) }
        };
        memory.open(0, range(named.values, self.value), false)?;
        if let Some(test) = self.test {
            memory.open(1, range(named.tests, test), false)?;
        }
        let mut table = self.table();
        let mut columns = [[0; 8 * ROWS]; 3];
        for first in (0..rows).step_by(ROWS) {
            super::in_time(memory)?;
            let some = (rows - first).min(ROWS as u64);
            let mut read = |which, kind: Kind, into: &mut [u8; 8 * ROWS]| {
                let each = u64::from(kind.bytes());
                memory.read(which, first * each, &mut into[..(some * each) as usize])?;
                Some((some * each) as usize)
            };
            let [keys, values, tests] = &mut columns;
            let key_bytes = read(Which::Source, self.key, keys)?;
            let value_bytes = read(Which::Place(0), self.value, values)?;
            let test_bytes = match self.test {
                Some(test) => read(Which::Place(1), test, tests)?,
                None => 0,
            };
            if !self.add(&keys[..key_bytes], &values[..value_bytes], &tests[..test_bytes], &mut table) {
                return Some(None);
            }
        }
        let bytes = table.bytes();
        memory.write(Which::List, Group::GROUPS_AT, &bytes)?;
        Some(Some(table.groups.len() as u32))
    }
}

impl Table {
    /// Numbers these rows by their groups.
    fn number<const N: usize>(
        &mut self,
        keys: &[[u8; N]],
        key: impl Fn(&[u8; N]) -> u64,
        rows: &[u16],
        group: &mut [u16; ROWS],
    ) -> bool {
        for (&row, group) in rows.iter().zip(group) {
            let key = keys.get(usize::from(row)).map_or(0, &key);
            let mut place = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize;
            *group = loop {
                match self.places[place] {
                    NONE if self.groups.len() == self.room => return false,
                    NONE => {
                        let number = self.groups.len() as u16;
                        self.places[place] = number;
                        self.groups.push(Grouped { key, found: self.none });
                        break number;
                    }
                    number if self.groups[usize::from(number)].key == key => break number,
                    _ => place = (place + 1) % PLACES,
                }
            };
        }
        true
    }

    fn sum(&mut self, kind: Kind, values: &[u8], rows: &[u16], group: &[u16; ROWS]) {
        match kind {
            Kind::U32 => self.summed(values.as_chunks::<4>().0, |one| u64::from(four(one, 0)), rows, group),
            Kind::I32 => self.summed(values.as_chunks::<4>().0, |one| i64::from(four(one, 0) as i32), rows, group),
            Kind::U64 => self.summed(values.as_chunks::<8>().0, |one| eight(one, 0), rows, group),
            Kind::I64 => self.summed(values.as_chunks::<8>().0, |one| eight(one, 0) as i64, rows, group),
            Kind::F64 => self.summed(values.as_chunks::<8>().0, |one| f64::from_bits(eight(one, 0)), rows, group),
        }
    }

    fn summed<V: Field, const N: usize>(
        &mut self,
        values: &[[u8; N]],
        value: impl Fn(&[u8; N]) -> V,
        rows: &[u16],
        group: &[u16; ROWS],
    ) {
        for (&row, &group) in rows.iter().zip(group) {
            if let Some(one) = values.get(usize::from(row)) {
                self.groups[usize::from(group)].found.add(value(one));
            }
        }
    }

    /// The groups, in the order of their first rows.
    pub fn groups(self) -> Vec<Grouped> {
        self.groups
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.groups.iter().flat_map(|group| {
            let Found { count, sum, least, most, .. } = group.found;
            [group.key, count, sum, least, most]
        });
        words.flat_map(u64::to_le_bytes).collect()
    }
}
