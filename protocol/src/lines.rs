//! A record of the eviction log: changed lines of many pages of one slab, in one verb.
//!
//! ```text
//!  0       2       4          12
//!  | pages | lines | checksum | Entry × pages | 64 bytes × lines |
//!
//!  Entry   0       2               10
//!          | place | which lines   |      bit k of 64: line k of the page goes along
//! ```
//!
//! Entries stand in ascending order of their *place* (the page's slot in its slab), each once; the
//! lines follow in the order of the entries, and of the bits in each. So a record has one form for
//! one content, and applying it twice changes nothing the second time.
//!
//! The checksum is XXH3 (64 bits) of everything behind it, seeded with the slab's name and the
//! head: bytes that were meant for another slab are not taken for this one's. A record is checked
//! whole before a byte of it is applied, so that a torn one changes nothing.
//!
//! [`conditional`]: records that are laid only onto what the sender takes for granted.

pub mod conditional;

use crate::addr::{PAGE_BYTES, SLOTS_PER_SLAB, SlabId};
use crate::wire::Broken;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a line, the unit of dirtiness.
pub const LINE_BYTES: usize = 64;
/// Lines of a page.
pub const LINES: usize = PAGE_BYTES / LINE_BYTES;
/// Bytes of a record, at most: half of what a node buffers of a connection's input.
pub const MAX_RECORD_BYTES: usize = 32 << 10;

/// From this many changed lines on, a page is sent whole. Beyond, gathering, taking apart and two
/// checksums cost about as much as the bytes that are spared (`docs/design/lines-record.md`, by
/// `farmem-lab bench evict`).
pub const WHOLE_FROM: u32 = 32;

/// First bytes of a record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    pages: U16,
    lines: U16,
    checksum: U64,
}

/// One page of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// The page's slot in the slab.
    pub place: U16,
    /// Bit k: line k.
    pub lines: U64,
}

const HEAD_BYTES: usize = size_of::<Head>();
const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(HEAD_BYTES == 12 && ENTRY_BYTES == 10 && SLOTS_PER_SLAB <= 1 << 16);

/// Bytes of an empty record.
pub const fn record_bytes() -> usize {
    HEAD_BYTES
}

/// Bytes that a page with `lines` changed lines adds to a record.
pub const fn page_bytes(lines: u32) -> usize {
    ENTRY_BYTES + lines as usize * LINE_BYTES
}

fn checksum(slab: SlabId, pages: u16, lines: u16, body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, slab.0 ^ (pages as u64) << 48 ^ (lines as u64) << 32)
}

/// Writes a record into `out`: for each entry, in order, `page(index)` gives the bytes of its page.
/// Returns its length; `None` when it does not fit, or is none by the rules above.
pub fn encode<'a>(
    slab: SlabId,
    entries: &[Entry],
    out: &mut [u8],
    mut page: impl FnMut(usize) -> &'a [u8; PAGE_BYTES],
) -> Option<usize> {
    let lines: u32 = entries.iter().map(|e| e.lines.get().count_ones()).sum();
    let len = HEAD_BYTES + entries.len() * ENTRY_BYTES + lines as usize * LINE_BYTES;
    let out = out.get_mut(..len).filter(|_| len <= MAX_RECORD_BYTES && well_formed(entries))?;
    let (head, body) = out.split_at_mut(HEAD_BYTES);
    let (index, mut rest) = body.split_at_mut(entries.len() * ENTRY_BYTES);
    index.copy_from_slice(entries.as_bytes());
    for (i, entry) in entries.iter().enumerate() {
        let (from, _) = page(i).as_chunks::<LINE_BYTES>();
        // Line by line: a length that the compiler knows costs less than a call for every run.
        let mut bits = entry.lines.get();
        while bits != 0 {
            let (to, behind) = rest.split_first_chunk_mut::<LINE_BYTES>()?;
            *to = from[bits.trailing_zeros() as usize];
            (rest, bits) = (behind, bits & (bits - 1));
        }
    }
    let (pages, lines) = (entries.len() as u16, lines as u16);
    let sum = checksum(slab, pages, lines, body);
    head.copy_from_slice(Head { pages: pages.into(), lines: lines.into(), checksum: sum.into() }.as_bytes());
    Some(len)
}

/// At least one page, each once and in order, each with a line, and inside the slab.
fn well_formed(entries: &[Entry]) -> bool {
    !entries.is_empty()
        && entries.iter().all(|e| e.lines.get() != 0 && (e.place.get() as u32) < SLOTS_PER_SLAB)
        && entries.windows(2).all(|w| w[0].place.get() < w[1].place.get())
}

/// Runs of ones in a bitmap, lowest first: (first, length).
#[derive(Clone, Copy, Debug)]
pub struct Runs(pub u64);

impl Iterator for Runs {
    type Item = (usize, usize);
    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.0 == 0 {
            return None;
        }
        let first = self.0.trailing_zeros();
        let run = (self.0 >> first).trailing_ones();
        // A shift by 64 is none: a run that ends with the word leaves nothing.
        self.0 &= u64::MAX.checked_shl(first + run).unwrap_or(0);
        Some((first as usize, run as usize))
    }
}

/// A record by its form: its bytes may yet be others than those that were sent.
#[derive(Clone, Copy, Debug)]
pub struct Unchecked<'a> {
    slab: SlabId,
    head: Head,
    body: &'a [u8],
    record: Record<'a>,
}

impl<'a> Unchecked<'a> {
    /// Where its lines belong, byte offsets in the slab, should it be what was sent: to get them
    /// into a cache.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        self.record.entries.iter().flat_map(|entry| {
            let (base, mut bits) = (entry.place.get() as u64 * PAGE_BYTES as u64, entry.lines.get());
            std::iter::from_fn(move || {
                let line = bits.trailing_zeros() as u64;
                bits &= bits.checked_sub(1)?;
                Some(base + line * LINE_BYTES as u64)
            })
        })
    }

    /// Checks its bytes.
    ///
    /// # Errors
    /// [`Broken::Record`]: not those that were sent.
    pub fn check(self) -> Result<Record<'a>, Broken> {
        let Head { pages, lines, checksum: expected } = self.head;
        let sum = checksum(self.slab, pages.get(), lines.get(), self.body);
        if sum == expected.get() { Ok(self.record) } else { Err(Broken::Record) }
    }
}

/// A record that was checked.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    entries: &'a [Entry],
    lines: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record for a slab, and judges its form.
    ///
    /// # Errors
    /// [`Broken::Record`]: not by the rules.
    pub fn parse(slab: SlabId, bytes: &'a [u8]) -> Result<Unchecked<'a>, Broken> {
        let (head, body) = Head::read_from_prefix(bytes).map_err(|_| Broken::Record)?;
        let (entries, lines) =
            <[Entry]>::ref_from_prefix_with_elems(body, head.pages.get() as usize).map_err(|_| Broken::Record)?;
        let set: u64 = entries.iter().map(|e| e.lines.get().count_ones() as u64).sum();
        let formed = bytes.len() <= MAX_RECORD_BYTES
            && set == head.lines.get() as u64
            && lines.len() == set as usize * LINE_BYTES
            && well_formed(entries);
        if formed { Ok(Unchecked { slab, head, body, record: Record { entries, lines } }) } else { Err(Broken::Record) }
    }

    /// Checks a record for a slab, form and bytes.
    ///
    /// # Errors
    /// [`Broken::Record`]: not by the rules, or not the bytes that were sent.
    pub fn check(slab: SlabId, bytes: &'a [u8]) -> Result<Record<'a>, Broken> {
        Record::parse(slab, bytes)?.check()
    }

    /// Pages that it names.
    pub fn pages(&self) -> usize {
        self.entries.len()
    }

    /// By page: byte offset in the slab, which lines, and their bytes.
    pub fn by_page(self) -> impl Iterator<Item = (u64, u64, &'a [u8])> {
        let mut rest = self.lines;
        self.entries.iter().map(move |entry| {
            let lines = entry.lines.get();
            let (bytes, behind) = rest.split_at(lines.count_ones() as usize * LINE_BYTES);
            rest = behind;
            (entry.place.get() as u64 * PAGE_BYTES as u64, lines, bytes)
        })
    }

    /// The writes: byte offset in the slab, and bytes. Neighbouring lines are joined.
    pub fn runs(self) -> impl Iterator<Item = (u64, &'a [u8])> {
        self.by_page().flat_map(|(base, lines, bytes)| runs_of(base, lines, bytes))
    }

    /// Lays its lines down by `write(offset, lines)`, which says when they would be outside. Then
    /// the rest stays unwritten, and this is `None`.
    pub fn lay(self, mut write: impl FnMut(u64, &[u8]) -> bool) -> Option<()> {
        self.runs().all(|(offset, bytes)| write(offset, bytes)).then_some(())
    }
}

/// The same of one page of [`Record::by_page`].
pub fn runs_of(base: u64, lines: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = bytes;
    Runs(lines).map(move |(line, run)| {
        let (bytes, behind) = rest.split_at(run * LINE_BYTES);
        rest = behind;
        (base + (line * LINE_BYTES) as u64, bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(n: usize) -> Vec<[u8; PAGE_BYTES]> {
        (0..n).map(|page| std::array::from_fn(|i| (i * 7 + i / 64 + page * 13) as u8)).collect()
    }

    fn entry(place: u16, lines: u64) -> Entry {
        Entry { place: place.into(), lines: lines.into() }
    }

    fn encoded(slab: u64, entries: &[Entry]) -> Option<Vec<u8>> {
        let bytes = pages(entries.len());
        let mut out = vec![0xEE; MAX_RECORD_BYTES];
        let len = encode(SlabId(slab), entries, &mut out, |i| &bytes[i])?;
        out.truncate(len);
        Some(out)
    }

    #[test]
    fn lines_come_out_where_they_went_in() {
        let entries = [entry(3, 1), entry(7, 1 << 63 | 6), entry(16383, u64::MAX)];
        let record = encoded(5, &entries).unwrap();
        assert_eq!(record.len(), record_bytes() + page_bytes(1) + page_bytes(3) + page_bytes(64));
        let checked = Record::check(SlabId(5), &record).unwrap();
        let source = pages(3);
        let expected = [(3, 0, 1, 0), (7, 1, 2, 1), (7, 63, 1, 1), (16383, 0, 64, 2)];
        let runs: Vec<_> = checked.runs().collect();
        assert_eq!((runs.len(), checked.pages()), (expected.len(), 3));
        for ((offset, bytes), (place, line, n, page)) in runs.into_iter().zip(expected) {
            assert_eq!(offset, place * 4096 + line * 64);
            let from = line as usize * 64;
            assert_eq!(bytes, &source[page][from..from + n * 64]);
        }
    }

    #[test]
    fn the_places_of_a_record_are_those_of_its_lines() {
        let record = encoded(5, &[entry(3, 1), entry(7, 1 << 63 | 6), entry(16383, u64::MAX)]).unwrap();
        let places: Vec<u64> = Record::parse(SlabId(5), &record).unwrap().places().collect();
        let runs = Record::check(SlabId(5), &record).unwrap().runs();
        let lines: Vec<u64> =
            runs.flat_map(|(offset, bytes)| (offset..offset + bytes.len() as u64).step_by(LINE_BYTES)).collect();
        assert_eq!(places, lines);
    }

    #[test]
    fn bytes_lie_where_the_drawing_says() {
        let record = encoded(5, &[entry(0x0102, 1 << 9)]).unwrap();
        assert_eq!(record[..4], [1, 0, 1, 0]);
        assert_eq!(record[12..22], [2, 1, 0, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record[22..], pages(1)[0][576..640]);
    }

    #[test]
    fn what_is_not_by_the_rules_is_not_made() {
        for bad in
            [&[][..], &[entry(1, 0)], &[entry(2, 1), entry(2, 2)], &[entry(2, 1), entry(1, 1)], &[entry(16384, 1)]]
        {
            assert_eq!(encoded(1, bad), None);
        }
        let many: Vec<Entry> = (0..8).map(|place| entry(place, u64::MAX)).collect();
        assert_eq!(encoded(1, &many), None, "too long");
        assert!(encoded(1, &many[1..]).is_some());
    }

    /// A record that was cut, or in which any one bit is another, is none.
    #[test]
    fn a_torn_record_is_none() {
        let record = encoded(9, &[entry(3, 0b101), entry(4, 1 << 40)]).unwrap();
        assert!(Record::check(SlabId(9), &record).is_ok());
        assert!(Record::check(SlabId(8), &record).is_err(), "another slab's");
        for len in 0..record.len() {
            assert!(Record::check(SlabId(9), &record[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..record.len() * 8 {
            let mut torn = record.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::check(SlabId(9), &torn).is_err(), "bit {bit}");
        }
        let mut longer = record.clone();
        longer.push(0);
        assert!(Record::check(SlabId(9), &longer).is_err());
    }

    #[test]
    fn runs_cover_the_bitmap() {
        for bits in [0, 1, u64::MAX, 1 << 63, 0xF0F0_0000_0000_0F01, 0b1011_0111] {
            let mut again = 0u64;
            for (first, run) in Runs(bits) {
                for line in first..first + run {
                    again |= 1 << line;
                }
            }
            assert_eq!(again, bits);
        }
        assert_eq!(Runs(u64::MAX).next(), Some((0, 64)));
    }
}
