//! A head's bytes.
//!
//! ```text
//!  0  type │ stored, derived or new │ …     8  segments of the first side │ of the second (4 each)    16  dropped
//! 24  entries: place │ checksum │ bound │ items │ bytes (8, 8, 8, 4, 4)
//!     of what is not written yet: segments whose place is 0, then what is dropped:
//!     place, checksum and bytes (8 each)
//! ```

use super::{Body, Gone, Open, Part, Segments, Side, Working, form, is_hashed};
use crate::layout::{At, LARGE, MAX_OBJECT, NODE_SHIFT, PIECE_HEADER, UNIT, class_bytes, class_of, word};
use crate::object::{HEADER, Object, Type};
use std::rc::Rc;

/// Bytes of a head before its entries, of each entry, and of each place that is not listed any
/// more.
const HEAD: usize = 24;
const ENTRY: usize = 32;
const DROPPED: usize = 24;
/// A head's second byte: it is written; it is to go in place of the head whose places it has
/// dropped; it is new.
const STORED: u8 = 2;
const DERIVED: u8 = 1;
const NEW: u8 = 0;

/// The type of the value that an object has, which may be in segments.
pub fn type_of(object: &Object) -> Type {
    match object.kind() {
        Type::Parts => object.value().first().and_then(|&byte| Type::of(byte)).unwrap_or(Type::Parts),
        kind => kind,
    }
}

/// The places that a head lists, and the bytes of each segment's object.
pub(crate) fn listed(head: &Object, node: u8) -> Vec<(At, u32, u64)> {
    let (bytes, node) = (head.value(), u64::from(node) << NODE_SHIFT);
    if head.kind() != Type::Parts || bytes.len() < HEAD {
        return Vec::new();
    }
    let entries = bytes[HEAD..].chunks_exact(ENTRY).take(entries(bytes));
    let place = |entry: &[u8]| (node | word(entry, 0), HEADER as u32 + (word(entry, 3) >> 32) as u32, word(entry, 1));
    entries.filter(|entry| word(entry, 0) != 0).map(place).collect()
}

fn entries(head: &[u8]) -> usize {
    let counts = word(head, 1);
    (counts as u32 as usize).saturating_add((counts >> 32) as usize)
}

/// Whether bytes are a head as it lies at a node. See [`super::form`].
pub(super) fn is_head(bytes: &[u8]) -> bool {
    let Some(kind) = bytes.first().and_then(|&byte| Type::of(byte)) else { return false };
    let is_collection = matches!(kind, Type::List | Type::Set | Type::Hash | Type::SortedSet | Type::Stream);
    let is_whole = entries(bytes).checked_mul(ENTRY).is_some_and(|len| HEAD + len == bytes.len());
    if !is_collection || !is_whole || bytes[1] != STORED || word(bytes, 2) != 0 {
        return false;
    }
    let (first, second) = bytes[HEAD..].split_at(word(bytes, 1) as u32 as usize * ENTRY);
    match items(kind, 0, first) {
        // A stream may have no entries, and always has something beside them.
        None if kind == Type::Stream => first.is_empty() && items(kind, 1, second).is_some(),
        Some(_) if kind == Type::Stream => items(kind, 1, second).is_some(),
        None => false,
        // Each member is on both sides.
        there if kind == Type::SortedSet => items(kind, 1, second) == there,
        Some(_) => second.is_empty(),
    }
}

/// How many items the entries of a side have together. `None`: they are no side.
fn items(kind: Type, side: usize, entries: &[u8]) -> Option<u64> {
    let (mut items, mut before) = (0, None);
    for entry in entries.chunks_exact(ENTRY) {
        let [place, _, bound, sizes] = [0, 1, 2, 3].map(|n| word(entry, n));
        let (count, len) = (sizes as u32, sizes >> 32);
        let is_place = place != 0 && place >> NODE_SHIFT == 0 && place.is_multiple_of(UNIT);
        // Lengths are what a node says: room is made for no more than a store writes.
        let has_items = count > 0 && (1..=MAX_OBJECT).contains(&len);
        let in_order = match before {
            None => !is_hashed(kind, side) || bound == 0,
            // A scan goes on from bound to bound, and some clients take only numbers with a sign.
            Some(before) if is_hashed(kind, side) => before < bound && bound <= i64::MAX as u64,
            Some(before) => before <= bound,
        };
        if !is_place || !has_items || !in_order || form::least(kind, count) > len {
            return None;
        }
        (items, before) = (items + u64::from(count), Some(bound));
    }
    before.map(|_| items)
}

/// Bytes of a value that is in segments, as one object would have it.
pub(crate) fn len(head: &Object) -> u64 {
    let bytes = head.value();
    let listed = bytes.get(HEAD..).unwrap_or_default().chunks_exact(ENTRY);
    let own = if type_of(head) == Type::Stream { entries(bytes) } else { word(bytes, 1) as u32 as usize };
    listed.take(own).map(|entry| word(entry, 3) >> 32).sum()
}

/// Bytes of the objects of a value that is in segments.
pub(crate) fn taken(head: &Object) -> u64 {
    u64::from(head.len()) + listed(head, 0).into_iter().map(|(_, len, _)| u64::from(len)).sum::<u64>()
}

/// Bytes of the places of the segments that a head lists.
pub(crate) fn held(head: &Object) -> u64 {
    let place = |(_, len, _): (At, u32, u64)| match class_of(len.into()) {
        LARGE => (u64::from(len) + PIECE_HEADER).next_power_of_two(),
        class => class_bytes(class),
    };
    listed(head, 0).into_iter().map(place).sum()
}

/// The places that a head lists.
pub(crate) fn places(head: &Object, node: u8) -> impl Iterator<Item = At> {
    listed(head, node).into_iter().map(|(at, ..)| at)
}

impl<'a> Working<'a> {
    /// A value by its head, or by what commands have made of it. `None`: it is none.
    pub fn of(segments: &'a Segments, node: u8, object: &Object) -> Option<Working<'a>> {
        if object.kind() != Type::Parts {
            return None;
        }
        let name = (object.hash().0, object.checksum());
        let mut open = match segments.head(name) {
            Some(sides) => Open {
                kind: super::type_of(object),
                expiry: object.expiry(),
                sides,
                fresh: Vec::new(),
                dropped: Vec::new(),
                derived: true,
                changed: false,
                began: 0,
            },
            None => {
                let open = Open::decode(node, object.value(), object.expiry())?;
                if open.is_written() {
                    segments.keep_head(name, &open.sides);
                }
                open
            }
        };
        open.began = open.len();
        Some(Working::on(segments, open))
    }
}

impl Open {
    /// Whether it is as a head lists it.
    fn is_written(&self) -> bool {
        self.dropped.is_empty() && self.sides.iter().flat_map(|side| &side.parts).all(|part| part.at != 0)
    }

    pub(crate) fn decode(node: u8, bytes: &[u8], expiry: Option<u64>) -> Option<Open> {
        let node = u64::from(node) << NODE_SHIFT;
        let (kind, derived) = (Type::of(*bytes.first()?)?, *bytes.get(1)? != NEW);
        let (count, first, gone) = (entries(bytes), word(bytes, 1) as u32 as usize, word(bytes, 2) as usize);
        let mut inline = bytes.get(HEAD + count.checked_mul(ENTRY)?..)?;
        let mut sides =
            [first, count - first].map(|parts| Side { parts: Vec::with_capacity(parts), ..Side::default() });
        let mut fresh = Vec::new();
        for (n, entry) in bytes[HEAD..].chunks_exact(ENTRY).take(count).enumerate() {
            let [place, mut checksum, bound, sizes] = [0, 1, 2, 3].map(|n| word(entry, n));
            let (count, len) = (sizes as u32, (sizes >> 32) as u32);
            // Lengths are what a node says: room is made for no more than this store writes.
            if place != 0 && u64::from(len) > MAX_OBJECT {
                return None;
            }
            if place == 0 {
                let (own, rest) = inline.split_at_checked(len as usize)?;
                inline = rest;
                checksum = fresh.len() as u64;
                fresh.push(Some(Body::of(own)));
            }
            let side = &mut sides[usize::from(n >= first)];
            (side.items, side.bytes) = (side.items + count as usize, side.bytes + len as usize);
            let at = if place == 0 { 0 } else { node | place };
            side.parts.push(Part { count, len, bound, at, checksum });
        }
        if inline.len() != gone.checked_mul(DROPPED)? {
            return None;
        }
        let one = |one: &[u8]| Gone { at: word(one, 0), checksum: word(one, 1), len: word(one, 2) as u32 };
        let dropped = inline.chunks_exact(DROPPED).map(one).collect();
        Some(Open { kind, expiry, sides: Rc::new(sides), fresh, dropped, derived, changed: false, began: 0 })
    }

    /// As bytes: those of a head, with the segments that are not written yet, and the places that
    /// are not listed any more.
    pub fn encode(&self) -> Vec<u8> {
        let entries: usize = self.sides.iter().map(|side| side.parts.len()).sum();
        let inline: usize = self.unwritten().map(|body| body.len()).sum();
        let mut bytes = Vec::with_capacity(HEAD + entries * ENTRY + inline + self.dropped.len() * DROPPED);
        bytes.resize(HEAD, 0);
        (bytes[0], bytes[1]) = (self.kind as u8, if self.derived { DERIVED } else { NEW });
        bytes[1] = if self.is_written() { STORED } else { bytes[1] };
        let counts = self.sides[0].parts.len() as u64 | (self.sides[1].parts.len() as u64) << 32;
        bytes[8..16].copy_from_slice(&counts.to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.dropped.len() as u64).to_le_bytes());
        for part in self.sides.iter().flat_map(|side| &side.parts) {
            let place = part.at & ((1 << NODE_SHIFT) - 1);
            let checksum = if part.at == 0 { 0 } else { part.checksum };
            let sizes = u64::from(part.count) | u64::from(part.len) << 32;
            bytes.extend_from_slice([place, checksum, part.bound, sizes].map(u64::to_le_bytes).as_flattened());
        }
        self.unwritten().for_each(|body| bytes.extend_from_slice(body));
        for gone in &self.dropped {
            let words = [gone.at, gone.checksum, u64::from(gone.len)];
            bytes.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }
}
