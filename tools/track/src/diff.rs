//! The changes in a page: its lines, and the number of its bytes.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a line, the unit of dirtiness.
pub const LINE: usize = 64;
/// Lines of a page.
pub const LINES: u32 = (PAGE / LINE) as u32;

/// The difference between two states of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bit n: line n differs.
    pub lines: u64,
    /// Bytes that differ.
    pub bytes: u32,
}

/// Compares two states of a page.
///
/// Most pages that are looked at without a hint are unchanged, and that is one `memcmp`. In a
/// changed page most lines are equal: each costs one comparison of 64 bytes, which the compiler
/// makes vector instructions of; only in lines that differ are bytes counted, again by vectors.
pub fn page(before: &[u8; PAGE], after: &[u8; PAGE]) -> Change {
    let mut change = Change::default();
    if before == after {
        return change;
    }
    let (before, after) = (before.as_chunks::<LINE>().0, after.as_chunks::<LINE>().0);
    for (line, (before, after)) in before.iter().zip(after).enumerate() {
        if before != after {
            change.lines |= 1 << line;
            let differing = |(a, b): (&u8, &u8)| u8::from(a != b);
            // At most 64, so a byte holds the sum, which keeps the vector's lanes narrow.
            change.bytes += u32::from(before.iter().zip(after).map(differing).sum::<u8>());
        }
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;
    use proptest::prelude::*;

    /// The plain model: byte by byte.
    fn model(before: &[u8; PAGE], after: &[u8; PAGE]) -> Change {
        let mut change = Change::default();
        for at in 0..PAGE {
            if before[at] != after[at] {
                change.lines |= 1 << (at / LINE);
                change.bytes += 1;
            }
        }
        change
    }

    fn filled(seed: u64) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        Random::new(seed).fill(&mut page);
        page
    }

    proptest! {
        #[test]
        fn as_the_plain_model_says(
            seed: u64,
            stores in prop::collection::vec((0..PAGE, 1..200_usize, any::<u8>()), 0..40),
        ) {
            let before = filled(seed);
            let mut after = before;
            for (at, len, with) in stores {
                after[at..(at + len).min(PAGE)].fill(with);
            }
            prop_assert_eq!(page(&before, &after), model(&before, &after));
            prop_assert_eq!(page(&after, &before), model(&before, &after), "symmetric");
        }

        #[test]
        fn unrelated_pages_too(one: u64, other: u64) {
            let (one, other) = (filled(one), filled(other));
            prop_assert_eq!(page(&one, &other), model(&one, &other));
        }
    }

    #[test]
    fn every_byte_counts_once_and_in_its_line() {
        for at in 0..PAGE {
            let mut after = [0; PAGE];
            after[at] = 255;
            assert_eq!(page(&[0; PAGE], &after), Change { lines: 1 << (at / LINE), bytes: 1 });
        }
        assert_eq!(page(&[0; PAGE], &[1; PAGE]), Change { lines: u64::MAX, bytes: PAGE as u32 });
        assert_eq!(page(&[7; PAGE], &[7; PAGE]), Change::default());
    }
}
