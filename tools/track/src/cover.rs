//! The changes of an address space between two looks at it.
//!
//! `maps` shows the mappings of a moment, and the kernel splits, joins and renames them as it
//! likes: one line is three after an `mprotect`. So looks are compared by address, not by line. A
//! range that has the same thing behind it as before is *kept*, and the records of its pages stay
//! true. A range that is *gone* takes its pages' baselines with it: a later mapping there, perhaps
//! at the same first address, begins without any. A *fresh* range begins with zeros if it is
//! anonymous, and unknown otherwise.

use crate::maps::{Behind, Mapping};

/// Addresses, from the first to the one after the last.
pub type Range = std::ops::Range<u64>;

/// The contents of a page without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// Zeros: it is anonymous, and was not there when it was last looked at.
    Zeros,
    /// Not known.
    Unknown,
}

/// A range of the address space, at a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its addresses.
    pub range: Range,
    /// Index of its mapping among those of the look.
    pub mapping: usize,
    /// The contents of its unrecorded pages at the look before.
    pub unseen: Unseen,
    /// It is, or was at an earlier look, tracked: its records hold.
    held: bool,
    readable: bool,
    behind: Behind,
}

/// An address space at one look. Parts are in order and do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Cover {
    parts: Vec<Part>,
    mappings: Vec<Mapping>,
}

/// The findings of [`Cover::advance`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advanced {
    /// The records of these pages are void.
    pub gone: Vec<Range>,
    /// New anonymous memory, which may have been moved here from one that is gone.
    pub fresh: Vec<Range>,
}

impl Cover {
    /// The mappings of the look.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Its tracked parts.
    pub fn tracked(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| self.mappings[part.mapping].is_tracked())
    }

    /// The part that this address is in.
    pub fn part(&self, address: u64) -> Option<&Part> {
        let at = self.parts.partition_point(|part| part.range.end <= address);
        self.parts.get(at).filter(|part| part.range.start <= address)
    }

    /// Goes on to the next look, at which these were the mappings, in order of address.
    pub fn advance(&mut self, mappings: Vec<Mapping>) -> Advanced {
        let mut advanced = Advanced::default();
        let mut parts = Vec::with_capacity(mappings.len());
        let mut old = self.parts.iter().peekable();
        // Where the part that `old` is at has been dealt with up to.
        let mut done = 0;
        for (mapping, new) in mappings.iter().enumerate() {
            let part = |range: Range, unseen, held| Part {
                range,
                mapping,
                unseen,
                held: held || new.is_tracked(),
                readable: new.read,
                behind: new.behind.clone(),
            };
            let mut at = new.start;
            while at < new.end {
                while old.peek().is_some_and(|old| old.range.end <= at) {
                    let past = old.next().expect("peeked");
                    push(&mut advanced.gone, done.max(past.range.start)..past.range.end);
                }
                let Some(before) = old.peek().filter(|old| old.range.start < new.end) else {
                    if new.behind.is_anonymous() {
                        push(&mut advanced.fresh, at..new.end);
                    }
                    parts.push(part(at..new.end, new.behind.unseen(), false));
                    break;
                };
                if at < before.range.start {
                    if new.behind.is_anonymous() {
                        push(&mut advanced.fresh, at..before.range.start);
                    }
                    parts.push(part(at..before.range.start, new.behind.unseen(), false));
                    at = before.range.start;
                }
                push(&mut advanced.gone, done.max(before.range.start)..at);
                let end = before.range.end.min(new.end);
                if before.behind.same(&new.behind) {
                    // Never tracked until now: it may have been written before it became readable
                    // only if it once was readable, or is not anonymous.
                    let unseen = match (before.held, before.readable) {
                        (true, _) => before.unseen,
                        (false, false) => new.behind.unseen(),
                        (false, true) => Unseen::Unknown,
                    };
                    parts.push(part(at..end, unseen, before.held));
                } else {
                    push(&mut advanced.gone, at..end);
                    if new.behind.is_anonymous() {
                        push(&mut advanced.fresh, at..end);
                    }
                    parts.push(part(at..end, new.behind.unseen(), false));
                }
                done = end;
                at = end;
            }
        }
        for past in old {
            push(&mut advanced.gone, done.max(past.range.start)..past.range.end);
        }
        *self = Cover { parts, mappings };
        advanced
    }
}

impl Behind {
    /// Private memory with no file behind it.
    pub fn is_anonymous(&self) -> bool {
        matches!(self, Behind::Anonymous | Behind::Stack)
    }

    /// Names of anonymous memory change with what the program does beside it; a file's identity
    /// does not.
    fn same(&self, other: &Behind) -> bool {
        self == other || self.is_anonymous() && other.is_anonymous()
    }

    fn unseen(&self) -> Unseen {
        if self.is_anonymous() { Unseen::Zeros } else { Unseen::Unknown }
    }
}

/// Appends a range, joined to the last one where they touch.
fn push(to: &mut Vec<Range>, range: Range) {
    if range.is_empty() {
        return;
    }
    match to.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => to.push(range),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // A list of one range is meant.
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn anonymous(range: Range, rights: &str) -> Mapping {
        Mapping {
            start: range.start,
            end: range.end,
            read: rights.contains('r'),
            write: rights.contains('w'),
            execute: false,
            behind: Behind::Anonymous,
            name: String::new(),
        }
    }

    fn file(range: Range) -> Mapping {
        let text = format!("{:x}-{:x} rw-p 0 08:01 7 /f", range.start, range.end);
        crate::maps::parse(&text).remove(0)
    }

    fn at(maps: Vec<Mapping>) -> Cover {
        let mut cover = Cover::default();
        cover.advance(maps);
        cover
    }

    #[test]
    fn splits_and_joins_keep_what_is_known() {
        let mut cover = at(vec![anonymous(100..200, "rw")]);
        let split = vec![anonymous(100..120, "rw"), anonymous(120..150, "r"), anonymous(150..200, "rw")];
        assert_eq!(cover.advance(split), Advanced::default());
        assert_eq!(cover.tracked().count(), 2);
        assert_eq!(cover.advance(vec![anonymous(100..200, "rw")]), Advanced::default());
        assert!(cover.tracked().all(|part| part.unseen == Unseen::Zeros));
    }

    #[test]
    fn another_mapping_at_the_same_first_address_begins_anew() {
        let mut cover = at(vec![anonymous(100..200, "rw")]);
        let advanced = cover.advance(vec![file(100..150)]);
        assert_eq!(advanced, Advanced { gone: vec![100..200], fresh: vec![] });
        assert_eq!(cover.part(100).unwrap().unseen, Unseen::Unknown);
        let advanced = cover.advance(vec![anonymous(100..200, "rw")]);
        assert_eq!(advanced, Advanced { gone: vec![100..150], fresh: vec![100..200] });
    }

    #[test]
    fn growth_is_fresh_and_a_reservation_made_writable_is_zeros() {
        let mut cover = at(vec![anonymous(100..110, "rw"), anonymous(110..200, "-"), anonymous(300..310, "r")]);
        let advanced =
            cover.advance(vec![anonymous(90..150, "rw"), anonymous(150..200, "-"), anonymous(300..310, "rw")]);
        assert_eq!(advanced, Advanced { gone: vec![], fresh: vec![90..100] });
        assert_eq!(cover.part(120).unwrap().unseen, Unseen::Zeros);
        assert_eq!(cover.part(300).unwrap().unseen, Unseen::Unknown, "it may hold anything");
    }

    prop_compose! {
        fn mappings()(places in prop::collection::vec((0..40_u64, 1..12_u64, 0..4_u8), 0..8)) -> Vec<Mapping> {
            let mut maps: Vec<Mapping> = Vec::new();
            let mut from = 0;
            for (gap, len, kind) in places {
                let range = from + gap % 5..from + gap % 5 + len;
                from = range.end;
                maps.push(match kind {
                    0 => file(range),
                    1 => anonymous(range, "-"),
                    2 => anonymous(range, "r"),
                    _ => anonymous(range, "rw"),
                });
            }
            maps
        }
    }

    fn of(maps: &[Mapping], page: u64) -> Option<&Mapping> {
        maps.iter().find(|map| (map.start..map.end).contains(&page))
    }

    proptest! {
        /// Page by page: kept if the same is behind it, else gone, fresh or both.
        #[test]
        fn as_page_by_page(looks in prop::collection::vec(mappings(), 1..6)) {
            let mut cover = Cover::default();
            let mut before: Vec<Mapping> = Vec::new();
            for look in looks {
                let advanced = cover.advance(look.clone());
                for page in 0..120 {
                    let (old, new) = (of(&before, page), of(&look, page));
                    let kept = old.zip(new).is_some_and(|(old, new)| old.behind.same(&new.behind));
                    let among = |ranges: &[Range]| ranges.iter().filter(|range| range.contains(&page)).count();
                    prop_assert_eq!(among(&advanced.gone), usize::from(old.is_some() && !kept));
                    let fresh = new.is_some_and(|new| new.behind.is_anonymous()) && !kept;
                    prop_assert_eq!(among(&advanced.fresh), usize::from(fresh));
                    prop_assert_eq!(cover.part(page).map(|part| &cover.mappings()[part.mapping]), new);
                }
                before = look;
            }
        }
    }
}
