//! Size classes of objects, and where the frames of each lie. Pure.
//!
//! ```text
//! payloads: 16, 32, … 128, then four steps a doubling, up to 4096
//! arena:    | class 0: 4 GiB | class 1 | … | class 20: 16 GiB | …    addresses, backed by use
//! class:    | segment of 64 KiB: frame, frame, … | segment | …       frame: header, payload
//! ```
//!
//! Each class has a range of addresses of its own. A place of one class therefore always names a
//! header of that class, and never the middle of another object's payload.

/// Size classes.
pub const CLASSES: usize = 28;
/// The largest payload, bytes.
pub const LARGEST: usize = 4096;
/// Bytes of a segment: the unit in which local memory is given to a class.
pub const SEGMENT: usize = 64 << 10;
/// Segments that the kernel can back by one huge page.
pub const GROUP: usize = 32;
/// Bits of a frame's place in its class. Miri has no addresses that are only reserved.
pub const PLACE_BITS: u32 = if cfg!(miri) { 14 } else { 28 };
/// Classes with small headers.
const SMALL: usize = 20;
const SMALL_UNIT: u32 = 4;
const LARGE_UNIT: u32 = 6;
/// Bytes of all ranges of addresses.
pub const ARENA: usize = (SMALL << (PLACE_BITS + SMALL_UNIT)) + ((CLASSES - SMALL) << (PLACE_BITS + LARGE_UNIT));

/// One size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Its number.
    pub index: usize,
    /// Bytes of an object.
    pub payload: usize,
    /// Bytes from one frame to the next.
    pub stride: usize,
    /// Bytes of a header. A payload is aligned to as many.
    pub header: usize,
    /// A place counts units of `1 << unit` bytes.
    pub unit: u32,
    /// Where its range begins in the arena.
    pub from: usize,
}

impl Class {
    /// The class of this number.
    pub const fn new(index: usize) -> Class {
        assert!(index < CLASSES);
        let payload = match index.checked_sub(8) {
            None => 16 * (index + 1),
            Some(step) => (128 << (step / 4)) + (32 << (step / 4)) * (step % 4 + 1),
        };
        let (unit, from) = if index < SMALL {
            (SMALL_UNIT, index << (PLACE_BITS + SMALL_UNIT))
        } else {
            (LARGE_UNIT, (SMALL << (PLACE_BITS + SMALL_UNIT)) + ((index - SMALL) << (PLACE_BITS + LARGE_UNIT)))
        };
        let header = 1 << unit;
        Class { index, payload, stride: (header + payload).next_multiple_of(header), header, unit, from }
    }

    /// The smallest class for objects of `bytes` bytes, at most [`LARGEST`].
    pub const fn of(bytes: usize) -> Class {
        assert!(bytes <= LARGEST, "a far object has at most 4096 bytes: use a FarVec");
        let mut index = 0;
        while Class::new(index).payload < bytes {
            index += 1;
        }
        Class::new(index)
    }

    /// The class whose range has this offset of the arena.
    pub const fn at(offset: usize) -> Class {
        let small = SMALL << (PLACE_BITS + SMALL_UNIT);
        match offset.checked_sub(small) {
            None => Class::new(offset >> (PLACE_BITS + SMALL_UNIT)),
            Some(rest) => Class::new(SMALL + (rest >> (PLACE_BITS + LARGE_UNIT))),
        }
    }

    /// Frames of a segment.
    pub const fn frames(self) -> usize {
        SEGMENT / self.stride
    }

    /// Segments that its range has room for.
    pub const fn segments(self) -> usize {
        (1 << (PLACE_BITS + self.unit)) / SEGMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes() {
        for bytes in 1..=LARGEST {
            let class = Class::of(bytes);
            assert!(class.payload >= bytes && class.payload <= (bytes * 5 / 4).max(bytes + 15), "{bytes}: {class:?}");
        }
        assert_eq!((Class::of(1).payload, Class::of(64).payload, Class::of(4096).index), (16, 64, CLASSES - 1));
    }

    #[test]
    fn ranges_follow_one_another() {
        let mut end = 0;
        for index in 0..CLASSES {
            let class = Class::new(index);
            assert_eq!(class.from, end);
            end += class.segments() * SEGMENT;
            assert_eq!((Class::at(class.from).index, Class::at(end - 1).index), (index, index));
            assert!(class.stride.is_multiple_of(class.header) && class.frames() >= 15);
        }
        assert_eq!(end, ARENA);
    }
}
