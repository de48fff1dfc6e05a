//! A record on conditions: the lines of each of its pages are laid down only where the slot's same
//! lines are still what the sender takes them for.
//!
//! ```text
//!  | record | was: 8 bytes × pages | seed: 16 bytes |
//! ```
//!
//! *Was* is the sum over the page's lines that go along, as they were before, of their hashes under
//! the key of the seed (`farmem_sys::lines`). The node computes it from what is in the slot. Where
//! it is another, the sender was wrong about which lines have changed, or the record is here for
//! the second time: the page is *refused*, its slot stays as it is, and the completion's value
//! names it ([`Refused`]). The sender then sends the page whole. So a refusal costs a WRITE and can
//! never do harm.
//!
//! The record's checksum does not cover was and seed: if these are others than were sent, pages are
//! refused.

use super::{ENTRY_BYTES, HEAD_BYTES, Head, LINE_BYTES, MAX_RECORD_BYTES, Record, runs_of};
use crate::wire::Broken;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a seed.
pub const SEED_BYTES: usize = 16;
/// Bytes that conditions add to a record, beside [`WAS_BYTES`] for each page.
pub const CONDITIONS_BYTES: usize = SEED_BYTES;
/// Bytes of a page's condition.
pub const WAS_BYTES: usize = size_of::<U64>();

/// Appends conditions to the record that is the first `record` bytes of `out`: its pages' in order.
/// Returns the length of all; `None` when it does not fit.
pub fn append(
    out: &mut [u8],
    record: usize,
    was: impl ExactSizeIterator<Item = u64>,
    seed: &[u8; SEED_BYTES],
) -> Option<usize> {
    let len = record + was.len() * WAS_BYTES + SEED_BYTES;
    let behind = out.get_mut(record..len).filter(|_| len <= MAX_RECORD_BYTES)?;
    let (sums, last) = behind.split_at_mut(len - record - SEED_BYTES);
    sums.chunks_exact_mut(WAS_BYTES).zip(was).for_each(|(to, sum)| to.copy_from_slice(U64::new(sum).as_bytes()));
    last.copy_from_slice(seed);
    Some(len)
}

/// A record and its conditions, taken apart. The record is not yet looked at.
#[derive(Clone, Copy, Debug)]
pub struct Conditional<'a> {
    /// For [`super::Record::parse`].
    pub record: &'a [u8],
    /// Of its pages, in order.
    pub was: &'a [U64],
    /// From what the key is made.
    pub seed: &'a [u8; SEED_BYTES],
}

impl<'a> Conditional<'a> {
    /// Takes operand bytes apart.
    ///
    /// # Errors
    /// [`Broken::Record`]: too short for what its head says.
    pub fn split(bytes: &'a [u8]) -> Result<Conditional<'a>, Broken> {
        let (head, _) = Head::read_from_prefix(bytes).map_err(|_| Broken::Record)?;
        let (pages, lines) = (head.pages.get() as usize, head.lines.get() as usize);
        let record = HEAD_BYTES + pages * ENTRY_BYTES + lines * LINE_BYTES;
        let (record, behind) = bytes.split_at_checked(record).ok_or(Broken::Record)?;
        let (sums, seed) = behind.split_at_checked(pages * WAS_BYTES).ok_or(Broken::Record)?;
        let was = <[U64]>::ref_from_bytes(sums).map_err(|_| Broken::Record)?;
        Ok(Conditional { record, was, seed: seed.try_into().map_err(|_| Broken::Record)? })
    }
}

/// Pages of a record that were refused, as a completion's value: up to four by their numbers, else
/// all.
///
/// ```text
///  63       48       32       16       0
///  | fourth | third  | second | first  |     1 + number of the page in the record; 0: none
///                                            all ones: more than four
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused(pub u64);

impl Refused {
    /// More than four. They may be any, so whoever reads it takes it for all.
    pub const MANY: Refused = Refused(u64::MAX);

    /// Adds a page, by its number in the record. In ascending order.
    pub fn add(&mut self, page: usize) {
        *self = match self.0.leading_zeros() {
            zeros if *self != Refused::MANY && zeros >= 16 => {
                Refused(self.0 | (page as u64 + 1) << (16 * ((u64::BITS - zeros).div_ceil(16))))
            }
            _ => Refused::MANY,
        };
    }

    /// Those that one home or another refused. A value that no honest node gives stands for all.
    pub fn or(self, other: Refused) -> Refused {
        match (self.0, other.0) {
            (0, _) => other,
            (_, 0) => self,
            (one, another) if one == another => self,
            _ => Refused::MANY,
        }
    }

    /// Whether none was.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a page was, or may have been.
    pub fn contains(self, page: usize) -> bool {
        self == Refused::MANY || (0..4).any(|nth| self.0 >> (16 * nth) & 0xFFFF == page as u64 + 1)
    }
}

/// Lays the lines of those pages down whose lines are as they `was`. Returns the other pages.
/// `None` when some lines lie outside.
///
/// `sum(offset, lines)` gives the sum that is in the slot at an offset, `write(offset, lines)`
/// changes lines there; both say when they would be outside. Only lines that are about to be
/// written are read: they are on their way into the cache anyhow.
pub fn lay_if(
    record: Record<'_>,
    was: &[U64],
    mut sum: impl FnMut(u64, u64) -> Option<u64>,
    mut write: impl FnMut(u64, &[u8]) -> bool,
) -> Option<Refused> {
    let mut refused = Refused::default();
    for (nth, ((base, lines, bytes), was)) in record.by_page().zip(was).enumerate() {
        if sum(base, lines)? != was.get() {
            refused.add(nth);
        } else if !runs_of(base, lines, bytes).all(|(offset, bytes)| write(offset, bytes)) {
            return None;
        }
    }
    Some(refused)
}

/// Every page that fits has a number: the least takes an entry, a line and a condition.
const _: () = assert!(MAX_RECORD_BYTES / (ENTRY_BYTES + LINE_BYTES + WAS_BYTES) < 0xFFFF - 1);

#[cfg(test)]
mod tests {
    use super::super::{Entry, encode, page_bytes, record_bytes};
    use super::*;
    use crate::addr::SlabId;

    #[test]
    fn conditions_come_out_as_they_went_in() {
        let page = [7; 4096];
        let entries = [3, 9].map(|place: u16| Entry { place: place.into(), lines: 5.into() });
        let mut out = vec![0; MAX_RECORD_BYTES];
        let record = encode(SlabId(4), &entries, &mut out, |_| &page).unwrap();
        let seed = std::array::from_fn(|i| i as u8);
        let len = append(&mut out, record, [11, u64::MAX].into_iter(), &seed).unwrap();
        assert_eq!(len, record_bytes() + 2 * page_bytes(2) + CONDITIONS_BYTES + 2 * WAS_BYTES);
        let apart = Conditional::split(&out[..len]).unwrap();
        assert_eq!((apart.was, apart.seed), (&[11.into(), u64::MAX.into()][..], &seed));
        assert!(Record::check(SlabId(4), apart.record).is_ok());
        // Longer, shorter, or of other pages: then the seed does not end with the bytes.
        assert!((0..len).all(|len| Conditional::split(&out[..len]).is_err()));
        assert!(Conditional::split(&out[..len + 1]).is_err());
        assert_eq!(append(&mut out[..len - 1], record, [0, 0].into_iter(), &seed), None);
    }

    #[test]
    fn what_either_home_refused_is_refused() {
        let of = |pages: &[usize]| {
            pages.iter().fold(Refused::default(), |mut refused, &page| {
                refused.add(page);
                refused
            })
        };
        let lists = [of(&[]), of(&[0]), of(&[1]), of(&[1, 2, 3]), of(&[2, 3]), of(&[0, 1, 2, 3, 4])];
        let any = lists.into_iter().chain([Refused(0xFFFF), Refused(0xFFFF << 16), Refused(u64::MAX - 1)]);
        for (one, another) in any.clone().flat_map(|one| any.clone().map(move |another| (one, another))) {
            let both = one.or(another);
            assert!((0..8).all(|page| both.contains(page) || !one.contains(page) && !another.contains(page)));
            assert!(both.is_none() || !one.is_none() || !another.is_none());
        }
    }

    #[test]
    fn up_to_four_pages_are_named() {
        let mut refused = Refused::default();
        let pages = [0, 255, 256, 441];
        assert!(refused.is_none() && !refused.contains(0));
        for (nth, &page) in pages.iter().enumerate() {
            refused.add(page);
            assert!((0..442).all(|n| refused.contains(n) == pages[..=nth].contains(&n)), "{refused:?}");
        }
        refused.add(442);
        assert_eq!(refused, Refused::MANY);
        assert!((0..442).all(|n| refused.contains(n)));
        refused.add(443);
        assert_eq!(refused, Refused::MANY);
    }
}
