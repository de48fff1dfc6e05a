//! SCAN: aggregates of one field of the records whose other field is within bounds.

/// The type of a field. All are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    U32 = 1,
    I32 = 2,
    U64 = 3,
    I64 = 4,
    F64 = 5,
}

impl Kind {
    /// By its number.
    pub fn of(number: u8) -> Option<Kind> {
        [Kind::U32, Kind::I32, Kind::U64, Kind::I64, Kind::F64].into_iter().find(|&kind| kind as u8 == number)
    }

    /// Bytes.
    pub fn bytes(self) -> u16 {
        match self {
            Kind::U32 | Kind::I32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }
}

/// The fields of a scan and its bounds. Bounds are inclusive. Each holds the bits of the tested
/// field's kind, widened to 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scan {
    /// From one record to the next.
    pub stride: u16,
    /// The field that is tested.
    pub test: Kind,
    /// Where a record has it.
    pub test_at: u16,
    /// The lower bound.
    pub least: u64,
    /// The upper bound.
    pub most: u64,
    /// The field that is summed.
    pub value: Kind,
    /// Where a record has it.
    pub value_at: u16,
}

/// Of the records that were within bounds. Sums of integers wrap at 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The kind of the sums.
    pub kind: Kind,
    /// Records.
    pub count: u64,
    /// Bits of the sum, in the widened kind.
    pub sum: u64,
    /// Bits of the least value; of nothing, the greatest there can be.
    pub least: u64,
    /// Bits of the greatest value; of nothing, the least there can be.
    pub most: u64,
}

/// A field, widened to 64 bits.
pub(super) trait Field: Copy + PartialOrd {
    const LEAST: Self;
    const MOST: Self;
    fn plus(self, other: Self) -> Self;
    fn bits(self) -> u64;
    fn of(bits: u64) -> Self;
}

impl Field for u64 {
    const LEAST: u64 = 0;
    const MOST: u64 = u64::MAX;
    fn plus(self, other: u64) -> u64 {
        self.wrapping_add(other)
    }
    fn bits(self) -> u64 {
        self
    }
    fn of(bits: u64) -> u64 {
        bits
    }
}

impl Field for i64 {
    const LEAST: i64 = i64::MIN;
    const MOST: i64 = i64::MAX;
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn bits(self) -> u64 {
        self as u64
    }
    fn of(bits: u64) -> i64 {
        bits as i64
    }
}

impl Field for f64 {
    const LEAST: f64 = f64::NEG_INFINITY;
    const MOST: f64 = f64::INFINITY;
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn of(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

#[inline]
pub(super) fn four(record: &[u8], at: usize) -> u32 {
    record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[inline]
pub(super) fn eight(record: &[u8], at: usize) -> u64 {
    record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// How a field is read.
type Get<T> = fn(&[u8], usize) -> T;

impl Scan {
    /// Whether its fields lie within a record.
    pub fn is_sound(&self) -> bool {
        let within = |at: u16, kind: Kind| u32::from(at) + u32::from(kind.bytes()) <= u32::from(self.stride);
        self.stride <= 4096 && within(self.test_at, self.test) && within(self.value_at, self.value)
    }

    /// Adds what whole records say. A record that is cut off at the end does not count.
    pub fn run(&self, records: &[u8], found: &mut Found) {
        match self.test {
            Kind::U32 => self.tested(records, found, |record, at| u64::from(four(record, at))),
            Kind::I32 => self.tested(records, found, |record, at| i64::from(four(record, at) as i32)),
            Kind::U64 => self.tested(records, found, eight),
            Kind::I64 => self.tested(records, found, |record, at| eight(record, at) as i64),
            Kind::F64 => self.tested(records, found, |record, at| f64::from_bits(eight(record, at))),
        }
    }

    #[inline(always)]
    fn tested<T: Field>(&self, records: &[u8], found: &mut Found, test: impl Fn(&[u8], usize) -> T) {
        match self.value {
            Kind::U32 => self.summed(records, found, test, (|record, at| u64::from(four(record, at))) as Get<u64>),
            Kind::I32 => {
                self.summed(records, found, test, (|record, at| i64::from(four(record, at) as i32)) as Get<i64>);
            }
            Kind::U64 => self.summed(records, found, test, eight),
            Kind::I64 => self.summed(records, found, test, |record: &[u8], at| eight(record, at) as i64),
            Kind::F64 => self.summed(records, found, test, |record: &[u8], at| f64::from_bits(eight(record, at))),
        }
    }

    #[inline(always)]
    fn summed<T: Field, V: Field>(
        &self,
        records: &[u8],
        found: &mut Found,
        test: impl Fn(&[u8], usize) -> T,
        value: impl Fn(&[u8], usize) -> V,
    ) {
        let (least, most) = (T::of(self.least), T::of(self.most));
        let (mut count, mut sum) = (0, V::of(found.sum));
        let (mut smallest, mut greatest) = (V::of(found.least), V::of(found.most));
        let (test_at, value_at) = (usize::from(self.test_at), usize::from(self.value_at));
        let mut look = |record: &[u8]| {
            let tested = test(record, test_at);
            if least <= tested && tested <= most {
                let value = value(record, value_at);
                count += 1;
                sum = sum.plus(value);
                smallest = if value < smallest { value } else { smallest };
                greatest = if value > greatest { value } else { greatest };
            }
        };
        match self.stride {
            // A dense column: the compiler knows the stride.
            8 => records.as_chunks::<8>().0.iter().for_each(|record| look(record)),
            stride => records.chunks_exact(usize::from(stride)).for_each(look),
        }
        found.count += count;
        (found.sum, found.least, found.most) = (sum.bits(), smallest.bits(), greatest.bits());
    }
}

impl Found {
    /// Of no records.
    pub fn none(kind: Kind) -> Found {
        let (sum, least, most) = match kind {
            Kind::U32 | Kind::U64 => (0, u64::MOST, u64::LEAST),
            Kind::I32 | Kind::I64 => (0, i64::MOST.bits(), i64::LEAST.bits()),
            Kind::F64 => (0f64.bits(), f64::MOST.bits(), f64::LEAST.bits()),
        };
        Found { kind, count: 0, sum, least, most }
    }

    /// One value more, of the kind.
    #[inline(always)]
    pub(super) fn add<V: Field>(&mut self, value: V) {
        self.count += 1;
        self.sum = V::of(self.sum).plus(value).bits();
        if value < V::of(self.least) {
            self.least = value.bits();
        }
        if value > V::of(self.most) {
            self.most = value.bits();
        }
    }

    /// Both. Sums of `f64` depend on what is added to what.
    pub fn and(self, other: Found) -> Found {
        let kind = self.kind;
        fn both<V: Field>(a: Found, b: Found) -> (u64, u64, u64) {
            let least = if V::of(b.least) < V::of(a.least) { b.least } else { a.least };
            let most = if V::of(b.most) > V::of(a.most) { b.most } else { a.most };
            (V::of(a.sum).plus(V::of(b.sum)).bits(), least, most)
        }
        let (sum, least, most) = match kind {
            Kind::U32 | Kind::U64 => both::<u64>(self, other),
            Kind::I32 | Kind::I64 => both::<i64>(self, other),
            Kind::F64 => both::<f64>(self, other),
        };
        Found { kind, count: self.count.wrapping_add(other.count), sum, least, most }
    }
}
