//! Filters, sums and gathers of vectors: local elements are looked at here, and the others at their
//! nodes.
//!
//! Nothing comes in, and nothing leaves. Over TCP, a node with `--compute` looks at its part and
//! answers 64 bytes for each 256 KiB; of any other, the bytes are read past the frames.

use crate::frames::{copied, slice};
use crate::{CHUNK, Chunk, Error, Far, FarBox, FarVec, Result};
use farmem::near::{Found, Kind, Scan};
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Elements of which the CPU is told ahead of their use: as many as it fetches at once.
const AHEAD: usize = 16;

/// A number that a field can be seen as: `u64`, `i64` or `f64`.
pub trait Number: Copy + private::Bits {}
impl Number for u64 {}
impl Number for i64 {}
impl Number for f64 {}

mod private {
    pub trait Bits {
        const LEAST: Self;
        const MOST: Self;
        fn bits(self) -> u64;
        fn of(bits: u64) -> Self;
    }
    impl Bits for u64 {
        const LEAST: u64 = 0;
        const MOST: u64 = u64::MAX;
        fn bits(self) -> u64 {
            self
        }
        fn of(bits: u64) -> u64 {
            bits
        }
    }
    impl Bits for i64 {
        const LEAST: i64 = i64::MIN;
        const MOST: i64 = i64::MAX;
        fn bits(self) -> u64 {
            self as u64
        }
        fn of(bits: u64) -> i64 {
            bits as i64
        }
    }
    impl Bits for f64 {
        const LEAST: f64 = f64::NEG_INFINITY;
        const MOST: f64 = f64::INFINITY;
        fn bits(self) -> u64 {
            self.to_bits()
        }
        fn of(bits: u64) -> f64 {
            f64::from_bits(bits)
        }
    }
}

/// A field of a vector's elements, by its offset: `Field::u32(offset_of!(Trip, day))`.
#[derive(Clone, Copy, Debug)]
pub struct Field<N> {
    kind: Kind,
    at: usize,
    seen_as: PhantomData<N>,
}

impl<N> Field<N> {
    const fn new(kind: Kind, at: usize) -> Field<N> {
        Field { kind, at, seen_as: PhantomData }
    }
}

impl Field<u64> {
    /// A `u32`.
    pub const fn u32(at: usize) -> Field<u64> {
        Field::new(Kind::U32, at)
    }

    /// A `u64`.
    pub const fn u64(at: usize) -> Field<u64> {
        Field::new(Kind::U64, at)
    }
}

impl Field<i64> {
    /// An `i32`.
    pub const fn i32(at: usize) -> Field<i64> {
        Field::new(Kind::I32, at)
    }

    /// An `i64`.
    pub const fn i64(at: usize) -> Field<i64> {
        Field::new(Kind::I64, at)
    }
}

impl Field<f64> {
    /// An `f64`.
    pub const fn f64(at: usize) -> Field<f64> {
        Field::new(Kind::F64, at)
    }
}

impl<N: Number> Field<N> {
    /// Elements whose field is within bounds, both included. A NaN never is.
    pub fn within(self, bounds: RangeInclusive<N>) -> Filter {
        Filter { kind: self.kind, at: self.at, least: bounds.start().bits(), most: bounds.end().bits() }
    }

    /// Elements whose field is at least this.
    pub fn at_least(self, least: N) -> Filter {
        self.within(least..=N::MOST)
    }

    /// Elements whose field is at most this.
    pub fn at_most(self, most: N) -> Filter {
        self.within(N::LEAST..=most)
    }
}

/// Which elements are meant.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    kind: Kind,
    at: usize,
    least: u64,
    most: u64,
}

/// The elements of a vector that pass a filter ([`FarVec::filter`]).
#[derive(Debug)]
pub struct Filtered<'a, T: Far> {
    of: &'a FarVec<T>,
    filter: Filter,
}

/// The values of some elements in a field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary<N> {
    /// Elements.
    pub count: u64,
    /// Their sum. Integers wrap at 64 bits; of floats the last digits depend on what was local.
    pub sum: N,
    /// The least of them, if there is any.
    pub min: Option<N>,
    /// The greatest.
    pub max: Option<N>,
}

impl<T: Far> Filtered<'_, T> {
    /// How many there are.
    ///
    /// # Errors
    /// As [`Filtered::summary`].
    pub fn count(&self) -> Result<u64> {
        Ok(self.look(self.filter.kind, self.filter.at)?.count)
    }

    /// The sum of a field. Integers wrap at 64 bits; of floats the last digits depend on what was
    /// local.
    ///
    /// # Errors
    /// As [`Filtered::summary`].
    pub fn sum<N: Number>(&self, field: Field<N>) -> Result<N> {
        Ok(self.summary(field)?.sum)
    }

    /// Count, sum and extremes of a field.
    ///
    /// # Errors
    /// [`Error::Field`] where a field does not lie within an element; [`Error::Memory`].
    pub fn summary<N: Number>(&self, field: Field<N>) -> Result<Summary<N>> {
        let Found { count, sum, least, most, .. } = self.look(field.kind, field.at)?;
        let some = |bits| (count > 0).then(|| N::of(bits));
        Ok(Summary { count, sum: N::of(sum), min: some(least), max: some(most) })
    }

    fn look(&self, kind: Kind, at: usize) -> Result<Found> {
        let size = size_of::<T>();
        let field = |kind: Kind, at: usize| match at.checked_add(kind.bytes().into()) {
            Some(end) if end <= size => Ok(at as u16),
            _ => Err(Error::Field { at, size }),
        };
        let Filter { kind: test, at: test_at, least, most } = self.filter;
        let (test_at, value_at) = (field(test, test_at)?, field(kind, at)?);
        let scan = Scan { stride: size as u16, test, test_at, least, most, value: kind, value_at };
        let (heap, scope) = (self.of.heap(), self.of.heap().scope());
        let (mut found, mut away) = (Found::none(kind), Vec::new());
        for (number, chunk) in self.of.chunks().iter().enumerate() {
            let bytes = FarVec::<T>::EACH.min(self.of.len() - number * FarVec::<T>::EACH) * size;
            match heap.inner.is_local(FarBox::<Chunk>::CLASS, chunk.word()) {
                true => scan.run(&chunk.get(&scope)?.0[..bytes], &mut found),
                false => away.push((chunk.word(), bytes as u64)),
            }
        }
        drop(scope);
        Ok(found.and(heap.inner.scan_away(&away, &scan)?))
    }
}

impl<T: Far> FarVec<T> {
    /// The elements that pass a filter, to count and to sum where they are.
    ///
    /// ```no_run
    /// # use farmem_objects::{FarVec, Field, Result};
    /// # fn total(days: FarVec<[u32; 2]>) -> Result<u64> {
    /// let total = days.filter(Field::u32(0).at_most(89)).sum(Field::u32(4))?;
    /// # Ok(total)
    /// # }
    /// ```
    pub fn filter(&self, filter: Filter) -> Filtered<'_, T> {
        Filtered { of: self, filter }
    }

    /// Copies of many elements, in the order of their indices. Of what is away, the elements alone
    /// come, and not their chunks. Nothing becomes local.
    ///
    /// # Errors
    /// As [`FarVec::get`].
    pub fn gather(&self, indices: &[usize]) -> Result<Vec<T>> {
        let (size, len) = (size_of::<T>(), self.len());
        if let Some(&index) = indices.iter().find(|&&index| index >= len) {
            return Err(Error::Index { index, len });
        }
        let (inner, scope) = (&self.heap().inner, self.heap().scope());
        let class = FarBox::<Chunk>::CLASS;
        let place = |index: usize| (&self.chunks()[index / Self::EACH], index % Self::EACH);
        let mut gathered: Vec<T> = indices.iter().map(|_| T::new_zeroed()).collect();
        let mut take = |n: usize, bytes: &[u8]| gathered[n] = copied(bytes);
        let mut lane = inner.lane()?;
        // Nodes gather what is away while local elements are copied here.
        let mut gathering = lane.near().gathering(size as u32)?;
        for (n, &index) in indices.iter().enumerate() {
            if let Some(&next) = indices.get(n + AHEAD) {
                let (chunk, at) = place(next);
                inner.arena.touch(inner.arena.of_word(class, chunk.word()));
                inner.arena.touch_byte(class, chunk.word(), at * size);
            }
            let (chunk, at) = place(index);
            if inner.is_local(class, chunk.word()) {
                take(n, slice::<T>(&chunk.get(&scope)?.0)[at].as_bytes());
            } else {
                let home = inner.home(chunk.word()).ok_or(Error::OtherHeap)?;
                gathering.add(n, home + (at * size) as u64, &mut take)?;
            }
        }
        gathering.finish(&mut take)?;
        Ok(gathered)
    }
}

const _: () = assert!(CHUNK <= u16::MAX as usize);
