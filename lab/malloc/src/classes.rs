//! Size classes: multiples of 16 bytes up to 128, then four to each power of two.

/// The largest size that has a class; larger objects are pieces or runs of their own.
pub const LARGEST: usize = 32 << 10;
/// How many classes there are.
pub const CLASSES: usize = 8 + 8 * 4;

/// The class of a size of at most [`LARGEST`].
#[inline]
pub fn class_of(size: usize) -> usize {
    if size <= 128 {
        return size.max(1).div_ceil(16) - 1;
    }
    // (2^k, 2^(k+1)] is four steps of 2^(k-2).
    let k = (size - 1).ilog2() as usize;
    8 + (k - 7) * 4 + ((size - 1) >> (k - 2)) - 4
}

/// The bytes of a class's objects.
#[inline]
pub fn size_of(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let (k, step) = (7 + (class - 8) / 4, (class - 8) % 4);
    (5 + step) << (k - 2)
}

/// The order of the pieces (4096 bytes times 2^order) that a class's objects are cut from.
pub fn span_order(class: usize) -> u8 {
    match size_of(class) {
        0..=256 => 0,
        257..=1024 => 2,
        1025..=4096 => 4,
        _ => 6,
    }
}

/// Objects that move between a thread and the heap at once.
pub fn batch(class: usize) -> usize {
    (LARGEST / size_of(class)).clamp(4, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_least_class_that_holds_it() {
        assert_eq!((size_of(CLASSES - 1), class_of(LARGEST)), (LARGEST, CLASSES - 1));
        for size in 0..=LARGEST {
            let class = class_of(size);
            assert!(size_of(class) >= size, "{size} in {class}");
            assert!(class == 0 || size_of(class - 1) < size, "{size} in {class}");
        }
        for class in 0..CLASSES {
            assert!(size_of(class).is_multiple_of(16) && 4096usize << span_order(class) >= 8 * size_of(class));
        }
    }
}
