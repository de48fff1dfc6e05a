//! Memory that `mremap` has moved, known again by its content.
//!
//! A tracker does not learn of an `mremap`. It sees a mapping that is gone and another that is
//! fresh, full of bytes that would all count as written when compared with zeros. So pages of fresh
//! memory are looked up by content among recorded pages of memory that is gone. Pages that occur
//! twice there prove nothing and are left out, as are zeros. Each distance between a fresh page and
//! its equal is a proposal, and the two pages are its witness. A proposal with enough witnesses is
//! a move of everything between the first and the last. It includes adjoining pages that are gone
//! here and fresh there: the first page of a buffer that `realloc` has moved always differs,
//! because its length stands there.
//!
//! Not found is a move of which no page stayed as it was. A program that frees a buffer and fills a
//! new one with the same bytes is taken to have moved it. Comparing contents cannot tell the two
//! apart.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

use crate::cover::Range;
use crate::diff::PAGE;
use crate::snapshot::{Before, Snapshot};

/// A move: these pages were at `from`, and are at `to` now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where they were.
    pub from: Range,
    /// Address of the first now.
    pub to: u64,
}

/// Finds what was moved from ranges that are gone to fresh ranges, whose pages are given in order.
pub fn find<'a>(
    snapshot: &Snapshot,
    gone: &[Range],
    fresh: &[Range],
    pages: impl Iterator<Item = (u64, &'a [u8; PAGE])>,
) -> Vec<Move> {
    let hasher = RandomState::new();
    // Content's hash to the address of the one page that has it.
    let mut places: HashMap<u64, Option<u64>> = HashMap::new();
    for address in gone.iter().flat_map(|range| snapshot.recorded_in(range)) {
        let Before::Recorded(bytes) = snapshot.before(address) else { continue };
        if *bytes == [0; PAGE] {
            continue;
        }
        match places.entry(hasher.hash_one(bytes)) {
            Entry::Vacant(vacant) => drop(vacant.insert(Some(address))),
            Entry::Occupied(mut twice) => drop(twice.insert(None)),
        }
    }
    if places.is_empty() {
        return Vec::new();
    }
    // Distance to the span of addresses, before the move, of its witnesses, and their number.
    let mut proposals: HashMap<u64, (Range, u64)> = HashMap::new();
    for (address, bytes) in pages {
        if let Some(&Some(was)) = places.get(&hasher.hash_one(bytes)) {
            let (span, witnesses) = proposals.entry(address.wrapping_sub(was)).or_insert((was..was, 0));
            *span = span.start.min(was)..span.end.max(was + PAGE as u64);
            *witnesses += 1;
        }
    }
    let mut proposals: Vec<_> = proposals.into_iter().collect();
    proposals.sort_by_key(|(distance, (_, witnesses))| (std::cmp::Reverse(*witnesses), *distance));
    let mut moves: Vec<Move> = Vec::new();
    for (distance, (from, witnesses)) in proposals {
        let recorded = snapshot.recorded_in(&from).count() as u64;
        let taken = moves.iter().any(|other| other.from.start < from.end && from.start < other.from.end);
        if witnesses * 4 >= recorded && !taken {
            moves.push(Move { to: from.start.wrapping_add(distance), from });
        }
    }
    let certain = moves.clone();
    moves.iter_mut().for_each(|found| found.extend(gone, fresh, &certain));
    moves
}

impl Move {
    /// Where they are now.
    pub fn target(&self) -> Range {
        self.to..self.to + (self.from.end - self.from.start)
    }

    /// Takes in what adjoins and is gone here and fresh there, and nobody else's.
    fn extend(&mut self, gone: &[Range], fresh: &[Range], certain: &[Move]) {
        let around = |ranges: &[Range], at: u64| ranges.iter().find(|range| range.contains(&at)).cloned();
        let target = self.target();
        let (Some(gone), Some(fresh)) = (around(gone, self.from.start), around(fresh, target.start)) else { return };
        let spans = |of: fn(&Move) -> Range| certain.iter().map(of).collect::<Vec<_>>();
        let (here, there) = (spans(|other| other.from.clone()), spans(Move::target));
        let below = |bound: &Range, others: &[Range], start: u64| {
            let other = others.iter().map(|other| other.end).filter(|&end| end <= start).max();
            start - bound.start.max(other.unwrap_or(0))
        };
        let above = |bound: &Range, others: &[Range], end: u64| {
            let other = others.iter().map(|other| other.start).filter(|&start| start >= end).min();
            bound.end.min(other.unwrap_or(u64::MAX)).saturating_sub(end)
        };
        let before = below(&gone, &here, self.from.start).min(below(&fresh, &there, target.start));
        let after = above(&gone, &here, self.from.end).min(above(&fresh, &there, target.end));
        self.to -= before;
        self.from = self.from.start - before..self.from.end + after;
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // A list of one range is meant.
mod tests {
    use super::*;

    const P: u64 = PAGE as u64;

    fn page(with: u64) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        bytes[..8].copy_from_slice(&with.to_ne_bytes());
        bytes
    }

    fn recorded(pages: impl IntoIterator<Item = (u64, u64)>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        pages.into_iter().for_each(|(at, with)| snapshot.record(at * P, &page(with)));
        snapshot
    }

    fn found(snapshot: &Snapshot, gone: &[Range], fresh: &[(u64, u64)]) -> Vec<Move> {
        let pages: Vec<(u64, [u8; PAGE])> = fresh.iter().map(|&(at, with)| (at * P, page(with))).collect();
        let mut ranges: Vec<Range> = Vec::new();
        for &(at, _) in fresh {
            match ranges.last_mut() {
                Some(last) if last.end == at * P => last.end += P,
                _ => ranges.push(at * P..(at + 1) * P),
            }
        }
        find(snapshot, gone, &ranges, pages.iter().map(|(at, bytes)| (*at, bytes)))
    }

    #[test]
    fn a_move_is_found_though_some_pages_changed() {
        let snapshot = recorded((10..20).map(|at| (at, 1000 + at)));
        let fresh: Vec<_> = (0..14).map(|n| (100 + n, if n % 3 == 0 { 7 } else { 1010 + n })).collect();
        let gone = 10 * P..20 * P;
        assert_eq!(found(&snapshot, &[gone], &fresh), [Move { from: 10 * P..20 * P, to: 100 * P }]);
    }

    #[test]
    fn two_neighbours_may_go_to_two_places() {
        let snapshot = recorded((10..20).map(|at| (at, 1000 + at)));
        let fresh: Vec<_> = (10..15).map(|n| (n + 290, 1000 + n)).chain((15..20).map(|n| (n + 90, 1000 + n))).collect();
        let mut moves = found(&snapshot, &[10 * P..20 * P], &fresh);
        moves.sort_by_key(|found| found.from.start);
        let expected = [Move { from: 10 * P..15 * P, to: 300 * P }, Move { from: 15 * P..20 * P, to: 105 * P }];
        assert_eq!(moves, expected);
    }

    #[test]
    fn what_is_everywhere_proves_nothing() {
        let snapshot = recorded((10..20).map(|at| (at, 5)));
        assert_eq!(found(&snapshot, &[10 * P..20 * P], &[(100, 5), (101, 5), (102, 0)]), []);
    }
}
