//! FineMem's words: what a header of a section or of a span says, and a chunk's log.
//!
//! ```text
//!  63     51 50 48 47     41 40   36  35     34     33 32 31                              0
//! ┌─────────┬─────┬─────────┬───────┬──────┬───────┬─────┬─────────────────────────────────┐
//! │  id:13  │ord:3│ stamp:7 │ off:5 │in use│ layer │retry│ span: a bit for each chunk       │
//! │         │     │         │       │      │       │  :2 │ section: 2 bits for each span    │
//! └─────────┴─────┴─────────┴───────┴──────┴───────┴─────┴─────────────────────────────────┘
//!  └────────── temporary log ──────┘
//! ```
//!
//! `id` is who made the last change, until it has been written to the chunk's log; 0 then. `off` is the first chunk or
//! span of that change, and whether it was an allocation shows in the map. `stamp` advances when allocations turn to
//! frees or back. (The published code orders the fields of its two headers differently; the widths are the paper's,
//! but for one bit less of id.)

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

/// What a section says of one of its spans.
pub const EMPTY: u64 = 0;
/// In use in chunks, with room.
pub const NORMAL: u64 = 1;
/// The same, and better avoided.
pub const CONTENDED: u64 = 2;
/// In use as a whole, or by chunks without room.
pub const FULL: u64 = 3;

impl Header {
    fn field(self, from: u32, bits: u32) -> u64 {
        (self.0 >> from) & ((1 << bits) - 1)
    }

    fn set(self, from: u32, bits: u32, value: u64) -> Header {
        let mask = ((1u64 << bits) - 1) << from;
        Header(self.0 & !mask | (value << from) & mask)
    }

    /// A span's chunks: 1 is taken.
    pub fn map(self) -> u32 {
        self.0 as u32
    }

    /// Whether a span is given out in chunks.
    pub fn in_use(self) -> bool {
        self.field(35, 1) == 1
    }

    /// The same, changed.
    pub fn with_in_use(self, in_use: bool) -> Header {
        self.set(35, 1, u64::from(in_use))
    }

    /// How contended it was found: 0 to 3.
    pub fn retry(self) -> u64 {
        self.field(32, 2)
    }

    /// The same, changed.
    pub fn with_retry(self, retry: u64) -> Header {
        self.set(32, 2, retry)
    }

    /// Who changed it last, if that is in no log yet; else 0.
    pub fn id(self) -> u64 {
        self.field(51, 13)
    }

    /// The same, logged.
    pub fn logged(self) -> Header {
        self.set(51, 13, 0)
    }

    /// A section's span.
    pub fn state(self, span: u32) -> u64 {
        self.field(2 * span, 2)
    }

    /// The same, changed.
    pub fn with_state(self, span: u32, state: u64) -> Header {
        self.set(2 * span, 2, state)
    }

    /// First unit of the last change.
    pub fn offset(self) -> u32 {
        self.field(36, 5) as u32
    }

    fn last_was_allocation(self, unit_bits: u32) -> bool {
        self.field(self.offset() * unit_bits, 1) == 1
    }

    /// The next header: its map with `mask` set or cleared, and the temporary log of that.
    pub fn next(self, unit_bits: u32, mask: u64, taken: bool, offset: u32, order: u8, id: u64) -> Header {
        let turns = self.last_was_allocation(unit_bits) != taken;
        let map = if taken { self.0 & 0xFFFF_FFFF | mask } else { self.0 & 0xFFFF_FFFF & !mask };
        let stamp = self.field(41, 7) + u64::from(turns);
        let next = Header(self.0 & !0xFFFF_FFFF | map);
        next.set(36, 5, u64::from(offset)).set(41, 7, stamp).set(48, 3, u64::from(order)).set(51, 13, id)
    }

    /// The log entry that its temporary log is to become.
    ///
    /// ```text
    ///  63    62                    48 47  32 31   16 15      0
    /// │taken│                        │order │ stamp │   id    │
    /// ```
    pub fn entry(self, unit_bits: u32) -> u64 {
        let taken = u64::from(self.last_was_allocation(unit_bits));
        self.id() | self.field(41, 7) << 16 | self.field(48, 3) << 32 | taken << 63
    }
}

/// Whether a log entry is later than another: stamps within half their range.
pub fn later(entry: u64, than: u64) -> bool {
    let stamp = |entry: u64| (entry >> 16) & 0x7F;
    let ahead = stamp(entry).wrapping_sub(stamp(than)) & 0x7F;
    ahead != 0 && ahead < 64
}

/// A free, aligned run of 1 << `order` chunks in a span, from `start` on.
pub fn run(map: u32, order: u8, start: u32) -> Option<u32> {
    let (length, runs) = (1u32 << order, 32 >> order);
    let mask = if order == 5 { u32::MAX } else { (1 << length) - 1 };
    (0..runs).map(|n| (start / length + n) % runs * length).find(|&offset| map & (mask << offset) == 0)
}

/// An empty, aligned run of 1 << (`order` - 5) spans in a section.
pub fn span_run(section: Header, order: u8) -> Option<u32> {
    let length = 1u32 << (order - 5);
    (0..16 / length).map(|n| n * length).find(|&first| (first..first + length).all(|span| section.state(span) == EMPTY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_in_the_map_and_in_the_temporary_log() {
        let taken = Header(0).with_in_use(true).next(1, 0b11 << 4, true, 4, 1, 7);
        assert_eq!((taken.map(), taken.offset(), taken.id(), taken.in_use()), (0x30, 4, 7, true));
        let again = taken.next(1, 1 << 9, true, 9, 0, 7);
        assert_eq!(again.field(41, 7), taken.field(41, 7), "allocations in a row share a stamp");
        let freed = again.next(1, 0b11 << 4, false, 4, 1, 8);
        assert_eq!((freed.map(), freed.field(41, 7)), (1 << 9, again.field(41, 7) + 1));
        assert!(later(freed.entry(1), again.entry(1)) && !later(again.entry(1), freed.entry(1)));
        assert_eq!((again.entry(1) >> 63, freed.entry(1) >> 63), (1, 0));
    }

    #[test]
    fn stamps_go_round() {
        let (before, after) = (0x7E << 16, 0x01 << 16);
        assert!(later(after, before) && !later(before, after) && !later(before, before));
    }

    #[test]
    fn runs_are_aligned() {
        assert_eq!((run(0b1, 0, 0), run(0b1, 2, 0), run(u32::MAX >> 1, 0, 7)), (Some(1), Some(4), Some(31)));
        assert_eq!((run(u32::MAX, 0, 3), run(1 << 20, 4, 16)), (None, Some(0)));
        let section = Header(0).with_state(0, NORMAL).with_state(9, FULL);
        assert_eq!(
            (span_run(section, 5), span_run(section, 7), span_run(section, 8), span_run(section, 9)),
            (Some(1), Some(4), None, None)
        );
    }
}
