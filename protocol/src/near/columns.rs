//! SCAN over two dense columns: sums one where the other is within bounds.

use super::scan::{Field, Found, Kind, eight, four};

/// Rows that are tested before any of them is added.
const ROWS: usize = 128;

/// The columns of a scan and its bounds. Record n is element n of both columns. Bounds are as
/// those of [`super::Scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    /// The elements of the column that is tested.
    pub test: Kind,
    /// The lower bound.
    pub least: u64,
    /// The upper bound.
    pub most: u64,
    /// The elements of the column that is summed.
    pub value: Kind,
}

impl Columns {
    /// Bytes of the summed column where the tested one has this many. `None`: these are no whole
    /// elements, or more than memory can have.
    pub fn bytes_of_values(&self, tests: u64) -> Option<u64> {
        let each = u64::from(self.test.bytes());
        let elements = tests.is_multiple_of(each).then_some(tests / each)?;
        elements.checked_mul(u64::from(self.value.bytes()))
    }

    /// Adds what the columns say, in order. The elements that one has more are left out.
    pub fn run(&self, tests: &[u8], values: &[u8], found: &mut Found) {
        let values = (values, self.value);
        match self.test {
            Kind::U32 => self.tested(tests.as_chunks::<4>().0, |one| u64::from(four(one, 0)), values, found),
            Kind::I32 => self.tested(tests.as_chunks::<4>().0, |one| i64::from(four(one, 0) as i32), values, found),
            Kind::U64 => self.tested(tests.as_chunks::<8>().0, |one| eight(one, 0), values, found),
            Kind::I64 => self.tested(tests.as_chunks::<8>().0, |one| eight(one, 0) as i64, values, found),
            Kind::F64 => self.tested(tests.as_chunks::<8>().0, |one| f64::from_bits(eight(one, 0)), values, found),
        }
    }

    #[inline(always)]
    fn tested<T: Field, const N: usize>(
        &self,
        tests: &[[u8; N]],
        test: impl Fn(&[u8; N]) -> T,
        (values, kind): (&[u8], Kind),
        found: &mut Found,
    ) {
        let (least, most) = (T::of(self.least), T::of(self.most));
        let passes = |one: &[u8; N]| {
            let tested = test(one);
            // Both sides are looked at: no jump, which the CPU would have to guess.
            (least <= tested) & (tested <= most)
        };
        match kind {
            Kind::U32 => summed(tests, passes, values.as_chunks::<4>().0, |one| u64::from(four(one, 0)), found),
            Kind::I32 => summed(tests, passes, values.as_chunks::<4>().0, |one| i64::from(four(one, 0) as i32), found),
            Kind::U64 => summed(tests, passes, values.as_chunks::<8>().0, |one| eight(one, 0), found),
            Kind::I64 => summed(tests, passes, values.as_chunks::<8>().0, |one| eight(one, 0) as i64, found),
            Kind::F64 => summed(tests, passes, values.as_chunks::<8>().0, |one| f64::from_bits(eight(one, 0)), found),
        }
    }
}

/// Adds the values of rows that pass, in order. Of some rows at a time it first notes which pass.
#[inline(always)]
fn summed<V: Field, const N: usize, const M: usize>(
    tests: &[[u8; N]],
    passes: impl Fn(&[u8; N]) -> bool,
    values: &[[u8; M]],
    value: impl Fn(&[u8; M]) -> V,
    found: &mut Found,
) {
    let mut count = 0;
    let mut sum = V::of(found.sum);
    let (mut least, mut most) = (V::of(found.least), V::of(found.most));
    let mut add = |one: &[u8; M]| {
        let value = value(one);
        sum = sum.plus(value);
        least = if value < least { value } else { least };
        most = if value > most { value } else { most };
    };
    for (tests, values) in tests.chunks(ROWS).zip(values.chunks(ROWS)) {
        let rows = tests.len().min(values.len());
        let (mut passing, mut all) = ([0; ROWS], 0);
        for (row, one) in tests[..rows].iter().enumerate() {
            // A row that does not pass is written over by the next one. `all` is at most the row.
            passing[all % ROWS] = row as u8;
            all += usize::from(passes(one));
        }
        count += all as u64;
        match all == rows {
            true => values[..rows].iter().for_each(&mut add),
            false => passing[..all].iter().filter_map(|&row| values.get(usize::from(row))).for_each(&mut add),
        }
    }
    found.count += count;
    (found.sum, found.least, found.most) = (sum.bits(), least.bits(), most.bits());
}
