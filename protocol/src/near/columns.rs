//! SCAN over two dense columns: sums one where the other is within bounds.

use super::scan::{Field, Found, Kind, eight, four};

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
        let passes = tests.iter().map(|one| {
            let tested = test(one);
            least <= tested && tested <= most
        });
        match kind {
            Kind::U32 => summed(passes, values.as_chunks::<4>().0, |one| u64::from(four(one, 0)), found),
            Kind::I32 => summed(passes, values.as_chunks::<4>().0, |one| i64::from(four(one, 0) as i32), found),
            Kind::U64 => summed(passes, values.as_chunks::<8>().0, |one| eight(one, 0), found),
            Kind::I64 => summed(passes, values.as_chunks::<8>().0, |one| eight(one, 0) as i64, found),
            Kind::F64 => summed(passes, values.as_chunks::<8>().0, |one| f64::from_bits(eight(one, 0)), found),
        }
    }
}

#[inline(always)]
fn summed<V: Field, const N: usize>(
    passes: impl Iterator<Item = bool>,
    values: &[[u8; N]],
    value: impl Fn(&[u8; N]) -> V,
    found: &mut Found,
) {
    let (mut count, mut sum) = (0, V::of(found.sum));
    let (mut least, mut most) = (V::of(found.least), V::of(found.most));
    for (passes, one) in passes.zip(values) {
        if passes {
            let value = value(one);
            count += 1;
            sum = sum.plus(value);
            least = if value < least { value } else { least };
            most = if value > most { value } else { most };
        }
    }
    found.count += count;
    (found.sum, found.least, found.most) = (sum.bits(), least.bits(), most.bits());
}
